"""What one slot does: it serves stream tasks, each to its end or all in turn for a while.

A slot is one Spark task, or the whole process under `statestore run`. The garbage collector is off
while records move: batches make no cycles, and its pauses grow with the number of live records.
"""

import gc
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from statestore.errors import Misuse
from statestore.ports import Clock
from statestore.tasks.plan import Standing, TaskReport
from statestore.tasks.progress import ProgressFile
from statestore.tasks.task import StreamTask

_POLL_MS = 200
_STEPS_PER_COLLECTION = 200


_TOLD_EVERY_S = 1.0
Tell = Callable[[Sequence[Standing]], None]
"""Is told about once a second how far the tasks are that a slot serves in turn."""


class Served(NamedTuple):
    """A stream task, and the file that tells of its progress."""

    task: StreamTask
    progress: ProgressFile


def serve(
    tasks: Sequence[Served],
    *,
    run_for_ms: int | None,
    stop: threading.Event,
    clock: Clock,
    tell: Tell | None = None,
) -> list[TaskReport]:
    """Run the tasks, in turn for `run_for_ms`, or each to its planned ends (None).

    `stop`: commit, release, return. Misuse if a function of the pipeline calls sys.exit, which
    would let the run end as if all had been done.
    """
    with _collector_off(), _staying():
        if run_for_ms is None:
            for served in tasks:
                _to_its_end(served, stop)
        else:
            _in_turn(tasks, run_for_ms, stop, clock, tell)
    return [served.task.report for served in tasks]


def _to_its_end(served: Served, stop: threading.Event) -> None:
    task, progress = served
    with task:
        progress.write(task.report)
        steps = 0
        while not task.finished() and not stop.is_set():
            task.step(_POLL_MS)
            progress.note(task.report)
            steps += 1
            if steps % _STEPS_PER_COLLECTION == 0:
                gc.collect()
        task.finish()
        progress.write(task.report)


def _in_turn(
    tasks: Sequence[Served],
    run_for_ms: int,
    stop: threading.Event,
    clock: Clock,
    tell: Tell | None,
) -> None:
    deadline_s = clock.monotonic() + run_for_ms / 1000
    with ExitStack() as open_tasks:
        for task, progress in tasks:
            open_tasks.enter_context(task)
            progress.write(task.report)
        # Busy neighbours must not wait for an idle one: share the poll time.
        poll_ms = max(5, _POLL_MS // (4 * len(tasks)))
        steps, told_s = 0, float("-inf")
        while clock.monotonic() < deadline_s and not stop.is_set():
            for task, progress in tasks:
                task.step(poll_ms)
                progress.note(task.report)
            if tell is not None and clock.monotonic() - told_s >= _TOLD_EVERY_S:
                told_s = clock.monotonic()
                tell([task.standing() for task, _ in tasks])
            steps += 1
            if steps % _STEPS_PER_COLLECTION == 0:
                gc.collect()
        for task, progress in tasks:
            task.finish()
            progress.write(task.report)


@contextmanager
def _staying() -> Iterator[None]:
    try:
        yield
    except SystemExit as left:
        place = traceback.extract_tb(left.__traceback__)[-1]
        raise Misuse(
            f"sys.exit({left.code!r}) was called from within the pipeline, by {place.name} "
            f"({place.filename}:{place.lineno}): what was not committed is dropped; raise an "
            "exception to refuse a record, and let a run end by its planned end, --run-for or "
            "SIGTERM"
        ) from left


@contextmanager
def _collector_off() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
