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
from typing import Any, ClassVar, Generic

from statestore.errors import Misuse
from statestore.model.ids import Position, PositionBound
from statestore.model.modes import IsolationLevel, Time, to_ms
from statestore.model.records import SESSION_BYTES, K, V, Windowed
from statestore.stores.keyvalue import TransactionalKeyValueStore, live_rows
from statestore.stores.reads import Entry, LiveSource, Pair, Reader, Rows, RowScan, joined
from statestore.stores.specs import SessionSpec
from statestore.stores.windows import TIME_ROW, start_of

SPAN = struct.Struct(">qq")
LIST = b"\xff"
_BEYOND_SESSIONS = b"\x80"  # Times are not negative, so the first byte of an end is smaller.
Looked = Callable[[list[bytes]], list[bytes | None]]


def row_of(key: bytes) -> bytes:
    """Return the row of a key as changelogs and sinks have it; that of stream time is its own."""
    return key[-SESSION_BYTES:] + key[:-SESSION_BYTES]


def keys_of(rows: Iterable[bytes]) -> list[Any]:
    """Return the keys of rows as changelogs and sinks have them; that of stream time is its own."""
    return [row[SESSION_BYTES:] + row[:SESSION_BYTES] for row in rows]


def is_logged(row: bytes) -> bool:
    """Tell whether the changelog has a row: all but the lists of sessions."""
    return not row.startswith(LIST)


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


class SessionReader(Reader[Rows], Generic[K, V]):
    """Reads of a session store over any Rows; see `contracts.SessionStore`.

    Over several partitions a key is looked for in each, and scans are merged by the ends of
    sessions. A session that has expired by its own partition's stream time does not show.
    """

    span_names: ClassVar[tuple[str, ...]] = ("start_ms", "end_ms")

    def __init__(
        self,
        parts: Sequence[Rows],
        spec: SessionSpec[K, V],
        release: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(spec.name, parts, release)
        self._spec = spec

    def get(self, key: K, start: Time, end: Time) -> V | None:
        """Return the value of the key in the session of exactly this start and end."""
        end_ms, data = to_ms(end), self._spec.inner.serialize(key)
        asked = [TIME_ROW, SPAN.pack(end_ms, to_ms(start)) + data]
        for rows in self._opened():
            time, found = rows.get_many(asked)
            if found is not None and end_ms >= gone_before_ms(time, self._spec.retention_ms):
                return self._spec.value_serde.deserialize(found)
        return None

    def fetch(
        self, key: K, *, from_time: Time | None = None, to_time: Time | None = None
    ) -> RowScan[tuple[Windowed[K], V]]:
        """Return the sessions of the key that overlap the closed interval, by their ends."""
        data = self._spec.inner.serialize(key)
        first = 0 if from_time is None else max(0, to_ms(from_time))
        last = None if to_time is None else to_ms(to_time)
        scans = [self._sessions_of(rows, key, data, first, last) for rows in self._opened()]
        return joined(scans, key=_end)

    def all(self) -> RowScan[tuple[Windowed[K], V]]:
        """Return every session of every key, by their ends."""
        return self._sessions(None, None, reverse=False)

    def observed_stream_time(self) -> int | None:
        """Return the largest timestamp counted in any partition, in ms; None before the first."""
        times = [rows.get_many([TIME_ROW])[0] for rows in self._opened()]
        return max((start_of(time) for time in times if time is not None), default=None)

    # For tools that do not know the kind of the store.

    def find(self, key: K, as_of_ms: int | None = None) -> Entry | None:
        """Return what the key has in the session that contains a time. Misuse without a time."""
        if as_of_ms is None:
            raise Misuse(
                f"store {self.name!r} has sessions: pass --as-of (as_of), a time in the one you "
                "want"
            )
        with self.fetch(key, from_time=as_of_ms, to_time=as_of_ms) as sessions:
            found = list(sessions)
        if not found:
            return None
        of, value = found[-1]
        return Entry(key, value, of.start_ms, of.end_ms)

    def entries(
        self,
        lo: K | None = None,
        hi: K | None = None,
        *,
        as_of_ms: int | None = None,
        reverse: bool = False,
    ) -> RowScan[Entry]:
        """Return the sessions of keys with lo <= key <= hi, by their ends. A time is Misuse."""
        if as_of_ms is not None:
            raise Misuse(f"store {self.name!r} has sessions, and no history: leave --as-of out")
        low, high = (None if end is None else self._spec.inner.serialize(end) for end in (lo, hi))
        found = self._sessions(low, high, reverse=reverse)
        return found.through(
            lambda pairs: (Entry(of.key, value, of.start_ms, of.end_ms) for of, value in pairs)
        )

    def everything(self) -> RowScan[Entry]:
        """Return all that a reader may see."""
        return self.entries()

    # How it is done.

    def _sessions(
        self, lo: bytes | None, hi: bytes | None, *, reverse: bool
    ) -> RowScan[tuple[Windowed[K], V]]:
        """Return the sessions of keys with lo <= key <= hi."""
        scans = []
        for rows in self._opened():
            seen = rows.moment(None, _BEYOND_SESSIONS, reverse=reverse)
            (time,) = seen.get_many([TIME_ROW])
            low = gone_before_ms(time, self._spec.retention_ms)

            def shown(pairs: Iterator[Pair], low: int = low) -> Iterator[Pair]:
                for row, value in pairs:
                    if row == TIME_ROW or start_of(row) < low:
                        continue
                    key = row[SESSION_BYTES:]
                    if (lo is None or key >= lo) and (hi is None or key <= hi):
                        yield row, value

            walk = seen.scan()
            found = self._decoded(shown(iter(walk)))
            scans.append(RowScan(found, walk.check_open, seen.close, notices_close=True))
        return joined(scans, key=_end, reverse=reverse)

    def _sessions_of(
        self, rows: Rows, key: K, data: bytes, first: int, last: int | None
    ) -> RowScan[tuple[Windowed[K], V]]:
        """Return the sessions of one key in one partition."""
        with closing(rows.moment(_BEYOND_SESSIONS, _BEYOND_SESSIONS)) as seen:
            time, spans = seen.get_many([TIME_ROW, LIST + data])
            low = max(gone_before_ms(time, self._spec.retention_ms), first)
            wanted = [
                span
                for span in spans_of(spans)
                if SPAN.unpack(span)[0] >= low and (last is None or SPAN.unpack(span)[1] <= last)
            ]
            values = seen.get_many([span + data for span in wanted])
        read = self._spec.value_serde.deserialize
        sessions = (
            (Windowed(key, *reversed(SPAN.unpack(span))), read(value))
            for span, value in zip(wanted, values, strict=True)
            if value is not None
        )
        return RowScan(sessions, rows.check_open)

    def _decoded(self, pairs: Iterator[Pair]) -> Iterator[tuple[Windowed[Any], Any]]:
        read_key, read = self._spec.inner.deserialize, self._spec.value_serde.deserialize
        for row, value in pairs:
            end, start = SPAN.unpack_from(row)
            yield Windowed(read_key(row[SESSION_BYTES:]), start, end), read(value)


class TransactionalSessionStore(SessionReader[K, V]):
    """The owner's session store, which shows what is pending at once.

    Its aggregate writes the rows, and the stream task commits them.
    """

    def __init__(
        self, store: TransactionalKeyValueStore[bytes, bytes], spec: SessionSpec[K, V]
    ) -> None:
        super().__init__([store.table], spec)
        self._store = store

    def reader(
        self,
        isolation_level: IsolationLevel | str | None = None,
        position_bound: PositionBound | None = None,
    ) -> SessionReader[K, V]:
        """Return a reader for any thread.

        Its level defaults to the store's setting (SEMANTICS S9).
        """
        staged = self._store.staged
        source = LiveSource(staged, self._store.level_of(isolation_level), position_bound)
        return SessionReader([live_rows(source, staged)], self._spec)

    def persistent(self) -> bool:
        return self._store.persistent()

    def position(self) -> Position:
        """Return the input position as the owner sees it, with what is pending."""
        return self._store.position()

    def metrics(self) -> dict[str, float]:
        """Return Kafka Streams' metrics; `late-record-drop-total` counts late records."""
        return self._store.metrics()


def _end(pair: tuple[Windowed[Any], Any]) -> int:
    return pair[0].end_ms
