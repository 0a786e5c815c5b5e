"""Every kind of document of a state dir and of a target, with what nobody means in it.

A document that fits its type, with values as extreme as that allows, and one that was right and
was mangled: who reads it, and who works with what it says or shows it, gives an answer or an error
of the library's own. A new kind of document fails a test here until somebody says who reads it.

Shows I32.
"""

import ast
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from statestore.cli import cli
from statestore.errors import HostFailure
from statestore.layout import folders, global_versions, linked_files, owners, snapshots, takeover
from statestore.layout.activity_files import Activities, ActivityNote, NoProgress, together
from statestore.layout.audits import AuditRecord, Audits
from statestore.layout.commit_feeds import FeedReader
from statestore.layout.documents import Sha256
from statestore.layout.files import read_checkpoint
from statestore.layout.folders import StateLayout
from statestore.layout.global_versions import GlobalVersions
from statestore.layout.owners import Owner
from statestore.layout.snapshots import TaskSnapshots
from statestore.model.ids import TaskId
from statestore.operations import clone_record, deployed, move_record, reset
from statestore.operations.exports import create, leases
from statestore.operations.exports.catalog import Exports
from statestore.operations.exports.leases import Leases
from statestore.operations.exports.manifest import ExportManifest
from statestore.operations.relocation import disk
from statestore.operations.repartition.apply import read_begun
from statestore.operations.repartition.partition_plan import RepartitionPlan
from statestore.operations.unfinished import repartition_file
from statestore.runtime import Runtime
from statestore.targets import FsspecTarget
from statestore.tasks import history, input_checkpoint, progress_file
from statestore.tasks.input_checkpoint import InputCheckpoint
from statestore.testing.memory_broker import MemoryBroker
from statestore.ui import polling
from statestore.ui.pages import Pages
from statestore.ui.polling import LastPoll, details_of, look_at
from tests.builders import ROOT, ManualClock
from tests.mangling import encoded, extreme, foreseen, mangled
from tests.relocation_rig import in_memory_folder
from tests.ui_rig import branching, told_of

APPLICATION = "shop"
EXPORT = "20261122T020000000Z-0123abcd"
SNAPSHOT = "1700000000000-2-0123abcd"
SEED = int(os.environ.get("BAD_INPUT_SEED", "31"))
CLOCK = ManualClock()


@dataclass
class Place:
    """A state dir and a target, with whatever a test put there."""

    root: Path
    lines: bool = False
    layout: StateLayout = field(init=False)

    def __post_init__(self) -> None:
        self.layout = StateLayout(self.root / "state", APPLICATION)

    @property
    def application(self) -> Path:
        return self.layout.application_dir

    @property
    def task(self) -> Path:
        return self.layout.task_dir(TaskId(0, 0))

    @property
    def store(self) -> Path:
        return self.layout.store_dir(TaskId(0, 0), "names")

    @property
    def exports(self) -> Exports:
        return Exports(FsspecTarget(str(self.root / "target")), APPLICATION, CLOCK)

    def runtime(self) -> Runtime:
        return Runtime(
            {
                "application.id": APPLICATION,
                "bootstrap.servers": "memory:9092",
                "state.dir": str(self.layout.state_dir),
                "statestore.export.target": str(self.root / "target"),
                "statestore.lock.wait.ms": 0,
            },
            brokers=MemoryBroker().clients,
        )

    def status(self) -> None:
        environment = {
            "STATESTORE_APPLICATION_ID": APPLICATION,
            "STATESTORE_STATE_DIR": str(self.layout.state_dir),
            "STATESTORE_EXPORT_TARGET": str(self.root / "target"),
        }
        for flags in ([], ["--json"]):
            done = CliRunner().invoke(cli, ["status", *flags], env=environment)
            if done.exception is not None and not isinstance(done.exception, SystemExit):
                raise done.exception

    def page(self) -> None:
        """Everything that the page shows of the application."""
        with self.runtime() as runtime:
            seen = LastPoll(look_at(runtime), details_of(runtime))

        class Lookout:
            """Has looked already."""

            def seen(self, names: list[str], **_how: object) -> dict[str, LastPoll]:
                return dict.fromkeys(names, seen)

        pages = Pages(Lookout())  # type: ignore[arg-type]  # of a Poller, a page asks no more
        for span in ("", "1d"):
            assert pages.application("", APPLICATION, span=span)


@dataclass(frozen=True)
class Door:
    """Where the document of a kind lies, and who reads it there."""

    kind: Any
    at: Callable[[Place], Path]
    asks: tuple[Callable[[Place], object], ...]


def _relocations(place: Place) -> None:
    found = disk.read_journal(place.layout)
    if found is not None:
        found.tasks()
        for entry in found.entries:
            disk.apply_entries(place.layout, entry.task, found.entries)


def _deployed(place: Place) -> None:
    found = deployed.read_deployed(place.layout)
    found.tasks()
    for store in found.stores:
        found.missing(store, [], None), found.missing(store, [], 2), found.kind(store)
        found.stores[store].terms, found.stores[store].writers()
        found.log_of(APPLICATION, store)
    for part in found.sub_topologies:
        part.topics(APPLICATION)
    deployed.continuing(found, found.stores)


def _owned(place: Place) -> None:
    for folder in (place.application, place.task):
        found = owners.read_owner(folder)
        if found is not None:
            found.describe(), found.is_here(), found.provably_dead()
            owners.left_for_good(folder, found)
    owners.claim(place.task, what="task 0_0", wait_ms=0, clock=CLOCK).release()


def _inputs(place: Place) -> None:
    checkpoint = InputCheckpoint(place.task, CLOCK)
    found = checkpoint.read()
    checkpoint.is_old()
    checkpoint.committed({tp: offset + 1 for tp, offset in found.items()})
    checkpoint.write()
    assert not found or InputCheckpoint(place.task, CLOCK).read() == {
        tp: offset + 1 for tp, offset in found.items()
    }
    input_checkpoint.read_all([place.task])
    input_checkpoint.carry([place.task], lambda _: place.application / "0_1", CLOCK)


def _linked(place: Place) -> None:
    found = linked_files.checked(place.store)
    if found is not None:
        linked_files.hold(found, place.store, CLOCK.now_ms())
        linked_files.hold_anew(place.store, CLOCK.now_ms())
        for file in linked_files.left(place.store, found):
            linked_files.copy_in(place.store, found, file)
        linked_files.release(place.store, found, CLOCK.now_ms())


def _quarantined(place: Place) -> None:
    for folder, record in place.layout.quarantined():
        place.layout.mark_restored(folder, record, CLOCK.now_ms())
    place.layout.sweep_quarantine(1, 2**53)


def _activities(place: Place) -> None:
    activities = Activities(place.application, CLOCK)
    for one in activities.seen():
        one.note.text()
    for all_of_a_kind in together(activities.seen()):
        all_of_a_kind.text()
    activities.sweep("restore")


def _progress(place: Place) -> None:
    found = progress_file.read_progress(place.task)
    found.sums.after("run-1", progress_file.Sums(1, {"x": 2}))
    found.sums.settled(None)
    progress_file.ProgressFile(place.task, CLOCK, slots=1, serving="run").begin(None)


def _samples(place: Place) -> None:
    for sample in history.read_history(place.task):
        sample.rates()


def _snapshots(place: Place) -> None:
    found = TaskSnapshots(place.task)
    for name in found.requests():
        found.request(name)
    manifest = found.manifest(SNAPSHOT)
    if manifest is not None:
        for offsets in manifest.stores.values():
            offsets.offsets(), offsets.positions()
    found.expires_ms(SNAPSHOT)
    found.sweep(CLOCK.now_ms())


def _feed(place: Place) -> None:
    reader = FeedReader(TaskSnapshots(place.task).path(SNAPSHOT))
    while reader.next() is not None:
        pass
    reader.end()


def _globals(place: Place) -> None:
    versions = GlobalVersions(place.layout)
    versions.current()


def _left_behind(place: Place) -> None:
    (place.task / "rocksdb").mkdir(exist_ok=True)
    takeover.sweep_left_behind(place.layout, TaskId(0, 0), 1, CLOCK)


def _audits(place: Place) -> None:
    for record in Audits(place.layout).newest():
        record.placement_not_checked()
        for store in record.stores:
            store.placement_text()
            [str(writer) for writer in store.writers]


def _clone(place: Place) -> None:
    found = clone_record.read_record(place.layout)
    if found is not None:
        clone_record.own_topics(place.layout, found)
    with place.runtime() as runtime:
        clone_record.as_deployed(runtime, branching())


def _reset(place: Place) -> None:
    with place.runtime() as runtime:
        reset._Reset(runtime).plan(reset.ResetTo())


def _repartitioned(place: Place) -> None:
    found = read_begun(place.layout)
    if found is not None:
        found.tasks(), found.anything
        [found.after(part.sub_topology) for part in found.parts]


def _exported(place: Place) -> None:
    exports = place.exports
    for _ in exports.listed():
        pass
    manifest = exports.read()
    manifest.size_bytes, manifest.deployed.tasks()
    for at in manifest.stores():
        at.store.position(), at.store.size_bytes
    if manifest.cut is not None:
        manifest.cut.bounds(), manifest.cut.group_offsets()
    exports.verify(manifest, NoProgress())


def _leases(place: Place) -> None:
    found = Leases(FsspecTarget(str(place.root / "target")), APPLICATION, CLOCK)
    found.linked(), found.left_over()
    found.check_none_removes()
    with found.removing():
        pass


def _checksums(place: Place) -> None:
    known = create._Checksums(place.task)
    known.get(None)
    known.keep({})


LISTED = (Place.status, Place.page)
TARGET = "target/shop"
DOORS = {
    "ActivityNote": Door(
        ActivityNote, lambda at: at.application / "works" / "a.json", (_activities, *LISTED)
    ),
    "AuditRecord": Door(
        AuditRecord,
        lambda at: at.application / "audits" / "1700000000000.json",
        (_audits, *LISTED),
    ),
    "CloneRecord": Door(
        clone_record.CloneRecord, lambda at: at.application / "clone.json", (_clone, Place.status)
    ),
    "Deployed": Door(deployed.Deployed, lambda at: at.layout.topology_file, (_deployed, *LISTED)),
    "DrillRun": Door(
        polling.DrillRun,
        lambda at: at.layout.state_dir / "drill-reports" / "a" / "report.json",
        (Place.page,),
    ),
    "ExportManifest": Door(
        ExportManifest,
        lambda at: at.root / TARGET / "exports" / f"{EXPORT}.json",
        (_exported, *LISTED),
    ),
    "ExportOrigin": Door(
        folders.ExportOrigin,
        lambda at: at.store / ".from-export.json",
        (lambda at: folders.read_export_origin(at.store),),
    ),
    "GlobalVersion": Door(
        global_versions.GlobalVersion,
        lambda at: at.application / "global" / "1" / ".version.json",
        (_globals, *LISTED),
    ),
    "LinkLease": Door(
        linked_files.LinkLease, lambda at: at.root / TARGET / "links" / "a.json", (_leases,)
    ),
    "Linked": Door(
        linked_files.Linked, lambda at: at.store / ".linked.json", (_linked, Place.page)
    ),
    "Manifest": Door(
        snapshots.Manifest,
        lambda at: TaskSnapshots(at.task).path(SNAPSHOT) / "snapshot.json",
        (_snapshots,),
    ),
    "MoveRecord": Door(
        move_record.MoveRecord,
        lambda at: at.application / "move.json",
        (lambda at: move_record.read_move(at.layout), *LISTED),
    ),
    "Owner": Door(Owner, lambda at: at.task / "owner.json", (_owned, *LISTED)),
    "Owner of the application": Door(
        Owner, lambda at: at.application / "owner.json", (_owned, *LISTED)
    ),
    "Quarantined": Door(
        folders.Quarantined,
        lambda at: at.application / "quarantine" / "a" / ".quarantined.json",
        (_quarantined, *LISTED),
    ),
    "RelocationJournal": Door(
        disk.RelocationJournal, lambda at: disk.journal_file(at.layout), (_relocations, *LISTED)
    ),
    "RepartitionPlan": Door(
        RepartitionPlan, lambda at: repartition_file(at.layout), (_repartitioned, *LISTED)
    ),
    "Request": Door(
        snapshots.Request, lambda at: at.task / f"snapshot-request-{SNAPSHOT}", (_snapshots,)
    ),
    "TakenOver": Door(
        takeover.TakenOver,
        lambda at: at.task / "rocksdb.2" / "taken-over.json",
        (_left_behind, *LISTED),
    ),
    "TaskProgress": Door(
        progress_file.TaskProgress, lambda at: at.task / "progress.json", (_progress, *LISTED)
    ),
    "WorkSample": Door(
        history.WorkSample, lambda at: at.task / "history.jsonl", (_samples, *LISTED)
    ),
    "_Journal": Door(reset._Journal, lambda at: at.application / "reset.json", (_reset, *LISTED)),
    "_Lease": Door(leases._Lease, lambda at: at.root / TARGET / "prunings" / "a.json", (_leases,)),
    "_SnapshotLease": Door(
        snapshots._SnapshotLease,
        lambda at: TaskSnapshots(at.task).path(SNAPSHOT) / "lease.json",
        (_snapshots,),
    ),
    "_Written": Door(
        input_checkpoint._Written, lambda at: at.task / "inputs.json", (_inputs, *LISTED)
    ),
    "list[tuple[_Known, Sha256]]": Door(
        list[tuple[create._Known, Sha256]],
        lambda at: at.task / "exported.json",
        (_checksums,),
    ),
}


def kinds_that_are_read() -> set[str]:
    """The types that the library has documents decoded into."""
    found = set()
    for path in (ROOT / "statestore").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {
                "documents.read",
                "documents.decode",
                "documents.read_lines",
            }:
                found.add(ast.unparse(node.args[1]))
    return found


def test_every_kind_of_document_has_a_door_here() -> None:
    assert kinds_that_are_read() == {name for name in DOORS if " of " not in name}


PART = {"ordinal": 0, "source_topics": []}


@pytest.mark.parametrize(
    ("path", "said", "why"),
    [
        ("topology.json", {"sub_topologies": [PART | {"patterns": ["["]}]}, "no pattern"),
        ("topology.json", {"sub_topologies": [PART | {"tasks": 60_000}] * 2}, "at most 100000"),
        ("0_0/owner.json", {"pid": 10**30}, "<= 9223372036854775807|out of range"),
        ("0_0/inputs.json", {"inputs": [["in", 0, 2**63]]}, "<= 9223372036854775807|out of range"),
    ],
)
def test_what_no_version_wrote_is_refused_by_name(
    tmp_path: Path, path: str, said: dict[str, object], why: str
) -> None:
    place = Place(tmp_path)
    file = place.application / path
    file.parent.mkdir(parents=True)
    owner = {"epoch": 1, "host": "h", "boot_id": "b", "pid": 1, "since_ms": 1, "started_ticks": 1}
    file.write_bytes(encoded({"committed_ms": 1, **owner, **said}))
    read = {"topology.json": _deployed, "0_0/owner.json": _owned, "0_0/inputs.json": _inputs}
    with pytest.raises(HostFailure, match=why) as told:
        read[path](place)
    assert str(file) in str(told.value)


@pytest.mark.parametrize("line", ["in 0 9223372036854775808", "in -1 5", "in 2147483648 5"])
def test_an_offset_that_no_broker_has_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / ".checkpoint").write_text(f"0\n1\n{line}\n")
    with pytest.raises(HostFailure, match="no broker has offset"):
        read_checkpoint(tmp_path)


@pytest.fixture(scope="module")
def base() -> Iterator[Path]:
    """An application as runs, audits and drills leave it."""
    with in_memory_folder() as folder:
        told_of(folder / "state", APPLICATION)
        yield folder


def tried(base: Path, door: Door, number: int, data: bytes, case: str) -> None:
    """Put a document there, and ask all who read it; those who show everything, now and then."""
    root = base.with_name(f"{base.name}-{os.getpid()}")
    asks = [ask for ask in door.asks if ask not in LISTED or number % 3 == 0]
    try:
        shutil.copytree(base, root, symlinks=True)
        place = Place(root)
        path = door.at(place)
        for ask in asks:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            with foreseen(f"{case}, {path.name}: {data[:300]!r}"):
                ask(place)
    finally:
        shutil.rmtree(root, ignore_errors=True)


@pytest.mark.parametrize("count", [2, pytest.param(40, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", DOORS)
def test_a_document_with_extreme_values_is_answered_or_refused(
    base: Path, name: str, count: int
) -> None:
    door = DOORS[name]
    for number in range(count):
        chance = random.Random(f"{SEED} {name} {number}")
        data = encoded(extreme(chance, door.kind))
        tried(base, door, number, data, f"seed {SEED}, number {number}")


@pytest.mark.parametrize("count", [3, pytest.param(60, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", DOORS)
def test_a_mangled_document_is_answered_or_refused(base: Path, name: str, count: int) -> None:
    door = DOORS[name]
    for number in range(count):
        chance = random.Random(f"{SEED} {name} {number} mangled")
        data = mangled(chance, encoded(extreme(chance, door.kind)))
        tried(base, door, number, data, f"seed {SEED}, number {number}")
