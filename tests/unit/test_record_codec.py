"""The codec of record batches against itself, and against bytes that are wrong."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.errors import MalformedRecords
from statestore.kafka import partitioner
from statestore.kafka.wire import _records, codec
from statestore.kafka.wire.codec import Compression, Decoded, decode, encode
from statestore.model.records import Header

CODECS: tuple[Compression, ...] = ("none", "gzip", "snappy", "lz4", "zstd")
Rows = list[tuple[bytes | None, bytes | None, int, tuple[Header, ...]]]

contents = st.none() | st.binary(max_size=300)
times = st.integers(-(2**63), 2**63 - 1)
some_headers = st.lists(st.tuples(st.text(max_size=5), contents), max_size=3).map(tuple)
rows_of_a_batch = st.lists(st.tuples(contents, contents, times, some_headers), min_size=1)


def batch_of(rows: Rows, **others: object) -> bytes:
    keys, values, timestamps, headers = map(list, zip(*rows, strict=True))
    return encode(keys, values, timestamps, headers, **others)  # type: ignore[arg-type] # of columns


def at_offset(batch: bytes, offset: int) -> bytes:
    """The batch as the broker keeps it; its first field is not part of the checksum."""
    return offset.to_bytes(8, "big") + batch[8:]


def plain(values: list[str], **others: object) -> bytes:
    return batch_of([(None, value.encode(), 0, ()) for value in values], **others)


def texts(decoded: Decoded) -> str:
    return " ".join(value.decode() for value in decoded.values if value is not None)


@given(rows_of_a_batch, st.sampled_from(CODECS), st.integers(0, 2**40))
def test_what_was_encoded_is_decoded(rows: Rows, compression: Compression, first: int) -> None:
    decoded = decode(at_offset(batch_of(rows, compression=compression), first), first)
    keys, values, timestamps, headers = map(list, zip(*rows, strict=True))
    assert decoded.keys == keys
    assert decoded.values == values
    assert decoded.timestamps == timestamps
    assert decoded.headers == (headers if any(headers) else None)
    assert decoded.offsets == range(first, first + len(rows))
    assert decoded.next_offset == first + len(rows)


def test_a_batch_that_is_cut_off_is_left_for_the_next_fetch() -> None:
    first, second = plain(["a", "b"]), at_offset(plain(["c"]), 2)
    for size in range(len(second)):
        decoded = decode(first + second[:size], 0)
        assert (texts(decoded), decoded.next_offset) == ("a b", 2)
    assert decode(first[:-1], 1).next_offset == 1


def test_records_before_the_start_are_left_out() -> None:
    data = plain(["a", "b"]) + at_offset(plain(["c", "d", "e"]), 2)
    for start, wanted in enumerate(["a b c d e", "b c d e", "c d e", "d e", "e", ""]):
        decoded = decode(data, start)
        assert (texts(decoded), decoded.next_offset) == (wanted, 5)
        assert decoded.offsets == range(start, 5)


def test_a_limit_ends_anywhere_and_the_next_call_goes_on() -> None:
    data = plain(["a", "b"]) + at_offset(plain(["c", "d", "e"]), 2)
    for limit in range(1, 7):
        start, seen = 0, []
        while (decoded := decode(data, start, max_records=limit)).keys:
            assert len(decoded.keys) <= limit
            start = decoded.next_offset
            seen.append(texts(decoded))
        assert (" ".join(seen), start) == ("a b c d e", 5)


@pytest.mark.parametrize("name", ["murmur2", "crc32"])
def test_partitions_are_those_of_the_partitioner(name: codec.KeyHash) -> None:
    keys: list[bytes | None] = [random.randbytes(size) for size in range(300)]
    wanted = partitioner.partitions_of(keys, 13, "consistent" if name == "crc32" else name)
    assert codec.partitions_of(keys, 13, name) == wanted
    assert codec.partitions_of([None, b""], 1, name) == [-1, 0]


def test_the_checksum_is_that_of_the_standard_with_and_without_the_instruction() -> None:
    samples = [random.randbytes(size) for size in range(50)]
    try:
        by_tables = _records.use_instruction(False), list(map(_records.crc32c, samples))
        assert _records.crc32c(b"123456789") == 0xE3069283
    finally:
        _records.use_instruction(True)
    assert by_tables == (False, list(map(_records.crc32c, samples)))
    assert _records.crc32c(b"123456789") == 0xE3069283


def test_a_damaged_batch_is_named_by_its_offset() -> None:
    data = bytearray(at_offset(plain(["a"]), 77))
    data[-1] ^= 1
    with pytest.raises(MalformedRecords, match=r"offset 77 .*checksum"):
        decode(bytes(data), 0)
