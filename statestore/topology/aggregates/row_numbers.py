"""The distinct rows among many, by Arrow, which is imported when the first batch is grouped.

Arrow gets its buffers directly, because its own conversions would import pandas, for seconds.
"""

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute
from numpy.typing import NDArray

from statestore.model.byte_columns import ByteColumn, PackedRows


class NumberedRows(NamedTuple):
    """Which of the distinct rows each row is: `indices` into them, in the order of their firsts."""

    indices: NDArray[np.int32]
    distinct: pa.LargeBinaryArray

    @classmethod
    def of(cls, rows: Sequence[bytes] | PackedRows) -> Self:
        """Number the rows, of which none is null."""
        array = _packed(rows) if isinstance(rows, PackedRows) else _joined(rows)
        column = array.dictionary_encode()
        indices = np.frombuffer(column.indices.buffers()[1], np.int32, len(rows))
        return cls(indices, column.dictionary)

    def rows(self) -> list[bytes]:
        """Return the distinct rows."""
        found: list[bytes] = self.distinct.to_pylist()
        return found

    def order(self) -> NDArray[np.uint64]:
        """Return the indices of the distinct rows in byte order."""
        places = pyarrow.compute.sort_indices(self.distinct)
        return np.frombuffer(places.buffers()[1], np.uint64, len(self.distinct))

    def taken(self, indices: NDArray[np.uint64]) -> ByteColumn:
        """Return the distinct rows at these indices, in their order."""
        places = pa.Array.from_buffers(pa.uint64(), len(indices), [None, pa.py_buffer(indices)])
        array = self.distinct.take(places)
        valid, offsets, data = array.buffers()
        return ByteColumn(data or b"", offsets, valid, array.offset, len(array))


def _joined(rows: Sequence[bytes]) -> pa.LargeBinaryArray:
    ends = np.cumsum(np.fromiter(map(len, rows), np.int64, len(rows)))
    starts = np.concatenate((np.zeros(1, np.int64), ends))
    buffers = [None, pa.py_buffer(starts), pa.py_buffer(b"".join(rows))]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(rows), buffers)


def _packed(rows: PackedRows) -> pa.LargeBinaryArray:
    data, offsets, _, first, count, _ = rows.joined()
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), count, buffers, offset=first)
