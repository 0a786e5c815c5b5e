"""The rows of the offsets table: round trips, clearing, formats, and rows nobody can read."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.engines.memory import MemoryEngine
from statestore.errors import FormatTooNew, Misuse, TaskCorrupted
from statestore.model.ids import Position, TopicPartition
from statestore.stores import offsets as rows
from statestore.stores.offsets import FORMAT_VERSION, TABLE, Format

NAMES = st.text("ab-._", min_size=1, max_size=4)
PARTITIONS = st.builds(TopicPartition, NAMES, st.integers(0, 2**31 - 1))
OFFSETS = st.dictionaries(PARTITIONS, st.integers(-(2**63), 2**63 - 1), max_size=6)
TP = TopicPartition("shop-prices-changelog", 3)


def engine_with(*written: dict[bytes, bytes | None]) -> MemoryEngine:
    engine = MemoryEngine((TABLE,))
    for part in written:
        engine.write({TABLE: part})
    return engine


@given(OFFSETS, OFFSETS)
def test_offsets_and_position_round_trip_side_by_side(
    offsets: dict[TopicPartition, int], last: dict[TopicPartition, int]
) -> None:
    table = engine_with(rows.offset_rows(offsets, Position.of(last))).table(TABLE)
    assert rows.read_offsets(table, "here") == offsets
    assert rows.read_position(table, "here") == Position.of(last)


def test_none_clears_the_offset_of_that_partition_only() -> None:
    other = TP._replace(partition=4)
    table = engine_with(
        rows.offset_rows({TP: 7, other: 8}, Position()), rows.offset_rows({TP: None}, Position())
    ).table(TABLE)
    assert rows.read_offsets(table, "here") == {other: 8}


def test_plain_tuples_name_partitions_too() -> None:
    plain: Any = {("t", 0): 7}
    table = engine_with(rows.offset_rows(plain, Position())).table(TABLE)
    assert rows.read_offsets(table, "here") == {TopicPartition("t", 0): 7}


def test_a_fresh_store_has_no_offset_no_position_and_no_format() -> None:
    table = engine_with().table(TABLE)
    assert rows.read_offsets(table, "here") == {}
    assert rows.read_position(table, "here") == Position()
    assert not rows.check_format(table, "keyvalue", "here")


def test_a_format_row_is_no_offset_and_names_kind_and_version() -> None:
    table = engine_with(rows.format_rows("keyvalue")).table(TABLE)
    assert rows.check_format(table, "keyvalue", "here")
    assert rows.read_offsets(table, "here") == {}
    data = table.get(b"f")
    assert data is not None
    assert msgspec.json.decode(data, type=Format) == Format("keyvalue", FORMAT_VERSION)


def format_row(data: bytes) -> MemoryEngine:
    return engine_with({b"f": data})


@pytest.mark.parametrize(
    ("engine", "error", "message"),
    [
        (
            format_row(b'{"kind":"keyvalue","version":2}'),
            FormatTooNew,
            "here has format 2.*upgrade",
        ),
        (format_row(b'{"kind":"versioned","version":1}'), Misuse, "holds a versioned store"),
        (format_row(b'{"kind":"versioned","version":9}'), Misuse, "holds a versioned store"),
        (format_row(b'{"kind":"keyv'), TaskCorrupted, "here: format row is not readable"),
        (format_row(b"\xff"), TaskCorrupted, "here: format row is not readable"),
        (format_row(b'{"kind":"keyvalue","version":"1"}'), TaskCorrupted, "not readable"),
    ],
)
def test_a_format_this_code_does_not_read_is_refused_never_guessed(
    engine: MemoryEngine, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        rows.check_format(engine.table(TABLE), "keyvalue", "here")


@pytest.mark.parametrize(
    "row",
    [{b"oz\0\0\0\0\0": b"short"}, {b"o\xfe\0\0\0\0\0": bytes(8)}, {b"o": bytes(8)}],
    ids=["value too short", "topic not text", "no partition"],
)
def test_an_offset_row_nobody_can_read_means_a_corrupted_store(
    row: dict[bytes, bytes | None],
) -> None:
    with pytest.raises(TaskCorrupted, match="here: offset row"):
        rows.read_offsets(engine_with(row).table(TABLE), "here")
