"""The naive interpreter's joins of streams: everything that ever came is looked through."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.stateful.naive_tables import Fact, Joiner


@dataclass
class Kept:
    """A record of one side; `alone`: it has met nothing, and was not given up yet."""

    side: str
    fact: Fact
    number: int
    alone: bool


class StreamsMet:
    """Two streams that meet within a window."""

    def __init__(self, near: tuple[int, int, int], waits: str, join: Joiner) -> None:
        """`near`: how much earlier and later matches of the left one are, and the grace.

        `waits`: the sides whose records have a result without a match, too.
        """
        before, after, self._grace = near
        self._keeps = max(before, 0) + max(after, 0) + self._grace
        self._span = {"l": (-before, after), "r": (-after, before)}
        self._waits, self._join = waits, join
        self._kept: list[Kept] = []
        self._now: int | None = None
        self._count = 0

    def left(self, fact: Fact) -> Iterator[Fact]:
        return self._come("l", fact)

    def right(self, fact: Fact) -> Iterator[Fact]:
        return self._come("r", fact)

    def _come(self, side: str, fact: Fact) -> Iterator[Fact]:
        now = self._now = fact.time if self._now is None else max(self._now, fact.time)
        closed = [one for one in self._kept if one.alone and self._closes(one) < now]
        for one in sorted(closed, key=lambda one: (self._closes(one), one.side == "l", *_row(one))):
            one.alone = False
            self._kept.remove(one)
            yield self._made(one.side, one.fact, None)
        if fact.value is None:
            return
        if fact.key is None:
            if side in self._waits:
                yield self._made(side, fact, None)
            return
        if fact.time < now - self._keeps:
            return
        self._count += 1
        mine = Kept(side, fact, self._count, alone=side in self._waits)
        first, last = (fact.time + span for span in self._span[side])
        first = max(first, now - self._keeps)
        for one in sorted(self._kept, key=_row):
            if one.side == side or one.fact.key != fact.key:
                continue
            if first <= one.fact.time <= last:
                mine.alone = one.alone = False
                yield self._made(side, fact, one.fact)
        if mine.alone and self._closes(mine) < now:
            yield self._made(side, fact, None)
        else:
            self._kept.append(mine)

    def _closes(self, one: Kept) -> int:
        return one.fact.time + max(self._span[one.side][1], 0) + self._grace

    def _made(self, side: str, mine: Fact, other: Fact | None) -> Fact:
        values = [copy.deepcopy(mine.value), None if other is None else copy.deepcopy(other.value)]
        time = mine.time if other is None else max(mine.time, other.time)
        left, right = values if side == "l" else reversed(values)
        return Fact(mine.key, self._join(mine.key, left, right), time)


def _row(one: Kept) -> tuple[int, bytes, int]:
    key: Any = one.fact.key
    if not isinstance(key, str):
        data = key.key.encode() + key.start_ms.to_bytes(8, "big", signed=True)
        return one.fact.time, data, one.number
    return one.fact.time, key.encode(), one.number
