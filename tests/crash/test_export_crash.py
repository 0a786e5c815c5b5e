"""Exports of a real run on a real broker: while it commits, and with a SIGKILL at every point."""

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from statestore.faults import VARIABLE, CrashPoint
from statestore.layout.activity_files import NoProgress
from statestore.operations.exports.catalog import Exports, FetchedStore, Retention
from statestore.operations.exports.leases import LEASE_MS
from statestore.runtime import SystemClock
from statestore.runtime.databases import RocksDatabases
from statestore.targets import FsspecTarget
from statestore.testing.local_kafka import LocalKafka
from tests import processes
from tests.builders import DEADLINE_S, ROOT, ManualClock, eventually
from tests.crash.kill_harness import PARTITIONS, STATESTORE, Rig
from tests.crash.test_snapshot_crash import changelog, serving

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
POINTS = {
    verb: [point for point in CrashPoint if point.startswith(prefix)]
    for verb, prefix in {"export": "export.", "restore": "import.", "links": "links."}.items()
}
CREATE = [point for point in POINTS["export"] if "prune" not in point and "removed" not in point]
PRUNE = [point for point in POINTS["export"] if point not in CREATE]


class Ended(NamedTuple):
    code: int
    said: dict[str, Any]
    err: str


@pytest.fixture
def rig(kafka: LocalKafka, tmp_path: Path, request: pytest.FixtureRequest) -> Rig:
    name = f"x{abs(hash(request.node.name))}"
    rig = Rig(kafka, tmp_path / "state", application_id=name, topic_prefix=name)
    rig.create_topics()
    rig.produce(1700)
    rig.run()
    return rig


def called(rig: Rig, *words: str, crash_at: str = "") -> Ended:
    """`statestore exports …` in a process of its own."""
    done = processes.run(
        [
            str(STATESTORE),
            "exports",
            *words,
            f"--application-id={rig.application_id}",
            f"--state-dir={rig.state_dir}",
            f"--bootstrap-servers={rig.kafka.bootstrap_servers}",
            f"--target={rig.state_dir.parent / 'exports'}",
            "--json",
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT), VARIABLE: crash_at},
        timeout=100,
    )
    said = json.loads(done.stdout) if done.stdout.strip() else {}
    return Ended(done.returncode, said, done.stderr)


def made(rig: Rig, *words: str) -> dict[str, Any]:
    """What a call said that must succeed."""
    ended = called(rig, *words)
    assert ended.code == 0, ended.err[-4000:]
    return ended.said


def exports_of(rig: Rig, *, later_ms: int = 0) -> Exports:
    clock = ManualClock(SystemClock().now_ms() + later_ms)
    target = FsspecTarget(str(rig.state_dir.parent / "exports"))
    return Exports(target, rig.application_id, clock)


def killed(rig: Rig, point: str, *words: str) -> None:
    died = called(rig, *words, crash_at=point)
    assert died.code == -signal.SIGKILL, died.err[-4000:]


def test_twenty_exports_of_a_run_that_commits_are_each_the_changelog_at_their_offsets(
    rig: Rig, tmp_path: Path
) -> None:
    owner = serving(rig, tmp_path)
    try:
        start = rig.committed()
        for number in range(20):
            rig.produce(300)
            if number == 0:
                eventually(lambda: rig.committed() != start, "it commits")
            made(rig, "create")
        owner.terminate()
        assert owner.wait(DEADLINE_S) == 0
    finally:
        owner.kill()
        owner.wait()
    log, exports = changelog(rig), exports_of(rig)
    assert len(exports.ids()) == 20
    commits = set()
    for export_id in exports.ids():
        manifest = exports.read(export_id)
        stores = list(manifest.stores())
        assert [at.task.partition for at in stores] == list(range(PARTITIONS))
        commits |= {(task.stream_task, task.commit_number) for task in manifest.tasks}
        for at in stores:
            ((_, partition, end),) = at.store.offsets.changelog
            with FetchedStore(exports, at) as fetched:
                engine = RocksDatabases().read(fetched.store_dir("counts"))
                rows = dict(engine.table("data").scan())
                engine.close()
            assert rows == {key: value for offset, key, value in log[partition] if offset < end}
    assert len(commits) > 20, f"it hardly committed between the exports: {commits}"
    rig.run()
    assert rig.findings() == []


@pytest.mark.parametrize("point", CREATE)
def test_an_export_killed_leaves_the_last_one_whole_and_the_next_succeeds(
    rig: Rig, point: str
) -> None:
    first = made(rig, "create")["export_id"]
    rig.produce(500)
    rig.run()
    killed(rig, point, "create")
    assert made(rig, "verify", first)["export_id"] == first
    later = exports_of(rig, later_ms=LEASE_MS)
    later.prune(Retention(9))
    named = {sha for export_id in later.ids() for sha in later.read(export_id).files()}
    assert set(later.contents()) == named, "what the dead left is gone"
    last = made(rig, "create")
    assert made(rig, "verify")["export_id"] == last["export_id"]
    rig.run()
    assert rig.findings() == []


@pytest.mark.parametrize("point", PRUNE)
def test_a_prune_killed_is_finished_by_the_next(rig: Rig, point: str) -> None:
    for _ in range(3):
        rig.produce(100)
        rig.run()
        made(rig, "create")
    killed(rig, point, "prune", "--keep=1")
    later = exports_of(rig, later_ms=LEASE_MS)
    last = later.ids()[-1]
    later.verify(later.read(last), NoProgress())
    assert later.prune(Retention(1)).kept == [last]
    assert set(later.contents()) == set(later.read(last).files())


@pytest.mark.parametrize("point", POINTS["restore"])
def test_a_restore_killed_over_a_lost_volume_is_finished_by_the_next(rig: Rig, point: str) -> None:
    made(rig, "create")
    rig.produce(500)
    rig.run()
    shutil.rmtree(rig.state_dir)
    killed(rig, point, "restore")
    report = made(rig, "restore")
    assert len(report["placed"]) + len(report["kept"]) == PARTITIONS
    summary = rig.run()
    assert 0 < summary["restored_records"] <= 500, "the tail, not the whole changelog"
    assert rig.findings() == []
    assert not list(rig.state_dir.rglob(".import-*"))


@pytest.mark.parametrize("point", POINTS["links"])
def test_stores_on_the_files_of_an_export_killed_anywhere_go_on(rig: Rig, point: str) -> None:
    made(rig, "create")
    rig.produce(500)
    rig.run()
    shutil.rmtree(rig.state_dir)
    if point == CrashPoint.LINKS_LEASED:
        killed(rig, point, "restore", "--mounted")
    made(rig, "restore", "--mounted")
    assert len(linked(rig)) == 2 * PARTITIONS
    if point != CrashPoint.LINKS_LEASED:
        rig.produce(500)
        assert rig.run_until_crash(point).died
    rig.produce(500)
    rig.run()
    assert rig.findings() == []
    for _ in range(len(linked(rig))):
        rig.run()
    assert linked(rig) == []
    exports = exports_of(rig)
    assert exports.verify(exports.read(), NoProgress()).stores == PARTITIONS
    shutil.rmtree(rig.state_dir.parent / "exports")
    rig.produce(100)
    rig.run()
    assert rig.findings() == []


@pytest.mark.parametrize(
    ("how", "point"),
    [(how, point) for how in ("mounted", "copied") for point in POINTS["restore"]]
    + [("mounted", point) for point in POINTS["links"]],
)
def test_a_start_killed_while_it_restores_a_lost_volume_is_finished_by_the_next(
    rig: Rig, how: str, point: str
) -> None:
    made(rig, "create")
    rig.produce(500)
    rig.run()
    shutil.rmtree(rig.state_dir)
    rig.settings = {
        "statestore.export.target": str(rig.state_dir.parent / "exports"),
        "statestore.export.restore": how,
    }
    rig.produce(500)
    died = rig.run_until_crash(point)
    assert died.died
    summary = rig.run()
    assert summary["restored_records"] <= 1000, "the tail, not the whole changelog"
    assert rig.findings() == []
    assert not list(rig.state_dir.rglob(".import-*"))
    exports = exports_of(rig)
    assert exports.verify(exports.read(), NoProgress()).stores == PARTITIONS


def linked(rig: Rig) -> list[Path]:
    return [path for path in rig.state_dir.rglob("*.sst") if path.is_symlink()]


def test_a_store_in_quarantine_is_replaced_from_the_export(rig: Rig) -> None:
    made(rig, "create")
    rig.produce(500)
    rig.run()
    report = made(rig, "restore", "--store=counts", "--partition=1", "--replace")
    assert [one["stream_task"] for one in report["placed"]] == ["1_1"]
    assert len(report["set_aside"]) == 1
    rig.run()
    assert rig.findings() == []
