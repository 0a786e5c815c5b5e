"""An engine with pending writes in front: one commit moves all tables and offsets at once.

It belongs to one store and is written by one thread; `maintain` and `catch_up` may be called on
others. It promises (SEMANTICS S1-S4, S8, S10) that pending writes are nowhere but in memory until
`commit` (I3), that a commit is one atomic engine batch, and that after a crash the engine holds
some past commit whole, with the offsets of that commit (I1). How much may be committed and not yet
durable is bounded by `durability.LagLimits`.
"""

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from statestore.errors import StateStoreError, StoreClosed, TaskCorrupted
from statestore.faults import CrashPoint, reach
from statestore.metrics import StoreMetrics
from statestore.model.ids import Position, TopicPartition
from statestore.ports import Clock, Engine, Table, Writes
from statestore.stores import offsets as rows
from statestore.stores.durability import FlushLag, LagLimits
from statestore.stores.pending import ENTRY_COST, CountedWrites, Overlay, Pending, SizedPending

_COMPLETE_KEPT_MS = 86_400_000
"""How old the recorded time of completeness may get: well below any delete.retention.ms."""
Ranges = Mapping[str, Sequence[tuple[bytes, bytes]]]  # spans [from, to) of tables
Tap = Callable[[Mapping[str, Writes], Ranges | None], None]


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

        Misuse, TaskCorrupted or FormatTooNew if it holds no store of this kind. `made`: the tables
        that did not exist before the engine was opened. `segment_interval` returns the interval of
        a versioned store in ms, given the one on disk if any. `flush_soon` has another thread call
        `catch_up`; without it, the commit itself flushes.
        """
        self.name = name
        self.where = where
        self.inputs: Collection[TopicPartition] | None = None
        """The partitions that its stream task reads; None: a commit may name any partition."""
        self.processed_last: Mapping[TopicPartition, int] = {}
        """The offsets processed last since the last commit. The stream task keeps and clears it."""
        self.turn: Final = threading.Lock()
        """Held while a commit, a rollback or the end of a savepoint is under way.

        A reader holds it while it opens its snapshots and copies what is pending: all of these are
        then of one moment, whatever is read from them later (I26).
        """
        self._engine = engine
        self._kind = kind
        self._segment_interval = segment_interval
        self.segment_interval_ms: int | None = None
        self._clock = clock
        self._overlays = {table: Overlay() for table in tables}
        self._parts: list[Pending] = list(self._overlays.values())
        self._sized: list[SizedPending] = list(self._overlays.values())
        self._savepoints: list[list[Any]] = []  # for each open one, a mark of each part
        self._counted: CountedWrites | None = None
        self.opened = True
        self._lag = FlushLag(limits, clock)
        self._has_all = False
        self.tap: Tap | None = None
        """Told of each batch once it is written; it must not keep the rows (docs/adr/0028)."""
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
            """When it had all that its log held; None: not recorded."""
        except Exception as error:
            raise self.failure(error) from error
        self._durable = dict(self._offsets)
        self.metrics = StoreMetrics(name, clock.monotonic(), self.uncommitted_bytes, task)

    def overlay(self, table: str) -> Overlay:
        """Return the pending writes of one table; it is always the same object."""
        return self._overlays[table]

    def keep_in_step(self, part: Pending) -> None:
        """Commit, roll back and undo `part` together with the pending writes from now on."""
        self._parts.append(part)

    def keep_sized(self, part: SizedPending) -> None:
        """Do as `keep_in_step`, and count the bytes of the part as pending."""
        self._sized.append(part)
        self.keep_in_step(part)

    def keep_counted(self, writes: CountedWrites) -> None:
        """Do as `keep_sized`, and count these writes, not rows, as the pending writes."""
        self._counted = writes
        self.keep_sized(writes)

    def table(self, name: str) -> Table:
        """Return the committed rows of one table."""
        return self._engine.table(name)

    def persistent(self) -> bool:
        return self._engine.persistent()

    def is_open(self) -> bool:
        return self.opened

    def check_open(self) -> None:
        """Raise StoreClosed after the close."""
        if not self.opened:
            raise StoreClosed(f"store {self.name!r} is closed: open it again to use it")

    def failure(self, error: Exception) -> Exception:
        """Return what to raise for an engine's error, naming the store.

        Other errors are returned unchanged.
        """
        if not self.opened:
            return StoreClosed(f"store {self.name!r} is closed: open it again to use it")
        return named_failure(error, self._engine, self.name)

    def commit(
        self,
        offsets: Mapping[TopicPartition, int | None],
        position: Position | None = None,
        *,
        ranges: Ranges | None = None,
        more: Mapping[str, Writes] | None = None,
    ) -> None:
        """Commit everything pending, with these offsets and position, in one engine batch.

        `ranges` are deleted first; `more` has rows that replace pending ones. Misuse is raised
        before anything is written if a number is not a valid offset.
        """
        self.check_open()
        rows.check_offsets(offsets, self.name)
        started = self._clock.monotonic()
        count, deletes = self.uncommitted_entries(), self._deletes()
        with self._settling:
            size = self._write_pending(offsets, position, ranges, more or {}, self._complete())
            self.metrics.committed(self._clock.monotonic() - started, count, deletes)
            self._count_lag(size, count)

    def now_ms(self) -> int:
        """Return the wall clock's time."""
        return self._clock.now_ms()

    def commit_restored(
        self,
        offsets: Mapping[TopicPartition, int],
        records: int,
        more: Mapping[str, Writes] | None = None,
    ) -> None:
        """Do as `commit`, for `records` changelog records that a restore has staged."""
        self.check_open()
        with self._settling:
            size = self._write_pending(offsets, None, None, more or {}, self._begun())
            self.metrics.restored(records)
            self._count_lag(size, records)

    def restore(
        self,
        table: str,
        writes: Writes,
        offsets: Mapping[TopicPartition, int],
        beside: Writes | None = None,
    ) -> None:
        """Write changelog rows past the overlay, with the offsets they reach, in one batch (E8).

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
        """Write rows independently of what is pending, and make them durable."""
        with self._settling:
            self._write({table: writes})
            self.make_durable()

    def caught_up(self, position: Position) -> None:
        """Note that it has all that its log holds, up to this position; commits record that."""
        self._has_all = True
        now_ms = self._clock.now_ms()
        old = self.complete_ms is None or now_ms - self.complete_ms >= _COMPLETE_KEPT_MS
        if not self._position.covers(position) or (old and self._offsets):
            self.commit({}, position)
            if old:
                # Otherwise today's tail would look as old as that after a crash.
                self.make_durable()

    def rollback(self) -> None:
        """Drop everything pending."""
        self.check_open()
        with self.turn:
            for part in self._parts:
                part.rollback()
            self._begin_savepoints_again()

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Open a nested unit, merged at normal exit and undone on an exception (S8)."""
        self.check_open()
        self._savepoints.append([part.mark() for part in self._parts])
        kept = False
        try:
            yield
            kept = True
        finally:
            if self.opened:
                with self.turn:
                    self._end_savepoint(undo=not kept)
        self.check_open()

    def maintain(self) -> int:
        """Flush if the lag is too old; return the ms until it may be, without further commits.

        This is called on idle stores too (SEMANTICS S10). It is harmless on a closed one.
        """
        left = self._lag.ms_left()
        if left > 0:
            return left
        with self._settling:
            if self.opened and self._lag.ms_left() <= 0:
                self.make_durable()
        return self._lag.ms_left()

    def catch_up(self) -> None:
        """Flush if the lag has reached a limit, unless that is done or the store is closed."""
        with self._settling:
            if self.opened and self._lag.is_due():
                self.make_durable()

    def make_durable(self, target: Path | None = None) -> None:
        """Flush all tables atomically.

        `target`: copy what is committed into this new folder as well.
        """
        with self._settling:
            reach(CrashPoint.STORE_FLUSH)
            flush = self._engine.flush
            self._guard(flush if target is None else lambda: self._engine.checkpoint(target))
            self._durable = dict(self._offsets)
            self._lag.clear()
            self.metrics.engine_flushes += 1

    def committed_offset(self, tp: TopicPartition) -> int | None:
        return self._offsets.get(tp) if self.persistent() else None

    def durable_offset(self, tp: TopicPartition) -> int | None:
        return self._durable.get(tp) if self.persistent() else None

    def committed_offsets(self) -> dict[TopicPartition, int]:
        """Return all committed changelog offsets."""
        return dict(self._offsets)

    def empty(self) -> bool:
        """Tell whether no row is committed."""
        for table in self._overlays:
            cursor = self._engine.table(table).scan()
            occupied = next(iter(cursor), None) is not None
            cursor.close()
            if occupied:
                return False
        return True

    def position(self, *, pending: bool) -> Position:
        """Return how far it has come at the last commit, or with what is pending (S14)."""
        # The owner's thread sets items meanwhile; a copy of a dict is one call in C.
        done = dict(self.processed_last) if pending else None
        return self._position.merge(Position(done)) if done else self._position

    def processed(self, bound: Position, *, pending: bool) -> bool:
        """Tell whether it has reached `bound` in all inputs that it can ever process."""
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
        """Drop what is pending, flush and release."""
        if not self.opened:
            return
        with self.turn:
            for part in self._parts:
                part.rollback()
        with self._settling:
            self.opened = False
            for overlay in self._overlays.values():
                overlay.close()
            self.metrics.closed()
            reach(CrashPoint.STORE_CLOSE)
            self._engine.close()

    def _adopt_format(self, meta: Table, made: Collection[str]) -> None:
        found = rows.check_format(meta, self._kind, self.where)
        if self._segment_interval is not None:
            stored = None if found is None else found.segment_interval_ms
            self.segment_interval_ms = self._segment_interval(stored)
        if found is not None:
            # The format is written once all tables exist, so a table that is missing was lost.
            for table in self._overlays.keys() & set(made):
                raise TaskCorrupted(f"{self.where}: offsets without the table {table!r}")
            return
        if not self.empty():
            raise TaskCorrupted(f"{self.where}: data without a format row: not a whole store")
        self._write({rows.TABLE: rows.format_rows(self._kind, self.segment_interval_ms)})

    def _write_pending(
        self,
        offsets: Mapping[TopicPartition, int | None],
        position: Position | None,
        ranges: Ranges | None,
        more: Mapping[str, Writes],
        complete: dict[bytes, bytes | None],
    ) -> int:
        """Commit what is pending in one engine batch; return the bytes of its keys and values."""
        self._wait_for_flush()
        writes: dict[str, Writes] = {
            table: overlay.entries for table, overlay in self._overlays.items() if overlay.entries
        }
        for table, over in more.items():
            if over:
                writes[table] = {**writes[table], **over} if table in writes else over
        position = self._position if position is None else self._position.merge(position)
        meta = rows.offset_rows(offsets, position)
        if meta:
            writes[rows.TABLE] = {**writes.get(rows.TABLE, {}), **meta, **complete}
        with self.turn:
            if writes or ranges:
                self._write(writes, ranges)
            self._position = position
            self._note(offsets)
            size = self._bytes_to_restore()
            # Readers on other threads look at the overlay first, so it is cleared only now.
            for part in self._parts:
                part.commit()
            self._begin_savepoints_again()
        return size

    def _complete(self) -> dict[bytes, bytes | None]:
        """Return the row that records that the store has all that its log holds."""
        if not self._has_all:
            return {}
        self.complete_ms = self._clock.now_ms()
        return rows.complete_row(self.complete_ms)

    def _begun(self) -> dict[bytes, bytes | None]:
        """Return that row for a restore from the start of the log, which misses nothing older."""
        if self.complete_ms is not None:
            return {}
        self.complete_ms = self._clock.now_ms()
        return rows.complete_row(self.complete_ms)

    def _bytes_to_restore(self) -> int:
        """Return the bytes of keys and values that a restore of what is pending would read."""
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
        if self.tap is not None:
            self.tap(writes, ranges)

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

    def _end_savepoint(self, *, undo: bool) -> None:
        """Close the innermost savepoint. The caller holds the turn."""
        marks = self._savepoints.pop()
        if undo:
            for part, mark in zip(self._parts, marks, strict=True):
                part.go_back(mark)
        if not self._savepoints:
            for part in self._parts:
                part.forget_marks()

    def _begin_savepoints_again(self) -> None:
        """Keep savepoints open after a commit or a rollback; they now go back to this point."""
        self._savepoints = [[part.mark() for part in self._parts] for _ in self._savepoints]

    def _count_lag(self, size_bytes: int, records: int) -> None:
        self._lag.add(size_bytes, records)
        if self._lag.is_due():
            self._flush_soon(self)

    def _wait_for_flush(self) -> None:
        """Flush a store that has reached a limit before anything more is written to it."""
        if self._lag.is_full():
            self.make_durable()


def named_failure(error: Exception, engine: Engine, store: str) -> Exception:
    """Return an engine's error as one of ours that names the store; others as they are."""
    ours = error
    if not isinstance(error, StateStoreError):
        ours = engine.failure(error) or error
    if isinstance(ours, TaskCorrupted):
        ours.store = store
    return ours
