"""What versions put at or after the stream time have ended: pure, over the rows there are.

Such a version is the latest of its key without a look. What it ends is looked up later, for many
keys at once and in key order, which costs half of single look-ups (docs/adr/0008).
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from operator import is_not
from typing import NamedTuple, Self

from statestore.stores import versioned_layout as layout
from statestore.stores.version_writes import Rows
from statestore.stores.versioned_layout import STAMP


class Ended(NamedTuple):
    """Versions of `keys` that others have ended, `ends` as rows have times.

    Columns, not a tuple each: hundreds of thousands of those would keep the collector busy.
    """

    keys: list[bytes]
    rows: list[bytes]
    ends: list[bytes]

    @classmethod
    def none(cls) -> Self:
        return cls([], [], [])

    def add(self, key: bytes, row: bytes, end: bytes) -> None:
        """One more, unless it began at that very time: then it is not ended but replaced."""
        if row[STAMP] < end:
            self.keys.append(key)
            self.rows.append(row)
            self.ends.append(end)

    def clear(self) -> None:
        for column in self:
            column.clear()


def note(
    keys: Iterable[bytes], rows: Sequence[bytes], last: dict[bytes, bytes], ended: Ended
) -> None:
    """Bring `last`, the last version of each key, and `ended`, those before, up to date.

    `rows`: versions of `keys` in order of time, each an object of its own.
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
) -> Rows:
    """The rows of what versions have ended, each other included.

    `last` and `ended` as `note` leaves them; `before`: for the keys of `last`, `names` in whatever
    order, the version before all these, None if none. What ended at `bound` or before is not kept.
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
