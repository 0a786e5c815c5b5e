"""Which hash placed the keys of topics that meet, and what follows from it."""

import logging
import re
from collections.abc import Callable

import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import NotCopartitioned
from statestore.kafka.partitioner import crc32_partition, murmur2_partition
from statestore.model.ids import TopicPartition
from statestore.model.records import Record
from statestore.operations.start.topics import check_hashes
from statestore.ports import TopicSpec
from statestore.settings import Settings
from statestore.testing.memory_broker import MemoryBroker

PLACED: dict[str, Callable[[bytes, int], int]] = {
    "java": murmur2_partition,
    "c": crc32_partition,
    "own": lambda key, count: (key[-1] + 1) % count,
}
KEYS = [f"key-{n}".encode() for n in range(150)]


def world(partitions: int = 4, keys: int = 150, **placed: str) -> MemoryBroker:
    """Topics by name, each with the keys placed in that way."""
    broker = MemoryBroker()
    for topic, how in placed.items():
        broker.cluster("app").create([TopicSpec(topic, partitions, {})])
        for key in KEYS[:keys]:
            partition = PLACED[how](key, partitions)
            broker.produce(TopicPartition(topic, partition), Record(key, b"", 0))
        broker.produce(TopicPartition(topic, 0), Record(None, b"", 0))
    return broker


def builder() -> ss.StreamsBuilder:
    return ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)


def joined() -> ss.Topology:
    b = builder()
    b.stream("left").join(b.table("right", materialized="t"), lambda a, b: a + b).to("out")
    return b.build()


def merged(*, counted: bool) -> ss.Topology:
    b = builder()
    both = b.stream("left").merge(b.stream("right"))
    if counted:
        both.group_by_key().count("n")
    else:
        both.to("out")
    return b.build()


def rekeyed() -> ss.Topology:
    """The left side comes over a topic of our own."""
    b = builder()
    left = b.stream("left").select_key(lambda _k, v: v).repartition("r")
    left.join(b.table("right", materialized="t"), lambda a, b: a + b).to("out")
    return b.build()


def checked(topology: ss.Topology, broker: MemoryBroker, **settings: object) -> None:
    known = Settings.from_mapping({"application.id": "app", **settings})
    cluster = broker.cluster("app")
    counts = topology.partition_counts(cluster.partitions(["left", "right"]))
    check_hashes(topology, counts, cluster, known)


@pytest.mark.parametrize("topology", [joined(), merged(counted=True)], ids=["join", "merge"])
def test_mixed_hashes_are_refused_naming_both_topics(topology: ss.Topology) -> None:
    message = r"keys of left were placed by murmur2 .*, those of right by CRC32 .*repartition\(\)"
    with pytest.raises(NotCopartitioned, match=message):
        checked(topology, world(left="java", right="c"))
    with pytest.raises(NotCopartitioned, match=r"keys of right .*, those of left by CRC32"):
        checked(topology, world(left="c", right="java"))


@pytest.mark.parametrize("how", ["java", "c"])
def test_equal_hashes_are_fine(how: str, caplog: pytest.LogCaptureFixture) -> None:
    checked(joined(), world(left=how, right=how))
    assert caplog.records == []


def test_a_hash_nobody_knows_is_a_warning_that_names_the_topic(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        checked(joined(), world(left="java", right="own"))
    assert re.search(r"topic right: its first 100 keys .* neither murmur2 nor CRC32", caplog.text)
    assert "left" not in caplog.text


def test_a_repartition_topic_counts_as_placed_by_our_own_partitioner() -> None:
    with pytest.raises(NotCopartitioned, match=r"app-r-repartition .* murmur2 .* right by CRC32"):
        checked(rekeyed(), world(left="c", right="c"))
    checked(rekeyed(), world(left="c", right="java"))
    checked(rekeyed(), world(left="java", right="c"), partitioner="consistent_random")


def test_where_no_keys_meet_nothing_is_refused() -> None:
    checked(merged(counted=False), world(left="java", right="c"))
    checked(joined(), world(partitions=1, left="java", right="c"))
    checked(joined(), world(keys=0, left="java", right="c"))


def test_a_topic_placed_by_a_partitioner_is_not_judged_by_a_hash_but_told_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    b = builder()
    left = b.stream("left").repartition("r", partitioner=lambda _t, _k, _v, _n: 0)
    left.join(b.table("right", materialized="t"), lambda a, b: a + b).to("out")
    with caplog.at_level(logging.WARNING):
        checked(b.build(), world(left="java", right="c"))
    assert "places the keys of r-repartition; whether they meet those of right" in caplog.text
