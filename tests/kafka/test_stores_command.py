"""The commands on stores, beside real runs of an application and while one is on."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from statestore.errors import Unavailable
from statestore.layout.folders import StateLayout
from statestore.layout.owners import read_owner
from statestore.model import TaskId
from statestore.testing.local_kafka import LocalKafka
from tests.builders import ROOT, eventually
from tests.crash.kill_harness import STATESTORE, Rig
from tests.crash.pipeline import PREFIX_VARIABLE

pytestmark = pytest.mark.kafka
WAIT = "statestore.snapshot.wait.ms"


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """An application that has counted 3400 records of 17 users, in two partitions."""
    with LocalKafka() as kafka:
        made = Rig(kafka, tmp_path_factory.mktemp("state"), application_id="rest")
        made.create_topics()
        made.produce(3400)
        made.run()
        yield made


def call(rig: Rig, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [STATESTORE, *arguments, "--application-id=rest", f"--state-dir={rig.state_dir}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def said(rig: Rig, *arguments: str) -> list[dict[str, object]]:
    done = call(rig, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


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
    command = [str(STATESTORE), "run", *rig.command(), "--run-for=300s"]
    variables = {PREFIX_VARIABLE: rig.topic_prefix, "PYTHONPATH": str(ROOT)}
    layout = StateLayout(rig.state_dir, "rest")

    def owned(partition: int) -> bool:
        owner = read_owner(layout.task_dir(TaskId(1, partition)))
        return owner is not None and owner.pid == process.pid

    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **variables})
        try:
            eventually(lambda: owned(0) and owned(1), "the run owns the stores", 40)
            assert call(rig, "stores", "get", "counts", "user-3").stdout == "200\n"
            (count,) = said(rig, "stores", "count", "counts")
            assert count["count"] == 17
            rows = said(rig, "stores", "range", "counts")
            assert {row["key"]: row["value"] for row in rows} == dict(rig.expected)
            assert said(rig, "offsets", "counts")
            process.send_signal(signal.SIGSTOP)
            refused = call(rig, "stores", "get", "counts", "user-3", f"--set={WAIT}=100")
            assert refused.returncode == Unavailable.exit_code
            assert f"process {process.pid} on" in refused.stderr
        finally:
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGTERM)
            assert process.wait(40) == 0
    assert call(rig, "stores", "get", "counts", "user-3").stdout == "200\n"
    assert list(rig.state_dir.rglob("snapshots/*")) == []
