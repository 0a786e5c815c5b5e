"""What a job on a Spark within this machine shows to others, and says, unless it is told to."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from statestore.testing.local_kafka import LocalKafka
from tests.builders import DEADLINE_S, ROOT, eventually
from tests.kafka.run_pipelines import PREFIX_VARIABLE
from tests.kafka.run_rig import App

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]

START_S = 240.0
SPARK_SUBMIT = Path(sys.executable).with_name("spark-submit")


@pytest.fixture
def app(kafka: LocalKafka, tmp_path: Path) -> Iterator[App]:
    made = App(kafka, "local-defaults", tmp_path / "state").create_topics()
    made.produce(range(20))
    yield made
    # The submitting JVM's child is the driver, whose children are Python's daemon and its workers.
    tree = [one for child in made.children for one in started_by(child.pid)]
    made.end_children()
    for one in tree:
        with suppress(psutil.NoSuchProcess):  # its parent's end may have been its own
            one.kill()
    psutil.wait_procs(tree, DEADLINE_S)


def started_by(pid: int) -> list[psutil.Process]:
    """All that a process started; nothing if it is gone."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def listening(process: psutil.Process) -> set[str]:
    """The addresses at which it, and what it started, wait for connections."""
    found = set()
    for one in [process, *process.children(recursive=True)]:
        for socket in one.net_connections(kind="tcp"):
            if socket.status == psutil.CONN_LISTEN:
                found.add(socket.laddr.ip.removeprefix("::ffff:"))
    return found


def test_a_job_on_a_local_master_listens_on_loopback_only_and_says_little(app: App) -> None:
    log = app.state_dir.parent / "log"
    with log.open("wb") as out:
        command = [str(SPARK_SUBMIT), "--master=local[2]", "jobs/process.py", *app.flags()]
        process = subprocess.Popen(
            [*command, "--run-for=300s"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), PREFIX_VARIABLE: app.name},
            stdout=subprocess.DEVNULL,
            stderr=out,
            text=True,
        )
    app.children.append(process)
    eventually(lambda: sum(app.committed().values()) == 20, "the job has read its input", START_S)
    assert listening(psutil.Process(process.pid)) == {"127.0.0.1"}
    said = log.read_text(errors="replace").splitlines()
    assert len([line for line in said if " INFO " in line and "statestore" not in line]) < 40, said
