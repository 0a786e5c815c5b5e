"""The built-in stores over any engine: which tables they need, and how one is put together."""

from collections.abc import Callable, Collection
from typing import Any, Final

from statestore.model.modes import IsolationLevel
from statestore.ports import Clock, Engine
from statestore.stores import keyvalue, offsets, versioned_layout
from statestore.stores.keyvalue import TransactionalKeyValueStore
from statestore.stores.specs import BuiltInSpec, VersionedSpec
from statestore.stores.transaction import LagLimits, StagedEngine
from statestore.stores.versioned import TransactionalVersionedStore

KEY_VALUE_TABLES: Final = (keyvalue.TABLE, offsets.TABLE)
VERSIONED_TABLES: Final = (versioned_layout.LATEST, versioned_layout.HISTORY, offsets.TABLE)
BuiltIn = TransactionalKeyValueStore[Any, Any] | TransactionalVersionedStore[Any, Any]


def open_over(
    engine: Engine,
    spec: BuiltInSpec,
    *,
    where: str,
    limits: LagLimits,
    clock: Clock,
    level: IsolationLevel,
    task: str | None = None,
    owned_by_task: bool = False,
    made: Collection[str] = (),
    flush_soon: Callable[[StagedEngine], None] | None = None,
) -> BuiltIn:
    """The store over an engine with its tables; an engine it cannot use is closed.

    `task`: for its metrics. `made`: tables that were not there before.
    `flush_soon`: see `StagedEngine`.
    """
    try:
        staged = StagedEngine(
            engine,
            kind=spec.kind,
            name=spec.name,
            where=where,
            tables=tables_of(spec)[:-1],
            limits=limits,
            clock=clock,
            task=task,
            made=made,
            flush_soon=flush_soon,
            segment_interval=spec.interval_ms if isinstance(spec, VersionedSpec) else None,
        )
    except BaseException:
        engine.close()
        raise
    if isinstance(spec, VersionedSpec):
        return TransactionalVersionedStore(
            staged, spec, isolation_level=level, owned_by_task=owned_by_task
        )
    return TransactionalKeyValueStore(
        staged, spec, isolation_level=level, owned_by_task=owned_by_task
    )


def tables_of(spec: BuiltInSpec) -> tuple[str, ...]:
    """The tables of a store, that of the offsets last."""
    return VERSIONED_TABLES if isinstance(spec, VersionedSpec) else KEY_VALUE_TABLES
