"""An implementation of `ports.Engine` with sorted dicts, for in-memory stores and for tests.

One lock makes a write atomic for readers on other threads. A cursor copies its range when it is
opened. The first write to a table that seekers are using copies the table.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

from sortedcontainers import SortedDict

from statestore.errors import Misuse, StateStoreError, StoreClosed
from statestore.ports import KeyValue, Writes


class MemoryEngine:
    """An Engine that loses all rows when it is closed."""

    def __init__(self, tables: Sequence[str]) -> None:
        self.lock = threading.Lock()
        self._open = True
        self._tables = {name: MemoryTable(self) for name in tables}

    def table(self, name: str) -> "MemoryTable":
        """Return the table of that name."""
        if name not in self._tables:
            known = ", ".join(self._tables)
            raise Misuse(f"memory engine: it has no table {name!r}; it has: {known}")
        return self._tables[name]

    def write(
        self,
        writes: Mapping[str, Writes],
        *,
        ranges: Mapping[str, Sequence[tuple[bytes, bytes]]] | None = None,
    ) -> None:
        """Apply all writes under one lock, range deletes first."""
        spans_of = [(self.table(name), spans) for name, spans in (ranges or {}).items()]
        rows_of = [(self.table(name), rows) for name, rows in writes.items()]
        with self.lock:
            self.check_open()
            for table, spans in spans_of:
                table.delete_ranges(spans)
            for table, rows in rows_of:
                table.update(rows)

    def flush(self) -> None:
        """Do nothing: no row outlives the process."""
        self.check_open()

    def checkpoint(self, target: Path) -> None:
        """Raise Misuse: there are no files to link."""
        raise Misuse(f"checkpoint to {target}: this store is in memory and has no files")

    def persistent(self) -> bool:
        """Return False."""
        return False

    def failure(self, _error: Exception) -> StateStoreError | None:
        """Return None: this engine raises only StateStoreErrors."""
        return None

    def close(self) -> None:
        """Drop all rows; cursors and tables raise StoreClosed from now on."""
        with self.lock:
            self._open = False
            for table in self._tables.values():
                table.clear()

    def check_open(self) -> None:
        """Raise StoreClosed if the engine has been closed."""
        if not self._open:
            raise StoreClosed("memory engine: it is closed and its rows are gone")


class MemoryTable:
    """A Table that is one sorted dict."""

    def __init__(self, engine: MemoryEngine) -> None:
        self._engine = engine
        self._rows: SortedDict = SortedDict()
        # The number of seekers that read these rows and must not see them change.
        self._seekers = 0

    def get(self, key: bytes, /) -> bytes | None:
        """Return the value, or None."""
        with self._engine.lock:
            self._engine.check_open()
            value: bytes | None = self._rows.get(key)
            return value

    def get_many(self, keys: list[bytes], /) -> list[bytes | None]:
        """Return one value per key, in the order of `keys`, all from one point in time."""
        with self._engine.lock:
            self._engine.check_open()
            return list(map(self._rows.get, keys))

    get_many_at_once = get_many

    def get_many_to_write(self, keys: list[bytes], /) -> tuple[list[bytes], list[bytes | None]]:
        """Return the keys unchanged, as any order suits a dict, and their values."""
        return keys, self.get_many(keys)

    def scan(
        self, lo: bytes | None = None, hi: bytes | None = None, *, reverse: bool = False
    ) -> "MemoryCursor":
        """Iterate over the pairs with lo <= key <= hi in byte order, as of now."""
        with self._engine.lock:
            self._engine.check_open()
            keys = list(self._rows.irange(lo, hi, reverse=reverse))
            pairs = list(zip(keys, map(self._rows.__getitem__, keys), strict=True))
        return MemoryCursor(self._engine, pairs)

    def seeker(self) -> "MemorySeeker":
        """Return a Seeker for the rows as of now."""
        with self._engine.lock:
            self._engine.check_open()
            self._seekers += 1
            return MemorySeeker(self._engine, self, self._rows)

    def release(self, rows: SortedDict) -> None:
        """Note that one seeker no longer reads `rows`."""
        with self._engine.lock:
            if rows is self._rows:
                self._seekers -= 1

    def seek_many(self, keys: list[bytes], /) -> list[KeyValue | None]:
        """Return for each key the first row at or after it, all from one point in time."""
        with self._engine.lock:
            self._engine.check_open()
            return _seek(self._rows, keys)

    def scan_many(self, ranges: list[tuple[bytes, bytes]], /) -> list[list[KeyValue]]:
        """Return for each range the pairs with lo <= key <= hi, all from one point in time."""
        with self._engine.lock:
            self._engine.check_open()
            rows = self._rows
            return [[(key, rows[key]) for key in rows.irange(lo, hi)] for lo, hi in ranges]

    def approximate_count(self) -> int:
        """Return the exact number of keys."""
        with self._engine.lock:
            self._engine.check_open()
            return len(self._rows)

    def delete_ranges(self, spans: Sequence[tuple[bytes, bytes]]) -> None:
        """Delete the keys in [from, to) of each span; the engine holds the lock."""
        self._copy_for_seekers()
        for start, end in spans:
            for key in list(self._rows.irange(start, end, inclusive=(True, False))):
                del self._rows[key]

    def update(self, writes: Writes) -> None:
        """Apply puts and deletes (None); the engine holds the lock."""
        self._copy_for_seekers()
        for key, value in writes.items():
            if value is None:
                self._rows.pop(key, None)
            else:
                self._rows[key] = value

    def clear(self) -> None:
        """Drop all rows; the engine holds the lock."""
        self._rows, self._seekers = SortedDict(), 0

    def _copy_for_seekers(self) -> None:
        if self._seekers:
            self._rows, self._seekers = self._rows.copy(), 0


class MemoryCursor:
    """A Cursor over a copy of the rows."""

    __slots__ = ("_engine", "_open", "_pairs")

    def __init__(self, engine: MemoryEngine, pairs: list[KeyValue]) -> None:
        self._engine = engine
        self._open = True
        self._pairs: Iterator[KeyValue] = iter(pairs)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> KeyValue:
        self._engine.check_open()
        if not self._open:
            raise StoreClosed("memory engine: this cursor is closed: open a new one")
        return next(self._pairs)

    def close(self) -> None:
        """Drop the remaining rows. Closing twice is harmless."""
        self._open = False
        self._pairs = iter(())


class MemorySeeker:
    """A Seeker for the rows that a table had when the seeker was opened."""

    __slots__ = ("_engine", "_rows", "_table")

    def __init__(self, engine: MemoryEngine, table: MemoryTable, rows: SortedDict) -> None:
        self._engine = engine
        self._table = table
        self._rows: SortedDict | None = rows

    def seek_many(self, keys: list[bytes], /) -> list[KeyValue | None]:
        """Return for each key the first row at or after it, or None."""
        return _seek(self._open_rows(), keys)

    def get_many(self, keys: list[bytes], /) -> list[bytes | None]:
        """Return one value per key, in the order of `keys`."""
        return list(map(self._open_rows().get, keys))

    def scan_back(self, lo: bytes, hi: bytes, /) -> Iterator[KeyValue]:
        """Yield the pairs with lo <= key <= hi in descending order."""
        for key in self._open_rows().irange(lo, hi, reverse=True):
            yield key, self._open_rows()[key]

    def close(self) -> None:
        """Release the rows. Closing twice is harmless."""
        rows, self._rows = self._rows, None
        if rows is not None:
            self._table.release(rows)

    def _open_rows(self) -> SortedDict:
        self._engine.check_open()
        if self._rows is None:
            raise StoreClosed("memory engine: this seeker is closed: open a new one")
        return self._rows


def _seek(rows: SortedDict, keys: list[bytes]) -> list[KeyValue | None]:
    # `irange` does not build SortedDict's index, which two threads must not do at the same time.
    found = [next(rows.irange(key), None) for key in keys]
    return [None if key is None else (key, rows[key]) for key in found]
