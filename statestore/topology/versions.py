"""Tables with history: every version goes to a versioned store; look-ups by the records' own times.

An update older than the key's latest version changes history and is not handed on; one older than
the retention is dropped (SEMANTICS V4, V10).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from statestore.model.batch import Batch, Column
from statestore.stores import versioned_layout as layout
from statestore.stores.specs import VersionedSpec
from statestore.stores.versioned_table import VersionedTable
from statestore.topology.aggregates import Before
from statestore.topology.failures import encoded, keyed
from statestore.topology.grace import Gate, Waiter
from statestore.topology.graph import Build, Forward, NodeContext, Push

LookAsOf = Callable[[Sequence[bytes | None], Sequence[int]], list[Any]]
"""Keys and times -> the values valid then, None where there was none."""


@dataclass(frozen=True)
class History:
    """What a table with versions can be asked."""

    retention_ms: int
    look: Callable[[NodeContext], LookAsOf]
    node: str
    """Whose updates change it."""
    waiters: list[Waiter]
    """The joins that wait for it; the topology's writer adds them."""

    def through(self, function: Callable[[bytes, Any], Any]) -> "History":
        """That of a table computed row by row: function(key's bytes, value), None for no row."""

        def make(context: NodeContext) -> LookAsOf:
            parent = self.look(context)

            def look(keys: Sequence[bytes | None], times: Sequence[int]) -> list[Any]:
                return [
                    None if key is None or value is None else function(key, value)
                    for key, value in zip(keys, parent(keys, times), strict=True)
                ]

            return look

        return replace(self, look=make)


def history_of(spec: VersionedSpec[Any, Any], node: str, waiters: list[Waiter]) -> History:
    """That of a versioned store; `node` made by `versioned` with these waiters."""

    def make(context: NodeContext) -> LookAsOf:
        table, read = context.versions(spec.name), spec.value_serde.deserialize

        def look(keys: Sequence[bytes | None], times: Sequence[int]) -> list[Any]:
            known = [(key, time) for key, time in zip(keys, times, strict=True) if key is not None]
            found = iter(table.get_many_as_of([k for k, _ in known], [t for _, t in known]))
            rows = [None if key is None else next(found) for key in keys]
            return [None if row is None else read(row) for row in rows]

        return look

    return History(spec.history_retention_ms, make, node, waiters)


def latest_of(spec: VersionedSpec[Any, Any]) -> Callable[[NodeContext], Any]:
    """How a table's latest values are looked up, by those that ask for no time."""

    def make(context: NodeContext) -> Callable[[list[bytes]], list[Any]]:
        table, read = context.versions(spec.name), spec.value_serde.deserialize

        def look(keys: list[bytes]) -> list[Any]:
            rows = [
                None if row is None else layout.read_version(row).value
                for row in table.latest_rows(keys)
            ]
            return [None if row is None else read(row) for row in rows]

        return look

    return make


def versioned(
    node: str, spec: VersionedSpec[Any, Any], *, before: Before, waiters: list[Waiter]
) -> Build:
    """Every version into a store; the updates that are the latest of their keys are handed on."""

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
            if not before.wanted and table.in_order(batch.timestamps):
                table.put_all(known, values, batch.timestamps)
                forward(batch, None)
                return
            rows = _latest_rows(table, known)
            late = table.put_all(known, values, batch.timestamps)
            if late:
                context.drop(node, batch, late, "older_than_history")
            places, replaced = _newest(known, values, batch.timestamps, rows, set(late or ()))
            if not places:
                return
            made = batch if len(places) == len(known) else batch.take(places)
            if before.wanted:
                made = made.with_columns()
                made.before = Column(raw=replaced, serde=spec.value_serde)
            forward(made, None)

        return push

    return build


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
    """Which records were their keys' latest when their turn came, and the values before."""
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
