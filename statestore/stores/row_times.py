"""The times of a store's rows: the time of the record that made each row.

Changelog records carry these times. If the spec of a store has `row_times`, they are also stored as
rows beside the offsets (stores/offsets.py), so that an aggregate is never stamped before a record
that it counts, nor a join of tables before either of its rows (docs/adr/0014). A row that no
record made has the time with which the commit logs it. The time of a row that an older version
wrote is not known.

    t <key>    time of that row of the data, 8 bytes, signed
    m          the latest of those times

Only the owner's thread uses this module. Times are noted with writes, go into the batch of their
commit, and are undone with them.

Keeps I30.
"""

import struct
from collections.abc import Callable, Collection, Mapping
from itertools import repeat
from operator import add
from typing import Final

import numpy as np

from statestore.model import big_endian
from statestore.ports import Table, Writes
from statestore.stores.pending import MISSING, Missing, UndoLog

NO_ROW_MS: Final = -(1 << 63) - 1
"""The latest time of no rows at all: before every time."""
_ROW: Final = b"t"
_LATEST_KEY: Final = b"m"
_TIME: Final = struct.Struct(">q")
_COST: Final = 80
"""Bytes charged per pending time: a dict slot and an int; the key is the one of its row."""


class WriteTime:
    """The time of the record being processed, for writes without their own; None: not known.

    `of_stream`: it is not the record's own time but stream time. `ahead_ms`: the record's own time,
    where stream time may be behind it; None: it is not.
    """

    __slots__ = ("ahead_ms", "now_ms", "of_stream")

    def __init__(self, *, of_stream: bool = False) -> None:
        self.now_ms: int | None = None
        self.ahead_ms: int | None = None
        self.of_stream = of_stream


class RowTimes:
    """The times of one store's rows, kept in step with its pending writes.

    `clock` has the time of writes without a time of their own. No row is later than `latest_ms`.
    """

    __slots__ = (
        "_kept",
        "_latest_committed_ms",
        "_meta",
        "_otherwise_ms",
        "_pending",
        "_undo",
        "_untimed_from",
        "clock",
        "latest_ms",
    )

    def __init__(
        self,
        meta: Table,
        *,
        kept: bool,
        of_stream: bool = False,
        untimed_from: bytes | None = None,
    ) -> None:
        """`meta`: the table of the offsets.

        `kept`: keep the times as rows, not for the changelog only. `of_stream`: writes have stream
        time. `untimed_from`: no time is kept of rows from this one on, because they follow from
        others.
        """
        self.clock: Final = WriteTime(of_stream=of_stream)
        self._kept = kept
        self._untimed_from = untimed_from
        self._meta = meta
        self._pending: dict[bytes, int] = {}
        self._otherwise_ms: int | None = None
        self._undo: UndoLog[int] | None = None
        stored = meta.get(_LATEST_KEY) if kept else None
        self.latest_ms: int = NO_ROW_MS if stored is None else _TIME.unpack(stored)[0]
        self._latest_committed_ms = self.latest_ms

    @property
    def size_bytes(self) -> int:
        return _COST * len(self._pending)

    @property
    def unkept(self) -> dict[bytes, int] | None:
        """The pending times by row, if no time is kept as a row: what `note_one` writes into.

        It stays the same object, and may be written to while no savepoint is open.
        """
        return None if self._kept else self._pending

    def note(self, keys: Collection[bytes], times: list[int] | None = None) -> None:
        """Note the time of each of these writes and deletes; None: all have the time of `clock`."""
        if times is None:
            now_ms = self.clock.now_ms
            times = [] if now_ms is None else [now_ms] * len(keys)
        if not times:
            return
        pending = self._pending
        if self._undo is not None:
            self._undo.extend((key, pending.get(key, MISSING)) for key in keys)
        pending.update(zip(keys, times, strict=True))
        if self._kept:
            self._saw(max(times))

    def note_one(self, key: bytes, time_ms: int) -> None:
        """Note the time of one write, as `note` does; callers that put one by one wait for it."""
        pending = self._pending
        if self._undo is not None:
            self._undo.append((key, pending.get(key, MISSING)))
        pending[key] = time_ms
        if self._kept and time_ms > self.latest_ms:
            self.latest_ms = time_ms

    def of(self, keys: list[bytes]) -> list[int | None]:
        """Return the time of each row; None if it is not known or there is no row."""
        pending = self._pending
        asked = [key for key in keys if key not in pending]
        stored = self._meta.get_many([_ROW + key for key in asked]) if asked and self._kept else ()
        found = {
            key: _TIME.unpack(data)[0]
            for key, data in zip(asked, stored, strict=False)
            if data is not None
        }
        return [pending[key] if key in pending else found.get(key) for key in keys]

    def committed(self, keys: list[bytes]) -> list[int | None]:
        """Return the time of each row as committed; None if it is not known or there is no row."""
        return stored_times(self._meta.get_many, keys)

    def pending(self) -> dict[bytes, int]:
        """Return a copy of the pending times."""
        return self._pending.copy()

    def later(self, keys: list[bytes], times: list[int]) -> list[int]:
        """Return the later of each row's time and this one; times in order cost no look-up."""
        if not times or min(times) >= self.latest_ms:
            return times
        places = [i for i, time in enumerate(times) if time < self.latest_ms]
        raised = list(times)
        for i, known in zip(places, self.of([keys[i] for i in places]), strict=True):
            if known is not None and known > times[i]:
                raised[i] = known
        return raised

    def logged(self, keys: list[bytes], otherwise_ms: int) -> list[int]:
        """Return the times with which a commit logs these pending rows; `rows` has the same."""
        self._otherwise_ms = otherwise_ms
        pending = self._pending
        if not pending:
            return [otherwise_ms] * len(keys)
        return list(map(pending.get, keys, repeat(otherwise_ms)))

    def rows(self, writes: Writes) -> dict[bytes, bytes | None]:
        """Return the rows to write beside these pending rows of the data."""
        if not self._kept or not writes:
            return {}
        end = self._untimed_from
        if end is not None:
            # Older versions kept the times of all, which go with their rows.
            writes = {row: value for row, value in writes.items() if value is None or row < end}
        known, otherwise_ms = list(map(self._pending.get, writes)), self._otherwise_ms
        if otherwise_ms is not None and None in known:
            known = [otherwise_ms if time is None else time for time in known]
            self._saw(otherwise_ms)
        made = _rows(writes, known)
        if self.latest_ms != self._latest_committed_ms:
            made[_LATEST_KEY] = _TIME.pack(self.latest_ms)
        return made

    def restored(self, writes: Writes, times: Mapping[bytes, int]) -> dict[bytes, bytes | None]:
        """Return the rows to write beside these rows from the changelog."""
        if not self._kept or not writes:
            return {}
        self._saw(max(times.values()))
        self._latest_committed_ms = self.latest_ms
        return {
            **_rows(writes, list(map(times.get, writes))),
            _LATEST_KEY: _TIME.pack(self.latest_ms),
        }

    def _saw(self, time_ms: int) -> None:
        self.latest_ms = max(self.latest_ms, time_ms)

    # The methods of `pending.Pending`.

    def mark(self) -> int:
        """Return how many changes the undo log has."""
        if self._undo is None:
            self._undo = UndoLog()
        return len(self._undo)

    def go_back(self, mark: int) -> None:
        """Undo the times since `mark`; `latest_ms` may stay too late."""
        if self._undo is None:
            return
        for key, old in self._undo.taken_back(mark).items():
            if isinstance(old, Missing):
                self._pending.pop(key, None)
            else:
                self._pending[key] = old

    def forget_marks(self) -> None:
        """Stop keeping an undo log."""
        self._undo = None

    def commit(self) -> None:
        """Take what is pending as committed."""
        self._pending.clear()
        self._otherwise_ms = None
        self._undo = None
        self._latest_committed_ms = self.latest_ms

    def rollback(self) -> None:
        """Forget what is pending."""
        self.latest_ms = self._latest_committed_ms
        self.commit()


def read_times(meta: Table, keys: list[bytes], otherwise_ms: int) -> list[int]:
    """Return the time of each row of a store at rest."""
    stored = stored_times(meta.get_many, keys)
    return [otherwise_ms if time is None else time for time in stored]


def stored_times(
    look: Callable[[list[bytes]], list[bytes | None]], keys: list[bytes]
) -> list[int | None]:
    """Return the time of each row, which `look` finds; None if it is not known."""
    stored = look([_ROW + key for key in keys])
    return [None if data is None else _TIME.unpack(data)[0] for data in stored]


def rows_at(keys: list[bytes], time_ms: int) -> dict[bytes, bytes | None]:
    """Return the rows that give all these rows of the data the same time."""
    return {**_rows(dict.fromkeys(keys, b"1"), [time_ms] * len(keys))}


def _rows(writes: Writes, known: list[int | None]) -> dict[bytes, bytes | None]:
    """Return the rows of these times; without a loop if all writes are puts at known times."""
    keys = map(add, repeat(_ROW), writes)
    if all(writes.values()) and None not in known:
        return dict(zip(keys, big_endian.packed(np.array(known, np.int64)), strict=True))
    made: dict[bytes, bytes | None] = {}
    for at, value, time in zip(keys, writes.values(), known, strict=True):
        if value is None:
            made[at] = None
        elif time is not None:
            made[at] = _TIME.pack(time)
    return made
