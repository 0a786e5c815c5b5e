"""How a topology is written down: for people, and as the record of what was deployed."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from statestore.stores.specs import StoreSpec
from statestore.topology.nodes import Node, OperatorNode, SinkNode, SourceNode, children_of
from statestore.topology.sub_topologies import SubTopology


def description(parts: Sequence[SubTopology]) -> str:
    """Return sub-topologies, nodes, stores and topics as text in Kafka Streams' layout."""
    lines = ["Topologies:"]
    for part in parts:
        children = children_of(part.nodes)
        lines.append(f"   Sub-topology: {part.ordinal}")
        for node in part.nodes:
            lines.append(f"    {_headline(node)}")
            if not isinstance(node, SinkNode):
                lines.append(f"      --> {', '.join(children.get(node.name, ())) or 'none'}")
            if node.parents:
                lines.append(f"      <-- {', '.join(node.parents)}")
        lines.append("")
    return "\n".join(lines)


def fingerprint(parts: Sequence[SubTopology], stores: Mapping[str, StoreSpec]) -> str:
    """Return a hash of the description and of the serdes and terms of all stores."""
    told = {n: (s.key_serde.name, s.value_serde.name, *s.terms) for n, s in stores.items()}
    text = description(parts) + json.dumps(told, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def deployed(parts: Sequence[SubTopology], stores: Mapping[str, StoreSpec]) -> dict[str, Any]:
    """Return what is written beside the state: where each store lives and how to decode it."""
    where = {store: part.ordinal for part in parts for store in part.stores}
    return {
        "version": 1,
        "fingerprint": fingerprint(parts, stores),
        "sub_topologies": [
            {
                "ordinal": part.ordinal,
                "source_topics": [t.without_application() for t in part.source_topics],
                "internal": [t.without_application() for t in part.source_topics if t.internal],
            }
            for part in parts
        ],
        "stores": {
            name: {
                "kind": spec.kind,
                "sub_topology": where[name],
                "key_serde": spec.key_serde.name,
                "value_serde": spec.value_serde.name,
                "persistent": spec.persistent,
            }
            for name, spec in stores.items()
            if name in where
        },
    }


def _headline(node: Node) -> str:
    match node:
        case SourceNode():
            topics = ", ".join(topic.without_application() for topic in node.topics)
            return f"Source: {node.name} (topics: [{topics}])"
        case OperatorNode():
            return f"Processor: {node.name} (stores: [{', '.join(node.stores)}])"
        case SinkNode():
            return f"Sink: {node.name} (topic: {node.topic.without_application()})"
