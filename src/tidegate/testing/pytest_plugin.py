"""The fixture `harness`, for whoever has Tidegate installed and runs pytest. Loaded by pytest itself; costs nothing unused.

    def test_words_are_counted(harness):
        counting = harness(CountWords(), key_by=lambda word: word)
        assert counting.process("tide") == [("tide", 1)]

Harnesses that a test has made are closed at its end, whether or not it has passed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tidegate.testing.function_harness import FunctionHarness


@pytest.fixture
def harness() -> Iterator[Callable[..., FunctionHarness]]:
    """`tidegate.testing.harness`, closed at the end of the test."""
    from tidegate.testing.function_harness import harness as make

    with ExitStack() as made:

        def make_and_keep(function: Any, **options: Any) -> FunctionHarness:
            return made.enter_context(make(function, **options))

        yield make_and_keep
