"""Files that appear whole or not at all, and the offset files in Kafka Streams' format."""

import os
from pathlib import Path

from statestore.errors import HostFailure
from statestore.model.ids import TopicPartition

_CHECKPOINT_VERSION = 0


def publish(path: Path, data: bytes) -> None:
    """Write a file so that readers see the old bytes or the new, also after a crash."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
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


def folders_in(folder: Path) -> list[str]:
    """The names of its folders; none if it is not there."""
    try:
        with os.scandir(folder) as found:
            return [entry.name for entry in found if entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise HostFailure(
            f"cannot look into {folder}: {error.strerror}; "
            "make it readable and writable or pass another --state-dir"
        ) from error


def sync_folder(folder: Path) -> None:
    """Make renames in `folder` outlive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
