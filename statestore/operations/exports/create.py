"""Makes an export: snapshots of all stream tasks, the files the target lacks, then the manifest.

    lease        from now on no prune removes files      export.leased
    per task     a snapshot, then each file whose
                 content the target does not have        export.file-stored
                 the checksums found, remembered         export.stored
    publish      every file seen at the target,
                 then the manifest                       export.published

An export runs beside the application or between its runs. The stores of one task are of the same
commit, because an owner takes its snapshot between two commits. A crash may leave the stores of a
task at different commits; such a task is exported only after a run has brought them together. A
death leaves files that no manifest names.
"""

import re
import secrets
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from statestore.errors import HostFailure, Misuse, TaskCorrupted, Unavailable
from statestore.faults import CrashPoint, reach
from statestore.layout import documents, owners
from statestore.layout.activity_files import Progress, Unit
from statestore.layout.documents import Count, FileName, Sha256, Text
from statestore.layout.files import publish, read_whole
from statestore.layout.linked_files import DATA, read_linked
from statestore.layout.snapshots import Manifest, StoreOffsets
from statestore.model.ids import TaskId, TopicPartition
from statestore.operations.activities import activities_in
from statestore.operations.deployed import Deployed, read_deployed
from statestore.operations.environment import Environment
from statestore.operations.exports.catalog import SMALL, Exports, sha256_of
from statestore.operations.exports.cut import behind, take_cut
from statestore.operations.exports.leases import Upload
from statestore.operations.exports.manifest import (
    VERSION,
    ExportedFile,
    ExportedStore,
    ExportedTask,
    ExportManifest,
    LogCut,
)
from statestore.operations.exports.marks import take_cut_to_move
from statestore.operations.looking.at_rest import existing_application
from statestore.operations.looking.task_snapshots import Snapshot, Snapshots
from statestore.operations.relocation.disk import journal_file
from statestore.topology.graph import Topology

_TASKS_AT_ONCE = 4
_NOT_THERE = "it was not there: its changelog has it"
_NOT_DATA = re.compile(r"LOG|LOCK|IDENTITY|\.")
"""How the names of files begin that a database makes again, or that are not part of it."""
_CHECKSUMS = "exported.json"


class ExportReport(msgspec.Struct, frozen=True):
    """What an export holds, and how much of it was new to the target."""

    application_id: str
    export_id: str
    target: str
    stream_tasks: int
    stores: int
    left_out: dict[str, dict[str, str]]
    files: int
    bytes: int
    files_read: int
    bytes_read: int
    files_uploaded: int
    bytes_uploaded: int
    seconds: float


class Part(msgspec.Struct):
    """One stream task of an export, and how much of it was read and uploaded."""

    task: ExportedTask
    files_read: int = 0
    bytes_read: int = 0
    files_uploaded: int = 0
    bytes_uploaded: int = 0


@dataclass(frozen=True)
class Begun:
    """An export in progress: its tasks, and where files lie until their checksums are known."""

    export_id: str
    deployed: Deployed
    tasks: list[TaskId]
    upload: Upload
    since_s: float


def create_export(environment: Environment, progress: Progress | None = None) -> ExportReport:
    """Export all stores of an application, beside its run or between two runs."""
    return Export(environment, progress).create()


def create_export_for_clones(
    environment: Environment, topology: Topology, progress: Progress | None = None
) -> ExportReport:
    """Export a stopped application together with its group's offsets, so that it can be cloned.

    The application is locked meanwhile. Unavailable if its last run did not end cleanly.
    """
    return _export_at_rest(environment, partial(take_cut, environment, topology), progress)


def create_export_to_move(
    environment: Environment, topology: Topology, progress: Progress | None = None
) -> ExportReport:
    """Export a stopped application so that it can go on at another cluster, over mirrors.

    As for clones, and Unavailable if repartition topics hold anything that was not processed.
    """
    take = partial(take_cut_to_move, environment, topology)
    return _export_at_rest(environment, take, progress)


def _export_at_rest(
    environment: Environment,
    take: Callable[[list[ExportedTask]], LogCut],
    progress: Progress | None,
) -> ExportReport:
    settings = environment.settings
    settings.require("bootstrap.servers", "statestore.export.target")
    claim = existing_application(environment.layout).claim(
        wait_ms=settings.lock_wait_ms, clock=environment.clock, locks=settings.volume_locks
    )
    try:
        environment.cluster.check()  # Fail before the long work, not after it.
        return Export(environment, progress, cut=take).create()
    finally:
        claim.release()


class Export:
    """Makes one export of an application, step by step where several processes share the work.

    No broker is asked if `bootstrap.servers` is not set.
    """

    def __init__(
        self,
        environment: Environment,
        progress: Progress | None = None,
        *,
        cut: Callable[[list[ExportedTask]], LogCut] | None = None,
        ending: threading.Event | None = None,
    ) -> None:
        """Misuse if there is no such application.

        `cut` takes the cut of the whole application, after all tasks were stored. `ending`: once it
        is set, owners are waited for no longer.
        """
        environment.settings.require("application.id", "state.dir")
        self.layout = existing_application(environment.layout)
        self.exports = Exports.of(environment)
        self._progress = progress
        self._activities = activities_in(environment)
        self._cut = cut
        self._ending = ending
        self._environment = environment
        self._snapshots = Snapshots(environment)
        self._clock = environment.clock

    def create(self) -> ExportReport:
        """Make the export. After Unavailable or Locked, try again; a prune removes what is left."""
        with self.begin() as begun:
            return self.publish(begun, self.parts(begun.tasks, begun.upload.folder))

    @contextmanager
    def begin(self) -> Iterator[Begun]:
        """Hold the lease; meanwhile any processes may store `parts`, and one of them publishes."""
        since_s = self._clock.monotonic()
        deployed = self.check()
        tasks = [task for task in self.layout.tasks() if self.layout.stores(task)]
        if not tasks and self._cut is None:
            raise Misuse(
                f"application {self.layout.application_id} has no store on disk to export: "
                "its changelogs hold all there is"
            )
        with self.exports.uploading() as (export_id, upload):
            reach(CrashPoint.EXPORT_LEASED)
            yield Begun(export_id, deployed, tasks, upload, since_s)

    def parts(self, tasks: Sequence[TaskId], folder: str) -> list[Part]:
        """Take snapshots of these tasks and store what the target lacks, in any process.

        TargetNotShared, before the first byte, if this process does not see the upload in progress.
        """
        self.exports.see_upload(folder)
        deployed, contents = self.check(), self.exports.contents()
        with (
            self._activities.underway("export", Unit.BYTES, self._progress) as told,
            ThreadPoolExecutor(_TASKS_AT_ONCE, "export") as pool,
        ):
            return list(
                pool.map(lambda task: self._part(task, deployed, contents, folder, told), tasks)
            )

    def publish(self, begun: Begun, parts: Sequence[Part]) -> ExportReport:
        """Make an export of the parts; Unavailable if they do not belong together."""
        tasks = [part.task for part in parts]
        cut = None if self._cut is None else self._cut(tasks)
        if self.check() != begun.deployed:
            raise Unavailable(
                f"application {self.layout.application_id}: another topology was deployed "
                "while it was exported: export again"
            )
        tasks += self._absent(begun.deployed, {task.task_id for task in tasks})
        manifest = ExportManifest(
            VERSION,
            begun.export_id,
            self.layout.application_id,
            self._clock.now_ms(),
            begun.deployed,
            tasks,
            cut,
        )
        self.exports.publish(manifest, begun.upload)
        reach(CrashPoint.EXPORT_PUBLISHED)
        return self._report(manifest, parts, self._clock.monotonic() - begun.since_s)

    def check(self) -> Deployed:
        """What is deployed; Misuse or Unavailable if it cannot be exported now."""
        if journal_file(self.layout).exists():
            raise Unavailable(
                f"{journal_file(self.layout)}: a relocation was begun and not finished: the next "
                "start of the application finishes it; export then"
            )
        deployed = read_deployed(self.layout)
        if not deployed.fingerprint:
            raise Misuse(
                f"{self.layout.application_dir}: nothing was deployed here: run the application "
                "once, then export"
            )
        return deployed

    def _part(
        self,
        task: TaskId,
        deployed: Deployed,
        contents: dict[str, int],
        folder: str,
        told: Progress,
    ) -> Part:
        with self._snapshots.take(task, ending=self._ending) as snapshot:
            self._check_whole(task, snapshot)
            said = snapshot.manifest
            stores: dict[str, ExportedStore] = {}
            left_out = dict(said.left_out)
            as_of_ms = self._as_of_ms(task, said)
            part = Part(ExportedTask(str(task), as_of_ms, said.commit_number, stores, left_out))
            checksums = _Checksums(self.layout.task_dir(task))
            found: dict[_Known, str] = {}
            for store, offsets in said.stores.items():
                known = deployed.stores.get(store)
                if known is None or known.sub_topology != task.sub_topology:
                    left_out[store] = "the topology deployed last does not have it here"
                    continue
                # Spark may have two attempts at one task, with different files to upload.
                beside = f"{folder}/{task}-{store}-{secrets.token_hex(4)}"
                store_dir = self.layout.store_dir(task, store)
                linked = read_linked(store_dir)
                exported = {} if linked is None else {it.name: it.sha256 for it in linked.files}
                files = _Files(self, beside, contents, checksums, found, part, told, exported)
                identity = _identity_of(store_dir)
                stored = files.store(snapshot, store, identity)
                stores[store] = ExportedStore(known.kind, offsets, stored)
        for store in _persistent(deployed, task) - said.stores.keys():
            left_out.setdefault(store, _NOT_THERE)
        checksums.keep(found)
        reach(CrashPoint.EXPORT_STORED)
        return part

    def _absent(self, deployed: Deployed, there: Collection[TaskId]) -> list[ExportedTask]:
        """The stream tasks that were deployed with stores and have none of them."""
        now_ms = self._clock.now_ms()
        return [
            ExportedTask(str(task), now_ms, None, {}, dict.fromkeys(stores, _NOT_THERE))
            for task in sorted((deployed.tasks() or set()) - set(there))
            if (stores := sorted(_persistent(deployed, task)))
        ]

    def _check_whole(self, task: TaskId, snapshot: Snapshot) -> None:
        """Refuse a task whose stores are not of the same commit, or cannot be read."""
        said = snapshot.manifest
        for store in said.unreadable:
            raise TaskCorrupted(
                f"store {store!r} of task {task} is in no export: {said.left_out[store]}; the next "
                "run restores it"
            )
        if said.commit_number is not None or len(said.stores) < 2:
            return
        owner = owners.read_owner(self.layout.task_dir(task))
        first, *others = (offsets.position for offsets in said.stores.values())
        if owner is not None and owner.released and all(other == first for other in others):
            return
        # A crash left them, or they were restored and never committed to: their changelogs tell.
        if not self._environment.settings.bootstrap_servers or self._behind(task, said.stores):
            raise Unavailable(
                f"task {task} was left by a crash with stores of different commits: a run brings "
                "them together; export beside it or after it"
            )

    def _as_of_ms(self, task: TaskId, said: Manifest) -> int:
        """The time of what is exported: the last flush, if the task has died."""
        owner = owners.read_owner(self.layout.task_dir(task))
        if said.commit_number is not None or owner is None or owner.released:
            return said.taken_ms
        folder = self.layout.stores_dir(task)
        flushed = [path.stat().st_mtime_ns // 1_000_000 for path in folder.glob("*/*.sst")]
        return max(flushed, default=said.taken_ms)

    def _behind(self, task: TaskId, stores: Mapping[str, StoreOffsets]) -> bool:
        """Whether a store lacks records of its log whose effect another store has."""
        deployed, application_id = read_deployed(self.layout), self.layout.application_id
        stands: dict[TopicPartition, int] = {}
        for store, offsets in stores.items():
            log = TopicPartition(deployed.log_of(application_id, store), task.partition)
            at = offsets.offsets().get(log, 0)
            if deployed.has_changelog(store):
                stands[log] = at
            elif at <= max(other.positions().get(log, -1) for other in stores.values()):
                return True
        return bool(behind(self._environment.changelog, stands))

    def _report(
        self, manifest: ExportManifest, parts: Sequence[Part], seconds: float
    ) -> ExportReport:
        files = manifest.files()
        return ExportReport(
            manifest.application_id,
            manifest.export_id,
            self.exports.target.url,
            len(manifest.tasks),
            sum(1 for _ in manifest.stores()),
            {task.stream_task: task.left_out for task in manifest.tasks if task.left_out},
            len(files),
            sum(files.values()),
            sum(one.files_read for one in parts),
            sum(one.bytes_read for one in parts),
            sum(one.files_uploaded for one in parts),
            sum(one.bytes_uploaded for one in parts),
            round(seconds, 3),
        )


def _persistent(deployed: Deployed, task: TaskId) -> set[str]:
    """The stores that a stream task has on disk, according to what was deployed."""
    stores = deployed.stores.items()
    return {
        n for n, store in stores if store.persistent and store.sub_topology == task.sub_topology
    }


class _Known(NamedTuple):
    """One data file: the identity of its database, its number, its size and its time."""

    identity: Text
    name: FileName
    size_bytes: Count
    changed_ns: Count

    @classmethod
    def of(cls, identity: str, path: Path) -> "_Known | None":
        """Identify a file; None if its content may change under its name."""
        if path.suffix not in DATA:
            return None
        found = path.stat()
        return cls(identity, path.name, found.st_size, found.st_mtime_ns)


class _Checksums:
    """The checksums of data files from earlier exports, so that none is read a second time.

    RocksDB never changes a data file, and never uses its number again within one database. A
    database that was restored from an export may reuse a number, so a file is identified by its
    time as well. Each stream task has one small file, `<task id>/exported.json`; without it all
    data files are read again.
    """

    def __init__(self, task_dir: Path) -> None:
        self._path = task_dir / _CHECKSUMS
        self._known: dict[_Known, str] = {}
        with suppress(HostFailure):
            rows = documents.read(self._path, list[tuple[_Known, Sha256]], way_out="remove it")
            self._known = dict(rows or ())

    def get(self, known: _Known | None) -> str | None:
        """The SHA-256 of a file, if it is known."""
        return None if known is None else self._known.get(known)

    def keep(self, found: Mapping[_Known, str]) -> None:
        """Remember these checksums and forget all others, whose files are gone."""
        if dict(found) != self._known:
            publish(self._path, msgspec.json.encode(list(found.items())))


@dataclass(frozen=True)
class _Files:
    """Stores the files of one task at the target, each content once."""

    export: Export
    temporary: str
    contents: dict[str, int]
    checksums: _Checksums
    found: dict[_Known, str]
    part: Part
    told: Progress
    exported: Mapping[str, str]
    """By name, the SHA-256 of files that the store is linked to, as they were exported."""

    def store(self, snapshot: Snapshot, store: str, identity: str) -> list[ExportedFile]:
        """Store every file of a store, except those that the snapshot keeps for itself."""
        folder = snapshot.store_dir(store)
        paths = sorted(path for path in folder.iterdir() if not _NOT_DATA.match(path.name))
        sizes = {path: path.stat().st_size for path in paths}
        self.told.expect(sum(sizes.values()))
        files = []
        for nth, (path, size) in enumerate(sizes.items()):
            snapshot.renew()
            known = _Known.of(identity, path)
            sha256 = self.checksums.get(known)
            if path.is_symlink():
                sha256 = self.exported.get(path.name)
            if sha256 is None or self.contents.get(sha256) != size:
                sha256 = self._add(path, size, f"{self.temporary}-{nth}")
                if path.is_symlink() and sha256 != self.exported.get(path.name, sha256):
                    raise TaskCorrupted(
                        f"{path} is linked to {path.readlink()}, which is not what it was when it "
                        "was exported: nothing was published; a run copies it, and then restores "
                        "the store from its changelog"
                    )
            if known is not None:
                self.found[known] = sha256
            self.told.done(size)
            files.append(ExportedFile(path.name, size, sha256))
        return files

    def _add(self, path: Path, size: int, temporary: str) -> str:
        exports = self.export.exports
        self.part.files_read += 1
        self.part.bytes_read += size
        if size <= SMALL:
            data = read_whole(path, SMALL)
            sha256 = sha256_of(data)
            if self.contents.get(sha256) == size:
                return sha256
            exports.target.write(exports.content(sha256), data)
        else:
            sha256 = exports.target.put(path, temporary=temporary, name_of=exports.content)
        self.contents[sha256] = size
        self.part.files_uploaded += 1
        self.part.bytes_uploaded += size
        reach(CrashPoint.EXPORT_FILE_STORED)
        return sha256


def _identity_of(store_dir: Path) -> str:
    """The identity that RocksDB gives a database; empty if it has none."""
    with suppress(OSError):
        return read_whole(store_dir / "IDENTITY", SMALL).decode(errors="replace").strip()
    return ""
