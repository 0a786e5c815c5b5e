"""What a join of streams finds in its stores: rows of a key, those that wait, and results."""

from typing import NamedTuple

from statestore.topology.joins.join_windows import BIAS, TIME


class Unmatched(NamedTuple):
    """A record that waited for a match in vain: first by when its window closed, then by order."""

    closes_ms: int
    listed: bytes
    row: bytes

    @property
    def letter(self) -> bytes:
        return self.listed[:1]


class Match(NamedTuple):
    """A result to be: `place` is the record of the batch with which it comes.

    `letter` is the side of a record that waited in vain, whose key and value are `key` and `raw`;
    b"": the record at `place` itself, joined with `raw`, a value of the other side, if any.
    """

    place: int
    letter: bytes
    key: bytes | None
    raw: bytes | None
    time_ms: int


class KeyRows(NamedTuple):
    """The records of one key in the other side's store, by time and number."""

    times: list[int]
    rows: list[bytes]
    values: list[bytes]


def time_bytes(time_ms: int) -> bytes:
    """Return how rows of a time sort, or of the nearest time that rows can have."""
    return TIME.pack(min(max(time_ms + BIAS, 0), 2 * BIAS - 1))


def listed_as(letter: bytes, row: bytes) -> bytes:
    """Return the row with which a record is listed as waiting."""
    return letter + row[-16:-8] + row[:-16] + row[-8:]
