"""Rows as a client of Kafka returns them, so that tests meet what a pipeline meets: in columns."""

from array import array
from collections.abc import Sequence
from itertools import accumulate, islice, pairwise

import numpy as np

from statestore.model.byte_columns import ByteColumn, PackedRows

_Rows = Sequence[bytes | None]


def packed(rows: _Rows) -> PackedRows:
    """Return rows in two columns, as those of two fetches are."""
    half = len(rows) // 2
    return PackedRows([_column(part) for part in (rows[:half], rows[half:]) if part], InPython())


class InPython:
    """A `ColumnCodec` without the extension."""

    def cut(self, column: ByteColumn) -> list[bytes | None]:
        data, first, step = memoryview(column.data), column.first, column.step
        ends = memoryview(column.offsets).cast("B").cast("q")[step * first :].tolist()
        spans = islice(pairwise(ends), 0, step * column.rows, step)
        rows: list[bytes | None] = [bytes(data[start:stop]) for start, stop in spans]
        if column.valid is not None:
            known = np.unpackbits(
                np.frombuffer(memoryview(column.valid), np.uint8), bitorder="little"
            )
            rows = [row if known[first + i] else None for i, row in enumerate(rows)]
        return rows

    def size_bytes(self, column: ByteColumn) -> int:
        return sum(map(len, filter(None, self.cut(column))))

    def joined(self, columns: Sequence[ByteColumn]) -> ByteColumn:
        return _column([row for column in columns for row in self.cut(column)])


def _column(rows: _Rows) -> ByteColumn:
    offsets = array("q", accumulate((len(row or b"") for row in rows), initial=0))
    known = [row is not None for row in rows]
    valid = None if all(known) else np.packbits(known, bitorder="little").tobytes()
    return ByteColumn(b"".join(filter(None, rows)), offsets, valid, 0, len(rows))
