"""Sorted dicts behind `ports.Engine`: for in-memory stores and for tests without a disk.

One lock makes a write atomic for readers on other threads. A cursor copies its range when opened.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

from sortedcontainers import SortedDict

from statestore.errors import Misuse, StateStoreError, StoreClosed
from statestore.ports import Writes


class MemoryEngine:
    """An Engine that forgets everything on close."""

    def __init__(self, tables: Sequence[str]) -> None:
        self.lock = threading.Lock()
        self._open = True
        self._tables = {name: MemoryTable(self) for name in tables}

    def table(self, name: str) -> "MemoryTable":
        """The table of that name."""
        if name not in self._tables:
            known = ", ".join(self._tables)
            raise Misuse(f"memory engine: made without a table {name!r}; there is {known}")
        return self._tables[name]

    def write(
        self,
        writes: Mapping[str, Writes],
        *,
        ranges: Mapping[str, Sequence[tuple[bytes, bytes]]] | None = None,
    ) -> None:
        """Apply all under one lock, range deletes first."""
        spans_of = [(self.table(name), spans) for name, spans in (ranges or {}).items()]
        rows_of = [(self.table(name), rows) for name, rows in writes.items()]
        with self.lock:
            self.check_open()
            for table, spans in spans_of:
                table.delete_ranges(spans)
            for table, rows in rows_of:
                table.update(rows)

    def flush(self) -> None:
        """Nothing to do: nothing here outlives the process."""
        self.check_open()

    def checkpoint(self, target: Path) -> None:
        """Misuse: there are no files to link."""
        raise Misuse(f"checkpoint to {target}: this store is in memory: it has no files")

    def persistent(self) -> bool:
        """Always False."""
        return False

    def failure(self, _error: Exception) -> StateStoreError | None:
        """None: this engine raises no errors but ours."""
        return None

    def close(self) -> None:
        """Forget all rows; cursors and tables raise StoreClosed from now on."""
        with self.lock:
            self._open = False
            for table in self._tables.values():
                table.clear()

    def check_open(self) -> None:
        """StoreClosed after close."""
        if not self._open:
            raise StoreClosed("memory engine: it is closed, and its rows are gone")


class MemoryTable:
    """One sorted dict."""

    def __init__(self, engine: MemoryEngine) -> None:
        self._engine = engine
        self._rows: SortedDict = SortedDict()

    def get(self, key: bytes, /) -> bytes | None:
        """The value, or None."""
        with self._engine.lock:
            self._engine.check_open()
            value: bytes | None = self._rows.get(key)
            return value

    def get_many(self, keys: list[bytes], /) -> list[bytes | None]:
        """One value per key, in the order of `keys`, all of the same moment."""
        with self._engine.lock:
            self._engine.check_open()
            return list(map(self._rows.get, keys))

    def get_many_to_write(self, keys: list[bytes], /) -> tuple[list[bytes], list[bytes | None]]:
        """The keys as they are: any order suits a dict."""
        return keys, self.get_many(keys)

    def scan(
        self, lo: bytes | None = None, hi: bytes | None = None, *, reverse: bool = False
    ) -> "MemoryCursor":
        """Pairs with lo <= key <= hi in byte order, as of now; None is unbounded."""
        with self._engine.lock:
            self._engine.check_open()
            keys = list(self._rows.irange(lo, hi, reverse=reverse))
            pairs = list(zip(keys, map(self._rows.__getitem__, keys), strict=True))
        return MemoryCursor(self._engine, pairs)

    def seeker(self) -> "MemorySeeker":
        """A copy of the rows to look for some in."""
        with self._engine.lock:
            self._engine.check_open()
            return MemorySeeker(self._engine, self._rows.copy())

    def seek_many(self, keys: list[bytes], /) -> list[tuple[bytes, bytes] | None]:
        """Per key the first row at or after it, all of the same moment."""
        with self._engine.lock:
            self._engine.check_open()
            return _seek(self._rows, keys)

    def approximate_count(self) -> int:
        """Exactly how many keys there are."""
        with self._engine.lock:
            self._engine.check_open()
            return len(self._rows)

    def delete_ranges(self, spans: Sequence[tuple[bytes, bytes]]) -> None:
        """Delete [from, to) of each span; the engine holds the lock."""
        for start, end in spans:
            for key in list(self._rows.irange(start, end, inclusive=(True, False))):
                del self._rows[key]

    def update(self, writes: Writes) -> None:
        """Put, or delete where the value is None; the engine holds the lock."""
        for key, value in writes.items():
            if value is None:
                self._rows.pop(key, None)
            else:
                self._rows[key] = value

    def clear(self) -> None:
        """Forget all rows; the engine holds the lock."""
        self._rows.clear()


class MemoryCursor:
    """A walk over a copy of the rows."""

    __slots__ = ("_engine", "_open", "_pairs")

    def __init__(self, engine: MemoryEngine, pairs: list[tuple[bytes, bytes]]) -> None:
        self._engine = engine
        self._open = True
        self._pairs: Iterator[tuple[bytes, bytes]] = iter(pairs)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[bytes, bytes]:
        self._engine.check_open()
        if not self._open:
            raise StoreClosed("memory engine: this cursor is closed: open a new one")
        return next(self._pairs)

    def close(self) -> None:
        """Forget the rest. Closing twice is harmless."""
        self._open = False
        self._pairs = iter(())


class MemorySeeker:
    """Looks for rows in a copy of a table."""

    __slots__ = ("_engine", "_rows")

    def __init__(self, engine: MemoryEngine, rows: SortedDict) -> None:
        self._engine = engine
        self._rows: SortedDict | None = rows

    def seek_many(self, keys: list[bytes], /) -> list[tuple[bytes, bytes] | None]:
        """Per key the first row at or after it."""
        self._engine.check_open()
        if self._rows is None:
            raise StoreClosed("memory engine: this seeker is closed: open a new one")
        return _seek(self._rows, keys)

    def close(self) -> None:
        """Forget the copy. Closing twice is harmless."""
        self._rows = None


def _seek(rows: SortedDict, keys: list[bytes]) -> list[tuple[bytes, bytes] | None]:
    size, names = len(rows), rows.keys()
    places = map(rows.bisect_left, keys)
    return [None if i == size else (names[i], rows[names[i]]) for i in places]
