"""Versioned stores (KIP-889, KIP-960, KIP-968): the store of an owner, and its readers.

The store is transactional, persistent or in memory. The owner's thread writes, and any thread may
read through `reader()`. A version is valid from its timestamp to that of the next one. Readers of
committed versions never copy what is pending.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, ClassVar, Final, Generic

from statestore.errors import Misuse
from statestore.model.ids import PositionBound
from statestore.model.modes import IsolationLevel, Time, to_ms
from statestore.model.records import K, PutResult, V, VersionedRecord
from statestore.stores.codec import Codec
from statestore.stores.reads import Entry, LiveSource, Reader, RowScan, joined
from statestore.stores.specs import VersionedSpec
from statestore.stores.transaction import StagedEngine
from statestore.stores.transactional import TransactionalBase
from statestore.stores.versioned import layout
from statestore.stores.versioned.layout import (
    BIAS,
    LATEST,
    NEVER,
    PAYLOAD,
    TIME_MAX,
    TIME_MIN,
    is_tombstone,
    unpack_head,
)
from statestore.stores.versioned.search import GoneHistory, Interval, Valid
from statestore.stores.versioned.table import PendingVersions, VersionedTable
from statestore.stores.versioned.version_reads import (
    NothingPending,
    PendingLayer,
    SourceVersions,
    VersionRows,
    looking_at,
    looking_through,
)

_new = tuple.__new__


class VersionedReader(Reader[VersionRows], Generic[K, V]):
    """Reads of a versioned store over any VersionRows.

    See `contracts.ReadOnlyVersionedKeyValueStore`. Over several partitions a key is looked for in
    each, and ranges are merged in key order.
    """

    span_names: ClassVar[tuple[str, ...]] = ("timestamp_ms", "valid_to_ms")

    def __init__(
        self,
        parts: Sequence[VersionRows],
        spec: VersionedSpec[K, V],
        release: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(spec.name, parts, release)
        self._codec: Final = Codec(spec.name, spec.key_serde, spec.value_serde)
        self._gone: Final = GoneHistory(spec.name)

    def get(self, key: K, *, as_of: Time | None = None) -> VersionedRecord[V] | None:
        """Return the latest version, or the one valid at `as_of`; None if absent or deleted."""
        if not self._open:
            raise self._closed()
        data, is_known = self._codec.key(key), False
        time = None if as_of is None else self.time_of(as_of)
        for rows in self._parts:
            ends = None
            if time is None:
                row = rows.get(data)
            else:
                found = rows.valid_at(data, time)
                row, ends = (None, None) if found is None else found
            if row is not None:
                is_known = True
                kind, begins = unpack_head(row)
                if kind:  # no tombstone
                    value = self._codec.read_value(row[PAYLOAD])
                    # As VersionedRecord(…) makes it, in half the time.
                    return _new(VersionedRecord, (value, begins - BIAS, ends))
        if time is not None and not is_known:
            self._tell_gone(time)
        return None

    def history(
        self,
        key: K,
        *,
        from_time: Time | None = None,
        to_time: Time | None = None,
        descending: bool = True,
    ) -> RowScan[VersionedRecord[V]]:
        """Return the versions valid at some time between both times, inclusive."""
        parts, data, span = self._opened(), self._codec.key(key), self._span(from_time, to_time)
        found = [one for rows in parts for one in rows.overlapping(data, span)]
        return RowScan(map(self._record, found if descending else found[::-1]), self._check_parts)

    def range_as_of(
        self, lo: K | None, hi: K | None, as_of: Time
    ) -> RowScan[tuple[K, VersionedRecord[V]]]:
        """Return the version valid at `as_of` of each key from `lo` to `hi`, on a snapshot."""
        return self._range(lo, hi, self.time_of(as_of), reverse=False).through(self._records)

    def range_history(
        self,
        lo: K | None,
        hi: K | None,
        from_time: Time | None = None,
        to_time: Time | None = None,
        *,
        descending: bool = True,
        reverse: bool = False,
    ) -> RowScan[tuple[K, VersionedRecord[V]]]:
        """Return the versions of each key from `lo` to `hi` valid at some time between both."""
        span = self._span(from_time, to_time)
        found = self._versions(lo, hi, span, descending=descending, reverse=reverse)
        return found.through(self._records)

    def observed_stream_time(self) -> int | None:
        """Return the largest timestamp put, as far as this reader sees; None before the first."""
        now = max(rows.observed().now for rows in self._opened())
        return None if now == NEVER else now

    # For tools that do not know the kind of the store.

    def find(self, key: K, as_of_ms: int | None = None) -> Entry | None:
        """Return the latest version of a key, or the one valid at a time."""
        found = self.get(key, as_of=as_of_ms)
        return None if found is None else Entry(key, *found)

    def entries(
        self,
        lo: K | None = None,
        hi: K | None = None,
        *,
        as_of_ms: int | None = None,
        reverse: bool = False,
    ) -> RowScan[Entry]:
        """Return the latest version of each key in the range, or the one valid at a time."""
        time = TIME_MAX if as_of_ms is None else as_of_ms
        return self._range(lo, hi, time, reverse=reverse).through(self._entries)

    def versions(
        self,
        lo: K | None = None,
        hi: K | None = None,
        *,
        from_ms: int | None = None,
        to_ms: int | None = None,
        ascending: bool = False,
        reverse: bool = False,
    ) -> RowScan[Entry]:
        """Return what `range_history` does."""
        span = self._span(from_ms, to_ms)
        found = self._versions(lo, hi, span, descending=not ascending, reverse=reverse)
        return found.through(self._entries)

    def everything(self) -> RowScan[Entry]:
        """Return every version that has not expired, partition by partition."""
        scans = [rows.each_version() for rows in self._opened()]
        # Versions are in no order, so there is no key to merge by.
        return joined(scans, key=lambda _: 0).through(self._entries)

    # How it is done.

    def time_of(self, time: Time) -> int:
        """Return milliseconds; Misuse if that is no time."""
        ms: object = to_ms(time)
        if type(ms) is int and TIME_MIN <= ms <= TIME_MAX:
            return ms
        raise Misuse(
            f"store {self.name!r}: {time!r} is no time: pass milliseconds since the epoch "
            "(64 bits) or an aware datetime"
        )

    def _span(self, from_time: Time | None, to_time: Time | None) -> Interval:
        """The closed interval asked for; Misuse if it ends before it begins."""
        first = TIME_MIN if from_time is None else self.time_of(from_time)
        last = TIME_MAX if to_time is None else self.time_of(to_time)
        if first > last:
            raise Misuse(f"store {self.name!r}: history from {first} to {last}: swap them")
        return Interval(first, last)

    def _range(
        self, lo: K | None, hi: K | None, time: int, *, reverse: bool
    ) -> RowScan[tuple[bytes, Valid]]:
        """Return the versions valid at a time, without tombstones."""
        low, high = self._codec.optional_key(lo), self._codec.optional_key(hi)
        look = partial(looking_at, time)
        scans = [rows.each(low, high, look, reverse=reverse) for rows in self._opened()]

        def valid(found: Iterator[tuple[bytes, Valid | None]]) -> Iterator[tuple[bytes, Valid]]:
            for key, one in found:
                if one is None:
                    self._tell_gone(time)
                elif not layout.is_tombstone(one.row):
                    yield key, one

        return joined(scans, reverse=reverse).through(valid)

    def _versions(
        self,
        lo: K | None,
        hi: K | None,
        span: Interval,
        *,
        descending: bool,
        reverse: bool,
    ) -> RowScan[tuple[bytes, Valid]]:
        low, high = self._codec.optional_key(lo), self._codec.optional_key(hi)
        look = partial(looking_through, span, descending)
        scans = [rows.each(low, high, look, reverse=reverse) for rows in self._opened()]
        return joined(scans, reverse=reverse)

    def _tell_gone(self, time: int) -> None:
        self._gone.tell(time, max(rows.observed().bound for rows in self._parts))

    def _record(self, one: Valid) -> VersionedRecord[V]:
        """A version as users see it."""
        begins, value = layout.read_version(one.row)
        assert value is not None, "tombstones are left out"
        return VersionedRecord(self._codec.read_value(value), begins, one.valid_to)

    def _records(
        self, found: Iterator[tuple[bytes, Valid]]
    ) -> Iterator[tuple[K, VersionedRecord[V]]]:
        read_key = self._codec.read_key
        for key, one in found:
            yield read_key(key), self._record(one)

    def _entries(self, found: Iterator[tuple[bytes, Valid]]) -> Iterator[Entry]:
        for key, one in found:
            value, begins, ends = self._record(one)
            yield Entry(self._codec.read_key(key), value, begins, ends)


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
        self.table.is_logged = owned_by_task
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

        A version older than the history is not accepted; it is counted.
        """
        if (
            self._plain
            and type(key) is bytes
            and type(value) is bytes
            and type(timestamp) is int
            and TIME_MIN <= timestamp <= TIME_MAX
        ):
            # This path is short, because callers that put one by one wait for nothing else.
            return self.table.put(key, value, timestamp)  # type: ignore[arg-type]  # K is bytes under BYTES
        time = self.time_of(timestamp)
        return self.table.put(self._codec.key(key), self._codec.value(value), time)

    def put_all(self, triples: Iterable[tuple[K, V | None, Time]]) -> None:
        """Stage many versions, in this order; if one does not fit its serde, none is staged."""
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
