"""Finds the topics that the patterns of a topology match on its cluster (docs/adr/0035).

A run asks once, before it checks anything. Its waves and their stream tasks go by that answer, so
all partitions of a new topic join at the same time. Commands beside a run ask for themselves.

Keeps I41.
"""

import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import msgspec

from statestore.errors import Misuse
from statestore.layout.folders import StateLayout
from statestore.operations.clone_record import read_record
from statestore.operations.deployed import Deployed, DeployedPart
from statestore.operations.environment import Environment
from statestore.operations.unfinished import COPIES
from statestore.settings import Settings
from statestore.topology.graph import Topology
from statestore.topology.patterns import matches

_log = logging.getLogger(__name__)


class HasTopics(Protocol):
    """Lists the topics of a cluster."""

    def topics(self) -> list[str]: ...


class OwnTopics(NamedTuple):
    """Tells the topics that no pattern of an application matches, because they are its own.

    `named`: its dead letters, and what the original of a clone writes.
    """

    application_id: str
    named: frozenset[str] = frozenset()

    @classmethod
    def of(cls, layout: StateLayout, settings: Settings) -> "OwnTopics":
        """Those of the application of these settings; HostFailure if its folder is damaged."""
        record = read_record(layout)
        originals = () if record is None else (*record.topics, *record.topics.values())
        letters = settings.dead_letter_topic
        return cls(settings.application_id, frozenset({letters, *originals}))

    def matching(self, pattern: str, topics: Iterable[str]) -> list[str]:
        """Return which of these topics a source with that pattern reads, sorted."""
        return sorted(it for it in topics if matches(pattern, it) and not self._has(it))

    def _has(self, topic: str) -> bool:
        is_internal = topic.startswith(f"{self.application_id}-") and topic.endswith(
            ("-changelog", "-repartition", COPIES)
        )
        return is_internal or topic in self.named


def with_matches(environment: Environment, topology: Topology) -> Topology:
    """Return the topology with the topics that its patterns match now.

    InvalidTopology if one of them would be read twice or is written by the topology itself.
    """
    if not topology.patterns:
        return topology
    application_id = environment.settings.application_id
    fed = {f"{application_id}-{topic}": topic for topic in topology.fed_by_patterns()}
    counts = environment.cluster.partitions(sorted(fed))
    least = {fed[topic]: count for topic, count in counts.items()}
    return topology.matching(_found(environment, topology), least)


def with_inputs(environment: Environment, topology: Topology) -> Topology:
    """As `with_matches`, but stream tasks follow from the inputs alone: for another count of them.

    Misuse if a pattern matches no topic, which says nothing of partitions.
    """
    if not topology.patterns:
        return topology
    found = _found(environment, topology)
    for source, topics in found.items():
        if not topics:
            raise Misuse(
                f"no topic matches {topology.patterns[source]!r} of source {source}, so it has no "
                "partitions: create a topic that it reads first"
            )
    return topology.matching(found)


def _found(environment: Environment, topology: Topology) -> dict[str, list[str]]:
    """By source with a pattern, which topics of the cluster it matches now."""
    own = OwnTopics.of(environment.layout, environment.settings)
    topics = environment.cluster.topics()
    return {source: own.matching(pattern, topics) for source, pattern in topology.patterns.items()}


def tell_of_matches(topology: Topology, previous: Deployed) -> None:
    """Log what the patterns of a topology match that they did not match before, and the reverse."""
    for source, pattern in topology.patterns.items():
        now = {topic.name for topic in topology.topics_above([source])}
        before = {
            topic
            for part in previous.sub_topologies
            if pattern in part.patterns
            for topic in part.source_topics
            if matches(pattern, topic)
        }
        if not now:
            _log.warning("no topic matches %r of source %s: it reads nothing", pattern, source)
        if now - before:
            _log.info("new topics match %r: %s", pattern, ", ".join(sorted(now - before)))
        if before - now:
            _log.warning(
                "topics that matched %r are gone: %s; the run goes on with the rest",
                pattern,
                ", ".join(sorted(before - now)),
            )


def matched_now(shape: Deployed, cluster: HasTopics, own: OwnTopics) -> Deployed:
    """Return what was deployed, with the topics that its patterns match now.

    They are those that the next run reads, unless it refuses one of them.
    """
    if not any(part.patterns for part in shape.sub_topologies):
        return shape
    topics = cluster.topics()
    parts = [_part_now(part, topics, own) for part in shape.sub_topologies]
    return msgspec.structs.replace(shape, sub_topologies=parts)


def _part_now(part: DeployedPart, topics: Sequence[str], own: OwnTopics) -> DeployedPart:
    named = [
        it
        for it in part.source_topics
        if it in (part.internal or ()) or not any(matches(pattern, it) for pattern in part.patterns)
    ]
    found = {it for pattern in part.patterns for it in own.matching(pattern, topics)}
    return msgspec.structs.replace(part, source_topics=[*named, *sorted(found - {*named})])
