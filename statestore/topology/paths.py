"""Which ways records take through a sub-topology, where a batch must not run ahead on one of them.

A batch passes one operator after another. Where records from one node reach another node, a store
or a topic by two ways, all of them would take the first way before any takes the second: a join
would show a record what came after it, a merge would change the order. From there they go on one by
one, as in Kafka Streams.
"""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from statestore.topology.graph import OperatorNode, SinkNode, SourceNode, SubTopology, TopicName


class OneByOne(NamedTuple):
    """Nodes that hand their records on one by one, and topics whose sources take them so."""

    nodes: frozenset[str]
    topics: frozenset[TopicName]


def one_by_one(part: SubTopology) -> OneByOne:
    """Where a batch would overtake itself: at the last node, or the topic, before ways part."""
    meetings = {node.name: _meetings(part, (node.name,)) for node in part.nodes}
    children: dict[str, list[str]] = {}
    for node in part.nodes:
        for parent in node.parents:
            children.setdefault(parent, []).append(node.name)
    nodes = {
        name
        for name, found in meetings.items()
        if not any(found <= meetings[child] for child in children.get(name, ())) and found
    }
    topics = set()
    for topic in part.source_topics:
        sources = [node.name for node in part.sources if topic in node.topics]
        found = _meetings(part, sources)
        if not any(found <= meetings[source] for source in sources):
            topics.add(topic)
    return OneByOne(frozenset(nodes), frozenset(topics))


def _meetings(part: SubTopology, starts: Iterable[str]) -> set[str]:
    """What records handed on by `starts` reach by two ways: nodes, written stores and topics."""
    ways: dict[str, int] = dict.fromkeys(starts, 1)
    touched: Counter[str] = Counter()
    written: set[str] = set()
    for node in part.nodes:
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
        # A join only reads its stores.
        if not (isinstance(node, OperatorNode) and node.copartitioned):
            written.update(things)
    found = {f"node {name}" for name, count in ways.items() if count > 1}
    return found | {thing for thing in written if touched[thing] > 1}
