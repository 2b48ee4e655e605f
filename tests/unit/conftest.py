"""What suites share: those about state run each of their tests on every backend; those about benchmarks load them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmark_kit import Benchmarks, last_json, loading
from state_backends import EVERY_BACKEND, Backends, backends_of


@pytest.fixture(params=EVERY_BACKEND)
def backends(request: pytest.FixtureRequest) -> Iterator[Backends]:
    """Overridden by suites about one backend."""
    with backends_of(request.param) as made:
        yield made


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Benchmarks]:
    """Imports one by its name; its folders are the test's."""
    yield from loading(monkeypatch, tmp_path)


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[[], dict[str, Any]]:
    """The JSON that a benchmark ends with."""
    return lambda: last_json(capsys)
