"""The writers of the in-memory broker, with transactions and without."""

from collections.abc import Mapping
from itertools import repeat

from statestore.errors import CommitUnknown, Fenced, RecordFailed, Unavailable
from statestore.model.ids import TopicPartition
from statestore.ports import CommitWaits, GroupOffset, Records
from statestore.testing.memory_log import BrokerState, LogEntry, Transaction, TransactionOutcome


class MemoryOutbox:
    """`ports.Outbox` in memory, transactional."""

    def __init__(
        self,
        state: BrokerState,
        lost_answers: dict[str, bool],
        transactional_id: str,
        group_id: str,
    ) -> None:
        self._state = state
        self._lost_answers = lost_answers
        self._id = transactional_id
        self._group_id = group_id
        self._epoch = 0
        self._writer = _Writer(state)
        self._is_open = False
        self._unanswered: bool | None = None

    def open(self) -> None:
        """Fence the last owner of this id and abort what it left open."""
        self._epoch = self._state.fence(self._id)
        self._is_open, self._unanswered = False, None

    def begin(self, _number: int | None = None) -> None:
        """Begin a transaction; in memory no request is late."""
        self._state.begin(self._id, self._epoch)
        self._writer.ends.clear()
        self._is_open = True

    def send(self, records: Records, *, tracked: bool = False) -> None:
        """See `ports.Outbox`."""
        transaction = self._state.transaction(self._id, self._epoch)
        self._writer.write(records, transaction, tracked=tracked)

    def push(self) -> None:
        """Do nothing: nothing waits here."""

    def send_offsets(self, offsets: Mapping[TopicPartition, int], metadata: str) -> None:
        """Add the group's input offsets to the transaction."""
        transaction = self._state.transaction(self._id, self._epoch)
        for tp, at in offsets.items():
            transaction.group_offsets[self._group_id, tp] = GroupOffset(at, metadata)

    def flush(self) -> None:
        """Nothing waits here."""
        self._state.require_up()

    def ask_commit(self) -> None:
        """Do nothing: in memory the answer is there at once."""

    def commit(self) -> None:
        """Commit all or nothing; after CommitUnknown, which `lose_answer` causes, call again."""
        if self._unanswered is None:
            self._unanswered = self._lost_answers.pop(self._id, None)
            if self._unanswered is not None:
                if self._unanswered:
                    self._state.end(self._id, self._epoch, TransactionOutcome.COMMITTED)
                raise CommitUnknown(f"the commit of {self._id} was not answered: commit again")
        happened, self._unanswered = self._unanswered, None
        if not happened:
            self._state.end(self._id, self._epoch, TransactionOutcome.COMMITTED)
        self._is_open = False

    def abort(self) -> None:
        """Drop what was sent since begin; do nothing without an open transaction."""
        if self._is_open:
            self._state.end(self._id, self._epoch, TransactionOutcome.ABORTED)
            self._is_open = False

    def ends(self) -> dict[TopicPartition, int]:
        """Per tracked partition written since begin: the offset after its last record."""
        return dict(self._writer.ends)

    def waited(self) -> CommitWaits:
        """Return nothing: no broker is waited for."""
        return CommitWaits()

    def close(self) -> None:
        """Abort the open transaction, if this is still the owner."""
        try:
            self.abort()
        except (Fenced, Unavailable):
            self._is_open = False


class MemoryPlainOutbox:
    """`ports.Outbox` in memory, without transactions: what was sent cannot be taken back."""

    def __init__(self, state: BrokerState, group_id: str) -> None:
        self._state = state
        self._group_id = group_id
        self._writer = _Writer(state)

    def open(self) -> None:
        """Check that the broker answers; this mode fences nobody."""
        self._state.require_up()

    def begin(self, _number: int | None = None) -> None:
        """Forget the ends of the last transaction."""
        self._writer.ends.clear()

    def send(self, records: Records, *, tracked: bool = False) -> None:
        """See `ports.Outbox`."""
        self._writer.write(records, None, tracked=tracked)

    def push(self) -> None:
        """Do nothing: nothing waits here."""

    def send_offsets(self, offsets: Mapping[TopicPartition, int], metadata: str) -> None:
        """Commit the group's input offsets, now."""
        self._state.require_up()
        for tp, at in offsets.items():
            self._state.groups[self._group_id, tp] = GroupOffset(at, metadata)

    def flush(self) -> None:
        """Nothing waits here."""
        self._state.require_up()

    def ask_commit(self) -> None:
        """Do nothing: there is no transaction."""

    def commit(self) -> None:
        """The same as flush."""
        self.flush()

    def abort(self) -> None:
        """Do nothing: what was sent cannot be taken back."""

    def ends(self) -> dict[TopicPartition, int]:
        """Per tracked partition written since begin: the offset after its last record."""
        return dict(self._writer.ends)

    def waited(self) -> CommitWaits:
        """Return nothing: no broker is waited for."""
        return CommitWaits()

    def close(self) -> None:
        """Nothing is held."""


class _Writer:
    """Appends columns of records, and keeps the ends of the tracked partitions."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self.ends: dict[TopicPartition, int] = {}

    def write(self, records: Records, transaction: Transaction | None, *, tracked: bool) -> None:
        with self._state.changing:
            self._write(records, transaction, tracked=tracked)

    def _write(self, records: Records, transaction: Transaction | None, *, tracked: bool) -> None:
        topic, keys, values, times, fixed, headers, placing, choose = records
        placing = keys if placing is None else placing
        chosen = None if choose is None else choose(self._state.partitions_of(topic))
        tails = repeat(()) if headers is None else headers
        rows = zip(zip(keys, values, times, strict=True), tails, strict=False)
        for i, ((key, value, time_ms), tail) in enumerate(rows):
            partition = fixed if chosen is None else chosen[i]
            if partition is None:
                partition = self._state.partition_for(topic, placing[i])
            tp = TopicPartition(topic, partition)
            entry = LogEntry(-1, key, value, time_ms, tuple(tail), transaction)
            try:
                offset = self._state.append(tp, entry)
            except RecordFailed as error:
                error.at = i
                raise
            if tracked:
                self.ends[tp] = offset + 1
