"""How long a large state takes to come back to the heap, and how much memory it then has.

    python benchmarks/heap_restore.py [keys] [rounds]

A sum for each int key, once as columns (as a batch function has it) and once as objects. It is filled, its snapshot is
written to a file as a checkpoint's sections are, and another process restores it from there: nothing but the state is in its
memory, and nothing is warm. Reading the file is in the time. Last line, JSON: `heap_20m_keys_s` is of columns, whatever number
was asked for.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import harness
import numpy as np
import psutil
import pyarrow as pa

import tidegate as tg
from tidegate.state.backend import KeyedStateBackend, bind_states
from tidegate.state.heap import HeapStateBackend
from tidegate.state.keys import key_type

GROUPS = range(128)
LAYOUTS = ("columns", "objects")
CHUNK = 1 << 18
STATE = "total"


class Total:
    total = tg.ValueState(int, default=0)


def backend(layout: str) -> tuple[KeyedStateBackend, Any]:
    made, function = HeapStateBackend(key_type(int), GROUPS, len(GROUPS)), Total()
    bind_states(function, made, columnar=layout == "columns")
    return made, function


def store(layout: str, keys: int, file: Path) -> str:
    """Fills it and writes its snapshot; what kind of sections they are."""
    made, function = backend(layout)
    for start in range(0, keys, CHUNK):
        numbers = pa.array(np.arange(start, min(start + CHUNK, keys)))
        function.total.add_many(numbers, numbers)
    snapshot, kind, writer = made.snapshot(), "", None
    for section in snapshot.sections():
        if writer is None:
            kind, writer = section.kind, pa.ipc.new_file(str(file), section.rows.schema)
        writer.write_batch(section.rows)
    assert writer is not None
    writer.close()
    snapshot.release()
    made.close()
    return kind


def restore(layout: str, kind: str, file: Path) -> dict[str, float]:
    """In a process of its own."""
    made, function = backend(layout)
    before = psutil.Process().memory_info().rss
    began = time.perf_counter()
    with pa.memory_map(str(file)) as source:
        reader = pa.ipc.open_file(source)
        made.restore(STATE, kind, (reader.get_batch(number) for number in range(reader.num_record_batches)))
    took = time.perf_counter() - began
    keys = made.state_size()[STATE]
    sample = pa.array(np.arange(0, keys, max(keys // 1000, 1)))
    assert function.total.get_many(sample).equals(sample), "the sums came back"
    grown = psutil.Process().memory_info().rss - before
    return {"seconds": took, "keys": keys, "bytes_a_key": grown / keys}


def measure(keys: int, rounds: int = 1) -> dict[str, Any]:
    result: dict[str, Any] = {"keys": keys}
    for layout in LAYOUTS:
        file = harness.fresh_folder("heap-restore") / "sections"
        kind = store(layout, keys, file)
        runs = [_in_a_new_process(layout, kind, file) for _ in range(rounds)]
        assert all(run["keys"] == keys for run in runs), runs
        file.unlink()
        for name in ("seconds", "bytes_a_key"):
            result[f"{layout}_{name}"] = harness.median([run[name] for run in runs])
        harness.say(f"{keys:,} keys, {layout}: restored in {result[f'{layout}_seconds']:.1f} s")
    return {"heap_20m_keys_s": result["columns_seconds"], **result}


def _in_a_new_process(layout: str, kind: str, file: Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--restore", layout, kind, str(file)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    if sys.argv[1:2] == ["--restore"]:
        harness.finish(restore(sys.argv[2], sys.argv[3], Path(sys.argv[4])))
    else:
        harness.finish(measure(*(int(argument) for argument in sys.argv[1:] or ["20000000"])))
