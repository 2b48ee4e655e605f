"""What a driver can bear: one attempt with 100 to 10,000 slots, in this process, without Spark and without a network.

    python benchmarks/coordinator.py [--slots 100,1000,10000] [--save NAME]

The coordinator's own classes (Attempt, JobRun, the recorder, the log, REST's view) with scripted slots: what slots say comes
encoded, as from a connection, and what they are told is encoded and thrown away. Each message is followed by what the driver's
loop does after it when no other waits, as heartbeats that trickle in have it. Layers are at most 125 wide; each slot runs a
chain of two operators, one of which is keyed.

CPU is that of this process, in milliseconds: of a second of heartbeats; of a word of each slot that it cannot keep up
(credits); of a whole checkpoint (trigger, acknowledgements, metadata, log record, commits); of a start from it; of a page of
metrics. Last line: JSON, `runs`, one for each number of slots.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import harness
import psutil

import tidegate as tg
from tidegate.coordinator.attempt import Attempt, Timeouts
from tidegate.coordinator.job import AttemptInputs, JobRun
from tidegate.coordinator.observing import CheckpointStatus, JobView
from tidegate.graph.plan import JobPlan
from tidegate.graph.specs import keys_of
from tidegate.ids import SlotId
from tidegate.ports import NoCrashPoints
from tidegate.protocol.credit import Progress
from tidegate.rest.prometheus import exposition
from tidegate.rest.served import ServedJob
from tidegate.state.key_groups import key_group_range
from tidegate.storage.metadata import FileRef, SectionRef, SlotSnapshot, SubtaskSnapshot
from tidegate.storage.paths import JobPaths
from tidegate.storage.store import open_store
from tidegate.testing.ledger_sink import LedgerSink
from tidegate.wire.control import (
    Acknowledge,
    Committed,
    FromSlot,
    Heartbeat,
    OperatorMetrics,
    ProcessUse,
    Progressed,
    Ready,
    SnapshotTimings,
    ToSlot,
    decode_from_slot,
    encode,
)

WIDTH = 125
HEARTBEATS = 3  #: seconds of them
CHECKPOINTS = 3
GROUP_BYTES = 1 << 20  #: of each key group's state
CHECKSUM = "0" * 32


class CpuTime:
    """`with cpu: ...` adds to `ms`."""

    def __init__(self) -> None:
        self.ms = 0.0

    def __enter__(self) -> None:
        self._began = time.process_time()

    def __exit__(self, *_: object) -> None:
        self.ms += (time.process_time() - self._began) * 1000


@dataclass
class Queue:
    """Implements ports.Background; the jobs are done when the script says so."""

    jobs: deque[Callable[[], None]] = field(default_factory=deque)

    def submit(self, job: Callable[[], None]) -> None:
        self.jobs.append(job)


class Links:
    """Implements ports.SlotLinks."""

    def __init__(self) -> None:
        self.bytes = 0

    def send(self, slot: SlotId, message: ToSlot) -> None:
        self.bytes += len(encode(message))


def job_graph(slots: int) -> tg.StreamEnvironment:
    width = min(WIDTH, max(1, slots // 2))
    env = tg.StreamEnvironment("many", parallelism=width)
    stream: Any = env.from_source(tg.NumberSequence(0, 10**9), uid="source", returns=int)
    for layer in range(1, max(2, round(slots / width))):
        stream = stream.key_by(lambda n: n, key_type=int).process(Keep(), uid=f"keep-{layer}", returns=int)
    stream.sink_to(LedgerSink("out"), uid="out")
    return env


class Keep(tg.KeyedProcessFunction):
    last = tg.ValueState(int, default=0)

    def process_element(self, value: int, ctx: tg.Context) -> list[int]:
        return [value]


@dataclass
class Simulated:
    """One attempt and its scripted slots."""

    job: JobRun
    inputs: AttemptInputs
    attempt: Attempt
    posted: deque[Callable[[], None]]
    storing: Queue
    links: Links

    @classmethod
    def of(cls, job: JobRun) -> Simulated:
        inputs = job.next_attempt()
        assert isinstance(inputs, AttemptInputs)
        posted: deque[Callable[[], None]] = deque()
        storing, links = Queue(), Links()
        attempt = Attempt(
            id=inputs.id,
            starts=inputs.starts,
            policy=job.config.policy(),
            next_checkpoint_id=inputs.next_checkpoint_id,
            shared=inputs.shared,
            latest_completed=inputs.latest_completed,
            links=links,
            recorder=job.recorder,
            storing=storing,
            post=posted.append,
            view=job.view,
            crash_points=NoCrashPoints(),
            clock=time.monotonic,
            wall_clock=time.time,
            on_driver_payload=lambda _: None,
            timeouts=Timeouts(start_s=1e9, heartbeat_s=1e9),
        )
        return cls(job, inputs, attempt, posted, storing, links)

    def say(self, slot: SlotId, encoded: bytes) -> None:
        """As JobExecution's loop has it, when no other message waits."""
        attempt = self.attempt
        attempt.next_wake()
        attempt.slot_said(slot, decode_from_slot(encoded))
        attempt.next_wake()
        attempt.tick()
        while self.storing.jobs or self.posted:
            (self.storing.jobs or self.posted).popleft()()

    def all_say(self, message: Callable[[SlotId], FromSlot]) -> float:
        """CPU in ms, without what it takes to make the messages."""
        cpu, slots = CpuTime(), list(self.inputs.starts)
        random.Random(1).shuffle(slots)
        encoded = [(slot, encode(message(slot))) for slot in slots]
        with cpu:
            for slot, data in encoded:
                self.say(slot, data)
        assert self.attempt.outcome is None, self.attempt.outcome
        return cpu.ms

    def connect(self) -> float:
        cpu = CpuTime()
        with cpu:
            for slot in self.inputs.starts:
                self.attempt.slot_connected(slot)
        return cpu.ms + self.all_say(lambda slot: Ready(0.0))

    def checkpoint(self) -> float:
        cpu, id = CpuTime(), self.attempt.scheduler.next_id
        with cpu:
            self.attempt.request_checkpoint()
        acknowledged = self.all_say(lambda slot: Acknowledge(id, self.snapshot(slot, id), SnapshotTimings()))
        newest = list(self.job.view.checkpoints.values())[-1]
        assert (newest.checkpoint, newest.status) == (id, CheckpointStatus.COMPLETED), newest.status
        return cpu.ms + acknowledged + self.all_say(lambda slot: Committed(id))

    def snapshot(self, slot: SlotId, checkpoint: int) -> SlotSnapshot:
        hosted = [(op, n, chain.parallelism) for chain, n in self.job.plan.hosted_in(slot) for op in chain.operators]
        groups = [
            (op.uid, group)
            for op, n, parallelism in hosted
            if keys_of(op.operator.spec)
            for group in key_group_range(n, parallelism, op.max_parallelism)
        ]
        sections = [
            SectionRef(uid, "last", "value", group, at * GROUP_BYTES, GROUP_BYTES, 1000, CHECKSUM)
            for at, (uid, group) in enumerate(groups)
        ]
        path = f"many/chk-{checkpoint}/{slot}" if sections else None
        file = FileRef(len(sections) * GROUP_BYTES, path=path, sections=sections)
        return SlotSnapshot(slot.layer, slot.index, file, [SubtaskSnapshot(op.uid, n) for op, n, _ in hosted])

    def heartbeat(self, slot: SlotId, second: int) -> Heartbeat:
        operators = [
            OperatorMetrics(op.uid, n, 1000 * second, 1000 * second, 1000 * second, bytes_in=second, bytes_out=second)
            for chain, n in self.job.plan.hosted_in(slot)
            for op in chain.operators
        ]
        return Heartbeat(600 * second, 400 * second, 0, 100, 0, operators, process=ProcessUse(10**8, 600 * second))

    def progress(self, slot: SlotId) -> FromSlot:
        """What a slot that cannot keep up says, about twice a second; one without senders says that it lives."""
        if slot.layer == 0:
            return self.heartbeat(slot, HEARTBEATS)
        senders = self.job.plan.layers[slot.layer - 1].width
        return Progressed(Progress([1000] * senders, [100] * senders))


class Hands:
    """Of rest/served.py: nobody asks it for anything but the plan."""

    def __init__(self, job: JobRun) -> None:
        self.view = job.view
        self._job = job

    @property
    def plan(self) -> JobPlan:
        return self._job.plan

    def workers(self) -> dict[SlotId, Any]:
        return {}


def measure(slots: int) -> dict[str, Any]:
    before_bytes = psutil.Process().memory_info().rss
    env = job_graph(slots)
    env.checkpointing(every="1h", storage=harness.fresh_folder(f"coordinator-{slots}").as_uri())
    planning, starting, restoring, pages = CpuTime(), CpuTime(), CpuTime(), CpuTime()
    with planning:
        job = job_run(env)
    served = ServedJob("0" * 32, "many", job.config, job.view, Hands(job), time.time())  # type: ignore[arg-type]
    job.begin()
    with starting:
        simulated = Simulated.of(job)
    count = len(simulated.inputs.starts)
    connecting_ms = simulated.connect()
    heartbeats = [simulated.all_say(lambda slot, n=n: simulated.heartbeat(slot, n)) for n in range(1, HEARTBEATS + 1)]
    credits_ms = simulated.all_say(simulated.progress)
    began = time.monotonic()
    checkpoints = [simulated.checkpoint() for _ in range(CHECKPOINTS)]
    checkpoint_s = (time.monotonic() - began) / CHECKPOINTS
    with pages:
        page = exposition([served])
    told_bytes = simulated.links.bytes
    with restoring:
        Simulated.of(job)
    newest = job.newest_record
    assert newest is not None
    metadata = newest.latest.metadata_path if newest.latest is not None else ""
    return {
        "slots": count,
        "layers": len(job.plan.layers),
        "plan_ms": round(planning.ms, 1),
        "start_ms": round(starting.ms, 1),
        "connect_ms": round(connecting_ms, 1),
        "heartbeats_ms": harness.median(heartbeats),
        "credits_ms": round(credits_ms, 1),
        "checkpoint_ms": harness.median(checkpoints),
        "checkpoint_s": round(checkpoint_s, 3),
        "restore_ms": round(restoring.ms, 1),
        "metrics_ms": round(pages.ms, 1),
        "metrics_bytes": len(page),
        "metadata_bytes": len(job._store.get(metadata)),
        "told_bytes": told_bytes,
        "resident_bytes": psutil.Process().memory_info().rss - before_bytes,
    }


def job_run(env: tg.StreamEnvironment) -> JobRun:
    env._built.taken_up = True
    config = env.config()
    assert config.storage is not None
    return JobRun(
        name=JobPaths(env.name).job,
        graph=env._graph,
        default_parallelism=env.parallelism,
        config=config,
        store=open_store(config.storage),
        driver="benchmark",
        view=JobView(),
        crash_points=NoCrashPoints(),
        clock=time.monotonic,
        wall_clock=time.time,
        sleep=time.sleep,
        jitter=lambda: 0.0,
    )


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--slots", default="100,1000,2500,5000,10000")
    parser.add_argument("--save")
    options = parser.parse_args(words)
    runs = []
    for slots in map(int, options.slots.split(",")):
        runs.append(measure(slots))
        harness.say(str(runs[-1]))
    result = {"runs": runs, "machine": harness.machine()}
    if options.save:
        harness.save(options.save, result)
    harness.finish(result)


if __name__ == "__main__":
    main()
