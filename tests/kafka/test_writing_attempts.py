"""Rows of Spark partitions are in the topic once, whoever repeats them and dies when (I43)."""

import os
import re
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from statestore.errors import Fenced, Misuse, RecordFailed, TopicMissing
from statestore.faults import CrashPoint, arm
from statestore.kafka.outbox import PlainOutbox
from statestore.ports import Records
from statestore.runtime.brokers import KafkaBrokers
from statestore.settings import Settings
from statestore.spark.writing import attempts
from statestore.spark.writing.encoding import Encoder
from statestore.spark.writing.markers import NO_ROWS, Duty, Finished, WritePart
from statestore.testing.local_kafka import LocalKafka
from tests.kafka.run_rig import name_of
from tests.kafka.writing_rig import Sink, batches_of, committed

pytestmark = pytest.mark.kafka

DIVISION = {0: ["a1", "a2", "b1", "b2"], 1: ["c1"], 2: [], 3: ["d1", "d2", "d3", "d4"]}
ONCE = Counter(value for rows in DIVISION.values() for value in rows)
CLIENTS = ["wire", pytest.param("librdkafka", marks=pytest.mark.thorough)]
OTHER_DIVISION = {0: ["a1", "c1", "d3"], 1: ["a2", "b1", "b2", "d1", "d2", "d4"]}


@pytest.fixture(params=CLIENTS)
def sink(kafka: LocalKafka, request: pytest.FixtureRequest) -> Sink:
    return Sink(kafka, name_of(request.node.name), {"kafka.client": request.param}).create()


def test_a_batch_that_is_repeated_in_another_order_is_written_once(sink: Sink) -> None:
    sink.save(0, DIVISION)
    sink.save(0, {place: rows[::-1] for place, rows in DIVISION.items()})
    assert sink.read() == ONCE


def test_two_copies_of_a_task_side_by_side_write_its_rows_once(sink: Sink) -> None:
    begun = sink.begin()
    part = WritePart(sink.name, begun.name, 0, 0)
    with attempts._claimed(begun, part) as (slow, duty):
        assert duty is Duty.WRITE
        chunks = sink.encoded(DIVISION[0])
        slow._outbox.begin()
        for rows in next(chunks).rows:
            slow._outbox.send(rows.records())
        slow._outbox.flush()
        outcome = sink.write(begun, 0, 0, DIVISION[0])
        with pytest.raises(Fenced):
            slow._commit()
    late = sink.write(begun, 0, 0, DIVISION[0][::-1])
    assert late == outcome
    sink.finish([late])
    assert sink.read() == Counter(DIVISION[0])


def test_a_task_of_an_earlier_attempt_commits_nothing_once_another_one_has_begun(
    sink: Sink,
) -> None:
    old = sink.begin()
    part = WritePart(sink.name, old.name, 0, 0)
    with attempts._claimed(old, part) as (claim, _):
        sink.save(0, OTHER_DIVISION)
        with pytest.raises(Fenced):
            claim.write(sink.encoded(DIVISION[0]))
    for place in (0, 3):
        with pytest.raises(Fenced, match="taken this output over"):
            sink.write(old, 0, place, DIVISION[place])
    assert sink.read() == ONCE


def test_what_was_left_open_is_aborted_before_another_attempt_reads(sink: Sink) -> None:
    old = sink.begin()
    with attempts._claimed(old, WritePart(sink.name, old.name, 0, 3)) as (claim, _):
        claim._outbox.begin()
        for chunk in sink.encoded(DIVISION[3]):
            claim._outbox.send(chunk.rows[0].records())
        claim._outbox.flush()
        sink.save(0, DIVISION)
    assert sink.read() == ONCE


@pytest.mark.parametrize("written", [(0,), (1, 3), (0, 1, 3)])
def test_a_batch_that_was_begun_is_completed_by_the_next_attempt(
    sink: Sink, written: tuple[int, ...]
) -> None:
    begun = sink.begin()
    for place in written:
        sink.write(begun, 7, place, DIVISION[place])
    sink.save(7, DIVISION)
    sink.save(8, {0: ["z"]})
    assert sink.read() == ONCE + Counter("z")


def test_rows_divided_otherwise_are_refused_before_any_is_doubled(sink: Sink) -> None:
    begun = sink.begin()
    sink.write(begun, 0, 1, DIVISION[1])
    again = sink.begin()
    outcomes = [sink.write(again, 0, 0, OTHER_DIVISION[0])]
    with pytest.raises(RecordFailed, match=r"1 rows were written before, and now there are 6"):
        sink.write(again, 0, 1, OTHER_DIVISION[1])
    assert sink.read() == Counter(DIVISION[1])
    with pytest.raises(RecordFailed, match=r"spark\.sql\.shuffle\.partitions"):
        sink.finish(outcomes)
    assert sink.read() == Counter(DIVISION[1])


@pytest.mark.parametrize("finished", [False, True])
def test_fewer_or_more_partitions_than_before_are_refused(sink: Sink, finished: bool) -> None:
    begun = sink.begin()
    outcomes = [sink.write(begun, 0, place, DIVISION[place]) for place in (0, 1)]
    if finished:
        sink.finish(outcomes)
    with pytest.raises(RecordFailed, match="were written before"):
        sink.save(0, {0: DIVISION[0]})
    if finished:
        with pytest.raises(RecordFailed, match="were written before"):
            sink.save(0, {0: DIVISION[0], 1: DIVISION[1], 2: ["new"]})
    assert sink.read() == Counter(DIVISION[0] + DIVISION[1])


def test_other_rows_than_before_are_refused_and_named(sink: Sink) -> None:
    sink.save(4, DIVISION)
    said = r"partition 1 of batch 4 of output '.*': 1 rows were written before"
    with pytest.raises(RecordFailed, match=said):
        sink.save(4, DIVISION | {1: ["x1"]})
    assert sink.read() == ONCE


@pytest.mark.parametrize("batch", [0, 4])
def test_a_batch_older_than_the_newest_is_refused(sink: Sink, batch: int) -> None:
    sink.save(3, {0: ["a"]})
    sink.save(5, {0: ["b"]})
    with pytest.raises(RecordFailed, match="batch 5 was written already"):
        sink.save(batch, {0: ["a"]})
    assert sink.read() == Counter("ab")


def test_the_next_batch_waits_for_one_that_was_never_finished(sink: Sink) -> None:
    sink.write(sink.begin(), 0, 1, DIVISION[1])
    with pytest.raises(RecordFailed, match=r"batch 0 was begun and never finished"):
        sink.save(1, {0: ["z"]})
    sink.save(0, DIVISION)
    sink.save(1, {0: ["z"]})
    assert sink.read() == ONCE + Counter("z")


def test_another_checkpoint_does_not_go_on_with_the_numbers_of_this_one(sink: Sink) -> None:
    sink.write(begun := sink.begin(), 0, 0, ["a"], stream="first")
    sink.finish([sink.write(begun, 0, 0, ["a"], stream="first")])
    with pytest.raises(RecordFailed, match="another checkpoint"):
        sink.write(sink.begin(), 0, 0, ["a"], stream="second")


def test_a_write_without_a_number_is_repeated_by_its_own_tasks_only(sink: Sink) -> None:
    begun = sink.begin()
    sink.write(begun, None, 0, DIVISION[0])
    sink.finish([sink.write(begun, None, 0, DIVISION[0])])
    assert sink.read() == Counter(DIVISION[0])
    sink.save(None, {0: ["z"]})
    sink.save(None, {0: ["z"]})
    assert sink.read() == Counter([*DIVISION[0], "z", "z"])


def test_a_whole_batch_is_one_transaction_and_one_marker(sink: Sink) -> None:
    sink.save(0, DIVISION, whole=True)
    sink.save(0, OTHER_DIVISION, whole=True)
    assert sink.read() == ONCE
    with pytest.raises(RecordFailed, match="were written before"):
        sink.save(0, DIVISION | {1: []}, whole=True)
    assert sink.read() == ONCE


def test_a_row_that_the_topic_does_not_take_is_named_by_its_place(sink: Sink) -> None:
    def write(
        columns: dict[str, list[object]], options: dict[str, str] | None = None, whole: bool = False
    ) -> None:
        one = Sink(sink.kafka, sink.name, sink.options | (options or {}))
        begun = one.begin()
        chunks = Encoder(one.plan, 4).chunks([batch, pa.RecordBatch.from_pydict(columns)])
        part = WritePart(sink.name, begun.name, None, 4)
        one.finish([attempts.write(begun, part, chunks, hand_over=whole)], whole=whole)

    batch = pa.RecordBatch.from_pydict({"value": ["a", "b"]})
    large: list[object] = ["c", os.urandom(700_000).hex()]
    for whole in (False, True):
        said = r"row 3 of Spark partition 4: partition 7 of topic .*, which has 2 partitions"
        with pytest.raises(RecordFailed, match=said):
            write({"value": ["c", "d"], "partition": pa.array([None, 7], pa.int32())}, None, whole)
        said = r"row 3 of Spark partition 4: .* more than kafka\.message\.max\.bytes"
        with pytest.raises(RecordFailed, match=said):
            write({"value": large}, None, whole)
    # What the brokers refuse, and not the client, was on its way together with others.
    said = r"one of the rows up to row 3 of Spark partition 4: .*MSG_SIZE_TOO_LARGE"
    with pytest.raises(RecordFailed, match=said):
        write({"value": large}, {"kafka.max.request.size": "9000000"})
    by_column: dict[str, list[object]] = {"value": ["c"], "topic": ["nowhere"]}
    batch = pa.RecordBatch.from_pydict({"value": ["a", "b"], "topic": [sink.name] * 2})
    quickly = {"topic": "", "kafka.topic.metadata.propagation.max.ms": "500"}
    said = (
        "one of the rows up to row 2 of Spark partition 4: could not "
        "(write to|find the partitions of) nowhere"
    )
    with pytest.raises(TopicMissing, match=said):
        write(by_column, quickly)
    assert not sink.read()


def test_a_stream_that_is_past_its_first_batch_needs_to_know_of_one_before(sink: Sink) -> None:
    for _ in range(2):  # a refusal leaves nothing that lets the next attempt pass
        begun = sink.begin()
        with pytest.raises(RecordFailed, match=r'knows no batch.*option\("firstBatch", 3\)'):
            begun.require_begun(3, 0)
        begun.require_begun(0, 0)
        begun.require_begun(3, 3)
    sink.save(0, {0: []})
    sink.begin().require_begun(3, 0)


@pytest.mark.parametrize("whole", [False, True])
def test_a_finished_batch_that_is_divided_otherwise_is_found_to_be_there(
    sink: Sink, whole: bool
) -> None:
    sink.save(0, DIVISION, whole=whole)
    for again in (False, True):  # with another `atomic`, too
        sink.save(0, OTHER_DIVISION, whole=again)
        sink.save(0, DIVISION | {1: [], 7: DIVISION[1]}, whole=again)
        with pytest.raises(RecordFailed, match="were written before"):
            sink.save(0, OTHER_DIVISION | {2: ["x"]}, whole=again)
    sink.save(1, {0: ["z"]}, whole=whole)
    assert sink.read() == ONCE + Counter("z")


def test_an_open_batch_is_not_completed_with_another_atomic(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(point: CrashPoint) -> None:
        if point is CrashPoint.WRITE_COMPARED:
            raise InterruptedError

    with monkeypatch.context() as patched:
        patched.setattr(attempts, "reach", stop)
        with pytest.raises(InterruptedError):
            sink.save(0, DIVISION, whole=True)
    with pytest.raises(RecordFailed, match="another `atomic`"):
        sink.save(0, DIVISION)
    sink.save(0, OTHER_DIVISION, whole=True)
    assert sink.read() == ONCE


def test_a_driver_that_says_late_that_it_finished_leaves_nothing_to_write(sink: Sink) -> None:
    old = sink.begin()
    done = [sink.write(old, 0, place, rows) for place, rows in DIVISION.items()]
    new = sink.begin()
    handed = sink.write(new, 0, 5, [row for rows in DIVISION.values() for row in rows])
    assert handed.handed
    with attempts._opened(sink.plan.output) as (log, _):
        total = sum((one.contents for one in done), start=NO_ROWS)
        attempts._appended(log, Finished(old.name, 0, (0, 1, 3), total))
    sink.finish([handed])
    assert sink.read() == ONCE


STEPS = (
    CrashPoint.WRITE_BEGUN,
    CrashPoint.WRITE_CLAIMED,
    CrashPoint.WRITE_ROWS_SENT,
    CrashPoint.WRITE_MARKED,
    CrashPoint.WRITE_COMMITTED,
    CrashPoint.WRITE_COMPARED,
    CrashPoint.WRITE_FINISHED,
)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("point", STEPS)
def test_a_kill_at_any_step_neither_loses_nor_doubles_a_row(
    sink: Sink, tmp_path: Path, point: CrashPoint, whole: bool
) -> None:
    token = tmp_path / "killed"
    child = os.fork()
    if not child:
        try:
            # The driver sends all rows at once.
            nth = 2 if point is CrashPoint.WRITE_ROWS_SENT and not whole else 1
            arm(f"{point}:{nth}:{token}")
            sink.save(0, DIVISION, whole=whole)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert token.exists(), "the kill missed"
    sink.save(0, DIVISION, whole=whole)
    sink.save(1, {0: ["z"]}, whole=whole)
    assert sink.read() == ONCE + Counter("z")


class Unprotected(PlainOutbox):
    """An outbox without transactions."""

    def send(self, records: Records, *, tracked: bool = False) -> None:
        super().send(records, tracked=tracked)
        self.flush()


def test_without_transactions_the_same_kill_doubles_rows(
    sink: Sink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings.of(sink.plan.output.settings)
    monkeypatch.setattr(
        KafkaBrokers, "output_outbox", lambda _clients, _id: Unprotected(settings, group_id="none")
    )
    token = tmp_path / "killed"
    child = os.fork()
    if not child:
        try:
            arm(f"{CrashPoint.WRITE_ROWS_SENT}:2:{token}")
            sink.save(0, DIVISION)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert token.exists(), "the kill missed"
    sink.save(0, DIVISION)
    assert sink.read() != ONCE


def test_a_missing_topic_and_an_unfit_marker_topic_are_refused_at_the_start(
    kafka: LocalKafka, sink: Sink
) -> None:
    with pytest.raises(TopicMissing, match="nowhere"):
        Sink(kafka, sink.name, {"topic": "nowhere"}).begin()
    batch = pa.RecordBatch.from_pydict({"value": ["a", "b"], "topic": [sink.name, "nowhere"]})
    by_column = Sink(
        kafka,
        sink.name,
        sink.options | {"topic": "", "kafka.topic.metadata.propagation.max.ms": "500"},
    )
    part = WritePart(sink.name, (begun := by_column.begin()).name, 0, 0)
    chunks = Encoder(by_column.plan, 0).chunks([batch])
    with pytest.raises(TopicMissing, match=r"could not (write to|find the partitions of) nowhere:"):
        attempts.write(begun, part, chunks, hand_over=False)
    unfit = f"{sink.name}-unfit"
    kafka.create_topic(unfit, 1)
    with pytest.raises(Misuse, match=re.escape(f"topic {unfit} has 1 partitions")):
        Sink(kafka, sink.name, {"markerTopic": unfit}).begin()
    assert len(list(batches_of(DIVISION[0]))) == 2
    assert not committed(kafka.bootstrap_servers, sink.name)
