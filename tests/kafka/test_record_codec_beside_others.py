"""The codec of records beside those of librdkafka, the broker and Java's client, on real bytes."""

import subprocess
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, Message, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from kafka.protocol.consumer import FetchRequest, FetchResponse
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from statestore.kafka.wire import codec
from statestore.kafka.wire.cluster import ClusterMap
from statestore.kafka.wire.codec import Compression
from statestore.model.ids import TopicPartition
from statestore.model.records import Header
from statestore.settings import Settings
from statestore.testing.kafka_jars import java, kafka_libs
from statestore.testing.local_kafka import LocalKafka
from tests.builders import DEADLINE_S
from tests.kafka.run_rig import name_of
from tests.unit.batch_rig import decoded

pytestmark = pytest.mark.kafka

CODECS: tuple[Compression, ...] = ("none", "gzip", "snappy", "lz4", "zstd")
NOW_MS = 1_700_000_000_000
COUNT = 3000
KEYS: list[bytes | None] = [None if n % 7 == 0 else b"key-%d" % (n % 100) for n in range(COUNT)]
VALUES: list[bytes | None] = [None if n % 5 == 0 else b"value %d " % n * 5 for n in range(COUNT)]
TIMES = [NOW_MS + n // 3 - n % 2 for n in range(COUNT)]
HEADERS: list[tuple[Header, ...]] = [
    (("name", b"%d" % n), ("name", None), ("é", b"")) if n % 11 == 0 else () for n in range(COUNT)
]


class Fetched(NamedTuple):
    """What a broker answers: the record set, and producer and first offset of what was aborted."""

    data: bytes
    aborted: list[tuple[int, int]]


def asked(servers: str, topic: str, request: Any, response: Any) -> Any:
    settings = {"application.id": "app", "bootstrap.servers": servers}
    cluster = ClusterMap(Settings.from_mapping(settings), "consumer")
    try:
        tp = TopicPartition(topic, 0)
        until = monotonic() + DEADLINE_S
        link = cluster.connect(cluster.leaders([tp])[tp].node, until)
        answer = link.ask(request, response, deadline_s=until)
        link.close()
        return answer
    finally:
        cluster.close()


def fetched(servers: str, topic: str, at: int) -> Fetched:
    partition = FetchRequest.FetchTopic.FetchPartition(
        partition=0, fetch_offset=at, partition_max_bytes=1 << 26
    )
    request = FetchRequest(
        version=12,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 26,
        isolation_level=1,
        topics=[FetchRequest.FetchTopic(topic=topic, partitions=[partition])],
    )
    answer = asked(servers, topic, request, FetchResponse).responses[0].partitions[0]
    assert answer.error_code == 0
    pairs = [(it.producer_id, it.first_offset) for it in answer.aborted_transactions or ()]
    return Fetched(bytes(answer.records or b""), pairs)


def produced(servers: str, topic: str, data: bytes) -> None:
    """Send one batch as it is."""
    topics, partitions = ProduceRequest.TopicProduceData, ProduceRequest.TopicProduceData
    partition = partitions.PartitionProduceData(index=0, records=data)
    request = ProduceRequest(
        version=9,
        transactional_id=None,
        acks=-1,
        timeout_ms=30_000,
        topic_data=[topics(name=topic, partition_data=[partition])],
    )
    answer = asked(servers, topic, request, ProduceResponse)
    answer = answer.responses[0].partition_responses[0]
    assert answer.error_code == 0, answer


@pytest.mark.parametrize("name", CODECS)
def test_what_librdkafka_writes_is_read(
    kafka: LocalKafka, name: Compression, request: pytest.FixtureRequest
) -> None:
    servers, topic = kafka.bootstrap_servers, name_of(request.node.name)
    kafka.create_topic(topic, 1)
    producer = Producer({
        "bootstrap.servers": servers,
        "compression.type": name,
        "batch.num.messages": 1000,
        "linger.ms": 50,
    })  # fmt: skip
    for key, value, time_ms, headers in zip(KEYS, VALUES, TIMES, HEADERS, strict=True):
        producer.produce(topic, value, key, timestamp=time_ms, headers=list(headers))
    assert producer.flush(DEADLINE_S) == 0
    data = fetched(servers, topic, 0).data
    found = decoded(data, 0)
    assert found[:4] == (KEYS, VALUES, TIMES, range(COUNT))
    assert found.headers == HEADERS
    assert found.next_offset == COUNT


@pytest.mark.parametrize("name", CODECS)
def test_what_it_writes_is_taken_by_the_broker_and_read_by_librdkafka(
    kafka: LocalKafka, name: Compression, request: pytest.FixtureRequest
) -> None:
    servers, topic = kafka.bootstrap_servers, name_of(request.node.name)
    kafka.create_topic(topic, 1)
    produced(servers, topic, codec.encode(KEYS, VALUES, TIMES, HEADERS, compression=name))
    produced(servers, topic, codec.encode([None], [b"last"], [NOW_MS], None, compression=name))
    messages = consumed(servers, topic, COUNT + 1)
    assert [it.offset() for it in messages] == list(range(COUNT + 1))
    assert [it.key() for it in messages] == [*KEYS, None]
    assert [it.value() for it in messages] == [*VALUES, b"last"]
    assert [it.timestamp()[1] for it in messages] == [*TIMES, NOW_MS]
    assert [tuple(it.headers() or ()) for it in messages] == [*HEADERS, ()]


def consumed(servers: str, topic: str, count: int) -> list[Message]:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "none"})
    consumer.assign([KafkaPartition(topic, 0, 0)])
    found: list[Message] = []
    until = monotonic() + DEADLINE_S
    while len(found) < count and monotonic() < until:
        found += consumer.consume(count - len(found), 1)
    consumer.close()
    return found


def test_what_was_aborted_and_the_markers_are_left_out(
    kafka: LocalKafka, request: pytest.FixtureRequest
) -> None:
    servers, topic = kafka.bootstrap_servers, name_of(request.node.name)
    kafka.create_topic(topic, 1)
    producer = Producer({"bootstrap.servers": servers, "transactional.id": topic})
    producer.init_transactions(DEADLINE_S)
    for text, end in [("a", "commit"), ("b", "abort"), ("c", "commit"), ("d", "abort")]:
        producer.begin_transaction()
        for number in range(3):
            producer.produce(topic, f"{text}{number}")
        assert producer.flush(DEADLINE_S) == 0
        (producer.commit_transaction if end == "commit" else producer.abort_transaction)(DEADLINE_S)
    produced(servers, topic, codec.encode([None], [b"e"], [NOW_MS], None))
    answer = fetched(servers, topic, 0)
    assert len(answer.aborted) == 2
    found = decoded(answer.data, 0, answer.aborted)
    assert found.values == [b"a0", b"a1", b"a2", b"c0", b"c1", b"c2", b"e"]
    assert found.offsets == [0, 1, 2, 8, 9, 10, 16]
    assert found.next_offset == 17
    everything = decoded(answer.data, 0)
    assert (len(everything.values), everything.next_offset) == (13, 17)


@pytest.mark.thorough
def test_java_reads_what_it_writes_and_it_reads_what_java_writes(tmp_path: Path) -> None:
    mine, javas = tmp_path / "mine", tmp_path / "javas"
    batches = [
        codec.encode(
            KEYS, VALUES, TIMES, HEADERS, producer_id=7, producer_epoch=2, base_sequence=0,
            transactional=True, compression=name,
        )
        for name in CODECS
    ]  # fmt: skip
    firsts = [number * (COUNT + 1) for number in range(len(batches))]
    mine.write_bytes(
        b"".join(it.to_bytes(8, "big") + one[8:] for it, one in zip(firsts, batches, strict=True))
    )
    source = Path(__file__).with_name("RewriteBatches.java")
    command = [java(), "-cp", f"{kafka_libs()}/*", str(source), str(mine), str(javas)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=3 * DEADLINE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    data = javas.read_bytes()
    found = decoded(data, 0)
    assert found.keys == KEYS * len(CODECS)
    assert found.values == VALUES * len(CODECS)
    assert found.timestamps == TIMES * len(CODECS)
    assert found.headers == HEADERS * len(CODECS)
    assert found.offsets == [first + row for first in firsts for row in range(COUNT)]
    assert found.next_offset == len(CODECS) * (COUNT + 1)
    without = decoded(data, 0, [(7, firsts[1])])
    assert without.offsets == [o for o in found.offsets if not firsts[1] <= o < firsts[2]]
