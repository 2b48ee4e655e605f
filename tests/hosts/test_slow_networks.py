"""As test_cuts.py, where the workers' cables are slow and put packets out of order: the kernel need not know how (wire.py)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hosts.cuts import SLOW, WORKERS, Cell
from hosts.life import Lives, lives_in

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.cuts, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lives]:
    with lives_in(tmp_path_factory.mktemp("hosts"), wired=WORKERS) as begun:
        yield begun


@pytest.mark.parametrize("cell", SLOW, ids=str)
def test_cables_that_delay_and_reorder(lives: Lives, cell: Cell) -> None:
    lives.try_out(cell)
