"""How many partitions each source topic of a topology has, and whether joined inputs agree."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from statestore.errors import NotCopartitioned, TopicMissing
from statestore.topology.nodes import Node, OperatorNode, Repartition, SourceNode, TopicName
from statestore.topology.sub_topologies import SubTopology


class Joined(NamedTuple):
    """A node that joins, and the topics whose keys meet in it: their partition counts are equal."""

    node: str
    topics: tuple[TopicName, ...]


def topics_above(nodes: Sequence[Node], names: Iterable[str]) -> tuple[TopicName, ...]:
    """Return the source topics whose records reach the named nodes."""
    parents = {node.name: node.parents for node in nodes}
    left, above = list(names), set()
    while left:
        above.add(name := left.pop())
        left += set(parents[name]) - above
    sources = [n for n in nodes if isinstance(n, SourceNode) and n.name in above]
    return tuple(dict.fromkeys(topic for source in sources for topic in source.topics))


def joined(nodes: Sequence[Node]) -> tuple[Joined, ...]:
    """Return the nodes that join, each with the topics whose keys meet in it."""
    found = []
    for node in nodes:
        if isinstance(node, OperatorNode) and node.copartitioned:
            shared = set(node.stores)
            left = [n.name for n in nodes if n is node or shared.intersection(n.stores)]
            found.append(Joined(node.name, topics_above(nodes, left)))
    return tuple(found)


@dataclass(frozen=True)
class PartitionCounts:
    """Works out the counts of internal topics from those of the user's topics (SEMANTICS T2).

    `parts` are in the order in which they feed each other. `existing` are the user's topics.
    """

    parts: Sequence[SubTopology]
    joined: Sequence[Joined]
    repartitions: Mapping[str, Repartition]
    existing: Mapping[str, int]

    def counts(self) -> dict[TopicName, int]:
        """Return the partition count of every source topic.

        TopicMissing if a topic of the user's is not there; NotCopartitioned if joined inputs
        differ.
        """
        counts: dict[TopicName, int] = {}
        previous: dict[TopicName, int] | None = None
        fixed = self._fixed()
        # Repeated until nothing changes: in a cycle, writers may come after their readers.
        while counts != previous:
            previous = dict(counts)
            for part in self.parts:
                self._count_part(part, fixed, counts)
            for _, topics in self.joined:
                widest = max(counts.get(topic, 0) for topic in topics)
                counts |= {t: widest for t in topics if t.internal and t not in fixed}
        self._check_copartitioned(counts)
        return counts

    def _fixed(self) -> dict[TopicName, int]:
        """Return the internal topics whose count is declared, or that of what they join with."""
        declared = {name: made.partitions for name, made in self.repartitions.items()}
        fixed = {TopicName(n, internal=True): count for n, count in declared.items() if count}
        for _, topics in self.joined:
            known = [
                fixed[t] if t.internal else self.existing.get(t.name, 0)
                for t in topics
                if not t.internal or t in fixed
            ]
            if known:
                fixed |= {t: max(known) for t in topics if t.internal and t not in fixed}
        return fixed

    def _count_part(
        self, part: SubTopology, fixed: Mapping[TopicName, int], counts: dict[TopicName, int]
    ) -> None:
        for topic in part.source_topics:
            if topic.internal:
                if topic in fixed:
                    counts[topic] = fixed[topic]
            elif topic.name not in self.existing:
                raise TopicMissing(
                    f"topic {topic.name!r} does not exist: create it, then start again"
                )
            else:
                counts[topic] = self.existing[topic.name]
        tasks = max((counts[t] for t in part.source_topics if t in counts), default=0)
        for sink in part.sinks:
            if sink.topic.internal and sink.topic not in fixed:
                counts[sink.topic] = max(tasks, counts.get(sink.topic, 0))

    def _check_copartitioned(self, counts: Mapping[TopicName, int]) -> None:
        for node, topics in self.joined:
            found = {topic.without_application(): counts[topic] for topic in topics}
            if len(set(found.values())) > 1:
                listed = ", ".join(f"{name}: {count}" for name, count in found.items())
                raise NotCopartitioned(
                    f"{node} joins topics with different partition counts ({listed}): "
                    "repartition() one side or recreate the topic"
                )
