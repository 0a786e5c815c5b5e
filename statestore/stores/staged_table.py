"""One table as its owner sees it: pending writes over committed rows, in bytes.

What operators work on, in batches.

Owner thread only. The get path is one dict look-up and one engine call: nothing else may stand in
it.
"""

import heapq
from collections.abc import Iterator
from typing import Final, Self

from statestore.errors import StoreClosed, TaskCorrupted
from statestore.ports import Cursor, Writes
from statestore.stores.overlay import MISSING, Missing
from statestore.stores.transaction import StagedEngine

Pair = tuple[bytes, bytes]
Slice = list[tuple[bytes, bytes | None]]


class StagedTable:
    """Reads and writes of one table of a StagedEngine."""

    def __init__(self, staged: StagedEngine, name: str) -> None:
        self._staged: Final = staged
        self._overlay: Final = staged.overlay(name)
        self._entries: Final = self._overlay.entries
        self._table: Final = staged.table(name)
        self._get: Final = self._table.get
        self._metrics: Final = staged.metrics

    def get(self, key: bytes, default: bytes | None = None) -> bytes | None:
        """The value, pending writes first, or `default`."""
        value = self._entries.get(key, MISSING)
        if isinstance(value, Missing):
            try:
                value = self._get(key)
            except Exception as error:
                raise self._staged.failure(error) from error
        return default if value is None else value

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """One value per key, in order: one engine call for all keys not pending."""
        entries = self._entries
        self._metrics.gets += len(keys)
        try:
            if not entries:
                return self._table.get_many(keys)
            found = [entries.get(key, MISSING) for key in keys]
            asked = [key for key, value in zip(keys, found, strict=True) if value is MISSING]
            committed = iter(self._table.get_many(asked) if asked else ())
        except Exception as error:
            raise self._staged.failure(error) from error
        return [next(committed) if isinstance(value, Missing) else value for value in found]

    def put(self, key: bytes, value: bytes | None) -> None:
        """Stage one write; None deletes."""
        self._staged.check_open()
        self._overlay.put(key, value)

    def put_all(self, writes: Writes) -> None:
        """Stage many writes."""
        self._staged.check_open()
        self._overlay.put_all(writes)

    def scan(
        self, lo: bytes | None = None, hi: bytes | None = None, *, reverse: bool = False
    ) -> "TableScan":
        """Pairs with lo <= key <= hi in byte order, pending writes included, as of now."""
        self._staged.check_open()
        self._metrics.ranges += 1
        cursor = self._table.scan(lo, hi, reverse=reverse)
        pending = self._overlay.between(lo, hi, reverse=reverse) if self._entries else []
        return TableScan(self._staged, cursor, pending, reverse=reverse)

    def approximate_count(self) -> int:
        """About how many keys there are, pending ones counted as new."""
        self._staged.check_open()
        return self._table.approximate_count() + len(self._entries)


class TableScan:
    """An iterator over a snapshot of committed rows overlaid by pending ones.

    StoreClosed after close.
    """

    __slots__ = ("_cursor", "_next", "_staged")

    def __init__(
        self, staged: StagedEngine, cursor: Cursor, pending: Slice, *, reverse: bool
    ) -> None:
        self._staged = staged
        self._cursor: Cursor | None = cursor
        pairs = _merge(cursor, pending, reverse=reverse) if pending else iter(cursor)
        self._next = pairs.__next__

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Pair:
        if self._cursor is None or not self._staged.is_open():
            self.check_open()
        try:
            return self._next()
        except TaskCorrupted as error:
            error.store = self._staged.name
            raise

    def check_open(self) -> None:
        """StoreClosed after its own close or its store's."""
        if self._cursor is None:
            raise StoreClosed("this iterator is closed: open a new one")
        self._staged.check_open()

    def close(self) -> None:
        """Release the snapshot. Closing twice is harmless."""
        if self._cursor is not None:
            self._cursor.close()
            self._cursor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def _merge(cursor: Cursor, pending: Slice, *, reverse: bool) -> Iterator[Pair]:
    staged = {key for key, _ in pending}
    committed = (pair for pair in cursor if pair[0] not in staged)
    visible = [(key, value) for key, value in pending if value is not None]
    return heapq.merge(committed, visible, key=_key_of, reverse=reverse)


def _key_of(pair: Pair) -> bytes:
    return pair[0]
