"""Fast sorting of keys into RocksDB's order, or nearly so.

RocksDB reads and inserts sorted keys several times faster; only speed depends on the order. All
loops run in C: numpy sorts, and `map` into a deque of length 0 fills a batch.
"""

from collections import deque
from collections.abc import Sequence
from itertools import starmap
from typing import NamedTuple, Self, TypeVar

import numpy as np
import numpy.typing as npt
from rocksdict import WriteBatch

from statestore.ports import Writes

T = TypeVar("T")

_HEADS_MIN = 1000  # fewer keys are sorted faster without numpy
_PROBES = 64
_SHARED_MAX = 64


class Ordered(NamedTuple):
    """Keys, and the same keys sorted, or nearly so."""

    keys: list[bytes]
    arranged: list[bytes]
    order: npt.NDArray[np.intp] | None
    """The indexes of `arranged` in `keys`; None if both are the same list."""

    @classmethod
    def of(cls, keys: list[bytes]) -> Self:
        """Sort the keys."""
        if _seem_in_order(keys):
            # Of what is almost sorted, Python's own sorting does little more than compare.
            arranged = sorted(keys)
            if arranged == keys:
                return cls(keys, keys, None)
            return cls(keys, arranged, _sorting(keys))
        order = order_of(keys)
        return cls(keys, _taken(keys, order), order)

    def back(self, values: list[T]) -> list[T]:
        """Return values in the order of `arranged` in the order of `keys`."""
        if self.order is None:
            return values
        back = np.empty(len(values), object)
        back[self.order] = values
        unsorted: list[T] = back.tolist()
        return unsorted


def fill(batch: WriteBatch, rows: Writes, known: Ordered | None = None) -> None:
    """Add puts and deletes to the batch's default column family.

    `known` is used if it has the order of these keys.
    """
    keys, values = list(rows), list(rows.values())
    ordered = known if known is not None and known.keys == keys else Ordered.of(keys)
    if ordered.order is not None:
        keys, values = ordered.arranged, _taken(values, ordered.order)
    if not all(values) and None in values:  # looking for None alone is slower
        pairs = list(zip(keys, values, strict=True))
        deque(map(batch.__delitem__, [key for key, value in pairs if value is None]), 0)
        pairs = [pair for pair in pairs if pair[1] is not None]
        deque(starmap(batch.__setitem__, pairs), 0)
    else:
        deque(map(batch.__setitem__, keys, values), 0)


def order_of(keys: list[bytes]) -> npt.NDArray[np.intp]:
    """Return the indexes that sort `keys`.

    Many keys are sorted by the first 8 or 16 bytes after their common prefix if these bytes differ,
    which takes a third of the time. The length of the prefix is estimated from a few keys and keys
    may agree in those bytes, so the order is only nearly sorted.
    """
    if len(keys) >= _HEADS_MIN:
        shared = min(_shared(_some_of(keys)), _SHARED_MAX)
        for width in (8, 16):
            heads = np.array(keys, f"S{shared + width}").view("u1").reshape(len(keys), -1)
            columns = np.ascontiguousarray(heads[:, shared:]).view(">u8").astype(np.uint64).T
            order = np.argsort(columns[0]) if width == 8 else np.lexsort(columns[::-1])
            same = (columns[:, order[1:]] == columns[:, order[:-1]]).all(axis=0)
            if np.count_nonzero(same) <= len(keys) // 10:
                return order
    return _sorting(keys)


def _sorting(keys: list[bytes]) -> npt.NDArray[np.intp]:
    return np.array(sorted(range(len(keys)), key=keys.__getitem__), np.intp)


def _seem_in_order(keys: list[bytes]) -> bool:
    """Return whether a few keys are sorted, as those of one batch of an operator often all are.

    A row that a commit adds, as that of stream time, stands before or behind them.
    """
    some = _some_of(keys)
    return some == sorted(some)


def _some_of(keys: list[bytes]) -> list[bytes]:
    apart = len(keys) // _PROBES or 1
    return keys[apart // 2 :: apart]


def _shared(keys: list[bytes]) -> int:
    """Return the length of the common prefix."""
    first, last = min(keys), max(keys)
    return next(
        (i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first)
    )


def _taken(items: Sequence[T], order: npt.NDArray[np.intp]) -> list[T]:
    taken: list[T] = np.array(items, object)[order].tolist()
    return taken
