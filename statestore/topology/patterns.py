"""Patterns of topics: a source that reads every topic whose name its pattern matches.

A topology holds the pattern alone. Which topics it matches is found out once per run, by the
planner (operations/start/matching.py), and reaches the stream tasks with their plans
(docs/adr/0035).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from statestore.errors import InvalidTopology, Misuse
from statestore.topology.nodes import GlobalSource, Node, Repartition, SinkNode, SourceNode
from statestore.topology.sub_topologies import SubTopology

_FLAGS: Final = {
    re.ASCII: "a",
    re.IGNORECASE: "i",
    re.MULTILINE: "m",
    re.DOTALL: "s",
    re.VERBOSE: "x",
}


def text_of(verb: str, pattern: "re.Pattern[str]") -> str:
    """Return a text that compiles to the same pattern; Misuse if it is one of bytes or empty."""
    text: object = pattern.pattern
    if not isinstance(text, str) or not text:
        raise Misuse(f"{verb} takes a pattern of str that is not empty, not {pattern!r:.99}")
    given = "".join(letter for flag, letter in _FLAGS.items() if pattern.flags & flag)
    return text if re.compile(text).flags == pattern.flags & ~re.DEBUG else f"(?{given}){text}"


def refuse_pattern(verb: str, topic: object) -> None:
    """Raise Misuse if this is a pattern, where only the name of a topic can be."""
    if isinstance(topic, re.Pattern):
        raise Misuse(
            f"{verb} takes the name of a topic, not {topic!r:.99}: one topic has the last row of "
            "each key; read several as a stream, and turn that into a table with to_table()"
        )


def matches(pattern: str, topic: str) -> bool:
    """Whether a source with this pattern reads a topic of this name."""
    return not topic.startswith("__") and re.fullmatch(pattern, topic) is not None


def check_patterns(nodes: Sequence[Node], tables: Iterable[GlobalSource]) -> None:
    """Raise InvalidTopology if a pattern matches what another source reads, or what a sink writes.

    A stream task reads a topic once, for one source. A pattern that matched a sink would read what
    its own records bring about, without end.
    """
    sources = [node for node in nodes if isinstance(node, SourceNode)]
    by_pattern: dict[str, SourceNode] = {}
    for node in sources:
        if node.pattern is not None:
            other = by_pattern.setdefault(node.pattern, node)
            if other is not node:
                raise InvalidTopology(
                    f"sources {other.name} and {node.name} have the same pattern "
                    f"{node.pattern!r}: read it once, and use that stream twice"
                )
    used = {
        topic.name: f"source {node.name} reads"
        for node in sources
        if node.pattern is None
        for topic in node.topics
        if not topic.internal
    }
    used |= {table.topic.name: f"source {table.source} reads" for table in tables}
    used |= {
        node.topic.name: f"sink {node.name} writes"
        for node in nodes
        if isinstance(node, SinkNode) and not node.topic.internal
    }
    for pattern, node in by_pattern.items():
        for topic, what in used.items():
            if matches(pattern, topic):
                raise InvalidTopology(
                    f"the pattern {pattern!r} of source {node.name} matches topic {topic!r}, which "
                    f"{what}: leave it out of the pattern, which may begin with (?!{topic}$)"
                )
        used |= {topic.name: f"source {node.name} reads by a pattern" for topic in node.topics}


def fed_by_patterns(
    parts: Sequence[SubTopology], repartitions: Mapping[str, Repartition]
) -> list[str]:
    """Return the changelogs and repartition topics whose partitions follow from patterns.

    They are those of the sub-topologies that read by a pattern, and of those that they feed. Their
    names are without the application's id.
    """
    found: list[str] = []
    seen: list[SubTopology] = []
    left = [part for part in parts if any(node.pattern is not None for node in part.sources)]
    while left:
        seen += left
        sent = {
            sink.topic
            for part in left
            for sink in part.sinks
            if sink.topic.internal and repartitions[sink.topic.name].partitions is None
        }
        found += [f"{store}-changelog" for part in left for store in part.stores]
        found += [topic.without_application() for topic in sent]
        left = [it for it in parts if it not in seen and sent.intersection(it.source_topics)]
    return sorted(set(found))
