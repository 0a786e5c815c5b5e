from collections.abc import Callable

from typing_extensions import Buffer

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
) -> tuple[
    list[bytes | None],
    list[bytes | None],
    list[int],
    range | list[int],
    list[tuple[Header, ...]] | None,
    int,
    int,
]: ...
def encode(
    keys: list[bytes | None],
    values: list[bytes | None],
    timestamps: list[int],
    headers: list[tuple[Header, ...]] | None,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    attributes: int,
    compress: Callable[[memoryview], Buffer] | None,
    /,
) -> bytes: ...
def cuts(
    keys: list[bytes | None],
    values: list[bytes | None],
    headers: list[tuple[Header, ...]] | None,
    max_bytes: int,
    /,
) -> list[int]: ...
def partitions(keys: list[bytes | None], count: int, by_murmur2: bool, /) -> list[int]: ...
def crc32c(data: Buffer, /) -> int: ...
def use_instruction(allowed: bool, /) -> bool: ...
