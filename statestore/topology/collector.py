"""Where the DSL's nodes gather: names, stores and repartition topics of a topology being written.

Used by `builder` and `streams` only. Generated names are Kafka Streams'.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from statestore.errors import InvalidTopology, Misuse
from statestore.layout.folders import check_store_name
from statestore.model.modes import Span, span_ms
from statestore.model.records import Serde
from statestore.stores import serdes
from statestore.stores.specs import BuiltInSpec, KeyValueSpec, StoreSpec, VersionedSpec
from statestore.topology.graph import (
    Build,
    Node,
    OperatorNode,
    Repartition,
    SinkNode,
    SourceNode,
    TopicName,
    Topology,
)


@dataclass(frozen=True)
class Materialized:
    """How an aggregate or table keeps its state.

    `caching=False` emits every update (INTERFACE rule 6). `history_retention_ms`: a table keeps its
    versions that long (KIP-889).
    """

    store: str | KeyValueSpec[Any, Any] | VersionedSpec[Any, Any]
    history_retention_ms: Span | None = field(default=None, kw_only=True)
    caching: bool = True
    changelog_config: Mapping[str, str] = field(default_factory=dict)
    key_serde: Serde[Any] | None = None
    value_serde: Serde[Any] | None = None

    def __post_init__(self) -> None:
        given: object = self.store
        if not isinstance(given, str | KeyValueSpec | VersionedSpec):
            raise Misuse(
                f"Materialized wants a name or a key-value store, not {type(given).__name__}: "
                "a store of your own goes to process()"
            )
        if self.history_retention_ms is not None and not isinstance(given, str):
            raise Misuse(
                "Materialized: history_retention_ms goes with a store's name; a spec says itself "
                "whether it keeps history"
            )

    @property
    def name(self) -> str:
        """The store's."""
        return self.store if isinstance(self.store, str) else self.store.name

    def spec(self, key_serde: Serde[Any], value_serde: Serde[Any]) -> KeyValueSpec[Any, Any]:
        """The store: a named one has these serdes unless told, a spec its own unless told."""
        made = self.table_spec(key_serde, value_serde)
        if isinstance(made, VersionedSpec):
            raise InvalidTopology(
                f"store {made.name!r}: only table() and to_table() keep history: leave out "
                "history_retention_ms, or go on by to_stream() and to_table()"
            )
        return made

    def table_spec(self, key_serde: Serde[Any], value_serde: Serde[Any]) -> BuiltInSpec:
        """The store of a table(): as `spec`, maybe with history."""
        own = self.store
        if isinstance(own, str):
            own = self._named(own, key_serde, value_serde)
        if isinstance(own, KeyValueSpec):
            own = replace(own, row_times=True)
        return replace(
            own,
            key_serde=self.key_serde or own.key_serde,
            value_serde=self.value_serde or own.value_serde,
            changelog_config={**own.changelog_config, **self.changelog_config},
        )

    def _named(self, name: str, key_serde: Serde[Any], value_serde: Serde[Any]) -> BuiltInSpec:
        if self.history_retention_ms is None:
            return KeyValueSpec(name, key_serde, value_serde)
        return VersionedSpec(name, span_ms(self.history_retention_ms), key_serde, value_serde)

    def of_counts(self) -> "Materialized":
        """The same with INT64 values, as count() writes; other values are refused."""
        own = None if isinstance(self.store, str) else self.store.value_serde
        told = self.value_serde or own or serdes.INT64
        # A spec that names no serde has BYTES.
        if told is not serdes.INT64 and (self.value_serde or own is not serdes.BYTES):
            raise InvalidTopology(f"count() gives INT64, the store's values are {told.name}")
        return replace(self, value_serde=serdes.INT64)


class Collector:
    """The nodes so far; `key_serde` and `value_serde` serve every node that names none."""

    def __init__(self, key_serde: Serde[Any], value_serde: Serde[Any]) -> None:
        self.key_serde = key_serde
        self.value_serde = value_serde
        self._nodes: list[Node] = []
        self._stores: dict[str, StoreSpec] = {}
        self._kept: set[str] = set()
        self._repartitions: dict[str, Repartition] = {}
        self._unnamed: list[str] = []
        self._counter = 0

    def build(self) -> Topology:
        """The topology; InvalidTopology names what is wrong."""
        check_names(self._nodes)
        return Topology(
            tuple(self._nodes), dict(self._stores), dict(self._repartitions), tuple(self._unnamed)
        )

    def add(self, node: Node) -> None:
        """Append a node."""
        self._nodes.append(node)

    def node(
        self,
        kind: str,
        name: str | None,
        parents: tuple[str, ...],
        make: Callable[[str], Build],
        stores: tuple[str, ...] = (),
        *,
        copartitioned: bool = False,
        keeps: bool = False,
    ) -> str:
        """Add an operator, named or numbered; returns its name."""
        chosen = name or self.number(kind)
        self.add(OperatorNode(chosen, parents, make(chosen), stores, copartitioned, keeps))
        return chosen

    def declare(self, spec: StoreSpec) -> None:
        """Make a store known; a different one of the same name is refused."""
        if self._stores.setdefault(spec.name, spec) != spec:
            raise InvalidTopology(f"two different stores are named {spec.name!r}: name them apart")
        if isinstance(spec, KeyValueSpec) and spec.row_times:
            self._stores[spec.name] = spec

    def keep(self, spec: StoreSpec) -> None:
        """Make the store known that one operator keeps its rows in: no other may (T1a)."""
        self.declare(spec)
        if spec.name in self._kept:
            raise InvalidTopology(
                f"two operators keep their rows in a store named {spec.name!r}: name them apart, "
                "or go on twice from the one table"
            )
        self._kept.add(spec.name)

    def store_name(self, kind: str) -> str:
        """A generated store name, noted as one (KIP-1111)."""
        name = f"{kind}-STATE-STORE-{self._counter:010d}"
        self._counter += 1
        self.note_unnamed(name)
        return name

    def note_unnamed(self, store: str) -> None:
        """The name of this store is made from a node's number, which changes with the pipeline."""
        self._unnamed.append(f"store {store}")

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
        self.add(SinkNode(self.number("KSTREAM-SINK"), (parent,), topic, key_serde, value_serde))
        source = SourceNode(self.number("KSTREAM-SOURCE"), (topic,), key_serde, value_serde)
        self.add(source)
        return source.name

    def number(self, kind: str) -> str:
        """A generated node name."""
        name = f"{kind}-{self._counter:010d}"
        self._counter += 1
        return name


def check_names(nodes: Iterable[Node]) -> None:
    """InvalidTopology on a name used twice."""
    seen: set[str] = set()
    for node in nodes:
        if node.name in seen:
            raise InvalidTopology(f"two nodes are named {node.name!r}: name them apart")
        seen.add(node.name)
