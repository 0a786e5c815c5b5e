"""Ordered iteration over a snapshot of one column family, safe against `close` on another thread.

`Rdict.items` is a third faster, but treats an unreadable block as the end of the table, and
`Snapshot.items` shows writes made after the snapshot. A plain iterator does neither.
"""

import threading
import weakref
from collections.abc import Generator, Iterator
from itertools import islice

from rocksdict import Rdict, RdictIter

from statestore.engines.rocks_errors import translate
from statestore.engines.rocks_seeker import CHUNK_FIRST, CHUNK_MAX, RocksSeeker, rows_from
from statestore.errors import StoreClosed
from statestore.ports import KeyValue


class RocksCursor:
    """A Cursor over a snapshot. One thread at a time uses it; any may close it or its engine."""

    __slots__ = ("_rows", "_scan")

    def __init__(self, scan: "_Scan") -> None:
        self._scan = scan
        self._rows = _rows(scan)

    def __iter__(self) -> Generator[KeyValue, None, None]:
        """Return the remaining rows as a generator, the fastest iterator that Python has."""
        self._scan.check_open()
        return self._rows

    def __next__(self) -> KeyValue:
        try:
            return next(self._rows)
        except StopIteration:
            self._scan.check_open()
            raise

    def close(self) -> None:
        """Release the snapshot. Closing twice is harmless."""
        self._scan.close()


class Cursors:
    """All cursors and seekers of one database; after `close` no new ones can be opened."""

    def __init__(self, where: object) -> None:
        self._where = where
        # A WeakSet would cost as much as the iteration itself.
        self._opened: set[weakref.ref[_Scan] | weakref.ref[RocksSeeker]] = set()
        self._lock = threading.RLock()
        self._closed = False

    def open(
        self, family: Rdict, lo: bytes | None, hi: bytes | None, *, reverse: bool
    ) -> RocksCursor:
        """Iterate over lo <= key <= hi as of now."""
        scan = _Scan(self._where, lo, hi, reverse=reverse)
        with self._lock:
            if self._closed:
                raise StoreClosed(f"{self._where}: the database is closed: open it again")
            self._opened.add(weakref.ref(scan, self._opened.discard))
            scan.start(family)
        return RocksCursor(scan)

    def seeker(self, family: Rdict) -> RocksSeeker:
        """Return a Seeker for the rows as of now."""
        seeker = RocksSeeker(self._where)
        with self._lock:
            if self._closed:
                raise StoreClosed(f"{self._where}: the database is closed: open it again")
            self._opened.add(weakref.ref(seeker, self._opened.discard))
            seeker.start(family)
        return seeker

    def close(self) -> None:
        """Release all native iterators; return when none is in use."""
        with self._lock:
            self._closed = True
            opened = [reference() for reference in self._opened.copy()]
        for one in opened:
            if one is not None:
                one.close()


def _rows(scan: "_Scan") -> Generator[KeyValue, None, None]:
    count = CHUNK_FIRST
    while rows := scan.read(count):
        yield from rows
        count = min(count * 4, CHUNK_MAX)
    # `close` may have emptied a chunk before it was used: that is not the end of the table.
    scan.check_open()


class _Scan:
    """The native side of a cursor: the only owner of the iterator, so that it can be released.

    It does not refer to the cursor, so a cursor that is dropped half-way is freed at once, even
    with the garbage collector off. A read holds the lock for one chunk, so `close` never finds the
    iterator in use. The lock is re-entrant because a garbage collection inside a read may close an
    abandoned engine.
    """

    __slots__ = (
        "__weakref__",
        "_chunk",
        "_closed",
        "_iterator",
        "_limit",
        "_lock",
        "_reverse",
        "_source",
        "_start",
        "_where",
    )

    def __init__(self, where: object, lo: bytes | None, hi: bytes | None, *, reverse: bool) -> None:
        self._where = where
        self._start, self._limit = (hi, lo) if reverse else (lo, hi)
        self._reverse = reverse
        self._lock = threading.RLock()
        self._closed = False
        self._chunk: list[KeyValue] = []
        self._iterator: RdictIter | None = None
        self._source: Iterator[tuple[bytes, bytes, None]] | None = None

    def start(self, family: Rdict) -> None:
        """Take the snapshot; `read` seeks the first row."""
        start, limit = self._start, self._limit
        if start is not None and limit is not None and self._beyond(start, limit):
            return
        try:
            self._iterator = family.iter()
        except Exception as error:
            raise translate(error, self._where) or error from error

    def check_open(self) -> None:
        """Raise StoreClosed after `close`."""
        if self._closed:
            raise StoreClosed(f"{self._where}: this cursor is closed: open a new one")

    def read(self, count: int) -> list[KeyValue]:
        """Return the next rows, at most `count`, or [] at the end. `close` empties the list."""
        with self._lock:
            self.check_open()
            if self._iterator is None:
                return []
            if self._source is None:
                self._source = rows_from(
                    self._iterator, self._start, self._limit, reverse=self._reverse
                )
            # No local may refer to the iterator: a traceback would keep it, and so the folder lock.
            rows = self._chunk = [(key, value) for key, value, _ in islice(self._source, count)]
            self.check_open()
            if len(rows) < count:
                self._end()
            return rows

    def close(self) -> None:
        """Release the iterator and empty the chunk that a generator may be yielding from."""
        with self._lock:
            self._closed = True
            self._source = self._iterator = None
            self._chunk.clear()

    def _beyond(self, key: bytes, limit: bytes) -> bool:
        return key < limit if self._reverse else key > limit

    def _end(self) -> None:
        """Raise an error if this is not the end of the table but an unreadable block."""
        try:
            if self._iterator is not None:
                self._iterator.status()
        except Exception as error:
            raise translate(error, self._where) or error from error
        finally:
            self._source = self._iterator = None
