"""Stores opened: a spec and the settings in, a store over its engine out.

With `assembly`, the only module that names concrete edges. All databases of a process share one
block cache and one bound on write buffers (`statestore.memory.bytes`).
"""

import functools
import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from statestore.engines.memory import MemoryEngine
from statestore.engines.rocks import RocksMemory, RocksTuning, open_rocks, stored_tables
from statestore.errors import InvalidSetting, TaskCorrupted
from statestore.model import IsolationLevel
from statestore.ports import Clock, Engine
from statestore.settings import Settings
from statestore.stores import keyvalue, offsets
from statestore.stores.keyvalue import TransactionalKeyValueStore
from statestore.stores.specs import KeyValueSpec
from statestore.stores.transaction import LagLimits, StagedEngine

K = TypeVar("K")
V = TypeVar("V")
_TABLES = (keyvalue.TABLE, offsets.TABLE)


def open_key_value(
    spec: KeyValueSpec[K, V],
    path: Path | None,
    settings: Settings,
    clock: Clock,
    *,
    wal: bool,
    level: IsolationLevel,
    slots: int = 1,
    task: str | None = None,
) -> TransactionalKeyValueStore[K, V]:
    """The store in `path`, or in memory; `slots` processes share this host's memory.

    `task`: the stream task that owns it, and alone may commit.
    """
    engine: Engine
    made: set[str] = set()
    if spec.persistent and path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        made = set(_TABLES).difference(stored_tables(path))
        tuning = RocksTuning(
            write_ahead_log=wal,
            memory=_memory(os.getpid(), settings.memory_bytes // slots),
            options_hook=options_hook(settings, spec.name),
        )
        engine = open_rocks(path, tables=_TABLES, tuning=tuning)
        where = str(path)
    else:
        engine, where = MemoryEngine(_TABLES), f"in-memory store {spec.name!r}"
    limits = LagLimits(
        settings.flush_lag_max_bytes, settings.flush_lag_max_records, settings.flush_lag_max_ms
    )
    try:
        staged = StagedEngine(
            engine,
            kind=spec.kind,
            name=spec.name,
            where=where,
            tables=(keyvalue.TABLE,),
            limits=limits,
            clock=clock,
            task=task,
            made=made,
        )
    except BaseException:
        engine.close()
        raise
    return TransactionalKeyValueStore(
        staged, spec, isolation_level=level, owned_by_task=task is not None
    )


def open_files(path: Path) -> Engine:
    """The database of a key-value store as it lies there, read-only; keep owners out meanwhile."""
    missing = set(_TABLES).difference(stored_tables(path))
    if missing:
        raise TaskCorrupted(f"{path}: no table {', '.join(sorted(missing))}: not a whole store")
    memory = _memory(os.getpid(), 32 << 20)
    return open_rocks(path, tables=_TABLES, tuning=RocksTuning(memory=memory, read_only=True))


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


def options_hook(settings: Settings, store: str) -> Callable[[Any], None] | None:
    """What `rocksdb.config.setter` names, for one store; InvalidSetting says what is wrong."""
    path = settings.config_setter
    if not path:
        return None
    module, _, name = path.partition(":")
    setting = f"rocksdb.config.setter = {path!r}"
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidSetting(
            f"{setting}: {error}; want module:function, on PYTHONPATH of driver and workers"
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
