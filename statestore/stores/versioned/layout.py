"""The rows of a versioned store as bytes. Pure: nothing is opened here.

    table data      <key>                                          <version>   the latest of a key
    table history   c                                              <time> <time>
                    d <segment> <key>                              (empty)
                    v <segment> <length of key, 4> <key> <time>    <version>

A <version> is 1 byte (0: a tombstone, 1: a value), the time it is valid from, and the value. A `v`
row is a version that was superseded: its key ends with the time it is valid to, and it lies in the
segment of that time, so that whole segments expire. It holds the very bytes the `data` row had. A
`d` row says that in this segment's time the latest version of the key became a tombstone: once the
segment expires nobody can tell it from an absent key. `c`: the observed stream time, and the time
before which history is gone.

Times and segments are 8 bytes, big-endian, offset by 2^63: bytes sort as the numbers do. The length
before the key keeps the rows of one key and segment together, ordered by time, whatever keys begin
with each other (docs/adr/0008).
"""

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import repeat
from operator import add
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

LATEST: Final = "data"
HISTORY: Final = "history"
KIND: Final = "versioned"

TIME_MIN: Final = -(1 << 63)
TIME_MAX: Final = (1 << 63) - 1
NEVER: Final = TIME_MIN - 1
"""A time before every other: the stream time of a store before its first put."""

CLOCK_KEY: Final = b"c"
_TOMBSTONES: Final = b"d"
VERSION: Final = b"v"
"""The prefix of rows of a history that are versions."""
_TOMBSTONE: Final = 0
VALUE: Final = 1
NOT_VERSIONS: Final = (CLOCK_KEY, _TOMBSTONES)
"""The prefixes of rows of a history that are not versions."""

BIAS: Final = 1 << 63
"""Added to times and segments, so that bytes sort as the numbers do."""
_HEAD: Final = struct.Struct(">BQ")
_PLACE: Final = struct.Struct(">cQI")
_TIME: Final = struct.Struct(">Q")
_CLOCK: Final = struct.Struct(">QQ")
_LIMIT: Final = struct.Struct(">Q")
HEAD_SIZE: Final = _HEAD.size
STAMP_SIZE: Final = _TIME.size
STAMP: Final = slice(1, HEAD_SIZE)
"""Where a row has the time it is valid from, as history keys end with: bytes sort as times do."""
PAYLOAD: Final = slice(HEAD_SIZE, None)
"""Where a row has its value. The slice is made once, because hot paths use it."""
_PLACE_SIZE: Final = _PLACE.size
PLACE_EXTRA: Final = _PLACE.size + _TIME.size
"""What a history key holds besides the key."""

# Bound once: these run for every record.
pack_head = _HEAD.pack
unpack_head = _HEAD.unpack_from
"""Of a row: its kind and biased time. Like `pack_head` for those who cannot afford a call more."""
_pack_place = _PLACE.pack
_pack_time = _TIME.pack


class Version(NamedTuple):
    """A version without its end; it is a tombstone if `value` is None."""

    valid_from: int
    value: bytes | None


def version_row(value: bytes | None, valid_from: int) -> bytes:
    """Return the bytes of a version, in either table."""
    if value is None:
        return pack_head(_TOMBSTONE, valid_from + BIAS)
    return pack_head(VALUE, valid_from + BIAS) + value


def version_rows(values: list[bytes | None], times: list[int]) -> list[bytes]:
    """Do as `version_row` for many values, without a call in Python for each."""
    if tombstones_in(values):
        return list(map(version_row, values, times))
    heads = map(pack_head, repeat(VALUE), [time + BIAS for time in times])
    return list(map(add, heads, values))


def tombstones_in(values: list[bytes | None]) -> int:
    """Return how many of them are None."""
    return 0 if all(values) else values.count(None)


def read_version(row: bytes) -> Version:
    """The inverse of `version_row`."""
    kind, time = unpack_head(row)
    return Version(time - BIAS, row[HEAD_SIZE:] if kind == VALUE else None)


def read_versions(rows: Sequence[bytes]) -> tuple[list[bytes | None], list[int]]:
    """The inverse of `version_rows`: values and times."""
    values = [row[HEAD_SIZE:] if row[0] else None for row in rows]
    return values, times_of([row[STAMP] for row in rows])


def valid_from(row: bytes) -> int:
    """Return when a version begins."""
    begins: int = unpack_head(row)[1]
    return begins - BIAS


def is_tombstone(row: bytes) -> bool:
    """Return whether a version is a tombstone."""
    return row[0] == _TOMBSTONE


def history_key(key: bytes, valid_to: int, interval_ms: int) -> bytes:
    """Return the history key of the version of `key` that ends at `valid_to`."""
    return place_head(valid_to // interval_ms, len(key)) + key + _pack_time(valid_to + BIAS)


def stamp_of(time: int) -> bytes:
    """Return a time as rows have it."""
    return _pack_time(time + BIAS)


def history_prefix(key: bytes, segment: int) -> bytes:
    """Return the prefix of all versions of `key` in one segment, and of nothing else."""
    return place_head(segment, len(key)) + key


def history_keys(keys: Sequence[bytes], ends: Sequence[bytes], interval_ms: int) -> list[bytes]:
    """Return the history keys of versions of `keys` that end at `ends`, times as in rows."""
    segments = (_times_of(ends) // interval_ms).tolist()
    heads: Iterable[bytes] = map(place_head, segments, map(len, keys))
    if len(set(segments)) == 1 and len(set(map(len, keys))) == 1:  # as of most commits
        heads = repeat(place_head(segments[0], len(keys[0])), len(keys))
    return list(map(b"".join, zip(heads, keys, ends, strict=True)))


def times_of(stamps: Sequence[bytes]) -> list[int]:
    """Return times from what rows have."""
    times: list[int] = _times_of(stamps).tolist()
    return times


def _times_of(stamps: Sequence[bytes]) -> npt.NDArray[np.int64]:
    return (np.frombuffer(b"".join(stamps), ">u8") ^ np.uint64(BIAS)).astype(np.int64)


@lru_cache(maxsize=1024)
def place_head(segment: int, key_length: int) -> bytes:
    """Return the prefix before the key in a `v` key; writers stay in one segment for long."""
    return _pack_place(VERSION, segment + BIAS, key_length)


def valid_to(history_row_key: bytes) -> int:
    """Return when the version under this `v` key ends."""
    return int.from_bytes(history_row_key[-8:], "big") - BIAS


def key_of(history_row_key: bytes) -> bytes:
    """Return the store's key in a `v` key."""
    return history_row_key[_PLACE_SIZE:-8]


def tombstone_key(key: bytes, deleted_at: int, interval_ms: int) -> bytes:
    """Return the row that records when the latest version of `key` became a tombstone."""
    return _TOMBSTONES + _pack_time(deleted_at // interval_ms + BIAS) + key


def tombstone_of(row_key: bytes) -> tuple[int, bytes]:
    """Return the segment and the key of a `d` key."""
    return int.from_bytes(row_key[1:9], "big") - BIAS, row_key[9:]


def tombstones_below(segment: int) -> tuple[bytes, bytes]:
    """Return both ends, inclusive, of a scan for the `d` rows of segments before this one.

    It may find one row of this segment: that of the empty key.
    """
    return _TOMBSTONES, _TOMBSTONES + _pack_time(segment + BIAS)


def versions_between(first: int, below: int) -> tuple[bytes, bytes]:
    """Return both ends of a scan for the `v` rows of segments from `first` on and before `below`.

    No row has exactly the upper end as its key.
    """
    return VERSION + _pack_time(first + BIAS), VERSION + _pack_time(below + BIAS)


def versions_below(segment: int) -> tuple[bytes, bytes]:
    """Return the span [from, to) of the `v` rows of segments before this one."""
    return VERSION, VERSION + _pack_time(segment + BIAS)


def expired_below(bound_ms: int, interval_ms: int) -> int:
    """Return the first segment with a version still valid at `bound_ms` or later.

    A version is gone when it ends at or before the bound, a segment when all it can hold is.
    """
    return (bound_ms + 1) // interval_ms


def clock_row(stream_time: int, bound: int, limit: int | None = None) -> bytes:
    """Return the row of the observed stream time, the bound of history, and what limits it."""
    row = _CLOCK.pack(stream_time + BIAS, bound + BIAS)
    return row if limit is None else row + _LIMIT.pack(limit + BIAS)


def read_clock(row: bytes) -> tuple[int, int, int | None]:
    """The inverse of `clock_row`."""
    stream_time, bound = _CLOCK.unpack(row[: _CLOCK.size])
    limit = _LIMIT.unpack(row[_CLOCK.size :])[0] - BIAS if len(row) > _CLOCK.size else None
    return stream_time - BIAS, bound - BIAS, limit


_INTERVALS: Final = ((60_000, 3, 2_000), (300_000, 5, 20_000), (3_600_000, 12, 60_000))


def default_segment_interval_ms(retention_ms: int) -> int:
    """Return the segment interval of a store that names none (SEMANTICS V5)."""
    for up_to_ms, parts, at_least_ms in _INTERVALS:
        if retention_ms <= up_to_ms:
            return max(retention_ms // parts, at_least_ms)
    return min(max(retention_ms // 24, 300_000), TIME_MAX)
