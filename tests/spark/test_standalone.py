"""A run on a standalone Spark master with two workers: two processes, exact results.

Master and workers come from pyspark's own package; no Spark installation is needed.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pyspark
import pytest

from statestore.operations.exports.catalog import Exports, NoProgress
from statestore.runtime import Runtime
from statestore.runtime.databases import RocksDatabases
from statestore.settings import Settings
from statestore.testing.local_kafka import LocalKafka
from tests.builders import ROOT, eventually
from tests.crash.kill_harness import Rig
from tests.crash.pipeline import PREFIX_VARIABLE

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
SPARK_SUBMIT = Path(sys.executable).with_name("spark-submit")
HOST = "127.0.0.1"
READY_S = 90.0
END_S = 20.0


class Daemon:
    """A Spark daemon in a child process, its log in a file."""

    def __init__(self, folder: Path, name: str, *arguments: str) -> None:
        self.log = folder / f"{name}.log"
        environment = {
            **os.environ,
            "SPARK_HOME": str(SPARK_CLASS.parents[1]),
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_LOCAL_IP": HOST,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
            PREFIX_VARIABLE: "standalone",
        }
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [str(SPARK_CLASS), *arguments],
                cwd=folder,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def await_line(self, pattern: str) -> str:
        """What the first group of the pattern finds in the log, once it is there."""
        found: list[str] = []

        def there() -> bool:
            text = self.log.read_text(errors="replace")
            assert self.process.poll() is None, text[-2000:]
            found[:] = re.findall(pattern, text)
            return bool(found)

        eventually(there, f"{pattern} in {self.log}", READY_S)
        return found[0]

    def end(self) -> None:
        """It and what it started."""
        with self.process:
            if self.process.poll() is None:
                started = psutil.Process(self.process.pid).children(recursive=True)
                self.process.terminate()
                _, left = psutil.wait_procs([psutil.Process(self.process.pid), *started], END_S)
                for one in left:
                    one.kill()


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The address of a master with two workers of one core each."""
    with ExitStack() as stack:
        where = ("--host", HOST, "--port", "0", "--webui-port", "0")
        lead = Daemon(tmp_path, "master", "org.apache.spark.deploy.master.Master", *where)
        stack.callback(lead.end)
        address = lead.await_line(r"Starting Spark master at (spark://\S+)")
        for number in range(2):
            worker = Daemon(
                tmp_path,
                f"worker-{number}",
                "org.apache.spark.deploy.worker.Worker",
                *where,
                *("--cores", "1", "--memory", "1g", "--work-dir", str(tmp_path / f"w{number}")),
                address,
            )
            stack.callback(worker.end)
            worker.await_line(r"(Successfully registered with master)")
        yield address


def submitted(master: str, cwd: Path, job: str, *arguments: str) -> None:
    """A job that must end well."""
    done = subprocess.run(
        [
            str(SPARK_SUBMIT),
            *("--master", master, "--executor-cores", "1", "--executor-memory", "512m"),
            str(ROOT / job),
            *arguments,
        ],
        cwd=cwd,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": HOST,
            PREFIX_VARIABLE: "standalone",
        },
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


def test_a_run_on_a_standalone_master_with_two_workers_is_exact_and_so_is_its_export(
    kafka: LocalKafka, master: str, tmp_path: Path
) -> None:
    rig = Rig(kafka, tmp_path / "state", application_id="standalone", topic_prefix="standalone")
    rig.create_topics()
    for _ in range(2):
        rig.produce(4000)
        submitted(master, ROOT, "jobs/process.py", *rig.command())
    assert rig.findings() == []
    executors = [path for number in range(2) for path in (tmp_path / f"w{number}").glob("app-*/*")]
    assert {path.parents[1].name for path in executors} == {"w0", "w1"}, "both workers took part"
    # Workers have work folders of their own: a target named relative to the driver's is one place.
    where = [flag for flag in rig.command() if flag.startswith(("--app", "--boot", "--state"))]
    submitted(master, tmp_path, "jobs/export.py", "--target=exports", *where)
    settings = Settings(application_id="standalone", export_target=str(tmp_path / "exports"))
    exports = Exports.of(Runtime(settings))
    found = exports.verify(exports.read(), NoProgress(), RocksDatabases().offsets_of)
    assert found.stores == 2
    workers = [path for number in range(2) for path in (tmp_path / f"w{number}").rglob("exports")]
    assert workers == []
