"""KStream, KGroupedStream, KTable: what a pipeline is written with.

Nothing runs here. Wrong callables are refused with the operator's name. Keys and values keep their
serdes until an operator changes them, then the builder's default holds (INTERFACE rules 3, 4, 8).
"""

from collections.abc import Callable, Iterable
from typing import Any

from statestore.errors import InvalidTopology
from statestore.model import Serde
from statestore.stores import serdes
from statestore.stores.specs import KeyValueSpec, StoreSpec
from statestore.topology import aggregates
from statestore.topology import operators as ops
from statestore.topology.collector import Collector, Materialized, check_arity
from statestore.topology.graph import Build, SinkNode, TopicName


class KStream:
    """A stream of records. Every method returns a new stream; the old one stays usable."""

    def __init__(
        self,
        builder: Collector,
        node: str,
        key_serde: Serde[Any],
        value_serde: Serde[Any],
        *,
        rekeyed: bool = False,
    ) -> None:
        self._builder = builder
        self._node = node
        self._key_serde = key_serde
        self._value_serde = value_serde
        self._rekeyed = rekeyed

    def filter(
        self, predicate: Callable[[Any, Any], object], *, name: str | None = None
    ) -> "KStream":
        """Keep records for which predicate(key, value) holds."""
        check_arity("filter", predicate, 2)
        return self._same(self._add("KSTREAM-FILTER", name, lambda n: ops.filtered(n, predicate)))

    def map(
        self, function: Callable[[Any, Any], tuple[Any, Any]], *, name: str | None = None
    ) -> "KStream":
        """function(key, value) -> (key, value)."""
        check_arity("map", function, 2)
        node = self._add("KSTREAM-MAP", name, lambda n: ops.mapped(n, function))
        return KStream(
            self._builder, node, self._builder.key_serde, self._builder.value_serde, rekeyed=True
        )

    def map_values(self, function: Callable[[Any], Any], *, name: str | None = None) -> "KStream":
        """function(value) -> value; the key stays."""
        check_arity("map_values", function, 1)
        node = self._add("KSTREAM-MAPVALUES", name, lambda n: ops.mapped_values(n, function))
        return self._revalued(node)

    def flat_map(
        self,
        function: Callable[[Any, Any], Iterable[tuple[Any, Any]]],
        *,
        name: str | None = None,
    ) -> "KStream":
        """function(key, value) -> any number of (key, value)."""
        check_arity("flat_map", function, 2)
        node = self._add("KSTREAM-FLATMAP", name, lambda n: ops.flattened(n, function))
        return KStream(
            self._builder, node, self._builder.key_serde, self._builder.value_serde, rekeyed=True
        )

    def flat_map_values(
        self, function: Callable[[Any], Iterable[Any]], *, name: str | None = None
    ) -> "KStream":
        """function(value) -> any number of values; the key stays."""
        check_arity("flat_map_values", function, 1)
        node = self._add("KSTREAM-FLATMAPVALUES", name, lambda n: ops.flattened_values(n, function))
        return self._revalued(node)

    def select_key(
        self, function: Callable[[Any, Any], Any], *, name: str | None = None
    ) -> "KStream":
        """function(key, value) -> key; the value stays."""
        check_arity("select_key", function, 2)
        node = self._add("KSTREAM-KEY-SELECT", name, lambda n: ops.keyed(n, function))
        return KStream(
            self._builder, node, self._builder.key_serde, self._value_serde, rekeyed=True
        )

    def peek(self, function: Callable[[Any, Any], object], *, name: str | None = None) -> "KStream":
        """Call function(key, value) for each record; nothing changes."""
        check_arity("peek", function, 2)
        return self._same(self._add("KSTREAM-PEEK", name, lambda n: ops.peeked(n, function)))

    def merge(self, *others: "KStream", name: str | None = None) -> "KStream":
        """Records of this and the other streams; serdes are this one's."""
        if any(other._builder is not self._builder for other in others):
            raise InvalidTopology(
                "merge: a stream of another builder: one topology has one builder"
            )
        parents = (self._node, *(other._node for other in others))
        node = self._builder.node("KSTREAM-MERGE", name, parents, lambda _: ops.passed())
        rekeyed = self._rekeyed or any(other._rekeyed for other in others)
        return KStream(self._builder, node, self._key_serde, self._value_serde, rekeyed=rekeyed)

    def branch(
        self, *predicates: Callable[[Any, Any], object], name: str | None = None
    ) -> "tuple[KStream, ...]":
        """One stream per predicate(key, value), each record in the first that holds.

        The last is the rest.
        """
        for predicate in predicates:
            check_arity("branch", predicate, 2)
        chosen = name or self._builder.number("KSTREAM-BRANCH")
        children = [f"{chosen}-{i + 1}" for i in range(len(predicates))] + [f"{chosen}-rest"]
        self._builder.node(
            "", chosen, (self._node,), lambda n: ops.branched(n, predicates, children)
        )
        for child in children:
            self._builder.node("", child, (chosen,), lambda _: ops.passed())
        return tuple(self._same(child) for child in children)

    def repartition(
        self,
        name: str,
        *,
        key_serde: Serde[Any] | None = None,
        value_serde: Serde[Any] | None = None,
        partitions: int | None = None,
    ) -> "KStream":
        """Through the internal topic `<application id>-<name>-repartition`, keyed anew."""
        key, value = key_serde or self._key_serde, value_serde or self._value_serde
        source = self._builder.repartition(
            self._node,
            name,
            explicit=True,
            key_serde=key,
            value_serde=value,
            partitions=partitions,
        )
        return KStream(self._builder, source, key, value)

    def to(
        self,
        topic: str,
        *,
        key_serde: Serde[Any] | None = None,
        value_serde: Serde[Any] | None = None,
        name: str | None = None,
    ) -> None:
        """Write to a topic."""
        self._builder.add(
            SinkNode(
                name or self._builder.number("KSTREAM-SINK"),
                (self._node,),
                TopicName(topic),
                key_serde or self._key_serde,
                value_serde or self._value_serde,
            )
        )

    def to_table(
        self, materialized: Materialized | str | None = None, *, name: str | None = None
    ) -> "KTable":
        """The latest value per key."""
        source = self._repartitioned(name or "to-table", explicit=name is not None)
        spec, _ = source._spec(materialized, "KSTREAM-TOTABLE", source._value_serde)
        node = source._add(
            "KSTREAM-TOTABLE",
            name,
            lambda n: aggregates.tabled(n, spec, spec.key_serde, spec.value_serde),
            (spec.name,),
        )
        return KTable(self._builder, node, spec)

    def group_by_key(self, *, name: str | None = None) -> "KGroupedStream":
        """Group by the key there is; repartitioned only if an operator changed it."""
        return KGroupedStream(self, name)

    def group_by(
        self,
        function: Callable[[Any, Any], Any],
        *,
        key_serde: Serde[Any] | None = None,
        value_serde: Serde[Any] | None = None,
        name: str | None = None,
    ) -> "KGroupedStream":
        """Group by function(key, value), through a repartition topic."""
        check_arity("group_by", function, 2)
        selected = self.select_key(function)
        selected._key_serde = key_serde or self._builder.key_serde
        selected._value_serde = value_serde or self._value_serde
        return KGroupedStream(selected, name)

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
        check_arity(verb, factory, 1)
        names = tuple(store if isinstance(store, str) else store.name for store in stores)
        for store in stores:
            if not isinstance(store, str):
                self._builder.declare(store)
        node = self._add(
            "KSTREAM-PROCESSOR",
            name,
            lambda n: ops.processed(n, factory, names, per_record=per_record),
            names,
        )
        return KStream(
            self._builder, node, self._builder.key_serde, self._builder.value_serde, rekeyed=True
        )

    def _repartitioned(self, name: str, *, explicit: bool) -> "KStream":
        if not self._rekeyed:
            return self
        source = self._builder.repartition(
            self._node,
            name,
            explicit=explicit,
            key_serde=self._key_serde,
            value_serde=self._value_serde,
            partitions=None,
        )
        return KStream(self._builder, source, self._key_serde, self._value_serde)

    def _spec(
        self, materialized: Materialized | str | None, kind: str, value_serde: Serde[Any]
    ) -> tuple[KeyValueSpec[Any, Any], bool]:
        """The store of an aggregate or table, declared, and whether every update is emitted."""
        wanted = materialized
        if wanted is None:
            wanted = self._builder.store_name(kind)
        if isinstance(wanted, str):
            wanted = Materialized(wanted)
        spec = wanted.spec(self._key_serde, value_serde)
        self._builder.declare(spec)
        return spec, not wanted.caching

    def _add(
        self,
        kind: str,
        name: str | None,
        make: Callable[[str], Build],
        stores: tuple[str, ...] = (),
    ) -> str:
        return self._builder.node(kind, name, (self._node,), make, stores)

    def _same(self, node: str) -> "KStream":
        return KStream(
            self._builder, node, self._key_serde, self._value_serde, rekeyed=self._rekeyed
        )

    def _revalued(self, node: str) -> "KStream":
        return KStream(
            self._builder, node, self._key_serde, self._builder.value_serde, rekeyed=self._rekeyed
        )


class KGroupedStream:
    """Records grouped by key; the repartition topic is named after `name`, else after the store."""

    def __init__(self, stream: KStream, name: str | None) -> None:
        self._stream = stream
        self._name = name

    def count(
        self, materialized: Materialized | str | None = None, *, name: str | None = None
    ) -> "KTable":
        """Records per key, as INT64; records with a null key are dropped."""
        return self._aggregate(
            materialized.of_counts() if isinstance(materialized, Materialized) else materialized,
            serdes.INT64,
            name,
            lambda node, spec, every: aggregates.counted(
                node, spec, spec.key_serde, every_update=every
            ),
        )

    def reduce(
        self,
        function: Callable[[Any, Any], Any],
        materialized: Materialized | str | None = None,
        *,
        name: str | None = None,
    ) -> "KTable":
        """function(old, new) per key; the first value stands as it is."""
        check_arity("reduce", function, 2)
        return self._aggregate(
            materialized,
            self._stream._value_serde,
            name,
            lambda node, spec, every: aggregates.aggregated(
                node,
                spec,
                spec.key_serde,
                lambda _key, value, old: function(old, value),
                None,
                every_update=every,
            ),
        )

    def aggregate(
        self,
        initial: Callable[[], Any],
        function: Callable[[Any, Any, Any], Any],
        materialized: Materialized | str | None = None,
        *,
        name: str | None = None,
    ) -> "KTable":
        """function(key, value, aggregate) from initial(); None deletes the key."""
        check_arity("aggregate initial", initial, 0)
        check_arity("aggregate", function, 3)
        return self._aggregate(
            materialized,
            self._stream._builder.value_serde,
            name,
            lambda node, spec, every: aggregates.aggregated(
                node, spec, spec.key_serde, function, initial, every_update=every
            ),
        )

    def _aggregate(
        self,
        materialized: Materialized | str | None,
        value_serde: Serde[Any],
        name: str | None,
        make: Callable[[str, KeyValueSpec[Any, Any], bool], Build],
    ) -> "KTable":
        stream = self._stream
        spec, every_update = stream._spec(materialized, "KSTREAM-AGGREGATE", value_serde)
        topic = self._name or spec.name
        explicit = self._name is not None or materialized is not None
        source = stream._repartitioned(topic, explicit=explicit)
        node = source._add(
            "KSTREAM-AGGREGATE", name, lambda n: make(n, spec, every_update), (spec.name,)
        )
        return KTable(stream._builder, node, spec)


class KTable:
    """A table: the latest value per key, kept in a store."""

    def __init__(self, builder: Collector, node: str, spec: KeyValueSpec[Any, Any]) -> None:
        self._builder = builder
        self._node = node
        self._store = spec

    @property
    def store(self) -> str:
        """The name of the store behind it."""
        return self._store.name

    def to_stream(self, *, name: str | None = None) -> KStream:
        """Its updates as a stream; a null value is a delete."""
        node = self._builder.node("KTABLE-TOSTREAM", name, (self._node,), lambda _: ops.passed())
        return KStream(self._builder, node, self._store.key_serde, self._store.value_serde)
