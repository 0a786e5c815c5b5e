"""Tumbling and hopping windows (SEMANTICS T2h), for the same aggregates as without windows.

A record counts in each window that holds its timestamp, unless stream time has passed the end of
the window by the grace: for that window the record is late. A record that is late for all its
windows is dropped and counted as dropped (topology/windows/closing.py). Expired windows are deleted
whole, some with each batch, so that no batch has to delete a great many. Reads leave them out
meanwhile.
"""

from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import dataclass
from operator import add
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from statestore.errors import Misuse
from statestore.model.batch import Batch, Column, no_records
from statestore.model.modes import EmitStrategy, Span, span_ms
from statestore.model.records import WINDOW_BYTES
from statestore.stores.in_windows import START, start_of
from statestore.stores.specs import KeyValueSpec, WindowSpec
from statestore.stores.windows import indexed, keys_of
from statestore.topology.aggregates.streams import KeyingOf, Placed
from statestore.topology.failures import decoded, encoded
from statestore.topology.nodes import Build, Forward, NodeContext, Push, SendOldValues
from statestore.topology.windows.closing import (
    Closed,
    Closing,
    IdleClose,
    WindowCloses,
    idle_terms,
)

_EXPIRED_AT_ONCE = 1000
_PLACED_AT_ONCE = 200_000
_STARTS, _START_BYTES = np.dtype(">i8"), np.dtype("V8")


@dataclass(frozen=True, init=False)
class TumblingWindows:
    """Windows of `size_ms`, side by side since the epoch, open to late records for `grace_ms`.

    A window leaves the store when stream time has passed its start by `retention_ms`, which is
    size + grace unless given. All three are milliseconds or timedeltas. Misuse if the size is not
    positive, the grace is negative, or the retention is less than size + grace.
    """

    size_ms: int
    grace_ms: int
    retention_ms: int

    def __init__(
        self, size_ms: Span, *, grace_ms: Span = 0, retention_ms: Span | None = None
    ) -> None:
        size, grace, retention = _spans(size_ms, grace_ms, retention_ms)
        for name, value in (("size_ms", size), ("grace_ms", grace), ("retention_ms", retention)):
            object.__setattr__(self, name, value)

    @property
    def advance_ms(self) -> int:
        """How far apart windows start: as far as they are long."""
        return self.size_ms

    @property
    def closes(self) -> WindowCloses:
        """When a window closes."""
        return _closes(self)


@dataclass(frozen=True, init=False)
class HoppingWindows:
    """Windows of `size_ms`, one starting every `advance_ms` since the epoch, so they overlap.

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

    def __init__(
        self,
        size_ms: Span,
        advance_ms: Span,
        *,
        grace_ms: Span = 0,
        retention_ms: Span | None = None,
    ) -> None:
        size, grace, retention = _spans(size_ms, grace_ms, retention_ms)
        advance = span_ms(advance_ms)
        if not 0 < advance <= size:
            raise Misuse(
                f"advance_ms {advance}: windows of {size} ms must start between 1 and {size} ms "
                "apart, or records between two windows would count in none"
            )
        object.__setattr__(self, "size_ms", size)
        object.__setattr__(self, "advance_ms", advance)
        object.__setattr__(self, "grace_ms", grace)
        object.__setattr__(self, "retention_ms", retention)

    @property
    def closes(self) -> WindowCloses:
        """When a window closes."""
        return _closes(self)


TimeWindows = TumblingWindows | HoppingWindows


def _closes(windows: TimeWindows) -> WindowCloses:
    return WindowCloses(WINDOW_BYTES, windows.size_ms + windows.grace_ms)


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
            f"retention_ms {retention}: a window of {size} ms with {grace} ms of grace must be "
            f"kept for at least {size + grace}"
        )
    return size, grace, retention


def window_spec(
    windows: TimeWindows,
    plain: KeyValueSpec[Any, Any],
    emit: EmitStrategy,
    close_idle_ms: int | None = None,
) -> WindowSpec[Any, Any]:
    """Return the window store to use in place of a plain one."""
    terms = (
        f"grace {windows.grace_ms}",
        f"retention {windows.retention_ms}",
        f"emit {emit}",
        *idle_terms(close_idle_ms),
    )
    advance = None if windows.advance_ms == windows.size_ms else windows.advance_ms
    return WindowSpec(
        plain.name,
        plain.key_serde,
        plain.value_serde,
        windows.size_ms,
        windows.retention_ms,
        plain.persistent,
        plain.changelog_config,
        terms if advance is None else (f"advance {advance}", *terms),
        advance,
    )


def in_windows(
    node: str,
    spec: WindowSpec[Any, Any],
    windows: TimeWindows,
    emit: EmitStrategy,
    fold: Callable[[KeyingOf, SendOldValues], Build],
    old_values: SendOldValues,
    *,
    close_idle_ms: int | None,
) -> Build:
    """Build an aggregate per key and window; `fold` makes it over the rows that it is given.

    It is told, too, whether its updates carry old values. `old_values` says whether results carry
    them, which are None at the close of a window. `close_idle_ms`: windows close, too,
    when there was no input for that long; None: they do not.
    """
    final = emit is EmitStrategy.ON_WINDOW_CLOSE

    def build(context: NodeContext, forward: Forward) -> Push:
        open_windows = OpenWindows(node, spec, windows, context, old_values, final=final)
        # For final results, updates only tell how many more windows there are.
        told = SendOldValues(enabled=True) if final else old_values
        to = open_windows.count_updates if final else forward
        push_rows = fold(lambda *_: open_windows, told)(context, to)

        idle = None
        if close_idle_ms is not None:
            idle = IdleClose(context, node, close_idle_ms, lambda: open_windows.close_all(forward))
        open_windows.follow_time(forward, final=final)
        windows_each = -(-windows.size_ms // windows.advance_ms)
        records_at_once = max(_PLACED_AT_ONCE // windows_each, 1)

        def push_some(batch: Batch) -> None:
            if idle is not None:
                idle.input_came()
            push_rows(batch)
            if final:
                open_windows.emit_closed(batch, forward)
            open_windows.expire(2 * len(batch) * windows_each + _EXPIRED_AT_ONCE)

        def push(batch: Batch) -> None:
            for start in range(0, len(batch), records_at_once):
                push_some(batch.slice(start, start + records_at_once))

        return push_some if windows_each == 1 else push

    return build


class OpenWindows:
    """The rows of one window store: a Keying, and what closes and expires them."""

    def __init__(
        self,
        node: str,
        spec: WindowSpec[Any, Any],
        windows: TimeWindows,
        context: NodeContext,
        old_values: SendOldValues,
        *,
        final: bool,
    ) -> None:
        """`final`: each window has one result, at its close."""
        self._node = node
        self._spec = spec
        self._windows = windows
        self.closing = Closing(
            node, spec, context, old_values, delay_ms=windows.grace_ms, final=final
        )
        self._table = self.closing.table
        self.closing.opened(self._still_open)
        self._expired_ms = -1
        self._low: bytes | None = None

    # What a Keying does.

    def place(self, batch: Batch) -> Placed:
        keys = encoded(self._node, batch, "key", self._spec.inner)
        times = np.array(batch.timestamps, np.int64)
        known = np.array([key is not None for key in keys]) if None in keys else None
        closed = self.closing.observe(batch, times, known)
        size, step = self._windows.size_ms, self._windows.advance_ms
        last = times - times % step
        first = np.maximum((times - size) // step * step + step, 0)
        still_open = np.maximum((closed - size) // step * step + step, first)
        counts = ((last - still_open) // step + 1).clip(min=0)
        missed = np.maximum((last - first) // step + 1, 1) - counts
        if known is not None:
            missed, counts = np.where(known, missed, 0), np.where(known, counts, 0)
        if missed.any():
            dropped = np.flatnonzero((counts == 0) & (missed > 0)).tolist()
            self.closing.drop_late(batch, dropped, int(missed.sum()))
        return self._rows(keys, still_open, counts)

    def _rows(
        self, keys: list[bytes | None], first: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> Placed:
        """Return the rows of keys in so many windows each, from the one that starts at `first`."""
        step, places = self._windows.advance_ms, None
        if (counts > 1).any():
            # A record that counts in no window has one entry, without a row.
            entries = np.maximum(counts, 1)
            indices = np.repeat(np.arange(len(keys)), entries)
            nth = np.arange(len(indices)) - np.repeat(np.cumsum(entries) - entries, entries)
            first, counts = first[indices] + nth * step, counts[indices]
            places = indices.tolist()
            keys = list(map(keys.__getitem__, places))
        prefixes: list[bytes] = first.astype(_STARTS).view(_START_BYTES).tolist()
        if counts.all():
            return Placed(list(map(add, prefixes, cast("list[bytes]", keys))), places)
        rows = [
            prefix + key if count and key is not None else None
            for prefix, key, count in zip(prefixes, keys, counts.tolist(), strict=True)
        ]
        return Placed(rows, places)

    def column(self, rows: list[bytes]) -> Column:
        return Column(raw=keys_of(rows), serde=self._spec.key_serde)

    def names(self, rows: Iterable[bytes]) -> dict[bytes, Any]:
        read = self._spec.inner.deserialize
        return {row: read(row[START.size :]) for row in rows}

    def nulls(self, batch: Batch) -> list[int]:
        keys = encoded(self._node, batch, "key", self._spec.inner)
        return [i for i, key in enumerate(keys) if key is None]

    def check(self, batch: Batch) -> None:
        raw = encoded(self._node, batch, "key", self._spec.inner)
        keys = Column(raw=raw, serde=self._spec.inner)
        decoded(self._node, batch.with_columns(keys=keys), "key")

    def count_updates(self, updates: Batch, _to: str | None) -> None:
        """Take in updates, with old values, of windows that are forwarded at their close."""
        assert updates.old_values is not None
        self.closing.count_open(len(updates.old_values.nulls()) - len(updates.values.nulls()))

    # What happens as stream time passes.

    def emit_closed(self, batch: Batch, forward: Forward) -> None:
        """Forward the windows that `batch` has closed and that were not emitted, by start."""
        self._emit(*self.closing.take_closed(), batch, forward)

    def follow_time(self, forward: Forward, *, final: bool) -> None:
        """Close and expire windows as time passes without records; `final`: forward them."""
        windows = self._windows
        open_for_ms, step = windows.size_ms + windows.grace_ms, windows.advance_ms

        def passed() -> None:
            if final:
                self.emit_closed(no_records(), forward)
            self.expire(_EXPIRED_AT_ONCE)

        def earliest(now_ms: int) -> int:
            return max(((now_ms - open_for_ms) // step + 1) * step, 0)

        self.closing.follow_time(passed, earliest)

    def close_all(self, forward: Forward) -> None:
        """Close all windows there are, as if stream time had passed their ends, and forward them.

        The one that ends last is the last one of the latest record.
        """
        latest_ms, step = self.closing.latest_ms, self._windows.advance_ms
        if latest_ms >= 0:
            last_end_ms = latest_ms - latest_ms % step + self._windows.size_ms
            self._emit(*self.closing.close_up_to(last_end_ms), no_records(), forward)

    def _emit(self, since_ms: int, closed_ms: int, batch: Batch, forward: Forward) -> None:
        low, high = since_ms - self._windows.size_ms + 1, closed_ms - self._windows.size_ms
        if high >= max(low, 0):
            with closing(self._between(max(low, 0), high)) as closed:
                self.closing.emit(closed, batch, forward)

    def _between(self, low_ms: int, high_ms: int) -> Generator[Closed, None, None]:
        """Yield the windows that start between both times, inclusive."""
        last = self._windows.size_ms - 1
        with self._table.scan(START.pack(low_ms), START.pack(high_ms + 1)) as rows:
            for row, value in rows:
                start = start_of(row)
                if start <= high_ms:
                    yield Closed(row, value, start + last)

    def _still_open(self) -> Generator[Closed, None, None]:
        """Yield the windows that have had no result."""
        after_ms = self.closing.emitted_ms - self._windows.size_ms
        return self._between(max(after_ms + 1, 0), self.closing.latest_ms)

    def expire(self, limit: int) -> None:
        """Delete up to `limit` rows of expired windows, the oldest first."""
        step = self._windows.advance_ms
        last = (self.closing.now_ms - self._windows.retention_ms) // step * step
        if last < 0 or last <= self._expired_ms:
            return
        gone: dict[bytes, bytes | None] = {}
        with self._table.scan(self._low, START.pack(last + 1)) as rows:
            for row, _ in rows:
                if start_of(row) > last or len(gone) == limit:
                    break
                gone[row] = None
        if len(gone) < limit:
            self._expired_ms, self._low = last, START.pack(last + 1)
        if self._spec.any_start:
            gone |= indexed(gone)
        self._table.put_all(gone)
