"""Operator state in whole jobs: list, union and broadcast state survive crashes and a change of parallelism."""

from __future__ import annotations

import pytest
from protocol_kit import fresh_storage

import tidegate as tg
from tidegate.api.checkpointed import InitializationContext, SnapshotContext
from tidegate.errors import TidegateError
from tidegate.testing.crash_points import ALL_POINTS, Crash
from tidegate.testing.ledger_sink import LedgerSink, forget_ledgers, ledger
from tidegate.testing.runner import AllDriversDied, InProcessRun, run_in_process

NUMBERS = list(range(120))


class Hoard(tg.CheckpointedFunction, tg.ProcessFunction):
    """Keeps every number in list state and gives them all out at the end; counts restores in a union list."""

    def initialize_state(self, ctx: InitializationContext) -> None:
        self.kept = ctx.operator_state.list_state("kept", int)
        self.subtasks = ctx.operator_state.union_list_state("subtasks", int)
        self.rules = ctx.operator_state.broadcast_state("rules", str, int)
        self.plain = list(self.kept.get())
        if not ctx.is_restored:
            self.subtasks.set([ctx.subtask])
            self.rules["factor"] = 3
        self.restored_from = len(self.subtasks.get()) if ctx.is_restored else 0

    def process_element(self, value: int, ctx: tg.Context) -> None:
        self.plain.append(value)

    def snapshot_state(self, ctx: SnapshotContext) -> None:
        self.kept.set(self.plain)
        self.subtasks.set([0])

    def end_input(self, ctx: tg.Context) -> list[tuple[int, int]]:
        return [(value, value * self.rules["factor"]) for value in self.plain]


def job(storage: str, parallelism: int, resume: str | None = None) -> tg.StreamEnvironment:
    env = tg.StreamEnvironment("hoard", parallelism=parallelism)
    env.checkpointing(every="10ms", storage=storage, resume=resume)
    env.restart_strategy("fixed-delay", attempts=20, delay="0s")
    stream = env.from_collection(NUMBERS, uid="numbers").rebalance()
    stream.process(Hoard(), uid="hoard", returns=tuple[int, int]).sink_to(LedgerSink("out"), uid="out")
    return env


def committed() -> list[tuple[int, int]]:
    return sorted(ledger("out").rows())


@pytest.mark.parametrize("point", ALL_POINTS)
def test_list_union_and_broadcast_state_survive_a_crash(point: str) -> None:
    for seed in range(3):
        forget_ledgers()
        run_in_process(job(fresh_storage(), 2), seed, [Crash(point, nth=1, times=2)])
        assert committed() == [(value, value * 3) for value in NUMBERS]


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2), (1, 5), (4, 1)])
def test_elements_are_split_evenly_at_another_parallelism(before: int, after: int) -> None:
    for seed in range(5):
        forget_ledgers()
        storage = fresh_storage()
        crash = [Crash("driver.notified", nth=2)]
        try:
            InProcessRun(job(storage, before), seed, crash, max_drivers=1).run()
        except AllDriversDied:
            run_in_process(job(storage, after, resume="latest"), seed)
        assert committed() == [(value, value * 3) for value in NUMBERS]


def test_a_checkpointed_function_needs_a_uid() -> None:
    env = tg.StreamEnvironment("hoard")
    with pytest.raises(TidegateError, match="needs a uid"):
        env.from_collection(NUMBERS, uid="numbers").process(Hoard())
