"""Views of a versioned store's rows: what its searches look at, committed or with what is pending.

The owner's `View` is live, for questions answered at once. What readers see is of one moment and
outlives later writes.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from statestore.ports import Cursor, Seeker
from statestore.stores.overlay import Entries, slice_of
from statestore.stores.staged_table import Pair, TableScan, first_of, merged
from statestore.stores.transaction import StagedEngine
from statestore.stores.version_search import View
from statestore.stores.versioned_layout import NOT_VERSIONS


class PendingVersions:
    """A copy of the pending rows of a history, to look for versions in."""

    def __init__(self, rows: Entries) -> None:
        self._rows = {k: v for k, v in rows.items() if k[:1] not in NOT_VERSIONS and v is not None}
        self._keys = sorted(self._rows)

    def seek_many(self, keys: list[bytes]) -> list[Pair | None]:
        """Per key the first row at or after it."""
        names, size = self._keys, len(self._keys)
        places = [bisect_left(names, key) for key in keys]
        return [None if i == size else (names[i], self._rows[names[i]]) for i in places]

    def over(self, committed: list[Pair | None], keys: list[bytes]) -> list[Pair | None]:
        """What a seek gives where these rows lie over the committed ones."""
        if not self._keys:
            return committed
        return [first_of(*both) for both in zip(committed, self.seek_many(keys), strict=True)]


class HistorySnapshot:
    """The history as it was: committed rows, and the copy of pending ones over them."""

    def __init__(self, staged: StagedEngine, seeker: Seeker, pending: PendingVersions) -> None:
        self._staged = staged
        self._seeker = seeker
        self._pending = pending

    def seek_many(self, keys: list[bytes]) -> list[Pair | None]:
        """Per key the first row at or after it."""
        try:
            return self._pending.over(self._seeker.seek_many(keys), keys)
        except Exception as error:
            raise self._staged.failure(error) from error

    def close(self) -> None:
        """Release the snapshot."""
        self._seeker.close()


@dataclass(frozen=True, slots=True)
class LookedAt:
    """The rows a reader of another thread sees: snapshots of both tables, of one moment."""

    staged: StagedEngine
    committed: Seeker
    """Of the latest versions."""
    superseded: Seeker
    """Of the history."""
    latest: Entries
    """What lies over the latest versions."""
    history: Entries
    """What lies over the history."""
    bound: int
    interval_ms: int

    def view(self) -> View:
        """For questions while the snapshots are open."""
        committed, superseded = self.committed, self.superseded
        pending = PendingVersions(self.history)

        def get_many(keys: list[bytes]) -> list[bytes | None]:
            rows = committed.get_many(keys)
            return list(map(self.latest.get, keys, rows)) if self.latest else rows

        def seek(keys: list[bytes]) -> list[Pair | None]:
            return pending.over(superseded.seek_many(keys), keys)

        def scan_back(lo: bytes, hi: bytes) -> Iterator[Pair]:
            waiting = slice_of(self.history, lo, hi, reverse=True)
            return merged(superseded.scan_back(lo, hi), waiting, reverse=True)

        return View(self.bound, self.interval_ms, get_many, seek, scan_back)

    def over(
        self, cursor: Cursor, lo: bytes | None, hi: bytes | None
    ) -> tuple[TableScan, HistorySnapshot]:
        """The latest versions from `lo` to `hi`, which `cursor` walks over, and what was before.

        The history's snapshot is theirs from now on.
        """
        waiting = slice_of(self.latest, lo, hi, reverse=False)
        scan = TableScan(self.staged, cursor, waiting, reverse=False)
        pending = PendingVersions(self.history)
        return scan, HistorySnapshot(self.staged, self.superseded, pending)
