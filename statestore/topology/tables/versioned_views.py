"""Views and joins of tables that keep their history: each update is a version (KIP-914).

The versions of a view of a table with history are those of that table, each computed from its own,
whenever it comes. Those of any other table are its updates, in the order in which they come: one
that is older than its key's latest version changes what was before, and is not handed on. A delete
is handed on only where there was a row.
"""

from dataclasses import replace
from typing import Any

from statestore.model.batch import Batch, Column
from statestore.stores.specs import VersionedSpec
from statestore.topology.failures import decoded, encoded, processing
from statestore.topology.flows import TableFlow
from statestore.topology.joins.grace import Waiter
from statestore.topology.nodes import Build, Forward, NodeContext, Push, SendOldValues
from statestore.topology.tables.from_streams import History, history_of, in_turn, with_history


def follow_in_time(
    view: TableFlow, spec: VersionedSpec[Any, Any], *, kind: str, name: str | None
) -> TableFlow:
    """Add a node that keeps the versions of a view of a table with history, and of no node yet."""
    assert view.history is not None
    made = _kept(view, view.history, spec, kind, name)
    view.history.followers.append(made.node)
    return made


def keep_in_time(table: TableFlow, spec: VersionedSpec[Any, Any], name: str | None) -> TableFlow:
    """Add a node that keeps the updates of a table as versions; it is named after the table's."""
    return _kept(table, None, spec, "KTABLE-VERSIONS", name and f"{name}-versions")


def _kept(
    table: TableFlow,
    source: History | None,
    spec: VersionedSpec[Any, Any],
    kind: str,
    name: str | None,
) -> TableFlow:
    old_values, waiters, followers = SendOldValues(), list[Waiter](), list[str]()

    def make(node: str) -> Build:
        return _keeping(
            node,
            table,
            source,
            spec,
            old_values=old_values,
            waiters=waiters,
            followers=followers,
        )

    parent = table.node if source is None else source.node
    node = table.builder.node(kind, name, (parent,), make, (spec.name,))
    made = TableFlow.stored(table.builder, node, spec, old_values, table.closes)
    made = replace(made, clocks=table.clocks)
    return made.with_history(history_of(spec, node, waiters, followers))


def _keeping(
    node: str,
    table: TableFlow,
    source: History | None,
    spec: VersionedSpec[Any, Any],
    *,
    old_values: SendOldValues,
    waiters: list[Waiter],
    followers: list[str],
) -> Build:
    """Build a node that keeps versions; those of a `source` are computed first."""
    always = SendOldValues()
    always.enable()
    build_kept = with_history(node, spec, old_values=always, waiters=waiters, followers=followers)
    value_of = None if source is None else source.value_of

    def computed(batch: Batch) -> Batch:
        objects = decoded(node, batch, "value")
        if value_of is None:
            return batch.with_columns(old_values=None)
        keys = encoded(node, batch, "key", table.key_serde)
        # A table's updates have keys.
        made = [
            None if value is None else value_of(key, value)  # type: ignore[arg-type]
            for key, value in zip(keys, objects, strict=True)
        ]
        return batch.with_columns(values=Column(objects=made), old_values=None)

    def build(context: NodeContext, forward: Forward) -> Push:
        def hand_on(batch: Batch, child: str | None) -> None:
            if child is not None:
                forward(batch, child)
                return
            told = batch if old_values.enabled else batch.with_columns(old_values=None)
            places = _changing(node, batch, spec)
            for each, part in in_turn(places, set(), len(batch), followers):
                forward(told if len(part) == len(told) else told.take(part), each)

        keep = build_kept(context, hand_on)

        def push(batch: Batch) -> None:
            with processing(node, batch):
                made = computed(batch)
            keep(made)

        return push

    return build


def _changing(node: str, batch: Batch, spec: VersionedSpec[Any, Any]) -> list[int]:
    """Return the places of the updates that are no deletes of nothing."""
    values = encoded(node, batch, "value", spec.value_serde)
    assert batch.old_values is not None
    old = batch.old_values.encoded(spec.value_serde)
    pairs = enumerate(zip(values, old, strict=True))
    return [i for i, pair in pairs if pair != (None, None)]
