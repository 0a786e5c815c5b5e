"""Record batches made field by field, with what the codec itself never writes."""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from statestore.kafka.wire import _records

LOG_APPEND_TIME, TRANSACTIONAL, CONTROL, DELETE_HORIZON = 0x08, 0x10, 0x20, 0x40
ABORT, COMMIT = 0, 1


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
