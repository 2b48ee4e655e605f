"""State that is several times larger than the memory it may take: kept, stored in full, restored. A local disk that is full."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from rocksdb_kit import rocks_backends

from tidegate.state.keys import key_type
from tidegate.state.rocksdb_options import RocksSettings

# A process of its own. Counted is what it has for itself, of RocksDB, Arrow and Python together: files are mapped, and such
# pages can be had back at any time.
PROGRAM = """
import random, sys, threading
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

def own():
    return int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]) * 1024

def watch():
    global most
    while not done.wait(0.002):
        most = max(most, own())

def text(key):
    return random.Random(key).randbytes(120).hex()

before, most, done = own(), own(), threading.Event()
watcher = threading.Thread(target=watch)
watcher.start()
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
done.set()
watcher.join()
print(most - before)
backend.close()
"""

# All of it into one file of a slot, and from there into another backend.
IN_FULL = """
KEYS = 32_000
def text(key):
    return random.Random(key).randbytes(480).hex()
from tidegate.storage.snapshot_file import SnapshotFileWriter, read_sections, store_snapshot
from tidegate.storage.store import open_store

settings = RocksSettings(memory_bytes=8 * MIB, folder=Path(folder))
backend = RocksStateBackend(INT, range(16), 16, settings)
function = Function()
bind_states(function, backend, columnar=True)
for key in range(KEYS):
    backend.set_current_key(key)
    function.text.set(text(key))
    function.words.add(text(key))
    function.counts.put(key, text(key))

before, most, done = own(), own(), threading.Event()
watcher = threading.Thread(target=watch)
watcher.start()
snapshot, writer = backend.snapshot(), SnapshotFileWriter(in_memory_bytes=4 * MIB)
for section in snapshot.sections():
    writer.add("op", *section)
snapshot.release()
store = open_store(f"file://{folder}/stored")
file = store_snapshot(store, "slot", *writer.finish(), 0)
backend.close()
storing, most = most - before, own()
again, other = RocksStateBackend(INT, range(16), 16, settings), Function()
bind_states(other, again, columnar=True)
for section, rows in read_sections(store, file):
    again.restore(section.state, section.kind, [rows])
done.set()
watcher.join()
for key in range(0, KEYS, 7):
    again.set_current_key(key)
    assert other.text.get() == text(key)
    assert other.words.get() == [text(key)]
    assert other.counts.get(key) == text(key)
again.close()
print(file.size, storing, most - before)
"""

FULL_DISK = """
import resource
settings = RocksSettings(memory_bytes=MIB, folder=Path(folder))
backend = RocksStateBackend(INT, range(16), 16, settings)
function = Function()
bind_states(function, backend)
resource.setrlimit(resource.RLIMIT_FSIZE, (32 << 10, 32 << 10))  # no file may become larger
try:
    for key in range(100_000):
        backend.set_current_key(key)
        function.words.add(text(key))
    backend.snapshot().files()
except Exception as error:
    print(type(error).__name__, error)
"""

ALLOWED_BYTES = 8 << 20
STATE_BYTES = 3 * 60_000 * 240  #: of text alone
PARTS = PROGRAM.partition("before, most, done")  #: what all of them need, and the first one


def printed(program: str, kind: str, folder: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, kind, folder],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_state_several_times_the_allowed_memory_is_kept_and_found_again_within_it():
    assert STATE_BYTES > 5 * ALLOWED_BYTES
    with rocks_backends() as made:
        grown = int(printed(PROGRAM, "rocksdb", str(made.settings.folder)))
        on_heap = int(printed(PROGRAM, "heap", ""))

    # Beside what is allowed: code and read buffers of RocksDB, Arrow's pool, the arenas of two allocators.
    assert grown < ALLOWED_BYTES + (24 << 20)
    assert on_heap > 2 * grown, "the test would not notice a backend that keeps everything in memory"


def test_state_several_times_the_allowed_memory_is_stored_in_full_and_restored_within_it():
    with tempfile.TemporaryDirectory() as folder:
        said = printed(PARTS[0] + IN_FULL, "rocksdb", folder)
    stored, storing, restoring = map(int, said.split())
    print(f"{stored=:,} {storing=:,} {restoring=:,}")

    assert stored > 10 * ALLOWED_BYTES
    assert storing < ALLOWED_BYTES + (36 << 20)
    # A file is read in pieces of 16 MiB, of which two may be there at once, beside the values made of one.
    assert restoring < ALLOWED_BYTES + (76 << 20) < stored


def test_a_local_disk_that_takes_no_more_is_named_with_the_way_out():
    with tempfile.TemporaryDirectory() as folder:
        said = printed(PARTS[0] + FULL_DISK, "rocksdb", folder)

    assert said.startswith("StorageError"), said
    assert f"RocksDB cannot write to its folder {folder}" in said
    assert 'env.state_backend("rocksdb", folder=...)' in said


def test_the_blocks_of_tables_that_are_gone_stay_within_the_bound() -> None:
    with rocks_backends() as backends:
        backends.settings = RocksSettings(memory_bytes=256 << 10, folder=backends.folder / "state")
        backend, function = backends.bound(key_type(int))
        blocks = backend._memory.blocks
        used_bytes = []
        for checkpoint in range(120):
            for key in range(20):
                backend.set_current_key(key)
                function.total.set(checkpoint)
            snapshot = backend.snapshot()
            snapshot.files()
            snapshot.release()
            used_bytes.append(blocks.get_usage())
            assert blocks.get_usage() - blocks.get_pinned_usage() <= 128 << 10
    assert max(used_bytes[60:]) <= max(used_bytes[:60]) + (16 << 10), used_bytes
