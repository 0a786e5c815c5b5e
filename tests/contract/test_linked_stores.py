"""Stores that open on the files of an export, by links, and get copies of them while they work.

Shows I44.
"""

import errno
import hashlib
import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from statestore import faults
from statestore.errors import ExportDamaged, HostFailure, TaskCorrupted
from statestore.faults import CrashPoint
from statestore.layout import linked_files
from statestore.operations.activities import activities_in
from statestore.operations.exports.catalog import Retention
from statestore.operations.exports.create import create_export
from statestore.runtime.databases import RocksDatabases
from statestore.settings import Settings
from statestore.tasks import linked_copies
from statestore.tasks.task import StreamTask
from tests.builders import eventually
from tests.contract.export_rig import ExportRig
from tests.contract.task_rig import rows_of
from tests.relocation_rig import Died, in_memory_folder

STORES = ("copies", "latest")
LINKS = 4
"""Of two stores, with a file of rows and one of offsets each."""


@pytest.fixture
def rig() -> Iterator[ExportRig]:
    with in_memory_folder() as folder:
        rig = ExportRig(folder)
        rig.send(*((f"k{n}", str(n)) for n in range(50)))
        rig.drain()
        rig.export()
        yield rig


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    faults.on_reach(None)


def held_up(*points: CrashPoint) -> None:
    """Let the threads that copy end at these points, as if they had never been."""

    def die(point: CrashPoint) -> None:
        if point in points:
            raise HostFailure("held up")

    faults.on_reach(die)


def wanted_after_more(rig: ExportRig) -> dict[bytes, bytes]:
    rig.send(("k1", ""), ("k2", "new"), ("later", "1"))
    rig.drain()
    wanted = {f"k{n}".encode(): str(n).encode() for n in range(50)}
    del wanted[b"k1"]
    return wanted | {b"k2": b"new", b"later": b"1"}


def linked(rig: ExportRig) -> ExportRig:
    """The volume is lost, and the stores are links into the export."""
    rig.lose_volume()
    rig.restore(mounted=True)
    assert len(links(rig)) == LINKS
    return rig


def crash(rig: ExportRig) -> None:
    """As the process dies, so do its threads."""
    (task,) = rig.tasks.running
    task._stores._copies.stop()
    rig.tasks.crash()


def links(rig: ExportRig) -> list[Path]:
    folder = rig.tasks.layout.application_dir
    return sorted(path for path in folder.rglob("*.sst") if path.is_symlink())


def notes(rig: ExportRig) -> list[Path]:
    return sorted(rig.tasks.layout.application_dir.rglob(".linked.json"))


def leases(rig: ExportRig) -> list[str]:
    return sorted(name for name in rig.files() if "/links/" in name)


def contents(rig: ExportRig) -> set[str]:
    return {name for name in rig.files() if "/files/" in name}


def assert_untouched(rig: ExportRig) -> None:
    for name in contents(rig):
        data = (rig.target / name).read_bytes()
        assert hashlib.sha256(data).hexdigest() == name.rpartition("/")[2]


def stepped(rig: ExportRig) -> StreamTask:
    task = rig.tasks.start()
    while task.step(0):
        pass
    return task


def assert_rows(rig: ExportRig, task: StreamTask, wanted: dict[bytes, bytes]) -> None:
    assert rows_of(task, "latest") == rows_of(task, "copies") == wanted
    assert_untouched(rig)


def test_a_store_works_on_links_and_has_files_of_its_own_after_a_while(rig: ExportRig) -> None:
    wanted = wanted_after_more(rig)
    linked(rig)
    assert len(leases(rig)) == 2
    task = stepped(rig)
    assert task.report.quarantined == []
    eventually(lambda: not links(rig) and not notes(rig), "the files are copied")
    assert_rows(rig, task, wanted)
    rig.send(("k3", "newer"))
    task.step(0)
    rig.tasks.end()
    shutil.rmtree(rig.target)
    assert_after_another_start(rig, wanted | {b"k3": b"newer"})


def assert_after_another_start(rig: ExportRig, wanted: dict[bytes, bytes]) -> None:
    task = stepped(rig)
    assert task.report.quarantined == []
    assert rows_of(task, "latest") == rows_of(task, "copies") == wanted
    rig.tasks.end()


def test_a_run_that_ends_at_once_has_copied_one_file_at_least(rig: ExportRig) -> None:
    linked(rig)
    for _ in range(LINKS):
        rig.tasks.start()
        rig.tasks.end()
    assert links(rig) == []


@pytest.mark.parametrize(
    "point", [CrashPoint.LINKS_COPIED, CrashPoint.LINKS_REPLACED, CrashPoint.LINKS_RELEASED]
)
def test_copying_that_ended_anywhere_is_done_by_the_next_start(
    rig: ExportRig, point: CrashPoint
) -> None:
    wanted = wanted_after_more(rig)
    linked(rig)
    held_up(point)
    rig.tasks.start()
    crash(rig)
    faults.on_reach(None)
    task = stepped(rig)
    assert task.report.quarantined == []
    eventually(lambda: not links(rig) and not notes(rig), "the files are copied")
    assert_rows(rig, task, wanted)
    rig.tasks.end()
    assert not list(rig.tasks.layout.application_dir.rglob("*.copying"))


def test_a_prune_keeps_what_a_store_is_linked_to_and_removes_it_after_the_copy(
    rig: ExportRig,
) -> None:
    linked(rig)
    before = contents(rig)
    held_up(CrashPoint.LINKS_COPIED)
    stepped(rig)
    rig.send(*((f"k{n}", "other") for n in range(50)))
    while rig.tasks.running[0].step(0):
        pass
    rig.tasks.end()
    rig.export()
    rig.exports.prune(Retention(1))
    assert {str(link.readlink()) for link in links(rig)} <= {
        str(rig.target / name) for name in contents(rig)
    }
    faults.on_reach(None)
    task = stepped(rig)
    eventually(lambda: not notes(rig), "the files are copied")
    rig.tasks.end()
    rig.tasks.clock.advance(3_600_001)
    rig.exports.prune(Retention(1))
    assert before - contents(rig), "what only the first export named"
    assert leases(rig) == []
    assert task.report.quarantined == []


def damage(rig: ExportRig, path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_content_that_was_damaged_since_is_found_by_the_copy_and_the_store_replaced(
    rig: ExportRig,
) -> None:
    wanted = wanted_after_more(rig)
    linked(rig)
    damage(rig, links(rig)[0].readlink())
    damage(rig, links(rig)[-1].readlink())
    task = rig.tasks.start()

    def replaced() -> bool:
        task.step(0)
        return len(set(task.report.quarantined)) == 2

    eventually(replaced, "both stores are restored from their changelogs")
    while task.step(0):
        pass
    assert rows_of(task, "latest") == rows_of(task, "copies") == wanted
    rig.tasks.end()


@pytest.mark.parametrize(
    "what", ["unmounted", "shorter", "outside", "another", "no note", "garbage"]
)
def test_links_that_lead_to_nothing_right_are_replaced_by_the_changelog(
    rig: ExportRig, what: str
) -> None:
    wanted = wanted_after_more(rig)
    linked(rig)
    link = links(rig)[-1]
    content = link.readlink()
    outside = rig.root / "outside.sst"
    shutil.copy(content, outside)
    match what:
        case "unmounted":
            rig.target.rename(rig.root / "elsewhere")
        case "shorter":
            content.write_bytes(content.read_bytes()[:-1])
        case "outside":
            content.unlink()
            content.symlink_to(outside)
        case "another":
            link.unlink()
            link.symlink_to(outside)
        case "no note":
            (link.parent / ".linked.json").unlink()
        case _:
            (link.parent / ".linked.json").write_bytes(b'{"target": "../../x"}')
    task = stepped(rig)
    both = set(STORES) if what == "unmounted" else {"latest"}
    assert set(task.report.quarantined) == both
    assert rows_of(task, "latest") == rows_of(task, "copies") == wanted
    assert outside.exists()
    rig.tasks.end()


def test_a_target_that_goes_away_under_an_open_store_loses_nothing(rig: ExportRig) -> None:
    wanted = wanted_after_more(rig)
    linked(rig)
    held_up(CrashPoint.LINKS_COPIED)
    task = rig.tasks.start()
    rig.target.rename(rig.root / "elsewhere")
    while task.step(0):
        pass
    assert rows_of(task, "latest") == wanted, "the files are open"
    rig.send(("k9", "9th"))
    task.step(0)
    crash(rig)
    task = stepped(rig)
    assert set(task.report.quarantined) == set(STORES)
    assert rows_of(task, "latest") == rows_of(task, "copies") == wanted | {b"k9": b"9th"}
    rig.tasks.end()


def a_data_file(rig: ExportRig) -> str:
    exports = rig.exports
    files = [file for at in exports.read().stores() for file in at.store.files]
    return next(exports.content(file.sha256) for file in files if file.name.endswith(".sst"))


def test_a_half_uploaded_export_is_refused_and_leaves_nothing(rig: ExportRig) -> None:
    rig.lose_volume()
    (rig.target / a_data_file(rig)).unlink()
    with pytest.raises(ExportDamaged, match="cannot be read: No such file"):
        rig.restore(mounted=True)
    assert leases(rig) == []
    assert links(rig) == []


def test_a_content_that_leads_out_of_the_target_is_refused(rig: ExportRig) -> None:
    rig.lose_volume()
    name, outside = a_data_file(rig), rig.root / "outside"
    (rig.target / name).rename(outside)
    (rig.target / name).symlink_to(outside)
    with pytest.raises(ExportDamaged, match="leads out of"):
        rig.restore(mounted=True)
    assert links(rig) == []


def test_a_target_that_cannot_hold_a_lease_is_copied(rig: ExportRig) -> None:
    rig.lose_volume()
    (application,) = rig.target.iterdir()
    (application / "links").write_bytes(b"a file")
    rig.restore(mounted=True)
    assert links(rig) == []
    assert notes(rig) == []


def test_a_volume_that_can_have_no_links_gets_copies(
    rig: ExportRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = wanted_after_more(rig)
    rig.lose_volume()

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "symlink", refuse)
    rig.restore(mounted=True)
    assert links(rig) == notes(rig) == []
    assert leases(rig) == []
    task = stepped(rig)
    assert task.report.quarantined == []
    assert_rows(rig, task, wanted)
    rig.tasks.end()


def test_copies_leave_the_database_room_to_write(
    rig: ExportRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = wanted_after_more(rig)
    linked(rig)
    found, full = os.statvfs(rig.root), threading.Event()
    full.set()

    def room(_: object) -> os.statvfs_result:
        free = (1 << 20) // found.f_frsize if full.is_set() else found.f_bavail
        return os.statvfs_result([*found[:4], free, *found[5:]])

    monkeypatch.setattr(os, "statvfs", room)
    task = stepped(rig)
    eventually(lambda: "no room for a copy" in caplog.text, "it says so")
    assert len(links(rig)) == LINKS
    assert_rows(rig, task, wanted)
    full.clear()
    rig.tasks.end()
    task = stepped(rig)
    eventually(lambda: not notes(rig), "the files are copied")
    assert_rows(rig, task, wanted)
    rig.tasks.end()


def test_a_run_that_copies_for_days_keeps_its_lease(
    rig: ExportRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its target cannot be read meanwhile; the prune of somebody else can."""
    linked(rig)
    held_up(CrashPoint.LINKS_COPIED)
    monkeypatch.setattr(linked_copies, "_AGAIN_S", 0.001)
    rig.tasks.start()
    rig.tasks.clock.advance(6 * 86_400_000)
    expires_ms = 6 * 86_400_000 + rig.tasks.clock.now_ms()

    def renewed() -> bool:
        # One that is being written has another name until it is whole.
        whole = [name for name in leases(rig) if name.endswith(".json")]
        found = [json.loads((rig.target / name).read_bytes()) for name in whole]
        return all(lease["expires_ms"] > expires_ms for lease in found)

    eventually(renewed, "the leases are renewed")
    rig.tasks.end()


def test_while_somebody_prunes_files_are_copied(rig: ExportRig) -> None:
    rig.lose_volume()
    with rig.exports._leases.removing():
        rig.restore(mounted=True)
    assert links(rig) == []
    assert leases(rig) == []


def test_two_applications_of_one_export_do_not_meet(rig: ExportRig) -> None:
    """Both compact all they have; neither the export nor the other sees it."""
    wanted = wanted_after_more(rig)
    linked(rig)
    first = rig.tasks.store_dir("latest")
    linked(rig)
    second = rig.tasks.store_dir("latest")
    assert first != second
    for folder in (first, second):
        engine = RocksDatabases().rewrite(folder)
        engine.write({"data": {b"k5": b"5"}})
        engine.flush()
        engine.close()
    assert_untouched(rig)
    assert len(leases(rig)) == 4
    task = stepped(rig)
    assert_rows(rig, task, wanted)
    rig.tasks.end()


def test_an_export_of_a_linked_store_reads_nothing_twice_and_is_whole(rig: ExportRig) -> None:
    wanted = wanted_after_more(rig)
    linked(rig)
    held_up(CrashPoint.LINKS_COPIED)
    stepped(rig)
    rig.tasks.end()
    before = len(links(rig))
    assert before == LINKS
    report = rig.export()
    assert rig.exported("latest", report.export_id) == wanted
    assert rig.exported("copies", report.export_id) == wanted
    faults.on_reach(None)
    rig.lose_volume()
    rig.restore()
    task = stepped(rig)
    assert_rows(rig, task, wanted)
    rig.tasks.end()


def test_an_export_elsewhere_of_a_damaged_link_is_refused(rig: ExportRig) -> None:
    linked(rig)
    damage(rig, links(rig)[0].readlink())
    other = str(rig.root / "other")
    settings = {**rig.runtime.settings.to_mapping(), "statestore.export.target": other}
    with pytest.raises(TaskCorrupted, match=r"is in no export|is not what it was"):
        create_export(rig.runtime.with_settings(Settings.of(settings)))


def test_a_taken_over_store_has_links_and_a_lease_of_its_own(rig: ExportRig) -> None:
    wanted = wanted_after_more(rig)
    linked(rig)
    held_up(CrashPoint.LINKS_COPIED)
    rig.tasks.start()
    crash(rig)
    held = leases(rig)
    folder = rig.tasks.store_dir("latest")
    copy = folder.with_name("copy")
    RocksDatabases().link(folder, copy, True)
    linked_files.hold_anew(copy, rig.tasks.clock.now_ms())
    assert [path.name for path in copy.iterdir() if path.is_symlink()]
    assert len(leases(rig)) == len(held) + 1
    shutil.rmtree(copy)
    faults.on_reach(None)
    task = stepped(rig)
    assert_rows(rig, task, wanted)
    rig.tasks.end()


def test_status_shows_how_far_the_copying_is(rig: ExportRig) -> None:
    linked(rig)
    seen: list[str] = []

    def look(point: CrashPoint) -> None:
        if point is CrashPoint.LINKS_COPIED:
            rig.tasks.clock.advance(1_000)
            seen.extend(one.note.kind for one in activities_in(rig.runtime).seen())

    faults.on_reach(look)
    rig.tasks.start()
    eventually(lambda: not links(rig), "the files are copied")
    rig.tasks.end()
    assert "copy" in seen


def test_a_restore_that_died_after_its_lease_is_repeated(rig: ExportRig) -> None:
    wanted = wanted_after_more(rig)
    rig.lose_volume()

    def die(point: CrashPoint) -> None:
        if point is CrashPoint.LINKS_LEASED:
            raise Died(point)

    faults.on_reach(die)
    with pytest.raises(Died):
        rig.restore(mounted=True)
    faults.on_reach(None)
    rig.restore(mounted=True)
    task = stepped(rig)
    assert_rows(rig, task, wanted)
    rig.tasks.end()
