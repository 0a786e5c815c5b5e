"""The observed stream time of a versioned store, staged with its writes (SEMANTICS V4).

It goes back with a rollback or an undone savepoint, and becomes durable in the commit's own batch.
"""

import struct
from typing import NamedTuple, Self

from statestore.errors import TaskCorrupted
from statestore.ports import Table
from statestore.stores.versioned import layout
from statestore.stores.versioned.layout import NEVER, TIME_MIN


class StreamTime(NamedTuple):
    """A stream time, and the time before which history is gone; both NEVER before the first put."""

    now: int
    bound: int

    @classmethod
    def never(cls) -> Self:
        """Return the one before the first put."""
        return cls(NEVER, NEVER)


class ObservedTime:
    """`now` and `bound` with what is pending, and `committed` without.

    The bound is stream time less the retention and never goes back, as a longer retention does not
    bring history back (V5). Only the owner sets `now`, and never back; other threads may read all
    three.
    """

    __slots__ = ("_bound_before", "_retention_ms", "committed", "now")

    def __init__(self, committed: StreamTime | None, retention_ms: int) -> None:
        self._retention_ms = retention_ms
        self.committed = committed or StreamTime.never()
        self.now = self.committed.now
        self._bound_before = self.committed.bound
        self.committed = self.observed()

    @property
    def bound(self) -> int:
        """Return the time before which history is gone."""
        now = self.now
        return NEVER if now == NEVER else self.bound_at(now)

    def bound_at(self, time: int) -> int:
        """Return the bound there would be if `time` had been observed last."""
        return max(self._bound_before, time - self._retention_ms, TIME_MIN)

    def mark(self) -> int:
        """Return the stream time now."""
        return self.now

    def go_back(self, mark: int) -> None:
        """Forget what was observed since `mark`."""
        self.now = mark

    def forget_marks(self) -> None:
        """Do nothing, as nothing is kept for marks."""

    def commit(self) -> None:
        """Take what is pending as committed."""
        self.committed = self.observed()

    def rollback(self) -> None:
        """Go back to the last commit."""
        self.now = self.committed.now

    def observed(self) -> StreamTime:
        """Return the stream time and the bound, with what is pending."""
        return StreamTime(self.now, self.bound)


def read_stream_time(history: Table, where: str) -> StreamTime | None:
    """Return that of the last commit; None before the first put.

    `history` is the table that has it.
    """
    row = history.get(layout.CLOCK_KEY)
    if row is None:
        return None
    try:
        return StreamTime(*layout.read_clock(row))
    except struct.error as error:
        raise TaskCorrupted(f"{where}: its stream time is not readable") from error
