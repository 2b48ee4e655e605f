"""Jobs that are killed, fail to store and are taken over, and what they leave in storage. For incremental.py; no program.

A job on each backend, with incremental checkpoints on local files, run in this process by the product's own slots and
coordinator. Workers die with half of a file written, drivers and workers die at steps of the protocol, checkpoints are given
up because a slot cannot store its part. At the end the storage is listed, and compared with what the log refers to, without the
classes that write it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import harness

import tidegate as tg
from tidegate.storage.local_store import LocalStore
from tidegate.testing.crash_points import Crash, SimulatedCrash
from tidegate.testing.ledger_sink import LedgerSink, forget_ledgers, ledger
from tidegate.testing.runner import InProcessRun
from tidegate.testing.stores import FailCall, FlakyStore

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from stored_files import left_behind

RECORDS, KEYS = 3000, 500


class Sum(tg.KeyedProcessFunction):
    total = tg.ValueState(int, default=0)
    numbers = tg.ListState(int)

    def process_element(self, number: int, ctx: tg.Context) -> Iterable[tuple[int, int]]:
        self.total.set(self.total.get() + number)
        self.numbers.add(number)
        yield ctx.key, self.total.get()


class Killed(LocalStore):
    """The process that writes a file of state dies half-way, each `every`-th time, three times in all."""

    def __init__(self, root: str, every: int) -> None:
        super().__init__(root)
        self.every, self.puts, self.deaths = every, 0, 0

    def put(self, path: str, data: Any) -> None:
        self.puts += path.endswith(".state")
        if path.endswith(".state") and self.deaths < 3 and self.puts % self.every == 0:
            self.deaths += 1
            target = Path(self._root) / path
            target.parent.mkdir(parents=True, exist_ok=True)
            half = bytes(memoryview(data).cast("B"))[: memoryview(data).nbytes // 2]
            target.with_name(f".{target.name}.0123abcd.tmp").write_bytes(half)
            raise SimulatedCrash(path)
        super().put(path, data)


def after_faults(backend: str) -> dict[str, Any]:
    """`orphans`: files that the log does not refer to. Also what has happened, so that "none" means something."""
    forget_ledgers()
    folder = harness.fresh_folder(f"left-behind-{backend}")
    env = tg.StreamEnvironment("job", parallelism=2)
    env.checkpointing(every="10ms", storage=folder.as_uri(), retained=2, tolerable_failures=10)
    env._config = replace(env._config, inline_limit_bytes=0)
    env.state_backend(backend, incremental=True, memory="4mb")
    env.restart_strategy("fixed-delay", attempts=100, delay="0s")
    numbers = env.from_collection(list(range(RECORDS)), uid="numbers", type=int)
    sums = numbers.key_by(lambda n: n % KEYS, key_type=int).process(Sum(), uid="sum", returns=tuple[int, int])
    sums.sink_to(LedgerSink("sums"), uid="sums")
    killed = Killed(str(folder), every=7)
    store = FlakyStore(killed, [FailCall("put", call=20, path=".state", times=3)])
    crashes = [
        Crash("slot.before-ack", nth=5, times=2),
        Crash("driver.before-log", nth=3, times=2),
        Crash("driver.after-log", nth=5),
    ]
    run = InProcessRun(env, 1, crashes, store=store, zombies=False)
    result = run.run()
    found = ledger("sums").rows()
    final = {key: max(total for of, total in found if of == key) for key in range(KEYS)}
    assert final == {key: sum(range(key, RECORDS, KEYS)) for key in range(KEYS)}, "the answer is wrong"
    assert len(found) == RECORDS, "records were lost or doubled"
    aborted = sum(checkpoint.status.name == "FAILED" for checkpoint in result.view.checkpoints.values())
    return {
        "orphans": len(left_behind(store)),
        "attempts": result.attempts,
        "drivers": result.drivers,
        "killed_in_mid_upload": killed.deaths,
        "checkpoints_given_up": aborted,
    }
