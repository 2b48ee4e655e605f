"""Commands for running jobs: list, status, checkpoints, checkpoint, savepoint, stop, cancel, rescale, logs. Any machine.

Each gives an exit code; with --json each prints one JSON value and nothing else on standard output.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, RenderableType

from tidegate.cli import tables
from tidegate.cli.remote import JobNotFound, Refused, RemoteJob, find_job, running_jobs
from tidegate.cli.showing import columns, show

EXIT_DONE, EXIT_REFUSED, EXIT_USAGE, EXIT_NOT_FOUND, EXIT_INTERRUPTED = 0, 1, 2, 3, 130
FOLLOW_S = 0.5

Command = Callable[[argparse.Namespace], int]


def guarded(command: Command) -> Command:
    """What goes wrong becomes a sentence on standard error and an exit code."""

    def run(options: argparse.Namespace) -> int:
        try:
            return command(options)
        except JobNotFound as error:
            _say(str(error))
            return EXIT_NOT_FOUND
        except Refused as error:
            _say(str(error))
            return EXIT_REFUSED
        except KeyboardInterrupt:
            return EXIT_INTERRUPTED

    return run


def _say(text: str) -> None:
    Console(stderr=True, highlight=False, soft_wrap=True).print(f"[bold red]error:[/] {_escaped(text)}")


def _escaped(text: str) -> str:
    return text.replace("[", r"\[")


def print_answer(options: argparse.Namespace, value: Any, shown: Callable[[int], RenderableType]) -> None:
    """`shown` is told how many columns there are."""
    if options.json:
        print(json.dumps(value, ensure_ascii=False))
    else:
        show(shown(columns()))


@contextmanager
def busy(options: argparse.Namespace, what: str) -> Iterator[None]:
    """A spinner on a terminal, nothing elsewhere."""
    console = Console(stderr=True, highlight=False)
    if options.json or not console.is_terminal:
        yield
    else:
        with console.status(what):
            yield


def chosen_job(options: argparse.Namespace) -> RemoteJob:
    return find_job(options.job, options.address, options.token)


# -- looking ----------------------------------------------------------------------------------------------------------


@guarded
def list_jobs(options: argparse.Namespace) -> int:
    found = []
    for job, _ in running_jobs(options.address, options.token):
        try:
            (overview,) = [o for o in job.server.ask("/jobs/overview")["jobs"] if o["jid"] == job.id] or [None]
        except (JobNotFound, Refused):
            overview = None
        if overview is not None:
            found.append(overview | {"address": job.server.url})
        elif not options.json:
            _say(f"{job.name}: its driver at {job.server.url} does not answer")
    nothing = "no job is running" + (f" at {options.address}" if options.address else " on this machine")
    print_answer(options, found, lambda _: tables.job_list(found) if found else nothing)
    return EXIT_DONE


@guarded
def status(options: argparse.Namespace) -> int:
    job = chosen_job(options)
    details, operators = job.ask(), job.ask("/operators")["operators"]
    checkpoints = job.ask("/checkpoints")
    counters = job.ask("/accumulators")["user-task-accumulators"]
    value = {
        "job": details,
        "operators": operators,
        "checkpoints": {key: checkpoints[key] for key in ("counts", "latest")},
        "counters": {entry["name"]: int(entry["value"]) for entry in counters},
        "failures": job.ask("/exceptions")["exceptionHistory"]["entries"],
    }
    print_answer(options, value, lambda width: tables.status(details, operators, checkpoints, width))
    return EXIT_DONE


@guarded
def checkpoints(options: argparse.Namespace) -> int:
    job = chosen_job(options)
    if options.id is not None:
        details = job.ask(f"/checkpoints/details/{options.id}")
        explained = job.ask(f"/checkpoints/details/{options.id}/explain")
        print_answer(options, details | {"explain": explained}, lambda _: tables.checkpoint_details(details, explained))
        return EXIT_DONE
    answer = job.ask("/checkpoints")
    history = answer["history"][: options.last]
    print_answer(options, answer | {"history": history}, lambda width: tables.checkpoint_table(history, width))
    return EXIT_DONE


@guarded
def logs(options: argparse.Namespace) -> int:
    job = chosen_job(options)
    answer = job.ask(f"/logs?level={options.level}")
    _print_lines(options, answer["lines"][-options.last :])
    while options.follow:
        time.sleep(FOLLOW_S)
        try:
            answer = job.ask(f"/logs?level={options.level}&from={answer['next']}")
        except JobNotFound:
            return EXIT_DONE  # the driver has ended, and the log with it
        _print_lines(options, answer["lines"])
    return EXIT_DONE


def _print_lines(options: argparse.Namespace, lines: list[dict[str, Any]]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for line in lines:
        if options.json:
            print(json.dumps(line, ensure_ascii=False), flush=True)
        else:
            console.print(tables.log_line(line))


# -- acting -----------------------------------------------------------------------------------------------------------


@guarded
def take_checkpoint(options: argparse.Namespace) -> int:
    job = chosen_job(options)
    with busy(options, f"checkpoint of {job.name} ..."):
        done = job.operate("POST", "/checkpoints", "/checkpoints", {"checkpointType": "CONFIGURED"})
    print_answer(options, done, lambda _: f"checkpoint {done['checkpointId']} is complete")
    return EXIT_DONE


@guarded
def savepoint(options: argparse.Namespace) -> int:
    job = chosen_job(options)
    body = {"target-directory": options.to, "cancel-job": False, "formatType": options.format.upper()}
    with busy(options, f"savepoint of {job.name} ..."):
        done = job.operate("POST", "/savepoints", "/savepoints", body)
    print_answer(options, done, lambda _: f"savepoint: {done['location']}")
    return EXIT_DONE


@guarded
def stop(options: argparse.Namespace) -> int:
    job = chosen_job(options)
    body = {"targetDirectory": options.to, "drain": options.drain, "formatType": options.format.upper()}
    with busy(options, f"{'draining' if options.drain else 'stopping'} {job.name} ..."):
        done = job.operate("POST", "/stop", "/savepoints", body)
    print_answer(options, done, lambda _: f"{job.name} has stopped; savepoint: {done['location']}")
    return EXIT_DONE


@guarded
def cancel(options: argparse.Namespace) -> int:
    job = chosen_job(options)
    job.ask("?mode=cancel", "PATCH", {})
    with busy(options, f"canceling {job.name} ..."):
        _await_end(job)
    print_answer(options, {"jid": job.id, "name": job.name, "canceled": True}, lambda _: f"{job.name} is canceled")
    return EXIT_DONE


def _await_end(job: RemoteJob) -> None:
    """Until the job has ended, or its driver with it."""
    while True:
        try:
            if job.ask("/status")["status"] in ("CANCELED", "FINISHED", "FAILED"):
                return
        except (JobNotFound, Refused):
            return
        time.sleep(0.1)


@guarded
def rescale(options: argparse.Namespace) -> int:
    job = chosen_job(options)
    with busy(options, f"rescaling {job.name} ..."):
        done = job.operate("PATCH", f"/rescaling?parallelism={options.parallelism}", "/rescaling", {})
    gap = f"; the gap was {done['gap-ms'] / 1000:.1f} s" if "gap-ms" in done else ""
    print_answer(options, done, lambda _: f"{job.name} runs with parallelism {options.parallelism}{gap}")
    return EXIT_DONE
