"""Which rows versions from before the stream time take: pure, over the rows there are."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from statestore.stores import versioned_layout as layout
from statestore.stores.versioned_layout import NEVER

Rows = dict[bytes, bytes | None]


class Change(NamedTuple):
    """A version to put before the latest of its key."""

    key: bytes
    row: bytes
    time: int


class Staged(NamedTuple):
    """Rows to stage in the two tables."""

    latest: Mapping[bytes, bytes | None]
    history: Rows


def next_versions(
    made: Iterable[Change], rows: Rows, *, bound: int, interval_ms: int
) -> tuple[Staged, list[Change]]:
    """Of keys whose latest are `rows`, which it brings up to date; and what is older than those.

    `made`: in order of time. What ends at `bound` or before is not kept.
    """
    begins = {k: NEVER if r is None else layout.valid_from(r) for k, r in rows.items()}
    latest: Rows = {}
    history: Rows = {}
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
            history[layout.grave_key(key, time, interval_ms)] = b""
        rows[key] = latest[key] = row
    return Staged(latest, history), behind


def graves(latest: Mapping[bytes, bytes], interval_ms: int) -> Rows:
    """The rows that say in which segment's time tombstones among `latest` were put."""
    return {
        layout.grave_key(key, layout.valid_from(row), interval_ms): b""
        for key, row in latest.items()
        if layout.is_tombstone(row)
    }
