"""A worker's threads, in the shape of Flink's thread dump: where its task's thread has been of late. Driver.

To ask is to look, as with the flame graph: the worker samples for ten seconds after the last request, so the first answer says
to ask again. A worker has one thread that runs user code; the others wait for the network and for storage.
"""

from __future__ import annotations

from typing import Any

from tidegate.coordinator.profiling import ORDER_S, SAMPLES_PER_S, Count, Stack
from tidegate.rest.actions import Answer
from tidegate.rest.calls import Call
from tidegate.rest.flame_graph import shown_line

MAX_STACKS = 30  #: those that were seen most


def thread_dump(call: Call) -> Answer:
    worker = call.worker()
    job, now = worker.job, worker.job.clock()
    due = job.profile.orders_due(worker.slots, now)
    if due:
        job.hands.sample_stacks(due, ORDER_S, SAMPLES_PER_S)
    seen = sorted(job.profile.stacks(worker.slots, now - ORDER_S).items(), key=lambda entry: -entry[1].samples)
    samples = sum(count.samples for _, count in seen)
    infos = [_info(stack, count, samples) for stack, count in seen[:MAX_STACKS]]
    if not infos:
        told = "Samples are being taken: ask again in a few seconds."
        infos = [{"threadName": "task", "stringifiedThreadInfo": f'"task"\n{told}\n'}]
    return 200, {"threadInfos": infos}


def _info(stack: Stack, count: Count, samples: int) -> dict[str, Any]:
    """The innermost call first, as in every thread dump."""
    whose = f' in operator "{stack.uid}"' if stack.uid else ""
    head = (
        f'"task"{whose}: {count.samples} of {samples} samples of the last {ORDER_S:g} s, {count.on_cpu} of them on CPU'
    )
    lines = "".join(f"\tat {shown_line(line)}\n" for line in reversed(stack.lines))
    return {"threadName": "task", "stringifiedThreadInfo": f"{head}\n{lines}"}
