"""Window stores: one row per key and window, the window's start before the key (SEMANTICS 6).

    start, 8 bytes, key    value          so that windows that expire lie together
    t                      stream time    8 bytes; shorter than any other row, no window's; then,
                                          with ON_WINDOW_CLOSE, 8 more: up to when it has emitted

Integers are big-endian, ms. The changelog has the start after the key, as sinks do. Operators write
rows through the table; users read. Stream time is a row like others: staged, committed, logged and
restored with the windows it decides about.
"""

import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Generic, Protocol, Self

from statestore.errors import StoreClosed
from statestore.model.ids import Position, PositionBound
from statestore.model.modes import IsolationLevel, Time, to_ms
from statestore.model.records import K, V, Windowed
from statestore.stores.contracts import Scan
from statestore.stores.keyvalue import TransactionalKeyValueStore
from statestore.stores.specs import WindowSpec

TIME_ROW = b"t"
START = struct.Struct(">q")
# Beyond that many, the windows of a key are looked for among those of all keys.
_ASKED_MAX = 10_000
_START_MAX = (1 << 63) - 1


def row_of(key: bytes) -> bytes:
    """The row of a key as changelogs and sinks have it; that of stream time is its own."""
    return key[-8:] + key[:-8]


def keys_of(rows: Iterable[bytes]) -> list[Any]:
    """The keys of rows as changelogs and sinks have them; that of stream time is its own."""
    return [row[8:] + row[:8] for row in rows]


def start_of(row: bytes) -> int:
    """Where the window of a row starts."""
    start: int = START.unpack_from(row)[0]
    return start


def expired_ms(time_row: bytes | None, kept_ms: int) -> int:
    """The latest start that is gone; -1 where none is. `time_row`: the value of TIME_ROW."""
    return -1 if time_row is None else max(start_of(time_row) - kept_ms, -1)


class WindowScan(Generic[K, V]):
    """An iterator of (Windowed, value); `with` or close() releases it, StoreClosed after that."""

    def __init__(
        self, pairs: Iterator[tuple[Windowed[K], V]], release: Callable[[], None] | None = None
    ) -> None:
        self._pairs: Iterator[tuple[Windowed[K], V]] | None = pairs
        self._release = release

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[Windowed[K], V]:
        if self._pairs is None:
            raise StoreClosed("this iterator is closed: open a new one")
        return next(self._pairs)

    def close(self) -> None:
        """Release the snapshot. Closing twice is harmless."""
        self._pairs = None
        if self._release is not None:
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


class RowsOfAMoment(Protocol):
    """The rows of a window store, at one moment."""

    def get_many(self, keys: list[bytes]) -> list[bytes | None]: ...
    def rows(self) -> Iterable[tuple[bytes, bytes]]:
        """Those that were asked for, in order; once."""


class Rows(Protocol):
    """The rows of a window store, read."""

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """One value per key, all of one moment."""

    def moment(
        self, lo: bytes | None = None, hi: bytes | None = None
    ) -> AbstractContextManager[RowsOfAMoment]:
        """The rows as they are now; those from `lo` to `hi` may be walked over."""

    def is_open(self) -> bool: ...
    def close(self) -> None: ...


class WindowReader(Generic[K, V]):
    """Reads from any thread under one isolation level; see `contracts.WindowStore`."""

    def __init__(self, rows: Rows, spec: WindowSpec[K, V]) -> None:
        self.name = spec.name
        self._rows = rows
        self._spec = spec

    def get(self, key: K, start: Time) -> V | None:
        """The value of the key in the window that starts then."""
        start_ms, data = to_ms(start), self._spec.inner.serialize(key)
        time, found = self._rows.get_many([TIME_ROW, START.pack(start_ms) + data])
        if found is None or start_ms <= self._expired_ms(time):
            return None
        return self._spec.value_serde.deserialize(found)

    def fetch(
        self, key: K, *, from_time: Time | None = None, to_time: Time | None = None
    ) -> WindowScan[K, V]:
        """The key's windows that start between both times, both included, by start."""
        spec, size = self._spec, self._spec.size_ms
        data = spec.inner.serialize(key)
        first = 0 if from_time is None else max(0, to_ms(from_time))
        last = None if to_time is None else to_ms(to_time)
        with ExitStack() as closing:
            seen = closing.enter_context(self._rows.moment(*_span(first, last)))
            (time,) = seen.get_many([TIME_ROW])
            low = max(self._expired_ms(time) + 1, first)
            now = -1 if time is None else start_of(time)
            high = now if last is None else min(now, last)
            starts = range(-(-low // size) * size, high + 1, size)
            if len(starts) > _ASKED_MAX:
                return self._scan(seen, low, high, data, closing.pop_all().close)
            found = seen.get_many([START.pack(start) + data for start in starts])
        read = spec.value_serde.deserialize
        return WindowScan(
            (Windowed(key, start, start + size), read(value))
            for start, value in zip(starts, found, strict=True)
            if value is not None
        )

    def all(self) -> WindowScan[K, V]:
        """Every window of every key, by start."""
        with ExitStack() as closing:
            seen = closing.enter_context(self._rows.moment(*_span(0, None)))
            (time,) = seen.get_many([TIME_ROW])
            low = self._expired_ms(time) + 1
            return self._scan(seen, low, None, None, closing.pop_all().close)

    def observed_stream_time(self) -> int | None:
        """The largest timestamp counted so far, ms; None before the first."""
        (data,) = self._rows.get_many([TIME_ROW])
        return None if data is None else start_of(data)

    def is_open(self) -> bool:
        return self._rows.is_open()

    def close(self) -> None:
        self._rows.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _expired_ms(self, time_row: bytes | None) -> int:
        return expired_ms(time_row, self._spec.retention_ms)

    def _scan(
        self,
        seen: RowsOfAMoment,
        low: int,
        high: int | None,
        key: bytes | None,
        release: Callable[[], None],
    ) -> WindowScan[K, V]:
        spec, size = self._spec, self._spec.size_ms

        def pairs() -> Iterator[tuple[Windowed[Any], Any]]:
            for row, value in seen.rows():
                if row == TIME_ROW or (key is not None and row[8:] != key):
                    continue
                start = start_of(row)
                if start >= low and (high is None or start <= high):
                    name = spec.inner.deserialize(row[8:])
                    yield Windowed(name, start, start + size), spec.value_serde.deserialize(value)

        return WindowScan(pairs(), release)


def _span(first: int, last: int | None) -> tuple[bytes, bytes | None]:
    """The rows of windows that start from `first` to `last`, perhaps a few more."""
    low = START.pack(min(max(first, 0), _START_MAX))
    return low, None if last is None or last >= _START_MAX else START.pack(max(last, -1) + 1)


class StillStore(Protocol):
    """A store of rows that does not change while it is asked: its owner's, or one at rest."""

    @property
    def name(self) -> str: ...
    def get_many(self, keys: Iterable[bytes]) -> list[bytes | None]: ...
    def range(
        self, lo: bytes | None = None, hi: bytes | None = None, reverse: bool = False
    ) -> Scan[tuple[bytes, bytes]]: ...
    def is_open(self) -> bool: ...


class StillRows:
    """`Rows` of such a store."""

    def __init__(self, store: StillStore, close: Callable[[], None]) -> None:
        """`close`: what is to be done at the end."""
        self._store = store
        self._close = close
        self._open = True

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """One value per key."""
        if not self._open:
            raise StoreClosed(f"this reader of {self._store.name!r} is closed: ask for a new one")
        return self._store.get_many(keys)

    @contextmanager
    def moment(self, lo: bytes | None = None, hi: bytes | None = None) -> Iterator["_StillMoment"]:
        """The rows as they are now; those from `lo` to `hi` may be walked over."""
        with ExitStack() as closing:
            yield _StillMoment(self, lambda: closing.enter_context(self._store.range(lo, hi)))

    def is_open(self) -> bool:
        return self._open and self._store.is_open()

    def close(self) -> None:
        """Closing twice is harmless."""
        self._open = False
        self._close()


class _StillMoment:
    def __init__(self, of: StillRows, walk: Callable[[], Iterable[tuple[bytes, bytes]]]) -> None:
        self.get_many = of.get_many
        self.rows = walk


class TransactionalWindowStore(WindowReader[K, V]):
    """The owner's: what is pending shows at once. Its aggregate writes, the task commits."""

    def __init__(
        self, store: TransactionalKeyValueStore[bytes, bytes], spec: WindowSpec[K, V]
    ) -> None:
        super().__init__(StillRows(store, lambda: None), spec)
        self._store = store

    def reader(
        self,
        isolation_level: IsolationLevel | str | None = None,
        position_bound: PositionBound | None = None,
    ) -> WindowReader[K, V]:
        """A reader for any thread; its level defaults to the store's setting (SEMANTICS S9)."""
        return WindowReader(self._store.reader(isolation_level, position_bound), self._spec)

    def persistent(self) -> bool:
        return self._store.persistent()

    def position(self) -> Position:
        """The input position as the owner sees it, pending included."""
        return self._store.position()

    def metrics(self) -> dict[str, float]:
        """Kafka Streams' metric names; `late-record-drop-total` counts what came too late."""
        return self._store.metrics()
