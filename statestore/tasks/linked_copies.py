"""Copies the files that a stream task's stores are linked to, in the background.

A store that was restored onto an export (layout/linked_files.py) works while its files are copied,
one after the other, by a thread of low priority. A stop waits for the file that is being copied, so
that each start copies one at least. What cannot be read is tried again: the store has its files
open meanwhile, and if it cannot read one itself, it is restored from its changelog. A content that
is not what was exported makes the task replace its store.
"""

import logging
import os
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from statestore.errors import HostFailure
from statestore.layout import linked_files
from statestore.layout.activity_files import Activities, Progress, Unit
from statestore.layout.linked_files import LinkBroken, Linked
from statestore.model.ids import TaskId
from statestore.ports import Clock

_log = logging.getLogger(__name__)
_AGAIN_S: Final = 10.0
_NICE: Final = 10
_TELL_AFTER_S: Final = 0.5
_RENEWED_AFTER_S: Final = 86_400.0
_AT_ONCE = threading.BoundedSemaphore(2)
"""How many stream tasks of a process copy at once."""


class _Store(NamedTuple):
    name: str
    folder: Path
    linked: Linked


class LinkedCopies:
    """The copying of one stream task; one thread calls it."""

    def __init__(self, task_id: TaskId, activities: Activities, clock: Clock) -> None:
        self._task_id = task_id
        self._activities = activities
        self._clock = clock
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._broken: LinkBroken | None = None
        self._told: set[str] = set()
        self._any = False
        """Whether this start has copied a file."""

    def begin(self, folders: Mapping[str, Path]) -> None:
        """Copy what these stores, by name, are linked to, unless that goes on already."""
        if self._thread is not None:
            return
        found = ((name, path, linked_files.read_linked(path)) for name, path in folders.items())
        stores = [_Store(name, path, linked) for name, path, linked in found if linked is not None]
        if stores:
            self._stopped.clear()
            self._any = False
            # Leases count from now on, however long the thread takes to begin.
            work = partial(self._work, stores, self._clock.monotonic())
            name = f"copy-{self._task_id}"
            self._thread = threading.Thread(target=work, name=name, daemon=True)
            self._thread.start()

    def check(self) -> None:
        """Raise LinkBroken, which names the store, if a content is not what was exported."""
        broken, self._broken = self._broken, None
        if broken is not None:
            raise broken

    def stop(self) -> None:
        """Stop after the file that is being copied; `begin` may be called again."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stopped.set()
            thread.join()
            self._broken = None

    def _work(self, stores: list[_Store], held_s: float) -> None:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        while stores and not self._broken:
            if self._clock.monotonic() - held_s > _RENEWED_AFTER_S:
                held_s = self._clock.monotonic()
                self._hold(stores)
            with _AT_ONCE:
                stores = self._round(stores)
            if self._stopped.wait(_AGAIN_S if stores else 0):
                return

    def _hold(self, stores: Iterable[_Store]) -> None:
        for name, folder, linked in stores:
            try:
                linked_files.hold(linked, folder, self._clock.now_ms())
            except HostFailure as error:
                _log.warning("task %s: %s: %s: a prune may remove it", self._task_id, name, error)

    def _round(self, stores: Iterable[_Store]) -> list[_Store]:
        """Copy as much as can be; return the stores that are still linked."""
        with self._activities.underway(
            "copy", Unit.BYTES, stream_task=str(self._task_id), after_s=_TELL_AFTER_S
        ) as told:
            waiting = {one.name: linked_files.left(one.folder, one.linked) for one in stores}
            told.expect(sum(file.size_bytes for files in waiting.values() for file in files))
            return [one for one in stores if not self._copied(one, told)]

    def _copied(self, store: _Store, told: Progress) -> bool:
        """Copy the files of one store; return whether none is left."""
        name, folder, linked = store
        try:
            for file in linked_files.left(folder, linked):
                if self._broken or (self._any and self._stopped.is_set()):
                    return False
                linked_files.copy_in(folder, linked, file)
                self._any = True
                told.done(file.size_bytes)
            if linked_files.left(folder, linked):
                return False
            linked_files.release(folder, linked, self._clock.now_ms())
        except LinkBroken as error:
            error.store = name
            self._broken = error
            return False
        except HostFailure as error:
            if name not in self._told:
                self._told.add(name)
                _log.warning("task %s: %s: %s; trying again", self._task_id, name, error)
            return False
        _log.info("task %s: %s no longer needs %s", self._task_id, name, linked.target)
        return True
