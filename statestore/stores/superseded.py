"""Committed versions that a pending one has ended, and that nobody has looked up yet.

A put at or after the observed stream time needs no look-up to be known as the latest of its key. So
what it supersedes is read later: by the commit, or by the first read of history, many keys at once
and in key order, which costs half of single look-ups (docs/adr/0008). Owner thread only; others may
copy `first`.
"""

from typing import Final

from statestore.stores import versioned_layout as layout
from statestore.stores.overlay import Overlay
from statestore.stores.versioned_layout import STAMP

Rows = dict[bytes, bytes]


class Superseded:
    """Per key the first pending version, where the committed one before it is not moved yet.

    Kept in step with the pending writes, after `latest`, the overlay of the latest versions.
    """

    __slots__ = ("_latest", "_moved", "first")

    def __init__(self, latest: Overlay) -> None:
        self.first: Final[Rows] = {}
        self._latest: Final = latest
        # Per open savepoint what was moved since: to be done again if it is undone.
        self._moved: list[Rows] = []

    def moved(self) -> None:
        """All of `first` has been looked up, and moved where there was something."""
        if self._moved:
            self._moved[-1].update(self.first)
        self.first.clear()

    @property
    def size_bytes(self) -> int:
        """About what the rows to be moved will take: as much as the pending ones of their keys."""
        latest = self._latest
        each = latest.size_bytes // max(1, len(latest.entries)) + layout.PLACE_EXTRA
        return each * len(self.first)

    def mark(self) -> None:
        """Open a savepoint."""
        self._moved.append({})

    def merge(self) -> None:
        """Close the last savepoint, keeping what was moved in the one around it."""
        inner = self._moved.pop()
        if self._moved:
            self._moved[-1].update(inner)

    def undo(self) -> None:
        """Close the last savepoint: what it moved is to be moved again, if still superseded."""
        before = {**self._moved.pop(), **self.first}
        known = self._latest.entries
        self.first.clear()
        self.first.update({key: row for key, row in before.items() if key in known})

    def rollback(self) -> None:
        """Forget all; savepoints stay open, and go back to here."""
        self.first.clear()
        self._moved = [{} for _ in self._moved]

    commit = rollback


def moved_rows(first: Rows, found: list[bytes | None], *, bound: int, interval_ms: int) -> Rows:
    """The history rows of what was `found` committed under the keys of `first`.

    What ended at `bound` or before is not kept.
    """
    keys: list[bytes] = []
    ended: list[bytes] = []
    begin: list[bytes] = []
    least = layout.stamp_of(max(bound, layout.TIME_MIN))
    for (key, row), old in zip(first.items(), found, strict=True):
        if old is not None:
            stamp = row[STAMP]
            # A version of the very time it began at is not ended but replaced.
            if old[STAMP] < stamp > least:
                keys.append(key)
                ended.append(old)
                begin.append(row)
    return dict(zip(layout.history_keys(keys, begin, interval_ms), ended, strict=True))
