"""A program run as people run one: its own classes travel through a job on Spark without being declared."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark


def test_classes_of_the_main_program_need_no_declaration(tmp_path: Path) -> None:
    program = Path(__file__).with_name("main_classes.py")
    ran = subprocess.run([sys.executable, program, tmp_path], capture_output=True, text=True, timeout=150)

    assert "totals: 100 True" in ran.stdout, ran.stderr
    for said in (": dashboard and REST at http://", ": RUNNING", ": FINISHED"):
        assert said in ran.stderr, "a plain program is told what happens"
    assert "blue: 10 {('user-0', True)}" in ran.stdout, ran.stderr
