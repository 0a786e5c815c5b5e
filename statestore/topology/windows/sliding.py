"""Sliding windows: a record has one that ends with it, and one that begins after it (KIP-450).

A window has the records of a key that are at most the difference apart. For each record there is
the window that ends at its time, and the one that starts a millisecond after it, if a record lies
there. So as a window slides over time, there is one for each different set of records in it. Of
records earlier than the difference, the window that starts at 0 has them all.

As in Kafka Streams, a window that is new begins with the aggregate of the window that had the same
records so far, and a record that comes for a closed window does not count in it. The windows of a
batch's keys are looked up once, by the rows that find windows by key (docs/adr/0021), its records
are folded one after another in memory, and what changed is written once.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from statestore import serdes
from statestore.errors import Misuse
from statestore.model.batch import Batch, Column
from statestore.model.byte_columns import without
from statestore.model.keywords import renamed
from statestore.model.modes import Span, span_ms
from statestore.model.records import WINDOW_BYTES
from statestore.stores.in_windows import START, start_of
from statestore.stores.pending import Entries
from statestore.stores.specs import ANY_START, KeyValueSpec, WindowSpec
from statestore.stores.windows import indexed, range_of_key
from statestore.topology.aggregates.folds import Aggregation, Tell, Updates
from statestore.topology.failures import decoded, each, encoded, made_by
from statestore.topology.nodes import NodeContext, Push
from statestore.topology.windows.closing import Closing
from statestore.topology.windows.fold import InTime, Timing, all_but, folding
from statestore.topology.windows.records_by_key import RecordsByKey
from statestore.topology.windows.sliding_counts import CountsApart

# Fewer records are folded one by one, as the passes over all of them take longer.
_AT_ONCE_MIN = 100


@dataclass(frozen=True, init=False)
class SlidingWindows:
    """Windows of records that are at most `difference` apart, one for each set of such records.

    They are open to late records for `grace_ms`, and leave the store when stream time has passed
    their start by twice the difference and the grace. Both are milliseconds or timedeltas. They are
    Kafka Streams' SlidingWindows.ofTimeDifferenceAndGrace, where `end_ms` is the last moment that
    still belongs to a window. Misuse if the difference or the grace is negative.
    """

    difference_ms: int
    grace_ms: int

    @renamed(difference="difference_ms", grace="grace_ms")
    def __init__(self, difference: Span, *, grace: Span = 0) -> None:
        difference, grace = span_ms(difference), span_ms(grace)
        if difference < 0 or grace < 0:
            raise Misuse(
                f"sliding windows with a difference of {difference} ms and {grace} ms of grace: "
                "neither may be negative"
            )
        object.__setattr__(self, "difference_ms", difference)
        object.__setattr__(self, "grace_ms", grace)

    @property
    def retention_ms(self) -> int:
        """How long a window is kept: as long as a record may come that has to see it."""
        return 2 * self.difference_ms + self.grace_ms + 2

    @property
    def rule(self) -> InTime:
        """What operators do in these windows."""
        # Both its ends belong to a sliding window.
        timing = Timing(self.difference_ms + 1, 1, self.grace_ms, self.retention_ms, rows_each=2)
        return InTime(
            timing, WINDOW_BYTES, partial(_spec, self), partial(_folding, self.difference_ms)
        )


def _spec(
    windows: SlidingWindows, plain: KeyValueSpec[Any, Any], terms: tuple[str, ...]
) -> WindowSpec[Any, Any]:
    return WindowSpec(
        plain.name,
        plain.key_serde,
        plain.value_serde,
        windows.difference_ms,
        windows.retention_ms,
        plain.persistent,
        plain.changelog_config,
        ("sliding", f"grace {windows.grace_ms}", *terms),
        ANY_START,
        includes_end=True,
    )


def _folding(
    difference_ms: int,
    how: Aggregation[WindowSpec[Any, Any]],
    context: NodeContext,
    clock: Closing,
    tell: Tell,
) -> Push:
    """Return what folds the records of a batch into sliding windows."""
    return folding(how, _Sliding(how, difference_ms, context, clock).fold, tell)


class _Window:
    """A window while a batch is folded.

    `data` is its value in bytes, None as long as an immutable `value` was not encoded.
    """

    __slots__ = ("before", "data", "latest_ms", "place", "value")

    def __init__(self, data: bytes | None, latest_ms: int) -> None:
        self.before = self.data = data
        self.latest_ms = latest_ms
        self.value: Any = None
        self.place = -1
        """The last record that changed it; -1: none of this batch."""


class _OfKey:
    """The windows of one key: those that are stored, and those that the batch makes."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.name: Any = None
        self.starts: list[int] = []
        self.by_start: dict[int, _Window] = {}
        self.gone: dict[int, _Window] = {}

    def between(self, first: int, last: int) -> list[int]:
        """Return where windows start from `first` to `last`."""
        return self.starts[bisect_left(self.starts, first) : bisect_right(self.starts, last)]

    def add(self, start: int, window: _Window) -> None:
        insort(self.starts, start)
        self.by_start[start] = window
        before = self.gone.pop(start, None)
        if before is not None:
            window.before = before.before

    def remove(self, start: int, place: int) -> None:
        self.starts.remove(start)
        window = self.gone[start] = self.by_start.pop(start)
        window.place = place


class _Copy(NamedTuple):
    """The aggregate of a window as it was: bytes or an immutable value, and its latest record."""

    data: bytes | None
    value: Any
    latest_ms: int


class _Sliding:
    """The windows of one store."""

    def __init__(
        self,
        how: Aggregation[WindowSpec[Any, Any]],
        difference_ms: int,
        context: NodeContext,
        clock: Closing,
    ) -> None:
        self._how = how
        self._difference_ms = difference_ms
        self._context = context
        self._clock = clock
        self._table = clock.table

    def fold(self, batch: Batch) -> Updates:
        """Fold the records of a batch into their windows, and return what changed."""
        how, difference = self._how, self._difference_ms
        serde = how.spec.inner
        keys = batch.keys.packed(serde) or encoded(how.node, batch, "key", serde)
        values = decoded(how.node, batch, "value")
        missing = sorted({*Column(raw=keys).nulls(), *Column(objects=values).nulls()})
        known = all_but(missing, len(keys))
        if missing:
            self._context.drop(how.node, batch, missing, "null_key_or_value")
        times = np.array(batch.timestamps, np.int64)
        before_ms = self._clock.latest_ms
        closed = self._clock.observe(batch, times, known)
        in_time = (times >= 0) & (times + difference + 1 > closed)
        taken = in_time if known is None else in_time & known
        late = np.flatnonzero(~in_time & (True if known is None else known)).tolist()
        if late:
            self._clock.drop_late(batch, late, len(late))
        places = np.flatnonzero(taken)
        if not len(places):
            return Updates.none()
        present = without(keys, np.flatnonzero(~taken).tolist())
        records = RecordsByKey(places, times[places], closed[places], present)
        of_keys = self._look_up(records, before_ms)
        apart, left = None, np.ones(len(places), np.bool_)
        if how.fold.counts and not how.every_update and len(places) >= _AT_ONCE_MIN:
            apart = CountsApart(records, difference, list(of_keys))
            left = ~apart.whole[records.owners]
        rows, owners = places[left].tolist(), records.owners[left].tolist()
        ends = records.closed[left].tolist()
        for owner in owners:
            if owner not in of_keys:
                of_keys[owner] = _OfKey(records.keys[owner])
        work = _Folding(how, difference, batch)

        def fold_all(ahead: Iterator[int]) -> None:
            for i, owner, end in zip(ahead, owners, ends, strict=True):
                work.one(of_keys[owner], i, values[i], end)

        each(how.node, batch, rows, fold_all, place_of=rows.__getitem__)
        self._write(of_keys.values(), work)
        if how.every_update:
            return work.updates
        changed = work.changes(of_keys.values())
        return changed if apart is None else _merged(apart.put(self._table), changed)

    def _look_up(self, records: RecordsByKey, before_ms: int) -> dict[int, _OfKey]:
        """Return the windows that records may change or begin with, by the number of their key.

        `before_ms`: the latest time of a record before these. A key without such windows is not
        among them.
        """
        difference = self._difference_ms
        near = np.flatnonzero(records.lows - difference <= before_ms)
        firsts = np.maximum(records.lows[near] - 2 * difference, 0).tolist()
        bounds = zip(near.tolist(), firsts, (records.highs[near] + 1).tolist(), strict=True)
        ranges = sorted(
            (*range_of_key(records.keys[owner], first, last), owner)
            for owner, first, last in bounds
        )
        found = self._table.scan_many([(lo, hi) for lo, hi, _ in ranges]) if ranges else []
        asked = [
            (at[-START.size :] + records.keys[owner], owner)
            for (_, _, owner), pairs in zip(ranges, found, strict=True)
            for at, _ in pairs
        ]
        rows = [row for row, _ in asked]
        stored = self._table.get_many(rows) if rows else []
        times = self._table.times_of(rows) if rows else []
        of_keys: dict[int, _OfKey] = {}
        for (row, owner), data, kept_ms in zip(asked, stored, times, strict=True):
            start = start_of(row)
            latest = start + difference if kept_ms is None else kept_ms
            if owner not in of_keys:
                of_keys[owner] = _OfKey(records.keys[owner])
            of_keys[owner].add(start, _Window(data, latest))
        return of_keys

    def _write(self, of_keys: Iterable[_OfKey], work: "_Folding") -> None:
        writes: dict[bytes, bytes | None] = {}
        stamps: list[int] = []
        indices: Entries = {}
        for of in of_keys:
            for start, window in (*of.by_start.items(), *of.gone.items()):
                if window.place < 0:
                    continue
                data = None if start in of.gone else work.encode(window)
                if data is None and window.before is None:
                    continue
                row = START.pack(start) + of.key
                writes[row] = data
                stamps.append(window.latest_ms)
                if data is None or window.before is None:
                    indices |= indexed({row: data})
        if writes:
            self._table.put_all(writes, stamps)
        if indices:
            self._table.put_all(indices)


def _merged(one: Updates, other: Updates) -> Updates:
    """Return the updates of both in the order of their places, which have no place in common."""
    if not one.rows or not other.rows:
        return one if one.rows else other
    both = Updates(
        one.places + other.places,
        one.times + other.times,
        one.rows + other.rows,
        one.values + other.values,
        one.old_values + other.old_values,
    )
    return both.picked(np.argsort(both.places, kind="stable").tolist())


class _Folding:
    """One batch on its way into windows."""

    def __init__(
        self, how: Aggregation[WindowSpec[Any, Any]], difference_ms: int, batch: Batch
    ) -> None:
        self.updates = Updates.none()
        self._how = how
        self._fold = how.fold
        self._serde = how.spec.value_serde
        self._tells = how.every_update
        self._difference_ms = difference_ms
        self._batch = batch
        self._unchanged = serdes.unchanged(self._serde)
        self._place = 0
        self._value: Any = None
        self._closed_ms = 0

    def one(self, of: _OfKey, place: int, value: Any, closed_ms: int) -> None:
        """Fold one record, as Kafka Streams does."""
        self._place, self._value, self._closed_ms = place, value, closed_ms
        time = self._batch.timestamps[place]
        if of.name is None:
            of.name = self._how.spec.inner.deserialize(of.key)
        if time < self._difference_ms:
            self._early(of, time)
        else:
            self._in_order(of, time)

    def changes(self, of_keys: Iterable[_OfKey]) -> Updates:
        """Return one update for each window that changed."""
        found = []
        for of in of_keys:
            for start, window in (*of.by_start.items(), *of.gone.items()):
                if window.place >= 0:
                    data = None if start in of.gone else self.encode(window)
                    if data is None and window.before is None:
                        continue
                    row = START.pack(start) + of.key
                    found.append((window.place, row, window.latest_ms, data, window.before))
        found.sort(key=itemgetter(0, 1))
        updates = Updates.none()
        for place, row, time, data, before in found:
            updates.add(place, time, row, data, before)
        return updates

    def encode(self, window: _Window) -> bytes | None:
        """Return the stored form of a window's value; a failure names the record that made it."""
        if window.data is None and window.value is not None:
            window.data = made_by(
                self._how.node, self._batch, window.place, window.value, self._serde
            )
        return window.data

    def _in_order(self, of: _OfKey, time: int) -> None:
        difference = self._difference_ms
        starts = of.between(time - 2 * difference, time + 1)
        left: _Copy | None = None
        right: _Copy | None = None
        previous: int | None = None
        for start in starts:
            window, end = of.by_start[start], start + difference
            if end < time:
                left, previous = _copy(window), window.latest_ms
            elif start <= time:
                if end > time:
                    right = _copy(window)
                elif window.latest_ms < time:
                    previous = window.latest_ms
                self._count(of, start, _copy(window), time)
        if previous is not None:
            begin = previous + 1
            if begin not in starts and begin + difference >= time:
                self._count(of, begin, None, time)
        if time - difference not in starts:
            reached = previous is not None and previous >= time - difference
            self._count(of, time - difference, left if reached else None, time)
        self._slide(of, starts, right, time)

    def _early(self, of: _OfKey, time: int) -> None:
        """Fold a record whose own window would start before 0: all of these share one window."""
        starts = of.between(0, time + 1)
        combined = of.by_start.get(0)
        right: _Copy | None = None
        for start in starts:
            if 0 < start <= time:
                right = _copy(of.by_start[start])
                self._count(of, start, right, time)
        if right is None and combined is not None:
            right = _copy(combined)
        self._slide(of, starts, right, time)
        if combined is not None and combined.latest_ms < time:
            begin = combined.latest_ms + 1
            if begin not in starts:
                self._count(of, begin, None, time)
        self._count(of, 0, None if combined is None else _copy(combined), time)

    def _slide(self, of: _OfKey, starts: list[int], right: _Copy | None, time: int) -> None:
        """Make the window that begins after the record, of what lies there already."""
        if time + 1 not in starts and right is not None and right.latest_ms > time:
            self._set(of, time + 1, right, right.latest_ms)

    def _count(self, of: _OfKey, start: int, base: _Copy | None, time: int) -> None:
        """Count the record in a window, whose aggregate so far is `base`."""
        fold = self._fold
        if base is None:
            old, latest = fold.initial(), time
        else:
            old = base.value if base.data is None else self._serde.deserialize(base.data)
            latest = max(base.latest_ms, time)
        made = fold.step(of.name, self._value, old)
        data = None
        if made is not None and (self._tells or type(made) not in self._unchanged):
            data = self._how.encode(made)
        self._set(of, start, _Copy(data, made, latest), latest)

    def _set(self, of: _OfKey, start: int, made: _Copy, latest_ms: int) -> None:
        """Give a window its aggregate, unless it is closed."""
        if start + self._difference_ms + 1 <= self._closed_ms:
            return
        window = of.by_start.get(start)
        old = None if window is None else window.data
        if made.data is None and made.value is None:
            if window is not None:
                of.remove(start, self._place)
                window.latest_ms = latest_ms
        else:
            if window is None:
                window = _Window(None, latest_ms)
                of.add(start, window)
            window.data, window.value = made.data, made.value
            window.latest_ms, window.place = latest_ms, self._place
            if self._tells:
                self.encode(window)
        if self._tells:
            row = START.pack(start) + of.key
            new = None if window is None or start in of.gone else window.data
            self.updates.add(self._place, latest_ms, row, new, old)


def _copy(window: _Window) -> _Copy:
    return _Copy(window.data, window.value, window.latest_ms)
