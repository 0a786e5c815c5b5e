"""Seeks in a snapshot of one column family, safe against `close` on another thread."""

import threading
from collections.abc import Callable, Iterator
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
CHUNK_FIRST = 4
CHUNK_MAX = 512


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

    def scan_back(self, lo: bytes, hi: bytes, /) -> Iterator[KeyValue]:
        """Yield the pairs with lo <= key <= hi in descending order.

        Other methods may be called between two pairs.
        """
        count, at, taken = CHUNK_FIRST, hi, False
        while True:
            # Each chunk begins with the last row of the one before, which is left out.
            rows = self._call(partial(_rows_back, lo=lo, hi=at, count=count + taken))
            yield from rows[taken:]
            if len(rows) < count + taken:
                return
            at, taken = rows[-1][0], True
            count = min(count * 4, CHUNK_MAX)

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


def rows_from(
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
    source = rows_from(iterator, hi, lo, reverse=True)
    try:
        rows = [(key, value) for key, value, _ in islice(source, count)]
        if len(rows) < count:
            iterator.status()  # raises an error if a block is unreadable
        return rows
    finally:
        del source, iterator
