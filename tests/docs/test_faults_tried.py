"""The page of faults that were tried is what was noted of them, and nothing else."""

from __future__ import annotations

import json

import faults_tried  # tools/ is on the path of the tests


def test_the_page_is_made_of_the_notes() -> None:
    assert faults_tried.PAGE.read_text() == faults_tried.page(), "run tools/faults_tried.py"


def test_each_note_is_of_a_cell_that_the_tests_can_try_again() -> None:
    from hosts.cuts import CELLS

    known = {cell.id for cell in CELLS}
    noted = {json.loads(file.read_text())["id"] for file in faults_tried.TRIED.glob("*.json")}
    assert noted
    assert noted <= known
