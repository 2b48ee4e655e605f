"""Which vertex holds a job back, told in a sentence."""

from __future__ import annotations

import pytest

from tidegate.coordinator.bottleneck import HotShare, VertexLoad, bottleneck
from tidegate.coordinator.rates import Load


def vertex(name: str, *busy_and_waiting: tuple[float, float], after: str = "", hot: str = "") -> VertexLoad:
    loads = {n: Load(busy, 1 - busy - waiting, waiting) for n, (busy, waiting) in enumerate(busy_and_waiting)}
    return VertexLoad(
        name.lower(), name, (after.lower(),) if after else (), loads, {0: HotShare(hot, 0.4)} if hot else {}
    )


def test_the_one_that_others_wait_for_is_named() -> None:
    verdict = bottleneck(
        [
            vertex("Clicks", (0.01, 0.99)),
            vertex("Parse", (0.08, 0.92), after="Clicks"),
            vertex("PerPage", (0.85, 0.0), after="Parse"),
            vertex("Files", (0.05, 0.0), after="PerPage"),
        ]
    )
    assert verdict.sentence == ("PerPage is the bottleneck: 85% busy, while Clicks (99%) and Parse (92%) wait for it.")
    assert (verdict.vertex, verdict.subtask, verdict.is_bottleneck) == ("perpage", None, True)
    assert "higher parallelism" in verdict.advice


def test_one_busy_subtask_among_idle_ones_is_named_with_its_hottest_key() -> None:
    verdict = bottleneck(
        [vertex("Clicks", (0.1, 0.8)), vertex("PerPage", (0.98, 0.0), (0.2, 0.0), after="Clicks", hot="'/home'")]
    )
    assert verdict.sentence == (
        "PerPage is the bottleneck: 98% busy, while Clicks (80%) waits for it. It is its subtask 0: the others are 20% busy on "
        "average. The key '/home' has about 40% of the records."
    )
    assert (verdict.vertex, verdict.subtask) == ("perpage", 0)
    assert "More subtasks do not help" in verdict.advice


def test_of_two_that_are_waited_for_the_busier_is_it() -> None:
    slow = bottleneck([vertex("A", (0.1, 0.9)), vertex("B", (0.5, 0.0), after="A"), vertex("C", (0.7, 0.0), after="A")])
    assert slow.vertex == "c"


def test_a_busy_one_that_waits_now_and_then_is_not_held_back_by_an_idle_one() -> None:
    parse, price = vertex("Parse", (0.12, 0.52)), vertex("Price", (0.71, 0.13), after="Parse")
    verdict = bottleneck([parse, price, vertex("Sums", (0.02, 0.0), after="Price")])
    assert verdict.sentence == "Price is the bottleneck: 71% busy, while Parse (52%) waits for it."

    verdict = bottleneck([vertex("Parse", (0.8, 0.15)), vertex("Sums", (0.02, 0.0), after="Parse")])
    assert verdict.sentence == "Nothing holds the job back. The busiest is Parse, 80% busy."

    verdict = bottleneck([vertex("Parse", (0.1, 0.15)), vertex("Sums", (0.02, 0.0), after="Parse")])
    assert verdict.sentence == "Parse waits 15% of its time, and nothing after it is busy."
    assert not verdict.is_bottleneck


def test_many_that_wait_are_counted() -> None:
    waiting = [vertex(f"W{n}", (0.1, 0.9)) for n in range(4)]
    last = VertexLoad("last", "Last", tuple(w.id for w in waiting), {0: Load(0.9, 0.1, 0.0)}, {})
    assert bottleneck([*waiting, last]).sentence == (
        "Last is the bottleneck: 90% busy, while W0 (90%) and W1 (90%) and 2 more wait for it."
    )


@pytest.mark.parametrize(
    ("vertices", "sentence", "vertex_id"),
    [
        ([], "Where the time goes is known after two heartbeats.", None),
        ([vertex("A")], "Where the time goes is known after two heartbeats.", None),
        (
            [vertex("A", (0.2, 0.0)), vertex("B", (0.4, 0.05), after="A")],
            "Nothing holds the job back. The busiest is B, 40% busy.",
            "b",
        ),
        (
            [vertex("A", (0.97, 0.0)), vertex("B", (0.4, 0.0), after="A")],
            "A sets the pace: 97% busy, and all after it keeps up.",
            "a",
        ),
        (
            [vertex("A", (0.2, 0.0)), vertex("B", (0.95, 0.0), after="A")],
            "B is at its limit: 95% busy, but nothing waits for it yet.",
            "b",
        ),
        (
            [vertex("A", (0.1, 0.6))],
            "A waits 60% of its time, and nothing after it is busy.",
            "a",
        ),
    ],
)
def test_where_nothing_waits_for_another_that_is_said(
    vertices: list[VertexLoad], sentence: str, vertex_id: str | None
) -> None:
    verdict = bottleneck(vertices)
    assert (verdict.sentence, verdict.vertex, verdict.is_bottleneck) == (sentence, vertex_id, False)
