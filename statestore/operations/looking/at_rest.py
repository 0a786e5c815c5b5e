"""Looks at the stores of an application beside a run or without one: rows, offsets, sizes.

Each stream task is seen in a snapshot, as it stood at its last commit. `owner.json` stays as it is.
Any reader of files that nobody writes is made here, over snapshots and exports as well: it is that
of the store's kind (stores/kinds), over one `FileSource` per stream task, for any thread.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from stat import S_ISREG
from typing import NamedTuple, Protocol

from statestore import serdes
from statestore.errors import Misuse, StateStoreError, TaskCorrupted, Unavailable, UnknownStore
from statestore.layout.folders import StateLayout
from statestore.layout.global_versions import GlobalVersions
from statestore.model.ids import TaskId, TopicPartition
from statestore.operations.deployed import (
    DeployedGlobal,
    DeployedStore,
    deployed_identity,
    made_anew,
    read_deployed,
)
from statestore.operations.environment import Environment
from statestore.operations.looking.likely_partitions import likely_partitions
from statestore.operations.looking.task_snapshots import Snapshot, Snapshots
from statestore.ports import Engine
from statestore.stores import keyvalue, offsets
from statestore.stores.file_source import FileSource
from statestore.stores.kinds.kind import AnyReader, StoreTerms
from statestore.stores.kinds.opening import reader_over
from statestore.stores.kinds.registry import GLOBAL, kind_named
from statestore.stores.specs import StoreSpec

_NAMED = 10
_AT_ONCE = 16
"""How many snapshots are taken at once."""


class StoreFiles(NamedTuple):
    """A store of one stream task as it lies on disk."""

    store: str
    task: TaskId
    size_bytes: int
    deployed: DeployedStore | None


class GlobalFiles(NamedTuple):
    """The store of a global table as it lies on disk."""

    store: str
    size_bytes: int
    deployed: DeployedGlobal | None


class Offsets(NamedTuple):
    """Where a store stands: changelog offsets NEXT to read, and input offsets LAST processed."""

    store: str
    task: TaskId
    changelog: dict[TopicPartition, int]
    position: dict[TopicPartition, int]


class StoresAtRest:
    """The stores of one application. It opens nothing until asked. Close it when done."""

    def __init__(self, environment: Environment) -> None:
        """Misuse if there is no such application."""
        self._environment = environment
        layout = self._layout = existing_application(environment.layout)
        self._snapshots = Snapshots(environment)
        self._taken: dict[TaskId, Snapshot] = {}
        self._databases = environment.databases
        self._versions = GlobalVersions(layout)
        self._deployed_seen = deployed_identity(layout)
        self.deployed = read_deployed(layout)

    def close(self) -> None:
        """Release the snapshots."""
        while self._taken:
            self._taken.popitem()[1].release()

    def files(self) -> list[StoreFiles]:
        """Return every store of every stream task on disk, without opening any."""
        return [
            StoreFiles(
                store,
                task,
                size_of(self._layout.store_dir(task, store)),
                self.deployed.stores.get(store),
            )
            for task in self._layout.tasks()
            for store in self._layout.stores(task)
        ]

    def global_files(self) -> list[GlobalFiles]:
        """Return the stores of global tables on disk, without opening any."""
        newest = self._global_version()
        if newest is None:
            return []
        found = self._versions.read(newest)
        return [
            GlobalFiles(store, size_of(newest / store), self.deployed.global_stores.get(store))
            for store in sorted({*found.stores, *found.files})
        ]

    def find(
        self, store: str, partition: int | None = None, *, kind: str = keyvalue.KIND
    ) -> list[TaskId]:
        """Return the stream tasks that have the store, if it is of that kind.

        UnknownStore and Misuse name the stores that exist. TaskCorrupted names the stream tasks
        that were deployed with the store and have no files of it (I33).
        """
        found = [task for task in self._layout.tasks() if store in self._layout.stores(task)]
        known = self.deployed.stores.get(store)
        if store in self.deployed.global_stores:
            raise Misuse(
                f"store {store!r} is that of a global table, which belongs to no stream task: "
                "`statestore stores` shows it, and its "
                f"{self.deployed.global_stores[store].origin()} has the same rows"
            )
        if known is not None and known.kind != kind:
            raise Misuse(f"store {store!r} is a {known.kind} one: this command cannot read it")
        if not found and known is not None and not known.persistent:
            raise Misuse(f"store {store!r} is in memory: it has no files to look into")
        missing = self.deployed.missing(store, found, partition)
        if missing:
            raise TaskCorrupted(
                f"store {store!r} has no files in {tasks_text(missing)} of "
                f"{self._layout.application_dir}, where it was deployed: they are gone, or no run "
                "has got there yet; start a run, which brings them up from the changelog, or name "
                "a partition that is there"
            )
        if not found:
            names = {file.store for file in self.files()} | self.deployed.stores.keys()
            names |= self.deployed.global_stores.keys()
            raise UnknownStore(
                f"no store {store!r} in {self._layout.application_dir}; "
                f"it has: {', '.join(sorted(names)) or 'none'}"
            )
        chosen = [task for task in found if partition is None or task.partition == partition]
        if not chosen:
            raise Misuse(
                f"store {store!r} has no partition {partition}; "
                f"it is in stream tasks {', '.join(map(str, found))}"
            )
        return chosen

    def likely_first(
        self, store: str, tasks: Sequence[TaskId | None], key: bytes
    ) -> Iterator[TaskId | None]:
        """Yield the stream tasks of a store, beginning with the one where the key should lie.

        If the caller goes on after that one, snapshots of all the others are taken at once, because
        each owner may let its own be waited for. None, for the store of a global table, stays None.
        """
        parted = [task for task in tasks if task is not None]
        if not parted:
            yield from tasks
            return
        count = self.deployed.partitions(store) or max(task.partition for task in parted) + 1
        likely = likely_partitions(self._environment, self.deployed, store, [key], count)
        yield from (task for task in parted if task.partition in likely)
        others = [task for task in parted if task.partition not in likely]
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            taking = [threads.submit(self.snapshot, task) for task in others]
            try:
                for task, taken in zip(others, taking, strict=True):
                    taken.result()
                    yield task
            finally:
                threads.shutdown(cancel_futures=True)

    @contextmanager
    def global_reader(self, store: str) -> Iterator[AnyReader]:
        """Read the store of a global table in bytes, as of its last refresh.

        UnknownStore if no run has made it yet.
        """
        newest = self._global_version()
        if newest is None or not (newest / store).is_dir():
            raise UnknownStore(
                f"global table {store!r} has no files in {self._versions.folder}: no run has read "
                "its rows yet; start one"
            )
        spec = GLOBAL.spec_at_rest(store, serdes.BYTES, serdes.BYTES, StoreTerms())
        engine = self._databases.read(newest / store)
        with closing(FileSource(store, engine, lambda: None)) as source:
            yield reader_over(spec, [source], str(newest / store), source.close)

    def _global_version(self) -> Path | None:
        number = self._versions.newest()
        return None if number is None else self._versions.path(number)

    @contextmanager
    def reader(self, task: TaskId, spec: StoreSpec) -> Iterator[AnyReader]:
        """Read the store of one stream task, as of its snapshot."""
        path = self.snapshot(task).store_dir(spec.name)

        def renew() -> None:
            self.snapshot(task)

        with closing(FileSource(spec.name, self._databases.read(path), renew)) as source:
            yield reader_over(spec, [source], str(path), source.close)

    def offsets(self, store: str | None = None) -> list[Offsets]:
        """Return where each store stands; all that can be read if `store` is None."""
        found = []
        for file in self.files():
            kind = self.deployed.kind(file.store)
            if file.store == store or (store is None and kind_named(kind).is_readable):
                with self.opened(file.task, file.store, kind=kind) as engine:
                    table = engine.table(offsets.TABLE)
                    where = str(self._layout.store_dir(file.task, file.store))
                    found.append(
                        Offsets(
                            file.store,
                            file.task,
                            offsets.read_offsets(table, where),
                            offsets.read_position(table, where).as_dict(),
                        )
                    )
        if store is not None:
            self.find(store, kind=self.deployed.kind(store))
        return found

    def snapshot(self, task: TaskId) -> Snapshot:
        """Return the one snapshot for all looks at this stream task.

        Unavailable if it is of another topology than the looks before, with stores made anew.
        """
        if task in self._taken:
            self._taken[task].renew()
        else:
            self._taken[task] = self._snapshots.take(task)
            self._check_same(task)
        return self._taken[task]

    def _check_same(self, task: TaskId) -> None:
        """Check that rows of the snapshot lie in the partitions that were looked for."""
        if deployed_identity(self._layout) == self._deployed_seen:
            return
        anew = made_anew(self.deployed, read_deployed(self._layout))
        for store in anew.intersection(self._layout.stores(task)):
            self._taken.pop(task).release()
            raise Unavailable(f"stream task {task}: {made_anew_text(store)}")

    @contextmanager
    def opened(self, task: TaskId, store: str, *, kind: str = keyvalue.KIND) -> Iterator[Engine]:
        """Open the database read-only, as of the snapshot; Misuse if it is of another kind."""
        path = self.snapshot(task).store_dir(store)
        engine = self._databases.read(path)
        try:
            offsets.check_format(engine.table(offsets.TABLE), kind, str(path))
            yield engine
        except StateStoreError:
            raise
        except Exception as error:
            raise engine.failure(error) or error from error
        finally:
            engine.close()


def tasks_text(tasks: Sequence[TaskId]) -> str:
    """Return the names of the stream tasks, the first ten of many."""
    named = ", ".join(map(str, tasks[:_NAMED]))
    more = f" and {len(tasks) - _NAMED} more" if len(tasks) > _NAMED else ""
    return f"stream task{'' if len(tasks) == 1 else 's'} {named}{more}"


def made_anew_text(store: str) -> str:
    """Return what became of a store that is looked into, and the way out."""
    return (
        f"store {store} was made anew meanwhile, as with another number of partitions or by a "
        "reset: begin again"
    )


def existing_application(layout: StateLayout) -> StateLayout:
    """Return the layout itself; if it has no such application, Misuse names those there are."""
    if not layout.application_dir.is_dir():
        found = [path.name for path in layout.state_dir.glob("*/") if path.is_dir()]
        raise Misuse(
            f"no application {layout.application_id!r} in {layout.state_dir}; "
            f"it has: {', '.join(sorted(found)) or 'none'}"
        )
    return layout


def size_of(folder: Path) -> int:
    """Return the bytes of all files below a folder, which its owner may be writing."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # removed since it was listed
            found = path.stat()
            total += found.st_size if S_ISREG(found.st_mode) else 0
    return total


class HeldFiles(Protocol):
    """The files of stores of one stream task, kept for their reader until they are released."""

    def store_dir(self, store: str) -> Path: ...
    def renew(self) -> None:
        """Keep them for longer; Unavailable if they are gone."""

    def release(self) -> None:
        """Let them go. Releasing twice is harmless."""


def open_reader(
    spec: StoreSpec,
    files: Sequence[HeldFiles],
    open_files: Callable[[Path], Engine],
) -> AnyReader:
    """Return a reader over the files of all these stream tasks; use `with`, or close it.

    It takes over the files, which are released here also if some cannot be opened. Misuse if they
    are of another kind of store.
    """
    name, closing = spec.name, ExitStack()
    try:
        for one in files:
            closing.callback(one.release)
        sources = []
        for one in files:
            sources.append(FileSource(name, open_files(one.store_dir(name)), one.renew))
            closing.callback(sources[-1].close)
        return reader_over(spec, sources, f"store {name!r}", closing.close)
    except BaseException:
        closing.close()
        raise
