"""How the nodes of a stream task are made and connected, from its source topics to its sinks."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from statestore.errors import RecordFailed, UnknownStore
from statestore.model.batch import Batch
from statestore.ports import Outbox, Records
from statestore.stores import serdes
from statestore.topology.failures import Stage, encoded, failed
from statestore.topology.nodes import Forward, NodeContext, OperatorNode, Push, SinkNode, SourceNode
from statestore.topology.sub_topologies import SubTopology


class WiredContext(NodeContext, Protocol):
    """What the wiring itself needs of a stream task."""

    records_out: int

    def check_of(self, store: str) -> Push:
        """What the log of a store made of a source checks of that source's batches."""


def wire(
    part: SubTopology, context: WiredContext, outbox: Outbox, application_id: str
) -> dict[str, Push]:
    """Where to push the batches of each source topic, by its full name."""
    pushes: dict[str, Push] = {}
    children: dict[str, list[str]] = {}
    for node in part.nodes:
        for parent in node.parents:
            children.setdefault(parent, []).append(node.name)
    entries: dict[str, Push] = {}
    alone = part.one_by_one()
    for node in reversed(part.nodes):
        forward = _forwarding(node.name, {n: pushes[n] for n in children.get(node.name, ())})
        if node.name in alone.nodes:
            forward = _forwarding_each(forward)
        match node:
            case SinkNode():
                pushes[node.name] = _sink(node, context, outbox, application_id)
            case OperatorNode():
                push = node.build(context, forward)
                # Taken one by one too: it may choose among its children.
                pushes[node.name] = _pushing_each(push) if node.name in alone.nodes else push
            case SourceNode():
                push = _source(node, forward, _checks(part, node, context))
                for topic in node.topics:
                    full = topic.full(application_id)
                    entries[full] = _both(push, entries.get(full))
    for topic in alone.topics:
        full = topic.full(application_id)
        entries[full] = _pushing_each(entries[full])
    return entries


def _checks(part: SubTopology, source: SourceNode, context: WiredContext) -> list[Push]:
    """What the logs of tables made of a source's records check of these."""
    return [
        context.check_of(node.stores[0])
        for node in part.nodes
        if isinstance(node, OperatorNode) and node.keeps and node.parents == (source.name,)
    ]


def _sink(node: SinkNode, context: WiredContext, outbox: Outbox, application_id: str) -> Push:
    topic = node.topic.full(application_id)
    # An internal topic's serdes are told to what made it, or before that.
    taker = f"a repartition() before {node.topic.name!r}" if node.topic.internal else ""

    def push(batch: Batch) -> None:
        keys = encoded(node.name, batch, "key", node.key_serde, Stage.PRODUCTION, taker=taker)
        values = encoded(node.name, batch, "value", node.value_serde, Stage.PRODUCTION, taker=taker)
        try:
            placing = serdes.placing(node.key_serde, keys)
            records = Records(topic, keys, values, batch.timestamps, None, batch.headers, placing)
            outbox.send(records)
        except Exception as error:
            # The client's own too: times and headers come from a user's code.
            at = error.at if isinstance(error, RecordFailed) else None
            found = [] if at is None else [(at, error)]
            raise failed(
                Stage.PRODUCTION, node.name, batch, error, found=found, certain=True
            ) from error
        context.records_out += len(batch)

    return push


def _forwarding(name: str, children: Mapping[str, Push]) -> Forward:
    every = tuple(children.values())
    if len(every) == 1:
        only = every[0]

        def forward_one(batch: Batch, to: str | None) -> None:
            if to is None or to in children:
                only(batch)
            else:
                raise UnknownStore(
                    f"node {name} has no child {to!r}; it has: {', '.join(children)}"
                )

        return forward_one

    def forward(batch: Batch, to: str | None) -> None:
        if to is None:
            for push in every:
                push(batch)
        elif to in children:
            children[to](batch)
        else:
            raise UnknownStore(f"node {name} has no child {to!r}; it has: {', '.join(children)}")

    return forward


def _source(node: SourceNode, forward: Forward, checks: Sequence[Push]) -> Push:
    def push(batch: Batch) -> None:
        batch = batch.with_columns(
            keys=batch.keys.with_serde(node.key_serde),
            values=batch.values.with_serde(node.value_serde),
        )
        for check in checks:
            check(batch)
        forward(batch, None)

    return push


def _forwarding_each(forward: Forward) -> Forward:
    def forward_each(batch: Batch, to: str | None) -> None:
        for i in range(len(batch)):
            forward(batch.slice(i, i + 1), to)

    return forward_each


def _pushing_each(push: Push) -> Push:
    def push_each(batch: Batch) -> None:
        for i in range(len(batch)):
            push(batch.slice(i, i + 1))

    return push_each


def _both(first: Push, second: Push | None) -> Push:
    if second is None:
        return first
    other = second

    def push(batch: Batch) -> None:
        first(batch)
        other(batch)

    return push
