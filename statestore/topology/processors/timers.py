"""Timers: calls of a processor for one key at one time, kept in a store (docs/adr/0031).

A timer by stream time fires before the record with which stream time passes its time, and after all
records before that one. So what fires does not depend on where batches end, and a replay fires the
same timers between the same records. A timer by wall-clock time fires once that time has come and
the stream task runs, so a timer that was due while nothing ran fires at the next start. Timers
that are due fire in the order of their times, then of their keys' bytes, then of their names.

The rows that are due are read in ranges, ahead of the records of a batch, and changes are written
once for each batch. `stores/timer_specs.py` has the rows.

Keeps I40.
"""

import struct
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Any, Final, Generic, NamedTuple

from statestore.model.batch import Batch, Column
from statestore.model.modes import PunctuationType, Time, to_ms
from statestore.model.records import K, Timer, TimerRow
from statestore.serdes import composed
from statestore.stores.timer_specs import TimerSpec
from statestore.topology.failures import each, mismatch
from statestore.topology.nodes import Held, NodeContext, Push

_AT_ONCE: Final = 10_000
TIMER_MAX_MS: Final = (1 << 63) - 1
"""The largest time of a timer, and less its sign the smallest one."""
_NEVER: Final = 1 << 64
"""Later than any time."""
_TIME_BYTES: Final = 9
"""The length of a row's beginning: the kind of the timer and its time."""
_STREAM: Final = PunctuationType.STREAM_TIME
_WALL: Final = PunctuationType.WALL_CLOCK_TIME
_THERE: Final = b"\x01"
_WHAT: Final = "the timer of key {key} at {time}"


class Timers(Generic[K]):
    """The timers of one processor in one stream task; each is known by its key and its name.

    What is scheduled and cancelled belongs to the transaction of the record, or of the timer, for
    which the processor was called.
    """

    def __init__(self, queue: "TimerQueue") -> None:
        self._queue = queue

    def schedule(
        self,
        key: K,
        time: Time,
        *,
        name: str = "",
        kind: PunctuationType | str = PunctuationType.STREAM_TIME,
    ) -> None:
        """Have `on_timer` called once for this key, when `time` has passed by this clock.

        It is in ms since the epoch, or an aware datetime. A timer of the same key and name that has
        not fired yet is replaced, of whichever kind it is. One whose time has passed already fires
        right after the current call.
        """
        self._queue.schedule(key, name, PunctuationType(kind), to_ms(time))

    def cancel(self, key: K, *, name: str = "") -> None:
        """Take back the timer of this key and name, if there is one that has not fired yet."""
        self._queue.cancel(key, name)

    def get(self, key: K, *, name: str = "") -> Timer[K] | None:
        """Return the timer of this key and name that has not fired yet; None if there is none."""
        found = self._queue.find(key, name)
        return None if found is None else Timer(key, name, *found)


class Fired(NamedTuple):
    """A timer that fires, and the stream time at that moment; None: there was no record yet."""

    timer: Timer[Any]
    stream_time_ms: int | None


class _Line:
    """The timers of one kind that come next: those in `ahead`, then those in the store.

    `ahead` is a heap of rows by time, and has all timers whose row is before `horizon`. No other is
    due before `beyond_ms`, and none at all before `next_ms`. `at_once`: how many to fire next.
    """

    def __init__(self, kind: PunctuationType) -> None:
        self.kind = kind
        self.after_last = composed.timer_time(kind, TIMER_MAX_MS) + b"\xff"
        self.ahead: list[bytes] = []
        self.horizon = composed.timer_time(kind, -TIMER_MAX_MS)
        self.beyond_ms = self.next_ms = -TIMER_MAX_MS
        self.at_once = _AT_ONCE

    def add(self, row: bytes) -> None:
        """Note a timer that was scheduled."""
        if row < self.horizon:
            heappush(self.ahead, row)
        else:
            self.beyond_ms = min(self.beyond_ms, composed.time_in(row))
        self.know_next()

    def take(self, before_ms: int) -> list[bytes]:
        """Take the rows that come next, with times before that."""
        rows: list[bytes] = []
        while self.ahead and len(rows) < self.at_once:
            if composed.time_in(self.ahead[0]) >= before_ms:
                break
            rows.append(heappop(self.ahead))
        return rows

    def know_next(self) -> None:
        """Note when the next timer may be due."""
        ahead_ms = composed.time_in(self.ahead[0]) if self.ahead else _NEVER
        self.next_ms = min(ahead_ms, self.beyond_ms)


class TimerQueue:
    """The timers of one node in one stream task, and what fires them."""

    def __init__(
        self,
        context: NodeContext,
        node: str,
        spec: TimerSpec[Any],
        call: Callable[[Fired], None],
        hand_on: Callable[[], None],
    ) -> None:
        """`call` calls the processor, and `hand_on` hands on what it has forwarded so far."""
        self.store = spec.name
        self._context = context
        self._node = node
        self._spec = spec
        self._call = call
        self._hand_on = hand_on
        self._table = context.table(spec.name)
        self._changed: dict[bytes, bytes | None] = {}
        """By key and name, how the row of the timer begins now; None: there is no timer."""
        self._firing: bytes | None = None
        self._stream_time_ms = context.stream_time()
        self._batch_end_ms = -TIMER_MAX_MS
        self._stream, self._wall = _Line(_STREAM), _Line(_WALL)
        for line in (self._stream, self._wall):
            self._read_ahead(line, -TIMER_MAX_MS)

    # What a processor does.

    def schedule(self, key: Any, name: str, kind: PunctuationType, time_ms: int) -> None:
        """Set the timer of a key and name."""
        try:
            begins = composed.timer_time(kind, time_ms)
        except (struct.error, TypeError):
            told = f"a timer at {time_ms!r:.99}: pass milliseconds in 64 bits, or a datetime"
            raise TypeError(told) from None
        of_timer = self._id(key, name)
        row = begins + of_timer
        firing = self._firing
        same = firing is not None and (row[:1], of_timer) == (firing[:1], firing[_TIME_BYTES:])
        if same and firing is not None and row <= firing:
            raise ValueError(
                f"the timer of key {key!r:.99} that fires is scheduled for {time_ms} ms again, "
                "which is no later: it would fire without end"
            )
        self._changed[of_timer] = begins
        (self._stream if kind is _STREAM else self._wall).add(row)

    def cancel(self, key: Any, name: str) -> None:
        """Take back the timer of a key and name."""
        self._changed[self._id(key, name)] = None

    def find(self, key: Any, name: str) -> tuple[int, PunctuationType] | None:
        """Return the time and the kind of the timer of a key and name; None if there is none."""
        of_timer = self._id(key, name)
        if of_timer in self._changed:
            begins = self._changed[of_timer]
        else:
            begins = self._table.get(b"k" + of_timer)
        if begins is None:
            return None
        return composed.time_in(begins), composed.timer_kind(begins)

    # What the node does.

    @property
    def next_ms(self) -> int:
        """No timer by stream time is due before that."""
        return self._stream.next_ms

    def batch_begins(self, end_ms: int) -> None:
        """Note the stream time at the end of a batch: what is due until then is read at once."""
        self._batch_end_ms = end_ms

    def stream_time_passes(self, time_ms: int) -> None:
        """Fire what is due before stream time is `time_ms`, however it got there."""
        self._fire(self._stream, time_ms)

    def stream_time_is(self, now_ms: int) -> None:
        """Note the stream time at the last record that the node has taken."""
        before_ms = self._stream_time_ms
        self._stream_time_ms = now_ms if before_ms is None else max(now_ms, before_ms)

    # What the stream task does (`punctuation.Alarm`).

    def wall_clock_due_ms(self) -> int:
        """Return the time before which none is due by the wall clock."""
        return self._wall.next_ms

    def wall_clock_is(self, now_ms: int) -> None:
        """Fire what is due by the wall clock, a bounded number of timers in each call."""
        if self._wall.next_ms <= now_ms:
            self._stream_time_ms = self._context.stream_time()
            self._fire(self._wall, now_ms + 1, at_most=_AT_ONCE)
            self._hand_on()
            self.write()

    def stream_time_rose(self, now_ms: int) -> None:
        """Fire what is due at the end of a batch, as the last records may not reach the node."""
        if self._stream.next_ms < now_ms:
            self._fire(self._stream, now_ms)
            self._hand_on()
            self.write()
        self.stream_time_is(now_ms)

    def stream_time_nears(self, now_ms: int) -> bool:
        """Fire a bounded number of what is due before a batch; return whether some may be left."""
        if self._stream.next_ms < now_ms:
            self._fire(self._stream, now_ms, at_most=_AT_ONCE)
            self._hand_on()
            self.write()
        return self._stream.next_ms < now_ms

    # How it is done.

    def write(self) -> None:
        """Write what has changed into the store."""
        if not self._changed:
            return
        changed, self._changed = self._changed, {}
        before = self._table.get_many([b"k" + of_timer for of_timer in changed])
        writes: dict[bytes, bytes | None] = {}
        for (of_timer, begins), old in zip(changed.items(), before, strict=True):
            if begins == old:
                continue
            if old is not None:
                writes[old + of_timer] = None
            if begins is not None:
                writes[begins + of_timer] = _THERE
            writes[b"k" + of_timer] = begins
        if writes:
            self._table.put_all(writes)

    def _fire(self, line: _Line, before_ms: int, at_most: int | None = None) -> None:
        fired = 0
        while line.next_ms < before_ms and (at_most is None or fired < at_most):
            if not line.ahead:
                self._read_ahead(line, before_ms)
            rows = line.take(before_ms)
            line.know_next()
            fired += len(rows)
            if rows:
                self._release(line, self._valid(rows))
            if len(rows) == _AT_ONCE:
                self._hand_on()

    def _read_ahead(self, line: _Line, before_ms: int) -> None:
        """Read the rows that come next, up to that time; know when the one after them is due."""
        self.write()
        if line.kind is _STREAM:
            before_ms = max(before_ms, self._batch_end_ms)
        bound = composed.timer_time(line.kind, min(before_ms, TIMER_MAX_MS))
        line.beyond_ms, horizon = _NEVER, bound
        with self._table.scan(line.horizon, line.after_last) as found:
            for row, _ in found:
                if row >= bound or len(line.ahead) == _AT_ONCE:
                    line.beyond_ms, horizon = composed.time_in(row), min(row, bound)
                    break
                line.ahead.append(row)  # In order, and therefore a heap.
        line.horizon = max(line.horizon, horizon)
        line.know_next()

    def _valid(self, rows: list[bytes]) -> list[bytes]:
        """Leave out rows of timers that were replaced or cancelled, and rows that come twice."""
        ids = [row[_TIME_BYTES:] for row in rows]
        asked = [of_timer for of_timer in ids if of_timer not in self._changed]
        stored = self._table.get_many([b"k" + of_timer for of_timer in asked]) if asked else []
        begins = dict(zip(asked, stored, strict=True))
        begins |= {of_timer: self._changed[of_timer] for of_timer in ids if of_timer not in begins}
        there = [row for row in rows if begins[row[_TIME_BYTES:]] == row[:_TIME_BYTES]]
        return list(dict.fromkeys(there))

    def _release(self, line: _Line, rows: list[bytes]) -> None:
        if not self._context.judges_singly:
            if rows:
                self._release_some(line, rows)
            return
        # Which of them is passed over shows only as its turn comes.
        for place, row in enumerate(rows):
            if line.ahead and line.ahead[0] < row:
                self._put_back(line, rows[place:])
                return
            if self._is_there(row):
                self._changed[row[_TIME_BYTES:]] = None
                self._release_some(line, [row], taken=True)

    def _release_some(self, line: _Line, rows: list[bytes], *, taken: bool = False) -> None:
        keys, names = zip(*map(composed.key_and_name, rows), strict=True)
        batch = Batch(
            keys=Column(raw=list(keys)),
            values=Column(raw=list(names)),
            timestamps=[composed.time_in(row) for row in rows],
        )
        hand_on = self._calling(line, rows, taken=taken)
        self._context.release(self._node, Held(self._spec.name, batch, what=_WHAT), hand_on)

    def _calling(self, line: _Line, rows: list[bytes], *, taken: bool) -> Push:
        def fire(ahead: Iterator[bytes]) -> None:
            for place, row in enumerate(ahead):
                if line.ahead and line.ahead[0] < row:
                    line.at_once = max(1, place)
                    self._put_back(line, rows[place:])
                    return
                if taken or self._is_there(row):
                    self._changed[row[_TIME_BYTES:]] = None
                    self._fire_one(line, row)
            line.at_once = min(2 * line.at_once, _AT_ONCE)

        def hand_on(made: Batch) -> None:
            try:
                each(self._node, made, rows, fire)
            finally:
                self._firing = None

        return hand_on

    def _fire_one(self, line: _Line, row: bytes) -> None:
        found = self._spec.key_serde.deserialize(row)
        time_ms = composed.time_in(row)
        if line.kind is _STREAM:
            self.stream_time_is(time_ms)
        self._firing = row
        timer = Timer(found.key, found.name, time_ms, line.kind)
        self._call(Fired(timer, self._stream_time_ms))

    def _is_there(self, row: bytes) -> bool:
        """Return whether a timer was neither replaced nor cancelled since it was read."""
        begins = row[:_TIME_BYTES]
        return self._changed.get(row[_TIME_BYTES:], begins) == begins

    def _put_back(self, line: _Line, rows: list[bytes]) -> None:
        for row in rows:
            heappush(line.ahead, row)
        line.know_next()

    def _id(self, key: Any, name: str) -> bytes:
        if key is None:
            raise TypeError("a timer needs a key, but the key is None")
        if not isinstance(name, str):
            raise TypeError(f"the name of a timer is {name!r:.99}: pass a str")
        try:
            row = self._spec.key_serde.serialize(TimerRow(key, name))
        except Exception as error:
            raise mismatch("key", key, self._spec.key_serde, error, "timer_store()") from error
        return row[1:]
