"""Sub-topologies: the connected parts of a topology, and the ways that records take through one.

A batch passes one operator after another. Where records from one node reach another node, a store
or a topic by two ways, all of them would take the first way before any of them takes the second: a
join would show a record what came after it, and a merge would change the order. From such a node
on, records go one by one, as in Kafka Streams.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from statestore.topology.nodes import (
    Node,
    OperatorNode,
    SinkNode,
    SourceNode,
    TopicName,
    children_of,
)


class OneByOne(NamedTuple):
    """The nodes that hand their records on one by one, and the topics whose sources do."""

    nodes: frozenset[str]
    topics: frozenset[TopicName]


@dataclass(frozen=True)
class SubTopology:
    """One connected part of a topology: a stream task runs it for one partition."""

    ordinal: int
    nodes: tuple[Node, ...]

    @property
    def sources(self) -> tuple[SourceNode, ...]:
        return tuple(node for node in self.nodes if isinstance(node, SourceNode))

    @property
    def sinks(self) -> tuple[SinkNode, ...]:
        return tuple(node for node in self.nodes if isinstance(node, SinkNode))

    @property
    def source_topics(self) -> tuple[TopicName, ...]:
        return tuple(dict.fromkeys(topic for node in self.sources for topic in node.topics))

    @property
    def stores(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(store for node in self.nodes for store in node.stores))

    @property
    def global_stores(self) -> tuple[str, ...]:
        """The stores of global tables that its nodes read."""
        operators = (node for node in self.nodes if isinstance(node, OperatorNode))
        return tuple(dict.fromkeys(store for node in operators for store in node.global_stores))

    @property
    def fans_out(self) -> bool:
        """Whether a user's code may write much more to its stores than it reads."""
        return bool(self.stores) and any(
            isinstance(node, OperatorNode) and node.fans_out for node in self.nodes
        )

    def below(self, names: Collection[str]) -> frozenset[str]:
        """Return the nodes that are reached from these, and these."""
        found = set(names)
        for node in self.nodes:  # Parents come before their children.
            if not found.isdisjoint(node.parents):
                found.add(node.name)
        return frozenset(found)

    def width(self, counts: Mapping[TopicName, int], least: Mapping[str, int]) -> int:
        """Return how many stream tasks it has: one for each partition of its widest topic.

        `counts`: the partitions of topics, as far as they are known. `least`: by changelog, without
        the application's id, how many it has at least.
        """
        of_topics = [counts[topic] for topic in self.source_topics if topic in counts]
        of_stores = [least.get(f"{store}-changelog", 0) for store in self.stores] if least else []
        return max([*of_topics, *of_stores], default=0)

    def one_by_one(self) -> OneByOne:
        """Return where a batch would overtake itself: the last node or topic before ways part.

        Ways that part below one child only are that child's.
        """
        meetings = {node.name: self._meetings((node.name,)) for node in self.nodes}
        children = children_of(self.nodes)
        nodes = {
            name
            for name, found in meetings.items()
            if not any(found.items() <= meetings[child].items() for child in children.get(name, ()))
            and found
        }
        topics = set()
        for topic in self.source_topics:
            sources = [node.name for node in self.sources if topic in node.topics]
            found = self._meetings(sources)
            if not any(found.items() <= meetings[source].items() for source in sources):
                topics.add(topic)
        return OneByOne(frozenset(nodes), frozenset(topics))

    def _meetings(self, starts: Iterable[str]) -> dict[str, int]:
        """Return the nodes, written stores and topics that records reach by how many ways, above 1.

        Of a store or topic, it is by how many nodes.
        """
        ways: dict[str, int] = dict.fromkeys(starts, 1)
        touched: Counter[str] = Counter()
        written: set[str] = set()
        for node in self.nodes:
            if node.name in ways or isinstance(node, SourceNode):
                continue
            count = sum(ways.get(parent, 0) for parent in node.parents)
            if not count:
                continue
            ways[node.name] = count
            things = [f"store {store}" for store in node.stores]
            if isinstance(node, SinkNode):
                things.append(f"topic {node.topic}")
            touched.update(things)
            # Most joins only read their stores.
            if not (isinstance(node, OperatorNode) and node.only_reads):
                written.update(things)
        found = {f"node {name}": count for name, count in ways.items() if count > 1}
        return found | {thing: touched[thing] for thing in written if touched[thing] > 1}


def connected(nodes: Sequence[Node]) -> tuple[SubTopology, ...]:
    """Return the connected components over nodes, shared stores and shared source topics.

    Ordinals follow the order in which the first node of each component was added (SEMANTICS T1).
    """
    group: dict[str, str] = {}

    def find(item: str) -> str:
        group.setdefault(item, item)
        while group[item] != item:
            item = group[item]
        return item

    for node in nodes:
        root = find(f"node {node.name}")
        linked = [f"node {parent}" for parent in node.parents]
        linked += [f"store {store}" for store in node.stores]
        if isinstance(node, SourceNode):
            linked += [f"topic {topic}" for topic in node.topics]
        for other in linked:
            group[find(other)] = root
    parts: dict[str, list[Node]] = {}
    for node in nodes:
        parts.setdefault(find(f"node {node.name}"), []).append(node)
    return tuple(SubTopology(i, tuple(nodes)) for i, nodes in enumerate(parts.values()))
