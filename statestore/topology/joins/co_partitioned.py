"""Joins of a stream with a table, of two tables, and of two streams, within one stream task.

Keys are compared as bytes under the table's key serde, and each key is looked up once per batch.
Nulls are treated as in Kafka Streams: a stream record without a value joins nothing; one without a
key is joined with None in a left join, and joins nothing in an inner join; a null in a table is a
delete.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, cast

from statestore import serdes
from statestore.errors import InvalidTopology, Misuse, SerdeMismatch
from statestore.model.batch import Batch, Column
from statestore.model.nulls import any_none
from statestore.model.records import Serde
from statestore.serdes import composed
from statestore.stores.kinds.registry import keeps_history
from statestore.stores.migration import outside
from statestore.stores.specs import KeyValueSpec
from statestore.topology.failures import decoded, each, encoded, processing
from statestore.topology.flows import Flow, Look, Stamp, TableFlow
from statestore.topology.joins import grace
from statestore.topology.joins.join_windows import JoinWindows
from statestore.topology.joins.joiners import ColumnJoiner, Joiner, Joining
from statestore.topology.joins.meeting import with_table
from statestore.topology.joins.own_rows import may_change, rows_of
from statestore.topology.joins.stream_joins import LEFT, RIGHT, Side, StreamJoin
from statestore.topology.materialized import Materialized
from statestore.topology.moved_rows import RowsOfStreamJoin, RowsThatWait
from statestore.topology.nodes import Build, Forward, NodeContext, Push, SendOldValues
from statestore.topology.operators import passed
from statestore.topology.tables.computed_tables import merged, updates
from statestore.topology.tables.from_streams import LookAsOf
from statestore.topology.tables.versioned_views import keep_in_time


class JoinKind(Enum):
    """Which of two joined sides may be missing; the value is the verb of the operator."""

    INNER = "join"
    LEFT = "left_join"
    OUTER = "outer_join"

    @property
    def left_may_lack(self) -> bool:
        """Whether there is a result without a left side."""
        return self is JoinKind.OUTER

    @property
    def right_may_lack(self) -> bool:
        """Whether there is a result without a right side."""
        return self is not JoinKind.INNER


def stream_with_table(
    flow: Flow,
    table: TableFlow,
    joiner: Joiner | ColumnJoiner,
    *,
    left: bool,
    grace_ms: int,
    tolerance_ms: int | None,
    value_serde: Serde[Any] | None,
    name: str | None,
) -> Flow:
    """Add the join of a stream with a table: the joiner's result for each record of the stream.

    A stream whose keys changed goes through a repartition topic. Misuse if the table's history does
    not cover the grace, or if there is a tolerance and no history; SerdeMismatch if the keys of
    both cannot meet in one partition.
    """
    verb = "left_join" if left else "join"
    kind = "KSTREAM-LEFTJOIN" if left else "KSTREAM-JOIN"
    _check_grace(verb, table, grace_ms)
    table = _tolerating(verb, table, tolerance_ms)
    chosen = name or flow.builder.number(kind)
    flow = flow.repartitioned(chosen, explicit=name is not None, key_serde=table.key_serde)
    table.check_keys(verb, name, flow.key_serde, "the stream")
    if grace_ms:
        node = _with_grace(
            flow, table, joiner, grace_ms, chosen, left=left, explicit=name is not None
        )
    else:
        node = flow.add(
            kind,
            chosen,
            lambda n: _stream_table(n, table, joiner, left=left),
            table.stores,
            copartitioned=True,
            terms=_terms(table),
            says="" if isinstance(joiner, Joiner) else joiner.says,
        )
    if left:
        flow.builder.take_null_keys((node,))
    return flow.revalued(node, value_serde)


def stream_with_stream(
    this: Flow,
    other: Flow,
    joiner: Joiner,
    kind: JoinKind,
    *,
    windows: JoinWindows,
    value_serde: Serde[Any] | None,
    name: str | None,
) -> Flow:
    """Add the join of two streams: a node and a store for each side, and one node that merges both.

    A third store has what both sides share. SerdeMismatch if the keys of both cannot meet in one
    partition.
    """
    builder = this.builder
    if other.builder is not builder:
        raise InvalidTopology(
            f"{kind.value}: the other stream has another builder; a topology has only one"
        )
    # Where Kafka Streams has nodes that keep the records; here the nodes that join do.
    numbered = builder.number("KSTREAM-WINDOWED")
    builder.number("KSTREAM-WINDOWED")
    left, right = _co_partitioned(kind.value, this, other, name, numbered)
    mine = builder.number("KSTREAM-OUTERTHIS" if kind.left_may_lack else "KSTREAM-JOINTHIS")
    theirs = builder.number("KSTREAM-OUTEROTHER" if kind.right_may_lack else "KSTREAM-JOINOTHER")
    shared = f"KSTREAM-OUTERSHARED-{mine.rpartition('-')[2]}"
    if name is not None:
        mine, theirs = f"{name}-this-join", f"{name}-other-join"
        shared = f"{name}-shared-join"

    def kept(base: str, flow: Flow) -> KeyValueSpec[Any, Any]:
        rows = composed.key_at_time(left.key_serde)
        return KeyValueSpec(f"{base}-store", rows, flow.value_serde, terms=windows.terms)

    before, after = windows.before_ms, windows.after_ms
    keys = left.key_serde.in_store(f"{shared}-store", "key")
    join = StreamJoin(
        Side(LEFT, kept(mine, left), keys, -before, after, kind.right_may_lack),
        Side(RIGHT, kept(theirs, right), keys, -after, before, kind.left_may_lack),
        _shared_rows(f"{shared}-store", left, windows),
        windows,
        joiner,
    )
    specs = (join.left.rows, join.right.rows, join.shared)
    for spec in specs:
        builder.keep(spec)
        if name is None:
            builder.note_unnamed(spec.name)
    stores = tuple(spec.name for spec in specs)
    halves = tuple(
        builder.node(
            "",
            node,
            (flow.node,),
            join.node(letter),
            stores,
            copartitioned=True,
            writes=True,
        )
        for node, flow, letter in ((mine, left, LEFT), (theirs, right, RIGHT))
    )
    if kind is not JoinKind.INNER:
        builder.take_null_keys(halves)
    merged_name = None if name is None else f"{name}-merge"
    node = builder.node("KSTREAM-MERGE", merged_name, halves, lambda _: passed())
    return left.revalued(node, value_serde)


def _co_partitioned(
    verb: str, this: Flow, other: Flow, name: str | None, numbered: str
) -> tuple[Flow, Flow]:
    """Return both streams behind repartition topics, where their keys changed.

    A stream joined with itself goes through one. `numbered` names them if the join has no name.
    SerdeMismatch if the keys of both have different serdes.
    """
    prefix, explicit = name or numbered, name is not None
    if this == other:
        both = this.repartitioned(f"{prefix}-left", explicit=explicit)
        return both, both
    # Whichever is as its topic has it says which bytes its keys have.
    said = {flow.key_serde for flow in (this, other) if not flow.rekeyed}
    serde = said.pop() if len(said) == 1 else None
    left = this.repartitioned(f"{prefix}-left", explicit=explicit, key_serde=serde)
    right = other.repartitioned(f"{prefix}-right", explicit=explicit, key_serde=serde)
    if not serdes.alike(left.key_serde, right.key_serde):
        raise SerdeMismatch(
            f"{verb}{f' {name}' if name else ''}: the keys of the stream are "
            f"{left.key_serde.name}, those of the other stream are {right.key_serde.name}: equal "
            "keys would have other bytes and lie in other partitions; pass the same key_serde=… to "
            "both streams, or to a repartition() of one"
        )
    return left, right


def table_with_table(
    this: TableFlow,
    other: TableFlow,
    joiner: Joiner,
    kind: JoinKind,
    *,
    materialized: Materialized[Any, Any] | str | None,
    name: str | None,
) -> TableFlow:
    """Add the join of two tables: a node for the updates of each side, and one that merges both.

    SerdeMismatch if the keys of both tables cannot meet in one partition.
    """
    other.check_keys(kind.value, name, this.key_serde, "the first table")
    kept = this.keep(materialized, this.builder.value_serde)
    if keeps_history(kept):
        return keep_in_time(_tables_joined(this, other, joiner, kind, name=name), kept, name)
    return _tables_joined(this, other, joiner, kind, name=name, kept=kept)


def _tables_joined(
    this: TableFlow,
    other: TableFlow,
    joiner: Joiner,
    kind: JoinKind,
    *,
    name: str | None,
    kept: KeyValueSpec[Any, Any] | None = None,
) -> TableFlow:
    builder, old_values = this.builder, SendOldValues()
    mine = _Half(kind.left_may_lack, kind.right_may_lack, old_values)
    theirs = _Half(kind.right_may_lack, kind.left_may_lack, old_values)

    halves = (
        builder.node(
            "KTABLE-JOINTHIS",
            name and f"{name}-join-this",
            (this.node,),
            lambda node: mine.build(node, other, joiner),
            other.stores,
            copartitioned=True,
        ),
        builder.node(
            "KTABLE-JOINOTHER",
            name and f"{name}-join-other",
            (other.node,),
            lambda node: theirs.build(node, this, joiner.reversed()),
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

    def send_old_values() -> None:
        old_values.enable()
        this.send_old_values()
        other.send_old_values()

    if kind.right_may_lack:
        this.send_old_values()
    if kind.left_may_lack:
        other.send_old_values()
    value_serde = builder.value_serde if kept is None else outside(kept.value_serde)
    other = other.looked_up_by(this.key_serde)
    made = TableFlow(
        builder,
        node,
        this.key_serde,
        value_serde,
        tuple(dict.fromkeys((*this.stores, *other.stores))),
        _look_joined(this, other, joiner, kind),
        _stamp_joined(this, other, kind),
        send_old_values,
        # A row may change as long as the window of either side is open.
        closes=max(filter(None, (this.closes, other.closes)), default=None),
        clocks=tuple(dict.fromkeys((*this.clocks, *other.clocks))),
    )
    return made if kept is None else made.kept_in(kept)


def _check_grace(verb: str, table: TableFlow, grace_ms: int) -> None:
    """Raise Misuse unless the table's history covers the grace (SEMANTICS V10)."""
    if grace_ms < 0:
        raise Misuse(f"{verb}: grace is {grace_ms}, but it must be 0 or more")
    if grace_ms and table.history is None:
        raise Misuse(
            f"{verb}: grace needs a table with history: "
            "materialize the table with history_retention, or leave grace out"
        )
    if table.history is not None and grace_ms > table.history.retention_ms:
        raise Misuse(
            f"{verb}: grace is {grace_ms}, the table's history {table.history.retention_ms} ms: "
            "a record would wait until the version it needs is gone"
        )


def _tolerating(verb: str, table: TableFlow, tolerance_ms: int | None) -> TableFlow:
    """Return the table as a join with this tolerance looks it up (SEMANTICS V14)."""
    if tolerance_ms is None:
        return table
    if tolerance_ms < 0:
        raise Misuse(f"{verb}: tolerance is {tolerance_ms}, but it must be 0 or more")
    if table.history is None:
        raise Misuse(
            f"{verb}: tolerance needs a table with history, whose versions say when they begin: "
            "materialize the table with history_retention, or leave tolerance out"
        )
    return table.with_history(replace(table.history, tolerance_ms=tolerance_ms))


def _terms(table: TableFlow) -> tuple[str, ...]:
    """Return what the description of a topology says of a join with this table."""
    if table.history is None or table.history.tolerance_ms is None:
        return ()
    return (f"tolerance {table.history.tolerance_ms}",)


def _shared_rows(name: str, flow: Flow, windows: JoinWindows) -> KeyValueSpec[Any, Any]:
    """Describe the store of what both sides of a join of streams share."""
    apart = RowsOfStreamJoin(flow.key_serde.name)
    return KeyValueSpec(name, serdes.BYTES, serdes.BYTES, terms=windows.terms, apart=apart)


def _with_grace(
    flow: Flow,
    table: TableFlow,
    joiner: Joiner | ColumnJoiner,
    grace_ms: int,
    name: str,
    *,
    left: bool,
    explicit: bool,
) -> str:
    """Add a join whose records wait until stream time passes on either side; return its node.

    `explicit`: the user chose the name. Otherwise the store of the waiting records has a generated
    name.
    """
    builder = flow.builder
    terms = (f"grace {grace_ms}",)
    rows = composed.waiting(flow.value_serde)
    apart = RowsThatWait(flow.key_serde.name)
    store = KeyValueSpec(f"{name}-buffer", serdes.BYTES, rows, terms=terms, apart=apart)
    builder.keep(store)
    if not explicit:
        builder.note_unnamed(store.name)
    side = grace.WaitingPlace(
        name,
        store.name,
        grace_ms,
        flow.key_serde.in_store(store.name, "key"),
        flow.value_serde.in_store(store.name, "value"),
    )
    join = _joining(name, table, joiner, left=left)

    def add(parent: str, chosen: str, *, table_side: bool) -> str:
        return builder.node(
            "",
            chosen,
            (parent,),
            lambda n: grace.waiting(n, side, join, table_side=table_side),
            (*table.stores, store.name),
            copartitioned=True,
            terms=() if table_side else _terms(table),
        )

    assert table.history is not None
    nodes = (
        add(flow.node, name, table_side=False),
        # Below the node that keeps the versions: all of its updates move stream time, whichever of
        # them a view shows.
        add(table.history.node, f"{name}-table-time", table_side=True),
    )
    table.history.waiters.append(grace.Waiter(nodes[1], side))
    return builder.node("", f"{name}-joined", nodes, lambda _: passed())


def _stream_table(
    node: str, table: TableFlow, joiner: Joiner | ColumnJoiner, *, left: bool
) -> Build:
    """Build a node that joins each stream record with the table's row as it is then.

    With a table that has a history, it is the row as of the record's own time.
    """
    join = _joining(node, table, joiner, left=left)

    def build(context: NodeContext, forward: Forward) -> Push:
        joined = join(context)

        def push(batch: Batch) -> None:
            with processing(node, batch):
                made = joined(batch)
            if len(made):
                forward(made, None)

        return push

    return build


def _joining(node: str, table: TableFlow, joiner: Joiner | ColumnJoiner, *, left: bool) -> Joining:
    """Return, for a context, the function from a batch of the stream to the joined batch."""
    if not isinstance(joiner, Joiner):
        return joiner.joining(node, with_table(table), left=left)
    function = joiner.function

    def made_for(context: NodeContext) -> Callable[[Batch], Batch]:
        theirs_of = _as_of(table, context) if table.history else _as_it_is(table, context)

        def joined(batch: Batch) -> Batch:
            keys = encoded(node, batch, "key", table.key_serde)
            ours = decoded(node, batch, "value")
            names = decoded(node, batch, "key") if joiner.takes_key else None
            theirs = theirs_of(keys, batch.timestamps)
            chosen, places = batch, cast("Sequence[int]", range(len(batch)))
            if any_none(ours) or any_none(theirs):
                places = [
                    i
                    for i, (mine, other) in enumerate(zip(ours, theirs, strict=True))
                    if mine is not None and (left or other is not None)
                ]
                nulls = [
                    i for i, key in enumerate(keys) if ours[i] is None or (key is None and not left)
                ]
                if nulls:
                    context.drop(node, batch, nulls, "null_key_or_value")
                if len(places) + len(nulls) < len(batch):
                    context.count_unmatched(node, len(batch) - len(places) - len(nulls))
                if len(places) < len(batch):
                    chosen = batch.take(places)
                    ours, theirs = [ours[i] for i in places], [theirs[i] for i in places]
                    names = names and [names[i] for i in places]

            def join(ahead: Iterator[Any]) -> list[Any]:
                if names is None:
                    pairs = zip(ahead, theirs, strict=True)
                    return [function(mine, other) for mine, other in pairs]
                rows = zip(ahead, names, theirs, strict=True)
                return [function(name, mine, other) for mine, name, other in rows]

            made = each(node, batch, ours, join, place_of=places.__getitem__)
            return chosen.with_columns(values=Column(objects=made))

        return joined

    return made_for


def _as_of(table: TableFlow, context: NodeContext) -> LookAsOf:
    assert table.history is not None
    return table.history.look(context)


def _as_it_is(table: TableFlow, context: NodeContext) -> LookAsOf:
    look = table.look(context)

    return lambda keys, _times: rows_of(look, keys)


@dataclass(frozen=True)
class _Half:
    """One side of a join of tables, whose updates are joined with the rows of the other side.

    `may_lack`: there are results without this side's value; `other_may_lack`: without the other's.
    In the latter case, the updates carry old values; they also do if `old_values` is enabled.
    """

    may_lack: bool
    other_may_lack: bool
    old_values: SendOldValues

    def build(self, node: str, other: TableFlow, joiner: Joiner) -> Build:
        """Build the node; `joiner` takes this side's value first."""

        def build(context: NodeContext, forward: Forward) -> Push:
            look, stamp = other.look(context), other.stamp(context)

            def push(batch: Batch) -> None:
                with processing(node, batch):
                    done = self._joined(node, batch, other, joiner, look, stamp)
                if len(done):
                    forward(done, None)

            return push

        return build

    def _joined(
        self,
        node: str,
        batch: Batch,
        other: TableFlow,
        joiner: Joiner,
        look: Look,
        stamp: Stamp,
    ) -> Batch:
        keys = encoded(node, batch, "key", other.key_serde)
        theirs = rows_of(look, keys)
        new = decoded(node, batch, "value")
        old = [None] * len(new) if batch.old_values is None else batch.old_values.objects
        if self.other_may_lack:
            triples = zip(new, old, theirs, strict=True)
            places = [i for i, t in enumerate(triples) if any(x is not None for x in t)]
        else:
            places = [i for i, row in enumerate(theirs) if row is not None]

        function = joiner.function
        names = decoded(node, batch, "key") if joiner.takes_key else None

        def made(place: int, value: Any, row: Any) -> Any:
            if value is None and (row is None or not self.may_lack):
                return None
            return function(value, row) if names is None else function(names[place], value, row)

        met = [theirs[i] is not None for i in places]
        after = [made(i, new[i], theirs[i]) for i in places]
        replaced = None
        if self.old_values.enabled:
            again = rows_of(look, keys) if may_change(theirs) else theirs
            replaced = [made(i, old[i], again[i]) for i in places]
        told = updates(batch, places, after, replaced)
        times = _later(stamp, [keys[i] for i in places], told.timestamps, met)
        return told.with_columns(old_values=told.old_values, timestamps=times)


def _later(
    stamp: Stamp, keys: Sequence[bytes | None], times: list[int], met: Sequence[bool]
) -> list[int]:
    """Return the times of the joined rows: those of the later row, where both tables have one."""
    if all(met):
        return stamp(keys, times)  # type: ignore[arg-type]  # what has a row has a key
    places = [i for i, has in enumerate(met) if has]
    later = stamp([keys[i] for i in places], [times[i] for i in places])  # type: ignore[misc]
    raised = list(times)
    for i, time in zip(places, later, strict=True):
        raised[i] = time
    return raised


def _stamp_joined(
    this: TableFlow, other: TableFlow, kind: JoinKind
) -> Callable[[NodeContext], Stamp]:
    """Return the look-up of the times of joined rows, which are those of the later side."""

    def make(context: NodeContext) -> Stamp:
        mine, theirs = this.stamp(context), other.stamp(context)
        look_mine, look_theirs = this.look(context), other.look(context)

        def stamp(keys: list[bytes], times: list[int]) -> list[int]:
            if kind.left_may_lack:
                times = _later(mine, keys, times, [row is not None for row in look_mine(keys)])
            else:
                times = mine(keys, times)
            # Each key has a joined row, so that in an inner join both sides have one.
            if kind.right_may_lack:
                return _later(theirs, keys, times, [row is not None for row in look_theirs(keys)])
            return theirs(keys, times)

        return stamp

    return make


def _look_joined(
    this: TableFlow, other: TableFlow, joiner: Joiner, kind: JoinKind
) -> Callable[..., Look]:
    """Return the look-up of joined rows for a join without a store of its own."""
    read_key = this.key_serde.deserialize

    def joined(key: bytes, left: Any, right: Any) -> Any:
        if left is None and (right is None or not kind.left_may_lack):
            return None
        if right is None and not kind.right_may_lack:
            return None
        return joiner.of(read_key(key) if joiner.takes_key else None)(left, right)

    def make(context: NodeContext) -> Look:
        mine, theirs = this.look(context), other.look(context)

        def look(keys: list[bytes]) -> list[Any]:
            return list(map(joined, keys, mine(keys), theirs(keys)))

        return look

    return make
