"""Joins of two streams: records of one key meet if their times lie within a window.

Each side has a store of its records, ordered by key, time and number (`composed.key_at_time`). A
batch of one side looks up the rows of all its keys in the other side's store at once, and is then
added to its own. Where a side's records have results without a match, too, those that wait for one
are listed in a third store, until their window closes. That store has these rows:

    t                                         stream time, 8 bytes, and the next number, 8 bytes
    a <side>                                  the latest time of its records, below a repartition
    s <side>                                  how far expired records were deleted (join_windows.py)
    <side> <time, 8> <key> <number, 8>        a record that waits for a match; its value is empty

A side is one byte, 0 for the right one and 1 for the left one. Times are offset by 2^63, so that
bytes sort as times do. Stream time is the latest time of all records of both sides, by which all
else is decided: a record that waits is given up, and deleted, at the very record with which its
window closes, so it has its matches or the one result without; a record is kept for as long as one
that comes may meet it, and late, and dropped, after that (docs/adr/0018).

Keeps I24 and I35.
"""

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from operator import add, attrgetter
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from statestore.model.batch import Batch, Column, no_records
from statestore.model.ids import TaskId
from statestore.model.records import Serde
from statestore.stores.specs import KeyValueSpec
from statestore.topology.failures import (
    NodeFailed,
    decoded,
    each,
    encoded,
    processing,
)
from statestore.topology.joins.join_windows import BIAS, TIME, JoinWindows, Sweeper, time_of
from statestore.topology.joins.joiners import Joiner
from statestore.topology.joins.own_rows import FIXED
from statestore.topology.joins.stream_rows import KeyRows, Match, Unmatched, listed_as, time_bytes
from statestore.topology.nodes import Build, Forward, Held, NodeContext, Push, in_order

LEFT: Final = b"\x01"
RIGHT: Final = b"\x00"

_CLOCK: Final = b"t"
_AHEAD: Final = b"a"
_NOW_AND_NEXT: Final = struct.Struct(">QQ")
_NUMBER_MAX: Final = b"\xff" * 8
_SUFFIX: Final = np.dtype("V16")
_GIVEN_UP_AT_ONCE: Final = 10_000

_TAKER: Final = "StreamsBuilder(), or to a repartition() before the join, which keeps its records"


class Side(NamedTuple):
    """One side of a join.

    `first_ms` to `last_ms`: where matches of a record lie, relative to its time. `waits`: a record
    without a match has a result, too, once its window has closed.
    """

    letter: bytes
    rows: KeyValueSpec[Any, Any]
    key_serde: Serde[Any]
    first_ms: int
    last_ms: int
    waits: bool

    @property
    def ahead_ms(self) -> int:
        """How far beyond a record its window reaches; a record's own time is never beyond it."""
        return max(self.last_ms, 0)

    @property
    def value_serde(self) -> Serde[Any]:
        return self.rows.value_serde


@dataclass(frozen=True)
class StreamJoin:
    """A join of two streams; `shared` has what both sides share.

    `careful` has the stream tasks in which a result has failed: there, results of records that
    waited are handed on by themselves.
    """

    left: Side
    right: Side
    shared: KeyValueSpec[Any, Any]
    windows: JoinWindows
    joiner: Joiner
    careful: set[TaskId] = field(default_factory=set)

    def node(self, letter: bytes) -> Callable[[str], Build]:
        """Return what builds the node of one side, given its name."""
        left = letter == LEFT

        def made(node: str) -> Build:
            def build(context: NodeContext, forward: Forward) -> Push:
                return _Half(node, self, context, forward, left=left).push

            return build

        return made


class _Half:
    """The node of one side in a stream task."""

    def __init__(
        self, node: str, join: StreamJoin, context: NodeContext, forward: Forward, *, left: bool
    ) -> None:
        self._node = node
        self._join = join
        self._context = context
        self._forward = forward
        self._is_left = left
        self._grace_ms = join.windows.grace_ms
        self._mine, self._theirs = (join.left, join.right) if left else (join.right, join.left)
        self._table = context.table(self._mine.rows.name)
        self._others = context.table(self._theirs.rows.name)
        self._shared = context.table(join.shared.name)
        self._sides = {side.letter: side for side in (join.left, join.right)}
        self._given_up_ms: dict[bytes, int] = {}
        """By side, a time before which nothing waits any more."""
        self._sweepers = [
            Sweeper(
                rows,
                self._shared,
                b"s" + side.letter,
                kept_ms=join.windows.kept_ms,
                late_ms=join.windows.kept_ms,
            )
            for rows, side in ((self._table, self._mine), (self._others, self._theirs))
        ]
        self._keeps_waiting = join.left.waits or join.right.waits
        if self._keeps_waiting:
            context.held_back.opened(join.shared.name, self._count)
        self._ahead = _AHEAD + self._mine.letter
        ahead = self._shared.get(self._ahead)
        self._ahead_ms = None if ahead is None else TIME.unpack(ahead)[0] - BIAS
        context.when_time_passes(node, self._time_passed)
        waits_ms = self._grace_ms + max(self._mine.ahead_ms, self._theirs.ahead_ms)
        if self._keeps_waiting:
            context.keeps_back(node, lambda now_ms: max(now_ms - waits_ms, 0))

    def push(self, batch: Batch) -> None:
        """Join a batch of this side."""
        start, count = 0, len(batch)
        while start < count:
            start += self._take(batch.slice(start, count) if start else batch)
        now_ms, _ = self._clock()
        assert now_ms is not None
        for sweeper in self._sweepers:
            sweeper.sweep(now_ms, count)

    def _time_passed(self, now_ms: int, bound_ms: int) -> None:
        """Give up what waits in vain now that time has passed without a record."""
        if self._ahead_ms is not None:
            now_ms = max(now_ms, min(self._ahead_ms, bound_ms))
        before_ms, number = self._clock()
        if before_ms is not None and now_ms <= before_ms:
            return
        while expired := self._unmatched(now_ms):
            results = [result for _, result in self._alone(expired, [0] * len(expired))]
            self._give_up(expired, now_ms)
            self._hand_on(no_records(), [], results)
        self._shared.put_all({_CLOCK: _NOW_AND_NEXT.pack(now_ms + BIAS, number)}, [now_ms])
        for sweeper in self._sweepers:
            sweeper.sweep(now_ms, 0)

    def _take(self, batch: Batch) -> int:
        """Join some records from the beginning of a batch; return how many.

        There are fewer than all, or none, if very many that waited are given up first.
        """
        before_ms, number = self._clock()
        times = np.array(batch.timestamps, np.int64)
        bound_ms, seen = self._context.time_bound(), times
        if bound_ms is not None:
            latest_ms = int(times.max())
            if self._ahead_ms is None or latest_ms > self._ahead_ms:
                self._ahead_ms = latest_ms
                self._shared.put_all({self._ahead: TIME.pack(latest_ms + BIAS)}, [latest_ms])
            seen = np.minimum(times, bound_ms)
        now = np.maximum.accumulate(seen)
        if before_ms is not None:
            np.maximum(now, before_ms, out=now)
        expired = self._unmatched(int(now[-1]))
        if len(expired) == _GIVEN_UP_AT_ONCE:
            place = int(np.searchsorted(now, expired[-1].closes_ms, side="right"))
            if not place:
                results = self._alone(expired, [0] * len(expired))
                self._give_up(expired, int(now[0]))
                self._hand_on(batch, [], [result for _, result in results])
                return 0
            batch, times, now = batch.slice(0, place), times[:place], now[:place]
            expired = [one for one in expired if one.closes_ms < now[-1]]
        with processing(self._node, batch):
            matched, unmatched = self._join_all(batch, times, now, expired, number)
        self._hand_on(batch, matched, unmatched)
        return len(batch)

    def _join_all(
        self,
        batch: Batch,
        times: NDArray[np.int64],
        now: NDArray[np.int64],
        expired: list[Unmatched],
        number: int,
    ) -> tuple[list[Match], list[Match]]:
        """Keep and look up all; return the results of matches, and those of what had none."""
        node, mine, theirs = self._node, self._mine, self._theirs
        keys = encoded(node, batch, "key", mine.key_serde)
        values = encoded(node, batch, "value", mine.value_serde, taker=_TAKER)
        # A record that cannot be decoded must not fail those that meet it later.
        decoded(node, batch, "value")
        live, alone = self._admitted(batch, keys, values, times, now)
        found = self._look_up(batch, keys, live)
        places = np.searchsorted(now, [one.closes_ms for one in expired], side="right").tolist()
        ends = {
            one.row: place
            for one, place in zip(expired, places, strict=True)
            if one.letter == theirs.letter
        }
        oldest = (now - self._join.windows.kept_ms).tolist()
        results, met, unmatched = self._matches(batch, keys, live, found, ends, oldest)
        left = [
            i for i, one in enumerate(expired) if one.letter != theirs.letter or one.row in ends
        ]
        given_up = self._alone([expired[i] for i in left], [places[i] for i in left])
        rows = self._rows(keys, times, live, number)
        waiting: list[int] = []
        if mine.waits and unmatched:
            closes = times[unmatched] + (mine.ahead_ms + self._grace_ms)
            for i, place, until in zip(
                unmatched,
                np.searchsorted(now, closes, side="right").tolist(),
                closes.tolist(),
                strict=True,
            ):
                if place == len(batch):
                    waiting.append(i)
                    continue
                row = rows.pop(i)
                if place <= i:
                    # It came after its window had closed.
                    alone.append(i)
                    continue
                one = Unmatched(until, listed_as(mine.letter, row), row)
                given_up.append((one, Match(place, mine.letter, keys[i], values[i], time_of(row))))
            given_up.sort()
        writes = {rows[i]: values[i] for i in rows}
        self._table.put_all(writes, [batch.timestamps[i] for i in rows])
        self._give_up([expired[i] for i in left], int(now[-1]))
        listed = {listed_as(mine.letter, rows[i]): b"" for i in waiting}
        self._shared.put_all(listed, [batch.timestamps[i] for i in waiting])
        self._count_waiting(len(listed) - self._unlist(met, int(now[-1])))
        clock = _NOW_AND_NEXT.pack(int(now[-1]) + BIAS, number + len(batch))
        self._shared.put_all({_CLOCK: clock}, [int(now[-1])])
        if alone:
            results += [Match(i, b"", None, None, batch.timestamps[i]) for i in alone]
            results.sort(key=attrgetter("place"))
        for side in self._sides.values():
            self._given_up_ms[side.letter] = int(now[-1]) - side.ahead_ms - self._grace_ms
        return results, [result for _, result in given_up]

    # What is looked up.

    def _clock(self) -> tuple[int | None, int]:
        """Return stream time, None before the first record, and the next number."""
        stored = self._shared.get(_CLOCK)
        if stored is None:
            return None, 0
        now, number = _NOW_AND_NEXT.unpack(stored)
        return now - BIAS, number

    def _admitted(
        self,
        batch: Batch,
        keys: list[bytes | None],
        values: list[bytes | None],
        times: NDArray[np.int64],
        now: NDArray[np.int64],
    ) -> tuple[list[int], list[int]]:
        """Return the places of the records to join, and of those that have no key to join by.

        As in Kafka Streams, a record without a key has its result at once if it needs no match.
        """
        late = times < now - self._join.windows.kept_ms
        alone: list[int] = []
        if None in keys or None in values:
            nulls = [i for i, pair in enumerate(zip(keys, values, strict=True)) if None in pair]
            late[nulls] = False
            if self._mine.waits:
                alone = [i for i in nulls if values[i] is not None]
            dropped = [i for i in nulls if i not in set(alone)] if alone else nulls
            if dropped:
                self._context.drop(self._node, batch, dropped, "null_key_or_value")
            known = ~late
            known[nulls] = False
        else:
            known = ~late
        dropped = np.flatnonzero(late).tolist()
        if dropped:
            self._table.count_late(len(dropped))
            self._context.drop(self._node, batch, dropped, "late")
        return np.flatnonzero(known).tolist(), alone

    def _look_up(
        self, batch: Batch, keys: list[bytes | None], live: list[int]
    ) -> dict[bytes | None, KeyRows]:
        """Return the other side's records that may match, by key; most keys may have none."""
        times = batch.timestamps
        wanted = list(map(keys.__getitem__, live))
        when = list(map(times.__getitem__, live))
        if in_order(when):
            highs = dict(zip(wanted, when, strict=True))
            lows = dict(zip(reversed(wanted), reversed(when), strict=True))
        else:
            lows, highs = {}, {}
            for key, time in zip(wanted, when, strict=True):
                lows[key] = min(time, lows.get(key, time))
                highs[key] = max(time, highs.get(key, time))
        first, last = self._mine.first_ms, self._mine.last_ms
        spans: list[tuple[bytes, bytes, bytes]] = sorted(
            (key + time_bytes(lows[key] + first), key + time_bytes(high + last) + _NUMBER_MAX, key)
            for key, high in highs.items()
            if key is not None
        )
        found = self._others.scan_many([(lo, hi) for lo, hi, _ in spans]) if spans else []
        made: dict[bytes | None, KeyRows] = {}
        for (_, _, key), pairs in zip(spans, found, strict=True):
            length = len(key) + 16
            # Rows of longer keys may lie between those of a key.
            kept = [pair for pair in pairs if len(pair[0]) == length]
            if kept:
                rows = [row for row, _ in kept]
                made[key] = KeyRows(list(map(time_of, rows)), rows, [value for _, value in kept])
        return made

    def _matches(
        self,
        batch: Batch,
        keys: list[bytes | None],
        live: list[int],
        found: dict[bytes | None, KeyRows],
        ends: dict[bytes, int],
        oldest: list[int],
    ) -> tuple[list[Match], set[bytes], list[int]]:
        """Return the results of matches, the rows that matched, and the records without a match.

        `ends`: where in the batch records of the other side are given up. Those that matched before
        are removed from it. `oldest`: how old a record may be to meet the one at each place.
        """
        if not found:
            return [], set(), live
        times, first, last = batch.timestamps, self._mine.first_ms, self._mine.last_ms
        notes = self._theirs.waits
        results: list[Match] = []
        met: set[bytes] = set()
        unmatched: list[int] = []
        for i in live:
            there = found.get(keys[i])
            matched = False
            if there is not None:
                time = times[i]
                begin = bisect_left(there.times, max(time + first, oldest[i]))
                end = bisect_right(there.times, time + last, begin)
                for n in range(begin, end):
                    row = there.rows[n]
                    if notes:
                        if ends.get(row, len(times)) <= i:
                            continue
                        ends.pop(row, None)
                        met.add(row)
                    matched = True
                    results.append(Match(i, b"", None, there.values[n], max(time, there.times[n])))
            if not matched:
                unmatched.append(i)
        return results, met, unmatched

    def _unmatched(self, now_ms: int) -> list[Unmatched]:
        """Return those that wait and whose windows are closed at a time, at most so many."""
        found: list[Unmatched] = []
        for side in self._sides.values():
            if not side.waits:
                continue
            ahead_ms = side.ahead_ms + self._grace_ms
            until = side.letter + time_bytes(now_ms - ahead_ms)
            since_ms = self._given_up_ms.get(side.letter)
            since = side.letter if since_ms is None else side.letter + time_bytes(since_ms)
            if since >= until:
                continue
            with self._shared.scan(since, until) as rows:
                listed = [row for row, _ in islice(rows, _GIVEN_UP_AT_ONCE)]
            for one in listed:
                row = one[9:-8] + one[1:9] + one[-8:]
                found.append(Unmatched(time_of(row) + ahead_ms, one, row))
        found.sort()
        return found[:_GIVEN_UP_AT_ONCE]

    def _alone(self, expired: list[Unmatched], places: list[int]) -> list[tuple[Unmatched, Match]]:
        """Return the results of records of the stores that waited in vain, with what they are."""
        made = []
        values: dict[bytes, bytes | None] = {}
        for letter in {one.letter for one in expired}:
            rows = [one.row for one in expired if one.letter == letter]
            table = self._table if letter == self._mine.letter else self._others
            values |= {letter + row: v for row, v in zip(rows, table.get_many(rows), strict=True)}
        for one, place in zip(expired, places, strict=True):
            raw = values[one.letter + one.row]
            made.append((one, Match(place, one.letter, one.row[:-16], raw, time_of(one.row))))
        return made

    def _count(self) -> int:
        with self._shared.scan(RIGHT, b"\x02") as found:
            return sum(1 for _ in found)

    # What is written.

    def _rows(
        self, keys: Sequence[bytes | None], times: NDArray[np.int64], live: list[int], number: int
    ) -> dict[int, bytes]:
        """Return the row of each record that is kept, by its place."""
        suffixes = np.empty((len(live), 2), ">u8")
        suffixes[:, 0] = times[live].view(np.uint64) ^ np.uint64(BIAS)
        suffixes[:, 1] = np.array(live, np.uint64) + np.uint64(number)
        ends: list[bytes] = suffixes.view(_SUFFIX).ravel().tolist()
        rows = map(add, map(keys.__getitem__, live), ends)
        return dict(zip(live, rows, strict=True))

    def _give_up(self, expired: list[Unmatched], now_ms: int) -> None:
        """Delete records that waited in vain."""
        if not expired:
            return
        self._shared.put_all(dict.fromkeys(one.listed for one in expired), [now_ms] * len(expired))
        for letter, table in (
            (self._mine.letter, self._table),
            (self._theirs.letter, self._others),
        ):
            gone = dict.fromkeys(one.row for one in expired if one.letter == letter)
            table.put_all(gone, [now_ms] * len(gone))
        self._count_waiting(-len(expired))

    def _unlist(self, met: set[bytes], now_ms: int) -> int:
        """Let records that matched wait no longer; return how many of them did."""
        if not met:
            return 0
        listed = sorted(listed_as(self._theirs.letter, row) for row in met)
        stored = self._shared.get_many(listed)
        gone = dict.fromkeys(
            row for row, value in zip(listed, stored, strict=True) if value is not None
        )
        self._shared.put_all(gone, [now_ms] * len(gone))
        return len(gone)

    def _count_waiting(self, by: int) -> None:
        if by and self._keeps_waiting:
            self._context.held_back.changed(self._join.shared.name, by)

    # What comes out.

    def _hand_on(self, batch: Batch, matched: list[Match], unmatched: list[Match]) -> None:
        """Hand on results in the order of the records with which they come.

        Those of records that waited are judged by themselves, which is only possible apart from
        others (SEMANTICS E8a). So all go together until one has failed.
        """
        # Sorting keeps their order; what waited comes before the record that made it due.
        results = sorted([*unmatched, *matched], key=attrgetter("place")) if unmatched else matched
        if not results:
            return
        runs = [(letter, list(run)) for letter, run in groupby(results, attrgetter("letter"))]
        apart = len(runs) == 1 or len(batch) == 1
        try:
            if apart or self._context.task_id in self._join.careful:
                for letter, run in runs:
                    if letter:
                        self._release(batch, letter, run)
                    else:
                        self._forward_matched(batch, run)
            else:
                self._forward(self._together(batch, results), None)
        except NodeFailed:
            self._join.careful.add(self._context.task_id)
            raise

    def _forward_matched(self, batch: Batch, run: list[Match]) -> None:
        places = [result.place for result in run]
        values = self._joined(batch, run)
        made = batch.take(places).with_columns(
            values=Column(objects=values), timestamps=[result.time_ms for result in run]
        )
        self._forward(made, None)

    def _release(self, batch: Batch, letter: bytes, run: list[Match]) -> None:
        side = self._sides[letter]

        def hand_on(due: Batch) -> None:
            with processing(self._node, due):
                objects = decoded(self._node, due, "value")
                keys = encoded(self._node, due, "key", side.key_serde)

                def alone(ahead: Iterator[Any]) -> list[Any]:
                    pairs = zip(ahead, keys, strict=True)
                    return [self._without(letter, key, value) for value, key in pairs]

                made = each(self._node, due, objects, alone, certain=True)
            self._forward(due.with_columns(values=Column(objects=made)), None)

        then = batch.stream_times
        held = Batch(
            keys=Column(raw=[result.key for result in run], serde=side.key_serde),
            values=Column(raw=[result.raw for result in run], serde=side.value_serde),
            timestamps=[result.time_ms for result in run],
            headers=batch.headers_at([result.place for result in run]),
            stream_times=None if then is None else [then[result.place] for result in run],
        )
        self._context.release(self._node, Held(self._join.shared.name, held), hand_on)

    def _together(self, batch: Batch, results: list[Match]) -> Batch:
        """Return all results as one batch of new records."""
        with processing(self._node, batch):
            keys = encoded(self._node, batch, "key", self._mine.key_serde)
            values = iter(self._joined(batch, [one for one in results if not one.letter]))
            objects = [
                self._without(one.letter, one.key, self._read(one.letter, one.raw))
                if one.letter
                else next(values)
                for one in results
            ]
        then = batch.stream_times
        return Batch(
            keys=Column(
                raw=[one.key if one.letter else keys[one.place] for one in results],
                serde=self._mine.key_serde,
            ),
            values=Column(objects=objects),
            timestamps=[one.time_ms for one in results],
            headers=batch.headers_at([one.place for one in results]),
            stream_times=None if then is None else [then[one.place] for one in results],
        )

    def _joined(self, batch: Batch, run: list[Match]) -> list[Any]:
        """Call the function for each match; NodeFailed names the record for which it failed."""
        ours = decoded(self._node, batch, "value")
        raw: list[bytes | None] | None = None
        mine, theirs, joiner = self._mine.letter, self._theirs.letter, self._join.joiner
        names = decoded(self._node, batch, "key") if joiner.takes_key else None
        function = joiner.function

        def join(ahead: Iterator[Match]) -> list[Any]:
            nonlocal raw, function
            made = []
            for place, _, _, value, _ in ahead:
                own = ours[place]
                if type(own) not in FIXED:
                    # The function may change it, and other matches and nodes have it, too.
                    if raw is None:
                        raw = batch.values.encoded(self._mine.value_serde)
                    own = self._read(mine, raw[place])
                other = self._read(theirs, value)
                if names is not None:
                    function = joiner.of(names[place])
                made.append(function(own, other) if self._is_left else function(other, own))
            return made

        return each(self._node, batch, run, join, place_of=lambda row: run[row].place)

    def _without(self, letter: bytes, key: bytes | None, value: Any) -> Any:
        return self._join.joiner.alone(key, value, self._mine.key_serde, left=letter == LEFT)

    def _read(self, letter: bytes, raw: bytes | None) -> Any:
        serde = self._sides[letter].value_serde
        return None if raw is None else serde.deserialize(raw)
