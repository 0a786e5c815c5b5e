"""TopologyTestDriver: a topology under test in this process, without Kafka and without RocksDB.

The stream tasks of production run here, exactly once, on a broker and stores in memory. Only locks
and checkpoint files need a scratch folder, which is removed at close. The driver is deterministic:
time stands still until a test moves it.
"""

import logging
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, overload

from statestore import serdes
from statestore.engines.memory import MemoryEngine
from statestore.errors import (
    ABOUT_A_RECORD,
    InvalidTopology,
    Misuse,
    SerdeMismatch,
    StateStoreError,
    UnknownStore,
)
from statestore.layout.folders import StateLayout
from statestore.model import time_marks
from statestore.model.batch import Batch, Column
from statestore.model.ids import TaskId, TopicPartition
from statestore.model.modes import EVENT_TIME_MAX_MS, Span, Time, span_ms, to_ms
from statestore.model.records import Header, K, Record, Serde, SerdeContext, Side, V
from statestore.operations.running.run import check_named
from statestore.operations.start.matching import OwnTopics
from statestore.operations.start.topics import dead_letter_topics, internal_topics
from statestore.ports import TopicSpec
from statestore.serdes import composed
from statestore.settings import Settings
from statestore.stores.contracts import (
    KeyValueStore,
    SessionStore,
    VersionedKeyValueStore,
    WindowStore,
)
from statestore.stores.durability import LagLimits
from statestore.stores.in_windows import TIME_ROW
from statestore.stores.kinds.kind import BuiltIn
from statestore.stores.kinds.opening import open_over
from statestore.stores.kinds.registry import keeps_history, kind_of
from statestore.stores.logged import read_versions
from statestore.stores.specs import (
    KeyValueSpec,
    S,
    SessionSpec,
    StoreSpec,
    StoreSupplier,
    VersionedSpec,
    WindowSpec,
)
from statestore.tasks.origins import Origins
from statestore.tasks.plan import TaskEdges, TaskPlan
from statestore.tasks.task import StreamTask
from statestore.tasks.time_plan import TimePlans
from statestore.testing.driver_globals import DriverTables
from statestore.testing.memory_broker import MemoryBroker, MemorySource
from statestore.topology import missing_methods
from statestore.topology.graph import Topology, require_topology
from statestore.topology.logs import log_of, logs
from statestore.topology.nodes import SinkNode, SourceNode, TopicName

_DEFAULTS = {
    "application.id": "topology-test",
    "bootstrap.servers": "memory",
    "processing.guarantee": "exactly_once",
    "statestore.lock.wait.ms": 0,
}
_log = logging.getLogger(__name__)
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


@missing_methods.explains(missing_methods.OF_DRIVERS)
class TopologyTestDriver:
    """Pipe records in and read records out. Use it with `with`, or call close()."""

    def __init__(
        self,
        topology: Topology,
        settings: Settings | Mapping[str, object] | None = None,
        *,
        partitions: int = 1,
    ) -> None:
        """Every topic of the user's has `partitions` partitions.

        A topic that a pattern of the topology matches is created when a record is piped into it;
        all stream tasks start again then, as in the next run.

        Misuse if it is not a topology. A store without a name, which a run refuses, is only logged.
        """
        require_topology("TopologyTestDriver", topology)
        given = settings.to_mapping() if isinstance(settings, Settings) else (settings or {})
        self._scratch = tempfile.TemporaryDirectory(prefix="topology-test-")
        self._settings = Settings.from_mapping(
            _DEFAULTS | {"state.dir": self._scratch.name} | dict(given)
        )
        _tell_of_names(topology, self._settings)
        self._topology = topology
        self._own = OwnTopics(
            self._settings.application_id, frozenset({self._settings.dead_letter_topic})
        )
        self._is_open = True
        self._layout = StateLayout(Path(self._scratch.name), self._settings.application_id)
        self._broker = MemoryBroker()
        self._partitions = partitions
        self._clock = ManualClock()
        self._read: dict[TopicPartition, int] = {}
        self._tasks: dict[TaskId, StreamTask] = {}
        self._sources: dict[TaskId, MemorySource] = {}
        self._global_tables = DriverTables(topology, self._open_store)
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
        that is missing. Key and value are encoded by the serdes with which the topology reads the
        topic: SerdeMismatch if they do not fit. Misuse if no broker would take the record.
        """
        time_ms = self._clock.now_ms() if timestamp_ms is None else to_ms(timestamp_ms)
        record = Record(key, value, time_ms, tuple(headers), partition=partition)
        self.pipe_all(topic, [record])

    def pipe_bytes(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: Time | None = None,
        partition: int = 0,
        *,
        headers: Sequence[Header] = (),
    ) -> None:
        """Do as `pipe` with bytes that are not encoded, such as those that do not decode.

        Misuse if they are no bytes, or if no broker would take the record.
        """
        self._read_as(topic)
        self._join(topic)
        for side, given in (("key", key), ("value", value)):
            if not isinstance(given, bytes | None):
                raise Misuse(
                    f"pipe_bytes into topic {topic!r}: the {side} is {type(given).__name__}: pass "
                    "bytes, or use pipe(), which encodes"
                )
        time_ms = self._clock.now_ms() if timestamp_ms is None else to_ms(timestamp_ms)
        self._produce(topic, Record(key, value, time_ms, tuple(headers), partition=partition))
        self._drain()

    def pipe_all(self, topic: str, records: Iterable[tuple[Any, ...]]) -> None:
        """Process several records in one commit; a record without a `partition` goes to 0.

        A record may be a tuple (key, value, timestamp_ms, …). If one of them is refused, none is
        processed.
        """
        key_serde, value_serde = self._read_as(topic)
        self._join(topic)
        encoded = []
        for given in records:
            record = _record_of(topic, given)
            headers = list(record.headers)
            key = _encode(topic, "key", key_serde, record.key, headers)
            value = _encode(topic, "value", value_serde, record.value, headers)
            encoded.append(record.replace(key=key, value=value, headers=tuple(headers)))
            self._check(topic, record)
        for record in encoded:
            self._produce(topic, record)
        self._drain()

    def read(self, topic: str) -> list[Record[Any, Any]]:
        """The committed records of a topic that were not read before, decoded, by partition.

        Of the changelog of a window or session store, these are the windows, without the rows that
        keep its stream time; of that of a store with history the versions, each at its time.
        """
        key_serde, value_serde = self._serdes(topic)
        rows = self._broker.records(topic)
        fresh = [row for row in rows if _next_of(row) > self._read.get(_place_of(row), 0)]
        self._read |= {_place_of(row): _next_of(row) for row in fresh}
        if keeps_history(self._logged_in(topic)):
            fresh = _versions_in(fresh)
        return [
            row.replace(
                key=_decode(topic, "key", key_serde, row.key, row.headers),
                value=_decode(topic, "value", value_serde, row.value, row.headers),
            )
            for row in fresh
            if (row.key != TIME_ROW or composed.of_windowed(key_serde.name) is None)
            and not (row.value is None and time_marks.is_mark(row.key))
        ]

    @overload
    def store(self, spec: KeyValueSpec[K, V], partition: int = 0) -> KeyValueStore[K, V]: ...
    @overload
    def store(
        self, spec: VersionedSpec[K, V], partition: int = 0
    ) -> VersionedKeyValueStore[K, V]: ...
    @overload
    def store(self, spec: WindowSpec[K, V], partition: int = 0) -> WindowStore[K, V]: ...
    @overload
    def store(self, spec: SessionSpec[K, V], partition: int = 0) -> SessionStore[K, V]: ...
    @overload
    def store(self, spec: StoreSupplier[S], partition: int = 0) -> S: ...
    @overload
    def store(self, spec: str, partition: int = 0) -> Any: ...
    def store(self, spec: StoreSpec | str, partition: int = 0) -> Any:
        """Return a store of a stream task as its processors see it, by its spec or name.

        The spec gives the store its type; a name gives none. UnknownStore lists the stores of the
        topology.
        """
        self._check_open()
        name = spec if isinstance(spec, str) else spec.name
        if name in self._global_tables.stores:
            return self._global_tables.stores[name]
        for part in self._topology.sub_topologies:
            if name in part.stores:
                task = self._tasks.get(TaskId(part.ordinal, partition))
                if task is None:
                    tasks = ", ".join(str(at) for at in self._tasks if at[0] == part.ordinal)
                    raise UnknownStore(
                        f"store {name!r} has no partition {partition}: its stream tasks are "
                        f"{tasks or 'none before a record is piped into a topic that matches'}"
                    )
                return task.store(name)
        raise UnknownStore(
            f"no store {name!r}; the topology has: {', '.join(self._topology.stores)}"
        )

    def advance_wall_clock(self, ms: Span) -> None:
        """Let time (milliseconds or a timedelta) pass at once.

        A punctuation that is due several times fires once. Misuse if the span is negative.
        """
        if span_ms(ms) < 0:
            raise Misuse(f"the wall clock cannot go back by {-span_ms(ms)} ms: pass a span above 0")
        self._clock.advance(span_ms(ms))
        self._drain()

    def commit(self) -> None:
        """Commit every stream task now."""
        self._check_open()
        for task in self._tasks.values():
            task.finish()

    def crash(self) -> None:
        """Let every process die and start again: what was not committed is lost."""
        for task in self._tasks.values():
            task.abandon()
        self._start()

    def close(self) -> None:
        """Close all stream tasks. Closing twice is harmless."""
        self._is_open = False
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
        return counts | {one.topic: partitions for one in self._topology.global_sources}

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
        tasks = self._topology.tasks(self._counts)
        times = TimePlans(
            self._topology, tasks, self._counts, self._settings.application_id, "test"
        )
        return TaskPlan(
            task_id,
            part,
            self._topology.stores,
            inputs,
            ends=None,
            times=times.of(task_id),
            origins=Origins(self._topology.sub_topologies, self._settings.application_id),
        )

    def _edges(self, task_id: TaskId) -> TaskEdges:
        group_id = self._settings.application_id
        source = self._sources[task_id] = self._broker.source()
        outbox = (
            self._broker.outbox(f"{group_id}-{task_id}", group_id)
            if self._settings.exactly_once
            else self._broker.plain_outbox(group_id)
        )
        return TaskEdges(
            source,
            outbox,
            self._broker.changelog(),
            self._broker.cluster(group_id),
            self._clock,
            self._open_store,
            _nothing_to_link,
            self._global_tables.stores,
        )

    def _open_store(self, spec: StoreSpec, _path: Path) -> BuiltIn:
        return open_over(
            MemoryEngine(kind_of(spec).tables),
            spec,
            where=f"in-memory store {spec.name!r}",
            limits=_NO_FLUSH,
            clock=self._clock,
            level=self._settings.effective_isolation_level,
            owned_by_task=True,
        )

    def _check_open(self) -> None:
        if not self._is_open:
            raise Misuse("this TopologyTestDriver is closed: use it inside its `with`")

    def _check(self, topic: str, record: Record[Any, Any]) -> None:
        """Misuse if no broker would take the record."""
        count, partition = self._counts[TopicName(topic)], record.partition or 0
        where = f"pipe into topic {topic!r}"
        if partition not in range(count):
            raise Misuse(
                f"{where}: there is no partition {partition}, they are 0 to {count - 1}: "
                f"TopologyTestDriver(topology, partitions=…) says how many there are"
            )
        time_ms: object = record.timestamp_ms
        # Kafka uses -1 for records without a time.
        if type(time_ms) is not int or not -1 <= time_ms <= EVENT_TIME_MAX_MS:
            raise Misuse(
                f"{where}: no broker takes a record of the time {time_ms!r:.99}: pass whole "
                "milliseconds since 1970, or an aware datetime"
            )
        for header in record.headers:
            match header:
                case (str(), bytes() | None):
                    continue
            raise Misuse(f"{where}: {header!r:.99} is not a header: pass (name, bytes)")

    def _produce(self, topic: str, record: Record[Any, Any]) -> None:
        self._check_open()
        self._check(topic, record)
        self._broker.produce(TopicPartition(topic, record.partition or 0), record)

    def _drain(self) -> None:
        """Step all tasks until none has anything left, in internal topics either.

        Then all input was seen, as at the end of a run.
        """
        self._check_open()
        self._step_all()
        for task in self._tasks.values():
            # In the order of waves, so nothing that this makes comes to a task before.
            if task.all_seen():
                task.finish()
                self._step_all()

    def _step_all(self) -> None:
        moved = True
        while moved:
            moved = False
            self._global_tables.refresh(self._broker.changelog(), self._partitions)
            for task_id, task in self._tasks.items():
                before = self._signs_of_life(task_id)
                moved = task.step(0) > 0 or moved
                task.finish()
                moved = moved or self._signs_of_life(task_id) != before

    def _signs_of_life(self, task_id: TaskId) -> tuple[object, ...]:
        """Return what changes when a task does something without processing a record.

        A punctuation may have sent some, and records may have been read that wait for others.
        """
        report = self._tasks[task_id].report
        return report.commits, report.rewinds, self._sources[task_id].positions()

    def _read_as(self, topic: str) -> tuple[Serde[Any], Serde[Any]]:
        """Return the serdes with which the topology reads a topic."""
        for node in self._topology.nodes:
            if isinstance(node, SourceNode) and (
                TopicName(topic) in node.topics or self._matches(node, topic)
            ):
                return node.key_serde, node.value_serde
        for source in self._topology.global_sources:
            if source.topic.name == topic:
                return source.spec.key_serde, source.spec.value_serde
        read = [*sorted(self._topology.topics()[0]), *self._topology.patterns.values()]
        raise Misuse(f"the topology does not read {topic!r}; it reads: {', '.join(read)}")

    def _matches(self, node: SourceNode, topic: str) -> bool:
        return node.pattern is not None and bool(self._own.matching(node.pattern, [topic]))

    def _join(self, topic: str) -> None:
        """Have a topic that a pattern matches read from now on, as from the next run on."""
        self._check_open()
        if TopicName(topic) in self._counts:
            return
        topics = {
            node.name: [*(it.name for it in node.topics), topic]
            for node in self._topology.nodes
            if isinstance(node, SourceNode) and self._matches(node, topic)
        }
        if topics:
            matched = self._topology.matching(topics)
            for task in self._tasks.values():
                task.close()
            self._tasks = {}
            self._topology = matched
            self._counts = self._create_topics(self._partitions)
            self._start()

    def _logged_in(self, topic: str) -> StoreSpec | None:
        """Return the store whose changelog a topic is."""
        logs = {
            log_of(self._settings.application_id, name, {}): name for name in self._topology.stores
        }
        return self._topology.stores[logs[topic]] if topic in logs else None

    def _serdes(self, topic: str) -> tuple[Serde[Any], Serde[Any]]:
        for node in self._topology.nodes:
            if isinstance(node, SinkNode) and (
                node.topic.full(self._settings.application_id) == topic
            ):
                return node.key_serde, node.value_serde
        spec = self._logged_in(topic)
        if spec is not None:
            return spec.key_serde, spec.value_serde
        if topic == self._settings.dead_letter_topic:
            return serdes.BYTES, serdes.BYTES
        _, written = self._topology.topics()
        raise Misuse(
            f"the topology does not write {topic!r}; it writes: {', '.join(sorted(written))}"
        )


def _place_of(row: Record[Any, Any]) -> TopicPartition:
    assert row.topic is not None
    assert row.partition is not None
    return TopicPartition(row.topic, row.partition)


def _next_of(row: Record[Any, Any]) -> int:
    assert row.offset is not None
    return row.offset + 1


def _nothing_to_link(_source: Path, _target: Path, _owner_dead: bool, /) -> None:  # noqa: FBT001  # a port
    """Do nothing: the stores of a test have no files."""


def _tell_of_names(topology: Topology, settings: Settings) -> None:
    """Warn of what a run refuses and a test of a part of a pipeline need not care about."""
    try:
        check_named(topology, settings)
    except InvalidTopology as refused:
        _log.warning("a run would refuse this topology: %s", refused)


def _record_of(topic: str, given: tuple[Any, ...]) -> Record[Any, Any]:
    try:
        record = Record(*given)
        return record.replace(timestamp_ms=to_ms(record.timestamp_ms))
    except TypeError as error:
        raise Misuse(
            f"pipe_all into topic {topic!r}: {given!r:.99} is not a record: pass ss.Record(key, "
            "value, timestamp_ms), or a tuple that begins with these"
        ) from error


def _encode(
    topic: str, side: Side, serde: Serde[Any], item: Any, headers: list[Header]
) -> bytes | None:
    if item is None:
        return None
    try:
        return serde.write(item, SerdeContext(topic, side, headers))
    except Exception as error:
        if isinstance(error, StateStoreError) and not isinstance(error, ABOUT_A_RECORD):
            raise
        raise SerdeMismatch(
            f"pipe into topic {topic!r}: the {side} {item!r:.99} is {type(item).__name__}, but the "
            f"topology reads {side}s as {serde.name} ({error}): pass one that fits, or pass "
            f"{side}_serde=… where the topology reads the topic; pipe_bytes() takes bytes as they "
            "are"
        ) from error


def _versions_in(rows: list[Record[Any, Any]]) -> list[Record[Any, Any]]:
    """Return the versions in records of a changelog."""
    batch = Batch(
        keys=Column(raw=[row.key for row in rows]),
        values=Column(raw=[row.value for row in rows]),
        timestamps=[row.timestamp_ms for row in rows],
        headers=[row.headers for row in rows],
    )
    return list(map(Record, *read_versions(batch, is_whole=False)[:3]))


def _decode(
    topic: str, side: Side, serde: Serde[Any], data: bytes | None, headers: Iterable[Header]
) -> Any:
    if data is None:
        return None
    try:
        return serde.read(data, SerdeContext(topic, side, list(headers)))
    except Exception as error:
        if isinstance(error, StateStoreError) and not isinstance(error, ABOUT_A_RECORD):
            raise
        raise SerdeMismatch(
            f"read of topic {topic!r}: the {side} {serdes.printable(data):.99} is not a valid "
            f"{serde.name} ({error})"
        ) from error
