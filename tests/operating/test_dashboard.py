"""The dashboard in a real Chromium, over a real job: its numbers are REST's, its buttons act, it lives through a restart."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from operating.browser import Browser
from operating.driver import Driver, assert_exact, rows_in

pytestmark = pytest.mark.faults


def ask(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return json.load(answer)


def pids_of(job: str, vertex: str) -> list[int]:
    return [int(s["endpoint"].rpartition(":")[2]) for s in ask(f"{job}/vertices/{vertex}")["subtasks"]]


@pytest.mark.timeout(600)
def test_the_dashboard_shows_a_job_and_acts_on_it(tmp_path: Path) -> None:
    with Driver(tmp_path, "-D", "rest.port=0") as driver, Browser(tmp_path) as browser:
        entry = driver.entry()
        job = f"{entry.url}/jobs/{entry.id}"
        page = f"{entry.url}/#/{entry.id}"

        # The address alone leads to the only job.
        browser.open(entry.url)
        browser.until("the job is shown", lambda: browser.text("#state") == "RUNNING")
        vertices = [vertex["id"] for vertex in ask(job)["vertices"]]
        browser.until("rates are shown", lambda: "/s" in browser.text(".graph") and "%" in browser.text(".graph"))
        assert len(vertices) == browser.run("return document.querySelectorAll('.graph [data-vertex]').length") == 2
        browser.screenshot("overview")

        # The numbers are REST's: what the page shows lies between two answers around it.
        browser.open(f"{page}/checkpoints")
        browser.until("counts are shown", lambda: browser.text("[data-count=completed]"))
        before = ask(f"{job}/checkpoints")["counts"]["completed"]
        browser.until("it has read on", lambda: int(browser.text("[data-count=completed]").replace(",", "")) >= before)
        shown = int(browser.text("[data-count=completed]").replace(",", ""))
        assert before <= shown <= ask(f"{job}/checkpoints")["counts"]["completed"]
        browser.until("plots", lambda: browser.run("return document.querySelectorAll('.plot path').length") == 3)
        browser.screenshot("checkpoints")

        # Every page of the job is drawn, on a large screen and on a small one.
        newest = ask(f"{job}/checkpoints")["latest"]["completed"]["id"]
        pages = {
            "history": (f"{page}/checkpoints/history", f"{newest}"),
            "summary": (f"{page}/checkpoints/summary", "median"),
            "configuration": (f"{page}/checkpoints/configuration", "exactly once"),
            "explain": (f"{page}/checkpoints/id/{newest}", "Slowest: subtask"),
            "accumulators": (f"{page}/accumulators", "seen"),
            "failures": (f"{page}/failures", "no failure so far"),
            "log": (f"{page}/log", "RUNNING"),
            "settings": (f"{page}/settings", "interval_s"),
            "subtasks": (f"{page}/vertex/{vertices[1]}", "RUNNING"),
            "metrics": (f"{page}/vertex/{vertices[1]}/metrics", "numRecordsIn"),
            "watermarks": (f"{page}/vertex/{vertices[1]}/watermarks", "no watermark has come"),
            "counters": (f"{page}/vertex/{vertices[1]}/accumulators", "seen"),
            "backpressure": (f"{page}/vertex/{vertices[1]}/backpressure", "busy"),
        }
        for name, (url, expected) in pages.items():
            browser.open(url)
            browser.until(f"{name} shows {expected}", lambda expected=expected: expected in browser.text("#page"))
            browser.screenshot(name)
        browser.resize(390, 800)
        browser.open(page)
        browser.until("the phone shows it", lambda: "numbers" in browser.text("#page"))
        assert browser.run("return document.documentElement.scrollWidth <= window.innerWidth"), "nothing sticks out"
        browser.screenshot("phone")
        browser.resize(1300, 900)

        # It lives through a restart of the job.
        os.kill(pids_of(job, vertices[1])[0], signal.SIGKILL)
        browser.until("the next attempt", lambda: "attempt g1-a2" in browser.text("#top"))
        browser.until("it runs again", lambda: browser.text("#state") == "RUNNING")
        browser.open(f"{page}/failures")
        browser.until("the failure", lambda: "attempt g1-a1" in browser.text("#page"))
        browser.screenshot("after-a-failure")

        # The savepoint button asks first; what it makes restores below.
        browser.click("[data-act=savepoint]")
        browser.screenshot("savepoint-dialog")
        browser.click("dialog button[value='']")
        browser.until("the dialog is closed", lambda: not browser.run("return document.querySelector('dialog').open"))
        assert ask(f"{job}/checkpoints")["latest"]["savepoint"] is None
        browser.click("[data-act=savepoint]")
        browser.click("#confirm")
        savepoint = browser.until("the savepoint stands", lambda: browser.text("#location"))
        assert Path(savepoint.removeprefix("file://"), "_metadata.json").exists()
        assert ask(f"{job}/checkpoints")["latest"]["savepoint"]["external_path"].startswith(savepoint)
        browser.screenshot("savepoint")

        # Nothing came from elsewhere, and no script complained.
        assert browser.loaded_from() == {entry.url}
        assert [text for text in browser.complaints() if "favicon" not in text] == []

        # Stop by its button: the result is shown although the driver ends.
        browser.click("[data-act=stop]")
        browser.click("#confirm")
        browser.until("it has stopped", lambda: "stopped; savepoint" in browser.text("#toasts"))
        assert driver.end() == 0
        browser.until("the page says that the driver is gone", lambda: "does not answer" in browser.text("#trouble"))
        browser.screenshot("driver-gone")
    stopped_with = assert_exact(tmp_path, at_least=1000)

    # The button's savepoint restores, into another output.
    again = tmp_path / "again"
    again.mkdir()
    with Driver(again, "-D", "rest.port=0", "-D", f"execution.state-recovery.path={savepoint}") as driver:
        entry = driver.entry()
        driver.until("records come out", lambda: len(rows_in(again)) > 100)
        restored = ask(f"{entry.url}/jobs/{entry.id}/checkpoints")["latest"]["restored"]
        assert restored["external_path"].startswith(savepoint)
        first = {number for _, _, number in rows_in(again)}
    # It goes on where the savepoint was: not at the beginning, and not behind what came out before the stop.
    assert 0 < min(first) <= stopped_with + 16


@pytest.mark.timeout(300)
def test_dark_and_token(tmp_path: Path) -> None:
    import sys

    sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
    from rest_kit import lived, serving

    from tidegate.config import JobConfig

    with (
        serving(JobConfig(rest_port=0, rest_token="s3cret", storage="file:///data")) as rest,
        Browser(tmp_path, True) as browser,
    ):
        lived(rest.hands.view)
        browser.open(rest.server.url)
        assert "a token is needed" in browser.text("body")
        browser.open(f"{rest.server.url}/?token=s3cret")
        browser.until("the job is shown", lambda: browser.text("#state") == "RUNNING")
        assert "s3cret" not in browser.run("return location.href + document.documentElement.outerHTML")
        browser.until("rates", lambda: "busy" in browser.text(".graph"))
        browser.screenshot("dark")
        # What the job's own texts hold is text, whatever it looks like.
        from tidegate.coordinator.observing import JobLine

        rest.hands.view.log(
            JobLine(1.0, "ERROR", "x", "<img src=x onerror=\"document.title='owned'\"><script>1</script>")
        )
        browser.open(f"{rest.server.url}/#/{rest.job.id}/log")
        browser.until("the line is shown", lambda: "<img src=x" in browser.text("#page"))
        assert browser.run("return document.querySelectorAll('#page img, #page script').length") == 0
