"""Reads the offset syncs of MirrorMaker: places at which it says what an offset became.

MirrorMaker 2 writes them to `mm2-offset-syncs.<cluster>.internal`, one partition, compacted:

    key      topic at the source (2 bytes of length, UTF-8), partition, 4 bytes
    value    offset at the source, offset of the copy, 8 bytes each

It writes one at times, not for each record. One that goes back says that the topic at the source
was created again, so what was said before it holds no longer.
"""

import struct
from collections.abc import Mapping
from typing import Final

from statestore.errors import Misuse
from statestore.model.ids import TopicPartition
from statestore.operations.environment import Environment

Syncs = Mapping[TopicPartition, Mapping[int, int]]
"""By partition of a topic at the source, where offsets there lie in the copy."""
_LENGTH: Final = struct.Struct(">h")
_PARTITION: Final = struct.Struct(">i")
_OFFSETS: Final = struct.Struct(">qq")


def read_syncs(environment: Environment, topic: str) -> Syncs:
    """Read all that the topic has; Misuse if it is not there, or not of that format."""
    counts = environment.cluster.partitions([topic])
    if topic not in counts:
        raise Misuse(
            f"there is no topic {topic} on these brokers: MirrorMaker keeps offset syncs on the "
            "source's unless offset-syncs.topic.location=target; leave out --offset-syncs to find "
            "offsets by their records"
        )
    found: dict[TopicPartition, dict[int, int]] = {}
    for tp in (TopicPartition(topic, p) for p in range(counts[topic])):
        bounds = environment.changelog.bounds([tp])[tp]
        for stretch in environment.changelog.replay(tp, bounds.start, bounds.end):
            batch = stretch.batch
            for key, value in zip(batch.keys.objects, batch.values.objects, strict=True):
                if value is not None:
                    _take(found, topic, key, value)
    return found


def _take(
    found: dict[TopicPartition, dict[int, int]], topic: str, key: bytes | None, value: bytes
) -> None:
    try:
        assert key is not None
        (length,) = _LENGTH.unpack_from(key)
        name = key[_LENGTH.size : _LENGTH.size + length].decode()
        (partition,) = _PARTITION.unpack(key[_LENGTH.size + length :])
        source, copy = _OFFSETS.unpack(value)
    except (AssertionError, struct.error, UnicodeDecodeError) as error:
        raise Misuse(
            f"topic {topic} has a record that is no offset sync of MirrorMaker: name the topic "
            "mm2-offset-syncs.<cluster>.internal"
        ) from error
    known = found.setdefault(TopicPartition(name, partition), {})
    if known and source < max(known):
        known.clear()
    known[source] = copy
