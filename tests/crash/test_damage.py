"""Damage and drills: a byte flips under a stored row; the product kills runs of its own."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from rocksdict import AccessType, Options, Rdict

from statestore.errors import DrillFailed
from statestore.faults import CrashPoint
from statestore.layout.folders import StateLayout
from statestore.operations.exports.create import create_export_for_clones
from statestore.operations.pipelines import load_pipeline
from statestore.runtime import Runtime
from statestore.settings import Settings
from statestore.testing.drills import cluster as drilling
from statestore.testing.drills.cluster import CloneFrom, drill
from statestore.testing.drills.drill_plan import DrillReport, Outcome
from statestore.testing.local_kafka import LocalKafka
from tests.builders import DEADLINE_S, ROOT
from tests.crash.kill_harness import STATESTORE, Rig
from tests.crash.pipeline import PREFIX_VARIABLE

pytestmark = pytest.mark.kafka


def flip_rows(folder: Path) -> None:
    """One byte in the first block of each file of rows: nobody notices before it is read."""
    names = Rdict.list_cf(str(folder), Options(raw_mode=True))
    families = {name: Options(raw_mode=True) for name in names}
    db = Rdict(str(folder), Options(raw_mode=True), families, AccessType.read_only())
    files = [file["name"] for file in db.live_files() if file["start_key"].startswith(b"user-")]
    db.close()
    assert files
    for name in files:
        path = folder / name.removeprefix("/")
        content = bytearray(path.read_bytes())
        content[20] ^= 1
        path.write_bytes(content)


def reasons(rig: Rig) -> list[str]:
    layout = StateLayout(rig.state_dir, rig.application_id)
    return sorted(record.reason for _, record in layout.quarantined())


def rig_of(kafka: LocalKafka, root: Path, name: str) -> Rig:
    rig = Rig(kafka, root, application_id=name, topic_prefix=name)
    rig.create_topics()
    rig.produce(4000)
    rig.run()
    for partition in range(2):
        flip_rows(rig.state_dir / name / f"1_{partition}" / "rocksdb" / "counts")
    rig.produce(4000)
    return rig


def test_a_run_that_meets_a_flipped_byte_repairs_the_store_and_loses_and_doubles_nothing(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    rig = rig_of(kafka, tmp_path, "flipped")
    summary = rig.run()
    assert summary["caught_up"]
    assert reasons(rig) == ["unreadable", "unreadable"]
    assert rig.findings() == []


def test_a_kill_between_quarantine_and_restore_loses_and_doubles_nothing(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    rig = rig_of(kafka, tmp_path, "renamed")
    assert rig.run_until_crash(f"{CrashPoint.QUARANTINE_RENAMED}:1").died
    assert reasons(rig) == ["unreadable"]
    rig.run()
    assert reasons(rig) == ["unreadable", "unreadable"]
    assert rig.findings() == []


def untouched(rig: Rig) -> tuple[object, ...]:
    """What a real application has: topics with their ends, group, files; and topics of drills."""
    admin = AdminClient({"bootstrap.servers": rig.kafka.bootstrap_servers, "log_level": 0})
    listed = admin.list_topics(timeout=DEADLINE_S).topics
    mine = [name for name in listed if name.startswith((f"{rig.application_id}-", "drill-"))]
    files = {path: path.stat().st_mtime_ns for path in rig.state_dir.rglob("*") if path.is_file()}
    ends = {topic: len(rig.read(topic)) for topic in rig.written()}
    return sorted(mine), ends, rig.committed(), files


def drilled(rig: Rig, folder: Path, points: str) -> DrillReport:
    settings = Settings.from_mapping({"bootstrap.servers": rig.kafka.bootstrap_servers})
    return drill(settings, folder=folder, points=points, moments=0, specials="none", seed=1)


@pytest.mark.thorough
def test_a_drill_is_green_where_runs_survive_and_touches_nothing_but_its_own(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    rig = Rig(kafka, tmp_path / "state", application_id="real", topic_prefix="real")
    rig.create_topics()
    rig.produce(400)
    rig.run()
    before = untouched(rig)
    report = drilled(rig, tmp_path / "drill", "commit.log-done,commit.begin")
    assert report.failure() is None
    for one in report.drills:
        assert one.outcome is Outcome.GREEN
        assert (one.recovery_seconds or 0) > (one.restore_seconds or 0) >= 0
        assert one.restored_records is not None
    assert untouched(rig) == before, "its topics are gone again, and nothing else has changed"
    assert list((tmp_path / "drill").iterdir()) == []


@pytest.mark.slow
def test_a_drill_of_what_doubles_records_is_red_and_keeps_the_evidence(
    kafka: LocalKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unsafe = {**drilling.EAGER, "processing.guarantee": "at_least_once"}
    monkeypatch.setattr(drilling, "EAGER", unsafe)
    rig = Rig(kafka, tmp_path, application_id="unsafe", topic_prefix="unsafe")
    report = drilled(rig, tmp_path / "drill", "commit.store-written")
    (red,) = report.drills
    assert red.outcome is Outcome.RED
    # Which stream task dies decides what is doubled: records passed on, or what is counted.
    assert any("more than once" in one or "is wrong from" in one for one in red.findings)
    assert isinstance(report.failure(), DrillFailed)
    assert red.evidence
    assert list(Path(red.evidence).glob("*.log"))
    assert list(Path(red.evidence, "state").rglob("*.sst"))


@pytest.mark.slow
def test_a_drill_on_clones_is_green_and_leaves_the_application_as_it_was(
    kafka: LocalKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PREFIX_VARIABLE, "cloned")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    rig = Rig(kafka, tmp_path / "state", application_id="cloned", topic_prefix="cloned")
    rig.create_topics()
    rig.produce(2000)
    rig.run()
    settings = Settings.from_mapping(
        {
            "application.id": "cloned",
            "bootstrap.servers": kafka.bootstrap_servers,
            "state.dir": str(rig.state_dir),
            "processing.guarantee": "exactly_once",
            "statestore.export.target": str(tmp_path / "exports"),
        }
    )
    exported = create_export_for_clones(Runtime(settings), load_pipeline(rig.pipeline)).export_id
    rig.produce(6000)
    before = untouched(rig)
    report = drill(
        settings,
        folder=tmp_path / "drill",
        points="commit.log-done,quarantine.renamed,relocate.renamed",
        moments=1,
        specials="none",
        seed=1,
        clone=CloneFrom(rig.pipeline, exported),
    )
    outcomes = {one.name: (one.outcome, one.happened, one.findings) for one in report.drills}
    assert outcomes.pop("relocate.renamed")[0] is Outcome.NOT_DRILLED
    assert {outcome for outcome, *_ in outcomes.values()} == {Outcome.GREEN}, outcomes
    assert untouched(rig) == before
    assert [path.name for path in rig.state_dir.iterdir()] == ["cloned"]


@pytest.mark.slow
def test_every_drill_there_is_is_green_or_says_what_it_lacks(tmp_path: Path) -> None:
    command = [str(STATESTORE), "drill", "--random=3", "--seed=20130101", "--json"]
    done = subprocess.run(
        [*command, f"--report={tmp_path}"],
        capture_output=True,
        text=True,
        timeout=2400,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    report = json.loads(done.stdout.splitlines()[-1])
    missed = {one["name"]: one["happened"] for one in report["drills"] if one["outcome"] != "green"}
    allowed = {"disk-full"} if os.geteuid() else set()
    assert missed.keys() <= allowed, missed
    assert (tmp_path / "report.html").read_text().count("<tr>") == len(report["drills"]) + 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "report.json"]
