"""Requests to a partition's leader after it was elected again, on three real brokers."""

from collections.abc import Iterator
from contextlib import closing

import pytest
from confluent_kafka import ElectionType
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin._metadata import PartitionMetadata
from confluent_kafka.cimpl import NewTopic

from statestore.kafka.cluster import KafkaCluster
from statestore.kafka.testing import admin
from statestore.model.ids import TopicPartition
from statestore.ports import Bounds
from statestore.settings import Settings
from statestore.testing.local_kafka import LocalKafka
from tests.builders import DEADLINE_S, eventually

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
TOPIC = TopicPartition("moved", 0)
PREFERRED, OTHER = 1, 2


@pytest.fixture(scope="module")
def kafka() -> Iterator[LocalKafka]:
    with LocalKafka(3) as cluster:
        yield cluster


def partition(kafka: LocalKafka) -> PartitionMetadata:
    """What a new client hears of the partition."""
    described = admin(kafka.bootstrap_servers).list_topics(TOPIC.topic, timeout=DEADLINE_S)
    return described.topics[TOPIC.topic].partitions[TOPIC.partition]


def restart(kafka: LocalKafka, broker: int) -> None:
    kafka.stop_broker(broker)
    kafka.start_broker(broker)
    eventually(lambda: len(partition(kafka).isrs) == 2, "it has caught up", DEADLINE_S)


@pytest.mark.timeout(900)
def test_a_leader_that_was_elected_again_is_asked_with_its_new_epoch(kafka: LocalKafka) -> None:
    """Its epoch has risen twice, and the client has not lost the connection to it meanwhile."""
    manager = admin(kafka.bootstrap_servers)
    topic = NewTopic(TOPIC.topic, 1, replica_assignment=[[PREFERRED, OTHER]])
    manager.create_topics([topic])[TOPIC.topic].result(DEADLINE_S)
    restart(kafka, PREFERRED)
    assert partition(kafka).leader == OTHER
    settings = Settings.from_mapping(
        {"application.id": "asks", "bootstrap.servers": kafka.bootstrap_servers}
    )
    with closing(KafkaCluster(settings)) as asking, closing(KafkaCluster(settings)) as purging:
        for cluster in (asking, purging):
            assert cluster.bounds([TOPIC]) == {TOPIC: Bounds(0, 0)}
        elected = manager.elect_leaders(ElectionType.PREFERRED, [KafkaPartition(*TOPIC)])
        elected.result(DEADLINE_S)
        eventually(lambda: partition(kafka).leader == PREFERRED, "it leads", DEADLINE_S)
        purging.delete_before({TOPIC: 0})
        kafka.stop_broker(PREFERRED)
        eventually(lambda: partition(kafka).leader == OTHER, "the other leads again", DEADLINE_S)
        assert asking.bounds([TOPIC]) == {TOPIC: Bounds(0, 0)}
        assert purging.bounds([TOPIC]) == {TOPIC: Bounds(0, 0)}
