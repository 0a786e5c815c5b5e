"""How a continuous run shows itself: a live line on a terminal, a plain one now and then elsewhere.

On stderr in either case: stdout is for the summary. A thread shows it, so that a run that stands
still is seen to: its rate falls, and its last commit grows old.
"""

import logging
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.text import Text

from statestore.commands.printing import held_text, span_text
from statestore.operations.lags import total_of
from statestore.ports import Clock
from statestore.tasks.plan import Standing
from statestore.tasks.slot import Tell

_log = logging.getLogger("statestore")
_EVERY_S = 10.0
_RATE_OVER_S = 10.0


class RunProgress:
    """What was told last of the stream tasks of a run, in a line; any thread may ask for it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told: Sequence[Standing] = ()
        self._records: deque[tuple[float, int]] = deque()
        self._lock = threading.Lock()

    def note(self, standings: Sequence[Standing]) -> None:
        """Where its stream tasks are now."""
        now_s, records = self._clock.monotonic(), sum(one.records for one in standings)
        with self._lock:
            self._told = standings
            while self._records and self._records[0][0] < now_s - _RATE_OVER_S:
                self._records.popleft()
            self._records.append((now_s, records))

    def line(self) -> str:
        """For people; what is not known is said to be."""
        with self._lock:
            told, noted = self._told, list(self._records)
        if not told:
            return "opening and restoring stores"
        now_s = self._clock.monotonic()
        (first_s, first), (last_s, last) = noted[0], noted[-1]
        # Over what has passed since, too: nothing may have been told for long.
        rate = max(0, last - first) / max(now_s - first_s, 1e-9)
        if now_s - last_s > _RATE_OVER_S:
            rate = 0.0
        lag = total_of(one.lag_records for one in told)
        parts = [
            f"{rate:,.0f} records/s",
            "lag not known" if lag is None else f"{lag:,} records behind",
            self._commit_text(told),
        ]
        held = sum(one.held_records for one in told)
        return ", ".join([*parts, *([held_text(held)] if held else [])])

    def _commit_text(self, told: Sequence[Standing]) -> str:
        """The latest of all: a stream task without input commits nothing."""
        times = [one.last_commit_ms for one in told if one.last_commit_ms is not None]
        if not times:
            return "no commit yet"
        age_s = max(0, self._clock.now_ms() - max(times)) / 1000
        return f"last commit {span_text(age_s)} ago"


@contextmanager
def shown_run(clock: Clock) -> Iterator[Tell]:
    """Whom to tell of a continuous run while it goes on."""
    console, progress = Console(file=sys.stderr), RunProgress(clock)
    if console.is_terminal:
        with Live(
            console=console,
            get_renderable=lambda: Text(progress.line(), no_wrap=True, overflow="ellipsis"),
            refresh_per_second=1,
            transient=True,
            # What a pipeline prints goes where it is sent.
            redirect_stdout=sys.stdout.isatty(),
        ):
            yield progress.note
        return
    ended = threading.Event()

    def log_lines() -> None:
        while not ended.wait(_EVERY_S):
            _log.info("%s", progress.line())

    thread = threading.Thread(target=log_lines, name="progress", daemon=True)
    thread.start()
    try:
        yield progress.note
    finally:
        ended.set()
        thread.join()
