"""Sorted dicts behind `ports.Engine`: for in-memory stores and for tests without a disk.

One lock makes a write atomic for readers on other threads. A cursor copies its range when opened, a
table is copied by the first write while seekers look into it.
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
        # How many look into these very rows, and must not see them change.
        self._seekers = 0

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

    get_many_at_once = get_many

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
        """The rows of this moment, to look for some in."""
        with self._engine.lock:
            self._engine.check_open()
            self._seekers += 1
            return MemorySeeker(self._engine, self, self._rows)

    def let_go(self, rows: SortedDict) -> None:
        """A seeker no longer looks into `rows`."""
        with self._engine.lock:
            if rows is self._rows:
                self._seekers -= 1

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
        self._leave_to_seekers()
        for start, end in spans:
            for key in list(self._rows.irange(start, end, inclusive=(True, False))):
                del self._rows[key]

    def update(self, writes: Writes) -> None:
        """Put, or delete where the value is None; the engine holds the lock."""
        self._leave_to_seekers()
        for key, value in writes.items():
            if value is None:
                self._rows.pop(key, None)
            else:
                self._rows[key] = value

    def clear(self) -> None:
        """Forget all rows; the engine holds the lock."""
        self._rows, self._seekers = SortedDict(), 0

    def _leave_to_seekers(self) -> None:
        if self._seekers:
            self._rows, self._seekers = self._rows.copy(), 0


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
    """Looks for rows in a table as it was."""

    __slots__ = ("_engine", "_rows", "_table")

    def __init__(self, engine: MemoryEngine, table: MemoryTable, rows: SortedDict) -> None:
        self._engine = engine
        self._table = table
        self._rows: SortedDict | None = rows

    def seek_many(self, keys: list[bytes], /) -> list[tuple[bytes, bytes] | None]:
        """Per key the first row at or after it."""
        return _seek(self._looked_into(), keys)

    def get_many(self, keys: list[bytes], /) -> list[bytes | None]:
        """One value per key, in the order of `keys`."""
        return list(map(self._looked_into().get, keys))

    def scan_back(self, lo: bytes, hi: bytes, /) -> Iterator[tuple[bytes, bytes]]:
        """Pairs with lo <= key <= hi, last first."""
        for key in self._looked_into().irange(lo, hi, reverse=True):
            yield key, self._looked_into()[key]

    def close(self) -> None:
        """Let the rows go. Closing twice is harmless."""
        rows, self._rows = self._rows, None
        if rows is not None:
            self._table.let_go(rows)

    def _looked_into(self) -> SortedDict:
        self._engine.check_open()
        if self._rows is None:
            raise StoreClosed("memory engine: this seeker is closed: open a new one")
        return self._rows


def _seek(rows: SortedDict, keys: list[bytes]) -> list[tuple[bytes, bytes] | None]:
    # By `irange`: who asks for places makes an index, which two threads must not do at once.
    found = [next(rows.irange(key), None) for key in keys]
    return [None if key is None else (key, rows[key]) for key in found]
