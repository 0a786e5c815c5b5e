"""What was fetched of one partition and not yet returned, and the columns it becomes.

An answer brings a set of record batches, of which the last may be cut off. Batches are found by
their heads as soon as the set has come, so that the next fetch can be asked for; records are
decoded a piece of a set at a time, when they are returned. No I/O happens here.
"""

from array import array
from collections import deque
from collections.abc import Sequence
from itertools import chain
from struct import Struct
from typing import NamedTuple

from statestore.errors import MalformedRecords
from statestore.kafka.wire import codec
from statestore.kafka.wire.codec import Decoded
from statestore.model.batch import Batch, Column
from statestore.model.byte_columns import ByteColumn, Demand, MaybePacked, PackedRows
from statestore.model.ids import TopicPartition
from statestore.model.records import Header

# Of a batch (KIP-98): base offset, length, leader epoch, and the distance of its last offset.
_HEAD = Struct(">qii7xi")
_BEFORE_LENGTH = 12
_HEAD_BYTES = 61
# Batches are decoded together until they have so many bytes: few calls, and little at a time.
_PIECE_BYTES = 256 << 10


class Extent(NamedTuple):
    """Where the whole batches of a set end.

    `pieces` has for each piece the offset and the byte behind its last batch. `offset_next` and
    `epoch` are those of the last batch: where the next fetch begins, and the leader epoch there.
    """

    offset_next: int
    epoch: int
    pieces: list[tuple[int, int]]


def extent(data: bytes, piece_bytes: int = _PIECE_BYTES) -> Extent | None:
    """Find the batches of a set; None if it has no whole one.

    What is no batch ends the search, and is in the last piece: decoding it fails.
    """
    size, at, begun = len(data), 0, 0
    offset_next, epoch = -1, -1
    pieces: list[tuple[int, int]] = []
    unpack, last_start = _HEAD.unpack_from, size - _HEAD_BYTES
    while at <= last_start:
        base, length, leader_epoch, last_delta = unpack(data, at)
        end = at + _BEFORE_LENGTH + length
        if length < _HEAD_BYTES - _BEFORE_LENGTH or last_delta < 0 or base < offset_next:
            pieces.append((offset_next, size))
            return Extent(offset_next, epoch, pieces)
        if end > size:
            break
        at, offset_next, epoch = end, base + last_delta + 1, leader_epoch
        if at - begun >= piece_bytes:
            pieces.append((offset_next, at))
            begun = at
    if at > begun:
        pieces.append((offset_next, at))
    return Extent(offset_next, epoch, pieces) if pieces else None


class _RecordSet(NamedTuple):
    """A set of which some pieces are not decoded yet; `aborted`: see `codec.decode`."""

    data: memoryview
    aborted: Sequence[tuple[int, int]]
    pieces: deque[tuple[int, int]]


class Taken(NamedTuple):
    """Some records of a decoded piece: from the place `start` to `stop`, exclusive."""

    records: Decoded
    start: int
    stop: int
    offset_next: int
    size_bytes: int


class Fetched:
    """The record sets of one partition in order, and what of a decoded piece is left."""

    __slots__ = ("_asked", "_check_crc", "_left", "_place", "_sets", "size_bytes")

    def __init__(self, *, check_crc: bool) -> None:
        self._check_crc = check_crc
        self._sets: deque[_RecordSet] = deque()
        self._left: Decoded | None = None
        self._place = 0
        self._asked = Demand(), Demand()
        self.size_bytes = 0
        """How many bytes of sets are waiting, as they were fetched."""

    def __bool__(self) -> bool:
        return self._left is not None or bool(self._sets)

    def add(self, data: bytes, found: Extent, aborted: Sequence[tuple[int, int]]) -> None:
        """Append a set; `found` is its extent."""
        self._sets.append(_RecordSet(memoryview(data), aborted, deque(found.pieces)))
        self.size_bytes += len(data)

    def clear(self) -> None:
        """Drop everything."""
        self._sets.clear()
        self._left = None
        self.size_bytes = 0

    def rows(self) -> "FetchedRows":
        """Return columns to which records that are taken are appended."""
        return FetchedRows(*self._asked)

    def take(self, position: int, rows_max: int, bytes_max: int) -> Taken:
        """Return records from the offset `position` on, of one piece; perhaps none.

        About `bytes_max` of keys, values and headers, and at least one record unless the piece has
        none to give. MalformedRecords if the piece is damaged.
        """
        records = self._left
        if records is None:
            records, self._place = self._decoded(position), 0
        start, count = self._place, len(records.timestamps)
        stop = min(count, start + rows_max)
        if records.size_bytes > bytes_max:
            stop = min(stop, start + max(1, bytes_max * count // records.size_bytes))
        size_bytes = records.size_bytes * (stop - start) // max(count, 1)
        if stop < count:
            self._left, self._place = records, stop
            return Taken(records, start, stop, records.offsets[stop - 1] + 1, size_bytes)
        self._left = None
        return Taken(records, start, stop, records.next_offset, size_bytes)

    def _decoded(self, position: int) -> Decoded:
        first = self._sets[0]
        offset_next, end = first.pieces.popleft()
        if not first.pieces:
            self._sets.popleft()
            self.size_bytes -= len(first.data)
        # From the begin of the set: who aborted is known only from there on. Earlier batches are
        # passed over by their heads.
        found = codec.decode(first.data[:end], position, first.aborted, check_crc=self._check_crc)
        if found.next_offset < offset_next:
            raise MalformedRecords(f"the batches end at {found.next_offset}, not at {offset_next}")
        return found


class FetchedRows:
    """Columns of one partition, to which `add` appends records in order."""

    __slots__ = ("_headers", "_keys", "_offsets", "_times", "_values")

    def __init__(self, asked_keys: Demand, asked_values: Demand) -> None:
        """What was asked for of earlier columns of the partition."""
        self._keys = _Rows(asked_keys)
        self._values = _Rows(asked_values)
        self._times: list[int] = []
        self._offsets: list[Sequence[int]] = []
        self._headers: list[tuple[Header, ...]] = []

    def add(self, taken: Taken) -> None:
        """Append what was taken of a piece."""
        records, start, stop, *_ = taken
        self._add_headers(records, start, stop)
        self._keys.add(records.keys.part(start, stop))
        self._values.add(records.values.part(start, stop))
        self._times += _numbers(records.timestamps[start:stop])
        self._add_offsets(records.offsets[start:stop])

    def batch(self, tp: TopicPartition) -> Batch:
        """Return everything as one batch."""
        offsets = self._offsets
        return Batch(
            keys=Column(raw=self._keys.all()),
            values=Column(raw=self._values.all()),
            timestamps=self._times,
            headers=self._all_headers(),
            topic=tp.topic,
            partition=tp.partition,
            offsets=offsets[0] if len(offsets) == 1 else list(chain.from_iterable(offsets)),
        )

    def _add_headers(self, records: Decoded, start: int, stop: int) -> None:
        if records.headers is not None:
            self._headers += [()] * (len(self._times) - len(self._headers))
            self._headers += records.headers[start:stop]

    def _all_headers(self) -> list[tuple[Header, ...]] | None:
        if not any(self._headers):
            return None
        return self._headers + [()] * (len(self._times) - len(self._headers))

    def _add_offsets(self, found: "range | memoryview[int]") -> None:
        offsets = found if isinstance(found, range) else _numbers(found)
        before = self._offsets[-1] if self._offsets else None
        if isinstance(before, range) and isinstance(offsets, range) and before.stop == offsets[0]:
            self._offsets[-1] = range(before.start, offsets.stop)
        else:
            self._offsets.append(offsets)


class _Rows:
    """Keys or values: as objects if some were asked for before, else as columns.

    To make objects of a piece at once is quicker: the caches of the processor still have it. So of
    the first rows there are both, because nothing is known yet.
    """

    __slots__ = ("_asked", "_columns", "_objects", "_wanted")

    def __init__(self, asked: Demand) -> None:
        self._asked = asked
        self._wanted = asked.objects
        self._columns: list[ByteColumn] = []
        self._objects: list[bytes | None] = []

    def add(self, column: ByteColumn) -> None:
        if not self._wanted:
            self._columns.append(column)
        if self._wanted is False:
            return
        if self._objects:
            self._objects += codec.cut(column)
        else:
            self._objects = codec.cut(column)

    def all(self) -> MaybePacked:
        if self._wanted:
            return self._objects
        self._asked.objects = bool(self._asked.objects)
        objects = self._objects if self._wanted is None else None
        return PackedRows(self._columns, codec, self._asked, objects)


def _numbers(column: "memoryview[int]") -> list[int]:
    # An array makes the list in a third of the time that a memoryview takes.
    return array("q", column.tobytes()).tolist()
