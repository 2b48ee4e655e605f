"""What a thread pays for being looked at by the profiler: plain Python at the depth of a real job, sampled as a flame graph
asks for it (so often a second, sent once a second), or not, in turn. No Spark: what profiling.py measures of a whole job, where
the rest of the machine does not drown it.

    python benchmarks/sampler.py [pairs] [seconds of each half]

Last line, JSON: `cost` = 1 - sampled / not sampled, rounds of work a second; `cpu_cost` = the same for each second of the
thread's CPU time. Medians over the pairs, with the quartiles of the ratios.
"""

from __future__ import annotations

import statistics
import sys
import threading
import time

import harness

from tidegate.coordinator.profiling import SAMPLES_PER_S
from tidegate.task.profiler import StackSampler
from tidegate.wire.control import Sampled, SampleStacks

DEPTH = 40  #: calls below the work: of a slot, a chain of operators and a user's function
WORK = range(200)


def work(depth: int, seconds: float) -> tuple[int, float, float]:
    """Rounds, seconds, seconds of CPU time."""
    if depth:
        return work(depth - 1, seconds)
    rounds, counts = 0, dict.fromkeys(range(50), 0)
    began, cpu_began = time.monotonic(), time.thread_time()
    while (now := time.monotonic()) - began < seconds:
        for number in WORK:
            counts[number % 50] += number
        rounds += 1
    return rounds, now - began, time.thread_time() - cpu_began


def main(pairs: int = 60, seconds: float = 1.0) -> None:
    messages: list[Sampled] = []
    rates: dict[bool, list[tuple[float, float]]] = {True: [], False: []}

    def half(is_sampled: bool) -> None:
        sampler = StackSampler(threading.get_ident(), messages.append)
        if is_sampled:
            sampler.order(SampleStacks(seconds, SAMPLES_PER_S))
        rounds, took_s, cpu_s = work(DEPTH, seconds)
        rates[is_sampled].append((rounds / took_s, rounds / cpu_s))

    work(DEPTH, seconds)
    for pair in range(pairs):
        for is_sampled in (True, False) if pair % 2 else (False, True):
            half(is_sampled)
    result = {}
    for name, part in (("", 0), ("cpu_", 1)):
        ratios = [on[part] / off[part] for on, off in zip(rates[True], rates[False])]
        first, _, third = statistics.quantiles(ratios, n=4)
        result[f"{name}cost"] = round(1 - statistics.median(ratios), 4)
        result[f"{name}quartiles"] = [round(first, 4), round(third, 4)]
    samples = sum(stack.samples for message in messages for stack in message.stacks)
    harness.finish(result | {"samples_per_s": round(samples / (pairs * seconds), 2), "pairs": pairs})


if __name__ == "__main__":
    main(*(type_(text) for type_, text in zip((int, float), sys.argv[1:])))
