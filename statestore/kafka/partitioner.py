"""The hashes that map keys to partitions: murmur2 in Java Kafka, CRC-32 in librdkafka.

The real producer chooses partitions itself, except for windowed keys. These functions are for
windowed keys, for the in-memory broker, and for the check that joined inputs are partitioned
alike.
"""

import zlib
from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt

from statestore.ports import KeyHashes

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_SHIFT = 24
_MASK = 0xFFFFFFFF
_FEW = 8
"""Arrays do not pay for so few keys: a key takes 2 us, an array 20."""


class _Wide:
    """The same constants for arrays, which stay unsigned only if all operands are unsigned."""

    multiplier = np.uint64(_MULTIPLIER)
    shift = np.uint64(_SHIFT)
    mask = np.uint64(_MASK)


def murmur2_partition(key: bytes, partitions: int) -> int:
    """Return the partition by Java Kafka's default hash, which is librdkafka's `murmur2`.

    The sign bit is cleared; the absolute value would be another number.
    """
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def crc32_partition(key: bytes, partitions: int) -> int:
    """Return the partition by librdkafka's default hash, `consistent`."""
    return zlib.crc32(key) % partitions


def key_hashes(
    rows: Iterable[tuple[int, bytes | None]], partitions: int, limit: int, *, span_bytes: int = 0
) -> KeyHashes:
    """Check which hash fits the first `limit` keys; each row has a partition and a key.

    Empty keys and null keys are skipped, because some clients place them at random. Of
    each key the last `span_bytes` are removed, which are its window.
    """
    found = ((p, key and key[: len(key) - span_bytes]) for p, key in rows)
    keys = list(islice(((p, key) for p, key in found if key), limit))
    return KeyHashes(
        len(keys),
        murmur2=all(murmur2_partition(key, partitions) == p for p, key in keys),
        crc32=all(crc32_partition(key, partitions) == p for p, key in keys),
    )


def partitions_of(
    placing: Sequence[bytes | None], partitions: int, partitioner: str
) -> list[int | None]:
    """Return the partition of each placing key, None for a null key, which may go anywhere.

    The hash is murmur2 unless the setting `partitioner` names CRC-32: Kafka Streams places
    windowed keys by murmur2 whatever is configured.
    """
    hashed = crc32_partitions if partitioner.startswith("consistent") else murmur2_partitions
    known = iter(hashed([data for data in placing if data is not None], partitions))
    return [None if data is None else next(known) for data in placing]


def murmur2_partitions(keys: Sequence[bytes], partitions: int) -> list[int]:
    """Do the same as `murmur2_partition` for many keys; keys of one length are hashed together."""
    if len(keys) <= _FEW:
        return [murmur2_partition(key, partitions) for key in keys]
    found = np.zeros(len(keys), dtype=np.int64)
    by_length: dict[int, list[int]] = {}
    for place, key in enumerate(keys):
        by_length.setdefault(len(key), []).append(place)
    for length, places in by_length.items():
        joined = b"".join([keys[place] for place in places])
        table = np.frombuffer(joined, dtype=np.uint8).reshape(len(places), length)
        found[places] = (_murmur2_rows(table) & 0x7FFFFFFF) % partitions
    made: list[int] = found.tolist()
    return made


def crc32_partitions(keys: Sequence[bytes], partitions: int) -> list[int]:
    """Do the same as `crc32_partition` for many keys."""
    return [crc32_partition(key, partitions) for key in keys]


def _murmur2_rows(table: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    """Return `murmur2` of each row."""
    count, length = table.shape
    whole = length & ~3
    digest = np.full(count, _SEED ^ length, dtype=np.uint64)
    for word in np.ascontiguousarray(table[:, :whole]).view("<u4").astype(np.uint64).T:
        mixed = word * _Wide.multiplier & _Wide.mask
        mixed = (mixed ^ mixed >> _Wide.shift) * _Wide.multiplier & _Wide.mask
        digest = digest * _Wide.multiplier & _Wide.mask ^ mixed
    if whole < length:
        for place in range(whole, length):
            digest ^= table[:, place].astype(np.uint64) << np.uint64(8 * (place - whole))
        digest = digest * _Wide.multiplier & _Wide.mask
    digest = (digest ^ digest >> np.uint64(13)) * _Wide.multiplier & _Wide.mask
    return digest ^ digest >> np.uint64(15)


def murmur2(data: bytes) -> int:
    """Return the unsigned 32-bit murmur2 hash with Kafka's seed."""
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
