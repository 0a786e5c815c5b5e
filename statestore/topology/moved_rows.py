"""Rows of operators that come to another partition: those whose keys do not say where they lie.

When the number of partitions changes, each row goes where the key in it does. Rows about a
partition as a whole are made one, as several old partitions meet in a new one: the latest time
counts, and what is counted is counted anew (docs/adr/0052).
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from statestore.model.decoders import msgpack_decoder
from statestore.serdes import composed
from statestore.stores.specs import MovedRow

_TIMES: Final = struct.Struct(">qqqq")
_PAIR: Final = struct.Struct(">QQ")
_NUMBER: Final = struct.Struct(">Q")
_TIME_BYTES: Final = 8
_decode = msgpack_decoder(list[Any]).decode


@dataclass(frozen=True)
class RowsThatWait:
    """The rows of a join with grace (joins/grace.py). `keys`: the name of the serde of keys.

    A record's row has its time and a number, which are counted anew, in the order of the times.
    """

    keys: str

    def placing(self, key: bytes, value: bytes) -> bytes | None:
        """Return the key of a record that waits."""
        return _placed(self.keys, _decode(value)[0] or b"") if key[:1] == b"w" else None

    def joined(self, own: Sequence[MovedRow], about: Sequence[MovedRow]) -> Iterable[MovedRow]:
        """Return the records with new numbers, the next number and the latest time."""
        times = slice(1, 1 + _TIME_BYTES)
        number = 0
        for row in sorted(own, key=lambda row: (row.key[times], row.partition, row.key)):
            yield row._replace(key=row.key[: 1 + _TIME_BYTES] + _NUMBER.pack(number))
            number += 1
        for row in _latest([row for row in about if row.key == b"t"]):
            yield row
        for row in _latest([row for row in about if row.key == b"n"]):
            yield row._replace(value=_NUMBER.pack(number))


@dataclass(frozen=True)
class SuppressedRows:
    """The rows of a suppress (tables/suppression.py). `keys`: the name of the serde of keys."""

    keys: str

    def placing(self, key: bytes, value: bytes) -> bytes | None:  # noqa: ARG002  # a port
        """Return the key of the update."""
        match key[:1]:
            case b"k":
                return _placed(self.keys, key[1:])
            case b"w":
                return _placed(self.keys, key[1 + _TIME_BYTES :])
        return None

    def joined(self, own: Sequence[MovedRow], about: Sequence[MovedRow]) -> Iterable[MovedRow]:
        """Return the updates, the latest times, and how many wait with how many bytes."""
        yield from own
        waiting = [row for row in own if row.key[:1] == b"w"]
        size = 0
        for row in waiting:
            value, prior = _decode(row.value)[:2]
            size += len(row.key) - 1 - _TIME_BYTES + len(value or b"") + len(prior or b"")
        if about:
            found = [_TIMES.unpack(row.value) for row in about]
            now, done = max(one[0] for one in found), max(one[1] for one in found)
            newest = max(about, key=lambda row: row.time_ms)
            yield newest._replace(value=_TIMES.pack(now, done, len(waiting), size))


@dataclass(frozen=True)
class RowsOfStreamJoin:
    """What both sides of a join of streams share (joins/stream_joins.py).

    `keys`: the name of the serde of keys. Numbers tell the records of one key and time apart, and
    those of a key lay in one partition, so only the next number has to be beyond all. A round of
    the sweeper begins anew.
    """

    keys: str

    def placing(self, key: bytes, value: bytes) -> bytes | None:  # noqa: ARG002  # a port
        """Return the key of a record that waits for a match."""
        if key[0] > 1:
            return None
        return _placed(self.keys, key[1 + _TIME_BYTES : -_TIME_BYTES])

    def joined(self, own: Sequence[MovedRow], about: Sequence[MovedRow]) -> Iterable[MovedRow]:
        """Return the records, the latest times and the largest number."""
        yield from own
        clocks = [row for row in about if row.key == b"t"]
        if clocks:
            found = [_PAIR.unpack(row.value) for row in clocks]
            latest = max(now for now, _ in found), max(number for _, number in found)
            newest = max(clocks, key=lambda row: row.time_ms)
            yield newest._replace(value=_PAIR.pack(*latest))
        for key in sorted({row.key for row in about if row.key[:1] == b"a"}):
            yield from _latest([row for row in about if row.key == key])


def _placed(serde: str, key: bytes) -> bytes:
    place = composed.placed_by(serde)
    return key if place is None else place(key)


def _latest(rows: Sequence[MovedRow]) -> Iterator[MovedRow]:
    """Yield the row with the largest value, whose bytes sort as times do; none if there is none."""
    if rows:
        yield max(rows, key=lambda row: row.value)
