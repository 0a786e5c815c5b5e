"""How a RocksDB database is set up: memory shared by a process, options of a family."""

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
    """Blocks, indexes, filters and write buffers of all databases of a process, in one bound.

    Make one per process, after any fork.
    """

    cache: Cache
    write_buffers: WriteBufferManager

    @classmethod
    def of_bytes(cls, size_bytes: int) -> "RocksMemory":
        """About `size_bytes` in all; at most half for write buffers, charged to the cache."""
        cache = Cache(size_bytes)
        buffers = WriteBufferManager.new_write_buffer_manager_with_cache(
            size_bytes // 2, False, cache
        )
        return cls(cache, buffers)


@dataclass(frozen=True, slots=True, kw_only=True)
class RocksTuning:
    """How to open a database.

    `options_hook` gets the Options of each family when they are done, as `rocksdb.config.setter`
    does. With `write_ahead_log` each write is synced before it returns.
    """

    memory: RocksMemory
    write_ahead_log: bool = False
    write_buffer_bytes: int = 16 * _MIB
    options_hook: Callable[[Options], None] | None = None
    create_if_missing: bool = True
    read_only: bool = False


def options(tuning: RocksTuning) -> Options:
    """Options of one family; those of the whole database ride along, as RocksDB has it."""
    blocks = BlockBasedOptions()
    blocks.set_block_cache(tuning.memory.cache)
    blocks.set_block_size(4 * _KIB)
    blocks.set_bloom_filter(10, False)
    # Else they live outside the one bound on memory.
    blocks.set_cache_index_and_filter_blocks(True)
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)

    made = Options(raw_mode=True)
    made.create_if_missing(tuning.create_if_missing)
    made.create_missing_column_families(True)
    made.set_atomic_flush(True)
    # RocksDB's own choice drops what follows a damaged record of its log, and says nothing.
    made.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    made.set_block_based_table_factory(blocks)
    made.set_write_buffer_manager(tuning.memory.write_buffers)
    made.set_write_buffer_size(tuning.write_buffer_bytes)
    made.set_max_write_buffer_number(3)
    # A family with a handful of rows then holds 64 KiB of memory, not megabytes.
    made.set_arena_block_size(64 * _KIB)
    # As quick as universal compaction, smaller, and files stay the same for longer: exports
    # upload less.
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
    """Synced log, or no log."""
    made = WriteOptions()
    made.disable_wal = not tuning.write_ahead_log  # type: ignore[method-assign,assignment]  # a property: the stub is wrong
    made.sync = tuning.write_ahead_log
    return made
