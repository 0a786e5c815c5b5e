"""The kind of versioned stores: the latest version of each key in one table, history in another."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from statestore.model.batch import Batch
from statestore.model.ids import TopicPartition
from statestore.model.records import Serde
from statestore.ports import Engine
from statestore.serdes import composed
from statestore.stores import offsets
from statestore.stores.kinds.kind import (
    ROWS_AT_ONCE,
    Later,
    LoggedChanges,
    LoggedRow,
    LookUp,
    StoreKind,
    StoreTerms,
)
from statestore.stores.logged import (
    Forgotten,
    changed_versions,
    joined_times,
    keys_of_versions,
    of_the_log,
    read_versions,
    stays_whole,
    strange_versions,
    versions,
)
from statestore.stores.offsets import Format
from statestore.stores.reads import Entry, RowScan, RowSource
from statestore.stores.specs import VersionedSpec
from statestore.stores.staged_table import Changes
from statestore.stores.versioned import layout
from statestore.stores.versioned.forgetting import WHOLE_ROW
from statestore.stores.versioned.store import TransactionalVersionedStore, VersionedReader
from statestore.stores.versioned.table import VersionedTable
from statestore.stores.versioned.version_reads import committed_versions


class VersionedKind(StoreKind):
    """A versioned store (KIP-889). Its changelog has a record for each version."""

    name = layout.KIND
    specs = (VersionedSpec,)
    owner_class = TransactionalVersionedStore
    reader_class = VersionedReader
    tables = (layout.LATEST, layout.HISTORY, offsets.TABLE)
    keeps_history = True
    beside = b"v"
    seeded_rows = WHOLE_ROW
    span_columns = ("valid_from", "valid_to")

    def terms(self, spec: VersionedSpec[Any, Any]) -> StoreTerms:
        return StoreTerms(spec.history_retention_ms)

    def spec_at_rest(
        self, name: str, keys: Serde[Any], values: Serde[Any], terms: StoreTerms
    ) -> VersionedSpec[Any, Any]:
        return VersionedSpec(name, terms.retention_ms or 0, keys, values)

    def asks_files(self, spec: VersionedSpec[Any, Any]) -> bool:
        return spec.segment_interval_ms is not None

    def check_files(self, spec: VersionedSpec[Any, Any], found: Format) -> None:
        """Raise Misuse if the store was made with segments of another length."""
        spec.interval_ms(found.segment_interval_ms)

    def segment_interval(self, spec: VersionedSpec[Any, Any]) -> Callable[[int | None], int]:
        return spec.interval_ms

    def hold_time(self, store: Any, limit_ms: int | None) -> None:
        store.table.time.hold(limit_ms)

    def part(self, source: RowSource, spec: Any, where: str) -> Any:  # noqa: ARG002
        return committed_versions(source, where)

    def versions(
        self,
        reader: VersionedReader[bytes, bytes],
        lo: bytes | None = None,
        hi: bytes | None = None,
        *,
        from_ms: int | None = None,
        to_ms: int | None = None,
        ascending: bool = False,
        reverse: bool = False,
    ) -> RowScan[Entry]:
        if lo is not None and lo == hi:
            return reader.history(
                lo, from_time=from_ms, to_time=to_ms, descending=not ascending
            ).through(lambda found: (Entry(lo, *one) for one in found))
        return reader.versions(
            lo, hi, from_ms=from_ms, to_ms=to_ms, ascending=ascending, reverse=reverse
        )

    # A change of the table is a record of its own, with its place in the history.

    def changes(self, store: Any, otherwise_ms: int) -> Changes:  # noqa: ARG002
        changes: Changes = store.table.changes()
        return changes

    def strangers(self, batch: Batch) -> list[int]:
        return strange_versions(batch)

    def restore(self, store: Any, batch: Batch, offsets_next: Mapping[TopicPartition, int]) -> None:
        table: VersionedTable = store.table
        table.restore(read_versions(batch, is_whole=table.log.is_whole), offsets_next)

    def logged_rows(self, engine: Engine, otherwise_ms: int, now_ms: int) -> Iterator[Changes]:  # noqa: ARG002
        """Yield all versions, then the stream time and the bound of the history."""
        history = engine.table(layout.HISTORY)
        old = (
            (layout.key_of(at), row)
            for at, row in history.scan()
            if not at.startswith(layout.NOT_VERSIONS)
        )
        for rows in (old, iter(engine.table(layout.LATEST).scan())):
            while batch := list(islice(rows, ROWS_AT_ONCE)):
                yield versions([key for key, _ in batch], [row for _, row in batch])
        clock = history.get(layout.CLOCK_KEY)
        if clock is not None:
            now, bound, _ = layout.read_clock(clock)
            forgotten = Forgotten(now, bound, layout.TIME_MIN)
            yield of_the_log([], [], [], forgotten, now_ms)

    def rows_in_log(self, batch: Batch, terms: StoreTerms) -> LoggedChanges:  # noqa: ARG002
        """Return the versions, also those that are deletes; what has only expired is no change."""
        found = changed_versions(batch)
        places, keys, times, values = map(list, zip(*found, strict=True)) if found else ([],) * 4
        return LoggedChanges(places, keys, values, list(times), [None] * len(places), times)

    def placing_keys(self, spec: VersionedSpec[Any, Any], batch: Batch) -> list[bytes | None]:
        """Return the keys without the times of versions; None for what is about the log."""
        place, keys = composed.placed_by(spec.key_serde.name), keys_of_versions(batch)
        return keys if place is None else [None if key is None else place(key) for key in keys]

    def about_all(
        self,
        spec: VersionedSpec[Any, Any],  # noqa: ARG002
        rows: Sequence[LoggedRow],
    ) -> list[LoggedRow]:
        """Return the latest stream time and bound of history, and what all have forgotten."""
        if not rows:
            return []
        newest = max(rows, key=lambda row: row.time_ms)
        return [newest._replace(value=joined_times([row.value for row in rows if row.value]))]

    def is_whole(self, batch: Batch, *, before: bool) -> bool:
        return stays_whole(batch, is_whole=before)

    def look_up(self, table: VersionedTable) -> LookUp:
        """Return the look-up of the latest values."""
        return lambda keys: [
            None if row is None else layout.read_version(row).value
            for row in table.latest_rows(keys)
        ]

    def later(self, table: VersionedTable) -> Later:
        return table.later
