"""Session stores: one row per key and session, and one per key that lists its sessions.

    end, start, key    value           8 + 8 bytes before the key: what closes or expires lies
                                       together
    0xff, key          end, start, …   16 bytes for each session of the key, in order
    t                  stream time     as in window stores (stores/windows.py)

Integers are big-endian, ms; the end is the time of a session's last record. The changelog has the
sessions with end and start after the key, as sinks do and as Kafka Streams writes them, and the row
of stream time. It does not have the lists, which follow from the sessions: `listed` makes them when
sessions are written or restored. The operator finds the sessions of a batch's keys by two look-ups
of many keys, whatever else the store holds.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, ClassVar

from statestore.errors import Misuse
from statestore.model.ids import PositionBound
from statestore.model.modes import IsolationLevel, Time, to_ms
from statestore.model.records import SESSION_BYTES, K, V, Windowed
from statestore.stores.in_windows import (
    START,
    TIME_MAX,
    TIME_ROW,
    UNLOGGED,
    OwnerInWindows,
    ReaderInWindows,
    RowShape,
    checked_ms,
    start_of,
)
from statestore.stores.keyvalue import TransactionalKeyValueStore
from statestore.stores.pending import Entries
from statestore.stores.reads import Pair, Rows, RowScan
from statestore.stores.specs import SessionSpec

SPAN = struct.Struct(">qq")
LIST = b"\xff"
Looked = Callable[[list[bytes]], list[bytes | None]]


def row_of(key: bytes) -> bytes:
    """Return the row of a key as changelogs and sinks have it; that of stream time is its own."""
    return key[-SESSION_BYTES:] + key[:-SESSION_BYTES]


def keys_of(rows: Iterable[bytes]) -> list[Any]:
    """Return the keys of rows as changelogs and sinks have them; that of stream time is its own."""
    return [row[SESSION_BYTES:] + row[:SESSION_BYTES] for row in rows]


def spans_of(listed: bytes | None) -> list[bytes]:
    """Return the sessions in a key's list: end and start of each, in order, as rows begin."""
    if listed is None:
        return []
    return [listed[at : at + SESSION_BYTES] for at in range(0, len(listed), SESSION_BYTES)]


def listed(writes: Mapping[bytes, bytes | None], look: Looked) -> dict[bytes, bytes | None]:
    """Return the lists that follow from these writes of sessions; `look` finds the present ones."""
    by_key: dict[bytes, list[bytes]] = {}
    for row in writes:
        if len(row) >= SESSION_BYTES:
            by_key.setdefault(row[SESSION_BYTES:], []).append(row)
    keys = list(by_key)
    made: dict[bytes, bytes | None] = {}
    for key, before in zip(keys, look([LIST + key for key in keys]), strict=True):
        spans = set(spans_of(before))
        for row in by_key[key]:
            (spans.discard if writes[row] is None else spans.add)(row[:SESSION_BYTES])
        made[LIST + key] = b"".join(sorted(spans)) or None
    return made


def gone_before_ms(time_row: bytes | None, kept_ms: int) -> int:
    """Return the time such that sessions that ended before it have expired."""
    return 0 if time_row is None else max(start_of(time_row) - kept_ms, 0)


def columns_of(
    keys: Sequence[bytes | None], values: Sequence[bytes], clock: bytes | None, kept_ms: int
) -> tuple[list[Any], list[Any], list[int | None], list[int | None]]:
    """Return keys, values, starts and ends of a log's sessions that have not expired."""
    low = gone_before_ms(clock, kept_ms)
    found = [
        (key[:-SESSION_BYTES], value, *SPAN.unpack(key[-SESSION_BYTES:]))
        for key, value in zip(keys, values, strict=True)
        if key is not None and len(key) >= SESSION_BYTES
    ]
    kept = [row for row in found if row[2] >= low]
    return (
        [key for key, _, _, _ in kept],
        [value for _, value, _, _ in kept],
        [start for _, _, _, start in kept],
        [end for _, _, end, _ in kept],
    )


class SessionReader(ReaderInWindows[K, V]):
    """Reads of a session store over any Rows; see `contracts.ReadOnlySessionStore`."""

    shape: ClassVar[RowShape] = RowShape(SPAN.size, START.size, "sessions")

    def __init__(
        self,
        parts: Sequence[Rows],
        spec: SessionSpec[K, V],
        release: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(parts, spec, release)
        self._spec = spec

    def get(self, key: K, start: Time, end: Time) -> V | None:
        """Return the value of the key in the session of exactly this start and end."""
        start_ms, end_ms, data = to_ms(start), to_ms(end), self._codec.key(key)
        if not 0 <= start_ms <= end_ms <= TIME_MAX:
            return None
        asked = [TIME_ROW, SPAN.pack(end_ms, start_ms) + data]
        for rows in self._opened():
            time, found = rows.get_many(asked)
            if found is not None and end_ms >= self._low_ms(time):
                return self._codec.read_value(found)
        return None

    def _containing(self, key: K, time_ms: int) -> RowScan[tuple[Windowed[K], V]]:
        return self.fetch(key, from_time=time_ms, to_time=time_ms)

    def _of_key(self, rows: Rows, data: bytes, first: int, last: int | None) -> list[Pair]:
        with closing(rows.moment(UNLOGGED, UNLOGGED)) as seen:
            time, spans = seen.get_many([TIME_ROW, LIST + data])
            low = max(self._low_ms(time), first)
            wanted = [
                span + data
                for span, (end, start) in zip(
                    spans_of(spans), map(SPAN.unpack, spans_of(spans)), strict=True
                )
                if end >= low and (last is None or start <= last)
            ]
            found = zip(wanted, seen.get_many(wanted), strict=True)
            return [(row, value) for row, value in found if value is not None]

    def _decoded(self, pairs: Iterator[Pair]) -> Iterator[tuple[Windowed[Any], Any]]:
        read_key, read = self._codec.read_key, self._codec.read_value
        for row, value in pairs:
            end, start = SPAN.unpack_from(row)
            yield Windowed(read_key(row[SESSION_BYTES:]), start, end), read(value)

    def _low_ms(self, time_row: bytes | None) -> int:
        return gone_before_ms(time_row, self._kept_ms)

    @staticmethod
    def _order(pair: tuple[Windowed[Any], Any], /) -> int:
        return pair[0].end_ms


class TransactionalSessionStore(OwnerInWindows, SessionReader[K, V]):
    """The owner's session store; see `contracts.SessionStore` for the promises.

    Where an aggregate writes the rows, processors only read them.
    """

    def __init__(
        self, store: TransactionalKeyValueStore[bytes, bytes], spec: SessionSpec[K, V]
    ) -> None:
        SessionReader.__init__(self, [store.table], spec)
        OwnerInWindows.__init__(self, store, spec, self._stage_sessions, self._low_at)

    def put(self, session: Windowed[K], value: V | None) -> None:
        """Stage the value of a key in a session; None removes the session."""
        self.put_all(((session, value),))

    def put_all(self, pairs: Iterable[tuple[Windowed[K], V | None]]) -> None:
        """Stage many sessions, in this order; if one does not fit its serde, none is staged."""
        self._check_writable()
        self._put([(self._row(session), self._codec.value(value)) for session, value in pairs])

    def remove(self, session: Windowed[K]) -> None:
        """Stage the removal of a session; one that is not there stays so."""
        self.put(session, None)

    def reader(
        self,
        isolation_level: IsolationLevel | str | None = None,
        position_bound: PositionBound | None = None,
    ) -> SessionReader[K, V]:
        """Return a reader for any thread.

        Its level defaults to the store's setting (SEMANTICS S9).
        """
        return SessionReader(self._live_rows(isolation_level, position_bound), self._spec)

    def _row(self, session: Windowed[K]) -> bytes:
        given: object = session
        if not isinstance(given, tuple) or len(given) != len(Windowed._fields):
            raise Misuse(
                f"store {self.name!r}: put takes a session, not {given!r}: pass "
                "Windowed(key, start, end), the times of its first and its last record"
            )
        key, start, end = session
        start_ms, end_ms = checked_ms(self.name, start), checked_ms(self.name, end)
        if start_ms > end_ms:
            raise Misuse(
                f"store {self.name!r}: a session cannot start at {start_ms} and end at {end_ms}: "
                "pass Windowed(key, start, end), the times of its first and its last record"
            )
        return SPAN.pack(end_ms, start_ms) + self._codec.key(key)

    def _stage_sessions(self, writes: Entries) -> None:
        self.table.put_all({**writes, **listed(writes, self.table.get_many)})

    def _low_at(self, now_ms: int) -> int:
        return now_ms - self._kept_ms
