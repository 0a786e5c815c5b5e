"""Beginnings of pipelines, with serdes told apart."""

from typing import Any

from statestore import serdes
from statestore.topology.dsl.builder import StreamsBuilder
from statestore.topology.dsl.ktables import KTable
from statestore.topology.dsl.streams import KStream
from statestore.topology.flows import Flow
from statestore.topology.nodes import SourceNode, TopicName

KEY, VALUE = serdes.STRING, serdes.JSON  # the builder's
OWN_KEY, OWN_VALUE = serdes.INT64, serdes.FLOAT64  # the source's


def builder() -> StreamsBuilder:
    return StreamsBuilder(key_serde=KEY, value_serde=VALUE)


def typed(b: StreamsBuilder, topic: str = "in") -> KStream[Any, Any]:
    return b.stream(topic, key_serde=OWN_KEY, value_serde=OWN_VALUE)


def right(stream: KStream[Any, Any]) -> KTable[Any, Any]:
    """A table beside a stream, its keys under the same serde."""
    made = stream._flow.builder
    source = SourceNode("right", (TopicName("right"),), OWN_KEY, VALUE)
    made.add(source)
    return KStream(Flow(made, "right", OWN_KEY, VALUE)).to_table("right")


def pair(left: Any, right: Any) -> Any:
    return [left, right]
