"""REST over a real job: what it shows agrees with the job, a checkpoint asked for by it completes, and cancel ends it."""

from __future__ import annotations

import json
import logging
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from job_kit import PATIENCE

import tidegate as tg
from tidegate.durations import seconds
from tidegate.rest import registry

pytestmark = pytest.mark.spark


class CountWords(tg.KeyedProcessFunction):
    count = tg.ValueState(int, default=0)

    def open(self, ctx: tg.Context) -> None:
        self.seen = ctx.counter("seen")
        logging.getLogger("my.job").info("opened with %d subtasks", ctx.parallelism)

    def process_element(self, value: int, ctx: tg.Context) -> Iterator[int]:
        self.count.set(self.count.get() + 1)
        self.seen.inc()
        yield value


def slow_number(index: int) -> int:
    return index + min(0, sum(range(40_000)))  # the slow line


def ask(url: str, path: str, method: str = "GET", body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url + path, data, method=method), timeout=60) as answer:
        return json.load(answer)


def until(true: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + seconds(PATIENCE, "")
    while not (found := true()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def hottest_user_line(tree: dict[str, Any] | None) -> tuple[str, str] | None:
    """Function and line with the most samples below it; None: there are too few yet, or parts of it are missing."""
    found: dict[tuple[str, str], int] = {}
    owners = set()
    ahead = [] if tree is None else [tree]
    while ahead:
        node = ahead.pop()
        ahead += node["children"]
        owners.add(node.get("owner"))
        if node.get("owner") == "user":
            place = (node["name"].partition(" (")[0], node["line"].rpartition("/")[2])
            found[place] = found.get(place, 0) + node["value"]
    if sum(found.values()) < 10 or not {"tidegate", "spark"} <= owners:
        return None
    return max(found, key=lambda place: found[place])


def test_a_running_job_is_shown_and_obeys(storage: str) -> None:
    env = tg.StreamEnvironment("shown", parallelism=2).checkpointing(every="200ms", storage=storage)
    numbers = env.from_source(tg.DataGenerator(slow_number, rate=2000, type=int), uid="numbers")
    numbers.key_by(lambda n: n % 7, key_type=int).process(CountWords(), uid="counts", returns=int).collect(uid="all")
    client = env.execute_async()
    url = client.url
    assert url is not None

    # It is found by its registry entry, and by its id.
    (entry,) = [entry for entry in registry.entries() if entry.name == "shown"]
    assert entry.url == url
    job = f"/v1/jobs/{entry.id}"
    until(lambda: ask(url, f"{job}/status")["status"] == "RUNNING")
    assert (entry.id, "shown", "RUNNING") in [
        (j["jid"], j["name"], j["state"]) for j in ask(url, "/jobs/overview")["jobs"]
    ]

    # A checkpoint that is asked for completes, and stands in the statistics with the state of the keyed vertex.
    trigger = ask(url, f"{job}/checkpoints", "POST", {"checkpointType": "CONFIGURED"})["request-id"]
    done = until(lambda: ask(url, f"{job}/checkpoints/{trigger}")["operation"])
    assert set(done) == {"checkpointId"}
    details = ask(url, f"{job}/checkpoints/details/{done['checkpointId']}")
    assert (details["status"], details["num_acknowledged_subtasks"], details["num_subtasks"]) == ("COMPLETED", 4, 4)
    keyed = ask(url, job)["vertices"][1]["id"]
    assert details["tasks"][keyed]["state_size"] > 0

    # Counts, load, counters and the user's log come with the heartbeats.
    def counted() -> Any:
        (seen,) = ask(url, f"{job}/accumulators")["user-task-accumulators"] or [None]
        return seen if seen and int(seen["value"]) > 2000 else None

    until(counted)
    found = {entry["uid"]: entry for entry in ask(url, f"{job}/operators")["operators"]}
    taken_in = found["counts"]["recordsIn"]
    assert found["counts"]["counters"]["seen"] == taken_in  # of one heartbeat; those of other slots come at other times
    until(lambda: ask(url, f"{job}/operators")["operators"][0]["recordsOut"] >= taken_in)
    until(lambda: (ask(url, f"{job}/operators")["operators"][0]["outPerSecond"] or 0) > 100)

    def loads() -> list[float]:
        found = ask(url, f"{job}/vertices/{keyed}/backpressure")["subtasks"]
        return [s["busyRatio"] + s["idleRatio"] + s["ratio"] for s in found]

    until(lambda: all(0.99 < load < 1.01 for load in loads()))  # once each slot has been heard twice
    lines = [line for line in ask(url, f"{job}/logs")["lines"] if line["logger"] == "my.job"]
    assert {(line["message"], line["uid"], line["subtask"], line["attempt"]) for line in lines} == {
        ("opened with 2 subtasks", "counts", subtask, "g1-a1") for subtask in (0, 1)
    }

    # Whoever asks for the flame graph makes its slots sample; it names the slow line, and whose code is whose.
    source = ask(url, job)["vertices"][0]["id"]
    graph = f"{job}/vertices/{source}/flamegraph?type=on_cpu&operator=numbers"
    hottest = until(lambda: hottest_user_line(ask(url, graph).get("data")))
    lines = Path(__file__).read_text().splitlines()
    (slow,) = [number for number, line in enumerate(lines, 1) if line.endswith("# the slow line")]
    assert hottest == ("slow_number", f"test_rest.py:{slow}")

    # Memory and CPU of the workers come with the heartbeats, latency with the checkpoints.
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        page = answer.read().decode()
    assert page.count("\ntidegate_worker_resident_memory_bytes{") == 4
    assert "tidegate_job_latency_seconds_count{" in page

    # The statistics agree with what the client knows.
    ask(url, f"{job}?mode=cancel", "PATCH", {})
    assert client.wait(PATIENCE) is tg.JobStatus.CANCELED
    counts = ask(url, f"{job}/checkpoints")["counts"]
    assert (counts["completed"], counts["failed"]) == (client.view.completed, client.view.failed)
    assert counts["completed"] == len([c for c in client.checkpoints() if c.path])
    assert ask(url, f"{job}/status")["status"] == "CANCELED"
    assert [entry for entry in registry.entries() if entry.name == "shown"] == []


def test_a_checkpoint_is_refused_where_no_job_runs(storage: str) -> None:
    env = tg.StreamEnvironment("ended").checkpointing(storage=storage)
    env.from_collection([1], uid="one").collect(uid="all")
    client = env.execute()
    with pytest.raises(tg.TidegateError, match="the job is FINISHED: only a running job takes checkpoints"):
        client.checkpoint_now("60s")
