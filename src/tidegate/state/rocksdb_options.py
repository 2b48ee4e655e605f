"""How RocksDB is set up: how much memory it may take, how large its files are, when it compacts. Executor.

Memory. One slot has one `RocksMemory`, which all its backends share: half of it for what is in use (state/hot_table.py), a
quarter for what is to be written, and an eighth each for RocksDB's blocks and its write buffers, which it charges to one cache.

Compaction is universal (tiered): small runs are merged with small runs, and the large one is touched only when the runs
above it have grown as large. In levels, each merge of the newest runs rewrites all that they overlap, which for changes
all over the keys is everything: 1 % changed between checkpoints then costs 0.19 of a full upload on average, and 0.05 so.
Tables are small, so that a merge in which keys lie apart leaves most of them alone and an upload can be cut in pieces.

There is no write-ahead log: what counts is in checkpoints, and a killed task starts from one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompactionStyle,
    DBCompressionType,
    Options,
    UniversalCompactOptions,
    WriteBufferManager,
    WriteOptions,
)

from tidegate.state.rocksdb_files import default_base

_MIB = 1 << 20
RUNS_BEFORE_MERGE = 8  #: each checkpoint makes a run; a read looks at all of them, past their filters


@dataclass(frozen=True, slots=True)
class RocksSettings:
    """What users can set."""

    memory_bytes: int = 256 * _MIB  #: of one slot, for all its keyed state
    table_bytes: int = 8 * _MIB  #: size of a table file
    folder: Path = field(default_factory=default_base)  #: on a local disk


class Share(NamedTuple):
    """What one state may have in memory."""

    clean_bytes: int
    unwritten_bytes: int


class SharesMemory(Protocol):
    """A backend."""

    def resize(self) -> None: ...


class RocksMemory:
    """The memory of one slot, shared by its databases. The task's thread."""

    def __init__(self, settings: RocksSettings) -> None:
        eighth = max(settings.memory_bytes // 8, 64 * 1024)
        self.clean_bytes = 4 * eighth  #: for what is in use, of all states together
        self.unwritten_bytes = 2 * eighth  #: for what is to be written
        self.write_buffer_bytes = eighth
        self.blocks = Cache(2 * eighth)
        # Charged to the block cache: a write buffer that grows takes room from blocks, and the sum stays.
        self.write_buffers = WriteBufferManager.new_write_buffer_manager_with_cache(eighth, False, self.blocks)
        self.states = 0  #: that have an even share each
        self._backends: list[SharesMemory] = []

    def join(self, backend: SharesMemory) -> None:
        self._backends.append(backend)

    def leave(self, backend: SharesMemory) -> None:
        if backend in self._backends:
            self._backends.remove(backend)

    def share(self) -> Share:
        """Of one state."""
        states = max(1, self.states)
        return Share(self.clean_bytes // states, self.unwritten_bytes // states)

    def resize(self) -> None:
        for backend in self._backends:
            backend.resize()


def database_options(settings: RocksSettings, memory: RocksMemory) -> Options:
    """Of a database and of each of its column families."""
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    tables = BlockBasedOptions()
    tables.set_block_cache(memory.blocks)
    tables.set_cache_index_and_filter_blocks(True)  # else they would be outside the bound
    tables.set_pin_l0_filter_and_index_blocks_in_cache(True)
    tables.set_bloom_filter(10, False)
    options.set_block_based_table_factory(tables)
    options.set_write_buffer_manager(memory.write_buffers)
    options.set_write_buffer_size(max(64 * 1024, min(memory.write_buffer_bytes // 2, 64 * _MIB)))
    options.set_compression_type(DBCompressionType.lz4())
    options.set_target_file_size_base(settings.table_bytes)
    options.set_compaction_style(DBCompactionStyle.universal())
    options.set_universal_compaction_options(_universal())
    options.set_level_zero_file_num_compaction_trigger(RUNS_BEFORE_MERGE)
    options.set_level_zero_slowdown_writes_trigger(4 * RUNS_BEFORE_MERGE)
    options.set_level_zero_stop_writes_trigger(8 * RUNS_BEFORE_MERGE)
    options.set_max_manifest_file_size(16 * 1024)  # it is uploaded whole with each checkpoint
    options.set_max_background_jobs(2)
    options.set_max_open_files(256)
    options.set_max_file_opening_threads(1)  # to start 16 takes 14 ms at each opening; so many files are opened in less
    options.set_keep_log_file_num(1)
    options.set_max_log_file_size(_MIB)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    options.set_skip_stats_update_on_db_open(True)
    return options


def _universal() -> UniversalCompactOptions:
    options = UniversalCompactOptions()
    options.size_ratio = 10
    options.min_merge_width = 2
    options.max_size_amplification_percent = 100  # all is rewritten when the newer runs are as large as the oldest
    return options


def without_log() -> Any:
    options = WriteOptions()
    options.disable_wal = True
    return options
