"""Owners of a folder: whoever holds its `.lock`, as `owner.json` says (SEMANTICS E10).

`owner.json` carries an epoch that rises with every claim.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import filelock
import msgspec

from statestore.errors import HostFailure, Locked
from statestore.faults import CrashPoint, reach
from statestore.layout.files import publish
from statestore.ports import Clock


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
