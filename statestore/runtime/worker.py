"""One process of a run with several workers: it serves the stream tasks that its run sends it.

    python -c "…; from statestore.runtime.worker import main; main(fd)"

The run (workers.py) starts it and talks to it over a socket that both inherited, so no other
process sees settings or secrets. What the worker logs goes to the run, which logs it as its own.
The signals of a terminal and of a supervisor are the run's: it tells the worker to stop. A worker
whose run has died ends at once and leaves its stream tasks as any process does that is killed.
"""

import ctypes
import gc
import logging
import os
import pickle
import queue
import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import QueueHandler
from multiprocessing.connection import Connection
from typing import Any, Final, NamedTuple

from statestore.errors import StateStoreError
from statestore.faults import arm_from_environment
from statestore.metrics import (
    LeftOutTotals,
    StoreFigures,
    TaskFigures,
    figures,
    left_out_totals,
    task_figures,
)
from statestore.operations.pipelines import load_pipeline
from statestore.operations.running.run import PlannedTask, RunRequest
from statestore.operations.running.runner import serve_planned
from statestore.operations.shipping import unpacked
from statestore.runtime import Runtime
from statestore.settings import Settings
from statestore.tasks.plan import Standing, TaskReport
from statestore.topology.graph import Topology

SIGNALS: Final = frozenset({signal.SIGINT, signal.SIGTERM})
"""The signals that a worker leaves to its run."""
_PR_SET_PDEATHSIG: Final = 1
_ORPHANED: Final = 70
_FIGURES_EVERY_S: Final = 1.0


class Hello(NamedTuple):
    """What a worker has to know first.

    `pipeline`: its name, or a packed topology. `figures`: whether the run wants metrics of stores.
    """

    number: int
    settings: Settings
    pipeline: str | bytes
    log_level: int
    figures: bool = False


class Share(NamedTuple):
    """Stream tasks to serve now. `slots`: how many workers share the memory of this host."""

    planned: list[PlannedTask]
    request: RunRequest
    slots: int


class Stop(NamedTuple):
    """Commit, release the stream tasks, report, and wait for what comes next."""


class Done(NamedTuple):
    """The reports of all stream tasks of a share."""

    reports: list[TaskReport]


class Failed(NamedTuple):
    """The error that ended a share; nothing of what its stream tasks had pending was committed.

    `reports`: those of its stream tasks, as far as it came to them.
    """

    error: Exception
    reports: list[TaskReport]


class Figures(NamedTuple):
    """The metrics of all stores that the worker has open now, and what it has left out so far."""

    stores: list[StoreFigures]
    left_out: LeftOutTotals
    tasks: list[TaskFigures]


Order = Share | Stop | None
"""What the run sends; None: there is no more to do."""
News = Standing | logging.LogRecord | Figures | Done | Failed
"""What the worker sends."""


def main(descriptor: int) -> None:
    """Serve the run at the other end of the socket until it says that this is all."""
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    # The run blocked them, so that none could come before they were ignored.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    # The socket tells, too, but to a thread, and a pipeline may keep all threads from running.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    with Connection(descriptor) as run:
        _Worker(run).work()


class _Worker:
    def __init__(self, run: "Connection[News, Any]") -> None:
        self._run = run
        self._sending = threading.Lock()
        self._shares: queue.SimpleQueue[Share | None] = queue.SimpleQueue()
        self._stop = threading.Event()

    def work(self) -> None:
        hello: Hello = self._run.recv()
        # Not by basicConfig, which would give the handler a format of its own.
        logging.getLogger().addHandler(_ToRun(self, hello.number))
        logging.getLogger().setLevel(hello.log_level)
        arm_from_environment()
        threading.Thread(target=self._listen, name="orders", daemon=True).start()
        topology: Topology | None = None
        with Runtime(hello.settings) as runtime:
            while (share := self._shares.get()) is not None:
                reports: list[TaskReport] = []
                try:
                    if topology is None:
                        topology = _topology(hello.pipeline)
                    with self._telling_figures(wanted=hello.figures):
                        self._serve(runtime, topology, share, reports)
                except Exception as error:  # noqa: BLE001  # the run raises it
                    self.send(Failed(_portable(error, hello.number), reports))
                else:
                    self.send(Done(reports))

    def send(self, news: News) -> None:
        """Tell the run; end at once if there is none any more."""
        try:
            with self._sending:
                self._run.send(news)
        except OSError:
            os._exit(_ORPHANED)

    def _serve(
        self, runtime: Runtime, topology: Topology, share: Share, reports: list[TaskReport]
    ) -> None:
        serve_planned(
            runtime,
            topology,
            share.planned,
            share.request,
            slots=share.slots,
            stop=self._stop,
            tell=self.send,
            reports=reports,
        )

    @contextmanager
    def _telling_figures(self, *, wanted: bool) -> Iterator[None]:
        """Send the metrics of stores now and then, if the run wants them."""
        ending = threading.Event()

        def tell() -> None:
            while not ending.wait(_FIGURES_EVERY_S):
                self.send(Figures(figures(), left_out_totals(), task_figures()))

        thread = threading.Thread(target=tell, name="figures", daemon=True)
        if wanted:
            thread.start()
        try:
            yield
        finally:
            ending.set()
            if wanted:
                thread.join()  # None of them comes behind the end of its share.
                self.send(Figures([], left_out_totals(), task_figures()))

    def _listen(self) -> None:
        try:
            while (order := self._run.recv()) is not None:
                if isinstance(order, Stop):
                    self._stop.set()
                else:
                    self._shares.put(order)
        except (EOFError, OSError):
            os._exit(_ORPHANED)
        self._shares.put(None)


class _ToRun(QueueHandler):
    """Hands what is logged to the run, with the number of the worker."""

    def __init__(self, worker: _Worker, number: int) -> None:
        super().__init__(queue.SimpleQueue())  # none is used
        self._worker = worker
        self._number = number

    def enqueue(self, record: logging.LogRecord) -> None:
        record.msg = record.message = f"worker {self._number}: {record.msg}"
        self._worker.send(record)


def _topology(pipeline: str | bytes) -> Topology:
    topology = load_pipeline(pipeline) if isinstance(pipeline, str) else unpacked(pipeline)
    # None of what was imported is garbage, and a collection looks through all of it.
    gc.freeze()
    return topology


def _portable(error: Exception, number: int) -> Exception:
    """The error as it can be sent, with a note that has its traceback."""
    error.add_note(f"in worker {number}:\n{''.join(traceback.format_exception(error))}")
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301  # it was made here
    except Exception:  # noqa: BLE001  # whatever a user's class raises
        kind = type(error) if type(error).__module__ == StateStoreError.__module__ else RuntimeError
        plain = kind(f"{type(error).__name__}: {error}")
        plain.add_note(error.__notes__[-1])
        return plain
    return error
