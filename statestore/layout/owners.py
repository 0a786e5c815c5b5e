"""Ownership of folders: the owner holds the folder's `.lock` and is named in `owner.json` (E10).

`owner.json` has an epoch that rises with every claim. Where file locks do not work
(`statestore.volume.locks=false`), the last process to write `owner.json` is the owner. A former
owner may go on for a while, until `still_ours` tells it, so the new owner must not use the files
that it has open (`Owner.in_place`). See SEMANTICS E10.

Keeps I5.
"""

import errno
import functools
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import filelock
import msgspec

from statestore.errors import HostFailure, InvalidSetting, Locked
from statestore.faults import CrashPoint, reach
from statestore.layout import documents
from statestore.layout.documents import Count, Number, Text, TimeMs
from statestore.layout.files import publish
from statestore.ports import Clock

_log = logging.getLogger(__name__)
STORES = "rocksdb"
_TELL_AFTER_MS = 1000
"""A wait for a lock that takes longer than this is told."""
_NEVER = -1
# That of processes in no container (PROC_PID_INIT_INO): owner.json has what older versions wrote.
_FIRST_NAMESPACE = "pid:[4026531836]"
# The errors of a volume without file locks; some network volumes report that none is available.
NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP})


class Owner(msgspec.Struct, frozen=True):
    """The process that claimed a folder, as stored in `owner.json`.

    `in_place` is True if it continues in the folder of the last owner. Otherwise it works in a new
    folder, once that exists.
    """

    epoch: Count
    host: Text
    boot_id: Text
    pid: Count
    since_ms: TimeMs
    started_ticks: Number
    released: bool = False
    in_place: bool = True

    @classmethod
    def of_this_process(cls, epoch: int, now_ms: int, *, in_place: bool = True) -> "Owner":
        """Return this process as the owner that claimed something now."""
        return cls(
            epoch=epoch,
            host=socket.gethostname(),
            boot_id=_boot_id(),
            pid=os.getpid(),
            since_ms=now_ms,
            started_ticks=_started_ticks(os.getpid()) or 0,
            in_place=in_place,
        )

    def describe(self) -> str:
        """Return the process, host and epoch as a text."""
        return f"process {self.pid} on {self.host}, epoch {self.epoch}"

    def is_here(self) -> bool:
        """Return whether its process runs, or ran, on this host since this boot.

        A process in another container is elsewhere: its number says nothing here.
        """
        return (self.host, self.boot_id) == (socket.gethostname(), _boot_id())

    def provably_dead(self) -> bool:
        """Return whether it released the folder, or ran here (`is_here`) and is gone."""
        if self.released:
            return True
        if not self.is_here():
            return False
        return _started_ticks(self.pid) != self.started_ticks


@dataclass
class Claim:
    """A folder owned by this process; there is one owner at a time, and each raises the epoch."""

    folder: Path
    owner: Owner
    previous: Owner | None
    _lock: filelock.BaseFileLock | None = field(repr=False)
    _held: bool = field(default=True, repr=False)

    def still_ours(self) -> bool:
        """Return whether no other process has claimed the folder since.

        Only this distinguishes an expired transaction from being fenced (E5).
        """
        return read_owner(self.folder) == self.owner

    def release(self) -> None:
        """Record the release in `owner.json` and unlock. Releasing twice is harmless."""
        self._unlock(released=True)

    def abandon(self) -> None:
        """Unlock like a process that died: `owner.json` then names a process that is gone."""
        self._unlock(started_ticks=_NEVER)

    def lose(self) -> None:
        """Lose the lock without a trace, as on a volume that forgets locks; the owner goes on."""
        self._held = False
        if self._lock is not None:
            self._lock.release()

    def _unlock(self, **changes: object) -> None:
        if self._held:
            if self.still_ours():
                left = msgspec.structs.replace(self.owner, **changes)
                publish(self.folder / "owner.json", msgspec.json.encode(left))
            self.lose()


def claim(folder: Path, *, what: str, wait_ms: int, clock: Clock, locks: bool = True) -> Claim:
    """Claim `folder`, waiting up to `wait_ms`; without locks take it from its owner at once.

    Locked names the owner. Crash points claim.locked, claim.owned.
    """
    lock = _lock(folder, what, wait_ms) if locks else None
    reach(CrashPoint.CLAIM_LOCKED)
    try:
        previous = read_owner(folder)
        owner = Owner.of_this_process(
            1 if previous is None else previous.epoch + 1,
            clock.now_ms(),
            in_place=locks and (previous is None or left_for_good(folder, previous)),
        )
        publish(folder / "owner.json", msgspec.json.encode(owner))
    except BaseException:
        if lock is not None:
            lock.release()
        raise
    reach(CrashPoint.CLAIM_OWNED)
    return Claim(folder, owner, previous, lock)


def stores_name(epoch: int) -> str:
    """Return the name of the stores' folder that the owner of that epoch creates.

    The first owner's is `STORES`.
    """
    return f"{STORES}.{epoch}"


@contextmanager
def at_rest(folder: Path, *, what: str, wait_ms: int, locks: bool = True) -> Iterator[None]:
    """Keep owners out of `folder` while the caller reads it; Locked names the current owner.

    This is not a claim: `owner.json` still shows how the last owner ended. Without locks nobody can
    be kept out, and Locked is raised unless the last owner is known to be dead.
    """
    if not locks:
        owner = read_owner(folder)
        if owner is not None and not owner.provably_dead():
            raise Locked(
                f"{what} ({folder}) is owned by {owner.describe()}: let it finish or stop it; "
                "without locks (statestore.volume.locks=false) an owner that died on another host "
                "counts as alive until a later run has ended"
            )
        yield
        return
    lock = _lock(folder, what, wait_ms)
    try:
        yield
    finally:
        lock.release()


def left_for_good(folder: Path, last: Owner) -> bool:
    """Return whether no process can still write to the current stores of `folder`."""
    if not last.provably_dead():
        return False
    # It may have died before it left the folder of an owner that is still alive.
    return last.in_place or (folder / stores_name(last.epoch)).is_dir()


def _lock(folder: Path, what: str, wait_ms: int) -> filelock.BaseFileLock:
    # The lock is not bound to a thread, because any thread may close a task. There is no fallback
    # to the mere existence of a file, because a killed owner would leave the file behind.
    lock = filelock.FileLock(
        folder / ".lock",
        thread_local=False,
        fallback_to_soft=False,
    )
    poll_s, told_ms = min(0.05, max(wait_ms / 1000, 0.001)), min(wait_ms, _TELL_AFTER_MS)
    try:
        try:
            lock.acquire(timeout=told_ms / 1000, poll_interval=poll_s)
        except filelock.Timeout:
            if told_ms == wait_ms:
                raise
            line = "%s is owned by %s: waiting up to %d ms"
            _log.warning(line, what, _who(folder), wait_ms)
            lock.acquire(timeout=(wait_ms - told_ms) / 1000, poll_interval=poll_s)
    except filelock.Timeout as error:
        raise Locked(
            f"{what} ({folder}) is owned by {_who(folder)}; waited {wait_ms} ms: {_way_out(folder)}"
        ) from error
    except OSError as error:
        if error.errno in NO_LOCKS:
            raise InvalidSetting(
                f"{what}: the volume of {folder} has no file locks ({error}): set "
                "statestore.volume.locks = false, or put state.dir on a volume that has them"
            ) from error
        raise HostFailure(
            f"{what}: cannot lock {folder / '.lock'}: {error.strerror}; make the folder writable"
        ) from error
    return lock


def _who(folder: Path) -> str:
    owner = read_owner(folder)
    return "another process" if owner is None else owner.describe()


def _way_out(folder: Path) -> str:
    owner = read_owner(folder)
    ours = owner is not None and owner.is_here() and owner.pid == os.getpid()
    if owner is not None and ours and not owner.provably_dead():
        return (
            "that is this process, where another thread has it: stop the run of that thread "
            "(stop=), or end the process, then start again"
        )
    return "let it finish or stop it, then start again"


def read_owner(folder: Path) -> Owner | None:
    """Return the process that claimed `folder` last; None if there is none."""
    return documents.read(folder / "owner.json", Owner, way_out="remove it")


def _started_ticks(pid: int) -> int | None:
    """Return when a living process started, in ticks since the boot; None if it is gone.

    psutil's create_time would not do: it changes when the machine's clock is set.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *fields = stat.rpartition(")")[2].split()
    return None if state in {"Z", "X"} else int(fields[18])


@functools.cache
def _boot_id() -> str:
    """Return what process ids are told apart by: the boot, and a container's own numbering.

    Containers may have the host's name, as with the host's network, and each counts from 1.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    namespace = str(Path("/proc/self/ns/pid").readlink())
    return boot if namespace == _FIRST_NAMESPACE else f"{boot} {namespace}"
