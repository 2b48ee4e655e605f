"""The dashboard in a real Chromium, over a real job: its numbers are REST's, its buttons act, it lives through a restart."""

from __future__ import annotations

import json
import os
import re
import signal
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from operating.browser import chromium, screen
from operating.driver import Driver, assert_exact, rows_in

pytestmark = pytest.mark.faults


def ask(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return json.load(answer)


def pids_of(job: str, vertex: str) -> list[int]:
    return [int(s["endpoint"].rpartition(":")[2]) for s in ask(f"{job}/vertices/{vertex}")["subtasks"]]


@pytest.mark.timeout(600)
def test_the_dashboard_shows_a_job_and_acts_on_it(tmp_path: Path) -> None:
    again = tmp_path / "again"
    again.mkdir()
    with ExitStack() as second, Driver(tmp_path, "-D", "rest.port=0") as driver, chromium() as browser:
        entry = driver.entry()
        job = f"{entry.url}/jobs/{entry.id}"
        with screen(browser, entry.url, entry.id) as shown:
            page = shown.page

            # The address alone leads to the only job.
            page.goto(entry.url)
            page.wait_for_selector("h1 .badge.running")
            vertices = [vertex["id"] for vertex in ask(job)["vertices"]]
            shown.until("() => /[0-9]\\/s/.test(document.querySelector('.graph')?.innerText ?? '')")
            assert len(vertices) == page.locator(".graph [data-vertex]").count() == 2
            shown.keep("job-overview")

            # The numbers are REST's: what the page shows lies between two answers around it.
            shown.show("checkpoints")
            before = ask(f"{job}/checkpoints")["counts"]["completed"]
            completed = "Number(document.querySelector('[data-figure=Completed] .value').innerText.replaceAll(',', ''))"
            shown.until(f"before => {completed} >= before", before)
            assert before <= page.evaluate(completed) <= ask(f"{job}/checkpoints")["counts"]["completed"]
            shown.keep("job-checkpoints")

            # Every tab shows what the job does.
            tabs = {
                f"subtasks/{vertices[1]}": "Hottest keys of late",
                f"metrics/{vertices[1]}": "numRecordsIn",
                f"accumulators/{vertices[1]}": "seen",
                f"backpressure/{vertices[1]}": "OK",
                f"checkpoints/details/NEWEST/{vertices[1]}": "Hottest keys when it ended",
                "exceptions": "No failure so far",
                "log": "RUNNING",
                "timeline": "first start",
                "workers": "Count",
                "configuration": "spark.app.name",
            }
            for tab, expected in tabs.items():
                if "NEWEST" in tab:  # asked for now: the history of a quick job is short
                    tab = tab.replace("NEWEST", str(ask(f"{job}/checkpoints")["latest"]["completed"]["id"]))
                shown.show(tab)
                shown.until("text => document.getElementById('page').innerText.includes(text)", expected)
                shown.keep(f"job-{tab.partition('/')[0]}-{'one' if 'details' in tab else 'all'}")

            # It lives through a restart of the job.
            killed = pids_of(job, vertices[1])[0]
            os.kill(killed, signal.SIGKILL)
            shown.show("overview")
            shown.until("() => document.querySelector('.head').innerText.includes('attempt g1-a2')")
            page.wait_for_selector("h1 .badge.running")
            shown.show("exceptions")
            page.wait_for_selector("article.failure")
            assert "A worker was lost" in shown.text()
            assert "with Count -> files jsonl (uid 'counts'), subtask 0" in shown.text()
            assert re.search(
                rf"g1-a1\t0\t\S+:{killed}\trestarted at once\tcheckpoint \d+\t.* m?s\tabout [\d,]+", shown.text()
            )
            shown.keep("job-after-a-failure")

            # The savepoint button asks first; what it makes restores below.
            page.click("[data-action=Savepoint]")
            page.click("dialog button[type=button]")
            assert ask(f"{job}/checkpoints")["latest"]["savepoint"] is None
            page.click("[data-action=Savepoint]")
            page.click("[data-confirm=Savepoint]")
            savepoint = page.inner_text(".note.done p").removeprefix("Savepoint: ")
            assert Path(savepoint.removeprefix("file://"), "_metadata.json").exists()
            assert ask(f"{job}/checkpoints")["latest"]["savepoint"]["external_path"].startswith(savepoint)
            shown.assert_clean()

            # That savepoint restores, into another output. Its driver starts while the first one is stopped.
            resume = f"execution.state-recovery.path={savepoint}"
            restored = second.enter_context(Driver(again, "-D", "rest.port=0", "-D", resume))

            # Stop by its button: the result is shown although the driver ends.
            page.click("[data-action=Stop]")
            page.click("[data-confirm=Stop]")
            page.wait_for_selector("text=Stopped. Savepoint:")
            assert driver.end() == 0
            page.wait_for_selector("#silence:not([hidden])")
            shown.keep("job-driver-gone")
        stopped_with = assert_exact(tmp_path, at_least=1000)

        entry = restored.entry()
        restored.until("records come out", lambda: len(rows_in(again)) > 100)
        came_from = ask(f"{entry.url}/jobs/{entry.id}/checkpoints")["latest"]["restored"]
        assert came_from["external_path"].startswith(savepoint)
        first = {number for _, _, number in rows_in(again)}
    # It continues where the savepoint was: not at the beginning, and what had not come out before the stop comes out.
    assert 0 < min(first) <= stopped_with + 16
