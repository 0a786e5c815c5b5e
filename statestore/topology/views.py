"""Tables computed from a table: filter, map_values; and what keeps a computed table in a store.

As Kafka Streams: nulls are deletes and reach no function; a filter emits a delete only for a key
that passed before; `before` of an update is what the same function makes of what was there before.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from statestore.model.batch import Batch, Column
from statestore.stores.specs import KeyValueSpec
from statestore.topology.aggregates import Before
from statestore.topology.failures import decoded, encoded, processing
from statestore.topology.flows import Look, Table
from statestore.topology.graph import Build, Forward, NodeContext, Push

Keep = Callable[[Batch], None]


def filtered(
    node: str,
    predicate: Callable[[Any, Any], object],
    *,
    before: Before,
    kept: KeyValueSpec[Any, Any] | None,
) -> Build:
    """The rows the predicate holds for; its parent's updates carry what they replace."""

    def transform(batch: Batch) -> Batch:
        assert batch.before is not None
        keys = decoded(node, batch, "key")
        decoded(node, batch, "value")

        def passing(column: Column) -> list[Any]:
            pairs = zip(keys, column.objects, strict=True)
            return [v if v is not None and predicate(k, v) else None for k, v in pairs]

        new, old = passing(batch.values), passing(batch.before)
        either = enumerate(zip(new, old, strict=True))
        places = [i for i, (n, o) in either if n is not None or o is not None]
        replaced = [old[i] for i in places] if before.wanted else None
        return updates(batch, places, [new[i] for i in places], replaced)

    return view(node, transform, kept)


def mapped(
    node: str,
    function: Callable[[Any], Any],
    *,
    before: Before,
    kept: KeyValueSpec[Any, Any] | None,
) -> Build:
    """New values, same keys."""

    def each(column: Column) -> list[Any]:
        return [None if value is None else function(value) for value in column.objects]

    def transform(batch: Batch) -> Batch:
        decoded(node, batch, "value")
        made = batch.with_columns(values=Column(objects=each(batch.values)))
        if before.wanted:
            assert batch.before is not None
            made.before = Column(objects=each(batch.before))
        return made

    return view(node, transform, kept)


def updates(batch: Batch, places: list[int], new: list[Any], old: list[Any] | None) -> Batch:
    """The updates of `batch` at `places`, with these values."""
    chosen = batch if len(places) == len(batch) else batch.take(places)
    made = chosen.with_columns(values=Column(objects=new))
    if old is not None:
        made.before = Column(objects=old)
    return made


def view(
    node: str, transform: Callable[[Batch], Batch], kept: KeyValueSpec[Any, Any] | None
) -> Build:
    """An operator over a table's updates, its result kept in a store if there is one."""

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


def merged(node: str, kept: KeyValueSpec[Any, Any] | None) -> Build:
    """The two halves of a join of tables, as one."""
    return view(node, lambda batch: batch, kept)


def _keeping(node: str, kept: KeyValueSpec[Any, Any] | None, context: NodeContext) -> Keep:
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


def filter_table(
    table: Table,
    predicate: Callable[[Any, Any], object],
    *,
    kept: KeyValueSpec[Any, Any] | None,
    name: str | None,
) -> Table:
    """Add a filter of a table."""
    before = Before()
    table.want_before()
    read_key = table.key_serde.deserialize

    def passing(key: bytes, value: Any) -> Any:
        return value if predicate(read_key(key), value) else None

    node = table.add(
        "KTABLE-FILTER", name, lambda n: filtered(n, predicate, before=before, kept=kept), kept
    )
    made = replace(computed(table, passing), node=node, want_before=before.want)
    return made if kept is None else made.kept_in(kept)


def map_table(
    table: Table,
    function: Callable[[Any], Any],
    *,
    kept: KeyValueSpec[Any, Any] | None,
    name: str | None,
) -> Table:
    """Add other values to a table's keys."""
    before = Before()

    def want_before() -> None:
        before.want()
        table.want_before()

    node = table.add(
        "KTABLE-MAPVALUES", name, lambda n: mapped(n, function, before=before, kept=kept), kept
    )
    made = replace(
        computed(table, lambda _key, value: function(value)),
        node=node,
        value_serde=table.builder.value_serde,
        want_before=want_before,
    )
    return made if kept is None else made.kept_in(kept)


def computed(table: Table, function: Callable[[bytes, Any], Any]) -> Table:
    """What a table shows without a store of its own: function(key's bytes, value) for each row.

    Of a table with history, every version is shown so.
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
    return replace(table, look=look_in, store=None, history=history)
