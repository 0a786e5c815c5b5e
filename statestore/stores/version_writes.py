"""Which rows a batch of versions takes: pure, over the rows there are."""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import compress
from operator import gt, itemgetter
from typing import NamedTuple, TypeVar

from statestore.stores import versioned_layout as layout
from statestore.stores.overlay import MISSING, Missing
from statestore.stores.versioned_layout import NEVER, STAMP

T = TypeVar("T")
Rows = dict[bytes, bytes | None]


class Change(NamedTuple):
    """A version to put before the latest of its key."""

    key: bytes
    value: bytes | None
    time: int


class Columns(NamedTuple):
    """Versions, in the order they came."""

    keys: list[bytes]
    values: list[bytes | None]
    times: list[int]


class Staged(NamedTuple):
    """Rows to stage in the two tables."""

    latest: Rows
    history: Rows


def versions_ahead(
    made: Columns,
    pending: Mapping[bytes, bytes | None],
    first: dict[bytes, bytes],
    *,
    bound: int,
    interval_ms: int,
) -> Staged:
    """Of versions none of which begins before one there is; `pending`: the latest not committed.

    Notes in `first` the first version of each key that has nothing pending. What ends at `bound`
    or before is not kept.
    """
    keys, values, times = made
    rows = layout.version_rows(values, times)
    history: Rows = {}
    if None in values:
        history = {
            layout.grave_key(key, time, interval_ms): b""
            for key, value, time in zip(keys, values, times, strict=True)
            if value is None
        }
    latest: Rows = dict(zip(keys, rows, strict=True))
    # Versions that meet others of their key go one by one, the rest without a look at any.
    meeting = latest.keys() & pending.keys()
    if len(latest) < len(keys):
        meeting |= {key for key, times_seen in Counter(keys).items() if times_seen > 1}
    if not meeting:
        first.update(latest)  # type: ignore[arg-type]  # no row of `rows` is None
        return Staged(latest, history)
    for key in meeting:
        del latest[key]
    first.update(latest)  # type: ignore[arg-type]  # no row of `rows` is None
    meets = map(meeting.__contains__, keys)
    records = compress(zip(times, keys, rows, strict=True), meets)
    for time, key, row in _in_order(times, records):
        old = latest[key] if key in latest else pending.get(key, MISSING)
        if isinstance(old, Missing):
            first[key] = row
        elif old is not None and time > bound and old[STAMP] < row[STAMP]:
            place = layout.place_head(time // interval_ms, len(key))
            history[place + key + row[STAMP]] = old
        latest[key] = row
    return Staged(latest, history)


def next_versions(
    made: Columns, rows: Rows, *, bound: int, interval_ms: int
) -> tuple[Staged, list[Change]]:
    """Of keys whose latest are `rows`, which it brings up to date; and what is older than those."""
    begins = {k: NEVER if r is None else layout.valid_from(r) for k, r in rows.items()}
    staged, behind = Staged({}, {}), list[Change]()
    row_of, place_of = layout.version_row, layout.history_key
    records = zip(made.times, made.keys, made.values, strict=True)
    for time, key, value in _in_order(made.times, records):
        began = begins[key]
        if time < began:
            behind.append(Change(key, value, time))
            continue
        if began < time:
            if began != NEVER and time > bound:
                staged.history[place_of(key, time, interval_ms)] = rows[key]
            begins[key] = time
        if value is None:
            staged.history[layout.grave_key(key, time, interval_ms)] = b""
        rows[key] = staged.latest[key] = row_of(value, time)
    return staged, behind


def _in_order(
    times: list[int], records: Iterable[tuple[int, bytes, T]]
) -> Iterable[tuple[int, bytes, T]]:
    """By time. Stable: of one key and time the later write stays the later."""
    return sorted(records, key=itemgetter(0)) if any(map(gt, times, times[1:])) else records
