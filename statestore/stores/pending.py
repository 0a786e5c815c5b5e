"""The pending writes of a store: what they have in common, and those of one table.

The owner's thread alone writes them. Other threads may read and copy `entries`: a look-up in a dict
and a copy of a dict are atomic under the interpreter's lock, so they see each write whole.

Keeps I3.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, Protocol, TypeVar

from sortedcontainers import SortedList

from statestore.ports import Writes

T = TypeVar("T")

ENTRY_COST: Final = 96
"""Bytes charged per pending entry besides key and value: the dict slot and two object headers."""
_PASSES: Final = 4
"""How often pending writes are passed one by one before they are sorted for what is asked next."""


class Missing:
    """The type of MISSING: nothing is pending for a key, where None means a pending delete."""


MISSING: Final = Missing()
Entries = dict[bytes, bytes | None]


class Pending(Protocol):
    """One part of what is pending in a store. All parts are committed and undone together.

    `transaction.StagedEngine` keeps the stack of savepoints; a part only returns marks and goes
    back to them.
    """

    def mark(self) -> Any:
        """Return a mark for `go_back`. A savepoint is open from now on."""

    def go_back(self, mark: Any, /) -> None:
        """Undo all that was staged since `mark`. Marks made after it are no longer valid."""

    def forget_marks(self) -> None:
        """Forget all marks, because the outermost savepoint has ended."""

    def commit(self) -> None:
        """Note that what was pending is committed, and forget all marks."""

    def rollback(self) -> None:
        """Drop what is pending, and forget all marks."""


class SizedPending(Pending, Protocol):
    """A part that takes memory, which counts as pending."""

    @property
    def size_bytes(self) -> int: ...


class CountedWrites(SizedPending, Protocol):
    """What counts as the pending writes of a store whose writes are not rows of its tables."""

    def __len__(self) -> int: ...
    @property
    def deletes(self) -> int: ...
    @property
    def logged_bytes(self) -> int:
        """The bytes of keys and values that a restore of these writes reads."""


class UndoLog(list[tuple[bytes, T | Missing]]):
    """The entries of a dict as they were before each change, oldest first."""

    def taken_back(self, mark: int) -> dict[bytes, T | Missing]:
        """Cut the log to the length `mark`, and return what each entry was at that length."""
        # If an entry changed more than once, its first change has the oldest value.
        before = dict(reversed(self[mark:]))
        del self[mark:]
        return before


class Overlay:
    """Pending puts and deletes (None) of one table: a dict over the engine, in order if asked.

    `entries` stays the same object for the life of the overlay. `is_plain`: no delete is pending
    and no savepoint is open, so that a put has nothing to note but the row and its size. It is
    false once the store is closed.
    """

    __slots__ = ("_passed", "_sorted", "_undo", "deletes", "entries", "is_plain", "size_bytes")

    def __init__(self) -> None:
        self.entries: Entries = {}
        self.size_bytes = 0
        self.deletes = 0
        self._sorted: SortedList = SortedList()
        self._passed = 0
        self._undo: UndoLog[bytes | None] | None = None
        self.is_plain = True

    def put(self, key: bytes, value: bytes | None) -> None:
        """Stage one write."""
        old = self.entries.get(key, MISSING)
        if self._undo is not None:
            self._undo.append((key, old))
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
            self.is_plain = False
        self.entries[key] = value

    def put_all(self, writes: Writes) -> None:
        """Stage many writes in one pass."""
        if self._undo is not None or len(writes) < 16:
            for key, value in writes.items():
                self.put(key, value)
            return
        entries = self.entries
        known = entries.keys() & writes.keys()
        self.size_bytes += sum(map(len, writes)) + ENTRY_COST * (len(writes) - len(known))
        self.size_bytes += sum(map(len, filter(None, writes.values())))
        if not all(writes.values()):
            self.deletes += list(writes.values()).count(None)
            self.is_plain = not self.deletes
        for key in known:
            self.size_bytes -= len(key)
            old = entries[key]
            if old is None:
                self.deletes -= 1
            else:
                self.size_bytes -= len(old)
        entries.update(writes)

    def clear(self) -> None:
        """Forget everything pending, and all marks."""
        self.entries.clear()
        self._sorted = SortedList()
        self._passed = 0
        self._undo = None
        self.is_plain = True
        self.size_bytes = 0
        self.deletes = 0

    # Neither a commit nor a rollback leaves any pending write.
    commit = rollback = clear

    def at_or_after(self, keys: list[bytes]) -> list[tuple[bytes, bytes | None] | None]:
        """Return the first pending write at or after each key."""
        self.sort()
        entries, ordered, size = self.entries, self._sorted, len(self._sorted)
        places = map(ordered.bisect_left, keys)
        return [None if i == size else (ordered[i], entries[ordered[i]]) for i in places]

    def between(
        self, lo: bytes | None, hi: bytes | None, *, reverse: bool
    ) -> list[tuple[bytes, bytes | None]]:
        """Return the pending writes with lo <= key <= hi, in order, as they are now."""
        fresh = len(self.entries) - len(self._sorted)
        if self._passed < _PASSES * fresh:
            # To pass what is not sorted a few times takes less time than to sort it.
            self._passed += fresh
            keys = [*self._sorted.irange(lo, hi), *_between(self._fresh(), lo or b"", hi)]
            keys.sort(reverse=reverse)
        else:
            self.sort()
            keys = list(self._sorted.irange(lo, hi, reverse=reverse))
        return [(key, self.entries[key]) for key in keys]

    def mark(self) -> int:
        """Return the number of changes in the undo log."""
        if self._undo is None:
            self._undo = UndoLog()
            self.is_plain = False
        return len(self._undo)

    def go_back(self, mark: int) -> None:
        """Undo the writes since `mark`."""
        if self._undo is None:
            return
        for key, old in self._undo.taken_back(mark).items():
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
        # The sorted list may have keys that are gone, and lack others.
        self._sorted = SortedList()
        self._passed = 0

    def forget_marks(self) -> None:
        """Stop keeping an undo log."""
        self._undo = None
        self.is_plain = not self.deletes

    def close(self) -> None:
        """Take nothing as plain any more."""
        self.is_plain = False

    def sort(self) -> None:
        """Get ready for many looks."""
        self._sorted.update(self._fresh())
        self._passed = 0

    def _fresh(self) -> Iterator[bytes]:
        """Return the keys that are not sorted: the last ones, as a dict keeps its order."""
        return islice(reversed(self.entries), len(self.entries) - len(self._sorted))


def _between(keys: Iterable[bytes], lo: bytes, hi: bytes | None) -> list[bytes]:
    if hi is None:
        return [key for key in keys if lo <= key]
    return [key for key in keys if lo <= key <= hi]


def slice_of(
    entries: Mapping[bytes, T], lo: bytes | None, hi: bytes | None, *, reverse: bool
) -> list[tuple[bytes, T]]:
    """Return the same slice of a copied overlay, for readers on other threads."""
    return sorted(
        (
            (key, value)
            for key, value in entries.items()
            if (lo is None or key >= lo) and (hi is None or key <= hi)
        ),
        reverse=reverse,
        key=lambda item: item[0],
    )
