"""The rows of the `offsets` table: changelog offsets, input position, format version.

    o <topic> 0x00 <partition, 4 bytes>   changelog offset, 8 bytes   the NEXT one to read
    p <topic> 0x00 <partition, 4 bytes>   input offset, 8 bytes       the LAST one processed
    c                                     since when complete, 8 bytes     ms since the epoch
    f                                     format: kind and version
    t <key>, m                            times of rows of the data (stores/row_times.py)
    x <time, key>, n, e                   which of them expire next (stores/expiry.py)
    v                                     the log has a record for each version

Integers are big-endian and signed. At the time in row `c` the store had all that its log held, so
what it lacks was logged later.

These rows are in the engine batch of the data to which they belong, but in another table, so no
scan of data ever meets them.

Keeps I8.
"""

import struct
from collections.abc import Iterable, Mapping
from operator import index

import msgspec

from statestore.errors import UNREADABLE, FormatTooNew, Misuse, TaskCorrupted
from statestore.model.decoders import json_decoder
from statestore.model.ids import Position, TopicPartition
from statestore.ports import Table

TABLE = "offsets"
FORMAT_VERSION = 1
_FORMAT_KEY = b"f"
_COMPLETE_KEY = b"c"
_PARTITION = struct.Struct(">i")
_OFFSET = struct.Struct(">q")
_OFFSET_MAX = (1 << 63) - 1


class Format(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a store's folder holds."""

    kind: str
    version: int
    segment_interval_ms: int | None = None
    """The length of the segments of a versioned store; None for other kinds."""


def offset_rows(
    offsets: Mapping[TopicPartition, int | None], position: Position
) -> dict[bytes, bytes | None]:
    """Return the rows that record these offsets and this position; a None offset clears its row."""
    rows = {
        _key(b"o", tp): None if offset is None else _OFFSET.pack(offset)
        for tp, offset in offsets.items()
    }
    rows.update({_key(b"p", tp): _OFFSET.pack(last) for tp, last in position.as_dict().items()})
    return rows


def check_offsets(offsets: Mapping[TopicPartition, int | None], store: str) -> None:
    """Raise Misuse if one of them cannot be an offset of a log."""
    for tp, offset in offsets.items():
        try:
            fits = offset is None or 0 <= index(offset) <= _OFFSET_MAX
        except TypeError:
            fits = False
        if not fits:
            topic, partition = tp
            raise Misuse(
                f"store {store!r}: commit of {offset!r} for {topic}-{partition}: pass the offset "
                "NEXT to read, 0 or more, or None to clear it"
            )


def position_gone(tps: Iterable[TopicPartition]) -> dict[bytes, bytes | None]:
    """Return the rows that make a store forget what it has processed of these inputs."""
    return {_key(b"p", tp): None for tp in tps}


def read_offsets(table: Table, where: str) -> dict[TopicPartition, int]:
    """Return all committed changelog offsets; TaskCorrupted if a row cannot be read."""
    return _read(table, b"o", where)


def read_position(table: Table, where: str) -> Position:
    """Return the committed input position; TaskCorrupted if a row cannot be read."""
    return Position.of(_read(table, b"p", where))


def complete_row(time_ms: int) -> dict[bytes, bytes | None]:
    """Return the row that says when the store had all that its log held."""
    return {_COMPLETE_KEY: _OFFSET.pack(time_ms)}


def read_complete(table: Table, where: str) -> int | None:
    """Return the time in row `c`; None if there is none, TaskCorrupted if it cannot be read."""
    data = table.get(_COMPLETE_KEY)
    try:
        return None if data is None else int(_OFFSET.unpack(data)[0])
    except struct.error as error:
        raise TaskCorrupted(f"{where}: offset row {_COMPLETE_KEY!r} is not readable") from error


def format_rows(kind: str, segment_interval_ms: int | None = None) -> dict[bytes, bytes | None]:
    """Return what a new store writes first (SEMANTICS S12)."""
    made = Format(kind, FORMAT_VERSION, segment_interval_ms)
    return {_FORMAT_KEY: msgspec.json.encode(made)}


def check_format(table: Table, kind: str, where: str) -> Format | None:
    """Return the recorded format, if any.

    Misuse if it is that of another kind of store; FormatTooNew or TaskCorrupted if this version
    cannot read it.
    """
    found = read_format(table, where)
    if found is None:
        return None
    if found.kind != kind:
        raise other_kind(where, found.kind, kind)
    if found.version > FORMAT_VERSION:
        raise FormatTooNew(
            f"{where} has format {found.version}, this statestore reads up to {FORMAT_VERSION}: "
            "upgrade statestore, or move the folder away to restore it from its changelog"
        )
    return found


def read_format(table: Table, where: str) -> Format | None:
    """Return the recorded format, of any kind and version; TaskCorrupted if it cannot be read."""
    data = table.get(_FORMAT_KEY)
    if data is None:
        return None
    try:
        return json_decoder(Format).decode(data)
    except UNREADABLE as error:
        raise TaskCorrupted(f"{where}: format row is not readable: {error}") from error


def other_kind(where: object, found: str, wanted: str) -> Misuse:
    """Return the error for a store of another kind (SEMANTICS V11)."""
    way_out = "open it as what it is, or move the folder away and restore from the changelog"
    if (found, wanted) == ("keyvalue", "versioned"):
        way_out = "`statestore upgrade-to-versioned` sets it aside for a versioned store"
    return Misuse(f"{where} holds a {found} store, not a {wanted} one: {way_out}")


def _key(kind: bytes, tp: TopicPartition) -> bytes:
    topic, partition = tp
    return kind + topic.encode() + b"\0" + _PARTITION.pack(partition)


def _read(table: Table, kind: bytes, where: str) -> dict[TopicPartition, int]:
    found = {}
    cursor = table.scan(kind, kind + b"\xff")
    for key, value in cursor:
        try:
            topic, partition = key[1:-5].decode(), _PARTITION.unpack(key[-4:])[0]
            found[TopicPartition(topic, partition)] = _OFFSET.unpack(value)[0]
        except (struct.error, ValueError) as error:
            raise TaskCorrupted(f"{where}: offset row {key!r} is not readable: {error}") from error
    cursor.close()
    return found
