"""The topic that tells what an output from outside of stream tasks has written (docs/adr/0043).

It has two partitions, because transactions hold back readers of committed records: what must be
read at once is not written to the partition of the transactions.
"""

from collections.abc import Mapping, Sequence
from time import time_ns
from typing import Protocol

from statestore.errors import Misuse
from statestore.model.ids import TopicPartition
from statestore.model.records import BYTES
from statestore.ports import Changelog, Cluster, LogEntryBytes, Records, TopicSpec

_PARTITIONS = 2
# What was replaced is removed soon, because every task reads the log.
_CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": str(1 << 20),
    "segment.ms": "600000",
    "min.cleanable.dirty.ratio": "0.1",
    "retention.ms": "-1",
}


class LogWriter(Protocol):
    """Appends records outside of transactions, in order, each exactly once: part of an outbox."""

    def begin(self) -> None: ...
    def send(self, records: Records, *, tracked: bool = False) -> None: ...
    def flush(self) -> None: ...
    def ends(self) -> dict[TopicPartition, int]: ...
    def close(self) -> None: ...


class KafkaOutputLog:
    """`ports.OutputLog` on a real cluster."""

    def __init__(
        self, topic: str, cluster: Cluster, changelog: Changelog, writer: LogWriter
    ) -> None:
        """These are the caller's."""
        self._topic = topic
        self._cluster = cluster
        self._changelog = changelog
        self._writer = writer

    def create(self) -> None:
        """Create the topic if it is missing; Misuse if it is not fit."""
        existing = self._cluster.partitions([self._topic])
        if not existing:
            self._cluster.create([TopicSpec(self._topic, _PARTITIONS, _CONFIG)])
            return
        policy = self._cluster.topic_settings([self._topic])[self._topic].get("cleanup.policy")
        if existing[self._topic] != _PARTITIONS or policy != "compact":
            raise Misuse(
                f"topic {self._topic} has {existing[self._topic]} partitions and cleanup.policy "
                f"{policy}: a marker topic has {_PARTITIONS} and compact: name another one with "
                "markerTopic, or delete it if nothing needs its records"
            )

    def append(self, entries: Sequence[LogEntryBytes]) -> dict[int, int]:
        """Append outside of transactions; return the offset after the last of each partition."""
        wanted = {TopicPartition(self._topic, entry.partition) for entry in entries}
        ends: dict[TopicPartition, int] = {}
        # The broker does not tell the offset of a record that the client had to send twice.
        while wanted - ends.keys():
            self._writer.begin()
            for partition, key, value in entries:
                now_ms = time_ns() // 1_000_000
                records = Records(self._topic, [key], [value], [now_ms], partition)
                self._writer.send(records, tracked=True)
            self._writer.flush()
            ends = self._writer.ends()
        return {tp.partition: end for tp, end in ends.items()}

    def read(self, partition: int, start: int, end: int) -> list[bytes | None]:
        """Return the values of committed records from `start` to `end`, exclusive.

        Waits until no transaction is open before `end`; Unavailable if that takes too long.
        """
        found: list[bytes | None] = []
        for chunk in self._changelog.replay(TopicPartition(self._topic, partition), start, end):
            found += chunk.batch.values.encoded(BYTES)
        return found

    def fence(self, transactional_ids: Sequence[str]) -> None:
        """Abort what these ids have open, and refuse whatever their owners send later."""
        self._cluster.abort_open_transactions(transactional_ids)

    def partitions(self, topics: Sequence[str]) -> Mapping[str, int]:
        """Return the partition counts of the topics that exist."""
        return self._cluster.partitions(topics)
