"""Transactional versioned stores (KIP-889): the owner's store and the readers of other threads.

The owner thread writes; any thread may read through `reader()`. A version is valid from its
timestamp to that of the next one. Readers of committed versions never copy what is pending.
"""

from collections.abc import Callable, Iterable
from contextlib import closing
from itertools import compress
from operator import itemgetter
from typing import Generic, TypeVar

from statestore.model.ids import PositionBound
from statestore.model.modes import IsolationLevel, Time
from statestore.model.records import K, PutResult, V, VersionedRecord
from statestore.ports import Seeker
from statestore.stores.overlay import MISSING, Missing
from statestore.stores.specs import VersionedSpec
from statestore.stores.superseded import Ended, history_rows, note
from statestore.stores.transaction import StagedEngine
from statestore.stores.transactional import StoreReader, TransactionalStore
from statestore.stores.version_reads import VersionReads
from statestore.stores.version_scans import AsOfScan, VersionScan
from statestore.stores.version_search import View
from statestore.stores.version_views import LookedAt
from statestore.stores.versioned_layout import (
    BIAS,
    HISTORY,
    LATEST,
    NEVER,
    PAYLOAD,
    TIME_MAX,
    TIME_MIN,
    unpack_head,
    valid_from,
)
from statestore.stores.versioned_table import PendingNow, VersionedTable

T = TypeVar("T")

_new = tuple.__new__


class TransactionalVersionedStore(TransactionalStore, Generic[K, V]):
    """The built-in VersionedKeyValueStore, persistent or in memory.

    See `contracts.VersionedKeyValueStore` for the promises.
    """

    def __init__(
        self,
        staged: StagedEngine,
        spec: VersionedSpec[K, V],
        *,
        isolation_level: IsolationLevel,
        owned_by_task: bool = False,
    ) -> None:
        """`owned_by_task`: commit, rollback and close are the task's, through `table`."""
        self.table = VersionedTable(staged, spec.history_retention_ms)
        super().__init__(
            staged, self.table.commit, isolation_level=isolation_level, owned_by_task=owned_by_task
        )
        self.spec = spec
        self._reads = VersionReads(spec)
        self._codec = self._reads.codec
        self._plain = self._codec.plain
        self._ahead = self.table.journal.ahead
        self._pending = staged.overlay(LATEST).entries
        self._get_committed = staged.table(LATEST).get
        self._metrics = staged.metrics

    def put(self, key: K, value: V | None, timestamp: Time) -> PutResult:
        """Stage one version; None is a tombstone. Older than the history: not accepted, counted."""
        if (
            self._plain
            and type(key) is bytes
            and type(value) is bytes
            and type(timestamp) is int
            and TIME_MIN <= timestamp <= TIME_MAX
        ):
            # As quick as can be: whoever puts one by one waits for nothing else.
            return self.table.put(key, value, timestamp)  # type: ignore[arg-type]  # K is bytes under BYTES
        time = self._reads.time(timestamp)
        return self.table.put(self._codec.key(key), self._codec.value(value), time)

    def put_all(self, triples: Iterable[tuple[K, V | None, Time]]) -> None:
        """Stage many versions, in this order; none if one does not fit its serde."""
        rows = list(triples)
        # A column at a time: zip(*rows) takes several times longer.
        keys = [key for key, _value, _time in rows]
        values, times = list(map(itemgetter(1), rows)), list(map(itemgetter(2), rows))
        self.table.put_all(
            self._codec.keys(keys), self._codec.values(values), self._reads.times(times)
        )

    def delete(self, key: K, timestamp: Time) -> VersionedRecord[V] | None:
        """The version valid at `timestamp`, None if none; from then on there is none.

        Older than the history: None, nothing is written, counted.
        """
        time, data = self._reads.time(timestamp), self._codec.key(key)
        found = None
        if time >= self.table.time.bound:
            found = self._reads.as_of(self.table.view(), data, time)
        self.table.put(data, None, time)
        return found

    def get(self, key: K, *, as_of: Time | None = None) -> VersionedRecord[V] | None:
        """The latest version, or the one valid at `as_of`; None if absent or deleted."""
        self._metrics.gets += 1
        plain = self._plain and type(key) is bytes
        data: bytes = key if plain else self._codec.key(key)  # type: ignore[assignment]  # K is bytes
        if as_of is not None:
            return self._reads.as_of(self.table.view(), data, self._reads.time(as_of))
        # What follows are look-ups and `record` without their calls.
        row = self._ahead.get(data)
        if row is None:
            if data in self._pending:
                row = self._pending[data]
            else:
                try:
                    row = self._get_committed(data)
                except Exception as error:
                    raise self.staged.failure(error) from error
            if row is None:
                return None
        kind, begins = unpack_head(row)
        if not kind:  # a tombstone
            return None
        value = row[PAYLOAD] if plain else self._codec.read_value(row[PAYLOAD])
        # As VersionedRecord(…) makes it, in half the time.
        return _new(VersionedRecord, (value, begins - BIAS, None))

    def history(
        self,
        key: K,
        *,
        from_time: Time | None = None,
        to_time: Time | None = None,
        descending: bool = True,
    ) -> VersionScan[VersionedRecord[V]]:
        """The versions valid at some time from `from_time` to `to_time`, both included."""
        self.staged.check_open()
        self._metrics.ranges += 1
        span = self._reads.span(from_time, to_time)
        found = self._reads.history(self.table.view(), self._codec.key(key), *span)
        return VersionScan(self.staged, found if descending else found[::-1])

    def range_as_of(self, lo: K | None, hi: K | None, as_of: Time) -> AsOfScan[K]:
        """Per key from `lo` to `hi`, both included, the version valid at `as_of`; a snapshot."""
        self.staged.check_open()
        bounds = self._codec.optional_key(lo), self._codec.optional_key(hi)
        time = self._reads.time(as_of)
        table = self.table
        scan, history = table.snapshot(*bounds)
        return AsOfScan(scan, history, time, table.time.bound, table.interval_ms, self._reads)

    def observed_stream_time(self) -> int | None:
        """The largest timestamp put, pending ones included; None before the first."""
        now = self.table.time.now
        return None if now == NEVER else now

    def metrics(self) -> dict[str, float]:
        """Those of every store, and the writes dropped for being older than the history."""
        return super().metrics() | {"dropped-records-total": float(self._metrics.late)}

    def reader(
        self,
        isolation_level: IsolationLevel | str | None = None,
        position_bound: PositionBound | None = None,
    ) -> "VersionedReader[K, V]":
        """A reader for any thread; its level defaults to the store's setting (SEMANTICS S9)."""
        level = self._level(isolation_level)
        return VersionedReader(self.table, self.spec, level, position_bound)


class VersionedReader(StoreReader, Generic[K, V]):
    """Reads from any thread under one isolation level.

    See `contracts.ReadOnlyVersionedKeyValueStore`.
    """

    def __init__(
        self,
        table: VersionedTable,
        spec: VersionedSpec[K, V],
        isolation_level: IsolationLevel,
        position_bound: PositionBound | None = None,
    ) -> None:
        super().__init__(table.staged, isolation_level, position_bound)
        self._versions = table
        self._table = table.staged.table(LATEST)
        self._ahead = table.journal.ahead
        self._entries = table.staged.overlay(LATEST).entries
        self._reads = VersionReads(spec)
        self._codec = self._reads.codec

    def get(self, key: K, *, as_of: Time | None = None) -> VersionedRecord[V] | None:
        """The latest version, or the one valid at `as_of`; None if absent or deleted."""
        self._check()
        self._staged.metrics.gets += 1
        data = self._codec.key(key)
        if as_of is not None:
            time = self._reads.time(as_of)
            row = None if self._uncommitted else self._committed(data)
            if row is not None and valid_from(row) <= time:
                return self._reads.record(row, None)
            return self._at_one_moment(data, lambda view: self._reads.as_of(view, data, time))
        found: bytes | Missing | None = MISSING
        if self._uncommitted:
            # In this order: what is settled meanwhile goes from the one to the other.
            found = self._ahead.get(data) or self._entries.get(data, MISSING)
        row = self._committed(data) if isinstance(found, Missing) else found
        return None if row is None else self._reads.record(row, None)

    def history(
        self,
        key: K,
        *,
        from_time: Time | None = None,
        to_time: Time | None = None,
        descending: bool = True,
    ) -> VersionScan[VersionedRecord[V]]:
        """The versions valid at some time from `from_time` to `to_time`, both included."""
        self._check()
        self._staged.metrics.ranges += 1
        span = self._reads.span(from_time, to_time)
        data = self._codec.key(key)
        found = self._at_one_moment(data, lambda view: self._reads.history(view, data, *span))
        return VersionScan(self._staged, found if descending else found[::-1])

    def range_as_of(self, lo: K | None, hi: K | None, as_of: Time) -> AsOfScan[K]:
        """Per key from `lo` to `hi`, both included, the version valid at `as_of`; a snapshot."""
        self._check()
        self._staged.metrics.ranges += 1
        bounds = self._codec.optional_key(lo), self._codec.optional_key(hi)
        time = self._reads.time(as_of)

        try:
            with self._staged.turn:
                cursor = self._table.scan(*bounds)
                pending, committed, superseded = self._now()
            seen = self._looked_at(pending, committed, superseded, *bounds)
            committed.close()
        except Exception as error:
            raise self._staged.failure(error) from error
        scan, history = seen.over(cursor, *bounds)
        return AsOfScan(scan, history, time, seen.bound, seen.interval_ms, self._reads)

    def observed_stream_time(self) -> int | None:
        """The largest timestamp put, as far as this reader's level sees; None before the first."""
        self._check()
        time = self._versions.time
        now = time.now if self._uncommitted else time.committed.now
        return None if now == NEVER else now

    def _committed(self, key: bytes) -> bytes | None:
        """The row of the latest version."""
        try:
            return self._table.get(key)
        except Exception as error:
            raise self._staged.failure(error) from error

    def _at_one_moment(self, key: bytes, look: Callable[[View], T]) -> T:
        """What `look` finds of a key."""
        try:
            with self._staged.turn:
                pending, committed, superseded = self._now()
            with closing(committed), closing(superseded):
                return look(self._looked_at(pending, committed, superseded, key, key).view())
        except Exception as error:
            raise self._staged.failure(error) from error

    def _now(self) -> tuple[PendingNow, Seeker, Seeker]:
        """All there is at this moment; the caller holds the turn of the store."""
        table = self._versions
        pending = table.pending_now() if self._uncommitted else table.nothing_pending()
        return pending, self._table.seeker(), self._staged.table(HISTORY).seeker()

    def _looked_at(
        self,
        pending: PendingNow,
        committed: Seeker,
        superseded: Seeker,
        lo: bytes | None,
        hi: bytes | None,
    ) -> LookedAt:
        """What is pending made rows, as far as keys lo to hi are asked for."""
        interval_ms = self._versions.interval_ms
        latest, history = pending.latest, pending.history
        asked = [(lo is None or key >= lo) and (hi is None or key <= hi) for key in pending.keys]
        ahead: dict[bytes, bytes] = {}
        ended = Ended.none()
        note(list(compress(pending.keys, asked)), list(compress(pending.rows, asked)), ahead, ended)
        if ahead:
            before = map(latest.get, ahead, committed.get_many(list(ahead)))
            history |= history_rows(
                ahead, ended, ahead, before, bound=pending.bound, interval_ms=interval_ms
            )
            latest |= ahead
        return LookedAt(
            self._staged, committed, superseded, latest, history, pending.bound, interval_ms
        )
