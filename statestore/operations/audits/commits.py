"""What the stores of a live application say of commits, compared with what the group says.

A store records the inputs that it has processed and, if its rows expire, the stream time of its
last commit. Its changelog has neither. The group has both, with each committed offset: the offset
itself, and the stamp of the commit (SEMANTICS E4).

Under exactly-once no store says more than the group. A store says less after a kill within a
commit, until the next start. So less is a failure only where the store is known to be as of the
commit that the group names: its owner took the snapshot at that commit, or it was released and
nobody has claimed it since. Stores of one snapshot by an owner are of one commit, so none of them
says less than another.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from statestore.layout.folders import StateLayout
from statestore.layout.owners import Owner, read_owner
from statestore.model.ids import TaskId, TopicPartition
from statestore.operations.audits.checks import AuditCheck
from statestore.ports import Bounds, Cluster, GroupOffset
from statestore.tasks.commit import CommitStamp

_NO_TIME_MS = -1
"""The stream time of rows that expire, before the first record."""


class StoreSays(NamedTuple):
    """What a store of a snapshot says of the last commit.

    `commit_number`: of the snapshot; None if no owner took it. `log` and `offset_next`: where the
    store stands in its changelog; `log` is None if it has none of its own. `expires`: it has a
    stream time, `now_ms`; None: it does not say it.
    """

    task: TaskId
    store: str
    commit_number: int | None
    positions: Mapping[TopicPartition, int]
    log: TopicPartition | None
    offset_next: int
    expires: bool
    now_ms: int | None


class Mismatch(NamedTuple):
    """A check that a store of a stream task fails, and the reason."""

    check: AuditCheck
    store: str
    task: TaskId
    why: str


class Releases:
    """Which tasks nobody has owned since this was made."""

    def __init__(self, layout: StateLayout) -> None:
        self._layout = layout
        self._before = {task: self._released(task) for task in layout.tasks()}

    def still(self, task: TaskId) -> bool:
        """Return whether its last owner released it, and nobody has claimed it since."""
        before = self._before.get(task)
        return before is not None and self._released(task) == before

    def _released(self, task: TaskId) -> Owner | None:
        owner = read_owner(self._layout.task_dir(task))
        return owner if owner is not None and owner.released else None


def mismatches(
    stores: Sequence[StoreSays],
    inputs: Mapping[TaskId, Sequence[TopicPartition]],
    cluster: Cluster,
    releases: Releases,
    *,
    exactly_once: bool,
) -> Iterator[Mismatch]:
    """Yield what the stores say that no commit says, and the other way round.

    `inputs`: those of each stream task, as deployed.
    """
    asked = {tp for one in stores for tp in one.positions}.union(*inputs.values())
    counts = cluster.partitions(sorted({tp.topic for tp in asked}))
    there = sorted(tp for tp in asked if tp.partition < counts.get(tp.topic, 0))
    bounds = cluster.bounds(there)
    group = cluster.group_offsets(there, stable=False)
    logs = cluster.bounds(sorted({one.log for one in stores if one.log is not None}))
    for task in sorted({one.task for one in stores}):
        of_task = [one for one in stores if one.task == task]
        commits = _Commits(task, bounds, group, exactly_once=exactly_once)
        released = releases.still(task)
        furthest: dict[TopicPartition, int] = {}
        for one in of_task:
            for tp, last in one.positions.items():
                furthest[tp] = max(last, furthest.get(tp, last))
        for one in of_task:
            yield from commits.beyond(one)
            if one.commit_number is not None:
                yield from _behind(one, furthest, "another store of the same snapshot")
            if commits.is_last(one) or (released and _is_at_end(one, logs)):
                yield from _behind(one, commits.stamped(inputs.get(task, ())), "the group")
                yield from commits.other_time(one)
            elif exactly_once:
                yield from commits.later_time(one)


class _Commits:
    """What the group says of the commits of one stream task."""

    def __init__(
        self,
        task: TaskId,
        bounds: Mapping[TopicPartition, Bounds],
        group: Mapping[TopicPartition, GroupOffset],
        *,
        exactly_once: bool,
    ) -> None:
        self._task = task
        self._limits = {tp: bound.end for tp, bound in bounds.items()}
        if exactly_once:
            self._limits |= {
                tp: min(self._limits[tp], one.offset)
                for tp, one in group.items()
                if tp in self._limits
            }
        stamps = {
            tp: (one.offset, CommitStamp.read(one))
            for tp, one in group.items()
            if tp.partition == task.partition
        }
        self._stamped = {
            tp: (offset, stamp) for tp, (offset, stamp) in stamps.items() if stamp is not None
        }

    def beyond(self, one: StoreSays) -> Iterator[Mismatch]:
        """Yield the positions that no commit of the task can have."""
        for tp, last in sorted(one.positions.items()):
            if last >= self._limits.get(tp, last + 1) or tp.partition != self._task.partition:
                why = f"it says that {last} of {tp} was processed, which no commit of the task says"
                yield Mismatch(AuditCheck.INPUT_POSITIONS, one.store, one.task, why)

    def is_last(self, one: StoreSays) -> bool:
        """Return whether the store is as of the commit that the group names last."""
        numbers = {stamp.number for tp, (_, stamp) in self._stamped.items() if tp in one.positions}
        return one.commit_number is not None and max(numbers, default=None) == one.commit_number

    def stamped(self, inputs: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return what a commit of the task says was processed last of each input."""
        return {
            tp: self._stamped[tp][0] - 1
            for tp in inputs
            if tp in self._stamped and self._stamped[tp][0] > 0
        }

    def other_time(self, one: StoreSays) -> Iterator[Mismatch]:
        """Yield that rows do not expire by the stream time of the last commit."""
        time_ms = self._time_ms(one)
        if one.expires and time_ms is not None and one.now_ms != time_ms:
            yield self._of_time(one, time_ms)

    def later_time(self, one: StoreSays) -> Iterator[Mismatch]:
        """Yield that rows expire by a time that no commit has reached."""
        time_ms = self._time_ms(one)
        said_ms = one.now_ms
        if one.expires and time_ms is not None and said_ms is not None and said_ms > time_ms:
            yield self._of_time(one, time_ms)

    def _time_ms(self, one: StoreSays) -> int | None:
        """Return the stream time of the last commit; None if that is not known."""
        if not one.positions or not one.positions.keys() <= self._stamped.keys():
            return None  # somebody has set an offset by hand, or the store is new
        times = [self._stamped[tp][1].stream_time_ms for tp in one.positions]
        return max((time for time in times if time is not None), default=_NO_TIME_MS)

    @staticmethod
    def _of_time(one: StoreSays, time_ms: int) -> Mismatch:
        says = "no stream time" if one.now_ms is None else f"stream time {one.now_ms}"
        why = f"its rows expire by {says}, and that of the last commit is {time_ms}"
        return Mismatch(AuditCheck.STREAM_TIME, one.store, one.task, why)


def _behind(one: StoreSays, wanted: Mapping[TopicPartition, int], who: str) -> Iterator[Mismatch]:
    """Yield the positions that are behind those that another one says of the same commit."""
    for tp, last in sorted(wanted.items()):
        said = one.positions.get(tp)
        if said is None or said < last:
            says = "nothing" if said is None else f"{said}"
            why = (
                f"it says that {says} of {tp} was processed last, and {who} says {last}: readers "
                "that wait for that wait in vain until the next start"
            )
            yield Mismatch(AuditCheck.BEHIND_COMMITS, one.store, one.task, why)


def _is_at_end(one: StoreSays, logs: Mapping[TopicPartition, Bounds]) -> bool:
    """Return whether the store has all that its changelog has, but for the marker of a commit.

    A start that failed releases the task as well, maybe before a store was restored.
    """
    return one.log is None or (one.offset_next > 0 and one.offset_next + 1 >= logs[one.log].end)
