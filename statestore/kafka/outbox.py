"""Writes outputs, changelog records and input offsets: in transactions, or plainly.

How records reach the client is `sender.py`, which client carries which transaction `epochs.py`.
One thread.
"""

# ruff: noqa: SLF001 - librdkafka's local codes are public, underscored by convention

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from statestore.errors import CommitUnknown, Fenced, Misuse, StateStoreError, Unavailable
from statestore.kafka.bounded import Overdue, bounded
from statestore.kafka.clients import TRANSACTION_LOG, Properties, Trouble, consumer, unanswered
from statestore.kafka.epochs import Epochs, Turn
from statestore.kafka.errors import error_for, kafka_error, translated
from statestore.kafka.groups import GroupClient
from statestore.kafka.sender import Sender
from statestore.model.ids import TopicPartition
from statestore.ports import Records
from statestore.settings import Settings

_log = logging.getLogger(__name__)

_CLOSE_S = 5.0
# How often a wait for acknowledgements looks whether a record was refused meanwhile.
_GLANCE_S = 0.2

NumberOf = Callable[[str], int]
"""The commit number in the metadata of a committed input offset; 0 if it carries none."""


def no_number(_metadata: str) -> int:
    """For outboxes whose transactions are not numbered."""
    return 0


class _Carried(NamedTuple):
    """One transaction: its number, its producer, and what it wrote."""

    number: int
    sender: Sender
    topics: set[str]


class TransactionalOutbox:
    """`ports.Outbox` under exactly_once: one Kafka transaction from begin to commit.

    With two ids they take turns (`epochs.py`); with one, each `open` is good for one transaction.
    After Fenced only `open` helps; after any other error `abort` does, except CommitUnknown:
    `commit` again.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        transactional_ids: Sequence[str],
        group_id: str,
        inputs: Sequence[TopicPartition] = (),
        number_of: NumberOf = no_number,
        batch_bytes: int | None = None,
    ) -> None:
        """`inputs`: of the stream task; what the group committed of them carries its numbers.

        `batch_bytes`: the most that the topics it writes take at once.
        """
        self._settings = settings
        self._inputs = sorted(inputs)
        self._batch_bytes = batch_bytes
        self._name = transactional_ids[0]
        self._group_id = group_id
        self._number_of = number_of
        self._trouble = Trouble()
        self._epochs = Epochs(settings, transactional_ids, self._trouble, self._sender)
        self._group: GroupClient | None = None
        self._current: _Carried | None = None
        self._is_busy = False
        self._ended = 0
        self._ends: dict[TopicPartition, int] = {}
        self._fenced: Fenced | None = None

    def open(self) -> None:
        """Fence the last owner of these ids and abort what it left open."""
        self._discard()
        self._fenced = None
        with ThreadPoolExecutor(1) as aside:  # both mostly wait
            opened = aside.submit(self._epochs.open_all)
            if self._group is None:
                # A producer that looks for the group's coordinator in vain waits beyond its
                # timeout: let a consumer find it first.
                group = GroupClient(self._settings, self._group_id, stable=False)
                try:
                    group.committed([TopicPartition(TRANSACTION_LOG, 0)])
                except BaseException:
                    group.close()
                    raise
                self._group = group
            opened.result()

    def begin(self, number: int | None = None) -> None:
        """Begin a transaction; the broker learns of it with the first record or offset."""
        self._require_owner()
        assert self._current is None, "one transaction at a time"
        number = self._ended if number is None else number
        try:
            sender = self._epochs.take(number)
            sender.begin()
        except KafkaException as failure:
            raise self._error(failure, "begin") from failure
        except Fenced as fenced:
            self._fenced = fenced
            raise
        self._current = _Carried(number, sender, set())
        self._ends = sender.ends

    def send(self, records: Records, *, tracked: bool = False) -> None:
        """See `ports.Outbox`. RecordFailed, TopicMissing: abort; other records may be queued."""
        current = self._ready()
        sender = current.sender
        current.topics.add(records.topic)
        # Any record's failure fails the commit; the last one's report tells of a missing topic.
        report = sender.on_tracked if tracked else sender.on_report
        try:
            sender.send(records, each=None, last=report)
        except KafkaException as failure:
            raise self._reason(failure, f"send to {records.topic}") from failure

    def send_offsets(self, offsets: Mapping[TopicPartition, int], metadata: str) -> None:
        """The group's input offsets join the transaction."""
        current, doing = self._ready(), f"send input offsets to group {self._group_id}"
        assert self._group is not None
        member, joining = self._group.member(), _with_metadata(offsets, metadata)
        client, timeout_s = current.sender.client, self._timeout_s
        try:
            # After Overdue only `open` helps, with new clients: what the old one may still do then
            # is fenced, and commits nothing.
            bounded(
                lambda: client.send_offsets_to_transaction(joining, member, timeout_s),
                timeout_s,
                when_overdue_ends=current.sender.close,
            )
        except KafkaException as failure:
            raise self._reason(failure, doing) from failure
        except Overdue as overdue:
            self._is_busy = True
            raise unanswered(self._settings, self._trouble, f"{doing} ({self._name})") from overdue

    def flush(self) -> None:
        """Wait until every record sent is acknowledged; a failed one shows here or at commit."""
        sender = self._ready().sender
        refused = self._drain(sender)
        sender.raise_failure()
        if refused is not None:
            raise self._error(refused, "flush") from refused
        if left := len(sender.client):
            doing = f"have {left} records acknowledged"
            raise unanswered(self._settings, self._trouble, doing)

    def commit(self) -> None:
        """All or nothing; CommitUnknown: not answered in time, call again to go on waiting."""
        current = self._ready()
        try:
            if self._drain(current.sender) is None and len(current.sender.client):
                # A client that began to commit could not be taken out of the transaction.
                raise self._unanswered_commit()
            current.sender.commit(self._timeout_s)
        except KafkaException as failure:
            error = kafka_error(failure)
            if error and error.retriable() and not error.fatal() and not error.txn_requires_abort():
                raise self._unanswered_commit() from failure
            current.sender.raise_failure()
            raise self._error(failure, "commit") from failure
        self._ended += 1
        # Two transactions later this id is in turn again: whoever committed that one was here.
        self._spent(current, current.number + 2)

    def abort(self) -> None:
        """Drop what was sent since begin; without an open transaction nothing happens."""
        self._require_owner()
        # A client busy with an overdue call does nothing else: the next `open` aborts.
        if self._current is None or self._is_busy:
            return
        # Its id is opened anew, which aborts it; a client that had a record refused would first
        # wait for those that it sent right after it.
        self._spent(self._current, self._current.number)

    def ends(self) -> dict[TopicPartition, int]:
        """Per tracked partition written since begin: the offset after its last record."""
        return dict(self._ends)

    def close(self) -> None:
        """Abort what is open, wait until the last transaction has ended for readers, and let go.

        As far as the broker answers soon. It answers a commit before the records are marked as
        committed, which makes them readable; the id can be opened anew only after that.
        """
        current, self._current = self._current, None
        if current is not None and not self._is_busy:
            if self._fenced is None:
                self._abort_here(current.sender)
            current.sender.close()
        if not self._epochs.wait_ended(_CLOSE_S):
            _log.info("the last transaction of %s is left for its next owner", self._name)
        self._epochs.close()
        if self._group is not None:
            self._group.close()

    def _abort_here(self, sender: Sender) -> None:
        """Abort without a new epoch, which would take the id from a newer owner."""
        failure: KafkaException | None = None
        try:
            done = sender.abort(_CLOSE_S)
        except KafkaException as refused:
            done, failure = False, refused
        if not done:
            _log.info("transaction of %s left for its next owner: %s", self._name, failure)

    def _unanswered_commit(self) -> CommitUnknown:
        return CommitUnknown(
            f"the commit of {self._name} was not answered within {self._timeout_s:g} s"
            f"{self._trouble}: it may or may not have happened: commit again to learn which"
        )

    @property
    def _timeout_s(self) -> float:
        return self._settings.request_timeout_ms / 1000

    def _sender(self, properties: Properties) -> Sender:
        return Sender(self._settings, properties, self._trouble, batch_bytes=self._batch_bytes)

    def _drain(self, sender: Sender) -> KafkaException | None:
        """Wait until every record is acknowledged, or one is refused: the client's word for that.

        The client keeps those that it sent right after a refused one until its timeout is over.
        """
        deadline_s = monotonic() + self._timeout_s
        while sender.client.flush(_GLANCE_S) and monotonic() < deadline_s:
            try:
                sender.client.begin_transaction()  # refused either way: it tells why
            except KafkaException as refused:
                error = kafka_error(refused)
                if error is None or error.code() != KafkaError._STATE:
                    return refused
        return None

    def _spent(self, current: _Carried, next_number: int) -> None:
        """Transaction `current` has ended; `next_number` will be the next one of its id."""
        self._current = None
        turn = Turn(current.topics, lambda: self._check_alone(next_number))
        self._epochs.spent(current.number, current.sender, turn)

    def _check_alone(self, number: int) -> None:
        """Fenced if the group already has transaction `number`, or a later one, of another owner.

        The id was just opened, so whoever would commit `number` from now on has opened it again.
        """
        if not self._inputs or self._group is None:
            return
        found = self._group.committed(self._inputs)
        latest = max((self._number_of(at.metadata or "") for at in found), default=0)
        if latest >= number:
            raise Fenced(
                f"{self._name}: commit {latest} of this stream task is not this owner's: a newer "
                "owner took over"
            )

    def _require_owner(self) -> None:
        if self._fenced is not None:
            raise Fenced(str(self._fenced))

    def _ready(self) -> _Carried:
        self._require_owner()
        assert self._current is not None, "begin comes first"
        return self._current

    def _discard(self) -> None:
        current, self._current = self._current, None
        # The thread of an overdue call closes the client.
        if current is not None and not self._is_busy:
            current.sender.close()
        self._is_busy = False
        self._epochs.discard()

    def _reason(self, failure: KafkaException, doing: str) -> StateStoreError:
        """Why the client refuses; it says so only when asked to begin anew."""
        error = kafka_error(failure)
        spoiled = error is not None and error.code() in {KafkaError._STATE, KafkaError._FATAL}
        if not spoiled:
            return self._error(failure, doing)
        try:
            self._ready().sender.client.begin_transaction()
        except KafkaException as reason:
            return self._error(reason, doing)
        raise AssertionError("a second transaction began inside the first") from failure

    def _error(self, failure: KafkaException, doing: str) -> StateStoreError:
        doing = f"{doing} ({self._name})"
        error = kafka_error(failure)
        if error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            # The client does not say of which topic.
            topics = sorted(self._current.topics) if self._current else []
            doing += f", which writes to {', '.join(topics)}"
        if error is not None and error.code() in {KafkaError._TIMED_OUT, KafkaError._TRANSPORT}:
            return unanswered(self._settings, self._trouble, doing)
        found = translated(failure, doing)
        if error is not None and error.fatal() and not isinstance(found, Fenced | Misuse):
            found = Fenced(f"{found}; the producer of this id is of no more use: open it again")
        if isinstance(found, Fenced):
            # The client forgets what it raised from a callback, and then answers by chance.
            self._fenced = found
        return found


class PlainOutbox:
    """`ports.Outbox` under at_least_once: no transaction; what was sent stays, whatever happens.

    Commit waits for every acknowledgement and raises if one record failed; `send_offsets` commits
    to the group at once, so it comes last (SEMANTICS E6).
    """

    def __init__(
        self, settings: Settings, *, group_id: str, batch_bytes: int | None = None
    ) -> None:
        """`batch_bytes`: the most that the topics it writes take at once."""
        self._settings = settings
        self._batch_bytes = batch_bytes
        self._group_id = group_id
        self._trouble = Trouble()
        self._sender: Sender | None = None
        self._committer: Consumer | None = None

    def open(self) -> None:
        """Make the producer; nobody is fenced in this mode."""
        self.close()
        self._sender = Sender(self._settings, {}, self._trouble, batch_bytes=self._batch_bytes)

    def begin(self, _number: int | None = None) -> None:
        """Forget the last unit's ends and failures."""
        self._ready().forget()

    def send(self, records: Records, *, tracked: bool = False) -> None:
        """See `ports.Outbox`."""
        sender = self._ready()
        # No transaction tells of a failed record, so each one reports.
        report = sender.on_tracked if tracked else sender.on_report
        try:
            sender.send(records, each=report, last=report)
        except KafkaException as failure:
            raise translated(failure, f"send to {records.topic}") from failure

    def send_offsets(self, offsets: Mapping[TopicPartition, int], metadata: str) -> None:
        """Commit the group's input offsets, now."""
        if self._committer is None:
            self._committer = consumer(self._settings, self._group_id, self._trouble)
        wanted = _with_metadata(offsets, metadata)
        doing = f"commit input offsets of group {self._group_id}"
        try:
            done = self._committer.commit(offsets=wanted, asynchronous=False)
        except KafkaException as failure:
            raise translated(failure, doing) from failure
        for tp in done or ():
            if tp.error is not None:
                raise error_for(tp.error, doing)

    def flush(self) -> None:
        """Wait until every record sent is acknowledged."""
        sender = self._ready()
        sender.flush()
        sender.raise_failure()

    def commit(self) -> None:
        """The same as flush: the input offsets follow the stores."""
        self.flush()

    def abort(self) -> None:
        """Let what was sent arrive, so that the log's end holds still for the restore after it."""
        sender = self._ready()
        try:
            sender.flush()
        except Unavailable:
            sender.client.purge()
            raise
        finally:
            sender.forget()

    def ends(self) -> dict[TopicPartition, int]:
        """Per tracked partition written since begin: the offset after its last record."""
        return dict(self._ready().ends)

    def close(self) -> None:
        """Let go; records not yet acknowledged may be lost, as they were not committed."""
        sender, self._sender = self._sender, None
        committer, self._committer = self._committer, None
        if sender is not None:
            sender.close()
        if committer is not None:
            committer.close()

    def _ready(self) -> Sender:
        assert self._sender is not None, "open comes first"
        return self._sender


def _with_metadata(offsets: Mapping[TopicPartition, int], metadata: str) -> list[KafkaPartition]:
    return [KafkaPartition(*tp, at, metadata) for tp, at in offsets.items()]
