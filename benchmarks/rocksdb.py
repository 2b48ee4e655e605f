"""RocksDB against the heap: a keyed sum, as the operators do it, while all keys in use fit the cache.

    python benchmarks/rocksdb.py [rounds] [records]

In one process and without Spark, which would only hide the difference: batches of keys and values go straight to the state,
and a snapshot is taken and stored each second in another thread. Two ways: whole batches (`add_many`), and record by record
(`set(get() + value)`, once the backend has been told of the batch's keys, as the operator does it). Last line: JSON, `ratio`
(the smaller of the two) and both with their spread; also, without a bar, the same with ten times as many keys as the cache
holds (`beyond_the_cache`), where nine of ten keys come from the disk.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import harness
import numpy as np
import pyarrow as pa

import tidegate as tg
from tidegate.state.backend import KeyedStateBackend, bind_states
from tidegate.state.heap import HeapStateBackend
from tidegate.state.keys import key_type
from tidegate.state.rocksdb import RocksSnapshot, RocksStateBackend
from tidegate.state.rocksdb_columns import ColdColumns
from tidegate.state.rocksdb_options import RocksSettings
from tidegate.state.rocksdb_values import ColdValues

KEYS = 100_000
TIMES_THE_CACHE = 10
SMALL_MEMORY_BYTES = 16 << 20
BATCH = 8192
GROUPS = range(128)
INT = key_type(int)


class Total:
    total = tg.ValueState(int, default=0)


def heap() -> KeyedStateBackend:
    return HeapStateBackend(INT, GROUPS, len(GROUPS))


def rocksdb(memory_bytes: int = 256 << 20) -> KeyedStateBackend:
    settings = RocksSettings(memory_bytes=memory_bytes, folder=harness.fresh_folder("rocksdb-state"))
    return RocksStateBackend(INT, GROUPS, len(GROUPS), settings)


def batches(records: int, keys: int) -> list[tuple[pa.Array, pa.Array]]:
    rng = np.random.default_rng(1)
    distinct = [
        (pa.array(rng.integers(0, keys, BATCH)), pa.array(rng.integers(0, 100, BATCH)))
        for _ in range(max(64, 4 * keys // BATCH))
    ]
    return [distinct[at % len(distinct)] for at in range(records // BATCH)]


def keys_in_memory(work: Callable[..., None]) -> int:
    """How many keys a backend with little memory has as objects or columns, at the most."""
    backend, function = rocksdb(SMALL_MEMORY_BYTES), Total()
    bind_states(function, backend, columnar=work is in_batches)
    table: Any = backend._states["total"][1]  # type: ignore[attr-defined]
    if isinstance(table, ColdColumns):
        held = table.cached.row_limit
    else:
        assert isinstance(table, ColdValues)
        held = 2 * table.known.limit_bytes // table._entry_bytes() + table.dirty_limit
    backend.close()
    return held


def in_batches(function: Any, backend: KeyedStateBackend, keys: pa.Array, values: pa.Array) -> None:
    function.total.add_many(keys, values)


def one_by_one(function: Any, backend: KeyedStateBackend, keys: pa.Array, values: pa.Array) -> None:
    total, set_current_key = function.total, backend.set_current_key
    listed = keys.to_pylist()
    backend.expect(listed)
    for key, value in zip(listed, values.to_pylist(), strict=True):
        set_current_key(key)
        total.set(total.get() + value)


def store(snapshot: Any) -> None:
    """As a background thread would: RocksDB its files (incremental), the heap its rows."""
    if isinstance(snapshot, RocksSnapshot):
        snapshot.files()
    else:
        for _ in snapshot.sections():
            pass
    snapshot.release()


def run(make: Callable[[], KeyedStateBackend], work: Callable[..., None], records: int, key_count: int = KEYS) -> float:
    backend, function = make(), Total()
    bind_states(function, backend, columnar=work is in_batches)
    todo = batches(records, key_count)
    for start in range(0, key_count, BATCH):
        every = np.arange(start, min(start + BATCH, key_count))
        work(function, backend, pa.array(every), pa.array(every))
    for keys, values in todo[:64]:
        work(function, backend, keys, values)
    thread: threading.Thread | None = None
    began = last = time.perf_counter()
    for keys, values in todo:
        work(function, backend, keys, values)
        if time.perf_counter() - last >= 1.0 and (thread is None or not thread.is_alive()):
            thread = threading.Thread(target=store, args=(backend.snapshot(),))
            thread.start()
            last = time.perf_counter()
    took = time.perf_counter() - began
    if thread is not None:
        thread.join()
    backend.close()
    return len(todo) * BATCH / took


def main(rounds: int = 5, records: int = 100_000_000) -> None:
    results = harness.interleave(
        rounds,
        {
            "heap batches": lambda: run(heap, in_batches, records),
            "rocksdb batches": lambda: run(rocksdb, in_batches, records),
            "heap one by one": lambda: run(heap, one_by_one, records // 25),
            "rocksdb one by one": lambda: run(rocksdb, one_by_one, records // 25),
        },
    )
    beyond: dict[str, Any] = {}
    for name, work, some in (("batches", in_batches, records // 30), ("one_by_one", one_by_one, records // 200)):
        in_memory = keys_in_memory(work)
        keys = TIMES_THE_CACHE * in_memory
        on_disk = run(lambda: rocksdb(SMALL_MEMORY_BYTES), work, some, keys)
        on_heap = run(heap, work, some, keys)
        beyond[name] = {
            "keys": keys,
            "keys_in_memory": in_memory,
            "records_per_s": int(on_disk),
            "heap_records_per_s": int(on_heap),
            "ratio": round(on_disk / on_heap, 4),
        }
        harness.say(f"beyond the cache, {name}: {beyond[name]}")
    batch = harness.ratios(results["rocksdb batches"], results["heap batches"])
    single = harness.ratios(results["rocksdb one by one"], results["heap one by one"])
    harness.finish(
        {
            "ratio": min(harness.median(batch), harness.median(single)),
            "batches_ratio": harness.median(batch),
            "batches_ratio_spread": harness.spread(batch),
            "one_by_one_ratio": harness.median(single),
            "one_by_one_ratio_spread": harness.spread(single),
            **{
                f"{name.replace(' ', '_')}_records_per_s": int(harness.median(speeds))
                for name, speeds in results.items()
            },
            "beyond_the_cache": beyond,
        }
    )


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
