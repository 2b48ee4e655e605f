"""What timers cost: to set, to delete and to fire one, and to restore them, with many of them set.

    python benchmarks/timers.py [millions of timers]

The state backends of a slot in one process, without Spark. `one_key`: a tenth of the timers, all of one key. `all_keys`: every
timer has its own key. Half of them are deleted, a snapshot is taken and stored as sections, another backend is restored from
it, and all that are left fire in order.

Last line: JSON. Microseconds for each timer (`heap_all_keys_set_us`, ..., `rocksdb_one_key_fire_us`), seconds to store and to
restore, and the growth of the process in bytes for each timer that was set.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import psutil

from tidegate.ids import EVENT_TIMERS
from tidegate.state.backend import KeyedStateBackend
from tidegate.state.heap import HeapStateBackend
from tidegate.state.keys import key_type
from tidegate.state.rocksdb import RocksStateBackend
from tidegate.state.rocksdb_options import RocksSettings
from tidegate.state.timers import TimerQueue

GROUPS = range(128)
INT = key_type(int)


def heap(folder: Path) -> KeyedStateBackend:
    return HeapStateBackend(INT, GROUPS, len(GROUPS))


def rocksdb(folder: Path) -> KeyedStateBackend:
    return RocksStateBackend(INT, GROUPS, len(GROUPS), RocksSettings(folder=folder))


def seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def each(act: Callable[[int, int], None], timers: Iterable[tuple[int, int]]) -> None:
    for key, moment in timers:
        act(key, moment)


def measure(make: Callable[[Path], KeyedStateBackend], folder: Path, timers: list[tuple[int, int]]) -> dict[str, float]:
    backend = make(folder / "first")
    queue = TimerQueue(backend, EVENT_TIMERS)
    count, process = len(timers), psutil.Process()
    before = process.memory_info().rss
    found = {"set_us": seconds(lambda: each(queue.register, timers)) / count * 1e6}
    found["bytes_each"] = (process.memory_info().rss - before) / count
    deleted = timers[::2]
    found["delete_us"] = seconds(lambda: each(queue.delete, deleted)) / len(deleted) * 1e6
    snapshot = backend.snapshot()
    sections: list[Any] = []
    found["store_s"] = seconds(lambda: sections.extend(snapshot.sections()))
    snapshot.release()
    restored = make(folder / "second")
    queue = TimerQueue(restored, EVENT_TIMERS)

    def restore() -> None:
        for section in sections:
            restored.restore(section.state, section.kind, [section.rows])
        queue.next_timestamp()

    found["restore_s"] = seconds(restore)
    fired = 0

    def fire() -> None:
        nonlocal fired
        for _ in queue.due(1 << 62):
            fired += 1

    found["fire_us"] = seconds(fire) / (count - len(deleted)) * 1e6
    assert fired == count - len(deleted)
    backend.close()
    restored.close()
    return found


def main(millions: float) -> None:
    count = int(millions * 1_000_000)
    dice = random.Random(1)
    results: dict[str, float] = {"millions": millions}
    works = {
        "one_key": [(1, dice.randrange(1 << 40)) for _ in range(count // 10)],
        "all_keys": [(key, dice.randrange(1 << 40)) for key in range(count)],
    }
    for name, timers in works.items():
        timers = list(dict.fromkeys(timers))
        for make in (heap, rocksdb):
            with tempfile.TemporaryDirectory() as folder:
                found = measure(make, Path(folder), timers)
            print(make.__name__, name, {key: round(value, 2) for key, value in found.items()}, file=sys.stderr)
            results |= {f"{make.__name__}_{name}_{key}": round(value, 3) for key, value in found.items()}
    print(json.dumps(results))


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 1)
