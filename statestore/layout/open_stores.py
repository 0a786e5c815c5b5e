"""Whether a database is open, told by RocksDB's own lock, without opening it.

The lock of a task's folder keeps out owners. `open_store` does not take it, and may have been given
a store of an application: only RocksDB's file `LOCK` tells of it. Nobody may move or remove such a
folder, because the process that has it open would write into files that are no longer its store.

POSIX locks belong to a process. A second handle of the process that holds one takes it as well, and
gives it up for both when it is closed; so a lock of this process is found by its open files.
"""

import errno
import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from statestore.errors import HostFailure, Locked
from statestore.layout.owners import NO_LOCKS

_HELD = {errno.EACCES, errno.EAGAIN}


def check_closed(folders: Iterable[Path]) -> None:
    """Raise Locked for the first of these stores that any process has open, this one included."""
    opened = set(_files_of_this_process())
    for folder in folders:
        with suppress(FileNotFoundError):
            found = (folder / "LOCK").stat()
            if (found.st_dev, found.st_ino) in opened:
                raise _is_open(folder, "this process")
        with kept_closed(folder):
            pass


def is_closed(folder: Path) -> bool:
    """Return whether no process has this store open."""
    try:
        check_closed([folder])
    except Locked:
        return False
    return True


@contextmanager
def kept_closed(folder: Path) -> Iterator[None]:
    """Keep other processes from opening a store; Locked if one has it open.

    This process must not have it open. A folder without a database, or on a volume without locks,
    is not locked.
    """
    try:
        handle = os.open(folder / "LOCK", os.O_RDWR)
    except (FileNotFoundError, NotADirectoryError):
        yield
        return
    except OSError as error:
        raise HostFailure(
            f"cannot open {folder / 'LOCK'}: {error.strerror}; make it writable"
        ) from error
    try:
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _HELD:
                raise _is_open(folder, "another process") from error
            if error.errno not in NO_LOCKS:
                raise HostFailure(f"cannot lock {folder}: {error.strerror}") from error
        yield
    finally:
        os.close(handle)


def _is_open(folder: Path, where: str) -> Locked:
    return Locked(
        f"the store {folder} is open in {where}, as by open_store(): close it there, then repeat "
        "this"
    )


def _files_of_this_process() -> Iterator[tuple[int, int]]:
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # That of the listing itself is closed by now.
            found = path.stat()
            yield found.st_dev, found.st_ino
