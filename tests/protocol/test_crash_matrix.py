"""The crash matrix passes sinks that keep the contract, and tells what is wrong with those that do not."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import tidegate as tg
from tidegate.testing import SINK_STEPS, CrashReport, LedgerSink, crash_matrix, forget_ledgers, ledger
from tidegate.testing.crash_points import ALL_POINTS
from tidegate.testing.crash_steps import StepCrash


@pytest.fixture(autouse=True)
def _no_ledgers() -> None:
    forget_ledgers()


def test_a_sink_that_keeps_the_contract_passes_every_case(seed: int) -> None:
    report = crash_matrix(LedgerSink, lambda place: ledger(place).rows(), seed=seed)

    report.check()
    names = [result.case.name for result in report.results]
    assert names[0] == "early"
    assert {f"{moment} {step}" for step in SINK_STEPS for moment in ("before", "after")} <= set(names)
    assert set(ALL_POINTS) <= set(names)
    once = {"driver.after-finished", "before close", "after close"}
    assert {result.case.name for result in report.results[1:] if result.crashes != 2} == once


def test_the_file_sink_survives_processes_that_are_killed(tmp_path: Path) -> None:
    def read(place: str) -> list[Any]:
        files = sorted((tmp_path / place).glob("part-*"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    report = crash_matrix(lambda place: tg.FileSink(tmp_path / place), read, kill=True, epochs=3)

    report.check()
    assert {result.case.name for result in report.results[1:] if result.crashes != 2} == {"before close", "after close"}


# -- sinks with a fault each ------------------------------------------------------------------------------------------


class Lines(tg.Sink):
    """Rows staged in one file each epoch, appended to one file by the commit. `fault` names what is wrong with it."""

    guarantee = "exactly-once"

    def __init__(self, folder: Path, fault: str) -> None:
        self.folder, self.fault = str(folder), fault

    def writer(self, context: tg.WriterContext) -> tg.SinkWriter:
        os.makedirs(self.folder, exist_ok=True)
        return LinesWriter(self.folder, self.fault, context)

    def committer(self, context: tg.WriterContext) -> tg.Committer:
        return LinesCommitter(self.folder, self.fault)


class LinesWriter(tg.SinkWriter):
    def __init__(self, folder: str, fault: str, context: tg.WriterContext) -> None:
        self.folder, self.fault, self.context = folder, fault, context
        self.rows: list[Any] = []

    def write(self, batch: Any) -> None:
        self.rows += batch.rows()

    def prepare(self, checkpoint: int) -> list[bytes]:
        rows, self.rows = self.rows, []
        name = f"{checkpoint}-{self.context.subtask}-{self.context.attempt}"
        if self.fault == "visible at prepare":
            append(self.folder, rows)
            return []
        if self.fault == "staged in memory":
            _in_memory[name] = rows
        return [json.dumps([name, [] if self.fault == "staged in memory" else rows]).encode()] if rows else []


class LinesCommitter(tg.Committer):
    def __init__(self, folder: str, fault: str) -> None:
        self.folder, self.fault = folder, fault

    def commit(self, committables: list[bytes]) -> list[tg.CommitOutcome]:
        for committable in committables:
            name, rows = json.loads(committable)
            done = f"{self.folder}/done-{name}"
            if self.fault != "commits again" and os.path.exists(done):
                continue
            append(self.folder, _in_memory.pop(name, rows))
            open(done, "w").close()
        return [tg.CommitOutcome.DONE] * len(committables)


_in_memory: dict[str, list[Any]] = {}


def append(folder: str, rows: list[Any]) -> None:
    with open(f"{folder}/lines", "a") as file:
        file.writelines(f"{row}\n" for row in rows)


def read_lines(folder: Path) -> list[int]:
    file = folder / "lines"
    return [int(line) for line in file.read_text().splitlines()] if file.exists() else []


def report_of(tmp_path: Path, fault: str, **options: Any) -> CrashReport:
    return crash_matrix(
        lambda place: Lines(tmp_path / place, fault), lambda place: read_lines(tmp_path / place), **options
    )


def broken(report: CrashReport) -> dict[str, list[str]]:
    return {result.case.name: found for result in report.results if (found := result.faults(report.exact))}


@pytest.mark.parametrize(
    ("fault", "case", "kill", "word"),
    [
        ("visible at prepare", "early", False, "too early"),
        ("visible at prepare", "after prepare", False, "doubled"),
        ("commits again", "after commit", False, "doubled"),
        ("commits again", "after commit", True, "doubled"),
        ("staged in memory", "before commit", True, "missing"),
    ],
)
def test_a_fault_of_a_sink_is_found(tmp_path: Path, fault: str, case: str, kill: bool, word: str) -> None:
    report = report_of(tmp_path, fault, kill=kill, only=lambda found: found.name == case)

    assert word in broken(report)[case][0]
    with pytest.raises(AssertionError, match=f"(?s)cases failed.*{case}.*{word}"):
        report.check()


def test_an_at_least_once_sink_may_repeat_but_not_lose(tmp_path: Path) -> None:
    class Repeating(Lines):
        guarantee = "at-least-once"

    def report(fault: str, case: str, kill: bool) -> CrashReport:
        return crash_matrix(
            lambda place: Repeating(tmp_path / fault / place, fault),
            lambda place: read_lines(tmp_path / fault / place),
            only=lambda found: found.name == case,
            kill=kill,
        )

    repeated = report("commits again", "after commit", kill=False)
    repeated.check()
    assert repeated.results[-1].doubled
    assert "missing" in broken(report("staged in memory", "before commit", kill=True))["before commit"][0]


def test_a_case_that_the_job_never_comes_to_is_no_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StepCrash, "nth", property(lambda self: 10_000))

    report = report_of(tmp_path, "", only=lambda case: case.name == "before prepare")

    assert "never came there" in broken(report)["before prepare"][0]
