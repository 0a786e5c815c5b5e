"""Which inputs of the user's a record behind a repartition, or what an operator made, came from.

A repartition topic is internal: its records do not say which record of an input each was, because
that would cost every record something. What the topology says costs nothing: which topics are read
above the sinks that write it. It is asked only when something fails.
"""

from collections.abc import Collection, Iterator, Sequence

from statestore.topology.nodes import SinkNode, SourceNode, TopicName
from statestore.topology.sub_topologies import SubTopology


class Origins:
    """The ways by which records come to the nodes of a topology."""

    def __init__(self, parts: Sequence[SubTopology] = (), application_id: str = "") -> None:
        self._parts = tuple(parts)
        self._application_id = application_id

    def of_topic(self, topic: str) -> list[str]:
        """Return the user's topics that the records of an internal topic come from; sorted.

        It is empty for a topic of the user's.
        """
        names = {
            name.full(self._application_id): name
            for part in self._parts
            for name in part.source_topics
            if name.internal
        }
        return self._users({names[topic]}) if topic in names else []

    def of_node(self, ordinal: int, node: str) -> list[str]:
        """Return the user's topics that reach a node of a sub-topology; sorted."""
        return self._users(self._read_above(ordinal, {node}))

    def of_store(self, ordinal: int, store: str) -> list[str]:
        """Return the user's topics that reach the nodes which have a store; sorted."""
        part = self._part(ordinal)
        names = set() if part is None else {n.name for n in part.nodes if store in n.stores}
        return self._users(self._read_above(ordinal, names))

    def _users(self, topics: Collection[TopicName]) -> list[str]:
        found, left = set(topics), list(topics)
        while left:
            for above in self._written_from(left.pop()):
                if above not in found:
                    found.add(above)
                    left.append(above)
        return sorted(topic.name for topic in found if not topic.internal)

    def _written_from(self, topic: TopicName) -> Iterator[TopicName]:
        """Yield the topics that are read above the sinks of a topic."""
        if not topic.internal:
            return
        for part in self._parts:
            sinks = {
                node.name
                for node in part.nodes
                if isinstance(node, SinkNode) and node.topic == topic
            }
            yield from self._read_above(part.ordinal, sinks)

    def _read_above(self, ordinal: int, names: Collection[str]) -> set[TopicName]:
        part, above, found = self._part(ordinal), set(names), set[TopicName]()
        for node in reversed(part.nodes if part is not None else ()):  # Children come first.
            if node.name in above:
                above.update(node.parents)
                if isinstance(node, SourceNode):
                    found.update(node.topics)
        return found

    def _part(self, ordinal: int) -> SubTopology | None:
        return next((part for part in self._parts if part.ordinal == ordinal), None)


def from_inputs(topics: Sequence[str]) -> str:
    """Return the topics for a message; "" if there are none."""
    return f"from {', '.join(topics)}" if topics else ""
