"""The dashboard in a real Chromium, over a job whose events the test writes: what it shows, what its buttons do."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from rest_kit import Rest, lived, serving

from operating.browser import Screen, chromium, screen
from tidegate.config import JobConfig
from tidegate.coordinator.observing import AttemptFailed, AttemptStarted, JobLine, JobStatus, SlotSampled, StatusChanged
from tidegate.errors import SavepointFailed
from tidegate.ids import AttemptId, SlotId
from tidegate.rest import registry
from tidegate.rest.pages import POLICY, assets
from tidegate.wire.control import CodeLine, Sampled, SampledStack

TABS = [
    "overview", "subtasks", "metrics", "watermarks", "accumulators", "backpressure", "flamegraph", "checkpoints",
    "checkpoints/history", "checkpoints/summary", "checkpoints/configuration", "checkpoints/details/4",
    "checkpoints/details/3", "exceptions", "timeline", "workers", "log", "configuration",
]  # fmt: skip
HOSTILE = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(autouse=True)
def own_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_REGISTRY", str(tmp_path / "registry"))


@pytest.fixture
def rest() -> Iterator[Rest]:
    with serving() as rest:
        lived(rest.hands.view)
        rest.hands.may_answer.set()
        yield rest


@pytest.fixture
def shown(rest: Rest, browser: Browser) -> Iterator[Screen]:
    with screen(browser, rest.server.url, rest.job.id) as shown:
        yield shown


# -- the files ----------------------------------------------------------------------------------------------------------


def test_every_file_is_our_own_small_and_names_no_other_host() -> None:
    found = assets()
    assert {"index.html", "main.js", "style.css"} <= set(found)
    assert sum(len(data) for data, _, _ in found.values()) < 120_000
    for name, (data, _, _) in found.items():
        hosts = re.findall(r"https?://[^\"' )]+", data.decode())
        assert set(hosts) <= {"http://www.w3.org/2000/svg"}, name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", data.decode()), name


def test_the_page_comes_with_a_strict_policy_and_is_not_sent_twice(rest: Rest) -> None:
    import urllib.error
    import urllib.request

    with urllib.request.urlopen(f"{rest.server.url}/", timeout=60) as answer:
        assert answer.headers["Content-Security-Policy"] == POLICY
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        tag = answer.headers["ETag"]
    with pytest.raises(urllib.error.HTTPError) as unchanged:
        urllib.request.urlopen(
            urllib.request.Request(f"{rest.server.url}/", headers={"If-None-Match": tag}), timeout=60
        )
    assert unchanged.value.code == 304
    unchanged.value.close()
    assert rest.text("GET", "/favicon.ico")[0] == 200, "browsers ask for it where the answer is not a page"
    assert rest.text("GET", "/dashboard/nothing.js")[0] == 404
    assert rest.text("GET", "/dashboard/..%2fpages.py")[0] == 404


# -- the screens --------------------------------------------------------------------------------------------------------


WIDE, NARROW = 1280, 390
QUICK = {("running", False, WIDE), ("restarting", True, NARROW), ("ended", True, WIDE)}
LOOKS = [
    pytest.param(*look, marks=() if look in QUICK else pytest.mark.slow)
    for look in product(("running", "restarting", "ended"), (False, True), (WIDE, NARROW))
]


def live_on(rest: Rest, how: str) -> None:
    """From where `lived` has ended: three equal failures and a long pause, or the end."""
    view = rest.hands.view
    if how == "restarting":
        for number in (2, 3, 4):
            view.publish(raised(number, at=time.time() - 60 / number, restart_in_s=50.0))
            view.publish(StatusChanged(JobStatus.RESTARTING, "in 50.0 s: ValueError: bad", time.time()))
            if number < 4:
                view.publish(AttemptStarted(AttemptId(1, number + 1), 4, time.time() - 50 / number))
    elif how == "ended":
        view.publish(StatusChanged(JobStatus.FINISHED, "", time.time()))


def raised(number: int, at: float, restart_in_s: float | None) -> AttemptFailed:
    error = "ValueError: bad\n  in map (uid 'numbers~map double'), subtask 1, at job.py:7"
    place = ("map", "numbers~map double", 1, "job.py:7", "Traceback")
    return AttemptFailed(AttemptId(1, number), error, restart_in_s, at, "UserCodeFailed", *place)


@pytest.mark.parametrize(("how", "dark", "width"), LOOKS)
def test_every_tab_loads_asks_nobody_else_and_fits(
    rest: Rest, browser: Browser, how: str, dark: bool, width: int
) -> None:
    live_on(rest, how)
    with screen(browser, rest.server.url, rest.job.id, dark=dark, width=width) as shown:
        for tab in [*TABS, f"subtasks/{rest.vertex(1)}"]:
            page = shown.show(tab)
            assert not page.is_visible("#silence"), page.inner_text("#silence")
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (
                f"{tab} is wider than the screen"
            )
            assert page.evaluate("[...document.querySelectorAll('svg .tick')].every(tick => tick.getBBox().x >= 0)"), (
                f"{tab}: the axis of a plot is cut off"
            )
            if width == WIDE:
                assert page.evaluate("(nav => nav.scrollWidth <= nav.clientWidth)(document.querySelector('nav.tabs'))")
            name = tab.replace("/", "-").replace(rest.vertex(1), "keyed")
            shown.keep(f"{how}-{'dark' if dark else 'light'}-{width}-{name}")
        shown.assert_clean()


def test_a_restart_is_shown_where_it_is_and_counts_down(rest: Rest, shown: Screen) -> None:
    live_on(rest, "restarting")
    page = shown.show("overview")
    failed, other = page.locator(".box.failed"), page.locator(".box.still")
    assert failed.get_attribute("data-vertex") == rest.vertex(0)
    assert (
        failed.locator(".operator", has_text="failed here").all_inner_texts()[0].startswith("failed here\nmap double")
    )
    assert other.get_attribute("data-vertex") == rest.vertex(1)
    left = "Number(/Restarts in (\\d+) s/.exec(document.querySelector('.trouble').innerText)[1])"
    first = page.evaluate(left)
    assert 0 < first <= 50
    shown.until(f"first => {left} < first", first)
    assert "ValueError: bad in map - subtask 1, 4 times so far" in page.inner_text(".trouble")

    shown.show("exceptions")
    assert "Your function failed ×4" in shown.text()
    assert page.locator("article.failure").count() == 1
    assert "node:101" in shown.text()
    shown.show("timeline")
    assert page.locator(".timeline tbody tr").count() == 4


def test_a_worker_shows_its_memory_and_cpu(rest: Rest, shown: Screen) -> None:
    row = shown.show("workers").locator("tbody tr").first.locator("td").all_inner_texts()
    assert row[:2] == ["node:100", "Source: sequence -> map double #0"]
    assert row[3] == "95.4 MB"
    assert float(row[4]) > 0


def test_a_job_that_does_not_run_is_not_said_to_be_sampled(rest: Rest, shown: Screen) -> None:
    live_on(rest, "restarting")
    shown.show("flamegraph")
    assert "The job is not running at the moment: there is nothing to sample." in shown.text()


def test_the_overview_begins_with_the_past_and_names_what_holds_the_job_back(rest: Rest, shown: Screen) -> None:
    page = shown.show("overview")
    assert page.inner_text(".verdict").startswith(rest.get("/jobs/{job}/operators")["bottleneck"]["sentence"])
    assert page.locator("svg[aria-label='Newest checkpoint took'] .line").get_attribute("d") != ""
    assert page.locator("svg[aria-label='Records from sources'] .mark").count() == 0, "the failure was long ago"


def test_the_log_is_searched_filtered_and_paused(rest: Rest, shown: Screen) -> None:
    view = rest.hands.view
    view.log(JobLine(time.time(), "WARNING", "mine", "a bad line", "g1-a2", "1.0", "sum 1", "sums", 0))
    page = shown.show("log")
    rows = page.locator(".log tbody tr")
    everything = rows.count()
    page.fill("input[type=search]", "BAD line")
    shown.until("() => document.querySelectorAll('.log tbody tr').length === 1")
    page.fill("input[type=search]", "")
    shown.until("n => document.querySelectorAll('.log tbody tr').length === n", everything)
    shown.show("log/ERROR")
    assert set(page.locator(".log tbody tr td:nth-child(2)").all_inner_texts()) == {"ERROR"}
    shown.show("log/DEBUG")
    page.click("text=Pause")
    page.wait_for_selector("text=Follow")
    view.log(JobLine(time.time(), "INFO", "mine", "came while paused"))
    page.click("text=Follow")
    page.wait_for_selector("text=came while paused")
    with page.expect_download() as saved:
        page.click("text=Download")
    assert "a bad line" in saved.value.path().read_text()


def test_metrics_are_searched_and_several_are_plotted_by_subtask(rest: Rest, shown: Screen) -> None:
    page = shown.show(f"metrics/{rest.vertex(1)}")
    page.fill("input[type=search]", "currentInput")
    page.click("text=currentInputWatermark")
    page.wait_for_selector("svg[aria-label=currentInputWatermark]")
    assert page.locator("figure.plot").count() == 3
    assert page.locator("svg[aria-label=currentInputWatermark] .line").count() == 2
    assert "1970-01-01 00:00:04" in shown.text(), "a time, not a number"


def test_the_flame_graph_waits_for_samples_marks_the_users_lines_and_ends_with_the_job(
    rest: Rest, shown: Screen
) -> None:
    page = shown.show(f"flamegraph/{rest.vertex(1)}")
    assert "Samples are being taken" in shown.text()
    main = CodeLine("main", "/lib/pyspark/worker.py", 3, "spark")
    ours = CodeLine("Slot.turn", "/lib/tidegate/task/slot.py", 12, "tidegate")
    users = CodeLine("parse", "/home/me/job.py", 12, "user")
    slow = CodeLine("Row.cells", "/home/me/rows.py", 7, "user")
    library = CodeLine("loads", "/lib/json/__init__.py", 346, "library")
    stacks = [([0, 1, 2], 1), ([0, 1, 2, 3, 4], 3), ([0, 1, 2, 3], 2), ([0, 1], 2)]
    seen = [SampledStack("sums", numbers, samples, samples) for numbers, samples in stacks]
    rest.hands.view.publish(SlotSampled(SlotId(1, 1), Sampled([main, ours, users, slow, library], seen)))
    page.wait_for_selector(".flame .mine")
    names = page.locator(".flame > span").all_inner_texts()
    assert names == ["[tidegate] Slot.turn (task/slot.py:12)", "parse (me/job.py:12)", "Row.cells (me/rows.py:7)",
                     "[library] loads (json/__init__.py:346)"]  # fmt: skip
    assert "Left out: 1 outer call that all samples share." in shown.text()
    lines = [row.split("\t") for row in page.locator("#page .card table tbody tr").all_inner_texts()]
    assert lines == [["62.5%", "/home/me/rows.py:7", "Row.cells"], ["12.5%", "/home/me/job.py:12", "parse"]]
    shown.keep("flame-graph")
    rest.hands.view.publish(StatusChanged(JobStatus.FINISHED, None, 1020.0))
    page.wait_for_selector("text=The job has ended: there is nothing to sample.")


def test_on_a_phone_the_buttons_are_small_and_only_cancel_is_red(rest: Rest, browser: Browser) -> None:
    with screen(browser, rest.server.url, rest.job.id, width=NARROW) as shown:
        page = shown.show("overview")
        buttons = page.locator(".head .buttons button")
        assert page.locator(".head button.danger").all_inner_texts() == ["Cancel"]
        sizes = [box["width"] * box["height"] for n in range(buttons.count()) if (box := buttons.nth(n).bounding_box())]
        assert sizes[-1] == min(sizes[-1], max(sizes[:-1])), "Cancel is not the largest"
        content = page.locator(".figures").bounding_box()
        assert content is not None
        page = shown.show(f"subtasks/{rest.vertex(1)}")
        assert page.locator(".graph").count() == 0
        first = page.locator(".card").first.bounding_box()
        assert first is not None
        assert first["y"] < 300


@pytest.mark.parametrize(
    ("tab", "cell"),
    [
        ("configuration", ".stacked tbody tr:first-child td:nth-child(2)"),
        ("log", ".log td.message"),
        ("exceptions", ".failure td:nth-child(6)"),
        ("timeline", ".timeline tbody tr:last-child td:last-child"),
        ("overview", ".card:last-child tbody tr:first-child td:nth-child(8)"),
        ("subtasks", "tbody tr:first-child td:nth-child(10)"),
        ("metrics", ".pairs tbody tr:first-child td:last-child"),
        ("backpressure", "tbody tr:first-child td:last-child"),
        ("watermarks", "tbody tr:first-child td:last-child"),
        ("checkpoints/history", "tbody tr:first-child td:last-child"),
        ("checkpoints/summary", "tbody tr:first-child td:last-child"),
        ("checkpoints/details/4", ".named tbody tr:last-child td:nth-last-child(2)"),
        ("workers", "tbody tr:first-child td:last-child"),
    ],
)
def test_on_a_phone_what_matters_is_seen_without_scrolling_to_the_side(
    rest: Rest, browser: Browser, tab: str, cell: str
) -> None:
    with screen(browser, rest.server.url, rest.job.id, width=NARROW) as shown:
        box = shown.show(tab).locator(cell).first.bounding_box()
        assert box is not None
        assert box["width"] > 0
        assert 0 <= box["x"] <= box["x"] + box["width"] <= NARROW


def test_other_drivers_of_the_user_are_listed(rest: Rest, shown: Screen) -> None:
    other = registry.Entry(
        "0" * 32, "elsewhere", "http://localhost:9999", os.getpid(), socket.gethostname(), 1.0, "t0ken"
    )
    assert registry.add(other)
    page = shown.page
    page.goto(f"{rest.server.url}/#/")
    page.wait_for_selector("text=Other drivers of yours")
    assert page.get_attribute("a.card.job >> nth=1", "href") == "http://localhost:9999"
    assert "t0ken" not in page.content()


def test_numbers_agree_with_rest(rest: Rest, shown: Screen) -> None:
    shown.show("checkpoints")
    counts = rest.get("/jobs/{job}/checkpoints")["counts"]
    for name, key in (
        ("Triggered", "total"),
        ("Completed", "completed"),
        ("Failed", "failed"),
        ("Restored", "restored"),
    ):
        assert f"{name}\n{counts[key]}" in shown.text()

    shown.show("overview")
    table = shown.page.locator("table", has=shown.page.locator("th", has_text="Works"))
    headings = table.locator("th").all_text_contents()
    for operator in rest.get("/jobs/{job}/operators")["operators"]:
        name = re.compile(f"^{re.escape(operator['name'])}$")
        row = shown.page.locator("tbody tr", has=shown.page.locator("a", has_text=name))
        cells = dict(zip(headings, row.locator("td").all_inner_texts(), strict=True))
        assert (cells["In"], cells["Out"]) == (str(operator["recordsIn"]), str(operator["recordsOut"]))
        assert cells["Works"] == (
            "" if not operator["form"] else "columns" if operator["form"]["byColumns"] else "records"
        )
        if operator["isHead"]:  # the others share its time
            assert cells["Busy"] == f"{operator['busy']:.0%}"
            assert cells["Back-pressured"] == f"{operator['backPressured']:.0%}"

    shown.show(f"accumulators/{rest.vertex(0)}")
    (odd,) = rest.get("/jobs/{job}/accumulators")["user-task-accumulators"]
    assert f"{odd['name']}\t{odd['type']}\t{odd['value']}" in shown.text()


def test_a_checkpoint_is_explained(rest: Rest, shown: Screen) -> None:
    shown.show(f"checkpoints/details/4/{rest.vertex(1)}")
    story = rest.get("/jobs/{job}/checkpoints/details/4/explain")
    assert f"{story['slowest']['vertex']}, subtask {story['slowest']['subtask']}, after 400 ms" in shown.text()
    assert "Largest states" in shown.text()
    (hot,) = story["hottestKeys"]
    assert f"{hot['key']}\t{hot['uid']}\t{hot['subtask']}\t25.0%" in shown.text()
    shown.show(f"subtasks/{rest.vertex(1)}")
    assert "key-0\tsums\t0\t12.5%" in shown.text()
    shown.show("checkpoints/details/3")
    assert "Not acknowledged:" in shown.text()


def test_plots_have_a_bar_for_each_checkpoint(rest: Rest, shown: Screen) -> None:
    shown.show("checkpoints")
    history = rest.get("/jobs/{job}/checkpoint-history")["checkpoints"]
    assert [c["id"] for c in history] == [1, 2, 3, 4]
    assert history[1] | {"trigger": 0} == {
        "id": 2, "status": "COMPLETED", "trigger": 0, "duration": 650, "size": 3400, "added": 400, "alignment": 20,
        "buffered": 600, "persisted": 0,
    }  # fmt: skip
    assert shown.page.locator("svg[aria-label=Duration] .bar").count() == 4
    assert shown.page.locator("svg[aria-label=Duration] .bar.failed").count() == 1
    shown.page.locator("svg[aria-label=Duration] .target").nth(1).click()
    shown.page.wait_for_url("**/checkpoints/details/2")


def test_what_a_job_says_is_never_read_as_html(rest: Rest, shown: Screen) -> None:
    view = rest.hands.view
    first = rest.hands.plan.layers[0].chains[0].operators[0]
    object.__setattr__(first.operator, "name", HOSTILE)
    rest.job.name = HOSTILE
    error = AttemptFailed(AttemptId(1, 2), HOSTILE, None, 1020.0, HOSTILE, HOSTILE, HOSTILE, 0, HOSTILE, HOSTILE)
    view.publish(error)
    view.publish(StatusChanged(JobStatus.FAILED, HOSTILE, 1020.0))
    for tab in TABS:
        page = shown.show(tab)
        assert page.title() != "taken"
        assert page.locator("#page img, #page script, #crumbs img").count() == 0
        assert HOSTILE in shown.text()
    shown.assert_clean()


def test_the_user_sees_the_cause_and_the_own_line(rest: Rest, shown: Screen) -> None:
    shown.show("exceptions")
    assert shown.page.inner_text(".user-line") == "job.py:7"
    assert "ValueError: bad" in shown.page.inner_text(".cause")
    assert "restarted after 1 s\tcheckpoint 2\t2 s" in shown.text()


def test_a_restart_is_followed_without_a_reload(rest: Rest, shown: Screen) -> None:
    shown.show("overview")
    rest.hands.view.publish(StatusChanged(JobStatus.RESTARTING, "with parallelism 3", 1030.0))
    shown.page.wait_for_selector(".badge.restarting")
    rest.hands.view.publish(StatusChanged(JobStatus.RUNNING, "", 1035.0))
    shown.page.wait_for_selector(".badge.running")
    shown.assert_clean()


def test_a_driver_that_does_not_answer_is_said_and_the_last_numbers_stay(rest: Rest, shown: Screen) -> None:
    shown.show("overview")
    shown.page.route("**/jobs/**", lambda route: route.abort())
    shown.page.wait_for_selector("#silence:not([hidden])")
    assert "has not answered since" in shown.page.inner_text("#silence")
    assert shown.page.locator(".box").count() == 2
    shown.page.unroute("**/jobs/**")
    shown.page.wait_for_selector("#silence", state="hidden")


# -- the buttons --------------------------------------------------------------------------------------------------------


def test_buttons_ask_first_and_then_act(rest: Rest, shown: Screen) -> None:
    page = shown.show("overview")
    page.click("[data-action=Stop]")
    page.click("dialog button[type=button]")
    assert rest.hands.asked == []

    page.click("[data-action=Savepoint]")
    page.select_option("select[name=format]", "NATIVE")
    page.click("[data-confirm=Savepoint]")
    page.wait_for_selector(".note.done")
    assert "file:///data/savepoint-sums-9" in page.inner_text(".note.done")
    assert rest.hands.asked == [("savepoint", "file:///data/sums/savepoints", "native")]

    page.click("[data-action=Rescale]")
    page.fill("input[name=parallelism]", "3")
    page.click("[data-confirm=Rescale]")
    page.wait_for_selector("text=Runs with parallelism 3")
    page.click("[data-action=Stop]")
    page.check("input[name=drain]")
    shown.keep("dialog")
    page.click("[data-confirm=Stop]")
    page.wait_for_selector("text=Stopped. Savepoint:")
    page.click("[data-action=Cancel]")
    page.click("[data-confirm=Cancel]")
    page.wait_for_selector("text=is being cancelled")
    assert rest.hands.asked[1:] == [("rescale", 3), ("drain", "file:///data/sums/savepoints", "canonical")]
    assert rest.hands.canceled == 1
    shown.assert_clean()


def test_a_failure_of_a_button_is_shown(rest: Rest, shown: Screen) -> None:
    rest.hands.failure = SavepointFailed("the disk is full")
    page = shown.show("overview")
    page.click("[data-action=Savepoint]")
    page.click("[data-confirm=Savepoint]")
    page.wait_for_selector(".note.failed")
    assert "the disk is full" in page.inner_text(".note.failed")


def test_a_job_that_has_ended_has_no_buttons(rest: Rest, shown: Screen) -> None:
    rest.hands.view.publish(StatusChanged(JobStatus.FAILED, "no more restarts", 1040.0))
    page = shown.show("overview")
    assert page.inner_text(".badge >> nth=0") == "FAILED"
    assert page.locator(".head button").count() == 0
    shown.keep("failed")


def test_with_a_token_the_page_opens_once_it_was_given(browser: Browser) -> None:
    config = JobConfig(interval_s=10.0, storage="file:///data", rest_port=0, rest_token="s3cret")
    with serving(config) as rest, screen(browser, rest.server.url, rest.job.id) as shown:
        lived(rest.hands.view)
        refused = shown.page.goto(f"{rest.server.url}/")
        assert refused is not None
        assert refused.status == 401
        shown.page.goto(f"{rest.server.url}/?token=s3cret")
        shown.show("overview")
        assert "sums" in shown.text()
        assert "s3cret" not in shown.page.url
        # The browser tells of the first visit: the page, and perhaps its icon.
        assert [fault for fault in shown.faults if "401" not in fault] == []
        assert len(shown.faults) <= 2
