"""Tables made of a stream: the latest value per key, or every version of it.

A table with history keeps each version in a versioned store and is looked up by the records' own
times. An update older than the latest version of its key changes history and is not handed on; one
older than the retention is dropped (SEMANTICS V4, V10).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from statestore.model.batch import Batch, Column
from statestore.stores.specs import KeyValueSpec, VersionedSpec
from statestore.stores.versioned import layout
from statestore.stores.versioned.table import VersionedTable
from statestore.topology.failures import encoded, keyed
from statestore.topology.joins.grace import Gate, Waiter
from statestore.topology.nodes import Build, Forward, NodeContext, Push, SendOldValues

LookAsOf = Callable[[Sequence[bytes | None], Sequence[int]], list[Any]]
"""From keys and times to the values that were valid then; None where there was none."""


def latest(node: str, spec: KeyValueSpec[Any, Any], *, old_values: SendOldValues) -> Build:
    """Build a node that keeps the latest value per key.

    Records with a null key are dropped; a null value deletes the key.
    """

    def build(context: NodeContext, forward: Forward) -> Push:
        table = context.table(spec.name)

        def push(batch: Batch) -> None:
            batch, keys = keyed(context, node, batch, spec.key_serde)
            if not keys:
                return
            values = encoded(node, batch, "value", spec.value_serde)
            writes: dict[Any, bytes | None] = dict(zip(keys, values, strict=True))
            if old_values.enabled:
                known = sorted(writes)
                held = dict(zip(known, table.get_many(known), strict=True))
                replaced = [_swapped(held, key, new) for key, new in zip(keys, values, strict=True)]
                batch = batch.with_columns(old_values=Column(raw=replaced, serde=spec.value_serde))
            # The times, as the values, are those of each key's last record.
            table.put_all(writes, list(dict(zip(keys, batch.timestamps, strict=True)).values()))
            forward(batch, None)

        return push

    return build


def _swapped(held: dict[Any, bytes | None], key: Any, new: bytes | None) -> bytes | None:
    """Return what is held for the key, and hold `new` from here on."""
    old = held[key]
    held[key] = new
    return old


@dataclass(frozen=True)
class History:
    """What a table with versions offers to joins.

    `node` is the one whose updates change the history. `waiters` are the joins that wait for it,
    `followers` the nodes that keep every version, too; both are added while the topology is
    written. `value_of` computes a value from the key's bytes and what `node` keeps; None: it is
    that itself. `tolerance_ms` is how long before a record's time a version may have begun; None:
    ever so long.
    """

    retention_ms: int
    look_within: Callable[[NodeContext, int | None], LookAsOf]
    node: str
    waiters: list[Waiter]
    followers: list[str]
    value_of: Callable[[bytes, Any], Any] | None = None
    tolerance_ms: int | None = None

    def look(self, context: NodeContext) -> LookAsOf:
        """Return the look-up of the versions that are near enough to a record's time."""
        return self.look_within(context, self.tolerance_ms)

    def through(self, function: Callable[[bytes, Any], Any]) -> "History":
        """Return the history of a table computed row by row from this one.

        `function(key's bytes, value)` returns None where the computed table has no row.
        """

        def make(context: NodeContext, tolerance_ms: int | None) -> LookAsOf:
            parent = self.look_within(context, tolerance_ms)

            def look(keys: Sequence[bytes | None], times: Sequence[int]) -> list[Any]:
                return [
                    None if key is None or value is None else function(key, value)
                    for key, value in zip(keys, parent(keys, times), strict=True)
                ]

            return look

        before = self.value_of

        def value_of(key: bytes, value: Any) -> Any:
            held = value if before is None or value is None else before(key, value)
            return None if held is None else function(key, held)

        return replace(self, look_within=make, value_of=value_of)


def history_of(
    spec: VersionedSpec[Any, Any], node: str, waiters: list[Waiter], followers: list[str]
) -> History:
    """Return the history in a versioned store, which `node` keeps for these."""

    def make(context: NodeContext, tolerance_ms: int | None) -> LookAsOf:
        table, read = context.versions(spec.name), spec.value_serde.deserialize

        def look(keys: Sequence[bytes | None], times: Sequence[int]) -> list[Any]:
            known = [(key, time) for key, time in zip(keys, times, strict=True) if key is not None]
            wanted, at = [k for k, _ in known], [t for _, t in known]
            found = iter(table.get_many_as_of(wanted, at, tolerance_ms))
            rows = [None if key is None else next(found) for key in keys]
            return [None if row is None else read(row) for row in rows]

        return look

    return History(spec.history_retention_ms, make, node, waiters, followers)


def with_history(
    node: str,
    spec: VersionedSpec[Any, Any],
    *,
    old_values: SendOldValues,
    waiters: list[Waiter],
    followers: Sequence[str] = (),
) -> Build:
    """Build a node that keeps every version and hands on those that are their keys' latest.

    The `followers` among its children are handed the others, too, in the order of all.
    """

    def build(context: NodeContext, forward: Forward) -> Push:
        table = context.versions(spec.name)
        gate = Gate(context, waiters, forward) if waiters else None

        def push(batch: Batch) -> None:
            for part in (batch,) if gate is None else gate.parts(batch):
                apply(part)

        def apply(batch: Batch) -> None:
            batch, known = keyed(context, node, batch, spec.key_serde)
            if not known:
                return
            values = encoded(node, batch, "value", spec.value_serde)
            if not old_values.enabled and table.in_order(batch.timestamps):
                table.put_all(known, values, batch.timestamps)
                forward(batch, None)
                return
            rows = _latest_rows(table, known)
            late = table.put_all(known, values, batch.timestamps)
            if late:
                context.drop(node, batch, late, "older_than_history")
            gone = set(late or ())
            places, replaced = _newest(known, values, batch.timestamps, rows, gone)
            if old_values.enabled:
                old = dict(zip(places, replaced, strict=True))
                raw = list(map(old.get, range(len(batch))))
                batch = batch.with_columns(old_values=Column(raw=raw, serde=spec.value_serde))
            for child, part in in_turn(places, gone, len(batch), followers):
                forward(batch if len(part) == len(batch) else batch.take(part), child)

        return push

    return build


def in_turn(
    places: list[int], gone: set[int], count: int, followers: Sequence[str]
) -> Iterator[tuple[str | None, list[int]]]:
    """Yield which records go to which child: `places` to all, others that are kept to followers."""
    if not followers or len(places) + len(gone) == count:
        if places:
            yield None, places
        return
    latest = set(places)
    kept = (i for i in range(count) if i not in gone)
    for is_latest, run in groupby(kept, latest.__contains__):
        part = list(run)
        for child in (None,) if is_latest else followers:
            yield child, part


def _latest_rows(table: VersionedTable, keys: list[bytes]) -> dict[bytes, bytes | None]:
    unique = list(dict.fromkeys(keys))
    return dict(zip(unique, table.latest_rows(unique), strict=True))


def _newest(
    keys: list[bytes],
    values: list[bytes | None],
    times: list[int],
    rows: dict[bytes, bytes | None],
    late: set[int],
) -> tuple[list[int], list[bytes | None]]:
    """Return which records were their keys' latest in their turn, and the values they replaced."""
    begins: dict[bytes, int] = {}
    held: dict[bytes, bytes | None] = {}
    for key, row in rows.items():
        begins[key], held[key] = (layout.NEVER, None) if row is None else layout.read_version(row)
    places, replaced = [], []
    for i, (key, value, time) in enumerate(zip(keys, values, times, strict=True)):
        if time >= begins[key] and i not in late:
            begins[key] = time
            places.append(i)
            replaced.append(held[key])
            held[key] = value
    return places, replaced
