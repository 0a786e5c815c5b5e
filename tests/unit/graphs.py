"""Topologies of a few nodes, written by hand."""

from collections.abc import Mapping

from statestore import serdes
from statestore.stores.specs import persistent_key_value_store
from statestore.topology.graph import Topology
from statestore.topology.nodes import (
    Node,
    OperatorNode,
    Repartition,
    SinkNode,
    SourceNode,
    TopicName,
)
from statestore.topology.operators import passed


def topic(name: str) -> TopicName:
    """`r*` is internal, as a repartition topic."""
    return TopicName(name, internal=name.startswith("r*"))


def source(name: str, *topics: str) -> SourceNode:
    return SourceNode(name, tuple(map(topic, topics or (name,))), serdes.BYTES, serdes.BYTES)


def operator(
    name: str, *parents: str, stores: tuple[str, ...] = (), copartitioned: bool = False
) -> OperatorNode:
    return OperatorNode(name, parents, passed(), stores, copartitioned)


def sink(name: str, parent: str, to: str) -> SinkNode:
    return SinkNode(name, (parent,), topic(to), serdes.BYTES, serdes.BYTES)


def topology(*nodes: Node, partitions: Mapping[str, int | None] | None = None) -> Topology:
    stores = {store for node in nodes for store in node.stores}
    internal = {t.name for n in nodes if isinstance(n, SourceNode) for t in n.topics if t.internal}
    return Topology(
        nodes,
        {name: persistent_key_value_store(name) for name in sorted(stores)},
        {name: Repartition(name, (partitions or {}).get(name), True) for name in internal},
    )
