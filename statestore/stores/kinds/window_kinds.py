"""The kinds of stores whose keys are in windows: window stores and session stores.

Their rows are those of a key-value store in bytes, and begin with the times of a window, where the
keys of the changelog end with them. Further rows find the windows of a key, and follow from them
(stores/in_windows.py).
"""

import sys
from abc import abstractmethod
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, ClassVar

from statestore.errors import Misuse
from statestore.model.batch import Batch
from statestore.model.modes import IsolationLevel
from statestore.model.records import SESSION_BYTES, WINDOW_BYTES, Serde
from statestore.ports import Writes
from statestore.serdes import composed
from statestore.stores import in_windows, sessions, windows
from statestore.stores.in_windows import TIME_ROW, UNLOGGED, start_of
from statestore.stores.keyvalue import TransactionalKeyValueStore
from statestore.stores.kinds.kind import (
    BuiltIn,
    Columns,
    Later,
    LoggedChanges,
    LoggedRow,
    LookUp,
    StoreKind,
    StoreTerms,
)
from statestore.stores.pending import Entries
from statestore.stores.reads import Entry, RowScan
from statestore.stores.sessions import SPAN, SessionReader, TransactionalSessionStore
from statestore.stores.specs import InWindowsSpec, SessionSpec, WindowSpec
from statestore.stores.transaction import StagedEngine
from statestore.stores.windows import TransactionalWindowStore, WindowReader

# Stream time, behind it how far final results have gone, and behind that the latest time seen.
_CLOCK_BYTES = (WINDOW_BYTES, 2 * WINDOW_BYTES, 3 * WINDOW_BYTES)


class KindInWindows(StoreKind):
    """What both kinds share."""

    has_windows = True
    keys_field = "inner"
    unlogged_from = UNLOGGED
    own_rows = (TIME_ROW, UNLOGGED)
    clock_row = TIME_ROW
    span_columns = ("window_start", "window_end")
    span_bytes: ClassVar[int]
    """How many bytes of a key of the changelog are its window."""

    def owner(
        self,
        staged: StagedEngine,
        spec: InWindowsSpec,
        *,
        level: IsolationLevel,
        owned_by_task: bool,
    ) -> BuiltIn:
        rows = TransactionalKeyValueStore(
            staged, spec.rows, isolation_level=level, owned_by_task=owned_by_task
        )
        made: BuiltIn = self.owner_class(rows, spec)
        return made

    def hold_time(self, store: Any, limit_ms: int | None) -> None:
        store.hold_time(limit_ms)

    def windows(
        self, reader: Any, key: bytes, *, from_ms: int | None, to_ms: int | None
    ) -> RowScan[Entry]:
        found: RowScan[Any] = reader.fetch(key, from_time=from_ms, to_time=to_ms)
        return found.through(
            lambda pairs: (Entry(key, value, of.start_ms, of.end_ms) for of, value in pairs)
        )

    def within(
        self,
        reader: Any,
        lo: bytes | None,
        hi: bytes | None,
        *,
        from_ms: int | None,
        to_ms: int | None,
    ) -> RowScan[Entry]:
        if lo is not None and lo == hi:
            return self.windows(reader, lo, from_ms=from_ms, to_ms=to_ms)
        found: RowScan[Any] = reader.range(lo, hi, from_time=from_ms, to_time=to_ms)
        return found.through(
            lambda pairs: (Entry(of.key, value, of.start_ms, of.end_ms) for of, value in pairs)
        )

    def logged_keys(self, rows: Sequence[bytes]) -> list[bytes | None]:
        keys = self.keys_of(rows)
        if max(rows, default=b"") < UNLOGGED:
            return keys
        return [key if row < UNLOGGED else None for key, row in zip(keys, rows, strict=True)]

    def strangers(self, batch: Batch) -> list[int]:
        """Return the records whose keys end with no window that there can be."""
        keys = [key for key in batch.keys.objects if key is not None]
        if min(map(len, keys), default=0) >= self.span_bytes and max(self.rows_of(keys)) < UNLOGGED:
            return []
        pairs = zip(batch.keys.objects, batch.values.objects, strict=True)
        return [i for i, (key, value) in enumerate(pairs) if not self._may_be_ours(key, value)]

    def _may_be_ours(self, key: bytes | None, value: bytes | None) -> bool:
        if key == TIME_ROW:
            return value is None or len(value) in _CLOCK_BYTES
        known = key is None or len(key) >= self.span_bytes
        return known and (key is None or self.rows_of([key])[0] < UNLOGGED)

    def rows_in_log(self, batch: Batch, terms: StoreTerms) -> LoggedChanges:
        found = super().rows_in_log(batch, terms)
        spans = [self.span_in(key, terms) for key in found.keys]
        return found._replace(
            keys=[key[: -self.span_bytes] for key in found.keys],
            begins=[begins for begins, _ in spans],
            ends=[ends for _, ends in spans],
        )

    def placing_keys(self, spec: InWindowsSpec, batch: Batch) -> list[bytes | None]:
        """Return the keys without their windows; None for the record of stream time."""
        place, width = composed.placed_by(spec.inner.name), self.span_bytes
        keys = [
            None if key is None or key == TIME_ROW else key[:-width] for key in batch.keys.objects
        ]
        return keys if place is None else [None if key is None else place(key) for key in keys]

    def about_all(self, spec: InWindowsSpec, rows: Sequence[LoggedRow]) -> list[LoggedRow]:  # noqa: ARG002
        """Return the latest stream time. Misuse if final results have gone out differently far."""
        clocks = [(row, row.value) for row in rows if row.key == TIME_ROW and row.value]
        if not clocks:
            return []
        size = in_windows.START.size
        emitted = {value[size : 2 * size] for _, value in clocks}
        if len(emitted) > 1:
            raise Misuse(
                "each window has one result, at its close, and the partitions have closed windows "
                "up to different times, so some would have none or two: produce a record of one "
                "and the same time, later than all others, into each partition, and process them"
            )
        parts = [[value[i : i + size] for i in range(0, len(value), size)] for _, value in clocks]
        latest = [max(times) for times in zip_longest(*parts, fillvalue=b"")]
        newest = max((row for row, _ in clocks), key=lambda row: row.time_ms)
        return [newest._replace(value=b"".join(latest))]

    @abstractmethod
    def span_in(self, key: bytes, terms: StoreTerms) -> tuple[int, int]:
        """Return the start and the end of the window in a key of the changelog."""

    @abstractmethod
    def keys_of(self, rows: Sequence[bytes]) -> list[bytes | None]:
        """Return the keys in the changelog of rows that it has."""


class WindowKind(KindInWindows):
    """A window store. A row begins with the start of its window."""

    name = WindowSpec.kind
    specs = (WindowSpec,)
    owner_class = TransactionalWindowStore
    reader_class = WindowReader
    beside = b"tm"
    span_bytes = WINDOW_BYTES

    def terms(self, spec: WindowSpec[Any, Any]) -> StoreTerms:
        return StoreTerms(spec.retention_ms, spec.size_ms, spec.advance_ms, spec.includes_end)

    def spec_at_rest(
        self, name: str, keys: Serde[Any], values: Serde[Any], terms: StoreTerms
    ) -> WindowSpec[Any, Any]:
        return WindowSpec(
            name,
            keys,
            values,
            terms.window_ms or 0,
            _kept_ms(terms),
            advance_ms=terms.advance_ms,
            includes_end=terms.includes_end,
        )

    def keeps_times(self, spec: WindowSpec[Any, Any]) -> bool:
        return spec.rows.row_times

    def span_in(self, key: bytes, terms: StoreTerms) -> tuple[int, int]:
        start = start_of(key[-WINDOW_BYTES:])
        return start, start + (terms.window_ms or 0)

    def keys_of(self, rows: Sequence[bytes]) -> list[bytes | None]:
        return windows.keys_of(rows)

    def rows_of(self, keys: list[bytes]) -> list[bytes]:
        return list(map(windows.row_of, keys))

    def following(self, spec: WindowSpec[Any, Any], writes: Writes, look: LookUp) -> Entries:  # noqa: ARG002
        return windows.indexed(writes) if spec.any_start else {}

    def seen_in_log(self, rows: Columns, clock: bytes | None, terms: StoreTerms) -> Columns:
        gone_ms = windows.expired_ms(clock, _kept_ms(terms))
        found = [
            (windows.row_of(key), value)
            for key, value in zip(rows.keys, rows.values, strict=True)
            if key is not None and len(key) >= WINDOW_BYTES and start_of(key[-8:]) > gone_ms
        ]
        starts: list[int | None] = [start_of(row) for row, _ in found]
        size_ms = terms.window_ms or 0
        return Columns(
            [row[8:] for row, _ in found],
            [value for _, value in found],
            starts,
            [start_of(row) + size_ms for row, _ in found],
        )


class SessionKind(KindInWindows):
    """A session store. A row begins with the end and the start of its session."""

    name = SessionSpec.kind
    specs = (SessionSpec,)
    owner_class = TransactionalSessionStore
    reader_class = SessionReader
    rows_have_times = True
    span_bytes = SESSION_BYTES

    def terms(self, spec: SessionSpec[Any, Any]) -> StoreTerms:
        return StoreTerms(spec.retention_ms)

    def spec_at_rest(
        self, name: str, keys: Serde[Any], values: Serde[Any], terms: StoreTerms
    ) -> SessionSpec[Any, Any]:
        return SessionSpec(name, keys, values, _kept_ms(terms))

    def span_in(self, key: bytes, terms: StoreTerms) -> tuple[int, int]:  # noqa: ARG002
        end, start = SPAN.unpack(key[-SESSION_BYTES:])
        return start, end

    def keys_of(self, rows: Sequence[bytes]) -> list[bytes | None]:
        return sessions.keys_of(rows)

    def rows_of(self, keys: list[bytes]) -> list[bytes]:
        return list(map(sessions.row_of, keys))

    def following(self, spec: SessionSpec[Any, Any], writes: Writes, look: LookUp) -> Entries:  # noqa: ARG002
        return sessions.listed(writes, look)

    def seen_in_log(self, rows: Columns, clock: bytes | None, terms: StoreTerms) -> Columns:
        return Columns(*sessions.columns_of(rows.keys, rows.values, clock, _kept_ms(terms)))

    def times_of(self, rows: Sequence[bytes]) -> list[int]:
        """Return the ends of sessions: a session ends with the record that made its row."""
        return list(map(in_windows.start_of, rows))

    def later(self, table: Any) -> Later:  # noqa: ARG002
        def later(keys: list[bytes], times: list[int]) -> list[int]:
            ends = [SPAN.unpack(key[-SESSION_BYTES:])[0] for key in keys]
            return list(map(max, ends, times))

        return later


def _kept_ms(terms: StoreTerms) -> int:
    """Return how long windows show; without limit if that was not recorded."""
    return sys.maxsize if terms.retention_ms is None else terms.retention_ms
