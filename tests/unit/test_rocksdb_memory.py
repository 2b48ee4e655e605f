"""State that is several times larger than the memory it may take."""

from __future__ import annotations

import os
import subprocess
import sys

from rocksdb_kit import rocks_backends

# A process of its own: what the process has at most is counted by the kernel, for RocksDB and Python together.
PROGRAM = """
import random, sys
import pyarrow as pa
from pathlib import Path
from tidegate.state.backend import bind_states
from tidegate.state.declarations import ListState, MapState, ValueState
from tidegate.state.keys import key_type
from tidegate.state.heap import HeapStateBackend
from tidegate.state.rocksdb import RocksStateBackend
from tidegate.state.rocksdb_options import RocksSettings

MIB = 1 << 20
kind, folder = sys.argv[1:]

class Function:
    text = ValueState(str, default="")
    words = ListState(str)
    counts = MapState(int, str)
    total = ValueState(int, default=0)

INT = key_type(int)
settings = RocksSettings(memory_bytes=8 * MIB, folder=Path(folder))
backend = RocksStateBackend(INT, range(16), 16, settings) if kind == "rocksdb" else HeapStateBackend(INT, range(16), 16)
function = Function()
bind_states(function, backend, columnar=True)

def peak():  # of this program alone; ru_maxrss begins with what the process had before it, the test runner's
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024

def text(key):
    return random.Random(key).randbytes(120).hex()

before = peak()
KEYS = 60_000
for start in range(0, KEYS, 1000):
    for key in range(start, start + 1000):
        backend.set_current_key(key)
        function.text.set(text(key))
        function.words.add(text(key))
        function.counts.put(key, text(key))
    function.total.add_many(pa.array(range(start, start + 1000)), 1)
    if start % 20_000 == 0:
        snapshot = backend.snapshot()
        if kind == "rocksdb":
            snapshot.files()
        snapshot.release()
rng = random.Random(1)
for _ in range(5_000):
    key = rng.randrange(KEYS)
    backend.set_current_key(key)
    assert function.text.get() == text(key)
    assert function.words.get() == [text(key)]
    assert function.counts.get(key) == text(key)
for start in range(0, KEYS, 1000):
    assert set(function.total.get_many(pa.array(range(start, start + 1000))).to_pylist()) == {1}
print(peak() - before)
backend.close()
"""

ALLOWED_BYTES = 8 << 20
STATE_BYTES = 3 * 60_000 * 240  #: of text alone


def growth(kind: str, folder: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, kind, folder],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_state_several_times_the_allowed_memory_is_kept_and_found_again_within_it():
    assert STATE_BYTES > 5 * ALLOWED_BYTES
    with rocks_backends() as made:
        grown = growth("rocksdb", str(made.settings.folder))
        on_heap = growth("heap", "")

    # Beside what is allowed: code and read buffers of RocksDB, Arrow's pool, the arenas of two allocators.
    assert grown < ALLOWED_BYTES + (20 << 20)
    assert on_heap > 2 * grown, "the test would not notice a backend that keeps everything in memory"
