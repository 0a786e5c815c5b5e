"""KStream and KTable: what a pipeline is written with.

Nothing runs here. Wrong callables are refused with the operator's name. Keys and values keep their
serdes until an operator changes them, then the builder's default holds (INTERFACE rules 3, 4, 8).
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from statestore.errors import InvalidTopology, Misuse
from statestore.model.modes import Span, span_ms
from statestore.model.records import Serde
from statestore.stores.specs import StoreSpec
from statestore.topology import joins, views
from statestore.topology import operators as ops
from statestore.topology.callbacks import check_arity, check_factory
from statestore.topology.collector import Materialized
from statestore.topology.flows import Flow, Table
from statestore.topology.graph import Build, SinkNode, TopicName
from statestore.topology.grouped import KGroupedStream

Grouped = KGroupedStream["KTable"]


class KStream:
    """A stream of records. Every method returns a new stream; the old one stays usable."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow

    def filter(
        self, predicate: Callable[[Any, Any], object], *, name: str | None = None
    ) -> "KStream":
        """Keep records for which predicate(key, value) holds."""
        check_arity("filter", predicate, 2, name)
        return self._same("KSTREAM-FILTER", name, lambda n: ops.filtered(n, predicate))

    def map(
        self, function: Callable[[Any, Any], tuple[Any, Any]], *, name: str | None = None
    ) -> "KStream":
        """function(key, value) -> (key, value)."""
        check_arity("map", function, 2, name)
        node = self._flow.add("KSTREAM-MAP", name, lambda n: ops.mapped(n, function))
        return KStream(self._flow.keyed_anew(node))

    def map_values(self, function: Callable[[Any], Any], *, name: str | None = None) -> "KStream":
        """function(value) -> value; the key stays."""
        check_arity("map_values", function, 1, name)
        node = self._flow.add("KSTREAM-MAPVALUES", name, lambda n: ops.mapped_values(n, function))
        return KStream(self._flow.revalued(node))

    def flat_map(
        self,
        function: Callable[[Any, Any], Iterable[tuple[Any, Any]]],
        *,
        name: str | None = None,
    ) -> "KStream":
        """function(key, value) -> any number of (key, value)."""
        check_arity("flat_map", function, 2, name, may_yield=True)
        node = self._flow.add("KSTREAM-FLATMAP", name, lambda n: ops.flattened(n, function))
        return KStream(self._flow.keyed_anew(node))

    def flat_map_values(
        self, function: Callable[[Any], Iterable[Any]], *, name: str | None = None
    ) -> "KStream":
        """function(value) -> any number of values; the key stays."""
        check_arity("flat_map_values", function, 1, name, may_yield=True)
        node = self._flow.add(
            "KSTREAM-FLATMAPVALUES", name, lambda n: ops.flattened_values(n, function)
        )
        return KStream(self._flow.revalued(node))

    def select_key(
        self, function: Callable[[Any, Any], Any], *, name: str | None = None
    ) -> "KStream":
        """function(key, value) -> key; the value stays."""
        check_arity("select_key", function, 2, name)
        node = self._flow.add("KSTREAM-KEY-SELECT", name, lambda n: ops.keyed(n, function))
        return KStream(self._flow.keyed_anew(node, value_serde=self._flow.value_serde))

    def peek(self, function: Callable[[Any, Any], object], *, name: str | None = None) -> "KStream":
        """Call function(key, value) for each record; nothing changes."""
        check_arity("peek", function, 2, name)
        return self._same("KSTREAM-PEEK", name, lambda n: ops.peeked(n, function))

    def merge(self, *others: "KStream", name: str | None = None) -> "KStream":
        """Records of this and the other streams; serdes are this one's."""
        flow, flows = self._flow, [other._flow for other in others]
        if any(other.builder is not flow.builder for other in flows):
            raise InvalidTopology(
                "merge: a stream of another builder: one topology has one builder"
            )
        parents = (flow.node, *(other.node for other in flows))
        node = flow.builder.node("KSTREAM-MERGE", name, parents, lambda _: ops.passed())
        rekeyed = flow.rekeyed or any(other.rekeyed for other in flows)
        return KStream(replace(flow, node=node, rekeyed=rekeyed))

    def branch(
        self, *predicates: Callable[[Any, Any], object], name: str | None = None
    ) -> "tuple[KStream, ...]":
        """One stream per predicate(key, value), each record in the first that holds.

        The last is the rest.
        """
        for predicate in predicates:
            check_arity("branch", predicate, 2, name)
        flow = self._flow
        chosen = name or flow.builder.number("KSTREAM-BRANCH")
        children = [f"{chosen}-{i + 1}" for i in range(len(predicates))] + [f"{chosen}-rest"]
        flow.add("", chosen, lambda n: ops.branched(n, predicates, children))
        for child in children:
            flow.builder.node("", child, (chosen,), lambda _: ops.passed())
        return tuple(KStream(flow.same(child)) for child in children)

    def repartition(
        self,
        name: str,
        *,
        key_serde: Serde[Any] | None = None,
        value_serde: Serde[Any] | None = None,
        partitions: int | None = None,
    ) -> "KStream":
        """Through the internal topic `<application id>-<name>-repartition`, keyed anew."""
        flow = self._flow.repartitioned(
            name,
            explicit=True,
            forced=True,
            key_serde=key_serde,
            value_serde=value_serde,
            partitions=partitions,
        )
        return KStream(flow)

    def to(
        self,
        topic: str,
        *,
        key_serde: Serde[Any] | None = None,
        value_serde: Serde[Any] | None = None,
        name: str | None = None,
    ) -> None:
        """Write to a topic."""
        flow = self._flow
        flow.builder.add(
            SinkNode(
                name or flow.builder.number("KSTREAM-SINK"),
                (flow.node,),
                TopicName(topic),
                key_serde or flow.key_serde,
                value_serde or flow.value_serde,
            )
        )

    def to_table(
        self, materialized: Materialized | str | None = None, *, name: str | None = None
    ) -> "KTable":
        """The latest value per key."""
        return KTable(self._flow.tabled(materialized, name))

    def join(
        self,
        table: "KTable",
        function: Callable[[Any, Any], Any],
        *,
        grace_ms: Span = 0,
        name: str | None = None,
    ) -> "KStream":
        """function(left, right) for each record whose key the table has when it is processed.

        Records without key or value join nothing. A stream whose keys changed goes through a
        repartition topic named after `name`.
        """
        return self._joined("join", table, function, grace_ms, name, left=False)

    def left_join(
        self,
        table: "KTable",
        function: Callable[[Any, Any], Any],
        *,
        grace_ms: Span = 0,
        name: str | None = None,
    ) -> "KStream":
        """As join, but function(left, None) where the table has no such key, or there is none."""
        return self._joined("left_join", table, function, grace_ms, name, left=True)

    def group_by_key(self, *, name: str | None = None) -> Grouped:
        """Group by the key there is; repartitioned only if an operator changed it."""
        return KGroupedStream(self._flow, name, KTable)

    def group_by(
        self,
        function: Callable[[Any, Any], Any],
        *,
        key_serde: Serde[Any] | None = None,
        value_serde: Serde[Any] | None = None,
        name: str | None = None,
    ) -> Grouped:
        """Group by function(key, value), through a repartition topic."""
        check_arity("group_by", function, 2, name)
        flow = self.select_key(function)._flow
        keyed = replace(
            flow,
            key_serde=key_serde or flow.key_serde,
            value_serde=value_serde or flow.value_serde,
        )
        return KGroupedStream(keyed, name, KTable)

    def process(
        self,
        factory: Callable[[ops.ProcessorContext], ops.Processor],
        *stores: StoreSpec | str,
        name: str | None = None,
    ) -> "KStream":
        """A per-record processor, made once per stream task by factory(context)."""
        return self._process("process", factory, stores, name, per_record=True)

    def process_batch(
        self,
        factory: Callable[[ops.ProcessorContext], ops.BatchProcessor],
        *stores: StoreSpec | str,
        name: str | None = None,
    ) -> "KStream":
        """A per-batch processor, made once per stream task by factory(context)."""
        return self._process("process_batch", factory, stores, name, per_record=False)

    def _process(
        self,
        verb: str,
        factory: Callable[[ops.ProcessorContext], Any],
        stores: tuple[StoreSpec | str, ...],
        name: str | None,
        *,
        per_record: bool,
    ) -> "KStream":
        check_factory(verb, factory, name)
        names = tuple(store if isinstance(store, str) else store.name for store in stores)
        for store in stores:
            if not isinstance(store, str):
                self._flow.builder.declare(store)
        node = self._flow.add(
            "KSTREAM-PROCESSOR",
            name,
            lambda n: ops.processed(n, factory, names, per_record=per_record),
            names,
        )
        return KStream(self._flow.keyed_anew(node))

    def _joined(
        self,
        verb: str,
        table: "KTable",
        function: Callable[[Any, Any], Any],
        grace_ms: Span,
        name: str | None,
        *,
        left: bool,
    ) -> "KStream":
        check_arity(verb, function, 2, name)
        other = _table_of(verb, table, self._flow)
        joins.check_grace(verb, other, span_ms(grace_ms))
        kind = "KSTREAM-LEFTJOIN" if left else "KSTREAM-JOIN"
        chosen = name or self._flow.builder.number(kind)
        flow = self._flow.repartitioned(
            chosen, explicit=name is not None, key_serde=other.key_serde
        )
        other.check_keys(verb, name, flow.key_serde, "the stream")
        if span_ms(grace_ms):
            node = joins.with_grace(
                flow,
                other,
                function,
                span_ms(grace_ms),
                chosen,
                left=left,
                explicit=name is not None,
            )
            return KStream(flow.revalued(node))
        node = flow.add(
            kind,
            chosen,
            lambda n: joins.stream_table(n, other, function, left=left),
            other.stores,
            copartitioned=True,
        )
        return KStream(flow.revalued(node))

    def _same(self, kind: str, name: str | None, make: Callable[[str], Build]) -> "KStream":
        return KStream(self._flow.same(self._flow.add(kind, name, make)))


class KTable:
    """A table: the latest value per key, in a store of its own or computed from other tables.

    What filter, map_values and the joins make has a store only if `materialized` names one.
    """

    def __init__(self, table: Table) -> None:
        self._table = table

    @property
    def store(self) -> str | None:
        """The name of the store behind it; None if it is computed from other tables."""
        return self._table.store

    def filter(
        self,
        predicate: Callable[[Any, Any], object],
        materialized: Materialized | str | None = None,
        *,
        name: str | None = None,
    ) -> "KTable":
        """The rows for which predicate(key, value) holds."""
        check_arity("filter", predicate, 2, name)
        kept = self._table.keep(materialized, self._table.value_serde)
        return KTable(views.filter_table(self._table, predicate, kept=kept, name=name))

    def map_values(
        self,
        function: Callable[[Any], Any],
        materialized: Materialized | str | None = None,
        *,
        name: str | None = None,
    ) -> "KTable":
        """function(value) for every row; it may be called again whenever a row is looked up."""
        check_arity("map_values", function, 1, name)
        kept = self._table.keep(materialized, self._table.builder.value_serde)
        return KTable(views.map_table(self._table, function, kept=kept, name=name))

    def join(
        self,
        table: "KTable",
        function: Callable[[Any, Any], Any],
        materialized: Materialized | str | None = None,
        *,
        name: str | None = None,
    ) -> "KTable":
        """function(left, right) for every key both tables have; updated when either changes."""
        return self._joined("join", table, function, materialized, name, left=False)

    def left_join(
        self,
        table: "KTable",
        function: Callable[[Any, Any], Any],
        materialized: Materialized | str | None = None,
        *,
        name: str | None = None,
    ) -> "KTable":
        """As join, but function(left, None) where the other table has no such key."""
        return self._joined("left_join", table, function, materialized, name, left=True)

    def to_stream(self, *, name: str | None = None) -> KStream:
        """Its updates as a stream; a null value is a delete."""
        table = self._table
        node = table.builder.node("KTABLE-TOSTREAM", name, (table.node,), lambda _: ops.passed())
        return KStream(Flow(table.builder, node, table.key_serde, table.value_serde))

    def _joined(
        self,
        verb: str,
        table: "KTable",
        function: Callable[[Any, Any], Any],
        materialized: Materialized | str | None,
        name: str | None,
        *,
        left: bool,
    ) -> "KTable":
        check_arity(verb, function, 2, name)
        this = self._table
        other = _table_of(verb, table, this)
        other.check_keys(verb, name, this.key_serde, "the first table")
        kept = this.keep(materialized, this.builder.value_serde)
        return KTable(joins.tables(this, other, function, left=left, kept=kept, name=name))


def _table_of(verb: str, table: KTable, ours: Flow | Table) -> Table:
    given: object = table
    if not isinstance(given, KTable):
        raise Misuse(
            f"{verb}: want a KTable, not {type(given).__name__}: a stream becomes one by to_table()"
        )
    if table._table.builder is not ours.builder:
        raise InvalidTopology(f"{verb}: a table of another builder: one topology has one builder")
    return table._table
