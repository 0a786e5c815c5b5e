"""What the nodes of a stream task work with: its stores, its clock, its way out.

And how they are wired.

One TaskContext per start of a task; a rewind makes a new one, so that nothing a processor kept in
memory survives records that were not committed.
"""

from collections.abc import Callable, Mapping
from typing import Any

from statestore.errors import UnknownStore
from statestore.model import Batch, TaskId
from statestore.ports import Outbox
from statestore.stores.staged_table import StagedTable
from statestore.tasks.owned import OwnedStore
from statestore.topology.graph import (
    Forward,
    OperatorNode,
    Push,
    SinkNode,
    SourceNode,
    SubTopology,
)
from statestore.topology.operators import encoded
from statestore.topology.paths import meeting_again


class TaskContext:
    """The NodeContext of one stream task."""

    def __init__(
        self,
        task_id: TaskId,
        stores: Mapping[str, OwnedStore],
        outbox: Outbox,
        *,
        application_id: str,
        stream_time_ms: int | None,
    ) -> None:
        self._task_id = task_id
        self._stores = stores
        self._outbox = outbox
        self._application_id = application_id
        self._closers: list[Callable[[], None]] = []
        self.stream_time_ms = stream_time_ms
        self.commit_requested = False
        self.records_out = 0

    @property
    def task_id(self) -> TaskId:
        return self._task_id

    def stream_time(self) -> int | None:
        return self.stream_time_ms

    def table(self, store: str) -> StagedTable:
        return self._open(store).table()

    def store(self, name: str) -> Any:
        return self._open(name).store

    def request_commit(self) -> None:
        self.commit_requested = True

    def on_close(self, action: Callable[[], None]) -> None:
        self._closers.append(action)

    def close(self) -> None:
        """Close the processors, last made first."""
        while self._closers:
            self._closers.pop()()

    def wire(self, part: SubTopology) -> dict[str, Push]:
        """The nodes of a sub-topology, made and connected: source topic (full name) to push."""
        pushes: dict[str, Push] = {}
        children: dict[str, list[str]] = {}
        for node in part.nodes:
            for parent in node.parents:
                children.setdefault(parent, []).append(node.name)
        entries: dict[str, Push] = {}
        for node in reversed(part.nodes):
            forward = _forwarding(node.name, {n: pushes[n] for n in children.get(node.name, ())})
            match node:
                case SinkNode():
                    pushes[node.name] = self._sink(node)
                case OperatorNode():
                    pushes[node.name] = node.build(self, forward)
                case SourceNode():
                    push = _source(node, forward)
                    for topic in node.topics:
                        full = topic.full(self._application_id)
                        entries[full] = _both(push, entries.get(full))
        for topic in meeting_again(part):
            full = topic.full(self._application_id)
            entries[full] = _one_by_one(entries[full])
        return entries

    def _open(self, name: str) -> OwnedStore:
        try:
            return self._stores[name]
        except KeyError:
            known = ", ".join(self._stores) or "none"
            raise UnknownStore(
                f"task {self._task_id} has no store {name!r}; it has: {known}"
            ) from None

    def _sink(self, node: SinkNode) -> Push:
        topic = node.topic.full(self._application_id)

        def push(batch: Batch) -> None:
            keys = encoded(node.name, batch, "key", node.key_serde)
            values = encoded(node.name, batch, "value", node.value_serde)
            self._outbox.send(topic, keys, values, batch.timestamps, headers=batch.headers)
            self.records_out += len(batch)

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


def _source(node: SourceNode, forward: Forward) -> Push:
    def push(batch: Batch) -> None:
        forward(
            batch.with_columns(
                keys=batch.keys.with_serde(node.key_serde),
                values=batch.values.with_serde(node.value_serde),
            ),
            None,
        )

    return push


def _one_by_one(push: Push) -> Push:
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
