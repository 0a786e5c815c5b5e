"""The runs of the section `cluster`: two workers of the command, or a job on a standalone Spark."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random
from subprocess import Popen, TimeoutExpired

import psutil

from tests import processes
from tests.builders import ROOT
from tests.processes import AnyProcess
from tests.prove.kind_rig import KindRig, Refused
from tests.spark.cluster_rig import CHECKOUT, Cluster, kill_tree, standalone, submit

SPARK_WORKERS = 3
PATIENT_S = 600.0


@dataclass(frozen=True)
class Run:
    """A run of `statestore run` on its way."""

    process: AnyProcess

    @property
    def is_over(self) -> bool:
        return self.process.poll() is not None

    def workers(self) -> list[psutil.Process]:
        """The processes that its stream tasks are spread over."""
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children()
        return []

    def kill(self) -> None:
        """SIGKILL, to it alone."""
        self.process.kill()

    def end(self) -> tuple[int, str]:
        """The exit code, and what it said; Refused if it does not end."""
        try:
            _, said = processes.outputs_of(self.process, PATIENT_S)
        except AssertionError as error:
            raise Refused(f"a run does not end: {str(error)[-4000:]}") from error
        assert self.process.returncode is not None
        return self.process.returncode, said


@dataclass(frozen=True)
class Job:
    """A run as a job of Spark on its way, by its driver."""

    process: Popen[bytes]
    log: Path

    @property
    def is_over(self) -> bool:
        return self.process.poll() is not None

    def kill(self) -> None:
        """SIGKILL to the whole driver, its JVM and its Python."""
        kill_tree(self.process)

    def end(self) -> tuple[int, str]:
        """The exit code, and what it said; Refused if it does not end."""
        try:
            code = self.process.wait(PATIENT_S)
        except TimeoutExpired as error:
            self.kill()
            said = self.log.read_text(errors="replace")
            raise Refused(f"a job of Spark does not end: {said[-4000:]}") from error
        return code, self.log.read_text(errors="replace")


def kill_one(rng: Random, among: Sequence[psutil.Process]) -> bool:
    """SIGKILL to one of them; whether there was one."""
    with suppress(psutil.NoSuchProcess, IndexError):
        rng.choice(among).kill()
        return True
    return False


class Spark:
    """A standalone Spark, there from its first job on."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._jobs = 0

    @cached_property
    def _cluster(self) -> Cluster:
        scratch = tempfile.TemporaryDirectory(prefix="prove-spark-")
        folder = Path(self._stack.enter_context(scratch))
        return self._stack.enter_context(standalone(folder, workers=SPARK_WORKERS))

    def submit(self, rig: KindRig) -> Job:
        """A run of the same application as a job."""
        self._jobs += 1
        cluster = self._cluster
        log = cluster.folder / f"job-{self._jobs}.log"
        of_executors = {f"spark.executorEnv.{name}": it for name, it in rig.variables.items()}
        with log.open("wb") as file:
            process = submit(
                cluster.address,
                ROOT / "jobs" / "process.py",
                *rig.command(),
                cwd=cluster.folder,
                log=file,
                conf=of_executors,
                variables={**CHECKOUT, **rig.variables},
            )
        return Job(process, log)

    def executors(self) -> list[psutil.Process]:
        """The JVMs of the executors that are alive."""
        numbers = range(SPARK_WORKERS)
        return [one for number in numbers for one in self._cluster.executors(number)]

    def without_master(self) -> AbstractContextManager[None]:
        """The master dead inside `with`, and another one on what it had noted after."""
        return self._cluster.without_master()

    @contextmanager
    def worker_killed(self, rng: Random) -> Iterator[None]:
        """A worker dead inside `with`, its executor with it, and another one in its place after."""
        number = rng.randrange(SPARK_WORKERS)
        self._cluster.workers[number].kill()
        yield
        self._cluster.start_worker(number)


@contextmanager
def spark() -> Iterator[Spark]:
    """It ends with the block."""
    with ExitStack() as stack:
        yield Spark(stack)
