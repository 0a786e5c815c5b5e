"""The values everybody shares."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore import serdes
from statestore.errors import Misuse
from statestore.model.batch import Batch, Column, in_lots
from statestore.model.ids import Position, PositionBound, TaskId, TopicPartition
from statestore.model.lazy_columns import LazyColumn
from statestore.model.modes import IsolationLevel, ProcessingGuarantee, span_ms, to_ms
from statestore.model.picks import AtPlaces
from statestore.model.records import Record, Serde
from tests.builders import batch, record, triples

OFFSETS = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from(["a", "b"]), st.integers(0, 2)), st.integers(0, 9)
)


def test_partitions_equal_plain_tuples_and_print_as_kafka_does() -> None:
    assert TopicPartition("t", 0) == ("t", 0)
    assert {("t", 0): 1}[TopicPartition("t", 0)] == 1
    assert str(TopicPartition("my-topic", 3)) == "my-topic-3"


@pytest.mark.parametrize(
    "text",
    ["00_0", "0_00", "01_1", "1_01", "\u0661_0", "0_\u0967", "+1_0", " 1_0", f"{'9' * 5000}_0"],
)
def test_no_two_names_mean_one_task(text: str) -> None:
    with pytest.raises(Misuse, match="task id"):
        TaskId.parse(text)


@pytest.mark.parametrize(("text", "task"), [("0_0", TaskId(0, 0)), ("2_14", TaskId(2, 14))])
def test_task_ids_parse_what_they_print(text: str, task: TaskId) -> None:
    assert TaskId.parse(text) == task
    assert str(task) == text


@pytest.mark.parametrize("text", ["", "1", "1_", "_1", "1-2", "1_2_3", "a_1", " 1_2", "-1_2"])
def test_other_task_ids_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(Misuse, match="2_14"):
        TaskId.parse(text)


def test_task_ids_sort_by_number_not_by_text() -> None:
    tasks = [TaskId(1, 0), TaskId(0, 10), TaskId(0, 9)]
    assert sorted(tasks) == [TaskId(0, 9), TaskId(0, 10), TaskId(1, 0)]


def test_a_record_is_replaced_not_changed() -> None:
    first = record("k", "v", 5, headers=(("h", b"1"),), topic="t", partition=1, offset=7)
    assert first.replace(value="w") == Record("k", "w", 5, (("h", b"1"),), "t", 1, 7)
    assert first.value == "v"


def test_enums_accept_their_text_and_the_old_name_of_exactly_once() -> None:
    assert IsolationLevel("READ_COMMITTED") == IsolationLevel("read_committed") == "READ_COMMITTED"
    assert ProcessingGuarantee("exactly_once_v2") is ProcessingGuarantee.EXACTLY_ONCE
    with pytest.raises(Misuse, match=r"exactly_twice.*one of at_least_once, exactly_once"):
        ProcessingGuarantee("exactly_twice")


# Positions.


def test_a_position_reads_both_spellings() -> None:
    nested = Position.of({"t": {0: 41, 1: 7}, "u": {0: 1}})
    flat = {TopicPartition("t", 0): 41, TopicPartition("t", 1): 7, TopicPartition("u", 0): 1}
    assert nested == Position.of(flat)
    assert nested.as_dict() == flat
    plain: Any = {("t", 0): 41}
    assert Position.of(plain).as_dict() == {TopicPartition("t", 0): 41}


@given(OFFSETS, OFFSETS)
def test_merge_takes_the_later_of_each_partition(
    left: dict[TopicPartition, int], right: dict[TopicPartition, int]
) -> None:
    merged = Position.of(left).merge(Position.of(right))
    assert merged.as_dict() == {
        tp: max(left.get(tp, -1), right.get(tp, -1)) for tp in left.keys() | right.keys()
    }
    assert merged == Position.of(right).merge(Position.of(left))
    assert merged.covers(Position.of(left))
    assert merged.covers(Position.of(right))


@pytest.mark.parametrize(
    ("have", "bound", "covered"),
    [
        ({}, {}, True),
        ({"t": {0: 5}}, {}, True),
        ({"t": {0: 5}}, {"t": {0: 5}}, True),
        ({"t": {0: 4}}, {"t": {0: 5}}, False),
        ({"t": {0: 5}}, {"t": {0: 5, 1: 0}}, False),
        ({"t": {0: 5}}, {"u": {0: 0}}, False),
        ({}, {"t": {0: 0}}, False),
    ],
)
def test_a_position_covers_a_bound_when_each_partition_was_processed_that_far(
    have: dict[str, dict[int, int]], bound: dict[str, dict[int, int]], covered: bool
) -> None:
    demand = PositionBound.at(Position.of(bound))
    assert Position.of(have).covers(demand.position) is covered


def test_a_position_gives_away_a_copy() -> None:
    position = Position.of({"t": {0: 5}})
    position.as_dict().clear()
    assert position == Position.of({"t": {0: 5}})


# Time.


@pytest.mark.parametrize(
    ("time", "ms"),
    [
        (17, 17),
        (datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), 1000),
        (datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), 0),
        (datetime(2013, 1, 1, microsecond=999_999, tzinfo=UTC), 1_356_998_400_999),
        (datetime(1969, 12, 31, 23, 59, 59, 999_500, tzinfo=UTC), -1),
    ],
)
def test_times_become_milliseconds(time: int | datetime, ms: int) -> None:
    assert to_ms(time) == ms


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(Misuse, match="no time zone"):
        to_ms(datetime(2013, 1, 1))  # noqa: DTZ001  # the point of the test


@pytest.mark.parametrize(("span", "ms"), [(250, 250), (timedelta(seconds=1, milliseconds=5), 1005)])
def test_spans_become_milliseconds(span: int | timedelta, ms: int) -> None:
    assert span_ms(span) == ms


@pytest.mark.parametrize("span", ["5m", 2.5, True, None])
def test_what_is_no_span_of_time_is_refused(span: Any) -> None:
    with pytest.raises(Misuse, match="no span of time: pass milliseconds as int, or a timedelta"):
        span_ms(span)


@pytest.mark.parametrize("span", [2**63, -(2**63), 10**30])
def test_a_span_of_more_than_8_bytes_is_refused(span: int) -> None:
    assert span_ms(2**63 - 1) == 2**63 - 1
    assert span_ms(timedelta.max) < 2**63
    with pytest.raises(Misuse, match="at most 9223372036854775807 ms"):
        span_ms(span)


# Columns and batches.


def counting(serde: Serde[Any], calls: list[str]) -> Serde[Any]:
    def serialize(value: Any) -> bytes:
        calls.append("serialize")
        return serde.serialize(value)

    def deserialize(data: bytes) -> Any:
        calls.append("deserialize")
        return serde.deserialize(data)

    return Serde(serde.name, serialize, deserialize)


def test_a_column_of_bytes_is_decoded_once_and_only_when_asked() -> None:
    calls: list[str] = []
    serde = counting(serdes.INT64, calls)
    column = Column(raw=[serdes.INT64.serialize(7), None]).with_serde(serde)
    assert column.encoded(serde) == [serdes.INT64.serialize(7), None]
    assert calls == []
    assert column.objects == [7, None]
    assert column.objects == [7, None]
    assert calls == ["deserialize"]


def test_a_column_goes_from_one_serde_to_another_through_its_values() -> None:
    column = Column(raw=[b"17", None], serde=serdes.JSON)
    assert column.encoded(serdes.INT64) == [serdes.INT64.serialize(17), None]


def test_none_reaches_no_serde() -> None:
    calls: list[str] = []
    serde = counting(serdes.STRING, calls)
    assert Column(raw=[None], serde=serde).objects == [None]
    assert Column(objects=[None]).encoded(serde) == [None]
    assert calls == []


@pytest.mark.parametrize(
    "column",
    [
        Column(raw=[b"text"], serde=serdes.STRING),
        Column(objects=["text"]),
        Column(objects=[b"fine", 3]),
    ],
    ids=["of another serde", "made by an operator", "mixed"],
)
def test_values_that_are_not_bytes_do_not_pass_as_bytes(column: Column) -> None:
    with pytest.raises(TypeError):
        column.encoded(serdes.BYTES)


def test_rows_of_a_client_are_read_only_where_asked_for() -> None:
    read: list[int] = []

    def field(row: int) -> bytes:
        read.append(row)
        return str(row).encode()

    rows: LazyColumn[bytes] = LazyColumn(list(range(100)), field)
    part = rows[10:13].picked(AtPlaces([2, 0]))
    assert (len(part), read) == (2, [])
    assert list(part) == [b"12", b"10"]
    assert list(part) == [b"12", b"10"]
    assert rows[99] == b"99"
    assert read == [12, 10, 99]


ROWS = [("a", "1", 10), (None, "2", 20), ("c", None, 30), ("a", "4", 40)]


def test_a_batch_is_sliced_and_taken_with_all_its_columns() -> None:
    whole = batch(ROWS, topic="t", partition=3, first_offset=70)
    assert [r.offset for r in whole.records()] == [70, 71, 72, 73]
    middle = whole.slice(1, 3)
    assert triples(middle) == ROWS[1:3]
    assert [(r.topic, r.partition, r.offset) for r in middle.records()] == [
        ("t", 3, 71),
        ("t", 3, 72),
    ]
    picked = whole.take([3, 0])
    assert triples(picked) == [ROWS[3], ROWS[0]]
    assert [r.offset for r in picked.records()] == [73, 70]
    assert len(whole.slice(2, 2)) == 0


def test_headers_stay_with_their_records() -> None:
    made = Batch.of([record("a", headers=(("h", b"1"),)), record("b")])
    assert [r.headers for r in made.records()] == [(("h", b"1"),), ()]
    assert [r.headers for r in made.take([1, 0]).records()] == [(), (("h", b"1"),)]
    assert [r.headers for r in made.slice(0, 1).records()] == [(("h", b"1"),)]
    assert Batch.of([record("a")]).headers is None


def test_new_columns_keep_the_rest_of_a_batch() -> None:
    whole = batch(ROWS, topic="t", partition=3)
    changed = whole.with_columns(values=Column(objects=[1, 2, 3, 4]))
    assert triples(changed) == [("a", 1, 10), (None, 2, 20), ("c", 3, 30), ("a", 4, 40)]
    assert (changed.topic, changed.partition, changed.offsets) == ("t", 3, [0, 1, 2, 3])
    assert triples(whole) == ROWS


def test_lots_end_at_a_number_of_rows_or_of_bytes_and_have_at_least_one_row() -> None:
    def lots(*sizes: int) -> list[list[int]]:
        return [*in_lots(sizes, lambda size: size, rows_max=3, bytes_max=10)]

    assert lots() == []
    assert lots(0, 0, 0, 0) == [[0, 0, 0], [0]]
    assert lots(4, 5, 1, 1) == [[4, 5, 1], [1]]
    assert lots(99, 1, 9, 8, 2) == [[99], [1, 9], [8, 2]]
