"""The commits after a snapshot, from the owner of a stream task to the holder of the snapshot.

<task id>/snapshots/<id>/.commits/<n>      the n-th commit after the snapshot, in one file
                                  ended    no further commit comes, and whether one is missing

Each file appears by one rename and holds a whole commit of all stores of the task, so that a copy
which applies the files in turn is always as of one commit. The reader removes what it has applied.
Nothing is synced to disk: after a crash there is a new owner, and the reader takes a new snapshot.

Keeps I39.
"""

import os
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path

import msgspec

from statestore.errors import UNREADABLE, HostFailure
from statestore.layout.documents import Count, StoreName, TimeMs
from statestore.layout.files import read_whole, write_whole
from statestore.model.decoders import msgpack_decoder

Rows = dict[bytes, bytes | None]
Spans = dict[str, list[tuple[bytes, bytes]]]
_FOLDER = ".commits"
_ENDED = "ended"
_COMPLETE = b"complete"
WAITING_MAX_BYTES = 256 << 20
"""A feed ends when its reader has left more than this unread."""


class StoreWrites(msgspec.Struct, frozen=True, array_like=True):
    """One batch of a store: for each table, ranges to delete first, then rows; None deletes."""

    store: StoreName
    writes: dict[str, Rows]
    ranges: Spans = {}

    @classmethod
    def encoded(
        cls,
        store: str,
        writes: Mapping[str, Mapping[bytes, bytes | None]],
        ranges: Mapping[str, Sequence[tuple[bytes, bytes]]] | None,
    ) -> msgspec.Raw:
        """Encode a batch as it is now, because its rows may be cleared afterwards."""
        # All rows that the library writes are in dicts, which need no copy.
        rows = {name: row if type(row) is dict else dict(row) for name, row in writes.items()}
        spans = {name: list(each) for name, each in (ranges or {}).items()}
        return msgspec.Raw(msgspec.msgpack.encode(cls(store, rows, spans)))


class FedCommit(msgspec.Struct, frozen=True, array_like=True):
    """One commit of a stream task: its number, its time, and the batches of its stores in order."""

    number: Count
    committed_ms: TimeMs
    batches: list[StoreWrites]


class _Encoded(msgspec.Struct, frozen=True, array_like=True):
    number: int
    committed_ms: int
    batches: list[msgspec.Raw]


def encoded_commit(number: int, committed_ms: int, batches: list[msgspec.Raw]) -> bytes:
    """Encode a `FedCommit` from batches that are encoded already."""
    return msgspec.msgpack.encode(_Encoded(number, committed_ms, batches))


class FeedEnd(Enum):
    """How a feed has ended: the copy is what the stores are, or a new snapshot is needed."""

    COMPLETE = "complete"
    BROKEN = "broken"


class FeedWriter:
    """The owner's side of one feed."""

    def __init__(self, snapshot: Path) -> None:
        """`snapshot`: its folder, before it is published or after."""
        self._folder = snapshot / _FOLDER
        self._next = 1
        self._waiting: deque[tuple[int, int]] = deque()
        self._waiting_bytes = 0

    def begin(self) -> None:
        """Create the folder, before the snapshot is published."""
        try:
            self._folder.mkdir()
        except OSError as error:
            raise HostFailure(f"cannot create {self._folder}: {error.strerror}") from error

    def published_in(self, snapshot: Path) -> None:
        """Go on in the folder of the published snapshot."""
        self._folder = snapshot / _FOLDER

    def append(self, data: bytes) -> bool:
        """Publish one commit. Return False if the feed is over because nobody reads it."""
        while self._waiting and not self._path(self._waiting[0][0]).exists():
            self._waiting_bytes -= self._waiting.popleft()[1]
        if self._waiting_bytes + len(data) > WAITING_MAX_BYTES:
            self.end()
            return False
        path = self._path(self._next)
        temporary = self._folder / ".next"
        try:
            write_whole(temporary, data)
            temporary.rename(path)
        except OSError:
            # The reader released its snapshot, or the volume is full, which the task itself will
            # notice. In either case the reader must not take this feed for a complete one.
            self.end()
            return False
        self._waiting.append((self._next, len(data)))
        self._waiting_bytes += len(data)
        self._next += 1
        return True

    def end(self, *, complete: bool = False) -> None:
        """Tell the reader that no commit follows; a reader that has gone is not told.

        `complete`: the stores are as of the last commit that was sent.
        """
        with suppress(OSError):
            write_whole(self._folder / _ENDED, _COMPLETE if complete else b"")

    def _path(self, number: int) -> Path:
        return self._folder / str(number)


class FeedReader:
    """The side of the holder of a snapshot."""

    def __init__(self, snapshot: Path) -> None:
        self._folder = str(snapshot / _FOLDER)
        self._next = 1

    def next(self) -> FedCommit | None:
        """Return the next commit, and remove its file; None if there is none yet.

        HostFailure if the file cannot be read: then take a new snapshot.
        """
        path = f"{self._folder}/{self._next}"
        try:
            data = read_whole(path, WAITING_MAX_BYTES)
            os.unlink(path)  # noqa: PTH108  # called hundreds of times a second
        except FileNotFoundError:
            return None
        except OSError as error:
            raise HostFailure(f"cannot read {path}: {error.strerror}") from error
        try:
            commit = msgpack_decoder(FedCommit).decode(data)
        except UNREADABLE as error:
            raise HostFailure(f"{path} is not a commit: {error}") from error
        self._next += 1
        return commit

    def end(self) -> FeedEnd | None:
        """Return how the feed has ended; None if commits may come, or wait to be read."""
        try:
            # The owner writes its last commit before this mark.
            complete = read_whole(f"{self._folder}/{_ENDED}", len(_COMPLETE)) == _COMPLETE
        except OSError:
            return None
        if os.path.exists(f"{self._folder}/{self._next}"):  # noqa: PTH110  # as above
            return None
        return FeedEnd.COMPLETE if complete else FeedEnd.BROKEN
