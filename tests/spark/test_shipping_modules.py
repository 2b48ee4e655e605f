"""A job in several files: what lies beside the main program is found by the workers, whatever folder it is run from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

JOB = """
import tidegate as tg
from beside import double

env = tg.StreamEnvironment("in-two-files")
env.from_sequence(1, 3, uid="numbers").map(double, returns=int).collect(uid="doubled")
print("doubled:", sorted(env.execute().results("doubled")))
"""


def test_a_module_beside_the_main_program_is_found(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / "beside.py").write_text("def double(n):\n    return 2 * n\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    ran = subprocess.run(
        [sys.executable, str(tmp_path / "job.py")], cwd=elsewhere, capture_output=True, text=True, timeout=150
    )
    assert "doubled: [2, 4, 6]" in ran.stdout, ran.stderr
