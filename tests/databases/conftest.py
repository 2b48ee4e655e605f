"""What tests of databases in one process need."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture
def the_dead_leave_connections_behind() -> Iterator[None]:
    """A process that dies in one process is an object that is dropped with its connection open; its driver complains."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()
