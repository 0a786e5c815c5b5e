"""The frame in which aggregates per key and window of time are folded.

A kind of windows is a rule (`InTime`): where its rows lie in time, what its store is, and how the
records of a batch are folded into rows. Everything else is the same for all kinds and stands here:
when windows are closed, which results go out, and what expires. A row begins with a time: with the
start of its window or, in a store of sessions, with the end of its session, which then counts as a
window of one millisecond.

With results on update, what the records of a batch have changed goes out. With final results it
only tells how many more windows there are, and each window has one result, at its close. Expired
windows are deleted whole, some with each batch, so that no batch has to delete a great many. Reads
leave them out meanwhile.
"""

from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from statestore.errors import Misuse
from statestore.model.batch import Batch, Column, no_records
from statestore.model.byte_columns import MaybePacked
from statestore.model.modes import EmitStrategy, Span
from statestore.stores.in_windows import START, start_of
from statestore.stores.kinds.registry import kind_of
from statestore.stores.specs import InWindowsSpec, KeyValueSpec
from statestore.topology.aggregates.folds import Aggregation, Tell, Updates
from statestore.topology.failures import processing
from statestore.topology.nodes import Build, Forward, NodeContext, Push
from statestore.topology.windows.closing import (
    Closed,
    Closing,
    IdleClose,
    WindowCloses,
    checked_idle_ms,
    idle_terms,
)

_EXPIRED_AT_ONCE = 1000


class Rule(Protocol):
    """What a kind of windows decides about the aggregates in them."""

    @property
    def closes(self) -> WindowCloses | None:
        """When time closes a window; None: time does not."""

    def specs(
        self, plain: KeyValueSpec[Any, Any], terms: tuple[str, ...]
    ) -> tuple[KeyValueSpec[Any, Any] | InWindowsSpec, ...]:
        """Return the stores to use in place of a plain one: of the results, then all others.

        `terms`: what their fingerprints say beside the windows.
        """

    def build(self, how: Aggregation[Any], windowing: "Windowing") -> Build:
        """Build an aggregate in these windows."""


class Windows(Protocol):
    """Windows as a user describes them."""

    @property
    def rule(self) -> Rule: ...


class Windowing(NamedTuple):
    """The windows of a grouping, when they tell results, and after which idle time they close."""

    rule: Rule
    emit: EmitStrategy
    close_idle_ms: int | None

    @classmethod
    def of(
        cls, windows: Windows, emit: EmitStrategy | str, close_idle_ms: Span | None
    ) -> "Windowing":
        """Return what a user asked for; Misuse if idle windows are to close that tell on update."""
        rule, when, idle_ms = windows.rule, EmitStrategy(emit), checked_idle_ms(close_idle_ms)
        if idle_ms is not None and when is not EmitStrategy.ON_WINDOW_CLOSE:
            raise Misuse(
                "close_idle closes windows that tell their result on close: pass "
                "emit=EmitStrategy.ON_WINDOW_CLOSE, or close_idle to "
                "Suppressed.until_window_closes()"
            )
        if idle_ms is not None and rule.closes is None:
            raise Misuse(
                "close_idle closes windows of time: one of a number of records is open until it "
                "is full, so leave close_idle out"
            )
        return cls(rule, when, idle_ms)

    @property
    def final(self) -> bool:
        """Whether each window has one result, at its close."""
        return self.emit is EmitStrategy.ON_WINDOW_CLOSE

    @property
    def closes(self) -> WindowCloses | None:
        """When time closes a window that has told results before; None: there is no such window."""
        return None if self.final else self.rule.closes

    @property
    def terms(self) -> tuple[str, ...]:
        """What fingerprints say beside the windows."""
        return (f"emit {self.emit}", *idle_terms(self.close_idle_ms))


class Timing(NamedTuple):
    """Where windows lie in time.

    Rows begin with times `step_ms` apart, and a window ends `length_ms` after that time. It is
    closed once stream time has passed its end by `delay_ms`, and it expires once stream time has
    passed the time of its row by `retention_ms`. A record writes about `rows_each` rows.
    `records_at_once`: the most records to fold in one go; None: there is no limit.
    """

    length_ms: int
    step_ms: int
    delay_ms: int
    retention_ms: int
    rows_each: int = 1
    records_at_once: int | None = None


@dataclass(frozen=True)
class InTime:
    """The rule of windows that time closes.

    `key_bytes`: how many bytes of a key are its window. `spec` makes the store from a plain one and
    what its fingerprint says. `folding` makes what folds batches and tells what has changed.
    """

    timing: Timing
    key_bytes: int
    spec: Callable[[KeyValueSpec[Any, Any], tuple[str, ...]], InWindowsSpec]
    folding: Callable[[Aggregation[Any], NodeContext, Closing, Tell], Push]

    @property
    def closes(self) -> WindowCloses:
        """When a window closes, as its key says."""
        return WindowCloses(self.key_bytes, self.timing.length_ms + self.timing.delay_ms)

    def specs(
        self, plain: KeyValueSpec[Any, Any], terms: tuple[str, ...]
    ) -> tuple[InWindowsSpec, ...]:
        """Return the store of the windows."""
        return (self.spec(plain, terms),)

    def build(self, how: Aggregation[Any], windowing: Windowing) -> Build:
        """Build an aggregate per key and window.

        Its old values are None at the close of a window. It closes windows, too, when there was no
        input for the idle time, if there is one.
        """
        final, idle_ms = windowing.final, windowing.close_idle_ms
        timing, at_once = self.timing, self.timing.records_at_once
        folded = replace(how, every_update=how.every_update and not final)

        def build(context: NodeContext, forward: Forward) -> Push:
            windows = OpenWindows(how, timing, context, forward, final=final)
            clock = windows.clock
            tell = windows.count_updates if final else how.telling(forward)
            fold = self.folding(folded, context, clock, tell)
            idle = None
            if idle_ms is not None:
                idle = IdleClose(context, how.node, idle_ms, windows.close_all)
            windows.follow_time()

            def push_some(batch: Batch) -> None:
                if idle is not None:
                    idle.input_came()
                fold(batch)
                if final:
                    windows.emit_closed(batch)
                windows.expire(2 * timing.rows_each * len(batch) + _EXPIRED_AT_ONCE)

            if at_once is None:
                return push_some

            def push(batch: Batch) -> None:
                for start in range(0, len(batch), at_once):
                    push_some(batch.slice(start, start + at_once))

            return push

        return build


def folding(how: Aggregation[Any], fold: Callable[[Batch], Updates], tell: Tell) -> Push:
    """Return what tells the updates that `fold` makes of the records of a batch."""

    def push(batch: Batch) -> None:
        with processing(how.node, batch):
            updates = fold(batch)
        tell(batch, updates)

    return push


def known_keys(keys: MaybePacked) -> NDArray[np.bool_] | None:
    """Return which keys are there; None: all are."""
    return all_but(Column(raw=keys).nulls(), len(keys))


def all_but(places: list[int], size: int) -> NDArray[np.bool_] | None:
    """Return which of so many records are at none of these places; None: all are."""
    if not places:
        return None
    others = np.ones(size, np.bool_)
    others[places] = False
    return others


class OpenWindows:
    """The windows of one store, as time passes: what closes them, emits their results, and expires.

    `final`: each window has one result, at its close.
    """

    def __init__(
        self,
        how: Aggregation[Any],
        timing: Timing,
        context: NodeContext,
        forward: Forward,
        *,
        final: bool,
    ) -> None:
        self.clock = Closing(how, context, delay_ms=timing.delay_ms, final=final)
        self._spec = how.spec
        self._kind = kind_of(how.spec)
        self._timing = timing
        self._forward = forward
        self._final = final
        self._table = self.clock.table
        self._expired_ms = -1
        self._low = START.pack(0)
        self.clock.opened(self._still_open)

    def count_updates(self, _batch: Batch, updates: Updates) -> None:
        """Take in the updates of windows that are forwarded at their close."""
        self.clock.count_open(updates.more_rows)

    def follow_time(self) -> None:
        """Close and expire windows as time passes without records."""
        length, step, delay, *_ = self._timing

        def passed() -> None:
            if self._final:
                self.emit_closed(no_records())
            self.expire(_EXPIRED_AT_ONCE)

        def earliest(now_ms: int) -> int:
            return max(((now_ms - length - delay) // step + 1) * step, 0)

        self.clock.follow_time(passed, earliest)

    def emit_closed(self, batch: Batch) -> None:
        """Forward the windows that `batch` has closed and that were not emitted, by their times."""
        self._emit(*self.clock.take_closed(), batch)

    def close_all(self) -> None:
        """Close all windows there are, as if stream time had passed their ends, and forward them.

        The one that ends last is the last one of the latest record.
        """
        latest_ms, step = self.clock.latest_ms, self._timing.step_ms
        if latest_ms >= 0:
            last_end_ms = latest_ms - latest_ms % step + self._timing.length_ms
            self._emit(*self.clock.close_up_to(last_end_ms), no_records())

    def _emit(self, since_ms: int, closed_ms: int, batch: Batch) -> None:
        length = self._timing.length_ms
        low, high = max(since_ms - length + 1, 0), closed_ms - length
        if high >= low:
            with closing(self._between(low, high)) as closed:
                self.clock.emit(closed, batch, self._forward)

    def _between(self, low_ms: int, high_ms: int) -> Generator[Closed, None, None]:
        """Yield the windows whose rows begin with times between both, inclusive."""
        last = self._timing.length_ms - 1
        with self._table.scan(START.pack(low_ms), START.pack(high_ms + 1)) as rows:
            for row, value in rows:
                time = start_of(row)
                if time <= high_ms:
                    yield Closed(row, value, time + last)

    def _still_open(self) -> Generator[Closed, None, None]:
        """Yield the windows that have had no result."""
        after_ms = self.clock.emitted_ms - self._timing.length_ms
        return self._between(max(after_ms + 1, 0), self.clock.latest_ms)

    def expire(self, limit: int) -> None:
        """Delete up to `limit` rows of expired windows, the oldest first."""
        step = self._timing.step_ms
        last = (self.clock.now_ms - self._timing.retention_ms) // step * step
        if last < 0 or last <= self._expired_ms:
            return
        gone: dict[bytes, bytes | None] = {}
        end = START.pack(last + 1)
        with self._table.scan(self._low, end) as rows:
            for row, _ in rows:
                if start_of(row) > last or len(gone) == limit:
                    break
                gone[row] = None
        if len(gone) < limit:
            self._expired_ms, self._low = last, end
        if gone:
            gone |= self._kind.following(self._spec, gone, self._table.get_many)
            self._table.put_all(gone)
