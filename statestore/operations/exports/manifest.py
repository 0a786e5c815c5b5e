"""The manifest of an export: its tasks, their stores and files, and the offsets of each store.

    <target>/<application id>/exports/<export id>.json   manifests: each makes an export exist
                              files/<2>/<sha256>         contents, shared by all exports
                              uploads/<export id>.json   the lease of an export in progress
                              uploads/<export id>/<n>    a file whose checksum is not known yet
                              prunings/<token>.json      the lease of a process that removes files

Offsets have the same meaning as everywhere: those of changelogs and groups are NEXT to read, those
of positions were LAST processed.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from statestore.errors import ExportDamaged
from statestore.layout import documents
from statestore.layout.documents import (
    ApplicationName,
    Count,
    ExportName,
    FileName,
    Ordinal,
    Sha256,
    StoreName,
    TaskName,
    Text,
    TimeMs,
    Topic,
    Word,
)
from statestore.layout.snapshots import StoreOffsets
from statestore.model.ids import TaskId, TopicPartition
from statestore.operations.deployed import Deployed
from statestore.ports import Bounds, GroupOffset

VERSION = 1


class ExportedFile(msgspec.Struct, frozen=True):
    """One file of a store, under the name by which RocksDB knows it."""

    name: FileName
    size_bytes: Count
    sha256: Sha256


class ExportedStore(msgspec.Struct, frozen=True):
    """One store of a stream task; `kind` is that of the topology."""

    kind: Word
    offsets: StoreOffsets
    files: list[ExportedFile]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def position(self) -> dict[TopicPartition, int]:
        """The input offsets that were LAST processed."""
        return self.offsets.positions()


class ExportedTask(msgspec.Struct, frozen=True):
    """The stores of one stream task, all of the same commit.

    `commit_number` None: no run was in progress. `left_out`: the stores that have no files here,
    and the reason; their changelogs have them.
    """

    stream_task: TaskName
    taken_ms: TimeMs
    commit_number: Count | None
    stores: dict[StoreName, ExportedStore]
    left_out: dict[StoreName, Text] = {}

    @property
    def task_id(self) -> TaskId:
        return TaskId.parse(self.stream_task)


class LogCut(msgspec.Struct, frozen=True):
    """What the log said while the application was locked: what a clone starts from.

    `group`: rows of topic, partition, offset and metadata. `logs`: rows of topic, partition, start
    and end.
    """

    group: list[tuple[Topic, Ordinal, Count, Text]]
    logs: list[tuple[Topic, Ordinal, Count, Count]]

    def group_offsets(self) -> dict[TopicPartition, GroupOffset]:
        """The offsets that the group had committed."""
        return {TopicPartition(t, p): GroupOffset(at, text) for t, p, at, text in self.group}

    def bounds(self) -> dict[TopicPartition, Bounds]:
        """The start and the last stable offset of every topic that the application writes."""
        return {TopicPartition(t, p): Bounds(start, end) for t, p, start, end in self.logs}


class ExportManifest(msgspec.Struct, frozen=True):
    """One export. `cut` None: it was made beside a run and cannot be cloned."""

    version: Count
    export_id: ExportName
    application_id: ApplicationName
    made_ms: TimeMs
    deployed: Deployed
    tasks: list[ExportedTask]
    cut: LogCut | None = None

    def stores(self) -> Iterator["StoreOfTask"]:
        """All stores of all tasks, in order."""
        for task in self.tasks:
            for name, store in task.stores.items():
                yield StoreOfTask(task.task_id, name, store, task.taken_ms)

    def files(self) -> dict[str, int]:
        """The size of every content, by its checksum."""
        return {file.sha256: file.size_bytes for at in self.stores() for file in at.store.files}

    @property
    def size_bytes(self) -> int:
        """The size of all files; a file that several stores share counts once."""
        return sum(self.files().values())


class StoreOfTask(NamedTuple):
    """A store and the task it belongs to; `taken_ms`: when its snapshot was taken."""

    task: TaskId
    name: str
    store: ExportedStore
    taken_ms: int


def new_export_id(now_ms: int, token: str) -> str:
    """Make an id that sorts by time; `token`: eight hex digits that nobody else has."""
    made = datetime.fromtimestamp(now_ms // 1000, UTC)
    return f"{made:%Y%m%dT%H%M%S}{now_ms % 1000:03d}Z-{token}"


def made_after(export_id: str) -> int:
    """The first time, in ms, at which a new id sorts after that one."""
    made = datetime.strptime(f"{export_id[:15]}+0000", "%Y%m%dT%H%M%S%z")
    return round(made.timestamp()) * 1000 + int(export_id[15:18]) + 1


def is_export_id(text: str) -> bool:
    """Whether the text can be an id: ids become file names and times."""
    if not documents.fits(text, ExportName):
        return False
    try:
        made_after(text)
    except ValueError:
        return False
    return True


def encode_manifest(manifest: ExportManifest) -> bytes:
    """Encode a manifest as the bytes of its file."""
    return msgspec.json.encode(manifest)


def decode_manifest(data: bytes, where: str) -> ExportManifest:
    """Decode a manifest; ExportDamaged, FormatTooNew if it is not for this version."""
    return documents.decode(
        data,
        ExportManifest,
        where,
        way_out="use another export",
        version=VERSION,
        error=ExportDamaged,
    )
