"""When a poll ends: near the end of the log with the first records, behind a backlog with many."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from statestore.kafka.source import KafkaSource
from statestore.kafka.wire.cluster import ClusterMap
from statestore.kafka.wire.source import WireSource
from statestore.model.ids import TopicPartition
from statestore.ports import Source
from statestore.settings import Settings
from statestore.testing.local_kafka import LocalKafka

pytestmark = pytest.mark.kafka

# A broker that has nothing more answers a fetch, and reports the end of the log, after this long.
FETCH_WAIT_S = 170
WAITING_S = 60
BACKLOG = 50_000


@pytest.fixture(params=["librdkafka", "wire"])
def source(kafka: LocalKafka, request: pytest.FixtureRequest) -> Iterator[Source]:
    settings = Settings.of(
        {
            "application.id": "polls",
            "bootstrap.servers": kafka.bootstrap_servers,
            "consumer.fetch.wait.max.ms": FETCH_WAIT_S * 1000,
            "consumer.socket.timeout.ms": 300_000,
        }
    )
    with closing(ClusterMap(settings, "consumer")) as cluster:
        made: Source = KafkaSource(settings, group_id="polls")
        if request.param == "wire":
            made = WireSource(settings, cluster)
        with closing(made) as source:
            yield source


def produce(kafka: LocalKafka, topic: str, count: int) -> TopicPartition:
    kafka.create_topic(topic, partitions=1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=0)
        producer.poll(0)
    assert producer.flush(WAITING_S) == 0
    return TopicPartition(topic, 0)


def polled(source: Source, most: int) -> list[int]:
    """Return the offsets of one poll, which may wait for longer than the test does."""
    with ThreadPoolExecutor(1) as thread:
        batches = thread.submit(source.poll, most, FETCH_WAIT_S * 1000, soon=True).result(WAITING_S)
    return [offset for batch in batches for offset in batch.offsets or ()]


def test_a_poll_ends_with_the_first_records_and_does_not_wait_for_the_end_of_the_log(
    kafka: LocalKafka, source: Source
) -> None:
    source.start({produce(kafka, f"polls-few-{uuid4().hex[:8]}", 3): 0})
    assert polled(source, 1000) == [0, 1, 2]


def test_a_backlog_comes_in_large_batches(kafka: LocalKafka, source: Source) -> None:
    source.start({produce(kafka, f"polls-many-{uuid4().hex[:8]}", BACKLOG): 0})
    sizes, seen = [], 0
    while seen < BACKLOG:
        offsets = polled(source, 20_000)
        assert offsets == list(range(seen, seen + len(offsets)))
        seen += len(offsets)
        sizes.append(len(offsets))
    assert len(sizes) <= 5, sizes
