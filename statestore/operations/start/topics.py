"""The topics of an application: those that it needs beside its inputs, and how inputs fit together.

Topics whose keys meet must be partitioned alike (INTERFACE rule 2). Java's Kafka clients choose the
partition of a key by murmur2, librdkafka by CRC32. If topics written by both meet, equal keys lie
in different partitions, and therefore in different stream tasks: a join or an aggregate over both
would be wrong without any sign of it.
"""

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from statestore.errors import InvalidSetting, Misuse, NotCopartitioned
from statestore.ports import Cluster, KeyHashes, TopicSpec
from statestore.serdes import composed
from statestore.settings import Settings
from statestore.stores.kinds.registry import kind_of
from statestore.topology.graph import Topology
from statestore.topology.logs import log_of
from statestore.topology.nodes import Node, OperatorNode, SourceNode, TopicName
from statestore.topology.sub_topologies import SubTopology

_log = logging.getLogger(__name__)

_DAY_MS = 86_400_000
_WEEK_MS = 7 * _DAY_MS
_ANY_LIMIT = 2**63 - 1
_ALL_KEPT: Final = {"cleanup.policy": "delete", "retention.ms": "-1"}
ANY_TIME: Final = {
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": str(_ANY_LIMIT),
    "message.timestamp.after.max.ms": str(_ANY_LIMIT),
}
"""Settings with which a topic accepts records of any time and keeps their times (T3)."""
ANY_PAST: Final = {name: value for name, value in ANY_TIME.items() if "after" not in name}
"""Those of them that the changelog of a store with history needs."""
_UNKNOWN = KeyHashes(0, murmur2=True, crc32=True)


def dead_letter_topics(topology: Topology, settings: Settings) -> set[str]:
    """The topic for dead letters, if a handler writes any (SEMANTICS E9)."""
    topic = settings.dead_letter_topic
    if not settings.writes_dead_letters:
        return set()
    if topic in topology.topics()[0]:
        raise InvalidSetting(
            f"errors.dead.letter.queue.topic.name {topic!r} is an input of this pipeline, which "
            "would read its dead letters without end: name another topic"
        )
    return {topic}


def internal_topics(
    topology: Topology,
    counts: Mapping[TopicName, int],
    application_id: str,
    logs: Mapping[str, str] | None = None,
) -> list[TopicSpec]:
    """The repartition and changelog topics that a topology needs (SEMANTICS T1, T3).

    There are none where no topic matches a pattern yet, as there are no stream tasks then.

    `logs`: by store, the source topic that is its log; those stores need no changelog.
    """
    specs = [
        TopicSpec(
            topic.full(application_id),
            count,
            {"cleanup.policy": "delete", "retention.ms": "-1", **ANY_TIME},
        )
        for topic, count in counts.items()
        if topic.internal and count
    ]
    tasks = topology.tasks(counts)
    for part in topology.sub_topologies:
        for store in part.stores:
            if (logs and store in logs) or not tasks[part.ordinal]:
                continue
            config = {
                "cleanup.policy": "compact",
                "delete.retention.ms": str(_WEEK_MS),
                **ANY_TIME,
            }
            config |= topology.stores[store].changelog_config
            name = log_of(application_id, store, {})
            specs.append(TopicSpec(name, len(tasks[part.ordinal]), config))
    return specs


def missing_topics(cluster: Cluster, specs: Sequence[TopicSpec]) -> list[TopicSpec]:
    """The internal topics to create; NotCopartitioned if one exists with other partitions."""
    existing = cluster.partitions([spec.name for spec in specs])
    for spec in specs:
        found = existing.get(spec.name, spec.partitions)
        if found != spec.partitions:
            raise NotCopartitioned(
                f"internal topic {spec.name} has {found} partitions, the topology needs "
                f"{spec.partitions}: the input's partition count changed: `statestore repartition "
                "--partitions` with the count that the inputs have now divides the state anew; or "
                "bring the old count back, or start under another application id"
            )
    return [spec for spec in specs if spec.name not in existing]


def table_topics(topology: Topology) -> dict[str, dict[str, str]]:
    """By input that is read only as a table: the settings with which it keeps the last of each key.

    The topic of a table with history keeps all records, because the cleaner would compact those of
    long ago before they are read.
    """
    by_name, children = {node.name: node for node in topology.nodes}, topology.children()
    readers: dict[str, list[Node]] = {}
    for source in topology.nodes:
        if isinstance(source, SourceNode):
            below = [by_name[name] for name in children.get(source.name, ())]
            for topic in source.topics:
                readers.setdefault(topic.name, []).extend(() if topic.internal else below)
    found: dict[str, dict[str, str]] = {}
    for name, nodes in readers.items():
        if nodes and all(isinstance(node, OperatorNode) and node.keeps for node in nodes):
            specs = [topology.stores[store] for node in nodes for store in node.stores]
            keeps_history = any(kind_of(spec).keeps_history for spec in specs)
            found[name] = _ALL_KEPT if keeps_history else {"cleanup.policy": "compact"}
    # A stream that reads the topic as well would miss what compaction removes.
    shared = {source.topic.name for source in topology.global_sources} - readers.keys()
    return found | {name: {"cleanup.policy": "compact"} for name in shared}


def written_topics(
    part: SubTopology, settings: Settings, dead_letters: set[str], logs: Mapping[str, str]
) -> set[str]:
    """All topics that a task of this part writes; `logs`: as for `internal_topics`."""
    application_id = settings.application_id
    sinks = {sink.topic.full(application_id) for sink in part.sinks}
    changelogs = {log_of(application_id, store, {}) for store in part.stores if store not in logs}
    return sinks | changelogs | dead_letters


def largest_batches(cluster: Cluster, topics: Collection[str]) -> dict[str, int]:
    """The largest batch in bytes that each topic accepts; empty if that may not be read.

    A broker refuses a batch above max.message.bytes as a whole, including its healthy records.
    """
    try:
        found = cluster.topic_settings(sorted(topics))
    except Misuse as error:
        _log.warning("batches are not sized by max.message.bytes of the topics written: %s", error)
        return {}
    return {topic: int(said["max.message.bytes"]) for topic, said in found.items()}


def compaction_lag_ms(retention_ms: int) -> int:
    """How long the cleaner shall spare the records of a store that is to have that much history."""
    return min(retention_ms + _DAY_MS, 2**63 - 1)


def refused_times(told: Mapping[str, str], wanted: Mapping[str, str] = ANY_TIME) -> list[str]:
    """The settings by which a topic refuses or changes times that its records may have."""
    found = []
    for name, value in wanted.items():
        there = told.get(name, value)
        if there != value and (not there.isdigit() or int(there) < int(value)):
            found.append(f"{name}={there}")
    return found


def as_settings(wanted: Mapping[str, str]) -> str:
    """Settings as a command line takes them."""
    return ", ".join(f"{name}={value}" for name, value in wanted.items())


def check_hashes(
    topology: Topology, counts: Mapping[TopicName, int], cluster: Cluster, settings: Settings
) -> None:
    """NotCopartitioned if keys placed by murmur2 meet keys placed by CRC32.

    Each topic is judged by its first keys. If neither hash placed them, a warning is logged,
    because nothing follows from that.
    """
    meetings = list(_meetings(topology, counts))
    wanted = {t.name: counts[t] for _, topics in meetings for t in topics if not t.internal}
    windowed = {
        topic.name: keys.span_bytes
        for part in topology.sub_topologies
        for source in part.sources
        if (keys := composed.of_windowed(source.key_serde.name)) is not None
        for topic in source.topics
    }
    found = cluster.key_hashes(wanted, windowed) if wanted else {}
    ours = _hashes_of(settings.partitioner)
    for name, hashes in found.items():
        if hashes.keys and not (hashes.murmur2 or hashes.crc32):
            _log.warning(
                "topic %s: its first %d keys were placed by neither murmur2 nor CRC32; whether "
                "they meet those of the topics it is joined or merged with is not checked",
                name,
                hashes.keys,
            )
    apart = {topic for topic in topology.placed_by if topic.internal}
    for node, topics in meetings:
        own = {t: _UNKNOWN if t in apart else ours for t in topics if t.internal}
        for topic in apart.intersection(topics):
            others = [t.name for t in topics if not t.internal]
            if others:
                _log.warning(
                    "%s: a partitioner of the pipeline's own places the keys of %s; whether they "
                    "meet those of %s is not checked",
                    node,
                    topic.without_application(),
                    ", ".join(others),
                )
        placed = {t: own[t] if t.internal else found.get(t.name, _UNKNOWN) for t in topics}
        by_murmur2 = [t for t, hashes in placed.items() if hashes.murmur2 and not hashes.crc32]
        by_crc32 = [t for t, hashes in placed.items() if hashes.crc32 and not hashes.murmur2]
        if by_murmur2 and by_crc32:
            java, c = (each[0].full(settings.application_id) for each in (by_murmur2, by_crc32))
            raise NotCopartitioned(
                f"{node}: the keys of {java} were placed by murmur2 (Java's default), those of {c} "
                "by CRC32 (librdkafka's default), so equal keys lie in different partitions: "
                "repartition() one side, or write both with partitioner=murmur2_random"
            )


def _meetings(
    topology: Topology, counts: Mapping[TopicName, int]
) -> Iterator[tuple[str, tuple[TopicName, ...]]]:
    """Each node with state or a join, and the topics whose keys meet there, if that matters."""
    for node, topics in topology.meetings():
        if max((counts[topic] for topic in topics), default=0) > 1:
            yield node, topics


def _hashes_of(partitioner: str) -> KeyHashes:
    """What places the keys of our own topics; hashes other than these two tell nothing."""
    murmur2, crc32 = partitioner.startswith("murmur2"), partitioner.startswith("consistent")
    return KeyHashes(0, murmur2=murmur2, crc32=crc32)
