"""A broker in memory behind the same ports as the real one: `MemoryBroker().source()` and so on.

One contract suite runs on both. This broker is deterministic: it has no threads and no clock, and
nothing waits; a poll with nothing to read returns at once. Tests ask for faults with `stop`,
`expire` and `lose_answer`.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from statestore.errors import (
    InputLost,
    NotCopartitioned,
    TaskCorrupted,
    Unavailable,
)
from statestore.kafka.partitioner import key_hashes
from statestore.model import time_marks
from statestore.model.batch import Batch, Column
from statestore.model.ids import TopicPartition
from statestore.model.records import Record
from statestore.ports import (
    Arrival,
    AuditLogReader,
    Bounds,
    Changelog,
    Cluster,
    FoundRecords,
    GroupOffset,
    InputFacts,
    KeyHashes,
    LogRecords,
    MonitoringClient,
    Outbox,
    Replayed,
    Source,
    TopicSpec,
)
from statestore.settings import Settings
from statestore.tasks.plan import TaskPlan, transactional_ids
from statestore.testing.memory_log import MESSAGE_BYTES_MAX, BrokerState, LogEntry
from statestore.testing.memory_outbox import MemoryOutbox, MemoryPlainOutbox
from statestore.testing.packed import packed

_STRETCH_RECORDS = 50_000
_KEYS = 100
_DEFAULTS = {
    "cleanup.policy": "delete",
    "max.message.bytes": str(MESSAGE_BYTES_MAX),
    "retention.ms": "604800000",
    "retention.bytes": "-1",
}


class MemoryBroker:
    """Topics, groups and transactions, which all the ports made here share."""

    def __init__(self) -> None:
        self.state = BrokerState()
        self._lost_answers: dict[str, bool] = {}

    def clients(self, settings: Settings) -> "MemoryBrokers":
        """The clients of one application: pass this to `Runtime` as its `brokers`."""
        return MemoryBrokers(self, settings)

    def source(self) -> "MemorySource":
        """A reader of inputs."""
        return MemorySource(self.state)

    def outbox(self, transactional_id: str, group_id: str) -> MemoryOutbox:
        """A transactional writer."""
        return MemoryOutbox(self.state, self._lost_answers, transactional_id, group_id)

    def plain_outbox(self, group_id: str) -> MemoryPlainOutbox:
        """A writer without transactions."""
        return MemoryPlainOutbox(self.state, group_id)

    def changelog(self) -> "MemoryChangelog":
        """A reader of changelogs."""
        return MemoryChangelog(self.state)

    def audit_log(self) -> "MemoryAuditLogReader":
        """A reader of changelogs for audits."""
        return MemoryAuditLogReader(self.state)

    def cluster(self, group_id: str) -> "MemoryCluster":
        """A client that creates, describes and removes topics."""
        return MemoryCluster(self.state, group_id)

    def monitoring(self, group_id: str) -> "MemoryMonitoringClient":
        """A client that asks how far the group is."""
        return MemoryMonitoringClient(self.state, group_id)

    def produce(self, tp: TopicPartition, record: Record[bytes | None, bytes | None]) -> int:
        """Append one record as any other producer would, and return its offset."""
        entry = LogEntry(-1, record.key, record.value, record.timestamp_ms, record.headers)
        with self.state.changing:
            return self.state.append(tp, entry)

    def records(self, topic: str) -> list[Record[bytes | None, bytes | None]]:
        """All committed records of a topic, partition by partition."""
        return [
            Record(e.key, e.value, e.timestamp_ms, e.headers, topic, partition, e.offset)
            for partition, log in enumerate(self.state.topics.get(topic, ()))
            for e in log.read(log.start, log.last_stable)
            if e.is_visible
        ]

    def compact(self, topic: str, *, deletes: bool = False) -> None:
        """Keep the last stable record of each key, as compaction may do at any time.

        With `deletes`, remove tombstones too, as compaction does once they are old enough.
        """
        for log in self.state.topics.get(topic, ()):
            log.compact(deletes=deletes)

    def stop(self) -> None:
        """Stop answering: from now on every call raises Unavailable."""
        self.state.is_up = False

    def resume(self) -> None:
        """Answer again; nothing was lost."""
        self.state.is_up = True

    def expire(self, transactional_id: str) -> None:
        """Abort the id's open transaction, as a broker does after transaction.timeout.ms."""
        self.state.fence(transactional_id)

    def lose_answer(self, transactional_id: str, *, happened: bool) -> None:
        """Let the id's next commit raise CommitUnknown, whether or not it happened."""
        self._lost_answers[transactional_id] = happened


class MemoryBrokers:
    """`runtime.Brokers` over a broker in memory."""

    def __init__(self, broker: MemoryBroker, settings: Settings) -> None:
        self._broker = broker
        self._settings = settings
        self._group_id = settings.application_id

    def cluster(self) -> Cluster:
        return self._broker.cluster(self._group_id)

    def changelog(self) -> Changelog:
        return self._broker.changelog()

    def source(self) -> Source:
        return self._broker.source()

    def outbox(self) -> Outbox:
        return self._broker.plain_outbox(self._group_id)

    def task_outbox(self, plan: TaskPlan, _batch_bytes: int | None) -> Outbox:
        if not self._settings.exactly_once:
            return self.outbox()
        first, _ = transactional_ids(self._group_id, plan.task_id)
        return self._broker.outbox(first, self._group_id)

    def audit_log_reader(self) -> AuditLogReader:
        return self._broker.audit_log()

    def monitoring_client(self) -> MonitoringClient:
        return self._broker.monitoring(self._group_id)

    def check_settings(self) -> None:
        """Memory has no client that could refuse them."""

    def close(self) -> None:
        """Nothing is held."""


class MemorySource:
    """`ports.Source` in memory."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._positions: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self._turn = 0

    def start(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read from these offsets on."""
        self._positions = dict(positions)
        self._paused.clear()

    def poll(
        self,
        max_records: int,
        timeout_ms: int,  # noqa: ARG002 - never waits
        *,
        soon: bool = False,  # noqa: ARG002 - likewise
    ) -> list[Batch]:
        """The records there are now; partitions take turns at being first."""
        tps = list(self._positions)
        self._turn = (self._turn + 1) % max(len(tps), 1)
        batches, room = [], max_records
        for tp in tps[self._turn :] + tps[: self._turn]:
            if tp not in self._paused and room > 0:
                entries = self._read(tp, room)
                room -= len(entries)
                if entries:
                    batches.append(_batch(tp, entries))
        return batches

    def arrival(self) -> Arrival:
        """It never waits."""
        return Arrival((), 0.0)

    def position(self, tp: TopicPartition) -> int:
        """The offset that is read next from `tp`, past control records."""
        return self._positions[tp]

    def positions(self) -> dict[TopicPartition, int]:
        """The offset that is read next from each partition."""
        return dict(self._positions)

    def at_end(self, tp: TopicPartition) -> bool:
        """Whether nothing stable is left to read of `tp`."""
        return self._positions[tp] >= self._state.log(tp).last_stable

    def log_end(self, tp: TopicPartition) -> int | None:
        """The last stable offset of `tp`."""
        return self._state.log(tp).last_stable

    def pause(self, tps: Sequence[TopicPartition]) -> None:
        """Poll without these partitions until they are resumed."""
        self._paused.update(tps)

    def resume(self, tps: Sequence[TopicPartition]) -> None:
        """Poll with these partitions again."""
        self._paused.difference_update(tps)

    def close(self) -> None:
        """Closing twice is harmless."""
        self._positions = {}

    def _read(self, tp: TopicPartition, room: int) -> list[LogEntry]:
        log, position = self._state.log(tp), self._positions[tp]
        if not log.holds(position):
            raise InputLost(
                f"input {tp} holds no record at offset {position}: the log goes from {log.start} "
                f"to {log.end}"
            )
        entries: list[LogEntry] = []
        end = log.last_stable  # Another thread may append meanwhile.
        for entry in log.read(position, end):
            if entry.is_visible:
                if len(entries) == room:
                    self._positions[tp] = entry.offset
                    return entries
                entries.append(entry)
        self._positions[tp] = max(position, end)
        return entries


class MemoryChangelog:
    """`ports.Changelog` in memory."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def bounds(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """Log start and last stable offset of each."""
        return _bounds(self._state, tps)

    def replay(self, tp: TopicPartition, start: int, end: int) -> Iterator[Replayed]:
        """All records in [start, end), in chunks."""
        source = MemorySource(self._state)
        source.start({tp: start})
        at = start
        while at < end:
            try:
                batches = source.poll(_STRETCH_RECORDS, 0)
            except InputLost as gone:
                raise TaskCorrupted(f"changelog {tp} holds no offset {at}") from gone
            if source.position(tp) == at:
                raise Unavailable(
                    f"changelog {tp} stays at offset {at} and does not reach {end}: "
                    "a transaction is open in it"
                )
            at = source.position(tp)
            batch = batches[0] if batches else _batch(tp, [])
            offsets = batch.offsets
            assert offsets is not None
            yield Replayed(batch.slice(0, bisect_left(offsets, end)), min(at, end))


class MemoryAuditLogReader:
    """`ports.AuditLogReader` in memory."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def bounds(self, tp: TopicPartition) -> Bounds:
        """Log start and last stable offset."""
        return _bounds(self._state, [tp])[tp]

    def read(self, tp: TopicPartition, start: int, end: int) -> Iterator[LogRecords]:
        """The records in [start, end)."""
        found = [entry for entry in self._state.log(tp).read(start, end) if entry.is_visible]
        if found:
            yield LogRecords(
                [entry.key for entry in found],
                [entry.value for entry in found],
                [entry.timestamp_ms for entry in found],
                [tuple(entry.headers) for entry in found],
            )

    def close(self) -> None:
        """Nothing is held."""


class MemoryCluster:
    """`ports.Cluster` in memory."""

    def __init__(self, state: BrokerState, group_id: str) -> None:
        self._state = state
        self._group_id = group_id

    def topics(self) -> list[str]:
        """The names of all topics."""
        self._state.require_up()
        return sorted(self._state.topics)

    def partitions(self, topics: Sequence[str]) -> dict[str, int]:
        """Partition counts of the topics that exist."""
        self._state.require_up()
        known = self._state.topics
        return {topic: len(known[topic]) for topic in topics if topic in known}

    def create(self, topics: Sequence[TopicSpec]) -> None:
        """Create missing topics; NotCopartitioned says that one exists with another count."""
        existing = self.partitions([spec.name for spec in topics])
        for spec in topics:
            if spec.name not in existing:
                self._state.create(spec.name, spec.partitions, spec.config)
            elif existing[spec.name] != spec.partitions:
                raise NotCopartitioned(
                    f"topic {spec.name} has {existing[spec.name]} partitions, not {spec.partitions}"
                )

    def topic_settings(self, topics: Sequence[str]) -> dict[str, Mapping[str, str]]:
        """The settings each topic was created with, over the defaults of a real broker."""
        self._state.require_up()
        known = self._state.configs
        return {topic: {**_DEFAULTS, **known[topic]} for topic in topics if topic in known}

    def specs(self, topics: Sequence[str]) -> dict[str, TopicSpec]:
        """How the topics that exist were created, with one replica of each partition."""
        self._state.require_up()
        counts, known = self.partitions(topics), self._state.configs
        return {
            topic: TopicSpec(topic, count, dict(known.get(topic, {})), 1)
            for topic, count in counts.items()
        }

    def topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        """The id of each topic that exists; a topic that is created again gets another id."""
        self._state.require_up()
        return {topic: self._state.ids[topic] for topic in topics if topic in self._state.topics}

    def bounds(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """Log start and last stable offset of each."""
        return _bounds(self._state, tps)

    def undecided(self, tps: Sequence[TopicPartition]) -> list[TopicPartition]:
        """The partitions with a transaction that is open."""
        self._state.require_up()
        logs = {tp: self._state.log(tp) for tp in tps}
        return [tp for tp, log in logs.items() if log.last_stable < log.end]

    def offsets_at(self, tps: Sequence[TopicPartition], time_ms: int) -> dict[TopicPartition, int]:
        """The first offset at or after that time in each partition, else its last stable offset."""
        found = {}
        for tp in tps:
            log = self._state.log(tp)
            later = (e.offset for e in log.read(0, log.last_stable) if e.timestamp_ms >= time_ms)
            found[tp] = next(later, log.last_stable)
        return found

    def group_offsets(
        self, tps: Sequence[TopicPartition], *, stable: bool = True
    ) -> dict[TopicPartition, GroupOffset]:
        """The group's committed offsets; Unavailable while a transaction holds one open."""
        self._state.require_up()
        for tp in tps:
            if stable and self._state.is_pending(self._group_id, tp):
                raise Unavailable(f"a transaction with an offset of {tp} is open: end it first")
        groups, group_id = self._state.groups, self._group_id
        return {tp: groups[group_id, tp] for tp in tps if (group_id, tp) in groups}

    def key_hashes(
        self, topics: Mapping[str, int], windowed: Mapping[str, int] | None = None
    ) -> dict[str, KeyHashes]:
        """The hashes that the first 100 keys of each topic fit."""
        found = {}
        for topic, count in topics.items():
            logs = enumerate(self._state.topics[topic])
            entries = ((p, e) for p, log in logs for e in log.read(log.start, log.last_stable))
            rows = ((p, e.key) for p, e in entries if e.is_visible and not _is_mark(e))
            found[topic] = key_hashes(rows, count, _KEYS, span_bytes=(windowed or {}).get(topic, 0))
        return found

    def delete_before(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Purge records below these offsets."""
        for tp, offset in offsets.items():
            self._state.log(tp).delete_before(offset)

    def raise_compaction_lag(self, topic: str, lag_ms: int) -> int | None:
        """Raise the topic's `min.compaction.lag.ms` to `lag_ms` at least; return the old one."""
        self._state.require_up()
        if topic not in self._state.topics:
            return None
        key, config = "min.compaction.lag.ms", self._state.configs[topic]
        before = int(config.get(key, 0))
        self._state.configs[topic] = {**config, key: str(max(before, lag_ms))}
        return before

    def grow(self, partitions: Mapping[str, int]) -> None:
        """Give these topics so many partitions, if they have fewer."""
        self._state.require_up()
        for topic, count in partitions.items():
            self._state.grow(topic, count)

    def remove(self, topics: Sequence[str], group_id: str | None) -> None:
        """Remove these topics, as far as they exist, and the offsets of the group for good.

        With `group_id` None, those of groups in these topics.
        """
        self._state.require_up()
        for topic in topics:
            self._state.topics.pop(topic, None)
        for at in list(self._state.groups):
            gone = at[1].topic in topics if group_id is None else at[0] == group_id
            if gone:
                del self._state.groups[at]

    def abort_open_transactions(self, transactional_ids: Sequence[str]) -> None:
        """Fence the writers of these ids, and abort the transactions they left open."""
        for transactional_id in transactional_ids:
            self._state.fence(transactional_id)

    def check(self) -> None:
        """Unavailable while stopped."""
        self._state.require_up()

    def close(self) -> None:
        """Nothing is held."""


class MemoryMonitoringClient:
    """`ports.MonitoringClient` in memory."""

    def __init__(self, state: BrokerState, group_id: str) -> None:
        self._state = state
        self._group_id = group_id

    def topics(self) -> list[str]:
        """The names of all topics."""
        self._state.require_up()
        return sorted(self._state.topics)

    def partitions(self, topics: Sequence[str]) -> dict[str, int]:
        """Partition counts of those that exist."""
        self._state.require_up()
        known = self._state.topics
        return {topic: len(known[topic]) for topic in topics if topic in known}

    def bounds(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """Log start and last stable offset of each."""
        return _bounds(self._state, tps)

    def inputs(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, InputFacts]:
        """Each input of the application, and how far its group is; none comes too late."""
        return {tp: self._facts(tp, bounds) for tp, bounds in self.bounds(tps).items()}

    def records(
        self, spans: Mapping[TopicPartition, Bounds], *, each_max: int, bytes_max: int
    ) -> FoundRecords:
        """The first committed records of each span; see `ports.MonitoringClient`."""
        self._state.require_up()
        found = FoundRecords([], [])
        for tp, span in spans.items():
            entries = [
                entry
                for entry in self._state.log(tp).read(span.start, span.end)
                if entry.is_visible and not _is_mark(entry)
            ]
            for entry in entries[:each_max]:
                if bytes_max <= 0:
                    found.unread.append(tp)
                    break
                bytes_max -= len(entry.key or b"") + len(entry.value or b"")
                at = (tp.topic, tp.partition, entry.offset)
                found.records.append(
                    Record(entry.key, entry.value, entry.timestamp_ms, entry.headers, *at)
                )
        return found

    def close(self) -> None:
        """Nothing is held."""

    def _facts(self, tp: TopicPartition, bounds: Bounds) -> InputFacts:
        committed = self._state.groups.get((self._group_id, tp))
        unread = max(bounds.start, 0 if committed is None else committed.offset)
        following = self._state.log(tp).read(unread, bounds.end)
        times = [
            entry.timestamp_ms for entry in following if entry.is_visible and not _is_mark(entry)
        ]
        if not times:
            return InputFacts(bounds, committed, None, None)
        return InputFacts(bounds, committed, times[0], max(times))


def _is_mark(entry: LogEntry) -> bool:
    return entry.value is None and time_marks.is_mark(entry.key)


def _bounds(state: BrokerState, tps: Sequence[TopicPartition]) -> dict[TopicPartition, Bounds]:
    logs = {tp: state.log(tp) for tp in tps}
    return {tp: Bounds(log.start, log.last_stable) for tp, log in logs.items()}


def _batch(tp: TopicPartition, entries: Sequence[LogEntry]) -> Batch:
    return Batch(
        keys=Column(raw=packed([entry.key for entry in entries])),
        values=Column(raw=packed([entry.value for entry in entries])),
        timestamps=[entry.timestamp_ms for entry in entries],
        headers=[e.headers for e in entries] if any(e.headers for e in entries) else None,
        topic=tp.topic,
        partition=tp.partition,
        offsets=[entry.offset for entry in entries],
    )
