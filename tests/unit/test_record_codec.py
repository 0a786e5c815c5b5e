"""The codec of record batches: it reads what it writes, and leaves out what is not to be seen."""

import random
import sys
from itertools import accumulate

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.kafka import partitioner
from statestore.kafka.wire import _records, codec, compression
from statestore.kafka.wire.codec import Compression, encode
from statestore.model.byte_columns import ByteColumn
from statestore.model.records import Header
from tests.unit.batch_rig import (
    ABORT,
    COMMIT,
    CONTROL,
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    Listed,
    Row,
    batch,
    decoded,
    marker,
    transactional,
    values,
)

CODECS: tuple[Compression, ...] = ("none", "gzip", "snappy", "lz4", "zstd")
Rows = list[tuple[bytes | None, bytes | None, int, tuple[Header, ...]]]

contents = st.none() | st.binary(max_size=300)
times = st.integers(-(2**63), 2**63 - 1)
some_headers = st.lists(st.tuples(st.text(max_size=5), contents), max_size=3).map(tuple)
rows_of_a_batch = st.lists(st.tuples(contents, contents, times, some_headers), min_size=1)


def encoded(rows: Rows, compression: Compression = "none", *, headers: bool = True) -> bytes:
    keys, vals, timestamps = ([row[i] for row in rows] for i in range(3))
    pairs = [row[3] for row in rows] if headers else None
    return encode(keys, vals, timestamps, pairs, compression=compression)  # type: ignore[arg-type] # columns of a row differ in type


def at_offset(data: bytes, first: int) -> bytes:
    """The batch as the broker keeps it; its first field is not part of the checksum."""
    return first.to_bytes(8, "big") + data[8:]


def texts(found: Listed) -> str:
    return " ".join(value.decode() for value in found.values if value is not None)


def of_arrow(array: pa.Array) -> ByteColumn:
    valid, offsets, data = array.buffers()
    return ByteColumn(data or b"", offsets, valid, array.offset, len(array))


@given(rows_of_a_batch, st.sampled_from(CODECS), st.integers(0, 2**40))
def test_what_was_encoded_is_decoded(rows: Rows, name: Compression, first: int) -> None:
    data = at_offset(encoded(rows, name), first)
    found = decoded(data, first)
    keys, vals, timestamps, headers = map(list, zip(*rows, strict=True))
    assert found.keys == keys
    assert found.values == vals
    assert found.timestamps == timestamps
    assert found.headers == (headers if any(headers) else None)
    assert found.offsets == range(first, first + len(rows))
    assert found.next_offset == first + len(rows)


@given(st.lists(st.tuples(contents, contents, times), min_size=1), st.data())
def test_columns_encode_to_what_lists_do(
    rows: list[tuple[bytes, bytes, int]], more: st.DataObject
) -> None:
    begin = more.draw(st.integers(0, len(rows) - 1))
    keys, vals, timestamps = (list(column) for column in zip(*rows, strict=True))
    wanted = encode(keys[begin:], vals[begin:], timestamps[begin:], None)
    key_column, value_column = (
        of_arrow(pa.array(column, pa.large_binary())[begin:]) for column in (keys, vals)
    )
    numbers = memoryview(pa.array(timestamps[begin:], pa.int64()).buffers()[1]).cast("q")
    assert encode(key_column, value_column, numbers[: len(keys) - begin], None) == wanted
    assert encode(key_column, vals[begin:], timestamps[begin:], None) == wanted
    by_hash = codec.partitions_of(keys[begin:], 7, "murmur2")
    assert codec.partitions_of(key_column, 7, "murmur2") == by_hash
    places = more.draw(st.lists(st.integers(0, key_column.rows - 1)))
    assert codec.cut(key_column, places) == [keys[begin + place] for place in places]


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("size", [1, 10 << 20])
def test_a_record_of_any_size_goes_through_each_compression(name: Compression, size: int) -> None:
    value = random.Random(size).randbytes(size)
    assert decoded(encode([None], [value], [0], None, compression=name), 0).values == [value]


def test_a_batch_of_many_records_goes_through_each_compression() -> None:
    rows: Rows = [(b"%d" % n, b"value" * (n % 9), n, ()) for n in range(50_000)]
    assert {len(decoded(encoded(rows, name, headers=False), 0).keys) for name in CODECS} == {50_000}


def test_snappy_is_read_in_blocks_behind_the_header_of_java() -> None:
    rows = encoded([(b"k", b"v" * 100, 1, ())])[61:]
    blocks = [
        bytes(compression.compress("snappy", memoryview(rows[at : at + 40]))) for at in (0, 40, 80)
    ]
    framed = b"\x82SNAPPY\x00" + bytes([0, 0, 0, 1] * 2)
    framed += b"".join(len(block).to_bytes(4, "big") + block for block in blocks)
    data = batch(0, framed, attributes=2, count=1, last_delta=0)
    assert decoded(data, 0).values == [b"v" * 100]


def test_a_batch_that_is_cut_off_is_left_for_the_next_fetch() -> None:
    first, second = values(0, "a", "b"), values(2, "c")
    for size in range(len(second)):
        found = decoded(first + second[:size], 0)
        assert (texts(found), found.next_offset) == ("a b", 2)
    assert decoded(first[:-1], 1).next_offset == 1
    assert decoded(b"", 5) == Listed([], [], [], range(5, 5), None, 5, 0)


def test_records_before_the_start_are_left_out() -> None:
    data = values(0, "a", "b") + values(2, "c", "d", "e")
    for start, wanted in enumerate(["a b c d e", "b c d e", "c d e", "d e", "e", ""]):
        found = decoded(data, start)
        assert (texts(found), found.next_offset) == (wanted, 5)
        assert found.offsets == range(start, 5)


def test_a_limit_ends_anywhere_and_the_next_call_goes_on() -> None:
    data = values(0, "a", "b") + marker(2, 7, COMMIT) + values(3, "c", "d", "e")
    for limit in range(1, 7):
        start, seen = 0, []
        while (found := decoded(data, start, max_records=limit)).keys:
            assert len(found.keys) <= limit
            start = found.next_offset
            seen.append(texts(found))
        assert (" ".join(seen), start) == ("a b c d e", 6)
    assert decoded(data, 1, max_records=0).next_offset == 1


INTERLEAVED = [
    transactional(0, 7, "a", "b"),
    transactional(2, 8, "c"),
    values(3, "d", producer=7),
    marker(4, 7, ABORT),
    transactional(5, 7, "e"),
    marker(6, 8, COMMIT),
    transactional(7, 8, "f"),
    marker(8, 7, COMMIT),
    marker(9, 8, ABORT),
    transactional(10, 8, "g"),
]


# Aborted transactions (producer@first offset) | what is left of the above
ABORTED = """
            | a b c d e f g
7@0         | c d e f g
8@7         | a b c d e g
8@7 7@0     | c d e g
7@0 8@2     | d e g
7@5         | a b c d f g
"""


@pytest.mark.parametrize("line", ABORTED.strip("\n").splitlines())
def test_aborted_transactions_and_markers_are_left_out(line: str) -> None:
    pairs, wanted = (part.split() for part in line.split("|"))
    aborted = [(int(p), int(o)) for p, o in (pair.split("@") for pair in pairs)]
    # What began at 2 is aborted at 9 if there is no marker between.
    batches = [it for it in INTERLEAVED if "8@2" not in pairs or it != marker(6, 8, COMMIT)]
    data = b"".join(batches)
    found = decoded(data, 0, aborted)
    assert texts(found) == " ".join(wanted)
    assert found.next_offset == 11
    start, seen = 0, []
    while start < found.next_offset:
        part = decoded(data, start, aborted, max_records=1)
        start = part.next_offset
        seen += [texts(part)] if part.keys else []
    assert seen == wanted


def test_next_offset_is_behind_what_has_no_records_to_give() -> None:
    assert decoded(marker(4, 7, COMMIT), 2).next_offset == 5
    assert decoded(transactional(4, 7, "a", "b"), 4, [(7, 4)]).next_offset == 6
    assert decoded(batch(4, [], last_delta=9), 4) == Listed([], [], [], range(4, 4), None, 14, 0)


@given(st.lists(st.tuples(rows_of_a_batch, st.sampled_from(CODECS)), max_size=4), st.data())
def test_batches_of_a_set_may_be_compressed_or_not(
    batches: list[tuple[Rows, Compression]], more: st.DataObject
) -> None:
    ends = [0, *accumulate(len(rows) for rows, _ in batches)]
    data = b"".join(
        at_offset(encoded(rows, name), first)
        for (rows, name), first in zip(batches, ends, strict=False)
    )
    start = more.draw(st.integers(0, ends[-1]))
    found = decoded(data, start)
    rows = [row for some, _ in batches for row in some][start:]
    assert list(zip(found.keys, found.values, found.timestamps, strict=True)) == [
        row[:3] for row in rows
    ]
    assert found.offsets == range(start, ends[-1])
    assert found.size_bytes >= sum(len(row[0] or b"") + len(row[1] or b"") for row in rows)


def test_gaps_of_compaction_give_the_offsets_one_by_one() -> None:
    data = batch(10, [Row(1, b"a"), Row(4, b"b")], last_delta=6) + values(20, "c")
    for start, offsets in [(0, [11, 14, 20]), (12, [14, 20]), (15, range(20, 21))]:
        found = decoded(data, start)
        assert (found.offsets, found.next_offset) == (offsets, 21)


def test_times_are_the_brokers_if_the_batch_says_so() -> None:
    rows = [Row(0, time_delta=-5), Row(1, time_delta=7)]
    assert decoded(batch(0, rows, base_ms=100, max_ms=900), 0).timestamps == [95, 107]
    log_append = batch(0, rows, base_ms=100, max_ms=900, attributes=LOG_APPEND_TIME)
    assert decoded(log_append, 0).timestamps == [900, 900]
    horizon = batch(0, rows, base_ms=100, max_ms=900, attributes=DELETE_HORIZON)
    assert decoded(horizon, 0).timestamps == [95, 107]


def test_the_head_has_what_the_broker_checks() -> None:
    data = encode(
        [b"k"] * 3,
        [None] * 3,
        [5, 9, 2],
        None,
        producer_id=2**40,
        producer_epoch=3,
        base_sequence=11,
        transactional=True,
        compression="zstd",
    )
    plain = encode([b"k"] * 3, [None] * 3, [5, 9, 2], None)
    assert int.from_bytes(data[8:12], "big") == len(data) - 12
    assert data[12:17] == b"\xff\xff\xff\xff\x02"
    assert int.from_bytes(data[17:21], "big") == _records.crc32c(data[21:])
    assert int.from_bytes(data[21:23], "big") == TRANSACTIONAL | CODECS.index("zstd")
    head = data[23:27], data[27:35], data[35:43], data[43:51], data[51:53], data[53:57], data[57:61]
    assert [int.from_bytes(it, "big") for it in head] == [2, 5, 9, 2**40, 3, 11, 3]
    assert plain[43:57] == b"\xff" * 14
    assert not int.from_bytes(plain[21:23], "big") & (TRANSACTIONAL | CONTROL)


@given(rows_of_a_batch, st.integers(100, 2000))
def test_rows_are_cut_into_batches_that_fit(rows: Rows, max_bytes: int) -> None:
    keys, vals, _, headers = ([row[i] for row in rows] for i in range(4))
    ends = codec.sized_rows(keys, vals, headers, max_bytes)  # type: ignore[arg-type] # columns of a row differ in type
    assert ends[-1] == len(rows)
    for begin, end in zip([0, *ends], ends, strict=False):
        assert begin < end
        assert end == begin + 1 or len(encoded(rows[begin:end])) <= max_bytes
    assert codec.sized_rows([], [], None, max_bytes) == []


def test_rows_are_not_cut_more_often_than_needed() -> None:
    rows: Rows = [(None, bytes(1000), 0, ())] * 100
    keys: list[bytes | None] = [None] * 100
    vals: list[bytes | None] = [bytes(1000)] * 100
    assert codec.sized_rows(keys, vals, None, len(encoded(rows)) + 100 * 20) == [100]
    assert codec.sized_rows(keys, vals, None, 10) == list(range(1, 101))


@given(st.lists(st.tuples(contents, contents), max_size=20))
def test_the_first_row_that_is_too_large_is_found(
    rows: list[tuple[bytes | None, bytes | None]],
) -> None:
    sizes = [len(key or b"") + len(value or b"") for key, value in rows]
    keys, vals = ([row[i] for row in rows] for i in (0, 1))
    for limit in {-1, 0, *sizes, *(size - 1 for size in sizes)}:
        wanted = next((at for at, size in enumerate(sizes) if size > limit), None)
        assert codec.first_larger(keys, vals, limit) == wanted


@pytest.mark.parametrize("name", ["murmur2", "crc32"])
def test_partitions_are_those_of_the_partitioner(name: codec.KeyHash) -> None:
    keys: list[bytes | None] = [random.Random(size).randbytes(size) for size in range(300)]
    wanted = partitioner.partitions_of(keys, 13, "consistent" if name == "crc32" else name)
    assert codec.partitions_of(keys, 13, name) == wanted
    assert codec.partitions_of([None, b""], 1, name) == [-1, 0]


def test_the_checksum_is_that_of_the_standard_with_and_without_the_instruction() -> None:
    samples = [random.Random(size).randbytes(size) for size in range(50)]
    try:
        by_tables = _records.use_instruction(False), list(map(_records.crc32c, samples))
        assert _records.crc32c(b"123456789") == 0xE3069283
    finally:
        _records.use_instruction(True)
    assert by_tables == (False, list(map(_records.crc32c, samples)))
    assert _records.crc32c(b"123456789") == 0xE3069283


def test_what_is_no_column_of_bytes_is_refused() -> None:
    with pytest.raises(TypeError, match="bytes or None"):
        encode(["text"], [b""], [0], None)  # type: ignore[list-item] # the mistake
    with pytest.raises(TypeError, match="whole numbers"):
        encode([b""], [b""], [0.5], None)  # type: ignore[list-item] # the mistake
    with pytest.raises(ValueError, match="at least one record"):
        encode([], [], [], None)
    with pytest.raises(ValueError, match="differ in length"):
        encode([b""], [b"", b""], [0], None)
    with pytest.raises(ValueError, match="more rows"):
        codec.cut(ByteColumn(b"abc", bytes(8), None, 0, 1))
    with pytest.raises(ValueError, match="more rows"):
        codec.cut(ByteColumn(b"abc", bytes(80), b"\xff", 0, 9))
    with pytest.raises(ValueError, match="outside its data"):
        codec.cut(ByteColumn(b"abc", b"\xff" * 16, None, 0, 1))
    with pytest.raises(ValueError, match="more rows"):
        codec.cut(ByteColumn(b"abc", bytes(24), None, 0, 2, step=2))
    with pytest.raises(ValueError, match="outside its data"):
        codec.joined([ByteColumn(b"abc", (4).to_bytes(8, sys.byteorder) * 2, None, 0, 1, step=2)])
    with pytest.raises(ValueError, match="step"):
        codec.size_bytes(ByteColumn(b"abc", bytes(80), None, 0, 1, step=3))
    with pytest.raises(TypeError, match="a ByteColumn"):
        codec.joined([b"abc"])  # type: ignore[list-item] # the mistake
    with pytest.raises(IndexError, match="that row"):
        codec.cut([b""], [1])


def test_a_set_is_decoded_in_place_of_a_larger_buffer() -> None:
    data = memoryview(b"before" + values(3, "a") + b"after")
    assert texts(decoded(data[6:-5], 0)) == "a"
