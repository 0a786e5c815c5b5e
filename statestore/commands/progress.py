"""Shows the progress of long work, and of a run, on stderr: stdout is for results.

On a terminal there is a bar or a live line, elsewhere a plain line in the log now and then. A
thread shows a run, so that people also see that a run stands still: its rate falls, and its last
commit grows older.
"""

import logging
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from statestore.layout.activity_files import RESTORE, Activities, Unit, activity_text, together
from statestore.model.left_out import Cause, Fate
from statestore.model.texts import held_text, span_text, time_text
from statestore.operations.activities import activities_in, catch_up_of, running
from statestore.operations.environment import Environment
from statestore.operations.status.lags import total_of
from statestore.ports import Clock
from statestore.tasks.plan import Standing
from statestore.tasks.slot import Tell

_log = logging.getLogger("statestore")
_EVERY_S = 5.0
_RUN_EVERY_S = 10.0
_RATE_OVER_S = 10.0
_TOGETHER_S = 0.5


class Bar:
    """Shows progress on a terminal."""

    def __init__(self, progress: Progress, what: str) -> None:
        self._progress = progress
        self._task = progress.add_task(what, total=0)
        self._expected = 0
        self._lock = threading.Lock()

    def expect(self, amount: int) -> None:
        """Add to what is to be done."""
        with self._lock:
            self._expected += amount
            self._progress.update(self._task, total=self._expected)

    def done(self, amount: int) -> None:
        """Add to what is done."""
        self._progress.advance(self._task, amount)


class Lines:
    """Shows progress in a log."""

    def __init__(self, what: str, unit: Unit) -> None:
        self._what = what
        self._unit = unit
        self._expected = self._done = 0
        self._began_s = self._told_s = time.monotonic()
        self._lock = threading.Lock()

    def expect(self, amount: int) -> None:
        """Add to what is to be done."""
        with self._lock:
            self._expected += amount

    def done(self, amount: int) -> None:
        """Add to what is done."""
        with self._lock:
            self._done += amount
            now_s = time.monotonic()
            if now_s - self._told_s < _EVERY_S:
                return
            self._told_s = now_s
            rate = self._done / (now_s - self._began_s)
            left_s = max(0, self._expected - self._done) / max(rate, 1e-9)
            text = activity_text(self._unit, self._done, self._expected, rate, left_s)
            _log.info("%s: %s", self._what, text)


@contextmanager
def shown_progress(what: str, unit: Unit = Unit.BYTES) -> Iterator[Bar | Lines]:
    """Show the progress of some work."""
    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield Lines(what, unit)
        return
    counts: tuple[ProgressColumn, ...] = (DownloadColumn(), TransferSpeedColumn())
    if unit is not Unit.BYTES:
        counts = (MofNCompleteColumn(), TextColumn(unit))
    columns = (TextColumn("{task.description}"), BarColumn(), *counts, TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        yield Bar(progress, what)


class RunProgress:
    """What the stream tasks of a run told last, in one line. Any thread may ask for it."""

    def __init__(
        self, clock: Clock, activities: Activities | None = None, *, bounded: bool = False
    ) -> None:
        """`activities`: where stream tasks tell how far their restores are.

        `bounded`: stream tasks begin one after the other, so the whole lag is not known.
        """
        self._clock = clock
        self._activities = activities
        self._bounded = bounded
        self._told: dict[str, Standing] = {}
        self._total = 0
        self._records: deque[tuple[float, int]] = deque()
        self._lock = threading.Lock()

    def note(self, standing: Standing) -> None:
        """Note where a stream task is now."""
        now_s, task = self._clock.monotonic(), standing.stream_task
        with self._lock:
            before = self._told.get(task)
            self._told[task] = standing
            self._total += standing.records - (0 if before is None else before.records)
            while self._records and self._records[0][0] < now_s - _RATE_OVER_S:
                self._records.popleft()
            # Stream tasks tell at about the same time, and the rate is that of all together.
            if self._records and now_s - self._records[-1][0] < _TOGETHER_S:
                now_s, _ = self._records.pop()
            self._records.append((now_s, self._total))

    def line(self) -> str:
        """The line for people; it says what is not known."""
        with self._lock:
            told, noted = list(self._told.values()), list(self._records)
        restoring = [] if self._activities is None else _restoring(self._activities)
        if not told:
            return "; ".join(restoring) or "opening and restoring stores"
        now_s = self._clock.monotonic()
        (first_s, first), (last_s, last) = noted[0], noted[-1]
        # It includes the time since the last note: tasks may have told nothing for long.
        rate = max(0, last - first) / max(now_s - first_s, 1e-9)
        if now_s - last_s > _RATE_OVER_S:
            rate = 0.0
        parts = [
            *restoring,
            f"{rate:,.0f} records/s",
            f"{last:,} records so far" if self._bounded else _lag_text(told),
            *_event_time(told),
            self._commit_text(told),
            *_held(told),
            *_dropped(told),
        ]
        return ", ".join(parts)

    def _commit_text(self, told: list[Standing]) -> str:
        """The age of the latest commit of all: a stream task without input commits nothing."""
        times = [one.last_commit_ms for one in told if one.last_commit_ms is not None]
        if not times:
            return "no commit yet"
        age_s = max(0, self._clock.now_ms() - max(times)) / 1000
        return f"last commit {span_text(age_s)} ago"


def _lag_text(told: list[Standing]) -> str:
    lag = total_of(one.lag_records for one in told)
    return "lag not known" if lag is None else f"{lag:,} records behind"


def _event_time(told: list[Standing]) -> list[str]:
    """The latest of all: an input without new records has an old one."""
    times = [one.stream_time_ms for one in told if one.stream_time_ms is not None]
    return [f"event time {time_text(max(times))}"] if times else []


def _held(told: list[Standing]) -> list[str]:
    held = sum(one.held_records for one in told)
    return [held_text(held)] if held else []


def _dropped(told: list[Standing]) -> list[str]:
    reasons = Counter[str]()
    for one in told:
        for name, count in one.left_out.items():
            cause = Cause.parse(name)
            if cause is not None and cause.fate is Fate.DROPPED:
                reasons[cause.reason] += count
    each = [f"{count:,} {reason.replace('_', ' ')}" for reason, count in reasons.most_common()]
    return [f"dropped: {', '.join(each)}"] if each else []


@contextmanager
def shown_run(clock: Clock, activities: Activities, *, bounded: bool) -> Iterator[Tell]:
    """Show how a run gets on; the stream tasks tell the function that this gives."""
    console, progress = Console(file=sys.stderr), RunProgress(clock, activities, bounded=bounded)
    if console.is_terminal:
        with Live(
            console=console,
            get_renderable=lambda: Text(progress.line(), no_wrap=True, overflow="ellipsis"),
            refresh_per_second=1,
            transient=True,
            # What a pipeline prints goes where it was sent.
            redirect_stdout=sys.stdout.isatty(),
        ):
            yield progress.note
        return
    with _logged(lambda: [progress.line()]):
        yield progress.note


@contextmanager
def logged_activities(environment: Environment) -> Iterator[None]:
    """Log how far the activities of an application are that other processes have, as Spark's."""
    activities = activities_in(environment)

    def lines() -> Iterator[str]:
        adds = together(activities.seen())
        if (catching_up := catch_up_of(running(environment))) is not None:
            adds.append(catching_up)
        for each in adds:
            yield f"{each.kind}: {each.text()}"

    with _logged(lines):
        yield


def _restoring(activities: Activities) -> list[str]:
    return [
        f"{one.kind}: {one.text()}" for one in together(activities.seen()) if one.kind == RESTORE
    ]


@contextmanager
def _logged(lines: Callable[[], Iterable[str]]) -> Iterator[None]:
    """Log these lines every few seconds."""
    ended = threading.Event()

    def log_lines() -> None:
        while not ended.wait(_RUN_EVERY_S):
            for line in lines():
                _log.info("%s", line)

    thread = threading.Thread(target=log_lines, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
