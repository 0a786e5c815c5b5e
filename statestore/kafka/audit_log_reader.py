"""Reads changelogs for audits: the second opinion on what a store should hold.

It shares nothing with the restore path but the client's settings: its own loop, its own idea of
where a log ends. Slower, and simple enough to be believed.
"""

# ruff: noqa: SLF001 - librdkafka's local codes are public, underscored by convention

from collections.abc import Iterator
from time import monotonic
from typing import cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from statestore.kafka.clients import Trouble, consumer
from statestore.kafka.errors import error_for, translated
from statestore.kafka.fetching import Fetching
from statestore.kafka.topics import Admin
from statestore.model.ids import TopicPartition
from statestore.ports import Bounds, LogRecords
from statestore.settings import Settings

_RECORDS = 10_000
# `consume` waits as long for records that are not there: the price of reaching a log's end.
_WAIT_S = 0.1


class KafkaAuditLogReader:
    """`ports.AuditLogReader` on a real cluster; each read has a consumer of its own."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._admin = Admin(settings)

    def bounds(self, tp: TopicPartition) -> Bounds:
        """Log start and last stable offset."""
        return self._admin.bounds([tp])[tp]

    def read(self, tp: TopicPartition, start: int, end: int) -> Iterator[LogRecords]:
        """What [start, end) holds; Unavailable if it gets no further for the request's timeout."""
        if start >= end:
            return
        trouble, fetching = Trouble(), Fetching()
        client = consumer(
            self._settings, self._settings.application_id, trouble, on_statistics=fetching
        )
        try:
            client.assign([KafkaPartition(*tp, start)])
            yield from self._records(client, tp, end, trouble, fetching)
        except KafkaException as failure:
            raise translated(failure, f"read {tp}") from failure
        finally:
            client.close()

    def close(self) -> None:
        """Let go of the connections."""
        self._admin.close()

    def _records(
        self,
        client: Consumer,
        tp: TopicPartition,
        end: int,
        trouble: Trouble,
        fetching: Fetching,
    ) -> Iterator[LogRecords]:
        heard_s, reached = monotonic(), False
        patience_s = self._settings.request_timeout_ms / 1000
        while not reached:
            found = []
            for message in client.consume(_RECORDS, _WAIT_S):
                heard_s = monotonic()
                error = message.error()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise error_for(error, f"read {tp}")
                # The end of a partition, past control records, has an offset too.
                reached |= error is not None or _offset(message) >= end - 1
                if error is None and _offset(message) < end:
                    found.append(message)
            if found:
                yield LogRecords(
                    list(map(Message.key, found)),
                    list(map(Message.value, found)),
                    [message.timestamp()[1] for message in found],
                )
            elif fetching.has_moved():
                heard_s = monotonic()  # it passes over aborted records
            elif monotonic() - heard_s > patience_s:
                raise trouble.failure(
                    f"the audit got nothing of {tp} for {patience_s:g} s{trouble}: are the "
                    "brokers up?"
                )


def _offset(message: Message) -> int:
    return cast("int", message.offset())
