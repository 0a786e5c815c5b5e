"""Record batches made field by field, with what the codec itself never writes."""

import struct
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from statestore.kafka.wire import _records, codec
from statestore.model.byte_columns import ByteColumn
from statestore.model.records import Header

LOG_APPEND_TIME, TRANSACTIONAL, CONTROL, DELETE_HORIZON = 0x08, 0x10, 0x20, 0x40
ABORT, COMMIT = 0, 1


class Listed(NamedTuple):
    """What `codec.decode` returns, in lists."""

    keys: list[bytes | None]
    values: list[bytes | None]
    timestamps: list[int]
    offsets: range | list[int]
    headers: list[tuple[Header, ...]] | None
    next_offset: int
    size_bytes: int


def decoded(
    data: bytes | memoryview,
    start: int,
    aborted: Sequence[tuple[int, int]] = (),
    *,
    check_crc: bool = True,
    max_records: int | None = None,
) -> Listed:
    """Decode a set; the codec and Arrow make the same rows of it."""
    found = codec.decode(data, start, aborted, check_crc=check_crc, max_records=max_records)
    offsets = found.offsets
    return Listed(
        listed(found.keys),
        listed(found.values),
        found.timestamps.tolist(),
        offsets if isinstance(offsets, range) else offsets.tolist(),
        *found[4:],
    )


def listed(column: ByteColumn) -> list[bytes | None]:
    """The rows of a column, cut by the codec and by Arrow alike."""
    rows = codec.cut(column)
    half = column.rows // 2
    parts = [column.part(0, half), column.part(half, column.rows)]
    made = arrow(codec.joined(parts))
    assert made.to_pylist() == rows
    assert codec.size_bytes(column) == sum(map(codec.size_bytes, parts))
    assert codec.size_bytes(column) == sum(len(row or b"") for row in rows)
    return rows


def arrow(column: ByteColumn) -> pa.Array:
    """A column in the layout of Arrow, which looks at it closely."""
    assert column.step == 1
    valid = None if column.valid is None else pa.py_buffer(column.valid)
    buffers = [valid, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
    made = pa.Array.from_buffers(pa.large_binary(), column.rows, buffers, offset=column.first)
    made.validate(full=True)
    return made


class Row(NamedTuple):
    """A record at so many offsets and milliseconds behind its batch."""

    delta: int
    value: bytes | None = b""
    key: bytes | None = None
    time_delta: int = 0


def number(value: int) -> bytes:
    """A whole number in zigzag and base 128."""
    left = (value << 1) ^ (value >> 63)
    digits = bytearray()
    while left > 0x7F:
        digits.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*digits, left])


def piece(data: bytes | None) -> bytes:
    return number(-1) if data is None else number(len(data)) + data


def record(row: Row, headers: bytes = b"\x00") -> bytes:
    fields = number(row.time_delta) + number(row.delta) + piece(row.key) + piece(row.value)
    body = b"\x00" + fields + headers
    return number(len(body)) + body


def batch(
    first: int,
    rows: Sequence[Row] | bytes,
    *,
    attributes: int = 0,
    producer: int = -1,
    last_delta: int | None = None,
    count: int | None = None,
    base_ms: int = 0,
    max_ms: int = 0,
    magic: int = 2,
) -> bytes:
    """`rows` may be the bytes behind the head; then `count` and `last_delta` are needed."""
    if not isinstance(rows, bytes):
        count = len(rows) if count is None else count
        last_delta = (
            max((row.delta for row in rows), default=0) if last_delta is None else last_delta
        )
        rows = b"".join(map(record, rows))
    fields = struct.pack(
        ">hiqqqhii", attributes, last_delta, base_ms, max_ms, producer, 0, 0, count
    )
    checked = fields + rows
    head = struct.pack(">qiibI", first, len(checked) + 9, 0, magic, _records.crc32c(checked))
    return head + checked


def values(first: int, *texts: str, producer: int = -1, attributes: int = 0) -> bytes:
    rows = [Row(delta, text.encode()) for delta, text in enumerate(texts)]
    return batch(first, rows, producer=producer, attributes=attributes)


def transactional(first: int, producer: int, *texts: str) -> bytes:
    return values(first, *texts, producer=producer, attributes=TRANSACTIONAL)


def marker(at: int, producer: int, kind: int) -> bytes:
    """The end of a transaction, as the coordinator writes it."""
    row = Row(0, struct.pack(">hi", 0, 0), struct.pack(">hh", 0, kind))
    return batch(at, [row], attributes=TRANSACTIONAL | CONTROL, producer=producer)
