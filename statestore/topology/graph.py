"""Topology: a pipeline as data, and what follows from it without opening anything."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from statestore.errors import InvalidTopology
from statestore.model.ids import TaskId
from statestore.stores.specs import StoreSpec
from statestore.topology import describe, partition_counts
from statestore.topology.nodes import (
    Node,
    Repartition,
    SourceNode,
    TimestampExtractor,
    TopicName,
    children_of,
)
from statestore.topology.partition_counts import Joined, PartitionCounts
from statestore.topology.sub_topologies import SubTopology, connected


@dataclass(frozen=True)
class Wave:
    """Sub-topologies that run side by side.

    `repeat`: they feed each other, so they run until nothing moves any more.
    """

    ordinals: tuple[int, ...]
    repeat: bool = False


@dataclass(frozen=True)
class Topology:
    """A pipeline, as StreamsBuilder.build() returns it.

    InvalidTopology if it has no source, a parent or a store that is not there, or two sources that
    give the records of one topic different times.
    """

    nodes: tuple[Node, ...]
    stores: Mapping[str, StoreSpec]
    repartitions: Mapping[str, Repartition]
    unnamed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not any(isinstance(node, SourceNode) for node in self.nodes):
            raise InvalidTopology("the topology reads no topic: begin with stream() or table()")
        names = {node.name for node in self.nodes}
        for node in self.nodes:
            for parent in set(node.parents) - names:
                raise InvalidTopology(
                    f"node {node.name!r} has the parent {parent!r}, which does not exist"
                )
        self._check_times()
        used = {store for node in self.nodes for store in node.stores}
        for name in used - self.stores.keys():
            raise InvalidTopology(f"a processor uses store {name!r}, which is not declared")

    def _check_times(self) -> None:
        """Raise InvalidTopology if two sources give the records of one topic different times.

        A stream task takes its records in the order of their times, so each can have only one.
        """
        extractors: dict[TopicName, TimestampExtractor | None] = {}
        for node in self.nodes:
            if not isinstance(node, SourceNode):
                continue
            for topic in node.topics:
                if extractors.setdefault(topic, node.timestamp_extractor) != (
                    node.timestamp_extractor
                ):
                    raise InvalidTopology(
                        f"two sources read topic {topic.name!r} with different "
                        "timestamp_extractors: give both the same one, and set other times in a "
                        "process() that forwards record.replace(timestamp_ms=…)"
                    )

    @cached_property
    def sub_topologies(self) -> tuple[SubTopology, ...]:
        """The connected parts, by ordinal (SEMANTICS T1)."""
        return connected(self.nodes)

    @cached_property
    def waves(self) -> tuple[Wave, ...]:
        """The sub-topologies in the order in which they feed each other over topics."""
        readers: dict[TopicName, list[int]] = {}
        for part in self.sub_topologies:
            for topic in part.source_topics:
                readers.setdefault(topic, []).append(part.ordinal)
        feeds = {
            part.ordinal: {o for sink in part.sinks for o in readers.get(sink.topic, ())}
            for part in self.sub_topologies
        }
        waves = []
        left = set(feeds)
        while left:
            fed = {target for ordinal in left for target in feeds[ordinal]}
            ready = left - fed
            waves.append(Wave(tuple(sorted(ready or left)), repeat=not ready))
            left -= ready or left
        return tuple(waves)

    @cached_property
    def joined(self) -> tuple[Joined, ...]:
        """The nodes that join, each with the topics whose keys meet in it."""
        return partition_counts.joined(self.nodes)

    def topics(self) -> tuple[set[str], set[str]]:
        """Return the user's topics that are read, and those that are written."""
        read = {t.name for p in self.sub_topologies for t in p.source_topics if not t.internal}
        written = {
            sink.topic.name
            for part in self.sub_topologies
            for sink in part.sinks
            if not sink.topic.internal
        }
        return read, written

    def topics_above(self, names: Iterable[str]) -> tuple[TopicName, ...]:
        """Return the source topics whose records reach the named nodes."""
        return partition_counts.topics_above(self.nodes, names)

    def partition_counts(self, existing: Mapping[str, int]) -> dict[TopicName, int]:
        """Return the partition count of every source topic, given those of the user's topics.

        The counts of internal topics follow from their writers. TopicMissing if a topic of the
        user's is not in `existing`; NotCopartitioned if joined inputs differ (SEMANTICS T2).
        """
        parts = [self.sub_topologies[o] for wave in self.waves for o in wave.ordinals]
        return PartitionCounts(parts, self.joined, self.repartitions, existing).counts()

    def tasks(self, counts: Mapping[TopicName, int]) -> dict[int, list[TaskId]]:
        """Return the stream tasks of each sub-topology, by ordinal."""
        return {
            part.ordinal: [
                TaskId(part.ordinal, p)
                for p in range(max(counts[topic] for topic in part.source_topics))
            ]
            for part in self.sub_topologies
        }

    def children(self) -> dict[str, list[str]]:
        """Return, for each node that feeds others, the names of those others."""
        return children_of(self.nodes)

    def describe(self) -> str:
        """Return sub-topologies, nodes, stores and topics as text in Kafka Streams' layout."""
        return describe.description(self.sub_topologies)

    def fingerprint(self) -> str:
        """Return a hash of the description and of the serdes and terms of all stores."""
        return describe.fingerprint(self.sub_topologies, self.stores)

    def deployed(self) -> dict[str, Any]:
        """Return what is written beside the state: where stores live and how to decode them."""
        return describe.deployed(self.sub_topologies, self.stores)
