"""Gauges and histograms of the user's own: what they show, what they refuse, and that they reach REST and Prometheus."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from rest_kit import heartbeat, lived, serving

import tidegate as tg
from tidegate.functions.user_metrics import MAX_HISTOGRAMS, NEWEST, Histogram, UserMetrics
from tidegate.ids import SlotId
from tidegate.rest.metrics import users_numbers
from tidegate.testing import run_in_process
from tidegate.wire.control import OperatorMetrics


class Watched(tg.ProcessFunction[int, int]):
    def open(self, ctx: tg.Context) -> None:
        self.kept: list[int] = []
        ctx.gauge("kept", lambda: len(self.kept))
        self.sizes = ctx.histogram("size")
        ctx.get_metrics_group().counter("all").inc(ctx.get_number_of_parallel_subtasks())

    def process_element(self, value: int, ctx: tg.Context) -> Iterator[int]:
        self.sizes.update(value)
        if value % 2:
            self.kept.append(value)
        yield value


class WatchedMap(tg.MapFunction[int, int]):
    def open(self, ctx: tg.Context) -> None:
        self.seen = ctx.histogram("seen")

    def map(self, value: int) -> int:
        self.seen.update(value)
        return value


def test_gauges_and_histograms_of_all_subtasks_are_in_the_view_to_the_last_record() -> None:
    env = tg.StreamEnvironment("watched", parallelism=2)
    numbers = env.from_sequence(1, 1000, uid="numbers").rebalance().process(Watched(), uid="watched")
    numbers.map(WatchedMap(), uid="map").collect(uid="all")

    result = run_in_process(env)

    found = [m for beat in result.view.heartbeats.values() for m in beat.operators]
    watched = [m for m in found if m.uid == "watched"]
    assert [m.counters for m in watched] == [{"all": 2}, {"all": 2}]
    assert sum(m.gauges["kept"] for m in watched) == 500
    assert sum(m.histograms["size"]["count"] for m in watched) == 1000
    assert min(m.histograms["size"]["min"] for m in watched) == 1
    assert max(m.histograms["size"]["max"] for m in watched) == 1000
    assert sum(m.histograms["seen"]["count"] for m in found if m.uid == "map") == 1000


def test_a_histogram_tells_how_the_newest_numbers_are_spread_and_how_many_there_were() -> None:
    histogram = Histogram()
    assert histogram.spread() == {}
    for number in range(100_000):
        histogram.update(number % 1000)
    for number in range(NEWEST):
        histogram.update(number)

    spread = histogram.spread()

    assert spread["count"] == 100_000 + NEWEST
    assert (spread["min"], spread["max"], spread["mean"]) == (0, NEWEST - 1, (NEWEST - 1) / 2)
    assert spread["stddev"] == pytest.approx(math.sqrt((NEWEST**2 - 1) / 12))
    assert (spread["median"], spread["p75"], spread["p99"]) == (NEWEST * 0.5, NEWEST * 0.75, int(NEWEST * 0.99))


def test_numbers_that_cannot_be_shown_are_left_out() -> None:
    histogram = Histogram()
    for number in (math.nan, math.inf, 1.0, -math.inf, 3.0):
        histogram.update(number)
    huge = Histogram()
    huge.update(1.7e308)
    huge.update(1.6e308)

    assert histogram.spread()["count"] == 5
    assert (histogram.spread()["min"], histogram.spread()["max"]) == (1.0, 3.0)
    assert huge.spread()["max"] == 1.7e308
    assert all(math.isfinite(number) for number in huge.spread().values())
    with pytest.raises(TypeError):
        histogram.update("1")  # type: ignore[arg-type]


def test_a_gauge_that_fails_is_left_out_and_the_log_says_it_once(caplog: pytest.LogCaptureFixture) -> None:
    metrics = UserMetrics()
    metrics.gauge("good", lambda: 3)
    metrics.gauge("bad", lambda: 1 // 0)
    metrics.gauge("text", lambda: "many")  # type: ignore[arg-type,return-value]
    metrics.gauge("endless", lambda: math.inf)

    with caplog.at_level(logging.WARNING, "tidegate.task"):
        assert metrics.gauge_values() == metrics.gauge_values() == {"good": 3}
    assert len(caplog.messages) == 2
    assert caplog.messages[0].startswith("the gauge 'bad' is not shown: ZeroDivisionError")


def test_a_name_gives_the_same_histogram_and_the_newest_gauge() -> None:
    metrics = UserMetrics()
    metrics.gauge("size", lambda: 1)
    metrics.gauge("size", lambda: 2)

    assert metrics.histogram("a") is metrics.histogram("a")
    assert metrics.gauge_values() == {"size": 2}


def test_what_cannot_be_shown_is_refused_in_words() -> None:
    metrics = UserMetrics()
    metrics.counter("n")
    with pytest.raises(ValueError, match="the gauge 'n' cannot be: the operator has another metric of this name"):
        metrics.gauge("n", lambda: 1)
    with pytest.raises(ValueError, match="the histogram 'n' cannot be"):
        metrics.histogram("n")
    metrics.histogram("h")
    with pytest.raises(ValueError, match="the counter 'h' cannot be"):
        metrics.counter("h")
    with pytest.raises(ValueError, match="a gauge needs a name of 1 to 200 characters"):
        metrics.gauge("", lambda: 1)
    with pytest.raises(
        TypeError, match=r"needs a function that gives the number, not int: write ctx\.gauge\('g', lambda"
    ):
        metrics.gauge("g", 7)  # type: ignore[arg-type]
    for number in range(MAX_HISTOGRAMS - 1):
        metrics.histogram(str(number))
    with pytest.raises(ValueError, match="may have 100 histograms"):
        metrics.histogram("one more")


def test_they_are_metrics_by_flinks_names_and_in_prometheus_text() -> None:
    histogram = Histogram()
    for number in range(100):
        histogram.update(number)
    metrics = OperatorMetrics(
        "numbers~map double", 0, 5, 5, gauges={"kept": 2.5}, histograms={"size": histogram.spread()}
    )
    shown = users_numbers(metrics)
    assert (shown["kept"], shown["size_count"], shown["size_p95"]) == (2.5, 100, 95)

    with serving() as rest:
        lived(rest.hands.view)
        rest.hands.view.publish(heartbeat(SlotId(0, 0), 1, 1, 1, [metrics]))
        lines = rest.text("GET", "/metrics")[1].splitlines()
        name = "0.numbers~map double.size_p95"
        listed = rest.get(f"/jobs/{{job}}/vertices/{rest.vertex(0)}/metrics?get={quote(name)}")

    shown_as = {line.split("{")[0]: line.rpartition(" ")[2] for line in lines if "{" in line}
    assert shown_as["flink_taskmanager_job_task_operator_kept"] == "2.5"
    assert shown_as["flink_taskmanager_job_task_operator_size_p95"] == "95"
    assert listed == [{"id": name, "value": "95"}]
