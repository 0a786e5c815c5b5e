"""Joins: a stream with a table, a table with a table. Both sides lie in the same stream task.

Keys meet as bytes under the table's key serde, each looked up once per batch. Nulls as Kafka
Streams treats them: a stream record without a value joins nothing, one without a key only in a left
join, with None; a table's null is a delete.
"""

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from operator import length_hint
from typing import Any

from statestore.errors import Misuse
from statestore.model.batch import Batch, Column
from statestore.stores import serdes
from statestore.stores.specs import KeyValueSpec
from statestore.topology import grace
from statestore.topology.aggregates import Before
from statestore.topology.failures import Stage, decoded, encoded, failed, processing
from statestore.topology.flows import Flow, Look, Stamp, Table
from statestore.topology.graph import Build, Forward, NodeContext, Push
from statestore.topology.operators import passed
from statestore.topology.versions import LookAsOf
from statestore.topology.views import merged, updates

Joiner = Callable[[Any, Any], Any]
_FIXED = frozenset({type(None), str, bytes, int, float, bool})


class Side(Enum):
    """Whose updates a half of a table-table join answers, and which join it is of."""

    INNER = "either side of an inner join"
    LEFT = "the left side of a left join"
    RIGHT = "the right side of a left join"


def stream_table(node: str, table: Table, function: Joiner, *, left: bool) -> Build:
    """function(left, right) for each stream record, with the table's row as it is then.

    Of a table with history: the row as of the record's own time.
    """
    join = joining(node, table, function, left=left)

    def build(context: NodeContext, forward: Forward) -> Push:
        joined = join(context)

        def push(batch: Batch) -> None:
            with processing(node, batch):
                made = joined(batch)
            if len(made):
                forward(made, None)

        return push

    return build


def joining(
    node: str, table: Table, function: Joiner, *, left: bool
) -> Callable[[NodeContext], Callable[[Batch], Batch]]:
    """What a batch of the stream becomes."""

    def made_for(context: NodeContext) -> Callable[[Batch], Batch]:
        theirs_of = _as_of(table, context) if table.history else _as_it_is(table, context)

        def joined(batch: Batch) -> Batch:
            keys = encoded(node, batch, "key", table.key_serde)
            ours = decoded(node, batch, "value")
            theirs = theirs_of(keys, batch.timestamps)
            places = [
                i
                for i, (mine, other) in enumerate(zip(ours, theirs, strict=True))
                if mine is not None and (left or other is not None)
            ]
            chosen = batch if len(places) == len(batch) else batch.take(places)
            nulls = [
                i for i, key in enumerate(keys) if ours[i] is None or (key is None and not left)
            ]
            if nulls:
                context.drop(node, batch, nulls, "null_key_or_value")
            ahead = iter(places)
            try:
                made = [function(ours[i], theirs[i]) for i in ahead]
            except Exception as error:
                culprit = [(places[len(places) - length_hint(ahead) - 1], error)]
                raise failed(Stage.PROCESSING, node, batch, error, found=culprit) from error
            return chosen.with_columns(values=Column(objects=made))

        return joined

    return made_for


def _as_of(table: Table, context: NodeContext) -> LookAsOf:
    assert table.history is not None
    return table.history.look(context)


def _as_it_is(table: Table, context: NodeContext) -> LookAsOf:
    look = table.look(context)

    return lambda keys, _times: rows_of(look, keys)


def check_grace(verb: str, table: Table, grace_ms: int) -> None:
    """Misuse unless the table's history covers the grace (SEMANTICS V10)."""
    if grace_ms < 0:
        raise Misuse(f"{verb}: grace_ms is {grace_ms}: want 0 or more")
    if grace_ms and table.history is None:
        raise Misuse(
            f"{verb}: grace_ms needs a table with history: "
            "materialize the table with history_retention_ms, or leave grace_ms out"
        )
    if table.history is not None and grace_ms > table.history.retention_ms:
        raise Misuse(
            f"{verb}: grace_ms is {grace_ms}, the table's history {table.history.retention_ms} ms: "
            "a record would wait until the version it needs is gone"
        )


def with_grace(
    flow: Flow,
    table: Table,
    function: Joiner,
    grace_ms: int,
    name: str,
    *,
    left: bool,
    explicit: bool,
) -> str:
    """Add a join whose records wait, due as stream time passes on either side; its node.

    `explicit`: the user chose the name. Otherwise the store of those that wait has a generated one.
    """
    builder = flow.builder
    terms = (f"grace {grace_ms}",)
    store = KeyValueSpec(f"{name}-buffer", serdes.BYTES, serdes.BYTES, terms=terms)
    builder.keep(store)
    if not explicit:
        builder.note_unnamed(store.name)
    side = grace.Side(name, store.name, grace_ms, flow.key_serde, flow.value_serde)
    join = joining(name, table, function, left=left)

    def add(parent: str, chosen: str, *, table_side: bool) -> str:
        return builder.node(
            "",
            chosen,
            (parent,),
            lambda n: grace.waiting(n, side, join, table_side=table_side),
            (*table.stores, store.name),
            copartitioned=True,
        )

    assert table.history is not None
    nodes = (
        add(flow.node, name, table_side=False),
        # Below what keeps the versions: its updates pass time, whatever a view shows of them.
        add(table.history.node, f"{name}-table-time", table_side=True),
    )
    table.history.waiters.append(grace.Waiter(nodes[1], side))
    return builder.node("", f"{name}-joined", nodes, lambda _: passed())


def table_half(node: str, other: Table, function: Joiner, side: Side, before: Before) -> Build:
    """One side's updates, `function(this, other)` with the row of the other side.

    Parents of a left side carry what they replace; so do those of both if `before` is wanted.
    """

    def build(context: NodeContext, forward: Forward) -> Push:
        look, stamp = other.look(context), other.stamp(context)

        def joined(batch: Batch) -> Batch:
            keys = encoded(node, batch, "key", other.key_serde)
            theirs = rows_of(look, keys)
            new = decoded(node, batch, "value")
            old = [None] * len(new) if batch.before is None else batch.before.objects
            if side is Side.LEFT:
                triples = zip(new, old, theirs, strict=True)
                places = [i for i, t in enumerate(triples) if any(x is not None for x in t)]
            else:
                places = [i for i, row in enumerate(theirs) if row is not None]

            def made(value: Any, row: Any) -> Any:
                gone = value is None and side is not Side.RIGHT
                return None if gone else function(value, row)

            met = [theirs[i] is not None for i in places]
            after = [made(new[i], theirs[i]) for i in places]
            replaced = None
            if before.wanted:
                again = rows_of(look, keys) if _may_change(theirs) else theirs
                replaced = [made(old[i], again[i]) for i in places]
            told = updates(batch, places, after, replaced)
            told.timestamps = _later(stamp, [keys[i] for i in places], told.timestamps, met)
            return told

        def push(batch: Batch) -> None:
            with processing(node, batch):
                done = joined(batch)
            if len(done):
                forward(done, None)

        return push

    return build


def rows_of(look: Look, keys: Sequence[bytes | None]) -> list[Any]:
    """The row of each key, looked up once; a joiner may change it and no other record sees that.

    So a row that can be changed is looked up anew for each record that meets it again.
    """
    wanted = sorted({key for key in keys if key is not None})
    rows: dict[bytes | None, Any] = dict(zip(wanted, look(wanted), strict=True))
    found = list(map(rows.get, keys))
    if len(wanted) == len(keys) or not _may_change(rows.values()):
        return found
    seen: set[bytes] = set()
    repeats = []
    for i, key in enumerate(keys):
        if key is None or type(found[i]) in _FIXED:
            continue
        if key in seen:
            repeats.append((key, i))
        seen.add(key)
    repeats.sort()
    for (_, i), row in zip(repeats, look([key for key, _ in repeats]), strict=True):
        found[i] = row
    return found


def _may_change(rows: Iterable[Any]) -> bool:
    """Whether any of these is of a type that a function could change in place."""
    return not _FIXED.issuperset(map(type, rows))


def _later(
    stamp: Stamp, keys: Sequence[bytes | None], times: list[int], met: Sequence[bool]
) -> list[int]:
    """The times of what comes of two tables: that of the later row, where both have one."""
    if all(met):
        return stamp(keys, times)  # type: ignore[arg-type]  # what has a row has a key
    places = [i for i, has in enumerate(met) if has]
    later = stamp([keys[i] for i in places], [times[i] for i in places])  # type: ignore[misc]
    raised = list(times)
    for i, time in zip(places, later, strict=True):
        raised[i] = time
    return raised


def stamp_joined(this: Table, other: Table) -> Callable[[NodeContext], Stamp]:
    """The times of rows of a join of tables, which are those of the later side."""

    def make(context: NodeContext) -> Stamp:
        mine, theirs = this.stamp(context), other.stamp(context)
        look = other.look(context)

        def stamp(keys: list[bytes], times: list[int]) -> list[int]:
            raised = mine(keys, times)
            # Only a left join has rows for which the other side has none.
            return _later(theirs, keys, raised, [row is not None for row in look(keys)])

        return stamp

    return make


def look_joined(this: Table, other: Table, function: Joiner, *, left: bool) -> Callable[..., Look]:
    """Rows as a join of tables without a store of its own shows them."""

    def make(context: NodeContext) -> Look:
        mine, theirs = this.look(context), other.look(context)

        def look(keys: list[bytes]) -> list[Any]:
            return [
                function(a, b) if a is not None and (left or b is not None) else None
                for a, b in zip(mine(keys), theirs(keys), strict=True)
            ]

        return look

    return make


def tables(
    this: Table,
    other: Table,
    function: Joiner,
    *,
    left: bool,
    kept: KeyValueSpec[Any, Any] | None,
    name: str | None,
) -> Table:
    """Add the join of two tables: a node for the updates of each side, and where they meet."""
    builder, before = this.builder, Before()
    mine = Side.LEFT if left else Side.INNER
    theirs = Side.RIGHT if left else Side.INNER

    def reversed_function(value: Any, row: Any) -> Any:
        return function(row, value)

    halves = (
        builder.node(
            "KTABLE-JOINTHIS",
            name and f"{name}-join-this",
            (this.node,),
            lambda node: table_half(node, other, function, mine, before),
            other.stores,
            copartitioned=True,
        ),
        builder.node(
            "KTABLE-JOINOTHER",
            name and f"{name}-join-other",
            (other.node,),
            lambda node: table_half(node, this, reversed_function, theirs, before),
            this.stores,
            copartitioned=True,
        ),
    )
    node = builder.node(
        "KTABLE-MERGE",
        name,
        halves,
        lambda node: merged(node, kept),
        () if kept is None else (kept.name,),
    )

    def want_before() -> None:
        before.want()
        this.want_before()
        other.want_before()

    if left:
        this.want_before()
    value_serde = builder.value_serde if kept is None else kept.value_serde
    made = Table(
        builder,
        node,
        this.key_serde,
        value_serde,
        tuple(dict.fromkeys((*this.stores, *other.stores))),
        look_joined(this, other, function, left=left),
        stamp_joined(this, other),
        want_before,
    )
    return made if kept is None else made.kept_in(kept)
