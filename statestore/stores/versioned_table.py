"""A versioned store as its owner sees it: pending writes over committed rows, in bytes.

What operators work on, in batches. Owner thread only. An ordered put is one row; that of the
version it supersedes is moved, with many others, to the segment of the time that ends it, before
anybody looks. A late one also looks for the version it cuts short. Expiry is a range delete in the
commit that crosses a segment's end.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, compress
from operator import gt
from typing import Final

from statestore.model import Position, PutResult, TopicPartition
from statestore.stores import versioned_layout as layout
from statestore.stores.journal import Journal
from statestore.stores.observed_time import ObservedTime, committed_moment
from statestore.stores.overlay import MISSING, Missing
from statestore.stores.staged_table import Changes, Pair, StagedTable
from statestore.stores.superseded import Superseded, moved_rows
from statestore.stores.transaction import StagedEngine
from statestore.stores.version_search import Asked, Found, View, find, valid_at
from statestore.stores.version_views import HistorySnapshot, PendingVersions
from statestore.stores.version_writes import (
    Change,
    Columns,
    Staged,
    next_versions,
    versions_ahead,
)
from statestore.stores.versioned_layout import (
    BIAS,
    HISTORY,
    LATEST,
    NEVER,
    STAMP,
    VALUE,
    pack_head,
)

_log = logging.getLogger(__name__)

_IS_LATEST: Final = PutResult(accepted=True, latest=True, valid_to_ms=None)
_TOO_LATE: Final = PutResult(accepted=False, latest=False, valid_to_ms=None)

_SWEEP_MAX: Final = 10_000
"""How many forgotten deletes one commit clears away, so that no commit takes long."""


class VersionedTable:
    """Reads and writes of the versions in a StagedEngine."""

    def __init__(self, staged: StagedEngine, retention_ms: int) -> None:
        assert staged.segment_interval_ms is not None
        self.staged: Final = staged
        self.retention_ms: Final = retention_ms
        self.interval_ms: Final = staged.segment_interval_ms
        self.latest: Final = StagedTable(staged, LATEST)
        self.history: Final = StagedTable(staged, HISTORY)
        self.time: Final = ObservedTime(committed_moment(staged), retention_ms)
        self._committed_latest: Final = staged.table(LATEST)
        self._latest_rows: Final = staged.overlay(LATEST)
        self._history_rows: Final = staged.overlay(HISTORY)
        self._journal: Final = Journal()
        self.superseded: Final = Superseded(self._latest_rows)
        # Bound once: they run for every put.
        self._pending: Final = self._latest_rows.entries
        self._first: Final = self.superseded.first
        self._note_key: Final = self._journal.keys.append
        self._note_value: Final = self._journal.values.append
        self._note_time: Final = self._journal.times.append
        staged.keep_journal(self._journal)
        staged.keep_in_step(self.time)
        staged.keep_sized(self.superseded)
        self._expired_below = layout.expired_below(self.time.committed.bound, self.interval_ms)
        self._swept_below = self._expired_below
        self._told_late = False

    # Writes.

    def put(self, key: bytes, value: bytes | None, time: int) -> PutResult:
        """Stage one version; None is a tombstone. Older than the retention: not accepted."""
        self.staged.check_open()
        clock = self.time
        if time < clock.now:
            return self._put_behind(key, value, time)
        if time > clock.now:
            clock.advance(time)
        if value is None:
            self._history_rows.put(layout.grave_key(key, time, self.interval_ms), b"")
            self._journal.deletes += 1
            row = layout.version_row(None, time)
        else:
            row = pack_head(VALUE, time + BIAS) + value
        self._note_key(key)
        self._note_value(value)
        self._note_time(time)
        old = self._pending.get(key, MISSING)
        if isinstance(old, Missing):
            self._first[key] = row
        elif old is not None and time > clock.bound and old[STAMP] < row[STAMP]:
            place = layout.place_head(time // self.interval_ms, len(key))
            self._history_rows.put(place + key + row[STAMP], old)
        self._latest_rows.put(key, row)
        return _IS_LATEST

    def put_all(
        self, keys: list[bytes], values: list[bytes | None], times: list[int]
    ) -> list[int] | None:
        """Stage many versions, as `put` in this order would.

        One look-up for all keys, at most. Returns the places of those refused, None if there are
        none.
        """
        self.staged.check_open()
        if not keys:
            return None
        clock = self.time
        late = self._late(times)
        if late:
            self._refuse(len(late), min(times[i] for i in late))
            gone = set(late)
            kept = [i for i in range(len(keys)) if i not in gone]
            keys = [keys[i] for i in kept]
            values = [values[i] for i in kept]
            times = [times[i] for i in kept]
        if keys:
            now, newest = clock.now, max(times)
            if newest > now:
                clock.advance(newest)
            self._put_accepted(keys, values, times, now=now, bound=clock.bound)
            self._journal.put_all(keys, values, times)
        return late

    def in_order(self, times: list[int]) -> bool:
        """Whether versions of these times, put now, would each be the latest of its key."""
        return times[0] >= self.time.now and not any(map(gt, times, times[1:]))

    def restore(
        self,
        keys: list[bytes],
        values: list[bytes | None],
        times: list[int],
        offsets: Mapping[TopicPartition, int],
    ) -> None:
        """Changelog records, none refused, with the offsets they reach, in one batch (V8)."""
        if keys:
            # What has expired is judged when all is there: by the first commit, and by reads.
            now, newest = self.time.now, max(times)
            if newest > now:
                self.time.advance(newest)
            self._put_accepted(keys, values, times, now=now, bound=NEVER)
            self._move_superseded(NEVER)
        self._stage_clock()
        self.staged.commit_restored(offsets, len(keys))
        self._expired_below = self._swept_below = layout.TIME_MIN

    # Reads.

    def view(self) -> View:
        """What the owner sees, for questions answered at once."""
        self._move_superseded(self.time.bound)
        return View(
            self.time.bound,
            self.interval_ms,
            self.latest.get_many,
            self.history.seek_many,
            self._scan_back,
        )

    def get_many_as_of(self, keys: list[bytes], times: list[int]) -> list[bytes | None]:
        """Per key and time the value valid then; None: none, or history is gone."""
        found = valid_at(self.view(), keys, times)
        return [None if one is None else layout.read_version(one.row).value for one in found]

    def snapshot(self) -> HistorySnapshot:
        """The history as the owner sees it now."""
        self._move_superseded(self.time.bound)
        seeker = self.staged.table(HISTORY).seeker()
        return HistorySnapshot(self.staged, seeker, PendingVersions(self._history_rows.entries))

    # The transaction.

    def commit(
        self, offsets: Mapping[TopicPartition, int | None], position: Position | None = None
    ) -> None:
        """All that is pending, with the stream time; segments that have expired go."""
        self._move_superseded(self.time.bound)
        ranges = None
        below = layout.expired_below(self.time.bound, self.interval_ms)
        if below > self._expired_below:
            ranges = {HISTORY: [layout.versions_below(below)]}
        if below > self._swept_below:
            self._sweep(below)
        self._stage_clock()
        self.staged.commit(offsets, position, ranges=ranges)
        self._expired_below = below

    def changes(self) -> Changes:
        """What the next commit logs: each version once, the latest of each key last of its key.

        Compaction keeps the last record of a key. So where only older versions were written, the
        latest is logged once more.
        """
        # Now, as a read that fails should do so before anything is logged.
        self._move_superseded(self.time.bound)
        logged = self._journal.distinct()
        times = [time for time, _, _ in logged]
        keys = [key for _, key, _ in logged]
        values = [value for _, _, value in logged]
        behind = [key for key in dict.fromkeys(keys) if key not in self._pending]
        for key, row in zip(behind, self.latest.get_many(behind), strict=True):
            if row is not None:
                begins, value = layout.read_version(row)
                keys.append(key)
                values.append(value)
                times.append(begins)
        return Changes(keys, values, times)

    # How it is done.

    def _scan_back(self, lo: bytes, hi: bytes) -> Iterator[Pair]:
        with self.history.scan(lo, hi, reverse=True) as rows:
            yield from rows

    def _late(self, times: list[int]) -> list[int] | None:
        """The places of those older than the bound was when their turn came."""
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

    def _put_behind(self, key: bytes, value: bytes | None, time: int) -> PutResult:
        """Stage one version from before the observed stream time: it may not be the latest."""
        if time < self.time.bound:
            self._refuse(1, time)
            return _TOO_LATE
        self._move_superseded(self.time.bound)
        old = self.latest.get(key)
        begins = NEVER if old is None else layout.valid_from(old)
        self._journal.put(key, value, time)
        if time < begins:
            ends = self._insert([Change(key, value, time)], [begins])[0]
            return PutResult(accepted=True, latest=False, valid_to_ms=ends)
        if old is not None and time > begins and time > self.time.bound:
            self._history_rows.put(layout.history_key(key, time, self.interval_ms), old)
        if value is None:
            self._history_rows.put(layout.grave_key(key, time, self.interval_ms), b"")
        self._latest_rows.put(key, layout.version_row(value, time))
        return _IS_LATEST

    def _put_accepted(
        self,
        keys: list[bytes],
        values: list[bytes | None],
        times: list[int],
        *,
        now: int,
        bound: int,
    ) -> None:
        """Stage versions; those that end at `bound` or before need not be kept.

        `now`: the stream time before them.
        """
        if min(times) >= now:
            self._put_ahead(keys, values, times, bound)
            return
        for put, part in (
            (self._put_all_behind, [time < now for time in times]),
            (self._put_ahead, [time >= now for time in times]),
        ):
            if any(part):
                put(
                    list(compress(keys, part)),
                    list(compress(values, part)),
                    list(compress(times, part)),
                    bound,
                )

    def _put_ahead(
        self, keys: list[bytes], values: list[bytes | None], times: list[int], bound: int
    ) -> None:
        """Stage versions that begin when all there are had begun: nothing is looked up."""
        made = versions_ahead(
            Columns(keys, values, times),
            self._pending,
            self._first,
            bound=bound,
            interval_ms=self.interval_ms,
        )
        self._stage(made)

    def _put_all_behind(
        self, keys: list[bytes], values: list[bytes | None], times: list[int], bound: int
    ) -> None:
        """Stage versions from before the observed stream time: some may not be the latest."""
        self._move_superseded(bound)
        unique = list(dict.fromkeys(keys))
        rows = dict(zip(unique, self.latest.get_many(unique), strict=True))
        made, behind = next_versions(
            Columns(keys, values, times), rows, bound=bound, interval_ms=self.interval_ms
        )
        self._stage(made)
        # Versions of one key see each other, so one of each key at a time.
        while behind:
            turn = {one.key: one for one in reversed(behind)}
            now = self.latest.get_many(list(turn))
            begins = [layout.valid_from(row) for row in now if row is not None]
            self._insert(list(turn.values()), begins)
            behind = [one for one in behind if turn[one.key] is not one]

    def _stage(self, made: Staged) -> None:
        # History before what supersedes it: see the readers of pending writes.
        self._history_rows.put_all(made.history)
        self._latest_rows.put_all(made.latest)

    def _move_superseded(self, bound: int) -> None:
        """Look up what pending versions have ended, and stage it as history."""
        first = self._first
        if not first:
            return
        if self.time.now > bound:
            try:
                found = self._committed_latest.get_many(list(first))
            except Exception as error:
                raise self.staged.failure(error) from error
            self._history_rows.put_all(
                moved_rows(first, found, bound=bound, interval_ms=self.interval_ms)
            )
        self.superseded.moved()

    def _insert(self, late: Sequence[Change], latest_from: Sequence[int]) -> list[int]:
        """Put versions before the latest of their keys, one of each key; returns when they end."""
        asked = [
            Asked(one.key, one.time, begins) for one, begins in zip(late, latest_from, strict=True)
        ]
        found = find(asked, self.interval_ms, self.history.seek_many)
        for one, place in zip(late, found, strict=True):
            self._insert_at(one, place)
        return [place.valid_to for place in found]

    def _insert_at(self, one: Change, place: Found) -> None:
        if place.row is not None and layout.valid_from(place.row) < one.time:
            # First: a reader of pending writes then finds the old version whole or cut, never gone.
            cut = layout.history_key(one.key, one.time, self.interval_ms)
            self._history_rows.put(cut, place.row)
        self._history_rows.put(place.at, layout.version_row(one.value, one.time))

    def _stage_clock(self) -> None:
        clock = self.time
        if clock.committed != (clock.now, clock.bound):
            self._history_rows.put(layout.CLOCK_KEY, layout.clock_row(clock.now, clock.bound))

    def _sweep(self, below: int) -> None:
        """Clear away tombstones that are the latest of their keys and older than history."""
        lo, hi = layout.graves_below(below)
        graves: list[tuple[bytes, bytes]] = []
        done = below
        with self.history.scan(lo, hi) as rows:
            for at, _ in rows:
                segment, key = layout.grave_of(at)
                if segment >= below:
                    continue
                if len(graves) == _SWEEP_MAX:
                    done = segment
                    break
                graves.append((at, key))
        rows_of = self.latest.get_many([key for _, key in graves])
        for (at, key), row in zip(graves, rows_of, strict=True):
            if row is not None and layout.is_tombstone(row):
                begins = layout.valid_from(row)
                if layout.grave_key(key, begins, self.interval_ms) == at:
                    self._latest_rows.put(key, None)
            self._history_rows.put(at, None)
        self._swept_below = done
