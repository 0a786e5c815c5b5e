"""Owners of a folder: whoever holds its `.lock`, as `owner.json` says (SEMANTICS E10).

`owner.json` carries an epoch that rises with every claim. Where file locks do not work
(`statestore.volume.locks=false`) the last to write it is the owner, and a former one, told by
`still_ours`, may go on for a while: nothing it has open may be used then (`Owner.in_place`).
"""

import errno
import functools
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

STORES = "rocksdb"
_NEVER = -1
# What a volume without file locks answers; some network volumes say that none is available.
_NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP})


class Owner(msgspec.Struct, frozen=True):
    """Who claimed a folder, as stored in `owner.json`.

    `in_place`: it went on where the last owner stopped; else it works in a folder of its own, once
    that is there.
    """

    epoch: Count
    host: Text
    boot_id: Text
    pid: Count
    since_ms: TimeMs
    started_ticks: Number
    released: bool = False
    in_place: bool = True

    def describe(self) -> str:
        return f"process {self.pid} on {self.host}, epoch {self.epoch}"

    def is_here(self) -> bool:
        """Whether its process is, or was, of this host and boot."""
        return (self.host, self.boot_id) == (socket.gethostname(), _boot_id())

    def provably_dead(self) -> bool:
        """Released, or on this host and boot and its process gone."""
        if self.released:
            return True
        if not self.is_here():
            return False
        return _started_ticks(self.pid) != self.started_ticks


@dataclass
class Claim:
    """A held folder: one owner at a time, its epoch one above the last owner's."""

    folder: Path
    owner: Owner
    previous: Owner | None
    _lock: filelock.BaseFileLock | None = field(repr=False)
    _held: bool = field(default=True, repr=False)

    def still_ours(self) -> bool:
        """Whether nobody claimed it since.

        Only this tells an expired transaction from a fence (E5).
        """
        return read_owner(self.folder) == self.owner

    def release(self) -> None:
        """Say so in `owner.json` and let go. Releasing twice is harmless."""
        self._let_go(released=True)

    def abandon(self) -> None:
        """Let go as a dead process does: `owner.json` then names one that does not live."""
        self._let_go(started_ticks=_NEVER)

    def lose(self) -> None:
        """The lock is gone, as on a volume that forgets locks; the owner lives and may not know."""
        self._held = False
        if self._lock is not None:
            self._lock.release()

    def _let_go(self, **changes: object) -> None:
        if self._held:
            if self.still_ours():
                left = msgspec.structs.replace(self.owner, **changes)
                publish(self.folder / "owner.json", msgspec.json.encode(left))
            self.lose()


def claim(folder: Path, *, what: str, wait_ms: int, clock: Clock, locks: bool = True) -> Claim:
    """Take `folder`, waiting up to `wait_ms`; without locks take it from whoever has it.

    Locked names the owner. Crash points claim.locked, claim.owned.
    """
    lock = _lock(folder, what, wait_ms) if locks else None
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
    """The folder of a task's stores made by the owner of that epoch, `STORES` being the first."""
    return f"{STORES}.{epoch}"


@contextmanager
def at_rest(folder: Path, *, what: str, wait_ms: int, locks: bool = True) -> Iterator[None]:
    """Keep owners out of `folder` while somebody looks at it; Locked names the one in it.

    No claim: `owner.json` goes on telling how the last owner left. Without locks nobody is kept
    out; Locked unless the last owner is dead for sure.
    """
    if not locks:
        owner = read_owner(folder)
        if owner is not None and not owner.provably_dead():
            raise Locked(
                f"{what} ({folder}) is owned by {owner.describe()}: let it finish or stop it; "
                "without locks (statestore.volume.locks=false) one that died on another host is "
                "told by a run that ends after it"
            )
        yield
        return
    lock = _lock(folder, what, wait_ms)
    try:
        yield
    finally:
        lock.release()


def left_for_good(folder: Path, last: Owner) -> bool:
    """Whether nobody can write any more where the stores of `folder` lie now."""
    if not last.provably_dead():
        return False
    # It may have died before it left the folder of an owner that lives.
    return last.in_place or (folder / stores_name(last.epoch)).is_dir()


def _lock(folder: Path, what: str, wait_ms: int) -> filelock.BaseFileLock:
    # Not of one thread: whoever closes a task lets go of it.
    # Nor by the mere presence of a file, where there are no locks: a killed owner would leave it.
    lock = filelock.FileLock(
        folder / ".lock",
        timeout=wait_ms / 1000,
        thread_local=False,
        fallback_to_soft=False,
    )
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
        if error.errno in _NO_LOCKS:
            raise InvalidSetting(
                f"{what}: the volume of {folder} has no file locks ({error}): set "
                "statestore.volume.locks = false, or put state.dir on a volume that has them"
            ) from error
        raise HostFailure(
            f"{what}: cannot lock {folder / '.lock'}: {error.strerror}; make the folder writable"
        ) from error
    return lock


def read_owner(folder: Path) -> Owner | None:
    """Who claimed `folder` last; None if nobody did."""
    return documents.read(folder / "owner.json", Owner, way_out="remove it")


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


@functools.cache
def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
