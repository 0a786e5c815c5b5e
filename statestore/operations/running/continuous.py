"""Runs that begin anew with other topics, because their patterns match other ones than before.

A continuous run whose sources have patterns asks its brokers from time to time. When other topics
match and a start would take them, it commits, ends and begins anew, as if somebody had started it
again. So a new topic joins with all its partitions, and every refusal is that of a start
(docs/adr/0035).
"""

import logging
import threading
from collections.abc import Callable
from typing import Self

from statestore.errors import StateStoreError
from statestore.operations.environment import Environment
from statestore.operations.running.run import Run, RunRequest, RunSummary, matched
from statestore.operations.running.runner import check_run, start_run
from statestore.operations.start.matching import with_matches
from statestore.tasks.slot import Ending
from statestore.topology.graph import Topology

_log = logging.getLogger(__name__)
_POLL_S = 0.2


def serve_run(
    environment: Environment,
    topology: Topology,
    request: RunRequest,
    ending: Ending,
    serve: Callable[[Run, Ending], RunSummary],
) -> RunSummary:
    """Start a run and have it served; begin anew whenever its patterns match other topics.

    `serve` returns after a commit once the ending that it is given is set. Only a continuous run
    begins anew, and it waits if no topic matches yet.
    """
    summary = _served(environment, topology, request, ending, serve)
    summary.warn()
    return summary


def _served(
    environment: Environment,
    topology: Topology,
    request: RunRequest,
    ending: Ending,
    serve: Callable[[Run, Ending], RunSummary],
) -> RunSummary:
    if request.run_for_ms is None or not topology.patterns:
        with start_run(environment, topology, request) as started:
            return serve(started, ending)
    clock, before = environment.clock, None
    until_s = clock.monotonic() + request.run_for_ms / 1000
    while True:
        with (
            start_run(environment, topology, request) as started,
            TopicWatch(environment, topology, started, ending) as watch,
        ):
            summary = serve(started, watch)
            while not watch.is_set() and clock.monotonic() < until_s:
                watch.wait(_POLL_S)
        summary = summary if before is None else summary.after(before)
        left_ms = int(1000 * (until_s - clock.monotonic()))
        if ending.is_set() or left_ms <= 0:
            return summary
        # What was accepted once does not hold for what may be lost later.
        before, request = summary, RunRequest(run_for_ms=left_ms)


class TopicWatch:
    """Is set once a run is to end: if its `ending` is, or if other topics match; use `with`."""

    def __init__(
        self, environment: Environment, topology: Topology, started: Run, ending: Ending
    ) -> None:
        self._environment = environment
        self._topology = topology
        self._started = started
        self._ending = ending
        self._every_s = environment.settings.pattern_refresh_ms / 1000
        self._told = ""
        self._changed = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="patterns of topics", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        """End the thread, after the look that it is at."""
        self._closing.set()
        self._thread.join()

    def is_set(self) -> bool:
        """Whether the run is to end."""
        return self._changed.is_set() or self._ending.is_set()

    def wait(self, timeout_s: float) -> None:
        """Wait until other topics match, for that time at most."""
        self._changed.wait(timeout_s)

    def _work(self) -> None:
        while not self._closing.wait(self._every_s):
            if self._has_changed():
                self._changed.set()
                return

    def _has_changed(self) -> bool:
        started = self._started
        try:
            now = matched(with_matches(started.environment, started.topology))
            if now == matched(started.topology):
                return False
            check_run(self._environment, self._topology, RunRequest())
        except StateStoreError as error:
            if str(error) != self._told:
                self._told = str(error)
                _log.warning("the run goes on with the topics that matched at its start: %s", error)
            return False
        _log.info("other topics match the patterns of sources: the run begins anew with them")
        return True
