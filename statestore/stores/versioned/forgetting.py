"""What the log of a versioned store has, and how it forgets versions that have expired.

The log has a key for each version, so compaction never removes one. The owner has to say which it
may: a commit that finds versions in expired segments logs a null for each, at most so many at once,
and drops their rows. Those that ended first go first, and a delete goes after all that it ended. So
whatever compaction leaves of a key are its last versions (docs/adr/0037).
"""

from itertools import islice
from typing import Final

from statestore.ports import Table, Writes
from statestore.stores import logged
from statestore.stores.logged import Forgotten, LoggedVersions
from statestore.stores.pending import Entries
from statestore.stores.staged_table import Changes, StagedTable
from statestore.stores.transaction import Ranges
from statestore.stores.versioned import layout
from statestore.stores.versioned.layout import HISTORY, NEVER, STAMP

_WHOLE_KEY: Final = b"v"
WHOLE_ROW: Final[Writes] = {_WHOLE_KEY: b""}
"""What a store notes beside its offsets if its log has a record for each version."""
_AT_ONCE: Final = 10_000


class VersionLog:
    """The log as the owner knows it: a `pending.Pending` part.

    `is_whole`: it has a record for each version, which a log does not that an older version or a
    plain store began. `done`: all that ended in segments before this one is forgotten.
    """

    def __init__(self, meta: Table, *, is_empty: bool) -> None:
        """`meta`: the table of the offsets. `is_empty`: the store has no row yet."""
        self._is_marked = meta.get(_WHOLE_KEY) is not None
        self.is_whole = self._is_marked or is_empty
        self.done = layout.TIME_MIN
        self.deletes: list[bytes] = []
        """Records of deletes that have expired and are no longer in the store."""
        self._expired: list[bytes] = []
        self._moved: list[bytes] = []
        self._cut: bytes | None = None
        self._next = self.done
        self._becomes_whole = False
        self._marks: bool | None = None

    def find_expired(
        self, history: StagedTable, ahead: Entries, bound: int, interval_ms: int, *, puts: int
    ) -> int:
        """Find versions that have expired; return the segment before which nothing will be left.

        Those that come with the commit, `ahead`, are taken away from there. Of the others it finds
        more at once than there are `puts`, so that the log does not grow.
        """
        self._expired, self._cut, self._next = [], None, self.done
        below = layout.TIME_MIN if bound == NEVER else bound // interval_ms
        if below > self.done:
            lo, hi = layout.versions_between(self.done, below)
            for at in [at for at in ahead if layout.VERSION <= at < hi]:
                self._expired.append(layout.key_of(at) + (ahead.pop(at) or b"")[STAMP])
            with history.scan(lo, hi) as found:
                for at, row in islice(found, _AT_ONCE + 2 * puts):
                    self._expired.append(layout.key_of(at) + row[STAMP])
                left = next(found, None)
            self._cut = hi if left is None else left[0]
            if left is None:
                self._next = below
        return self._next

    def move(self, keys: list[bytes], *, to_the_end: bool) -> None:
        """Note keys all of whose versions have records by now; `to_the_end`: there are no more."""
        self._moved += keys
        self._becomes_whole = to_the_end

    def records(self, now: int, bound: int, interval_ms: int, now_ms: int) -> Changes:
        """Return the records that go with a commit; `now` and `bound`: of the store."""
        forgotten = None
        if self._expired or self.deletes or self._becomes_whole:
            below_ms = max(self._next * interval_ms, layout.TIME_MIN)
            forgotten = Forgotten(max(now, layout.TIME_MIN), max(bound, layout.TIME_MIN), below_ms)
        return logged.of_the_log(self._expired, self.deletes, self._moved, forgotten, now_ms)

    def ranges(self) -> Ranges | None:
        """Return the rows to delete with the commit."""
        if self._cut is None or not self._expired:
            return None
        return {HISTORY: [(layout.VERSION, self._cut)]}

    def meta_rows(self) -> Writes:
        """Return what the store notes of the log with a commit."""
        self._marks = self.is_whole or self._becomes_whole
        return {} if self._marks == self._is_marked else {_WHOLE_KEY: b"" if self._marks else None}

    def restored(self, found: LoggedVersions, interval_ms: int) -> None:
        """Take in what replayed records say."""
        if found.is_whole is not None:
            self.is_whole = found.is_whole
        if found.forgotten is not None:
            self.done = self._next = max(self.done, found.forgotten.below_ms // interval_ms)

    # The methods of `pending.Pending`. A commit is not within a savepoint.

    def mark(self) -> None:
        """Return nothing, as nothing is undone."""

    def go_back(self, _mark: None) -> None:
        """Do nothing: what expires is found when the records of a commit are made."""

    def forget_marks(self) -> None:
        """Do nothing, because nothing is kept for marks."""

    def commit(self) -> None:
        """Note that the log has what the commit logged."""
        self.done, self.is_whole = self._next, self.is_whole or self._becomes_whole
        if self._marks is not None:
            self._is_marked = self._marks
        self._clear()

    def rollback(self) -> None:
        """Forget what was found for a commit."""
        self._next = self.done
        self._clear()

    def _clear(self) -> None:
        self._expired, self.deletes, self._moved = [], [], []
        self._cut, self._becomes_whole, self._marks = None, False, None
