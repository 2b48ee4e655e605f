"""How long a snapshot keeps records waiting: gaps between two processed records, with and without one.

    python benchmarks/snapshot_pause.py [rounds]

The classes of a slot in one process, without Spark, which would hide the gaps: a heap backend, the thread that stores
snapshots, local files, the thread switching and garbage collection of a worker. The task's thread works without a pause
on random keys, record by record on Python objects (a dataclass for each key), in batches of 256 on columns, and notes
when each record or batch was done. A gap is the time between two such moments. In a round every kind of run is measured
in turn: an asynchronous snapshot, none, a synchronous one. A run's figure is the 99.9th percentile of its gaps while the
snapshot is taken and stored (a run without one lasts as long as the asynchronous one before it), and of the synchronous
one, which is a single gap, the longest. The pause is this figure less the one without a snapshot. What is noted lies in arrays:
a list of a million gaps would itself keep the garbage collector busy.

Last line: JSON, medians over the rounds: `pause_1m_ms` and `pause_10k_ms` (asynchronous, the larger of columns and
objects), all pauses by layout and number of keys, the synchronous ones for comparison, and the longest single gaps.
"""

from __future__ import annotations

import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import harness
import numpy as np
import pyarrow as pa

import tidegate as tg
from tidegate.ids import CheckpointId, SlotId
from tidegate.ports import NoCrashPoints, RunAtOnce
from tidegate.state.backend import KeyedStateBackend, bind_states
from tidegate.state.heap import HeapStateBackend
from tidegate.state.keys import key_type
from tidegate.storage.store import open_store
from tidegate.task.garbage import BoundedCollections
from tidegate.task.main import SWITCH_INTERVAL_S, BackgroundThread
from tidegate.task.operators.base import OperatorSnapshot
from tidegate.task.snapshots import SnapshotUploader, Upload
from tidegate.wire.control import SnapshotTimings

KEYS_OF = {size: size for size in (10_000, 100_000, 1_000_000)}  #: by its name in the results
GROUPS = range(128)
BATCH = 256
AT_LEAST_S = 0.3  #: a snapshot of a small state is repeated until it has been looked at so long
WARM_UP_S = 0.2


@dataclass
class Account:
    owner: str
    balance: int
    limits: list[int]


class Objects:
    account = tg.ValueState(Account)


class Columns:
    balance = tg.ValueState(int, default=0)


Turn = Callable[[], None]
Gaps = np.ndarray[Any, Any]  #: in ms


def objects(keys: int) -> tuple[KeyedStateBackend, Iterator[Turn]]:
    """Record by record: read an object, write a new one."""
    backend, function = HeapStateBackend(key_type(int), GROUPS, len(GROUPS)), Objects()
    bind_states(function, backend, columnar=False)
    for key in range(keys):
        backend.set_current_key(key)
        function.account.set(Account(f"owner {key}", key, [key, key + 1]))

    def turns() -> Iterator[Turn]:
        random = np.random.default_rng(1)
        while True:
            for key in random.integers(0, keys, 4096).tolist():
                yield lambda key=key: one(key)

    def one(key: int) -> None:
        backend.set_current_key(key)
        found = function.account.get()
        function.account.set(Account(found.owner, found.balance + 1, [*found.limits]))

    return backend, turns()


def columns(keys: int) -> tuple[KeyedStateBackend, Iterator[Turn]]:
    """A batch of random keys at a time."""
    backend, function = HeapStateBackend(key_type(int), GROUPS, len(GROUPS)), Columns()
    bind_states(function, backend, columnar=True)
    function.balance.update_many(pa.array(np.arange(keys)), pa.array(np.arange(keys)))
    random = np.random.default_rng(1)
    batches = [pa.array(random.integers(0, keys, BATCH)) for _ in range(256)]

    def turns() -> Iterator[Turn]:
        while True:
            for batch in batches:
                yield lambda batch=batch: function.balance.add_many(batch, 1)

    return backend, turns()


class Bench:
    """One state, and snapshots of it."""

    def __init__(
        self,
        layout: Callable[[int], tuple[KeyedStateBackend, Iterator[Turn]]],
        keys: int,
        collections: BoundedCollections,
    ) -> None:
        self._collections = collections
        self._backend, self._turns = layout(keys)
        collections.between_records()
        self._done = threading.Event()
        self._number = 0
        self._uploader = SnapshotUploader(
            slot=SlotId(0, 0),
            plan=None,  # type: ignore[arg-type]  # only for records in flight, of which there are none
            storage=open_store(harness.fresh_folder("snapshot-pause").as_uri()),
            path_of=lambda checkpoint: f"job/chk-{checkpoint % 2}/g1-a1/slot-0-0.snapshot",
            part_path_of=lambda checkpoint, part: f"job/chk-{checkpoint % 2}/g1-a1/slot-0-0.{part}.snapshot",
            control=self,
            crash_points=NoCrashPoints(),
            clock=time.perf_counter,
            inline_limit_bytes=0,
            state_limit_bytes=None,
        )
        self._thread = BackgroundThread("uploads", lambda error: self.fail(error))
        self._work(WARM_UP_S, lambda: False)

    def fail(self, error: BaseException) -> None:
        harness.say(f"the snapshot failed: {error!r}")
        self._done.set()

    def send(self, message: Any) -> None:
        """Implements task.ports.ControlPort: the acknowledgement."""
        if type(message).__name__ != "Acknowledge":
            raise AssertionError(message)
        self._done.set()

    def _work(self, at_least_s: float, busy: Callable[[], bool], at_start: Turn | None = None) -> Gaps:
        """Until the time is over and nothing is busy."""
        moments = array("d")
        note, clock, turns = moments.append, time.perf_counter, self._turns
        end = clock() + at_least_s
        note(clock())
        if at_start is not None:
            at_start()
        while True:
            for _ in range(64):
                next(turns)()
                note(clock())
            self._collections.between_records()  # as a slot does after each slice
            if moments[-1] > end and not busy():
                return np.diff(np.asarray(moments)) * 1000

    def without(self, seconds: float) -> Gaps:
        return self._work(seconds, lambda: False)

    def with_snapshot(self, synchronous: bool) -> Gaps:
        """Only while snapshots are under way: when one is stored before the time is over, another is taken."""
        began = time.perf_counter()
        gaps: list[Gaps] = []
        background = RunAtOnce() if synchronous else self._thread
        while time.perf_counter() - began < AT_LEAST_S or not gaps:
            self._number += 1
            self._done.clear()

            def take() -> None:
                operator = OperatorSnapshot("accounts", 0, False, keyed=self._backend.snapshot())
                upload = Upload(CheckpointId(self._number), [operator], SnapshotTimings())
                background.submit(lambda: self._uploader.store_and_acknowledge(upload))

            gaps.append(self._work(0.0, lambda: not self._done.is_set(), at_start=take))
        return np.concatenate(gaps)


def figure(gaps: Gaps, synchronous: bool = False) -> float:
    ordered = np.sort(gaps)
    return float(ordered[-1] if synchronous else ordered[min(len(ordered) - 1, int(len(ordered) * 0.999))])


def main(rounds: int = 5) -> None:
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    collections = BoundedCollections()
    collections.start()
    try:
        measure(rounds, collections)
    finally:
        collections.stop()


def measure(rounds: int, collections: BoundedCollections) -> None:
    pauses: dict[str, dict[str, float]] = {"asynchronous_ms": {}, "synchronous_ms": {}, "asynchronous_longest_ms": {}}
    for layout in (columns, objects):
        for keys, count in KEYS_OF.items():
            bench = Bench(layout, count, collections)
            found: dict[str, list[float]] = {name: [] for name in pauses}
            for number in range(rounds):
                began = time.perf_counter()
                asynchronous = bench.with_snapshot(synchronous=False)
                lasted = time.perf_counter() - began
                none = bench.without(lasted)
                synchronous = bench.with_snapshot(synchronous=True)
                found["asynchronous_ms"].append(figure(asynchronous) - figure(none))
                found["synchronous_ms"].append(figure(synchronous, True) - figure(none))
                found["asynchronous_longest_ms"].append(float(asynchronous.max()))
                harness.say(
                    f"{layout.__name__} {keys:,} round {number + 1}/{rounds}: p99.9 {figure(asynchronous):.2f} ms in "
                    f"{lasted:.2f} s, {figure(none):.2f} without, longest {asynchronous.max():.1f} and {none.max():.1f}, "
                    f"synchronous {synchronous.max():.1f}; {collections.frozen_times} times frozen"
                )
            for name, values in found.items():
                pauses[name][f"{layout.__name__}_{keys}"] = harness.median(values)
            del bench
    asynchronous = pauses["asynchronous_ms"]
    harness.finish(
        {
            "pause_1m_ms": max(asynchronous["columns_1000000"], asynchronous["objects_1000000"]),
            "pause_10k_ms": max(asynchronous["columns_10000"], asynchronous["objects_10000"]),
            **pauses,
            "rounds": rounds,
        }
    )


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
