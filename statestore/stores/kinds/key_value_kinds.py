"""Kinds of stores that have one row for each key: key-value stores, and those that are made of one.

A store of timers and the store of a global table have the rows and the format of a key-value store.
A key-value store whose rows expire has them, too: `ttl_ms` is a trait of it, not another kind.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from statestore.model.batch import Batch
from statestore.model.ids import TopicPartition
from statestore.model.records import Serde
from statestore.stores import keyvalue
from statestore.stores.expiry import ExpiringRows
from statestore.stores.keyvalue import KeyValueReader, TransactionalKeyValueStore
from statestore.stores.kinds.kind import Later, LookUp, StoreKind, StoreTerms
from statestore.stores.reads import Entry, Rows, RowSource, SourceRows
from statestore.stores.specs import GlobalSpec, KeyValueSpec
from statestore.stores.staged_table import Changes, StagedTable
from statestore.stores.timer_specs import TimerSpec


class KeyValueKind(StoreKind):
    """A key-value store. Its rows are those of its changelog, byte for byte."""

    name = keyvalue.KIND
    specs: ClassVar[tuple[type, ...]] = (KeyValueSpec,)
    owner_class = TransactionalKeyValueStore
    reader_class = KeyValueReader
    beside = b"tmxne"

    def terms(self, spec: KeyValueSpec[Any, Any]) -> StoreTerms:
        """Return how long rows live after their last put."""
        return StoreTerms(spec.ttl_ms)

    def spec_at_rest(
        self, name: str, keys: Serde[Any], values: Serde[Any], terms: StoreTerms
    ) -> KeyValueSpec[Any, Any]:
        return KeyValueSpec(name, keys, values, ttl_ms=terms.retention_ms)

    def expires(self, terms: StoreTerms) -> bool:
        return terms.retention_ms is not None

    def keeps_times(self, spec: KeyValueSpec[Any, Any]) -> bool:
        return spec.row_times or spec.ttl_ms is not None

    def kept_by_operator(self, spec: KeyValueSpec[Any, Any]) -> KeyValueSpec[Any, Any]:
        """Return the spec of a store that has the times of its rows (docs/adr/0014)."""
        return replace(spec, row_times=True)

    def for_both(
        self, spec: KeyValueSpec[Any, Any], equal: KeyValueSpec[Any, Any]
    ) -> KeyValueSpec[Any, Any]:
        """Return the spec that has the times of rows, if either has."""
        return equal if equal.row_times else spec

    def part(self, source: RowSource, spec: KeyValueSpec[Any, Any], where: str) -> Rows:  # noqa: ARG002
        if spec.ttl_ms is None:
            return SourceRows(source, keyvalue.TABLE)
        return ExpiringRows(source, keyvalue.TABLE, spec.ttl_ms)

    def find_many(
        self, reader: Any, keys: Sequence[bytes], as_of_ms: int | None
    ) -> list[Entry | None]:
        if as_of_ms is not None:
            return super().find_many(reader, keys, as_of_ms)
        return [
            None if value is None else Entry(key, value)
            for key, value in zip(keys, reader.get_many(keys), strict=True)
        ]

    # Rows and records of the changelog have the same keys, so nothing is converted.

    def changes(self, store: Any, otherwise_ms: int) -> Changes:
        changes: Changes = store.table.changes(otherwise_ms)
        return changes

    def restore(self, store: Any, batch: Batch, offsets_next: Mapping[TopicPartition, int]) -> None:
        store.table.restore(
            batch.keys.objects, batch.values.objects, batch.timestamps, offsets_next
        )

    def look_up(self, table: StagedTable) -> LookUp:
        return table.get_many

    def later(self, table: StagedTable) -> Later:
        return table.later


class TimerKind(KeyValueKind):
    """A store of timers: rows of a key-value store, for one processor (stores/timer_specs.py)."""

    specs = (TimerSpec,)
    has_one_user = True


class GlobalKind(KeyValueKind):
    """The store of a global table or of a lookup: key-value files that no stream task owns."""

    name = "global"
    specs = (GlobalSpec,)
