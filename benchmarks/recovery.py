"""How long a job stands still when a worker dies, and when it is rescaled.

    python benchmarks/recovery.py [--sizes small,100mb,1gb] [--backends rocksdb,hashmap] [--rounds 3] [--small-rounds 10]
                                  [--heap-keys 20000000] [--save NAME]

Two sources feed two workers that keep a value for each key. New records come at a fixed rate by the clock of the wall, as
from a queue outside, so what is not read while the job is down waits. After a completed checkpoint a worker gets kill -9.

    detect     until the driver knows that the worker is gone
    cancel     until the old attempt has left, and the log was read: the new attempt begins
    start      until the last new worker is there and told what to continue from
    restore    until the last one has its state back
    record     until a record is processed that no worker has processed before; what the old attempt had read since the
               checkpoint is processed again before it
    recovery   the sum. A record whose way is open does not wait for the last worker: then `start` ends with it
    caught up  until both workers are less than 100 ms behind the clock
    slot restore   of the slowest slot, since it was told; slots that are told first restore while others still start

`recovery_s` is of small state, the median of 10. Large states are measured with local recovery, and again with the local copies
deleted right before the kill ("storage"), in turn, in one job. Storage is a folder of the same disk, which flatters storage.
"rescale" is the gap of a running job that goes from 2 to 3 subtasks and back, with local copies. `heap_20m_keys_s` is of a
state alone, without a job (benchmarks/heap_restore.py). Last line: JSON.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import signal
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import harness
import heap_restore

import tidegate as tg
from tidegate.connectors.contract import ReaderContext, Source, SourceReader, Split
from tidegate.coordinator.observing import (
    AttemptFailed,
    AttemptStarted,
    CheckpointChanged,
    CheckpointStatus,
    JobEvent,
    SlotRestored,
    StatusChanged,
)
from tidegate.ids import SlotId

RATE = 2000.0  #: new records a second
VALUE_BYTES = 1000
SIZES = {"small": 1_000, "100mb": 100_000, "1gb": 1_000_000, "10gb": 10_000_000}  #: keys
SPLITS = 2
ROWS_PER_POLL = 2000
NOTE_EVERY_S = 0.01
BEHIND_S = 0.1
PATIENCE_S = 300.0
VICTIM = SlotId(1, 1)

Record = tuple[int, float]  #: key, and when it is due; 0.0: it fills the state


class Feed(Source):
    """First a record for each key, as fast as they are taken; then, when the file `began` says when that was, at a rate."""

    bounded = False
    record_type = Record

    def __init__(self, folder: Path, keys: int) -> None:
        self.began_file = folder / "began"
        self.keys = keys

    def discover_splits(self, parallelism: int) -> list[Split]:
        return [Split(str(number)) for number in range(SPLITS)]

    def reader(self, context: ReaderContext) -> SourceReader:
        return _FeedReader(self, context)


class _FeedReader(SourceReader):
    """The position of split s is n: index n * SPLITS + s comes next."""

    def __init__(self, feed: Feed, context: ReaderContext) -> None:
        self._feed = feed
        self._context = context
        self._next: dict[int, int] = {}
        self._began: float | None = None

    def add_splits(self, splits: Sequence[Split]) -> None:
        self._next |= {int(split.id): 0 if split.position is None else int(split.position) for split in splits}  # type: ignore[arg-type]

    def splits(self) -> list[Split]:
        return [Split(str(split), n) for split, n in self._next.items()]

    def poll(self, deadline: float) -> list[Record] | None:
        while True:
            available = self._available()
            for split, n in sorted(self._next.items(), key=lambda item: item[1]):
                end = min(n + ROWS_PER_POLL, (available - split + SPLITS - 1) // SPLITS)
                if end > n:
                    self._next[split] = end
                    return [self._record(i * SPLITS + split) for i in range(n, end)]
            if self._context.clock() >= deadline:
                return None
            self._context.sleep(0.002)

    def _available(self) -> int:
        if self._began is None and self._feed.began_file.exists():
            self._began = float(self._feed.began_file.read_text())
        return self._feed.keys + (0 if self._began is None else int((time.time() - self._began) * RATE))

    def _record(self, index: int) -> Record:
        keys = self._feed.keys
        if index < keys:
            return index, 0.0
        assert self._began is not None
        return index * 7919 % keys, self._began + (index - keys) / RATE


class Keep(tg.KeyedProcessFunction):
    """A value for each key. Notes how far it is, in a file of this process: a line (due, now) every few milliseconds."""

    value = tg.ValueState(bytes)

    def __init__(self, folder: Path, value_bytes: int) -> None:
        self.folder = folder
        self.value_bytes = value_bytes

    def open(self, ctx: tg.Context) -> None:
        self.noise = secrets.token_bytes(1 << 20)  # cannot be compressed
        self.noted = -1.0
        self.notes = os.open(self.folder / f"notes-{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def process_element(self, record: Record, ctx: tg.Context) -> None:
        key, due = record
        at = (key * 7919 + int(due)) % ((1 << 20) - self.value_bytes)
        if due:
            self.value.get()
        self.value.set(self.noise[at : at + self.value_bytes])
        if due - self.noted >= NOTE_EVERY_S:
            self.noted = due
            os.write(self.notes, f"{due:.6f} {time.time():.6f}\n".encode())

    def close(self) -> None:
        os.close(self.notes)


@dataclass
class Outage:
    """One kill and what came of it, in seconds; the parts follow one another."""

    detect: float
    cancel: float
    start: float
    restore: float
    record: float
    recovery: float
    caught_up: float
    slot_restore: float
    local_bytes: int
    storage_bytes: int


@dataclass
class Job:
    """A running job, and what is seen of it."""

    client: tg.JobClient
    folder: Path
    copies: Path
    events: list[tuple[float, JobEvent]] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def __call__(self, event: JobEvent) -> None:
        with self.changed:
            self.events.append((time.time(), event))
            self.changed.notify_all()

    def wait_for(self, what: str, condition: Callable[[], Any]) -> Any:
        """Something about the job, or about the notes."""
        deadline = time.monotonic() + PATIENCE_S
        while not (value := condition()):
            if self.client.status.is_terminal:
                self.client.wait()  # raises what ended it
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {PATIENCE_S:g} s: {what}")
            with self.changed:
                self.changed.wait(0.01)
        return value

    def completed(self, since: float) -> list[int]:
        """Checkpoints that were triggered after a moment, and are complete."""
        found = [event.statistics for _, event in list(self.events) if isinstance(event, CheckpointChanged)]
        return [
            checkpoint.checkpoint
            for checkpoint in found
            if checkpoint.status is CheckpointStatus.COMPLETED and checkpoint.triggered_at >= since
        ]

    def await_checkpoint(self) -> None:
        since = time.time()
        self.wait_for("a checkpoint", lambda: self.completed(since))

    def notes(self, since: float) -> dict[str, list[tuple[float, float]]]:
        """(due, at) of each process, of what it did after a moment."""
        found = {}
        for file in self.folder.glob("notes-*"):
            lines = [line.split() for line in file.read_text().splitlines()]
            pairs = [(float(due), float(at)) for due, at in lines if float(at) > since]
            if pairs:
                found[file.name] = pairs
        return found

    def await_steady(self) -> None:
        """Both workers keep up."""

        def keep_up() -> bool:
            now = time.time()
            recent = self.notes(now - 0.5).values()
            return len(recent) >= 2 and all(at - due < BEHIND_S for pairs in recent for due, at in pairs)

        self.wait_for("workers that keep up", keep_up)

    def kill(self, use_copies: bool) -> Outage:
        self.await_steady()
        self.await_checkpoint()
        time.sleep(0.3)
        victim = self.client.workers()[VICTIM].pid
        if not use_copies:
            self.copies.rename(self.folder / f"copies-{secrets.token_hex(4)}")  # at once, while workers may write there
        killed_at = time.time()
        os.kill(victim, signal.SIGKILL)

        def happened(kind: type, fits: Callable[[Any], bool] = lambda _: True) -> list[Any]:
            return [
                event for at, event in list(self.events) if at > killed_at and isinstance(event, kind) and fits(event)
            ]

        def running() -> list[StatusChanged]:
            return happened(StatusChanged, lambda event: event.status is tg.JobStatus.RUNNING)

        running_at = self.wait_for("RUNNING again", running)[0].at
        failed_at = happened(AttemptFailed)[0].at
        started_at = happened(AttemptStarted)[-1].at
        slots = happened(SlotRestored)
        told_at = max(slot.at - slot.restore_s for slot in slots)
        fresh_at = self.wait_for(
            "a new record",
            lambda: min(
                (at for pairs in self.notes(started_at).values() for due, at in pairs if due > killed_at), default=None
            ),
        )
        caught_up_at = self.wait_for("workers that have caught up", lambda: self._caught_up_at(started_at))
        # A record may be through before the last slot is there: its source and its worker are others.
        told_at, running_at = min(told_at, fresh_at), min(running_at, fresh_at)
        return Outage(
            detect=failed_at - killed_at,
            cancel=started_at - failed_at,
            start=told_at - started_at,
            restore=running_at - told_at,
            record=fresh_at - running_at,
            recovery=fresh_at - killed_at,
            caught_up=caught_up_at - killed_at,
            slot_restore=max(slot.restore_s for slot in slots),
            local_bytes=sum(slot.local_bytes for slot in slots),
            storage_bytes=sum(slot.storage_bytes for slot in slots),
        )

    def _caught_up_at(self, since: float) -> float | None:
        first = [next((at for due, at in pairs if at - due < BEHIND_S), None) for pairs in self.notes(since).values()]
        times = [at for at in first if at is not None]
        return max(times) if len(times) >= 2 else None


def begin(spark: Any, size: str, backend: str) -> Job:
    """Starts a job, fills its state, and waits until that is in a checkpoint."""
    folder = harness.fresh_folder(f"recovery-{size}-{backend}")
    env = tg.StreamEnvironment("recovery", parallelism=2, spark=spark)
    full = backend == "hashmap" and size != "small"  # a checkpoint of the heap is all of it
    env.checkpointing(every="1s", min_pause="5s" if full else "0s", storage=(folder / "storage").as_uri())
    env.state_backend(backend, folder=str(folder / "disk"), local_recovery=True)
    env.restart_strategy("fixed-delay", attempts=1000, delay="0s")
    (
        env.from_source(Feed(folder, SIZES[size]), uid="feed", returns=Record)
        .key_by(0)
        .process(Keep(folder, 8 if size == "small" else VALUE_BYTES), uid="keep", returns=int)
        .collect(uid="nothing")
    )
    client = env.execute_async()
    job = Job(client, folder, folder / "disk" / f"tidegate-copies-{os.getuid()}")
    client.view.subscribe(job)
    began = time.monotonic()
    job.wait_for("all keys", lambda: records_in(client) >= SIZES[size])
    job.await_checkpoint()
    harness.say(
        f"{size} {backend}: filled and checkpointed in {time.monotonic() - began:.1f} s, {stored(client):,} bytes"
    )
    (folder / "began.tmp").write_text(repr(time.time()))
    (folder / "began.tmp").rename(folder / "began")
    return job


def records_in(client: tg.JobClient) -> int:
    heartbeats = client.view.snapshot().heartbeats.values()
    return sum(metrics.records_in for beat in heartbeats for metrics in beat.operators if metrics.uid == "keep")


def stored(client: tg.JobClient) -> int:
    latest = client.view.latest_completed()
    return 0 if latest is None else latest.size_bytes


def measure(spark: Any, size: str, backend: str, rounds: int) -> dict[str, Any]:
    job = begin(spark, size, backend)
    outages: dict[str, list[Outage]] = {"local": [], "storage": []}
    ways = ["local"] if size == "small" else ["local", "storage"]
    try:
        for number in range(rounds):
            for way in ways if number % 2 == 0 else ways[::-1]:
                outage = job.kill(use_copies=way == "local")
                outages[way].append(outage)
                harness.say(f"{size} {backend} {number + 1}/{rounds} {way}: {told(outage)}")
                if size != "small":
                    assert (outage.local_bytes if way == "local" else outage.storage_bytes) > 0
                    assert (outage.storage_bytes if way == "local" else outage.local_bytes) == 0
        job.await_steady()
        job.await_checkpoint()
        result: dict[str, Any] = {"stored_bytes": stored(job.client)}
        gaps = []
        for parallelism in (3, 2):
            gaps.append(job.client.rescale(parallelism, timeout=f"{PATIENCE_S:g}s").gap_s)
            harness.say(f"{size} {backend}: rescaled to {parallelism}, a gap of {gaps[-1]:.2f} s")
            job.await_steady()
        result["rescale_s"] = {"2->3": round(gaps[0], 3), "3->2": round(gaps[1], 3)}
    finally:
        job.client.cancel()
        job.client.wait()
    shutil.rmtree(job.folder, ignore_errors=True)
    for way in ways:
        result["small" if size == "small" else way] = summary(outages[way])
    return result


def told(outage: Outage) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in asdict(outage).items() if isinstance(value, float))


def summary(outages: list[Outage]) -> dict[str, Any]:
    values = {name: [asdict(outage)[name] for outage in outages] for name in asdict(outages[0])}
    medians = {name: round(statistics.median(found), 3) for name, found in values.items()}
    return {**medians, "recovery_spread": harness.spread(values["recovery"]), "rounds": len(outages)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", default="small,100mb,1gb")
    parser.add_argument(
        "--backends", default="rocksdb,hashmap", help="of the large states; the small one is on the heap"
    )
    parser.add_argument("--rounds", type=int, default=3, help="for large states, each way")
    parser.add_argument("--small-rounds", type=int, default=10)
    parser.add_argument("--heap-keys", type=int, default=20_000_000, help="0: not measured")
    parser.add_argument("--save", help="name of a file in benchmarks/results")
    options = parser.parse_args()
    spark = harness.session()
    result: dict[str, Any] = {}
    for size in options.sizes.split(","):
        for backend in ["hashmap"] if size == "small" else options.backends.split(","):
            name = "small" if size == "small" else f"{size}_{backend}"
            rounds = options.small_rounds if size == "small" else options.rounds
            result[name] = measure(spark, size, backend, rounds)
    if options.heap_keys:
        result["heap"] = heap_restore.measure(options.heap_keys)
    result = headline(result) | result | {"machine": harness.machine()}
    if options.save:
        harness.save(options.save, result)
    harness.finish(result)


def headline(result: dict[str, Any]) -> dict[str, float]:
    """What is claimed, by one name each."""
    found = {}
    if "small" in result:
        found["recovery_s"] = result["small"]["small"]["recovery"]
    for size in ("1gb", "10gb"):
        if f"{size}_rocksdb" in result:
            large = result[f"{size}_rocksdb"]
            found[f"rocksdb_{size}_local_s"] = large["local"]["recovery"]
            found[f"rocksdb_{size}_storage_s"] = large["storage"]["recovery"]
            found[f"rescale_{size}_s"] = large["rescale_s"]["2->3"]
    if "heap" in result:
        found["heap_20m_keys_s"] = result["heap"]["heap_20m_keys_s"]
    return found


if __name__ == "__main__":
    main()
