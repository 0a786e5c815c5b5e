"""A versioned store as its owner sees it, in bytes: pending writes over committed rows.

Operators work on it in batches. Only the owner's thread uses it. A put in order only notes the
version. Many of them are settled together, before anybody looks at history: each becomes a row, and
the version that it ends moves to the segment of that time. A late version also looks for the one it
cuts short. Expiry is a range delete in the commit that crosses the end of a segment.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from operator import attrgetter, call, gt
from typing import Any, Final, TypeVar

from statestore.model.ids import Position, TopicPartition
from statestore.model.records import Header, PutResult
from statestore.stores import offsets
from statestore.stores.logged import LoggedVersions, versions
from statestore.stores.pending import MISSING, Entries, Missing
from statestore.stores.reads import Pair, RowScan
from statestore.stores.staged_table import Changes, StagedTable
from statestore.stores.transaction import StagedEngine
from statestore.stores.versioned import layout
from statestore.stores.versioned.forgetting import VersionLog
from statestore.stores.versioned.journal import (
    Change,
    MadeRows,
    Prepared,
    VersionJournal,
    history_rows,
    next_versions,
    tombstone_rows,
)
from statestore.stores.versioned.layout import (
    BIAS,
    HISTORY,
    LATEST,
    NEVER,
    STAMP,
    VALUE,
    pack_head,
)
from statestore.stores.versioned.search import (
    Asked,
    Found,
    GoneHistory,
    Interval,
    Valid,
    View,
    find,
    valid_at,
    versions_of,
)
from statestore.stores.versioned.version_reads import (
    HistoryCopy,
    Look,
    ObservedTime,
    PendingNow,
    StreamTime,
    all_versions,
    read_stream_time,
    walk,
)

T = TypeVar("T")
_log = logging.getLogger(__name__)

_IS_LATEST: Final = PutResult(accepted=True, latest=True, valid_to_ms=None)
_TOO_LATE: Final = PutResult(accepted=False, latest=False, valid_to_ms=None)

_SWEEP_MAX: Final = 10_000
"""How many forgotten deletes one commit clears away, so that no commit takes long."""


class VersionedTable:
    """Reads and writes of the versions in a StagedEngine; the `reads.VersionRows` of its owner."""

    def __init__(self, staged: StagedEngine, retention_ms: int) -> None:
        assert staged.segment_interval_ms is not None
        self.staged: Final = staged
        self.retention_ms: Final = retention_ms
        self.interval_ms: Final = staged.segment_interval_ms
        self.history: Final = StagedTable(staged, HISTORY)
        known = read_stream_time(staged.table(HISTORY), staged.where)
        self.time: Final = ObservedTime(known, retention_ms)
        self.journal: Final = VersionJournal()
        self.log: Final = VersionLog(staged.table(offsets.TABLE), is_empty=staged.empty())
        self.is_logged = False
        """Whether each commit is logged, with what `changes` returns just before it."""
        self._latest: Final = StagedTable(staged, LATEST)
        self._latest_rows: Final = staged.overlay(LATEST)
        self._history_rows: Final = staged.overlay(HISTORY)
        # Bound once: they run for every put.
        self.is_open: Final = staged.is_open
        self.check_open: Final = staged.check_open
        self._check_open: Final = staged.check_open
        self._ahead: Final = self.journal.ahead
        self._note_key: Final = self.journal.keys.append
        self._note_row: Final = self.journal.rows.append
        self._note_ended_key: Final = self.journal.ended.keys.append
        self._note_ended_row: Final = self.journal.ended.rows.append
        self._note_end: Final = self.journal.ended.ends.append
        # These are all in C, so no write of the owner comes between two of them.
        self._copies: Final[tuple[Callable[[], Any], ...]] = (
            partial(attrgetter("settled"), self.journal),
            self.journal.keys.copy,
            self.journal.rows.copy,
            self._latest_rows.entries.copy,
            self._history_rows.entries.copy,
        )
        staged.keep_counted(self.journal)
        staged.keep_in_step(self.time)
        staged.keep_in_step(self.log)
        if known is not None and known != self.time.committed:
            # The retention is shorter: what it hides stays gone, even if nothing is committed.
            staged.keep(HISTORY, {layout.CLOCK_KEY: layout.clock_row(*self.time.committed)})
        self._expired_below = layout.expired_below(self.time.committed.bound, self.interval_ms)
        self._swept_below = self._expired_below
        self._told_late = False
        self._gone = GoneHistory(staged.name)

    # Writes.

    def put(self, key: bytes, value: bytes | None, time: int) -> PutResult:
        """Stage one version; None is a tombstone. One older than the retention is not accepted."""
        self._check_open()
        clock = self.time
        if time < clock.now or value is None:
            return self._put_other(key, value, time)
        row = pack_head(VALUE, time + BIAS) + value
        clock.now = time
        self._note_key(key)
        self._note_row(row)
        old = self._ahead.get(key)
        if old is not None and old[STAMP] < row[STAMP]:
            self._note_ended_key(key)
            self._note_ended_row(old)
            self._note_end(row[STAMP])
        self._ahead[key] = row
        return _IS_LATEST

    def put_all(
        self, keys: list[bytes], values: list[bytes | None], times: list[int]
    ) -> list[int] | None:
        """Stage many versions, as `put` in this order would, with at most one look-up for all keys.

        It returns the places of those it refused, or None.
        """
        self.staged.check_open()
        if not keys:
            return None
        if self.in_order(times):
            # No version is late: each is at or after all before it.
            self._put_ahead(keys, values, times)
            return None
        late = self._late(times)
        if late:
            self._refuse(len(late), min(times[i] for i in late))
            gone = set(late)
            kept = [i for i in range(len(keys)) if i not in gone]
            keys, values, times = _taken(keys, values, times, kept)
        if keys:
            self._put_accepted(keys, values, times)
        return late

    def in_order(self, times: list[int]) -> bool:
        """Tell whether versions of these times, put now, would each be the latest of its key."""
        return times[0] >= self.time.now and not any(map(gt, times, times[1:]))

    def restore(self, found: LoggedVersions, offsets_next: Mapping[TopicPartition, int]) -> None:
        """Write replayed versions, all of them, with the offsets they reach, in one batch (V8)."""
        if found.keys:
            # The first commit and reads decide what has expired, once all versions are there.
            self._put_accepted(found.keys, found.values, found.times, bound=NEVER)
            self._settle(NEVER)
        if found.forgotten is not None:
            self.time.restored(found.forgotten.now, found.forgotten.bound)
        self.log.restored(found, self.interval_ms)
        self._stage_clock()
        more = {offsets.TABLE: self.log.meta_rows()}
        self.staged.commit_restored(offsets_next, len(found.keys), more)
        self._expired_below = self._swept_below = layout.TIME_MIN

    def log_anew(
        self, latest: Mapping[bytes, bytes], history: Mapping[bytes, bytes], *, to_the_end: bool
    ) -> None:
        """Log rows as they are, because the log may not have a record for each version.

        History comes first, then the latest of all keys; `to_the_end`: there are no more.
        """
        self.put_anew(latest, history)
        self.log.move(list(latest), to_the_end=to_the_end)

    def put_anew(self, latest: Mapping[bytes, bytes], history: Mapping[bytes, bytes]) -> None:
        """Stage rows of both tables that have other values of the versions that are there.

        They are logged like late versions.
        """
        self._check_open()
        self._history_rows.put_all(history)
        self._latest_rows.put_all(latest)
        keys = [*map(layout.key_of, history), *latest]
        self.journal.put_late(keys, [*history.values(), *latest.values()], 0)

    # Reads.

    def view(self) -> View:
        """Return what the owner sees, for questions answered at once."""
        self._settle()
        return View(
            self.time.bound,
            self.interval_ms,
            self._latest.get_many,
            self.history.seek_many,
            self._scan_back,
        )

    def latest_rows(self, keys: list[bytes]) -> list[bytes | None]:
        """Return the row of each key's latest version, None if it never had one."""
        self._settle()
        return self._latest.get_many(keys)

    def get_many_as_of(
        self, keys: list[bytes], times: list[int], tolerance_ms: int | None = None
    ) -> list[bytes | None]:
        """Return the value of each key valid at its time; None: none, or history is gone.

        `tolerance_ms`: how long before its time the version may have begun; None: ever so long.
        """
        view = self.view()
        found = valid_at(view, keys, times)
        if times and min(times) < view.bound:
            for one, time in zip(found, times, strict=True):
                if one is None:
                    self._gone.tell(time, view.bound)
        if tolerance_ms is not None:
            found = [
                None if one is None or layout.valid_from(one.row) < time - tolerance_ms else one
                for one, time in zip(found, times, strict=True)
            ]
        return [None if one is None else layout.read_version(one.row).value for one in found]

    def later(self, keys: list[bytes], times: list[int]) -> list[int]:
        """Return the later of the time of each key's latest version and this one."""
        if not times or min(times) >= self.time.now:
            return times
        rows = self.latest_rows(keys)
        return [
            time if row is None else max(time, layout.valid_from(row))
            for time, row in zip(times, rows, strict=True)
        ]

    # The methods of `reads.VersionRows`.

    def observed(self) -> StreamTime:
        """Return the stream time and the bound of history, with what is pending."""
        return self.time.observed()

    def get(self, key: bytes) -> bytes | None:
        """Return the row of the latest version."""
        return self.latest_rows([key])[0]

    def valid_at(self, key: bytes, time: int) -> Valid | None:
        """Return the version valid at a time, or a tombstone; None: none, or history is gone."""
        return valid_at(self.view(), [key], [time])[0]

    def overlapping(self, key: bytes, span: Interval) -> list[Valid]:
        """Return the versions valid at some time of the interval, latest first."""
        self._check_open()
        self.staged.metrics.ranges += 1
        return versions_of(self.view(), key, span)

    def each(
        self, lo: bytes | None, hi: bytes | None, look: Look[T], *, reverse: bool = False
    ) -> RowScan[T]:
        """Return what `look` finds of each key in the range, on a snapshot."""
        self._check_open()
        self._settle()
        rows = self._latest.scan(lo, hi, reverse=reverse)
        seeker = self.staged.table(HISTORY).seeker()
        pending = HistoryCopy(self._history_rows.entries)
        view = pending.view_over(seeker, self.time.bound, self.interval_ms, self._latest.get_many)
        return walk(self.staged, rows, partial(look, view), seeker.close)

    def each_version(self) -> RowScan[tuple[bytes, Valid]]:
        """Return every version that has not expired, on a snapshot."""
        self._check_open()
        self._settle()
        return all_versions(self._latest.scan(), self.history.scan(), self.time.bound)

    def scan_latest(self, lo: bytes | None = None) -> RowScan[Pair]:
        """Return the rows of the latest versions from a key on, on a snapshot."""
        self._settle()
        return self._latest.scan(lo)

    # For readers on other threads.

    def pending_now(self) -> PendingNow:
        """Return a copy of what is pending, for any thread that holds the turn of the store."""
        settled, keys, rows, latest, history = list(map(call, self._copies))
        time = self.time
        # This is not `time.now`, which a put raises before its version is there.
        bound = time.bound_at(layout.valid_from(rows[-1])) if rows else time.committed.bound
        return PendingNow(keys[settled : len(rows)], rows[settled:], latest, history, bound)

    # The transaction.

    def commit(
        self,
        offsets_next: Mapping[TopicPartition, int | None],
        position: Position | None = None,
    ) -> None:
        """Commit all that is pending, with the stream time, and delete expired segments."""
        bound = self.time.bound
        ranges, below = None, self._expired_below
        if self.is_logged:
            ranges = self.log.ranges()
        else:
            below = layout.expired_below(bound, self.interval_ms)
            if below > self._expired_below:
                ranges = {HISTORY: [layout.versions_below(below)]}
            if below > self._swept_below:
                self._sweep(below)
        self._stage_clock()
        # Rows that were not yet read need not be staged first.
        ahead = self._rows_ahead(self._ends_after())
        more = {LATEST: ahead.latest, HISTORY: ahead.history, offsets.TABLE: self.log.meta_rows()}
        self.staged.commit(offsets_next, position, ranges=ranges, more=more)
        self._expired_below = max(self._expired_below, below)

    def changes(self) -> Changes:
        """Return the records of the next commit: each version once, and which have expired."""
        # This is done now, so that a read that fails does so before anything is logged.
        ahead = self._rows_ahead(self._ends_after())
        made, log, time = versions(*self.journal.distinct()), self.log, self.time
        if self.is_logged and log.is_whole:
            below = log.find_expired(
                self.history,
                ahead.history,
                time.bound,
                self.interval_ms,
                puts=len(self.journal),
            )
            if below > self._swept_below:
                log.deletes += self._sweep(below)
        said = log.records(time.now, time.bound, self.interval_ms, self.staged.now_ms())
        if not said.keys:
            return made
        headers: list[tuple[Header, ...]] = [()] * len(made.keys)
        return Changes(
            made.keys + said.keys,
            made.values + said.values,
            made.times + said.times,
            headers + (said.headers or []),
        )

    # How it is done.

    def _scan_back(self, lo: bytes, hi: bytes) -> Iterator[Pair]:
        with self.history.scan(lo, hi, reverse=True) as rows:
            yield from rows

    def _late(self, times: list[int]) -> list[int] | None:
        """Return the places of versions older than the bound was when their turn came."""
        clock = self.time
        newest = max(times)
        if min(times) >= clock.bound_at(max(clock.now, newest)):
            return None
        observed = accumulate(times, max, initial=clock.now)
        late = [
            i
            for i, (time, now) in enumerate(zip(times, observed, strict=False))
            if time < clock.bound_at(now)
        ]
        return late or None

    def _refuse(self, count: int, time: int) -> None:
        self.staged.metrics.late += count
        if not self._told_late:
            self._told_late = True
            _log.warning(
                "store %r: a write at %d is older than its history, which begins at %d: dropped, "
                "as later ones will be; they are counted",
                self.staged.name,
                time,
                self.time.bound,
            )

    def _put_other(self, key: bytes, value: bytes | None, time: int) -> PutResult:
        """Stage a tombstone, or a version that may not be the latest."""
        clock = self.time
        if time >= clock.now:
            self._put_ahead([key], [value], [time])
            return _IS_LATEST
        if time < clock.bound:
            self._refuse(1, time)
            return _TOO_LATE
        return self._put_late(key, value, time, self._ends_after())

    def _put_late(self, key: bytes, value: bytes | None, time: int, bound: int) -> PutResult:
        """Stage one version from before the stream time, as `_put_all_late` does for many."""
        if key in self._ahead:
            self._settle(bound)
        old = self._latest.get(key)
        began = NEVER if old is None else layout.valid_from(old)
        row = layout.version_row(value, time)
        result = _IS_LATEST
        if time < began:
            ends = self._insert([Change(key, row, time)], [began])
            result = PutResult(accepted=True, latest=False, valid_to_ms=ends[0])
        else:
            if old is not None and began < time and bound < time:
                self._history_rows.put(layout.history_key(key, time, self.interval_ms), old)
            if value is None:
                self._history_rows.put(layout.tombstone_key(key, time, self.interval_ms), b"")
            self._latest_rows.put(key, row)
        self.journal.put_late([key], [row], int(value is None))
        return result

    def _put_accepted(
        self,
        keys: list[bytes],
        values: list[bytes | None],
        times: list[int],
        *,
        bound: int | None = None,
    ) -> None:
        """Stage versions; those that end at `bound` (None: that of history) need not be kept."""
        if self.in_order(times):
            self._put_ahead(keys, values, times)
            return
        now = self.time.now
        if bound is None:
            bound = NEVER if self.is_logged else self.time.bound_at(max(now, *times))
        part = [i for i, time in enumerate(times) if time < now]
        if part:
            self._put_all_late(*_taken(keys, values, times, part), bound)
        part = [i for i, time in enumerate(times) if time >= now]
        if part:
            self._put_ahead(*_taken(keys, values, times, sorted(part, key=times.__getitem__)))

    def _put_ahead(self, keys: list[bytes], values: list[bytes | None], times: list[int]) -> None:
        """Note versions that begin, in order, at or after all there are; nothing is looked up."""
        rows = layout.version_rows(values, times)
        self.time.now = times[-1]
        self.journal.put_ahead(keys, rows, layout.tombstones_in(values))

    def _put_all_late(
        self, keys: list[bytes], values: list[bytes | None], times: list[int], bound: int
    ) -> None:
        """Stage versions from before the stream time, some of which may not be the latest."""
        if not self._ahead.keys().isdisjoint(keys):
            self._settle(bound)
        unique = list(dict.fromkeys(keys))
        latest = dict(zip(unique, self._latest.get_many(unique), strict=True))
        rows = layout.version_rows(values, times)
        changes = sorted(map(Change, keys, rows, times), key=attrgetter("time"))
        made, behind = next_versions(changes, latest, bound=bound, interval_ms=self.interval_ms)
        self._stage(made)
        # Versions of one key depend on each other, so one of each key is put at a time.
        while behind:
            turn = {one.key: one for one in reversed(behind)}
            now = self._latest.get_many(list(turn))
            begins = [layout.valid_from(row) for row in now if row is not None]
            self._insert(list(turn.values()), begins)
            behind = [one for one in behind if turn[one.key] is not one]
        self.journal.put_late(keys, rows, layout.tombstones_in(values))

    def _stage(self, made: MadeRows) -> None:
        # History is staged before what supersedes it, for the readers of pending writes.
        self._history_rows.put_all(made.history)
        self._latest_rows.put_all(made.latest)

    def _ends_after(self) -> int:
        """Return the time at or before which what ends needs no row.

        What is logged needs one whenever it ends, because its record has to be forgotten, too.
        """
        return NEVER if self.is_logged else self.time.bound

    def _settle(self, bound: int | None = None) -> None:
        """Stage the rows of what was put ahead, but not what ended at `bound` or before."""
        if self.journal.ahead:
            self._stage(self._rows_ahead(self._ends_after() if bound is None else bound))
            self.journal.settle()

    def _rows_ahead(self, bound: int) -> MadeRows:
        """Return the rows that versions put ahead make, with those of what they have ended."""
        journal = self.journal
        known = journal.prepared
        if known is not None and known.versions == len(journal.rows):
            return known.rows
        latest: dict[bytes, bytes] = journal.ahead
        history: Entries = {}
        if latest and self.time.now > bound:
            before = self._latest.get_many_to_write(list(latest))
            history = history_rows(
                latest, journal.ended, *before, bound=bound, interval_ms=self.interval_ms
            )
        if journal.deletes:
            history |= tombstone_rows(latest, self.interval_ms)
        made = MadeRows(latest, history)
        journal.prepared = Prepared(len(journal.rows), made)
        return made

    def _insert(self, late: Sequence[Change], latest_from: Sequence[int]) -> list[int]:
        """Put versions before the latest of their keys, one of each key; return when they end."""
        asked = [
            Asked(one.key, one.time, begins) for one, begins in zip(late, latest_from, strict=True)
        ]
        found = find(asked, self.interval_ms, self.history.seek_many)
        for one, place in zip(late, found, strict=True):
            self._insert_at(one, place)
        return [place.valid_to for place in found]

    def _insert_at(self, one: Change, place: Found) -> None:
        if place.row is not None and layout.valid_from(place.row) < one.time:
            # This comes first, so that a reader of pending writes never misses the old version.
            cut = layout.history_key(one.key, one.time, self.interval_ms)
            self._history_rows.put(cut, place.row)
        self._history_rows.put(place.at, one.row)

    def _stage_clock(self) -> None:
        clock = self.time
        observed = clock.observed()
        if clock.committed != observed:
            self._history_rows.put(layout.CLOCK_KEY, layout.clock_row(*observed))

    def _sweep(self, below: int) -> list[bytes]:
        """Clear away tombstones that are the latest of their keys and older than history.

        Return the keys of their records.
        """
        if self.journal.deletes:
            self._settle()
        lo, hi = layout.tombstones_below(below)
        tombstones: list[tuple[bytes, bytes]] = []
        done = below
        with self.history.scan(lo, hi) as rows:
            for at, _ in rows:
                segment, key = layout.tombstone_of(at)
                if segment >= below:
                    continue
                if len(tombstones) == _SWEEP_MAX:
                    done = segment
                    break
                tombstones.append((at, key))
        if tombstones:
            self._settle()
        gone = []
        rows_of = self._latest.get_many([key for _, key in tombstones])
        for (at, key), row in zip(tombstones, rows_of, strict=True):
            if row is not None and layout.is_tombstone(row):
                begins = layout.valid_from(row)
                if layout.tombstone_key(key, begins, self.interval_ms) == at:
                    self._latest_rows.put(key, None)
                    gone.append(key + row[STAMP])
            self._history_rows.put(at, None)
        self._swept_below = done
        return gone


class PendingVersions:
    """The `reads.PendingLayer` of a table, for readers that see uncommitted versions."""

    uncommitted = True

    def __init__(self, table: VersionedTable) -> None:
        self.now = table.pending_now
        self._time = table.time
        self._ahead = table.journal.ahead
        self._entries = table.staged.overlay(LATEST).entries

    def observed(self) -> StreamTime:
        """Return the stream time with what is pending."""
        return self._time.observed()

    def latest(self, key: bytes) -> bytes | Missing | None:
        """Return the row of the latest version of a key, if it is pending."""
        # The order matters, because what is settled meanwhile moves from the first to the second.
        return self._ahead.get(key) or self._entries.get(key, MISSING)


def _taken(
    keys: list[bytes], values: list[bytes | None], times: list[int], places: list[int]
) -> tuple[list[bytes], list[bytes | None], list[int]]:
    """Return the items at `places`, in that order."""
    return [keys[i] for i in places], [values[i] for i in places], [times[i] for i in places]
