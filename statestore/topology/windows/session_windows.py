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

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from statestore import serdes
from statestore.errors import Misuse
from statestore.model.batch import Batch
from statestore.model.byte_columns import without
from statestore.model.keywords import renamed
from statestore.model.modes import Span, span_ms
from statestore.model.records import SESSION_BYTES
from statestore.stores.sessions import LIST, SPAN, spans_of
from statestore.stores.specs import KeyValueSpec, SessionSpec
from statestore.topology.aggregates.folds import Aggregation, Tell, Updates
from statestore.topology.failures import decoded, each, encoded, made_by
from statestore.topology.nodes import NodeContext, Push
from statestore.topology.windows.closing import Closing
from statestore.topology.windows.fold import InTime, Timing, folding, known_keys
from statestore.topology.windows.records_by_key import RecordsByKey


@dataclass(frozen=True, init=False)
class SessionWindows:
    """Sessions that end when their key has had no record for `gap`.

    They are open to late records for `grace_ms` more, and leave the store when stream time has
    passed their end by more than `retention_ms`, which is gap + grace unless given. All three are
    milliseconds or timedeltas. They are Kafka Streams' SessionWindows.ofInactivityGapAndGrace.

    Misuse if the gap or the grace is negative, or the retention is less than gap + grace.
    """

    gap_ms: int
    grace_ms: int
    retention_ms: int

    @renamed(gap="gap_ms", grace="grace_ms", retention="retention_ms")
    def __init__(self, gap: Span, *, grace: Span = 0, retention: Span | None = None) -> None:
        gap, grace = span_ms(gap), span_ms(grace)
        retention = gap + grace if retention is None else span_ms(retention)
        if gap < 0 or grace < 0:
            raise Misuse(
                f"sessions with a gap of {gap} ms and {grace} ms of grace: neither may be negative"
            )
        if retention < gap + grace:
            raise Misuse(
                f"retention {retention}: a session with a gap of {gap} ms and {grace} ms of "
                f"grace must be kept for at least {gap + grace}"
            )
        for name, value in (("gap_ms", gap), ("grace_ms", grace), ("retention_ms", retention)):
            object.__setattr__(self, name, value)

    @property
    def rule(self) -> InTime:
        """What operators do in these windows."""
        # A session takes records for a gap after its end, and is still there when that is retained.
        timing = Timing(1, 1, self.gap_ms + self.grace_ms, self.retention_ms + 1)
        return InTime(timing, SESSION_BYTES, partial(_spec, self), partial(_folding, self.gap_ms))


def _spec(
    windows: SessionWindows, plain: KeyValueSpec[Any, Any], terms: tuple[str, ...]
) -> SessionSpec[Any, Any]:
    return SessionSpec(
        plain.name,
        plain.key_serde,
        plain.value_serde,
        windows.retention_ms,
        plain.persistent,
        plain.changelog_config,
        (
            f"gap {windows.gap_ms}",
            f"grace {windows.grace_ms}",
            f"retention {windows.retention_ms}",
            *terms,
        ),
    )


def _folding(
    gap_ms: int,
    how: Aggregation[SessionSpec[Any, Any]],
    context: NodeContext,
    clock: Closing,
    tell: Tell,
) -> Push:
    """Return what folds the records of a batch into sessions."""
    return folding(how, _Sessions(how, gap_ms, context, clock).fold, tell)


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
        how: Aggregation[SessionSpec[Any, Any]],
        gap_ms: int,
        context: NodeContext,
        clock: Closing,
    ) -> None:
        self._how = how
        self._gap_ms = gap_ms
        self._context = context
        self._clock = clock
        self._table = clock.table

    def fold(self, batch: Batch) -> Updates:
        """Fold the records of a batch into their sessions, and return what changed."""
        how = self._how
        serde = how.spec.inner
        keys = batch.keys.packed(serde) or encoded(how.node, batch, "key", serde)
        values = None if how.fold.counts else decoded(how.node, batch, "value")
        known = known_keys(keys)
        times = np.array(batch.timestamps, np.int64)
        closed = self._clock.observe(batch, times, known)
        taken = times >= 0 if known is None else known & (times >= 0)
        if known is not None:
            nulls = np.flatnonzero(~known).tolist()
            self._context.drop(how.node, batch, nulls, "null_key")
        late = np.flatnonzero((times < 0) & (True if known is None else known)).tolist()
        places = np.flatnonzero(taken)
        if not len(places):
            self._clock.drop_late(batch, late, len(late))
            return Updates.none()
        present = without(keys, np.flatnonzero(~taken).tolist())
        records = _Records(places, times[places], closed[places], present)
        of_keys = self._look_up(records)
        work = _Folding(how, self._gap_ms, batch, values)
        work.run(records, of_keys)
        late = sorted(late + work.late)
        self._clock.drop_late(batch, late, len(late))
        self._write(of_keys, work, batch.timestamps)
        return work.updates if how.every_update else work.changes(of_keys)

    def _look_up(self, records: "_Records") -> list[_OfKey]:
        """Return the sessions of each key that are open and in reach of its records."""
        gap = self._gap_ms
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


class _Records(RecordsByKey):
    """The records of a batch, and what of them goes into one session."""

    def stretches(self, gap: int) -> Iterable["_Stretch"]:
        """Return the stretches of records that are within a gap of each other."""
        order = self.in_time()
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
        how: Aggregation[SessionSpec[Any, Any]],
        gap_ms: int,
        batch: Batch,
        values: list[Any] | None,
    ) -> None:
        self.updates = Updates.none()
        self.late: list[int] = []
        self._how = how
        self._fold = how.fold
        self._serde = how.spec.value_serde
        self._gap = gap_ms
        self._batch = batch
        self._values = values
        self._unchanged = serdes.unchanged(self._serde)

    def run(self, records: _Records, of_keys: list[_OfKey]) -> None:
        """Fold all records."""
        tells = self._how.every_update
        if self._values is None and not tells and not records.keep_their_order(self._gap):
            self._count(records.stretches(self._gap), of_keys)
            return
        places = records.places.tolist()
        others = (records.times.tolist(), records.closed.tolist(), records.owners.tolist())

        def fold_all(ahead: Iterator[int]) -> None:
            for place, time, closed, owner in zip(ahead, *others, strict=True):
                self._one(of_keys[owner], place, time, closed, tells=tells)

        each(self._how.node, self._batch, places, fold_all, place_of=places.__getitem__)

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
        updates = Updates.none()
        for place, _, row, time, data, old in found:
            updates.add(place, time, row, data, old)
        return updates

    def encode(self, one: _Session) -> bytes | None:
        """Return the stored form of a session's value; a failure names the record that made it."""
        if one.data is None and one.value is not None:
            one.data = made_by(self._how.node, self._batch, one.place, one.value, self._serde)
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

    def _one(self, of: _OfKey, place: int, time: int, closed: int, *, tells: bool) -> None:
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
        if tells or type(made.value) not in self._unchanged:
            self.encode(made)
        if tells:
            self._tell(of, merged, made)
        of.replace(merged, made if made.value is not None else None, place)

    def _folded(self, of: _OfKey, merged: list[_Session], place: int) -> Any:
        fold = self._fold
        if fold.counts:
            return 1 + sum(map(self._value_of, merged))
        if not of.named:
            of.name, of.named = self._how.spec.inner.deserialize(of.key), True
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
