"""Flushes open stores that nobody writes to any more, where no stream task does it (SEMANTICS S10).

One daemon thread a process, begun with the first store watched.
"""

import functools
import logging
import os
import threading
import weakref

from statestore.errors import StateStoreError
from statestore.stores.transaction import StagedEngine

_log = logging.getLogger(__name__)
_AFTER_FAILURE_MS = 1000
_AT_MOST_MS = 3_600_000


def watch(staged: StagedEngine) -> None:
    """Flush `staged` in time until it is closed or dropped."""
    _watcher(os.getpid()).add(staged)


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
