"""The manifest of an export: its tasks, their stores and files, and the offsets of each store.

    <target>/<application id>/exports/<export id>.json   manifests: each makes an export exist
                              files/<2>/<sha256>         contents, shared by all exports
                              uploads/<export id>.json   the lease of an export in progress
                              uploads/<export id>/<n>    a file whose checksum is not known yet
                              prunings/<token>.json      the lease of a process that removes files
                              damaged/<sha256>.<found>   a content that `exports verify` set aside,
                              damaged/….json             and what is known of it

Offsets have the same meaning as everywhere: those of changelogs and groups are NEXT to read, those
of positions were LAST processed.
"""

import hashlib
from collections import Counter
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
FUTURE_MS = 86_400_000
"""How far ahead of this machine's clock a time in a manifest may be."""
FILE_BYTES_MAX = 1 << 40
"""More than any file of a store has."""
_SHA256_OF_NOTHING = hashlib.sha256(b"").hexdigest()


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


class InputMark(msgspec.Struct, frozen=True):
    """By what the group's offset of an input is found again in a copy of the topic.

    `digests`: of the last records before the offset (`marks.digest_of`), oldest first. `since_ms`:
    the earliest of their times. `offset_last`: where the last of them lies; None if there is none.
    `whole`: there is no record before them.
    """

    topic: Topic
    partition: Ordinal
    offset_last: Count | None
    since_ms: TimeMs
    whole: bool
    digests: list[Word]


class LogCut(msgspec.Struct, frozen=True):
    """What the log said while the application was locked: what a clone, or a move, starts from.

    `group`: rows of topic, partition, offset and metadata. `logs`: rows of topic, partition, start
    and end. `marks`: of all inputs with an offset; None: the export was not made for a move.
    """

    group: list[tuple[Topic, Ordinal, Count, Text]]
    logs: list[tuple[Topic, Ordinal, Count, Count]]
    marks: list[InputMark] | None = None

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


def decode_manifest(
    data: bytes, where: str, *, application_id: str, export_id: str, now_ms: int
) -> ExportManifest:
    """Decode the manifest that has this name; ExportDamaged, FormatTooNew if it is not for us.

    Its values are compared with its name, with each other and with the time.
    """
    manifest = documents.decode(
        data,
        ExportManifest,
        where,
        way_out="use another export",
        version=VERSION,
        error=ExportDamaged,
    )
    named = (manifest.application_id, manifest.export_id)
    problem = (
        f"it is the manifest of export {named[1]} of {named[0]}"
        if named != (application_id, export_id)
        else _problem_of(manifest, now_ms)
    )
    if problem is not None:
        raise ExportDamaged(f"{where} is not what an export wrote: {problem}; use another export")
    return manifest


def _problem_of(manifest: ExportManifest, now_ms: int) -> str | None:
    """Say which value cannot be right, if any."""
    times = {"made_ms": manifest.made_ms, "export_id": made_after(manifest.export_id) - 1}
    times |= {f"taken_ms of task {task.stream_task}": task.taken_ms for task in manifest.tasks}
    for name, at_ms in times.items():
        if at_ms > now_ms + FUTURE_MS:
            said = datetime.fromtimestamp(at_ms // 1000, UTC)
            return (
                f"{name} says {said:%Y-%m-%d %H:%M} UTC, which is in the future: set this "
                "machine's clock if it is slow, else remove that file"
            )
    tasks = [task.stream_task for task in manifest.tasks]
    if twice := _named_twice(tasks):
        return f"task {twice} is there twice"
    sizes: dict[str, int] = {}
    for at in manifest.stores():
        store = f"store {at.name!r} of task {at.task}"
        if twice := _named_twice([file.name for file in at.store.files]):
            return f"file {twice} of {store} is there twice"
        for file in at.store.files:
            empty = file.sha256 == _SHA256_OF_NOTHING
            if file.size_bytes > FILE_BYTES_MAX or (file.size_bytes == 0) != empty:
                return f"size_bytes of file {file.name} of {store} is {file.size_bytes}"
            if sizes.setdefault(file.sha256, file.size_bytes) != file.size_bytes:
                return (
                    f"size_bytes of file {file.name} of {store} is {file.size_bytes}, and "
                    f"{sizes[file.sha256]} elsewhere for the same content"
                )
    return None


def _named_twice(names: list[str]) -> str | None:
    return next((name for name, count in Counter(names).items() if count > 1), None)
