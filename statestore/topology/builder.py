"""The DSL: StreamsBuilder, KStream, KGroupedStream, KTable; `build()` gives a Topology.

Names follow Kafka Streams, generated ones too. Nothing runs here: wrong graphs and wrong callables are refused
with the node's name (INTERFACE rules 3, 4, 8).
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from statestore.errors import InvalidTopology, Misuse
from statestore.layout import check_store_name
from statestore.model import Serde
from statestore.stores import serdes
from statestore.stores.specs import KeyValueSpec, StoreSpec
from statestore.topology import operators as ops
from statestore.topology.graph import (
    Node,
    OperatorNode,
    Repartition,
    SinkNode,
    SourceNode,
    TimestampExtractor,
    TopicName,
    Topology,
    check_names,
)


@dataclass(frozen=True)
class Materialized:
    """How an aggregate or table keeps its state; `caching=False` emits every update (INTERFACE rule 6)."""

    store: str | StoreSpec
    caching: bool = True
    changelog_config: Mapping[str, str] = field(default_factory=dict)
    key_serde: Serde[Any] | None = None
    value_serde: Serde[Any] | None = None


class StreamsBuilder:
    """Collects nodes; `key_serde` and `value_serde` serve every node that names none."""

    def __init__(
        self,
        *,
        key_serde: Serde[Any] = serdes.BYTES,
        value_serde: Serde[Any] = serdes.BYTES,
    ) -> None:
        self.key_serde = key_serde
        self.value_serde = value_serde
        self._nodes: list[Node] = []
        self._stores: dict[str, StoreSpec] = {}
        self._repartitions: dict[str, Repartition] = {}
        self._unnamed: list[str] = []
        self._counter = 0

    def stream(
        self,
        topics: str | Sequence[str],
        *,
        key_serde: Serde[Any] | None = None,
        value_serde: Serde[Any] | None = None,
        timestamp_extractor: TimestampExtractor | None = None,
        name: str | None = None,
    ) -> "KStream":
        """Records of one or more topics."""
        names = (topics,) if isinstance(topics, str) else tuple(topics)
        if not names:
            raise InvalidTopology("stream() needs at least one topic")
        node = SourceNode(
            name or self._name("KSTREAM-SOURCE"),
            tuple(TopicName(topic) for topic in names),
            key_serde or self.key_serde,
            value_serde or self.value_serde,
            timestamp_extractor,
        )
        self.add(node)
        return KStream(self, node.name, node.key_serde, node.value_serde)

    def table(
        self,
        topic: str,
        *,
        key_serde: Serde[Any] | None = None,
        value_serde: Serde[Any] | None = None,
        materialized: Materialized | str | None = None,
        timestamp_extractor: TimestampExtractor | None = None,
        name: str | None = None,
    ) -> "KTable":
        """The latest value per key of a topic."""
        source = self.stream(
            topic,
            key_serde=key_serde,
            value_serde=value_serde,
            timestamp_extractor=timestamp_extractor,
            name=self._name("KSTREAM-SOURCE"),
        )
        return source.to_table(materialized, name=name)

    def build(self) -> Topology:
        """The topology; InvalidTopology names what is wrong."""
        check_names(self._nodes)
        return Topology(
            tuple(self._nodes), dict(self._stores), dict(self._repartitions), tuple(self._unnamed)
        )

    # What the stream and table classes below use.

    def add(self, node: Node) -> None:
        """Append a node."""
        self._nodes.append(node)

    def node(
        self,
        kind: str,
        name: str | None,
        parents: tuple[str, ...],
        make: Callable[[str], ops.Build],
        stores: tuple[str, ...] = (),
    ) -> str:
        """Add an operator, named or numbered; returns its name."""
        chosen = name or self._name(kind)
        self.add(OperatorNode(chosen, parents, make(chosen), stores))
        return chosen

    def declare(self, spec: StoreSpec) -> None:
        """Make a store known; the same spec may come twice, a different one of that name is refused."""
        if self._stores.setdefault(spec.name, spec) != spec:
            raise InvalidTopology(f"two different stores are named {spec.name!r}: name them apart")

    def store_name(self, kind: str) -> str:
        """A generated store name, noted as one (KIP-1111)."""
        name = f"{kind}-STATE-STORE-{self._counter:010d}"
        self._counter += 1
        self._unnamed.append(f"store {name}")
        return name

    def repartition(
        self,
        parent: str,
        name: str,
        *,
        explicit: bool,
        key_serde: Serde[Any],
        value_serde: Serde[Any],
        partitions: int | None,
    ) -> str:
        """A sink and a source with an internal topic between them; returns the source's name."""
        check_store_name(name)
        if name in self._repartitions:
            raise InvalidTopology(f"two repartition topics are named {name!r}: name them apart")
        if not explicit:
            self._unnamed.append(f"repartition topic {name}")
        self._repartitions[name] = Repartition(name, partitions, explicit)
        topic = TopicName(name, internal=True)
        self.add(SinkNode(self._name("KSTREAM-SINK"), (parent,), topic, key_serde, value_serde))
        source = SourceNode(self._name("KSTREAM-SOURCE"), (topic,), key_serde, value_serde)
        self.add(source)
        return source.name

    def _name(self, kind: str) -> str:
        name = f"{kind}-{self._counter:010d}"
        self._counter += 1
        return name


class KStream:
    """A stream of records. Every method returns a new stream; the old one stays usable."""

    def __init__(
        self,
        builder: StreamsBuilder,
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

    def filter(self, predicate: Callable[[Any, Any], object], *, name: str | None = None) -> "KStream":
        """Keep records for which predicate(key, value) holds."""
        _check_arity("filter", predicate, 2)
        return self._same(self._add("KSTREAM-FILTER", name, lambda n: ops.filtered(n, predicate)))

    def map(self, function: Callable[[Any, Any], tuple[Any, Any]], *, name: str | None = None) -> "KStream":
        """function(key, value) -> (key, value)."""
        _check_arity("map", function, 2)
        node = self._add("KSTREAM-MAP", name, lambda n: ops.mapped(n, function))
        return KStream(
            self._builder, node, self._builder.key_serde, self._builder.value_serde, rekeyed=True
        )

    def map_values(self, function: Callable[[Any], Any], *, name: str | None = None) -> "KStream":
        """function(value) -> value; the key stays."""
        _check_arity("map_values", function, 1)
        node = self._add("KSTREAM-MAPVALUES", name, lambda n: ops.mapped_values(n, function))
        return self._revalued(node)

    def flat_map(
        self,
        function: Callable[[Any, Any], Iterable[tuple[Any, Any]]],
        *,
        name: str | None = None,
    ) -> "KStream":
        """function(key, value) -> any number of (key, value)."""
        _check_arity("flat_map", function, 2)
        node = self._add("KSTREAM-FLATMAP", name, lambda n: ops.flattened(n, function))
        return KStream(
            self._builder, node, self._builder.key_serde, self._builder.value_serde, rekeyed=True
        )

    def flat_map_values(
        self, function: Callable[[Any], Iterable[Any]], *, name: str | None = None
    ) -> "KStream":
        """function(value) -> any number of values; the key stays."""
        _check_arity("flat_map_values", function, 1)
        node = self._add(
            "KSTREAM-FLATMAPVALUES", name, lambda n: ops.flattened_values(n, function)
        )
        return self._revalued(node)

    def select_key(self, function: Callable[[Any, Any], Any], *, name: str | None = None) -> "KStream":
        """function(key, value) -> key; the value stays."""
        _check_arity("select_key", function, 2)
        node = self._add("KSTREAM-KEY-SELECT", name, lambda n: ops.keyed(n, function))
        return KStream(
            self._builder, node, self._builder.key_serde, self._value_serde, rekeyed=True
        )

    def peek(self, function: Callable[[Any, Any], object], *, name: str | None = None) -> "KStream":
        """Call function(key, value) for each record; nothing changes."""
        _check_arity("peek", function, 2)
        return self._same(self._add("KSTREAM-PEEK", name, lambda n: ops.peeked(n, function)))

    def merge(self, *others: "KStream", name: str | None = None) -> "KStream":
        """Records of this and the other streams; serdes are this one's."""
        parents = (self._node, *(other._node for other in others))
        node = self._builder.node("KSTREAM-MERGE", name, parents, lambda _: ops.passed())
        rekeyed = self._rekeyed or any(other._rekeyed for other in others)
        return KStream(self._builder, node, self._key_serde, self._value_serde, rekeyed=rekeyed)

    def branch(
        self, *predicates: Callable[[Any, Any], object], name: str | None = None
    ) -> "tuple[KStream, ...]":
        """One stream per predicate(key, value), each record in the first that holds; the last is the rest."""
        for predicate in predicates:
            _check_arity("branch", predicate, 2)
        chosen = name or self._builder._name("KSTREAM-BRANCH")
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
                name or self._builder._name("KSTREAM-SINK"),
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
            lambda _: ops.tabled(spec, spec.key_serde, spec.value_serde),
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
        _check_arity("group_by", function, 2)
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
        _check_arity(verb, factory, 1)
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
    ) -> tuple[StoreSpec, bool]:
        """The store of an aggregate or table, declared, and whether every update is emitted."""
        wanted = materialized
        if wanted is None:
            wanted = self._builder.store_name(kind)
        if isinstance(wanted, str):
            wanted = Materialized(wanted)
        if isinstance(wanted.store, str):
            spec: StoreSpec = KeyValueSpec(
                wanted.store,
                wanted.key_serde or self._key_serde,
                wanted.value_serde or value_serde,
                changelog_config=dict(wanted.changelog_config),
            )
        else:
            spec = wanted.store
        self._builder.declare(spec)
        return spec, not wanted.caching

    def _add(
        self,
        kind: str,
        name: str | None,
        make: Callable[[str], ops.Build],
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

    def count(self, materialized: Materialized | str | None = None, *, name: str | None = None) -> "KTable":
        """Records per key, as INT64; records with a null key are dropped."""
        return self._aggregate(
            materialized,
            serdes.INT64,
            name,
            lambda _node, spec, every: ops.counted(spec, spec.key_serde, every_update=every),
        )

    def reduce(
        self,
        function: Callable[[Any, Any], Any],
        materialized: Materialized | str | None = None,
        *,
        name: str | None = None,
    ) -> "KTable":
        """function(old, new) per key; the first value stands as it is."""
        _check_arity("reduce", function, 2)
        return self._aggregate(
            materialized,
            self._stream._value_serde,
            name,
            lambda node, spec, every: ops.aggregated(
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
        _check_arity("aggregate initial", initial, 0)
        _check_arity("aggregate", function, 3)
        return self._aggregate(
            materialized,
            self._stream._builder.value_serde,
            name,
            lambda node, spec, every: ops.aggregated(
                node, spec, spec.key_serde, function, initial, every_update=every
            ),
        )

    def _aggregate(
        self,
        materialized: Materialized | str | None,
        value_serde: Serde[Any],
        name: str | None,
        make: Callable[[str, StoreSpec, bool], ops.Build],
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

    def __init__(self, builder: StreamsBuilder, node: str, spec: StoreSpec) -> None:
        self._builder = builder
        self._node = node
        self._store = spec

    @property
    def store(self) -> str:
        """The name of the store behind it."""
        return self._store.name

    def to_stream(self, *, name: str | None = None) -> KStream:
        """Its updates as a stream; a null value is a delete."""
        node = self._builder.node(
            "KTABLE-TOSTREAM", name, (self._node,), lambda _: ops.passed()
        )
        return KStream(self._builder, node, self._store.key_serde, self._store.value_serde)


def _check_arity(where: str, function: Callable[..., Any], count: int) -> None:
    """Misuse unless `function` can be called with `count` positional arguments."""
    if not callable(function):
        raise Misuse(f"{where}: want a function of {count} arguments, got {function!r}")
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError as error:
        raise Misuse(
            f"{where}: {getattr(function, '__name__', function)!r} cannot take "
            f"{count} arguments ({error})"
        ) from error
    except ValueError:
        return  # A builtin without a signature: called as it is.
