"""Incremental checkpoints: what 30 in a row store, when 1 % of a million keys has changed before each.

    python benchmarks/incremental.py [keys] [increments]

Keys are changed at random, all over the state, which is the worst case for compactions. The bytes of each increment (all
that the checkpoint stored: tables that compactions made, new bases of the heap and the small files of each checkpoint
included) over those of the full one before them. On RocksDB (`mean_ratio`, `median_ratio`), on the heap with numbers in
columns (`heap_columns_...`) and with Python objects (`heap_objects_...`). Files that no checkpoint needs are deleted as
the driver does it; `orphans` are those that are left over in storage at the end. Then whole jobs whose workers and drivers
are killed, also in the middle of an upload, and whose checkpoints are given up (`after_faults`, left_behind.py): what they
leave over counts as well. Last line: JSON.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import harness
import left_behind
import numpy as np
import pyarrow as pa

import tidegate as tg
from tidegate.coordinator.recording import shared_files
from tidegate.ids import CheckpointId
from tidegate.protocol.shared_state import SharedStateRegistry
from tidegate.state.backend import KeyedStateBackend, bind_states
from tidegate.state.heap import HeapStateBackend
from tidegate.state.keys import key_type
from tidegate.state.rocksdb import RocksStateBackend
from tidegate.state.rocksdb_options import RocksSettings
from tidegate.storage.metadata import FileRef, SlotSnapshot
from tidegate.storage.state_files import StateFiles
from tidegate.storage.store import open_store
from tidegate.task.keyed_files import HeapFiles, KeyedFiles, RocksFiles

MAX_PARALLELISM = 128
GROUPS = range(MAX_PARALLELISM)
COMPACTION_TIME_S = 0.3  #: compactions continue between checkpoints, as they would


class Balance:
    amount = tg.ValueState(int, default=0)


class Owner:
    name = tg.ValueState(str)


class Job:
    """One keyed operator with its backend, its files and a driver's registry of them."""

    def __init__(self, label: str, backend: KeyedStateBackend, files: Callable[..., KeyedFiles]) -> None:
        self.backend = backend
        self.store = open_store(harness.fresh_folder(f"incremental-{label}").as_uri())
        self._files = files(self.store, lambda checkpoint, name: f"job/chk-{checkpoint}/g1-a1/{name}.state")
        self._registry = SharedStateRegistry()
        self.stops: list[float] = []

    def checkpoint(self, number: int) -> StateFiles:
        began = time.perf_counter()
        snapshot = self.backend.snapshot()
        self.stops.append(time.perf_counter() - began)
        id = CheckpointId(number)
        state = self._files.store(id, snapshot)
        self._files.let_go(snapshot)
        slot = SlotSnapshot(1, 0, FileRef(size=0), states=[state])
        self.store.delete_many(self._registry.acknowledged(id, shared_files([slot])))
        self._files.completed(id)
        self.store.delete_many(self._registry.completed(id))
        return state


def rocksdb() -> tuple[Job, Callable[[Any, Any], None]]:
    backend = RocksStateBackend(
        key_type(int), GROUPS, MAX_PARALLELISM, RocksSettings(folder=harness.fresh_folder("incremental-state"))
    )
    function = Balance()
    bind_states(function, backend, columnar=True)
    job = Job("rocksdb", backend, lambda store, path_of: RocksFiles("balance", 0, GROUPS, store, path_of))
    return job, lambda keys, values: function.amount.update_many(pa.array(keys), pa.array(values))


def heap_columns() -> tuple[Job, Callable[[Any, Any], None]]:
    backend = HeapStateBackend(key_type(int), GROUPS, MAX_PARALLELISM, incremental=True)
    function = Balance()
    bind_states(function, backend, columnar=True)
    job = Job(
        "columns", backend, lambda store, path_of: HeapFiles("balance", 0, GROUPS, store, path_of, backend=backend)
    )
    return job, lambda keys, values: function.amount.update_many(pa.array(keys), pa.array(values))


def heap_objects() -> tuple[Job, Callable[[Any, Any], None]]:
    backend = HeapStateBackend(key_type(int), GROUPS, MAX_PARALLELISM, incremental=True)
    function = Owner()
    bind_states(function, backend)
    job = Job("objects", backend, lambda store, path_of: HeapFiles("owner", 0, GROUPS, store, path_of, backend=backend))

    def change(keys: Any, values: Any) -> None:
        for key, value in zip(keys.tolist(), values.tolist(), strict=True):
            backend.set_current_key(key)
            function.name.set(f"owner-{value}")

    return job, change


def measure(label: str, made: tuple[Job, Callable[[Any, Any], None]], keys: int, increments: int) -> dict[str, Any]:
    job, change = made
    rng = np.random.default_rng(1)
    for start in range(0, keys, 100_000):
        numbers = np.arange(start, min(start + 100_000, keys))
        change(numbers, rng.integers(0, 1 << 40, len(numbers)))
    state = job.checkpoint(1)
    full = state.added_bytes(1)
    harness.say(f"{label}: full: {full:,} bytes in {len(state.files)} files")
    ratios: list[float] = []
    rewritten = 0
    for number in range(2, increments + 2):
        time.sleep(COMPACTION_TIME_S)
        changed = rng.choice(keys, keys // 100, replace=False)
        change(changed, rng.integers(0, 1 << 40, len(changed)))
        before, state = {file.path for file in state.files}, job.checkpoint(number)
        rewritten += bool(before - {file.path for file in state.files})
        ratios.append(state.added_bytes(number) / full)
        harness.say(f"{label}: increment {number - 1}: {ratios[-1]:.4f} ({len(state.files)} files)")
    job.backend.close()
    return {
        "mean_ratio": round(statistics.mean(ratios), 4),
        "median_ratio": round(statistics.median(ratios), 4),
        "ratio_spread": harness.spread(ratios),
        "increments_with_rewriting": rewritten,
        "full_bytes": full,
        "longest_stop_ms": round(max(job.stops[1:]) * 1000, 2),
        "orphans": len(set(job.store.list("job/")) - {file.path for file in state.files}),
    }


def main(keys: int = 1_000_000, increments: int = 30) -> None:
    results = measure("rocksdb", rocksdb(), keys, increments)
    for label, made in (("heap_columns", heap_columns()), ("heap_objects", heap_objects())):
        found = measure(label, made, keys, increments)
        results |= {f"{label}_{name}": value for name, value in found.items()}
    results["after_faults"] = {backend: left_behind.after_faults(backend) for backend in ("hashmap", "rocksdb")}
    results["orphans"] = sum(value for name, value in results.items() if name.endswith("orphans")) + sum(
        found["orphans"] for found in results["after_faults"].values()
    )
    harness.finish({"keys": keys, **results})


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
