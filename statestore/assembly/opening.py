"""Stores opened: a spec and the settings in, a store over its engine out.

All databases of a process share one
block cache and one bound on write buffers (`statestore.memory.bytes`).
"""

import functools
import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, overload

from statestore.assembly.surroundings import SystemClock
from statestore.engines.memory import MemoryEngine
from statestore.engines.rocks import RocksMemory, RocksTuning, open_rocks, stored_tables
from statestore.errors import InvalidSetting, Misuse, TaskCorrupted
from statestore.layout.snapshots import StoreOffsets
from statestore.model.modes import IsolationLevel
from statestore.ports import Clock, Engine
from statestore.settings import Settings
from statestore.stores import background_flush, offsets, versioned_layout
from statestore.stores.built_in import (
    KEY_VALUE_TABLES,
    VERSIONED_TABLES,
    BuiltIn,
    open_over,
    tables_of,
)
from statestore.stores.keyvalue import TransactionalKeyValueStore
from statestore.stores.specs import BuiltInSpec, KeyValueSpec, VersionedSpec
from statestore.stores.transaction import LagLimits
from statestore.stores.versioned import TransactionalVersionedStore

K = TypeVar("K")
V = TypeVar("V")
_READ_BYTES = 32 << 20


@overload
def open_store(
    spec: KeyValueSpec[K, V],
    directory: str | Path | None = None,
    *,
    isolation_level: IsolationLevel | str | None = None,
    settings: Settings | Mapping[str, object] | None = None,
) -> TransactionalKeyValueStore[K, V]: ...
@overload
def open_store(
    spec: VersionedSpec[K, V],
    directory: str | Path | None = None,
    *,
    isolation_level: IsolationLevel | str | None = None,
    settings: Settings | Mapping[str, object] | None = None,
) -> TransactionalVersionedStore[K, V]: ...
def open_store(
    spec: BuiltInSpec,
    directory: str | Path | None = None,
    *,
    isolation_level: IsolationLevel | str | None = None,
    settings: Settings | Mapping[str, object] | None = None,
) -> BuiltIn:
    """Open a store on its own, in `<directory>/<name>`.

    It has no changelog, so RocksDB's log is on.

    Raises Locked while another process has it open, TaskCorrupted if its files are not a whole
    store.
    """
    known = Settings.of(settings)
    level = known.effective_isolation_level if isolation_level is None else isolation_level
    if spec.persistent and directory is None:
        raise Misuse(f"store {spec.name!r} is persistent: pass the directory it lives in")
    path = None if directory is None else Path(directory) / spec.name
    wal = known.write_ahead_log is not False
    store = open_built_in(spec, path, known, SystemClock(), wal=wal, level=IsolationLevel(level))
    if spec.persistent and not wal:
        background_flush.watch(store.staged)
    return store


def open_built_in(
    spec: BuiltInSpec,
    path: Path | None,
    settings: Settings,
    clock: Clock,
    *,
    wal: bool,
    level: IsolationLevel,
    slots: int = 1,
    task: str | None = None,
) -> BuiltIn:
    """The store in `path`, or in memory; `slots` processes share this host's memory.

    `task`: the stream task that owns it, and alone may commit. Misuse if a store of another kind
    lies there.
    """
    engine: Engine
    made: set[str] = set()
    tables = tables_of(spec)
    if spec.persistent and path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        stored = stored_tables(path)
        _refuse_other_kind(path, spec, stored)
        made = set(tables).difference(stored)
        tuning = RocksTuning(
            write_ahead_log=wal,
            memory=_memory(os.getpid(), settings.memory_bytes // slots),
            options_hook=options_hook(settings, spec.name),
        )
        engine = open_rocks(path, tables=tables, tuning=tuning)
        where = str(path)
    else:
        engine, where = MemoryEngine(tables), f"in-memory store {spec.name!r}"
    limits = LagLimits(
        settings.flush_lag_max_bytes, settings.flush_lag_max_records, settings.flush_lag_max_ms
    )
    return open_over(
        engine,
        spec,
        where=where,
        limits=limits,
        clock=clock,
        level=level,
        task=task,
        owned_by_task=task is not None,
        made=made,
        flush_soon=background_flush.flush_soon if engine.persistent() else None,
    )


def open_files(path: Path) -> Engine:
    """The database of a built-in store as it lies there, read-only; keep owners out meanwhile."""
    versioned = versioned_layout.HISTORY in stored_tables(path)
    return _open_read_only(path, VERSIONED_TABLES if versioned else KEY_VALUE_TABLES)


def open_from_disk(path: Path) -> Engine:
    """The same, with nothing known from before: every block is read and its checksum checked.

    RocksDB's cache knows blocks by their database, wherever the files were copied to since.
    """
    versioned = versioned_layout.HISTORY in stored_tables(path)
    tables = VERSIONED_TABLES if versioned else KEY_VALUE_TABLES
    return _open_read_only(path, tables, RocksMemory.of_bytes(_READ_BYTES))


def open_to_rewrite(path: Path) -> Engine:
    """The database of a built-in store that nobody else has, to write rows to it as they are."""
    memory = _memory(os.getpid(), 32 << 20)
    tables = [name for name in stored_tables(path) if name != "default"]
    return open_rocks(path, tables=tables, tuning=RocksTuning(memory=memory))


def kind_of(path: Path) -> str | None:
    """What kind of built-in store lies there; None if there is no database or no format in it."""
    found = format_of(path)
    return None if found is None else found.kind


def format_of(path: Path) -> offsets.Format | None:
    """What a built-in store's folder holds; None if there is no database or no format in it."""
    stored = stored_tables(path)
    if offsets.TABLE not in stored:
        return None
    engine = _open_read_only(path, [name for name in stored if name != "default"])
    try:
        return offsets.read_format(engine.table(offsets.TABLE), str(path))
    finally:
        engine.close()


def _open_read_only(path: Path, tables: Sequence[str], memory: RocksMemory | None = None) -> Engine:
    missing = set(tables).difference(stored_tables(path))
    if missing:
        raise TaskCorrupted(f"{path}: no table {', '.join(sorted(missing))}: not a whole store")
    known = memory or _memory(os.getpid(), _READ_BYTES)
    return open_rocks(path, tables=tables, tuning=RocksTuning(memory=known, read_only=True))


def _refuse_other_kind(path: Path, spec: BuiltInSpec, stored: Sequence[str]) -> None:
    """Misuse if the tables on disk are of another kind of store: before RocksDB makes others."""
    theirs = KEY_VALUE_TABLES if isinstance(spec, VersionedSpec) else VERSIONED_TABLES
    if set(stored) - {"default"} != set(theirs):
        return
    engine = _open_read_only(path, theirs)
    try:
        offsets.check_format(engine.table(offsets.TABLE), spec.kind, str(path))
    finally:
        engine.close()


def is_empty(path: Path) -> bool:
    """Whether a store's folder holds neither a row nor an offset; keep owners out meanwhile.

    A folder with files that are no database is of a user's own store, and said to hold something.
    """
    tables = stored_tables(path)
    if not tables:
        return not any(found.is_file() for found in path.rglob("*"))
    tuning = RocksTuning(memory=_memory(os.getpid(), 32 << 20), read_only=True)
    engine = open_rocks(path, tables=tables, tuning=tuning)
    try:
        known = offsets.read_offsets(engine.table(offsets.TABLE), str(path))
        data = (engine.table(name).scan() for name in tables if name != offsets.TABLE)
        return not known and all(next(rows, None) is None for rows in data)
    finally:
        engine.close()


def read_offsets(path: Path) -> StoreOffsets | None:
    """Where a built-in store stands, from files nobody writes; None if none lies there."""
    if offsets.TABLE not in stored_tables(path):
        if any(path.glob("*.sst")):
            raise TaskCorrupted(f"{path}: no table {offsets.TABLE}: not a whole store")
        return None
    engine = _open_read_only(path, (offsets.TABLE,))
    try:
        table, where = engine.table(offsets.TABLE), str(path)
        found = offsets.read_offsets(table, where)
        return StoreOffsets.of(found, offsets.read_position(table, where).as_dict())
    finally:
        engine.close()


def options_hook(settings: Settings, store: str) -> Callable[[Any], None] | None:
    """What `rocksdb.config.setter` names, for one store; InvalidSetting says what is wrong."""
    path = settings.config_setter
    if not path:
        return None
    module, _, name = path.partition(":")
    setting = f"rocksdb.config.setter = {path!r}"
    try:
        function = getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:
        raise InvalidSetting(
            f"{setting}: {type(error).__name__}: {error}; want module:function, on PYTHONPATH of "
            "driver and workers"
        ) from error
    if not callable(function):
        raise InvalidSetting(f"{setting}: it names no function")

    def hook(options: Any) -> None:
        try:
            function(store, options)
        except Exception as error:
            raise InvalidSetting(
                f"{setting} failed for store {store!r}: {type(error).__name__}: {error}"
            ) from error

    return hook


@functools.cache
def _memory(_pid: int, size_bytes: int) -> RocksMemory:
    """One per process, so that a fork makes its own."""
    return RocksMemory.of_bytes(size_bytes)
