"""Finds superseded versions: by seeks, for many keys at once, and one after another.

Pure over two functions that look at the `v` rows of one moment: `Seek` and `ScanBack`. Versions of
a key leave no gaps: each ends where the next begins. So from the latest one backwards every version
is at a known place, and a segment without a row of the key tells that nothing older is there.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Final, NamedTuple

from statestore.stores.reads import Pair
from statestore.stores.versioned import layout

_log = logging.getLogger(__name__)
_CHUNK: Final = 256
_ROUNDS: Final = 16
"""So many versions of each key of a chunk are looked up together, before one key after another."""
Seek = Callable[[list[bytes]], list[Pair | None]]
"""Returns the first row at or after each key."""
ScanBack = Callable[[bytes, bytes], Iterator[Pair]]
"""Returns the rows between two keys, both included, in descending order."""


class Asked(NamedTuple):
    """A question for the version of `key` valid at `time`, which is before `latest_from`."""

    key: bytes
    time: int
    latest_from: int


class Found(NamedTuple):
    """The version valid at the time asked for, and its key `at`; `row` None: there was none yet.

    `valid_to` is when it ends or, where there was none, when the first known version begins.
    """

    row: bytes | None
    at: bytes
    valid_to: int


def find(asked: Sequence[Asked], interval_ms: int, seek: Seek) -> list[Found]:
    """Answer all questions, in order, with as many calls of `seek` as the slowest key needs.

    It looks first where the version lies if the key was busy then: in the segment of the time
    itself. If that has none, it goes backwards from the latest version, from one segment with rows
    of the key to the next.
    """
    answers: list[Found | None] = [None] * len(asked)
    # By place in `asked`: the first version known to begin after the time asked for.
    nexts = [one.latest_from for one in asked]
    looks = [_Look(i, (one.time + 1) // interval_ms) for i, one in enumerate(asked)]
    starts = [layout.history_key(one.key, one.time + 1, interval_ms) for one in asked]
    while looks:
        rows = seek(starts)
        again = []
        for look, pair in zip(looks, rows, strict=True):
            i, segment = look
            key, time, _ = asked[i]
            if pair is not None and pair[0].startswith(layout.history_prefix(key, segment)):
                begins = layout.valid_from(pair[1])
                if begins <= time:
                    answers[i] = Found(pair[1], pair[0], layout.valid_to(pair[0]))
                    continue
                nexts[i] = begins
            # A version that ends where the next one begins is valid at the time or after it.
            before = nexts[i] // interval_ms
            if before == segment or before == (time + 1) // interval_ms:
                answers[i] = Found(None, layout.history_key(key, nexts[i], interval_ms), nexts[i])
            else:
                again.append(_Look(i, before))
        looks = again
        starts = [layout.history_prefix(asked[i].key, segment) for i, segment in looks]
    return [answer for answer in answers if answer is not None]


def backwards(
    key: bytes, end: int, interval_ms: int, scan: ScanBack
) -> Iterator[tuple[int, bytes]]:
    """Return the versions of `key` that end at `end` or before, latest first: (valid_to, row).

    It passes over rows that no version leads to, as a reader of pending writes may meet one whose
    put is half done.
    """
    while True:
        segment = end // interval_ms
        prefix = layout.history_prefix(key, segment)
        for row_key, row in scan(prefix, layout.history_key(key, end, interval_ms)):
            ends = layout.valid_to(row_key)
            if ends < end:
                return
            if ends == end:
                yield end, row
                end = layout.valid_from(row)
        if end // interval_ms == segment:
            return


class Valid(NamedTuple):
    """A version and its end; None: it is still valid."""

    row: bytes
    valid_to: int | None


class Interval(NamedTuple):
    """A closed interval of time."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class View:
    """The rows of one moment: the latest version of each key, and the history before them."""

    bound: int
    """The time before which history is gone."""
    interval_ms: int
    get_many: Callable[[list[bytes]], list[bytes | None]]
    seek: Seek
    scan_back: ScanBack


class GoneHistory:
    """Logs once that history can no longer answer a question (SEMANTICS V4)."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._told = False

    def tell(self, time: int, bound: int) -> None:
        """Note that the version valid at `time` was not found; history begins at `bound`.

        It says nothing of a time from the bound on, as there was no version then.
        """
        if time < bound and not self._told:
            self._told = True
            _log.warning(
                "store %r: asked for the version as of %d, but its history begins at %d: the "
                "answer is None, as it will be for older times",
                self._store,
                time,
                bound,
            )


def valid_at(view: View, keys: list[bytes], times: list[int]) -> list[Valid | None]:
    """Return the version valid at each time, a tombstone too; None: none, or history is gone."""
    unique = list(dict.fromkeys(keys))
    rows = dict(zip(unique, view.get_many(unique), strict=True))
    latest = list(map(rows.__getitem__, keys))
    return valid_at_over(keys, times, latest, view.bound, view.interval_ms, view.seek)


def valid_at_over(
    keys: Sequence[bytes],
    times: Sequence[int],
    latest: Sequence[bytes | None],
    bound: int,
    interval_ms: int,
    seek: Seek,
) -> list[Valid | None]:
    """Do as `valid_at` where the latest versions are known."""
    answers: list[Valid | None] = [None] * len(keys)
    asked: dict[int, Asked] = {}
    for i, (key, time, row) in enumerate(zip(keys, times, latest, strict=True)):
        if row is None:
            continue
        begins = layout.valid_from(row)
        if begins <= time:
            answers[i] = Valid(row, None)
        elif time >= bound:
            asked[i] = Asked(key, time, begins)
    if asked:
        found = find(list(asked.values()), interval_ms, seek)
        for i, one in zip(asked, found, strict=True):
            if one.row is not None:
                answers[i] = Valid(one.row, one.valid_to)
    return answers


def each_valid_at(
    rows: Iterable[Pair], time: int, *, bound: int, interval_ms: int, seek: Seek
) -> Iterator[tuple[bytes, Valid | None]]:
    """Return the key of each row of latest versions, and what `valid_at` says of it."""
    waiting = iter(rows)
    while chunk := list[Pair](islice(waiting, _CHUNK)):
        keys, latest = [key for key, _ in chunk], [row for _, row in chunk]
        times = [time] * len(chunk)
        found = valid_at_over(keys, times, latest, bound, interval_ms, seek)
        yield from zip(keys, found, strict=True)


def overlapping(view: View, key: bytes, latest: bytes, span: Interval) -> Iterator[Valid]:
    """Return the versions of `key` valid at some time of the interval, latest first.

    `latest` is the row of its latest version. Tombstones are left out.
    """
    begins = layout.valid_from(latest)
    until = max(span.last, view.bound)
    if begins <= until:
        if begins <= span.last and not layout.is_tombstone(latest):
            yield Valid(latest, None)
        end = begins
    else:
        end = find([Asked(key, until, begins)], view.interval_ms, view.seek)[0].valid_to
    yield from _back_to(max(span.first, view.bound), view, key, end, span)


def versions_of(view: View, key: bytes, span: Interval) -> list[Valid]:
    """Do as `overlapping` for a key that may have no versions."""
    latest = view.get_many([key])[0]
    return [] if latest is None else list(overlapping(view, key, latest, span))


def each_overlapping(
    rows: Iterable[Pair], span: Interval, *, view: View, descending: bool
) -> Iterator[tuple[bytes, Valid]]:
    """Return what `overlapping` says of the key of each row of latest versions, key after key."""
    waiting = iter(rows)
    while chunk := list[Pair](islice(waiting, _CHUNK)):
        for key, found in _each_of(chunk, span, view):
            for one in found if descending else reversed(list(found)):
                yield key, one


def _each_of(
    chunk: Sequence[Pair], span: Interval, view: View
) -> Iterator[tuple[bytes, Iterator[Valid]]]:
    """Return the versions of each key of a chunk, the last ones of all keys looked up together.

    A version ends where the next one begins, so the place of the one before is known.
    """
    interval_ms, oldest_end = view.interval_ms, max(span.first, view.bound)
    until = max(span.last, view.bound)
    found: list[list[Valid]] = [[] for _ in chunk]
    ends: dict[int, int] = {}
    asked: dict[int, Asked] = {}
    for i, (key, latest) in enumerate(chunk):
        begins = layout.valid_from(latest)
        if begins > until:
            asked[i] = Asked(key, until, begins)
            continue
        if begins <= span.last and not layout.is_tombstone(latest):
            found[i].append(Valid(latest, None))
        ends[i] = begins
    if asked:
        answers = find(list(asked.values()), interval_ms, view.seek)
        ends |= {i: one.valid_to for i, one in zip(asked, answers, strict=True)}
    for _ in range(_ROUNDS):
        places = {
            i: layout.history_key(chunk[i][0], end, interval_ms)
            for i, end in ends.items()
            if end > oldest_end
        }
        if not places:
            ends = {}
            break
        before = {}
        for (i, place), pair in zip(places.items(), view.seek(list(places.values())), strict=True):
            if pair is None or pair[0] != place:
                continue
            begins = layout.valid_from(pair[1])
            if begins <= span.last and not layout.is_tombstone(pair[1]):
                found[i].append(Valid(pair[1], ends[i]))
            before[i] = begins
        ends = before
    for i, (key, _) in enumerate(chunk):
        rest = _back_to(oldest_end, view, key, ends[i], span) if i in ends else iter(())
        yield key, chain(found[i], rest)


def _back_to(oldest_end: int, view: View, key: bytes, end: int, span: Interval) -> Iterator[Valid]:
    """Return the versions of a key from the one that ends at `end` backwards."""
    for ends, row in backwards(key, end, view.interval_ms, view.scan_back):
        if ends <= oldest_end:
            return
        if layout.valid_from(row) <= span.last and not layout.is_tombstone(row):
            yield Valid(row, ends)


class _Look(NamedTuple):
    place: int
    segment: int
