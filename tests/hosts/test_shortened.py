"""As test_cuts.py, with a setting in place of its default that makes a long cut between executors shorter."""

from __future__ import annotations

from pathlib import Path

import pytest

from hosts.cuts import SETTINGS, SHORTENED, Cell
from hosts.life import lives_in

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.cuts, pytest.mark.timeout(600)]


@pytest.mark.parametrize("cell", SHORTENED, ids=str)
def test_a_setting_that_shortens_a_long_cut(tmp_path: Path, cell: Cell) -> None:
    for name, _ in SETTINGS[cell.settings].sysctl:
        if not Path("/proc/sys", name.replace(".", "/")).exists():
            pytest.skip(f"this kernel does not know {name}")
    with lives_in(tmp_path, settings=cell.settings) as lives:
        lives.try_out(cell)
