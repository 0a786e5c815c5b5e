"""Tables grouped by something else, and aggregates that follow their rows as these change.

An update takes the old row out of its group and puts the new one into its own. A repartition topic
brings both to the task of their group: in one record where the group stays the same, so that no
result is made in between, else in two. The values of that topic are pairs of the old and the new
value, as MessagePack of their bytes; null stands for none. As in Kafka Streams, rows for which the
function gives a null key or value are in no group, and a group whose aggregate is null has no row.

Keeps I24.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple

import msgspec

from statestore import serdes
from statestore.model.batch import Batch, Column
from statestore.model.decoders import msgpack_decoder
from statestore.model.records import Functions, Serde
from statestore.topology.aggregates.folds import Fold, Step, nothing
from statestore.topology.aggregates.grouping import Grouping
from statestore.topology.failures import decoded, each, encoded
from statestore.topology.flows import Flow, TableFlow
from statestore.topology.materialized import Materialized
from statestore.topology.nodes import Build, Forward, NodeContext, Push

Selector = Callable[[Any, Any], tuple[Any, Any]]
_TAKER: Final = "group_by()"
# Values of the module, so that what uses them travels to workers, which have their own.
_encoder = msgspec.msgpack.Encoder()
_decode = msgpack_decoder(tuple[bytes | None, bytes | None]).decode


class RowChange(NamedTuple):
    """What became of a row of a group; None: there was, or is, none."""

    old: Any
    new: Any


@cache
def changes(value_serde: Serde[Any]) -> Serde[RowChange]:
    """Return the serde of changes of values."""

    def make(
        serialize: Callable[[Any], bytes], deserialize: Callable[[bytes], Any]
    ) -> Functions[RowChange]:
        def write(change: RowChange) -> bytes:
            return _encoder.encode([None if v is None else serialize(v) for v in change])

        def read(data: bytes) -> RowChange:
            old, new = _decode(data)
            return RowChange(
                None if old is None else deserialize(old), None if new is None else deserialize(new)
            )

        return write, read

    return value_serde.around(f"CHANGE({value_serde.name})", make, changes)


class _Moved(NamedTuple):
    """The old or the new rows of a batch that have a group: places in it, keys, and values."""

    places: list[int]
    keys: list[Any]
    values: list[Any]


def regrouped(
    node: str, function: Selector, key_serde: Serde[Any], value_serde: Serde[Any]
) -> Build:
    """Build a node that turns updates of a table, with old values, into changes of its groups.

    Serdes that see the topic are left to the sink of the repartition topic.
    """
    in_bytes = not (key_serde.contextual or value_serde.contextual)

    def moved(batch: Batch, column: Column) -> _Moved:
        """Return which rows have a group."""
        keys, values = decoded(node, batch, "key"), column.objects
        places: list[int] = []
        made: list[tuple[Any, Any]] = []

        def select(ahead: Iterator[Any]) -> None:
            for i, (value, key) in enumerate(zip(ahead, keys, strict=True)):
                if value is None:
                    continue
                new_key, new_value = function(key, value)
                if new_key is not None and new_value is not None:
                    places.append(i)
                    made.append((new_key, new_value))

        each(node, batch, values, select)
        rows = batch.take(places).with_columns(
            keys=Column(objects=[key for key, _ in made]),
            values=Column(objects=[value for _, value in made]),
        )
        if not in_bytes:
            return _Moved(places, rows.keys.objects, rows.values.objects)
        return _Moved(
            places,
            encoded(node, rows, "key", key_serde, taker=_TAKER),
            encoded(node, rows, "value", value_serde, taker=_TAKER),
        )

    def build(_context: NodeContext, forward: Forward) -> Push:
        def push(batch: Batch) -> None:
            assert batch.old_values is not None
            decoded(node, batch, "value")
            new, old = moved(batch, batch.values), moved(batch, batch.old_values)
            places, keys, values = _changes(len(batch), old, new)
            if not places:
                return
            if in_bytes:
                packed = list(map(_encoder.encode, values))
                columns = (
                    Column(raw=keys, serde=key_serde),
                    Column(raw=packed, serde=changes(value_serde)),  # type: ignore[arg-type]
                )
            else:
                columns = Column(objects=keys), Column(objects=values)
            forward(batch.take(places).with_columns(keys=columns[0], values=columns[1]), None)

        return push

    return build


def _changes(count: int, old: _Moved, new: _Moved) -> tuple[list[int], list[Any], list[RowChange]]:
    """Return places, keys and values of the changes, a row's old group before its new one."""
    olds = dict(zip(old.places, zip(old.keys, old.values, strict=True), strict=True))
    news = dict(zip(new.places, zip(new.keys, new.values, strict=True), strict=True))
    found: list[tuple[int, Any, RowChange]] = []
    for i in range(count):
        left, came = olds.get(i), news.get(i)
        if left is not None and came is not None and left[0] == came[0]:
            found.append((i, came[0], RowChange(left[1], came[1])))
            continue
        if left is not None:
            found.append((i, left[0], RowChange(left[1], None)))
        if came is not None:
            found.append((i, came[0], RowChange(None, came[1])))
    return [i for i, _, _ in found], [key for _, key, _ in found], [row for _, _, row in found]


def folding(initial: Callable[[], Any], add: Step, subtract: Step) -> Step:
    """Return the step of an aggregate: what is old is taken out, then what is new put in."""

    def step(key: Any, change: RowChange, aggregate: Any) -> Any:
        if change.old is not None and aggregate is not None:
            aggregate = subtract(key, change.old, aggregate)
        if change.new is not None:
            aggregate = add(key, change.new, initial() if aggregate is None else aggregate)
        return aggregate

    return step


def reducing(add: Callable[[Any, Any], Any], subtract: Callable[[Any, Any], Any]) -> Step:
    """Return the step of a reduce, where the first value of a group stands as it is."""

    def step(_key: Any, change: RowChange, aggregate: Any) -> Any:
        if change.old is not None and aggregate is not None:
            aggregate = subtract(aggregate, change.old)
        if change.new is not None:
            aggregate = change.new if aggregate is None else add(aggregate, change.new)
        return aggregate

    return step


@dataclass(frozen=True)
class TableGroups:
    """What stands behind a KGroupedTable: the changes of groups, whose rows have `value_serde`."""

    changes: Grouping
    value_serde: Serde[Any]

    @classmethod
    def of(
        cls,
        table: TableFlow,
        function: Selector,
        *,
        key_serde: Serde[Any] | None,
        value_serde: Serde[Any] | None,
        name: str | None,
    ) -> "TableGroups":
        """Add a node that says of each update of a table what it changes in which groups."""
        builder = table.builder
        keys, values = key_serde or builder.key_serde, value_serde or builder.value_serde
        table.send_old_values()
        node = table.add(
            "KTABLE-SELECT", None, lambda n: regrouped(n, function, keys, values), None
        )
        flow = Flow(builder, node, keys, changes(values), rekeyed=True)
        return cls(Grouping(flow, name, kind="KTABLE-AGGREGATE"), values)

    def count(
        self, materialized: Materialized[Any, Any] | str | None, name: str | None
    ) -> TableFlow:
        """Add a node that counts rows."""
        if isinstance(materialized, Materialized):
            materialized = materialized.of_counts()
        step = folding(int, lambda _k, _v, n: n + 1, lambda _k, _v, n: n - 1)
        return self.aggregate(step, serdes.INT64, materialized, name)

    def aggregate(
        self,
        step: Step,
        value_serde: Serde[Any],
        materialized: Materialized[Any, Any] | str | None,
        name: str | None,
    ) -> TableFlow:
        """Add a node that folds `step` over changes."""
        # A group without a row begins with the step's own first aggregate.
        fold = Fold(nothing, step, step)
        return self.changes.folded(fold, value_serde, materialized, name)
