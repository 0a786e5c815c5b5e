"""An engine with pending writes in front: one commit moves all tables and offsets at once.

Owned by one store, written by one thread; `maintain` may be called on another. Promises (SEMANTICS
S1-S4, S8, S10): pending writes are nowhere but in memory until `commit`; a commit is one atomic
engine batch; after a crash the engine holds some past commit whole, with that commit's offsets.
Committed but not yet durable writes are bounded by `LagLimits`.
"""

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from statestore.errors import StateStoreError, StoreClosed, TaskCorrupted
from statestore.faults import CrashPoint, reach
from statestore.metrics import StoreMetrics
from statestore.model.ids import Position, TopicPartition
from statestore.ports import Clock, Engine, Table, Writes
from statestore.stores import offsets as rows
from statestore.stores.overlay import ENTRY_COST, Overlay
from statestore.stores.parts import CountedWrites, Staged, StagedBytes

_COMPLETE_KEPT_MS = 86_400_000
"""How old what a store says of its completeness may get: well below any delete.retention.ms."""
Ranges = Mapping[str, Sequence[tuple[bytes, bytes]]]  # spans [from, to) of tables


@dataclass(frozen=True)
class LagLimits:
    """How much may be committed but not durable before a flush is forced (SEMANTICS S10).

    Bytes are those of keys and values, which is what a restore reads. The commit that reaches a
    limit asks for the flush, the next one waits for it.
    """

    max_bytes: int
    max_records: int
    max_ms: int


@dataclass(slots=True)
class _Lag:
    size_bytes: int = 0
    records: int = 0
    since_ms: int | None = None


class StagedEngine:
    """The transactional core under every built-in store."""

    def __init__(
        self,
        engine: Engine,
        *,
        kind: str,
        name: str,
        where: str,
        tables: tuple[str, ...],
        limits: LagLimits,
        clock: Clock,
        task: str | None = None,
        made: Collection[str] = (),
        segment_interval: Callable[[int | None], int] | None = None,
        flush_soon: "Callable[[StagedEngine], None] | None" = None,
    ) -> None:
        """Open over `engine`.

        Misuse, TaskCorrupted or FormatTooNew if it holds no `kind` store. `made`: the tables that
        were not there before the engine was opened. `segment_interval`: of a versioned store, ms,
        given the one on disk if any. `flush_soon`: has another thread call `catch_up`; without it
        a commit flushes itself.
        """
        self.name = name
        self.where = where
        self.inputs: Collection[TopicPartition] | None = None
        """The partitions its stream task reads; None: whoever commits may name any."""
        self.turn: Final = threading.Lock()
        """Held while a commit, a rollback or the end of a savepoint is under way.

        A reader holds it while it opens its snapshots and copies what is pending: all of these are
        then of one moment, whatever is read from them later (I26).
        """
        self._engine = engine
        self._kind = kind
        self._segment_interval = segment_interval
        self.segment_interval_ms: int | None = None
        self._limits = limits
        self._clock = clock
        self._overlays = {table: Overlay() for table in tables}
        self._staged: list[Staged] = list(self._overlays.values())
        self._sized: list[StagedBytes] = list(self._overlays.values())
        self._counted: CountedWrites | None = None
        self._open = True
        self._lag = _Lag()
        self._has_all = False
        self._flush_soon = flush_soon or StagedEngine.catch_up
        # Held while what is committed and what is durable are told apart: `maintain` and `catch_up`
        # may be called by other threads.
        self._settling = threading.RLock()
        meta = engine.table(rows.TABLE)
        try:
            self._adopt_format(meta, made)
            self._offsets: dict[TopicPartition, int] = rows.read_offsets(meta, where)
            self._position = rows.read_position(meta, where)
            self.complete_ms = rows.read_complete(meta, where)
            """When it had all that its log held; None: it does not say."""
        except Exception as error:
            raise self.failure(error) from error
        self._durable = dict(self._offsets)
        self._pending_position = self._position
        self.metrics = StoreMetrics(name, clock.monotonic(), self.uncommitted_bytes, task)

    def overlay(self, table: str) -> Overlay:
        """The pending writes of one table; the object never changes."""
        return self._overlays[table]

    def keep_in_step(self, part: Staged) -> None:
        """Mark, merge, undo and settle `part` with the pending writes from now on."""
        self._staged.append(part)

    def keep_sized(self, part: StagedBytes) -> None:
        """As `keep_in_step`; what it takes counts among the pending bytes."""
        self._sized.append(part)
        self.keep_in_step(part)

    def keep_counted(self, writes: CountedWrites) -> None:
        """As `keep_sized`; `writes` count as the pending ones, whatever rows they take."""
        self._counted = writes
        self.keep_sized(writes)

    def table(self, name: str) -> Table:
        """The committed rows of one table."""
        return self._engine.table(name)

    def persistent(self) -> bool:
        return self._engine.persistent()

    def is_open(self) -> bool:
        return self._open

    def check_open(self) -> None:
        """StoreClosed after close."""
        if not self._open:
            raise StoreClosed(f"store {self.name!r} is closed: open it again to use it")

    def failure(self, error: Exception) -> Exception:
        """What to raise for an engine's error, naming the store.

        Other errors come back as they are.
        """
        if not self._open:
            return StoreClosed(f"store {self.name!r} is closed: open it again to use it")
        ours = error
        if not isinstance(error, StateStoreError):
            ours = self._engine.failure(error) or error
        if isinstance(ours, TaskCorrupted):
            ours.store = self.name
        return ours

    def commit(
        self,
        offsets: Mapping[TopicPartition, int | None],
        position: Position | None = None,
        *,
        ranges: Ranges | None = None,
        more: Mapping[str, Writes] | None = None,
    ) -> None:
        """Make everything pending visible, with these offsets and position, in one engine batch.

        `ranges` are deleted first; `more`: rows over the pending ones. Misuse of a number that is
        no offset, before anything is written.
        """
        self.check_open()
        rows.check_offsets(offsets, self.name)
        started = self._clock.monotonic()
        if position is not None:
            self._pending_position = self._pending_position.merge(position)
        count, deletes = self.uncommitted_entries(), self._deletes()
        with self._settling:
            size = self._write_pending(offsets, ranges, more or {}, self._complete())
            self.metrics.committed(self._clock.monotonic() - started, count, deletes)
            self._count_lag(size, count)

    def commit_restored(self, offsets: Mapping[TopicPartition, int], records: int) -> None:
        """As `commit`, of `records` changelog records staged by a restore."""
        self.check_open()
        with self._settling:
            size = self._write_pending(offsets, None, {}, self._begun())
            self.metrics.restored(records)
            self._count_lag(size, records)

    def restore(
        self,
        table: str,
        writes: Writes,
        offsets: Mapping[TopicPartition, int],
        beside: Writes | None = None,
    ) -> None:
        """Changelog rows past the overlay, with the offsets they reach, in one batch (E8).

        `beside`: rows that go with the offsets.
        """
        self.check_open()
        size = sum(len(key) + len(value or b"") for key, value in writes.items())
        with self._settling:
            self._wait_for_flush()
            meta = rows.offset_rows(offsets, Position()) | self._begun()
            meta |= beside or {}
            self._write({table: writes, rows.TABLE: meta})
            self._note(offsets)
            self.metrics.restored(len(writes))
            self._count_lag(size, len(writes))

    def keep(self, table: str, writes: Writes) -> None:
        """Rows that hold whatever becomes of what is pending; durable when this returns."""
        with self._settling:
            self._write({table: writes})
            self.make_durable()

    def caught_up(self, position: Position) -> None:
        """It has all that its log holds, of that position: so every commit from now on says."""
        self._has_all = True
        now_ms = self._clock.now_ms()
        old = self.complete_ms is None or now_ms - self.complete_ms >= _COMPLETE_KEPT_MS
        if not self._position.covers(position) or (old and self._offsets):
            self.commit({}, position)
            if old:
                # Else a crash tail of today would pass for one as old as that.
                self.make_durable()

    def rollback(self) -> None:
        """Drop everything pending."""
        self.check_open()
        with self.turn:
            for part in self._staged:
                part.rollback()
            self._pending_position = self._position

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """A nested unit: merged at normal exit, undone on an exception (S8)."""
        self.check_open()
        for part in self._staged:
            part.mark()
        kept = False
        try:
            yield
            kept = True
        finally:
            if self._open:
                with self.turn:
                    for part in self._staged:
                        part.merge() if kept else part.undo()
        self.check_open()

    def maintain(self) -> int:
        """Flush if the lag is too old; the ms until it may be, without further commits.

        Called on idle stores too (SEMANTICS S10); harmless on a closed one.
        """
        left = self._ms_left()
        if left > 0:
            return left
        with self._settling:
            if self._open and self._ms_left() <= 0:
                self.make_durable()
        return self._limits.max_ms

    def catch_up(self) -> None:
        """Flush if the lag has reached a limit, unless that is done by now or the store closed."""
        with self._settling:
            if self._open and (self._full() or self._ms_left() <= 0):
                self.make_durable()

    def make_durable(self, target: Path | None = None) -> None:
        """Flush all tables atomically; `target`: also a copy of what is committed, a new folder."""
        with self._settling:
            reach(CrashPoint.STORE_FLUSH)
            flush = self._engine.flush
            self._guard(flush if target is None else lambda: self._engine.checkpoint(target))
            self._durable = dict(self._offsets)
            self._lag = _Lag()
            self.metrics.engine_flushes += 1

    def committed_offset(self, tp: TopicPartition) -> int | None:
        return self._offsets.get(tp) if self.persistent() else None

    def durable_offset(self, tp: TopicPartition) -> int | None:
        return self._durable.get(tp) if self.persistent() else None

    def committed_offsets(self) -> dict[TopicPartition, int]:
        """All changelog offsets committed."""
        return dict(self._offsets)

    def empty(self) -> bool:
        """Whether no row is committed."""
        for table in self._overlays:
            cursor = self._engine.table(table).scan()
            occupied = next(iter(cursor), None) is not None
            cursor.close()
            if occupied:
                return False
        return True

    def position(self, *, pending: bool) -> Position:
        return self._pending_position if pending else self._position

    def processed(self, bound: Position, *, pending: bool) -> bool:
        """Whether it has got as far as `bound` in all that it can ever process."""
        wanted = bound if self.inputs is None else bound.among(self.inputs)
        return self.position(pending=pending).covers(wanted)

    def uncommitted_bytes(self) -> int:
        return sum(part.size_bytes for part in self._sized)

    def uncommitted_entries(self) -> int:
        if self._counted is not None:
            return len(self._counted)
        return sum(len(overlay.entries) for overlay in self._overlays.values())

    def metrics_dict(self) -> dict[str, float]:
        return self.metrics.as_dict(self._clock.monotonic())

    def close(self) -> None:
        """Drop what is pending, flush, release."""
        if not self._open:
            return
        with self.turn:
            for part in self._staged:
                part.rollback()
        with self._settling:
            self._open = False
            self.metrics.closed()
            reach(CrashPoint.STORE_CLOSE)
            self._engine.close()

    def _adopt_format(self, meta: Table, made: Collection[str]) -> None:
        found = rows.check_format(meta, self._kind, self.where)
        if self._segment_interval is not None:
            stored = None if found is None else found.segment_interval_ms
            self.segment_interval_ms = self._segment_interval(stored)
        if found is not None:
            # The format is written when all tables are there, so one that is not has been lost.
            for table in self._overlays.keys() & set(made):
                raise TaskCorrupted(f"{self.where}: offsets without the table {table!r}")
            return
        if not self.empty():
            raise TaskCorrupted(f"{self.where}: data without a format row: not a whole store")
        self._write({rows.TABLE: rows.format_rows(self._kind, self.segment_interval_ms)})

    def _write_pending(
        self,
        offsets: Mapping[TopicPartition, int | None],
        ranges: Ranges | None,
        more: Mapping[str, Writes],
        complete: dict[bytes, bytes | None],
    ) -> int:
        """One engine batch, and what was pending is committed; the bytes of its keys and values."""
        self._wait_for_flush()
        writes: dict[str, Writes] = {
            table: overlay.entries for table, overlay in self._overlays.items() if overlay.entries
        }
        for table, over in more.items():
            if over:
                writes[table] = {**writes[table], **over} if table in writes else over
        meta = rows.offset_rows(offsets, self._pending_position)
        if meta:
            writes[rows.TABLE] = {**writes.get(rows.TABLE, {}), **meta, **complete}
        with self.turn:
            if writes or ranges:
                self._write(writes, ranges)
            self._position = self._pending_position
            self._note(offsets)
            size = self._bytes_to_restore()
            # Readers on other threads look at the overlay first, then the engine: clear only now.
            for part in self._staged:
                part.commit()
        return size

    def _complete(self) -> dict[bytes, bytes | None]:
        """For a commit: whoever wrote all of the log had all of it just now."""
        if not self._has_all:
            return {}
        self.complete_ms = self._clock.now_ms()
        return rows.complete_row(self.complete_ms)

    def _begun(self) -> dict[bytes, bytes | None]:
        """For a restore: one from the log's start lacks nothing that was logged before it began."""
        if self.complete_ms is not None:
            return {}
        self.complete_ms = self._clock.now_ms()
        return rows.complete_row(self.complete_ms)

    def _bytes_to_restore(self) -> int:
        """The bytes of keys and values that a restore of what is pending reads."""
        if self._counted is not None:
            return self._counted.logged_bytes
        overlays = self._overlays.values()
        return sum(each.size_bytes - ENTRY_COST * len(each.entries) for each in overlays)

    def _deletes(self) -> int:
        if self._counted is not None:
            return self._counted.deletes
        return sum(overlay.deletes for overlay in self._overlays.values())

    def _write(self, writes: Mapping[str, Writes], ranges: Ranges | None = None) -> None:
        self._guard(lambda: self._engine.write(writes, ranges=ranges))

    def _guard(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            raise self.failure(error) from error

    def _note(self, offsets: Mapping[TopicPartition, int | None]) -> None:
        for tp, offset in offsets.items():
            if offset is None:
                self._offsets.pop(tp, None)
            else:
                self._offsets[TopicPartition(*tp)] = offset

    def _count_lag(self, size_bytes: int, records: int) -> None:
        lag = self._lag
        lag.size_bytes += size_bytes
        lag.records += records
        if lag.since_ms is None:
            lag.since_ms = self._clock.now_ms()
        if self._full() or self._ms_left() <= 0:
            self._flush_soon(self)

    def _wait_for_flush(self) -> None:
        """Nothing more is written to a store that has reached a limit."""
        if self._full():
            self.make_durable()

    def _full(self) -> bool:
        lag, limits = self._lag, self._limits
        return lag.size_bytes >= limits.max_bytes or lag.records >= limits.max_records

    def _ms_left(self) -> int:
        """Until the lag is too old; the whole time if there is none."""
        since = self._lag.since_ms
        limit = self._limits.max_ms
        return limit if since is None else since + limit - self._clock.now_ms()
