"""Topology: a pipeline as data, and what follows from it without opening anything."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

from statestore.errors import InvalidTopology, Misuse, NotCopartitioned, TopicMissing
from statestore.model.ids import TaskId
from statestore.stores.specs import KeyValueSpec, StoreSpec
from statestore.topology import missing_methods
from statestore.topology.nodes import (
    GlobalSource,
    LookupSource,
    Node,
    OperatorNode,
    Partitioner,
    Repartition,
    SinkNode,
    SourceNode,
    TopicName,
    children_of,
)
from statestore.topology.patterns import check_patterns, fed_by_patterns
from statestore.topology.sub_topologies import SubTopology, connected

_TIMED_TOPICS_MAX = 100


class Joined(NamedTuple):
    """A node that joins, and the topics whose keys meet in it: their partition counts are equal."""

    node: str
    topics: tuple[TopicName, ...]


@dataclass(frozen=True)
class Wave:
    """Sub-topologies that run side by side.

    `repeat`: they feed each other, so they run until nothing moves any more.
    """

    ordinals: tuple[int, ...]
    repeat: bool = False


@missing_methods.explains(missing_methods.OF_TOPOLOGIES)
@dataclass(frozen=True)
class Topology:
    """A pipeline, as StreamsBuilder.build() returns it.

    `least` is for what patterns feed: by internal topic, without the application's id, how many
    partitions it has already. There are never fewer stream tasks, though topics may go.

    InvalidTopology if it has no source, a parent or a store that is not there, or two sources that
    give the records of one topic different times.
    """

    nodes: tuple[Node, ...]
    stores: Mapping[str, StoreSpec]
    repartitions: Mapping[str, Repartition]
    unnamed: tuple[str, ...] = ()
    global_sources: tuple[GlobalSource, ...] = ()
    lookups: tuple[LookupSource, ...] = ()
    least: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not any(isinstance(node, SourceNode) for node in self.nodes):
            raise InvalidTopology("the topology reads no topic: begin with stream() or table()")
        names = {node.name for node in self.nodes}
        for node in self.nodes:
            for parent in set(node.parents) - names:
                raise InvalidTopology(
                    f"node {node.name!r} has the parent {parent!r}, which does not exist"
                )
        check_patterns(self.nodes, self.global_sources)
        self._check_sources()
        used = {store for node in self.nodes for store in node.stores}
        for name in used - self.stores.keys():
            raise InvalidTopology(f"a processor uses store {name!r}, which is not declared")
        self._check_partitioners()

    def _check_sources(self) -> None:
        """Raise InvalidTopology if two sources read one topic in different ways.

        Nor may more topics have partition times than the metadata of a commit has room for.

        A stream task reads it once, in the order of its records' times: each has one time, and the
        topic begins at one place.
        """
        seen: dict[TopicName, SourceNode] = {}
        for node in self.nodes:
            if not isinstance(node, SourceNode):
                continue
            for topic in node.topics:
                first = seen.setdefault(topic, node)
                if first.timestamp_extractor != node.timestamp_extractor:
                    raise InvalidTopology(
                        f"two sources read topic {topic.name!r} with different "
                        "timestamp_extractors: give both the same one, and set other times in a "
                        "process() that forwards record.replace(timestamp_ms=…)"
                    )
                if first.offset_reset != node.offset_reset:
                    raise InvalidTopology(
                        f"two sources read topic {topic.name!r} with different values of "
                        "offset_reset: give both the same one"
                    )
        timed = sum(source.takes_partition_time for source in seen.values())
        if timed > _TIMED_TOPICS_MAX:
            raise InvalidTopology(
                f"{timed} topics have a timestamp_extractor that takes the partition's time, but a "
                f"commit has room for {_TIMED_TOPICS_MAX}: let some take the record alone"
            )

    def _check_partitioners(self) -> None:
        """NotCopartitioned if keys meet that lie where different partitioners put them.

        Only internal topics are compared: where the keys of the user's lie is not known here.
        """
        placed = self.placed_by
        if not any(topic.internal for topic in placed):
            return
        for node, topics in self.meetings():
            internal = [topic for topic in topics if topic.internal]
            for first, other in pairwise(internal):
                if placed.get(first) != placed.get(other):
                    raise NotCopartitioned(
                        f"{node}: keys of {first.without_application()} and of "
                        f"{other.without_application()} meet there, but the topics have different "
                        "partitioners, so equal keys may lie in different partitions: "
                        "repartition() both with the same function, or neither with one (the "
                        "topics of a join by a foreign key have none)"
                    )

    @property
    def placed_by(self) -> dict[TopicName, Partitioner]:
        """The topics that are written with a partitioner of the user's, and the partitioner."""
        sinks = (node for node in self.nodes if isinstance(node, SinkNode))
        return {sink.topic: sink.partitioner for sink in sinks if sink.partitioner is not None}

    def placed_apart(self) -> set[str]:
        """Return the stores whose keys lie where a partitioner of the user's puts them.

        These are all stores that are written from a topic with such a partitioner.
        """
        placed = self.placed_by
        return {
            store
            for store in (self.stores if placed else ())
            if not placed.keys().isdisjoint(self.topics_into(store))
        }

    def topics_into(self, store: str) -> tuple[TopicName, ...]:
        """Return the source topics whose records reach the nodes that write a store."""
        writers = [
            node.name
            for node in self.nodes
            if store in node.stores and not (isinstance(node, OperatorNode) and node.only_reads)
        ]
        return self.topics_above(writers)

    def meetings(self) -> Iterator[Joined]:
        """Yield each node with state or a join that several topics reach, with these topics."""
        for node in self.nodes:
            if node.stores:
                shared = set(node.stores)
                left = [n.name for n in self.nodes if shared.intersection(n.stores)]
                topics = self.topics_above(left)
                if len(topics) > 1:
                    yield Joined(node.name, topics)
        yield from self.joined

    @property
    def patterns(self) -> dict[str, str]:
        """By source that finds its topics by a pattern, that pattern."""
        sources = (node for node in self.nodes if isinstance(node, SourceNode))
        return {node.name: node.pattern for node in sources if node.pattern is not None}

    def matching(
        self, topics: Mapping[str, Sequence[str]], least: Mapping[str, int] | None = None
    ) -> "Topology":
        """Return the topology with the topics that its patterns match, by source.

        `least`: see `Topology`. InvalidTopology if a topic would be read twice or is written by the
        topology itself.
        """
        nodes = tuple(
            replace(node, topics=tuple(map(TopicName, topics[node.name])))
            if isinstance(node, SourceNode) and node.name in topics
            else node
            for node in self.nodes
        )
        return replace(self, nodes=nodes, least={} if least is None else least) if topics else self

    def fed_by_patterns(self) -> list[str]:
        """Return the internal topics whose partitions follow from what patterns match.

        They are without the application's id.
        """
        return fed_by_patterns(self.sub_topologies, self.repartitions)

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
        # Who writes the topic of a global table goes first, and never waits for itself.
        looked = {one.spec.name: one.topic for one in self.global_sources}
        for part in self.sub_topologies:
            topics = {looked[store] for store in part.global_stores if store in looked}
            for other in self.sub_topologies:
                if other is not part and topics.intersection(s.topic for s in other.sinks):
                    feeds[other.ordinal].add(part.ordinal)
        waves = []
        left = set(feeds)
        while left:
            fed = {target for ordinal in left for target in feeds[ordinal]}
            ready = left - fed
            chosen = ready or _first_cycle(left, feeds)
            waves.append(Wave(tuple(sorted(chosen)), repeat=not ready))
            left -= chosen
        return tuple(waves)

    @cached_property
    def joined(self) -> tuple[Joined, ...]:
        """The nodes that join, each with the topics whose keys meet in it."""
        return _joined(self.nodes)

    def topics(self) -> tuple[set[str], set[str]]:
        """Return the user's topics that are read, and those that are written."""
        read = {t.name for p in self.sub_topologies for t in p.source_topics if not t.internal}
        read |= {source.topic.name for source in self.global_sources}
        written = {
            sink.topic.name
            for part in self.sub_topologies
            for sink in part.sinks
            if not sink.topic.internal
        }
        return read, written

    @property
    def shared_specs(self) -> dict[str, KeyValueSpec[Any, Any]]:
        """The stores of global tables and lookups, which every stream task may read, by name."""
        tables = {table.spec.name: table.spec for table in self.global_sources}
        return {**tables, **{one.spec.name: one.spec for one in self.lookups}}

    def topics_above(self, names: Iterable[str]) -> tuple[TopicName, ...]:
        """Return the source topics whose records reach the named nodes."""
        return _topics_above(self.nodes, names)

    def partition_counts(self, existing: Mapping[str, int]) -> dict[TopicName, int]:
        """Return the partition count of every source topic, given those of the user's topics.

        The counts of internal topics follow from their writers. TopicMissing if a topic of the
        user's is not in `existing`; NotCopartitioned if joined inputs differ (SEMANTICS T2).
        """
        parts = [self.sub_topologies[o] for wave in self.waves for o in wave.ordinals]
        return _PartitionCounts(
            parts, self.joined, self.repartitions, existing, self.least
        ).counts()

    def tasks(self, counts: Mapping[TopicName, int]) -> dict[int, list[TaskId]]:
        """Return the stream tasks of each sub-topology, by ordinal."""
        return {
            part.ordinal: [TaskId(part.ordinal, p) for p in range(part.width(counts, self.least))]
            for part in self.sub_topologies
        }

    def children(self) -> dict[str, list[str]]:
        """Return, for each node that feeds others, the names of those others."""
        return children_of(self.nodes)

    def describe(self) -> str:
        """Return sub-topologies, nodes, stores and topics as text in Kafka Streams' layout."""
        return _description(self)

    def fingerprint(self) -> str:
        """Return a hash of the description and of the serdes and terms of all stores."""
        return _fingerprint(self)

    def deployed(self) -> dict[str, Any]:
        """Return what is written beside the state: where stores live and how to decode them."""
        return _deployed(self)


@dataclass(frozen=True)
class _PartitionCounts:
    """Works out the counts of internal topics from those of the user's topics (SEMANTICS T2).

    `parts` are in the order in which they feed each other. `existing` are the user's topics.
    `least`: see `Topology`.
    """

    parts: Sequence[SubTopology]
    joined: Sequence[Joined]
    repartitions: Mapping[str, Repartition]
    existing: Mapping[str, int]
    least: Mapping[str, int]

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
                widest = max((counts.get(topic, 0) for topic in topics), default=0)
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
        tasks = part.width(counts, self.least)
        for sink in part.sinks:
            if sink.topic.internal and sink.topic not in fixed:
                known = max(
                    counts.get(sink.topic, 0), self.least.get(sink.topic.without_application(), 0)
                )
                counts[sink.topic] = max(tasks, known)

    def _check_copartitioned(self, counts: Mapping[TopicName, int]) -> None:
        for node, topics in self.joined:
            found = {topic.without_application(): counts[topic] for topic in topics}
            if len(set(found.values())) > 1:
                listed = ", ".join(f"{name}: {count}" for name, count in found.items())
                raise NotCopartitioned(
                    f"{node} joins topics with different partition counts ({listed}): "
                    "repartition() one side or recreate the topic"
                )


def _first_cycle(left: set[int], feeds: Mapping[int, set[int]]) -> set[int]:
    """Return sub-topologies that feed each other, and that no other of those left feeds."""
    below: dict[int, set[int]] = {}
    for start in left:
        found, ahead = {start}, [start]
        while ahead:
            more = (feeds[ahead.pop()] & left) - found
            found |= more
            ahead += more
        below[start] = found
    above = {one: {other for other in left if one in below[other]} for one in left}
    return next(above[one] for one in sorted(left) if above[one] <= below[one])


def _topics_above(nodes: Sequence[Node], names: Iterable[str]) -> tuple[TopicName, ...]:
    """Return the source topics whose records reach the named nodes."""
    parents = {node.name: node.parents for node in nodes}
    left, above = list(names), set()
    while left:
        above.add(name := left.pop())
        left += set(parents[name]) - above
    sources = [n for n in nodes if isinstance(n, SourceNode) and n.name in above]
    return tuple(dict.fromkeys(topic for source in sources for topic in source.topics))


def _joined(nodes: Sequence[Node]) -> tuple[Joined, ...]:
    """Return the nodes that join, each with the topics whose keys meet in it."""
    found = []
    for node in nodes:
        if isinstance(node, OperatorNode) and node.copartitioned:
            shared = set(node.stores)
            left = [n.name for n in nodes if n is node or shared.intersection(n.stores)]
            found.append(Joined(node.name, _topics_above(nodes, left)))
    return tuple(found)


def _description(topology: Topology, *, for_people: bool = True) -> str:
    """Return sub-topologies, nodes, stores and topics as text in Kafka Streams' layout.

    `for_people`: with what is not part of a fingerprint.
    """
    parts, tables = topology.sub_topologies, topology.global_sources
    lookups, lines = topology.lookups, ["Topologies:"]
    for part in parts:
        children = children_of(part.nodes)
        lines.append(f"   Sub-topology: {part.ordinal}")
        for node in part.nodes:
            lines.append(f"    {_headline(node, for_people=for_people)}")
            if not isinstance(node, SinkNode):
                lines.append(f"      --> {', '.join(children.get(node.name, ())) or 'none'}")
            if node.parents:
                lines.append(f"      <-- {', '.join(node.parents)}")
        lines.append("")
    told: list[tuple[GlobalSource | LookupSource, str]] = [
        *((table, f"topics: [{table.topic.without_application()}]") for table in tables),
        *((one, f"file: [{one.url}], key: [{one.key}]") for one in lookups),
    ]
    for ordinal, (table, origin) in enumerate(told, len(parts)):
        lines += [
            f"   Sub-topology: {ordinal} for global store (will not generate tasks)",
            f"    Source: {table.source} ({origin})",
            f"      --> {table.name}",
            f"    Processor: {table.name} (stores: [{table.spec.name}])",
            "      --> none",
            f"      <-- {table.source}",
            "",
        ]
    return "\n".join(lines)


def _fingerprint(topology: Topology) -> str:
    """Return a hash of the description and of the serdes, schemas and terms of all stores."""
    every = {**topology.stores, **topology.shared_specs}
    told = {
        name: (spec.key_serde.name, spec.value_serde.name, *spec.terms, *_schemas(spec))
        for name, spec in every.items()
    }
    text = _description(topology, for_people=False) + json.dumps(told, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _schemas(spec: StoreSpec) -> list[str]:
    """Return the texts of the schemas that are known."""
    known = (spec.key_serde.schema, spec.value_serde.schema)
    return [schema.text for schema in known if schema is not None]


def _deployed(topology: Topology) -> dict[str, Any]:
    """Return what is written beside the state: where each store lives and how to decode it."""
    parts, stores = topology.sub_topologies, topology.stores
    origins: dict[str, dict[str, str]] = {
        **{table.spec.name: {"topic": table.topic.name} for table in topology.global_sources},
        **{one.spec.name: {"file": one.url} for one in topology.lookups},
    }
    where = {store: part.ordinal for part in parts for store in part.stores}
    apart = topology.placed_apart()
    return {
        "version": 1,
        "fingerprint": topology.fingerprint(),
        "sub_topologies": [
            {
                "ordinal": part.ordinal,
                "source_topics": [t.without_application() for t in part.source_topics],
                "internal": [t.without_application() for t in part.source_topics if t.internal],
                "sink_topics": [sink.topic.without_application() for sink in part.sinks],
                "patterns": [node.pattern for node in part.sources if node.pattern is not None],
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
                "placed_apart": name in apart,
            }
            for name, spec in stores.items()
            if name in where
        },
        "global_stores": {
            name: {
                **origins[name],
                "key_serde": spec.key_serde.name,
                "value_serde": spec.value_serde.name,
            }
            for name, spec in topology.shared_specs.items()
        },
    }


def _headline(node: Node, *, for_people: bool) -> str:
    match node:
        case SourceNode(pattern=str() as pattern):
            return f"Source: {node.name} (topics: {pattern})"
        case SourceNode():
            topics = ", ".join(topic.without_application() for topic in node.topics)
            return f"Source: {node.name} (topics: [{topics}])"
        case OperatorNode():
            shared = f", global: [{', '.join(node.global_stores)}]" if node.global_stores else ""
            says = (node.says,) if node.says and for_people else ()
            told = "".join(f", {term}" for term in (*node.terms, *says))
            return f"Processor: {node.name} (stores: [{', '.join(node.stores)}]{shared}{told})"
        case SinkNode():
            chosen = "" if node.partitioner is None else ", by a partitioner"
            return f"Sink: {node.name} (topic: {node.topic.without_application()}{chosen})"


def require_topology(verb: str, given: object) -> Topology:
    """Return what was given; Misuse with the way out if it is not a Topology."""
    if isinstance(given, Topology):
        return given
    if given is None:
        way_out = "a function that builds one ends with `return b.build()`"
    elif isinstance(given, str):
        way_out = "the command `statestore run --pipeline` takes a path; import the function here"
    elif hasattr(given, "build"):
        way_out = "call its build()"
    elif callable(given):
        way_out = f"call it: {getattr(given, '__name__', 'topology')}()"
    else:
        way_out = "StreamsBuilder.build() returns one"
    raise Misuse(f"{verb} needs a Topology, not {given!r:.99}: {way_out}")
