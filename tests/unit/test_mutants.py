"""The faults of `make mutants` still fit the source: a change that moves their text away must bring them up to date."""

from __future__ import annotations

from pathlib import Path

from planted import MUTANTS

ROOT = Path(__file__).parents[2]


def test_every_text_to_replace_stands_once_in_its_file() -> None:
    gone = [
        f"{mutant.name}: {change.file}: {change.old!r}"
        for mutant in MUTANTS
        for change in mutant.changes
        if (ROOT / "src" / "tidegate" / change.file).read_text().count(change.old) != 1
    ]
    assert not gone


def test_no_two_faults_have_one_name() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(names) == len(set(names)) >= 10


def test_the_tests_that_should_catch_a_fault_exist() -> None:
    named = {test.split("::")[0] for mutant in MUTANTS for test in mutant.tests}
    assert not [path for path in sorted(named) if not (ROOT / path).exists()]
