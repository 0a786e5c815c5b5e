"""Suppressed updates of a table: they wait in a buffer, and go out later and fewer (KIP-328).

The buffer has at most one row for each key of the table, with the key's latest update and the value
that was last handed on. A row keeps the place that it had when its key entered the buffer. For
final results that place is the start of the key's window, or a session's end; else it is the time
of the first update that waits. A row leaves once stream time has passed its place far enough, or,
if the buffer is full, when it is the oldest one. As in Kafka Streams, each update is put first and
what is due with it leaves right after it, so that results do not depend on where batches end.

Stream time here is the latest time of all updates. The store has these rows:

    t                      stream time, up to which place final results have gone out, the number of
                           waiting rows, and their bytes: 8 bytes each
    k <key>                the place of a key that waits, 8 bytes
    w <place, 8> <key>     what waits, as a `HeldUpdate` in MessagePack

Places are offset by 2^63, so that bytes sort as times do.

Keeps I37.
"""

import struct
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from heapq import heappop, heappush
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

import msgspec

from statestore import serdes
from statestore.errors import BufferFull, InvalidTopology, Misuse
from statestore.model.batch import Batch, Column, no_records
from statestore.model.decoders import msgpack_decoder
from statestore.model.records import Header, Serde
from statestore.serdes import composed
from statestore.stores.specs import KeyValueSpec
from statestore.topology.failures import encoded
from statestore.topology.flows import Look, Stamp, TableFlow
from statestore.topology.moved_rows import SuppressedRows
from statestore.topology.nodes import Build, Forward, Held, NodeContext, Push, SendOldValues
from statestore.topology.tables.suppressed import Suppressed
from statestore.topology.windows.closing import (
    IdleClose,
    WindowCloses,
)

_PLACE: Final = struct.Struct(">Q")
_BIAS: Final = 1 << 63
_STATE_ROW: Final = b"t"
_STATE: Final = struct.Struct(">qqqq")
_NEVER: Final = -_BIAS
_INDEX: Final = b"k"
_WAITS: Final = b"w"
_BEYOND: Final = b"x"
_NONE_LEFT: Final = _BIAS
_EMITTED_AT_ONCE: Final = 10_000
_KIND: Final = "KTABLE-SUPPRESS"


def suppressed_table(table: TableFlow, suppressed: Suppressed, name: str | None) -> TableFlow:
    """Add a node that holds back the updates of a table."""
    given: object = suppressed
    if not isinstance(given, Suppressed):
        raise Misuse(
            f"suppress needs Suppressed.until_window_closes() or Suppressed.until_time_limit(ms), "
            f"not {given!r:.99}"
        )
    closes = _closes(table, suppressed, name)
    builder, old_values = table.builder, SendOldValues()
    node = name or builder.number(_KIND)
    spec = KeyValueSpec(
        f"{name}-store" if name else builder.store_name(_KIND),
        serdes.BYTES,
        composed.waiting(table.value_serde),
        terms=suppressed.terms,
        apart=SuppressedRows(table.key_serde.name),
    )
    builder.keep(spec)
    if closes is None:
        # What was last handed on is the value that the first update in the buffer replaces.
        table.send_old_values()
    key_serde = table.key_serde.in_store(spec.name, "key")
    value_serde = table.value_serde.in_store(spec.name, "value")
    place = _BufferPlace(node, spec.name, key_serde, value_serde, suppressed, closes)
    buffers = _Buffers()
    table.add(_KIND, node, lambda _node: _suppressing(place, old_values, buffers), spec)
    if closes is not None and table.clocks != (table.node,):
        # Below the views, so that what they show of a batch comes first.
        builder.node("", f"{node}-time", table.clocks, lambda _node: _telling_time(buffers))
    parent = table.looked_up_by(key_serde)
    return replace(
        table,
        node=node,
        key_serde=key_serde,
        value_serde=value_serde,
        stores=(spec.name, *table.stores),
        look=lambda context: _look(context, place, parent),
        stamp=lambda context: _stamp(context, place, parent),
        send_old_values=old_values.enable,
        store=None,
        history=None,
        look_stored=None,
        closes=None if suppressed.limit_ms is None else table.closes,
    )


def _closes(table: TableFlow, suppressed: Suppressed, name: str | None) -> WindowCloses | None:
    """Return when windows close, for final results; InvalidTopology if none of them is open."""
    if suppressed.limit_ms is not None:
        return None
    if table.closes is None:
        where = "suppress" if name is None else f"suppress {name!r}"
        raise InvalidTopology(
            f"{where}: the table of node {table.node} has no windows that are open, so "
            "until_window_closes() cannot tell when they close: it follows windowed_by(…) with "
            "results on update (emit=EmitStrategy.ON_WINDOW_CLOSE gives final results without "
            "suppress()); other tables take until_time_limit(…)"
        )
    return table.closes


class HeldUpdate(msgspec.Struct, array_like=True):
    """What waits for a key, as its row has it: the latest update, and the value before all."""

    value: bytes | None
    prior: bytes | None
    time_ms: int
    headers: tuple[Header, ...] = ()


_encode = msgspec.msgpack.Encoder().encode
_decode = msgpack_decoder(HeldUpdate).decode


class _BufferPlace(NamedTuple):
    """Where updates wait: the node, its store, and the serdes of the table.

    `closes` None: by time limit.
    """

    node: str
    store: str
    key_serde: Serde[Any]
    value_serde: Serde[Any]
    suppressed: Suppressed
    closes: WindowCloses | None

    def earliest(self, now_ms: int) -> int:
        """Return the earliest time of an update that may still wait at that stream time."""
        return max(now_ms - self.delay_ms, 0)

    @property
    def delay_ms(self) -> int:
        """How far stream time has to pass a place."""
        if self.closes is not None:
            return self.closes.after_ms
        assert self.suppressed.limit_ms is not None
        return self.suppressed.limit_ms


def _suppressing(place: _BufferPlace, old_values: SendOldValues, buffers: "_Buffers") -> Build:
    def build(context: NodeContext, forward: Forward) -> Push:
        made = buffers[context] = _UpdateBuffer(context, place, old_values, forward)
        return made.push

    return build


def _telling_time(buffers: "_Buffers") -> Build:
    """Build a node that tells the buffer of its stream task the times of windows' updates."""

    def build(context: NodeContext, _forward: Forward) -> Push:
        def push(batch: Batch) -> None:
            # Nodes are made before those above and before them, so the buffer comes later.
            buffers[context].follow_time(batch)

        return push

    return build


class _Entry:
    """A key that waits, while a batch is taken; `size` counts the bytes of key and values.

    `is_dead`: its window is empty, so that it has no final result and no row.
    """

    __slots__ = ("is_changed", "is_dead", "is_stored", "row", "size", "waiting")

    def __init__(self, row: bytes, waiting: HeldUpdate, *, is_stored: bool) -> None:
        """`row`: the place, then the key."""
        self.row = row
        self.is_stored = is_stored
        self.is_changed = not is_stored
        self.set(waiting, is_dead=False)

    @property
    def key(self) -> bytes:
        return self.row[_PLACE.size :]

    def set(self, waiting: HeldUpdate, *, is_dead: bool) -> None:
        self.waiting = waiting
        self.is_dead = is_dead
        values = len(waiting.value or b"") + len(waiting.prior or b"")
        self.size = 0 if is_dead else len(self.row) - _PLACE.size + values


class _Result(NamedTuple):
    """What leaves the buffer, with the `place` of the update in the batch that let it go."""

    key: bytes
    waiting: HeldUpdate
    place: int


class _UpdateBuffer:
    """The buffer of one stream task."""

    def __init__(
        self, context: NodeContext, place: _BufferPlace, old_values: SendOldValues, forward: Forward
    ) -> None:
        self._context = context
        self._side = place
        self._old_values = old_values
        self._forward = forward
        self._table = context.table(place.store)
        stored = self._table.get(_STATE_ROW)
        state = (_NEVER, _NEVER, 0, 0) if stored is None else _STATE.unpack(stored)
        self._now_ms, self._done_ms, self._count, self._bytes = state
        count = self._count
        context.held_back.opened(place.store, lambda: count)
        idle_ms = place.suppressed.close_idle_ms
        self._idle = None
        if idle_ms is not None:
            self._idle = IdleClose(context, place.node, idle_ms, self._close_all)
        self._ahead_ms = _NEVER
        context.when_time_passes(place.node, self._time_passed)
        context.keeps_back(place.node, place.earliest)

    def push(self, batch: Batch) -> None:
        """Take the updates of a batch, and hand on what is due."""
        node, side = self._side.node, self._side
        if self._idle is not None:
            self._idle.input_came()
        keys = encoded(node, batch, "key", side.key_serde)
        values = encoded(node, batch, "value", side.value_serde)
        olds: list[bytes | None] = [None] * len(keys)
        if side.closes is None:
            assert batch.old_values is not None
            before = batch.with_columns(values=batch.old_values)
            olds = encoded(node, before, "value", side.value_serde)
        # A table's updates have keys.
        taking = _Taking(self, batch, keys, values, olds)  # type: ignore[arg-type]
        with closing(taking):
            taking.run()
        if taking.late:
            self._table.count_late(len(taking.late))
            self._context.drop(node, batch, taking.late, "late")

    def follow_time(self, batch: Batch) -> None:
        """Hand on what is due by the times of updates, whether a view has shown these or not."""
        now_ms = max(self.bounded(batch.timestamps))
        if now_ms > self._now_ms:
            with closing(_Taking(self, batch, [], [], [])) as taking:
                taking.let_time_pass(now_ms, len(batch) - 1)

    def _time_passed(self, now_ms: int, bound_ms: int) -> None:
        """Hand on what is due now that time has passed without an update."""
        now_ms = max(now_ms, min(self._ahead_ms, bound_ms))
        if now_ms > self._now_ms:
            with closing(_Taking(self, no_records(), [], [], [])) as taking:
                taking.let_time_pass(now_ms, 0)

    def bounded(self, times: list[int]) -> list[int]:
        """Return the times of updates as far as no upstream task holds them back."""
        bound_ms = self._context.time_bound()
        if bound_ms is None or not times:
            return times
        latest_ms = max(times)
        self._ahead_ms = max(self._ahead_ms, latest_ms)
        return [min(time, bound_ms) for time in times]

    def _close_all(self) -> None:
        """Hand on all that waits, as if stream time had passed the ends of its windows."""
        with closing(_Taking(self, no_records(), [], [], [])) as taking:
            taking.release_all()

    # What `_Taking` does with the store.

    def known(self, keys: list[bytes]) -> dict[bytes, _Entry]:
        """Return what waits for these keys."""
        found = self._table.get_many([_INDEX + key for key in keys])
        rows = [at + key for key, at in zip(keys, found, strict=True) if at is not None]
        waiting = self._table.get_many([_WAITS + row for row in rows]) if rows else []
        known = {}
        for row, data in zip(rows, waiting, strict=True):
            assert data is not None
            known[row[_PLACE.size :]] = _Entry(row, _decode(data), is_stored=True)
        return known

    def stored(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield what waits, the oldest first: place and key, and the row."""
        with self._table.scan(_WAITS, _BEYOND) as found:
            for at, data in found:
                yield at[1:], data

    def write(self, gone: list[_Entry], changed: list[_Entry], state: tuple[int, ...]) -> None:
        """Stage what a batch has changed."""
        writes: dict[bytes, bytes | None] = {}
        for entry in gone:
            writes[_WAITS + entry.row] = writes[_INDEX + entry.key] = None
        for entry in changed:
            writes[_WAITS + entry.row] = _encode(entry.waiting)
            if not entry.is_stored:
                writes[_INDEX + entry.key] = entry.row[: _PLACE.size]
        writes[_STATE_ROW] = _STATE.pack(*state)
        self._table.put_all(writes)
        before = self._count
        self._now_ms, self._done_ms, self._count, self._bytes = state
        if self._count != before:
            self._context.held_back.changed(self._side.store, self._count - before)

    def release(self, results: list[_Result], batch: Batch) -> None:
        """Hand on results; each is judged by itself."""
        side, then = self._side, batch.stream_times
        waiting = [result.waiting for result in results]
        any_headers = any(one.headers for one in waiting)
        made = Batch(
            keys=Column(raw=[result.key for result in results], serde=side.key_serde),
            values=Column(raw=[one.value for one in waiting], serde=side.value_serde),
            timestamps=[one.time_ms for one in waiting],
            headers=[one.headers for one in waiting] if any_headers else None,
            old_values=Column(raw=[one.prior for one in waiting], serde=side.value_serde)
            if self._old_values.enabled
            else None,
            stream_times=None if then is None else [then[result.place] for result in results],
        )
        held = Held(side.store, made)
        self._context.release(side.node, held, lambda due: self._forward(due, None))

    @property
    def state(self) -> tuple[int, int, int, int]:
        """Stream time, up to where final results have gone, and what waits: rows and bytes."""
        return self._now_ms, self._done_ms, self._count, self._bytes

    @property
    def side(self) -> _BufferPlace:
        return self._side


class _Buffers(WeakKeyDictionary[NodeContext, _UpdateBuffer]):
    """By what a node is built with, so that the nodes of one stream task find theirs.

    It travels to workers empty: there, other nodes are built.
    """

    def __reduce__(self) -> tuple[type["_Buffers"], tuple[()]]:
        return _Buffers, ()


class _Taking:
    """One batch on its way into the buffer."""

    def __init__(
        self,
        buffer: _UpdateBuffer,
        batch: Batch,
        keys: list[bytes],
        values: list[bytes | None],
        olds: list[bytes | None],
    ) -> None:
        self.late: list[int] = []
        """Updates of windows that have had their final result."""
        self._buffer = buffer
        self._batch = batch
        self._keys, self._values, self._olds = keys, values, olds
        self._entries = buffer.known(list(dict.fromkeys(keys)))
        self._new: list[bytes] = []
        """The rows that were added, as a heap."""
        self._stored = buffer.stored()
        self._next_stored = next(self._stored, None)
        self._head_ms = self._oldest()
        self._gone: list[_Entry] = []
        self._results: list[_Result] = []
        self._now_ms, self._done_ms, self._count, self._bytes = buffer.state

    def close(self) -> None:
        """Release the scan of what waited before."""
        self._stored.close()  # type: ignore[attr-defined]  # a generator

    def run(self) -> None:
        """Take all updates."""
        side, batch = self._buffer.side, self._batch
        final, delay_ms = side.closes is not None, side.delay_ms
        limits, times = side.suppressed, self._buffer.bounded(batch.timestamps)
        places = batch.timestamps if side.closes is None else side.closes.times(self._keys)
        most = limits.max_records or _NONE_LEFT, limits.max_bytes or _NONE_LEFT
        for i, (time, place) in enumerate(zip(times, places, strict=True)):
            if final and place <= self._done_ms:
                self.late.append(i)
            else:
                self._put(i, place, final=final)
            self._now_ms = max(self._now_ms, time)
            due_ms = self._now_ms - delay_ms
            if final:
                due_ms = self._done_ms = max(self._done_ms, due_ms)
            while self._head_ms <= due_ms:
                self._evict(i)
            while self._count > most[0] or self._bytes > most[1]:
                if limits.shut_down_when_full:
                    raise _full(side, self._count, self._bytes)
                self._evict(i)
        self._settle()

    def let_time_pass(self, now_ms: int, place: int) -> None:
        """Let go of what is due at that stream time, with the update at `place`."""
        self._now_ms = now_ms
        due_ms = now_ms - self._buffer.side.delay_ms
        if self._buffer.side.closes is not None:
            due_ms = self._done_ms = max(self._done_ms, due_ms)
        while self._head_ms <= due_ms:
            self._evict(place)
        self._settle()

    def release_all(self) -> None:
        """Let go of everything, and take its windows as closed."""
        while self._head_ms < _NONE_LEFT:
            self._done_ms = max(self._done_ms, self._head_ms)
            self._evict(0)
        if self._gone:
            self._settle()

    def _put(self, i: int, place: int, *, final: bool) -> None:
        key, value, time = self._keys[i], self._values[i], self._batch.timestamps[i]
        headers = () if self._batch.headers is None else self._batch.headers[i]
        # As in Kafka Streams, a window that is empty at its end has no result.
        is_dead = final and value is None
        entry = self._entries.get(key)
        if entry is None:
            waiting = HeldUpdate(value, self._olds[i], time, headers)
            entry = _Entry(_PLACE.pack(place + _BIAS) + key, waiting, is_stored=False)
            entry.set(waiting, is_dead=is_dead)
            self._entries[key] = entry
            heappush(self._new, entry.row)
            self._head_ms = min(self._head_ms, place)
        else:
            self._count -= not entry.is_dead
            self._bytes -= entry.size
            entry.set(HeldUpdate(value, entry.waiting.prior, time, headers), is_dead=is_dead)
            entry.is_changed = True
        self._count += not is_dead
        self._bytes += entry.size

    def _evict(self, i: int) -> None:
        """Let the oldest row go."""
        stored = self._next_stored
        if stored is not None and not (self._new and self._new[0] < stored[0]):
            row, data = stored
            self._next_stored = next(self._stored, None)
            entry = self._entries.pop(row[_PLACE.size :], None)
            if entry is None:
                entry = _Entry(row, _decode(data), is_stored=True)
        else:
            entry = self._entries.pop(heappop(self._new)[_PLACE.size :])
        self._head_ms = self._oldest()
        if entry.is_stored:
            self._gone.append(entry)
        if entry.is_dead:
            return
        self._count -= 1
        self._bytes -= entry.size
        self._results.append(_Result(entry.key, entry.waiting, i))
        if len(self._results) == _EMITTED_AT_ONCE:
            self._settle()

    def _oldest(self) -> int:
        """Return the place of the oldest row, or a time that never comes."""
        rows = self._new[:1]
        if self._next_stored is not None:
            rows = [*rows, self._next_stored[0]]
        return _PLACE.unpack_from(min(rows))[0] - _BIAS if rows else _NONE_LEFT

    def _settle(self) -> None:
        """Write what has changed so far, and hand on what has left."""
        changed = [entry for entry in self._entries.values() if entry.is_changed]
        kept = [entry for entry in changed if not entry.is_dead]
        gone = self._gone + [entry for entry in changed if entry.is_dead and entry.is_stored]
        state = self._now_ms, self._done_ms, self._count, self._bytes
        self._buffer.write(gone, kept, state)
        for entry in changed:
            entry.is_changed, entry.is_stored = False, not entry.is_dead
        results, self._gone, self._results = self._results, [], []
        if results:
            self._buffer.release(results, self._batch)


def _full(side: _BufferPlace, count: int, size: int) -> BufferFull:
    limits = side.suppressed
    bounds = {"max_records": limits.max_records, "max_bytes": limits.max_bytes}
    given = " and ".join(f"{name}={most}" for name, most in bounds.items() if most is not None)
    other = "" if side.closes is not None else ", or leave out shut_down_when_full to emit early"
    return BufferFull(
        f"node {side.node}: {count} updates with {size} bytes would wait, but the buffer has "
        f"{given}: raise the bound{other}; nothing after the last commit was processed"
    )


# What a look-up in a suppressed table sees: what was last handed on.


def _look(context: NodeContext, place: _BufferPlace, table: TableFlow) -> Look:
    rows, read = context.table(place.store), place.value_serde.deserialize
    parent = table.look(context)

    def look(keys: list[bytes]) -> list[Any]:
        found = parent(keys)
        for i, prior in _priors(rows, keys):
            found[i] = None if prior is None else read(prior)
        return found

    return look


def _stamp(context: NodeContext, place: _BufferPlace, table: TableFlow) -> Stamp:
    rows, parent = context.table(place.store), table.stamp(context)

    def stamp(keys: list[bytes], times: list[int]) -> list[int]:
        found = list(parent(keys, times))
        # The time of what was last handed on is not kept, as in Kafka Streams.
        for i, _ in _priors(rows, keys):
            found[i] = times[i]
        return found

    return stamp


def _priors(rows: Any, keys: list[bytes]) -> list[tuple[int, bytes | None]]:
    """Return, for the keys that wait, their index and the value that was last handed on."""
    places = rows.get_many([_INDEX + key for key in keys])
    waiting = [(i, at + keys[i]) for i, at in enumerate(places) if at is not None]
    found = rows.get_many([_WAITS + row for _, row in waiting]) if waiting else []
    return [(i, _decode(data).prior) for (i, _), data in zip(waiting, found, strict=True)]
