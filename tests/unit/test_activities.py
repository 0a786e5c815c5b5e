"""Long activities tell how far they are, whoever looks, and a dead process leaves no bar."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from statestore.commands.progress import RunProgress
from statestore.layout import activity_files as module
from statestore.layout.activity_files import (
    FOLDER,
    Activities,
    ActivityNote,
    ActivityState,
    Unit,
    activity_text,
    together,
)
from statestore.layout.folders import StateLayout
from statestore.layout.owners import Owner
from statestore.operations.activities import activities_of, catch_up_of
from statestore.tasks.progress_file import TaskProgress
from tests.builders import ManualClock


class Heard:
    def __init__(self) -> None:
        self.expected = self.finished = 0

    def expect(self, amount: int) -> None:
        self.expected += amount

    def done(self, amount: int) -> None:
        self.finished += amount


def notes_in(folder: Path) -> list[Path]:
    return sorted((folder / FOLDER).glob("*")) if (folder / FOLDER).is_dir() else []


def test_a_work_is_seen_with_its_rate_and_time_left_until_it_ends(tmp_path: Path) -> None:
    clock, heard = ManualClock(), Heard()
    activities = Activities(tmp_path, clock)
    with activities.underway("export", Unit.BYTES, heard) as told:
        (seen,) = activities.seen()
        assert (seen.state, seen.note.text()) == (ActivityState.WORKING, "begun")
        clock.advance(1000)
        told.expect(4_000_000)
        clock.advance(1000)
        told.done(1_000_000)
        (seen,) = activities.seen()
        assert seen.note.text() == "1.0 of 4.0 MB, 0.5 MB/s, 6.0 s left"
    assert activities.seen() == []
    assert notes_in(tmp_path) == []
    assert not (tmp_path / FOLDER).exists()
    assert (heard.expected, heard.finished) == (4_000_000, 1_000_000)


def test_it_is_written_about_once_a_second_and_not_at_all_if_it_is_short(tmp_path: Path) -> None:
    clock = ManualClock()
    activities = Activities(tmp_path, clock)
    with activities.underway("restore", Unit.OFFSETS, stream_task="0_1", after_s=1.0) as told:
        for _ in range(1000):
            told.expect(1)
            told.done(1)
        assert notes_in(tmp_path) == []
        clock.advance(1000)
        told.done(0)
        for _ in range(1000):
            told.done(1)
        (seen,) = activities.seen()
        assert seen.note.done == 1000, "nothing was written within the second"
        clock.advance(1000)
        told.done(1)
        (seen,) = activities.seen()
        assert seen.note.done == 2001


def test_it_ends_with_an_error_and_where_nothing_can_be_written(tmp_path: Path) -> None:
    activities = Activities(tmp_path / "nowhere", ManualClock())

    def fails() -> None:
        with activities.underway("audit", Unit.OFFSETS) as told:
            told.expect(1)
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert not (tmp_path / "nowhere").exists(), "it makes no application"
    (tmp_path / FOLDER).write_text("in the way")
    with Activities(tmp_path, ManualClock()).underway("audit", Unit.OFFSETS) as told:
        told.done(1)
    assert Activities(tmp_path, ManualClock()).seen() == []


DIES = """\
import sys
from pathlib import Path
from statestore.layout.activity_files import Unit, Activities
from statestore.runtime import SystemClock
with Activities(Path(sys.argv[1]), SystemClock()).underway("export", Unit.BYTES) as told:
    told.expect(10)
    print("begun", flush=True)
    sys.stdin.read()
"""


def test_a_killed_process_leaves_a_work_that_died_and_the_next_one_removes_it(
    tmp_path: Path,
) -> None:
    clock = ManualClock(10**12)
    activities = Activities(tmp_path, clock)
    command = [sys.executable, "-c", DIES, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"begun\n"
        assert [seen.state for seen in activities.seen()] == [ActivityState.WORKING]
        child.send_signal(signal.SIGKILL)
        child.wait()
    (seen,) = activities.seen()
    assert seen.state is ActivityState.DIED
    assert together(activities.seen()) == [], "it has no bar"
    (told,) = activities_of(
        activities.seen(), StateLayout(tmp_path, "a"), [], seen.note.written_ms + 5000
    )
    assert (told.state, told.age_seconds) == (ActivityState.DIED, 5.0)
    assert told.process == f"process {child.pid} on {seen.note.by.host}"
    with activities.underway("audit", Unit.OFFSETS):
        assert len(notes_in(tmp_path)) == 2, "of another kind"
    with activities.underway("export", Unit.BYTES):
        assert [one.state for one in activities.seen()] == [ActivityState.WORKING]
    assert notes_in(tmp_path) == []


def left(folder: Path, name: str = "a", **changes: object) -> None:
    note = ActivityNote("export", Unit.BYTES, elsewhere(), 100_000, 5, 10)
    (folder / FOLDER).mkdir(exist_ok=True)
    note = msgspec.structs.replace(note, **changes)
    (folder / FOLDER / f"{name}.json").write_bytes(msgspec.json.encode(note))


def elsewhere() -> Owner:
    return Owner(0, "other", "boot", 7, 90_000, 1)


def test_a_process_on_another_host_is_silent_after_a_minute_and_forgotten_after_a_day(
    tmp_path: Path,
) -> None:
    clock = ManualClock(100_000)
    activities = Activities(tmp_path, clock)
    left(tmp_path)
    assert [seen.state for seen in activities.seen()] == [ActivityState.WORKING]
    clock.advance(60_001)
    assert [seen.state for seen in activities.seen()] == [ActivityState.SILENT]
    assert together(activities.seen()) == []
    clock.advance(86_400_000)
    assert activities.seen() == []
    activities.sweep("audit")
    assert notes_in(tmp_path) == []


def test_what_cannot_be_read_is_passed_over_and_swept(tmp_path: Path) -> None:
    left(tmp_path)
    (tmp_path / FOLDER / "b.json").write_text('{"kind": "<b>"')
    (tmp_path / FOLDER / "c.json").mkdir()
    (tmp_path / FOLDER / "d.txt").write_text("")
    activities = Activities(tmp_path, ManualClock(100_000))
    assert len(activities.seen()) == 1
    activities.sweep("export")
    assert [path.name for path in notes_in(tmp_path)] == ["a.json", "c.json", "d.txt"]


def test_readers_open_a_limited_number_of_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FILES_MAX", 3)
    for number in range(9):
        left(tmp_path, str(number))
    assert len(Activities(tmp_path, ManualClock(100_000)).seen()) == 3


def test_works_of_one_kind_are_added_up(tmp_path: Path) -> None:
    left(tmp_path, "a", kind="restore", unit=Unit.OFFSETS, stream_task="0_0", expected=25)
    left(tmp_path, "b", kind="restore", unit=Unit.OFFSETS, stream_task="0_1", done=10)
    left(tmp_path, "c")
    activities = Activities(tmp_path, ManualClock(100_000))
    one, two = together(activities.seen())
    assert (one.kind, one.count, one.text()) == ("export", 1, "0.0 of 0.0 MB, 0.0 MB/s, 10 s left")
    assert (two.kind, two.count, two.text()) == ("restore", 2, "15 of 35 offsets, 2/s, 40 s left")
    line = RunProgress(ManualClock(), activities).line()
    assert line == "restore: 15 of 35 offsets, 2/s, 40 s left"


def test_a_dead_restore_is_past_once_somebody_claimed_the_stream_task_again(
    tmp_path: Path,
) -> None:
    layout = StateLayout(tmp_path, "a")
    layout.application_dir.mkdir()
    left(layout.application_dir, kind="restore", stream_task="0_0")
    activities = Activities(layout.application_dir, ManualClock(200_000))
    assert len(activities_of(activities.seen(), layout, [], 200_000)) == 1
    (layout.application_dir / "0_0").mkdir()
    owner = msgspec.structs.replace(elsewhere(), since_ms=100_001)
    (layout.application_dir / "0_0" / "owner.json").write_bytes(msgspec.json.encode(owner))
    assert activities_of(activities.seen(), layout, [], 200_000) == []


def test_a_catch_up_adds_up_what_stream_tasks_report() -> None:
    behind = TaskProgress(os.getpid(), process_rate=10.0, records=100, lag_records=400)
    level = TaskProgress(os.getpid(), process_rate=10.0, records=50, lag_records=0)
    unknown = TaskProgress(os.getpid(), records=50)
    found = catch_up_of([behind, level, unknown])
    assert found is not None
    assert found.text() == "150 of 550 records, 10/s, 40 s left"
    assert catch_up_of([level, unknown]) is None
    assert catch_up_of([msgspec.structs.replace(behind, lag_records=5)]) is None, "in no time"


def test_a_work_says_no_more_than_it_knows() -> None:
    assert activity_text(Unit.STORES, 0, 0, None, None) == "begun"
    assert activity_text(Unit.STORES, 0, 7, None, None) == "0 of 7 stores"
    assert activity_text(Unit.STORES, 9, 7, 2.0, None) == "9 of 7 stores, 2/s"
