"""Opening and atomic writing of files, and offset files in Kafka Streams' format.

Whoever can write to a state dir or a target can put a FIFO, a device or a file without end there.
All files in them are opened here, or with `opener`, so that nobody waits for these.

Keeps I10.
"""

import errno
import os
import shutil
import stat
from pathlib import Path

from statestore.errors import HostFailure
from statestore.model.ids import TopicPartition

_CHECKPOINT_VERSION = 0
_OFFSETS_MAX = 64 << 20
_PARTITION_MAX = (1 << 31) - 1
_OFFSET_MAX = (1 << 63) - 1
_REMOVE_TRIES = 100


class NotAFile(OSError):
    """A FIFO, a device or a socket is where a file should be."""


def opener(path: str, flags: int) -> int:
    """Open a regular file and never wait; for `open(…, opener=opener)`. OSError for other files."""
    handle = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o666)
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return handle
    os.close(handle)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise NotAFile(errno.EINVAL, "it is a FIFO or a device, no file", path)


def read_whole(path: Path | str, bytes_max: int) -> bytes:
    """Return the content of a regular file; OSError if it is none, or larger than `bytes_max`."""
    with open(path, "rb", opener=opener) as file:
        size = os.fstat(file.fileno()).st_size
        if size > bytes_max:
            what = f"it has {size} bytes, and at most {bytes_max} can be right"
            raise OSError(errno.EFBIG, what, str(path))
        return file.read(size)


def write_whole(path: Path, data: bytes) -> None:
    """Write a regular file, which readers may see half written; OSError if it cannot be."""
    with open(path, "wb", opener=opener) as file:
        file.write(data)


def publish(path: Path, data: bytes) -> None:
    """Write a file durably so that readers see either the old bytes or the new, even in a crash."""
    _publish(path, data, synced=True)


def publish_unsynced(path: Path, data: bytes) -> None:
    """As `publish`, but a power failure may leave the file empty: for what nobody needs after one.

    It does not wait for the disk, which may take a second while much is written to it.
    """
    _publish(path, data, synced=False)


def _publish(path: Path, data: bytes, *, synced: bool) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb", opener=opener) as file:
            file.write(data)
            if synced:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
        if synced:
            sync_folder(path.parent)
    except OSError as error:
        raise HostFailure(
            f"cannot write {path}: {error.strerror}; free space or fix the volume"
        ) from error


def write_checkpoint(task_dir: Path, offsets: dict[TopicPartition, int]) -> None:
    """Write the `.checkpoint` file, version 0.

    It has a line with the version, a line with the number of partitions, and then lines of the
    form `topic partition offset` (SEMANTICS S5).
    """
    lines = [str(_CHECKPOINT_VERSION), str(len(offsets))]
    lines += [f"{tp.topic} {tp.partition} {offset}" for tp, offset in sorted(offsets.items())]
    publish(task_dir / ".checkpoint", ("\n".join(lines) + "\n").encode())


def read_checkpoint(task_dir: Path) -> dict[TopicPartition, int]:
    """Read the offsets in `.checkpoint`; {} if there is no file, HostFailure if it is malformed.

    Kafka Streams writes negative offsets where it knows none.
    """
    return read_offsets(task_dir / ".checkpoint")


def read_offsets(path: Path) -> dict[TopicPartition, int]:
    """Read the offsets in a `.checkpoint` or `.position` file, which have the same format."""
    try:
        lines = read_whole(path, _OFFSETS_MAX).decode().split("\n")
        version, count = int(lines[0]), int(lines[1])
        rows = [line.split() for line in lines[2:] if line]
        offsets = {TopicPartition(topic, int(p)): int(offset) for topic, p, offset in rows}
        for tp, offset in offsets.items():
            if not (0 <= tp.partition <= _PARTITION_MAX and abs(offset) <= _OFFSET_MAX):
                raise ValueError(f"no broker has offset {offset} of {tp}")
        if version != _CHECKPOINT_VERSION or not len(rows) == len(offsets) == count:
            raise ValueError(f"version {version}, {len(offsets)} of {count} partitions")
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise HostFailure(
            f"cannot read {path}: {error.strerror}: remove it: stores that manage their offsets do "
            "not need it"
        ) from error
    except (ValueError, IndexError) as error:
        raise HostFailure(
            f"{path} is not a version {_CHECKPOINT_VERSION} checkpoint ({error}); "
            "remove it: stores that manage their offsets do not need it"
        ) from error
    return offsets


def folders_in(folder: Path) -> list[str]:
    """Return the names of the folders in `folder`; [] if it does not exist."""
    try:
        with os.scandir(folder) as found:
            return [entry.name for entry in found if entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise HostFailure(
            f"cannot list {folder}: {error.strerror}; "
            "make it readable and writable or pass another --state-dir"
        ) from error


def remove(path: Path, then: str) -> None:
    """Remove a file or a folder; of a link, as to another volume, also what it leads to.

    HostFailure if it cannot be removed; `then` says what to do once that is possible.
    """
    try:
        there = path.resolve()
        if there.is_dir():
            _remove_tree(there)
        if path.is_symlink() or path.is_file():
            path.unlink()
    except OSError as error:
        raise HostFailure(
            f"cannot remove {path}: {error.strerror}; make it writable, then {then}"
        ) from error


def _remove_tree(folder: Path) -> None:
    """Remove a folder, in which a reader may ask for a snapshot, or cease to, meanwhile."""
    for left in reversed(range(_REMOVE_TRIES)):
        try:
            shutil.rmtree(folder)
        except OSError as error:
            if not left or error.errno not in {errno.ENOTEMPTY, errno.ENOENT}:
                raise
        if not folder.is_dir():
            return


def sync_folder(folder: Path) -> None:
    """Make renames in `folder` survive a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
