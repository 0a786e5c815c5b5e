"""Transactional key-value stores (KIP-892): the store of an owner, and its readers.

The owner's thread writes, and any thread may read through `reader()`. The owner waits for a reader
only while that opens a snapshot; a reader waits for the owner no longer than one engine batch
takes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import starmap
from typing import Any, ClassVar, Generic, overload

from statestore.errors import Misuse
from statestore.model.ids import PositionBound
from statestore.model.modes import IsolationLevel
from statestore.model.records import K, V
from statestore.stores import offsets
from statestore.stores.codec import Codec
from statestore.stores.expiry import ExpiringRows, ExpiringTable, forget_times
from statestore.stores.pending import MISSING
from statestore.stores.reads import Entry, LiveSource, Reader, Rows, RowScan, SourceRows, joined
from statestore.stores.row_times import RowTimes
from statestore.stores.specs import KeyValueSpec, untimed_from
from statestore.stores.staged_table import StagedTable
from statestore.stores.transaction import StagedEngine
from statestore.stores.transactional import TransactionalBase

KIND = "keyvalue"
TABLE = "data"


def live_rows(source: LiveSource, staged: StagedEngine) -> SourceRows:
    """Return the rows of an open store's one table as its readers see them."""
    return SourceRows(source, TABLE, staged.overlay(TABLE).entries if source.uncommitted else None)


class KeyValueReader(Reader[Rows], Generic[K, V]):
    """Reads of a key-value store over any Rows; see `contracts.ReadOnlyKeyValueStore`.

    Over several partitions a key is looked for in each, and ranges are merged in key order.
    """

    span_names: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        parts: Sequence[Rows],
        spec: KeyValueSpec[K, V],
        release: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(spec.name, parts, release)
        self._codec = Codec(spec.name, spec.key_serde, spec.value_serde)

    @overload
    def get(self, key: K, default: None = None) -> V | None: ...
    @overload
    def get(self, key: K, default: V) -> V: ...
    def get(self, key: K, default: V | None = None) -> V | None:
        """Return the value, or `default` if there is none."""
        if not self._open:
            raise self._closed()
        data = self._codec.key(key)
        for rows in self._parts:
            value = rows.get(data)
            if value is not None:
                return self._codec.read_value(value)
        return default

    def __contains__(self, key: K) -> bool:
        data = self._codec.key(key)
        return any(rows.get(data) is not None for rows in self._opened())

    def get_many(self, keys: Iterable[K]) -> list[V | None]:
        """Return one value per key, in order, all of one moment."""
        parts, asked = self._opened(), self._codec.keys(keys)
        found = parts[0].get_many(asked)
        for rows in parts[1:]:
            more = rows.get_many(asked)
            found = [new if old is None else old for old, new in zip(found, more, strict=True)]
        return self._codec.read_values(found)

    def range(
        self,
        lo: K | None = None,
        hi: K | None = None,
        reverse: bool = False,
    ) -> RowScan[tuple[K, V]]:
        """Return the pairs with lo <= key <= hi by serialized bytes, on a snapshot."""
        return self._scan(self._codec.optional_key(lo), self._codec.optional_key(hi), reverse)

    def all(self, reverse: bool = False) -> RowScan[tuple[K, V]]:
        """Return every pair, on a snapshot."""
        return self._scan(None, None, reverse)

    def prefix_scan(self, prefix: K, reverse: bool = False) -> RowScan[tuple[K, V]]:
        """Return the pairs whose key bytes begin with `prefix`.

        Misuse if the serde of keys is not ordered.
        """
        low, beyond = self._codec.prefix(prefix)
        return self._scan(low, beyond, reverse, beyond)

    def approximate_num_entries(self) -> int:
        """Return about how many keys there are."""
        return sum(rows.approximate_count() for rows in self._opened())

    # For tools that do not know the kind of the store.

    def find(self, key: K, as_of_ms: int | None = None) -> Entry | None:
        """Return the row of a key. A time is Misuse, because there is no history."""
        self._refuse_time(as_of_ms)
        value = self.get(key)
        return None if value is None else Entry(key, value)

    def entries(
        self,
        lo: K | None = None,
        hi: K | None = None,
        *,
        as_of_ms: int | None = None,
        reverse: bool = False,
    ) -> RowScan[Entry]:
        """Return the rows with lo <= key <= hi, in key order. A time is Misuse."""
        self._refuse_time(as_of_ms)
        return self.range(lo, hi, reverse).through(partial(starmap, Entry))

    def everything(self) -> RowScan[Entry]:
        """Return all that a reader may see."""
        return self.entries()

    def _refuse_time(self, time_ms: int | None) -> None:
        if time_ms is not None:
            raise Misuse(
                f"store {self.name!r} is a {KIND} store and keeps no history: leave as_of out"
            )

    def _scan(
        self, lo: bytes | None, hi: bytes | None, reverse: bool, exclude: bytes | None = None
    ) -> RowScan[tuple[K, V]]:
        scans = [rows.scan(lo, hi, reverse=reverse) for rows in self._opened()]
        return self._codec.pairs(joined(scans, reverse=reverse), exclude)


class TransactionalKeyValueStore(TransactionalBase, KeyValueReader[K, V]):
    """The built-in KeyValueStore, persistent or in memory.

    See `contracts.KeyValueStore` for the promises.
    """

    def __init__(
        self,
        staged: StagedEngine,
        spec: KeyValueSpec[K, V],
        *,
        isolation_level: IsolationLevel,
        owned_by_task: bool = False,
    ) -> None:
        """`owned_by_task`: commit, rollback and close are left to the stream task."""
        times = None
        if owned_by_task:
            expires = spec.ttl_ms is not None
            times = RowTimes(
                staged.table(offsets.TABLE),
                kept=spec.row_times or expires,
                of_stream=expires,
                untimed_from=untimed_from(spec),
            )
            staged.keep_sized(times)
        self.table = _table(staged, times, spec.ttl_ms)
        KeyValueReader.__init__(self, [self.table], spec)
        TransactionalBase.__init__(
            self,
            staged,
            self.table.commit,
            isolation_level=isolation_level,
            owned_by_task=owned_by_task,
        )
        self.spec = spec
        self._plain_keys, self._read_value = self._codec.plain_keys, self._codec.read_value
        self._failure = staged.failure
        self.put = self.table.writer(self._codec)  # type: ignore[method-assign, assignment]
        # Of rows that expire, only their table knows which are still there.
        shown = type(self.table) is StagedTable
        self._pending: Mapping[bytes, bytes | None] = self.table.staged_rows if shown else {}
        self._get = self.table.get_committed if shown else self.table.get
        self._metrics = staged.metrics

    # These reads are counted and skip the partitions; all others are those of the reader.

    @overload
    def get(self, key: K, default: None = None) -> V | None: ...
    @overload
    def get(self, key: K, default: V) -> V: ...
    def get(self, key: K, default: V | None = None) -> V | None:
        """Return the value, looking at pending writes first, or `default`."""
        self._metrics.gets += 1
        data: Any = key if self._plain_keys and type(key) is bytes else self._codec.key(key)
        value: Any = self._pending.get(data, MISSING)
        if value is MISSING:
            try:
                value = self._get(data)
            except Exception as error:
                raise self._failure(error) from error
        return default if value is None else self._read_value(value)

    def __contains__(self, key: K) -> bool:
        self._metrics.gets += 1
        return self.table.get(self._codec.key(key)) is not None

    def get_many(self, keys: Iterable[K]) -> list[V | None]:
        """Return one value per key, in order."""
        return self._codec.read_values(self.table.get_many(self._codec.keys(keys)))

    # Writes.

    def put(self, key: K, value: V | None) -> None:
        """Stage one write; None deletes."""
        self.table.put(self._codec.key(key), self._codec.value(value))

    def put_all(self, pairs: Iterable[tuple[K, V | None]]) -> None:
        """Stage many writes; the last of a key wins.

        If one does not fit its serde, none is staged.
        """
        self.table.put_all(self._codec.writes(pairs))

    def put_if_absent(self, key: K, value: V) -> V | None:
        """Return the value that is there, or write this one and return None."""
        current = self.get(key)
        if current is None:
            self.put(key, value)
        return current

    def delete(self, key: K) -> V | None:
        """Delete the row and return the value that was there."""
        current = self.get(key)
        if current is not None:
            self.discard(key)
        return current

    def discard(self, key: K) -> None:
        """Delete the row without reading it."""
        self.put(key, None)

    def delete_range(self, lo: K | None, hi: K | None) -> None:
        """Stage a delete for every visible key in [lo, hi] (SEMANTICS S13)."""
        bounds = self._codec.optional_key(lo), self._codec.optional_key(hi)
        with self.table.scan(*bounds) as pairs:
            self.table.put_all({key: None for key, _ in pairs})

    def delete_prefix(self, prefix: K) -> None:
        """Stage a delete for every visible key whose bytes begin with `prefix`."""
        low, beyond = self._codec.prefix(prefix)
        with self.table.scan(low, beyond) as pairs:
            self.table.put_all({key: None for key, _ in pairs if key != beyond})

    def reader(
        self,
        isolation_level: IsolationLevel | str | None = None,
        position_bound: PositionBound | None = None,
    ) -> "KeyValueReader[K, V]":
        """Return a reader for any thread.

        Its level defaults to the store's setting (SEMANTICS S9).
        """
        level = self.level_of(isolation_level)
        source = LiveSource(self.staged, level, position_bound)
        rows: Rows = live_rows(source, self.staged)
        if isinstance(self.table, ExpiringTable):
            owner = self.table if source.uncommitted else None
            rows = ExpiringRows(source, TABLE, self.table.ttl_ms, owner)
        return KeyValueReader([rows], self.spec)


def _table(staged: StagedEngine, times: RowTimes | None, ttl_ms: int | None) -> StagedTable:
    """Return the rows of a store; only those that a stream task owns expire."""
    if times is not None and ttl_ms is not None:
        return ExpiringTable(staged, TABLE, times, ttl_ms)
    if times is not None:
        forget_times(staged)
    return StagedTable(staged, TABLE, times)
