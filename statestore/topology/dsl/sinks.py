"""Sinks of a stream: one topic, or the topic that a function chooses for each record."""

from collections.abc import Callable, Sequence
from typing import Any

from statestore.errors import Misuse
from statestore.model.records import Record, Serde
from statestore.topology import operators as ops
from statestore.topology.callbacks import check_arity
from statestore.topology.flows import Flow
from statestore.topology.nodes import Partitioner


def add(
    flow: Flow,
    topic: str | Callable[[Record[Any, Any]], str],
    *,
    topics: Sequence[str] | None,
    key_serde: Serde[Any] | None,
    value_serde: Serde[Any] | None,
    partitioner: Partitioner | None,
    name: str | None,
) -> None:
    """Write a stream to a topic, or to one of `topics` for each record.

    Misuse if `topics` are missing or not needed, or if a function cannot be called.
    """
    if partitioner is not None:
        check_arity("the partitioner of to", partitioner, 4, name)

    def write(stream: Flow, to: str, sink: str | None) -> None:
        stream.sink(
            to, key_serde=key_serde, value_serde=value_serde, partitioner=partitioner, name=sink
        )

    if not callable(topic):
        if topics is not None:
            raise Misuse(f"to({topic!r}) writes to one topic: leave out topics=")
        write(flow, topic, name)
        return
    check_arity("to", topic, 1, name)
    if not topics or isinstance(topics, str):
        raise Misuse(
            "to() with a function needs topics=[…], all topics that the function may return"
        )
    chosen = name or flow.builder.number("KSTREAM-SINK")
    children = {known: f"{chosen}-{known}" for known in topics}
    route = flow.same(flow.add("", chosen, lambda n: ops.routed(n, topic, children)))
    for known, child in children.items():
        write(route, known, child)
