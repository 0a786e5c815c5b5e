"""The commands that look, beside real runs of an application and while one is on."""

import json
import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from statestore.cli import cli
from statestore.commands import status as command
from statestore.errors import Behind, Unavailable
from statestore.faults import CrashPoint
from statestore.layout.folders import StateLayout
from statestore.layout.owners import read_owner
from statestore.model.ids import TaskId
from statestore.testing.local_kafka import LocalKafka
from tests import processes
from tests.builders import DEADLINE_S, ROOT, eventually
from tests.crash.kill_harness import STATESTORE, Rig
from tests.crash.pipeline import PREFIX_VARIABLE

pytestmark = pytest.mark.kafka
WAIT = "statestore.snapshot.wait.ms"


@pytest.fixture(scope="module")
def rig(kafka: LocalKafka, tmp_path_factory: pytest.TempPathFactory) -> Rig:
    """An application that has counted 3400 records of 17 users, in two partitions."""
    folder = tmp_path_factory.mktemp("state")
    made = Rig(kafka, folder, application_id="rest", topic_prefix="rest")
    made.create_topics()
    made.produce(3400)
    made.run()
    return made


def call(rig: Rig, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return processes.run(
        [STATESTORE, *arguments, "--application-id=rest", f"--state-dir={rig.state_dir}"],
        timeout=DEADLINE_S,
    )


def said(rig: Rig, *arguments: str) -> list[dict[str, object]]:
    done = call(rig, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def look(rig: Rig, *arguments: str) -> Result:
    """`statestore status` in this process."""
    where = (f"--state-dir={rig.state_dir}", f"--bootstrap-servers={rig.kafka.bootstrap_servers}")
    return CliRunner().invoke(
        cli, ["status", "--application-id=rest", *where, "--json", *arguments]
    )


def status(rig: Rig, *arguments: str) -> dict[str, Any]:
    done = look(rig, *arguments)
    assert done.exception is None
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_what_a_run_counted_can_be_looked_at_without_its_pipeline(rig: Rig) -> None:
    assert call(rig, "stores", "get", "counts", "user-3").stdout == "200\n"
    rows = said(rig, "stores", "range", "counts")
    assert {row["key"]: row["value"] for row in rows} == dict(rig.expected)
    (count,) = said(rig, "stores", "count", "counts")
    assert count["count"] == 17
    assert {row["store"] for row in said(rig, "stores", "ls")} == {"counts"}


def test_the_offsets_said_are_those_of_the_log(rig: Rig) -> None:
    rows = said(rig, "offsets", "counts")
    changelogs = [row for row in rows if row["offset_next"] is not None]
    records = rig.read("rest-counts-changelog")
    for row in changelogs:
        assert row["topic"] == "rest-counts-changelog"
        written = sum(1 for partition, _, _ in records if partition == row["partition"])
        # Markers of transactions stand between the records.
        assert int(str(row["offset_next"])) >= written
    inputs = {(row["topic"], row["partition"]) for row in rows if row["offset_last"] is not None}
    assert inputs == {("rest-by-user-repartition", partition) for partition in (0, 1)}


def test_while_a_run_is_on_its_owner_takes_a_snapshot(rig: Rig, tmp_path: Path) -> None:
    started = [str(STATESTORE), "run", *rig.command(), "--run-for=300s"]
    variables = {PREFIX_VARIABLE: rig.topic_prefix, "PYTHONPATH": str(ROOT)}
    layout = StateLayout(rig.state_dir, "rest")

    def owned(partition: int) -> bool:
        owner = read_owner(layout.task_dir(TaskId(1, partition)))
        return owner is not None and owner.pid == process.pid

    with (tmp_path / "log").open("w") as log:
        process = processes.start(started, stdout=log, stderr=log, env={**os.environ, **variables})
        try:
            eventually(lambda: owned(0) and owned(1), "the run owns the stores")
            assert call(rig, "stores", "get", "counts", "user-3").stdout == "200\n"
            (count,) = said(rig, "stores", "count", "counts")
            assert count["count"] == 17
            rows = said(rig, "stores", "range", "counts")
            assert {row["key"]: row["value"] for row in rows} == dict(rig.expected)
            assert said(rig, "offsets", "counts")
            now = status(rig)
            assert now["state"] == "running"
            assert {t["state"] for t in now["stream_tasks"]} == {"running"}
            assert str(process.pid) in now["owner"]
            process.send_signal(signal.SIGSTOP)
            refused = call(rig, "stores", "get", "counts", "user-3", f"--set={WAIT}=100")
            assert refused.returncode == Unavailable.exit_code
            assert f"process {process.pid} on" in refused.stderr
        finally:
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE_S) == 0
    assert call(rig, "stores", "get", "counts", "user-3").stdout == "200\n"
    assert list(rig.state_dir.rglob("snapshots/*")) == []


def test_status_says_how_far_behind_and_how_long_to_go(rig: Rig) -> None:
    done = status(rig)
    assert (done["state"], done["broker"], done["relocation"]) == ("stopped", None, None)
    assert (done["lag_records"], done["lag_seconds"]) == (0, 0)
    assert done["catch_up_seconds"] == 0
    # The mark that ends a transaction counts as a record.
    assert done["restore_seconds"] < 0.1
    assert done["last_commit_age_seconds"] < 120
    assert [t["stream_task"] for t in done["stream_tasks"]] == ["0_0", "0_1", "1_0", "1_1"]
    produced = rig.produced
    rig.produce(3400)
    files = {path: path.stat().st_mtime_ns for path in rig.state_dir.rglob("*")}
    behind = status(rig)
    assert {path: path.stat().st_mtime_ns for path in rig.state_dir.rglob("*")} == files
    assert behind["lag_records"] == rig.produced - produced
    # The records are a millisecond apart.
    assert 3.0 < behind["lag_seconds"] < 3.5
    assert 0 < behind["catch_up_seconds"] < 60
    late = look(rig, "--max-lag-seconds=1")
    assert isinstance(late.exception, Behind)
    assert "no run is on (stopped): start one" in str(late.exception)
    assert look(rig, "--max-lag-seconds=60").exception is None
    rig.run()
    again = status(rig)
    assert (again["lag_records"], again["lag_seconds"]) == (0, 0)


def test_status_after_a_crash_says_so_and_what_is_to_be_restored(rig: Rig) -> None:
    rig.produce(3400)

    def has_rows_to_restore() -> bool:
        assert rig.run_until_crash(f"{CrashPoint.COMMIT_LOG_DONE}:6").died
        dead = status(rig)
        assert dead["state"] == "crashed"
        assert dead["lag_records"] > 0
        return any(task["restore_records"] > 0 for task in dead["stream_tasks"])

    # The first commits are of tasks without a store: the slower the machine, the more there are.
    eventually(has_rows_to_restore, "a changelog has more than a store")
    rig.run()


def test_status_without_a_broker_tells_the_rest_and_says_so(rig: Rig) -> None:
    gone = ("--bootstrap-servers=localhost:1", "--set=default.api.timeout.ms=1000")
    found = status(rig, *gone)
    assert "localhost:1 did not answer" in found["broker"]
    assert (found["state"], found["lag_records"]) == ("stopped", None)
    assert isinstance(look(rig, *gone, "--max-lag-seconds=1").exception, Unavailable)


def test_status_before_the_first_run_goes_by_the_pipeline(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PREFIX_VARIABLE, rig.topic_prefix)
    found = status(rig, "--application-id=fresh", f"--state-dir={tmp_path}", rig.command()[0])
    assert (found["state"], found["lag_records"]) == ("new", rig.produced)
    assert [t["state"] for t in found["stream_tasks"]] == ["new", "new"]
    assert list(tmp_path.iterdir()) == []


def test_status_watched_looks_again_and_again_until_interrupted(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "EVERY_S", 0.01)
    # Spark in this process replaces what an interrupt does.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        interrupt = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
        interrupt.start()
        done = look(rig, "--watch")
        interrupt.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert done.exit_code == 0
    times = [json.loads(line)["at_ms"] for line in done.stdout.splitlines()]
    assert len(times) > 1
    assert times == sorted(times)
