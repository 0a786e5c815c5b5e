"""Session windows: a session is as many records of a key as are at most a gap apart.

A record opens a session of its own, and merges into it the sessions that it reaches: those that
ended up to a gap before it, or start up to a gap after it. What was merged is deleted and goes out
as a tombstone, then the new session goes out, stamped with its end, as in Kafka Streams. Stream
time closes a session once it has passed its end by more than gap and grace. A closed session takes
no more records: a record that reaches no open one and lies itself before what is closed is late.

A batch makes two look-ups, of the sessions of its keys and of the values of those in reach, and one
write. The sessions of a key in the batch are folded one after another in memory. A count folds
stretches of records instead of records where no record is so late that the order counts.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from statestore import serdes
from statestore.errors import Misuse
from statestore.model.batch import Batch, Column, no_records
from statestore.model.modes import EmitStrategy, Span, span_ms
from statestore.model.records import SESSION_BYTES
from statestore.stores.in_windows import START, start_of
from statestore.stores.sessions import LIST, SPAN, keys_of, listed, spans_of
from statestore.stores.specs import KeyValueSpec, SessionSpec
from statestore.topology.aggregates.streams import Updates, binary_array, updated
from statestore.topology.failures import decoded, each, encoded, made_by, processing
from statestore.topology.nodes import Build, Forward, NodeContext, Push, SendOldValues
from statestore.topology.windows.closing import (
    Closed,
    Closing,
    IdleClose,
    WindowCloses,
    idle_terms,
)

_EXPIRED_AT_ONCE = 1000


@dataclass(frozen=True, init=False)
class SessionWindows:
    """Sessions that end when their key has had no record for `gap_ms`.

    They are open to late records for `grace_ms` more, and leave the store when stream time has
    passed their end by more than `retention_ms`, which is gap + grace unless given. All three are
    milliseconds or timedeltas. They are Kafka Streams' SessionWindows.ofInactivityGapAndGrace.

    Misuse if the gap or the grace is negative, or the retention is less than gap + grace.
    """

    gap_ms: int
    grace_ms: int
    retention_ms: int

    def __init__(
        self, gap_ms: Span, *, grace_ms: Span = 0, retention_ms: Span | None = None
    ) -> None:
        gap, grace = span_ms(gap_ms), span_ms(grace_ms)
        retention = gap + grace if retention_ms is None else span_ms(retention_ms)
        if gap < 0 or grace < 0:
            raise Misuse(
                f"sessions with a gap of {gap} ms and {grace} ms of grace: neither may be negative"
            )
        if retention < gap + grace:
            raise Misuse(
                f"retention_ms {retention}: a session with a gap of {gap} ms and {grace} ms of "
                f"grace must be kept for at least {gap + grace}"
            )
        for name, value in (("gap_ms", gap), ("grace_ms", grace), ("retention_ms", retention)):
            object.__setattr__(self, name, value)

    @property
    def closes(self) -> WindowCloses:
        """When a session closes, as its end says."""
        return WindowCloses(SESSION_BYTES, self.gap_ms + self.grace_ms + 1)


def session_spec(
    windows: SessionWindows,
    plain: KeyValueSpec[Any, Any],
    emit: EmitStrategy,
    close_idle_ms: int | None = None,
) -> SessionSpec[Any, Any]:
    """Return the session store to use in place of a plain one."""
    terms = (
        f"gap {windows.gap_ms}",
        f"grace {windows.grace_ms}",
        f"retention {windows.retention_ms}",
        f"emit {emit}",
        *idle_terms(close_idle_ms),
    )
    return SessionSpec(
        plain.name,
        plain.key_serde,
        plain.value_serde,
        windows.retention_ms,
        plain.persistent,
        plain.changelog_config,
        terms,
    )


class SessionFold(NamedTuple):
    """How sessions are aggregated: `step(key, value, aggregate)`, `merge(key, one, other)`.

    `counts`: it counts records, so that many of them can be added at once.
    """

    initial: Callable[[], Any]
    step: Callable[[Any, Any, Any], Any]
    merge: Callable[[Any, Any, Any], Any]
    counts: bool = False


COUNTED = SessionFold(int, lambda _key, _value, n: n + 1, lambda _key, a, b: a + b, counts=True)


def reduced(function: Callable[[Any, Any], Any]) -> SessionFold:
    """Return the fold of function(old, new); the first value stands as it is."""

    def of_two(_key: Any, old: Any, new: Any) -> Any:
        return new if old is None else function(old, new)

    return SessionFold(_nothing, lambda key, value, old: of_two(key, old, value), of_two)


def _nothing() -> None:
    """Return the aggregate before the first value of a reduce."""


def in_sessions(
    node: str,
    spec: SessionSpec[Any, Any],
    windows: SessionWindows,
    emit: EmitStrategy,
    fold: SessionFold,
    *,
    every_update: bool,
    old_values: SendOldValues,
    close_idle_ms: int | None,
) -> Build:
    """Build an aggregate per key and session; `close_idle_ms` as for `in_windows`.

    `every_update`: each record tells what it changed, not only the last one of a session in a
    batch.
    """
    final = emit is EmitStrategy.ON_WINDOW_CLOSE

    def build(context: NodeContext, forward: Forward) -> Push:
        delay_ms = windows.gap_ms + windows.grace_ms
        clock = Closing(node, spec, context, old_values, delay_ms=delay_ms, final=final)
        sessions = _Sessions(node, spec, windows, context, clock)
        told = every_update and not final
        idle = None
        if close_idle_ms is not None:
            idle = IdleClose(context, node, close_idle_ms, lambda: sessions.close_all(forward))

        def passed() -> None:
            if final:
                sessions.emit_closed(no_records(), forward)
            sessions.expire(_EXPIRED_AT_ONCE)

        clock.follow_time(passed, lambda now_ms: max(now_ms - delay_ms, 0))

        def push(batch: Batch) -> None:
            if idle is not None:
                idle.input_came()
            with processing(node, batch):
                updates = sessions.fold(batch, fold, every_update=told)
            if final:
                clock.count_open(updates.more_rows)
                sessions.emit_closed(batch, forward)
            elif updates.rows:
                keys = Column(raw=keys_of(updates.rows), serde=spec.key_serde)
                forward(updated(batch, updates, keys, spec.value_serde, old_values), None)
            sessions.expire(2 * len(batch) + _EXPIRED_AT_ONCE)

        return push

    return build


class _Session:
    """A session of a key while a batch is folded; its value is decoded when it is needed."""

    __slots__ = ("data", "end", "place", "start", "value")

    def __init__(self, start: int, end: int, data: bytes | None) -> None:
        self.start = start
        self.end = end
        self.data = data
        self.value: Any = None
        self.place = -1
        """The record that made it; -1: it was stored."""

    def row(self, key: bytes) -> bytes:
        return SPAN.pack(self.end, self.start) + key


class _OfKey:
    """The open sessions of one key: as stored, and as the batch leaves them."""

    __slots__ = ("gone", "key", "name", "named", "now", "spans")

    def __init__(self, key: bytes, spans: list[bytes], stored: list[_Session]) -> None:
        """`spans`: all sessions in the key's list; `stored`: those that records may reach."""
        self.key = key
        self.spans = spans
        self.name: Any = None
        self.named = False
        self.now = stored
        self.gone: list[tuple[_Session, int]] = []
        """Stored sessions that were merged, and the record that did it."""

    def reached(self, start: int, end: int, gap: int, closed: int) -> list[_Session]:
        """Return the sessions that records from `start` to `end` merge, in order."""
        low, high = max(start - gap, closed), end + gap
        return [one for one in self.now if one.end >= low and one.start <= high]

    def replace(self, merged: list[_Session], made: _Session | None, place: int) -> None:
        """Put `made` in the place of the sessions that it merges."""
        if merged:
            self.now = [one for one in self.now if one not in merged]
            self.gone += [(one, place) for one in merged if one.place < 0]
        if made is not None:
            self.now.append(made)
            self.now.sort(key=_by_end)


_by_end = attrgetter("end", "start")


class _Sessions:
    """The sessions of one store."""

    def __init__(
        self,
        node: str,
        spec: SessionSpec[Any, Any],
        windows: SessionWindows,
        context: NodeContext,
        clock: Closing,
    ) -> None:
        self._node = node
        self._spec = spec
        self._windows = windows
        self._context = context
        self._clock = clock
        self._table = clock.table
        self._expired_ms = 0
        clock.opened(lambda: self._ended(max(clock.emitted_ms, 0), clock.latest_ms + 1))

    def fold(self, batch: Batch, fold: SessionFold, *, every_update: bool) -> Updates:
        """Fold the records of a batch into their sessions, and return what changed."""
        keys = encoded(self._node, batch, "key", self._spec.inner)
        values = None if fold.counts else decoded(self._node, batch, "value")
        known = np.array([key is not None for key in keys]) if None in keys else None
        times = np.array(batch.timestamps, np.int64)
        closed = self._clock.observe(batch, times, known)
        taken = times >= 0 if known is None else known & (times >= 0)
        if known is not None:
            nulls = np.flatnonzero(~known).tolist()
            self._context.drop(self._node, batch, nulls, "null_key")
        late = np.flatnonzero((times < 0) & (True if known is None else known)).tolist()
        places = np.flatnonzero(taken)
        if not len(places):
            self._clock.drop_late(batch, late, len(late))
            return Updates([], [], [], [], [])
        present = [keys[i] for i in places.tolist()] if len(places) < len(keys) else keys
        records = _Records(places, times[places], closed[places], present)  # type: ignore[arg-type]
        of_keys = self._look_up(records)
        work = _Folding(self._node, self._spec, self._windows, batch, fold, values)
        work.run(records, of_keys, every_update=every_update)
        late = sorted(late + work.late)
        self._clock.drop_late(batch, late, len(late))
        self._write(of_keys, work, batch.timestamps)
        return work.updates if every_update else work.changes(of_keys)

    def _look_up(self, records: "_Records") -> list[_OfKey]:
        """Return the sessions of each key that are open and in reach of its records."""
        gap = self._windows.gap_ms
        lists = list(map(spans_of, self._table.get_many([LIST + key for key in records.keys])))
        found: list[list[bytes]] = []
        bounds = zip(records.lows.tolist(), records.highs.tolist(), strict=True)
        closed = int(records.closed[0])
        for spans, (low, high) in zip(lists, bounds, strict=True):
            # From the lowest to the highest record, whatever lies between: few sessions are open.
            reach = max(low - gap, closed)
            ends = map(SPAN.unpack, spans)
            found.append(
                [
                    span
                    for span, (end, start) in zip(spans, ends, strict=True)
                    if end >= reach and start <= high + gap
                ]
            )
        rows = [
            span + key for key, spans in zip(records.keys, found, strict=True) for span in spans
        ]
        values = iter(self._table.get_many(rows) if rows else ())
        made = []
        for key, spans, of_key in zip(records.keys, found, lists, strict=True):
            stored = []
            for span in spans:
                end, start = SPAN.unpack(span)
                stored.append(_Session(start, end, next(values)))
            made.append(_OfKey(key, of_key, stored))
        return made

    def _write(self, of_keys: list[_OfKey], work: "_Folding", times: list[int]) -> None:
        """Write the sessions that changed, each with its end, and the lists of their keys."""
        writes: dict[bytes, bytes | None] = {}
        stamps: dict[bytes, int] = {}
        for of in of_keys:
            spans = set(of.spans)
            for one, place in of.gone:
                row = one.row(of.key)
                writes[row], stamps[row] = None, times[place]
                spans.discard(row[:SESSION_BYTES])
            for one in of.now:
                if one.place >= 0:
                    row = one.row(of.key)
                    writes[row], stamps[row] = work.encode(one), one.end
                    spans.add(row[:SESSION_BYTES])
            if spans.symmetric_difference(of.spans):
                at = LIST + of.key
                writes[at], stamps[at] = b"".join(sorted(spans)) or None, 0
        if writes:
            self._table.put_all(writes, list(map(stamps.__getitem__, writes)))

    # What happens as stream time passes.

    def emit_closed(self, batch: Batch, forward: Forward) -> None:
        """Forward the sessions that `batch` has closed and that were not emitted, by end."""
        self._emit(*self._clock.take_closed(), batch, forward)

    def close_all(self, forward: Forward) -> None:
        """Close all sessions, as if stream time had passed their ends, and forward them."""
        if self._clock.latest_ms >= 0:
            closed = self._clock.close_up_to(self._clock.latest_ms + 1)
            self._emit(*closed, no_records(), forward)

    def _emit(self, since_ms: int, closed_ms: int, batch: Batch, forward: Forward) -> None:
        if closed_ms > max(since_ms, 0):
            with closing(self._ended(max(since_ms, 0), closed_ms)) as ended:
                self._clock.emit(ended, batch, forward)

    def _ended(self, low_ms: int, before_ms: int) -> Generator[Closed, None, None]:
        with self._table.scan(START.pack(low_ms), START.pack(before_ms)) as rows:
            for row, value in rows:
                end = start_of(row)
                if end < before_ms:
                    yield Closed(row, value, end)

    def expire(self, limit: int) -> None:
        """Delete up to `limit` expired sessions, the oldest first."""
        before_ms = self._clock.now_ms - self._windows.retention_ms
        if before_ms <= self._expired_ms:
            return
        gone: dict[bytes, bytes | None] = {}
        with self._table.scan(START.pack(self._expired_ms), START.pack(before_ms)) as rows:
            for row, _ in rows:
                if start_of(row) >= before_ms or len(gone) == limit:
                    break
                gone[row] = None
        if len(gone) < limit:
            self._expired_ms = before_ms
        if gone:
            self._table.put_all({**gone, **listed(gone, self._table.get_many)})


class _Records:
    """The records of a batch that may count, by key.

    `places` are their indices in the batch, `owners` the index of each one's key in `keys`, `lows`
    and `highs` the earliest and the latest time of each key.
    """

    def __init__(
        self,
        places: NDArray[np.intp],
        times: NDArray[np.int64],
        closed: NDArray[np.int64],
        keys: list[bytes],
    ) -> None:
        column = binary_array(keys).dictionary_encode()
        self.places = places
        self.times = times
        self.closed = closed
        self.keys: list[bytes] = column.dictionary.to_pylist()
        self.owners = np.frombuffer(column.indices.buffers()[1], np.int32, len(keys))
        self.lows = np.full(len(self.keys), np.iinfo(np.int64).max)
        self.highs = np.full(len(self.keys), -1)
        np.minimum.at(self.lows, self.owners, times)
        np.maximum.at(self.highs, self.owners, times)

    def stretches(self, gap: int) -> Iterable["_Stretch"]:
        """Return the stretches of records that are within a gap of each other."""
        order = np.lexsort((self.times, self.owners))
        owners, times, places = self.owners[order], self.times[order], self.places[order]
        begins = np.flatnonzero(
            np.concatenate(([True], (owners[1:] != owners[:-1]) | (np.diff(times) > gap)))
        )
        ends = np.concatenate((begins[1:], [len(order)])) - 1
        return map(
            _Stretch,
            owners[begins].tolist(),
            times[begins].tolist(),
            times[ends].tolist(),
            (ends - begins + 1).tolist(),
            np.minimum.reduceat(places, begins).tolist(),
            np.maximum.reduceat(places, begins).tolist(),
        )

    def keep_their_order(self, gap: int) -> bool:
        """Tell whether some record may be late, or reach a session that was closed before it."""
        return bool((self.times - gap < self.closed).any())


class _Stretch(NamedTuple):
    """Records of a key within a gap of each other: times, number, and places in the batch."""

    owner: int
    start: int
    end: int
    records: int
    first: int
    last: int


class _Folding:
    """One batch on its way into sessions."""

    def __init__(
        self,
        node: str,
        spec: SessionSpec[Any, Any],
        windows: SessionWindows,
        batch: Batch,
        fold: SessionFold,
        values: list[Any] | None,
    ) -> None:
        self.updates = Updates([], [], [], [], [])
        self.late: list[int] = []
        self._node = node
        self._serde = spec.value_serde
        self._inner = spec.inner
        self._gap = windows.gap_ms
        self._batch = batch
        self._fold = fold
        self._values = values
        self._unchanged = serdes.unchanged(spec.value_serde)

    def run(self, records: _Records, of_keys: list[_OfKey], *, every_update: bool) -> None:
        """Fold all records."""
        if self._values is None and not every_update and not records.keep_their_order(self._gap):
            self._count(records.stretches(self._gap), of_keys)
            return
        places = records.places.tolist()
        others = (records.times.tolist(), records.closed.tolist(), records.owners.tolist())

        def fold_all(ahead: Iterator[int]) -> None:
            for place, time, closed, owner in zip(ahead, *others, strict=True):
                self._one(of_keys[owner], place, time, closed, every_update=every_update)

        each(self._node, self._batch, places, fold_all, place_of=places.__getitem__)

    def changes(self, of_keys: list[_OfKey]) -> Updates:
        """Return the tombstones of stored sessions that are gone, and the sessions that changed."""
        found: list[tuple[int, int, bytes, int, bytes | None, bytes | None]] = []
        for of in of_keys:
            before = {one.row(of.key): (one, place) for one, place in of.gone}
            for one in of.now:
                if one.place >= 0:
                    row = one.row(of.key)
                    replaced = before.pop(row, None)
                    old = None if replaced is None else replaced[0].data
                    data = self.encode(one)
                    if data is not None or old is not None:
                        found.append((one.place, 1, row, one.end, data, old))
            found += [(at, 0, row, one.end, None, one.data) for row, (one, at) in before.items()]
        found.sort(key=_by_place)
        updates = Updates([], [], [], [], [])
        for place, _, row, time, data, old in found:
            updates.add(place, time, row, data, old)
        return updates

    def encode(self, one: _Session) -> bytes | None:
        """Return the stored form of a session's value; a failure names the record that made it."""
        if one.data is None and one.value is not None:
            one.data = made_by(self._node, self._batch, one.place, one.value, self._serde)
        return one.data

    def _count(self, stretches: Iterable[_Stretch], of_keys: list[_OfKey]) -> None:
        gap, read = self._gap, serdes.INT64.deserialize
        for owner, start, end, count, first, last in stretches:
            of, made = of_keys[owner], _Session(start, end, None)
            made.value, made.place = count, last
            merged = of.reached(start, end, gap, 0) if of.now else []
            for one in merged:
                made.start, made.end = min(made.start, one.start), max(made.end, one.end)
                made.value += one.value if one.data is None else read(one.data)
                made.place = max(made.place, one.place)
            # Later records of the batch may close what the first one of the stretch merged.
            of.replace(merged, made, first)

    def _one(self, of: _OfKey, place: int, time: int, closed: int, *, every_update: bool) -> None:
        """Fold one record, as Kafka Streams does."""
        merged = of.reached(time, time, self._gap, closed)
        if not merged and time < closed:
            self.late.append(place)
            return
        start = min([time, *(one.start for one in merged)])
        end = max([time, *(one.end for one in merged)])
        made = _Session(start, end, None)
        made.place = place
        made.value = self._folded(of, merged, place)
        if every_update or type(made.value) not in self._unchanged:
            self.encode(made)
        if every_update:
            self._tell(of, merged, made)
        of.replace(merged, made if made.value is not None else None, place)

    def _folded(self, of: _OfKey, merged: list[_Session], place: int) -> Any:
        fold = self._fold
        if fold.counts:
            return 1 + sum(map(self._value_of, merged))
        if not of.named:
            of.name, of.named = self._inner.deserialize(of.key), True
        value = fold.initial()
        for one in merged:
            value = fold.merge(of.name, value, self._value_of(one))
        assert self._values is not None
        return fold.step(of.name, self._values[place], value)

    def _value_of(self, one: _Session) -> Any:
        """Return a session's value as its serde gives it back, which a function may change."""
        if one.data is None:
            return one.value
        return self._serde.deserialize(one.data)

    def _tell(self, of: _OfKey, merged: list[_Session], made: _Session) -> None:
        row, old = made.row(of.key), None
        for one in merged:
            if one.start == made.start == one.end == made.end:
                old = one.data  # A session of one moment is replaced in its place.
            else:
                self.updates.add(made.place, one.end, one.row(of.key), None, one.data)
        self.updates.add(made.place, made.end, row, made.data, old)


def _by_place(update: tuple[int, int, bytes, int, bytes | None, bytes | None]) -> tuple[int, int]:
    return update[:2]
