"""Collector: the nodes, stores and repartition topics of a topology that is being written.

Internal to the DSL. Generated names are those of Kafka Streams.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from statestore.errors import InvalidTopology
from statestore.layout.folders import check_store_name
from statestore.model.records import Serde
from statestore.stores.kinds.registry import kind_of
from statestore.stores.specs import StoreSpec
from statestore.topology.graph import Topology
from statestore.topology.nodes import (
    Build,
    GlobalSource,
    LookupSource,
    Node,
    OperatorNode,
    Partitioner,
    Repartition,
    SinkNode,
    SourceNode,
    TopicName,
)


class Collector:
    """The topology so far; `key_serde` and `value_serde` serve every node that names none."""

    def __init__(self, key_serde: Serde[Any], value_serde: Serde[Any]) -> None:
        self.key_serde = key_serde
        self.value_serde = value_serde
        self._nodes: list[Node] = []
        self._stores: dict[str, StoreSpec] = {}
        self._kept: set[str] = set()
        self._repartitions: dict[str, Repartition] = {}
        self._globals: dict[str, GlobalSource | LookupSource] = {}
        self._unnamed: list[str] = []
        self._takes_null_keys: set[str] = set()
        self._counter = 0

    def build(self) -> Topology:
        """Return the topology; InvalidTopology says what is wrong with it."""
        nodes = self._without_null_keys(map(self._with_globals, self._nodes))
        sources = tuple(self._globals.values())
        check_names([*nodes, *sources])
        for name in self._globals.keys() & self._stores.keys():
            raise InvalidTopology(
                f"a global table or a lookup and an operator have a store named {name!r}: give "
                "each its own name"
            )
        return Topology(
            nodes,
            dict(self._stores),
            dict(self._repartitions),
            tuple(self._unnamed),
            tuple(source for source in sources if isinstance(source, GlobalSource)),
            tuple(source for source in sources if isinstance(source, LookupSource)),
        )

    def _without_null_keys(self, nodes: Iterable[Node]) -> tuple[Node, ...]:
        """Return the nodes, with sinks that drop records without a key before internal topics.

        As in Kafka Streams (KIP-962), a topic has them if a left or outer join of a stream is
        anywhere below it.
        """
        found, taken, topics = list(nodes), set(self._takes_null_keys), set[TopicName]()
        # A node comes after its parents, and the source of an internal topic after its sink.
        for node in reversed(found):
            if isinstance(node, SinkNode) and node.topic in topics:
                taken.add(node.name)
            if node.name in taken:
                taken.update(node.parents)
                if isinstance(node, SourceNode):
                    topics.update(node.topics)
        return tuple(
            replace(node, drops_null_keys=True)
            if isinstance(node, SinkNode) and node.topic.internal and node.name not in taken
            else node
            for node in found
        )

    def take_null_keys(self, nodes: Iterable[str]) -> None:
        """Note that these nodes have results for records without a key."""
        self._takes_null_keys.update(nodes)

    def _with_globals(self, node: Node) -> Node:
        """Return the node with its stores told apart: its stream task's, and those of all."""
        shared = tuple(name for name in node.stores if name in self._globals)
        if not shared or not isinstance(node, OperatorNode):
            return node
        own = tuple(name for name in node.stores if name not in self._globals)
        return replace(node, stores=own, global_stores=shared)

    def add(self, node: Node) -> None:
        """Add a node."""
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
        writes: bool = False,
        terms: tuple[str, ...] = (),
        fans_out: bool = False,
        says: str = "",
    ) -> str:
        """Add an operator under the name given or a generated one; return the name."""
        chosen = name or self.number(kind)
        made = OperatorNode(
            chosen,
            parents,
            make(chosen),
            stores,
            copartitioned,
            keeps,
            writes,
            terms=terms,
            fans_out=fans_out,
            says=" ".join(says.split()),
        )
        self.add(made)
        return chosen

    def declare(self, spec: StoreSpec) -> None:
        """Make a store known; InvalidTopology if a different one has the same name."""
        known = self._stores.setdefault(spec.name, spec)
        if known != spec:
            raise InvalidTopology(
                f"two different stores are named {spec.name!r}: give each its own name"
            )
        self._stores[spec.name] = kind_of(spec).for_both(known, spec)

    def keep(self, spec: StoreSpec) -> None:
        """Make a store known in which one operator keeps its rows; no other may (SEMANTICS T1a)."""
        self.declare(spec)
        if spec.name in self._kept:
            raise InvalidTopology(
                f"two operators keep their rows in a store named {spec.name!r}: give each store "
                "its own name, or use the table of one operator twice"
            )
        self._kept.add(spec.name)

    def keep_global(self, source: GlobalSource | LookupSource) -> None:
        """Make a global table or lookup known; InvalidTopology if its store is another's, too."""
        if source.spec.name in self._globals:
            raise InvalidTopology(
                f"two global tables or lookups have a store named {source.spec.name!r}: give "
                "each its own name, or join one of them twice"
            )
        self._globals[source.spec.name] = source

    def store_name(self, kind: str, *, unnamed: bool = True) -> str:
        """Return a generated store name, and note that it is generated (KIP-1111).

        `unnamed` False: nothing is lost if the name changes.
        """
        name = f"{kind}-STATE-STORE-{self._counter:010d}"
        self._counter += 1
        if unnamed:
            self.note_unnamed(name)
        return name

    def note_unnamed(self, store: str) -> None:
        """Note that a store's name has a node's number in it, which changes with the pipeline."""
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
        taker: str,
        partitioner: Partitioner | None = None,
    ) -> str:
        """Add a sink and a source with an internal topic between them; return the source's name.

        `taker`: which call gives the topic its serdes.
        """
        check_store_name(name)
        if name in self._repartitions:
            raise InvalidTopology(
                f"two repartition topics are named {name!r}: give each its own name"
            )
        if not explicit:
            self._unnamed.append(f"repartition topic {name}")
        self._repartitions[name] = Repartition(name, partitions, explicit)
        topic = TopicName(name, internal=True)
        sink = self.number("KSTREAM-SINK")
        self.add(
            SinkNode(
                sink,
                (parent,),
                topic,
                key_serde,
                value_serde,
                taker=taker,
                partitioner=partitioner,
            )
        )
        source = SourceNode(self.number("KSTREAM-SOURCE"), (topic,), key_serde, value_serde)
        self.add(source)
        return source.name

    def number(self, kind: str) -> str:
        """Return a generated node name."""
        name = f"{kind}-{self._counter:010d}"
        self._counter += 1
        return name


def check_names(nodes: Iterable[Node | GlobalSource | LookupSource]) -> None:
    """Raise InvalidTopology if two nodes have one name."""
    seen: set[str] = set()
    for node in nodes:
        if node.name in seen:
            raise InvalidTopology(f"two nodes are named {node.name!r}: give each its own name")
        seen.add(node.name)
