"""Seeks in a snapshot of one family, safe against `close` on another thread as cursors are."""

import threading

from rocksdict import Rdict, RdictIter

from statestore.engines.rocks_errors import translate
from statestore.errors import StoreClosed

Pair = tuple[bytes, bytes]


class RocksSeeker:
    """One native iterator for any number of seeks; it alone refers to it.

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
        with self._lock:
            iterator = self._iterator
            if iterator is None:
                raise StoreClosed(f"{self._where}: this seeker is closed: open a new one")
            try:
                return _seek(iterator, keys)
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
