"""Which records meet themselves again on their ways through a sub-topology."""

from statestore.topology.nodes import Node, OperatorNode
from tests.unit.graphs import operator, sink, source, topology


def meeting(*nodes: Node) -> list[str]:
    """The nodes that hand on one by one, and in brackets the topics taken so."""
    (part,) = topology(*nodes).sub_topologies
    found = part.one_by_one()
    return sorted(found.nodes) + [f"[{topic.name}]" for topic in found.topics]


def reads(name: str, parent: str, store: str) -> OperatorNode:
    return operator(name, parent, stores=(store,), copartitioned=True)


def test_records_that_meet_themselves_again_in_a_node_a_store_or_a_topic_are_found() -> None:
    merged = (source("a"), operator("f", "a"), operator("m", "a", "f"))
    assert meeting(*merged) == ["a"]
    shared = (source("a"), operator("p", "a", stores=("s",)), operator("q", "p", stores=("s",)))
    assert meeting(*shared) == ["a"]
    itself = (source("a"), operator("count", "a", stores=("s",)), reads("join", "a", "s"))
    assert meeting(*itself) == ["a"]
    twice = (source("a"), operator("f", "a"), sink("x", "a", "out"), sink("y", "f", "out"))
    assert meeting(*twice) == ["a"]
    two_sources = (source("a"), source("again", "a"), operator("m", "a", "again"))
    assert meeting(*two_sources) == ["[a]"]


def test_batches_stay_whole_up_to_the_node_where_the_ways_part() -> None:
    fork = (source("a"), operator("f", "a"), operator("left", "f"), operator("m", "f", "left"))
    assert meeting(*fork) == ["f"]
    chain = (
        source("a"),
        operator("p", "a", stores=("s",)),
        operator("q", "p", stores=("s",)),
        operator("left", "q"),
        operator("m", "q", "left"),
    )
    assert meeting(*chain) == ["a", "q"]


def test_records_of_two_topics_may_meet_and_joins_may_read_one_store_twice() -> None:
    table = (source("t"), operator("keeps", "t", stores=("s",)))
    assert meeting(*table, source("a"), reads("j", "a", "s"), reads("k", "j", "s")) == []
    assert meeting(source("a"), source("b"), operator("m", "a", "b")) == []
    fork = (source("a"), operator("f", "a"), sink("x", "a", "out"), sink("y", "f", "other"))
    assert meeting(*fork) == []


def test_a_way_beside_those_that_part_below_is_not_overtaken() -> None:
    below = (operator("f", "a"), operator("left", "f"), operator("right", "f"))
    beside = (source("a"), *below, operator("g", "a"), operator("m", "left", "right", "g"))
    assert meeting(*beside) == ["a", "f"]
    again = (source("a"), *below, source("again", "a"), operator("m", "left", "right", "again"))
    assert meeting(*again) == ["f", "[a]"]
