"""Window stores: one row per key and window, the window's start before the key (SEMANTICS 6).

    start, 8 bytes, key               value          so that windows that expire lie together
    t                                 stream time    8 bytes; shorter than any other row, no
                                                     window's; then, with ON_WINDOW_CLOSE, 8 more:
                                                     up to when it has emitted
    0xff, key's length, key, start    nothing        if windows may start at any time

Integers are big-endian, times in ms, the length in 4 bytes. The changelog has the start after the
key, as sinks do. It does not have the rows of the last kind, which find the windows of a key where
they cannot be told from their distance: `indexed` makes them when windows are written or restored.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from operator import add
from typing import Any, ClassVar, Final

from statestore.model.ids import PositionBound
from statestore.model.modes import IsolationLevel, Time, to_ms
from statestore.model.records import K, V, Windowed
from statestore.ports import Writes
from statestore.stores.in_windows import (
    START,
    TIME_MAX,
    TIME_ROW,
    UNLOGGED,
    OwnerInWindows,
    ReaderInWindows,
    RowShape,
    checked_ms,
    packed,
    start_of,
)
from statestore.stores.keyvalue import TransactionalKeyValueStore
from statestore.stores.pending import Entries
from statestore.stores.reads import Pair, Rows, RowScan
from statestore.stores.specs import WindowSpec

INDEX: Final = b"\xff"
_LENGTH: Final = struct.Struct(">I")
# If there are more windows of a key than this, those of all keys are scanned.
_ASKED_MAX = 10_000


def row_of(key: bytes) -> bytes:
    """Return the row of a key as changelogs and sinks have it; that of stream time is its own."""
    return key[-8:] + key[:-8]


def keys_of(rows: Iterable[bytes]) -> list[Any]:
    """Return the keys of rows as changelogs and sinks have them; that of stream time is its own."""
    return [row[8:] + row[:8] for row in rows]


def indexed(writes: Writes) -> Entries:
    """Return the rows that find these windows by their keys."""
    return {
        _index_of(row[START.size :]) + row[: START.size]: None if value is None else b""
        for row, value in writes.items()
        if row != TIME_ROW
    }


def rows_that_find(
    keys: list[bytes], owners: Iterable[int], starts: Iterable[bytes]
) -> list[bytes]:
    """Return the rows that find windows by their keys.

    `owners` has the place among the keys of each window's, `starts` how its row begins.
    """
    of_keys = list(map(_index_of, keys))
    return list(map(add, map(of_keys.__getitem__, owners), starts))


def expired_ms(time_row: bytes | None, kept_ms: int) -> int:
    """Return the latest start that has expired, or -1.

    `time_row`: the value under TIME_ROW.
    """
    return -1 if time_row is None else max(start_of(time_row) - kept_ms, -1)


class WindowReader(ReaderInWindows[K, V]):
    """Reads of a window store over any Rows; see `contracts.ReadOnlyWindowStore`."""

    shape: ClassVar[RowShape] = RowShape(START.size, 0, "windows")

    def __init__(
        self,
        parts: Sequence[Rows],
        spec: WindowSpec[K, V],
        release: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(parts, spec, release)
        self._spec = spec

    def get(self, key: K, start: Time) -> V | None:
        """Return the value of the key in the window that starts at that time."""
        start_ms, data = to_ms(start), self._codec.key(key)
        if not 0 <= start_ms <= TIME_MAX:
            return None
        asked = [TIME_ROW, START.pack(start_ms) + data]
        for rows in self._opened():
            time, found = rows.get_many(asked)
            if found is not None and start_ms >= self._low_ms(time):
                return self._codec.read_value(found)
        return None

    def _containing(self, key: K, time_ms: int) -> RowScan[tuple[Windowed[K], V]]:
        size, step = self._spec.size_ms + self._spec.includes_end, self._spec.step_ms
        first = max(((time_ms - size) // step + 1) * step, 0)
        return self.fetch(key, from_time=first, to_time=time_ms)

    def _of_key(self, rows: Rows, data: bytes, first: int, last: int | None) -> list[Pair]:
        if self._spec.any_start:
            return self._indexed(rows, data, first, last)
        with closing(rows.moment(UNLOGGED, UNLOGGED)) as seen:
            (time,) = seen.get_many([TIME_ROW])
            low, step = max(self._low_ms(time), first), self._spec.step_ms
            now = -1 if time is None else start_of(time)
            starts = range(
                -(-low // step) * step, (now if last is None else min(now, last)) + 1, step
            )
            if len(starts) <= _ASKED_MAX:
                asked = [START.pack(start) + data for start in starts]
                return _found(asked, seen.get_many(asked))
        return self._by_scan(rows, data, first, last)

    def _indexed(self, rows: Rows, data: bytes, first: int, last: int | None) -> list[Pair]:
        """Return the rows of a key whose windows may start at any time."""
        at = _index_of(data)
        if last is not None and last < first:
            return []
        last_row = at + packed(TIME_MAX if last is None else last)
        with closing(rows.moment(at + packed(first), last_row)) as seen:
            (time,) = seen.get_many([TIME_ROW])
            low = packed(self._low_ms(time))
            starts = (row[-START.size :] for row, _ in seen.scan())
            asked = [start + data for start in islice(starts, _ASKED_MAX + 1) if start >= low]
            if len(asked) <= _ASKED_MAX:
                return _found(asked, seen.get_many(asked))
        return self._by_scan(rows, data, first, last)

    def _by_scan(self, rows: Rows, data: bytes, first: int, last: int | None) -> list[Pair]:
        with self._rows_of_keys(rows, data, data, first, last) as found:
            return list(found)

    def _decoded(self, pairs: Iterator[Pair]) -> Iterator[tuple[Windowed[Any], Any]]:
        size, read_key, read = self._spec.size_ms, self._codec.read_key, self._codec.read_value
        for row, value in pairs:
            start = start_of(row)
            yield Windowed(read_key(row[8:]), start, start + size), read(value)

    def _low_ms(self, time_row: bytes | None) -> int:
        return expired_ms(time_row, self._kept_ms) + 1

    @staticmethod
    def _order(pair: tuple[Windowed[Any], Any], /) -> int:
        return pair[0].start_ms


class TransactionalWindowStore(OwnerInWindows, WindowReader[K, V]):
    """The owner's window store; see `contracts.WindowStore` for the promises.

    Where an aggregate writes the rows, processors only read them.
    """

    def __init__(
        self, store: TransactionalKeyValueStore[bytes, bytes], spec: WindowSpec[K, V]
    ) -> None:
        WindowReader.__init__(self, [store.table], spec)
        OwnerInWindows.__init__(self, store, spec, self._stage_windows, self._low_at)

    def put(self, key: K, value: V | None, start: Time) -> None:
        """Stage the value of a key in the window that starts at that time; None deletes it."""
        self.put_all(((key, value, start),))

    def put_all(self, triples: Iterable[tuple[K, V | None, Time]]) -> None:
        """Stage many windows (key, value, start), in this order.

        If one does not fit its serde, none is staged.
        """
        self._check_writable()
        codec, name = self._codec, self.name
        self._put(
            [
                (START.pack(checked_ms(name, start)) + codec.key(key), codec.value(value))
                for key, value, start in triples
            ]
        )

    def reader(
        self,
        isolation_level: IsolationLevel | str | None = None,
        position_bound: PositionBound | None = None,
    ) -> WindowReader[K, V]:
        """Return a reader for any thread.

        Its level defaults to the store's setting (SEMANTICS S9).
        """
        return WindowReader(self._live_rows(isolation_level, position_bound), self._spec)

    def _stage_windows(self, writes: Entries) -> None:
        self.table.put_all({**writes, **indexed(writes)})

    def _low_at(self, now_ms: int) -> int:
        return now_ms - self._kept_ms + 1


def range_of_key(data: bytes, first: int, last: int) -> tuple[bytes, bytes]:
    """Return the first and the last row that finds windows of a key that start between both."""
    at = _index_of(data)
    return at + packed(first), at + packed(last)


def _index_of(data: bytes) -> bytes:
    """Return how the rows begin that find the windows of a key."""
    return INDEX + _LENGTH.pack(len(data)) + data


def _found(rows: list[bytes], values: list[bytes | None]) -> list[Pair]:
    pairs = zip(rows, values, strict=True)
    return [(row, value) for row, value in pairs if value is not None]
