"""Reads an application's topics and group offsets without disturbing the application.

It joins no group, waits for no transaction, and gives up soon if no broker answers.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from time import monotonic

from statestore.kafka.admin import Admin
from statestore.kafka.groups import read_group
from statestore.kafka.source import KafkaSource
from statestore.model import time_marks
from statestore.model.batch import Batch
from statestore.model.byte_columns import without
from statestore.model.ids import TopicPartition
from statestore.model.records import Record
from statestore.ports import Bounds, FoundRecords, InputFacts
from statestore.settings import Settings

_PATIENCE_MS = 10_000
_WAIT_MS = 200
_RECORDS_AT_ONCE = 500
_TAIL = 200
"""How many of the last offsets are read to find the newest timestamp."""
# One record of each partition is needed; records fetched beyond it are discarded.
_LITTLE = {
    "consumer.queued.min.messages": "1",
    "consumer.queued.max.messages.kbytes": "1024",
    "consumer.max.partition.fetch.bytes": "16384",
}


class KafkaMonitoringClient:
    """`ports.MonitoringClient` on a real cluster; the group is the application's."""

    def __init__(self, settings: Settings) -> None:
        patience_ms = min(_PATIENCE_MS, settings.request_timeout_ms)
        clients = {**settings.clients, **_LITTLE}
        self._settings = replace(settings, request_timeout_ms=patience_ms, clients=clients)
        self._admin = Admin(self._settings)

    def topics(self) -> list[str]:
        """Return the names of all topics that may be described."""
        self._admin.connect()
        return self._admin.topics()

    def partitions(self, topics: Sequence[str]) -> dict[str, int]:
        """Return the partition counts of the topics that exist."""
        self._admin.connect()
        return self._admin.partitions(topics)

    def bounds(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """Return the log start and the last stable offset of each partition."""
        return self._admin.bounds(tps) if tps else {}

    def inputs(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, InputFacts]:
        """Return the facts of each input partition; see `ports.MonitoringClient`."""
        if not tps:
            return {}
        bounds, committed = self.bounds(tps), read_group(self._settings, tps, stable=False)
        unread = {
            tp: Bounds(max(bound.start, committed[tp].offset if tp in committed else 0), bound.end)
            for tp, bound in bounds.items()
        }
        following = self._times(unread, _first)
        # The largest timestamp that the broker knows would not do: it may be that of a transaction
        # marker, or of a record in an open transaction.
        tails = {
            tp: Bounds(max(unread[tp].start, unread[tp].end - _TAIL), unread[tp].end)
            for tp, next_ms in following.items()
            if next_ms is not None
        }
        newest = self._times(tails, _largest)
        found = {}
        for tp, next_ms in following.items():
            last_ms = newest.get(tp)
            if next_ms is not None and tp in newest:
                last_ms = next_ms if last_ms is None else max(last_ms, next_ms)
            found[tp] = InputFacts(bounds[tp], committed.get(tp), next_ms, last_ms)
        return found

    def records(
        self, spans: Mapping[TopicPartition, Bounds], *, each_max: int, bytes_max: int
    ) -> FoundRecords:
        """Return the first committed records of each span; see `ports.MonitoringClient`."""
        left = {tp: span for tp, span in spans.items() if span.end > span.start}
        looked = _Looked(left, each_max, bytes_max)
        if not left:
            return looked.found()
        deadline_s = monotonic() + self._settings.request_timeout_ms / 1000
        with closing(KafkaSource(self._settings, group_id=self._settings.application_id)) as source:
            source.start({tp: span.start for tp, span in left.items()})
            while looked.wants_more() and monotonic() < deadline_s:
                for batch in source.poll(_RECORDS_AT_ONCE, _WAIT_MS):
                    looked.take(batch)
                source.pause(looked.ended(source.position))
        return looked.found()

    def close(self) -> None:
        """Close the connections."""
        self._admin.close()

    def _times(
        self, spans: Mapping[TopicPartition, Bounds], pick: "_Pick"
    ) -> dict[TopicPartition, int | None]:
        """Return the timestamp that `pick` chooses in each span; spans not read in time are absent.

        It is None for a span without data: all its offsets may belong to transaction markers,
        aborted records or time marks.
        """
        left = {tp: span for tp, span in spans.items() if span.end > span.start}
        found: dict[TopicPartition, int | None] = dict.fromkeys(spans.keys() - left.keys())
        if not left:
            return found
        seen: dict[TopicPartition, int] = {}
        deadline_s = monotonic() + self._settings.request_timeout_ms / 1000
        with closing(KafkaSource(self._settings, group_id=self._settings.application_id)) as source:
            source.start({tp: span.start for tp, span in left.items()})
            while left and monotonic() < deadline_s:
                for batch in source.poll(len(left), _WAIT_MS):
                    assert batch.topic is not None
                    assert batch.partition is not None
                    tp = TopicPartition(batch.topic, batch.partition)
                    if times := _times_of(batch):
                        seen[tp] = pick(seen.get(tp), times)
                enough = seen if pick is _first else {}
                done = [t for t, s in left.items() if t in enough or source.position(t) >= s.end]
                source.pause(done)
                for tp in done:
                    found[tp] = seen.get(tp)
                    del left[tp]
        return found


_Pick = Callable[[int | None, Sequence[int]], int]


def _times_of(batch: Batch) -> list[int]:
    """Return the times of records, without those of time marks."""
    return without(batch.timestamps, list(time_marks.among(batch)))


class _Looked:
    """The records of some spans that people look at, within the limits that were given."""

    def __init__(
        self, spans: Mapping[TopicPartition, Bounds], each_max: int, bytes_max: int
    ) -> None:
        self._left = dict(spans)
        self._each_max = each_max
        self._bytes_left = bytes_max
        self._counts = Counter[TopicPartition]()
        self._records: list[Record[bytes | None, bytes | None]] = []

    def wants_more(self) -> bool:
        return bool(self._left) and self._bytes_left > 0

    def take(self, batch: Batch) -> None:
        """Take what the spans have of a batch, without time marks."""
        for record in batch.without(list(time_marks.among(batch))).records():
            tp = TopicPartition(record.topic or "", record.partition or 0)
            at = -1 if record.offset is None else record.offset
            if tp not in self._left or at >= self._left[tp].end:
                continue
            if self._counts[tp] < self._each_max and self._bytes_left > 0:
                self._records.append(record)
                self._counts[tp] += 1
                self._bytes_left -= _size_of(record)

    def ended(self, position: Callable[[TopicPartition], int]) -> list[TopicPartition]:
        """Return the partitions of which no more is wanted, once; none if the bytes ran out."""
        if self._bytes_left <= 0:
            return []
        done = [
            tp
            for tp, span in self._left.items()
            if self._counts[tp] >= self._each_max or position(tp) >= span.end
        ]
        for tp in done:
            del self._left[tp]
        return done

    def found(self) -> FoundRecords:
        return FoundRecords(self._records, sorted(self._left))


def _size_of(record: Record[bytes | None, bytes | None]) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers


def _first(before: int | None, times: Sequence[int]) -> int:
    return times[0] if before is None else before


def _largest(before: int | None, times: Sequence[int]) -> int:
    return max(times) if before is None else max(before, *times)
