"""How much may be committed but not durable, and the threads that flush it (SEMANTICS S10).

A store is flushed after a commit that reaches a limit, and while it is idle. If no stream task
watches idle stores, one daemon thread of the process does; it starts with the first such store.
"""

import contextlib
import functools
import logging
import os
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from statestore.errors import StateStoreError, log_left
from statestore.ports import Clock

_log = logging.getLogger(__name__)
_AFTER_FAILURE_MS = 1000
_AT_MOST_MS = 3_600_000


@dataclass(frozen=True)
class LagLimits:
    """How much may be committed but not durable before a flush is forced.

    Bytes are those of keys and values, which is what a restore reads. The commit that reaches a
    limit requests the flush, and the next commit waits for it.
    """

    max_bytes: int
    max_records: int
    max_ms: int


class FlushLag:
    """What one store has committed since it was last durable."""

    def __init__(self, limits: LagLimits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._size_bytes = 0
        self._records = 0
        self._since_ms: int | None = None

    def add(self, size_bytes: int, records: int) -> None:
        """Count one more commit."""
        self._size_bytes += size_bytes
        self._records += records
        if self._since_ms is None:
            self._since_ms = self._clock.now_ms()

    def clear(self) -> None:
        """Note that everything is durable."""
        self._size_bytes = self._records = 0
        self._since_ms = None

    def is_full(self) -> bool:
        """Return whether nothing more may be committed before a flush."""
        limits = self._limits
        return self._size_bytes >= limits.max_bytes or self._records >= limits.max_records

    def is_due(self) -> bool:
        """Return whether the store must be flushed now."""
        return self.is_full() or self.ms_left() <= 0

    def ms_left(self) -> int:
        """Return the time until the lag is too old; the whole limit if there is no lag."""
        limit = self._limits.max_ms
        return limit if self._since_ms is None else self._since_ms + limit - self._clock.now_ms()


class Flushed(Protocol):
    """A store that other threads flush."""

    @property
    def name(self) -> str: ...
    def is_open(self) -> bool: ...
    def catch_up(self) -> None:
        """Flush if a limit has been reached."""

    def maintain(self) -> int:
        """Flush if the lag is too old; return the ms until it may be."""


def watch(staged: Flushed) -> None:
    """Flush the store in time until it is closed or dropped."""
    _watcher(os.getpid()).add(staged)


def flush_soon(staged: Flushed) -> None:
    """Let another thread flush a store that has reached a limit; its next commit waits for that."""
    # If the interpreter is about to end, the next commit or the close flushes.
    with contextlib.suppress(RuntimeError):
        _flushers(os.getpid()).submit(_caught_up, staged)


def _caught_up(staged: Flushed) -> None:
    try:
        staged.catch_up()
    except StateStoreError as error:
        # The next commit tries again and raises the error.
        if staged.is_open():
            log_left(_log, error, f"store {staged.name!r}: could not flush")


class _Watcher:
    def __init__(self) -> None:
        self._stores: weakref.WeakSet[Flushed] = weakref.WeakSet()
        self._failures: weakref.WeakKeyDictionary[Flushed, str] = weakref.WeakKeyDictionary()
        self._changed = threading.Condition()
        self._fresh = False
        threading.Thread(target=self._run, name="statestore-idle", daemon=True).start()

    def add(self, staged: Flushed) -> None:
        with self._changed:
            self._stores.add(staged)
            self._fresh = True
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                stores = [staged for staged in self._stores if staged.is_open()]
                self._stores = weakref.WeakSet(stores)
                self._fresh = False
            left_ms = min(map(self._maintained, stores), default=_AT_MOST_MS)
            # A reference kept here would keep the stores alive.
            del stores
            with self._changed:
                if not self._fresh:
                    self._changed.wait(min(left_ms, _AT_MOST_MS) / 1000)

    def _maintained(self, staged: Flushed) -> int:
        try:
            left_ms = staged.maintain()
        except StateStoreError as error:
            # It is tried every second, for hours if a disk is full: the same is told once.
            if staged.is_open() and self._failures.get(staged) != str(error):
                self._failures[staged] = str(error)
                log_left(_log, error, f"store {staged.name!r}: could not flush while idle")
            return _AFTER_FAILURE_MS
        if self._failures.pop(staged, None) is not None:
            _log.info("store %r: flushed again", staged.name)
        return left_ms


@functools.cache
def _watcher(_pid: int) -> _Watcher:
    """One for each process, as threads do not survive a fork."""
    return _Watcher()


@functools.cache
def _flushers(_pid: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(2, thread_name_prefix="statestore-flush")
