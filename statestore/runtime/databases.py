"""Opens built-in stores over RocksDB or in memory, and looks into the folders they left.

All databases of a process share one block cache and one bound on write buffers
(`statestore.memory.bytes`).
"""

import functools
import importlib
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from statestore.engines.memory import MemoryEngine
from statestore.engines.rocks import RocksMemory, RocksTuning, open_rocks, stored_tables
from statestore.engines.rocks_files import link_store
from statestore.errors import InvalidSetting, TaskCorrupted
from statestore.layout.snapshots import StoreOffsets
from statestore.model.modes import IsolationLevel
from statestore.ports import Clock, Engine
from statestore.settings import Settings
from statestore.stores import durability, offsets
from statestore.stores.durability import LagLimits
from statestore.stores.kinds.kind import BuiltIn
from statestore.stores.kinds.opening import open_over
from statestore.stores.kinds.registry import kind_of, tables_in
from statestore.stores.specs import StoreSpec

_READ_BYTES = 32 << 20


class RocksDatabases:
    """`operations.environment.Databases` over RocksDB."""

    def read(self, path: Path) -> Engine:
        """Open the database of a built-in store read-only."""
        return _read_only(path, tables_in(stored_tables(path)))

    def read_uncached(self, path: Path) -> Engine:
        """Open it read-only with an empty cache, so that every block's checksum is checked.

        RocksDB's cache knows a block by its database, wherever its files were copied to since.
        """
        return _read_only(path, tables_in(stored_tables(path)), RocksMemory.of_bytes(_READ_BYTES))

    def rewrite(self, path: Path) -> Engine:
        """Open it for writing, to change rows without the store that owns them."""
        memory = _memory(os.getpid(), _READ_BYTES)
        tables = [name for name in stored_tables(path) if name != "default"]
        return open_rocks(path, tables=tables, tuning=RocksTuning(memory=memory))

    def format_of(self, path: Path) -> offsets.Format | None:
        """What kind of store the folder holds; None if it holds none of the built-in kinds."""
        stored = stored_tables(path)
        if offsets.TABLE not in stored:
            return None
        with closing(_read_only(path, [name for name in stored if name != "default"])) as engine:
            return offsets.read_format(engine.table(offsets.TABLE), str(path))

    def offsets_of(self, path: Path) -> StoreOffsets | None:
        """The offsets at which the store stands; None if the folder holds no built-in store."""
        if offsets.TABLE not in stored_tables(path):
            if any(path.glob("*.sst")):
                raise TaskCorrupted(f"{path}: no table {offsets.TABLE}: not a whole store")
            return None
        with closing(_read_only(path, (offsets.TABLE,))) as engine:
            table, where = engine.table(offsets.TABLE), str(path)
            found = offsets.read_offsets(table, where)
            return StoreOffsets.of(found, offsets.read_position(table, where).as_dict())

    def is_empty(self, path: Path) -> bool:
        """Whether the folder holds neither a row nor an offset.

        A folder with files that are no database belongs to a store of a user's own class and is
        never empty.
        """
        tables = stored_tables(path)
        if not tables:
            return not any(found.is_file() for found in path.rglob("*"))
        memory = _memory(os.getpid(), _READ_BYTES)
        tuning = RocksTuning(memory=memory, read_only=True)
        with closing(open_rocks(path, tables=tables, tuning=tuning)) as engine:
            known = offsets.read_offsets(engine.table(offsets.TABLE), str(path))
            data = (engine.table(name).scan() for name in tables if name != offsets.TABLE)
            return not known and all(next(rows, None) is None for rows in data)

    def link(self, source: Path, target: Path, owner_is_dead: bool, /) -> None:  # noqa: FBT001  # a port
        """Make `target` a copy of the store in `source` as it was last durable."""
        link_store(source, target, owner_is_dead)


def open_built_in(
    spec: StoreSpec,
    path: Path | None,
    settings: Settings,
    clock: Clock,
    *,
    wal: bool,
    level: IsolationLevel,
    slots: int = 1,
    task: str | None = None,
) -> BuiltIn:
    """Open the store in `path`, or one in memory.

    `slots`: how many processes share the memory of this host. `task`: the stream task that owns the
    store and is the only one to commit. Misuse if `path` holds a store of another kind.
    """
    engine: Engine
    made: set[str] = set()
    tables = kind_of(spec).tables
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
        flush_soon=durability.flush_soon if engine.persistent() else None,
    )


def options_hook(settings: Settings, store: str) -> Callable[[Any], None] | None:
    """The function that `rocksdb.config.setter` names, bound to one store; None if it names none.

    InvalidSetting says what is wrong with it.
    """
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


def _read_only(path: Path, tables: Sequence[str], memory: RocksMemory | None = None) -> Engine:
    missing = set(tables).difference(stored_tables(path))
    if missing:
        raise TaskCorrupted(f"{path}: no table {', '.join(sorted(missing))}: not a whole store")
    known = memory or _memory(os.getpid(), _READ_BYTES)
    return open_rocks(path, tables=tables, tuning=RocksTuning(memory=known, read_only=True))


def _refuse_other_kind(path: Path, spec: StoreSpec, stored: Sequence[str]) -> None:
    """Misuse if the tables on disk belong to another kind of store, before RocksDB adds others."""
    theirs = tables_in(stored)
    if theirs == kind_of(spec).tables or set(stored) - {"default"} != set(theirs):
        return
    with closing(_read_only(path, theirs)) as engine:
        offsets.check_format(engine.table(offsets.TABLE), spec.kind, str(path))


_making = threading.Lock()


def _memory(pid: int, size_bytes: int) -> RocksMemory:
    """Shared by all databases of a process; a fork makes its own."""
    with _making:  # A cache alone would have threads make one each.
        return _memory_of(pid, size_bytes)


@functools.cache
def _memory_of(_pid: int, size_bytes: int) -> RocksMemory:
    return RocksMemory.of_bytes(size_bytes)
