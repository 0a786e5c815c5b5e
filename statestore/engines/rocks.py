"""A RocksDB database in one folder, through rocksdict; no native handle leaves `engines`.

A handle that outlives `close` keeps the folder locked, so one object owns all handles. Point reads
are rocksdict's own bound method and raise its errors, which `failure` translates; every other
method raises StateStoreErrors.

This module works around three defects of the libraries. `Rdict.flush` and the destructor flush
only one column family, which makes offsets durable without their data. `compact_range` does not
report that its flush failed. A database that lost its CURRENT file is opened as an empty one.
"""

import atexit
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import not_
from pathlib import Path
from typing import TypeVar

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    ColumnFamily,
    CompactOptions,
    DBCompactionStyle,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    WriteBatch,
    WriteBufferManager,
    WriteOptions,
)
from tenacity import (
    retry,
    retry_if_exception_type,
    retry_if_result,
    stop_after_delay,
    wait_fixed,
)

from statestore.engines.rocks_cursors import Cursors, RocksCursor, RocksSeeker
from statestore.engines.rocks_errors import translate
from statestore.engines.rocks_files import DESCRIPTION_MAX
from statestore.engines.rocks_order import Ordered, fill
from statestore.errors import (
    HostFailure,
    Misuse,
    StateStoreError,
    StoreClosed,
    TaskCorrupted,
    log_left,
)
from statestore.layout.linked_files import DATA
from statestore.ports import Writes

T = TypeVar("T")

_LOG = logging.getLogger(__name__)

# How long `close` waits for a multi-get that another thread still runs.
_READS_WAIT_S = 60

# How long a flush waits for a flush that RocksDB itself has started.
_FLUSH_WAIT_S = 60

# RocksDB reads keys fastest in lists of a few hundred, and many keys of one table in key order.
_LIST_MAX = 256
_SORT_MIN = 20_000

_UNFLUSHED = ("rocksdb.num-entries-active-mem-table", "rocksdb.num-immutable-mem-table")
_KIB = 1 << 10
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class RocksMemory:
    """One limit on the memory for blocks, indexes, filters and write buffers of a process.

    All databases of the process share it. Create one per process, after any fork.
    """

    cache: Cache
    write_buffers: WriteBufferManager

    @classmethod
    def of_bytes(cls, size_bytes: int) -> "RocksMemory":
        """Limit the memory to about `size_bytes`.

        Write buffers take at most half of it and are charged to the cache.
        """
        cache = Cache(size_bytes)
        buffers = WriteBufferManager.new_write_buffer_manager_with_cache(
            size_bytes // 2, False, cache
        )
        return cls(cache, buffers)


@dataclass(frozen=True, slots=True, kw_only=True)
class RocksTuning:
    """Options for opening a database.

    `options_hook` is called with the complete Options of each family, like
    `rocksdb.config.setter`. With `write_ahead_log` each write is synced before it returns.
    """

    memory: RocksMemory
    write_ahead_log: bool = False
    write_buffer_bytes: int = 16 * _MIB
    options_hook: Callable[[Options], None] | None = None
    create_if_missing: bool = True
    read_only: bool = False


def open_rocks(path: Path, *, tables: Sequence[str], tuning: RocksTuning) -> "RocksEngine":
    """Open the database in `path`, and create the tables that it lacks.

    Misuse if it has tables beyond `tables`, Locked if it is open elsewhere, TaskCorrupted if files
    are missing or unreadable, HostFailure if the volume is at fault. Opening it read-only takes no
    lock, so it is only for folders to which no process writes: a writer would delete files that
    the reader uses, which looks like corruption. Even then rocksdict writes a small configuration
    file to the folder.
    """
    _check_folder(path, tuning)
    families = {name: options(tuning) for name in ("default", *tables)}
    access = AccessType.read_only() if tuning.read_only else AccessType.read_write()
    try:
        db = Rdict(str(path), options(tuning), families, access)
    except Exception as error:
        raise translate(error, path) or error from error
    db.set_write_options(write_options(tuning))
    return RocksEngine(path, db, tables, read_only=tuning.read_only)


def stored_tables(path: Path) -> list[str]:
    """Return the sorted names of the tables on disk without opening them; [] without a database."""
    if not (path / "CURRENT").exists():
        return []
    try:
        _check_files(path)
        return sorted(Rdict.list_cf(str(path), Options(raw_mode=True)))
    except Exception as error:
        raise translate(error, path) or error from error


class RocksTable:
    """A Table that is one column family; `get` is rocksdict's own method, without a wrapper."""

    __slots__ = ("_cursors", "_family", "_get_list", "_ordered", "_where", "get")

    def __init__(self, family: Rdict, cursors: Cursors, where: Path) -> None:
        self._family = family
        self._cursors = cursors
        self._where = where
        self._ordered: Ordered | None = None
        self.get: Callable[[bytes], bytes | None] = family.get
        self._get_list: Callable[[list[bytes]], list[bytes | None]] = family.get  # type: ignore[assignment]  # takes a list too

    def get_many(self, keys: list[bytes], /) -> list[bytes | None]:
        """Return one value per key, in the order of `keys`; a write may come between two reads."""
        if len(keys) <= _LIST_MAX:
            return self._get_list(keys)
        if len(keys) < _SORT_MIN:
            return self._get_lists(keys)
        ordered = Ordered.of(keys)
        return ordered.back(self._get_lists(ordered.arranged))

    def get_many_at_once(self, keys: list[bytes], /) -> list[bytes | None]:
        """Do the same as `get_many`, from one point in time.

        RocksDB reads all keys of a list as of one sequence number.
        """
        if len(keys) < _SORT_MIN:
            return self._get_list(keys)
        ordered = Ordered.of(keys)
        return ordered.back(self._get_list(ordered.arranged))

    def get_many_to_write(self, keys: list[bytes], /) -> tuple[list[bytes], list[bytes | None]]:
        """Return the keys, sorted or nearly so, and their values.

        The next write of these keys does not sort them again.
        """
        self._ordered = ordered = Ordered.of(keys)
        return ordered.arranged, self._get_lists(ordered.arranged)

    def last_ordered(self) -> Ordered | None:
        """Return the order that `get_many_to_write` found, once."""
        ordered, self._ordered = self._ordered, None
        return ordered

    def scan(
        self, lo: bytes | None = None, hi: bytes | None = None, *, reverse: bool = False
    ) -> RocksCursor:
        """Iterate over the pairs with lo <= key <= hi in byte order, as of now."""
        return self._cursors.open(self._family, lo, hi, reverse=reverse)

    def seeker(self) -> RocksSeeker:
        """Take a snapshot and return a Seeker for it."""
        return self._cursors.seeker(self._family)

    def seek_many(self, keys: list[bytes], /) -> list[tuple[bytes, bytes] | None]:
        """Return for each key the first row at or after it, all from one point in time."""
        seeker = self.seeker()
        try:
            return seeker.seek_many(keys)
        finally:
            seeker.close()

    def scan_many(self, ranges: list[tuple[bytes, bytes]], /) -> list[list[tuple[bytes, bytes]]]:
        """Return for each range the pairs with lo <= key <= hi, all from one point in time."""
        seeker = self.seeker()
        try:
            return seeker.scan_many(ranges)
        finally:
            seeker.close()

    def approximate_count(self) -> int:
        """Return RocksDB's estimate: entries minus deletions."""
        try:
            return self._family.property_int_value("rocksdb.estimate-num-keys") or 0
        except Exception as error:
            raise translate(error, self._where) or error from error

    def refuse_lists(self) -> None:
        """Refuse further multi-gets: `close` waits for those that are running."""
        self._get_list = self._closed

    def _get_lists(self, keys: list[bytes]) -> list[bytes | None]:
        values: list[bytes | None] = []
        for start in range(0, len(keys), _LIST_MAX):
            values += self._get_list(keys[start : start + _LIST_MAX])
        return values

    def _closed(self, _keys: list[bytes]) -> list[bytes | None]:
        raise StoreClosed(f"{self._where}: the database is closed: open it again")


class RocksEngine:
    """An Engine on one folder; if left open, it is closed when it is dropped or at exit.

    Writes, flushes, checkpoints and close exclude each other; reads run concurrently with them.
    """

    def __init__(self, path: Path, db: Rdict, tables: Sequence[str], *, read_only: bool) -> None:
        self._path = path
        self._db = db
        self._read_only = read_only
        self._families = {name: db.get_column_family(name) for name in tables}
        self._handles: dict[str, ColumnFamily] = {
            name: db.get_column_family_handle(name) for name in tables
        }
        self._cursors = Cursors(path)
        self._tables = {
            name: RocksTable(family, self._cursors, path) for name, family in self._families.items()
        }
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._open = True
        _engines.add(self)

    def table(self, name: str) -> RocksTable:
        """Return the table of that name."""
        return self._named(self._tables, name)

    def write(
        self,
        writes: Mapping[str, Writes],
        *,
        ranges: Mapping[str, Sequence[tuple[bytes, bytes]]] | None = None,
    ) -> None:
        """Write one batch, range deletes first.

        It is durable at the next flush, or immediately if the write-ahead log is on.
        """
        with self._call(writing=True):
            batch = WriteBatch(raw_mode=True)
            try:
                for name, spans in (ranges or {}).items():
                    for start, end in spans:
                        if start < end:
                            batch.delete_range(start, end, self._named(self._handles, name))
                for name, rows in writes.items():
                    batch.set_default_column_family(self._named(self._handles, name))
                    fill(batch, rows, self._tables[name].last_ordered())
                self._db.write(batch)
            finally:
                # A traceback keeps the batch, which must not keep the family and the folder lock.
                batch.set_default_column_family(None)

    def flush(self) -> None:
        """Make every completed write durable, all tables atomically; HostFailure if that fails."""
        with self._call(writing=False):
            self._flush()

    def checkpoint(self, target: Path) -> None:
        """Create a consistent copy, with unflushed writes, in the new folder `target`.

        The copy consists of hard links.
        """
        with self._call(writing=True):
            if target.exists() or not target.parent.is_dir():
                raise Misuse(f"checkpoint: {target} must be a new folder in an existing one")
            # It holds the interpreter's lock, and would flush. Our flush does not hold it.
            self._flush()
            Checkpoint(self._db).create_checkpoint(str(target))

    def persistent(self) -> bool:
        """Return True."""
        return True

    def failure(self, error: Exception) -> StateStoreError | None:
        """Translate RocksDB's or rocksdict's error into a StateStoreError; None for any other."""
        return translate(error, self._path)

    def close(self) -> None:
        """Flush, close all cursors and release the folder, even if the flush fails."""
        with self._lock:
            if not self._open:
                return
            self._open = False
            for table in self._tables.values():
                table.refuse_lists()
            self._cursors.close()
            try:
                with self._errors():
                    self._flush()
            finally:
                self._release()

    def __del__(self) -> None:
        if hasattr(self, "_open"):
            self.abandon()

    def abandon(self) -> None:
        """Close an engine that was left open.

        Without this, rocksdict's destructors would flush one column family after the other.
        """
        # A forked child inherits the object, but neither the lock nor RocksDB's threads.
        if not self._open or os.getpid() != self._pid:
            return
        _LOG.warning("%s: the database was not closed by its owner: closing it", self._path)
        try:
            self.close()
        except StateStoreError as error:
            log_left(_LOG, error, f"{self._path}: could not close the database")

    def _flush(self) -> None:
        if not self._read_only and not self._flushed():
            raise HostFailure(f"{self._path}: RocksDB did not flush: the file LOG there says why")

    @retry(
        retry=retry_if_result(not_),
        wait=wait_fixed(0.001),
        stop=stop_after_delay(_FLUSH_WAIT_S),
        retry_error_callback=lambda _state: False,
    )
    def _flushed(self) -> bool:
        """Flush once; return False if unflushed writes are left.

        RocksDB does not wait for a flush that it has started itself, so writes may be left.
        """
        # With atomic flush, any manual compaction first flushes all families. This one then finds
        # nothing to compact, because no key is below b"".
        settings = CompactOptions()
        settings.set_exclusive_manual_compaction(False)
        self._db.compact_range(None, b"", settings)
        left = any(
            family.property_int_value(name)
            for family in self._families.values()
            for name in _UNFLUSHED
        )
        if left:
            self._db.write(WriteBatch(raw_mode=True))  # raises the error that stopped the flush
        return not left

    def _release(self) -> None:
        """Release the folder's lock; from now on a bound `get` raises DbClosedError."""
        self._handles.clear()
        if not self._read_only:
            # From here on no family can be flushed alone, which `Rdict.close` would try.
            self._db.cancel_all_background(True)
        try:
            for handle in (*self._families.values(), self._db):
                _close_when_idle(handle)
        except RuntimeError as error:
            raise HostFailure(
                f"{self._path}: a read has been running for {_READS_WAIT_S} s and keeps the folder "
                "locked: end this process"
            ) from error

    def _named(self, things: Mapping[str, T], name: str) -> T:
        if name not in things:
            known = ", ".join(self._tables)
            raise Misuse(f"{self._path}: opened without a table {name!r}; it has: {known}")
        return things[name]

    @contextmanager
    def _call(self, *, writing: bool) -> Iterator[None]:
        with self._lock:
            if not self._open:
                raise StoreClosed(f"{self._path}: the database is closed: open it again")
            if writing and self._read_only:
                raise Misuse(f"{self._path}: the database is open read-only")
            with self._errors():
                yield

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            ours = translate(error, self._path)
            if ours is None:
                raise
            raise ours from error


_engines: weakref.WeakSet[RocksEngine] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for engine in list(_engines):
        engine.abandon()


@retry(
    retry=retry_if_exception_type(RuntimeError),
    wait=wait_fixed(0.001),
    stop=stop_after_delay(_READS_WAIT_S),
    reraise=True,
)
def _close_when_idle(handle: Rdict) -> None:
    """Close one handle; RuntimeError ("already borrowed") while a multi-get runs on it."""
    try:
        handle.close()
    except RuntimeError:
        raise
    except Exception as error:
        # rocksdict's own flush fails, as intended, because background work has been cancelled.
        if "Shutdown in progress" not in str(error):
            raise


def _check_folder(path: Path, tuning: RocksTuning) -> None:
    """Refuse a folder that RocksDB would open as an empty database; otherwise create the folder."""
    try:
        if (path / "CURRENT").exists():
            _check_files(path)
            return
        if any(path.glob("*.sst")) or any(path.glob("*.blob")) or any(path.glob("*.log")):
            raise TaskCorrupted(f"{path}: there are data files but the file CURRENT is missing")
        if tuning.read_only or not tuning.create_if_missing:
            raise TaskCorrupted(f"{path}: there is no database: the file CURRENT is missing")
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise translate(error, path) or error from error


def _check_files(path: Path) -> None:
    """TaskCorrupted if RocksDB would wait for ever for one of its files."""
    with os.scandir(path) as found:
        for entry in found:
            if not (entry.is_file() or entry.is_dir()) and Path(entry).exists():
                raise TaskCorrupted(f"{path}: {entry.name} is a FIFO or a device, no file")
            # It begins another LOG without reading those before.
            is_read = Path(entry).suffix not in DATA and not entry.name.startswith("LOG")
            if is_read and entry.is_file():
                size = entry.stat().st_size
                if size > DESCRIPTION_MAX:
                    raise TaskCorrupted(f"{path}: {entry.name} has {size} bytes: it is damaged")


def options(tuning: RocksTuning) -> Options:
    """Return the options of one family; RocksDB takes those of the whole database from them too."""
    blocks = BlockBasedOptions()
    blocks.set_block_cache(tuning.memory.cache)
    blocks.set_block_size(4 * _KIB)
    blocks.set_bloom_filter(10, False)
    # Otherwise they would not count against the memory limit.
    blocks.set_cache_index_and_filter_blocks(True)
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)

    made = Options(raw_mode=True)
    made.create_if_missing(tuning.create_if_missing)
    made.create_missing_column_families(True)
    made.set_atomic_flush(True)
    # RocksDB's default silently drops what follows a damaged record of its log.
    made.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    made.set_block_based_table_factory(blocks)
    made.set_write_buffer_manager(tuning.memory.write_buffers)
    made.set_write_buffer_size(tuning.write_buffer_bytes)
    made.set_max_write_buffer_number(3)
    # A family with a handful of rows then holds 64 KiB of memory, not megabytes.
    made.set_arena_block_size(64 * _KIB)
    # Level compaction is as fast as universal compaction, takes less space, and keeps files
    # unchanged for longer, so that exports upload less.
    made.set_compaction_style(DBCompactionStyle.level())
    made.set_compression_type(DBCompressionType.lz4())
    made.set_max_bytes_for_level_base(64 * _MIB)
    made.set_target_file_size_base(16 * _MIB)
    made.set_max_background_jobs(2)
    made.set_max_open_files(256)
    made.set_keep_log_file_num(2)
    made.set_max_log_file_size(_MIB)
    made.set_stats_dump_period_sec(0)
    made.set_stats_persist_period_sec(0)
    if tuning.options_hook is not None:
        tuning.options_hook(made)
    return made


def write_options(tuning: RocksTuning) -> WriteOptions:
    """Return write options with a synced write-ahead log, or with none."""
    made = WriteOptions()
    made.disable_wal = not tuning.write_ahead_log  # type: ignore[method-assign,assignment]  # a property: the stub is wrong
    made.sync = tuning.write_ahead_log
    return made
