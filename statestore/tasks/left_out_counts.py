"""Counts the records that a stream task leaves out: those that count are in its commits.

What a commit has counted lies in its stamp (`Tally`), so that the next worker of the same run knows
it exactly. A stamp has room for little: causes beyond that are counted together.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from statestore.metrics import count_left_out
from statestore.model.batch import Batch
from statestore.model.ids import TaskId
from statestore.model.left_out import OTHER, Cause, Counts, Fate, total

_log = logging.getLogger(__name__)
_NAMED: Final = 10
STAMP_MAX_BYTES: Final = 768
"""How much of the 4096 bytes of an offset's metadata the causes may take."""
_NUMBER_BYTES: Final = 22


class LeftOutRecords:
    """How many records a stream task has left out, by cause.

    There is one per stream task, and it outlives the task's rewinds.
    """

    def __init__(self, task_id: TaskId) -> None:
        self._task_id = task_id
        self._counts: Counter[str] = Counter()
        self._committed: Counter[str] = Counter()
        self._told: set[tuple[str, str]] = set()

    def add(self, cause: Cause, count: int) -> None:
        """Count records that are left out with the open transaction."""
        self._counts[str(cause)] += count

    def pending(self) -> Counts:
        """Return how many records were left out since the last commit, by cause."""
        return self._counts

    def by_cause(self) -> Counts:
        """Return how many records were left out for good, by cause."""
        return dict(self._committed)

    def went_back(self) -> None:
        """Forget what was counted since the last commit, as it is not left out."""
        self._counts.clear()

    def committed(self) -> None:
        """Report them to the metrics, as they are left out for good."""
        count_left_out(str(self._task_id), self._counts)
        self._committed += self._counts
        self._counts.clear()

    def tell(self, node: str, batch: Batch, indices: Sequence[int], reason: str) -> None:
        """Log what a node drops: as a warning the first time, later for debugging."""
        level = logging.DEBUG if (node, reason) in self._told else logging.WARNING
        self._told.add((node, reason))
        offsets = batch.offsets
        where = f"of {batch.topic}-{batch.partition}" if batch.topic else "made by an operator"
        if batch.topic and offsets is not None:
            named = ", ".join(str(offsets[i]) for i in indices[:_NAMED])
            where += f", offset {named}{', …' if len(indices) > _NAMED else ''}"
        _log.log(
            level,
            "task %s: node %s dropped %d records %s: %s",
            self._task_id,
            node,
            len(indices),
            where,
            reason.replace("_", " "),
        )


def stamped(before: Counts, more: Counts) -> dict[str, int]:
    """Return both together, as a stamp has room for.

    A cause that has its own number keeps it. Those that came too late for one are counted together,
    so the numbers of each fate add up all the same.
    """
    found = dict(before)
    if not more:
        return found
    size = sum(map(_size, found))
    for name, count in more.items():
        kept = name
        if kept not in found:
            size += _size(name)
            if size > STAMP_MAX_BYTES:
                size -= _size(name)
                kept = _other(name)
        found[kept] = found.get(kept, 0) + count
    return found


def dropped(counts: Counts) -> int:
    """Return how many of these records were dropped."""
    return total(counts, Fate.DROPPED)


def _size(name: str) -> int:
    return len(msgspec.json.encode(name)) + _NUMBER_BYTES


def _other(name: str) -> str:
    cause = Cause.parse(name)
    assert cause is not None
    return str(cause._replace(node="", reason=OTHER))
