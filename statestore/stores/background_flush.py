"""Flushes beside the owner's thread (SEMANTICS S10): behind a commit, and while a store is idle.

Idle stores are watched where no stream task does it, by one daemon thread a process, begun with the
first of them.
"""

import contextlib
import functools
import logging
import os
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

from statestore.errors import StateStoreError
from statestore.stores.transaction import StagedEngine

_log = logging.getLogger(__name__)
_AFTER_FAILURE_MS = 1000
_AT_MOST_MS = 3_600_000


def watch(staged: StagedEngine) -> None:
    """Flush `staged` in time until it is closed or dropped."""
    _watcher(os.getpid()).add(staged)


def flush_soon(staged: StagedEngine) -> None:
    """Let another thread flush what a commit left behind its limits; the next commit waits."""
    # Where the interpreter is about to end, that commit or the close flushes.
    with contextlib.suppress(RuntimeError):
        _flushers(os.getpid()).submit(_caught_up, staged)


def _caught_up(staged: StagedEngine) -> None:
    try:
        staged.catch_up()
    except StateStoreError:
        # The next commit tries again, and raises.
        if staged.is_open():
            _log.warning("store %r: could not flush", staged.name, exc_info=True)


class _Watcher:
    def __init__(self) -> None:
        self._stores: weakref.WeakSet[StagedEngine] = weakref.WeakSet()
        self._changed = threading.Condition()
        self._fresh = False
        threading.Thread(target=self._run, name="statestore-idle", daemon=True).start()

    def add(self, staged: StagedEngine) -> None:
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
            left_ms = min(map(_maintained, stores), default=_AT_MOST_MS)
            # Held on, they would never be dropped.
            del stores
            with self._changed:
                if not self._fresh:
                    self._changed.wait(min(left_ms, _AT_MOST_MS) / 1000)


def _maintained(staged: StagedEngine) -> int:
    try:
        return staged.maintain()
    except StateStoreError:
        if staged.is_open():
            _log.warning("store %r: could not flush while idle", staged.name, exc_info=True)
        return _AFTER_FAILURE_MS


@functools.cache
def _watcher(_pid: int) -> _Watcher:
    """One per process: threads do not survive a fork."""
    return _Watcher()


@functools.cache
def _flushers(_pid: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(2, thread_name_prefix="statestore-flush")
