"""A standalone Spark on this machine: master and workers as processes, and jobs submitted to it.

Master and workers come from pyspark's own package; no Spark installation is needed. All of them
listen on loopback only, at ports of the system's choice.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import IO

import psutil
import pyspark

from tests.builders import DEADLINE_S, ROOT, eventually

SPARK_HOME = Path(pyspark.__file__).parent
SPARK_SUBMIT = Path(sys.executable).with_name("spark-submit")
HOST = "127.0.0.1"
READY_S = 240.0
# Ten jobs of Spark take four minutes on a machine that is busy with other tests.
RUN_S = 420.0
# Also of a checkout: what the daemons have, the executors inherit.
CHECKOUT = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
_ANY_PORTS = ("--port", "0", "--webui-port", "0")
# How long a master that is started again waits for applications that are gone.
_RECOVERY_S = 10
_OF_THIS_PROCESS = ("PYTHONPATH", "VIRTUAL_ENV", "PYSPARK_", "SPARK_", "STATESTORE_")


def tree_of(process: "subprocess.Popen[bytes]") -> list[psutil.Process]:
    """A process and all that it started."""
    root = psutil.Process(process.pid)
    return [root, *root.children(recursive=True)]


def kill_tree(process: "subprocess.Popen[bytes]") -> None:
    """SIGKILL to a process and all that it started, each by its id."""
    tree = tree_of(process)
    for one in tree:
        with suppress(psutil.NoSuchProcess):  # its parent's end may have been its own
            one.kill()
    process.wait(DEADLINE_S)
    psutil.wait_procs(tree, DEADLINE_S)


class Daemon:
    """A Spark daemon in a child process, its log in a file."""

    def __init__(
        self, folder: Path, name: str, variables: Mapping[str, str], *arguments: str
    ) -> None:
        self.log = folder / f"{name}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [str(SPARK_HOME / "bin" / "spark-class"), *arguments],
                cwd=folder,
                env=environment(variables) | {"SPARK_HOME": str(SPARK_HOME)},
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

    def kill(self) -> None:
        """SIGKILL to it and to all that it started, executors and their Python workers too."""
        kill_tree(self.process)

    def end(self) -> None:
        """It and what it started."""
        with self.process:
            if self.process.poll() is None:
                tree = tree_of(self.process)
                self.process.terminate()
                _, left = psutil.wait_procs(tree, DEADLINE_S)
                for one in left:
                    one.kill()


class Cluster:
    """A master, and workers with their folders and `variables`."""

    def __init__(self, folder: Path, variables: Mapping[str, str]) -> None:
        self.folder = folder
        self.variables = variables
        self.master = self._master("0")
        self.workers: list[Daemon] = []

    @cached_property
    def address(self) -> str:
        """What workers and jobs are told; also of a master that took the place of another one."""
        return self.master.await_line(r"Starting Spark master at (spark://\S+)")

    @contextmanager
    def without_master(self) -> Iterator[None]:
        """The master dead by SIGKILL inside `with`; after it, another one on what it had noted."""
        port = self.address.rpartition(":")[2]
        self.master.kill()
        yield
        self.master = self._master(port)
        self.master.await_line(r"(Recovery complete)")

    def _master(self, port: str) -> Daemon:
        noted = {
            "spark.deploy.recoveryMode": "FILESYSTEM",
            "spark.deploy.recoveryDirectory": self.folder / "recovery",
            "spark.deploy.recoveryTimeout": _RECOVERY_S,
        }
        options = " ".join(f"-D{key}={value}" for key, value in noted.items())
        return Daemon(
            self.folder,
            "master",
            {**self.variables, "SPARK_MASTER_OPTS": options},
            *("org.apache.spark.deploy.master.Master", "--host", HOST, *_ANY_PORTS, "--port", port),
        )

    def start_worker(self, number: int) -> None:
        """A new worker, or another one in the place of one that has ended.

        Each has a host of its own, as Spark takes no second attempt at a task to the same one.
        """
        host = f"127.0.0.{2 + number}"
        worker = Daemon(
            self.folder,
            f"worker-{number}",
            {**self.variables, "SPARK_LOCAL_IP": host},
            *("org.apache.spark.deploy.worker.Worker", "--host", host, *_ANY_PORTS),
            *("--cores", "1", "--memory", "1g", "--work-dir", str(self.work_dir(number))),
            self.address,
        )
        self.workers[number : number + 1] = [worker]
        worker.await_line(r"(Successfully registered with master)")

    def end(self) -> None:
        """End the workers, and the master after them."""
        for daemon in (*self.workers, self.master):
            daemon.end()

    def work_dir(self, number: int) -> Path:
        """Where the executors of a worker run and write what they say."""
        return self.folder / f"w{number}"

    def said(self, number: int) -> str:
        """What the executors of a worker, and their Python workers, wrote on stderr."""
        files = self.work_dir(number).glob("app-*/*/stderr")
        return "\n".join(path.read_text(errors="replace") for path in sorted(files))

    def took_part(self) -> set[int]:
        """The workers that had an executor."""
        numbers = range(len(self.workers))
        return {number for number in numbers if any(self.work_dir(number).glob("app-*/*"))}

    def executors(self, number: int) -> list[psutil.Process]:
        """The JVMs of the executors of a worker that are alive."""
        return psutil.Process(self.workers[number].process.pid).children()


@contextmanager
def standalone(
    folder: Path, *, workers: int = 2, variables: Mapping[str, str] = CHECKOUT
) -> Iterator[Cluster]:
    """A master and its workers, of one core each; `variables` are all they have of ours."""
    cluster = Cluster(folder, variables)
    try:
        for number in range(workers):
            cluster.start_worker(number)
        yield cluster
    finally:
        cluster.end()


@contextmanager
def connect_server(
    folder: Path, variables: Mapping[str, str] = CHECKOUT, conf: Mapping[str, str] | None = None
) -> Iterator[tuple[Daemon, str]]:
    """A server of Spark Connect, and its address."""
    more = [f"--conf={key}={value}" for key, value in (conf or {}).items()]
    server = Daemon(
        folder,
        "connect",
        {"SPARK_LOCAL_IP": HOST, **variables},
        *("org.apache.spark.deploy.SparkSubmit", "--master", "local[2]"),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        *("--conf", "spark.connect.grpc.binding.port=0"),
        *("--conf", f"spark.connect.grpc.binding.address={HOST}"),
        *("--conf", "spark.ui.enabled=false"),
        *more,
    )
    try:
        port = server.await_line(r"Spark Connect server started at: \S+:(\d+)")
        yield server, f"sc://{HOST}:{port}"
    finally:
        server.end()


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment of a stranger's process, with these variables."""
    rest = {name: it for name, it in os.environ.items() if not name.startswith(_OF_THIS_PROCESS)}
    spark = {"SPARK_NO_DAEMONIZE": "1", "SPARK_LOCAL_IP": HOST}
    return {**rest, **spark, **variables}


def submit(
    master: str,
    job: Path,
    *arguments: str,
    cwd: Path,
    log: IO[bytes],
    conf: Mapping[str, object] | None = None,
    variables: Mapping[str, str] = CHECKOUT,
) -> "subprocess.Popen[bytes]":
    """A job on the way, with executors of one core."""
    fixed = ["--executor-cores", "1", "--executor-memory", "512m"]
    for key, value in {"spark.ui.enabled": "false", **(conf or {})}.items():
        fixed += ["--conf", f"{key}={value}"]
    return subprocess.Popen(
        [str(SPARK_SUBMIT), "--master", master, *fixed, str(job), *arguments],
        cwd=cwd,
        env=environment(variables),
        stdout=log,
        stderr=log,
    )
