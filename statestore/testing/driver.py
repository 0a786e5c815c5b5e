"""TopologyTestDriver: a topology under test in this process, without Kafka and without RocksDB.

The stream tasks of production run here, exactly once, on a broker and stores in memory. Only locks
and checkpoint files need a scratch folder, which is removed at close. The driver is deterministic:
time stands still until a test moves it.
"""

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from itertools import starmap
from pathlib import Path
from typing import Any, Self, overload

from statestore.engines.memory import MemoryEngine
from statestore.errors import Misuse, UnknownStore
from statestore.layout.folders import StateLayout
from statestore.model.ids import TaskId, TopicPartition
from statestore.model.modes import Span, Time, span_ms, to_ms
from statestore.model.records import Header, K, Record, Serde, V
from statestore.operations.topics import dead_letter_topics, internal_topics
from statestore.ports import TopicSpec
from statestore.settings import Settings
from statestore.stores import serdes
from statestore.stores.contracts import KeyValueStore, VersionedKeyValueStore
from statestore.stores.durability import LagLimits
from statestore.stores.kinds import BuiltIn, open_over, tables_of
from statestore.stores.specs import (
    BuiltInSpec,
    KeyValueSpec,
    S,
    StoreSpec,
    StoreSupplier,
    VersionedSpec,
)
from statestore.stores.windows import TIME_ROW
from statestore.tasks.plan import TaskEdges, TaskPlan
from statestore.tasks.task import StreamTask
from statestore.testing.memory_broker import MemoryBroker
from statestore.topology.graph import Topology
from statestore.topology.logs import logs
from statestore.topology.nodes import SinkNode, SourceNode, TopicName

_DEFAULTS = {
    "application.id": "topology-test",
    "bootstrap.servers": "memory",
    "processing.guarantee": "exactly_once",
    "statestore.lock.wait.ms": 0,
}
_NO_FLUSH = LagLimits(max_bytes=1 << 62, max_records=1 << 62, max_ms=1 << 62)


class ManualClock:
    """A clock that moves only when it is told to."""

    def __init__(self) -> None:
        self._now_ms = 0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._now_ms / 1000

    def advance(self, span: int) -> None:
        """Move the clock forward by `span` ms."""
        self._now_ms += span


class TopologyTestDriver:
    """Pipe records in and read records out. Use it with `with`, or call close()."""

    def __init__(
        self,
        topology: Topology,
        settings: Settings | Mapping[str, object] | None = None,
        *,
        partitions: int = 1,
    ) -> None:
        """Every topic of the user's has `partitions` partitions."""
        given = settings.to_mapping() if isinstance(settings, Settings) else (settings or {})
        self._scratch = tempfile.TemporaryDirectory(prefix="topology-test-")
        self._settings = Settings.from_mapping(
            _DEFAULTS | {"state.dir": self._scratch.name} | dict(given)
        )
        self._topology = topology
        self._layout = StateLayout(Path(self._scratch.name), self._settings.application_id)
        self._broker = MemoryBroker()
        self._clock = ManualClock()
        self._read: dict[str, int] = {}
        self._tasks: dict[TaskId, StreamTask] = {}
        try:
            self._counts = self._create_topics(partitions)
            self._start()
        except BaseException:
            self.close()
            raise

    def pipe(
        self,
        topic: str,
        key: Any,
        value: Any,
        timestamp_ms: Time | None = None,
        partition: int = 0,
        *,
        headers: Sequence[Header] = (),
    ) -> None:
        """Process one record to the end and commit it.

        `timestamp_ms` is in milliseconds or an aware datetime; the driver's wall clock gives one
        that is missing.
        """
        time_ms = self._clock.now_ms() if timestamp_ms is None else to_ms(timestamp_ms)
        record = Record(key, value, time_ms, tuple(headers), partition=partition)
        self.pipe_all(topic, [record])

    def pipe_all(self, topic: str, records: Iterable[tuple[Any, ...]]) -> None:
        """Process several records in one commit; a record without a `partition` goes to 0.

        A record may be a tuple (key, value, timestamp_ms, …).
        """
        node = self._source(topic)
        for record in starmap(Record, records):
            encoded = record.replace(
                key=_encode(node.key_serde, record.key),
                value=_encode(node.value_serde, record.value),
            )
            self._broker.produce(TopicPartition(topic, record.partition or 0), encoded)
        self._drain()

    def read(self, topic: str) -> list[Record[Any, Any]]:
        """The committed records of a topic that were not read before, decoded, by partition.

        Of the changelog of a window store, these are the windows, without the rows that keep its
        stream time.
        """
        key_serde, value_serde = self._serdes(topic)
        rows = self._broker.records(topic)
        fresh = rows[self._read.get(topic, 0) :]
        self._read[topic] = len(rows)
        return [
            row.replace(key=_decode(key_serde, row.key), value=_decode(value_serde, row.value))
            for row in fresh
            if row.key != TIME_ROW or serdes.of_windowed(key_serde.name) is None
        ]

    @overload
    def store(self, spec: KeyValueSpec[K, V], partition: int = 0) -> KeyValueStore[K, V]: ...
    @overload
    def store(
        self, spec: VersionedSpec[K, V], partition: int = 0
    ) -> VersionedKeyValueStore[K, V]: ...
    @overload
    def store(self, spec: StoreSupplier[S], partition: int = 0) -> S: ...
    @overload
    def store(self, spec: str, partition: int = 0) -> Any: ...
    def store(self, spec: StoreSpec | str, partition: int = 0) -> Any:
        """Return a store of a stream task as its processors see it, by its spec or name.

        The spec gives the store its type; a name gives none. UnknownStore lists the stores of the
        topology.
        """
        name = spec if isinstance(spec, str) else spec.name
        for part in self._topology.sub_topologies:
            if name in part.stores:
                return self._tasks[TaskId(part.ordinal, partition)].store(name)
        raise UnknownStore(
            f"no store {name!r}; the topology has: {', '.join(self._topology.stores)}"
        )

    def advance_wall_clock(self, ms: Span) -> None:
        """Let time (milliseconds or a timedelta) pass at once.

        A punctuation that is due several times fires once.
        """
        self._clock.advance(span_ms(ms))
        self._drain()

    def commit(self) -> None:
        """Commit every stream task now."""
        for task in self._tasks.values():
            task.finish()

    def crash(self) -> None:
        """Let every process die and start again: what was not committed is lost."""
        for task in self._tasks.values():
            task.abandon()
        self._start()

    def close(self) -> None:
        """Close all stream tasks. Closing twice is harmless."""
        for task in self._tasks.values():
            task.close()
        self._tasks = {}
        self._scratch.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _create_topics(self, partitions: int) -> dict[TopicName, int]:
        read, written = self._topology.topics()
        names = sorted(read | written)
        counts = self._topology.partition_counts(dict.fromkeys(names, partitions))
        kept = logs(self._topology, self._settings).topics()
        internal = internal_topics(self._topology, counts, self._settings.application_id, kept)
        cluster = self._broker.cluster(self._settings.application_id)
        for name in dead_letter_topics(self._topology, self._settings) - set(names):
            internal.append(TopicSpec(name, partitions, {}))
        cluster.create([TopicSpec(name, partitions, {}) for name in names] + internal)
        return counts

    def _start(self) -> None:
        tasks = self._topology.tasks(self._counts)
        self._tasks = {}
        for wave in self._topology.waves:
            for ordinal in wave.ordinals:
                for task_id in tasks[ordinal]:
                    task = StreamTask(
                        self._plan(task_id), self._edges(task_id), self._settings, self._layout
                    )
                    self._tasks[task_id] = task
                    task.start()
        self._drain()

    def _plan(self, task_id: TaskId) -> TaskPlan:
        part = self._topology.sub_topologies[task_id.sub_topology]
        inputs = tuple(
            TopicPartition(topic.full(self._settings.application_id), task_id.partition)
            for topic in part.source_topics
            if task_id.partition < self._counts[topic]
        )
        return TaskPlan(task_id, part, self._topology.stores, inputs, ends=None)

    def _edges(self, task_id: TaskId) -> TaskEdges:
        group_id = self._settings.application_id
        outbox = (
            self._broker.outbox(f"{group_id}-{task_id}", group_id)
            if self._settings.exactly_once
            else self._broker.plain_outbox(group_id)
        )
        return TaskEdges(
            self._broker.source(),
            outbox,
            self._broker.changelog(),
            self._broker.cluster(group_id),
            self._clock,
            self._open_store,
            _nothing_to_link,
        )

    def _open_store(self, spec: BuiltInSpec, _path: Path) -> BuiltIn:
        return open_over(
            MemoryEngine(tables_of(spec)),
            spec,
            where=f"in-memory store {spec.name!r}",
            limits=_NO_FLUSH,
            clock=self._clock,
            level=self._settings.effective_isolation_level,
            owned_by_task=True,
        )

    def _drain(self) -> None:
        """Step all tasks until none has anything left, in internal topics either."""
        moved = True
        while moved:
            moved = False
            for task in self._tasks.values():
                before = task.report.commits, task.report.rewinds
                moved = task.step(0) > 0 or moved
                task.finish()
                # After a punctuation no record came in, but some may have gone out.
                moved = moved or (task.report.commits, task.report.rewinds) != before

    def _source(self, topic: str) -> SourceNode:
        for node in self._topology.nodes:
            if isinstance(node, SourceNode) and TopicName(topic) in node.topics:
                return node
        read, _ = self._topology.topics()
        raise Misuse(f"the topology does not read {topic!r}; it reads: {', '.join(sorted(read))}")

    def _serdes(self, topic: str) -> tuple[Serde[Any], Serde[Any]]:
        for node in self._topology.nodes:
            if isinstance(node, SinkNode) and (
                node.topic.full(self._settings.application_id) == topic
            ):
                return node.key_serde, node.value_serde
        for spec in self._topology.stores.values():
            if topic == f"{self._settings.application_id}-{spec.name}-changelog":
                return spec.key_serde, spec.value_serde
        if topic == self._settings.dead_letter_topic:
            return serdes.BYTES, serdes.BYTES
        _, written = self._topology.topics()
        raise Misuse(
            f"the topology does not write {topic!r}; it writes: {', '.join(sorted(written))}"
        )


def _nothing_to_link(_source: Path, _target: Path, _owner_dead: bool, /) -> None:  # noqa: FBT001  # a port
    """Do nothing: the stores of a test have no files."""


def _encode(serde: Serde[Any], item: Any) -> bytes | None:
    return None if item is None else serde.serialize(item)


def _decode(serde: Serde[Any], data: bytes | None) -> Any:
    return None if data is None else serde.deserialize(data)
