"""Checks that topics whose keys meet were partitioned alike (INTERFACE rule 2).

Java's Kafka clients choose the partition of a key by murmur2, librdkafka by CRC32. If topics
written by both meet, equal keys lie in different partitions, and therefore in different stream
tasks: a join or an aggregate over both would be wrong without any sign of it.
"""

import logging
from collections.abc import Iterator, Mapping

from statestore.errors import NotCopartitioned
from statestore.ports import Cluster, KeyHashes
from statestore.settings import Settings
from statestore.stores import serdes
from statestore.topology.graph import Topology
from statestore.topology.nodes import TopicName

_log = logging.getLogger(__name__)
_UNKNOWN = KeyHashes(0, murmur2=True, crc32=True)


def check_hashes(
    topology: Topology, counts: Mapping[TopicName, int], cluster: Cluster, settings: Settings
) -> None:
    """NotCopartitioned if keys placed by murmur2 meet keys placed by CRC32.

    Each topic is judged by its first keys. If neither hash placed them, a warning is logged,
    because nothing follows from that.
    """
    meetings = list(_meetings(topology, counts))
    wanted = {t.name: counts[t] for _, topics in meetings for t in topics if not t.internal}
    windowed = [
        topic.name
        for part in topology.sub_topologies
        for source in part.sources
        if serdes.of_windowed(source.key_serde.name) is not None
        for topic in source.topics
    ]
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
    for node, topics in meetings:
        placed = {t: ours if t.internal else found.get(t.name, _UNKNOWN) for t in topics}
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
    for node in topology.nodes:
        if node.stores:
            shared = set(node.stores)
            left = [n.name for n in topology.nodes if shared.intersection(n.stores)]
            topics = topology.topics_above(left)
            if len(topics) > 1 and max(counts[topic] for topic in topics) > 1:
                yield node.name, topics
    yield from (joined for joined in topology.joined if counts[joined[1][0]] > 1)


def _hashes_of(partitioner: str) -> KeyHashes:
    """What places the keys of our own topics; hashes other than these two tell nothing."""
    murmur2, crc32 = partitioner.startswith("murmur2"), partitioner.startswith("consistent")
    return KeyHashes(0, murmur2=murmur2, crc32=crc32)
