"""The runs of the section `cluster`: two workers of the command, or a job on a standalone Spark."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
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
from tests.spark.cluster_rig import CHECKOUT, Cluster, standalone, submit

SPARK_WORKERS = 3
_PATIENT_S = 600.0


@dataclass(frozen=True)
class Run:
    """A run on its way. `log`: where it says what it has to say, if not to a pipe."""

    process: AnyProcess | Popen[bytes]
    log: Path | None = None

    @property
    def is_over(self) -> bool:
        return self.process.poll() is not None

    def children(self) -> list[psutil.Process]:
        """What it started itself."""
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children()
        return []

    def end(self) -> tuple[int, str]:
        """The exit code, and what it said; Refused if it does not end."""
        if self.log is not None:
            return self._end_of_job(self.log)
        assert not isinstance(self.process, Popen)
        try:
            _, said = processes.outputs_of(self.process, _PATIENT_S)
        except AssertionError as error:
            raise Refused(f"a run does not end: {str(error)[-4000:]}") from error
        assert self.process.returncode is not None
        return self.process.returncode, said

    def kill(self) -> None:
        """SIGKILL to it, and to what it started on its side: of a job, the whole driver."""
        below = psutil.Process(self.process.pid).children(recursive=True) if self.log else []
        self.process.kill()
        for one in below:
            with suppress(psutil.NoSuchProcess):  # it ended with its parent
                one.kill()

    def _end_of_job(self, log: Path) -> tuple[int, str]:
        try:
            code = self.process.wait(_PATIENT_S)
        except TimeoutExpired as error:
            self.kill()
            said = log.read_text(errors="replace")
            raise Refused(f"a job of Spark does not end: {said[-4000:]}") from error
        return code, log.read_text(errors="replace")


def command_of(rig: KindRig) -> Run:
    """A run of `statestore run`, with the workers that the rig's options say."""
    return Run(rig.start())


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

    def submit(self, rig: KindRig) -> Run:
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
        return Run(process, log)

    def kill_executor(self, rng: Random) -> bool:
        """SIGKILL to the JVM of an executor; whether there was one."""
        numbers = range(SPARK_WORKERS)
        found = [one for number in numbers for one in self._cluster.executors(number)]
        with suppress(psutil.NoSuchProcess, IndexError):
            rng.choice(found).kill()
            return True
        return False

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
