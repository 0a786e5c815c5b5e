"""Writes outputs, changelog records and input offsets, with or without transactions.

`sender.py` passes records to a client; `epochs.py` decides which client carries which
transaction. An outbox is used by one thread.
"""

# ruff: noqa: SLF001 - librdkafka's local codes are public, underscored by convention

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from time import monotonic
from typing import Literal, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from statestore.errors import CommitUnknown, Fenced, Misuse, StateStoreError, Unavailable
from statestore.kafka.clients import (
    TRANSACTION_LOG,
    Properties,
    Trouble,
    consumer,
    unanswered,
    waited,
)
from statestore.kafka.epochs import Epochs, Turn
from statestore.kafka.error_codes import error_for, kafka_error, translated
from statestore.kafka.groups import GroupClient, Groups, metadata_of
from statestore.kafka.sender import Sender
from statestore.model.ids import TopicPartition
from statestore.ports import CommitWaits, Records
from statestore.settings import Settings

_log = logging.getLogger(__name__)

_CLOSE_S = 5.0
# How often a wait for acknowledgements checks whether a record was refused meanwhile.
_CHECK_S = 0.2


class Waits:
    """Adds up how long an outbox waits for brokers, whether or not they answer."""

    def __init__(self) -> None:
        self.so_far = CommitWaits()

    @contextmanager
    def of(self, part: Literal["flush", "offsets", "end"]) -> Iterator[None]:
        """Count what is done inside as waiting for that part of a commit."""
        since_s = monotonic()
        try:
            yield
        finally:
            waited = {part: getattr(self.so_far, part) + monotonic() - since_s}
            self.so_far = self.so_far._replace(**waited)


NumberOf = Callable[[str], int]
"""Returns the commit number in the metadata of a committed input offset; 0 if it has none."""
_GRACE_S = 2.0


def no_number(_metadata: str) -> int:
    """Return 0, for outboxes whose transactions have no numbers."""
    return 0


class _Transaction(NamedTuple):
    """One transaction: its number, its producer, and the topics that it wrote to."""

    number: int
    sender: Sender
    topics: set[str]


class TransactionalOutbox:
    """`ports.Outbox` under exactly_once: one Kafka transaction from begin to commit.

    With two transactional ids, transactions use them in turn (`epochs.py`); with one, each `open`
    allows one transaction. After Fenced call `open`; after CommitUnknown call `commit` again; after
    any other error call `abort`.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        transactional_ids: Sequence[str],
        group_id: str | None,
        inputs: Sequence[TopicPartition] = (),
        number_of: NumberOf = no_number,
        batch_bytes: int | None = None,
        groups: Groups | None = None,
    ) -> None:
        """Create an outbox that is not open yet.

        `inputs` are the stream task's inputs: the metadata of their committed offsets have commit
        numbers. `batch_bytes` is the largest batch that all topics to write to accept. Without a
        group, transactions carry no input offsets. `groups`: clients of the application's group to
        share; None: it makes one of its own.
        """
        self._settings = settings
        self._inputs = sorted(inputs)
        self._batch_bytes = batch_bytes
        self._name = transactional_ids[0]
        self._group_id = group_id
        self._number_of = number_of
        self._waits = Waits()
        self._trouble = Trouble()
        self._epochs = Epochs(settings, transactional_ids, self._trouble, self._sender)
        self._groups = groups
        self._group: GroupClient | None = None
        self._current: _Transaction | None = None
        self._is_busy = False
        self._ended = 0
        self._ends: dict[TopicPartition, int] = {}
        self._fenced: Fenced | None = None

    def open(self) -> None:
        """Fence the last owner of these ids and abort its open transaction."""
        self._discard()
        self._fenced = None
        with ThreadPoolExecutor(1) as background:  # both mostly wait
            opened = background.submit(self._epochs.open_all)
            if self._group is None and self._group_id is not None:
                # A producer that does not find the group's coordinator waits beyond its timeout,
                # so a consumer finds it first.
                group = self._group_client(self._group_id)
                try:
                    group.committed([TopicPartition(TRANSACTION_LOG, 0)])
                except BaseException:
                    if self._groups is None:
                        group.close()
                    raise
                self._group = group
            opened.result()

    def begin(self, number: int | None = None) -> None:
        """Begin a transaction; the broker is informed with the first record or offset."""
        self._require_owner()
        assert self._current is None, "one transaction at a time"
        number = self._ended if number is None else number
        since_s = monotonic()
        try:
            sender = self._epochs.take(number)
            sender.begin()
        except KafkaException as failure:
            raise self._error(failure, "begin", since_s) from failure
        except Fenced as fenced:
            self._fenced = fenced
            raise
        self._current = _Transaction(number, sender, set())
        self._ends = sender.ends

    def send(self, records: Records, *, tracked: bool = False) -> None:
        """Append records in order; see `ports.Outbox`.

        After RecordFailed or TopicMissing the caller aborts; some of the records may be queued.
        """
        current = self._ready()
        sender = current.sender
        current.topics.add(records.topic)
        # The failure of any record fails the commit; the last one's report shows a missing topic.
        report = sender.on_tracked if tracked else sender.on_report
        since_s = monotonic()
        try:
            sender.send(records, each=None, last=report)
        except KafkaException as failure:
            raise self._reason(failure, f"send to {records.topic}", since_s) from failure

    def push(self) -> None:
        """Do nothing: librdkafka sends in the background."""

    def send_offsets(self, offsets: Mapping[TopicPartition, int], metadata: str) -> None:
        """Add the group's input offsets to the transaction.

        First the last transaction's id is open again: no late request commits its offsets again.
        """
        current, doing = self._ready(), f"send input offsets to group {self._group_id}"
        assert self._group is not None, "an outbox without a group has no inputs"
        try:
            self._epochs.wait_opened()
        except Fenced as fenced:
            self._fenced = fenced
            raise
        member, joining = self._group.member(), _with_metadata(offsets, metadata)
        client, timeout_s, since_s = current.sender.client, self._timeout_s, monotonic()
        try:
            # After Overdue the caller has to call `open`, which creates new clients. Whatever the
            # old client still does is then fenced and commits nothing.
            with self._waits.of("offsets"):
                _bounded(
                    lambda: client.send_offsets_to_transaction(joining, member, timeout_s),
                    timeout_s,
                    when_overdue_ends=current.sender.close,
                )
        except KafkaException as failure:
            raise self._reason(failure, doing, since_s) from failure
        except Overdue as overdue:
            self._is_busy = True
            doing = f"{doing} ({self._name})"
            raise unanswered(self._settings, self._trouble, doing, since_s=since_s) from overdue

    def flush(self) -> None:
        """Wait until every record sent is acknowledged; raise the first failure seen so far."""
        sender, since_s = self._ready().sender, monotonic()
        try:
            with self._waits.of("flush"):
                refused = self._drain(sender)
        except KafkaException as failure:
            raise self._error(failure, "flush", since_s) from failure
        sender.raise_failure()
        if refused is not None:
            raise self._error(refused, "flush", since_s) from refused
        if left := len(sender.client):
            doing = f"have {left} records acknowledged"
            raise unanswered(self._settings, self._trouble, doing, since_s=since_s)

    def ask_commit(self) -> None:
        """Do nothing: librdkafka cannot ask without waiting for the answer."""

    def commit(self) -> None:
        """Commit everything or nothing.

        CommitUnknown if there was no answer in time: call again to continue waiting.
        """
        current, since_s = self._ready(), monotonic()
        try:
            with self._waits.of("flush"):
                refused = self._drain(current.sender)
            if refused is None and len(current.sender.client):
                # A client that began to commit could not be taken out of the transaction.
                raise self._unanswered_commit(since_s)
            with self._waits.of("end"):
                current.sender.commit(self._timeout_s)
        except KafkaException as failure:
            error = kafka_error(failure)
            if error and error.retriable() and not error.fatal() and not error.txn_requires_abort():
                raise self._unanswered_commit(since_s) from failure
            current.sender.raise_failure()
            raise self._error(failure, "commit", since_s) from failure
        self._ended += 1
        # This id carries the transaction after the next one. If the group already has a commit
        # with that number, another owner made it.
        self._finished(current, current.number + 2)

    def abort(self) -> None:
        """Drop everything sent since `begin`; do nothing without an open transaction."""
        self._require_owner()
        # A client that is busy with an overdue call does nothing else: the next `open` aborts.
        if self._current is None or self._is_busy:
            return
        # Opening the id again aborts the transaction. The client itself, if a record was refused,
        # would first wait for the records that it sent right after that one.
        self._finished(self._current, self._current.number)

    def ends(self) -> dict[TopicPartition, int]:
        """Return the offset after the last record of each tracked partition since `begin`."""
        return dict(self._ends)

    def waited(self) -> CommitWaits:
        """Return how long it has waited for brokers so far."""
        return self._waits.so_far

    def close(self) -> None:
        """Abort an open transaction, wait until readers see the last one ended, and close.

        If the broker does not answer soon, this is left to the next owner. The broker answers a
        commit before it writes the transaction markers that make the records readable, and only
        after that can the id be opened again.
        """
        current, self._current = self._current, None
        if current is not None and not self._is_busy:
            if self._fenced is None:
                self._abort_here(current.sender)
            current.sender.close()
        if not self._epochs.wait_ended(_CLOSE_S):
            _log.info("the last transaction of %s is left for its next owner", self._name)
        self._epochs.close()
        if self._group is not None and self._groups is None:
            self._group.close()

    def _group_client(self, group_id: str) -> GroupClient:
        if self._groups is None:
            return GroupClient(self._settings, group_id, stable=False)
        return self._groups.client(stable=False)

    def _abort_here(self, sender: Sender) -> None:
        """Abort without a new epoch, which would take the id from a newer owner."""
        failure: KafkaException | None = None
        try:
            done = sender.abort(_CLOSE_S)
        except KafkaException as refused:
            done, failure = False, refused
        if not done:
            _log.info("transaction of %s left for its next owner: %s", self._name, failure)

    def _unanswered_commit(self, since_s: float) -> CommitUnknown:
        return CommitUnknown(
            f"the commit of {self._name} was not answered for {waited(since_s)}"
            f"{self._trouble}: it may or may not have happened: commit again to learn which"
        )

    @property
    def _timeout_s(self) -> float:
        return self._settings.request_timeout_ms / 1000

    def _sender(self, properties: Properties) -> Sender:
        return Sender(self._settings, properties, self._trouble, batch_bytes=self._batch_bytes)

    def _drain(self, sender: Sender) -> KafkaException | None:
        """Wait until every record is acknowledged or one is refused; return the client's error.

        The client keeps the records that it sent right after a refused one until its timeout.
        """
        deadline_s = monotonic() + self._timeout_s
        while sender.client.flush(_CHECK_S) and monotonic() < deadline_s:
            try:
                sender.client.begin_transaction()  # it always fails, and its error says why
            except KafkaException as refused:
                error = kafka_error(refused)
                if error is None or error.code() != KafkaError._STATE:
                    return refused
        return None

    def _finished(self, current: _Transaction, next_number: int) -> None:
        """Release the producer of `current`; its id will carry transaction `next_number` next."""
        self._current = None
        turn = Turn(current.topics, lambda: self._check_owner(next_number))
        self._epochs.spent(current.number, current.sender, turn)

    def _check_owner(self, number: int) -> None:
        """Raise Fenced if another owner has committed transaction `number` or a later one.

        The id has just been opened, so any owner that commits `number` from now on must open it
        again.
        """
        if not self._inputs or self._group is None:
            return
        found = self._group.committed(self._inputs)
        latest = max((self._number_of(metadata_of(at)) for at in found), default=0)
        if latest >= number:
            raise Fenced(
                f"{self._name}: commit {latest} of this stream task is not this owner's: a newer "
                "owner took over"
            )

    def _require_owner(self) -> None:
        if self._fenced is not None:
            raise Fenced(str(self._fenced))

    def _ready(self) -> _Transaction:
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

    def _reason(self, failure: KafkaException, doing: str, since_s: float) -> StateStoreError:
        """Return why the client refuses a call; it says so only when asked to begin again."""
        error = kafka_error(failure)
        has_failed = error is not None and error.code() in {KafkaError._STATE, KafkaError._FATAL}
        if not has_failed:
            return self._error(failure, doing, since_s)
        try:
            self._ready().sender.client.begin_transaction()
        except KafkaException as reason:
            return self._error(reason, doing, since_s)
        raise AssertionError("a second transaction began inside the first") from failure

    def _error(self, failure: KafkaException, doing: str, since_s: float) -> StateStoreError:
        doing = f"{doing} ({self._name})"
        error = kafka_error(failure)
        if error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            # The client does not name the topic.
            topics = sorted(self._current.topics) if self._current else []
            doing += f", which writes to {', '.join(topics)}"
        if error is not None and error.code() in {KafkaError._TIMED_OUT, KafkaError._TRANSPORT}:
            return unanswered(self._settings, self._trouble, doing, since_s=since_s)
        found = translated(failure, doing)
        if error is not None and error.fatal() and not isinstance(found, Fenced | Misuse):
            found = Fenced(f"{found}; the producer of this id cannot be used: open the id again")
        if isinstance(found, Fenced):
            # After an error from a callback, the client's later answers cannot be relied on.
            self._fenced = found
        return found


class PlainOutbox:
    """`ports.Outbox` under at_least_once: without transactions, so records sent are never undone.

    Commit waits for every acknowledgement and raises an error if a record failed. `send_offsets`
    commits to the group immediately, so it is called last (SEMANTICS E6).
    """

    def __init__(
        self, settings: Settings, *, group_id: str, batch_bytes: int | None = None
    ) -> None:
        """Create an outbox that is not open yet.

        `batch_bytes` is the largest batch that all topics to write to accept.
        """
        self._settings = settings
        self._batch_bytes = batch_bytes
        self._group_id = group_id
        self._trouble = Trouble()
        self._waits = Waits()
        self._sender: Sender | None = None
        self._committer: Consumer | None = None

    def open(self) -> None:
        """Create the producer; no other producer is fenced in this mode."""
        self.close()
        self._sender = Sender(self._settings, {}, self._trouble, batch_bytes=self._batch_bytes)

    def begin(self, _number: int | None = None) -> None:
        """Forget the offsets and failures of the last commit."""
        self._ready().forget()

    def send(self, records: Records, *, tracked: bool = False) -> None:
        """Append records in order; see `ports.Outbox`."""
        sender = self._ready()
        # Without a transaction that would fail, each record has to report its own failure.
        report = sender.on_tracked if tracked else sender.on_report
        try:
            sender.send(records, each=report, last=report)
        except KafkaException as failure:
            raise translated(failure, f"send to {records.topic}") from failure

    def push(self) -> None:
        """Do nothing: librdkafka sends in the background."""

    def send_offsets(self, offsets: Mapping[TopicPartition, int], metadata: str) -> None:
        """Commit the group's input offsets immediately."""
        if self._committer is None:
            self._committer = consumer(self._settings, self._group_id, self._trouble)
        wanted = _with_metadata(offsets, metadata)
        doing = f"commit input offsets of group {self._group_id}"
        try:
            with self._waits.of("offsets"):
                done = self._committer.commit(offsets=wanted, asynchronous=False)
        except KafkaException as failure:
            raise translated(failure, doing) from failure
        for tp in done or ():
            if tp.error is not None:
                raise error_for(tp.error, doing)

    def flush(self) -> None:
        """Wait until every record sent is acknowledged."""
        sender = self._ready()
        with self._waits.of("flush"):
            sender.flush()
        sender.raise_failure()

    def ask_commit(self) -> None:
        """Do nothing: there is no transaction."""

    def commit(self) -> None:
        """Do the same as `flush`: input offsets are committed after the stores."""
        self.flush()

    def abort(self) -> None:
        """Wait until records already sent are written, so that a restore finds a stable log end."""
        sender = self._ready()
        try:
            sender.flush()
        except Unavailable:
            sender.client.purge()
            raise
        finally:
            sender.forget()

    def ends(self) -> dict[TopicPartition, int]:
        """Return the offset after the last record of each tracked partition since `begin`."""
        return dict(self._ready().ends)

    def waited(self) -> CommitWaits:
        """Return how long it has waited for brokers so far."""
        return self._waits.so_far

    def close(self) -> None:
        """Close the clients; unacknowledged records, which are not committed, may be lost."""
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


class Overdue(Exception):
    """The call is still running, in a separate thread that nothing waits for."""


def _bounded(
    call: Callable[[], object], timeout_s: float, *, when_overdue_ends: Callable[[], object]
) -> None:
    """Run `call`, which may exceed its own timeout, and raise its error if it fails.

    librdkafka 2.16's send_offsets_to_transaction waits for a lost group coordinator as long as the
    outage lasts, whatever its timeout: if there is no answer, or if a look-up fails repeatedly.
    Overdue if it is still running shortly after `timeout_s`, which it should observe itself. Then
    its thread runs `when_overdue_ends` once the call has ended.
    """
    failures: list[BaseException] = []
    turn = threading.Lock()
    has_ended, is_overdue = threading.Event(), threading.Event()

    def run() -> None:
        try:
            call()
        except BaseException as failure:  # noqa: BLE001 - raised again in the calling thread
            failures.append(failure)
        with turn:
            has_ended.set()
        if is_overdue.is_set():
            when_overdue_ends()

    # The end of the process does not wait for a daemon thread either.
    threading.Thread(target=run, name="bounded client call", daemon=True).start()
    has_ended.wait(timeout_s + _GRACE_S)
    with turn:
        if not has_ended.is_set():
            is_overdue.set()
            raise Overdue
    if failures:
        raise failures[0]
