"""Aggregates by key that keep their history: each update is a version (KIP-914).

A version is valid from the time of the record that made it, or from that of the version before it,
if that is later: a late record does not change what was before. A record that is older than the
retention is dropped unless its key has a later version. Every update is kept and handed on, so that
the history does not depend on where batches end.

Keeps I24 and I25.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from statestore.model.batch import Batch
from statestore.stores.specs import VersionedSpec
from statestore.stores.versioned import layout
from statestore.stores.versioned.table import VersionedTable
from statestore.topology.aggregates.folds import Aggregation, Fold, Updates
from statestore.topology.failures import decoded, each, keyed
from statestore.topology.flows import Flow, TableFlow
from statestore.topology.joins.grace import Gate, Waiter
from statestore.topology.nodes import Build, Forward, NodeContext, Push, SendOldValues
from statestore.topology.tables.from_streams import history_of


def aggregate_in_time(
    source: Flow, spec: VersionedSpec[Any, Any], fold: Fold, *, kind: str, name: str | None
) -> TableFlow:
    """Add a node that folds records into a table with history; its store is known already."""
    old_values, waiters = SendOldValues(), list[Waiter]()
    node = source.add(
        kind,
        name,
        # Each update is a version, so all of them are told.
        lambda n: _aggregated(
            Aggregation(n, spec, fold, every_update=True, old_values=old_values), waiters
        ),
        (spec.name,),
    )
    table = TableFlow.stored(source.builder, node, spec, old_values)
    # None of its versions is before another, so that followers are handed all of them.
    return table.with_history(history_of(spec, node, waiters, []))


def _aggregated(how: Aggregation[VersionedSpec[Any, Any]], waiters: Sequence[Waiter]) -> Build:
    node, spec, fold = how.node, how.spec, _Folding(how)

    def build(context: NodeContext, forward: Forward) -> Push:
        table = context.versions(spec.name)
        tell = how.telling(forward)
        gate = Gate(context, waiters, forward) if waiters else None

        def push(batch: Batch) -> None:
            for part in (batch,) if gate is None else gate.parts(batch):
                apply(part)

        def apply(batch: Batch) -> None:
            batch, keys = keyed(context, node, batch, spec.key_serde)
            nulls = [i for i, value in enumerate(decoded(node, batch, "value")) if value is None]
            updates, late = fold.run(table, batch, keys)
            for places, reason in ((nulls, "null_value"), (late, "older_than_history")):
                if places:
                    context.drop(node, batch, places, reason)
            if updates.rows:
                table.put_all(updates.rows, updates.values, updates.times)
                tell(batch, updates)

        return push

    return build


@dataclass(frozen=True)
class _Folding:
    how: Aggregation[VersionedSpec[Any, Any]]

    def run(
        self, table: VersionedTable, batch: Batch, keys: list[bytes]
    ) -> tuple[Updates, list[int]]:
        """Return the updates of the records with a value, and which records are too late."""
        how = self.how
        names, values = decoded(how.node, batch, "key"), decoded(how.node, batch, "value")
        read = how.spec.value_serde.deserialize
        rows = [
            (layout.NEVER, None) if r is None else layout.read_version(r) for r in _of(table, keys)
        ]
        unique = list(dict.fromkeys(keys))
        begins = {key: began for key, (began, _) in zip(unique, rows, strict=True)}
        held = {key: value for key, (_, value) in zip(unique, rows, strict=True)}
        late, updates = list[int](), Updates.none()

        def fold(ahead: Iterator[Any], now_ms: int) -> None:
            for i, (value, key) in enumerate(zip(ahead, keys, strict=True)):
                if value is None:
                    continue
                time = max(batch.timestamps[i], begins[key])
                now_ms = max(now_ms, time)
                if time < table.time.bound_at(now_ms):
                    late.append(i)
                    continue
                before = held[key]
                # An aggregate passes through its serde each time.
                old = None if before is None else read(before)
                data = how.encode(how.fold.next(names[i], value, old))
                updates.add(i, time, key, data, before)
                begins[key], held[key] = time, data

        each(how.node, batch, values, lambda ahead: fold(ahead, table.time.now))
        return updates, late


def _of(table: VersionedTable, keys: list[bytes]) -> list[bytes | None]:
    """Return the row of the latest version of each of the keys, once."""
    return table.latest_rows(list(dict.fromkeys(keys))) if keys else []
