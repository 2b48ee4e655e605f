"""A job on hosts of their own, whose network is cut: nothing is lost and nothing doubled, in Kafka and in files, as plain
clients see them.

What was seen stands in docs/faults-tried.md, which tools/faults_tried.py makes of what these tests note.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hosts.cuts import AT_ANY_MOMENT, DEAF, IN_A_STEP, LOSSY, Cell
from hosts.life import Lives, lives_in

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]
LONG = [pytest.mark.slow, pytest.mark.cuts]


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lives]:
    with lives_in(tmp_path_factory.mktemp("hosts")) as begun:
        yield begun


@pytest.mark.parametrize("cell", [pytest.param(cell, marks=LONG) for cell in [*AT_ANY_MOMENT, *DEAF]], ids=str)
def test_a_cut_at_any_moment(lives: Lives, cell: Cell) -> None:
    lives.try_out(cell)


#: In `make test`: the snapshot is stored, and nobody can be told.
QUICK = [Cell("driver and executors", "both", "2 s", "slot.before-ack")]


@pytest.mark.parametrize("cell", QUICK, ids=str)
def test_a_short_cut(lives: Lives, cell: Cell) -> None:
    lives.try_out(cell)


@pytest.mark.slow
@pytest.mark.cuts
@pytest.mark.parametrize("cell", [cell for cell in IN_A_STEP if cell not in QUICK], ids=str)
def test_a_cut_in_a_step_of_a_checkpoint(lives: Lives, cell: Cell) -> None:
    lives.try_out(cell)


@pytest.mark.parametrize("cell", [pytest.param(cell, marks=LONG) for cell in LOSSY], ids=str)
def test_a_network_that_loses_packets(lives: Lives, cell: Cell) -> None:
    lives.try_out(cell)
