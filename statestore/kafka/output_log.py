"""The topic that tells what an output from outside of stream tasks has written (docs/adr/0043).

It has two partitions, because transactions hold back readers of committed records: what must be
read at once is not written to the partition of the transactions.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import time_ns

from confluent_kafka import KafkaException

from statestore.errors import Misuse
from statestore.kafka.admin import Admin
from statestore.kafka.changelog import KafkaChangelog
from statestore.kafka.clients import Trouble
from statestore.kafka.cluster import KafkaCluster
from statestore.kafka.error_codes import translated
from statestore.kafka.sender import Sender
from statestore.model.ids import TopicPartition
from statestore.model.records import BYTES
from statestore.ports import LogEntryBytes, Records, TopicSpec
from statestore.settings import Settings

_PARTITIONS = 2
# What was replaced is removed soon, because every task reads the log.
_CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": str(1 << 20),
    "segment.ms": "600000",
    "min.cleanable.dirty.ratio": "0.1",
    "retention.ms": "-1",
}


class KafkaOutputLog:
    """`ports.OutputLog` on a real cluster."""

    def __init__(self, settings: Settings, topic: str) -> None:
        self._settings = settings
        self._topic = topic
        self._admin = Admin(settings)

    def create(self) -> None:
        """Create the topic if it is missing; Misuse if it is not fit."""
        cluster = KafkaCluster(self._settings, self._admin)
        existing = cluster.partitions([self._topic])
        if not existing:
            cluster.create([TopicSpec(self._topic, _PARTITIONS, _CONFIG)])
            return
        policy = cluster.topic_settings([self._topic])[self._topic].get("cleanup.policy")
        if existing[self._topic] != _PARTITIONS or policy != "compact":
            raise Misuse(
                f"topic {self._topic} has {existing[self._topic]} partitions and cleanup.policy "
                f"{policy}: a marker topic has {_PARTITIONS} and compact: name another one with "
                "markerTopic, or delete it if nothing needs its records"
            )

    def append(self, entries: Sequence[LogEntryBytes]) -> dict[int, int]:
        """Append outside of transactions; return the offset after the last of each partition."""
        with _lasting_sender(self._settings) as sender:
            sender.forget()
            wanted = {TopicPartition(self._topic, entry.partition) for entry in entries}
            # The broker does not tell the offset of a record that the client had to send twice.
            while wanted - set(sender.ends):
                for partition, key, value in entries:
                    now_ms = time_ns() // 1_000_000
                    records = Records(self._topic, [key], [value], [now_ms], partition)
                    sender.send(records, each=sender.on_report, last=sender.on_tracked)
                sender.flush()
                sender.raise_failure()
            return {tp.partition: end for tp, end in sender.ends.items()}

    def read(self, partition: int, start: int, end: int) -> list[bytes | None]:
        """Return the values of committed records from `start` to `end`, exclusive.

        Waits until no transaction is open before `end`; Unavailable if that takes too long.
        """
        log = KafkaChangelog(self._settings, self._admin)
        found: list[bytes | None] = []
        for chunk in log.replay(TopicPartition(self._topic, partition), start, end):
            found += chunk.batch.values.encoded(BYTES)
        return found

    def fence(self, transactional_ids: Sequence[str]) -> None:
        """Abort what these ids have open, and refuse whatever their owners send later."""
        KafkaCluster(self._settings, self._admin).abort_open_transactions(transactional_ids)

    def partitions(self, topics: Sequence[str]) -> Mapping[str, int]:
        """Return the partition counts of the topics that exist."""
        return self._admin.partitions(topics)

    def close(self) -> None:
        """Close the connections, except that of `append`, which the process keeps."""
        self._admin.close()


_senders: dict[tuple[int, str], Sender] = {}
"""By process, because a client does not survive a fork, and by settings."""


@contextmanager
def _lasting_sender(settings: Settings) -> Iterator[Sender]:
    """Give a client that this process keeps, unless it fails.

    A new one waits for half a second before its first record: it asks for a producer id before it
    is connected, and again after that time. Spark uses its Python processes again and again.
    """
    place = os.getpid(), repr(sorted(settings.to_mapping().items()))
    sender = _senders.pop(place, None) or Sender(settings, {}, Trouble())
    try:
        yield sender
    except KafkaException as failure:
        raise translated(failure, "write to a log of an output") from failure
    _senders[place] = sender
