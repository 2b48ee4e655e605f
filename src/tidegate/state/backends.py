"""Which backend keeps the keyed state of a slot's operators. Executor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.errors import ConfigurationError
from tidegate.state.backend import KeyedStateBackend
from tidegate.state.heap import HeapStateBackend

if TYPE_CHECKING:
    from tidegate.state.keys import KeyType
    from tidegate.state.rocksdb_options import RocksMemory, RocksSettings


@dataclass(frozen=True, slots=True)
class BackendSettings:
    """The user's choice, shipped to every slot."""

    kind: str = "hashmap"
    incremental: bool = False
    memory_bytes: int = 256 << 20  #: RocksDB's, in a slot
    folder: str | None = None  #: RocksDB's files

    def __post_init__(self) -> None:
        if self.kind == "heap":
            object.__setattr__(self, "kind", "hashmap")


class StateBackends:
    """Makes the backends of one slot. Those of RocksDB share its memory."""

    def __init__(self, settings: BackendSettings, wall_clock: Callable[[], float]) -> None:
        self.incremental = settings.incremental
        self._settings = settings
        self._wall_clock = wall_clock
        self._memory: RocksMemory | None = None

    def new(self, key_type: KeyType, key_groups: range, max_parallelism: int) -> KeyedStateBackend:
        """:raises ConfigurationError: when this worker lacks what the backend needs."""
        if self._settings.kind == "hashmap":
            return HeapStateBackend(
                key_type, key_groups, max_parallelism, self._wall_clock, incremental=self._settings.incremental
            )
        settings = rocks_settings(self._settings)
        from tidegate.state.rocksdb import RocksStateBackend
        from tidegate.state.rocksdb_options import RocksMemory

        if self._memory is None:
            self._memory = RocksMemory(settings)
        return RocksStateBackend(key_type, key_groups, max_parallelism, settings, self._memory, self._wall_clock)


def rocks_settings(settings: BackendSettings) -> RocksSettings:
    """:raises ConfigurationError: without rocksdict."""
    try:
        from tidegate.state.rocksdb_options import RocksSettings
    except ImportError as error:
        raise ConfigurationError(
            f"state in RocksDB needs rocksdict, which this worker's Python does not have ({error}): "
            'pip install "tidegate[rocksdb]" on every executor.'
        ) from error
    if settings.folder is None:
        return RocksSettings(memory_bytes=settings.memory_bytes)
    return RocksSettings(memory_bytes=settings.memory_bytes, folder=Path(settings.folder))
