"""What follows from a topology: sub-topologies, tasks, waves, partition counts, description."""

from typing import Any

import pytest

from statestore import serdes
from statestore.errors import InvalidTopology, NotCopartitioned, TopicMissing
from statestore.model.ids import TaskId
from statestore.stores.specs import KeyValueSpec, persistent_key_value_store
from statestore.topology.collector import check_names
from statestore.topology.graph import Topology, Wave
from statestore.topology.nodes import Node, OperatorNode, Repartition, SourceNode, TopicName
from statestore.topology.operators import passed
from statestore.topology.sub_topologies import SubTopology
from tests.unit.graphs import operator, sink, source, topic, topology


def names(part: SubTopology) -> list[str]:
    return [node.name for node in part.nodes]


# Sub-topologies (T1).


def test_connected_nodes_are_one_sub_topology_numbered_by_their_first_node() -> None:
    parts = topology(
        source("a"),
        source("b"),
        operator("on-b", "b"),
        operator("on-a", "a"),
        sink("out", "on-a", "x"),
    ).sub_topologies
    assert [(part.ordinal, names(part)) for part in parts] == [
        (0, ["a", "on-a", "out"]),
        (1, ["b", "on-b"]),
    ]


def test_a_shared_store_joins_what_is_otherwise_apart() -> None:
    parts = topology(
        source("a"),
        source("b"),
        source("c"),
        operator("writes", "a", stores=("s",)),
        operator("alone", "b", stores=("t",)),
        operator("reads", "c", stores=("s",)),
    ).sub_topologies
    assert [names(part) for part in parts] == [["a", "c", "writes", "reads"], ["b", "alone"]]
    assert [part.stores for part in parts] == [("s",), ("t",)]


def test_a_shared_source_topic_joins_its_readers() -> None:
    parts = topology(
        source("first", "t"), source("other", "u"), source("second", "v", "t")
    ).sub_topologies
    assert [names(part) for part in parts] == [["first", "second"], ["other"]]
    assert parts[0].source_topics == (TopicName("t"), TopicName("v"))


def test_a_node_with_two_parents_joins_them_also_over_several_steps() -> None:
    parts = topology(
        source("a"), source("b"), source("c"), operator("ab", "a", "b"), operator("abc", "ab", "c")
    ).sub_topologies
    assert len(parts) == 1


def test_writing_a_topic_somebody_reads_does_not_join() -> None:
    made = topology(source("a"), sink("out", "a", "r*x"), source("r*x"))
    assert [names(part) for part in made.sub_topologies] == [["a", "out"], ["r*x"]]
    assert made.sub_topologies[0].sinks[0].topic == made.sub_topologies[1].sources[0].topics[0]


# Refusals.


def test_a_topology_that_reads_nothing_is_refused() -> None:
    with pytest.raises(InvalidTopology, match=r"reads no topic: begin with stream\(\)"):
        topology(operator("lonely"))


def test_a_store_nobody_declared_is_refused() -> None:
    with pytest.raises(InvalidTopology, match="'ghost', which is not declared"):
        Topology((source("a"), operator("p", "a", stores=("ghost",))), {}, {})


def test_a_parent_that_is_not_in_the_topology_is_refused() -> None:
    with pytest.raises(InvalidTopology, match="'ghost'"):
        topology(source("a"), operator("p", "ghost"))


def test_two_nodes_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidTopology, match="two nodes are named 'a'"):
        check_names([source("a"), operator("b", "a"), operator("a", "b")])


# Waves.


def test_waves_follow_the_topics_between_sub_topologies() -> None:
    made = topology(
        source("r*late"),
        source("in"),
        sink("s1", "in", "r*early"),
        source("other"),
        source("r*early"),
        sink("s2", "r*early", "r*late"),
    )
    ordinal = {part.nodes[0].name: part.ordinal for part in made.sub_topologies}
    assert made.waves == (
        Wave((ordinal["in"], ordinal["other"])),
        Wave((ordinal["r*early"],)),
        Wave((ordinal["r*late"],)),
    )


def test_a_users_topic_written_and_read_orders_waves_too() -> None:
    made = topology(source("between"), source("in"), sink("s", "in", "between"))
    assert made.waves == (Wave((1,)), Wave((0,)))


def test_a_cycle_is_one_wave_that_repeats_after_what_feeds_it() -> None:
    made = topology(
        source("in"),
        sink("s0", "in", "r*a"),
        source("r*a"),
        sink("s1", "r*a", "r*b"),
        source("r*b"),
        sink("s2", "r*b", "r*a"),
    )
    assert made.waves == (Wave((0,)), Wave((1, 2), repeat=True))


def test_a_sub_topology_that_feeds_itself_repeats() -> None:
    made = topology(source("in", "in", "r*again"), sink("s", "in", "r*again"))
    assert made.waves == (Wave((0,), repeat=True),)


# Partition counts and tasks (T1, T2).


def counts(made: Topology, **existing: int) -> dict[str, int]:
    return {topic.name: count for topic, count in made.partition_counts(existing).items()}


def test_a_sub_topology_has_as_many_tasks_as_its_widest_source_has_partitions() -> None:
    made = topology(source("a"), operator("p", "a", "b"), source("b"), source("c"))
    tasks = made.tasks(made.partition_counts({"a": 2, "b": 3, "c": 1}))
    assert tasks == {0: [TaskId(0, 0), TaskId(0, 1), TaskId(0, 2)], 1: [TaskId(1, 0)]}


def test_a_repartition_topic_is_as_wide_as_its_writers_unless_told() -> None:
    nodes: tuple[Node, ...] = (
        source("in"),
        sink("s1", "in", "r*x"),
        source("r*x"),
        sink("s2", "r*x", "r*y"),
        source("r*y"),
    )
    assert counts(topology(*nodes), **{"in": 4}) == {"in": 4, "r*x": 4, "r*y": 4}
    told = topology(*nodes, partitions={"r*x": 7})
    assert counts(told, **{"in": 4}) == {"in": 4, "r*x": 7, "r*y": 7}


def test_a_repartition_topic_of_two_writers_is_as_wide_as_the_wider() -> None:
    made = topology(
        source("r*x"), source("a"), source("b"), sink("s1", "a", "r*x"), sink("s2", "b", "r*x")
    )
    assert counts(made, a=2, b=5)["r*x"] == 5


def test_a_cycle_of_repartition_topics_is_as_wide_as_what_feeds_it() -> None:
    made = topology(
        source("r*b"),
        sink("s2", "r*b", "r*a"),
        source("r*a"),
        sink("s1", "r*a", "r*b"),
        source("in"),
        sink("s0", "in", "r*a"),
    )
    assert counts(made, **{"in": 3}) == {"in": 3, "r*a": 3, "r*b": 3}


def test_what_follows_a_cycle_is_as_wide_as_the_cycle_whatever_was_declared_first() -> None:
    made = topology(
        source("r*x"),
        sink("s3", "r*x", "r*y"),
        source("r*y"),
        source("in"),
        sink("s0", "in", "r*a"),
        source("r*a"),
        sink("s1", "r*a", "r*a"),
        sink("s2", "r*a", "r*x"),
    )
    assert counts(made, **{"in": 3}) == {"in": 3, "r*a": 3, "r*x": 3, "r*y": 3}


def test_a_source_topic_that_does_not_exist_is_named() -> None:
    with pytest.raises(TopicMissing, match="'orders' does not exist: create it"):
        topology(source("orders")).partition_counts({"order": 1})


def joined(*sources: SourceNode) -> Topology:
    return topology(*sources, operator("join", *[s.name for s in sources], copartitioned=True))


def test_joined_topics_of_different_partition_counts_are_refused_with_their_counts() -> None:
    made = joined(source("a"), source("b"))
    assert counts(made, a=4, b=4) == {"a": 4, "b": 4}
    with pytest.raises(NotCopartitioned, match=r"join joins .*a: 4, b: 3.*repartition\(\)"):
        made.partition_counts({"a": 4, "b": 3})


def test_merged_topics_may_differ_in_partition_count() -> None:
    made = topology(source("a"), source("b"), operator("merge", "a", "b"))
    assert counts(made, a=4, b=3) == {"a": 4, "b": 3}


def test_a_repartition_topic_told_another_width_than_its_partner_is_refused() -> None:
    made = topology(
        source("in"),
        sink("s", "in", "r*x"),
        source("r*x"),
        source("b"),
        operator("join", "r*x", "b", copartitioned=True),
        partitions={"r*x": 2},
    )
    with pytest.raises(NotCopartitioned, match=r"r\*x-repartition: 2, b: 3"):
        made.partition_counts({"in": 4, "b": 3})


def test_a_repartition_topic_is_as_wide_as_what_it_is_joined_with() -> None:
    nodes: tuple[Node, ...] = (
        source("in"),
        sink("s", "in", "r*x"),
        source("r*x"),
        source("table"),
        operator("keeps", "table", stores=("t",)),
        OperatorNode("join", ("r*x",), passed(), ("t",), True),
    )
    made = topology(*nodes)
    assert made.joined == (("join", (topic("r*x"), topic("table"))),)
    for width in (2, 8):
        found = counts(made, **{"in": 4, "table": width})
        assert found == {"in": 4, "table": width, "r*x": width}


def test_two_repartition_topics_that_are_joined_are_as_wide_as_the_wider_writer() -> None:
    made = topology(
        source("a"),
        sink("s", "a", "r*a"),
        source("b"),
        sink("t", "b", "r*b"),
        source("r*a"),
        source("r*b"),
        operator("join", "r*a", "r*b", copartitioned=True),
    )
    assert counts(made, a=2, b=5) == {"a": 2, "b": 5, "r*a": 5, "r*b": 5}


def test_only_what_meets_in_a_join_must_be_equally_partitioned() -> None:
    made = topology(
        source("a"),
        source("b"),
        operator("join", "a", "b", copartitioned=True),
        source("c"),
        operator("merge", "join", "c"),
    )
    assert counts(made, a=4, b=4, c=3) == {"a": 4, "b": 4, "c": 3}


# Names, description, fingerprint.


def test_internal_topics_carry_the_application_id() -> None:
    assert TopicName("by-day", internal=True).full("shop") == "shop-by-day-repartition"
    assert TopicName("orders").full("shop") == "orders"


def test_users_topics_read_and_written_are_listed_without_internal_ones() -> None:
    made = topology(source("in"), sink("s", "in", "r*x"), source("r*x"), sink("t", "r*x", "out"))
    assert made.topics() == ({"in"}, {"out"})


SHOP = (
    source("SOURCE-1", "orders", "returns"),
    operator("COUNT-2", "SOURCE-1", stores=("counts", "seen")),
    operator("FILTER-3", "COUNT-2"),
    sink("SINK-4", "FILTER-3", "r*by-day"),
    sink("SINK-5", "COUNT-2", "out"),
    source("SOURCE-6", "r*by-day"),
)
DESCRIPTION = """\
Topologies:
   Sub-topology: 0
    Source: SOURCE-1 (topics: [orders, returns])
      --> COUNT-2
    Processor: COUNT-2 (stores: [counts, seen])
      --> FILTER-3, SINK-5
      <-- SOURCE-1
    Processor: FILTER-3 (stores: [])
      --> SINK-4
      <-- COUNT-2
    Sink: SINK-4 (topic: r*by-day-repartition)
      <-- FILTER-3
    Sink: SINK-5 (topic: out)
      <-- COUNT-2

   Sub-topology: 1
    Source: SOURCE-6 (topics: [r*by-day-repartition])
      --> none
"""


def test_describe_prints_kafka_streams_layout() -> None:
    assert topology(*SHOP).describe() == DESCRIPTION


def test_what_is_deployed_says_where_stores_live_and_how_to_decode_them() -> None:
    typed: KeyValueSpec[Any, Any] = persistent_key_value_store("counts", key_serde=serdes.STRING)
    made = Topology(
        SHOP,
        {"counts": typed, "seen": persistent_key_value_store("seen")},
        {"r*by-day": Repartition("r*by-day", None, True)},
    )
    deployed = made.deployed()
    assert deployed["stores"]["counts"] == {
        "kind": "keyvalue",
        "sub_topology": 0,
        "key_serde": "STRING",
        "value_serde": "BYTES",
        "persistent": True,
        "placed_apart": False,
    }
    assert [part["source_topics"] for part in deployed["sub_topologies"]] == [
        ["orders", "returns"],
        ["r*by-day-repartition"],
    ]
    assert deployed["fingerprint"] == made.fingerprint()


def test_the_fingerprint_is_stable_and_tells_graphs_and_serdes_apart() -> None:
    plain = topology(*SHOP)
    assert plain.fingerprint() == topology(*SHOP).fingerprint()
    typed: KeyValueSpec[Any, Any] = persistent_key_value_store("counts", key_serde=serdes.STRING)
    others = [
        topology(*SHOP[:-1], source("SOURCE-6", "by-day")),
        topology(*SHOP, operator("PEEK-7", "SOURCE-6")),
        Topology(plain.nodes, {**plain.stores, "counts": typed}, plain.repartitions),
    ]
    assert len({plain.fingerprint(), *(other.fingerprint() for other in others)}) == 4
