"""Exports: whole, incremental, verified, pruned; what dies leaves nothing but garbage.

Shows I17.
"""

import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

import statestore as ss
from statestore import faults
from statestore.errors import (
    ExportDamaged,
    FormatTooNew,
    Locked,
    Misuse,
    TaskCorrupted,
    Unavailable,
    UnknownStore,
)
from statestore.faults import CrashPoint
from statestore.layout.activity_files import NoProgress
from statestore.operations.deployed import describe_deployment, publish_deployed
from statestore.operations.exports.catalog import Retention, find_exported
from statestore.operations.exports.create import ExportReport
from statestore.operations.exports.leases import LEASE_MS
from statestore.operations.exports.manifest import encode_manifest
from statestore.runtime.databases import RocksDatabases
from statestore.tasks.stores import TaskStores
from statestore.tasks.task import StreamTask
from statestore.topology.nodes import TopicName
from tests.builders import DEADLINE_S, eventually
from tests.contract.export_rig import ExportRig, offset_of, rows_of
from tests.contract.task_rig import APPLICATION, TASK
from tests.contract.test_store_damage import drop
from tests.relocation_rig import Died, dying_at, in_memory_folder

POINTS = ["export.leased", "export.file-stored", "export.stored", "export.published"]


@pytest.fixture
def rig() -> Iterator[ExportRig]:
    with in_memory_folder() as folder:
        yield ExportRig(folder)


def beside(rig: ExportRig, task: StreamTask) -> ExportReport:
    """An export made by another thread while the task works."""
    got: list[ExportReport | BaseException] = []

    def export() -> None:
        try:
            got.append(rig.export())
        except BaseException as error:  # noqa: BLE001 - raised below
            got.append(error)

    thread = threading.Thread(target=export)
    thread.start()

    def done() -> bool:
        task.step(0)
        rig.tasks.clock.advance(20)
        return bool(got)

    eventually(done, "it is exported")
    thread.join(DEADLINE_S)
    (found,) = got
    if isinstance(found, BaseException):
        raise found
    return found


def test_twenty_exports_beside_a_committing_owner_are_each_the_changelog_at_their_offsets(
    rig: ExportRig,
) -> None:
    task, commits = rig.tasks.start(), set()
    for number in range(20):
        rig.send((f"k{number % 7}", str(number)), (f"n{number}", "x" * 50))
        rig.send((f"n{number - 3}", ""))
        report = beside(rig, task)
        manifest = rig.exports.read(report.export_id)
        (one,) = manifest.tasks
        commits.add(one.commit_number)
        positions = [store.offsets.position for store in one.stores.values()]
        assert positions[0] == positions[1], "one task's stores are of one commit"
        for at in manifest.stores():
            assert rows_of(rig.exports, at) == rig.folded(offset_of(at), at.name)
    assert len(commits) > 10
    assert len(rig.exports.ids()) == 20
    rig.tasks.end()


def test_a_second_export_reads_and_uploads_only_what_is_new(rig: ExportRig) -> None:
    rig.send(*((f"k{n:06}", "v" * 200) for n in range(5000)))
    rig.drain()
    first = rig.export()
    assert first.files_uploaded <= first.files_read
    assert first.bytes_uploaded > 100_000
    again = rig.export()
    assert again.bytes == first.bytes
    assert again.files_uploaded == 0
    assert again.bytes_read < 50_000, "no data file is read twice"
    rig.send(("k000001", "new"))
    rig.drain()
    third = rig.export()
    assert 0 < third.bytes_uploaded < 100_000
    for report in (first, again, third):
        verified = rig.exports.verify(rig.exports.read(report.export_id), NoProgress())
        assert verified.bytes == report.bytes


def test_a_database_put_back_is_not_taken_for_the_one_whose_checksums_are_known(
    rig: ExportRig,
) -> None:
    rig.send(("a", "1"))
    rig.drain()
    rig.export()
    rig.send(("a", "2"))
    rig.drain()
    before = rig.export()
    rig.restore(rig.exports.ids()[0], replace=True)
    # The same numbers and sizes, other contents: the changelog is replayed into the old files.
    rig.send(("a", "3"))
    rig.drain()
    rig.export()
    assert rig.exported() == {b"a": b"3"}
    assert rig.exported(export=before.export_id) == {b"a": b"2"}


def test_an_export_says_what_it_leaves_out_and_where_each_store_stands(rig: ExportRig) -> None:
    rig.send(("a", "1"), ("b", "2"))
    rig.drain()
    report = rig.export()
    assert report.left_out == {}, "a store in memory has no folder"
    manifest = rig.exports.read()
    assert manifest.deployed.stores["latest"].key_serde == "BYTES"
    assert [(str(at.task), at.name) for at in manifest.stores()] == [
        ("0_0", "copies"),
        ("0_0", "latest"),
    ]
    for at in manifest.stores():
        assert at.store.position() == {("in", 0): 1}
    assert find_exported(manifest, "latest", 0)[0].task == TASK
    with pytest.raises(UnknownStore, match="it has: copies, latest"):
        find_exported(manifest, "nothere")
    with pytest.raises(Misuse, match="no partition 7"):
        find_exported(manifest, "latest", 7)


def test_a_store_of_an_export_is_read_like_a_snapshot(rig: ExportRig) -> None:
    rig.send(("a", "1"), ("b", "2"))
    rig.drain()
    first = rig.export().export_id
    rig.send(("a", "3"))
    rig.drain()
    rig.export()
    settings = {"statestore.export.target": str(rig.target)}
    for export, wanted in ((first, b"1"), ("latest", b"3")):
        with ss.open_snapshot(
            "nowhere", APPLICATION, "latest", export=export, settings=settings
        ) as store:
            assert store.get(b"a") == wanted
            assert [key for key, _ in store.all()] == [b"a", b"b"]
    with pytest.raises(Misuse, match="no export 'x'"):
        ss.open_snapshot("nowhere", APPLICATION, "latest", export="x", settings=settings)


def test_an_export_without_a_partition_names_it_to_whoever_would_read_all(rig: ExportRig) -> None:
    rig.send(("a", "1"))
    rig.drain()
    layout, known = rig.tasks.layout, rig.tasks.known()
    wide = describe_deployment(rig.tasks.topology, known.processing_guarantee, {TopicName("in"): 2})
    publish_deployed(layout, wide)
    rig.export()
    settings = {"statestore.export.target": str(rig.target)}

    def opened(partition: int | None) -> Any:
        return ss.open_snapshot(
            "nowhere",
            APPLICATION,
            "latest",
            partition=partition,
            export="latest",
            settings=settings,
        )

    for partition in (None, 1):
        with pytest.raises(ExportDamaged, match=r"no files of stream task 0_1 in export"):
            opened(partition)
    with opened(0) as store:
        assert store.get(b"a") == b"1"


def test_stores_a_crash_left_at_different_commits_are_not_exported_before_a_run(
    rig: ExportRig,
) -> None:
    rig.send(("a", "1"))
    rig.drain()
    task = rig.tasks.start()
    rig.send(("a", "2"))
    while task.step(0):
        pass
    rig.tasks.clock.advance(1000)
    task.step_commit()
    opened = task._stores.opened["latest"]
    assert isinstance(task._stores, TaskStores)
    opened._staged.make_durable()  # type: ignore[attr-defined]  # one flushes, the other does not
    rig.tasks.crash()
    with pytest.raises(Unavailable, match="stores of different commits"):
        rig.export()
    assert rig.exports.ids() == []
    rig.drain()
    rig.export()
    assert rig.exported() == rig.exported("copies") == {b"a": b"2"}


def test_stores_a_crash_left_alike_are_exported_where_a_broker_says_so(rig: ExportRig) -> None:
    rig.set_clock()  # What died is as old as its files.
    rig.send(("a", "1"))
    rig.drain()
    rig.tasks.start()
    rig.tasks.crash()
    with pytest.raises(Unavailable, match="left by a crash"):
        rig.export_without_brokers()
    rig.export()
    assert rig.exported() == {b"a": b"1"}


def test_an_unreadable_store_is_said_to_be_in_no_export(rig: ExportRig) -> None:
    rig.send(("a", "1"))
    rig.drain()
    drop(rig.tasks.store_dir("latest"), "offsets")
    with pytest.raises(TaskCorrupted, match="'latest' of task 0_0 is in no export"):
        rig.export()
    assert rig.exports.ids() == []


def test_before_anything_was_deployed_there_is_nothing_to_export(rig: ExportRig) -> None:
    rig.tasks.layout.topology_file.unlink()
    with pytest.raises(Misuse, match="nothing was deployed here"):
        rig.export()
    rig.deploy()
    with pytest.raises(Misuse, match="no store on disk to export"):
        rig.export()
    assert rig.files() == {}


# Damage.


@pytest.mark.parametrize("how", ["changed", "gone"])
def test_a_damaged_file_is_named(rig: ExportRig, how: str) -> None:
    rig.send(("a", "1"))
    rig.drain()
    rig.export()
    manifest = rig.exports.read()
    file = find_exported(manifest, "latest")[0].store.files[0]
    path = rig.target / rig.exports.content(file.sha256)
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(b"\0" + path.read_bytes()[1:])
    with pytest.raises(ExportDamaged, match=f"file {file.name} of store '\\w+' of task 0_0"):
        rig.exports.verify(manifest, NoProgress())
    before = list(rig.tasks.layout.application_dir.rglob("*.sst"))
    with pytest.raises(ExportDamaged, match="exports verify` of this export sets it aside"):
        rig.restore(replace=True, stores=["latest"])
    assert list(rig.tasks.layout.application_dir.rglob("*.sst")) == before, "nothing was set aside"


def test_opening_what_was_exported_shows_what_checksums_do_not(rig: ExportRig) -> None:
    rig.send(("a", "1"))
    rig.drain()
    rig.export()
    manifest = rig.exports.read()
    assert rig.exports.verify(manifest, NoProgress(), RocksDatabases().offsets_of).stores == 2
    (task,) = manifest.tasks
    store = task.stores["latest"]
    other = msgspec.structs.replace(store.offsets, position=[("in", 0, 7)])
    stores = task.stores | {"latest": msgspec.structs.replace(store, offsets=other)}
    lie = msgspec.structs.replace(manifest, tasks=[msgspec.structs.replace(task, stores=stores)])
    with pytest.raises(ExportDamaged, match="'latest' of task 0_0 stands at"):
        rig.exports.verify(lie, NoProgress(), RocksDatabases().offsets_of)
    files = [file for file in store.files if not file.name.startswith("MANIFEST")]
    stores = task.stores | {"latest": msgspec.structs.replace(store, files=files)}
    torn = msgspec.structs.replace(manifest, tasks=[msgspec.structs.replace(task, stores=stores)])
    with pytest.raises(ExportDamaged, match="does not open"):
        rig.exports.verify(torn, NoProgress(), RocksDatabases().offsets_of)


def test_a_manifest_of_another_kind_or_of_a_newer_version_is_refused(rig: ExportRig) -> None:
    rig.send(("a", "1"))
    rig.drain()
    export_id = rig.export().export_id
    path = rig.target / APPLICATION / "exports" / f"{export_id}.json"
    manifest = rig.exports.read()
    path.write_bytes(encode_manifest(msgspec.structs.replace(manifest, version=2)))
    with pytest.raises(FormatTooNew, match="upgrade statestore"):
        rig.exports.read()
    path.write_bytes(b"{")
    with pytest.raises(ExportDamaged, match="not readable"):
        rig.exports.read()
    path.write_bytes(encode_manifest(manifest).replace(b'"CURRENT"', b'"../CURRENT"'))
    with pytest.raises(ExportDamaged, match="files"):
        rig.exports.read()


# Prune.


def exported(rig: ExportRig, number: int) -> str:
    rig.send(("a", str(number)), (f"k{number}", "x" * 100))
    rig.drain()
    rig.tasks.clock.advance(3_600_000)
    return rig.export().export_id


def test_prune_keeps_the_newest_and_all_young_enough_and_every_file_they_need(
    rig: ExportRig,
) -> None:
    ids = [exported(rig, number) for number in range(5)]
    pruned = rig.exports.prune(Retention(1, keep_for_ms=2 * 3_600_000))
    assert (pruned.kept, pruned.removed) == (ids[3:], ids[:3])
    assert rig.exports.ids() == ids[3:]
    for export_id in ids[3:]:
        rig.exports.verify(rig.exports.read(export_id), NoProgress())
    wanted = {s for export_id in ids[3:] for s in rig.exports.read(export_id).files()}
    assert set(rig.exports.contents()) == wanted
    assert rig.exports.prune(Retention(1)).kept == ids[4:]
    with pytest.raises(Misuse, match="keep at least one"):
        rig.exports.prune(Retention(0))


def test_prune_and_uploads_keep_out_of_each_others_way(rig: ExportRig) -> None:
    exported(rig, 1)
    with rig.exports.uploading(), pytest.raises(Locked, match="an export is being uploaded"):
        rig.exports.prune(Retention(1))
    with rig.exports._leases.removing():
        with pytest.raises(Locked, match="being pruned"):
            rig.export()
        with pytest.raises(Locked, match="another process removes files"):
            rig.exports.prune(Retention(1))
    assert not [name for name in rig.files() if "/files/" not in name and "/exports/" not in name]


def test_an_export_whose_lease_ran_out_is_not_published(rig: ExportRig) -> None:
    exported(rig, 1)
    manifest = rig.exports.read()
    with rig.exports.uploading() as (export_id, upload):
        rig.tasks.clock.advance(LEASE_MS)
        rig.exports.prune(Retention(1))
        with pytest.raises(Unavailable, match="export again"):
            rig.exports.publish(msgspec.structs.replace(manifest, export_id=export_id), upload)
    assert rig.exports.ids() == [manifest.export_id]


@pytest.mark.parametrize("point", POINTS)
def test_a_death_leaves_the_last_export_whole_and_garbage_that_prune_removes(
    rig: ExportRig, point: str
) -> None:
    first = exported(rig, 1)
    rig.send(("b", "2"))
    rig.drain()

    def die(reached: CrashPoint) -> None:
        if reached == point:
            raise Died(point)

    faults.on_reach(die)
    try:
        with pytest.raises(Died):
            rig.export()
    finally:
        faults.on_reach(None)
    rig.exports.verify(rig.exports.read(first), NoProgress())
    rig.tasks.clock.advance(LEASE_MS)
    rig.exports.prune(Retention(5))
    named = {sha for export_id in rig.exports.ids() for sha in rig.exports.read(export_id).files()}
    assert set(rig.exports.contents()) == named
    rig.export()
    assert rig.exported() == {b"a": b"1", b"k1": b"x" * 100, b"b": b"2"}


@pytest.mark.parametrize("visit", range(1, 6))
def test_a_prune_that_dies_anywhere_is_finished_by_the_next(rig: ExportRig, visit: int) -> None:
    ids = [exported(rig, number) for number in range(4)]
    faults.on_reach(dying_at(visit))
    try:
        with pytest.raises(Died):
            rig.exports.prune(Retention(1))
    finally:
        faults.on_reach(None)
    rig.exports.verify(rig.exports.read(ids[3]), NoProgress())
    rig.tasks.clock.advance(LEASE_MS)
    assert rig.exports.prune(Retention(1)).kept == ids[3:]
    assert set(rig.exports.contents()) == set(rig.exports.read().files())
    assert set(rig.files()) == {
        *(rig.exports.content(sha256) for sha256 in rig.exports.contents()),
        f"{APPLICATION}/exports/{ids[3]}.json",
    }


def tear(rig: ExportRig, export_id: str) -> None:
    path = rig.target / APPLICATION / "exports" / f"{export_id}.json"
    path.write_bytes(path.read_bytes()[:100])


def test_a_torn_manifest_is_listed_as_damaged_and_keeps_nothing_from_being_pruned(
    rig: ExportRig,
) -> None:
    ids = []
    for number in range(6):
        rig.send((f"k{number}", "1"))
        rig.drain()
        ids.append(rig.export().export_id)
        rig.tasks.clock.advance(1000)
    tear(rig, ids[1])
    tear(rig, ids[4])
    said = {one.export_id: one.problem for one in rig.exports.listed()}
    assert list(said) == ids
    assert [export_id for export_id, why in said.items() if why] == [ids[1], ids[4]]
    assert "not readable" in str(said[ids[1]])
    files = rig.exports.contents()
    pruned = rig.exports.prune(Retention(2))
    assert pruned.kept == [ids[3], ids[5]], "two that can be restored"
    assert pruned.removed == ids[:3], "and a damaged one that is older"
    assert pruned.damaged == [ids[4]]
    assert pruned.files_removed == 0, "nobody knows which files the damaged one names"
    assert rig.exports.contents() == files
    rig.exports.verify(rig.exports.read(ids[5]), NoProgress())
    rig.send(("more", "1"))
    rig.drain()
    newest = [rig.export().export_id for _ in range(2)]
    pruned = rig.exports.prune(Retention(2))
    assert (pruned.kept, pruned.damaged) == (newest, [])
    assert pruned.removed == ids[3:]
    assert pruned.files_removed > 0


def test_an_export_that_lacks_files_is_listed_as_such(rig: ExportRig) -> None:
    rig.send(("a", "1"))
    rig.drain()
    rig.export()
    lost = min(rig.exports.contents())
    rig.exports.target.remove([rig.exports.content(lost)])
    (one,) = rig.exports.listed()
    assert one.problem == "1 of its files is not at the target"


def test_a_manifest_of_a_newer_version_is_listed_and_stops_a_prune(rig: ExportRig) -> None:
    rig.send(("a", "1"))
    rig.drain()
    export_id = rig.export().export_id
    path = rig.target / APPLICATION / "exports" / f"{export_id}.json"
    path.write_bytes(encode_manifest(msgspec.structs.replace(rig.exports.read(), version=2)))
    (one,) = rig.exports.listed()
    assert "upgrade statestore" in str(one.problem)
    with pytest.raises(FormatTooNew):
        rig.exports.prune(Retention(1))


def test_a_file_named_like_an_export_of_no_day_is_none(rig: ExportRig) -> None:
    rig.send(("a", "1"))
    rig.drain()
    export_id = rig.export().export_id
    path = rig.target / APPLICATION / "exports" / "99999999T999999999Z-0123abcd.json"
    path.write_bytes(b"{}")
    assert rig.exports.ids() == [export_id]
    rig.export()
