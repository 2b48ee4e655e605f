"""The classic picture of checkpoints, live: two sources count, one task sums the even numbers, one the odd ones. In
mid-stream the worker that sums the odd numbers is killed, and the sums still come out right.

    make demo

What you see: checkpoints complete; the kill; then recovery in its three steps,

    1. restart   all workers start anew
    2. reset     each takes its state back from the newest completed checkpoint
    3. replay    the sources seek back, and what was read since that checkpoint is read again

and the sums, read from the files that the job wrote, beside the right answer, which is computed without the job. The last
line is JSON. The exit code is 0 when the sums are right and every number is in the files exactly once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

import tidegate as tg
from tidegate.coordinator.observing import (
    AttemptFailed,
    AttemptStarted,
    CheckpointChanged,
    CheckpointStatus,
    JobEvent,
    StatusChanged,
)
from tidegate.ids import SlotId

COUNT = 30_000  #: each source counts from 1 to here
RATE = 2_500.0  #: numbers a second, from each source
KILL_AFTER = 5  #: checkpoints complete, and then a good part of an interval more, so that there is something to replay
KILL_DELAY_S = 0.7
SOURCES = ("A", "B")
#: Layer 0 reads, layer 1 sums. The key False (not even) belongs to the second sum task.
SUM_ODD = SlotId(layer=1, index=1)
PATIENCE_S = 120.0


# -- the job ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Number:
    source: str
    number: int


@dataclass(frozen=True)
class Summed:
    """A line of the output: the number, the sum it led to, and when."""

    source: str
    number: int
    even: bool
    sum: int
    at: float


class Sum(tg.KeyedProcessFunction):
    total = tg.ValueState(int, default=0)  # declared, so it is part of every checkpoint

    def process_element(self, record: Number, ctx: tg.Context) -> Iterator[Summed]:
        total = self.total.get() + record.number
        self.total.set(total)
        yield Summed(record.source, record.number, ctx.key, total, time.time())


def build(folder: Path) -> tg.StreamEnvironment:
    env = tg.StreamEnvironment("demo", parallelism=2)
    env.checkpointing(every="1s", storage=(folder / "checkpoints").as_uri())
    a, b = (env.from_source(counting(source), uid=f"source-{source}") for source in SOURCES)
    (
        a.union(b)
        .key_by(lambda record: record.number % 2 == 0, key_type=bool)
        .process(Sum(), uid="sum", returns=Summed)
        .write_files(str(folder / "sums"), format="jsonl", uid="sums")
    )
    return env


def counting(source: str) -> tg.DataGenerator:
    return tg.DataGenerator(
        lambda index: Number(source, index + 1), count=COUNT, rate=RATE, type=Number, splits=2
    )  # fmt: skip


# -- what is seen of it -----------------------------------------------------------------------------------------------


@dataclass
class Onlooker:
    """Notes when things happen, and prints a line for each. Called from the coordinator's thread."""

    console: Console
    in_mid_stream: threading.Event = field(default_factory=threading.Event)
    killed_at: float | None = None
    failed_at: float | None = None
    running_again_at: float | None = None
    restored_from: int | None = None
    began: float = field(default_factory=time.time)

    def say(self, text: str, at: float | None = None) -> None:
        self.console.print(f"{(time.time() if at is None else at) - self.began:6.1f} s  {text}", highlight=False)

    def __call__(self, event: JobEvent) -> None:
        match event:
            case StatusChanged(tg.JobStatus.RUNNING, _, at):
                if self.killed_at is None:
                    self.say("the job runs: 2 workers read, 2 workers sum", at)
                elif self.running_again_at is None:
                    self.running_again_at = at
            case AttemptFailed(_, error, _, at):
                self.failed_at = self.failed_at or at
                self.say(f"[red]noticed:[/red] {escape(error.splitlines()[0])}", at)
            case AttemptStarted(_, restored_from, at) if self.killed_at is not None:
                self.restored_from = restored_from
                self.say(f"starting again, from checkpoint {restored_from}", at)
            case CheckpointChanged(checkpoint) if checkpoint.status is CheckpointStatus.COMPLETED:
                self.say(
                    f"[green]checkpoint {checkpoint.checkpoint}[/green] complete after {checkpoint.duration_s:.2f} s"
                )
                if checkpoint.checkpoint >= KILL_AFTER:
                    self.in_mid_stream.set()


def kill_a_worker(client: tg.JobClient, seen: Onlooker) -> set[int]:
    """kill -9, in mid-stream. Gives the process ids of all workers that there were."""
    deadline = time.monotonic() + PATIENCE_S
    while not seen.in_mid_stream.wait(0.05):
        if seen.failed_at is not None:
            client.cancel()
            client.wait()
            sys.exit("the job failed by itself, before anything was killed; its error is above")
        if client.status.is_terminal:
            client.wait()  # raises what ended it
            sys.exit("the job ended before its worker could be killed")
        if time.monotonic() > deadline:
            sys.exit(f"the job did not complete {KILL_AFTER} checkpoints within {PATIENCE_S:g} s")
    time.sleep(KILL_DELAY_S)
    workers = {slot: worker.pid for slot, worker in client.workers().items()}
    seen.killed_at = time.time()
    os.kill(workers[SUM_ODD], signal.SIGKILL)
    seen.say(f"[bold red]kill -9 {workers[SUM_ODD]}[/bold red]: the worker that sums the odd numbers", seen.killed_at)
    return set(workers.values())


def all_workers_at(client: tg.JobClient, seen: Onlooker, old: set[int]) -> float:
    """When the last worker of the new attempt has called the coordinator: the restart is done. `old` are process ids."""
    while seen.running_again_at is None and not client.status.is_terminal:
        new = {worker.pid for worker in client.workers().values()}
        if len(new) == len(old) and not new & old:
            return time.time()
        time.sleep(0.005)
    return seen.running_again_at or time.time()


# -- what came out ----------------------------------------------------------------------------------------------------


@dataclass
class Output:
    """The committed lines, by the checkpoint that made them visible. Read with nothing but the json module."""

    lines: list[tuple[int, dict[str, Any]]]

    @classmethod
    def read(cls, folder: Path) -> Output:
        """part-<checkpoint>-<subtask>-<n>.jsonl"""
        parts = sorted(folder.glob("part-*.jsonl"))
        return cls(
            [
                (int(part.name.split("-")[1]), json.loads(line))
                for part in parts
                for line in part.read_text().splitlines()
            ]
        )

    def sums(self) -> dict[str, int]:
        """The last sum of each task. Sums of positive numbers only grow, so the last is the largest."""
        found = {"even": 0, "odd": 0}
        for _, line in self.lines:
            name = "even" if line["even"] else "odd"
            found[name] = max(found[name], line["sum"])
        return found

    def each_exactly_once(self) -> bool:
        numbers = [(line["source"], line["number"]) for _, line in self.lines]
        return sorted(numbers) == [(source, number) for source in SOURCES for number in range(1, COUNT + 1)]

    def replayed_at(self, restored_from: int, count: int) -> float:
        """When the first `count` numbers after the checkpoint had been summed again."""
        again = sorted(line["at"] for checkpoint, line in self.lines if checkpoint > restored_from)
        return again[min(count, len(again)) - 1]


def right_answer() -> dict[str, int]:
    return {
        "even": len(SOURCES) * sum(range(2, COUNT + 1, 2)),
        "odd": len(SOURCES) * sum(range(1, COUNT + 1, 2)),
    }


def main() -> int:
    console = Console()
    console.rule("Tidegate: a worker dies, the sums stay right")
    console.print(f"Two sources count to {COUNT:,}. A checkpoint every second. Spark starts ...")
    with tempfile.TemporaryDirectory(prefix="tidegate-demo-") as name:
        folder = Path(name)
        client = build(folder).execute_async(quiet=True)
        seen = Onlooker(console)
        client.view.subscribe(seen)
        old = kill_a_worker(client, seen)
        restarted_at = all_workers_at(client, seen, old)
        try:
            client.wait(timeout=f"{PATIENCE_S:g}s")
        except tg.TimedOut as error:
            client.cancel()
            sys.exit(f"{error}; that is a bug")
        seen.say("all input has ended and is committed: FINISHED")
        output = Output.read(folder / "sums")
    return report(console, client, seen, restarted_at, output)


def report(console: Console, client: tg.JobClient, seen: Onlooker, restarted_at: float, output: Output) -> int:
    assert seen.killed_at is not None
    assert seen.failed_at is not None
    assert seen.running_again_at is not None
    assert seen.restored_from is not None
    # The sources keep their pace, so the time since the checkpoint's barriers tells how much was read since.
    since_s = seen.killed_at - client.view.checkpoints[seen.restored_from].triggered_at
    replayed = max(1, round(since_s * RATE * len(SOURCES)))
    recovered_at = max(seen.running_again_at, output.replayed_at(seen.restored_from, replayed))

    steps = Table(title="Recovery", title_justify="left")
    steps.add_column("step")
    steps.add_column("what happened")
    steps.add_column("took", justify="right")
    noticed_s = seen.failed_at - seen.killed_at
    steps.add_row(
        "1. restart",
        f"death noticed after {noticed_s:.2f} s; all workers start anew",
        f"{restarted_at - seen.killed_at:.2f} s",
    )
    steps.add_row(
        "2. reset",
        f"state and positions of checkpoint {seen.restored_from} are back",
        f"{max(0.0, seen.running_again_at - restarted_at):.2f} s",
    )
    steps.add_row(
        "3. replay",
        f"about {replayed:,} numbers read since then, read again",
        f"{recovered_at - seen.running_again_at:.2f} s",
    )
    console.print()
    console.print(steps)

    expected, got = right_answer(), output.sums()
    once = output.each_exactly_once()
    sums = Table(title="Sums", title_justify="left")
    for column in ("", "right answer", "from the job's files", ""):
        sums.add_column(column, justify="right")
    for key in expected:
        verdict = "[green]equal[/green]" if expected[key] == got[key] else "[bold red]DIFFERENT[/bold red]"
        sums.add_row(key, f"{expected[key]:,}", f"{got[key]:,}", verdict)
    console.print(sums)
    console.print(
        f"{len(output.lines):,} lines in the files; "
        + (
            "every number of both sources is there exactly once."
            if once
            else "[bold red]not each exactly once![/bold red]"
        )
    )
    result = {
        "expected": expected,
        "got": got,
        "restarts": client.view.restarts,
        "checkpoints_completed": client.view.completed,
        "recovery_s": round(recovered_at - seen.killed_at, 2),
    }
    print(json.dumps(result), flush=True)
    return 0 if expected == got and once and client.view.restarts else 1


if __name__ == "__main__":
    sys.exit(main())
