"""Which ways records take through a sub-topology, where a batch must not run ahead on one of them.

A batch passes one operator after another. Where its records reach a node, a store or a topic by two
ways, all of them would take the first way before any takes the second: a join would show a record
what came after it, a merge would change the order. There they go one by one, as in Kafka Streams.
"""

from collections import Counter

from statestore.topology.graph import OperatorNode, SinkNode, SourceNode, SubTopology, TopicName


def meeting_again(part: SubTopology) -> tuple[TopicName, ...]:
    """The source topics whose records meet themselves again."""
    return tuple(topic for topic in part.source_topics if _meets(part, topic))


def _meets(part: SubTopology, topic: TopicName) -> bool:
    ways: dict[str, int] = {}
    touched: Counter[str] = Counter()
    written: set[str] = set()
    for node in part.nodes:
        if isinstance(node, SourceNode):
            ways[node.name] = int(topic in node.topics)
            continue
        ways[node.name] = sum(ways[parent] for parent in node.parents)
        if ways[node.name] > 1:
            return True
        if ways[node.name]:
            things = [f"store {store}" for store in node.stores]
            if isinstance(node, SinkNode):
                things.append(f"topic {node.topic}")
            touched.update(things)
            # A join only reads its stores.
            if not (isinstance(node, OperatorNode) and node.copartitioned):
                written.update(things)
    return any(touched[thing] > 1 for thing in written)
