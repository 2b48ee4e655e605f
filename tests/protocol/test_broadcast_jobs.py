"""The broadcast pattern in whole jobs: rules reach every subtask once, over crashes and changes of parallelism.

Sums of rules, not rules that are set: an element that is lost, or counts twice in one subtask, changes the answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from protocol_kit import fresh_storage

import tidegate as tg
from matrices import in_turn
from tidegate.testing.crash_points import ALL_POINTS, Crash
from tidegate.testing.ledger_sink import LedgerSink, forget_ledgers, ledger
from tidegate.testing.runner import AllDriversDied, InProcessRun, run_in_process

ORDERS = [(f"user-{n % 7}", n) for n in range(90)]
RULES = [("factor", 1), ("factor", -1)] * 20 + [("factor", n % 4) for n in range(20)]  # copies are often empty
FACTOR = sum(amount for _, amount in RULES)
END = 2**62  #: a timer that the last watermark fires, after both inputs have ended


def change(rules: tg.BroadcastState, rule: tuple[str, int]) -> None:  # type: ignore[type-arg]
    name, amount = rule
    total = rules.get(name, 0) + amount
    if total:
        rules[name] = total
    else:
        rules.remove(name)  # so a copy may become empty while another is not


class Priced(tg.KeyedBroadcastProcessFunction):
    amounts = tg.ListState(int)
    rules = tg.BroadcastState(str, int)

    def process_element(self, order: tuple[str, int], ctx: tg.Context) -> None:
        self.amounts.add(order[1])
        ctx.timer_service().register_event_time_timer(END)

    def process_broadcast_element(self, rule: tuple[str, int], ctx: tg.BroadcastContext) -> None:
        change(self.rules, rule)

    def on_timer(self, timestamp: int, ctx: tg.Context) -> Iterator[tuple[str, int]]:
        for amount in self.amounts.get():
            yield (ctx.key, amount * self.rules["factor"] + len(self.rules))


class Told(tg.BroadcastProcessFunction):
    """Without keys: says at its end what its copy holds."""

    rules = tg.BroadcastState(str, int)

    def process_element(self, order: tuple[str, int], ctx: tg.Context) -> None:
        pass

    def process_broadcast_element(self, rule: tuple[str, int], ctx: tg.BroadcastContext) -> None:
        change(self.rules, rule)

    def end_input(self, ctx: tg.Context) -> Iterator[tuple[str, int]]:
        yield from self.rules.items()


def job(storage: str, parallelism: int, unaligned: bool = False, resume: str | None = None) -> tg.StreamEnvironment:
    env = tg.StreamEnvironment("broadcast", parallelism=parallelism)
    env.checkpointing(every="10ms", storage=storage, resume=resume, unaligned=unaligned)
    env.restart_strategy("fixed-delay", attempts=20, delay="0s")
    orders = env.from_collection(ORDERS, uid="orders", type=tuple[str, int])
    rules = env.from_collection(RULES, uid="rules", type=tuple[str, int]).broadcast()
    priced = orders.key_by(0).connect(rules).process(Priced(), uid="priced", returns=tuple[str, int])
    priced.sink_to(LedgerSink("priced"), uid="out")
    told = orders.rebalance().connect(rules).process(Told(), uid="told", returns=tuple[str, int])
    told.sink_to(LedgerSink("told"), uid="out-told")
    return env


def check(*parallelisms: int) -> None:
    """Each subtask tells once; at another parallelism those tell again whose end could not be taken over."""
    assert sorted(ledger("priced").rows()) == sorted((user, amount * FACTOR + 1) for user, amount in ORDERS)
    told = Counter(ledger("told").rows())
    assert list(told) == [("factor", FACTOR)]
    assert min(parallelisms) <= told["factor", FACTOR] <= sum(parallelisms)


@pytest.mark.parametrize(("point", "unaligned"), in_turn(ALL_POINTS, [False, True]))
def test_every_copy_counts_every_rule_once_over_a_crash(point: str, unaligned: bool) -> None:
    for seed in range(2):
        forget_ledgers()
        run_in_process(job(fresh_storage(), 2, unaligned), seed, [Crash(point, nth=1, times=2)])
        check(2)


@pytest.mark.parametrize(("before", "after", "unaligned"), in_turn([(2, 3), (3, 2), (1, 5), (4, 1)], [False, True]))
def test_every_copy_counts_every_rule_once_at_another_parallelism(before: int, after: int, unaligned: bool) -> None:
    resumed = 0
    for seed in range(8):
        forget_ledgers()
        storage = fresh_storage()
        crash = [Crash("driver.notified", nth=1 + seed % 4)]
        try:
            InProcessRun(job(storage, before, unaligned), seed, crash, max_drivers=1).run()
            check(before)
        except AllDriversDied:
            resumed += 1
            run_in_process(job(storage, after, unaligned, resume="latest"), seed)
            check(before, after)
    assert resumed, "no run was cut short"
