"""Divides the rows of a table into ranges of about as many rows, without reading them all.

A range of rows is halved at the first bit in which its first and its last row differ, so each half
has rows, whatever their bytes are. How many rows a range has is known once it has few; of others it
is estimated: what a walk finds, which enters one half of two by chance each time, counts double for
each of them (Knuth, "Estimating the efficiency of backtrack programs", 1975). A budget of walks is
divided among halves. So the cost depends on how many ranges are wanted, not on how many rows there
are. The ranges meet without a gap, whatever was estimated.
"""

import random
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from typing import Final, NamedTuple

from statestore.ports import Seeker, Table
from statestore.stores.file_source import RowSpan

_FEW: Final = 32
"""Ranges of up to as many rows are counted."""
_WALKS: Final = 24
"""How many walks there are for each range that is wanted."""
_WALKS_MAX: Final = 4096

_Ends = tuple[bytes, bytes]
"""The first and the last row of a range, both of which exist."""


class RowRanges(NamedTuple):
    """The ranges of a table, which together have all its rows, and about how many these are."""

    spans: list[RowSpan]
    rows: int


def row_ranges(
    table: Table,
    *,
    rows_each: int,
    count: int | None = None,
    count_max: int,
    low: bytes | None = None,
    high: bytes | None = None,
) -> RowRanges:
    """Divide the rows of a table that is not written meanwhile.

    They are divided into ranges of about `rows_each` rows, at most `count_max`; `count`: into so
    many, if that is possible. `low` and `high`: only rows between these, inclusive, matter; all the
    same, the ranges have all rows of the table.
    """
    guessed = count or min(count_max, table.approximate_count() // rows_each + 1)
    with closing(table.seeker()) as seeker:
        pieces = list(_Pieces(table, seeker).of(low, high, min(_WALKS * guessed, _WALKS_MAX)))
    rows = sum(number for _, number in pieces)
    wanted = count or min(count_max, round(rows / rows_each))
    cuts: list[bytes] = []
    so_far = 0.0
    for last, number in pieces[:-1]:
        so_far += number
        if len(cuts) + 1 < wanted and so_far >= rows * (len(cuts) + 1) / wanted:
            cuts.append(last)
    spans = map(RowSpan, [None, *cuts], [*cuts, None])
    return RowRanges(list(spans), round(rows))


class _Pieces:
    """Takes a table to pieces that are small beside the ranges that are wanted."""

    def __init__(self, table: Table, seeker: Seeker) -> None:
        self._table = table
        self._seeker = seeker
        self._chance = random.Random(0)  # the same rows give the same ranges

    def of(
        self, low: bytes | None, high: bytes | None, walks: int
    ) -> Iterator[tuple[bytes, float]]:
        """Yield the last row of each piece, in order, and about how many rows the piece has."""
        ends = self._ends(low, high)
        waiting = [] if ends is None else [(ends, walks)]
        while waiting:
            (first, last), budget = waiting.pop()
            few = self._few(first, last)
            if few is not None:
                yield from ((row, 1.0) for row in few)
                continue
            if budget <= 1:
                yield last, self._walked(first, last)
                continue
            left, right = self._halves(first, last)
            # A half with few rows leaves its part of the budget to the other.
            share = budget // 2
            if self._few(*left) is not None:
                share = 1
            elif self._few(*right) is not None:
                share = budget - 1
            waiting += [(right, budget - share), (left, share)]

    def _ends(self, low: bytes | None, high: bytes | None) -> _Ends | None:
        cursors = self._table.scan(low, high), self._table.scan(low, high, reverse=True)
        first, last = (next(iter(cursor), None) for cursor in cursors)
        for cursor in cursors:
            cursor.close()
        return None if first is None or last is None else (first[0], last[0])

    def _few(self, first: bytes, last: bytes) -> list[bytes] | None:
        """Return the rows; None if there are many."""
        cursor = self._table.scan(first, last)
        rows = [row for row, _ in islice(cursor, _FEW + 1)]
        cursor.close()
        return rows if len(rows) <= _FEW else None

    def _halves(self, first: bytes, last: bytes) -> tuple[_Ends, _Ends]:
        """Return the two parts of a range of several rows, neither of which is empty."""
        pairs = enumerate(zip(first, last, strict=False))
        shared = next((at for at, (one, other) in pairs if one != other), len(first))
        if shared == len(first):
            pivot = first + b"\0"
        else:
            lower_bits = (1 << (first[shared] ^ last[shared]).bit_length() - 1) - 1
            pivot = last[:shared] + bytes([last[shared] & ~lower_bits])
        (right_first,) = self._seeker.seek_many([pivot])
        back = self._seeker.scan_back(first, pivot)
        left_last = next(row for row, _ in back if row < pivot)
        assert right_first is not None
        return (first, left_last), (right_first[0], last)

    def _walked(self, first: bytes, last: bytes) -> float:
        """Estimate how many rows there are by one walk."""
        weight = 1.0
        while (few := self._few(first, last)) is None:
            first, last = self._chance.choice(self._halves(first, last))
            weight *= 2
        return weight * len(few)
