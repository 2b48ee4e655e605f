"""The benchmark of windows at a tiny size, in one process: every window is right, and plain Python's answer is one."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.testing import in_process


@pytest.mark.parametrize("kind", ["tumble", "hop", "session"])
def test_every_window_is_right(benchmarks: Any, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    module = benchmarks("windows")
    monkeypatch.setattr(module, "CHECKED", 1_000)
    with in_process():
        module.checked(None, kind, False)


def test_plain_python_finds_what_can_be_counted_by_hand(benchmarks: Any) -> None:
    module = benchmarks("windows")
    few = (module.CHECKED, module.CHECKED_KEYS, module.CHECKED_PER_S)
    records = {
        kind: sum(n * times for (_, _, n, _), times in module.expected(kind, *few).items()) for kind in module.ASSIGNERS
    }

    assert records == {"tumble": module.CHECKED, "hop": 60 * module.CHECKED, "session": module.CHECKED}
    sessions = module.expected("session", *few)
    assert any(n > 1 for _, _, n, _ in sessions)
    assert len(sessions) > 2 * module.CHECKED_KEYS


def test_a_wrong_window_is_said(benchmarks: Any) -> None:
    module = benchmarks("windows")
    with pytest.raises(
        module.compare.work.WrongAnswer, match=r"mine: too many \[\(\(1, 0, 2, 9\), 1\)\], missing \[\(\(1, 0, 2, 8\)"
    ):
        module.compare_with(module.Counter([(1, 0, 2, 8)]), module.Counter([(1, 0, 2, 9)]), "mine")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["tumble", "hop", "session"])
def test_flinks_windows_are_the_same(benchmarks: Any, kind: str) -> None:
    module = benchmarks("windows")
    try:
        module.compare.environments.python_of("apache-flink")
    except module.compare.environments.CannotBeHad as error:
        pytest.skip(str(error))
    with in_process():
        module.checked(None, kind, True)
