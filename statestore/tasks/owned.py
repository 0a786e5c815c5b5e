"""One store as its stream task sees it: a built-in store, or one of a user's own class.

The task commits, restores and rolls back; processors only read and write (docs/adr/0006).
"""

import logging
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Protocol

from statestore.errors import Misuse, StateStoreError, TaskCorrupted, log_left
from statestore.layout.snapshots import StoreOffsets
from statestore.model.batch import Batch
from statestore.model.ids import Position, TaskId, TopicPartition
from statestore.stores.contracts import StateStore, StoreContext
from statestore.stores.expiry import ExpiringTable
from statestore.stores.kinds.kind import BuiltIn
from statestore.stores.kinds.registry import kind_of
from statestore.stores.pending import Overlay
from statestore.stores.row_times import WriteTime
from statestore.stores.specs import StoreSpec, StoreSupplier
from statestore.stores.staged_table import Changes, StagedTable
from statestore.stores.transaction import Tap
from statestore.stores.versioned.table import VersionedTable
from statestore.tasks.memory_share import Usage
from statestore.tasks.store_log import StoreLog

_log = logging.getLogger(__name__)
IN_MEMORY = "it is in memory"


class OwnedStore(Protocol):
    """A store of a task and the log that mirrors it."""

    @property
    def name(self) -> str: ...
    @property
    def spec(self) -> StoreSpec: ...
    @property
    def store(self) -> Any:
        """What processors get."""

    @property
    def log(self) -> StoreLog:
        """The Kafka log that mirrors it."""

    @property
    def where(self) -> str:
        """Its folder, for messages."""

    def table(self) -> StagedTable:
        """Return its rows in bytes, for built-in operators; Misuse if it is of another kind."""

    def versions(self) -> VersionedTable:
        """Return its versions in bytes, for built-in operators; Misuse if it is of another kind."""

    def persistent(self) -> bool: ...
    def manages_offsets(self) -> bool: ...

    def offset(self) -> int | None:
        """Return the offset of its log NEXT to read; None if the store has none."""

    def occupied(self) -> bool:
        """Return whether it may hold rows from before it was opened."""

    def adopt(self, offset: int | None, position: Position) -> None:
        """Take over, durably, what files beside it say."""

    def restore(self, batch: Batch, offset_next: int) -> int:
        """Write rows of its log, together with the offset that they reach.

        Return how many records were passed over, because they are no rows of such a store.
        """

    def complete_ms(self) -> int | None:
        """Return when it last had all that its log held; None: not known."""

    def caught_up(self, position: Position) -> None:
        """Note that it has all that its log holds, and so all input up to this position (I1)."""

    def reached(self, stream_time_ms: int) -> None:
        """Take in the stream time of the last commit, by which rows may expire."""

    def hold_time(self, bound_ms: int | None) -> None:
        """Let rows expire as if stream time were no later than that (SEMANTICS E4d)."""

    def changes(self, otherwise_ms: int) -> Changes:
        """Return what the next commit logs: the last value of each key, or every version.

        `otherwise_ms`: the time of changes that were not caused by a record.
        """

    @property
    def clock(self) -> WriteTime | None:
        """What is told the time of each record processed; None: writes have their own times."""

    def commit(self, offset: int | None, position: Position) -> None:
        """Commit what is pending; `offset` is None if the commit added nothing to its log."""

    def rollback(self) -> None:
        """Drop what is pending; TaskCorrupted if it cannot."""

    def usage(self) -> Usage: ...

    def maintain(self) -> None:
        """Keep its durable lag bounded while it is idle (SEMANTICS S10)."""

    def checkpoint(self, target: Path) -> StoreOffsets | None:
        """Put its files as of the last commit into a new folder; return None if it cannot."""

    def tap(self, tap: Tap | None) -> None:
        """Tell `tap` of each batch from now on, or nobody; a store without files tells nobody."""

    @property
    def why_no_snapshot(self) -> str: ...

    def close(self) -> bool:
        """Drop what is pending, flush and release; return whether that succeeded."""


class OpenStore:
    """A store of ours; its kind says how its rows and its changelog belong together."""

    def __init__(
        self,
        store: BuiltIn,
        log: StoreLog,
        inputs: Collection[TopicPartition] | None = None,
        processed_last: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """`inputs`: what its task reads.

        `processed_last`: how far the task has come since its last commit (S14).
        """
        self.store: Any = store
        self.log = log
        self.spec: StoreSpec = store.spec
        self.name = store.name
        self._kind = kind_of(self.spec)
        self.where = store.staged.where
        self._staged = store.staged
        self._staged.inputs = inputs
        if processed_last is not None:
            self._staged.processed_last = processed_last
        self._table: StagedTable | VersionedTable = store.table

    def table(self) -> StagedTable:
        if isinstance(self._table, StagedTable):
            return self._table
        raise Misuse(
            f"store {self.name!r} is a versioned store: this operator keeps one value per key"
        )

    def versions(self) -> VersionedTable:
        if isinstance(self._table, VersionedTable):
            return self._table
        raise Misuse(f"store {self.name!r} keeps no versions: give it a history_retention_ms")

    def persistent(self) -> bool:
        return self._staged.persistent()

    def manages_offsets(self) -> bool:
        return True

    def offset(self) -> int | None:
        # An in-memory store has an offset here too, though it returns None itself (SEMANTICS S15).
        return self._staged.committed_offsets().get(self.log.tp)

    def occupied(self) -> bool:
        return not self._staged.empty()

    def adopt(self, offset: int | None, position: Position) -> None:
        self._table.commit({} if offset is None else {self.log.tp: offset}, position)
        self._staged.make_durable()

    def restore(self, batch: Batch, offset_next: int) -> int:
        strange = self._kind.strangers(batch)
        batch = batch.without(strange)
        self._kind.restore(self.store, batch, {self.log.tp: offset_next})
        return len(strange)

    def complete_ms(self) -> int | None:
        if self._staged.complete_ms is not None or not self.persistent():
            return self._staged.complete_ms
        # An older version kept no such time, but the files show when they were last flushed.
        flushed = [path.stat().st_mtime_ns // 1_000_000 for path in Path(self.where).glob("*.sst")]
        return max(flushed, default=None)

    def caught_up(self, position: Position) -> None:
        self._staged.caught_up(position)

    def reached(self, stream_time_ms: int) -> None:
        if isinstance(self._table, ExpiringTable):
            self._table.reached(stream_time_ms)

    def hold_time(self, bound_ms: int | None) -> None:
        self._kind.hold_time(self.store, bound_ms)

    @property
    def clock(self) -> WriteTime | None:
        if isinstance(self._table, StagedTable) and self._table.times is not None:
            return self._table.times.clock
        return None

    def changes(self, otherwise_ms: int) -> Changes:
        return self._kind.changes(self.store, otherwise_ms)

    def commit(self, offset: int | None, position: Position) -> None:
        self._table.commit({} if offset is None else {self.log.tp: offset}, position)

    def rollback(self) -> None:
        self._staged.rollback()

    def usage(self) -> Usage:
        return Usage(self._staged.uncommitted_bytes(), self._staged.uncommitted_entries())

    def maintain(self) -> None:
        self._staged.maintain()

    def checkpoint(self, target: Path) -> StoreOffsets | None:
        if not self.persistent():
            return None
        self._staged.make_durable(target)
        position = self._staged.position(pending=False)
        return StoreOffsets.of(self._staged.committed_offsets(), position.as_dict())

    def tap(self, tap: Tap | None) -> None:
        if self.persistent():
            self._staged.tap = tap

    @property
    def why_no_snapshot(self) -> str:
        return IN_MEMORY

    def close(self) -> bool:
        try:
            self._staged.close()
        except StateStoreError as error:
            log_left(_log, error, f"store {self.name!r}: while closing")
            return False
        return True


class SuppliedStore:
    """A store of a user's own class. The changes that it logs are kept here until the commit."""

    def __init__(
        self,
        spec: StoreSupplier[Any],
        folder: Path,
        task_id: TaskId,
        log: StoreLog,
        before_write: Callable[[], None],
    ) -> None:
        """`before_write` is called before each change is logged."""
        self.spec = spec
        self.name = spec.name
        self.log = log
        self.where = str(folder)
        self._before_write = before_write
        self._logged = Overlay()
        self._times: dict[bytes, int] = {}
        self.clock = WriteTime()
        self._found = folder.is_dir() and any(folder.iterdir())
        self._offset: int | None = None
        self._restored = False
        folder.mkdir(parents=True, exist_ok=True)
        self.store: StateStore = spec.open(StoreContext(task_id, folder, log.tp, self._note))
        if self.store.persistent() != spec.persistent:
            said = self.store.persistent()
            self.store.close()
            raise Misuse(
                f"store {spec.name!r}: its persistent() is {said}, its StoreSupplier says "
                f"{spec.persistent}: make them agree"
            )

    def table(self) -> StagedTable:
        raise self._own_class()

    def persistent(self) -> bool:
        return self.spec.persistent

    def manages_offsets(self) -> bool:
        return self.store.manages_offsets()

    def offset(self) -> int | None:
        if self.persistent() and self.manages_offsets():
            return self.store.committed_offset(self.log.tp)
        return self._offset

    def occupied(self) -> bool:
        return self.persistent() and self._found

    def adopt(self, offset: int | None, position: Position) -> None:
        self._offset = offset
        if self.manages_offsets():
            offsets = {} if offset is None else {self.log.tp: offset}
            self.store.commit(offsets, position=position)

    def versions(self) -> VersionedTable:
        raise self._own_class()

    def restore(self, batch: Batch, offset_next: int) -> int:
        self._before_write()
        self._restored = True
        rows = dict(zip(batch.keys.objects, batch.values.objects, strict=True))
        self.spec.restore(self.store, rows)
        self._committed(offset_next, Position())
        return 0

    def complete_ms(self) -> int | None:
        """Return None, because only its class could know when it was last complete."""

    def caught_up(self, position: Position) -> None:
        if self._restored:
            self._restored = False
            self._committed(None, position)

    def reached(self, stream_time_ms: int) -> None:
        """Do nothing, because its class knows whether its rows expire."""

    def hold_time(self, bound_ms: int | None) -> None:
        """Do nothing, because its class knows whether its rows expire."""

    def changes(self, otherwise_ms: int) -> Changes:
        logged = self._logged.entries
        times = [self._times.get(key, otherwise_ms) for key in logged]
        return Changes(list(logged), list(logged.values()), times)

    def commit(self, offset: int | None, position: Position) -> None:
        self._committed(offset, position)
        self._logged.clear()
        self._times.clear()

    def rollback(self) -> None:
        changed = bool(self._logged.entries)
        self._logged.clear()
        self._times.clear()
        try:
            self.store.rollback()
        except Exception as error:
            if changed:
                corrupted = TaskCorrupted(f"{self.where}: cannot roll back: {error}")
                corrupted.store = self.name
                raise corrupted from error

    def usage(self) -> Usage:
        return Usage(
            self.store.approximate_num_uncommitted_bytes() + self._logged.size_bytes,
            max(self.store.approximate_num_uncommitted_entries(), len(self._logged.entries)),
        )

    def maintain(self) -> None:
        """Do nothing, because its class decides when it is durable."""

    def checkpoint(self, target: Path) -> StoreOffsets | None:
        """Return None, because only its class can read its files."""

    def tap(self, tap: Tap | None) -> None:
        """Do nothing, because nobody else can read its files."""

    @property
    def why_no_snapshot(self) -> str:
        return "it is of a class of its own"

    def close(self) -> bool:
        clean = True
        for step in (self.rollback, self.store.close):
            try:
                step()
            except Exception as error:  # noqa: BLE001 - a user's class may raise anything
                log_left(_log, error, f"store {self.name!r}: while closing")
                clean = False
        return clean

    def _own_class(self) -> Misuse:
        return Misuse(
            f"store {self.name!r} is of a class of its own: only a processor can use it, "
            "by context.store()"
        )

    def _committed(self, offset: int | None, position: Position) -> None:
        self.store.commit({} if offset is None else {self.log.tp: offset}, position=position)
        if offset is not None:
            self._offset = offset

    def _note(self, key: bytes, value: bytes | None) -> None:
        self._before_write()
        self._logged.put(key, value)
        if self.clock.now_ms is not None:
            self._times[key] = self.clock.now_ms
