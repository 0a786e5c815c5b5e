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
from typing import Any, Generic, Protocol, Self

from statestore.errors import StoreClosed
from statestore.model import (
    IsolationLevel,
    K,
    Position,
    PositionBound,
    Time,
    V,
    Windowed,
    to_ms,
)
from statestore.stores.contracts import Scan
from statestore.stores.keyvalue import TransactionalKeyValueStore
from statestore.stores.specs import WindowSpec

TIME_ROW = b"t"
START = struct.Struct(">q")
# Beyond that many, the windows of a key are looked for among those of all keys.
_ASKED_MAX = 10_000


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


class Rows(Protocol):
    """The rows of a window store, read."""

    def get(self, key: bytes, default: bytes | None = None) -> bytes | None: ...
    def get_many(self, keys: Iterable[bytes]) -> list[bytes | None]: ...
    def range(
        self, lo: bytes | None = None, hi: bytes | None = None, reverse: bool = False
    ) -> Scan[tuple[bytes, bytes]]: ...
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
        start_ms = to_ms(start)
        if start_ms <= self._expired_ms():
            return None
        found = self._rows.get(START.pack(start_ms) + self._spec.inner.serialize(key))
        return None if found is None else self._spec.value_serde.deserialize(found)

    def fetch(
        self, key: K, *, from_time: Time | None = None, to_time: Time | None = None
    ) -> WindowScan[K, V]:
        """The key's windows that start between both times, both included, by start."""
        now, size = self.observed_stream_time(), self._spec.size_ms
        if now is None:
            return WindowScan(iter(()))
        low = max(self._expired_ms() + 1, 0 if from_time is None else to_ms(from_time))
        high = now if to_time is None else min(now, to_ms(to_time))
        starts = range(-(-low // size) * size, high + 1, size)
        if len(starts) > _ASKED_MAX:
            return self._scan(low, high, self._spec.inner.serialize(key))
        data = self._spec.inner.serialize(key)
        found = self._rows.get_many([START.pack(start) + data for start in starts])
        read = self._spec.value_serde.deserialize
        return WindowScan(
            (Windowed(key, start, start + size), read(value))
            for start, value in zip(starts, found, strict=True)
            if value is not None
        )

    def all(self) -> WindowScan[K, V]:
        """Every window of every key, by start."""
        return self._scan(self._expired_ms() + 1, self.observed_stream_time() or 0, None)

    def observed_stream_time(self) -> int | None:
        """The largest timestamp counted so far, ms; None before the first."""
        data = self._rows.get(TIME_ROW)
        return None if data is None else start_of(data)

    def is_open(self) -> bool:
        return self._rows.is_open()

    def close(self) -> None:
        self._rows.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _expired_ms(self) -> int:
        return expired_ms(self._rows.get(TIME_ROW), self._spec.retention_ms)

    def _scan(self, low: int, high: int, key: bytes | None) -> WindowScan[K, V]:
        spec, size = self._spec, self._spec.size_ms
        rows = self._rows.range(START.pack(low), START.pack(high + 1))

        def pairs() -> Iterator[tuple[Windowed[Any], Any]]:
            for row, value in rows:
                start = start_of(row)
                if start <= high and (key is None or row[8:] == key):
                    name = spec.inner.deserialize(row[8:])
                    yield Windowed(name, start, start + size), spec.value_serde.deserialize(value)

        return WindowScan(pairs(), rows.close)


class TransactionalWindowStore(WindowReader[K, V]):
    """The owner's: what is pending shows at once. Its aggregate writes, the task commits."""

    def __init__(
        self, store: TransactionalKeyValueStore[bytes, bytes], spec: WindowSpec[K, V]
    ) -> None:
        super().__init__(store.reader(IsolationLevel.READ_UNCOMMITTED), spec)
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
