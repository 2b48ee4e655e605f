"""Incremental checkpoints: what 30 in a row store, when 1 % of a million keys has changed before each.

    python benchmarks/incremental.py [keys] [increments]

Keys are changed at random, all over the state, which is the worst case for compactions. The bytes of each increment (all
that the checkpoint stored, tables that compactions made and the small files of each checkpoint included) over those of
the full one before them. Last line: JSON, `mean_ratio` and `median_ratio`; also how many increments had a compaction, and
the time that taking a snapshot stops the task for.
"""

from __future__ import annotations

import statistics
import sys
import time

import harness
import numpy as np
import pyarrow as pa

import tidegate as tg
from tidegate.ids import CheckpointId
from tidegate.state.backend import bind_states
from tidegate.state.keys import key_type
from tidegate.state.rocksdb import RocksStateBackend
from tidegate.state.rocksdb_options import RocksSettings
from tidegate.storage.state_files import StateFiles
from tidegate.storage.store import open_store
from tidegate.task.incremental import Lineage, store_increment

MAX_PARALLELISM = 128
COMPACTION_TIME_S = 0.3  #: compactions go on between checkpoints, as they would


class Balance:
    amount = tg.ValueState(int, default=0)


def main(keys: int = 1_000_000, increments: int = 30) -> None:
    rng = np.random.default_rng(1)
    settings = RocksSettings(folder=harness.fresh_folder("incremental-state"))
    store = open_store(harness.fresh_folder("incremental-storage").as_uri())
    groups = range(MAX_PARALLELISM)
    backend, function, lineage = (
        RocksStateBackend(key_type(int), groups, MAX_PARALLELISM, settings),
        Balance(),
        Lineage(),
    )
    bind_states(function, backend, columnar=True)

    stops: list[float] = []

    def checkpoint(number: int) -> StateFiles:
        began = time.perf_counter()
        snapshot = backend.snapshot()
        stops.append(time.perf_counter() - began)
        state = store_increment(
            lineage,
            snapshot,
            store,
            CheckpointId(number),
            lambda name: f"job/chk-{number}/g1-a1/{name}",
            uid="balance",
            subtask=0,
            key_groups=groups,
        )
        snapshot.release()
        lineage.completed(CheckpointId(number))
        return state

    for start in range(0, keys, 100_000):
        numbers = np.arange(start, min(start + 100_000, keys))
        function.amount.update_many(pa.array(numbers), pa.array(rng.integers(0, 1 << 40, len(numbers))))
    state = checkpoint(1)
    full = state.added_bytes(1)
    harness.say(f"full: {full:,} bytes in {len(state.files)} files")
    ratios: list[float] = []
    compactions = 0
    for number in range(2, increments + 2):
        time.sleep(COMPACTION_TIME_S)
        changed = rng.choice(keys, keys // 100, replace=False)
        function.amount.update_many(pa.array(changed), pa.array(rng.integers(0, 1 << 40, len(changed))))
        before, state = {file.path for file in state.files}, checkpoint(number)
        compactions += bool(before - {file.path for file in state.files})
        ratios.append(state.added_bytes(number) / full)
        harness.say(f"increment {number - 1}: {ratios[-1]:.4f} ({len(state.files)} files)")
    backend.close()
    harness.finish(
        {
            "mean_ratio": round(statistics.mean(ratios), 4),
            "median_ratio": round(statistics.median(ratios), 4),
            "ratio_spread": harness.spread(ratios),
            "increments_with_compaction": compactions,
            "full_bytes": full,
            "keys": keys,
            "longest_stop_ms": round(max(stops[1:]) * 1000, 2),
        }
    )


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
