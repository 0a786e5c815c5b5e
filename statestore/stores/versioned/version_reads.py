"""How the versions of a store are read in bytes: one protocol, `VersionRows`, for every reader.

They are the owner's (`table.VersionedTable`), or those of a `reads.RowSource`: an open store beside
its owner, or files that nobody writes. Every answer is of one moment (I26): it comes from snapshots
of both tables and a copy of what is pending, taken together.
"""

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from itertools import compress
from typing import NamedTuple, Protocol, Self, TypeVar

from statestore.errors import TaskCorrupted
from statestore.ports import Seeker, Table
from statestore.stores import offsets
from statestore.stores.pending import MISSING, Entries, Missing, slice_of
from statestore.stores.reads import Answering, Guard, Pair, RowScan, RowSource, overlaid, scan_of
from statestore.stores.staged_table import first_of
from statestore.stores.versioned import layout
from statestore.stores.versioned.journal import Ended, history_rows, note
from statestore.stores.versioned.layout import HISTORY, LATEST, NEVER, NOT_VERSIONS, TIME_MIN
from statestore.stores.versioned.search import (
    Interval,
    Valid,
    View,
    each_overlapping,
    each_valid_at,
    valid_at,
    versions_of,
)

T = TypeVar("T")
Look = Callable[[View, RowScan[Pair]], Iterator[T]]
"""Looks into the history below each row of a scan of latest versions."""


class StreamTime(NamedTuple):
    """A stream time, and the time before which history is gone; both NEVER before the first put.

    `limit`: the bound is judged as if stream time were no later than that; None: there is no limit.
    """

    now: int
    bound: int
    limit: int | None = None

    @classmethod
    def never(cls) -> Self:
        """Return the one before the first put."""
        return cls(NEVER, NEVER)


class ObservedTime:
    """The stream time that an owner observed: `now` with what is pending, `committed` without.

    It goes back with a rollback or an undone savepoint, and becomes durable in the commit's own
    batch (SEMANTICS V4).

    The bound is stream time less the retention and never goes back, as a longer retention does not
    bring history back (V5). Only the owner sets `now`, and never back; other threads may read all
    three. Behind a repartition, stream time counts for the bound only as far as all upstream tasks
    have come (E4d).
    """

    __slots__ = ("_bound_before", "_limit", "_retention_ms", "committed", "now")

    def __init__(self, committed: StreamTime | None, retention_ms: int) -> None:
        self._retention_ms = retention_ms
        self.committed = committed or StreamTime.never()
        self.now = self.committed.now
        self._bound_before = self.committed.bound
        self._limit = self.committed.limit
        self.committed = self.observed()

    @property
    def bound(self) -> int:
        """Return the time before which history is gone."""
        now = self.now
        return NEVER if now == NEVER else self.bound_at(now)

    def bound_at(self, time: int) -> int:
        """Return the bound there would be if `time` had been observed last."""
        limit = self._limit
        if limit is not None and limit < time:
            time = limit
        return max(self._bound_before, time - self._retention_ms, TIME_MIN)

    def restored(self, now: int, bound: int) -> None:
        """Take in the stream time and the bound of a log that is replayed."""
        self.now = max(self.now, now)
        self._bound_before = max(self._bound_before, bound)

    def hold(self, limit: int | None) -> None:
        """Judge the bound as if stream time were no later than that."""
        self._bound_before = max(self._bound_before, self.committed.bound)
        self._limit = limit

    def mark(self) -> int:
        """Return the stream time now."""
        return self.now

    def go_back(self, mark: int) -> None:
        """Forget what was observed since `mark`."""
        self.now = mark

    def forget_marks(self) -> None:
        """Do nothing, because nothing is kept for marks."""

    def commit(self) -> None:
        """Take what is pending as committed."""
        self.committed = self.observed()

    def rollback(self) -> None:
        """Go back to the last commit."""
        self.now = self.committed.now

    def observed(self) -> StreamTime:
        """Return the stream time and the bound, with what is pending."""
        limit = self._limit
        if limit is not None and limit >= self.now:
            limit = None
        return StreamTime(self.now, self.bound, limit)


def read_stream_time(history: Table, where: str) -> StreamTime | None:
    """Return the stream time of the last commit; None before the first put.

    `history` is the table that has it.
    """
    row = history.get(layout.CLOCK_KEY)
    if row is None:
        return None
    try:
        return StreamTime(*layout.read_clock(row))
    except struct.error as error:
        raise TaskCorrupted(f"{where}: its stream time is not readable") from error


class VersionRows(Answering, Protocol):
    """The versions of one partition of a store."""

    def observed(self) -> StreamTime:
        """Return the stream time, and the time before which history is gone."""

    def get(self, key: bytes, /) -> bytes | None:
        """Return the row of the latest version, which may be a tombstone."""

    def valid_at(self, key: bytes, time: int, /) -> Valid | None:
        """Return the version valid at a time, which may be a tombstone.

        None if there was none, or history is gone.
        """

    def overlapping(self, key: bytes, span: Interval, /) -> list[Valid]:
        """Return the versions valid at some time of the interval, latest first, no tombstones."""

    def each(
        self, lo: bytes | None, hi: bytes | None, look: Look[T], /, *, reverse: bool = False
    ) -> RowScan[T]:
        """Return what `look` finds of each key with lo <= key <= hi, in key order, at one moment.

        It is `looking_at` or `looking_through`, less what is asked.
        """

    def each_version(self) -> RowScan[tuple[bytes, Valid]]:
        """Return every version that has not expired, without tombstones, in no promised order."""


class PendingNow(NamedTuple):
    """A copy of what is pending at one moment, for readers on other threads.

    `keys` and `rows` are the versions put ahead and not settled, in order of time. `latest` and
    `history` are rows of the tables, where None is a delete. `bound` is the time before which
    history is gone.
    """

    keys: list[bytes]
    rows: list[bytes]
    latest: Entries
    history: Entries
    bound: int


class PendingLayer(Protocol):
    """What a reader sees over the committed versions."""

    @property
    def uncommitted(self) -> bool:
        """Tell whether the reader sees anything pending at all."""

    def observed(self) -> StreamTime: ...
    def latest(self, key: bytes, /) -> bytes | Missing | None:
        """Return the row of the latest version of a key, if it is pending."""

    def now(self) -> PendingNow:
        """Return a copy of all. The caller holds the turn of the store."""


class NothingPending:
    """The layer of a reader that sees only what is committed."""

    uncommitted = False

    def __init__(self, observed: Callable[[], StreamTime]) -> None:
        self.observed = observed

    def latest(self, _key: bytes) -> Missing:
        """Return MISSING."""
        return MISSING

    def now(self) -> PendingNow:
        """Return nothing but the bound of history."""
        return PendingNow([], [], {}, {}, self.observed().bound)


class SourceVersions:
    """The VersionRows of a source."""

    def __init__(self, source: RowSource, interval_ms: int, pending: PendingLayer) -> None:
        self._source = source
        self._counts = source.counts
        self._latest = source.table(LATEST)
        self._history = source.table(HISTORY)
        self._interval_ms = interval_ms
        self._pending = pending
        self._pending_row = pending.latest if pending.uncommitted else None
        self._get = self._latest.get
        self._check_ready = source.check_ready
        self.is_open = source.is_open
        self.check_open = source.check_open

    def observed(self) -> StreamTime:
        """Return the stream time and the bound, as far as the reader's level sees."""
        self._source.check_ready()
        return self._pending.observed()

    def get(self, key: bytes) -> bytes | None:
        """Return the row of the latest version."""
        self._check_ready()
        self._counts.gets += 1
        if not self._source.bounded:
            return self._row(key)
        with self._source.turn:
            return self._row(key)

    def _row(self, key: bytes) -> bytes | None:
        if self._pending_row is not None:
            found = self._pending_row(key)
            if not isinstance(found, Missing):
                return found
        try:
            return self._get(key)
        except Exception as error:
            raise self._source.failure(error) from error

    def valid_at(self, key: bytes, time: int) -> Valid | None:
        """Return the version valid at a time."""
        if self._pending_row is None:
            row = self.get(key)
            if row is not None and layout.valid_from(row) <= time:
                return Valid(row, None)
        else:
            self._check_ready()
            self._counts.gets += 1
        return self._ask(key, lambda view: valid_at(view, [key], [time])[0])

    def overlapping(self, key: bytes, span: Interval) -> list[Valid]:
        """Return the versions valid at some time of the interval, latest first."""
        self._source.check_ready()
        self._counts.ranges += 1
        return self._ask(key, lambda view: versions_of(view, key, span))

    def each(
        self, lo: bytes | None, hi: bytes | None, look: Look[T], *, reverse: bool = False
    ) -> RowScan[T]:
        """Return what `look` finds of each key in the range."""
        source = self._source
        source.check_ready()
        self._counts.ranges += 1
        try:
            with source.turn:
                cursor = self._latest.scan(lo, hi, reverse=reverse)
                seen = self._now()
            moment = self._looked_at(seen, lo, hi)
            seen.committed.close()
        except Exception as error:
            raise source.failure(error) from error
        waiting = slice_of(moment.latest, lo, hi, reverse=reverse)
        rows = scan_of(source, cursor, waiting, reverse=reverse)
        return walk(source, rows, partial(look, moment.view()), seen.superseded.close)

    def each_version(self) -> RowScan[tuple[bytes, Valid]]:
        """Return every version that has not expired."""
        source = self._source
        source.check_ready()
        self._counts.ranges += 1
        try:
            with source.turn:
                cursors = self._latest.scan(), self._history.scan()
                seen = self._now()
            moment = self._looked_at(seen, None, None)
            seen.close()
        except Exception as error:
            raise source.failure(error) from error
        over = moment.latest, moment.history
        latest, history = (
            scan_of(source, cursor, slice_of(rows, None, None, reverse=False), reverse=False)
            for cursor, rows in zip(cursors, over, strict=True)
        )
        return all_versions(latest, history, moment.bound)

    def _ask(self, key: bytes, look: Callable[[View], T]) -> T:
        """Return what `look` finds of a key, at one moment."""
        try:
            with self._source.turn:
                seen = self._now()
            with closing(seen):
                return look(self._looked_at(seen, key, key).view())
        except Exception as error:
            raise self._source.failure(error) from error

    def _now(self) -> "_Seen":
        """Return all there is at this moment. The caller holds the turn of the store."""
        return _Seen(self._pending.now(), self._latest.seeker(), self._history.seeker())

    def _looked_at(self, seen: "_Seen", lo: bytes | None, hi: bytes | None) -> "_Moment":
        """Make rows of what is pending, for the keys from lo to hi."""
        pending, committed = seen.pending, seen.committed
        latest, history = pending.latest, pending.history
        asked = [(lo is None or key >= lo) and (hi is None or key <= hi) for key in pending.keys]
        ahead: dict[bytes, bytes] = {}
        ended = Ended.none()
        note(list(compress(pending.keys, asked)), list(compress(pending.rows, asked)), ahead, ended)
        if ahead:
            before = map(latest.get, ahead, committed.get_many(list(ahead)))
            history |= history_rows(
                ahead, ended, ahead, before, bound=pending.bound, interval_ms=self._interval_ms
            )
            latest |= ahead
        return _Moment(
            committed, seen.superseded, latest, history, pending.bound, self._interval_ms
        )


def committed_versions(source: RowSource, where: str) -> SourceVersions:
    """Return the versions in files that nobody writes; TaskCorrupted if the store is not whole."""
    known = offsets.check_format(source.table(offsets.TABLE), layout.KIND, where)
    if known is None or known.segment_interval_ms is None:
        raise TaskCorrupted(f"{where}: no segment interval: not a whole store")
    observed = read_stream_time(source.table(HISTORY), where) or StreamTime.never()
    return SourceVersions(source, known.segment_interval_ms, NothingPending(lambda: observed))


class _Seen(NamedTuple):
    """Snapshots of both tables and a copy of what is pending, taken together."""

    pending: PendingNow
    committed: Seeker
    """The snapshot of the latest versions."""
    superseded: Seeker
    """The snapshot of the history."""

    def close(self) -> None:
        self.committed.close()
        self.superseded.close()


class _Moment(NamedTuple):
    """Snapshots of both tables with the pending rows that lie over them."""

    committed: Seeker
    superseded: Seeker
    latest: Entries
    history: Entries
    bound: int
    interval_ms: int

    def view(self) -> View:
        """Return the view for questions while the snapshots are open."""
        committed = self.committed

        def get_many(keys: list[bytes]) -> list[bytes | None]:
            rows = committed.get_many(keys)
            return list(map(self.latest.get, keys, rows)) if self.latest else rows

        pending = HistoryCopy(self.history)
        return pending.view_over(self.superseded, self.bound, self.interval_ms, get_many)


class HistoryCopy:
    """A copy of the pending rows of a history, to look for versions in."""

    def __init__(self, rows: Entries) -> None:
        self._rows = {k: v for k, v in rows.items() if k[:1] not in NOT_VERSIONS and v is not None}
        self._keys = sorted(self._rows)

    def over(self, committed: list[Pair | None], keys: list[bytes]) -> list[Pair | None]:
        """Return the result of a seek with these rows over the committed rows."""
        names, size = self._keys, len(self._keys)
        if not names:
            return committed
        places = [bisect_left(names, key) for key in keys]
        pending = [None if i == size else (names[i], self._rows[names[i]]) for i in places]
        return [first_of(*both) for both in zip(committed, pending, strict=True)]

    def back(self, committed: Iterator[Pair], lo: bytes, hi: bytes) -> Iterator[Pair]:
        """Return the rows from hi down to lo with these rows over the committed ones."""
        first, last = bisect_left(self._keys, lo), bisect_right(self._keys, hi)
        waiting: list[tuple[bytes, bytes | None]] = [
            (key, self._rows[key]) for key in reversed(self._keys[first:last])
        ]
        return overlaid(committed, waiting, reverse=True)

    def view_over(
        self,
        committed: Seeker,
        bound: int,
        interval_ms: int,
        get_many: Callable[[list[bytes]], list[bytes | None]],
    ) -> View:
        """Return the view of a history with these rows over the committed ones."""

        def seek(keys: list[bytes]) -> list[Pair | None]:
            return self.over(committed.seek_many(keys), keys)

        def scan_back(lo: bytes, hi: bytes) -> Iterator[Pair]:
            return self.back(committed.scan_back(lo, hi), lo, hi)

        return View(bound, interval_ms, get_many, seek, scan_back)


def walk(
    guard: Guard,
    latest: RowScan[Pair],
    look: Callable[[RowScan[Pair]], Iterator[T]],
    release: Callable[[], None],
) -> RowScan[T]:
    """Return what `look` finds of the keys in a scan of latest versions, which it takes over.

    `release` lets go of the history in which it looks.
    """

    def found() -> Iterator[T]:
        try:
            yield from look(latest)
        except Exception as error:
            raise guard.failure(error) from error

    def close() -> None:
        latest.close()
        release()

    return RowScan(found(), latest.check_open, close)


def looking_at(time: int, view: View, rows: RowScan[Pair]) -> Iterator[tuple[bytes, Valid | None]]:
    """Look for the version of each key that is valid at a time."""
    return each_valid_at(rows, time, bound=view.bound, interval_ms=view.interval_ms, seek=view.seek)


def looking_through(
    span: Interval, descending: bool, view: View, rows: RowScan[Pair]
) -> Iterator[tuple[bytes, Valid]]:
    """Look for the versions of each key that were valid at some time of the interval."""
    return each_overlapping(rows, span, view=view, descending=descending)


def all_versions(
    latest: RowScan[Pair], history: RowScan[Pair], bound: int
) -> RowScan[tuple[bytes, Valid]]:
    """Return the versions in scans of both tables, which it takes over."""

    def versions() -> Iterator[tuple[bytes, Valid]]:
        for key, row in latest:
            if not layout.is_tombstone(row):
                yield key, Valid(row, None)
        for at, row in history:
            if not at.startswith(NOT_VERSIONS) and not layout.is_tombstone(row):
                ends = layout.valid_to(at)
                if ends > bound:
                    yield layout.key_of(at), Valid(row, ends)

    def close() -> None:
        latest.close()
        history.close()

    return RowScan(versions(), latest.check_open, close, notices_close=True)
