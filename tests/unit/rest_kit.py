"""What the tests of REST share: a job that has lived, behind a real server on this machine, and a plain client."""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from cli_kit import attempt, checkpoint, failed, planned_sums, reported, started, status

from tidegate.config import JobConfig
from tidegate.coordinator.hottest import OperatorKey
from tidegate.coordinator.observing import (
    AttemptFailed,
    CheckpointChanged,
    CheckpointStatistics,
    CheckpointStatus,
    JobEvent,
    JobStatus,
    JobView,
    SlotCheckpoint,
    SlotReported,
)
from tidegate.coordinator.savepoints import Rescaled
from tidegate.errors import CheckpointFailed
from tidegate.graph.plan import JobPlan, Parallelism
from tidegate.ids import SlotId
from tidegate.rest.identity import job_id
from tidegate.rest.served import ServedJob
from tidegate.rest.server import RestServer, RestSettings
from tidegate.wire.control import Heartbeat, HotKey, HotKeys, OperatorMetrics, ProcessUse, SnapshotTimings
from tidegate.wire.handshake import Hello

SLOTS = [SlotId(layer, index) for layer in (0, 1) for index in (0, 1)]


@dataclass
class ScriptedHands:
    """Stands for a JobClient; the test says what becomes of a checkpoint."""

    view: JobView = field(default_factory=JobView)
    plan: JobPlan = field(default_factory=planned_sums)
    canceled: int = 0
    checkpoints: list[int | Exception] = field(default_factory=list)
    asked: list[tuple[object, ...]] = field(default_factory=list)
    sampled: list[list[SlotId]] = field(default_factory=list)
    failure: Exception | None = None
    may_answer: threading.Event = field(default_factory=threading.Event)

    def cancel(self) -> None:
        self.canceled += 1

    def checkpoint_now(self, timeout: str) -> int:
        assert self.may_answer.wait(60)
        result = self.checkpoints.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    def savepoint(self, directory: str | None, *, format: str) -> str:
        return self._asked(("savepoint", directory, format))

    def stop(self, directory: str | None, *, drain: bool, format: str) -> str:
        return self._asked(("drain" if drain else "stop", directory, format))

    def rescale(self, parallelism: Parallelism) -> Rescaled:
        self._asked(("rescale", parallelism))
        return Rescaled(parallelism, 1.25, 9)

    def _asked(self, what: tuple[object, ...]) -> str:
        self.asked.append(what)
        assert self.may_answer.wait(60)
        if self.failure is not None:
            raise self.failure
        return "file:///data/savepoint-sums-9"

    def sample_stacks(self, slots: Collection[SlotId], seconds: float, per_s: float) -> None:
        self.sampled.append(list(slots))

    def workers(self) -> dict[SlotId, Hello]:
        return {
            slot: Hello(
                version=1,
                generation=1,
                attempt=1,
                layer=slot.layer,
                index=slot.index,
                pid=100 + n,
                host="node",
                challenge=b"",
            )
            for n, slot in enumerate(SLOTS)
        }


def heartbeat(slot: SlotId, busy: int, idle: int, backpressured: int, operators: list[OperatorMetrics]) -> SlotReported:
    use = ProcessUse(resident_bytes=100_000_000, cpu_ms=busy)
    return SlotReported(slot, Heartbeat(busy, idle, backpressured, 10, 20, operators, process=use))


def beats(second: int) -> list[SlotReported]:
    """One heartbeat of each slot: sources read 100 a second each, sums take them all in, one of them under pressure."""
    found = []
    for index in (0, 1):
        found.append(
            heartbeat(
                SlotId(0, index),
                600 * second,
                300 * second,
                100 * second,
                [
                    OperatorMetrics("numbers", index, 0, 100 * second),
                    OperatorMetrics(
                        "numbers~map double",
                        index,
                        100 * second,
                        100 * second,
                        5000,
                        {"odd": second * (index + 1)},
                        bytes_out=1000 * second,
                    ),
                ],
            )
        )
        found.append(
            heartbeat(
                SlotId(1, index),
                200 * second,
                0 if index else 800 * second,
                800 * second if index else 0,
                [
                    OperatorMetrics(
                        "sums",
                        index,
                        100 * second,
                        50 * second,
                        4000 + index,
                        bytes_in=1000 * second,
                        hot_keys=HotKeys(100 * second, [HotKey(f"key-{index}", 25 * second * (index + 1))]),
                    ),
                    OperatorMetrics("printed", index, 50 * second, 0),
                ],
            )
        )
    return found


def completed(id: int, **more: Any) -> CheckpointChanged:
    """All slots have acknowledged, slot 1.1 last; sums holds 1,000 bytes in each subtask, 100 of them new."""
    parts = {}
    for n, slot in enumerate(SLOTS):
        timings = SnapshotTimings(
            start_delay_s=0.010,
            alignment_s=0.020 * slot.layer,
            sync_s=0.001,
            pause_s=0.007 * slot.layer,
            async_s=0.030,
            alignment_bytes=100 * n,
            added_bytes=100,
        )
        of_sums = ({"sums": 1000}, {"sums": 100}) if slot.layer else ({}, {})
        parts[slot] = SlotCheckpoint(0.100 * (n + 1), timings, *of_sums)
    values = {
        "checkpoint": id,
        "attempt": attempt(),
        "purpose": "periodic",
        "status": CheckpointStatus.COMPLETED,
        "triggered_at": 1000.0,
        "slots": 4,
        "acknowledged": parts,
        "duration_s": 0.450,
        "size_bytes": 2400,
        "path": f"file:///data/sums/chk-{id}/g1-a1/_metadata.json",
    }
    return CheckpointChanged(CheckpointStatistics(**(values | more)))


def lived(view: JobView) -> None:
    for event in life():
        view.publish(event)


def life() -> list[JobEvent]:
    """It ran, failed in the user's code, restarted from checkpoint 2 and runs."""
    return [
        status(JobStatus.INITIALIZING, at=900.0),
        started(1),
        status(JobStatus.RUNNING, at=901.0),
        completed(1),
        completed(2, size_bytes=3400, duration_s=0.650),
        checkpoint(3, CheckpointStatus.IN_PROGRESS, acknowledged=1),
        AttemptFailed(
            attempt(1),
            "ValueError: bad\n  in map",
            1.0,
            1010.0,
            "UserCodeFailed",
            "map",
            "numbers~map double",
            1,
            "job.py:7",
            "Traceback",
        ),
        status(JobStatus.RESTARTING, "in 1.0 s: bad", at=1010.0),
        started(2, restored_from=2),
        status(JobStatus.RUNNING, at=1012.0),
        completed(4, hot_keys=(OperatorKey("sums", 1, "key-1", 0.25, 100),)),
        *beats(1),
        *beats(2),
    ]


@dataclass
class Rest:
    """A server with one job, and requests to it."""

    server: RestServer
    hands: ScriptedHands
    job: ServedJob

    def __call__(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, raw: bytes | None = None
    ) -> tuple[int, Any]:
        """{job} in a path is the job's id. Gives the status and the JSON."""
        answer, text = self.text(method, path, body, headers, raw)
        return answer, json.loads(text)

    def text(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, raw: bytes | None = None
    ) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        try:
            data = raw if raw is not None else None if body is None else json.dumps(body).encode()
            connection.request(method, path.replace("{job}", self.job.id), data, headers or {})
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        answer, content = self("GET", path)
        assert answer == 200, content
        return content

    def vertex(self, number: int) -> str:
        return self.job.vertices()[number].id


def samples(text: str) -> dict[str, dict[frozenset[tuple[str, str]], float]]:
    """Prometheus' text format, read by its grammar. By the name of the sample: a histogram has three kinds of them."""
    found: dict[str, dict[frozenset[tuple[str, str]], float]] = {}
    types: dict[str, str] = {}
    helped, family = set(), ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            family, words = line.removeprefix("# HELP ").split(" ", 1)
            assert words
            assert family not in helped, "a family's samples stand together"
            helped.add(family)
            continue
        if line.startswith("# TYPE "):
            name, kind = line.removeprefix("# TYPE ").split(" ")
            assert name == family
            assert kind in ("counter", "gauge", "histogram")
            types[name] = kind
            continue
        match = re.fullmatch(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (-?[0-9.]+(?:e[+-]?[0-9]+)?)", line)
        assert match is not None, line
        suffix = match[1].removeprefix(family)
        assert suffix in (("_bucket", "_sum", "_count") if types[family] == "histogram" else ("",))
        labels = re.findall(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"', match[2] or "")
        found.setdefault(match[1], {})[frozenset(labels)] = float(match[3])
    return found


def served(hands: ScriptedHands, name: str, config: JobConfig) -> ServedJob:
    return ServedJob(job_id(name, config.storage), name, config, hands.view, hands, time.time())


@contextmanager
def serving(config: JobConfig | None = None, clock: Any = None) -> Iterator[Rest]:
    config = config or JobConfig(interval_s=10.0, storage="file:///data", rest_port=0)
    server = RestServer(RestSettings.of(config))
    hands = ScriptedHands()
    try:
        job = served(hands, "sums", config)
        if clock is not None:
            job.clock = clock
        server.serve(job)
        yield Rest(server, hands, job)
    finally:
        server.close()


__all__ = [
    "CheckpointFailed",
    "JobStatus",
    "Rest",
    "ScriptedHands",
    "beats",
    "completed",
    "failed",
    "life",
    "lived",
    "reported",
    "samples",
    "served",
    "serving",
]
