"""What row_ranks.py promises, by Arrow: for an installation without the extension.

Rows of windows are numbered by their windows and keys, so that only the distinct ones are made.
Arrow gets its buffers directly, because its own conversions would import pandas, for seconds.
"""

from operator import add
from typing import Any, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute
from numpy.typing import NDArray

from statestore.model import big_endian
from statestore.model.byte_columns import ByteColumn, MaybePacked, PackedRows

Kind = TypeVar("Kind", bound=np.generic)


def ranked_rows(rows: MaybePacked) -> tuple[NDArray[np.intp], list[bytes]]:
    """Do what `row_ranks.ranked_rows` does."""
    array = _packed(rows) if isinstance(rows, PackedRows) else _joined(rows)
    column = array.dictionary_encode()
    indices, distinct = _numbers(column.indices, np.int32), column.dictionary
    order = _numbers(pyarrow.compute.sort_indices(distinct), np.uint64)
    if isinstance(rows, PackedRows):
        valid, offsets, data = distinct.take(_array(order, pa.uint64())).buffers()
        found = rows.cut(ByteColumn(data or b"", offsets, valid, 0, len(order)))
    else:
        last = np.empty(len(order), np.int64)
        last[indices] = np.arange(len(rows))  # Of equal indices, the last assignment stays.
        found = list(map(rows.__getitem__, last[order].tolist()))
    return _ranks(order)[indices], cast("list[bytes]", found)


def ranked_windows(
    keys: MaybePacked, key_of: NDArray[np.intp], starts: NDArray[np.int64]
) -> tuple[NDArray[np.intp], list[bytes]]:
    """Do what `row_ranks.ranked_windows` does."""
    if not isinstance(keys, PackedRows) or keys.may_have_nulls:
        keys = [key or b"" for key in keys]
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
