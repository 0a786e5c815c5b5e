"""Transactional key-value stores (KIP-892): the owner's store and the readers of other threads.

The owner thread writes; any thread may read through `reader()`. The owner waits for a reader only
while that opens a snapshot, a reader for the owner no longer than one engine batch takes.
"""

from collections.abc import Iterable
from itertools import repeat
from typing import Generic, Self, overload

from statestore.model.ids import PositionBound
from statestore.model.modes import IsolationLevel
from statestore.model.records import K, V
from statestore.ports import Cursor, Seeker
from statestore.stores import offsets
from statestore.stores.codec import Codec, PairScan
from statestore.stores.overlay import MISSING, Entries, Missing, slice_of
from statestore.stores.row_times import RowTimes
from statestore.stores.specs import KeyValueSpec
from statestore.stores.staged_table import StagedTable, TableScan
from statestore.stores.transaction import StagedEngine
from statestore.stores.transactional import StoreReader, TransactionalStore

KIND = "keyvalue"
TABLE = "data"


class TransactionalKeyValueStore(TransactionalStore, Generic[K, V]):
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
        """`owned_by_task`: commit, rollback and close are the task's, through `staged`."""
        times = None
        if owned_by_task:
            times = RowTimes(staged.table(offsets.TABLE), kept=spec.row_times)
            staged.keep_sized(times)
        self.table = StagedTable(staged, TABLE, times)
        super().__init__(
            staged, self.table.commit, isolation_level=isolation_level, owned_by_task=owned_by_task
        )
        self.spec = spec
        self._codec = Codec(spec)
        self._plain = self._codec.plain
        self._metrics = staged.metrics

    # Reads and writes, in the spec's types.

    @overload
    def get(self, key: K, default: None = None) -> V | None: ...
    @overload
    def get(self, key: K, default: V) -> V: ...
    def get(self, key: K, default: V | None = None) -> V | None:
        """The value, pending writes first, or `default`."""
        self._metrics.gets += 1
        value = self.table.get(self._codec.key(key))
        return default if value is None else self._codec.read_value(value)

    def __contains__(self, key: K) -> bool:
        self._metrics.gets += 1
        return self.table.get(self._codec.key(key)) is not None

    def get_many(self, keys: Iterable[K]) -> list[V | None]:
        """One value per key, in order."""
        return self._codec.read_values(self.table.get_many(self._codec.keys(keys)))

    def put(self, key: K, value: V | None) -> None:
        """Stage one write; None deletes."""
        if self._plain and type(key) is bytes and type(value) is bytes:
            # As quick as can be: whoever puts one by one waits for nothing else.
            self.table.put(key, value)  # type: ignore[arg-type]  # K is bytes under BYTES
        else:
            self.table.put(self._codec.key(key), self._codec.value(value))

    def put_all(self, pairs: Iterable[tuple[K, V | None]]) -> None:
        """Stage many writes; the last of a key wins; all or none if one does not fit its serde."""
        self.table.put_all(self._codec.writes(pairs))

    def put_if_absent(self, key: K, value: V) -> V | None:
        """The value there was, else None after writing."""
        current = self.get(key)
        if current is None:
            self.put(key, value)
        return current

    def delete(self, key: K) -> V | None:
        """Delete and return what was there."""
        current = self.get(key)
        if current is not None:
            self.discard(key)
        return current

    def discard(self, key: K) -> None:
        """Delete without reading."""
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

    def range(
        self, lo: K | None = None, hi: K | None = None, reverse: bool = False
    ) -> PairScan[K, V]:
        """Pairs with lo <= key <= hi by serialized bytes, on a snapshot with the pending writes."""
        bounds = self._codec.optional_key(lo), self._codec.optional_key(hi)
        return self._pairs(self.table.scan(*bounds, reverse=reverse))

    def all(self, reverse: bool = False) -> PairScan[K, V]:
        """Every pair, on a snapshot with the pending writes."""
        return self._pairs(self.table.scan(reverse=reverse))

    def prefix_scan(self, prefix: K, reverse: bool = False) -> PairScan[K, V]:
        """Pairs whose key bytes begin with `prefix`; refused on unordered key serdes."""
        low, beyond = self._codec.prefix(prefix)
        return self._pairs(self.table.scan(low, beyond, reverse=reverse), beyond)

    def approximate_num_entries(self) -> int:
        """About how many keys there are."""
        return self.table.approximate_count()

    def reader(
        self,
        isolation_level: IsolationLevel | str | None = None,
        position_bound: PositionBound | None = None,
    ) -> "KeyValueReader[K, V]":
        """A reader for any thread; its level defaults to the store's setting (SEMANTICS S9)."""
        level = self._level(isolation_level)
        return KeyValueReader(self.staged, self.spec, level, position_bound)

    def _pairs(self, scan: TableScan, exclude: bytes | None = None) -> PairScan[K, V]:
        return PairScan(scan, self._codec.pairs(scan, exclude))


class KeyValueReader(StoreReader, Generic[K, V]):
    """Reads from any thread under one isolation level; see `contracts.ReadOnlyKeyValueStore`."""

    def __init__(
        self,
        staged: StagedEngine,
        spec: KeyValueSpec[K, V],
        isolation_level: IsolationLevel,
        position_bound: PositionBound | None = None,
    ) -> None:
        super().__init__(staged, isolation_level, position_bound)
        self._table = staged.table(TABLE)
        self._entries = staged.overlay(TABLE).entries
        self._codec = Codec(spec)

    @overload
    def get(self, key: K, default: None = None) -> V | None: ...
    @overload
    def get(self, key: K, default: V) -> V: ...
    def get(self, key: K, default: V | None = None) -> V | None:
        """The value, or `default`."""
        self._check()
        self._staged.metrics.gets += 1
        data = self._codec.key(key)
        value: bytes | Missing | None = MISSING
        if self._uncommitted:
            value = self._entries.get(data, MISSING)
        if isinstance(value, Missing):
            try:
                value = self._table.get(data)
            except Exception as error:
                raise self._staged.failure(error) from error
        return default if value is None else self._codec.read_value(value)

    def __contains__(self, key: K) -> bool:
        return self.get(key) is not None

    def get_many(self, keys: Iterable[K]) -> list[V | None]:
        """One value per key, in order, all of one moment."""
        self._check()
        asked = self._codec.keys(keys)
        self._staged.metrics.gets += len(asked)
        try:
            # What is no longer pending when this looks has been committed before it reads.
            if self._uncommitted and self._entries:
                return self._codec.read_values(self._pending_first(asked))
            return self._codec.read_values(self._table.get_many_at_once(asked))
        except Exception as error:
            raise self._staged.failure(error) from error

    def range(
        self, lo: K | None = None, hi: K | None = None, reverse: bool = False
    ) -> PairScan[K, V]:
        """Pairs with lo <= key <= hi by serialized bytes, on a snapshot."""
        return self._scan(self._codec.optional_key(lo), self._codec.optional_key(hi), reverse)

    def all(self, reverse: bool = False) -> PairScan[K, V]:
        """Every pair, on a snapshot."""
        return self._scan(None, None, reverse)

    def prefix_scan(self, prefix: K, reverse: bool = False) -> PairScan[K, V]:
        """Pairs whose key bytes begin with `prefix`; refused on unordered key serdes."""
        low, beyond = self._codec.prefix(prefix)
        return self._scan(low, beyond, reverse, beyond)

    def approximate_num_entries(self) -> int:
        """About how many committed keys there are."""
        self._check()
        return self._table.approximate_count()

    def moment(self, lo: bytes | None = None, hi: bytes | None = None) -> "Moment":
        """The rows as they are now, in bytes; those from `lo` to `hi` may be walked over."""
        self._check()
        staged = self._staged
        try:
            with staged.turn:
                pending = self._entries.copy() if self._uncommitted else {}
                seeker, cursor = self._table.seeker(), self._table.scan(lo, hi)
        except Exception as error:
            raise staged.failure(error) from error
        waiting = slice_of(pending, lo, hi, reverse=False) if pending else []
        return Moment(staged, seeker, TableScan(staged, cursor, waiting, reverse=False), pending)

    def _pending_first(self, asked: list[bytes]) -> list[bytes | None]:
        with self._staged.turn:
            # One call in C, so that the owner puts nothing meanwhile.
            found = list(map(self._entries.get, asked, repeat(MISSING)))
            seeker = self._table.seeker()
        try:
            return _filled(found, asked, seeker)
        finally:
            seeker.close()

    def _scan(
        self, lo: bytes | None, hi: bytes | None, reverse: bool, exclude: bytes | None = None
    ) -> PairScan[K, V]:
        self._check()
        self._staged.metrics.ranges += 1
        pending: Entries = {}
        cursor: Cursor
        if self._uncommitted:
            with self._staged.turn:
                pending = self._entries.copy()
                cursor = self._table.scan(lo, hi, reverse=reverse)
        else:
            cursor = self._table.scan(lo, hi, reverse=reverse)
        part = slice_of(pending, lo, hi, reverse=reverse)
        scan = TableScan(self._staged, cursor, part, reverse=reverse)
        return PairScan(scan, self._codec.pairs(scan, exclude))


class Moment:
    """Rows as they were when it was opened, for several questions; `with` or close() releases it.

    StoreClosed after close, or after its store's.
    """

    def __init__(
        self, staged: StagedEngine, seeker: Seeker, scan: TableScan, pending: Entries
    ) -> None:
        self._staged = staged
        self._seeker = seeker
        self._scan = scan
        self._pending = pending

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """One value per key, in order."""
        found = list(map(self._pending.get, keys, repeat(MISSING)))
        try:
            return _filled(found, keys, self._seeker)
        except Exception as error:
            raise self._staged.failure(error) from error

    def rows(self) -> TableScan:
        """Those it was opened for, in order; can be walked over once."""
        return self._scan

    def close(self) -> None:
        """Release the snapshots. Closing twice is harmless."""
        self._scan.close()
        self._seeker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def _filled(
    found: list[bytes | Missing | None], keys: list[bytes], seeker: Seeker
) -> list[bytes | None]:
    """What was found pending; where that is MISSING, the committed value."""
    asked = [key for key, value in zip(keys, found, strict=True) if value is MISSING]
    committed = iter(seeker.get_many(asked) if asked else ())
    return [next(committed) if isinstance(value, Missing) else value for value in found]
