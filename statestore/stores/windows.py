"""Window stores: one row per key and window, the window's start before the key (SEMANTICS 6).

    start, 8 bytes, key    value          so that windows that expire lie together
    t                      stream time    8 bytes; shorter than any other row, no window's; then,
                                          with ON_WINDOW_CLOSE, 8 more: up to when it has emitted

Integers are big-endian, ms. The changelog has the start after the key, as sinks do. Operators write
rows through the table; users read. Stream time is a row like others: it is staged, committed,
logged and restored with the windows whose expiry it determines.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any, ClassVar, Generic

from statestore.errors import Misuse
from statestore.model.ids import Position, PositionBound
from statestore.model.modes import IsolationLevel, Time, to_ms
from statestore.model.records import K, V, Windowed
from statestore.stores.keyvalue import TransactionalKeyValueStore, live_rows
from statestore.stores.reads import Entry, LiveSource, Moment, Pair, Reader, Rows, RowScan, joined
from statestore.stores.specs import WindowSpec

TIME_ROW = b"t"
START = struct.Struct(">q")
# If there are more windows of a key than this, those of all keys are scanned.
_ASKED_MAX = 10_000
_START_MAX = (1 << 63) - 1


def row_of(key: bytes) -> bytes:
    """Return the row of a key as changelogs and sinks have it; that of stream time is its own."""
    return key[-8:] + key[:-8]


def keys_of(rows: Iterable[bytes]) -> list[Any]:
    """Return the keys of rows as changelogs and sinks have them; that of stream time is its own."""
    return [row[8:] + row[:8] for row in rows]


def start_of(row: bytes) -> int:
    """Return where the window of a row starts."""
    start: int = START.unpack_from(row)[0]
    return start


def expired_ms(time_row: bytes | None, kept_ms: int) -> int:
    """Return the latest start that has expired, or -1.

    `time_row`: the value under TIME_ROW.
    """
    return -1 if time_row is None else max(start_of(time_row) - kept_ms, -1)


class WindowReader(Reader[Rows], Generic[K, V]):
    """Reads of a window store over any Rows; see `contracts.WindowStore`.

    Over several partitions a key is looked for in each, and scans are merged by start. A window
    that has expired by its own partition's stream time does not show.
    """

    span_names: ClassVar[tuple[str, ...]] = ("start_ms", "end_ms")

    def __init__(
        self,
        parts: Sequence[Rows],
        spec: WindowSpec[K, V],
        release: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(spec.name, parts, release)
        self._spec = spec

    def get(self, key: K, start: Time) -> V | None:
        """Return the value of the key in the window that starts at that time."""
        start_ms, data = to_ms(start), self._spec.inner.serialize(key)
        asked = [TIME_ROW, START.pack(start_ms) + data]
        for rows in self._opened():
            time, found = rows.get_many(asked)
            if found is not None and start_ms > self._expired_ms(time):
                return self._spec.value_serde.deserialize(found)
        return None

    def fetch(
        self, key: K, *, from_time: Time | None = None, to_time: Time | None = None
    ) -> RowScan[tuple[Windowed[K], V]]:
        """Return the windows of the key that start between both times, inclusive, by start."""
        data = self._spec.inner.serialize(key)
        first = 0 if from_time is None else max(0, to_ms(from_time))
        last = None if to_time is None else to_ms(to_time)
        scans = [self._windows_of(rows, key, data, first, last) for rows in self._opened()]
        return joined(scans, key=_start)

    def all(self) -> RowScan[tuple[Windowed[K], V]]:
        """Return every window of every key, by start."""
        return self._windows(None, None, reverse=False)

    def observed_stream_time(self) -> int | None:
        """Return the largest timestamp counted in any partition, in ms; None before the first."""
        times = [rows.get_many([TIME_ROW])[0] for rows in self._opened()]
        return max((start_of(time) for time in times if time is not None), default=None)

    # For tools that do not know the kind of the store.

    def find(self, key: K, as_of_ms: int | None = None) -> Entry | None:
        """Return the value in the last window that contains a time. Misuse without a time.

        The last window is the one that starts last; only hopping windows have others.
        """
        if as_of_ms is None:
            raise Misuse(
                f"store {self.name!r} has windows: pass --as-of (as_of), a time in the right one"
            )
        size, step = self._spec.size_ms, self._spec.step_ms
        first = max(((as_of_ms - size) // step + 1) * step, 0)
        with self.fetch(key, from_time=first, to_time=as_of_ms) as windows:
            found = list(windows)
        if not found:
            return None
        window, value = found[-1]
        return Entry(key, value, window.start_ms, window.end_ms)

    def entries(
        self,
        lo: K | None = None,
        hi: K | None = None,
        *,
        as_of_ms: int | None = None,
        reverse: bool = False,
    ) -> RowScan[Entry]:
        """Return the windows of keys with lo <= key <= hi, by start, then key. A time is Misuse."""
        if as_of_ms is not None:
            raise Misuse(f"store {self.name!r} has windows, and no history: leave --as-of out")
        low, high = (None if end is None else self._spec.inner.serialize(end) for end in (lo, hi))
        found = self._windows(low, high, reverse=reverse)
        return found.through(
            lambda pairs: (Entry(of.key, value, of.start_ms, of.end_ms) for of, value in pairs)
        )

    def everything(self) -> RowScan[Entry]:
        """Return all that a reader may see."""
        return self.entries()

    # How it is done.

    def _windows(
        self, lo: bytes | None, hi: bytes | None, *, reverse: bool
    ) -> RowScan[tuple[Windowed[K], V]]:
        """Return the windows of keys with lo <= key <= hi."""
        scans = []
        for rows in self._opened():
            seen = rows.moment(*_span(0, None), reverse=reverse)
            (time,) = seen.get_many([TIME_ROW])
            low = self._expired_ms(time) + 1

            def shown(pairs: Iterator[Pair], low: int = low) -> Iterator[Pair]:
                for row, value in pairs:
                    if row == TIME_ROW or start_of(row) < low:
                        continue
                    key = row[8:]
                    if (lo is None or key >= lo) and (hi is None or key <= hi):
                        yield row, value

            scans.append(self._scan(seen, shown))
        return joined(scans, key=_start, reverse=reverse)

    def _windows_of(
        self, rows: Rows, key: K, data: bytes, first: int, last: int | None
    ) -> RowScan[tuple[Windowed[K], V]]:
        """Return the windows of one key in one partition."""
        spec, size, step = self._spec, self._spec.size_ms, self._spec.step_ms
        seen = rows.moment(*_span(first, last))
        (time,) = seen.get_many([TIME_ROW])
        low = max(self._expired_ms(time) + 1, first)
        now = -1 if time is None else start_of(time)
        high = now if last is None else min(now, last)
        starts = range(-(-low // step) * step, high + 1, step)
        if len(starts) > _ASKED_MAX:

            def shown(pairs: Iterator[Pair]) -> Iterator[Pair]:
                for row, value in pairs:
                    if row[8:] == data and row != TIME_ROW and low <= start_of(row) <= high:
                        yield row, value

            return self._scan(seen, shown)
        with closing(seen):
            found = seen.get_many([START.pack(start) + data for start in starts])
        read = spec.value_serde.deserialize
        windows = (
            (Windowed(key, start, start + size), read(value))
            for start, value in zip(starts, found, strict=True)
            if value is not None
        )
        return RowScan(windows, rows.check_open)

    def _scan(
        self, seen: Moment, shown: Callable[[Iterator[Pair]], Iterator[Pair]]
    ) -> RowScan[tuple[Windowed[K], V]]:
        """Decode those rows of a moment that are shown. The scan takes over the moment."""
        size, read_key = self._spec.size_ms, self._spec.inner.deserialize
        read = self._spec.value_serde.deserialize

        def windows(pairs: Iterator[Pair]) -> Iterator[tuple[Windowed[Any], Any]]:
            for row, value in shown(pairs):
                start = start_of(row)
                yield Windowed(read_key(row[8:]), start, start + size), read(value)

        walk = seen.scan()
        return RowScan(windows(iter(walk)), walk.check_open, seen.close, notices_close=True)

    def _expired_ms(self, time_row: bytes | None) -> int:
        return expired_ms(time_row, self._spec.retention_ms)


class TransactionalWindowStore(WindowReader[K, V]):
    """The owner's window store, in which pending writes are visible at once.

    Its aggregate writes the rows, and the stream task commits them.
    """

    def __init__(
        self, store: TransactionalKeyValueStore[bytes, bytes], spec: WindowSpec[K, V]
    ) -> None:
        super().__init__([store.table], spec)
        self._store = store

    def reader(
        self,
        isolation_level: IsolationLevel | str | None = None,
        position_bound: PositionBound | None = None,
    ) -> WindowReader[K, V]:
        """Return a reader for any thread.

        Its level defaults to the store's setting (SEMANTICS S9).
        """
        staged = self._store.staged
        source = LiveSource(staged, self._store.level_of(isolation_level), position_bound)
        return WindowReader([live_rows(source, staged)], self._spec)

    def persistent(self) -> bool:
        return self._store.persistent()

    def position(self) -> Position:
        """Return the input position as the owner sees it, with what is pending."""
        return self._store.position()

    def metrics(self) -> dict[str, float]:
        """Return Kafka Streams' metrics; `late-record-drop-total` counts late records."""
        return self._store.metrics()


def _start(pair: tuple[Windowed[Any], Any]) -> int:
    return pair[0].start_ms


def _span(first: int, last: int | None) -> tuple[bytes, bytes | None]:
    """Return the rows of windows that start from `first` to `last`, and perhaps a few more."""
    low = START.pack(min(max(first, 0), _START_MAX))
    return low, None if last is None or last >= _START_MAX else START.pack(max(last, -1) + 1)
