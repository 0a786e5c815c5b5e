"""Snapshots of a real run: while it commits, and with a SIGKILL on either side."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from statestore.errors import Unavailable
from statestore.faults import VARIABLE
from statestore.layout.folders import StateLayout
from statestore.model.ids import TaskId
from statestore.operations.looking.task_snapshots import Snapshots
from statestore.runtime import Runtime
from statestore.runtime.databases import RocksDatabases
from statestore.testing.local_kafka import LocalKafka
from tests import processes
from tests.builders import DEADLINE_S, ROOT, eventually
from tests.crash.kill_harness import PARTITIONS, STATESTORE, Rig
from tests.crash.pipeline import PREFIX_VARIABLE
from tests.processes import Process

pytestmark = pytest.mark.kafka
Row = tuple[int, bytes, bytes | None]

ASKING = """
import sys
from statestore.runtime.public import open_snapshot
from statestore.faults import arm_from_environment
arm_from_environment()
settings = {"statestore.snapshot.lease.ms": 1000}
with open_snapshot(sys.argv[1], sys.argv[2], "counts", settings=settings) as store:
    print(len(list(store.all())))
"""


def rig_on(kafka: LocalKafka, folder: Path, name: str) -> Rig:
    rig = Rig(kafka, folder, application_id=name, topic_prefix=name)
    rig.create_topics()
    rig.produce(1700)
    rig.run()
    return rig


def layout_of(rig: Rig) -> StateLayout:
    return StateLayout(rig.state_dir, rig.application_id)


def asker(rig: Rig, wait_ms: int = 30_000) -> Snapshots:
    settings = {
        "application.id": rig.application_id,
        "state.dir": str(rig.state_dir),
        "statestore.snapshot.wait.ms": wait_ms,
    }
    return Snapshots(Runtime(settings))


def serving(rig: Rig, folder: Path, crash_at: str = "") -> Process:
    """A continuous run."""
    variables = {PREFIX_VARIABLE: rig.topic_prefix, "PYTHONPATH": str(ROOT), VARIABLE: crash_at}
    with (folder / "log").open("w") as log:
        return processes.start(
            [str(STATESTORE), "run", *rig.command(), "--run-for=300s"],
            env={**os.environ, **variables},
            stdout=log,
            stderr=log,
        )


def asking(rig: Rig, crash_at: str = "") -> "subprocess.CompletedProcess[str]":
    """Another process that reads the store in a snapshot."""
    return processes.run(
        [sys.executable, "-c", ASKING, str(rig.state_dir), rig.application_id],
        env={**os.environ, "PYTHONPATH": str(ROOT), VARIABLE: crash_at},
        timeout=DEADLINE_S,
    )


def changelog(rig: Rig) -> dict[int, list[Row]]:
    """(offset, key, value) of every committed record, by partition, read with a plain client."""
    topic = f"{rig.application_id}-counts-changelog"
    client = Consumer(
        {
            "bootstrap.servers": rig.kafka.bootstrap_servers,
            "group.id": "fold",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    rows: dict[int, list[Row]] = {}
    client.assign([TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
    done: set[int | None] = set()
    while len(done) < PARTITIONS:
        for message in client.consume(1000, 1.0):
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            if message.error():
                done.add(partition)
            else:
                assert offset is not None
                row = (offset, message.key() or b"", message.value())
                rows.setdefault(partition, []).append(row)
    client.close()
    return rows


def test_twenty_snapshots_of_a_run_that_commits_are_each_the_changelog_at_their_offsets(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    rig = rig_on(kafka, tmp_path / "state", "twenty")
    taken: list[tuple[int, int, dict[bytes, bytes]]] = []
    commits: set[tuple[int, int | None]] = set()
    owner = serving(rig, tmp_path)
    try:
        start = rig.committed()
        for number in range(20):
            rig.produce(300)
            partition = number % PARTITIONS
            if number == 0:
                eventually(lambda: rig.committed() != start, "it commits")
            with asker(rig).take(TaskId(1, partition)) as snapshot:
                ((_, _, offset),) = snapshot.manifest.stores["counts"].changelog
                engine = RocksDatabases().read(snapshot.store_dir("counts"))
                taken.append((partition, offset, dict(engine.table("data").scan())))
                engine.close()
                commits.add((partition, snapshot.manifest.commit_number))
        owner.terminate()
        assert owner.wait(DEADLINE_S) == 0
    finally:
        owner.kill()
        owner.wait()
    log = changelog(rig)
    for partition, end, rows in taken:
        assert rows == {key: value for offset, key, value in log[partition] if offset < end}
    assert len(commits) > 5, f"it hardly committed between the snapshots: {commits}"
    rig.run()
    assert rig.findings() == []


@pytest.mark.parametrize("point", ["snapshot.linked", "snapshot.published"])
def test_an_owner_killed_over_a_snapshot_loses_nothing_and_whoever_asked_gets_it(
    kafka: LocalKafka, tmp_path: Path, point: str
) -> None:
    rig = rig_on(kafka, tmp_path / "state", f"owner-{point}")
    owner = serving(rig, tmp_path, crash_at=point)
    try:
        eventually(lambda: asked_and_died(rig, owner), "the owner dies")
    finally:
        owner.kill()
        owner.wait()
    with asker(rig).take(TaskId(1, 0)) as snapshot:
        assert snapshot.manifest.commit_number is None
    rig.produce(500)
    rig.run()
    assert rig.findings() == []
    for path in (tmp_path / "state").rglob("snapshots/*"):
        assert path.name.startswith("."), "half a snapshot was published"


def asked_and_died(rig: Rig, owner: Process) -> bool:
    with asker(rig).take(TaskId(1, 0)) as snapshot:
        assert (snapshot.store_dir("counts") / "CURRENT").exists()
    return owner.poll() is not None


@pytest.mark.parametrize(
    ("point", "on"),
    [
        ("snapshot.requested", True),
        pytest.param("snapshot.linked", False, marks=pytest.mark.thorough),
        ("snapshot.published", False),
    ],
)
def test_what_a_killed_asker_leaves_is_swept_and_harms_no_run(
    kafka: LocalKafka, tmp_path: Path, point: str, on: bool
) -> None:
    rig = rig_on(kafka, tmp_path / "state", f"asker-{point}")
    owner = serving(rig, tmp_path) if on else None
    try:
        if on:
            eventually(lambda: not free(rig), "the owner is there")
        assert asking(rig, crash_at=point).returncode == -9
        assert asking(rig).stdout == "17\n"
        left = list((tmp_path / "state").rglob("snapshots/*"))
        left += list((tmp_path / "state").rglob("snapshot-request-*"))
        assert left or on, "nothing was left: this proves nothing"
        if owner is not None:
            owner.terminate()
            assert owner.wait(DEADLINE_S) == 0
    finally:
        if owner is not None:
            owner.kill()
            owner.wait()
    eventually(lambda: swept(rig), "the leases run out and a run sweeps")
    assert rig.findings() == []


def free(rig: Rig) -> bool:
    """Whether a task has no owner: nobody answers in no time, and we may link its files."""
    try:
        with asker(rig, wait_ms=0).take(TaskId(1, 0)):
            return True
    except Unavailable:
        return False


def swept(rig: Rig) -> bool:
    rig.run()
    left = list(rig.state_dir.rglob("snapshots/*")) + list(rig.state_dir.rglob("snapshot-request*"))
    return left == []
