"""Serves the stream tasks of one slot: each to its end, or all in turn for some time.

A slot is one Spark task, or the whole process under `statestore run`. The garbage collector is off
while records move: batches make no cycles, and its pauses grow with the number of live records.

In a continuous run the slot waits for the input of all its tasks at once, if the client can tell
when there is some. Then each task that has some processes it, and those whose commits are due
commit side by side.

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
from statestore.tasks import kept_memory
from statestore.tasks.history import WorkHistory
from statestore.tasks.plan import Standing, TaskReport
from statestore.tasks.progress_file import ProgressFile
from statestore.tasks.steps import together
from statestore.tasks.task import StreamTask

_POLL_MS = 200
_STEPS_PER_COLLECTION = 200
# How often a task is looked at though nothing came: one that has work to do, and one at rest. Of
# many tasks, each is looked at less often.
_LOOK_MS = 50
_LOOK_AT_REST_MS = 250
_LOOK_EACH_MS = 2
_LOOK_MAX_MS = 1000
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
    with _collector_off(), kept_memory.kept(), _staying(), _Lives(tasks) as lives:
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
                _collect()
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
        turns = _Turns(lives.tasks, clock, tell, between)
        steps = 0
        while clock.monotonic() < deadline_s and not stop.is_set():
            turns.take()
            steps += 1
            if steps % _STEPS_PER_COLLECTION == 0:
                _collect()
        for served in lives.tasks:
            served.task.finish()
            served.write(tell)


class _Turns:
    """The turns of tasks that run for some time.

    Whoever has input, or something that is due, gets the next turn; the others cost nothing
    meanwhile, but all are looked at now and then. A task is named by its place.
    """

    def __init__(
        self, tasks: Sequence[Served], clock: Clock, tell: Tell, between: Callable[[], None]
    ) -> None:
        self._tasks = tasks
        self._clock = clock
        self._tell = tell
        self._between = between
        self._least_ms = min(len(tasks) * _LOOK_EACH_MS, _LOOK_MAX_MS)
        self._poll = select.poll()
        self._sockets: list[Sequence[int]] = [()] * len(tasks)
        self._of_socket: dict[int, int] = {}
        self._due_s = [-math.inf] * len(tasks)
        self._has_rested = [False] * len(tasks)
        self._can_wait = True
        for place in range(len(tasks)):
            self._wait_for(place)

    def take(self) -> None:
        """Wait for something to do, not for long, and do it."""
        if self._can_wait:
            self._side_by_side(self._ready())
        else:
            self._one_by_one()

    def _ready(self) -> list[int]:
        """Wait until some tasks may have something to do, not for long, and return which."""
        left_ms = 1000 * (min(self._due_s) - self._clock.monotonic())
        readable = self._poll.poll(math.ceil(min(max(left_ms, 0), _LOOK_MS)))
        now_s = self._clock.monotonic()
        found = {self._of_socket[number] for number, _ in readable}
        found.update(place for place, due_s in enumerate(self._due_s) if due_s <= now_s)
        return sorted(found)

    def _wait_for(self, place: int) -> None:
        """Note what a task waits for from now on, or that tasks can only be polled."""
        task = self._tasks[place].task
        # After a commit it is looked at once more, for those who follow its commits.
        is_resting, self._has_rested[place] = self._has_rested[place], task.is_at_rest
        is_resting &= self._has_rested[place]
        limit_ms = max(self._least_ms, _LOOK_AT_REST_MS if is_resting else _LOOK_MS)
        arrival = task.arrival(limit_ms)
        if arrival is None:
            self._can_wait = False
            return
        if arrival.sockets != self._sockets[place]:
            for number in self._sockets[place]:
                # One that was closed may be another task's by now.
                if self._of_socket.get(number) == place:
                    del self._of_socket[number]
                    self._poll.unregister(number)
            for number in arrival.sockets:
                self._of_socket[number] = place
                self._poll.register(number, select.POLLIN)
            self._sockets[place] = arrival.sockets
        within_s = min(arrival.within_s, limit_ms / 1000)
        self._due_s[place] = self._clock.monotonic() + within_s

    def _side_by_side(self, ready: Sequence[int]) -> None:
        """Have these tasks process what has come, then commit those that are due together."""
        worked: list[int] = []
        since_s = self._clock.monotonic()
        for place in ready:
            self._between()
            self._tasks[place].task.work(0)
            worked.append(place)
            # A result must not wait long for what other tasks process.
            if self._clock.monotonic() - since_s > _TOGETHER_S:
                self._commit(worked)
                worked, since_s = [], self._clock.monotonic()
        self._commit(worked)

    def _commit(self, worked: Sequence[int]) -> None:
        """Commit what is due; if anything is, then also what will be due soon."""
        tasks, moved = [served.task for served in self._tasks], set(worked)
        if any(tasks[place].commit_is_due() for place in worked):
            moved.update(place for place, task in enumerate(tasks) if task.has_open)
            together([tasks[place].committing() for place in sorted(moved)])
            for place in moved:
                self._has_rested[place] = False
        for place in sorted(moved):
            self._tasks[place].note(self._tell)
            self._wait_for(place)
        if worked and tasks[worked[0]].others_are_asked:
            # One of them holds the memory that these need.
            self._due_s = [-math.inf] * len(tasks)

    def _one_by_one(self) -> None:
        """Have each task poll, process and commit."""
        # Tasks with input must not wait for an idle one, so they share the poll time.
        poll_ms = max(5, _LOOK_MS // len(self._tasks))
        for served in self._tasks:
            self._between()
            served.task.step(poll_ms)
            served.note(self._tell)


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


def _collect() -> None:
    """Free what the tasks no longer have."""
    gc.collect()
    kept_memory.trim()


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
