"""Stores brought back from exports: into an empty state dir, over one set aside, or refused.

Shows I18.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from statestore import faults
from statestore.errors import ExportDamaged, ExportTooOld, Locked, Misuse
from statestore.faults import CrashPoint
from statestore.layout import owners
from statestore.operations.deployed import publish_deployed, read_deployed
from statestore.operations.exports.restore_export import Restore
from statestore.ports import Bounds
from tests.builders import ManualClock
from tests.contract.export_rig import WEEK_MS, ExportRig
from tests.contract.task_rig import APPLICATION, TASK, rows_of
from tests.relocation_rig import Died, dying_at, in_memory_folder


@pytest.fixture
def rig() -> Iterator[ExportRig]:
    with in_memory_folder() as folder:
        rig = ExportRig(folder)
        rig.send(*((f"k{n}", str(n)) for n in range(50)))
        rig.drain()
        rig.export()
        yield rig


def grown(rig: ExportRig) -> dict[bytes, bytes]:
    """Changes after the export; the rows there are then."""
    rig.send(("k1", ""), ("k2", "new"), ("later", "1"))
    rig.drain()
    wanted = {f"k{n}".encode(): str(n).encode() for n in range(50)}
    del wanted[b"k1"]
    return wanted | {b"k2": b"new", b"later": b"1"}


def stores_after_a_start(rig: ExportRig) -> tuple[dict[bytes, bytes], int]:
    """The rows of both stores, which must be alike, and how many records were replayed."""
    task = rig.tasks.start()
    latest, copies, recent = (rows_of(task, name) for name in ("latest", "copies", "recent"))
    assert latest == copies == recent
    assert task.report.quarantined == []
    replayed = task.report.restored_records
    rig.tasks.end()
    return latest, replayed


def test_after_a_lost_volume_the_next_start_replays_the_tail_only(rig: ExportRig) -> None:
    wanted = grown(rig)
    rig.lose_volume()
    report = rig.restore()
    assert [(one.stream_task, one.store) for one in report.placed] == [
        ("0_0", "copies"),
        ("0_0", "latest"),
    ]
    assert report.applied
    assert report.kept == []
    assert read_deployed(rig.tasks.layout).fingerprint
    rows, replayed = stores_after_a_start(rig)
    assert rows == wanted
    in_memory = len(rig.tasks.broker.records(f"{APPLICATION}-recent-changelog"))
    assert replayed == 2 * 3 + in_memory, "three changes in either store on disk"
    assert report.replay >= 2 * 3


def test_a_store_that_is_there_is_left_alone_and_a_missing_one_placed_beside_it(
    rig: ExportRig,
) -> None:
    wanted = grown(rig)
    rig.tasks.layout.quarantine(
        rig.tasks.store_dir("latest"), "latest", "unreadable", rig.tasks.clock
    )
    before = read_deployed(rig.tasks.layout)
    report = rig.restore()
    assert [one.store for one in report.placed] == ["latest"]
    assert report.kept == ["0_0/copies"]
    assert read_deployed(rig.tasks.layout) == before
    assert stores_after_a_start(rig)[0] == wanted
    assert rig.restore().placed == []


def test_an_empty_store_in_the_place_is_no_store(rig: ExportRig) -> None:
    wanted = grown(rig)
    rig.lose_volume()
    task = rig.tasks.task()
    task._stores.live_in(task._ownership.take())
    for name in ("latest", "copies"):
        task._stores.open(rig.tasks.topology.stores[name])
    task.close()
    assert len(rig.restore().placed) == 2
    assert stores_after_a_start(rig)[0] == wanted


def test_a_store_that_is_to_be_replaced_is_set_aside(rig: ExportRig) -> None:
    wanted = grown(rig)
    planned = rig.restoring(stores=["latest"], replace=True).plan()
    assert not planned.applied
    report = rig.restore(stores=["latest"], replace=True)
    assert (report.placed, report.set_aside) == (planned.placed, planned.set_aside)
    assert rig.tasks.quarantine() == ["replaced"]
    assert stores_after_a_start(rig)[0] == wanted


def test_a_store_goes_where_the_topology_deployed_here_looks_for_it(rig: ExportRig) -> None:
    known = read_deployed(rig.tasks.layout)
    rig.lose_volume()
    elsewhere = msgspec.structs.replace(known.stores["latest"], sub_topology=3)
    rig.tasks.layout.create(rig.tasks.layout.application_dir)
    stores = {**known.stores, "latest": elsewhere}
    publish_deployed(rig.tasks.layout, msgspec.structs.replace(known, stores=stores))
    assert [one.stream_task for one in rig.restore().placed] == ["0_0", "3_0"]
    assert (rig.tasks.layout.application_dir / "3_0" / "rocksdb" / "latest" / "CURRENT").exists()


# Refusals: nothing is touched.


def refused(rig: ExportRig, error: type[Exception], says: str, **choice: Any) -> None:
    before = sorted(rig.tasks.layout.state_dir.rglob("*"))
    with pytest.raises(error, match=says):
        rig.restore(**choice)
    assert sorted(rig.tasks.layout.state_dir.rglob("*")) == before


def test_an_export_older_than_the_changelog_keeps_deletes_is_refused(rig: ExportRig) -> None:
    wanted = grown(rig)
    rig.lose_volume()
    rig.tasks.clock.advance(WEEK_MS - 1)
    assert rig.restoring().plan().placed
    rig.tasks.clock.advance(1)
    refused(rig, ExportTooOld, "keys deleted since could come back: .* with --full")
    report = rig.restore(full=True)
    assert (report.placed, len(report.by_changelog)) == ([], 2)
    assert stores_after_a_start(rig)[0] == wanted


def test_a_store_placed_in_time_and_started_on_too_late_is_restored_from_its_changelog(
    rig: ExportRig,
) -> None:
    wanted = grown(rig)
    rig.lose_volume()
    rig.restore()
    rig.tasks.clock.advance(WEEK_MS)
    task = rig.tasks.start()
    assert sorted(task.report.quarantined) == ["copies", "latest"]
    assert rows_of(task, "latest") == wanted
    rig.tasks.end()
    assert set(rig.tasks.quarantine()) == {"export-too-old"}


def test_a_store_that_was_brought_up_in_time_is_trusted_for_good(rig: ExportRig) -> None:
    wanted = grown(rig)
    rig.lose_volume()
    rig.restore()
    assert stores_after_a_start(rig)[0] == wanted
    rig.tasks.clock.advance(WEEK_MS)
    rows, replayed = stores_after_a_start(rig)
    in_memory = len(rig.tasks.broker.records(f"{APPLICATION}-recent-changelog"))
    assert (rows, replayed) == (wanted, in_memory)
    assert not list(rig.tasks.layout.application_dir.rglob(".from-export.json"))


def test_an_export_of_a_task_that_died_is_as_old_as_its_last_flush(rig: ExportRig) -> None:
    rig.set_clock()
    rig.tasks.start()
    rig.tasks.crash()
    rig.tasks.clock.advance(WEEK_MS)
    rig.export()
    old = rig.exports.read()
    flushed = max(
        path.stat().st_mtime_ns // 1_000_000
        for path in rig.tasks.layout.stores_dir(TASK).rglob("*.sst")
    )
    assert [task.taken_ms for task in old.tasks] == [flushed]


@pytest.mark.parametrize(
    ("start", "end", "error", "says"),
    [
        (0, 10, Misuse, "whose log ends at 10: the topic was truncated"),
        (60, 90, ExportTooOld, "whose log begins at 60: what lies between is gone"),
    ],
)
def test_a_changelog_that_does_not_go_on_from_the_export_is_refused(
    rig: ExportRig, start: int, end: int, error: type[Exception], says: str
) -> None:
    rig.lose_volume()
    rig.bounds = Bounds(start, end)
    refused(rig, error, says)


def test_a_changelog_that_is_not_there_is_refused(rig: ExportRig) -> None:
    rig.lose_volume()
    rig.cluster_has = False
    refused(rig, Misuse, "is this the application's cluster")


def test_what_is_not_in_the_export_or_of_another_application_is_refused(rig: ExportRig) -> None:
    refused(rig, Misuse, "has no nothere; it has: copies, latest", stores=["nothere"])
    refused(rig, Misuse, "no export '20260101'", export="20260101")
    settings = replace(rig.runtime.settings, application_id="other")
    other = Restore(rig.runtime.with_settings(settings), rig.exports.read(), rig.log)
    with pytest.raises(Misuse, match="is of application shop, not other"):
        other.apply()


@pytest.mark.parametrize("locks", [True, False])
def test_a_running_application_is_not_restored_into(rig: ExportRig, locks: bool) -> None:
    rig.tasks.settings = {**rig.tasks.settings, "statestore.volume.locks": locks}
    restoring = rig.restoring()
    folder = rig.tasks.layout.application_dir
    claim = owners.claim(folder, what="", wait_ms=0, clock=ManualClock())
    with pytest.raises(Locked, match="application shop"):
        restoring.apply()
    assert claim.still_ours()
    claim.release()
    rig.tasks.start()
    with pytest.raises(Locked, match="task 0_0"):
        restoring.apply()
    rig.tasks.end()


# Deaths.


@pytest.mark.parametrize("visit", range(1, 8))
def test_a_restore_that_dies_anywhere_is_finished_by_the_next(rig: ExportRig, visit: int) -> None:
    wanted = grown(rig)
    rig.lose_volume()
    faults.on_reach(dying_at(visit))
    try:
        with pytest.raises(Died):
            rig.restore()
    finally:
        faults.on_reach(None)
    for path in (rig.tasks.layout.application_dir / "owner.json", rig.tasks.folder / "owner.json"):
        path.unlink(missing_ok=True)
    rig.restore()
    rows, _ = stores_after_a_start(rig)
    assert rows == wanted
    assert rig.tasks.quarantine() == []
    assert not list(rig.tasks.layout.application_dir.rglob(".import-*"))


def halves(rig: ExportRig) -> list[str]:
    return [path.name for path in rig.tasks.layout.application_dir.rglob(".import-*")]


def test_a_restore_that_fails_or_died_leaves_no_half_fetched_store(rig: ExportRig) -> None:
    rig.lose_volume()
    lost = max(rig.files(), key=lambda name: rig.files()[name] * ("/files/" in name))
    kept = (rig.target / lost).read_bytes()
    (rig.target / lost).write_bytes(b"")
    with pytest.raises(ExportDamaged):
        rig.restore()
    assert halves(rig) == []
    (rig.target / lost).write_bytes(kept)
    rig.lose_volume()

    def die(point: CrashPoint) -> None:
        if point is CrashPoint.IMPORT_FETCHED:
            raise Died(point)

    faults.on_reach(die)
    with pytest.raises(Died):
        rig.restore(stores=["copies"])
    faults.on_reach(None)
    assert halves(rig) == [".import-copies"]
    rig.restore(stores=["latest"])
    assert halves(rig) == [], "whichever store it was of"
