"""The kinds of built-in stores: the tables of each, its owner's class and its reader's class.

A new kind is a spec in specs.py, an owner's class, a reader's class, and what this module says of
them. The kind of a store at rest is in its format row and in the deployed topology.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from statestore.model.modes import IsolationLevel
from statestore.ports import Clock, Engine, Writes
from statestore.stores import keyvalue, offsets, sessions, windows
from statestore.stores.durability import LagLimits
from statestore.stores.expiry import ExpiringRows
from statestore.stores.in_windows import UNLOGGED
from statestore.stores.keyvalue import KeyValueReader, TransactionalKeyValueStore
from statestore.stores.pending import Entries
from statestore.stores.reads import RowSource, SourceRows
from statestore.stores.sessions import SessionReader, TransactionalSessionStore
from statestore.stores.specs import (
    AtRestSpec,
    BuiltInSpec,
    InWindowsSpec,
    SessionSpec,
    VersionedSpec,
    WindowSpec,
)
from statestore.stores.transaction import StagedEngine
from statestore.stores.versioned import layout
from statestore.stores.versioned.reads import committed_versions
from statestore.stores.versioned.store import TransactionalVersionedStore, VersionedReader
from statestore.stores.windows import TransactionalWindowStore, WindowReader

KEY_VALUE_TABLES: Final = (keyvalue.TABLE, offsets.TABLE)
VERSIONED_TABLES: Final = (layout.LATEST, layout.HISTORY, offsets.TABLE)
BuiltIn = TransactionalKeyValueStore[Any, Any] | TransactionalVersionedStore[Any, Any]
InWindows = TransactionalWindowStore[Any, Any] | TransactionalSessionStore[Any, Any]
AnyReader = (
    KeyValueReader[Any, Any]
    | VersionedReader[Any, Any]
    | WindowReader[Any, Any]
    | SessionReader[Any, Any]
)
"""A reader of whatever kind. Tools use its `find`, `entries`, `everything` and `span_names`."""


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
    """Return the store over an engine with its tables. An engine it cannot use is closed.

    `task`: the stream task, for its metrics. `made`: the tables that were not there before.
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
    """Return the tables of a store, that of the offsets last."""
    return VERSIONED_TABLES if isinstance(spec, VersionedSpec) else KEY_VALUE_TABLES


def reader_over(
    spec: AtRestSpec,
    sources: Sequence[RowSource],
    where: str,
    release: Callable[[], None],
) -> AnyReader:
    """Return a reader of a store over one source per partition.

    `release` is called when it is closed. Misuse if a source holds a store of another kind.
    """
    versions = []
    for source in sources:
        try:
            offsets.check_format(source.table(offsets.TABLE), spec.kind, where)
            if isinstance(spec, VersionedSpec):
                versions.append(committed_versions(source, where))
        except Exception as error:
            raise source.failure(error) from error
    match spec:
        case VersionedSpec():
            return VersionedReader(versions, spec, release)
        case WindowSpec():
            return WindowReader(_rows_of(sources), spec, release)
        case SessionSpec():
            return SessionReader(_rows_of(sources), spec, release)
    if spec.ttl_ms is None:
        return KeyValueReader(_rows_of(sources), spec, release)
    expiring = [ExpiringRows(source, keyvalue.TABLE, spec.ttl_ms) for source in sources]
    return KeyValueReader(expiring, spec, release)


# Stores whose keys are in windows have other rows than their changelogs.


def over_rows(store: TransactionalKeyValueStore[bytes, bytes], spec: InWindowsSpec) -> InWindows:
    """Return the store of windows whose rows `store` holds."""
    if isinstance(spec, SessionSpec):
        return TransactionalSessionStore(store, spec)
    return TransactionalWindowStore(store, spec)


def logged_keys(kind: str, rows: list[bytes]) -> list[bytes | None]:
    """Return the keys of rows in the changelog; None for a row that it does not have."""
    if kind not in (WindowSpec.kind, SessionSpec.kind):
        return list(rows)
    keys = windows.keys_of(rows) if kind == WindowSpec.kind else sessions.keys_of(rows)
    if max(rows, default=b"") < UNLOGGED:
        return keys
    return [key if row < UNLOGGED else None for key, row in zip(keys, rows, strict=True)]


def following(spec: InWindowsSpec, writes: Writes, look: sessions.Looked) -> Entries:
    """Return the rows that follow from these rows of the changelog; `look` finds present ones."""
    if isinstance(spec, SessionSpec):
        return sessions.listed(writes, look)
    return windows.indexed(writes) if spec.any_start else {}


def row_of(kind: str, key: bytes) -> bytes:
    """Return the row of a key of the changelog."""
    if kind == WindowSpec.kind:
        return windows.row_of(key)
    return sessions.row_of(key) if kind == SessionSpec.kind else key


def _rows_of(sources: Sequence[RowSource]) -> list[SourceRows]:
    return [SourceRows(source, keyvalue.TABLE) for source in sources]
