"""Ordered iteration and seeks in a snapshot of one column family.

Both are safe against `close` on another thread.

`Rdict.items` is a third faster, but treats an unreadable block as the end of the table, and
`Snapshot.items` shows writes made after the snapshot. A plain iterator does neither.
"""

import threading
import weakref
from collections.abc import Callable, Generator, Iterator
from functools import partial
from itertools import islice, takewhile
from operator import ge, le
from typing import TypeVar

from rocksdict import Rdict, RdictIter

from statestore.engines.rocks_errors import translate
from statestore.errors import StoreClosed
from statestore.ports import KeyValue

T = TypeVar("T")

# Rows are read ahead in growing chunks: a short scan reads only a few rows too many, and a long
# scan pays the costs of a chunk seldom.
_CHUNK_FIRST = 4
_CHUNK_MAX = 512


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


class RocksSeeker:
    """A Seeker that uses one native iterator for all calls and is the only one to refer to it.

    A seek costs as much as a get, and a new iterator costs more. A call holds the lock, so `close`
    never finds the iterator in use.
    """

    __slots__ = ("__weakref__", "_iterator", "_lock", "_where")

    def __init__(self, where: object) -> None:
        self._where = where
        self._lock = threading.RLock()
        self._iterator: RdictIter | None = None

    def start(self, family: Rdict) -> None:
        """Take the snapshot."""
        try:
            self._iterator = family.iter()
        except Exception as error:
            raise translate(error, self._where) or error from error

    def seek_many(self, keys: list[bytes], /) -> list[KeyValue | None]:
        """Return for each key the first row at or after it, or None."""
        return self._call(partial(_seek, keys=keys))

    def get_many(self, keys: list[bytes], /) -> list[bytes | None]:
        """Return one value per key, in the order of `keys`."""
        found = self.seek_many(keys)
        return [
            None if pair is None or pair[0] != key else pair[1]
            for key, pair in zip(keys, found, strict=True)
        ]

    def scan_many(self, ranges: list[tuple[bytes, bytes]], /) -> list[list[KeyValue]]:
        """Return for each range the pairs with lo <= key <= hi; their starts are in order."""
        return self._call(partial(_ranges, ranges=ranges))

    def scan_back(self, lo: bytes, hi: bytes, /) -> Iterator[KeyValue]:
        """Yield the pairs with lo <= key <= hi in descending order.

        Other methods may be called between two pairs.
        """
        count, at, taken = _CHUNK_FIRST, hi, False
        while True:
            # Each chunk begins with the last row of the one before, which is left out.
            rows = self._call(partial(_rows_back, lo=lo, hi=at, count=count + taken))
            yield from rows[taken:]
            if len(rows) < count + taken:
                return
            at, taken = rows[-1][0], True
            count = min(count * 4, _CHUNK_MAX)

    def _call(self, function: Callable[[RdictIter], list[T]]) -> list[T]:
        with self._lock:
            iterator = self._iterator
            if iterator is None:
                raise StoreClosed(f"{self._where}: this seeker is closed: open a new one")
            try:
                return function(iterator)
            except Exception as error:
                raise translate(error, self._where) or error from error
            finally:
                # A traceback must not keep the iterator, and with it the folder locked.
                del iterator

    def close(self) -> None:
        """Release the snapshot. Closing twice is harmless."""
        with self._lock:
            self._iterator = None


def _seek(iterator: RdictIter, keys: list[bytes]) -> list[KeyValue | None]:
    seek, key_there, value_there = iterator.seek, iterator.key, iterator.value
    found: list[KeyValue | None] = []
    try:
        for key in keys:
            seek(key)
            at = key_there()
            if at is None:
                iterator.status()  # raises an error if a block is unreadable
                found.append(None)
            else:
                found.append((at, value_there()))
    finally:
        del seek, key_there, value_there, iterator
    return found


def _ranges(iterator: RdictIter, ranges: list[tuple[bytes, bytes]]) -> list[list[KeyValue]]:
    seek, move, key_there, value_there = (
        iterator.seek,
        iterator.next,
        iterator.key,
        iterator.value,
    )
    found: list[list[KeyValue]] = []
    try:
        at: bytes | None = b""
        for place, (lo, hi) in enumerate(ranges):
            # If it stands at or after the range, no row is between, unless ranges overlap.
            if place == 0 or lo <= ranges[place - 1][1] or (at is not None and at < lo):
                seek(lo)
                at = key_there()
            rows: list[KeyValue] = []
            while at is not None and at <= hi:
                rows.append((at, value_there()))
                move()
                at = key_there()
            found.append(rows)
        if at is None:
            iterator.status()  # raises an error if a block is unreadable
    finally:
        del seek, move, key_there, value_there, iterator
    return found


def _rows_from(
    iterator: RdictIter, start: bytes | None, limit: bytes | None, *, reverse: bool
) -> Iterator[tuple[bytes, bytes, None]]:
    """Iterate from `start` to `limit`; seeking, reading and moving on all run in C."""
    try:
        if reverse:
            iterator.seek_to_last() if start is None else iterator.seek_for_prev(start)
        else:
            iterator.seek_to_first() if start is None else iterator.seek(start)
        keys = iter(iterator.key, None)
        if limit is not None:
            # This stops at the limit instead of at the end of a chunk: a range of 100 rows takes
            # half the time, one of 100 000 rows a tenth more.
            keys = takewhile(partial(le if reverse else ge, limit), keys)
        moves = iter(iterator.prev if reverse else iterator.next, 0)
        return zip(keys, iter(iterator.value, None), moves, strict=False)
    finally:
        # A traceback must not keep the iterator, and with it the folder locked.
        del iterator


def _rows_back(iterator: RdictIter, *, lo: bytes, hi: bytes, count: int) -> list[KeyValue]:
    source = _rows_from(iterator, hi, lo, reverse=True)
    try:
        rows = [(key, value) for key, value, _ in islice(source, count)]
        if len(rows) < count:
            iterator.status()  # raises an error if a block is unreadable
        return rows
    finally:
        del source, iterator


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
    count = _CHUNK_FIRST
    while rows := scan.read(count):
        yield from rows
        count = min(count * 4, _CHUNK_MAX)
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
                self._source = _rows_from(
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
