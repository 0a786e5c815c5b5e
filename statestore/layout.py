"""The folder grammar of the state dir, its owners, and how files appear there atomically.

    <state.dir>/<application id>/.lock owner.json nonce topology.json
                                 <task id>/.lock owner.json .checkpoint rocksdb/<store>/
                                 <task id>/<store>.position     left by Kafka Streams
                                 quarantine/<store>-<time>-<reason>/.quarantined.json

A folder belongs to whoever holds its `.lock`; `owner.json` says who that is and carries an epoch
that rises with every claim (SEMANTICS E10). What cannot be trusted is renamed to quarantine, and
removed some days after the store restored in its place has committed (S16); nothing else is ever
deleted here. `.checkpoint` and `.position` have Kafka Streams' format.
"""

import errno
import os
import re
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import filelock
import msgspec

from statestore import metrics
from statestore.errors import HostFailure, Locked, Misuse
from statestore.faults import CrashPoint, reach
from statestore.model import TaskId, TopicPartition
from statestore.ports import Clock

STORE_NAME = re.compile(r"(?!\.)[A-Za-z0-9._-]{1,200}")
_TASK = re.compile(r"\d+_\d+")
_CHECKPOINT_VERSION = 0
_QUARANTINE_RECORD = ".quarantined.json"


class Quarantined(msgspec.Struct, frozen=True):
    """Why a store was moved away; `restored_ms`: when the one in its place first committed.

    Known by partition, not by task: a topology change may give the task another number.
    """

    store: str
    partition: int
    reason: str
    since_ms: int
    restored_ms: int | None = None


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

    def task_dir(self, task: TaskId) -> Path:
        return self.application_dir / str(task)

    def store_dir(self, task: TaskId, store: str) -> Path:
        return self.task_dir(task) / "rocksdb" / store

    def tasks(self) -> Iterator[TaskId]:
        """The tasks that have a folder, in order."""
        names = _folders_in(self.application_dir)
        yield from sorted(TaskId.parse(name) for name in names if _TASK.fullmatch(name))

    def stores(self, task: TaskId) -> list[str]:
        """The stores that have a folder under `task`."""
        return sorted(_folders_in(self.task_dir(task) / "rocksdb"))

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
            partition = TaskId.parse(task).partition if _TASK.fullmatch(task) else -1
            record = Quarantined(store, partition, reason, time_ms)
            publish(path / _QUARANTINE_RECORD, msgspec.json.encode(record))
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
        _sync_folder(folder)
        reach(CrashPoint.QUARANTINE_RENAMED)
        metrics.count_quarantine(store, reason)
        return target

    def quarantined(self) -> Iterator[tuple[Path, Quarantined]]:
        """The folders in quarantine that have a readable record, in order of name."""
        for path in sorted((self.application_dir / "quarantine").glob(f"*/{_QUARANTINE_RECORD}")):
            with suppress(FileNotFoundError, msgspec.DecodeError):
                yield path.parent, msgspec.json.decode(path.read_bytes(), type=Quarantined)

    def mark_restored(self, folder: Path, record: Quarantined, now_ms: int) -> None:
        """The store restored in place of the one in `folder` has committed: the days count."""
        marked = msgspec.structs.replace(record, restored_ms=now_ms)
        publish(folder / _QUARANTINE_RECORD, msgspec.json.encode(marked))

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
                    if path.name != _QUARANTINE_RECORD:
                        shutil.rmtree(path) if path.is_dir() else path.unlink()
                (folder / _QUARANTINE_RECORD).unlink()
                folder.rmdir()
            except OSError as error:
                raise HostFailure(f"cannot remove {folder}: {error.strerror}") from error
        return due


def check_store_name(name: str) -> str:
    """The name itself, or Misuse: names are folder and topic names (SEMANTICS T1)."""
    if not STORE_NAME.fullmatch(name):
        raise Misuse(f"store name {name!r}: want 1 to 200 of A-Z a-z 0-9 . _ - and no dot in front")
    return name


class Owner(msgspec.Struct, frozen=True):
    """Who claimed a folder, as stored in `owner.json`."""

    epoch: int
    host: str
    boot_id: str
    pid: int
    since_ms: int
    started_ticks: int
    released: bool = False

    def describe(self) -> str:
        return f"process {self.pid} on {self.host}, epoch {self.epoch}"

    def provably_dead(self) -> bool:
        """Released, or on this host and boot and its process gone."""
        if self.released:
            return True
        if (self.host, self.boot_id) != (socket.gethostname(), _boot_id()):
            return False
        return _started_ticks(self.pid) != self.started_ticks


@dataclass
class Claim:
    """A held folder: one owner at a time, its epoch one above the last owner's."""

    folder: Path
    owner: Owner
    previous: Owner | None
    _lock: filelock.BaseFileLock = field(repr=False)

    def still_ours(self) -> bool:
        """Whether nobody claimed a higher epoch since.

        Only this tells an expired transaction from a fence (E5).
        """
        current = read_owner(self.folder)
        return current is not None and current.epoch == self.owner.epoch

    def release(self) -> None:
        """Say so in `owner.json` and let go. Releasing twice is harmless."""
        if self._lock.is_locked:
            if self.still_ours():
                released = msgspec.structs.replace(self.owner, released=True)
                publish(self.folder / "owner.json", msgspec.json.encode(released))
            self._lock.release()

    def abandon(self) -> None:
        """Let go without a word, as a dead process does."""
        self._lock.release()


def claim(folder: Path, *, what: str, wait_ms: int, clock: Clock) -> Claim:
    """Take `folder`, waiting up to `wait_ms`.

    Locked names the owner. Crash points claim.locked, claim.owned.
    """
    lock = _lock(folder, what, wait_ms)
    reach(CrashPoint.CLAIM_LOCKED)
    try:
        previous = read_owner(folder)
        owner = Owner(
            epoch=1 if previous is None else previous.epoch + 1,
            host=socket.gethostname(),
            boot_id=_boot_id(),
            pid=os.getpid(),
            since_ms=clock.now_ms(),
            started_ticks=_started_ticks(os.getpid()) or 0,
        )
        publish(folder / "owner.json", msgspec.json.encode(owner))
    except BaseException:
        lock.release()
        raise
    reach(CrashPoint.CLAIM_OWNED)
    return Claim(folder, owner, previous, lock)


@contextmanager
def at_rest(folder: Path, *, what: str, wait_ms: int) -> Iterator[None]:
    """Keep owners out of `folder` while somebody looks at it; Locked names the one in it.

    No claim: `owner.json` goes on telling how the last owner left.
    """
    lock = _lock(folder, what, wait_ms)
    try:
        yield
    finally:
        lock.release()


def _lock(folder: Path, what: str, wait_ms: int) -> filelock.BaseFileLock:
    # Not of one thread: whoever closes a task lets go of it.
    lock = filelock.FileLock(folder / ".lock", timeout=wait_ms / 1000, thread_local=False)
    try:
        lock.acquire(poll_interval=min(0.05, max(wait_ms / 1000, 0.001)))
    except filelock.Timeout as error:
        owner = read_owner(folder)
        who = "another process" if owner is None else owner.describe()
        raise Locked(
            f"{what} ({folder}) is owned by {who}; waited {wait_ms} ms: "
            "let it finish or stop it, then start again"
        ) from error
    except OSError as error:
        raise HostFailure(
            f"{what}: cannot lock {folder / '.lock'}: {error.strerror}; make the folder writable"
        ) from error
    return lock


def read_owner(folder: Path) -> Owner | None:
    """Who claimed `folder` last; None if nobody did."""
    try:
        return msgspec.json.decode((folder / "owner.json").read_bytes(), type=Owner)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise HostFailure(f"{folder / 'owner.json'} is not readable: {error}; remove it") from error


def publish(path: Path, data: bytes) -> None:
    """Write a file so that readers see the old bytes or the new, also after a crash."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        raise HostFailure(
            f"cannot write {path}: {error.strerror}; free space or fix the volume"
        ) from error


def write_checkpoint(task_dir: Path, offsets: dict[TopicPartition, int]) -> None:
    """The `.checkpoint` file, version 0.

    A version line, a count line, then `topic partition offset` (SEMANTICS S5).
    """
    lines = [str(_CHECKPOINT_VERSION), str(len(offsets))]
    lines += [f"{tp.topic} {tp.partition} {offset}" for tp, offset in sorted(offsets.items())]
    publish(task_dir / ".checkpoint", ("\n".join(lines) + "\n").encode())


def read_checkpoint(task_dir: Path) -> dict[TopicPartition, int]:
    """The offsets in `.checkpoint`, {} if there is none; HostFailure if it is not one.

    Negative ones are Kafka Streams' ways to say that it knows none.
    """
    return read_offsets(task_dir / ".checkpoint")


def read_offsets(path: Path) -> dict[TopicPartition, int]:
    """The offsets in a file of that format, `.checkpoint` or `.position`."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
        version, count = int(lines[0]), int(lines[1])
        rows = [line.split() for line in lines[2:] if line]
        offsets = {TopicPartition(topic, int(p)): int(offset) for topic, p, offset in rows}
        if version != _CHECKPOINT_VERSION or not len(rows) == len(offsets) == count:
            raise ValueError(f"version {version}, {len(offsets)} partitions of {count}")
    except FileNotFoundError:
        return {}
    except (ValueError, IndexError) as error:
        raise HostFailure(
            f"{path} is not a version {_CHECKPOINT_VERSION} checkpoint ({error}); "
            "remove it: stores that manage their offsets do not need it"
        ) from error
    return offsets


def _folders_in(folder: Path) -> list[str]:
    """The names of its folders; none if it is not there."""
    try:
        return [path.name for path in folder.iterdir() if path.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise HostFailure(
            f"cannot look into {folder}: {error.strerror}; "
            "make it readable and writable or pass another --state-dir"
        ) from error


def _started_ticks(pid: int) -> int | None:
    """When a living process began, in ticks since the boot; None if it is gone.

    Not psutil's create_time: that moves when the machine's clock is set.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *fields = stat.rpartition(")")[2].split()
    return None if state in {"Z", "X"} else int(fields[18])


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
