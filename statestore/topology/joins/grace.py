"""Joins with grace: a stream's records wait for the table they are joined with (SEMANTICS V10).

Each record waits in a store with a changelog until the join's stream time has passed its own time
by the grace. Then it is joined. The join's stream time is the latest time of the records that it
has received from either side, which need not have the times of the input (docs/adr/0018). Records
that come due with the same record are joined in the order of their times, and before that record
changes the table, because the table's history may begin later from then on. The rows of the store
are:

    w <time, 8> <number, 8>    a record that waits, as a `Waiting` in MessagePack
    n                          the next number
    t                          the join's stream time, 8 bytes

Times are offset by 2^63, so that bytes sort as the times do. Numbers distinguish records of one
time.

Keeps I25.
"""

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise, repeat
from operator import itemgetter
from typing import Any, Final, NamedTuple

import msgspec

from statestore.model.batch import Batch, Column
from statestore.model.byte_columns import without
from statestore.model.decoders import msgpack_decoder
from statestore.model.ids import TopicPartition
from statestore.model.lazy_columns import LazyColumn
from statestore.model.records import Serde
from statestore.stores.versioned.layout import TIME_MIN
from statestore.topology.failures import NodeFailed, encoded, processing
from statestore.topology.nodes import (
    Build,
    Forward,
    Held,
    NodeContext,
    Origin,
    Push,
    running,
    stream_times,
)

_ROW: Final = struct.Struct(">cQQ")
_NUMBER: Final = struct.Struct(">Q")
_NEXT: Final = b"n"
_TIME: Final = b"t"
_WAITS: Final = b"w"
_BEYOND: Final = b"x"
_BIAS: Final = 1 << 63

_TAKER: Final = "StreamsBuilder(), or to a repartition() before the join, where records wait"

Join = Callable[[NodeContext], Callable[[Batch], Batch]]


class Waiting(msgspec.Struct, array_like=True):
    """A record that waits, as its row has it."""

    key: bytes | None
    value: bytes
    headers: tuple[tuple[str, bytes | None], ...] = ()
    # The input record that it was, as far as that is known; rows of older versions do not have it.
    topic: str | None = None
    partition: int = -1
    offset: int = -1

    @property
    def origin(self) -> Origin | None:
        topic = self.topic
        return None if topic is None else (TopicPartition(topic, self.partition), self.offset)


class WaitingPlace(NamedTuple):
    """Where records wait: the node that joins them, their store, the grace and their serdes."""

    join: str
    store: str
    grace_ms: int
    key_serde: Serde[Any]
    value_serde: Serde[Any]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgpack_decoder(Waiting).decode


class Waiter(NamedTuple):
    """A join that waits for a table with history.

    `node` is the one that the table's updates wake; `side` says where the records wait.
    """

    node: str
    side: WaitingPlace


def waiting(node: str, side: WaitingPlace, join: Join, *, table_side: bool) -> Build:
    """Build a node that adds the stream's records to those that wait, and joins all that are due.

    `table_side`: the batches are the table's updates, which move the join's stream time, too.
    """

    def build(context: NodeContext, forward: Forward) -> Push:
        context.keep_stream_times()
        room, joined = _Room(context, side), join(context)

        def push(batch: Batch) -> None:
            then = stream_times(context, batch)
            with processing(node, batch):
                first = None
                if not table_side:
                    batch, then, first = room.add(node, batch, then)
                due = room.take_due(room.bounded(batch.timestamps), then, first)
            release(due)

        def release(due: Held) -> None:
            if len(due.batch):
                # Both sides use one name, so that a record is judged alike whichever side wakes it.
                context.release(side.join, due, hand_on)

        def time_passed(now_ms: int, bound_ms: int) -> None:
            now_ms = max(now_ms, min(room.ahead_ms, bound_ms))
            release(room.take_due([now_ms], [now_ms], None))

        def hand_on(due: Batch) -> None:
            try:
                with processing(side.join, due):
                    made = joined(due)
            except NodeFailed as failed:
                # Each record has its own version of the row, so none fails because of another.
                failed.certain = bool(failed.culprits)
                raise
            if len(made):
                forward(made, None)

        context.when_time_passes(node, time_passed)
        if not table_side:
            context.keeps_back(node, lambda now_ms: max(now_ms - side.grace_ms, 0))
        return push

    return build


class Gate:
    """Has the records that a table's updates make due joined before these updates are applied.

    Each record comes due with one update. It must not see that update or a later one, and that
    update's time may remove the versions that it needs.
    """

    def __init__(self, context: NodeContext, waiters: Sequence[Waiter], forward: Forward) -> None:
        self._context = context
        self._forward = forward
        self._nodes = [waiter.node for waiter in waiters]
        self._rooms = [_Room(context, waiter.side) for waiter in waiters]
        context.keep_stream_times()

    def parts(self, batch: Batch) -> Iterator[Batch]:
        """Yield the updates in parts; each part has to be applied before the next is asked for."""
        times = batch.timestamps
        nulls = set(batch.keys.nulls())
        if nulls:
            # These are no updates of the table.
            times = [TIME_MIN if i in nulls else time for i, time in enumerate(times)]
        cuts = sorted({place for room in self._rooms for place in room.places_due(times)})
        if cuts[:1] != [0]:
            yield batch.slice(0, cuts[0]) if cuts else batch
        for start, stop in pairwise([*cuts, len(batch)]):
            for node in self._nodes:
                self._forward(batch.slice(start, start + 1), node)
            yield batch.slice(start, stop)
        for room in self._rooms:
            # Also where nothing was handed on, as of a delete of what was not there.
            room.pass_time(times)


class _Room:
    """The records that wait for one join, in their store."""

    def __init__(self, context: NodeContext, side: WaitingPlace) -> None:
        self._context = context
        self._table = context.table(side.store)
        self._side = side
        self.ahead_ms = TIME_MIN
        """The latest time of a record here, however far upstream tasks have come."""
        context.held_back.opened(side.store, self._count)

    def bounded(self, times: list[int]) -> list[int]:
        """Return the times of records as far as no upstream task holds them back."""
        bound_ms = self._context.time_bound()
        if bound_ms is None or not times:
            return times
        latest_ms = max(times)
        self.ahead_ms = max(self.ahead_ms, latest_ms)
        return [min(time, bound_ms) for time in times]

    def add(self, node: str, batch: Batch, then: list[int]) -> tuple[Batch, list[int], int]:
        """Store a batch, without records that have no value, which do not move time either.

        Return what was stored, the task's stream times at it, and the first record's number.
        """
        side = self._side
        nulls = batch.values.nulls()
        if nulls:
            self._context.drop(node, batch, nulls, "null_key_or_value")
            batch, then = batch.without(nulls), without(then, nulls)
        keys = encoded(node, batch, "key", side.key_serde)
        values = encoded(node, batch, "value", side.value_serde, taker=_TAKER)
        headers = batch.headers or [()] * len(keys)
        origins = _origins(batch)
        first: int = _NUMBER.unpack(self._table.get(_NEXT) or bytes(8))[0]
        rows = {
            _ROW.pack(_WAITS, time + _BIAS, first + i): _encode(Waiting(key, value, head, *origin))
            for i, (key, value, time, head, origin) in enumerate(
                zip(keys, values, batch.timestamps, headers, origins, strict=True)
            )
            if value is not None
        }
        if rows:
            self._table.put_all({**rows, _NEXT: _NUMBER.pack(first + len(keys))})
            self._context.held_back.changed(side.store, len(rows))
        return batch, then, first

    def places_due(self, times: list[int]) -> set[int]:
        """Return where in a batch with these times a record that waits comes due."""
        nows = running(self._now(), self.bounded(times))
        found = [_ROW.unpack(at)[1] - _BIAS for at, _ in self._scan_due(nows[-1])]
        return {bisect_left(nows, time + self._side.grace_ms) for time in found}

    def take_due(self, times: list[int], then: list[int], first: int | None) -> Held:
        """Take in the times of a batch; remove and return what has waited long enough.

        `then` are the task's stream times at the batch, whose own records have the numbers from
        `first` on. The order is that of the records with which each came due, then of time, as if
        each record had come in its own batch.
        """
        side, before_ms = self._side, self._now()
        nows = running(before_ms, times) if times else []
        due = []
        for at, row in self._scan_due(nows[-1]) if nows else ():
            _, time, number = _ROW.unpack(at)
            came = 0 if first is None else max(0, number - first)
            place = max(came, bisect_left(nows, time - _BIAS + side.grace_ms))
            due.append((place, at, _decode(row)))
        due.sort(key=itemgetter(0, 1))
        writes: dict[bytes, bytes | None] = {at: None for _, at, _ in due}
        if nows and nows[-1] != before_ms:
            writes[_TIME] = _NUMBER.pack(nows[-1] + _BIAS)
        self._table.put_all(writes)
        self._context.held_back.changed(side.store, -len(due))
        records = [record for _, _, record in due]
        any_headers = any(record.headers for record in records)
        batch = Batch(
            keys=Column(raw=[record.key for record in records], serde=side.key_serde),
            values=Column(raw=[record.value for record in records], serde=side.value_serde),
            timestamps=[_ROW.unpack(at)[1] - _BIAS for _, at, _ in due],
            headers=[record.headers for record in records] if any_headers else None,
            stream_times=[then[place] for place, _, _ in due],
        )
        return Held(side.store, batch, LazyColumn(records, lambda record: record.origin))

    def pass_time(self, times: list[int]) -> None:
        """Take in the times of a batch by which nothing is due any more."""
        before_ms = self._now()
        now_ms = running(before_ms, self.bounded(times))[-1]
        if now_ms != before_ms:
            self._table.put_all({_TIME: _NUMBER.pack(now_ms + _BIAS)})

    def _now(self) -> int | None:
        """Return the join's stream time; None before its first record."""
        stored = self._table.get(_TIME)
        now: int | None = None if stored is None else _NUMBER.unpack(stored)[0] - _BIAS
        return now

    def _count(self) -> int:
        with self._table.scan(_WAITS, _BEYOND) as found:
            return sum(1 for _ in found)

    def _scan_due(self, now: int) -> list[tuple[bytes, bytes]]:
        beyond = _ROW.pack(_WAITS, max(now - self._side.grace_ms + 1, TIME_MIN) + _BIAS, 0)
        with self._table.scan(_WAITS, beyond) as found:
            return [(at, row) for at, row in found if at < beyond]


def _origins(batch: Batch) -> Iterable[tuple[str, int, int] | tuple[()]]:
    """Return for each record the input record that it is, or () if an operator made it."""
    if not batch.topic or batch.partition is None or batch.offsets is None:
        return [()] * len(batch)
    return zip(repeat(batch.topic), repeat(batch.partition), batch.offsets, strict=False)
