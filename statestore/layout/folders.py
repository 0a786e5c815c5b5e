"""The folders of the state dir, and the quarantine.

    <state.dir>/<application id>/.lock owner.json nonce topology.json relocation.json
                                 <task id>/.lock owner.json inputs.json .checkpoint rocksdb/<store>/
                                 <task id>/progress.json history.jsonl        for people only
                                 <task id>/rocksdb.<epoch>/<store>/     instead (takeover.py)
                                 <task id>/rocksdb/<store>/.from-export.json
                                 <task id>/<store>.position     left by Kafka Streams
                                 works/<random>.json                          for people only
                                 quarantine/<store>-<time>-<reason>/.quarantined.json

The process that holds a folder's `.lock` owns the folder (owners.py). A store that cannot be
trusted is renamed into quarantine and removed some days after the store restored in its place has
committed (SEMANTICS S16); this module deletes no other store. A store that was restored from an
export has a note until it has all that its changelog had at that time. `.checkpoint` and
`.position` have Kafka Streams' format.

Keeps I7.
"""

import errno
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from statestore import metrics
from statestore.errors import HostFailure, Misuse
from statestore.faults import CrashPoint, reach
from statestore.layout import documents, open_stores, owners
from statestore.layout.documents import Count, Number, StoreName, TaskName, Text, TimeMs
from statestore.layout.files import folders_in, publish, remove, sync_folder
from statestore.layout.owners import STORES, Claim
from statestore.model.ids import TaskId
from statestore.ports import Clock

QUARANTINE_RECORD = ".quarantined.json"
_EPOCH = re.compile(rf"{STORES}(?:\.([1-9][0-9]{{0,17}}))?")
_EXPORT_ORIGIN = ".from-export.json"
_COPIED_MS = 5_000


class Quarantined(msgspec.Struct, frozen=True):
    """Why and when a store was moved to quarantine.

    `restored_ms` is when the store restored in its place first committed. The record has the
    partition, not the task, because a topology change may give the task another number.
    """

    store: StoreName
    partition: Number
    reason: Text
    since_ms: TimeMs
    restored_ms: TimeMs | None = None


@dataclass(frozen=True)
class StateLayout:
    """The paths of one application in the state dir.

    Reading a path creates nothing; `create`, `claim`, `alone` and `quarantine` write.
    """

    state_dir: Path
    application_id: str

    @property
    def application_dir(self) -> Path:
        return self.state_dir / self.application_id

    @property
    def topology_file(self) -> Path:
        """The path of the deployed topology's fingerprint."""
        return self.application_dir / "topology.json"

    @property
    def nonce_file(self) -> Path:
        """The path of the nonce, by which a worker proves that it sees this dir (SEMANTICS T5)."""
        return self.application_dir / "nonce"

    def claim(self, *, wait_ms: int, clock: Clock, locks: bool = True) -> Claim:
        """Claim the application with `owners.claim`; Locked names its owner."""
        return owners.claim(
            self.application_dir,
            what=f"application {self.application_id}",
            wait_ms=wait_ms,
            clock=clock,
            locks=locks,
        )

    @contextmanager
    def alone(
        self, *tasks: TaskId, wait_ms: int, clock: Clock, locks: bool = True
    ) -> Iterator[None]:
        """Claim the application and keep owners out of all its tasks and of `tasks`.

        Locked names an owner, or a store that a process has open without being one. For a task it
        waits 5 s at least, because a reader that copies its stores has the lock for a moment.
        Without locks nothing is taken over: an owner counts as alive unless it is known to be dead.
        """
        what, application = f"application {self.application_id}", self.application_dir
        with ExitStack() as held:
            if not locks:
                held.enter_context(owners.at_rest(application, what=what, wait_ms=0, locks=False))
            held.callback(self.claim(wait_ms=wait_ms, clock=clock, locks=locks).release)
            every = {*tasks, *self.tasks()}
            wait_ms = max(wait_ms, _COPIED_MS)
            held.enter_context(self.at_rest(*every, wait_ms=wait_ms, locks=locks))
            self.check_closed(self.tasks())
            yield

    @contextmanager
    def at_rest(self, *tasks: TaskId, wait_ms: int, locks: bool = True) -> Iterator[None]:
        """Keep owners out of these tasks, whose folders are created; Locked names an owner."""
        with ExitStack() as held:
            for task in sorted(tasks):
                self.create(folder := self.task_dir(task))
                held.enter_context(
                    owners.at_rest(folder, what=f"task {task}", wait_ms=wait_ms, locks=locks)
                )
            yield

    def check_closed(self, tasks: Iterable[TaskId]) -> None:
        """Raise Locked if any process has a store of these tasks open."""
        open_stores.check_closed(path for task in tasks for path in self._databases(task))

    def remove_task(self, task: TaskId, then: str) -> None:
        """Remove the folder of a task, with its stores; `then` says what to do if that fails.

        Locked if another process has one of the stores open.
        """
        with ExitStack() as kept:
            for path in self._databases(task):
                kept.enter_context(open_stores.kept_closed(path))
            remove(self.task_dir(task), then)

    def _databases(self, task: TaskId) -> Iterator[Path]:
        for folder in self.stores_folders(task):
            yield from (folder / name for name in folders_in(folder))

    def task_dir(self, task: TaskId) -> Path:
        return self.application_dir / str(task)

    def stores_dir(self, task: TaskId) -> Path:
        """Return the folder of the stores of `task`, in which its last owner works."""
        folders = self.stores_folders(task)
        return folders[-1] if folders else self.task_dir(task) / STORES

    def stores_folders(self, task: TaskId) -> list[Path]:
        """Return all folders with stores of `task`, oldest first.

        The last one is that of `stores_dir`; former owners were left with the others.
        """
        folder = self.task_dir(task)
        epochs = {
            name: int(found[1] or 0)
            for name in folders_in(folder)
            if (found := _EPOCH.fullmatch(name))
        }
        return [folder / name for name in sorted(epochs, key=epochs.__getitem__)]

    def store_dir(self, task: TaskId, store: str) -> Path:
        return self.stores_dir(task) / store

    def tasks(self) -> Iterator[TaskId]:
        """Yield the tasks that have a folder, in order."""
        names = folders_in(self.application_dir)
        yield from sorted(TaskId.parse(name) for name in names if documents.fits(name, TaskName))

    def stores(self, task: TaskId) -> list[str]:
        """Return the sorted names of the stores that have a folder under `task`."""
        found = folders_in(self.stores_dir(task))
        return sorted(name for name in found if documents.fits(name, StoreName))

    def create(self, folder: Path) -> None:
        """Create `folder`; HostFailure if it cannot be created.

        The application's own folder is for its user and group alone, as rows are in clear text.
        """
        try:
            if folder.is_relative_to(self.application_dir) and not self.application_dir.exists():
                self.state_dir.mkdir(parents=True, exist_ok=True)
                self.application_dir.mkdir(mode=0o750, exist_ok=True)
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise HostFailure(
                f"state dir {self.state_dir}: cannot create {folder}: {error.strerror}; "
                "make it writable or pass another --state-dir"
            ) from error

    def position_files(self, task: TaskId, store: str) -> tuple[Path, Path]:
        """Return the two paths of a `.position` file: that of Kafka Streams and that of KIP-892."""
        beside = self.task_dir(task) / f"{store}.position"
        return beside, self.store_dir(task, store) / ".position"

    def quarantine(self, path: Path, store: str, reason: str, clock: Clock) -> Path:
        """Rename a store's folder into quarantine, to a new name, and return its new path.

        Locked if another process has it open.
        """
        with open_stores.kept_closed(path):
            return self._quarantine(path, store, reason, clock)

    def _quarantine(self, path: Path, store: str, reason: str, clock: Clock) -> Path:
        folder = self.application_dir / "quarantine"
        self.create(folder)
        time_ms = clock.now_ms()
        task = path.parents[1].name
        # On a full volume the folder is moved without a record, and then never removed.
        with suppress(HostFailure):
            known = documents.fits(task, TaskName)
            partition = TaskId.parse(task).partition if known else -1
            record = Quarantined(store, partition, reason, time_ms)
            publish(path / QUARANTINE_RECORD, msgspec.json.encode(record))
        while True:
            target = folder / f"{store}-{time_ms}-{reason}"
            try:
                path.rename(target)
            except OSError as error:
                if error.errno not in {errno.EEXIST, errno.ENOTEMPTY}:
                    raise HostFailure(
                        f"cannot move {path} to {target}: {error.strerror}; fix the volume"
                    ) from error
                # The same store of another partition was moved there in this millisecond.
                time_ms += 1
            else:
                break
        sync_folder(folder)
        reach(CrashPoint.QUARANTINE_RENAMED)
        metrics.count_quarantine(store, reason)
        return target

    def quarantined(self) -> Iterator[tuple[Path, Quarantined]]:
        """Yield the folders in quarantine that have a readable record, in order of name."""
        for path in sorted((self.application_dir / "quarantine").glob(f"*/{QUARANTINE_RECORD}")):
            record = None
            with suppress(HostFailure):
                record = documents.read(path, Quarantined, way_out="remove it")
            if record is not None:
                yield path.parent, record

    def mark_restored(self, folder: Path, record: Quarantined, now_ms: int) -> None:
        """Record that the store restored in place of the one in `folder` has committed.

        The retention time of `folder` begins.
        """
        marked = msgspec.structs.replace(record, restored_ms=now_ms)
        publish(folder / QUARANTINE_RECORD, msgspec.json.encode(marked))

    def sweep_quarantine(self, retention_ms: int, now_ms: int) -> list[Path]:
        """Remove stores whose retention time has passed, and return their folders.

        It begins when the store restored in their place first commits. One that a process has open
        stays until the next sweep.
        """
        due = [
            folder
            for folder, record in self.quarantined()
            if record.restored_ms is not None
            and record.restored_ms + retention_ms <= now_ms
            and open_stores.is_closed(folder)
        ]
        for folder in due:
            try:
                for path in folder.iterdir():
                    # The record is removed last, so that the next sweep continues this one.
                    if path.name != QUARANTINE_RECORD:
                        shutil.rmtree(path) if path.is_dir() else path.unlink()
                (folder / QUARANTINE_RECORD).unlink()
                folder.rmdir()
            except OSError as error:
                raise HostFailure(f"cannot remove {folder}: {error.strerror}") from error
        return due


def check_store_name(name: str) -> str:
    """Return the name; Misuse if it cannot be part of folder and topic names (SEMANTICS T1)."""
    if not documents.fits(name, StoreName):
        raise Misuse(
            f"store name {name!r}: use 1 to 200 of A-Z a-z 0-9 . _ -, not beginning with a dot"
        )
    return name


class ExportOrigin(msgspec.Struct, frozen=True):
    """What a store from an export needs from its changelog, and until when.

    A changelog drops tombstones after a while. If a run started too late on a restored store,
    deleted keys would come back. From `deadline_ms` on the changelog may have dropped tombstones;
    `end` is its end at the restore.
    """

    deadline_ms: Count
    end: Count


def write_export_origin(folder: Path, origin: ExportOrigin) -> None:
    """Write the note into a store's folder, before the folder is moved into its place."""
    publish(folder / _EXPORT_ORIGIN, msgspec.json.encode(origin))


def read_export_origin(folder: Path) -> ExportOrigin | None:
    """Read the note; None if the store has none. An unreadable note counts as overdue."""
    try:
        return documents.read(
            folder / _EXPORT_ORIGIN, ExportOrigin, way_out="restore the export again"
        )
    except HostFailure:
        return ExportOrigin(0, 2**63 - 1)


def remove_export_origin(folder: Path) -> None:
    """Remove the note: the store has all that it lacked."""
    (folder / _EXPORT_ORIGIN).unlink(missing_ok=True)
