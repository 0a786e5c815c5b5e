"""`statestore topics create`: what it creates, what it leaves alone, and what it refuses."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import InvalidTopology, Misuse, NotCopartitioned
from statestore.model.ids import TopicPartition
from statestore.model.records import Record
from statestore.operations.running.create_topics import NeededTopic, Partitions, create_topics
from statestore.operations.running.run import RunRequest
from statestore.ports import TopicSpec
from statestore.runtime import Runtime
from statestore.tasks.commit import CommitStamp
from statestore.testing.memory_broker import MemoryBroker
from statestore.topology.graph import Topology
from tests.builders import ManualClock

EVERY_4 = Partitions(every=4)
DAY_MS = 86_400_000


def counts() -> Topology:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
    b.stream("in").group_by_key().count("counts").to_stream().to("out")
    return b.build()


def joined(history_ms: int | None = None) -> Topology:
    """Orders, by their customer, join the customers."""
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
    kept: Any = ss.Materialized("customers-kept", history_retention=history_ms)
    customers = b.table("customers", materialized=kept)
    b.stream("orders").select_key(lambda _k, v: v).repartition("by-customer").join(
        customers, lambda left, right: left + right
    ).to("named-orders")
    return b.build()


@dataclass
class World:
    state_dir: Path
    broker: MemoryBroker = field(default_factory=MemoryBroker)

    def has(self, **topics: int) -> "World":
        self.cluster.create([TopicSpec(name, count, {}) for name, count in topics.items()])
        return self

    @property
    def cluster(self) -> Any:
        return self.broker.cluster("app")

    def topics(self, *names: str) -> Mapping[str, int]:
        found: Mapping[str, int] = self.cluster.partitions(names)
        return found

    def create(
        self,
        topology: Topology,
        partitions: Partitions,
        more: Mapping[str, object] = {},
        *,
        dry_run: bool = False,
    ) -> dict[str, NeededTopic]:
        settings = {
            "application.id": "app",
            "state.dir": str(self.state_dir),
            "bootstrap.servers": "in-memory:9092",
            "processing.guarantee": "exactly_once",
            **more,
        }
        with Runtime(settings, clock=ManualClock(), brokers=self.broker.clients) as runtime:
            made = create_topics(runtime, topology, partitions, RunRequest(), dry_run=dry_run)
        return {one.topic: one for one in made}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_it_creates_inputs_outputs_and_internal_topics_and_tells_what_was_there(
    world: World,
) -> None:
    world.has(out=4)
    made = world.create(counts(), EVERY_4)
    assert [(one.topic, one.role, one.partitions, one.exists) for one in made.values()] == [
        ("in", "input", 4, False),
        ("out", "output", 4, True),
        ("app-counts-changelog", "changelog", 4, False),
    ]
    assert world.topics(*made) == {"in": 4, "out": 4, "app-counts-changelog": 4}
    assert made["app-counts-changelog"].config["cleanup.policy"] == "compact"
    again = world.create(counts(), EVERY_4)
    assert all(one.exists for one in again.values())


def test_a_dry_run_says_the_same_and_creates_nothing(world: World) -> None:
    planned = world.create(counts(), EVERY_4, dry_run=True)
    assert world.topics(*planned) == {}
    assert world.create(counts(), EVERY_4) == planned


def test_missing_topics_follow_those_they_are_joined_with_or_written_from(world: World) -> None:
    world.has(orders=3, customers=6)
    made = world.create(joined(), Partitions())
    assert {name: one.partitions for name, one in made.items()} == {
        "orders": 3,
        "customers": 6,
        "named-orders": 6,
        "app-by-customer-repartition": 6,
        "app-customers-kept-changelog": 6,
    }


def test_a_missing_input_gets_as_many_partitions_as_the_one_it_is_joined_with(world: World) -> None:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
    customers = b.table("customers", materialized="kept")
    b.stream("orders").join(customers, lambda left, right: left + right).to("out")
    made = world.has(orders=5).create(b.build(), Partitions())
    assert made["customers"].partitions == 5


def test_an_input_read_only_as_a_table_is_compacted_but_keeps_everything_for_a_history(
    world: World,
) -> None:
    plain = world.create(joined(), EVERY_4, dry_run=True)
    assert plain["customers"].config == {"cleanup.policy": "compact"}
    assert plain["orders"].config == {}
    assert plain["named-orders"].config == {}
    historic = world.create(joined(history_ms=DAY_MS), EVERY_4)
    assert historic["customers"].config == {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
    }


def test_an_input_read_as_a_stream_as_well_is_not_compacted(world: World) -> None:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
    customers = b.stream("customers")
    customers.to_table("kept")
    customers.to("copy")
    assert world.create(b.build(), EVERY_4)["customers"].config == {}


def test_the_topic_of_dead_letters_is_created(world: World) -> None:
    handler = {
        "deserialization.exception.handler": "dead_letter",
        "errors.dead.letter.queue.topic.name": "dead",
    }
    made = world.create(counts(), Partitions(every=4, single={"dead": 1}), handler)
    assert (made["dead"].role, made["dead"].partitions) == ("dead letters", 1)
    assert world.topics("dead") == {"dead": 1}


REFUSED: dict[str, tuple[Callable[[], Topology], dict[str, int], Partitions, type[Misuse], str]] = {
    "no count": (
        counts,
        {},
        Partitions(),
        Misuse,
        "how many partitions shall in have? Nothing says so, as there is no such topic: pass",
    ),
    "another count": (
        counts,
        {"in": 8},
        EVERY_4,
        Misuse,
        "topic 'in' has 8 partitions, not 4: existing topics are never altered, as keys would",
    ),
    "a topic of somebody else": (
        counts,
        {},
        Partitions(4, {"inn": 3}),
        Misuse,
        "partitions of 'inn': the pipeline neither reads nor writes it; it has: in, out",
    ),
    "an internal topic with another count": (
        counts,
        {"in": 8, "app-counts-changelog": 2},
        Partitions(),
        NotCopartitioned,
        "internal topic app-counts-changelog has 2 partitions, the topology needs 8",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_contradiction_is_refused_and_nothing_is_created(case: str, world: World) -> None:
    topology, there, partitions, kind, said = REFUSED[case]
    world.has(**there)
    with pytest.raises(kind) as refused:
        world.create(topology(), partitions)
    assert said in str(refused.value)
    assert world.topics("in", "out", "app-counts-changelog", "inn") == there


def test_joined_inputs_with_different_counts_are_refused(world: World) -> None:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
    customers = b.table("customers", materialized="kept")
    b.stream("orders").join(customers, lambda left, right: left + right).to("out")
    with pytest.raises(NotCopartitioned, match=r"orders: 3, customers: 6|customers: 6, orders: 3"):
        world.create(b.build(), Partitions(6, {"orders": 3}))
    assert world.topics("orders", "customers", "out") == {}


def test_the_changelog_of_a_store_with_commits_is_not_replaced_by_an_empty_one(
    world: World,
) -> None:
    world.has(**{"in": 1, "out": 1})
    for time_ms in range(3):
        world.broker.produce(TopicPartition("in", 0), Record(b"k", b"v", time_ms))
    outbox = world.broker.plain_outbox("app")
    outbox.open()
    outbox.begin()
    outbox.send_offsets({TopicPartition("in", 0): 3}, CommitStamp(1, 2).text())
    outbox.close()
    with pytest.raises(Misuse, match="the changelog app-counts-changelog-0 is empty"):
        world.create(counts(), Partitions())
    assert world.topics("app-counts-changelog") == {}


def test_names_that_a_start_refuses_are_refused(world: World) -> None:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
    b.stream("in").group_by_key().count().to_stream().to("out")
    world.has(**{"in": 1, "out": 1})
    with pytest.raises(InvalidTopology, match="no name of their own"):
        world.create(b.build(), Partitions())
