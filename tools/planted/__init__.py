"""The faults that `make mutants` plants, a module for each room. A new module is found by itself."""

from __future__ import annotations

import importlib
import pkgutil

from planted.kinds import Change, Mutant

MUTANTS: tuple[Mutant, ...] = tuple(
    mutant
    for module in sorted(found.name for found in pkgutil.iter_modules(__path__))
    for mutant in getattr(importlib.import_module(f"planted.{module}"), "MUTANTS", ())
)

__all__ = ["MUTANTS", "Change", "Mutant"]
