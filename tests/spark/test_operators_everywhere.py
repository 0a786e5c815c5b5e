"""Every operator's table once more: through a real broker in one run, and in one run of Spark."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import SparkSession

import statestore as ss
from statestore.commands.running import report_run
from statestore.spark.process import run_on_spark
from statestore.testing.local_kafka import LocalKafka
from statestore.topology.graph import Topology
from statestore.topology.nodes import SinkNode, SourceNode
from tests.builders import DEADLINE_S, eventually
from tests.contract.operator_cases import CASES, on_kafka, on_spark
from tests.contract.operator_cases import topology as cases
from tests.contract.operator_tables import Seen, by_key, shown
from tests.spark.local_spark import local_spark

pytestmark = pytest.mark.kafka

# A timestamp of 0 would mean "now" to the client. A multiple of the cases' windows.
SINCE_MS = 1_700_000_000_000
SETTINGS = {
    "processing.guarantee": "exactly_once",
    "ensure.explicit.internal.resource.naming": False,
}


@pytest.fixture
def spark() -> Iterator[SparkSession]:
    with local_spark("operators", "local[2,1]") as session:
        yield session


def fill(kafka: LocalKafka, topology: Topology, prefix: str) -> None:
    """The topics of all cases, and the left sides of their tables."""
    read, written = topology.topics()
    for name in sorted(read | written):
        kafka.create_topic(name, partitions=1, config={"retention.ms": "-1"})
    serdes = {
        topic.name: (node.key_serde, node.value_serde)
        for node in topology.nodes
        if isinstance(node, SourceNode)
        for topic in node.topics
    }
    for source in topology.global_sources:
        serdes[source.topic.name] = (source.spec.key_serde, source.spec.value_serde)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 5})
    for name, case in CASES.items():
        for (topic, key, value, time), _ in case.rows():
            full = f"{prefix}{name}.{topic}"
            key_serde, value_serde = serdes[full]
            producer.produce(
                full,
                key=None if key is None else key_serde.serialize(key),
                value=None if value is None else value_serde.serialize(value),
                timestamp=SINCE_MS + time,
            )
    assert producer.flush(DEADLINE_S) == 0


def outcome(kafka: LocalKafka, topology: Topology, prefix: str) -> dict[str, Any]:
    """What each key of each case's topics shows, by case."""
    sinks = {
        node.topic.name: node
        for node in topology.nodes
        if isinstance(node, SinkNode) and not node.topic.internal
    }
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": f"{prefix}audit",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0) for topic in sinks])
    found: dict[str, list[Seen]] = {name: [] for name in CASES}
    at_end: set[str] = set()

    def read_all() -> bool:
        for message in consumer.consume(500, 0.2):
            topic = message.topic()
            assert topic is not None
            if message.error():
                at_end.add(topic)
                continue
            name, _, short = topic.removeprefix(prefix).rpartition(".")
            key, value = message.key(), message.value()
            node = sinks[topic]
            decoded = None if key is None else node.key_serde.deserialize(key)
            found[name].append(
                Seen(
                    short,
                    shown(decoded, SINCE_MS),
                    None if value is None else node.value_serde.deserialize(value),
                    message.timestamp()[1] - SINCE_MS,
                )
            )
        return at_end == sinks.keys()

    eventually(read_all, "every output read", 2 * DEADLINE_S)
    consumer.close()
    return {name: by_key(seen, races=CASES[name].races) for name, seen in found.items()}


def expected() -> dict[str, Any]:
    return {
        name: by_key((seen for _, out in case.rows() for seen in out), races=case.races)
        for name, case in CASES.items()
    }


@pytest.mark.slow
def test_two_workers_write_what_one_process_writes(kafka: LocalKafka, tmp_path: Path) -> None:
    found = []
    for workers in (1, 2):
        prefix = f"workers-{workers}."
        topology = cases(prefix=prefix)
        fill(kafka, topology, prefix)
        settings = SETTINGS | {
            "application.id": f"workers-{workers}",
            "bootstrap.servers": kafka.bootstrap_servers,
            "state.dir": str(tmp_path),
        }
        assert ss.run(topology, settings, workers=workers).caught_up
        found.append(outcome(kafka, topology, prefix))
    assert found[0] == found[1]


@pytest.mark.thorough
def test_every_table_holds_on_a_real_broker(kafka: LocalKafka, tmp_path: Path) -> None:
    topology = on_kafka()
    fill(kafka, topology, "kafka.")
    settings = SETTINGS | {
        "application.id": "cases",
        "bootstrap.servers": kafka.bootstrap_servers,
        "state.dir": str(tmp_path),
    }
    assert ss.run(topology, settings).caught_up
    assert outcome(kafka, topology, "kafka.") == expected()


@pytest.mark.thorough
@pytest.mark.spark
def test_every_table_holds_in_one_run_of_spark(
    kafka: LocalKafka, spark: SparkSession, tmp_path: Path
) -> None:
    topology = on_spark()
    fill(kafka, topology, "spark.")
    flags = {
        **dict.fromkeys(("run_for", "config", "summary_file")),
        "until": "latest",
        "pipeline": "tests.contract.operator_cases:on_spark",
        "application_id": "spark-cases",
        "bootstrap_servers": kafka.bootstrap_servers,
        "state_dir": str(tmp_path),
        "processing_guarantee": "exactly_once",
        "pairs": ("ensure.explicit.internal.resource.naming=false",),
        "accept_new_topology": False,
        "accept_empty_changelog": False,
    }
    summary = report_run(flags, run_on_spark)
    assert summary.caught_up
    assert 0 < sum(summary.held.values()) == summary.held_records
    assert outcome(kafka, topology, "spark.") == expected()
