"""What a stream task has committed, and the transaction in which it is about to commit more.

Opened with the first write, committed as one or dropped as one. The one place that talks to the
outbox about transactions; the order within a commit is commit.py's.
"""

from collections.abc import Callable, Mapping

from statestore.model.ids import Position, TopicPartition
from statestore.settings import Settings
from statestore.tasks.commit import (
    Commit,
    CommitStamp,
    commit_task,
    position_at,
    rehearse,
    settled,
)
from statestore.tasks.input_checkpoint import InputCheckpoint
from statestore.tasks.inputs import committed_inputs
from statestore.tasks.plan import Tally, TaskEdges, TaskPlan
from statestore.tasks.stores import TaskStores


class Committer:
    """The transactions of one stream task, one after another."""

    def __init__(
        self,
        plan: TaskPlan,
        edges: TaskEdges,
        settings: Settings,
        stores: TaskStores,
        checkpoint: InputCheckpoint,
        check_ours: Callable[[], None],
    ) -> None:
        """`check_ours` raises Fenced once a newer owner has claimed the task."""
        self.offsets: Mapping[TopicPartition, int] = {}
        self.position = Position()
        """Of the inputs the group has committed, the LAST offset processed."""
        self.stamp = CommitStamp(0, None)
        self.tally = Tally(serving=plan.serving)
        """What this serving of the task has committed, earlier attempts included."""
        self._plan = plan
        self._edges = edges
        self._settings = settings
        self._stores = stores
        self._checkpoint = checkpoint
        self._check_ours = check_ours
        self._begun = False

    def fence(self) -> None:
        """Settle what this id left open, for good; a former owner would fence the newer one."""
        self._check_ours()
        self._begun = False
        self._edges.outbox.open()

    def read_committed(self) -> None:
        """Ask the log where the inputs stand: what `offsets`, `stamp`, `tally` say from here on."""
        # At least once, a store commits before the group does: nothing to be told by.
        opened = self._stores.opened.values() if self._settings.exactly_once else ()
        self.offsets, self.stamp, group = committed_inputs(
            self._plan, self._edges.cluster, [one.store for one in opened], self._checkpoint.read()
        )
        self.position = position_at(group)
        told = self.stamp.tally
        if told is not None and told.serving == self._plan.serving:
            self.tally = told
        self._checkpoint.seen(group)

    def begin(self) -> None:
        """Before the first write of a transaction, or oftener."""
        if not self._begun:
            self._stores.before_write()
            self._edges.outbox.begin(self.stamp.number + 1)
            self._begun = True

    def commit(
        self, offsets: Mapping[TopicPartition, int], stream_time_ms: int | None, tally: Tally
    ) -> None:
        """Commit all that was written, with the offsets of the inputs NEXT to read (E2).

        `tally`: what there was, and this commit.
        """
        told = tally if tally.serving else None
        stamp = CommitStamp(self.stamp.number + 1, stream_time_ms, told)
        self.begin()
        if not self._settings.exactly_once:
            self._check_ours()  # Kafka fences nobody in this mode (E6)
        commit_task(
            Commit(offsets, stamp),
            list(self._stores.opened.values()),
            self._edges.outbox,
            self._settings.processing_guarantee,
            self._settle,
        )
        self._begun = False
        self.stamp = stamp
        self.tally = tally
        self.offsets = offsets
        self.position = position_at(offsets)
        self._stores.committed()
        self._checkpoint.committed(offsets)

    def rehearse(self, stream_time_ms: int | None) -> None:
        """Have the log take all that a commit would write, without committing (E8a)."""
        self.begin()
        rehearse(
            list(self._stores.opened.values()),
            self._edges.outbox,
            self._settings.processing_guarantee,
            CommitStamp(self.stamp.number + 1, stream_time_ms),
        )

    def drop(self) -> None:
        """Nothing since the last commit happened."""
        if self._settings.exactly_once:
            # The transaction may be open, expired, or committed without an answer: a new epoch
            # ends it for good, then the log tells which.
            self.fence()
        else:
            self.abort()
        self._stores.rollback()

    def abort(self) -> None:
        """Abort the transaction, if one is open."""
        if self._begun:
            self._begun = False
            self._edges.outbox.abort()

    def _settle(self, commit: Commit) -> Mapping[TopicPartition, int] | None:
        """The changelogs' ends if the log holds an unanswered commit (SEMANTICS E4)."""
        # A new epoch first: after it, nothing of the old one can arrive any more.
        self.fence()
        stores, edges = list(self._stores.opened.values()), self._edges
        return settled(commit, stores, edges.cluster, edges.changelog)
