"""The specification in spec/ and its runs (tools/prove.py) fit each other, and TLC can tell right from wrong."""

from __future__ import annotations

import re

import pytest

import fetch
import prove

HERE = (fetch.cache() / f"tlc-{fetch.EVERYTHING['tlc'].release}").exists()


@pytest.mark.parametrize("module", sorted(prove.INVARIANTS))
def test_each_fault_that_a_module_knows_is_planted_by_a_run(module: str) -> None:
    text = (prove.SPEC / f"{module}.tla").read_text()
    known = set(re.findall(r'Fault (?:=|#) "([^"]+)"', text))

    assert {fault for run, fault in prove.PLANTED if run.module == module} == known


@pytest.mark.parametrize("module", sorted(prove.INVARIANTS))
def test_each_invariant_that_a_run_checks_is_in_its_module(module: str) -> None:
    text = (prove.SPEC / f"{module}.tla").read_text()

    assert [name for name in prove.INVARIANTS[module] if f"\n{name} ==" not in text] == []


def test_every_model_of_the_job_has_at_least_two_crashes() -> None:
    assert {run.bounds["MaxCrashes"] for run in prove.HOLDS if run.module == "Snapshots"} == {"2"}
    assert prove.DRIVERS.bounds["NDrivers"] == "3"  # the first, and one for each crash


@pytest.mark.skipif(not HERE, reason="TLC is not fetched: python tools/fetch.py tlc")
def test_tlc_finds_nothing_in_the_protocol_and_a_record_committed_too_early_in_the_fault() -> None:
    one = {"NDrivers": "2", "MaxCheckpoints": "1", "MaxLost": "0"}
    small = prove.fewer(prove.DRIVERS, **one)
    planted = prove.Run("drivers", "Log", one, fault="committed before the log record")

    assert prove.check(small, workers=1).found == ""
    assert prove.check(planted, workers=1).found == "CommitsAfterTheLog"
