"""Event time of a store with windows: what is late, what is closed, and what closed windows emit.

Stream time here is the largest timestamp of records with a key, as far as no upstream task holds it
back. It is a row of the store, so it is committed and restored with the windows it decides about.
With ON_WINDOW_CLOSE how far results have gone is kept beside it, and while upstream tasks hold time
back, so is the latest time of a record. So a start with another grace neither leaves out a window
nor gives one a second result, even if results went out on update for a while.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from statestore.errors import Misuse
from statestore.model.batch import Batch, Column
from statestore.model.modes import PunctuationType, Span, span_ms
from statestore.stores.in_windows import START, TIME_ROW, start_of
from statestore.stores.kinds.registry import kind_of
from statestore.stores.staged_table import StagedTable
from statestore.topology.aggregates.folds import Aggregation
from statestore.topology.failures import Stage, failed
from statestore.topology.nodes import Earliest, Forward, Held, NodeContext

LATEST_MS: Final = 2**62
"""The latest time of a record in a window: the end of no window is beyond the largest integer."""
_EMITTED_AT_ONCE = 10_000
_IDLE_PARTS = 10
_WINDOW: Final = "the result of key {in_window} in the window from {start}, up to {time},"
_SESSION: Final = "the result of key {in_session} in the session from {start} to {time}"


class Closed(NamedTuple):
    """A closed window: its row, its value, and its last moment."""

    row: bytes
    value: bytes
    last_ms: int


class WindowCloses(NamedTuple):
    """When the windows of a table close, as its keys say under their serde.

    A time in the key begins `from_end` bytes before its end: the start of a window, or the end of a
    session. The window is closed once stream time has passed that time by at least `after_ms`.
    """

    from_end: int
    after_ms: int

    def times(self, keys: Sequence[bytes]) -> list[int]:
        """Return the time in each key."""
        begin, stop = -self.from_end, START.size - self.from_end or None
        found: list[int] = np.frombuffer(
            b"".join([key[begin:stop] for key in keys]), ">i8"
        ).tolist()
        return found


class IdleClose:
    """Closes the windows of a node that has had no input for `idle_ms` by the wall clock.

    Time counts while the stream task is open, in tenths of `idle_ms`. So windows close no earlier
    than said, and up to two tenths later.
    """

    def __init__(
        self, context: NodeContext, node: str, idle_ms: int, close: Callable[[], None]
    ) -> None:
        self._idle_ms = idle_ms
        self._close = close
        self._had_input = True
        self._since_ms = 0
        every_ms, now_ms = max(idle_ms // _IDLE_PARTS, 1), context.wall_clock_ms()
        context.schedule(node, every_ms, PunctuationType.WALL_CLOCK_TIME, self._fire, now_ms)

    def input_came(self) -> None:
        """Note that the node had input."""
        self._had_input = True

    def _fire(self, now_ms: int) -> None:
        if self._had_input:
            self._had_input, self._since_ms = False, now_ms
        elif now_ms - self._since_ms >= self._idle_ms:
            self._since_ms = now_ms
            self._close()


def checked_idle_ms(close_idle_ms: Span | None) -> int | None:
    """Return the time in ms after which idle windows close; Misuse if it is not positive."""
    idle_ms = None if close_idle_ms is None else span_ms(close_idle_ms)
    if idle_ms is not None and idle_ms < 1:
        raise Misuse(
            f"close_idle is {idle_ms}, but it must be at least 1: leave it out to close windows "
            "by event time alone"
        )
    return idle_ms


def idle_terms(close_idle_ms: int | None) -> tuple[str, ...]:
    """Return what a fingerprint says of the time after which idle windows close."""
    return () if close_idle_ms is None else (f"close idle {close_idle_ms}",)


class Closing:
    """The clock of one store with windows, and the results that go out as its windows close."""

    def __init__(
        self, how: Aggregation[Any], context: NodeContext, *, delay_ms: int, final: bool
    ) -> None:
        """`delay_ms`: how far stream time must pass the end of a window before it is closed.

        `final`: each window has one result, at its close.
        """
        self.table: StagedTable = context.table(how.spec.name)
        self._node = how.node
        self._spec = how.spec
        self._kind = kind_of(how.spec)
        self._context = context
        self._old_values = how.old_values
        self._delay_ms = delay_ms
        self._final_only = final
        stored = self.table.get(TIME_ROW)
        self.now_ms = -1 if stored is None else start_of(stored)
        told, ahead = b"", b""
        if stored is not None:
            told, ahead = stored[START.size : 2 * START.size], stored[2 * START.size :]
        self._keeps_emitted = final or bool(told)
        self._emitted_ms = start_of(told) if told else self._closed_ms() if final else -1
        self._seen = np.zeros(0, np.int64)
        """The time of this store at each record of the last batch."""
        self._ahead_ms = start_of(ahead) if ahead else -1
        """The latest time of a record here, however far upstream tasks have come."""

    @property
    def latest_ms(self) -> int:
        """The latest time of a record, which upstream tasks may hold back; -1: there was none."""
        return max(self.now_ms, self._ahead_ms)

    @property
    def emitted_ms(self) -> int:
        """Up to when windows have had their result."""
        return self._emitted_ms

    def opened(self, still_open: Callable[[], Generator[Closed, None, None]]) -> None:
        """Register the windows that have had no result as held back, if each has only one."""

        def count() -> int:
            with closing(still_open()) as found:
                return sum(1 for _ in found)

        if self._final_only:
            self._context.held_back.opened(self._spec.name, count)

    def count_open(self, by: int) -> None:
        """Note that so many more windows have had no result; negative: fewer."""
        if by:
            self._context.held_back.changed(self._spec.name, by)

    def observe(
        self, batch: Batch, times: NDArray[np.int64], known: NDArray[np.bool_] | None
    ) -> NDArray[np.int64]:
        """Take in the times of a batch's records; `known`: which have a key; None: all.

        Return the time up to which windows are closed at each record. NodeFailed for a record whose
        time has no place among the rows of windows.
        """
        seen = times if known is None else np.where(known, times, -1)
        latest_ms = int(seen.max())
        if latest_ms > LATEST_MS:
            raise self._too_late_a_time(batch, seen)
        bound_ms = self._context.time_bound()
        is_ahead = False
        if bound_ms is not None:
            is_ahead = latest_ms > max(self._ahead_ms, bound_ms)
            self._ahead_ms = max(self._ahead_ms, latest_ms)
            seen = np.minimum(seen, bound_ms)
        now = np.maximum(np.maximum.accumulate(seen), self.now_ms)
        had_last = self._emitted_ms if self._final_only else -1
        closed: NDArray[np.int64] = np.maximum(now - self._delay_ms, had_last)
        self._seen = now
        self._advance(int(now[-1]))
        if is_ahead:
            self._put_times()
        return closed

    def follow_time(self, passed: Callable[[], None], earliest: Earliest) -> None:
        """Have `passed` called when the time of the store has risen without a record.

        `earliest`: for each stream time, the first moment of what is not yet closed.
        """

        def advance(now_ms: int, bound_ms: int) -> None:
            now_ms = max(now_ms, min(self._ahead_ms, bound_ms))
            if now_ms > self.now_ms:
                self._advance(now_ms)
                passed()

        self._context.when_time_passes(self._node, advance)
        if self._final_only:
            self._context.keeps_back(self._node, earliest)

    def drop_late(self, batch: Batch, indices: Sequence[int], misses: int) -> None:
        """Count `misses`, the windows that came too late, and drop the records at `indices`."""
        self.table.count_late(misses)
        if indices:
            self._context.drop(self._node, batch, indices, "late")

    def take_closed(self) -> tuple[int, int]:
        """Return since when and up to when windows have closed that have not had their result."""
        return self.close_up_to(self._closed_ms())

    def close_up_to(self, closed_ms: int) -> tuple[int, int]:
        """Take windows as closed up to that time; return since when they have had no result."""
        since_ms = self._emitted_ms
        if closed_ms > since_ms:
            self._emitted_ms = closed_ms
            self._put_times()
        return since_ms, closed_ms

    def emit(self, closed: Iterable[Closed], batch: Batch, forward: Forward) -> None:
        """Forward the results of windows that `batch` has closed."""
        left = iter(closed)
        while found := list(islice(left, _EMITTED_AT_ONCE)):
            self.count_open(-len(found))
            what = _SESSION if self._kind.rows_have_times else _WINDOW
            held = Held(self._spec.name, self._results(found, batch), what=what)
            self._context.release(self._node, held, lambda made: forward(made, None))

    def _results(self, found: list[Closed], batch: Batch) -> Batch:
        rows, lasts = [one.row for one in found], [one.last_ms for one in found]
        serde = self._spec.value_serde
        stream_times, headers = None, None
        if batch.stream_times is not None or batch.headers is not None:
            # Each window was closed by the first record that took stream time far enough.
            closed_at = np.array(lasts) + 1 + self._delay_ms
            places = np.searchsorted(self._seen, closed_at).clip(max=len(batch) - 1).tolist()
            headers = batch.headers_at(places)
            if batch.stream_times is not None:
                stream_times = list(map(batch.stream_times.__getitem__, places))
        return Batch(
            keys=Column(
                raw=self._kind.logged_keys(rows),
                serde=self._spec.key_serde,
            ),
            values=Column(raw=[one.value for one in found], serde=serde),
            timestamps=self._stamps(rows, lasts),
            headers=headers,
            old_values=Column(raw=[None] * len(found), serde=serde)
            if self._old_values.enabled
            else None,
            stream_times=stream_times,
        )

    def _stamps(self, rows: list[bytes], lasts: list[int]) -> list[int]:
        """Return the time of the latest record in each window; a session ends with it."""
        if self._kind.rows_have_times:
            return lasts
        # Older versions kept no times.
        known = zip(self.table.times_of(rows), lasts, strict=True)
        return [last if time is None else time for time, last in known]

    def _too_late_a_time(self, batch: Batch, seen: NDArray[np.int64]) -> Exception:
        found: list[tuple[int, Exception]] = [
            (
                place,
                ValueError(f"time {seen[place]} is above {LATEST_MS}, the latest of windows"),
            )
            for place in np.flatnonzero(seen > LATEST_MS).tolist()
        ]
        return failed(Stage.PROCESSING, self._node, batch, found[0][1], found=found, certain=True)

    def _closed_ms(self) -> int:
        """Return the time up to which windows are closed; negative: none is."""
        return -1 if self.now_ms < 0 else self.now_ms - self._delay_ms

    def _advance(self, now_ms: int) -> None:
        if now_ms > self.now_ms:
            self.now_ms = now_ms
            if not self._final_only:
                self._emitted_ms = max(self._emitted_ms, self._closed_ms())
            self._put_times()

    def _put_times(self) -> None:
        row = START.pack(self.now_ms)
        is_ahead = self._ahead_ms > self.now_ms
        if self._keeps_emitted or is_ahead:
            row += START.pack(self._emitted_ms)
        if is_ahead:
            row += START.pack(self._ahead_ms)
        self.table.put(TIME_ROW, row)
