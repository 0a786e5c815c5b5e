"""The folder grammar of the state dir, and the quarantine.

    <state.dir>/<application id>/.lock owner.json nonce topology.json relocation.json
                                 <task id>/.lock owner.json inputs.json .checkpoint rocksdb/<store>/
                                 <task id>/progress.json         advice for onlookers
                                 <task id>/rocksdb.<epoch>/<store>/     in its place (takeover.py)
                                 <task id>/<store>.position     left by Kafka Streams
                                 quarantine/<store>-<time>-<reason>/.quarantined.json

A folder belongs to whoever holds its `.lock` (owners.py). What cannot be trusted is renamed to
quarantine, and removed some days after the store restored in its place has committed (SEMANTICS
S16); nothing else is ever deleted here. `.checkpoint` and `.position` have Kafka Streams' format.
"""

import errno
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from statestore import metrics
from statestore.errors import HostFailure, Misuse
from statestore.faults import CrashPoint, reach
from statestore.layout import documents, owners
from statestore.layout.documents import Number, StoreName, TaskName, Text, TimeMs
from statestore.layout.files import folders_in, publish, sync_folder
from statestore.layout.owners import STORES, Claim
from statestore.model.ids import TaskId
from statestore.ports import Clock

QUARANTINE_RECORD = ".quarantined.json"
_EPOCH = re.compile(rf"{STORES}(?:\.([1-9][0-9]{{0,17}}))?")


class Quarantined(msgspec.Struct, frozen=True):
    """Why a store was moved away; `restored_ms`: when the one in its place first committed.

    Known by partition, not by task: a topology change may give the task another number.
    """

    store: StoreName
    partition: Number
    reason: Text
    since_ms: TimeMs
    restored_ms: TimeMs | None = None


@dataclass(frozen=True)
class StateLayout:
    """Paths of one application; creates nothing until asked."""

    state_dir: Path
    application_id: str

    @property
    def application_dir(self) -> Path:
        return self.state_dir / self.application_id

    @property
    def topology_file(self) -> Path:
        """The fingerprint of the deployed topology."""
        return self.application_dir / "topology.json"

    @property
    def nonce_file(self) -> Path:
        """What every worker must read to prove the state dir is shared (SEMANTICS T5)."""
        return self.application_dir / "nonce"

    def claim(self, *, wait_ms: int, clock: Clock, locks: bool = True) -> Claim:
        """The application itself, as `owners.claim`: Locked names who has it."""
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
        """The application claimed, and owners kept out of all its tasks and of `tasks`.

        Locked names an owner. Without locks nobody is taken over: who is not dead for sure lives.
        """
        what, application = f"application {self.application_id}", self.application_dir
        with ExitStack() as held:
            if not locks:
                held.enter_context(owners.at_rest(application, what=what, wait_ms=0, locks=False))
            held.callback(self.claim(wait_ms=wait_ms, clock=clock, locks=locks).release)
            for task in sorted({*tasks, *self.tasks()}):
                self.create(folder := self.task_dir(task))
                held.enter_context(
                    owners.at_rest(folder, what=f"task {task}", wait_ms=wait_ms, locks=locks)
                )
            yield

    def task_dir(self, task: TaskId) -> Path:
        return self.application_dir / str(task)

    def stores_dir(self, task: TaskId) -> Path:
        """Where the stores of `task` lie: what its last owner works in."""
        folders = self.stores_folders(task)
        return folders[-1] if folders else self.task_dir(task) / STORES

    def stores_folders(self, task: TaskId) -> list[Path]:
        """That folder last, and before it those that former owners were left with, oldest first."""
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
        """The tasks that have a folder, in order."""
        names = folders_in(self.application_dir)
        yield from sorted(TaskId.parse(name) for name in names if documents.fits(name, TaskName))

    def stores(self, task: TaskId) -> list[str]:
        """The stores that have a folder under `task`."""
        found = folders_in(self.stores_dir(task))
        return sorted(name for name in found if documents.fits(name, StoreName))

    def create(self, folder: Path) -> None:
        """Make `folder`; HostFailure says why it cannot be written."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise HostFailure(
                f"state dir {self.state_dir}: cannot create {folder}: {error.strerror}; "
                "make it writable or pass another --state-dir"
            ) from error

    def position_files(self, task: TaskId, store: str) -> tuple[Path, Path]:
        """Where a `.position` file may lie: as Kafka Streams has it, as KIP-892 puts it."""
        beside = self.task_dir(task) / f"{store}.position"
        return beside, self.store_dir(task, store) / ".position"

    def quarantine(self, path: Path, store: str, reason: str, clock: Clock) -> Path:
        """Rename a store's folder out of the way, over nothing; returns where it went."""
        folder = self.application_dir / "quarantine"
        self.create(folder)
        time_ms = clock.now_ms()
        task = path.parents[1].name
        # On a full volume the folder is still moved; without a record it is only never removed.
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
                # The same store of another partition went there in this millisecond.
                time_ms += 1
            else:
                break
        sync_folder(folder)
        reach(CrashPoint.QUARANTINE_RENAMED)
        metrics.count_quarantine(store, reason)
        return target

    def quarantined(self) -> Iterator[tuple[Path, Quarantined]]:
        """The folders in quarantine that have a readable record, in order of name."""
        for path in sorted((self.application_dir / "quarantine").glob(f"*/{QUARANTINE_RECORD}")):
            record = None
            with suppress(HostFailure):
                record = documents.read(path, Quarantined, way_out="remove it")
            if record is not None:
                yield path.parent, record

    def mark_restored(self, folder: Path, record: Quarantined, now_ms: int) -> None:
        """The store restored in place of the one in `folder` has committed: the days count."""
        marked = msgspec.structs.replace(record, restored_ms=now_ms)
        publish(folder / QUARANTINE_RECORD, msgspec.json.encode(marked))

    def sweep_quarantine(self, retention_ms: int, now_ms: int) -> list[Path]:
        """Remove what was restored and committed to longer ago than that; returns the folders."""
        due = [
            folder
            for folder, record in self.quarantined()
            if record.restored_ms is not None and record.restored_ms + retention_ms <= now_ms
        ]
        for folder in due:
            try:
                for path in folder.iterdir():
                    # The record goes last, so that a sweep cut short is taken up by the next.
                    if path.name != QUARANTINE_RECORD:
                        shutil.rmtree(path) if path.is_dir() else path.unlink()
                (folder / QUARANTINE_RECORD).unlink()
                folder.rmdir()
            except OSError as error:
                raise HostFailure(f"cannot remove {folder}: {error.strerror}") from error
        return due


def check_store_name(name: str) -> str:
    """The name itself, or Misuse: names are folder and topic names (SEMANTICS T1)."""
    if not documents.fits(name, StoreName):
        raise Misuse(f"store name {name!r}: want 1 to 200 of A-Z a-z 0-9 . _ - and no dot in front")
    return name
