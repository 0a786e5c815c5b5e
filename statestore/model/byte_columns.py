"""Keys or values as places in a run of bytes, instead of an object for each."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

Rows = TypeVar("Rows", bound="list[Any] | PackedRows")
_ALL_VALID = 0xFF
# Up to so many gaps, or gaps of so large a part of them, columns stay columns.
_FEW, _FEW_OF = 100, 64
_MANY = 1_000


class ByteColumn(NamedTuple):
    """So many `rows`, from `first` on, of a column of bytes.

    Row i is `data[offsets[step * i] : offsets[step * i + 1]]`; the offsets are numbers of 64 bits
    in the order of the machine. With a `step` of 1, the column is in the layout of Arrow's
    LargeBinary; with 2, its rows stand anywhere in the data. Row i is null if bit i of `valid` is
    0; without `valid`, none is. Nobody changes the buffers of a column, because others may share
    them.
    """

    data: Buffer
    offsets: Buffer
    valid: Buffer | None
    first: int
    rows: int
    step: int = 1

    def part(self, start: int, stop: int) -> "ByteColumn":
        """Return the rows from `start` to `stop`, exclusive, which it has."""
        return self._replace(first=self.first + start, rows=stop - start)

    def taken(self, places: NDArray[np.int64]) -> "ByteColumn":
        """Return the rows at these places, whose bytes stay where they are."""
        at = places + self.first
        offsets, begin = np.frombuffer(memoryview(self.offsets), np.int64), at * self.step
        ends = np.stack((offsets[begin], offsets[begin + 1]), axis=1).reshape(-1)
        valid = None
        if self.valid is not None:
            bits = np.unpackbits(np.frombuffer(memoryview(self.valid), np.uint8), bitorder="little")
            valid = np.packbits(bits[at], bitorder="little").data
        return ByteColumn(self.data, ends.data, valid, 0, len(at), 2)

    def nulls(self) -> list[int]:
        """Return the places of the rows that are null."""
        if self.valid is None or not self.rows:
            return []
        end = self.first + self.rows
        first_byte = self.first >> 3
        bits = memoryview(self.valid)[first_byte : (end + 7) >> 3]
        # Most bytes say that no row is null.
        unsure = [at for at, byte in enumerate(bits, first_byte) if byte != _ALL_VALID]
        rows = (at * 8 + bit for at in unsure for bit in range(8))
        mine = (row for row in rows if self.first <= row < end)
        return [
            row - self.first for row in mine if not bits[(row >> 3) - first_byte] >> (row & 7) & 1
        ]


class ColumnCodec(Protocol):
    """What makes objects of a column, weighs it, or makes one of several."""

    def cut(self, column: ByteColumn, /) -> list[bytes | None]:
        """Return a new list of the rows."""

    def size_bytes(self, column: ByteColumn, /) -> int:
        """Return the sum of the sizes of the rows."""

    def joined(self, columns: Sequence[ByteColumn], /) -> ByteColumn:
        """Return the rows of all columns in the layout of Arrow."""


class Demand:
    """What was asked for of a kind of rows: whoever makes more of them may see it.

    `objects`: whether somebody wanted an object for each; None: nobody has had any rows yet.
    """

    __slots__ = ("objects",)

    def __init__(self) -> None:
        self.objects: bool | None = None


class PackedRows(Sequence[bytes | None]):
    """The rows of one or more columns, one after the other.

    What takes columns gets them as they are. An object for each row is made once somebody asks for
    a row, which most values of a pipeline that counts never see.
    """

    __slots__ = ("_asked", "_codec", "_columns", "_rows", "_size")

    def __init__(
        self,
        columns: Sequence[ByteColumn],
        codec: ColumnCodec,
        asked: Demand | None = None,
        rows: list[bytes | None] | None = None,
    ) -> None:
        """`asked` is told once somebody wants these rows, or some of them, as objects.

        `rows` are these objects, if they were made already.
        """
        self._columns = columns
        self._codec = codec
        self._asked = asked
        self._rows = rows
        self._size = sum(column.rows for column in columns)

    @property
    def columns(self) -> Sequence[ByteColumn]:
        """What has the rows, in their order."""
        return self._columns

    @property
    def may_have_nulls(self) -> bool:
        """Whether a row may be null: no row is looked at."""
        return any(column.valid is not None for column in self._columns)

    @property
    def size_bytes(self) -> int:
        """The sum of the sizes of the rows."""
        return sum(map(self._codec.size_bytes, self._columns))

    def nulls(self) -> list[int]:
        """Return the places of the rows that are null: no row is looked at."""
        found, start = list[int](), 0
        for column in self._columns:
            found += [start + place for place in column.nulls()]
            start += column.rows
        return found

    def at(self, places: Sequence[int]) -> list[bytes | None]:
        """Return the rows at a few places in rising order as objects, and make no others."""
        if self._rows is not None:
            return list(map(self._rows.__getitem__, places))
        found = list[bytes | None]()
        for column, mine in self._in_columns(places):
            for first, stop in _runs(mine):
                found += self._codec.cut(column.part(first, stop))
        return found

    def taken(self, places: Sequence[int] | NDArray[np.intp]) -> "MaybePacked":
        """Return the rows at these places; in columns where they are many in rising order."""
        if len(places) >= _MANY:
            wanted = np.asarray(places, np.int64)
            if (wanted[1:] > wanted[:-1]).all():
                return self._taken(wanted)
        # A few do not tell that somebody wants many as objects.
        return list(map(self._made().__getitem__, places))

    def _taken(self, places: NDArray[np.int64]) -> "PackedRows":
        parts, start = list[ByteColumn](), 0
        for column in self._columns:
            begin, end = places.searchsorted((start, start + column.rows)).tolist()
            if begin < end:
                parts.append(column.taken(places[begin:end] - start))
            start += column.rows
        rows = None if self._rows is None else list(map(self._rows.__getitem__, places.tolist()))
        return PackedRows(parts, self._codec, self._asked, rows)

    def without(self, places: Sequence[int]) -> "PackedRows":
        """Return the rows but those at these places, which are in rising order."""
        parts = [
            column.part(first, stop)
            for column, mine in self._in_columns(places)
            for first, stop in spans_between(mine, column.rows)
        ]
        rows = None if self._rows is None else without(self._rows, places)
        return PackedRows(parts, self._codec, self._asked, rows)

    def _in_columns(self, places: Sequence[int]) -> Iterator[tuple[ByteColumn, list[int]]]:
        """Yield each column, and which of the places, in rising order, are in it and where."""
        start, begin = 0, 0
        for column in self._columns:
            end = bisect_left(places, start + column.rows, begin)
            yield column, [place - start for place in places[begin:end]]
            start, begin = start + column.rows, end

    def joined(self) -> ByteColumn:
        """Return the rows as one column in the layout of Arrow."""
        column = self._codec.joined(self._columns)
        self._columns = (column,)
        return column

    def cut(self, column: ByteColumn) -> list[bytes | None]:
        """Return the rows of any column as objects."""
        return self._codec.cut(column)

    def all(self) -> list[bytes | None]:
        """Return the rows as objects, which are made once."""
        if self._asked is not None:
            self._asked.objects = True
        return self._made()

    def _made(self) -> list[bytes | None]:
        if self._rows is None:
            self._rows = list(chain.from_iterable(map(self._codec.cut, self._columns)))
        return self._rows

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, slice) or index.step not in (None, 1):
            return self.all()[index]
        start, stop, _ = index.indices(self._size)
        rows = None if self._rows is None else self._rows[start:stop]
        return PackedRows(list(self._parts(start, stop)), self._codec, self._asked, rows)

    def _parts(self, start: int, stop: int) -> Iterator[ByteColumn]:
        for column in self._columns:
            first, end = max(start, 0), min(stop, column.rows)
            if first < end:
                yield column.part(first, end)
            start, stop = start - column.rows, stop - column.rows

    def __iter__(self) -> Iterator[bytes | None]:
        return iter(self.all())

    def __len__(self) -> int:
        return self._size


MaybePacked = list[bytes | None] | PackedRows


def unpacked(rows: MaybePacked) -> list[bytes | None]:
    """Return rows as objects."""
    return rows.all() if isinstance(rows, PackedRows) else rows


def _runs(places: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the beginning and the end of each run of places that follow each other."""
    begin = 0
    for at in range(1, len(places) + 1):
        if at == len(places) or places[at] != places[at - 1] + 1:
            yield places[begin], places[at - 1] + 1
            begin = at


def spans_between(places: Sequence[int], size: int) -> Iterator[tuple[int, int]]:
    """Yield the spans of rows of which none stands at these places, which are in rising order."""
    for start, stop in zip((-1, *places), (*places, size), strict=True):
        if start + 1 < stop:
            yield start + 1, stop


def without(rows: Rows, places: Sequence[int]) -> Rows:
    """Return the rows, a list or columns, but those at these places, which are in rising order."""
    if not places:
        return rows
    if isinstance(rows, PackedRows) and len(places) <= max(_FEW, len(rows) // _FEW_OF):
        return cast("Rows", rows.without(places))
    objects: list[Any] = unpacked(rows)
    spans = spans_between(places, len(objects))
    return cast("Rows", list(chain.from_iterable(objects[start:stop] for start, stop in spans)))
