"""Counts and sums of the records of many rows, by numpy: exactly what one step for each makes.

`rows` has the row of each record, `amounts` what it adds, and `states` has the total of each row
before. None instead of the totals after: numpy cannot tell them exactly.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_INT64_END = 1 << 63


def counts(rows: NDArray[np.intp], _amounts: Any, states: list[int]) -> list[int] | None:
    """Return how many records there are of each row, with those before."""
    before = _int64(states)
    if before is None or _most(before) + len(rows) >= _INT64_END:
        return None
    after: list[int] = (before + np.bincount(rows, minlength=len(states))).tolist()
    return after


def sums_of_ints(
    rows: NDArray[np.intp], amounts: NDArray[Any], states: list[int]
) -> list[int] | None:
    """Return the sums of integers."""
    totals = _int64(states)
    if totals is None or _most(totals) + _most(amounts) * len(amounts) >= _INT64_END:
        return None
    np.add.at(totals, rows, amounts)
    after: list[int] = totals.tolist()
    return after


def sums_of_floats(
    rows: NDArray[np.intp], amounts: NDArray[Any], states: list[float]
) -> list[float] | None:
    """Return the sums of floats, added in the order of the records."""
    if set(map(type, states)) != {float}:
        return None
    totals = np.array(states, np.float64)
    with np.errstate(all="ignore"):
        np.add.at(totals, rows, amounts)
    if not np.isfinite(totals).all():
        return None  # The step knows for which record.
    after: list[float] = totals.tolist()
    return after


def _int64(numbers: list[int]) -> NDArray[np.int64] | None:
    try:
        return np.array(numbers, np.int64)
    except OverflowError:
        return None


def _most(numbers: NDArray[np.int64]) -> int:
    """Return how far the numbers are from 0 at most."""
    return max(int(numbers.max()), -int(numbers.min()), 0) if len(numbers) else 0
