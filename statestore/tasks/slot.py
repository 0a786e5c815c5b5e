"""Serves the stream tasks of one slot: each to its end, or all in turn for some time.

A slot is one Spark task, or the whole process under `statestore run`. The garbage collector is off
while records move: batches make no cycles, and its pauses grow with the number of live records.

In a continuous run the slot waits for the input of all its tasks at once, if the client can tell
when there is some. Then each task processes what it has, and those whose commits are due commit
side by side.

A task begins and ends with many waits for brokers. Several tasks therefore begin and end side by
side, and beside what the slot processes; but all that calls a user's code is left to the thread of
the slot.
"""

import gc
import math
import select
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Final, NamedTuple, Protocol, Self

from statestore.errors import Misuse
from statestore.ports import Clock
from statestore.tasks.history import WorkHistory
from statestore.tasks.plan import Standing, TaskReport
from statestore.tasks.progress_file import ProgressFile
from statestore.tasks.steps import together
from statestore.tasks.task import StreamTask

_POLL_MS = 200
_STEPS_PER_COLLECTION = 200
# Once tasks have processed for so long, they commit before others process.
_TOGETHER_S = 0.02
_SIDE_BY_SIDE = 4
"""How many tasks of a slot begin or end at once."""
FOREVER_MS: Final = 253_402_300_799_999
"""The longest that a slot serves its tasks in turn: longer than any clock runs."""


class Ending(Protocol):
    """Tells whether a run is to end after its next commit: a threading.Event, for one."""

    def is_set(self) -> bool: ...


Tell = Callable[[Standing], None]
"""Receives about once a second the standing of each stream task that a slot serves."""


class Served(NamedTuple):
    """A stream task, and the files in which people see how it is and how it was."""

    task: StreamTask
    progress: ProgressFile
    history: WorkHistory

    def begin(self, tell: Tell) -> None:
        """Tell how far the task is at its start."""
        self.progress.begin(self.task.committed_tally())
        self.write(tell)

    def note(self, tell: Tell) -> None:
        """Tell how far the task has come, about once a second, and after its first commit."""
        standing = self.progress.note(self.task.report, self.task.standing)
        if standing is not None:
            self.history.note(self.task.report, standing)
            tell(standing)

    def write(self, tell: Tell) -> None:
        """Tell how far the task has come now, as at its end."""
        standing = self.task.standing()
        self.progress.write(self.task.report, standing)
        self.history.write(self.task.report, standing)
        tell(standing)


def serve(
    tasks: Sequence[Served],
    *,
    run_for_ms: int | None,
    stop: Ending,
    clock: Clock,
    tell: Tell,
    between: Callable[[], None],
) -> list[TaskReport]:
    """Run the tasks in turn for `run_for_ms`; if that is None, run each to its planned ends.

    `between` is called between two steps of tasks that run in turn.
    Once `stop` is set, they commit and release, and the call returns. Misuse if a function of the
    pipeline calls sys.exit, which would end the run as if everything had been done.
    """
    with _collector_off(), _staying(), _Lives(tasks) as lives:
        if run_for_ms is None:
            for served in tasks:
                if not stop.is_set():
                    _to_its_end(served, lives, stop, tell)
        else:
            _in_turn(lives, run_for_ms, stop, clock, tell, between)
    return [served.task.report for served in tasks]


class _Lives:
    """Begins and ends the tasks of a slot, in their order; use `with`."""

    def __init__(self, tasks: Sequence[Served]) -> None:
        self.tasks = tasks
        self._next = 0
        self._preparing: dict[StreamTask, Future[None]] = {}
        self._releasing: list[Future[None]] = []
        self._threads = ThreadPoolExecutor(_SIDE_BY_SIDE, thread_name_prefix="stream tasks")

    @contextmanager
    def of(self, task: StreamTask) -> Iterator[None]:
        """Have the next task started, and closed in the end."""
        self._prepare_ahead()
        prepared = self._preparing.get(task)
        try:
            if prepared is None:
                task.prepare()
            else:
                prepared.result()
                del self._preparing[task]
            self._prepare_ahead()
            task.begin()
            yield
        finally:
            # After an interrupt it may still be under way; it is released when that has ended.
            if task not in self._preparing:
                task.end()
                self._release(task)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_exc: object) -> None:
        """Wait until all tasks are closed; raise what that met, unless something was raised."""
        for task, prepared in self._preparing.items():
            if not prepared.cancel():
                prepared.exception()  # whatever it met: the task is not served
                task.close()
        self._threads.shutdown()
        if kind is None:
            for released in self._releasing:
                released.result()

    def _prepare_ahead(self) -> None:
        """Prepare the tasks that come next, a few at once."""
        while self._next < len(self.tasks) and len(self._preparing) < _SIDE_BY_SIDE:
            task = self.tasks[self._next].task
            self._next += 1
            if self._may_be_elsewhere(task):
                self._preparing[task] = self._threads.submit(task.prepare)

    def _release(self, task: StreamTask) -> None:
        if self._may_be_elsewhere(task):
            self._releasing.append(self._threads.submit(task.release))
        else:
            task.release()

    def _may_be_elsewhere(self, task: StreamTask) -> bool:
        return len(self.tasks) > 1 and task.is_prepared_anywhere


def _to_its_end(served: Served, lives: _Lives, stop: Ending, tell: Tell) -> None:
    task = served.task
    with lives.of(task):
        served.begin(tell)
        steps = 0
        while not task.finished() and not stop.is_set():
            task.step(_POLL_MS)
            served.note(tell)
            steps += 1
            if steps % _STEPS_PER_COLLECTION == 0:
                gc.collect()
        task.finish()
        served.write(tell)


def _in_turn(
    lives: _Lives,
    run_for_ms: int,
    stop: Ending,
    clock: Clock,
    tell: Tell,
    between: Callable[[], None],
) -> None:
    deadline_s = clock.monotonic() + run_for_ms / 1000
    with ExitStack() as open_tasks:
        for served in lives.tasks:
            if stop.is_set():
                return
            open_tasks.enter_context(lives.of(served.task))
            served.begin(tell)
        # A collection looks at what came since: with all that was imported it takes 60 ms.
        gc.freeze()
        steps = 0
        while clock.monotonic() < deadline_s and not stop.is_set():
            if _await_any(lives.tasks):
                _side_by_side(lives.tasks, clock, tell, between)
            else:
                _one_by_one(lives.tasks, tell, between)
            steps += 1
            if steps % _STEPS_PER_COLLECTION == 0:
                gc.collect()
        for served in lives.tasks:
            served.task.finish()
            served.write(tell)


def _await_any(tasks: Sequence[Served]) -> bool:
    """Wait until a task may have something to do, not for long; False: they can only be polled."""
    limit_ms = _POLL_MS // 4
    until_s = limit_ms / 1000
    poll = select.poll()
    for served in tasks:
        arrival = served.task.arrival(limit_ms)
        if arrival is None:
            return False
        until_s = min(until_s, arrival.within_s)
        for number in arrival.sockets:
            poll.register(number, select.POLLIN)
    if until_s > 0:
        poll.poll(math.ceil(until_s * 1000))
    return True


def _one_by_one(tasks: Sequence[Served], tell: Tell, between: Callable[[], None]) -> None:
    """Have each task poll, process and commit."""
    # Tasks with input must not wait for an idle one, so they share the poll time.
    poll_ms = max(5, _POLL_MS // (4 * len(tasks)))
    for served in tasks:
        between()
        served.task.step(poll_ms)
        served.note(tell)


def _side_by_side(
    tasks: Sequence[Served], clock: Clock, tell: Tell, between: Callable[[], None]
) -> None:
    """Have each task process what has come, then commit those that are due together."""
    worked: list[Served] = []
    since_s = clock.monotonic()
    for served in tasks:
        between()
        served.task.work(0)
        worked.append(served)
        # A result must not wait long for what other tasks process.
        if clock.monotonic() - since_s > _TOGETHER_S:
            _commit(worked, tell)
            worked, since_s = [], clock.monotonic()
    _commit(worked, tell)


def _commit(tasks: Sequence[Served], tell: Tell) -> None:
    """Commit what is due; if anything is, then also what will be due soon."""
    if any(served.task.commit_is_due() for served in tasks):
        together([served.task.committing() for served in tasks])
    for served in tasks:
        served.note(tell)


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
        gc.unfreeze()
        if was_on:
            gc.enable()
