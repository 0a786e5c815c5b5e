"""The transactions of a stream task: what it has committed, and how it commits more.

A transaction is opened before the first write and committed or dropped as a whole. This is the one
place that talks to the outbox about transactions; commit.py has the order of steps within a commit.
"""

from collections.abc import Callable, Mapping

from statestore.errors import Unavailable
from statestore.faults import CrashPoint, reach
from statestore.layout.folders import StateLayout
from statestore.model.ids import Position, TopicPartition
from statestore.model.time_marks import TimeMark
from statestore.ports import CommitWaits
from statestore.settings import Settings
from statestore.tasks.announcer import Announcer
from statestore.tasks.commit import (
    CommitStamp,
    TaskCommit,
    commit_task,
    in_stamp,
    position_at,
    rehearse,
    settled,
    topic_digest,
)
from statestore.tasks.event_time import TimesAtCommit
from statestore.tasks.input_checkpoint import InputCheckpoint, committed_inputs
from statestore.tasks.plan import Tally, TaskEdges, TaskPlan
from statestore.tasks.steps import Steps
from statestore.tasks.stores import TaskStores


class Committer:
    """The transactions of one stream task, one after another."""

    def __init__(
        self,
        plan: TaskPlan,
        edges: TaskEdges,
        settings: Settings,
        layout: StateLayout,
        stores: TaskStores,
        check_ours: Callable[[], None],
    ) -> None:
        """`check_ours` raises Fenced once a newer owner has claimed the task."""
        self.offsets: Mapping[TopicPartition, int] = {}
        """Of each input, the offset NEXT to read after the last commit."""
        self.position = Position()
        """Of the inputs the group has committed, the LAST offset processed."""
        self.times = TimesAtCommit(None)
        """Event time as of the last commit."""
        self.stamp = CommitStamp(0, None)
        self.tally = Tally(serving=plan.serving)
        """What this serving of the task has committed, earlier attempts included."""
        self._plan = plan
        self._edges = edges
        self._settings = settings
        self._stores = stores
        self._checkpoint = InputCheckpoint(layout.task_dir(plan.task_id), edges.clock)
        self._check_ours = check_ours
        self._begun = False
        self._fenced = False
        self._committed_s = edges.clock.monotonic()

    def has_nothing_to_do(self) -> bool:
        """Return whether the group has committed every input at its planned end.

        Open transactions may be about to change that, which another start would then find.
        """
        ends = self._plan.ends
        if ends is None:
            return False
        found = self._edges.cluster.group_offsets(self._plan.inputs, stable=False)
        return all(tp in found and found[tp].offset == end for tp, end in ends.items())

    def fence(self) -> None:
        """Abort what the last owner of the transactional id left open, and fence that owner.

        Fenced, before anything is done, if a newer owner has the task.
        """
        self._check_ours()
        self._begun = False
        self._edges.outbox.open()
        self._fenced = True

    def read_committed(self) -> None:
        """Ask the log how far the inputs are committed, and set `offsets`, `stamp` and `tally`."""
        # Under at_least_once a store commits before the group does, so its position says nothing.
        opened = self._stores.opened.values() if self._settings.exactly_once else ()
        self.offsets, self.stamp, group, partitions, channels = committed_inputs(
            self._plan, self._edges.cluster, [one.store for one in opened], self._checkpoint.read()
        )
        stamp = self.stamp
        untold = {
            topic: stamp.untold[digest]
            for topic in self._plan.times.channels
            if (digest := topic_digest(topic)) in stamp.untold
        }
        self.times = TimesAtCommit(
            stamp.stream_time_ms, stamp.seen_ms, partitions, channels, untold
        )
        self.position = position_at(group)
        told = self.stamp.tally
        if told is not None and told.serving == self._plan.serving:
            self.tally = told
        self._checkpoint.seen(group)

    def was_overtaken(self) -> bool:
        """Return whether another owner has committed inputs beyond our last commit.

        An owner with a state dir of its own is noticed by nothing else before this one commits.
        """
        found = self._edges.cluster.group_offsets(self._plan.inputs, stable=False)
        return any(at.offset > self.offsets.get(tp, at.offset) for tp, at in found.items())

    def begin(self) -> None:
        """Open a transaction, unless one is open; call it before anything is written."""
        if not self._begun:
            if not self._fenced:
                self._fence_late()
            self._stores.before_write()
            self._edges.outbox.begin(self.stamp.number + 1)
            self._begun = True

    def processed(self, tp: TopicPartition, offset_last: int) -> None:
        """Note how far an input was processed, for readers that see pending writes (S14)."""
        self._stores.processed_last[tp] = offset_last

    def commit(
        self,
        offsets: Mapping[TopicPartition, int],
        times: TimesAtCommit,
        tally: Tally,
    ) -> Steps[None]:
        """Commit all that was written, with the offsets of the inputs NEXT to read (E2).

        `tally` includes this commit.
        """
        stamp = CommitStamp(
            self.stamp.number + 1,
            times.stream_time_ms,
            tally if tally.serving else None,
            in_stamp(times.partitions),
            times.seen_ms,
            # What this run does not ask for, as when rows are migrated, stays as it was.
            {
                topic_digest(topic): one
                for topic, one in sorted({**self.times.channels, **times.channels}.items())
            },
            {topic_digest(topic): one for topic, one in sorted(times.untold.items())},
        )
        self.begin()
        if not self._settings.exactly_once:
            self._check_ours()  # Kafka fences nobody in this mode (E6)
        began_s = self._edges.clock.monotonic()
        yield from commit_task(
            TaskCommit(offsets, stamp),
            list(self._stores.opened.values()),
            self._edges.outbox,
            self._settings.processing_guarantee,
            self._settle,
        )
        self._begun = False
        self._committed_s = began_s
        self.stamp = stamp
        self.tally = tally
        self.offsets = offsets
        self.times = times._replace(channels={**self.times.channels, **times.channels})
        self.position = position_at(offsets)
        self._stores.committed()
        self._checkpoint.committed(offsets)

    def announce(self, marks: Mapping[str, TimeMark], announcer: Announcer, now_s: float) -> None:
        """Write time marks behind all records of the open transaction."""
        if not self._settings.exactly_once:
            # Without a transaction nothing but this keeps a record from coming after them.
            self._edges.outbox.flush()
        announcer.send(marks, self._edges.outbox, now_s)
        reach(CrashPoint.COMMIT_MARKED)

    def rehearse(self, stream_time_ms: int | None) -> None:
        """Send to the log all that a commit would write, without committing it (E8a)."""
        self.begin()
        rehearse(
            list(self._stores.opened.values()),
            self._edges.outbox,
            self._settings.processing_guarantee,
            CommitStamp(self.stamp.number + 1, stream_time_ms),
        )

    def interval_has_passed(self, *, share: float = 1.0) -> bool:
        """Return whether the commit interval, or a share of it, passed since the last commit."""
        return self.until_interval_s(share=share) <= 0

    def until_interval_s(self, *, share: float = 1.0) -> float:
        """Return when that will be, in seconds from now."""
        interval_s = share * self._settings.effective_commit_interval_ms / 1000
        return self._committed_s + interval_s - self._edges.clock.monotonic()

    def is_stale(self) -> bool:
        """Return whether the broker may soon forget the group's offsets, as the commit is old."""
        return self._checkpoint.is_old()

    def waited(self) -> CommitWaits:
        """Return how long the task has waited for brokers to commit so far."""
        return self._edges.outbox.waited()

    def write_checkpoint(self) -> None:
        """Write the input checkpoint, at the end of the task's life."""
        self._checkpoint.write()

    def drop(self) -> None:
        """Drop everything since the last commit."""
        if self._settings.exactly_once:
            # The transaction may be open, expired, or committed without an answer. A new epoch
            # ends it for good; after that the log shows which it was.
            self.fence()
        else:
            self.abort()
        self._stores.rollback()

    def abort(self) -> None:
        """Abort the transaction, if one is open."""
        if self._begun:
            self._begun = False
            self._edges.outbox.abort()

    def _fence_late(self) -> None:
        """Fence before the first write of a task that seemed to have nothing to do.

        Unavailable, after which the task goes back, if the last owner has committed meanwhile.
        """
        self.fence()
        known = self.stamp.number
        self.read_committed()
        if self.stamp.number != known:
            raise Unavailable(
                f"task {self._plan.task_id}: commit {self.stamp.number} came after commit {known} "
                "was read: the task goes back to it"
            )

    def _settle(self, commit: TaskCommit) -> Mapping[TopicPartition, int] | None:
        """Return the changelogs' ends if the log holds an unanswered commit (SEMANTICS E4)."""
        # A new epoch comes first: after it, nothing of the old one can arrive any more.
        self.fence()
        stores, edges = list(self._stores.opened.values()), self._edges
        return settled(commit, stores, edges.cluster, edges.changelog)
