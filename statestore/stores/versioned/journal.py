"""The versions written since the last commit, and the rows of both tables that they make.

The journal has the versions in the order of the writes, which is what a commit logs. A version put
at or after the observed stream time lies nowhere else at first: it is the latest of its key without
a look-up (docs/adr/0008). The commit, or the first read of history, settles all of those at once:
it makes them rows of both tables, with the versions that they have ended. These are looked up for
many keys at once and in key order, which costs half of single look-ups.

The owner's thread alone writes a journal. Others may look into `ahead`, and copy the lists. The
functions below it are pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, compress
from operator import add, is_not, lt
from typing import Final, NamedTuple, Self

from statestore.stores.pending import ENTRY_COST as ROW_COST
from statestore.stores.pending import Entries
from statestore.stores.versioned import layout
from statestore.stores.versioned.layout import NEVER, STAMP

ENTRY_COST: Final = 64
"""Bytes charged per version for two list slots and its key; the row is charged in the table."""


class Ended(NamedTuple):
    """Versions of `keys` that later ones have ended, and the times at which, as rows have them.

    There are columns and not a tuple for each version, as hundreds of thousands of tuples would
    keep the garbage collector busy.
    """

    keys: list[bytes]
    rows: list[bytes]
    ends: list[bytes]

    @classmethod
    def none(cls) -> Self:
        return cls([], [], [])

    def add(self, key: bytes, row: bytes, end: bytes) -> None:
        """Add a version, unless it began at that very time: then it is replaced and not ended."""
        if row[STAMP] < end:
            self.keys.append(key)
            self.rows.append(row)
            self.ends.append(end)

    def clear(self) -> None:
        for column in self:
            column.clear()


class Change(NamedTuple):
    """A version to put before the latest of its key."""

    key: bytes
    row: bytes
    time: int


class MadeRows(NamedTuple):
    """Rows to stage in the two tables."""

    latest: Mapping[bytes, bytes | None]
    history: Entries


class _Measured(NamedTuple):
    life: int
    versions: int
    size_bytes: int


class _Mark(NamedTuple):
    ahead: int
    settled: int
    late: int


_NOTHING: Final = _Mark(0, 0, 0)


class Prepared(NamedTuple):
    """The rows that the first `versions` put ahead make, for those not settled."""

    versions: int
    rows: MadeRows


class VersionJournal:
    """Keys and rows of the versions written, kept in step with the pending writes.

    `keys` and `rows` are the versions put ahead, in order of time. Of those not settled, `ahead`
    has the last row of each key, and `ended` has the ones before. `late_keys` and `late_rows` are
    versions from before the stream time, which are rows of the tables from the first; none of them
    is of a key not settled. `deletes` counts tombstones. The dict and the lists stay the same
    objects.
    """

    __slots__ = (
        "_late_bytes",
        "_life",
        "_measured",
        "_settled_bytes",
        "ahead",
        "deletes",
        "ended",
        "keys",
        "late_keys",
        "late_rows",
        "prepared",
        "rows",
        "settled",
    )

    def __init__(self) -> None:
        self.keys: Final[list[bytes]] = []
        self.rows: Final[list[bytes]] = []
        self.ahead: Final[dict[bytes, bytes]] = {}
        self.ended: Final = Ended.none()
        self.settled = 0
        """How many of the first versions put ahead are pending rows of the tables."""
        self.late_keys: Final[list[bytes]] = []
        self.late_rows: Final[list[bytes]] = []
        self.deletes = 0
        self.prepared: Prepared | None = None
        self._late_bytes = 0
        self._settled_bytes = 0
        self._measured = _Measured(0, 0, 0)
        # Another number whenever versions are forgotten.
        self._life = 0

    def __len__(self) -> int:
        return len(self.rows) + len(self.late_rows)

    @property
    def logged_bytes(self) -> int:
        """Return the bytes of all keys and rows, each measured once however often this is asked.

        Other threads may ask too, for metrics: what they measured of versions since forgotten is
        not used.
        """
        life, known, size = self._measured
        if life != self._life:
            life, known, size = self._life, 0, 0
        count = len(self.rows)
        if known < count:
            size += _bytes_of(self.keys[known:count], self.rows[known:count])
            self._measured = _Measured(life, count, size)
        return size + self._late_bytes

    @property
    def size_bytes(self) -> int:
        """Return what the versions take of the memory for pending writes, besides the tables' rows.

        Those not settled count as the rows they will be, with as much for what each has ended.
        """
        count = len(self.rows) - self.settled
        size = self.logged_bytes - self._late_bytes - self._settled_bytes
        ended = size + (layout.PLACE_EXTRA + ROW_COST) * count
        latest = (size // max(1, count) + ROW_COST) * len(self.ahead)
        return ENTRY_COST * len(self) + ended + latest

    def put_ahead(self, keys: list[bytes], rows: list[bytes], deletes: int) -> None:
        """Note versions from the stream time on, in order of time, and how many are tombstones."""
        self.keys.extend(keys)
        self.rows.extend(rows)
        self.deletes += deletes
        note(keys, rows, self.ahead, self.ended)

    def put_late(self, keys: list[bytes], rows: list[bytes], deletes: int) -> None:
        """Note versions from before the stream time, which are staged in the tables."""
        self.late_keys.extend(keys)
        self.late_rows.extend(rows)
        self.deletes += deletes
        self._late_bytes += _bytes_of(keys, rows)

    def settle(self) -> None:
        """Note that all versions so far have been staged in the tables."""
        self.settled = len(self.rows)
        self._settled_bytes = self.logged_bytes - self._late_bytes
        # This is done now, because a reader that looks here first and then at the rows must find
        # a version in one of them.
        self.ahead.clear()
        self.ended.clear()
        self.prepared = None

    def distinct(self) -> tuple[list[bytes], list[bytes]]:
        """Return each version once, in order of time; the later write counts."""
        # No version put ahead came after a late one of its key and time.
        keys, rows = self.keys + self.late_keys, self.rows + self.late_rows
        stamps = [row[STAMP] for row in rows]
        if all(map(lt, stamps, stamps[1:])):
            return keys, rows
        made = dict(zip(map(add, keys, stamps), rows, strict=True))
        pairs = sorted(zip(made, made.values(), strict=True), key=_stamp)
        return [place[: -layout.STAMP_SIZE] for place, _ in pairs], [row for _, row in pairs]

    def mark(self) -> _Mark:
        """Return how many versions there are."""
        return _Mark(len(self.rows), self.settled, len(self.late_rows))

    def forget_marks(self) -> None:
        """Do nothing, as nothing is kept for marks."""

    def commit(self) -> None:
        """Forget all versions."""
        self.go_back(_NOTHING)

    rollback = commit

    def go_back(self, to: _Mark) -> None:
        """Forget the versions since then. What was settled since has to be settled again.

        The tables take back their rows themselves.
        """
        keys, rows = self.keys, self.rows
        del keys[to.ahead :], rows[to.ahead :]
        del self.late_keys[to.late :], self.late_rows[to.late :]
        self._late_bytes = _bytes_of(self.late_keys, self.late_rows)
        self.deletes = sum(map(layout.is_tombstone, chain(rows, self.late_rows)))
        self.settled = to.settled
        self._settled_bytes = _bytes_of(keys[: to.settled], rows[: to.settled])
        self._life += 1
        self.prepared = None
        self.ahead.clear()
        self.ended.clear()
        if to.ahead > to.settled:
            note(keys[to.settled :], rows[to.settled :], self.ahead, self.ended)


def note(
    keys: Iterable[bytes], rows: Sequence[bytes], last: dict[bytes, bytes], ended: Ended
) -> None:
    """Bring `last`, the last version of each key, and `ended`, those before, up to date.

    `rows` are versions of `keys` in order of time, each an object of its own.
    """
    stayed = map(last.setdefault, keys, rows)
    met = compress(zip(keys, rows, strict=True), map(is_not, stayed, rows))
    for key, row in met:
        ended.add(key, last[key], row[STAMP])
        last[key] = row


def history_rows(
    last: Mapping[bytes, bytes],
    ended: Ended,
    names: Iterable[bytes],
    before: Iterable[bytes | None],
    *,
    bound: int,
    interval_ms: int,
) -> Entries:
    """Return the rows of what versions have ended, including each other.

    `last` and `ended` are as `note` leaves them. `before` has, for the keys of `last` in the order
    of `names`, the version before all these, or None. What ended at `bound` or before is left out.
    """
    first = dict(zip(reversed(ended.keys), reversed(ended.rows), strict=True))
    made = Ended.none()
    for key, old in zip(names, before, strict=True):
        if old is not None:
            made.add(key, old, (first.get(key) or last[key])[STAMP])
    keys, rows, ends = made.keys + ended.keys, made.rows + ended.rows, made.ends + ended.ends
    if not keys:
        return {}
    least = layout.stamp_of(max(bound, layout.TIME_MIN))
    if min(ends) <= least:
        kept = [end > least for end in ends]
        keys, rows = list(compress(keys, kept)), list(compress(rows, kept))
        ends = list(compress(ends, kept))
    return dict(zip(layout.history_keys(keys, ends, interval_ms), rows, strict=True))


def next_versions(
    made: Iterable[Change], rows: Entries, *, bound: int, interval_ms: int
) -> tuple[MadeRows, list[Change]]:
    """Return the rows that later versions of keys make, and those that come before the latest.

    `made` is in order of time. `rows` are the latest of the keys, which it brings up to date. What
    ends at `bound` or before is left out.
    """
    begins = {k: NEVER if r is None else layout.valid_from(r) for k, r in rows.items()}
    latest: Entries = {}
    history: Entries = {}
    behind: list[Change] = []
    place_of = layout.history_key
    for one in made:
        key, row, time = one
        began = begins[key]
        if time < began:
            behind.append(one)
            continue
        if began < time:
            if began != NEVER and time > bound:
                history[place_of(key, time, interval_ms)] = rows[key]
            begins[key] = time
        if layout.is_tombstone(row):
            history[layout.tombstone_key(key, time, interval_ms)] = b""
        rows[key] = latest[key] = row
    return MadeRows(latest, history), behind


def tombstone_rows(latest: Mapping[bytes, bytes], interval_ms: int) -> Entries:
    """Return the rows that say in which segment's time tombstones among `latest` were put."""
    return {
        layout.tombstone_key(key, layout.valid_from(row), interval_ms): b""
        for key, row in latest.items()
        if layout.is_tombstone(row)
    }


def _bytes_of(keys: list[bytes], rows: list[bytes]) -> int:
    return sum(map(len, keys)) + sum(map(len, rows))


def _stamp(pair: tuple[bytes, bytes]) -> bytes:
    return pair[1][STAMP]
