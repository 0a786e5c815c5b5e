"""Which partition a key goes to: murmur2 in Java Kafka, CRC-32 in librdkafka.

The real producer partitions by itself; these serve the in-memory broker and the check that joined
inputs were partitioned alike.
"""

import zlib
from collections.abc import Iterable
from itertools import islice

from statestore.ports import KeyHashes

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_SHIFT = 24
_MASK = 0xFFFFFFFF


def murmur2_partition(key: bytes, partitions: int) -> int:
    """Java Kafka's default, librdkafka's `murmur2`: the sign bit is dropped, not the sign."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def crc32_partition(key: bytes, partitions: int) -> int:
    """The default of librdkafka, `consistent`."""
    return zlib.crc32(key) % partitions


def key_hashes(rows: Iterable[tuple[int, bytes | None]], partitions: int, limit: int) -> KeyHashes:
    """Which hash fits the first `limit` keys, each with the partition it lies in.

    Empty keys and none say nothing: some clients place those at random.
    """
    keys = list(islice(((p, key) for p, key in rows if key), limit))
    return KeyHashes(
        len(keys),
        murmur2=all(murmur2_partition(key, partitions) == p for p, key in keys),
        crc32=all(crc32_partition(key, partitions) == p for p, key in keys),
    )


def murmur2(data: bytes) -> int:
    """The 32-bit murmur2 hash with Kafka's seed, unsigned."""
    whole = len(data) & ~3
    digest = _SEED ^ len(data)
    for start in range(0, whole, 4):
        word = int.from_bytes(data[start : start + 4], "little") * _MULTIPLIER & _MASK
        word = (word ^ word >> _SHIFT) * _MULTIPLIER & _MASK
        digest = digest * _MULTIPLIER & _MASK ^ word
    if whole < len(data):
        digest = (digest ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _MASK
    digest = (digest ^ digest >> 13) * _MULTIPLIER & _MASK
    return digest ^ digest >> 15
