"""Reads changelogs for audits, independently of the restore path.

An audit checks the restore path, so this reader shares no code with it (docs/adr/0010). It creates
its own consumer from the settings, asks that consumer where a log begins and ends, and has its own
loop and its own error messages. It is slower than a restore, and simple enough to be trusted.
"""

# ruff: noqa: SLF001 - librdkafka's local codes are public, underscored by convention

import logging
from collections.abc import Iterator, Mapping
from contextlib import closing
from time import monotonic
from typing import Any, NoReturn, cast

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from statestore.errors import InvalidSetting, Misuse, TopicMissing, Unavailable
from statestore.kafka.tokens import REFUSED_BEARER, no_token
from statestore.model.decoders import json_decoder
from statestore.model.ids import TopicPartition
from statestore.model.records import Header
from statestore.ports import Bounds, LogRecords
from statestore.settings import Settings

_log = logging.getLogger("statestore.kafka")

_RECORDS = 10_000
# `consume` waits this long for records that do not come, so reaching a log's end costs as much.
_WAIT_S = 0.1
_STATISTICS_PER_TIMEOUT = 4
_CONFIG: dict[str, Any] = {
    "log_level": 2,
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "fetch.wait.max.ms": 10,
}
_REFUSED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "this user may not describe and read the topic",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "this user may not use the application's group",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "this user may not use the cluster",
}
_UNKNOWN = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
}


class KafkaAuditLogReader:
    """`ports.AuditLogReader` on a real cluster; each call uses a new consumer."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._timeout_s = settings.request_timeout_ms / 1000

    def bounds(self, tp: TopicPartition) -> Bounds:
        """Return the log start and the last stable offset."""
        call = _BrokerCall(f"ask where {tp} begins and ends", self._timeout_s)
        with call.consumer(self._settings) as client:
            try:
                found = client.get_watermark_offsets(
                    KafkaPartition(*tp), self._timeout_s, cached=False
                )
            except KafkaException as failure:
                call.fail(failure)
        if found is None:
            call.give_up()
        return Bounds(*found)

    def read(self, tp: TopicPartition, start: int, end: int) -> Iterator[LogRecords]:
        """Yield the records in [start, end).

        Unavailable if the consumer makes no progress for the timeout of a request.
        """
        if start >= end:
            return
        call = _BrokerCall(f"read {tp}", self._timeout_s)
        with call.consumer(self._settings) as client:
            try:
                client.assign([KafkaPartition(*tp, start)])
                yield from _records(client, end, call)
            except KafkaException as failure:
                call.fail(failure)

    def close(self) -> None:
        """Do nothing: no connection outlives a call."""


def _records(client: Consumer, end: int, call: "_BrokerCall") -> Iterator[LogRecords]:
    reached = False
    while not reached:
        found = []
        for message in client.consume(_RECORDS, _WAIT_S):
            call.heard()
            error = message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            # The event at the end of a partition has an offset too; it is past control records.
            reached |= error is not None or _offset(message) >= end - 1
            if error is None and _offset(message) < end:
                found.append(message)
        if found:
            yield LogRecords(
                list(map(Message.key, found)),
                list(map(Message.value, found)),
                [message.timestamp()[1] for message in found],
                _headers(found),
            )
        elif call.is_overdue():
            call.give_up()


def _headers(messages: list[Message]) -> list[tuple[Header, ...]] | None:
    found = [cast("list[Header] | None", message.headers()) for message in messages]
    return [tuple(one or ()) for one in found] if any(found) else None


def _offset(message: Message) -> int:
    return cast("int", message.offset())


class _BrokerCall:
    """A call to the brokers: its purpose, their last error, and the time of their last answer.

    A consumer skips aborted records without any event. Only the next offset to fetch, in its
    statistics, shows that it makes progress.
    """

    def __init__(self, doing: str, timeout_s: float) -> None:
        self._doing = doing
        self._timeout_s = timeout_s
        self._complaint: KafkaError | None = None
        self._properties: Mapping[str, str] = {}
        self._fetched: set[int] = set()
        self._heard_s = monotonic()

    def consumer(self, settings: Settings) -> "closing[Consumer]":
        """Create a consumer that reports its errors and its progress to this call."""
        settings.require("bootstrap.servers")
        self._properties = settings.client_config("consumer")
        interval_ms = int(self._timeout_s * 1000 / _STATISTICS_PER_TIMEOUT)
        config = {
            **self._properties,
            **_CONFIG,
            "group.id": settings.application_id,
            "statistics.interval.ms": min(1_000, max(1, interval_ms)),
            "stats_cb": self._on_statistics,
            "error_cb": self._on_error,
            "logger": _log,
        }
        try:
            return closing(Consumer(config))
        except (KafkaException, ValueError, TypeError) as failure:
            raise InvalidSetting(
                f"the audit could not create a consumer: {failure}: correct the client settings "
                "(consumer.*, sasl.*, ssl.*)"
            ) from failure

    def heard(self) -> None:
        """Note that the brokers have answered just now."""
        self._heard_s = monotonic()

    def is_overdue(self) -> bool:
        """Return whether the last answer is older than the timeout."""
        return monotonic() - self._heard_s > self._timeout_s

    def fail(self, failure: KafkaException) -> NoReturn:
        """Raise `failure` as a StateStoreError."""
        error = failure.args[0]
        assert isinstance(error, KafkaError)
        said = f"the audit could not {self._doing}: {error.str()} ({error.name()})"
        if error.code() in _REFUSED:
            raise Misuse(f"{said}: {_REFUSED[error.code()]}: see the runbook") from failure
        if error.code() in _UNKNOWN:
            raise TopicMissing(f"{said}: there is no such partition") from failure
        if error.code() in {KafkaError._TIMED_OUT, KafkaError._TRANSPORT}:
            self.give_up()
        raise Unavailable(f"{said}: are the brokers up?") from failure

    def give_up(self) -> NoReturn:
        """Raise the error for missing answers: InvalidSetting if the login was refused.

        Unavailable otherwise, because the next attempt may succeed.
        """
        failed = f"the audit could not {self._doing}"
        if (missing := no_token(self._properties, failed)) is not None:
            raise missing
        why = "" if self._complaint is None else f" ({self._complaint.str()})"
        silent_s = round(monotonic() - self._heard_s, 1)
        said = f"{failed}: nothing came for {silent_s:g} s{why}"
        if self._complaint is not None and self._complaint.code() == KafkaError._AUTHENTICATION:
            is_token = "invalid_token" in self._complaint.str()
            way_out = REFUSED_BEARER if is_token else "correct sasl.username and sasl.password"
            raise InvalidSetting(f"{said}: {way_out}")
        raise Unavailable(f"{said}: are the brokers up?")

    def _on_error(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._complaint = error

    def _on_statistics(self, statistics: str) -> None:
        topics = _decode(statistics).topics.values()
        fetched = {at.next_offset for topic in topics for at in topic.partitions.values()}
        if fetched != self._fetched:
            self._fetched = fetched
            self.heard()


class _FetchedPartition(msgspec.Struct):
    next_offset: int = -1


class _FetchedTopic(msgspec.Struct):
    partitions: dict[str, _FetchedPartition] = {}


class _FetchStatistics(msgspec.Struct):
    topics: dict[str, _FetchedTopic] = {}


_decode = json_decoder(_FetchStatistics).decode
