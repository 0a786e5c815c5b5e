"""The owner's versioned store (KIP-889): transactional, persistent or in memory.

The owner's thread writes; any thread may read through `reader()`. A version is valid from its
timestamp to that of the next one. Readers of committed versions never copy what is pending.
"""

from collections.abc import Iterable
from operator import itemgetter
from typing import Any

from statestore.model.ids import PositionBound
from statestore.model.modes import IsolationLevel, Time
from statestore.model.records import K, PutResult, V, VersionedRecord
from statestore.stores.reads import LiveSource
from statestore.stores.specs import VersionedSpec
from statestore.stores.transaction import StagedEngine
from statestore.stores.transactional import TransactionalBase
from statestore.stores.versioned.layout import (
    BIAS,
    LATEST,
    PAYLOAD,
    TIME_MAX,
    TIME_MIN,
    is_tombstone,
    unpack_head,
)
from statestore.stores.versioned.reader import VersionedReader
from statestore.stores.versioned.reads import NothingPending, PendingLayer, SourceVersions
from statestore.stores.versioned.table import PendingVersions, VersionedTable

_new = tuple.__new__


class TransactionalVersionedStore(TransactionalBase, VersionedReader[K, V]):
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
        """`owned_by_task`: commit, rollback and close are left to the stream task."""
        self.table = VersionedTable(staged, spec.history_retention_ms)
        VersionedReader.__init__(self, [self.table], spec)
        TransactionalBase.__init__(
            self,
            staged,
            self.table.commit,
            isolation_level=isolation_level,
            owned_by_task=owned_by_task,
        )
        self.spec = spec
        self._plain = self._codec.plain
        self._ahead = self.table.journal.ahead
        self._pending = staged.overlay(LATEST).entries
        self._get_committed = staged.table(LATEST).get
        self._metrics = staged.metrics

    def put(self, key: K, value: V | None, timestamp: Time) -> PutResult:
        """Stage one version; None is a tombstone.

        One older than the history is not accepted, but counted.
        """
        if (
            self._plain
            and type(key) is bytes
            and type(value) is bytes
            and type(timestamp) is int
            and TIME_MIN <= timestamp <= TIME_MAX
        ):
            # As quick as can be: whoever puts one by one waits for nothing else.
            return self.table.put(key, value, timestamp)  # type: ignore[arg-type]  # K is bytes under BYTES
        time = self.time_of(timestamp)
        return self.table.put(self._codec.key(key), self._codec.value(value), time)

    def put_all(self, triples: Iterable[tuple[K, V | None, Time]]) -> None:
        """Stage many versions, in this order; none if one does not fit its serde."""
        rows = list(triples)
        # A column at a time: zip(*rows) takes several times longer.
        keys = [key for key, _value, _time in rows]
        values, times = list(map(itemgetter(1), rows)), list(map(itemgetter(2), rows))
        self.table.put_all(
            self._codec.keys(keys), self._codec.values(values), self._times_of(times)
        )

    def delete(self, key: K, timestamp: Time) -> VersionedRecord[V] | None:
        """Return the version valid at `timestamp`, and let there be none from then on.

        If the time is older than the history it returns None, writes nothing, and is counted.
        """
        time, data = self.time_of(timestamp), self._codec.key(key)
        found = None
        if time >= self.table.time.bound:
            found = self._as_of(data, time)
        self.table.put(data, None, time)
        return found

    def get(self, key: K, *, as_of: Time | None = None) -> VersionedRecord[V] | None:
        """Return the latest version, or the one valid at `as_of`; None if absent or deleted."""
        self._metrics.gets += 1
        plain = self._plain and type(key) is bytes
        data: bytes = key if plain else self._codec.key(key)  # type: ignore[assignment]  # K is bytes
        if as_of is not None:
            return self._as_of(data, self.time_of(as_of))
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

    def metrics(self) -> dict[str, float]:
        """Return the metrics of every store, and the number of writes older than the history."""
        return super().metrics() | {"dropped-records-total": float(self._metrics.late)}

    def reader(
        self,
        isolation_level: IsolationLevel | str | None = None,
        position_bound: PositionBound | None = None,
    ) -> "VersionedReader[K, V]":
        """Return a reader for any thread.

        Its level defaults to the store's setting (SEMANTICS S9).
        """
        level = self.level_of(isolation_level)
        source, table = LiveSource(self.staged, level, position_bound), self.table
        pending: PendingLayer = NothingPending(lambda: table.time.committed)
        if source.uncommitted:
            pending = PendingVersions(table)
        return VersionedReader([SourceVersions(source, table.interval_ms, pending)], self.spec)

    def _as_of(self, key: bytes, time: int) -> VersionedRecord[V] | None:
        """Return the version valid at a time."""
        found = self.table.valid_at(key, time)
        if found is None:
            self._gone.tell(time, self.table.time.bound)
            return None
        return None if is_tombstone(found.row) else self._record(found)

    def _times_of(self, times: list[Time]) -> list[int]:
        """Return milliseconds; Misuse if one is no time."""
        items: list[Any] = times
        plain = set(map(type, items)) == {int} and min(items) >= TIME_MIN and max(items) <= TIME_MAX
        return items if plain else [self.time_of(time) for time in items]
