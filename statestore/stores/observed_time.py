"""The observed stream time of a versioned store, staged with its writes (SEMANTICS V4).

It goes back with a rollback or an undone savepoint, and becomes durable in the commit's own batch.
"""

import struct
from typing import NamedTuple

from statestore.errors import TaskCorrupted
from statestore.stores import versioned_layout as layout
from statestore.stores.transaction import StagedEngine
from statestore.stores.versioned_layout import NEVER, TIME_MIN


class Moment(NamedTuple):
    """A stream time, and the time before which history is gone; both NEVER before the first put."""

    now: int
    bound: int


class ObservedTime:
    """`now` and `bound` with what is pending; `committed` without.

    The bound is stream time less the retention, and never goes back: a longer retention does not
    bring history back (V5). Written by the owner; other threads may read the three attributes.
    """

    __slots__ = ("_marks", "_retention_ms", "bound", "committed", "now")

    def __init__(self, committed: Moment | None, retention_ms: int) -> None:
        self._retention_ms = retention_ms
        self.committed = committed or Moment(NEVER, NEVER)
        self.now = self.committed.now
        self.bound = self.committed.bound
        self._marks: list[Moment] = []
        if committed is not None:
            self.bound = self.bound_at(self.now)
            self.committed = Moment(self.now, self.bound)

    def bound_at(self, time: int) -> int:
        """The bound there would be had `time` been observed."""
        return max(self.bound, time - self._retention_ms, TIME_MIN)

    def advance(self, time: int) -> None:
        """Observe a later time."""
        bound = time - self._retention_ms
        if bound > self.bound:
            self.bound = bound
        elif self.bound < TIME_MIN:
            self.bound = TIME_MIN
        self.now = time

    def mark(self) -> None:
        """Open a savepoint."""
        self._marks.append(Moment(self.now, self.bound))

    def merge(self) -> None:
        """Close the last savepoint, keeping what was observed."""
        self._marks.pop()

    def undo(self) -> None:
        """Close the last savepoint and go back to where it began."""
        self.now, self.bound = self._marks.pop()

    def commit(self) -> None:
        """What is pending has become committed; open savepoints go back to here."""
        self.committed = Moment(self.now, self.bound)
        self._marks = [self.committed for _ in self._marks]

    def rollback(self) -> None:
        """Go back to the last commit; so do open savepoints."""
        self.now, self.bound = self.committed
        self._marks = [self.committed for _ in self._marks]


def committed_moment(staged: StagedEngine) -> Moment | None:
    """That of the last commit; None before the first put."""
    row = staged.table(layout.HISTORY).get(layout.CLOCK_KEY)
    if row is None:
        return None
    try:
        return Moment(*layout.read_clock(row))
    except struct.error as error:
        raise TaskCorrupted(f"{staged.where}: its stream time is not readable") from error
