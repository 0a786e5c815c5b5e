"""Tumbling and hopping windows (SEMANTICS T2h), for the same aggregates as without windows.

A record counts in each window that holds its timestamp, unless stream time has passed the end of
the window by the grace: for that window the record is late. A record that is late for all its
windows is dropped and counted as dropped (topology/windows/closing.py). The rows of a batch are
found in bulk, and folded as those of an aggregate by key are.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from statestore.errors import Misuse
from statestore.model.batch import Batch
from statestore.model.byte_columns import MaybePacked
from statestore.model.keywords import renamed
from statestore.model.modes import Span, span_ms
from statestore.model.records import WINDOW_BYTES
from statestore.stores.in_windows import START
from statestore.stores.specs import KeyValueSpec, WindowSpec
from statestore.topology.aggregates.folds import Aggregation, Tell
from statestore.topology.aggregates.stream_aggregates import (
    Keying,
    Placed,
    RowsOfWindows,
    by_rows,
)
from statestore.topology.failures import encoded
from statestore.topology.nodes import NodeContext, Push
from statestore.topology.windows.closing import Closing
from statestore.topology.windows.fold import InTime, Timing, known_keys

_PLACED_AT_ONCE = 200_000


@dataclass(frozen=True, init=False)
class TumblingWindows:
    """Windows of `size`, side by side since the epoch, open to late records for `grace`.

    A window leaves the store when stream time has passed its start by `retention_ms`, which is
    size + grace unless given. All three are milliseconds or timedeltas. Misuse if the size is not
    positive, the grace is negative, or the retention is less than size + grace.
    """

    size_ms: int
    grace_ms: int
    retention_ms: int

    @renamed(size="size_ms", grace="grace_ms", retention="retention_ms")
    def __init__(self, size: Span, *, grace: Span = 0, retention: Span | None = None) -> None:
        size, grace, retention = _spans(size, grace, retention)
        for name, value in (("size_ms", size), ("grace_ms", grace), ("retention_ms", retention)):
            object.__setattr__(self, name, value)

    @property
    def advance_ms(self) -> int:
        """How far apart windows start: as far as they are long."""
        return self.size_ms

    @property
    def rule(self) -> InTime:
        """What operators do in these windows."""
        return _rule(self)


@dataclass(frozen=True, init=False)
class HoppingWindows:
    """Windows of `size`, one starting every `advance` since the epoch, so they overlap.

    They are Kafka Streams' TimeWindows.ofSizeAndGrace(size, grace).advanceBy(advance). Like
    TumblingWindows they are named as its documentation names these windows, so that the name tells
    the two apart and not a second call. A record counts in every window that contains its time.

    Grace and retention are those of TumblingWindows, and all four are milliseconds or timedeltas.
    Misuse as there, or if the advance is not positive or is longer than the size.
    """

    size_ms: int
    advance_ms: int
    grace_ms: int
    retention_ms: int

    @renamed(size="size_ms", advance="advance_ms", grace="grace_ms", retention="retention_ms")
    def __init__(
        self,
        size: Span,
        advance: Span,
        *,
        grace: Span = 0,
        retention: Span | None = None,
    ) -> None:
        size, grace, retention = _spans(size, grace, retention)
        advance = span_ms(advance)
        if not 0 < advance <= size:
            raise Misuse(
                f"advance {advance}: windows of {size} ms must start between 1 and {size} ms "
                "apart, or records between two windows would count in none"
            )
        object.__setattr__(self, "size_ms", size)
        object.__setattr__(self, "advance_ms", advance)
        object.__setattr__(self, "grace_ms", grace)
        object.__setattr__(self, "retention_ms", retention)

    @property
    def rule(self) -> InTime:
        """What operators do in these windows."""
        return _rule(self)


TimeWindows = TumblingWindows | HoppingWindows


def _spans(size_ms: Span, grace_ms: Span, retention_ms: Span | None) -> tuple[int, int, int]:
    """Return size, grace and retention of windows in ms; Misuse if such windows cannot be."""
    size, grace = span_ms(size_ms), span_ms(grace_ms)
    retention = size + grace if retention_ms is None else span_ms(retention_ms)
    if size <= 0 or grace < 0:
        raise Misuse(
            f"windows of {size} ms with {grace} ms of grace: the size must be positive, "
            "and the grace must not be negative"
        )
    if retention < size + grace:
        raise Misuse(
            f"retention {retention}: a window of {size} ms with {grace} ms of grace must be "
            f"kept for at least {size + grace}"
        )
    return size, grace, retention


def _rule(windows: TimeWindows) -> InTime:
    size, advance = windows.size_ms, windows.advance_ms
    each = -(-size // advance)
    at_once = None if each == 1 else max(_PLACED_AT_ONCE // each, 1)
    timing = Timing(size, advance, windows.grace_ms, windows.retention_ms, each, at_once)
    return InTime(timing, WINDOW_BYTES, partial(_spec, windows), partial(_folding, windows))


def _spec(
    windows: TimeWindows, plain: KeyValueSpec[Any, Any], terms: tuple[str, ...]
) -> WindowSpec[Any, Any]:
    advance = None if windows.advance_ms == windows.size_ms else windows.advance_ms
    return WindowSpec(
        plain.name,
        plain.key_serde,
        plain.value_serde,
        windows.size_ms,
        windows.retention_ms,
        plain.persistent,
        plain.changelog_config,
        (
            *(() if advance is None else (f"advance {advance}",)),
            f"grace {windows.grace_ms}",
            f"retention {windows.retention_ms}",
            *terms,
        ),
        advance,
    )


def _folding(
    windows: TimeWindows,
    how: Aggregation[WindowSpec[Any, Any]],
    context: NodeContext,
    clock: Closing,
    tell: Tell,
) -> Push:
    """Return what folds the records of a batch into the rows of their windows."""
    place = partial(_placed, windows, how, clock)
    keying = Keying(place, how.spec.inner, prefix=START.size, drops_nulls=False)
    return by_rows(how, keying, context, tell)


def _placed(
    windows: TimeWindows, how: Aggregation[WindowSpec[Any, Any]], clock: Closing, batch: Batch
) -> Placed:
    """Return the rows of the windows that are open at each record; drop what is late for all."""
    serde = how.spec.inner
    keys = batch.keys.packed(serde) or encoded(how.node, batch, "key", serde)
    times = np.array(batch.timestamps, np.int64)
    known = known_keys(keys)
    closed = clock.observe(batch, times, known)
    size, step = windows.size_ms, windows.advance_ms
    last = times - times % step
    first = np.maximum((times - size) // step * step + step, 0)
    still_open = np.maximum((closed - size) // step * step + step, first)
    counts = ((last - still_open) // step + 1).clip(min=0)
    missed = np.maximum((last - first) // step + 1, 1) - counts
    if known is not None:
        missed, counts = np.where(known, missed, 0), np.where(known, counts, 0)
    if missed.any():
        dropped = np.flatnonzero((counts == 0) & (missed > 0)).tolist()
        clock.drop_late(batch, dropped, int(missed.sum()))
    placed = _rows(keys, still_open, counts, step)
    return placed._replace(times=times) if placed.places is None else placed


def _rows(
    keys: MaybePacked, first: NDArray[np.int64], counts: NDArray[np.int64], step: int
) -> Placed:
    """Return the rows of keys in so many windows each, from the one that starts at `first`."""
    if not (counts > 1).any():
        return Placed(RowsOfWindows(keys, first, counts > 0))
    # A record that counts in no window has one entry, without a row.
    entries = np.maximum(counts, 1)
    places = np.repeat(np.arange(len(keys)), entries)
    nth = np.arange(len(places)) - np.repeat(np.cumsum(entries) - entries, entries)
    starts, counted = first[places] + nth * step, counts[places] > 0
    return Placed(RowsOfWindows(keys, starts, counted, places), places.tolist())
