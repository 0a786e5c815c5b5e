from collections.abc import Callable
from typing import Any

from typing_extensions import Buffer

from statestore.kafka.wire.codec import Rows, Times
from statestore.model.byte_columns import ByteColumn
from statestore.model.records import Header

def decode(
    data: Buffer,
    start: int,
    aborted: list[tuple[int, int]],
    check_crc: bool,
    limit: int,
    decompress: Callable[[int, memoryview, int], Buffer],
    malformed: type[Exception],
    /,
) -> tuple[Any, ...]: ...
def cut(rows: Rows, at: list[int] | None, /) -> list[bytes | None]: ...
def size_bytes(column: Rows, /) -> int: ...
def joined(columns: list[ByteColumn], /) -> tuple[Any, ...]: ...
def encode(
    keys: Rows,
    values: Rows,
    timestamps: Times,
    headers: list[tuple[Header, ...]] | None,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    attributes: int,
    compress: Callable[[memoryview], Buffer] | None,
    /,
) -> bytes: ...
def cuts(
    keys: Rows,
    values: Rows,
    headers: list[tuple[Header, ...]] | None,
    max_bytes: int,
    /,
) -> list[int]: ...
def larger(keys: Rows, values: Rows, limit: int, /) -> int: ...
def partitions(keys: Rows, count: int, by_murmur2: bool, /) -> list[int]: ...
def crc32c(data: Buffer, /) -> int: ...
def use_instruction(allowed: bool, /) -> bool: ...
