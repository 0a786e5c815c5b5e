"""A topology as data: nodes, stores, internal topics, and what follows from them.

Pure: sub-topologies, task ids, waves, description and fingerprint are computed, nothing is opened.
Sub-topologies are the connected components over nodes, shared stores and shared source topics;
ordinals go by the first node added (SEMANTICS T1).
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from statestore.errors import InvalidTopology, NotCopartitioned, TopicMissing
from statestore.model.batch import Batch
from statestore.model.ids import TaskId, TopicPartition
from statestore.model.modes import PunctuationType, Span
from statestore.model.records import Record, Serde
from statestore.stores.row_times import WriteTime
from statestore.stores.specs import StoreSpec
from statestore.stores.staged_table import StagedTable
from statestore.stores.versioned_table import VersionedTable
from statestore.topology.held_back import HeldBack
from statestore.topology.punctuation import Fire, Punctuation

TimestampExtractor = Callable[[Record[Any, Any]], int]
Push = Callable[[Batch], None]
Forward = Callable[[Batch, str | None], None]
Origin = tuple[TopicPartition, int]
"""An input record: its partition and offset."""


class Held(NamedTuple):
    """What waited in a node's store until its time, in stored bytes.

    `origins`: per record of the batch the input record it was, if that is known.
    """

    store: str
    batch: Batch
    origins: Sequence[Origin | None] | None = None


class NodeContext(Protocol):
    """What a stream task gives a node when it is built."""

    @property
    def task_id(self) -> TaskId: ...

    def stream_time(self) -> int | None:
        """The largest timestamp processed so far, ms; None before the first record."""

    def keep_stream_times(self) -> None:
        """Have the input's batches say what stream time was as each of their records came."""

    def table(self, store: str) -> StagedTable:
        """The bytes of a store."""

    def versions(self, store: str) -> VersionedTable:
        """The bytes of a versioned store."""

    def store(self, name: str) -> Any:
        """The typed store, for a user's processor."""

    def clocks(self, stores: Sequence[str]) -> list[WriteTime]:
        """What is to be told the time of each record whose processing writes these stores."""

    def request_commit(self) -> None:
        """Ask for a task commit after this batch."""

    def schedule(self, node: str, every: Span, by: PunctuationType, fire: Fire) -> Punctuation: ...

    @property
    def held_back(self) -> HeldBack:
        """Where an operator counts the records that wait in it."""

    def release(self, node: str, held: Held, hand_on: Push) -> None:
        """Hand on what waited, each judged by itself: without what is passed over (E8a).

        `hand_on` tells no batch from a source's but by its missing topic: offsets are places.
        """

    def drop(self, node: str, batch: Batch, indices: Sequence[int], reason: str) -> None:
        """Count records that `node` does not take, as Kafka Streams does not either.

        The first of a node and reason are logged as a warning, with their place; the later for
        debugging.
        """

    def on_close(self, action: Callable[[], None]) -> None:
        """Run `action` when the task closes."""


Build = Callable[[NodeContext, Forward], Push]


@dataclass(frozen=True)
class TopicName:
    """A topic of the user's, or an internal one that carries the application id."""

    name: str
    internal: bool = False

    def full(self, application_id: str) -> str:
        """The name on the broker."""
        return f"{application_id}-{self.name}-repartition" if self.internal else self.name


@dataclass(frozen=True)
class SourceNode:
    """Reads topics."""

    name: str
    topics: tuple[TopicName, ...]
    key_serde: Serde[Any]
    value_serde: Serde[Any]
    timestamp_extractor: TimestampExtractor | None = None
    parents: tuple[str, ...] = ()
    stores: tuple[str, ...] = ()


@dataclass(frozen=True)
class OperatorNode:
    """Turns batches into batches; `keeps`: its store has the last record of each key as it came."""

    name: str
    parents: tuple[str, ...]
    build: Build
    stores: tuple[str, ...] = ()
    copartitioned: bool = False
    keeps: bool = False


@dataclass(frozen=True)
class SinkNode:
    """Writes a topic."""

    name: str
    parents: tuple[str, ...]
    topic: TopicName
    key_serde: Serde[Any]
    value_serde: Serde[Any]
    stores: tuple[str, ...] = ()


Node = SourceNode | OperatorNode | SinkNode


@dataclass(frozen=True)
class Repartition:
    """An internal topic between two sub-topologies.

    `partitions` None: as many as its writers' tasks.
    """

    name: str
    partitions: int | None
    explicit: bool


@dataclass(frozen=True)
class SubTopology:
    """One connected part: the unit a stream task runs for one partition."""

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


@dataclass(frozen=True)
class Wave:
    """Sub-topologies that run side by side.

    `repeat`: they feed each other, so run until nothing moves.
    """

    ordinals: tuple[int, ...]
    repeat: bool = False


@dataclass(frozen=True)
class Topology:
    """What a pipeline function returns; made by StreamsBuilder.build()."""

    nodes: tuple[Node, ...]
    stores: Mapping[str, StoreSpec]
    repartitions: Mapping[str, Repartition]
    unnamed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not any(isinstance(node, SourceNode) for node in self.nodes):
            raise InvalidTopology("the topology reads nothing: begin with stream() or table()")
        names = {node.name for node in self.nodes}
        for node in self.nodes:
            for parent in set(node.parents) - names:
                raise InvalidTopology(f"node {node.name!r} follows {parent!r}, which is not here")
        self._check_times()
        used = {store for node in self.nodes for store in node.stores}
        for name in used - self.stores.keys():
            raise InvalidTopology(f"a processor uses store {name!r}, which is not declared")

    def _check_times(self) -> None:
        """InvalidTopology if two sources give records of one topic other times.

        A stream task takes its records in the order of their times: each can have but one.
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
                        f"topic {topic.name!r} is read twice, with and without, or with another "
                        "timestamp_extractor: give both the same, and other times by a process() "
                        "that forwards record.replace(timestamp_ms=…)"
                    )

    @cached_property
    def sub_topologies(self) -> tuple[SubTopology, ...]:
        """The connected parts, by ordinal."""
        group: dict[str, str] = {}

        def find(item: str) -> str:
            group.setdefault(item, item)
            while group[item] != item:
                item = group[item]
            return item

        for node in self.nodes:
            root = find(f"node {node.name}")
            linked = [f"node {parent}" for parent in node.parents]
            linked += [f"store {store}" for store in node.stores]
            if isinstance(node, SourceNode):
                linked += [f"topic {topic}" for topic in node.topics]
            for other in linked:
                group[find(other)] = root
        parts: dict[str, list[Node]] = {}
        for node in self.nodes:
            parts.setdefault(find(f"node {node.name}"), []).append(node)
        return tuple(SubTopology(i, tuple(nodes)) for i, nodes in enumerate(parts.values()))

    @cached_property
    def waves(self) -> tuple[Wave, ...]:
        """Sub-topologies in the order in which they feed each other over topics."""
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

    def topics(self) -> tuple[set[str], set[str]]:
        """The user's topics read and written."""
        read = {t.name for p in self.sub_topologies for t in p.source_topics if not t.internal}
        written = {
            sink.topic.name
            for part in self.sub_topologies
            for sink in part.sinks
            if not sink.topic.internal
        }
        return read, written

    def partition_counts(self, existing: Mapping[str, int]) -> dict[TopicName, int]:
        """Partitions of every source topic, internal ones worked out from their writers.

        TopicMissing if a user's topic is not in `existing`; NotCopartitioned if joined inputs
        differ.
        """
        counts: dict[TopicName, int] = {}
        before: dict[TopicName, int] | None = None
        told = self._told(existing)
        # Again until nothing changes: in a cycle, writers may come after their readers.
        while counts != before:
            before = dict(counts)
            for wave in self.waves:
                for ordinal in wave.ordinals:
                    self._count_part(self.sub_topologies[ordinal], existing, told, counts)
            for _, topics in self.joined:
                widest = max(counts.get(topic, 0) for topic in topics)
                counts |= {t: widest for t in topics if t.internal and t not in told}
        self._check_copartitioned(counts)
        return counts

    def tasks(self, counts: Mapping[TopicName, int]) -> dict[int, list[TaskId]]:
        """The stream tasks of each sub-topology, by ordinal."""
        return {
            part.ordinal: [
                TaskId(part.ordinal, p)
                for p in range(max(counts[topic] for topic in part.source_topics))
            ]
            for part in self.sub_topologies
        }

    def describe(self) -> str:
        """Sub-topologies, nodes, stores and topics, in Kafka Streams' layout."""
        children = self.children()
        lines = ["Topologies:"]
        for part in self.sub_topologies:
            lines.append(f"   Sub-topology: {part.ordinal}")
            for node in part.nodes:
                lines.append(f"    {_headline(node)}")
                if not isinstance(node, SinkNode):
                    lines.append(f"      --> {', '.join(children.get(node.name, ())) or 'none'}")
                if node.parents:
                    lines.append(f"      <-- {', '.join(node.parents)}")
            lines.append("")
        return "\n".join(lines)

    def children(self) -> dict[str, list[str]]:
        """Node name to the names of the nodes it feeds."""
        found: dict[str, list[str]] = {}
        for node in self.nodes:
            for parent in node.parents:
                found.setdefault(parent, []).append(node.name)
        return found

    def deployed(self) -> dict[str, Any]:
        """What is written beside the state: where each store lives and how to decode it."""
        where = {store: p.ordinal for p in self.sub_topologies for store in p.stores}
        return {
            "version": 1,
            "fingerprint": self.fingerprint(),
            "sub_topologies": [
                {
                    "ordinal": p.ordinal,
                    "source_topics": [_plain(t) for t in p.source_topics],
                    "internal": [_plain(t) for t in p.source_topics if t.internal],
                }
                for p in self.sub_topologies
            ],
            "stores": {
                name: {
                    "kind": spec.kind,
                    "sub_topology": where[name],
                    "key_serde": spec.key_serde.name,
                    "value_serde": spec.value_serde.name,
                    "persistent": spec.persistent,
                }
                for name, spec in self.stores.items()
                if name in where
            },
        }

    def fingerprint(self) -> str:
        """A hash of description, serdes and terms of the stores: what is deployed, in short."""
        told = {n: (s.key_serde.name, s.value_serde.name, *s.terms) for n, s in self.stores.items()}
        text = self.describe() + json.dumps(told, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @cached_property
    def joined(self) -> tuple[tuple[str, tuple[TopicName, ...]], ...]:
        """Each node that joins, with the topics whose keys meet in it: equally partitioned ones."""
        found = []
        for node in self.nodes:
            if isinstance(node, OperatorNode) and node.copartitioned:
                shared = set(node.stores)
                left = [n.name for n in self.nodes if n is node or shared.intersection(n.stores)]
                found.append((node.name, self.topics_above(left)))
        return tuple(found)

    def topics_above(self, names: Iterable[str]) -> tuple[TopicName, ...]:
        """The source topics whose records reach these nodes."""
        parents = {node.name: node.parents for node in self.nodes}
        left, above = list(names), set()
        while left:
            above.add(name := left.pop())
            left += set(parents[name]) - above
        sources = [n for n in self.nodes if isinstance(n, SourceNode) and n.name in above]
        return tuple(dict.fromkeys(topic for source in sources for topic in source.topics))

    def _told(self, existing: Mapping[str, int]) -> dict[TopicName, int]:
        """Internal topics whose partitions are declared, or those of what they are joined with."""
        declared = {name: made.partitions for name, made in self.repartitions.items()}
        told = {TopicName(n, internal=True): count for n, count in declared.items() if count}
        for _, topics in self.joined:
            fixed = [
                told[t] if t.internal else existing.get(t.name, 0)
                for t in topics
                if not t.internal or t in told
            ]
            if fixed:
                told |= {t: max(fixed) for t in topics if t.internal and t not in told}
        return told

    def _count_part(
        self,
        part: SubTopology,
        existing: Mapping[str, int],
        told: Mapping[TopicName, int],
        counts: dict[TopicName, int],
    ) -> None:
        for topic in part.source_topics:
            if topic.internal:
                if topic in told:
                    counts[topic] = told[topic]
            elif topic.name not in existing:
                raise TopicMissing(
                    f"topic {topic.name!r} does not exist: create it, then start again"
                )
            else:
                counts[topic] = existing[topic.name]
        tasks = max((counts[t] for t in part.source_topics if t in counts), default=0)
        for sink in part.sinks:
            if sink.topic.internal and sink.topic not in told:
                counts[sink.topic] = max(tasks, counts.get(sink.topic, 0))

    def _check_copartitioned(self, counts: Mapping[TopicName, int]) -> None:
        for node, topics in self.joined:
            found = {_plain(topic): counts[topic] for topic in topics}
            if len(set(found.values())) > 1:
                listed = ", ".join(f"{name}: {count}" for name, count in found.items())
                raise NotCopartitioned(
                    f"{node} joins topics with different partition counts ({listed}): "
                    "repartition() one side or recreate the topic"
                )


def _plain(topic: TopicName) -> str:
    return f"{topic.name}-repartition" if topic.internal else topic.name


def _headline(node: Node) -> str:
    match node:
        case SourceNode():
            return f"Source: {node.name} (topics: [{', '.join(map(_plain, node.topics))}])"
        case OperatorNode():
            return f"Processor: {node.name} (stores: [{', '.join(node.stores)}])"
        case SinkNode():
            return f"Sink: {node.name} (topic: {_plain(node.topic)})"
