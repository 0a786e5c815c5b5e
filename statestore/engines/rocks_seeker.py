"""Seeks in a snapshot of one family, safe against `close` on another thread as cursors are."""

import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice, takewhile
from operator import ge, le
from typing import TypeVar

from rocksdict import Rdict, RdictIter

from statestore.engines.rocks_errors import translate
from statestore.errors import StoreClosed

T = TypeVar("T")
Pair = tuple[bytes, bytes]

# Rows are read ahead in chunks: a short scan reads few rows too many, a long one pays per chunk.
CHUNK_FIRST = 4
CHUNK_MAX = 512


class RocksSeeker:
    """One native iterator for any number of questions; it alone refers to it.

    A seek costs what a get does, a new iterator more than that. A call holds the lock, so that
    `close` finds the iterator at rest.
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

    def seek_many(self, keys: list[bytes], /) -> list[Pair | None]:
        """Per key the first row at or after it."""
        return self._ask(partial(_seek, keys=keys))

    def get_many(self, keys: list[bytes], /) -> list[bytes | None]:
        """One value per key, in the order of `keys`."""
        found = self.seek_many(keys)
        return [
            None if pair is None or pair[0] != key else pair[1]
            for key, pair in zip(keys, found, strict=True)
        ]

    def scan_back(self, lo: bytes, hi: bytes, /) -> Iterator[Pair]:
        """Pairs with lo <= key <= hi, last first; other questions may come between two pairs."""
        count, at, taken = CHUNK_FIRST, hi, False
        while True:
            # The last row of a chunk is the first of the next, where it is left out.
            asked = partial(_rows_back, lo=lo, hi=at, count=count + taken)
            rows = self._ask(asked)
            yield from rows[taken:]
            if len(rows) < count + taken:
                return
            at, taken = rows[-1][0], True
            count = min(count * 4, CHUNK_MAX)

    def _ask(self, question: Callable[[RdictIter], list[T]]) -> list[T]:
        with self._lock:
            iterator = self._iterator
            if iterator is None:
                raise StoreClosed(f"{self._where}: this seeker is closed: open a new one")
            try:
                return question(iterator)
            except Exception as error:
                raise translate(error, self._where) or error from error
            finally:
                # A traceback must not keep the iterator, and the folder locked.
                del iterator

    def close(self) -> None:
        """Release the snapshot. Closing twice is harmless."""
        with self._lock:
            self._iterator = None


def _seek(iterator: RdictIter, keys: list[bytes]) -> list[Pair | None]:
    seek, key_there, value_there = iterator.seek, iterator.key, iterator.value
    found: list[Pair | None] = []
    try:
        for key in keys:
            seek(key)
            at = key_there()
            if at is None:
                iterator.status()  # raises if it was a block that cannot be read
                found.append(None)
            else:
                found.append((at, value_there()))
    finally:
        del seek, key_there, value_there, iterator
    return found


def rows_from(
    iterator: RdictIter, start: bytes | None, limit: bytes | None, *, reverse: bool
) -> Iterator[tuple[bytes, bytes, None]]:
    """Stand on the first row, and read key and value and move on, up to `limit`, all in C."""
    try:
        if reverse:
            iterator.seek_to_last() if start is None else iterator.seek_for_prev(start)
        else:
            iterator.seek_to_first() if start is None else iterator.seek(start)
        keys = iter(iterator.key, None)
        if limit is not None:
            # Stops at the limit, not at the end of a chunk: a range of 100 rows is read in half the
            # time, one of 100 000 in a tenth more.
            keys = takewhile(partial(le if reverse else ge, limit), keys)
        moves = iter(iterator.prev if reverse else iterator.next, 0)
        return zip(keys, iter(iterator.value, None), moves, strict=False)
    finally:
        # A traceback must not keep the iterator, and the folder locked.
        del iterator


def _rows_back(iterator: RdictIter, *, lo: bytes, hi: bytes, count: int) -> list[Pair]:
    source = rows_from(iterator, hi, lo, reverse=True)
    try:
        rows = [(key, value) for key, value, _ in islice(source, count)]
        if len(rows) < count:
            iterator.status()  # raises if it was a block that cannot be read
        return rows
    finally:
        del source, iterator
