"""Tables computed from a table by filter and map_values, with or without a store of their own.

As in Kafka Streams, a null is a delete and reaches no function. A filter emits a delete only for a
key that passed before. The old value of an update is what the same function makes of the old value
of the table above.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from statestore.model.batch import Batch, Column
from statestore.model.records import Serde
from statestore.stores.kinds.registry import keeps_history
from statestore.stores.specs import BuiltInSpec, KeyValueSpec
from statestore.topology.failures import decoded, encoded, processing
from statestore.topology.flows import Look, TableFlow
from statestore.topology.nodes import Build, Forward, NodeContext, Push, SendOldValues
from statestore.topology.tables.versioned_views import follow_in_time, keep_in_time

Keep = Callable[[Batch], None]
Kept = KeyValueSpec[Any, Any] | None
"""The store that keeps a computed table; None: its rows are computed at each look-up."""


def filter_table(
    table: TableFlow,
    predicate: Callable[[Any, Any], object],
    *,
    kept: BuiltInSpec | None,
    name: str | None,
) -> TableFlow:
    """Add a filter of a table."""
    read_key = table.key_serde.deserialize

    def passing(key: bytes, value: Any) -> Any:
        return value if predicate(read_key(key), value) else None

    if keeps_history(kept):
        if table.history is not None:
            return follow_in_time(_computed(table, passing), kept, kind="KTABLE-FILTER", name=name)
        return keep_in_time(filter_table(table, predicate, kept=None, name=name), kept, name)
    old_values = SendOldValues()
    table.send_old_values()
    node = table.add(
        "KTABLE-FILTER",
        name,
        lambda n: _filtered(n, predicate, old_values=old_values, kept=kept),
        kept,
    )
    made = replace(_computed(table, passing), node=node, send_old_values=old_values.enable)
    return made if kept is None else made.kept_in(kept)


def no(predicate: Callable[[Any, Any], object]) -> Callable[[Any, Any], bool]:
    """Return the predicate that holds where another one does not."""
    return lambda key, value: not predicate(key, value)


def map_table(
    table: TableFlow,
    function: Callable[..., Any],
    *,
    with_key: bool,
    kept: BuiltInSpec | None,
    name: str | None,
) -> TableFlow:
    """Add a map of a table's values; `with_key`: the function takes the key before the value."""
    read_key = table.key_serde.deserialize

    def mapping(key: bytes, value: Any) -> Any:
        return function(read_key(key), value) if with_key else function(value)

    if keeps_history(kept):
        if table.history is not None:
            return follow_in_time(
                _computed(table, mapping), kept, kind="KTABLE-MAPVALUES", name=name
            )
        view = map_table(table, function, with_key=with_key, kept=None, name=name)
        return keep_in_time(view, kept, name)
    old_values = SendOldValues()

    def send_old_values() -> None:
        old_values.enable()
        table.send_old_values()

    node = table.add(
        "KTABLE-MAPVALUES",
        name,
        lambda n: _mapped(n, function, with_key=with_key, old_values=old_values, kept=kept),
        kept,
    )

    made = replace(
        _computed(table, mapping),
        node=node,
        value_serde=table.builder.value_serde,
        send_old_values=send_old_values,
    )
    return made if kept is None else made.kept_in(kept)


def results_table(
    table: TableFlow, function: Callable[[Any], Any], value_serde: Serde[Any], name: str | None
) -> TableFlow:
    """Add what tells the results of aggregates, which are made of their states in the store."""
    made = map_table(table, function, with_key=False, kept=None, name=name)
    return replace(made, value_serde=value_serde)


def merged(node: str, kept: Kept) -> Build:
    """Build a node that makes one table of the two halves of a join of tables."""
    return _view(node, lambda batch: batch, kept)


def updates(batch: Batch, places: list[int], new: list[Any], old: list[Any] | None) -> Batch:
    """Return the updates of `batch` at `places`, with these values and old values."""
    chosen = batch if len(places) == len(batch) else batch.take(places)
    return chosen.with_columns(
        values=Column(objects=new), old_values=None if old is None else Column(objects=old)
    )


def _computed(table: TableFlow, function: Callable[[bytes, Any], Any]) -> TableFlow:
    """Return a table whose rows are function(key's bytes, value) of those of another table.

    If the other table has a history, so has this one, with each version computed in the same way.
    """

    def look_in(context: NodeContext) -> Look:
        parent = table.look(context)

        def look(keys: list[bytes]) -> list[Any]:
            return [
                None if value is None else function(key, value)
                for key, value in zip(keys, parent(keys), strict=True)
            ]

        return look

    history = None if table.history is None else table.history.through(function)
    return replace(table, look=look_in, store=None, history=history, look_stored=None)


def _filtered(
    node: str,
    predicate: Callable[[Any, Any], object],
    *,
    old_values: SendOldValues,
    kept: Kept,
) -> Build:
    """Build a node that keeps the rows for which the predicate holds.

    The updates that it takes carry old values.
    """

    def transform(batch: Batch) -> Batch:
        assert batch.old_values is not None
        keys = decoded(node, batch, "key")
        decoded(node, batch, "value")

        def passing(column: Column) -> list[Any]:
            pairs = zip(keys, column.objects, strict=True)
            return [v if v is not None and predicate(k, v) else None for k, v in pairs]

        new, old = passing(batch.values), passing(batch.old_values)
        either = enumerate(zip(new, old, strict=True))
        places = [i for i, (n, o) in either if n is not None or o is not None]
        replaced = [old[i] for i in places] if old_values.enabled else None
        return updates(batch, places, [new[i] for i in places], replaced)

    return _view(node, transform, kept)


def _mapped(
    node: str,
    function: Callable[..., Any],
    *,
    with_key: bool,
    old_values: SendOldValues,
    kept: Kept,
) -> Build:
    """Build a node that gives each row a new value."""

    def each(column: Column, keys: list[Any] | None) -> list[Any]:
        if keys is None:
            return [None if value is None else function(value) for value in column.objects]
        pairs = zip(keys, column.objects, strict=True)
        return [None if value is None else function(key, value) for key, value in pairs]

    def transform(batch: Batch) -> Batch:
        keys = decoded(node, batch, "key") if with_key else None
        decoded(node, batch, "value")
        values, replaced = Column(objects=each(batch.values, keys)), None
        if old_values.enabled:
            assert batch.old_values is not None
            replaced = Column(objects=each(batch.old_values, keys))
        return batch.with_columns(values=values, old_values=replaced)

    return _view(node, transform, kept)


def _view(node: str, transform: Callable[[Batch], Batch], kept: Kept) -> Build:
    """Build a node that transforms a table's updates, and keeps the result if it has a store."""

    def build(context: NodeContext, forward: Forward) -> Push:
        keep = _keeping(node, kept, context)

        def push(batch: Batch) -> None:
            with processing(node, batch):
                made = transform(batch)
            if len(made):
                keep(made)
                forward(made, None)

        return push

    return build


def _keeping(node: str, kept: Kept, context: NodeContext) -> Keep:
    if kept is None:
        return lambda _made: None
    table, spec = context.table(kept.name), kept

    def keep(made: Batch) -> None:
        keys = encoded(node, made, "key", spec.key_serde)
        values = encoded(node, made, "value", spec.value_serde)
        times = list(dict(zip(keys, made.timestamps, strict=True)).values())
        # A table's updates have keys.
        table.put_all(dict(zip(keys, values, strict=True)), times)  # type: ignore[arg-type]

    return keep
