"""The specification in spec/ and its runs (tools/prove.py) fit each other, and TLC can tell right from wrong."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

import fetch
import prove

HERE = (fetch.cache() / f"tlc-{fetch.EVERYTHING['tlc'].release}").exists()


def text_of(module: str) -> str:
    """With that of the modules that it is made of."""
    return "".join((prove.SPEC / f"{name}.tla").read_text() for name in (module, *prove.EXTENDED.get(module, ())))


@pytest.mark.parametrize("module", sorted(prove.INVARIANTS))
def test_each_fault_that_a_module_knows_is_planted_by_a_run(module: str) -> None:
    known = set(re.findall(r'Fault (?:=|#) "([^"]+)"', text_of(module)))

    assert {fault for run, fault in prove.PLANTED if run.module == module} == known


@pytest.mark.parametrize("module", sorted(prove.INVARIANTS))
def test_each_invariant_that_a_run_checks_is_in_its_module(module: str) -> None:
    text = text_of(module)

    assert [name for name in prove.INVARIANTS[module] if f"\n{name} ==" not in text] == []


def test_every_model_of_the_job_has_at_least_two_crashes() -> None:
    assert {run.bounds["MaxCrashes"] for run in prove.HOLDS if run.module == "Snapshots"} == {"2"}
    assert prove.DRIVERS.bounds["NDrivers"] == "3"  # the first, and one for each crash


@pytest.mark.skipif(not HERE, reason="TLC is not fetched: python tools/fetch.py tlc")
def test_tlc_finds_nothing_in_the_protocol_and_a_record_committed_too_early_in_the_fault() -> None:
    small = prove.fewer(prove.DRIVERS, NDrivers="2", MaxCheckpoints="1", MaxLost="0")
    planted = replace(small, fault="committed before the log record")

    assert prove.check(small, workers=1).found == ""
    assert prove.check(planted, workers=1).found == "CommitsAfterTheLog"
