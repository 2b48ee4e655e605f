"""`tidegate check job.py --from PATH`: can the program start from it? It runs up to its execute(), and nothing else runs."""

from __future__ import annotations

import argparse
import contextlib
import os
import runpy
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.text import Text

from tidegate.cli.run import notices, say_error
from tidegate.cli.showing import show, show_json
from tidegate.cli.tables import table
from tidegate.coordinator.restore_check import Finding, Verdict, check_restore
from tidegate.errors import TidegateError
from tidegate.overrides import overriding, watched_by
from tidegate.savepoints.search import load_local
from tidegate.telling.failures import format_program_error

if TYPE_CHECKING:
    from tidegate.client import JobClient
    from tidegate.config import JobConfig
    from tidegate.graph.plan import JobPlan
    from tidegate.savepoints.reading import Savepoint

EXIT_DONE, EXIT_REFUSED, EXIT_WRONG = 0, 1, 2
_STYLES = {Verdict.REFUSED: "bold red", Verdict.DROPPED: "yellow", Verdict.CONVERTED: "yellow"}


class _Checked(BaseException):
    """The program has come to its execute(); it goes no further."""


class _Checker:
    """Implements Onlooker: stops each job where it would start."""

    def __init__(self, savepoint: Savepoint, allow_dropped_state: bool) -> None:
        self._savepoint = savepoint
        self._allowed = allow_dropped_state
        self.findings: list[Finding] | None = None

    def launching(self, draft: JobPlan, config: JobConfig) -> None:
        allowed = self._allowed or config.allow_dropped_state
        self.findings = check_restore(draft, self._savepoint.metadata, allowed)
        raise _Checked

    def launched(self, client: JobClient, plan: JobPlan) -> None: ...


def run_check(options: argparse.Namespace) -> int:
    script = os.path.abspath(options.program)
    if not os.path.isfile(script):
        say_error(f"there is no program {options.program}")
        return EXIT_WRONG
    sys.argv = [options.program, *options.arguments]
    sys.path.insert(0, os.path.dirname(script))

    def at_parallelism(config: JobConfig) -> JobConfig:
        return config if options.parallelism is None else replace(config, parallelism=options.parallelism)

    try:
        savepoint = load_local(options.path)
        checker = _Checker(savepoint, options.allow_dropped_state)
        aside = contextlib.redirect_stdout(sys.stderr) if options.json else contextlib.nullcontext()
        with aside, notices(), overriding(at_parallelism), watched_by(checker):
            runpy.run_path(script, run_name="__main__")
    except _Checked:
        pass
    except TidegateError as error:
        say_error(str(error))
        return EXIT_WRONG
    except Exception as error:
        sys.stderr.write(format_program_error(error, script))
        return EXIT_WRONG
    if checker.findings is None:
        say_error(f"{options.program} ended without starting a job")
        return EXIT_WRONG
    return _show_findings(checker.findings, options.json)


def _show_findings(findings: list[Finding], as_json: bool) -> int:
    refused = [finding for finding in findings if finding.verdict is Verdict.REFUSED]
    if as_json:
        rows = [
            {"uid": f.uid, "operator": f.operator, "state": f.state, "verdict": f.verdict.value, "detail": f.detail}
            for f in findings
        ]
        show_json({"can_start": not refused, "findings": rows})
        return EXIT_REFUSED if refused else EXIT_DONE
    made = table("operator", "state", "", "detail")
    for finding in findings:
        verdict = Text(finding.verdict.value, style=_STYLES.get(finding.verdict, "green"))
        detail = "why: below" if finding in refused else finding.detail
        made.add_row(finding.uid, Text(finding.state), verdict, Text(detail))
    if not refused:
        show(made, Text(""), Text("the job can start from it", style="green"))
        return EXIT_DONE
    reasons = [Text(f"{number}. {finding.detail}.") for number, finding in enumerate(refused, 1)]
    show(
        made, Text(""), Text(f"the job would be refused: {len(refused)} of {len(findings)}", style="bold red"), *reasons
    )
    return EXIT_REFUSED
