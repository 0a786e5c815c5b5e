"""The distinct rows among many, by Arrow, which is imported when the first batch is grouped.

Rows of windows are numbered by their windows and keys, so that only the distinct ones are made.
Arrow gets its buffers directly, because its own conversions would import pandas, for seconds.
"""

from operator import add
from typing import Any, NamedTuple, Self, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute
from numpy.typing import NDArray

from statestore.model import big_endian
from statestore.model.byte_columns import ByteColumn, MaybePacked, PackedRows

Kind = TypeVar("Kind", bound=np.generic)


class NumberedRows(NamedTuple):
    """Which of the distinct rows each row is: `indices` into them, in the order of their firsts."""

    indices: NDArray[np.int32]
    distinct: pa.LargeBinaryArray

    @classmethod
    def of(cls, rows: MaybePacked) -> Self:
        """Number the rows, of which none is null."""
        array = _packed(rows) if isinstance(rows, PackedRows) else _joined(rows)
        column = array.dictionary_encode()
        return cls(_numbers(column.indices, np.int32), column.dictionary)

    def order(self) -> NDArray[np.uint64]:
        """Return the indices of the distinct rows in byte order."""
        return _numbers(pyarrow.compute.sort_indices(self.distinct), np.uint64)

    def taken(self, indices: NDArray[np.uint64]) -> ByteColumn:
        """Return the distinct rows at these indices, in their order."""
        array = self.distinct.take(_array(indices, pa.uint64()))
        valid, offsets, data = array.buffers()
        return ByteColumn(data or b"", offsets, valid, array.offset, len(array))

    def objects(self, of: MaybePacked, order: NDArray[np.uint64] | None = None) -> list[bytes]:
        """Return the distinct rows at these indices, or all, given the rows that were numbered."""
        if order is None:
            order = np.arange(len(self.distinct), dtype=np.uint64)
        if isinstance(of, PackedRows):
            return cast("list[bytes]", of.cut(self.taken(order)))
        last = np.empty(len(self.distinct), np.int64)
        last[self.indices] = np.arange(len(of))  # Of equal indices, the last assignment stays.
        return cast("list[bytes]", list(map(of.__getitem__, last[order].tolist())))


def ranked_rows(rows: MaybePacked) -> tuple[NDArray[np.intp], list[bytes]]:
    """Return which of the distinct rows each row is, and these, in byte order.

    No row is null.
    """
    numbered = NumberedRows.of(rows)
    order = numbered.order()
    return _ranks(order)[numbered.indices], numbered.objects(rows, order)


def ranked_windows(
    keys: MaybePacked, key_of: NDArray[np.intp], starts: NDArray[np.int64]
) -> tuple[NDArray[np.intp], list[bytes]]:
    """Do the same for entries, of which each has the key at its place in `key_of` and one start.

    Its row is the start of a window, then the key. No key is null, and no start negative.
    """
    rank_of_key, distinct_keys = ranked_rows(keys)
    windows, begun = _distinct_numbers(starts)
    pairs = rank_of_key[key_of] * len(begun) + windows
    indices, distinct = _distinct_numbers(pairs)
    of_keys, of_windows = np.divmod(distinct, len(begun))
    begins = begun[of_windows]
    order = np.lexsort((of_keys, begins))
    prefixes: list[bytes] = big_endian.packed(begins[order])
    suffixes = map(distinct_keys.__getitem__, of_keys[order].tolist())
    return _ranks(order)[indices], list(map(add, prefixes, suffixes))


def _ranks(order: NDArray[Any]) -> NDArray[np.intp]:
    """Return the place of each index in an order of all of them."""
    ranks = np.empty(len(order), np.intp)
    ranks[order] = np.arange(len(order))
    return ranks


def _distinct_numbers(numbers: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return which of the distinct numbers each is, and these, in the order of their firsts."""
    column = _array(numbers, pa.int64()).dictionary_encode()
    return _numbers(column.indices, np.int32), _numbers(column.dictionary, np.int64)


def _array(numbers: NDArray[Any], kind: pa.DataType) -> pa.Array:
    buffers = [None, pa.py_buffer(np.ascontiguousarray(numbers))]
    return pa.Array.from_buffers(kind, len(numbers), buffers)


def _numbers(array: pa.Array, kind: type[Kind]) -> NDArray[Kind]:
    """Return the numbers of an array that starts where its buffer does and has no null."""
    return np.frombuffer(array.buffers()[1] or b"", kind, len(array))


def _joined(rows: list[bytes | None]) -> pa.LargeBinaryArray:
    known = cast("list[bytes]", rows)
    ends = np.cumsum(np.fromiter(map(len, known), np.int64, len(known)))
    starts = np.concatenate((np.zeros(1, np.int64), ends))
    buffers = [None, pa.py_buffer(starts), pa.py_buffer(b"".join(known))]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(rows), buffers)


def _packed(rows: PackedRows) -> pa.LargeBinaryArray:
    data, offsets, _, first, count, _ = rows.joined()
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), count, buffers, offset=first)
