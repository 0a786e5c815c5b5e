"""JoinWindows: which records of two streams meet, and the records that a join keeps for that.

Joins keep the records of each side in a store, ordered by key, time and number. A record is of no
use once stream time has passed its time by what the windows and the grace allow. Such records are
looked for a few at a time with each batch, round and round, so that no batch has to look through a
whole store.
"""

import struct
from dataclasses import dataclass
from itertools import islice
from typing import Final

from statestore.errors import Misuse
from statestore.model.keywords import renamed
from statestore.model.modes import Span, span_ms
from statestore.stores.staged_table import StagedTable

TIME: Final = struct.Struct(">Q")
BIAS: Final = 1 << 63
_ROUND: Final = struct.Struct(">qq")
_AT_ONCE: Final = 1000
KEPT_MAX_MS: Final = 2**62
"""So that the ends of windows, which may lie this far beyond a time, have 8 bytes."""


@dataclass(frozen=True, init=False)
class JoinWindows:
    """Which records of two streams are joined: those whose times are near each other.

    A record of the left stream meets records of the right stream that are at most `before_ms`
    earlier and at most `after_ms` later; `after_ms` is `before_ms` unless given. A negative bound
    excludes the record's own time. A window stays open until stream time has passed its end by
    `grace_ms`. All three are milliseconds or timedeltas. Misuse if the window ends before it
    begins, if the grace is negative, or if records would be kept for more than 2^62 ms.
    """

    before_ms: int
    after_ms: int
    grace_ms: int

    @renamed(before="before_ms", after="after_ms", grace="grace_ms")
    def __init__(self, before: Span, after: Span | None = None, *, grace: Span = 0) -> None:
        before, grace = span_ms(before), span_ms(grace)
        after = before if after is None else span_ms(after)
        if before + after < 0 or grace < 0:
            raise Misuse(
                f"windows from {before} ms before to {after} ms after, with {grace} ms of grace: "
                "before + after must not be negative, nor the grace"
            )
        kept = max(before, 0) + max(after, 0) + grace
        if kept > KEPT_MAX_MS:
            raise Misuse(
                f"windows from {before} ms before to {after} ms after, with {grace} ms of grace: "
                f"the join would keep records for {kept} ms, but at most {KEPT_MAX_MS} ms"
            )
        for name, value in (("before_ms", before), ("after_ms", after), ("grace_ms", grace)):
            object.__setattr__(self, name, value)

    @property
    def terms(self) -> tuple[str, ...]:
        """What decides about the rows of a join, for the fingerprint of a topology."""
        return (f"before {self.before_ms}", f"after {self.after_ms}", f"grace {self.grace_ms}")

    @property
    def kept_ms(self) -> int:
        """For how long a record may still meet one that is not late."""
        return max(self.before_ms, 0) + max(self.after_ms, 0) + self.grace_ms


class Sweeper:
    """Deletes the expired records of one side, some with each batch.

    A round goes once through the store. Its progress is a row of another table, so that short runs
    come round, too: a time before which there are no records, the earliest time that the round has
    left in the store so far, and the row where the round stands; without a row, none is under way.
    """

    def __init__(
        self, rows: StagedTable, progress: StagedTable, row: bytes, *, kept_ms: int, late_ms: int
    ) -> None:
        """`row`: where `progress` has the progress.

        `kept_ms`, `late_ms`: how far behind stream time records may be, and those yet to come.
        """
        self._rows = rows
        self._progress = progress
        self._row = row
        self._kept_ms = kept_ms
        self._late_ms = late_ms
        self._credit = _AT_ONCE

    def sweep(self, now_ms: int, records: int) -> None:
        """Look at about two rows for each of `records`; `now_ms` is stream time."""
        self._credit += 2 * records
        if self._credit < _AT_ONCE:
            return
        limit, self._credit = self._credit, 0
        bound_ms = now_ms - self._kept_ms
        stored = self._progress.get(self._row)
        if stored is None:
            none_before_ms = earliest_ms = -BIAS
            at = b""
        else:
            none_before_ms, earliest_ms = _ROUND.unpack_from(stored)
            at = stored[_ROUND.size :]
        if not at:
            if bound_ms - none_before_ms <= self._kept_ms // 4:
                return
            earliest_ms = now_ms - self._late_ms
        gone: dict[bytes, bytes | None] = {}
        with self._rows.scan(at or None) as found:
            looked = [row for row, _ in islice(found, limit)]
        for row in looked:
            time_ms = time_of(row)
            if time_ms < bound_ms:
                gone[row] = None
            else:
                earliest_ms = min(earliest_ms, time_ms)
        self._rows.put_all(gone, [now_ms] * len(gone))
        if len(looked) < limit:
            none_before_ms, at = earliest_ms, b""
        else:
            at = looked[-1] + b"\x00"
        self._progress.put(self._row, _ROUND.pack(none_before_ms, earliest_ms) + at)


def time_of(row: bytes) -> int:
    """Return the time of a record, from its row."""
    time: int = TIME.unpack_from(row, len(row) - 16)[0]
    return time - BIAS


def require_windows(verb: str, given: object, *, others: bool) -> JoinWindows:
    """Return the windows of a join of two streams; Misuse if there are none.

    `others`: terms of a join with a table were given, too, which is refused.
    """
    if not isinstance(given, JoinWindows) or others:
        raise Misuse(
            f"{verb}: two streams meet within windows: pass ss.JoinWindows(before, "
            "after, grace=…) and no other grace or tolerance, or make a table by to_table()"
        )
    return given
