"""The pending writes of one table: a dict over the engine, with savepoints and ordered slices.

Written by the owner thread only. Other threads may call `get` and `snapshot`: a dict read and a
dict copy are atomic under the interpreter lock, so they see each write whole.
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final, TypeVar

from sortedcontainers import SortedList

from statestore.ports import Writes

T = TypeVar("T")

ENTRY_COST: Final = 96
"""Bytes charged per pending entry besides key and value: the dict slot and two object headers."""


class Missing:
    """The type of MISSING: nothing pending for a key, where None means a pending delete."""


MISSING: Final = Missing()
Entries = dict[bytes, bytes | None]


class Overlay:
    """Pending puts and deletes (None).

    `entries` stays the same object for the life of the overlay.
    """

    __slots__ = ("_sorted", "_undo", "deletes", "entries", "size_bytes")

    def __init__(self) -> None:
        self.entries: Entries = {}
        self.size_bytes = 0
        self.deletes = 0
        self._sorted: SortedList = SortedList()
        self._undo: list[dict[bytes, bytes | Missing | None]] = []

    def put(self, key: bytes, value: bytes | None) -> None:
        """Stage one write."""
        if value is None or self.deletes or self._undo:
            self._put_any(key, value)
            return
        # Nothing pending is a delete, so what has no value is not there.
        entries = self.entries
        old = entries.get(key)
        if old is None:
            self.size_bytes += len(key) + len(value) + ENTRY_COST
        else:
            self.size_bytes += len(value) - len(old)
        entries[key] = value

    def put_all(self, writes: Writes) -> None:
        """Stage many writes in one pass."""
        if self._undo or len(writes) < 16:
            for key, value in writes.items():
                self._put_any(key, value)
            return
        entries = self.entries
        known = entries.keys() & writes.keys()
        self.size_bytes += sum(map(len, writes)) + ENTRY_COST * (len(writes) - len(known))
        self.size_bytes += sum(map(len, filter(None, writes.values())))
        if not all(writes.values()):
            self.deletes += list(writes.values()).count(None)
        for key in known:
            self.size_bytes -= len(key)
            old = entries[key]
            if old is None:
                self.deletes -= 1
            else:
                self.size_bytes -= len(old)
        entries.update(writes)

    def clear(self) -> None:
        """Forget everything pending; savepoints stay open, and go back to here."""
        self.entries.clear()
        self._sorted = SortedList()
        self._undo = [{} for _ in self._undo]
        self.size_bytes = 0
        self.deletes = 0

    # What a commit or a rollback leaves of pending writes: nothing.
    commit = rollback = clear

    def at_or_after(self, keys: list[bytes]) -> list[tuple[bytes, bytes | None] | None]:
        """Per key the first pending write at or after it."""
        self._sort()
        entries, ordered, size = self.entries, self._sorted, len(self._sorted)
        places = map(ordered.bisect_left, keys)
        return [None if i == size else (ordered[i], entries[ordered[i]]) for i in places]

    def between(
        self, lo: bytes | None, hi: bytes | None, *, reverse: bool
    ) -> list[tuple[bytes, bytes | None]]:
        """The pending writes with lo <= key <= hi, in order, as they are now."""
        self._sort()
        entries = self.entries
        keys: Iterator[bytes] = self._sorted.irange(lo, hi, reverse=reverse)
        return [(key, entries[key]) for key in keys]

    def mark(self) -> None:
        """Open a savepoint."""
        self._undo.append({})

    def merge(self) -> None:
        """Close the last savepoint, keeping its writes in the one around it."""
        inner = self._undo.pop()
        if self._undo:
            outer = self._undo[-1]
            for key, old in inner.items():
                outer.setdefault(key, old)

    def undo(self) -> None:
        """Close the last savepoint and take its writes back."""
        for key, old in self._undo.pop().items():
            current = self.entries[key]
            self.size_bytes -= 0 if current is None else len(current)
            self.deletes -= current is None
            if isinstance(old, Missing):
                del self.entries[key]
                self.size_bytes -= len(key) + ENTRY_COST
            else:
                self.entries[key] = old
                self.size_bytes += 0 if old is None else len(old)
                self.deletes += old is None
        # Keys taken back may have been sorted in, and others may have taken their place.
        self._sorted = SortedList()

    def _put_any(self, key: bytes, value: bytes | None) -> None:
        old = self.entries.get(key, MISSING)
        if self._undo:
            self._undo[-1].setdefault(key, old)
        if isinstance(old, Missing):
            self.size_bytes += len(key) + ENTRY_COST
        elif old is not None:
            self.size_bytes -= len(old)
        else:
            self.deletes -= 1
        if value is not None:
            self.size_bytes += len(value)
        else:
            self.deletes += 1
        self.entries[key] = value

    def _sort(self) -> None:
        # A dict keeps its order: the keys not sorted yet are its last.
        fresh = len(self.entries) - len(self._sorted)
        if fresh:
            self._sorted.update(islice(reversed(self.entries), fresh))


def slice_of(
    entries: Mapping[bytes, T], lo: bytes | None, hi: bytes | None, *, reverse: bool
) -> list[tuple[bytes, T]]:
    """The same slice of a copied overlay: for readers on other threads."""
    return sorted(
        (
            (key, value)
            for key, value in entries.items()
            if (lo is None or key >= lo) and (hi is None or key <= hi)
        ),
        reverse=reverse,
        key=lambda item: item[0],
    )
