"""The set-up of a RocksDB database: memory shared within a process, options of column families."""

from collections.abc import Callable
from dataclasses import dataclass

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompactionStyle,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    WriteBufferManager,
    WriteOptions,
)

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
