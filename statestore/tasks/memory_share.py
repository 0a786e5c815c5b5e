"""How much memory pending writes may take, and how much to process before a commit (S6, KIP-892).

A host's limits are divided among its slots. All stream tasks that a slot serves share its part, and
the one that holds most of it commits first. How many records to take next is a pure function.
"""

from collections.abc import Callable
from typing import NamedTuple

from statestore.settings import NO_LIMIT, Settings

_FIRST_TAKE = 1000
_GUESS = (1024.0, 1.0)


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

    def take_request(self, task: str) -> bool:
        """Return whether `task` was asked to commit since the last call."""
        if task not in self._asked:
            return False
        self._asked.remove(task)
        return True


class Step(NamedTuple):
    """The next batch: whether to commit before it, and how many of its records to take."""

    commit_first: bool
    take: int


def plan_step(
    pending: Usage, per_record: tuple[float, float] | None, waiting: int, limits: MemoryLimits
) -> Step:
    """Return the next step if each input record adds `per_record` (bytes, records).

    The step commits first if the waiting records would exceed the share and something is pending.
    It takes at least one record, and at most as many as the share can hold. If `per_record` is
    None, nothing was measured yet, and the step takes few records.
    """
    if per_record is None:
        if limits == MemoryLimits(NO_LIMIT, NO_LIMIT):
            return Step(commit_first=False, take=waiting)
        first = plan_step(pending, _GUESS, waiting, limits)
        return first._replace(take=min(first.take, _FIRST_TAKE))
    fits = waiting
    fits_empty = waiting
    for limit, used, growth in (
        (limits.max_bytes, pending.size_bytes, per_record[0]),
        (limits.max_records, pending.records, per_record[1]),
    ):
        if limit == NO_LIMIT or growth <= 0:
            continue
        fits = min(fits, int(max(0, limit - used) / growth))
        fits_empty = min(fits_empty, int(limit / growth))
    if fits >= waiting:
        return Step(commit_first=False, take=waiting)
    crowded = pending.size_bytes > 0 or pending.records > 0
    return Step(commit_first=crowded, take=max(1, fits_empty if crowded else fits))


def reached(pending: Usage, limits: MemoryLimits) -> bool:
    """Return whether the share is used up, so that a commit is due."""
    return (limits.max_bytes != NO_LIMIT and pending.size_bytes >= limits.max_bytes) or (
        limits.max_records != NO_LIMIT and pending.records >= limits.max_records
    )


class TaskMemory:
    """The part of its slot's share that one stream task holds."""

    def __init__(self, task: str, share: MemoryShare, usage: Callable[[], Usage]) -> None:
        """`usage` returns what the stores of the task have pending."""
        self._task = task
        self._share = share
        self.usage = usage
        self._before = _NOTHING
        self._per_record: tuple[float, float] | None = None

    def plan_step(self, waiting: int) -> Step:
        """Return how many of the waiting records to take now."""
        self._before = self.usage()
        held = self._share.hold(self._task, self._before)
        return plan_step(held, self._per_record, waiting, self._share.limits)

    def grew(self, records: int) -> None:
        """Note that `records` were processed since the step was planned."""
        before, after = self._before, self.usage()
        self._per_record = (
            (after.size_bytes - before.size_bytes) / records,
            (after.records - before.records) / records,
        )

    def is_full(self) -> bool:
        """Return whether this task and others have used up the share."""
        held = self._share.hold(self._task, self.usage())
        return reached(held, self._share.limits)

    def make_room(self) -> bool:
        """Return whether this task must commit now; otherwise ask the task that holds most."""
        return self._share.make_room(self._task)

    def take_request(self) -> bool:
        """Return whether another task asked for a commit since the last call."""
        return self._share.take_request(self._task)

    def free(self) -> None:
        """Note that nothing is pending any more."""
        self._share.hold(self._task, _NOTHING)
