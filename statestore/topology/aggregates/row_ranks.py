"""The distinct rows of a batch in byte order, and which of them each row is.

The work is done by `_ranks`, an extension in C that is built where there is a compiler. Without it
Arrow does the same, in two to nine times the time, and is imported for that.
"""

from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from statestore.model.byte_columns import MaybePacked, PackedRows

_ranks: Any = None
with suppress(ImportError):  # Without a compiler.
    from statestore.topology.aggregates import _ranks


def ranked_rows(rows: MaybePacked) -> tuple[NDArray[np.intp], list[bytes]]:
    """Return which of the distinct rows each row is, and these, in byte order.

    No row is null.
    """
    if _ranks is None:
        from statestore.topology.aggregates import row_numbers

        return row_numbers.ranked_rows(rows)
    return _ranked(rows)


def ranked_windows(
    keys: MaybePacked, key_of: NDArray[np.intp], starts: NDArray[np.int64]
) -> tuple[NDArray[np.intp], list[bytes]]:
    """Do the same for entries, of which each has the key at its place in `key_of` and one start.

    Its row is the start of a window, then the key. No entry has a null key or a negative start.
    """
    if _ranks is None:
        from statestore.topology.aggregates import row_numbers

        return row_numbers.ranked_windows(keys, key_of, starts)
    # Other kinds of numbers, and slices with steps, are no run of 64 bits each.
    return _ranked(
        keys, np.ascontiguousarray(key_of, np.int64), np.ascontiguousarray(starts, np.int64)
    )


def _ranked(keys: MaybePacked, *entries: NDArray[np.int64]) -> tuple[NDArray[np.intp], list[bytes]]:
    if isinstance(keys, PackedRows) and not keys.may_have_nulls:
        data, offsets, _, first, count, _ = keys.joined()
        numbers, rows = _ranks.of_columns(data, offsets, first, count, *entries)
    else:
        objects = keys.all() if isinstance(keys, PackedRows) else keys
        numbers, rows = _ranks.of_objects(objects, *entries)
    return np.frombuffer(numbers, np.int64), rows
