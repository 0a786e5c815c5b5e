"""Records that wait in an operator are counted: as many as its store has rows, at no look at it."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import statestore as ss
from statestore import serdes
from statestore.model.ids import TopicPartition
from statestore.model.records import Record
from statestore.model.texts import held_text
from statestore.operations.running.run import RunSummary
from statestore.operations.status.status import read_status
from statestore.stores.reads import Pair, RowScan
from statestore.stores.staged_table import StagedTable
from statestore.tasks.plan import Standing, TaskReport
from statestore.tasks.progress_file import ProgressFile, read_progress
from tests.contract.task_rig import TASK, TaskRig, rows_of
from tests.unit.poison_rig import GUARANTEES

GRACE_MS = 10
BUFFERS = ("priced-buffer", "dear-buffer")


def topology() -> ss.Topology:
    """Two joins with grace, each with records that wait in a store of its own."""
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
    history = ss.Materialized("rates", history_retention=1000)
    table = b.table("table", materialized=history, name="rates-table")
    stream = b.stream("stream", name="orders")
    for name, grace_ms in (("priced", GRACE_MS), ("dear", 3 * GRACE_MS)):
        made = stream.join(table, both, grace=grace_ms, name=name)
        made.to(f"{name}-out")
    return b.build()


def both(left: str, right: str) -> str:
    if left == "poison":
        raise ValueError(left)
    return f"{left}+{right}"


@pytest.fixture(params=GUARANTEES)
def rig(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[TaskRig]:
    handler = {"processing.exception.handler": "continue", "commit.interval.ms": 0}
    made = TaskRig(topology(), tmp_path, guarantee=request.param, settings=handler)
    yield made
    made.end()


def send(rig: TaskRig, topic: str, time_ms: int, value: str = "x") -> None:
    row: Record[bytes | None, bytes | None] = Record(b"k", value.encode(), time_ms)
    rig.broker.produce(TopicPartition(topic, 0), row)


def drain(rig: TaskRig) -> TaskReport:
    task, before = rig.running[0], -1
    while task.step(0) or task.report.rewinds != before:
        before = task.report.rewinds
    task.step_commit()
    return task.report


def waiting(rig: TaskRig) -> int:
    """By the stores themselves."""
    task = rig.running[0]
    return sum(row.startswith(b"w") for name in BUFFERS for row in rows_of(task, name))


@pytest.mark.parametrize("seed", range(3))
def test_as_many_are_held_as_wait_whatever_becomes_of_records_and_processes(
    rig: TaskRig, seed: int
) -> None:
    """Poison goes back to the last commit, by ever smaller lots."""
    rng, time_ms, most = random.Random(seed), 100, 0
    rig.start()
    for _ in range(20):
        for _ in range(rng.randrange(12)):
            time_ms += rng.choice([0, 1, 1, 2, 25])
            topic = rng.choice(["stream", "stream", "stream", "table"])
            value = "poison" if rng.random() < 0.1 and topic == "stream" else "x"
            send(rig, topic, max(0, time_ms - rng.randrange(15)), value)
        rig.perhaps_begin_anew(rng, 6)
        report = drain(rig)
        assert report.held_records == waiting(rig), f"seed {seed}"
        most = max(most, report.held_records)
    assert most > 3, "the test shows nothing where nothing waits"


def test_rows_are_counted_when_a_store_is_opened_and_never_again(
    rig: TaskRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[bytes | None] = []
    scan = StagedTable.scan

    def seen(table: StagedTable, lo: bytes | None = None, hi: bytes | None = None) -> RowScan[Pair]:
        if hi == b"x":
            looked.append(lo)
        return scan(table, lo, hi)

    monkeypatch.setattr(StagedTable, "scan", seen)
    rig.start()
    assert len(looked) == len(BUFFERS)
    for time_ms in range(100, 150):
        send(rig, "stream", time_ms)
        drain(rig)
    assert len(looked) == len(BUFFERS)
    assert rig.running[0].report.held_records == waiting(rig) > 0


def test_a_task_that_has_ended_leaves_the_last_figure_for_status(rig: TaskRig) -> None:
    rig.start()
    for time_ms in (100, 101, 102):
        send(rig, "stream", time_ms)
    report = drain(rig)
    assert report.held_records == 6
    ProgressFile(rig.folder, rig.clock, slots=1).write(report, Standing("0_0"))
    rig.end()
    assert read_progress(rig.folder).held_records == 6
    status = read_status(rig.runtime)
    (told,) = status.stream_tasks
    by_store = dict.fromkeys(BUFFERS, 3)
    assert (told.stream_task, told.held_records, told.held) == (str(TASK), 6, by_store)
    assert (status.held_records, status.held) == (6, by_store)


def test_a_note_of_an_older_version_leaves_the_number_unknown(rig: TaskRig) -> None:
    rig.start()
    rig.end()
    (rig.folder / "progress.json").write_bytes(b'{"pid": 1}')
    status = read_status(rig.runtime)
    assert (status.held_records, status.stream_tasks[0].held_records) == (None, None)
    assert (status.held, status.stream_tasks[0].held) == (None, None)


def test_a_summary_has_what_each_stream_task_held_at_its_end() -> None:
    summary = RunSummary("shop")
    summary.add([TaskReport("0_0", held={"a": 4, "b": 1}, caught_up=True)])
    again = TaskReport("0_0", held={"a": 3}, caught_up=True)
    summary.add([again, TaskReport("0_1", held={"a": 1, "c": 2}), TaskReport("0_2")])
    assert summary.held_records == 6, "a cycle serves a stream task more than once"
    assert summary.fields()["held"] == summary.held == {"a": 4, "c": 2}


def test_people_are_told_in_which_stores_records_wait() -> None:
    assert held_text(1) == "1 record held back until later input"
    assert held_text(3, {}) == "3 records held back until later input"
    assert held_text(1003, {"b": 3, "a": 1000, "c": 0}) == (
        "1,003 records held back until later input (a 1,000, b 3)"
    )
    many = {f"s{i}": 10 - i for i in range(9)}
    assert held_text(54, many).endswith("(s0 10, s1 9, s2 8, s3 7, 5 other stores 20)")
