"""The faults of `make mutants` still fit the source: a change that moves their text away must bring them up to date."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]


def mutants() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tidegate_mutants", ROOT / "tools" / "mutants.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_every_text_to_replace_stands_once_in_its_file() -> None:
    gone = [
        f"{mutant.name}: {change.file}: {change.old!r}"
        for mutant in mutants().MUTANTS
        for change in mutant.changes
        if (ROOT / "src" / "tidegate" / change.file).read_text().count(change.old) != 1
    ]
    assert not gone


def test_no_two_faults_have_one_name() -> None:
    names = [mutant.name for mutant in mutants().MUTANTS]
    assert len(names) == len(set(names)) >= 10
