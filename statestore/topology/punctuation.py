"""Punctuations: functions that a stream task calls by time (INTERFACE rule 7).

By stream time, a punctuation fires right after the first record of all, and then after each record
with which stream time reaches a multiple of the interval since the epoch, only once if it passes
several multiples. A batch is cut at that record, so a replay fires at the very same records; a
start goes on from the stream time that was committed. One that is scheduled while records are
processed first fires after the next record that moves stream time. By wall-clock time, a
punctuation first fires an interval after it was scheduled, and then once per interval, however many
intervals passed meanwhile. One with a start fires at the start and at multiples of the interval
after it; by wall-clock time, those that have passed when it is scheduled are left out.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from statestore.errors import Misuse
from statestore.model.ids import TopicPartition
from statestore.model.modes import PunctuationType, Span, span_ms

Fire = Callable[[int], None]


class Firing(NamedTuple):
    """One call of one punctuation, the `number`th that its node has scheduled, from 0.

    By stream time, `after` is the record with which the time was reached; by wall-clock time, None.
    """

    node: str
    number: int
    after: tuple[TopicPartition, int] | None


RunFiring = Callable[[Firing, Fire, int], bool]
"""Calls the function with the time; returns False if it leaves out a call that failed before."""


def run_plainly(_firing: Firing, fire: Fire, time_ms: int) -> bool:
    """Call the function; leave out nothing."""
    fire(time_ms)
    return True


class Alarm(Protocol):
    """The timers of a node, which are due at times of their own (topology/processors/timers.py)."""

    @property
    def next_ms(self) -> int:
        """A time before which nothing is due by stream time."""

    def stream_time_rose(self, now_ms: int) -> None:
        """Fire what is due before that stream time."""

    def stream_time_nears(self, now_ms: int) -> bool:
        """Fire some of what is due before that stream time; return whether some may be left."""

    def wall_clock_due_ms(self) -> int:
        """Return a time before which nothing is due by the wall clock."""

    def wall_clock_is(self, now_ms: int) -> None:
        """Fire what is due by the wall clock, within bounds."""


class Punctuation:
    """A scheduled function, until it is cancelled.

    By stream time it is due at `start_ms`, and each `interval_ms` after that; by wall-clock time,
    next at `due_ms`. `begun` False: it is due as soon as stream time moves.
    """

    __slots__ = (
        "active",
        "armed",
        "begun",
        "due_ms",
        "fire",
        "interval_ms",
        "node",
        "number",
        "opens",
        "start_ms",
    )

    def __init__(
        self, node: str, number: int, interval_ms: int, fire: Fire, *, start_ms: int, begun: bool
    ) -> None:
        self.node = node
        self.number = number
        self.interval_ms = interval_ms
        self.fire = fire
        self.start_ms = start_ms
        self.begun = begun
        self.due_ms = start_ms
        self.armed = False
        self.opens = False
        self.active = True

    def next_ms(self, now_ms: int) -> int:
        """Return when it is due after that time."""
        passed = self._passed(now_ms)
        return self.start_ms + (passed + 1) * self.interval_ms

    def is_due(self, before_ms: int | None, now_ms: int) -> bool:
        """Return whether it is due as stream time rises; `before_ms` None: from nothing."""
        known = self.begun and before_ms is not None
        return self._passed(now_ms) > (self._passed(before_ms) if known else -1)  # type: ignore[arg-type]  # known

    def _passed(self, now_ms: int) -> int:
        """Return how many times it was due after its start until then; -1: it has not begun."""
        return max((now_ms - self.start_ms) // self.interval_ms, -1)

    def cancel(self) -> None:
        """Stop firing; it may be called by the function itself, and more than once."""
        self.active = False


class Punctuations:
    """The punctuations of one stream task, from its opening to its close.

    `has_fired` says whether one was called since it was last set to False.
    """

    def __init__(self, run: RunFiring = run_plainly) -> None:
        self._run = run
        self._numbers: Counter[str] = Counter()
        self._stream: list[Punctuation] = []
        self._wall: list[Punctuation] = []
        self._alarms: list[Alarm] = []
        self._opening = True
        self._opened_ms = 0
        self.has_fired = False

    def add(
        self,
        node: str,
        interval: Span,
        kind: PunctuationType,
        fire: Fire,
        now_ms: int,
        start_ms: int | None = None,
    ) -> Punctuation:
        """Schedule a punctuation; Misuse unless the interval is at least a millisecond.

        `start_ms`: the time of the first call; None: the epoch by stream time, or an interval from
        now.
        """
        interval_ms = span_ms(interval)
        if interval_ms < 1:
            raise Misuse(
                f"schedule: the interval is {interval_ms} ms, but it must be at least 1 ms"
            )
        made = Punctuation(
            node,
            self._numbers[node],
            interval_ms,
            fire,
            start_ms=start_ms or 0,
            begun=self._opening or start_ms is not None,
        )
        self._numbers[node] += 1
        match PunctuationType(kind):
            case PunctuationType.STREAM_TIME:
                self._stream.append(made)
            case PunctuationType.WALL_CLOCK_TIME:
                made.due_ms = now_ms + interval_ms
                if start_ms is not None:
                    made.due_ms = start_ms if start_ms >= now_ms else made.next_ms(now_ms)
                made.opens = self._opening and made.due_ms <= now_ms
                self._wall.append(made)
        return made

    def keep_alarm(self, alarm: Alarm) -> None:
        """Have the timers of a node fired, before those of the nodes that were made earlier."""
        self._alarms.insert(0, alarm)

    @property
    def has_alarms(self) -> bool:
        """Whether any node has timers."""
        return bool(self._alarms)

    @property
    def by_stream(self) -> bool:
        """Whether anything is scheduled by stream time."""
        return bool(self._stream)

    def timers_due(self, now_ms: int) -> bool:
        """Return whether a timer may be due before that stream time."""
        return any(alarm.next_ms < now_ms for alarm in self._alarms)

    def opened(self, now_ms: int) -> None:
        """Note that all processors are made."""
        self._opening = False
        self._opened_ms = now_ms

    def clear(self) -> None:
        """Cancel all punctuations, because the task closes."""
        self._alarms.clear()
        for one in self._stream + self._wall:
            one.cancel()

    def cut(self, stream_time_ms: int | None, times: Sequence[int], start: int) -> int:
        """Return the end of the records from `start` that may pass before the next punctuation.

        What is scheduled while they pass counts from the next record on.
        """
        active = self._stream = [one for one in self._stream if one.active]
        if not active:
            return len(times)
        for one in active:
            one.armed = True
        if stream_time_ms is None:
            return start + 1
        now_ms = stream_time_ms
        due_ms = min(one.next_ms(now_ms) if one.begun else now_ms + 1 for one in active)
        reached = (i for i in range(start, len(times)) if times[i] >= due_ms)
        return next(reached, len(times) - 1) + 1

    def stream_time_rose(
        self, before_ms: int | None, now_ms: int, after: tuple[TopicPartition, int]
    ) -> None:
        """Fire what is due after the record `after`; `before_ms` None: it is the first one."""
        for one in self._stream.copy():
            if one.armed and one.active and one.is_due(before_ms, now_ms):
                one.begun = True
                self._fire(one, now_ms, after)

    def timers_pass(self, now_ms: int) -> None:
        """Fire the timers that are due before that stream time."""
        for alarm in self._alarms:
            alarm.stream_time_rose(now_ms)

    def timers_near(self, now_ms: int) -> bool:
        """Fire some of the timers due before that stream time; return whether some may be left."""
        return any(alarm.stream_time_nears(now_ms) for alarm in self._alarms)

    def wall_clock_due(self, now_ms: int) -> bool:
        """Return whether `wall_clock_is` would fire something."""
        return any(one.active and one.due_ms <= now_ms for one in self._wall) or any(
            alarm.wall_clock_due_ms() <= now_ms for alarm in self._alarms
        )

    def wall_clock_is(self, now_ms: int) -> None:
        """Fire what is due by wall-clock time."""
        for alarm in self._alarms:
            alarm.wall_clock_is(now_ms)
        for one in self._wall.copy():
            if one.active and one.due_ms <= now_ms:
                passed = (now_ms - one.due_ms) // one.interval_ms
                one.due_ms += (passed + 1) * one.interval_ms
                one.armed = True
                self._fire(one, now_ms, None)
        self._wall = [one for one in self._wall if one.active]

    def wait_ms(self, now_ms: int, limit_ms: int) -> int:
        """Return for how long nothing will be due, at most `limit_ms`."""
        due_ms = [one.due_ms for one in self._wall if one.active]
        due_ms += [alarm.wall_clock_due_ms() for alarm in self._alarms]
        return max(0, min(min(due_ms, default=now_ms + limit_ms) - now_ms, limit_ms))

    def all_opened(self) -> bool:
        """Return whether all that was due when the task opened has fired, by the wall clock."""
        return all(one.armed or not (one.opens and one.active) for one in self._wall) and all(
            alarm.wall_clock_due_ms() > self._opened_ms for alarm in self._alarms
        )

    def _fire(
        self, one: Punctuation, time_ms: int, after: tuple[TopicPartition, int] | None
    ) -> None:
        firing = Firing(one.node, one.number, after)
        self.has_fired = self._run(firing, one.fire, time_ms) or self.has_fired
