"""KTable and grouped tables: what a pipeline is written with, beside the streams.

As in `streams`, nothing runs here. Streams make tables and tables make streams, so that this module
and that one name each other.
"""

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar, overload

from statestore.errors import InvalidTopology, Misuse
from statestore.model.records import K2, V2, K_co, Serde, V_co
from statestore.topology import missing_methods
from statestore.topology import operators as ops
from statestore.topology.aggregates.declared import (
    Aggregate,
    AggregatePlan,
    check_alone,
    is_aggregate,
)
from statestore.topology.aggregates.tables import TableGroups, folding, reducing
from statestore.topology.callbacks import check_arity, takes_key
from statestore.topology.dsl import grouped_streams, streams
from statestore.topology.dsl.given import given
from statestore.topology.flows import Flow, TableFlow
from statestore.topology.joins import co_partitioned
from statestore.topology.joins.foreign_keys import foreign_keys_by, join_by_foreign_key
from statestore.topology.joins.joiners import Joiner
from statestore.topology.materialized import Materialized
from statestore.topology.tables import computed_tables
from statestore.topology.tables.suppressed import Suppressed
from statestore.topology.tables.suppression import suppressed_table

R = TypeVar("R")
A = TypeVar("A")


@missing_methods.explains(missing_methods.OF_TABLES)
class KTable(Generic[K_co, V_co]):
    """A table of the latest value per key, in a store of its own or computed from other tables.

    The results of filter, map_values and joins have a store only if `materialized` names one, with
    their history if it has a retention for that. Otherwise their functions are called again
    whenever a row is looked up.
    """

    def __init__(self, table: TableFlow) -> None:
        self._table = table

    @property
    def store(self) -> str | None:
        """The name of the table's own store; None if it is computed from other tables."""
        return self._table.store

    def filter(
        self,
        predicate: Callable[[K_co, V_co], object],
        materialized: Materialized[K_co, V_co] | str | None = None,
        *,
        name: str | None = None,
    ) -> "KTable[K_co, V_co]":
        """Return the rows for which predicate(key, value) is true."""
        check_arity("filter", predicate, 2, name)
        kept = self._table.keep(materialized, self._table.value_serde)
        return KTable(computed_tables.filter_table(self._table, predicate, kept=kept, name=name))

    def filter_not(
        self,
        predicate: Callable[[K_co, V_co], object],
        materialized: Materialized[K_co, V_co] | str | None = None,
        *,
        name: str | None = None,
    ) -> "KTable[K_co, V_co]":
        """Return the rows for which predicate(key, value) is false."""
        check_arity("filter_not", predicate, 2, name)
        kept = self._table.keep(materialized, self._table.value_serde)
        return KTable(
            computed_tables.filter_table(
                self._table, computed_tables.no(predicate), kept=kept, name=name
            )
        )

    @overload
    def map_values(
        self,
        function: Callable[[V_co], V2],
        materialized: Materialized[K_co, V2] | str | None = None,
        *,
        name: str | None = None,
    ) -> "KTable[K_co, V2]": ...
    @overload
    def map_values(
        self,
        function: Callable[[K_co, V_co], V2],
        materialized: Materialized[K_co, V2] | str | None = None,
        *,
        name: str | None = None,
    ) -> "KTable[K_co, V2]": ...
    def map_values(
        self,
        function: Callable[..., Any],
        materialized: Materialized[Any, Any] | str | None = None,
        *,
        name: str | None = None,
    ) -> "KTable[K_co, Any]":
        """Return a table with function(value), or function(key, value), for every row."""
        with_key = takes_key("map_values", function, 1, name)
        kept = self._table.keep(materialized, self._table.builder.value_serde)
        return KTable(
            computed_tables.map_table(
                self._table, function, with_key=with_key, kept=kept, name=name
            )
        )

    @overload
    def join(
        self,
        table: "KTable[K_co, V2]",
        function: Callable[[V_co, V2], R],
        materialized: Materialized[K_co, R] | str | None = None,
        *,
        name: str | None = None,
    ) -> "KTable[K_co, R]": ...
    @overload
    def join(
        self,
        table: "KTable[K_co, V2]",
        function: Callable[[K_co, V_co, V2], R],
        materialized: Materialized[K_co, R] | str | None = None,
        *,
        name: str | None = None,
    ) -> "KTable[K_co, R]": ...
    @overload
    def join(
        self,
        table: "KTable[K2, V2]",
        function: Callable[[V_co, V2], R],
        materialized: Materialized[K_co, R] | str | None = None,
        *,
        foreign_key: Callable[[V_co], K2 | None] | Callable[[K_co, V_co], K2 | None],
        name: str | None = None,
    ) -> "KTable[K_co, R]": ...
    @overload
    def join(
        self,
        table: "KTable[K2, V2]",
        function: Callable[[K_co, V_co, V2], R],
        materialized: Materialized[K_co, R] | str | None = None,
        *,
        foreign_key: Callable[[V_co], K2 | None] | Callable[[K_co, V_co], K2 | None],
        name: str | None = None,
    ) -> "KTable[K_co, R]": ...
    def join(
        self,
        table: "KTable[Any, Any]",
        function: Callable[..., Any],
        materialized: Materialized[Any, Any] | str | None = None,
        *,
        foreign_key: Callable[..., Any] | None = None,
        name: str | None = None,
    ) -> "KTable[K_co, Any]":
        """Return function(left, right) for every key that both tables have.

        The function may take the key before both values.

        A row is updated when either side changes, and has the later of both sides' times.

        With `foreign_key`, a row meets the row of the other table whose key foreign_key(value), or
        foreign_key(key, value), returns (KIP-213, KIP-1104); None meets nothing. It must return the
        same for the same row. The tables may have different keys and partitions. Topics and stores
        are named after `name`, or else after the store that `materialized` names.

        SerdeMismatch if the keys of both have different serdes, without a foreign key;
        InvalidTopology if the other table has another builder.
        """
        kind = co_partitioned.JoinKind.INNER
        return self._joined(kind, table, function, materialized, name, foreign_key)

    @overload
    def left_join(
        self,
        table: "KTable[K_co, V2]",
        function: Callable[[V_co, V2 | None], R],
        materialized: Materialized[K_co, R] | str | None = None,
        *,
        name: str | None = None,
    ) -> "KTable[K_co, R]": ...
    @overload
    def left_join(
        self,
        table: "KTable[K_co, V2]",
        function: Callable[[K_co, V_co, V2 | None], R],
        materialized: Materialized[K_co, R] | str | None = None,
        *,
        name: str | None = None,
    ) -> "KTable[K_co, R]": ...
    @overload
    def left_join(
        self,
        table: "KTable[K2, V2]",
        function: Callable[[V_co, V2 | None], R],
        materialized: Materialized[K_co, R] | str | None = None,
        *,
        foreign_key: Callable[[V_co], K2 | None] | Callable[[K_co, V_co], K2 | None],
        name: str | None = None,
    ) -> "KTable[K_co, R]": ...
    @overload
    def left_join(
        self,
        table: "KTable[K2, V2]",
        function: Callable[[K_co, V_co, V2 | None], R],
        materialized: Materialized[K_co, R] | str | None = None,
        *,
        foreign_key: Callable[[V_co], K2 | None] | Callable[[K_co, V_co], K2 | None],
        name: str | None = None,
    ) -> "KTable[K_co, R]": ...
    def left_join(
        self,
        table: "KTable[Any, Any]",
        function: Callable[..., Any],
        materialized: Materialized[Any, Any] | str | None = None,
        *,
        foreign_key: Callable[..., Any] | None = None,
        name: str | None = None,
    ) -> "KTable[K_co, Any]":
        """Do as `join`, but return function(left, None) where the other table lacks the key.

        So it does for a row whose foreign key is None.
        """
        kind = co_partitioned.JoinKind.LEFT
        return self._joined(kind, table, function, materialized, name, foreign_key)

    @overload
    def outer_join(
        self,
        table: "KTable[K_co, V2]",
        function: Callable[[V_co | None, V2 | None], R],
        materialized: Materialized[K_co, R] | str | None = None,
        *,
        name: str | None = None,
    ) -> "KTable[K_co, R]": ...
    @overload
    def outer_join(
        self,
        table: "KTable[K_co, V2]",
        function: Callable[[K_co, V_co | None, V2 | None], R],
        materialized: Materialized[K_co, R] | str | None = None,
        *,
        name: str | None = None,
    ) -> "KTable[K_co, R]": ...
    def outer_join(
        self,
        table: "KTable[Any, Any]",
        function: Callable[..., Any],
        materialized: Materialized[Any, Any] | str | None = None,
        *,
        name: str | None = None,
    ) -> "KTable[K_co, Any]":
        """Do as `join`, but return function(left, right) for every key that either table has.

        The side that lacks the key is None.
        """
        return self._joined(co_partitioned.JoinKind.OUTER, table, function, materialized, name)

    def suppress(self, suppressed: Suppressed, *, name: str | None = None) -> "KTable[K_co, V_co]":
        """Return the table with its updates held back, so that fewer go out, and later (KIP-328).

        With `Suppressed.until_window_closes()` each window has one result, the final one; with
        `Suppressed.until_time_limit(ms)` a key's updates within that time become one. What waits is
        in a store named `<name>-store`. Look-ups in the table see what was last handed on.

        InvalidTopology if windows are waited for and the table has none that are open.
        """
        return KTable(suppressed_table(self._table, suppressed, name))

    @overload
    def to_stream(self, *, name: str | None = None) -> "streams.KStream[K_co, V_co]": ...
    @overload
    def to_stream(
        self, function: Callable[[K_co, V_co | None], K2], *, name: str | None = None
    ) -> "streams.KStream[K2, V_co]": ...
    def to_stream(
        self, function: Callable[[Any, Any], Any] | None = None, *, name: str | None = None
    ) -> "streams.KStream[Any, V_co]":
        """Return the table's updates as a stream; a deleted row has a null value there.

        Their keys are those of the table, or what function(key, value) makes of them; then `name`
        is that of the node that changes the keys.
        """
        table = self._table
        own = name if function is None else None
        node = table.builder.node("KTABLE-TOSTREAM", own, (table.node,), lambda _: ops.passed())
        flow = Flow(table.builder, node, table.key_serde, table.value_serde)
        if function is None:
            return streams.KStream(flow)
        check_arity("to_stream", function, 2, name)
        return streams.KStream[Any, Any](flow).select_key(function, name=name)

    def _joined(
        self,
        kind: co_partitioned.JoinKind,
        table: "KTable[Any, Any]",
        function: Callable[..., Any],
        materialized: Materialized[Any, Any] | str | None,
        name: str | None,
        foreign_key: Callable[..., Any] | None = None,
    ) -> "KTable[K_co, Any]":
        joiner = Joiner.checked(kind.value, function, name)
        other = table_of(kind.value, table, self._table)
        if foreign_key is not None:
            made = join_by_foreign_key(
                self._table,
                other,
                foreign_keys_by(kind.value, foreign_key, name),
                joiner,
                left_join=kind.right_may_lack,
                materialized=materialized,
                name=name,
            )
            return KTable(made)
        return KTable(
            co_partitioned.table_with_table(
                self._table, other, joiner, kind, materialized=materialized, name=name
            )
        )

    def group_by(
        self,
        function: Callable[[K_co, V_co], tuple[K2 | None, V2 | None]],
        *,
        key_serde: Serde[K2] | None = None,
        value_serde: Serde[V2] | None = None,
        name: str | None = None,
    ) -> "KGroupedTable[K2, V2]":
        """Group the rows by the key that function(key, value) gives them, with their new value.

        It returns a pair; with a null in it, the row is in no group. When a row changes, it leaves
        its old group and enters its new one, through a repartition topic with these serdes that is
        named after `name`, or else after the aggregate's store.
        """
        check_arity("group_by", function, 2, name)
        groups = TableGroups.of(
            self._table, function, key_serde=key_serde, value_serde=value_serde, name=name
        )
        return KGroupedTable(groups)


class KGroupedTable(Generic[K_co, V_co]):
    """The rows of a table in groups; their aggregates follow the rows as these change."""

    def __init__(self, groups: TableGroups) -> None:
        self._groups = groups

    def count(
        self,
        materialized: Materialized[K_co, int] | Materialized[K_co, bytes] | str | None = None,
        *,
        name: str | None = None,
    ) -> KTable[K_co, int]:
        """Return the number of rows per group, as INT64; a group that loses all its rows has 0.

        InvalidTopology if the store's values are not INT64, or if another operator keeps its rows
        in that store.
        """
        return KTable(self._groups.count(materialized, name))

    def reduce(
        self,
        adder: Callable[[V_co, V_co], V_co | None],
        subtractor: Callable[[V_co, V_co], V_co | None],
        materialized: Materialized[K_co, V_co] | str | None = None,
        *,
        name: str | None = None,
    ) -> KTable[K_co, V_co]:
        """Return adder(aggregate, new) and subtractor(aggregate, old) folded over each group.

        The first value of a group stands as it is, and None deletes the group. A row that changes
        is subtracted as it was, then added as it is. InvalidTopology if another operator keeps its
        rows in that store.
        """
        check_arity("reduce adder", adder, 2, name)
        check_arity("reduce subtractor", subtractor, 2, name)
        step = reducing(adder, subtractor)
        return KTable(self._groups.aggregate(step, self._groups.value_serde, materialized, name))

    @overload
    def aggregate(
        self,
        initial: Aggregate[A],
        *,
        materialized: Materialized[K_co, Any] | str | None = None,
        name: str | None = None,
    ) -> KTable[K_co, A]: ...
    @overload
    def aggregate(
        self,
        initial: Mapping[str, Aggregate[Any]],
        *,
        materialized: Materialized[K_co, Any] | str | None = None,
        name: str | None = None,
    ) -> KTable[K_co, Any]: ...
    @overload
    def aggregate(
        self,
        initial: "grouped_streams.Initializer[A]",
        adder: Callable[[K_co, V_co, A], A | None],
        subtractor: Callable[[K_co, V_co, A], A | None],
        materialized: Materialized[K_co, A] | str | None = None,
        *,
        name: str | None = None,
    ) -> KTable[K_co, A]: ...
    def aggregate(
        self,
        initial: "grouped_streams.Initializer[Any] | Aggregate[Any] | Mapping[str, Aggregate[Any]]",
        adder: Callable[[K_co, V_co, Any], Any] | None = None,
        subtractor: Callable[[K_co, V_co, Any], Any] | None = None,
        materialized: Materialized[K_co, Any] | str | None = None,
        *,
        name: str | None = None,
    ) -> KTable[K_co, Any]:
        """Return adder and subtractor, each of (key, value, aggregate), folded over each group.

        The first aggregate of a group is initial(), and None deletes the group. A row that changes
        is subtracted as it was, then added as it is. Without a serde in `materialized`, aggregates
        have the builder's value serde. InvalidTopology if another operator keeps its rows in that
        store.

        An aggregate of `ss.agg`, or a dict of several, stands for all functions, as in groups of
        streams. Misuse if one cannot take out a row.
        """
        if is_aggregate(initial):
            where = "aggregate" if name is None else f"aggregate {name!r}"
            check_alone(where, adder, subtractor)
            plan = AggregatePlan(where, (self._groups.value_serde, initial))
            states, fold = plan.checked(where, materialized), plan.fold_of_changes(where)
            made = self._groups.changes.folded(fold, plan.states, states, name)
            return KTable(plan.told(made, name))
        add, subtract = given(adder), given(subtractor)
        check_arity("aggregate initial", initial, 0, name)
        check_arity("aggregate adder", add, 3, name)
        check_arity("aggregate subtractor", subtract, 3, name)
        step = folding(initial, add, subtract)
        serde = self._groups.changes.flow.builder.value_serde
        return KTable(self._groups.aggregate(step, serde, materialized, name))


def table_of(verb: str, table: KTable[Any, Any], ours: Flow | TableFlow) -> TableFlow:
    """Return the table of an operator's argument; Misuse or InvalidTopology if it is none."""
    given: object = table
    if not isinstance(given, KTable):
        raise Misuse(
            f"{verb} needs a KTable, not a {type(given).__name__}: "
            "make a table of a stream by to_table()"
        )
    if table._table.builder is not ours.builder:
        raise InvalidTopology(f"{verb}: the table has another builder; a topology has only one")
    return table._table
