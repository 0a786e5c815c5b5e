"""Writes outputs, changelog records and input offsets: in transactions, or plainly.

How records reach the client is `sender.py`. One thread.
"""

# ruff: noqa: SLF001 - librdkafka's local codes are public, underscored by convention

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from statestore.errors import (
    CommitUnknown,
    Fenced,
    Misuse,
    StateStoreError,
    Unavailable,
)
from statestore.kafka.bounded import Overdue, bounded
from statestore.kafka.clients import (
    TRANSACTION_LOG,
    Properties,
    Trouble,
    connect,
    consumer,
    unanswered,
)
from statestore.kafka.errors import error_for, hear_out, kafka_error, translated
from statestore.kafka.groups import read_group
from statestore.kafka.sender import Sender
from statestore.model import TopicPartition
from statestore.ports import Records
from statestore.settings import Settings

_log = logging.getLogger(__name__)

_CLOSE_S = 5.0
# How often a wait for acknowledgements looks whether a record was refused meanwhile.
_GLANCE_S = 0.2


class TransactionalOutbox:
    """`ports.Outbox` under exactly_once: one Kafka transaction from begin to commit.

    After Fenced only `open` helps; after any other error `abort` does, except CommitUnknown:
    `commit` again. A record a broker refused (rather than the client) may cost the next
    transaction too: the client then has to ask for a new epoch, and says Unavailable once.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        transactional_id: str,
        group_id: str,
        batch_bytes: int | None = None,
    ) -> None:
        """`batch_bytes`: the most that the topics it writes take at once."""
        self._settings = settings
        self._batch_bytes = batch_bytes
        self._id = transactional_id
        self._group_id = group_id
        self._trouble = Trouble()
        self._sender: Sender | None = None
        self._group: Any = None
        self._open_transaction = False
        self._is_busy = False
        self._sent: tuple[Mapping[TopicPartition, int], str] | None = None
        self._committed: tuple[Mapping[TopicPartition, int], str] | None = None
        self._fenced: Fenced | None = None

    def open(self) -> None:
        """Fence the last owner of this id and abort what it left open."""
        self._discard()
        self._fenced = None
        properties: Properties = {
            "transactional.id": self._id,
            "transaction.timeout.ms": self._settings.transaction_timeout_ms,
        }
        sender = self._sender = Sender(
            self._settings, properties, self._trouble, batch_bytes=self._batch_bytes
        )
        try:
            with ThreadPoolExecutor(1) as aside:  # both mostly wait
                connected = aside.submit(connect, sender.client, self._timeout_s)
                if self._group is None:
                    # A producer that looks for the group's coordinator in vain waits beyond its
                    # timeout: let a consumer find it first.
                    anything = [TopicPartition(TRANSACTION_LOG, 0)]
                    self._group = read_group(self._settings, self._group_id, anything).member
                connected.result()
            sender.client.init_transactions(self._timeout_s)
        except KafkaException as failure:
            hear_out(sender.client)
            raise self._error(failure, "open") from failure

    def begin(self) -> None:
        """Begin a transaction; the broker learns of it with the first record or offset."""
        sender = self._ready()
        sender.forget()
        try:
            sender.client.begin_transaction()
        except KafkaException as failure:
            raise self._error(failure, "begin") from failure
        self._open_transaction = True

    def send(self, records: Records, *, tracked: bool = False) -> None:
        """See `ports.Outbox`. RecordFailed, TopicMissing: abort; other records may be queued."""
        sender = self._ready()
        # Any record's failure fails the commit; the last one's report tells of a missing topic.
        report = sender.on_tracked if tracked else sender.on_report
        try:
            sender.send(records, each=None, last=report)
        except KafkaException as failure:
            raise self._reason(failure, f"send to {records.topic}") from failure

    def send_offsets(self, offsets: Mapping[TopicPartition, int], metadata: str) -> None:
        """The group's input offsets join the transaction."""
        sender = self._ready()
        try:
            self._join(sender, _with_metadata(offsets, metadata), self._timeout_s)
        except KafkaException as failure:
            raise self._reason(failure, "send input offsets") from failure
        except Overdue as overdue:
            doing = f"send input offsets ({self._id})"
            raise unanswered(self._settings, self._trouble, doing) from overdue
        self._sent = offsets, metadata

    def flush(self) -> None:
        """Wait until every record sent is acknowledged; a failed one shows here or at commit."""
        sender = self._ready()
        refused = self._drain(sender)
        sender.raise_failure()
        if refused is not None:
            raise self._error(refused, "flush") from refused
        if left := len(sender.client):
            doing = f"have {left} records acknowledged"
            raise unanswered(self._settings, self._trouble, doing)

    def commit(self) -> None:
        """All or nothing; CommitUnknown: not answered in time, call again to go on waiting."""
        sender = self._ready()
        try:
            self._drain(sender)
            sender.client.commit_transaction(self._timeout_s)
        except KafkaException as failure:
            error = kafka_error(failure)
            if error and error.retriable() and not error.fatal() and not error.txn_requires_abort():
                raise CommitUnknown(
                    f"the commit of {self._id} was not answered within {self._timeout_s:g} s"
                    f"{self._trouble}: it may or may not have happened: commit again to learn which"
                ) from failure
            sender.raise_failure()
            raise self._error(failure, "commit") from failure
        self._open_transaction = False
        self._committed, self._sent = self._sent, None

    def abort(self) -> None:
        """Drop what was sent since begin; without an open transaction nothing happens."""
        sender = self._ready()
        # A client busy with an overdue call does nothing else: the next `open` aborts.
        if not self._open_transaction or self._is_busy:
            return
        try:
            sender.client.abort_transaction(self._timeout_s)
        except KafkaException as failure:
            raise self._error(failure, "abort") from failure
        self._open_transaction = False
        self._sent = None

    def ends(self) -> dict[TopicPartition, int]:
        """Per tracked partition written since begin: the offset after its last record."""
        return dict(self._ready().ends)

    def close(self) -> None:
        """Abort what is open, wait until the last commit can be read, and let go.

        As far as the broker answers soon. It answers a commit before the records are marked as
        committed, which makes them readable, but takes nothing new into a transaction before that:
        so one that changes nothing, then aborted, is the way to wait.
        """
        sender = self._sender
        if sender is not None and self._fenced is None and not self._is_busy:
            client = sender.client
            try:
                if not self._open_transaction and self._committed is not None:
                    offsets = _with_metadata(*self._committed)
                    client.begin_transaction()
                    self._open_transaction = True
                    self._join(sender, offsets, _CLOSE_S)
                if self._open_transaction:
                    client.abort_transaction(_CLOSE_S)
            except (KafkaException, Overdue) as failure:
                _log.info("transaction of %s left for its next owner: %s", self._id, failure)
        self._discard()

    @property
    def _timeout_s(self) -> float:
        return self._settings.request_timeout_ms / 1000

    def _join(self, sender: Sender, offsets: list[KafkaPartition], timeout_s: float) -> None:
        """Offsets join the transaction; after Overdue only `open` helps, with a new client.

        What the old one may still do then is fenced, and commits nothing.
        """
        arguments = (offsets, self._group, timeout_s)
        try:
            bounded(lambda: sender.client.send_offsets_to_transaction(*arguments), timeout_s)
        except Overdue:
            self._is_busy = True
            raise

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

    def _ready(self) -> Sender:
        assert self._sender is not None, "open comes first"
        if self._fenced is not None:
            raise Fenced(str(self._fenced))
        return self._sender

    def _discard(self) -> None:
        sender, self._sender, self._open_transaction = self._sender, None, False
        self._sent = self._committed = None
        self._is_busy = False
        if sender is not None:
            sender.close()

    def _reason(self, failure: KafkaException, doing: str) -> StateStoreError:
        """Why the client refuses; it says so only when asked to begin anew."""
        error = kafka_error(failure)
        spoiled = error is not None and error.code() in {KafkaError._STATE, KafkaError._FATAL}
        if not spoiled or not self._open_transaction:
            return self._error(failure, doing)
        try:
            self._ready().client.begin_transaction()
        except KafkaException as reason:
            return self._error(reason, doing)
        raise AssertionError("a second transaction began inside the first") from failure

    def _error(self, failure: KafkaException, doing: str) -> StateStoreError:
        doing = f"{doing} ({self._id})"
        error = kafka_error(failure)
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

    def begin(self) -> None:
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
