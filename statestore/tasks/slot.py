"""What one slot does: serve stream tasks, each to its end or all in turn for a while.

A slot is one Spark task, or this process under `statestore run`. The garbage collector is off while
records move: batches make no cycles, and its pauses grow with the records alive.
"""

import gc
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from statestore.ports import Clock
from statestore.tasks.lifecycle import StreamTask
from statestore.tasks.plan import TaskReport

_POLL_MS = 200
_STEPS_PER_COLLECTION = 200


def serve(
    tasks: Sequence[StreamTask], *, run_for_ms: int | None, stop: threading.Event, clock: Clock
) -> list[TaskReport]:
    """Run the tasks; `run_for_ms` None: each to its planned ends.

    `stop`: finish the commit, release, return.
    """
    with _collector_off():
        if run_for_ms is None:
            for task in tasks:
                _to_its_end(task, stop)
        else:
            _in_turn(tasks, run_for_ms, stop, clock)
    return [task.report for task in tasks]


def _to_its_end(task: StreamTask, stop: threading.Event) -> None:
    with task:
        steps = 0
        while not task.finished() and not stop.is_set():
            task.step(_POLL_MS)
            steps += 1
            if steps % _STEPS_PER_COLLECTION == 0:
                gc.collect()
        task.finish()


def _in_turn(
    tasks: Sequence[StreamTask], run_for_ms: int, stop: threading.Event, clock: Clock
) -> None:
    deadline_s = clock.monotonic() + run_for_ms / 1000
    with ExitStack() as open_tasks:
        for task in tasks:
            open_tasks.enter_context(task)
        # Busy neighbours must not wait for an idle one: share the poll time.
        poll_ms = max(5, _POLL_MS // (4 * len(tasks)))
        steps = 0
        while clock.monotonic() < deadline_s and not stop.is_set():
            for task in tasks:
                task.step(poll_ms)
            steps += 1
            if steps % _STEPS_PER_COLLECTION == 0:
                gc.collect()
        for task in tasks:
            task.finish()


@contextmanager
def _collector_off() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
