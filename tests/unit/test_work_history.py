"""The samples that a stream task keeps of its work."""

import itertools
from pathlib import Path

from statestore.tasks.history import NAME, SIZE_MAX_BYTES, WorkHistory, read_history
from statestore.tasks.plan import Standing, TaskReport
from tests.builders import ManualClock

IDLE = Standing("0_0")


def test_a_sample_a_minute_has_what_was_done_in_it(tmp_path: Path) -> None:
    clock = ManualClock()
    report = TaskReport("0_0", records_in=50, restored_records=7, commits=3)
    history = WorkHistory(tmp_path, clock)
    history.write(report, IDLE)
    assert read_history(tmp_path) == []
    begun_ms = clock.now_ms()
    report.records_in, report.commits, report.commit_seconds = 80, 4, 0.5
    clock.advance(30_000)
    history.note(report, IDLE)
    assert read_history(tmp_path) == []
    clock.advance(31_000)
    history.note(report, Standing("0_0", lag_records=9))
    report.records_in = 90
    clock.advance(5_000)
    history.write(report, IDLE)
    first, second = read_history(tmp_path)
    assert (first.since_ms, first.until_ms) == (begun_ms, begun_ms + 61_000)
    assert (first.records_in, first.commits, first.restored_records) == (30, 1, 7)
    assert (first.commit_seconds, first.lag_records) == (0.5, 9)
    assert (second.records_in, second.commits, second.restored_records) == (10, 0, 0)
    assert second.until_ms - second.since_ms == 5000


def test_a_sample_has_the_records_of_each_topic_since_the_one_before(tmp_path: Path) -> None:
    clock, report = ManualClock(), TaskReport("0_0")
    history = WorkHistory(tmp_path, clock)
    history.write(report, Standing("0_0", taken={"in": 7}))
    for records, taken, sent in (
        (10, {"in": 17}, {"out": 4}),
        (30, {"in": 17, "b": 30}, {"out": 4}),
    ):
        report.records_in += records
        clock.advance(2000)
        history.write(report, Standing("0_0", taken=taken, sent=sent))
    first, second = read_history(tmp_path)
    assert (first.taken, first.sent) == ({"in": 10}, {"out": 4})
    assert first.rates() == (5.0, {"in": 5.0}, {"out": 2.0})
    assert second.rates() == (15.0, {"in": 0.0, "b": 15.0}, {"out": 0.0})


def test_idle_minutes_leave_no_sample_unless_records_wait(tmp_path: Path) -> None:
    clock = ManualClock()
    history = WorkHistory(tmp_path, clock)
    history.write(TaskReport("0_0"), IDLE)
    for _ in range(3):
        clock.advance(61_000)
        history.note(TaskReport("0_0"), IDLE)
    assert read_history(tmp_path) == []
    clock.advance(61_000)
    history.note(TaskReport("0_0"), Standing("0_0", lag_records=1))
    assert [sample.lag_records for sample in read_history(tmp_path)] == [1]


def test_half_a_line_of_a_killed_owner_costs_only_that_line(tmp_path: Path) -> None:
    clock, report = ManualClock(), TaskReport("0_0")
    for records in (10, 20):
        history = WorkHistory(tmp_path, clock)
        history.write(report, IDLE)
        report.records_in += records
        history.write(report, IDLE)
        with (tmp_path / NAME).open("ab") as file:
            file.write(b'\n{"since_ms": 1, "unt')
    assert [sample.records_in for sample in read_history(tmp_path)] == [10, 20]


def test_the_file_loses_its_older_half_when_it_is_full(tmp_path: Path) -> None:
    clock, report = ManualClock(), TaskReport("0_0")
    history = WorkHistory(tmp_path, clock)
    history.write(report, IDLE)
    sizes = []
    for _ in range(6000):
        report.records_in += 1
        clock.advance(60_000)
        history.note(report, IDLE)
        sizes.append((tmp_path / NAME).stat().st_size)
    assert max(sizes) < SIZE_MAX_BYTES + 1024
    kept = read_history(tmp_path)
    assert len(kept) > 10 * 60
    assert kept[-1].until_ms == clock.now_ms()
    assert all(one.until_ms == two.since_ms for one, two in itertools.pairwise(kept))


def test_a_folder_that_is_gone_stops_nobody(tmp_path: Path) -> None:
    report = TaskReport("0_0")
    history = WorkHistory(tmp_path / "gone", ManualClock())
    history.write(report, IDLE)
    report.records_in = 1
    history.write(report, IDLE)
    assert read_history(tmp_path / "gone") == []
