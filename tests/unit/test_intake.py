"""The order in which a stream task sees its inputs: text tables, and a brute-force oracle (T2)."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore import serdes
from statestore.errors import RecordFailed
from statestore.model import time_marks
from statestore.model.batch import Batch, Column
from statestore.model.byte_columns import ByteColumn, PackedRows
from statestore.model.ids import TaskId, TopicPartition
from statestore.model.records import Record, Serde
from statestore.model.time_marks import TimeMark
from statestore.settings import Settings
from statestore.tasks.intake import InputBatch, Intake
from statestore.tasks.poison import Poison
from statestore.testing.memory_broker import MemoryBroker
from statestore.testing.packed import InPython, packed
from statestore.topology.nodes import SourceNode, TimestampExtractor, TopicName
from statestore.topology.sub_topologies import SubTopology
from tests.builders import batch, partition_of, table_rows

A, B, C = TopicPartition("a", 0), TopicPartition("b", 0), TopicPartition("c", 0)


def intake_of(
    inputs: Sequence[TopicPartition],
    extracted: Mapping[str, SourceNode],
    ends: Mapping[TopicPartition, int] | None,
    idle_ms: int = 0,
    marked: Sequence[str] = (),
) -> Intake:
    outbox = MemoryBroker().plain_outbox("shop")
    poison = Poison(TaskId(0, 0), SubTopology(0, ()), Settings(), outbox)
    return Intake(inputs, extracted, ends, poison, idle_ms, marked=marked)


# Each cell: offset@timestamp of the records that were polled, in order; `;` ends a batch. What is
# handed on: batches, as input and offsets. Inputs are declared in the order a, b, c.
ORDERS = """
    a                  | b              | c         | handed on
    0@10 1@20 2@30     | 0@15 1@20      | 0@99      | a:0 b:0 a:1 b:1 a:2 c:0
    0@10 1@11 2@12     | 0@50           | 0@60      | a:0-2 b:0 c:0
    0@10 1@20 2@30     | 0@30           | 0@30      | a:0-2 b:0 c:0
    0@30 1@40          | 0@10 1@30 2@31 | 0@30      | b:0 a:0 b:1 c:0 b:2 a:1
    0@50               | 0@10 1@5 2@60  | 0@55      | b:0-1 a:0 c:0 b:2
    0@9 1@1            | 0@8 1@2        | 0@7 1@3   | c:0-1 b:0-1 a:0-1
    0@1 1@2 ; 2@3 3@4  | 0@9            | 0@9       | a:0-1 a:2-3 b:0 c:0
    5@10 9@11          | 3@10           | 7@99      | a:5 b:3 a:9 c:7
"""
# Which inputs have records waiting (r), stand at their planned end (e), or neither (-).
WAITS = """
    a | b | c | bounded | handed on
    r | r | r | yes     | a
    r | r | - | yes     | nothing
    r | - | e | yes     | nothing
    - | r | r | yes     | nothing
    r | e | e | yes     | a
    e | r | e | yes     | b
    e | e | r | yes     | c
    e | e | e | yes     | nothing
    - | - | - | yes     | nothing
    r | - | - | no      | a
    - | - | r | no      | c
"""


def polled(text: str) -> list[list[tuple[int, int]]]:
    """(offset, timestamp) by batch."""
    return [
        [(int(offset), int(time)) for offset, time in (one.split("@") for one in part.split())]
        for part in text.split(";")
    ]


def feed(intake: Intake, tp: TopicPartition, rows: Sequence[tuple[int, int]]) -> None:
    """One polled batch of records at these (offset, timestamp)."""
    offsets = [offset for offset, _ in rows]
    records = [("k", "v", time) for _, time in rows]
    polled = batch(records, topic=tp.topic, offsets=offsets)
    intake.add(InputBatch.of(polled), rows[-1][0] + 1)


def drain(intake: Intake) -> list[tuple[TopicPartition, list[int], int]]:
    """All that is handed on: input, offsets, the offset after them."""
    found = []
    while (batch := intake.next_batch()) is not None:
        found.append((batch.tp, list(batch.offsets), batch.offsets[-1] + 1))
    return found


def shown(batches: Sequence[tuple[TopicPartition, list[int], int]]) -> list[str]:
    return [
        f"{tp.topic}:{offset}"
        for tp, offsets, _ in batches
        for offset in (
            [f"{offsets[0]}-{offsets[-1]}"]
            if len(offsets) > 1 and offsets == list(range(offsets[0], offsets[-1] + 1))
            else map(str, offsets)
        )
    ]


@pytest.mark.parametrize("row", table_rows(ORDERS), ids=" | ".join)
def test_records_come_by_time_then_declaration_and_runs_as_one_batch(row: list[str]) -> None:
    intake = intake_of([A, B, C], {}, None)
    for tp, cell in zip((A, B, C), row, strict=False):
        for rows in polled(cell):
            feed(intake, tp, rows)
    assert shown(drain(intake)) == row[3].split()
    assert intake.waiting() == 0


def test_one_input_passes_straight_through_as_polled() -> None:
    intake = intake_of([A], {}, {A: 10})
    feed(intake, A, [(0, 5), (1, 3)])
    feed(intake, A, [(2, 1)])
    assert drain(intake) == [(A, [0, 1], 2), (A, [2], 3)]


@pytest.mark.parametrize("row", table_rows(WAITS), ids=" | ".join)
def test_a_bounded_run_waits_for_each_input_a_continuous_one_for_none(row: list[str]) -> None:
    *states, bounded, handed_on = row
    inputs = (A, B, C)
    intake = intake_of(inputs, {}, dict.fromkeys(inputs, 10) if bounded == "yes" else None)
    for tp, state in zip(inputs, states, strict=True):
        if state == "r":
            feed(intake, tp, [(0, 5)])
        elif state == "e":
            intake.at(tp, 10)
    first = intake.next_batch()
    assert ("nothing" if first is None else first.tp.topic) == handed_on


def test_an_input_that_falls_silent_is_waited_for_once_until_it_speaks_again() -> None:
    intake = intake_of([A, B], {}, None, idle_ms=500)

    def handed_on(now_s: float) -> list[str]:
        found = []
        while (batch := intake.next_batch(now_s)) is not None:
            found.append(f"{batch.tp.topic}:{batch.offsets[0]}")
        return found

    assert handed_on(0.0) == []
    feed(intake, A, [(0, 10)])
    assert handed_on(100.0) == [], "nobody waited before there was a record"
    assert handed_on(100.4) == []
    feed(intake, B, [(0, 5)])
    assert handed_on(100.45) == ["b:0"], "it was worth the wait; now a waits for b's next"
    assert handed_on(100.94) == []
    assert handed_on(100.95) == ["a:0"]
    feed(intake, A, [(1, 20)])
    assert handed_on(101.0) == ["a:1"], "b is still silent: no second wait"
    feed(intake, B, [(1, 15)])
    assert handed_on(102.0) == [], "a has been silent since b came"
    feed(intake, A, [(2, 14)])
    assert handed_on(102.1) == ["a:2"]


def test_without_an_idle_time_a_continuous_run_waits_for_nobody_at_the_end_of_its_log() -> None:
    intake = intake_of([A, B], {}, None)
    feed(intake, A, [(0, 10)])
    assert shown(drain(intake)) == ["a:0"]


# Of b: has it more on the broker; how long it has been silent; whether a's record waits for it.
WAITS_FOR_MORE = """
    max.task.idle.ms | more | silent ms | a waits
    -1               | yes  | 0         | no
    -1               | no   | 0         | no
    0                | yes  | 99999     | yes
    0                | no   | 0         | no
    500              | yes  | 99999     | yes
    500              | no   | 499       | yes
    500              | no   | 500       | no
"""


@pytest.mark.parametrize("row", table_rows(WAITS_FOR_MORE), ids=" | ".join)
def test_records_known_to_be_on_the_broker_are_waited_for_however_long(row: list[str]) -> None:
    idle_ms, more, silent_ms, waits = row
    intake = intake_of([A, B], {}, None, idle_ms=int(idle_ms))
    feed(intake, A, [(0, 10)])
    intake.at(B, 0, more=more == "yes")
    first = intake.next_batch(0.0)
    if first is None:
        first = intake.next_batch(int(silent_ms) / 1000)
    assert (first is None) is (waits == "yes")


def test_an_input_planned_to_end_where_it_starts_is_waited_for_by_nobody() -> None:
    intake = intake_of([A, B], {}, {A: 5, B: 0})
    intake.at(B, 0)
    feed(intake, A, [(0, 1)])
    assert shown(drain(intake)) == ["a:0"]


def test_records_at_and_beyond_the_planned_end_are_not_handed_on() -> None:
    intake = intake_of([A], {}, {A: 3})
    feed(intake, A, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)])
    assert drain(intake) == [(A, [0, 1, 2], 3)]
    assert (intake.reached(A), intake.finished()) == (3, True)
    feed(intake, A, [(5, 6)])
    assert drain(intake) == []
    assert (intake.reached(A), intake.finished()) == (3, True)


def test_a_planned_end_in_a_gap_of_offsets_cuts_at_the_next_record() -> None:
    intake = intake_of([A], {}, {A: 4})
    feed(intake, A, [(0, 1), (2, 2), (7, 3)])
    assert drain(intake) == [(A, [0, 2], 3)]
    assert (intake.reached(A), intake.finished()) == (4, True)


def test_a_batch_wholly_beyond_the_planned_end_finishes_the_input() -> None:
    intake = intake_of([A], {}, {A: 4})
    assert not intake.finished()
    feed(intake, A, [(5, 1), (6, 2)])
    assert drain(intake) == []
    assert (intake.reached(A), intake.finished()) == (4, True)


# reached(): what may be committed


def test_nothing_is_reached_before_there_was_news() -> None:
    intake = intake_of([A], {}, {A: 4})
    assert intake.reached(A) is None
    intake.at(A, 2)
    assert intake.reached(A) == 2


def test_control_records_are_passed_over_but_no_record_still_waiting() -> None:
    intake = intake_of([A, B], {}, None)
    feed(intake, A, [(10, 1), (12, 5)])
    feed(intake, B, [(3, 2)])
    intake.at(A, 15)
    assert (intake.reached(A), intake.reached(B)) == (10, 3)
    first = intake.next_batch()
    assert first is not None
    assert (first.tp, list(first.offsets)) == (A, [10])
    assert intake.reached(A) == 12
    assert shown(drain(intake)) == ["b:3", "a:12"]
    assert (intake.reached(A), intake.reached(B)) == (15, 4)
    intake.at(A, 11)
    assert intake.reached(A) == 15


def test_an_input_that_ends_in_control_records_is_finished_when_the_source_passed_them() -> None:
    intake = intake_of([A], {}, {A: 6})
    feed(intake, A, [(3, 1)])
    assert drain(intake) == [(A, [3], 4)]
    assert not intake.finished()
    intake.at(A, 6)
    assert (intake.finished(), intake.reached(A)) == (True, 6)


def test_a_batch_put_back_is_handed_on_again_and_not_reached() -> None:
    intake = intake_of([A], {}, {A: 3})
    feed(intake, A, [(0, 1), (1, 2), (2, 3)])
    whole = intake.next_batch()
    assert whole is not None
    intake.put_back(whole.slice(1, 3))
    assert (intake.reached(A), intake.waiting(), intake.finished()) == (1, 2, False)
    assert shown(drain(intake)) == ["a:1-2"]
    assert intake.finished()


def test_a_continuous_run_is_never_finished() -> None:
    intake = intake_of([A], {}, None)
    intake.at(A, 100)
    assert not intake.finished()


# Polling and timestamps


def test_inputs_at_their_end_or_with_enough_buffered_are_not_polled() -> None:
    intake = intake_of([A, B, C], {}, {A: 2, B: 50, C: 50})
    feed(intake, A, [(0, 1), (1, 1)])
    feed(intake, B, [(0, 1), (1, 1), (2, 1)])
    feed(intake, C, [(0, 1)])
    assert intake.paused(3) == {A, B}
    assert intake.paused(100) == {A}
    assert intake_of([A], {}, None).paused(1) == set()


def test_an_extractor_replaces_the_timestamps_of_its_topic_only() -> None:
    source = read_from_a(lambda r: 1000 - r.timestamp_ms, serdes.STRING)
    intake = intake_of([A, B], {"a": source}, None)
    feed(intake, A, [(0, 10), (1, 20)])
    feed(intake, B, [(0, 985)])
    batches = [intake.next_batch() for _ in range(2)]
    assert [batch.records.timestamps for batch in batches if batch] == [[985], [990, 980]]


# The oracle: of all heads the smallest timestamp, ties by declaration.

INPUTS = st.lists(st.lists(st.integers(0, 6), max_size=8), min_size=1, max_size=3)


def ordered(inputs: Mapping[TopicPartition, list[int]]) -> list[tuple[TopicPartition, int]]:
    at = dict.fromkeys(inputs, 0)
    found = []
    while left := [tp for tp in inputs if at[tp] < len(inputs[tp])]:
        chosen = min(left, key=lambda tp: inputs[tp][at[tp]])
        found.append((chosen, at[chosen]))
        at[chosen] += 1
    return found


@given(INPUTS, st.lists(st.integers(0, 3), max_size=12))
def test_any_inputs_in_any_batches_come_in_the_oracles_order(
    times: list[list[int]], sizes: list[int]
) -> None:
    inputs = {TopicPartition(name, 0): ts for name, ts in zip("xab", times, strict=False)}
    ends = {tp: len(ts) for tp, ts in inputs.items()}
    intake = intake_of(list(inputs), {}, ends)
    fed = dict.fromkeys(inputs, 0)
    found: list[tuple[TopicPartition, int]] = []
    while not intake.finished():
        for tp, ts in inputs.items():
            start = fed[tp]
            stop = min(start + (sizes.pop() if sizes else len(ts)), len(ts))
            if stop > start:
                feed(intake, tp, [(i, ts[i]) for i in range(start, stop)])
            else:
                intake.at(tp, start)
            fed[tp] = stop
        found += [(tp, offset) for tp, offsets, _ in drain(intake) for offset in offsets]
    assert found == ordered(inputs)


def test_partitions_of_one_topic_tie_by_partition_as_declared() -> None:
    first, second = partition_of("in-0"), partition_of("in-1")
    intake = intake_of([first, second], {}, None)
    for tp in (second, first):
        made = batch([("k", "v", 5)], topic="in", partition=tp.partition)
        intake.add(InputBatch.of(made), 1)
    assert [tp for tp, _, _ in drain(intake)] == [first, second]


def read_from_a(extract: TimestampExtractor, value_serde: Serde[Any] = serdes.INT64) -> SourceNode:
    return SourceNode("source-a", (TopicName("a"),), serdes.STRING, value_serde, extract)


def test_the_record_an_extractor_sees_is_decoded_and_says_where_it_came_from() -> None:
    seen: list[Record[Any, Any]] = []

    def extract(record: Record[Any, Any]) -> int:
        seen.append(record)
        return 0

    intake = intake_of([A], {"a": read_from_a(extract)}, None)
    rows = batch([("k", 41, 5)], value_serde=serdes.INT64, topic="a", first_offset=7)
    encoded = rows.with_columns(keys=Column(raw=[b"k"]), values=Column(raw=[bytes(7) + b")"]))
    intake.add(InputBatch.of(encoded), 8)
    assert seen == [Record("k", 41, 5, (), "a", 0, 7)]


def test_an_extractor_that_fails_names_its_source_and_the_offset() -> None:
    intake = intake_of([A], {"a": read_from_a(lambda r: r.value["time"])}, None)
    rows = batch([("k", 41, 5)], value_serde=serdes.INT64, topic="a", first_offset=7)
    with pytest.raises(RecordFailed, match=r"source-a, a-0 offset 7: TypeError"):
        intake.add(InputBatch.of(rows), 8)


class Cuts(InPython):
    """Notes how many rows became objects."""

    def __init__(self) -> None:
        self.rows = 0

    def cut(self, column: ByteColumn) -> list[bytes | None]:
        self.rows += column.rows
        return super().cut(column)


def test_time_marks_are_found_among_columns_and_nothing_else_becomes_an_object() -> None:
    seed = 3
    chance = random.Random(seed)
    marks = {place: TimeMark(place, 1_000 + place, None, "run") for place in (0, 17, 18, 63, 99)}
    keys = [time_marks.key_of(marks[i]) if i in marks else b"key-%d" % i for i in range(100)]
    values = [None if i in marks else chance.randbytes(chance.randrange(3)) for i in range(100)]
    cuts = Cuts()
    columns = [PackedRows(packed(rows).columns, cuts) for rows in ([*keys], values)]
    records = Batch(
        keys=Column(raw=columns[0]),
        values=Column(raw=columns[1]),
        timestamps=[100 + i for i in range(100)],
        topic=A.topic,
        partition=A.partition,
        offsets=range(500, 600),
    )
    intake = intake_of([A], {}, {A: 600}, marked=[A.topic])
    intake.add(InputBatch.of(records), 600)
    assert cuts.rows == len(marks)
    handed = intake.next_batch()
    assert handed is not None
    assert not handed.records.values.nulls()
    found = intake.take_marks()
    assert cuts.rows == len(marks), f"seed {seed}"
    assert {mark.offset - 500: mark.mark for mark in found} == marks
    left = [i for i in range(100) if i not in marks]
    assert list(handed.offsets) == [500 + i for i in left]
    assert handed.records.keys.objects == [keys[i] for i in left]
    assert handed.records.values.objects == [values[i] for i in left]
    assert handed.records.timestamps == [100 + i for i in left]


def test_records_without_a_value_are_told_from_time_marks_by_their_keys() -> None:
    mark = TimeMark(0, 1, None, "run")
    intake = intake_of([A], {}, {A: 4}, marked=[A.topic])
    records = Batch(
        keys=Column(raw=packed([b"a", time_marks.key_of(mark), None, b""])),
        values=Column(raw=packed([None, None, None, b""])),
        timestamps=[1, 2, 3, 4],
        topic=A.topic,
        partition=A.partition,
        offsets=range(4),
    )
    intake.add(InputBatch.of(records), 4)
    handed = intake.next_batch()
    assert handed is not None
    assert handed.records.keys.objects == [b"a", None, b""]
    assert handed.records.values.objects == [None, None, b""]
    assert [found.mark for found in intake.take_marks()] == [mark]
