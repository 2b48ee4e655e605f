"""What suites about state share: each of their tests runs on every backend."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from state_backends import EVERY_BACKEND, Backends, backends_of


@pytest.fixture(params=EVERY_BACKEND)
def backends(request: pytest.FixtureRequest) -> Iterator[Backends]:
    """Overridden by suites about one backend."""
    with backends_of(request.param) as made:
        yield made
