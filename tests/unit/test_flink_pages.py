"""Every page of Flink's own web UI that has a meaning here, unmodified, in a real Chromium: each shows the job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from flink_pages import INDEX, pages_of_flink, serve
from playwright.sync_api import Browser
from rest_kit import Rest, lived, serving

import fetch
from operating.browser import ARTIFACTS, PATIENCE_MS, chromium
from services import had
from tidegate.coordinator.observing import JobLine, JobStatus, SlotSampled, StatusChanged
from tidegate.ids import SlotId
from tidegate.rest.app import CANCEL_BY_GET
from tidegate.wire.control import CodeLine, Sampled, SampledStack

J, V = "JOB", "VERTEX"
RUNNING = f"job/running/{J}"
#: Each page, and what it must show of the job.
PAGES = {
    "overview": "sums",
    "application/running": "sums",
    "application/completed": "No Data",
    "job/running": "sums",
    "job/completed": "No Data",
    f"application/running/{J}/overview": "sums",
    f"application/running/{J}/exceptions": "ValueError: bad",
    f"{RUNNING}/overview": "sum 1 -> Sink: print",
    f"{RUNNING}/overview/{V}/detail": "Busy (max): 20%",
    f"{RUNNING}/overview/{V}/subtasks": "1.95 KB",
    f"{RUNNING}/overview/{V}/taskmanagers": "node:102",
    f"{RUNNING}/overview/{V}/watermarks": "4001",
    f"{RUNNING}/overview/{V}/accumulators": "Accumulators",
    f"{RUNNING}/overview/{V}/backpressure": "HIGH",
    f"{RUNNING}/overview/{V}/metrics": "Add Metric",
    f"{RUNNING}/overview/{V}/flamegraph": "parse (me/job.py:12)",
    f"{RUNNING}/exceptions": "ValueError: bad",
    f"{RUNNING}/dataskew": "sum 1 -> Sink: print",
    f"{RUNNING}/timeline": "Vertex TimeLine",
    f"{RUNNING}/checkpoints": "Completed: 3",
    f"{RUNNING}/configuration": "file:///data",
    f"{RUNNING}/rescales": "RECOVERABLE_FAILOVER",
    "task-manager": "node:103",
    "task-manager/node:102/metrics": "sum 1 -> Sink: print #0",
    "task-manager/node:102/logs": "mine: odd",
    "task-manager/node:102/stdout": "where its driver was started",
    "task-manager/node:102/log-list": "worker.log",
    "task-manager/node:103/thread-dump": "at parse (me/job.py:12)",
    "job-manager/metrics": "JVM Heap",
    "job-manager/config": "file:///data",
    "job-manager/logs": "RUNNING",
    "job-manager/stdout": "where its driver was started",
    "job-manager/log": ".log",
    "job-manager/thread-dump": "tidegate-rest",
}
#: One of each kind; the slow test opens all.
SOME = {
    "overview",
    "application/completed",
    f"{RUNNING}/overview/{V}/subtasks",
    f"{RUNNING}/overview/{V}/backpressure",
    f"{RUNNING}/overview/{V}/flamegraph",
    f"{RUNNING}/dataskew",
    f"{RUNNING}/checkpoints",
    f"{RUNNING}/rescales",
    "task-manager/node:102/metrics",
    "job-manager/config",
}
ENDED = ["overview", "job/completed", f"job/completed/{J}/overview", f"job/completed/{J}/exceptions", "task-manager"]


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    found: dict[str, bytes] = had("Flink's web pages", fetch.NotFetched, pages_of_flink)
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rest]:
    monkeypatch.setenv("TIDEGATE_REGISTRY", str(tmp_path / "registry"))
    with serving() as rest:
        lived(rest.hands.view)
        rest.hands.view.log(JobLine(1020.0, "WARNING", "mine", "odd", "g1-a2", "1.0", "sum 1", "sums", 0))
        rest.hands.may_answer.set()
        yield rest


def sampled() -> SlotSampled:
    """A slot says where its thread was."""
    lines = [
        CodeLine("Slot.turn", "/lib/tidegate/task/slot.py", 12, "tidegate"),
        CodeLine("parse", "/home/me/job.py", 12, "user"),
    ]
    return SlotSampled(SlotId(1, 1), Sampled(lines, [SampledStack("sums", [0, 1], 6, 6)]))


@pytest.mark.parametrize("pages", [SOME, pytest.param(set(PAGES), marks=pytest.mark.slow)], ids=["some", "all"])
def test_every_page_of_flinks_shows_the_job_and_nothing_fails(
    rest: Rest, browser: Browser, files: dict[str, bytes], pages: set[str]
) -> None:
    faults: list[str] = []
    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    try:
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: faults.append(f"{page.url}: {error}"))
        page.on("console", lambda line: faults.append(f"{page.url}: {line.text}") if line.type == "error" else None)
        serve(page, files)

        def show(place: str, expected: str) -> None:
            rest.hands.view.publish(sampled())  # of late: a thread dump shows nothing older
            there = place.replace(J, rest.job.id).replace(V, rest.vertex(1))
            page.goto(f"{rest.server.url}/{INDEX}#/{there}")
            page.wait_for_function(
                "text => document.body.innerText.replaceAll('\u00a0', ' ').includes(text)", arg=expected
            )
            ARTIFACTS.mkdir(parents=True, exist_ok=True)
            name = place.replace("/", "-").replace(":", "")
            (ARTIFACTS / f"flink-{name}.png").write_bytes(page.screenshot())

        for place, expected in PAGES.items():
            if place in pages:
                show(place, expected)

        # + asks for another parallelism, Cancel cancels.
        show(f"{RUNNING}/overview", "Scale")
        row = page.locator("tbody tr", has_text="sum 1")
        with page.expect_response(lambda answer: answer.request.method == "PUT") as scaled:
            row.locator("button").first.click()
        assert scaled.value.status == 200
        with page.expect_response(lambda answer: answer.url.endswith(CANCEL_BY_GET)) as canceled:
            page.get_by_text("Cancel Job").click()
            page.get_by_role("button", name="Yes").click()
        assert (canceled.value.status, rest.hands.canceled) == (202, 1)

        rest.hands.view.publish(StatusChanged(JobStatus.FINISHED, "", 1030.0))
        for place in ENDED:
            show(place, "No Data" if place == "task-manager" else "sums")
    finally:
        context.close()
    assert faults == []
