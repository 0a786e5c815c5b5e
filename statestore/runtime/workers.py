"""A run with several worker processes: `statestore run --workers N`, `ss.run(…, workers=N)`.

The process of the run holds the application's lock, plans the waves and sums up the reports, as
Spark's driver does. It sends each worker (worker.py) a share of the stream tasks of a wave. A
worker that dies costs no more than a Spark task that dies: another process takes over its share and
goes on from the last commit. The error of a worker ends the run with that error, after all others
have committed what they have done.
"""

import logging
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, Pipe, wait
from typing import Final, Self, assert_never

from statestore.errors import HostFailure, Misuse
from statestore.metrics import GatheredFigures, LeftOutTotals, StoreFigures, TaskFigures
from statestore.operations.running.run import PlannedTask, Run, RunSummary
from statestore.operations.running.runner import serve_waves, shares_of, untold
from statestore.runtime.worker import SIGNALS, Done, Failed, Figures, Hello, News, Share, Stop
from statestore.tasks.plan import Standing, TaskReport
from statestore.tasks.slot import Ending, Tell

_log = logging.getLogger("statestore")
_LIVES: Final = 4
"""How many workers in a row may die over a share without a commit: as many as Spark allows."""
_LOOK_EVERY_S: Final = 0.2
_END_S: Final = 30.0
_PROGRAM: Final = (
    "import sys; fd = int(sys.argv[1]); sys.path[:] = sys.argv[2:]; del sys.argv[1:]; "
    "from statestore.runtime.worker import main; main(fd)"
)


def serve_by_workers(
    started: Run,
    pipeline: str | bytes,
    count: int,
    stop: Ending,
    tell: Tell = untold,
    gathered: GatheredFigures | None = None,
) -> RunSummary:
    """Run the waves of a run in up to `count` processes of this machine.

    `pipeline`: its name, which each worker imports, or a packed topology. `gathered`: where the
    metrics of their stores go.
    """
    with Workers(started, pipeline, count, stop, tell, gathered) as workers:
        return serve_waves(started, stop, workers.serve)


def check_workers(count: object) -> None:
    """Misuse if this is not a number of workers."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise Misuse(f"workers={count!r}: pass the number of processes, from 1")


class Workers:
    """The worker processes of one run; use `with`. All of them are gone when it ends."""

    def __init__(
        self,
        started: Run,
        pipeline: str | bytes,
        count: int,
        stop: Ending,
        tell: Tell,
        gathered: GatheredFigures | None = None,
    ) -> None:
        self._request = started.request
        self._settings = started.environment.settings
        self._pipeline = pipeline
        # The same through the whole run, as a worker keeps its part of the memory.
        self._slots = min(count, started.width())
        self._stop = stop
        self._tell = tell
        self._gathered = gathered
        self._made = 0
        self._idle: list[_Process] = []
        self._busy: dict[_Process, _Work] = {}
        self._error: Exception | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        """Let idle workers end by themselves; kill those at work, as after an interrupt."""
        for process in self._idle:
            process.send(None)
        for process in self._busy:
            process.kill()
        for process in (*self._idle, *self._busy):
            process.join()

    def serve(self, planned: Sequence[PlannedTask], reports: list[TaskReport]) -> None:
        """Have the stream tasks of a wave served; the errors are those of the workers.

        The reports go into the list, those of a wave that fails too.
        """
        shares = shares_of(planned, self._slots)
        waiting = deque(_Work(list(share), self._until_s()) for share in shares)
        stopping = False
        while waiting or self._busy:
            if self._stop.is_set() or self._error is not None:
                reports += [TaskReport(task.task) for work in waiting for task in work.planned]
                waiting.clear()
                for process in () if stopping else self._busy:
                    process.send(Stop())
                stopping = True
            while waiting and len(self._busy) < self._slots:
                self._begin(waiting.popleft())
            for process in _heard(self._busy):
                work = self._busy[process]
                for news in process.news():
                    reports += self._take(process, work, news)
                if process in self._busy and process.gone:
                    waiting.append(self._reap(process, work))
        if self._error is not None:
            raise self._error

    def _until_s(self) -> float | None:
        span_ms = self._request.run_for_ms
        return None if span_ms is None else time.monotonic() + span_ms / 1000

    def _begin(self, work: "_Work") -> None:
        request = self._request
        if work.until_s is not None:
            # A worker that takes over has less time; it opens the stores in any case.
            left_ms = int(1000 * (work.until_s - time.monotonic()))
            request = replace(request, run_for_ms=max(1, left_ms))
        process = self._idle.pop() if self._idle else self._start()
        self._busy[process] = work
        process.send(Share(work.planned, request, self._slots))

    def _start(self) -> "_Process":
        self._made += 1
        level = logging.getLogger("statestore").getEffectiveLevel()
        process = _Process(self._made)
        wanted = self._gathered is not None
        process.send(Hello(self._made, self._settings, self._pipeline, level, wanted))
        return process

    def _take(self, process: "_Process", work: "_Work", news: News) -> list[TaskReport]:
        """Act on what a worker says; return the reports of a share that is done."""
        match news:
            case Standing():
                if news.last_commit_ms is not None:
                    work.deaths = 0
                self._tell(news)
            case logging.LogRecord():
                logger = logging.getLogger(news.name)
                if logger.isEnabledFor(news.levelno):
                    logger.handle(news)
            case Figures(stores, left_out, tasks):
                self._gather(process, stores, left_out, tasks)
            case Done(reports):
                self._rest(process)
                return reports
            case Failed(error, reports):
                self._rest(process)
                # One is told; the others may follow from it.
                self._error = self._error or error
                return reports
            case _ as unreachable:
                assert_never(unreachable)
        return []

    def _gather(
        self,
        process: "_Process",
        stores: Sequence[StoreFigures] = (),
        left_out: LeftOutTotals | None = None,
        tasks: Sequence[TaskFigures] | None = None,
    ) -> None:
        if self._gathered is not None:
            self._gathered.put(process.number, stores, left_out, tasks)

    def _rest(self, process: "_Process") -> None:
        self._gather(process)
        del self._busy[process]
        self._idle.append(process)

    def _reap(self, process: "_Process", work: "_Work") -> "_Work":
        """Note the death of a worker at work; return what another one is to take over."""
        self._gather(process)
        del self._busy[process]
        death = process.join()
        work.deaths += 1
        tasks = ", ".join(task.task for task in work.planned)
        if self._stop.is_set() or self._error is not None:
            line = (
                "worker %d %s while the run ends: the summary lacks what its stream tasks did: %s"
            )
            _log.warning(line, process.number, death, tasks)
        elif work.deaths < _LIVES:
            line = "worker %d %s: another one takes over its stream tasks: %s"
            _log.warning(line, process.number, death, tasks)
        else:
            self._error = HostFailure(
                f"worker {process.number} {death}, as did the {_LIVES - 1} before it, with no "
                f"commit in between; they served the stream tasks {tasks}: look into the kernel's "
                "log for a lack of memory, and into the pipeline for what ends a process; the next "
                "run goes on from the last commit"
            )
        return work


@dataclass
class _Work:
    """A share, until when to serve it, and how many workers died over it without a commit."""

    planned: list[PlannedTask]
    until_s: float | None
    deaths: int = 0


class _Process:
    """A worker process, and the socket to it."""

    def __init__(self, number: int) -> None:
        """HostFailure if the machine lets no process start."""
        self.number = number
        self.gone = False
        self.connection, theirs = Pipe()
        command = [sys.executable, "-c", _PROGRAM, str(theirs.fileno()), *sys.path]
        with theirs, _signals_blocked():
            try:
                self._popen = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
                )
            except OSError as error:
                raise HostFailure(f"cannot start worker {number}: {error}") from error

    def send(self, order: Hello | Share | Stop | None) -> None:
        """Send an order; one to a dead worker is lost, and its death is heard of."""
        with suppress(OSError):
            self.connection.send(order)

    def news(self) -> Iterator[News]:
        """What it has sent so far; afterwards `gone` tells whether it is dead."""
        try:
            while self.connection.poll():
                yield self.connection.recv()
        except (EOFError, OSError):
            self.gone = True

    def kill(self) -> None:
        """End it at once, whatever it does."""
        self._popen.kill()

    def join(self) -> str:
        """Wait for its end, which must be near; return how it ended."""
        try:
            code = self._popen.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.kill()
            code = self._popen.wait()
        self.connection.close()
        who = f"(process {self._popen.pid})"
        return f"{who} was killed by {_signal(-code)}" if code < 0 else f"{who} exited with {code}"


def _heard(busy: Iterable[_Process]) -> list[_Process]:
    """The processes that have said something or died; waits a moment for them."""
    of = {process.connection: process for process in busy}
    return [of[ready] for ready in wait(list(of), _LOOK_EVERY_S) if isinstance(ready, Connection)]


def _signal(number: int) -> str:
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Have a child start with the signals blocked that it is going to ignore."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
