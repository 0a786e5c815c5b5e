"""How long work shows itself: a bar on a terminal, a plain line every few seconds elsewhere."""

import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

_log = logging.getLogger("statestore")
_EVERY_S = 5.0


class Bar:
    """On a terminal."""

    def __init__(self, progress: Progress, what: str) -> None:
        self._progress = progress
        self._task = progress.add_task(what, total=0)
        self._expected = 0
        self._lock = threading.Lock()

    def expect(self, size_bytes: int) -> None:
        """So much more is to be done."""
        with self._lock:
            self._expected += size_bytes
            self._progress.update(self._task, total=self._expected)

    def done(self, size_bytes: int) -> None:
        """So much more is done."""
        self._progress.advance(self._task, size_bytes)


class Lines:
    """In a log."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._expected = self._done = 0
        self._began_s = self._told_s = time.monotonic()
        self._lock = threading.Lock()

    def expect(self, size_bytes: int) -> None:
        """So much more is to be done."""
        with self._lock:
            self._expected += size_bytes

    def done(self, size_bytes: int) -> None:
        """So much more is done."""
        with self._lock:
            self._done += size_bytes
            now_s = time.monotonic()
            if now_s - self._told_s < _EVERY_S:
                return
            self._told_s = now_s
            rate = self._done / (now_s - self._began_s)
            left_s = (self._expected - self._done) / max(rate, 1e-9)
            line = "%s: %.1f of %.1f MB, %.1f MB/s, %.0f s left"
            _log.info(line, self._what, self._done / 1e6, self._expected / 1e6, rate / 1e6, left_s)


@contextmanager
def shown(what: str) -> Iterator[Bar | Lines]:
    """What to tell of the bytes of some work."""
    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield Lines(what)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        yield Bar(progress, what)
