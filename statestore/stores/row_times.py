"""When what made each row happened: the times that a store's changelog records carry.

Of a store whose spec says `row_times` they are rows too, beside the offsets (stores/offsets.py), so
that an aggregate is never stamped before a record it counts, and a join of tables never before
either row (docs/adr/0014). A row without one, of an older version, was made at an unknown time.

    t <key>    time of that row of the data, 8 bytes, signed
    m          the latest of those times

Owner thread only. Times are noted with writes, go with them into the commit's batch, and are undone
with them.
"""

import struct
from collections.abc import Collection, Mapping
from itertools import repeat
from operator import add
from typing import Final

import numpy as np

from statestore.ports import Table, Writes
from statestore.stores.overlay import MISSING, Missing

NO_ROW_MS: Final = -(1 << 63) - 1
"""The latest time of no rows at all: before every time."""
_ROW: Final = b"t"
_LATEST_KEY: Final = b"m"
_TIME: Final = struct.Struct(">q")
_TIMES, _TIME_BYTES = np.dtype(">i8"), np.dtype("V8")
_COST: Final = 80
"""Bytes charged per pending time: a dict slot and an int; the key is the one of its row."""


class WriteTime:
    """The time of whatever is being processed, for writes that tell none; None: unknown."""

    __slots__ = ("now_ms",)

    def __init__(self) -> None:
        self.now_ms: int | None = None


class RowTimes:
    """The times of one store's rows; kept in step with its pending writes.

    `clock`: of writes that tell no time of their own. `latest_ms`: no row has a later one.
    """

    __slots__ = (
        "_kept",
        "_latest_committed_ms",
        "_meta",
        "_pending",
        "_undo",
        "clock",
        "latest_ms",
    )

    def __init__(self, meta: Table, *, kept: bool) -> None:
        """`meta`: where the offsets are. `kept`: as rows; else for the changelog only."""
        self.clock: Final = WriteTime()
        self._kept = kept
        self._meta = meta
        self._pending: dict[bytes, int] = {}
        self._undo: list[dict[bytes, int | Missing]] = []
        stored = meta.get(_LATEST_KEY) if kept else None
        self.latest_ms: int = NO_ROW_MS if stored is None else _TIME.unpack(stored)[0]
        self._latest_committed_ms = self.latest_ms

    @property
    def size_bytes(self) -> int:
        return _COST * len(self._pending)

    def note(self, keys: Collection[bytes], times: list[int] | None = None) -> None:
        """These rows were written or deleted, one time each; None: all by what `clock` says."""
        if times is None:
            now_ms = self.clock.now_ms
            times = [] if now_ms is None else [now_ms] * len(keys)
        if not times:
            return
        pending = self._pending
        if self._undo:
            undo = self._undo[-1]
            for key in keys:
                undo.setdefault(key, pending.get(key, MISSING))
        pending.update(zip(keys, times, strict=True))
        if self._kept:
            self._saw(max(times))

    def of(self, keys: list[bytes]) -> list[int | None]:
        """Per key the time of its row; None: unknown, or there is none."""
        pending = self._pending
        asked = [key for key in keys if key not in pending]
        stored = self._meta.get_many([_ROW + key for key in asked]) if asked and self._kept else ()
        found = {
            key: _TIME.unpack(data)[0]
            for key, data in zip(asked, stored, strict=False)
            if data is not None
        }
        return [pending[key] if key in pending else found.get(key) for key in keys]

    def later(self, keys: list[bytes], times: list[int]) -> list[int]:
        """Per key the later of its row's time and this one; nothing is read for times in order."""
        if not times or min(times) >= self.latest_ms:
            return times
        places = [i for i, time in enumerate(times) if time < self.latest_ms]
        raised = list(times)
        for i, known in zip(places, self.of([keys[i] for i in places]), strict=True):
            if known is not None and known > times[i]:
                raised[i] = known
        return raised

    def logged(self, keys: list[bytes], otherwise_ms: int) -> list[int]:
        """The times of what a commit logs of these pending rows."""
        pending = self._pending
        if not pending:
            return [otherwise_ms] * len(keys)
        return list(map(pending.get, keys, repeat(otherwise_ms)))

    def rows(self, writes: Writes) -> dict[bytes, bytes | None]:
        """What is to be written beside these pending rows of the data."""
        if not self._kept or not writes:
            return {}
        made = _rows(writes, self._pending)
        if self.latest_ms != self._latest_committed_ms:
            made[_LATEST_KEY] = _TIME.pack(self.latest_ms)
        return made

    def restored(self, writes: Writes, times: Mapping[bytes, int]) -> dict[bytes, bytes | None]:
        """The same of rows of the changelog."""
        if not self._kept or not writes:
            return {}
        self._saw(max(times.values()))
        self._latest_committed_ms = self.latest_ms
        return {**_rows(writes, times), _LATEST_KEY: _TIME.pack(self.latest_ms)}

    def _saw(self, time_ms: int) -> None:
        self.latest_ms = max(self.latest_ms, time_ms)

    # In step with the pending writes.

    def mark(self) -> None:
        """Open a savepoint."""
        self._undo.append({})

    def merge(self) -> None:
        """Close the last savepoint, keeping its times in the one around it."""
        inner = self._undo.pop()
        if self._undo:
            outer = self._undo[-1]
            for key, old in inner.items():
                outer.setdefault(key, old)

    def undo(self) -> None:
        """Close the last savepoint and take its times back; `latest_ms` may stay too late."""
        for key, old in self._undo.pop().items():
            if isinstance(old, Missing):
                self._pending.pop(key, None)
            else:
                self._pending[key] = old

    def commit(self) -> None:
        """What is pending has become committed; savepoints stay open, and go back to here."""
        self._pending.clear()
        self._undo = [{} for _ in self._undo]
        self._latest_committed_ms = self.latest_ms

    def rollback(self) -> None:
        """Forget what is pending."""
        self.latest_ms = self._latest_committed_ms
        self.commit()


def read_times(meta: Table, keys: list[bytes], otherwise_ms: int) -> list[int]:
    """Per key of a store at rest the time of its row."""
    stored = meta.get_many([_ROW + key for key in keys])
    return [otherwise_ms if data is None else _TIME.unpack(data)[0] for data in stored]


def _rows(writes: Writes, times: Mapping[bytes, int]) -> dict[bytes, bytes | None]:
    """Of writes that all are puts at known times, as those of most commits, without a loop."""
    keys = map(add, repeat(_ROW), writes)
    known = list(map(times.get, writes))
    if all(writes.values()) and None not in known:
        packed: list[bytes] = np.array(known, _TIMES).view(_TIME_BYTES).tolist()
        return dict(zip(keys, packed, strict=True))
    made: dict[bytes, bytes | None] = {}
    for at, value, time in zip(keys, writes.values(), known, strict=True):
        if value is None:
            made[at] = None
        elif time is not None:
            made[at] = _TIME.pack(time)
    return made
