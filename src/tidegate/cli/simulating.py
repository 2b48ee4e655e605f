"""`tidegate simulate job.py`: the program runs up to its execute(), and its job here, many times. Driver; no Spark."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import runpy
import shlex
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from tidegate.cli.run import notices, say_error
from tidegate.cli.showing import show_json
from tidegate.cli.simulation_text import NO_INTERVAL, end_lines, failure_lines, plain_lines
from tidegate.errors import TidegateError
from tidegate.overrides import launched_by, overriding
from tidegate.telling.exit_codes import EXIT_CONFIGURATION, EXIT_FAILED, EXIT_FINISHED, EXIT_INTERRUPTED
from tidegate.telling.failures import describe_error, format_program_error
from tidegate.testing.simulation.runs import SimulatedJob
from tidegate.testing.simulation.simulating import Report, Simulation
from tidegate.wording import counted, how_long

if TYPE_CHECKING:
    from tidegate.api.environment import StreamEnvironment
    from tidegate.config import JobConfig


LONG_RUN_S = 2.0


class _Over(BaseException):
    """The simulation has ended; the program goes no further."""

    def __init__(self, code: int, told: dict[str, Any]) -> None:
        self.code = code
        self.told = told  #: as JSON


def run_simulate(options: argparse.Namespace) -> int:
    script = os.path.abspath(options.program)
    if not os.path.isfile(script):
        say_error(f"there is no program {options.program}")
        return EXIT_CONFIGURATION
    sys.argv = [options.program, *options.arguments]
    sys.path.insert(0, os.path.dirname(script))

    def launch(env: StreamEnvironment, config: JobConfig) -> NoReturn:
        raise _Teller(options).simulate(env, config)

    def at_parallelism(config: JobConfig) -> JobConfig:
        return config if options.parallelism is None else replace(config, parallelism=options.parallelism)

    try:
        aside = contextlib.redirect_stdout(sys.stderr) if options.json else contextlib.nullcontext()
        with aside, notices(), overriding(at_parallelism), launched_by(launch):
            runpy.run_path(script, run_name="__main__")
    except _Over as over:
        if options.json:
            show_json(over.told)
        return over.code
    except TidegateError as error:
        say_error(describe_error(error))
        return EXIT_CONFIGURATION
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted\n")
        return EXIT_INTERRUPTED
    except Exception as error:
        sys.stderr.write(format_program_error(error, script))
        return EXIT_CONFIGURATION
    say_error(f"{options.program} ended without starting a job")
    return EXIT_CONFIGURATION


class _Teller:
    """Simulates, and tells."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._began = time.monotonic()
        self._progress = _Progress(options.seeds)

    def simulate(self, env: StreamEnvironment, config: JobConfig) -> _Over:
        options = self._options
        if config.interval_s is None:
            sys.stderr.write(f"note: {NO_INTERVAL}\n")
        job = SimulatedJob(env, config, options.records, dict(options.input), options.instead)
        simulation = Simulation(job)
        report, interrupted = simulation.report, False
        try:
            with _quiet():
                simulation.run_plain(self._progress.show)
                self._print(plain_lines(report, job.outsides()))
                for seed in range(options.first_seed, options.first_seed + options.seeds):
                    failure = simulation.run_seed(seed, options.shrink)
                    self._progress.show(report)
                    if failure is not None:
                        self._print(failure_lines(failure, self._again(failure.seed)))
                    if len(report.failures) >= options.most_failures:
                        break
        except KeyboardInterrupt:
            interrupted = True
        self._print(end_lines(report, options.first_seed, interrupted, how_long(time.monotonic() - self._began)))
        return _Over(_code(report, interrupted), self._as_json(report, interrupted))

    def _print(self, lines: list[str]) -> None:
        if not self._options.json:
            self._progress.clear()
            print(*lines, sep="\n", flush=True)

    def _again(self, seed: int) -> str:
        options = self._options
        words = ["tidegate", "simulate", options.program, "--first-seed", str(seed), "--seeds", "1"]
        words += [] if options.records is None else ["--records", str(options.records)]
        words += [] if options.parallelism is None else ["-p", str(options.parallelism)]
        words += [word for uid, path in options.input for word in ("--input", f"{uid}={path}")]
        words += [word for uid in options.instead for word in ("--instead", uid)]
        return shlex.join([*words, *(["--", *options.arguments] if options.arguments else [])])

    def _as_json(self, report: Report, interrupted: bool) -> dict[str, Any]:
        sinks = [
            {"uid": uid, "records": each.rows.total(), "stable": each.stable, "exact": each.exact}
            for uid, each in report.expected.items()
        ]
        failures = [
            {
                "seed": each.seed,
                "trouble": each.trouble,
                "differences": each.differences,
                "drawn": [str(misfortune) for misfortune in each.misfortunes],
                "needed": [str(misfortune) for misfortune in each.needed],
                "story": list(each.story),
                "again": self._again(each.seed),
            }
            for each in report.failures
        ]
        return {
            "job": report.job,
            "plain_runs": report.plain_runs,
            "sinks": sinks,
            "first_seed": self._options.first_seed,
            "seeds": report.seeds,
            "interrupted": interrupted,
            "checkpoints": report.checkpoints,
            "misfortunes": dict(report.happened),
            "failures": failures,
        }


def _code(report: Report, interrupted: bool) -> int:
    if interrupted:
        return EXIT_INTERRUPTED
    if report.failures:
        return EXIT_FAILED
    return EXIT_FINISHED if report.compares else EXIT_CONFIGURATION


class _Progress:
    """On standard error: in a terminal one line that changes, else a line now and then."""

    def __init__(self, seeds: int) -> None:
        self._seeds = seeds
        self._is_terminal = sys.stderr.isatty()
        self._every_s = 0.2 if self._is_terminal else 10.0
        self._shown_at = self._began = time.monotonic()
        self._is_shown = False

    def show(self, report: Report) -> None:
        now = time.monotonic()
        if now - self._shown_at < self._every_s:
            return
        self._shown_at, self._is_shown = now, True
        if report.seeds:
            text = f"{report.seeds:,} of {self._seeds:,} seeds, {len(report.failures)} failed"
        else:
            text = f"{counted(report.plain_runs, 'run')} without a misfortune"
            one_s = (now - self._began) / report.plain_runs
            text += f", {how_long(one_s)} each; --records N makes them shorter" if one_s > LONG_RUN_S else ""
        sys.stderr.write(f"\r{text}\x1b[K" if self._is_terminal else f"{text}\n")
        sys.stderr.flush()

    def clear(self) -> None:
        if self._is_shown and self._is_terminal:
            sys.stderr.write("\r\x1b[K")
            self._is_shown = False


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What the product says of failures is not news here."""
    logger = logging.getLogger("tidegate")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
