"""Global tables: every host has all rows of a topic, and streams join them by any key.

A global table belongs to no sub-topology. The run keeps its rows in a store of its own
(operations/start/global_stores.py), which stream tasks only read.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import length_hint
from typing import Any, Generic, NamedTuple

import numpy as np
from numpy.typing import NDArray

from statestore import serdes
from statestore.errors import InvalidTopology, Misuse, SerdeMismatch, StateStoreError
from statestore.model.batch import Batch, Column
from statestore.model.records import K, Serde, V_co
from statestore.stores.specs import GlobalSpec, KeyValueSpec
from statestore.topology import missing_methods
from statestore.topology.callbacks import check_arity
from statestore.topology.collector import Collector
from statestore.topology.failures import decoded, each, encoded, processing
from statestore.topology.flows import Flow, Look
from statestore.topology.joins.co_partitioned import JoinKind
from statestore.topology.joins.joiners import ColumnJoiner, Joiner, Joining
from statestore.topology.joins.meeting import Meet, Meeting, met
from statestore.topology.joins.own_rows import rows_of
from statestore.topology.materialized import Materialized, wished
from statestore.topology.met_rows import MetRows
from statestore.topology.nodes import (
    Build,
    Forward,
    GlobalSource,
    NodeContext,
    Push,
    check_topic,
)

Selector = Callable[[Any, Any], Any]
Select = Callable[[str, Batch], list[Any]]
"""From a node and a batch, each of whose records has a value, to the keys of the rows they ask for.

NodeFailed if that fails for some of them.
"""


class KeySelector(NamedTuple):
    """How a join tells which row a record asks for; `says` is what the description says of it."""

    begin: Callable[[], Select]
    says: str = ""


@dataclass(frozen=True)
class GlobalFlow:
    """A global table or a lookup as it is written: what joins need to look up its rows."""

    builder: Collector
    spec: KeyValueSpec[Any, Any]


@missing_methods.explains(missing_methods.OF_GLOBAL_TABLES)
class GlobalKTable(Generic[K, V_co]):
    """A table of which every stream task sees all rows.

    They are the latest value per key of a topic, or the rows of a file. Streams join it by any key:
    `stream.join(table, function, key=selector)`. A processor reads its store:
    `stream.process(factory, table.store)`.
    """

    def __init__(self, table: GlobalFlow) -> None:
        self._table = table

    @property
    def store(self) -> str:
        """The name of the table's store."""
        return self._table.spec.name


def global_table(
    builder: Collector,
    topic: str,
    *,
    key_serde: Serde[Any],
    value_serde: Serde[Any],
    materialized: Materialized[Any, Any] | str | None,
    name: str | None,
) -> GlobalKTable[Any, Any]:
    """Add a global table; InvalidTopology if its store is to be anything but key-value files."""
    check_topic("global_table()", topic)
    wanted = wished(materialized) or Materialized(builder.store_name(topic, unnamed=False))
    spec = wanted.spec(key_serde, value_serde)
    if not spec.persistent:
        raise InvalidTopology(
            f"store {spec.name!r}: the rows of a global table lie in files, which all processes of "
            "a host share: give it a persistent store, or only a name"
        )
    source = GlobalSource(
        builder.number("KSTREAM-SOURCE") if name is None else f"{name}-source",
        name or builder.number("KTABLE-SOURCE"),
        GlobalSpec(spec.name, spec.key_serde, spec.value_serde, topic=topic),
    )
    builder.keep_global(source)
    return GlobalKTable(GlobalFlow(builder, source.spec))


def joined_with(
    table: GlobalFlow,
    joiner: Joiner | ColumnJoiner,
    kind: JoinKind,
    *,
    key: KeySelector,
    others: Sequence[object],
    value_serde: Serde[Any] | None = None,
) -> Callable[[Flow, str | None], Flow]:
    """Return what joins a stream with a global table: it keeps its keys and partitions.

    Misuse if any of the `others` is given: what other joins take.
    """
    verb = kind.value
    if any(others) or kind.left_may_lack:
        raise Misuse(
            f"{verb}: a global table is as it is, without windows, grace or tolerance: use "
            "join() or left_join() with key= alone"
        )
    left, spec = kind.right_may_lack, table.spec
    says = "" if isinstance(joiner, Joiner) else joiner.says

    def add(flow: Flow, name: str | None) -> Flow:
        if table.builder is not flow.builder:
            raise InvalidTopology(
                f"{verb}: the global table has another builder; a topology has only one"
            )
        node = flow.add(
            "KSTREAM-LEFTJOIN" if left else "KSTREAM-JOIN",
            name,
            lambda n: _joined(n, spec, joiner, key, left=left),
            (spec.name,),
            says=", ".join(filter(None, (says, key.says))),
        )
        if left:
            flow.builder.take_null_keys((node,))
        return flow.revalued(node, value_serde)

    return add


def selected_by(verb: str, key: Selector | None) -> KeySelector:
    """Return what asks a function for keys; Misuse if it cannot be called, or is missing."""
    if key is None:
        raise Misuse(
            f"{verb}: a global table is joined by any key: pass key=, a function of (key, value) "
            "that returns the key of the row, such as key=lambda key, value: key, or an expression"
        )
    select = key
    check_arity(f"key of {verb}", select, 2)

    def select_all(node: str, batch: Batch) -> list[Any]:
        own, ours = decoded(node, batch, "key"), decoded(node, batch, "value")
        return each(
            node, batch, own, lambda ahead: [select(k, v) for k, v in zip(ahead, ours, strict=True)]
        )

    return KeySelector(lambda: select_all)


def refuse_key(verb: str, key: object) -> None:
    """Raise Misuse if a join with anything but a global table was given a selector."""
    if key is not None:
        raise Misuse(
            f"{verb}: only a global table is joined by key=: leave it out, or give the stream "
            "another key before, with select_key()"
        )


def _joined(
    node: str,
    spec: KeyValueSpec[Any, Any],
    joiner: Joiner | ColumnJoiner,
    key: KeySelector,
    *,
    left: bool,
) -> Build:
    """Build a node that joins each record with the row whose key the selector returns.

    Nulls are treated as in Kafka Streams: a record without a value joins nothing; one for which the
    selector returns None is joined with None in a left join, and joins nothing in an inner join.
    """
    if isinstance(joiner, Joiner):
        joining = _by_function(node, spec, joiner, key, left=left)
    else:
        joining = joiner.joining(node, _meeting(spec, key), left=left)

    def build(context: NodeContext, forward: Forward) -> Push:
        join = joining(context)

        def push(batch: Batch) -> None:
            with processing(node, batch):
                made = join(batch)
            if len(made):
                forward(made, None)

        return push

    return build


def _by_function(
    node: str, spec: KeyValueSpec[Any, Any], joiner: Joiner, key: KeySelector, *, left: bool
) -> Joining:
    """Return, for a context, the function from a batch to what a function makes of it."""
    function = joiner.function

    def made_for(context: NodeContext) -> Callable[[Batch], Batch]:
        look, select = _look_of(context, spec), key.begin()

        def join(batch: Batch) -> Batch:
            own, ours = decoded(node, batch, "key"), decoded(node, batch, "value")
            asked = [i for i, value in enumerate(ours) if value is not None]
            wanted = batch if len(asked) == len(batch) else batch.take(asked)
            keys = _keys(node, wanted, spec.key_serde, select)
            found = dict(zip(asked, zip(keys, rows_of(look, keys), strict=True), strict=True))
            places = [i for i, (_, row) in found.items() if left or row is not None]
            nulls = [
                i
                for i, value in enumerate(ours)
                if value is None or (found[i][0] is None and not left)
            ]
            if nulls:
                context.drop(node, batch, nulls, "null_key_or_value")
            if len(places) + len(nulls) < len(batch):
                context.count_unmatched(node, len(batch) - len(places) - len(nulls))

            def meet(ahead: Iterator[int]) -> list[Any]:
                if joiner.takes_key:
                    return [function(own[i], ours[i], found[i][1]) for i in ahead]
                return [function(ours[i], found[i][1]) for i in ahead]

            made = each(node, batch, places, meet, place_of=places.__getitem__)
            chosen = batch if len(places) == len(batch) else batch.take(places)
            return chosen.with_columns(values=Column(objects=made))

        return join

    return made_for


def _meeting(spec: KeyValueSpec[Any, Any], key: KeySelector) -> Meeting:
    """Return what meets rows by the keys that the selector returns."""

    def meeting(node: str, context: NodeContext) -> Meet:
        look, select = _look_of(context, spec), key.begin()

        def meet(batch: Batch, has_value: NDArray[np.bool_]) -> tuple[MetRows, NDArray[np.bool_]]:
            keys = _keys(node, batch.where(has_value), spec.key_serde, select)
            return met(keys, has_value, look)

        return meet

    return meeting


def _keys(node: str, batch: Batch, key_serde: Serde[Any], select: Select) -> list[bytes | None]:
    """Return the key of the row that each record asks for, none of which lacks a value."""
    keys = Column(objects=select(node, batch))
    return encoded(node, batch.with_columns(keys=keys), "key", key_serde)


def _look_of(context: NodeContext, spec: KeyValueSpec[Any, Any]) -> Look:
    """Return the look-up of the rows of a global table."""
    store, read = context.global_store(spec.name), spec.value_serde.deserialize
    plain = spec.value_serde is serdes.BYTES

    def look(keys: list[bytes]) -> list[Any]:
        rows = store.look_up(keys)
        if plain:
            return rows
        ahead = iter(rows)
        try:
            return [None if data is None else read(data) for data in ahead]
        except StateStoreError:
            raise
        except Exception as error:
            key = keys[len(keys) - length_hint(ahead) - 1]
            raise SerdeMismatch(
                f"the row of key {serdes.printable(key):.99} in store {spec.name!r} of a global "
                f"table is not a valid {spec.value_serde.name} ({error}): pass the value_serde=… "
                "of its topic to global_table(), or write a readable value of that key to the topic"
            ) from error

    return look
