"""Passes records to a producer in order, each exactly once, even if its queue is full.

Records are passed to the client one by one, because its batch call takes neither timestamps nor
headers. The loop over the columns runs in C, without Python code per record, and is faster than
the batch call.
"""

# ruff: noqa: SLF001 - librdkafka's local codes are public, underscored by convention

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import chain, repeat
from operator import length_hint
from time import monotonic
from typing import cast

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from statestore.errors import RecordFailed
from statestore.kafka.clients import Properties, Trouble, producer, unanswered
from statestore.kafka.error_codes import error_for, kafka_error
from statestore.kafka.partitioner import partitions_of
from statestore.model.ids import TopicPartition
from statestore.ports import Records
from statestore.settings import Settings

Report = Callable[[KafkaError | None, Message], None]

_ANY_PARTITION = -1
_ROOM_S = 0.05
# How long closing a client waits for the answers to its last requests, and how long a separate
# thread waits after that: longer than librdkafka itself does. There are as many such threads as
# transactions were open when brokers fell silent; a client has more threads of its own than that.
_ANSWERED_S = 0.5
_ANSWERED_AT_LAST_S = 60.0
# The client treats 0 as "now", so a record of time 0 gets the next millisecond.
_EPOCH_MS = 1
_PURGED = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})


def _clean(records: Records) -> Records:
    """Convert records for the client: keys as a list, no time 0, no column of empty headers."""
    keys, times, headers = records.keys, records.timestamps, records.headers
    return records._replace(
        keys=keys if isinstance(keys, list) else list(keys),
        timestamps=[time_ms or _EPOCH_MS for time_ms in times] if 0 in times else times,
        headers=headers if headers is not None and any(headers) else None,
    )


def _partition(records: Records) -> int:
    return _ANY_PARTITION if records.partition is None else records.partition


class Sender:
    """One producer, with the offsets and the failure that it reported since `forget`."""

    def __init__(
        self,
        settings: Settings,
        properties: Properties,
        trouble: Trouble,
        *,
        batch_bytes: int | None = None,
    ) -> None:
        self._settings = settings
        self._trouble = trouble
        self.client: Producer = producer(settings, properties, trouble, batch_bytes)
        self.ends: dict[TopicPartition, int] = {}
        self._failure: tuple[KafkaError, str] | None = None
        self._counts: dict[str, int] = {}
        self._in_transaction = False

    def begin(self) -> None:
        """Begin a transaction."""
        self.client.begin_transaction()
        self._in_transaction = True

    def commit(self, timeout_s: float) -> None:
        """Commit the transaction; all its records must be acknowledged."""
        self.client.commit_transaction(timeout_s)
        self._in_transaction = False

    def abort(self, timeout_s: float) -> bool:
        """Abort the transaction and return True; return False if a request may be in flight.

        librdkafka 2.16 resets its count of requests when the broker has answered the abort. If a
        request is still in flight then, its end fails an assertion, which ends the process.
        """
        if self.client.flush(timeout_s) or self._failure is not None:
            return False
        self.client.abort_transaction(timeout_s)
        self._in_transaction = False
        return True

    def forget(self) -> None:
        """Forget reported offsets and failures."""
        self.ends.clear()
        self._failure = None

    def send(self, records: Records, *, each: Report | None, last: Report) -> None:
        """Pass all records to the client in order; wait if its queue is full."""
        records = _clean(records)
        count = len(records.keys)
        assert count == len(records.values) == len(records.timestamps), "columns differ in length"
        if not count:
            return
        places = self._places(records)
        # A list's iterator knows how many items are left, which tells which record failed.
        ahead = iter(records.keys)
        calls = map(
            self.client.produce,
            repeat(records.topic),
            records.values,
            ahead,
            repeat(_partition(records)) if places is None else places,
            chain(repeat(each, count - 1), (last,)),
            repeat(None),
            records.timestamps,
            repeat(None) if records.headers is None else map(list, records.headers),
        )
        done = False
        while not done:
            try:
                deque(calls, maxlen=0)
                done = True
            except BufferError:
                at = count - length_hint(ahead) - 1
                place = _partition(records) if places is None else places[at]
                self._send_waiting(records, at, place, last if at == count - 1 else each)
            except KafkaException as failure:
                _raise_too_large(failure, records, count - length_hint(ahead) - 1)
                raise
        self.client.poll(0)

    def flush(self) -> None:
        """Wait until the client's queue is empty."""
        since_s = monotonic()
        left = self.client.flush(self._timeout_s)
        if left:
            doing = f"have {left} records acknowledged"
            raise unanswered(self._settings, self._trouble, doing, since_s=since_s)

    def raise_failure(self) -> None:
        """Raise the error of the first record that failed, if any did."""
        if self._failure is not None:
            error, where = self._failure
            raise error_for(error, f"write to {where}")

    def close(self) -> None:
        """Drop queued records and the client; its transaction stays open on the broker.

        Within a transaction the requests in flight are answered first. If a broker takes long to
        answer, a separate thread closes the client later.
        """
        if self._in_transaction:
            self._leave_transaction()
            if not self._requests_end(_ANSWERED_S):
                threading.Thread(target=self._close_later, name="close client", daemon=True).start()
                return
        self._destroy()

    def _close_later(self) -> None:
        self._requests_end(_ANSWERED_AT_LAST_S)
        self._destroy()

    def _destroy(self) -> None:
        """Drop the client without its own close, which aborts a transaction and waits endlessly.

        Pending reports would keep the client alive, so their callbacks run first.
        """
        self.client.purge()
        for _ in range(2):  # the first may raise a fatal error that was not reported yet
            with suppress(KafkaException):
                self.client.poll(0)
        del self.client

    def _leave_transaction(self) -> None:
        """Keep the client from adding partitions to its transaction; this waits for no broker.

        librdkafka 2.16 adds partitions when a timer expires. If it expires while the client is
        being destroyed, one thread refuses the request before the other thread has counted it,
        and a failed assertion ends the process (rd_kafka_txn_handle_AddPartitionsToTxn).
        """
        with suppress(KafkaException):
            self.client.abort_transaction(0)  # The client starts to abort and does not wait.
            return
        # The client handles calls in order: after any answer to this one, the abort has started.
        with suppress(KafkaException):
            self.client.begin_transaction()

    def _requests_end(self, timeout_s: float) -> bool:
        """Drop what is queued, and return whether no record is in flight by the timeout.

        An answer that says that the client is fenced replaces the text of an earlier error. If it
        arrives while librdkafka 2.16 is destroying the client, that text has been freed already,
        and is freed again (rd_kafka_txn_set_fatal_error).
        """
        until_s = monotonic() + timeout_s
        is_quiet = False
        while not is_quiet and monotonic() < until_s:
            self.client.purge(in_flight=False)  # A lost connection returns records to the queue.
            with suppress(KafkaException):
                is_quiet = self.client.flush(_ROOM_S) == 0
        return is_quiet

    @property
    def _timeout_s(self) -> float:
        return self._settings.request_timeout_ms / 1000

    def _places(self, records: Records) -> list[int] | None:
        """Return the partition of each record if its key does not decide it."""
        if (records.placing is None and records.choose is None) or records.partition is not None:
            return None
        count = self._partitions(records.topic)
        if not count:
            return None  # the client reports what is wrong with that topic
        found: list[int | None] = [None] * len(records.keys)
        if records.placing is not None:
            found = partitions_of(records.placing, count, self._settings.partitioner)
        if records.choose is not None:
            chosen = records.choose(count)
            found = [n if m is None else m for m, n in zip(chosen, found, strict=True)]
        return [_ANY_PARTITION if place is None else place for place in found]

    def _partitions(self, topic: str) -> int:
        """Return how many partitions a topic has; 0 if none is known."""
        if not self._counts.get(topic):
            listed = self.client.list_topics(topic, self._timeout_s).topics.get(topic)
            self._counts[topic] = 0 if listed is None else len(listed.partitions)
        return self._counts[topic]

    def _send_waiting(
        self, records: Records, at: int, partition: int, report: Report | None
    ) -> None:
        """Send one record as soon as the queue has room."""
        headers = None if records.headers is None else list(records.headers[at])
        sendable = cast("list[tuple[str, str | bytes | None]] | None", headers)
        since_s = monotonic()
        while True:
            self.client.poll(_ROOM_S)
            try:
                self.client.produce(
                    records.topic,
                    records.values[at],
                    records.keys[at],
                    partition,
                    report,
                    None,
                    records.timestamps[at],
                    sendable,
                )
            except BufferError as full:
                if monotonic() - since_s > self._timeout_s:
                    doing = f"send: {len(self.client)} records are not acknowledged yet"
                    raise unanswered(
                        self._settings, self._trouble, doing, since_s=since_s
                    ) from full
            except KafkaException as failure:
                _raise_too_large(failure, records, at)
                raise
            else:
                return

    def on_report(self, error: KafkaError | None, message: Message) -> None:
        """Remember the first failure."""
        if error is not None and self._failure is None and error.code() not in _PURGED:
            # A record for a topic that is not there has no partition yet.
            partition = message.partition()
            where = "" if partition is None or partition < 0 else f"-{partition}"
            self._failure = error, f"{message.topic()}{where}"

    def on_tracked(self, error: KafkaError | None, message: Message) -> None:
        """Remember the offset of the record, if the broker reports it.

        The broker reports no offset for a record that it had already received before. The store
        then keeps its older offset, and a restore after a crash replays from there.
        """
        if error is not None:
            self.on_report(error, message)
            return
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None
        assert partition is not None
        if offset is None:
            return
        self.ends[TopicPartition(topic, partition)] = offset + 1


def _raise_too_large(failure: KafkaException, records: Records, at: int) -> None:
    """Raise RecordFailed for a record that the client finds too large; ignore other failures."""
    error = kafka_error(failure)
    if error is None or error.code() != KafkaError.MSG_SIZE_TOO_LARGE:
        return
    key, value = records.keys[at], records.values[at]
    refused = RecordFailed(
        f"a record for {records.topic}, key {(key or b'')[:40]!r}, has {len(value or b'')} bytes, "
        "more than producer.message.max.bytes (1 000 000 unless set): raise it and the topic's "
        "max.message.bytes, then start again"
    )
    refused.at = at
    raise refused from failure
