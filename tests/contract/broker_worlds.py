"""What the broker suite needs of a broker beside the ports: topics, a back door, faults."""

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Any, NamedTuple, Protocol, Self

import psutil
import pytest
from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
)
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from statestore.kafka.audit_log_reader import KafkaAuditLogReader
from statestore.kafka.changelog import KafkaChangelog
from statestore.kafka.cluster import KafkaCluster
from statestore.kafka.monitoring import KafkaMonitoringClient
from statestore.kafka.outbox import NumberOf, PlainOutbox, TransactionalOutbox, no_number
from statestore.kafka.source import KafkaSource
from statestore.kafka.wire.cluster import ClusterMap
from statestore.kafka.wire.outbox import WireOutbox
from statestore.kafka.wire.source import WireSource
from statestore.model.ids import TopicPartition
from statestore.model.records import Header, Record
from statestore.ports import (
    AuditLogReader,
    Changelog,
    Cluster,
    MonitoringClient,
    Outbox,
    Source,
    TopicSpec,
)
from statestore.settings import Settings
from statestore.tasks.commit import CommitStamp
from statestore.tasks.plan import transactional_ids
from statestore.testing.local_kafka import LocalKafka
from statestore.testing.memory_broker import MemoryBroker
from tests.builders import DEADLINE_S


class Row(NamedTuple):
    """A committed record as the back door shows it."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int = 0
    headers: tuple[Header, ...] = ()
    partition: int = 0
    offset: int = 0


class World(Protocol):
    """One broker and the ports to it; one group, named after the application."""

    application_id: str

    def topic(self, partitions: int = 1, config: Mapping[str, str] | None = None) -> str: ...
    def source(self) -> Source: ...
    def outbox(self, name: str = "0_0", **settings: int) -> Outbox: ...
    def plain_outbox(self) -> Outbox: ...
    def changelog(self) -> Changelog: ...
    def audit_log(self) -> AuditLogReader: ...
    def monitoring(self) -> MonitoringClient: ...
    def cluster(self, **settings: int) -> Cluster: ...
    def transactional_ids(self, name: str = "0_0") -> tuple[str, ...]: ...
    def rows(self, topic: str) -> list[Row]: ...
    def settle(self, topic: str) -> None: ...
    def produce(self, topic: str, rows: Sequence[Row]) -> None: ...
    def expire(self, name: str) -> None: ...
    def silent_commit(self, name: str) -> AbstractContextManager[None]: ...
    def unreachable(self) -> "World": ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exc: object) -> None: ...


class MemoryWorld:
    """The in-memory broker."""

    def __init__(self) -> None:
        self.application_id = "app"
        self.broker = MemoryBroker()
        self._topics = 0

    def topic(self, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        self._topics += 1
        name = f"topic-{self._topics}"
        self.cluster().create([TopicSpec(name, partitions, config or {})])
        return name

    def source(self) -> Source:
        return self.broker.source()

    def outbox(self, name: str = "0_0", **settings: int) -> Outbox:
        return self.broker.outbox(self.transactional_ids(name)[0], self.application_id)

    def plain_outbox(self) -> Outbox:
        return self.broker.plain_outbox(self.application_id)

    def changelog(self) -> Changelog:
        return self.broker.changelog()

    def audit_log(self) -> AuditLogReader:
        return self.broker.audit_log()

    def monitoring(self) -> MonitoringClient:
        return self.broker.monitoring(self.application_id)

    def cluster(self, **settings: int) -> Cluster:
        return self.broker.cluster(self.application_id)

    def transactional_ids(self, name: str = "0_0") -> tuple[str, ...]:
        return transactional_ids(self.application_id, name)

    def rows(self, topic: str) -> list[Row]:
        return [
            Row(r.key, r.value, r.timestamp_ms, r.headers, r.partition or 0, r.offset or 0)
            for r in self.broker.records(topic)
        ]

    def settle(self, topic: str) -> None:
        """A commit shows at once."""

    def produce(self, topic: str, rows: Sequence[Row]) -> None:
        for row in rows:
            record = Record(row.key, row.value, row.timestamp_ms, row.headers)
            self.broker.produce(TopicPartition(topic, row.partition), record)

    def expire(self, name: str) -> None:
        self.broker.expire(self.transactional_ids(name)[0])

    @contextmanager
    def silent_commit(self, name: str) -> Iterator[None]:
        self.broker.lose_answer(self.transactional_ids(name)[0], happened=False)
        yield

    def unreachable(self) -> World:
        other = MemoryWorld()
        other.broker.stop()
        return other

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        pass


class KafkaWorld:
    """A real broker, looked at from behind with clients of its own."""

    def __init__(self, kafka: LocalKafka, bootstrap_servers: str = "") -> None:
        self.application_id = f"app-{uuid.uuid4().hex[:8]}"
        self.kafka = kafka
        self.bootstrap_servers = bootstrap_servers or kafka.bootstrap_servers
        self._stack = ExitStack()

    def settings(self, **settings: object) -> Settings:
        clients = settings.pop("clients", {})
        assert isinstance(clients, dict)
        return Settings(
            application_id=self.application_id,
            bootstrap_servers=self.bootstrap_servers,
            clients=clients,
            **settings,  # type: ignore[arg-type] # Settings checks them
        )

    def topic(self, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        name = f"topic-{uuid.uuid4().hex[:8]}"
        kept = {"retention.ms": "-1"} | dict(config or {})
        self.cluster().create([TopicSpec(name, partitions, kept)])
        return name

    def source(self, **settings: object) -> Source:
        source = KafkaSource(self.settings(**settings), group_id=self.application_id)
        self._stack.callback(source.close)
        return source

    def outbox(self, name: str = "0_0", **settings: object) -> Outbox:
        return self.numbered_outbox(name, inputs=(), number_of=no_number, **settings)

    def numbered_outbox(
        self,
        name: str = "0_0",
        *,
        inputs: Sequence[TopicPartition] = (),
        number_of: NumberOf = CommitStamp.number_in,
        **settings: object,
    ) -> TransactionalOutbox:
        """As a stream task has it: its transactions carry the numbers of commits."""
        outbox = TransactionalOutbox(
            self.settings(**settings),
            transactional_ids=self.transactional_ids(name),
            group_id=self.application_id,
            inputs=inputs,
            number_of=number_of,
        )
        self._stack.callback(outbox.close)
        return outbox

    def plain_outbox(self, **settings: object) -> Outbox:
        outbox = PlainOutbox(self.settings(**settings), group_id=self.application_id)
        self._stack.callback(outbox.close)
        return outbox

    def changelog(self, **settings: object) -> Changelog:
        return KafkaChangelog(self.settings(**settings))

    def audit_log(self) -> AuditLogReader:
        audit_log = KafkaAuditLogReader(self.settings())
        self._stack.callback(audit_log.close)
        return audit_log

    def monitoring(self) -> MonitoringClient:
        monitoring = KafkaMonitoringClient(self.settings())
        self._stack.callback(monitoring.close)
        return monitoring

    def cluster(self, **settings: object) -> Cluster:
        cluster = KafkaCluster(self.settings(**settings))
        self._stack.callback(cluster.close)
        return cluster

    def transactional_ids(self, name: str = "0_0") -> tuple[str, ...]:
        return transactional_ids(self.application_id, name)

    def rows(self, topic: str) -> list[Row]:
        config = {
            "bootstrap.servers": self.bootstrap_servers,
            "group.id": "back-door",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
        self.settle(topic)
        found, deadline = [], time.monotonic() + DEADLINE_S
        consumer = Consumer(config)
        try:
            count = len(consumer.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions)
            consumer.assign([KafkaPartition(topic, p, 0) for p in range(count)])
            while count:
                assert time.monotonic() < deadline, "the back door met no end of log"
                for message in consumer.consume(1000, 0.1):
                    error = message.error()
                    if error is not None:
                        assert error.code() == KafkaError._PARTITION_EOF
                        count -= 1
                        continue
                    found.append(_row(message))
        finally:
            consumer.close()
        return sorted(found, key=lambda row: (row.partition, row.offset))

    def settle(self, topic: str) -> None:
        """Brokers answer a commit before its records can be read: wait for that."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        count = len(admin.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions)
        latest: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # library gap
        asked = {KafkaPartition(topic, p): latest for p in range(count)}
        deadline = time.monotonic() + DEADLINE_S

        def ends(level: IsolationLevel) -> dict[int, int]:
            pending = admin.list_offsets(asked, isolation_level=level, request_timeout=DEADLINE_S)
            return {tp.partition: future.result().offset for tp, future in pending.items()}

        settled = False
        while not settled:
            assert time.monotonic() < deadline, f"a transaction stays open in {topic}"
            with suppress(KafkaException):  # leaders move after a broker was silent
                settled = ends(IsolationLevel.READ_COMMITTED) == ends(
                    IsolationLevel.READ_UNCOMMITTED
                )

    def produce(self, topic: str, rows: Sequence[Row]) -> None:
        # Without idempotence a retry, frequent on a new topic, changes the order.
        config = {"bootstrap.servers": self.bootstrap_servers, "enable.idempotence": True}
        producer = Producer(config)
        for row in rows:
            producer.produce(
                topic,
                row.value,
                row.key,
                row.partition,
                timestamp=row.timestamp_ms,
                headers=list(row.headers),
            )
        assert producer.flush(DEADLINE_S) == 0

    def expire(self, name: str) -> None:
        """The broker does it by itself, soon after transaction.timeout.ms."""

    @contextmanager
    def silent_commit(self, name: str) -> Iterator[None]:
        processes = [psutil.Process(p.pid) for p in self.kafka._processes.values()]
        for process in processes:
            process.suspend()
        deadline = time.monotonic() + DEADLINE_S
        while not all(process.status() == psutil.STATUS_STOPPED for process in processes):
            assert time.monotonic() < deadline, "the broker did not stop"
        try:
            yield
        finally:
            for process in processes:
                process.resume()

    def unreachable(self) -> World:
        return UnreachableWorld(self.kafka)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()


class WireWorld(KafkaWorld):
    """A real broker by our own client."""

    def source(self, **settings: object) -> Source:
        given = self.settings(**settings)
        cluster = ClusterMap(given, "consumer")
        self._stack.callback(cluster.close)
        source = WireSource(given, cluster)
        self._stack.callback(source.close)
        return source

    def outbox(self, name: str = "0_0", **settings: object) -> Outbox:
        return self.wire_outbox(name, inputs=(), number_of=no_number, **settings)

    def wire_outbox(
        self,
        name: str = "0_0",
        *,
        inputs: Sequence[TopicPartition] = (),
        number_of: NumberOf = CommitStamp.number_in,
        **settings: object,
    ) -> WireOutbox:
        """As a stream task has it: its transactions carry the numbers of commits."""
        given = self.settings(**settings)
        cluster = ClusterMap(given, "producer")
        self._stack.callback(cluster.close)
        outbox = WireOutbox(
            given,
            cluster,
            transactional_ids=self.transactional_ids(name),
            group_id=self.application_id,
            inputs=inputs,
            number_of=number_of,
        )
        self._stack.callback(outbox.close)
        return outbox

    def changelog(self, **settings: object) -> Changelog:
        return KafkaChangelog(self.settings(**settings), None, lambda: self.source(**settings))

    def unreachable(self) -> World:
        return UnreachableWireWorld(self.kafka)


class _Unreachable:
    """An address where nobody listens, and little patience."""

    def __init__(self, kafka: LocalKafka) -> None:
        super().__init__(kafka, "127.0.0.1:9")  # type: ignore[call-arg]  # a KafkaWorld follows

    def settings(self, **settings: object) -> Settings:
        made: Settings = super().settings(  # type: ignore[misc]  # a KafkaWorld follows
            **{"request_timeout_ms": 1000} | settings
        )
        return made


class UnreachableWorld(_Unreachable, KafkaWorld):
    """Nobody is there for librdkafka."""


class UnreachableWireWorld(_Unreachable, WireWorld):
    """Nobody is there for our own client."""


def _row(message: Message) -> Row:
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    headers: Any = message.headers() or ()
    at = message.timestamp()[1]
    return Row(message.key(), message.value(), at, tuple(headers), partition, offset)


@pytest.fixture(
    params=[
        "memory",
        pytest.param("kafka", marks=pytest.mark.kafka),
        pytest.param("wire", marks=pytest.mark.kafka),
    ]
)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    if request.param == "memory":
        made: World = MemoryWorld()
    else:
        kind = {"kafka": KafkaWorld, "wire": WireWorld}[request.param]
        made = kind(request.getfixturevalue("kafka"))
    with made:
        yield made


@pytest.fixture
def wire_world(kafka: LocalKafka) -> Iterator[WireWorld]:
    with WireWorld(kafka) as made:
        yield made


@pytest.fixture(params=[KafkaWorld, WireWorld], ids=["kafka", "wire"])
def reading_world(request: pytest.FixtureRequest, kafka: LocalKafka) -> Iterator[KafkaWorld]:
    """A world for each client that reads."""
    with request.param(kafka) as made:
        yield made


@pytest.fixture
def kafka_world(kafka: LocalKafka) -> Iterator[KafkaWorld]:
    with KafkaWorld(kafka) as made:
        yield made
