"""Stores whose changelog may have forgotten deletes since they were written (I29)."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import statestore as ss
from statestore import faults
from statestore.faults import CrashPoint
from statestore.testing import memory_broker
from statestore.testing.memory_broker import MemoryBroker
from tests.contract.task_rig import APPLICATION, TaskRig, rows_of
from tests.relocation_rig import Died

KEYS = 1000
WEEK_MS = 7 * 86_400_000
DAY_MS = 86_400_000
CHANGELOG = f"{APPLICATION}-latest-changelog"


def table() -> ss.Topology:
    builder = ss.StreamsBuilder()
    builder.table("in", materialized="latest")
    return builder.build()


@pytest.fixture(params=["exactly_once", "at_least_once"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> TaskRig:
    rig = TaskRig(table(), tmp_path, guarantee=request.param)
    rig.clock.advance(1_000_000_000_000)  # later than any file was written
    return rig


def put(rig: TaskRig, keys: range, value: str | None) -> None:
    """A life of the task that commits these."""
    task = rig.start()
    feed(rig, keys, value)
    while task.step(0):
        pass
    task.finish()


def feed(rig: TaskRig, keys: range, value: str | None) -> None:
    rig.send("in", ((f"k{n}", value) for n in keys))


def forget(broker: MemoryBroker) -> None:
    """The cleaner takes what was superseded, and deletes that are old enough."""
    broker.compact(CHANGELOG, deletes=True)


KEPT = {f"k{n}".encode() for n in range(KEYS // 2, KEYS)}


def test_keys_deleted_in_a_crash_tail_that_waited_too_long_stay_deleted(rig: TaskRig) -> None:
    put(rig, range(KEYS), "1")
    rig.end()
    put(rig, range(KEYS // 2), None)
    rig.crash()
    rig.clock.advance(WEEK_MS)
    forget(rig.broker)
    assert set(rows_of(rig.start(), "latest")) == KEPT == set(rig.changelog("latest"))
    assert rig.quarantine() == ["tail-too-old"]


def test_keys_deleted_since_an_old_copy_of_the_volume_stay_deleted(rig: TaskRig) -> None:
    put(rig, range(KEYS), "1")
    rig.end()
    copy = rig.root / "copy"
    shutil.copytree(rig.layout.state_dir, copy)
    put(rig, range(KEYS // 2), None)
    rig.end()
    shutil.rmtree(rig.layout.state_dir)
    shutil.copytree(copy, rig.layout.state_dir, copy_function=shutil.copyfile)  # as written now
    rig.clock.advance(WEEK_MS)
    forget(rig.broker)
    assert set(rows_of(rig.start(), "latest")) == KEPT
    assert rig.quarantine() == ["tail-too-old"]


def test_a_tail_within_the_time_that_deletes_are_kept_is_all_that_is_restored(
    rig: TaskRig,
) -> None:
    put(rig, range(KEYS), "1")
    rig.end()
    put(rig, range(10), None)
    rig.crash()
    rig.clock.advance(WEEK_MS - 1)
    task = rig.start()
    assert (task.report.restored_records, task.report.quarantined) == (10, [])
    assert len(rows_of(task, "latest")) == KEYS - 10


def test_a_store_that_lacks_nothing_is_trusted_however_long_nobody_started(rig: TaskRig) -> None:
    put(rig, range(KEYS), "1")
    rig.end()
    for _ in range(3):
        rig.clock.advance(10 * WEEK_MS)
        task = rig.start()
        assert (task.report.restored_records, task.report.quarantined) == (0, [])
        assert len(rows_of(task, "latest")) == KEYS
        rig.end()


def test_a_store_that_was_idle_for_long_is_not_restored_for_a_tail_of_today(rig: TaskRig) -> None:
    put(rig, range(KEYS), "1")
    for _ in range(30):
        rig.clock.advance(DAY_MS)
        rig.running[0].step(0)
    rig.end()
    rig.clock.advance(10 * WEEK_MS)
    put(rig, range(10), None)
    rig.crash()
    rig.clock.advance(1000)
    task = rig.start()
    assert (task.report.restored_records, task.report.quarantined) == (10, [])
    assert len(rows_of(task, "latest")) == KEYS - 10


def test_a_restore_cut_short_is_as_old_as_its_beginning(
    rig: TaskRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the log was read, then nobody came for a week: the other half's deletes are gone."""
    put(rig, range(KEYS), "1")
    rig.end()
    put(rig, range(KEYS // 2), None)
    rig.end()
    shutil.rmtree(rig.layout.state_dir)
    monkeypatch.setattr(memory_broker, "_STRETCH_RECORDS", KEYS * 3 // 4)
    faults.on_reach(dying_at_point(CrashPoint.RESTORE_BATCH_WRITTEN))
    try:
        with pytest.raises(Died):
            rig.start()
    finally:
        faults.on_reach(None)
    rig.clock.advance(WEEK_MS)
    forget(rig.broker)
    assert set(rows_of(rig.start(), "latest")) == KEPT
    assert rig.quarantine() == ["tail-too-old"]


def dying_at_point(wanted: CrashPoint) -> Callable[[CrashPoint], None]:
    def reached(point: CrashPoint) -> None:
        if point is wanted:
            raise Died(point)

    return reached
