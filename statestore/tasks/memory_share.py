"""How much memory pending writes may take, and how much to process before a commit (S6, KIP-892).

A host's limits are divided among its slots. All stream tasks that a slot serves share its part, and
the one that holds most of it commits first. How many records to take next is a pure function.

A batch is processed in slices, and after each of them the task looks at what is pending. What the
next slice will add is foretold from what the last ones added for each record, and for each byte
that they read, because the sizes of the next records are known. Where a user's code may write much
more than it reads, nothing foretells it, and slices are small enough to be wrong.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from statestore.model.byte_columns import PackedRows
from statestore.settings import NO_LIMIT, Settings
from statestore.stores.pending import ENTRY_COST

_FIRST_TAKE = 1000
_UNFORESEEN_BYTES: Final = 64 << 10
_UNFORESEEN_RECORDS: Final = 16
"""What a record may add at most without notice where writes do not depend on what is read."""
_LEAST_ROOM: Final = 1 / 8
"""With less of its share left, such a task commits."""
_FADES: Final = 4
"""Expected growth falls by no more at once, because writing pending rows again adds nothing."""


class Usage(NamedTuple):
    """Pending writes of a store, of a stream task, or of all tasks that a slot serves."""

    size_bytes: int
    records: int


_NOTHING = Usage(0, 0)


class MemoryLimits(NamedTuple):
    """How much one slot may hold pending; -1 means no limit."""

    max_bytes: int
    max_records: int

    @classmethod
    def of(cls, settings: Settings, slots: int) -> "MemoryLimits":
        """Return one slot's part of the limits in the settings."""
        return cls.of_slot(settings.uncommitted_max_bytes, settings.uncommitted_max_records, slots)

    @classmethod
    def of_slot(cls, max_bytes: int, max_records: int, slots: int) -> "MemoryLimits":
        """Divide a host's limits among its slots."""

        def part(limit: int) -> int:
            return NO_LIMIT if limit == NO_LIMIT else max(1, limit // slots)

        return cls(part(max_bytes), part(max_records))

    def left(self, pending: Usage) -> "MemoryLimits":
        """Return what is free beside what is pending."""
        return MemoryLimits(
            *(
                limit if limit == NO_LIMIT else max(0, limit - used)
                for limit, used in zip(self, pending, strict=True)
            )
        )

    def have_room(self, left: "MemoryLimits") -> bool:
        """Return whether so much is left that records are not taken in ones and twos."""
        return all(
            limit == NO_LIMIT or free >= limit * _LEAST_ROOM
            for limit, free in zip(self, left, strict=True)
        )


class MemoryShare:
    """The memory of one slot, and how much of it each stream task that it serves holds.

    One thread uses it. Each task reports what it holds, and a task that finds no room asks the task
    that holds most to commit.
    """

    def __init__(self, limits: MemoryLimits) -> None:
        self.limits = limits
        self._held: dict[str, Usage] = {}
        self._asked: set[str] = set()
        self._sum = Usage(0, 0)

    def hold(self, task: str, usage: Usage) -> Usage:
        """Note what `task` holds now, and return what all tasks hold together."""
        before = self._held.get(task, Usage(0, 0))
        self._held[task] = usage
        self._sum = Usage(
            self._sum.size_bytes + usage.size_bytes - before.size_bytes,
            self._sum.records + usage.records - before.records,
        )
        return self._sum

    def make_room(self, task: str) -> bool:
        """Return whether `task` holds most and must commit; otherwise ask the task that does."""
        fullest = max(self._held, key=lambda name: self._held[name], default=task)
        if self._held.get(task) == self._held.get(fullest):
            return True
        self._asked.add(fullest)
        return False

    @property
    def has_requests(self) -> bool:
        """Whether a task was asked to commit that has not been told yet."""
        return bool(self._asked)

    def take_request(self, task: str) -> bool:
        """Return whether `task` was asked to commit since the last call."""
        if task not in self._asked:
            return False
        self._asked.remove(task)
        return True


class Growth(NamedTuple):
    """What each record that was processed added to the pending writes: bytes, and writes.

    `per_weight`: the bytes again, for each byte that the record weighs. That is the size of its
    value, and ENTRY_COST.
    """

    size_bytes: float
    records: float
    per_weight: float

    @classmethod
    def of(cls, before: Usage, after: Usage, step: "Step") -> "Growth":
        """Return how much the pending writes grew with the step."""
        size_bytes, records = (max(0, b - a) for a, b in zip(before, after, strict=True))
        per_weight = size_bytes / step.weight if step.weight else 0.0
        return cls(size_bytes / step.take, records / step.take, per_weight)

    def after(self, earlier: "Growth") -> "Growth":
        """Return what to expect after this growth, which followed an earlier one."""
        return Growth(*(max(now, old / _FADES) for now, old in zip(self, earlier, strict=True)))


_GUESS: Final = Growth(1024.0, 1.0, 1.0)
"""What is expected before anything was measured."""


class Step(NamedTuple):
    """The next slice of a batch: whether to commit before it, and how many records to take.

    `weight`: theirs; 0 if it makes no difference.
    """

    commit_first: bool
    take: int
    weight: int = 0


def plan_step(
    pending: Usage,
    growth: Growth | None,
    values: Sequence[bytes | None],
    limits: MemoryLimits,
    *,
    done: int = 0,
    foreseen: bool = True,
) -> Step:
    """Return the next step for records with these values, if each adds what `growth` says.

    The step commits first if the records would exceed the share and something is pending. It takes
    at least one record, and at most as many as the share can hold. If `growth` is None, nothing was
    measured yet, and the step takes few records. `done`: so many records were taken already.
    `foreseen`: what a record adds depends on its size; otherwise a step also takes few records.
    """
    waiting = len(values) - done
    if limits == MemoryLimits(NO_LIMIT, NO_LIMIT):
        return Step(commit_first=False, take=waiting)
    if growth is None:
        growth, waiting = _GUESS, min(waiting, _FIRST_TAKE)
    left = limits.left(pending)
    most, most_empty = waiting, waiting
    if not foreseen:
        most, most_empty = (min(waiting, _unforeseen(free)) for free in (left, limits))
    fits, weight = _fitting(growth, values, done, most, left)
    crowded = pending.size_bytes > 0 or pending.records > 0
    if fits >= most and (foreseen or not crowded or limits.have_room(left)):
        return Step(commit_first=False, take=most, weight=weight)
    if crowded:
        fits, weight = _fitting(growth, values, done, most_empty, limits)
    return Step(commit_first=crowded, take=max(1, fits), weight=weight)


def _unforeseen(free: MemoryLimits) -> int:
    """Return how many records to take of which each may add a lot without notice."""
    most_each = MemoryLimits(_UNFORESEEN_BYTES, _UNFORESEEN_RECORDS)
    found = [one // most for one, most in zip(free, most_each, strict=True) if one != NO_LIMIT]
    return max(1, min(found))


def _fitting(
    growth: Growth, values: Sequence[bytes | None], done: int, most: int, free: MemoryLimits
) -> tuple[int, int]:
    """Return how many records add no more than is free, and what they, or the first one, weigh."""
    fits = most
    for limit, added in zip(free, growth[:2], strict=True):
        if limit != NO_LIMIT and added > 0:
            fits = min(fits, int(limit / added))
    if free.max_bytes == NO_LIMIT:
        return fits, 0
    count = max(1, fits)
    taken = values if count == len(values) else values[done : done + count]
    weight = _size_bytes(taken) + ENTRY_COST * len(taken)
    if weight * growth.per_weight > free.max_bytes:
        weights = list(accumulate(ENTRY_COST + len(value or b"") for value in taken))
        fits = min(fits, bisect_right(weights, free.max_bytes / growth.per_weight))
        weight = weights[max(1, fits) - 1]
    return fits, weight


def _size_bytes(values: Sequence[bytes | None]) -> int:
    if isinstance(values, PackedRows):
        return values.size_bytes
    return sum(map(len, filter(None, values)))


def reached(pending: Usage, limits: MemoryLimits) -> bool:
    """Return whether the share is used up, so that a commit is due."""
    return (limits.max_bytes != NO_LIMIT and pending.size_bytes >= limits.max_bytes) or (
        limits.max_records != NO_LIMIT and pending.records >= limits.max_records
    )


class TaskMemory:
    """The part of its slot's share that one stream task holds."""

    def __init__(
        self, task: str, share: MemoryShare, usage: Callable[[], Usage], *, foreseen: bool
    ) -> None:
        """`usage` returns what its stores have pending; `foreseen` is as for `plan_step`."""
        self._task = task
        self._share = share
        self.usage = usage
        self._foreseen = foreseen
        self._before = _NOTHING
        self._step = Step(commit_first=False, take=0)
        self._growth: Growth | None = None

    def plan_step(self, values: Sequence[bytes | None], done: int) -> Step:
        """Return how many records to take now; `values` are theirs, of which some are `done`."""
        self._before = self.usage()
        held, limits = self._share.hold(self._task, self._before), self._share.limits
        self._step = step = plan_step(
            held, self._growth, values, limits, done=done, foreseen=self._foreseen
        )
        return step

    def grew(self) -> None:
        """Note that the records of the step were processed."""
        growth = Growth.of(self._before, self.usage(), self._step)
        self._growth = growth if self._growth is None else growth.after(self._growth)

    def is_full(self) -> bool:
        """Return whether this task and others have used up the share."""
        held = self._share.hold(self._task, self.usage())
        return reached(held, self._share.limits)

    def make_room(self) -> bool:
        """Return whether this task must commit now; otherwise ask the task that holds most."""
        return self._share.make_room(self._task)

    @property
    def anyone_asked(self) -> bool:
        """Whether a task of the slot has yet to commit for another one."""
        return self._share.has_requests

    def take_request(self) -> bool:
        """Return whether another task asked for a commit since the last call."""
        return self._share.take_request(self._task)

    def free(self) -> None:
        """Note that nothing is pending any more."""
        self._share.hold(self._task, _NOTHING)
