"""`tidegate history STORAGE [JOB]`: jobs that have run, from what they left in their storage. Any machine; reads only.

What the job's log tells is always there. How each checkpoint of a run went is there for runs whose driver came to its end
(rest/keeping.py writes it then).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any
from urllib.parse import unquote

from rich.console import Group, RenderableType
from rich.text import Text

from tidegate.cli import tables
from tidegate.cli.jobs import EXIT_DONE, EXIT_NOT_FOUND, EXIT_USAGE
from tidegate.cli.showing import columns, show
from tidegate.errors import CheckpointDamaged, ConfigurationError, StorageError
from tidegate.storage.anywhere import reaching_anywhere
from tidegate.storage.log import JobLog, LogKind, LogRecord
from tidegate.storage.paths import JobPaths
from tidegate.storage.store import ObjectStore, StorageNotFound, open_store
from tidegate.wording import counted, how_big, how_long_whole

MAX_RECORDS = 500  #: of a job's log that are read, the newest
_STATES = {LogKind.FINISHED: "FINISHED", LogKind.CANCELED: "CANCELED", LogKind.FAILED: "FAILED"}


def history(options: argparse.Namespace) -> int:
    """Gives the exit code."""
    try:
        store = reaching_anywhere(open_store(_whole(options.storage)))
        value: Any = all_jobs(store) if options.job is None else one_job(store, options.job)
        if not value and not _is_there(store):
            sys.stderr.write(f"error: there is no folder {options.storage}\n")
            return EXIT_NOT_FOUND
    except ConfigurationError as error:
        sys.stderr.write(f"error: {error}\n")
        return EXIT_USAGE
    except StorageError as error:
        sys.stderr.write(f"error: {error}\n")
        return EXIT_NOT_FOUND
    if value is None:
        sys.stderr.write(f"error: no job {options.job!r} has run in {options.storage}\n")
        return EXIT_NOT_FOUND
    if options.json:
        print(json.dumps(value, ensure_ascii=False))
    else:
        show(_job_table(value) if options.job is None else _job_page(value, columns()))
    return EXIT_DONE


def _whole(storage: str) -> str:
    return storage if "://" in storage else os.path.abspath(storage)


def _is_there(store: ObjectStore) -> bool:
    """False only for a local folder that does not exist: of others nobody can tell an empty one from none."""
    scheme, _, path = store.location.partition("://")
    return scheme != "file" or os.path.isdir(unquote(path) or "/")


def all_jobs(store: ObjectStore) -> list[dict[str, Any]]:
    """A line for each job with a log, the newest first."""
    names = {path.split("/log/")[0] for path in store.list("") if path.endswith("/log/00000000.json")}
    found = []
    for name in names:
        newest = JobLog(store, JobPaths(name)).read_newest() if "/" not in name else None
        if newest is not None:
            found.append(_summary(name, newest))
    return sorted(found, key=lambda job: -job["last-written"])


def one_job(store: ObjectStore, name: str) -> dict[str, Any] | None:
    log = JobLog(store, JobPaths(name))
    newest = log.read_newest()
    if newest is None:
        return None
    older = [number for number in log.numbers() if number < newest.sequence][1 - MAX_RECORDS :]
    records = [record for number in older if (record := _read(log, number)) is not None] + [newest]
    return _summary(name, newest) | {
        "retained": [
            {
                "id": p.id,
                "path": store.uri(p.metadata_path),
                "size": p.size_bytes,
                "completed": int(p.completed_at * 1000),
            }
            for p in newest.retained
        ],
        "runs": [_run(store, log, name, generation, records) for generation in sorted({r.generation for r in records})],
    }


def _read(log: JobLog, number: int) -> LogRecord | None:
    """None: a running job has deleted it since."""
    try:
        return log.read(number)
    except CheckpointDamaged:
        if number in log.numbers():
            raise
        return None


def _summary(name: str, newest: LogRecord) -> dict[str, Any]:
    return {
        "name": name,
        "state": "FINISHED" if newest.finished else _STATES.get(newest.kind, "RUNNING, or its driver died"),
        "reason": newest.reason,
        "runs-total": newest.generation,
        "checkpoints": newest.next_checkpoint_id - 1,
        "latest": None if newest.latest is None else newest.latest.id,
        "last-written": int(newest.written_at * 1000),
        "driver": newest.driver,
    }


def _run(store: ObjectStore, log: JobLog, name: str, generation: int, records: list[LogRecord]) -> dict[str, Any]:
    """One driver's time with the job."""
    own = [record for record in records if record.generation == generation]
    ends = [record for record in own if record.kind in _STATES]
    kept = _kept(store, name, generation)
    return {
        "generation": generation,
        "driver": own[0].driver,
        "started": _started(log, own[0], kept),
        "last-written": int(own[-1].written_at * 1000),
        "state": _STATES[ends[-1].kind] if ends else "",
        "reason": ends[-1].reason if ends else "",
        "checkpoints": [
            {"id": r.latest.id, "completed": int(r.latest.completed_at * 1000), "size": r.latest.size_bytes}
            for r in own
            if r.kind in (LogKind.CHECKPOINT, LogKind.SAVEPOINT_STOP) and r.latest is not None
        ],
        "statistics": kept,
    }


def _started(log: JobLog, oldest: LogRecord, kept: dict[str, Any] | None) -> int:
    """When the driver took the job over: that record may stand long before the oldest of its records that was read."""
    if oldest.kind is not LogKind.GENERATION:
        try:
            oldest = log.first_of(oldest.generation, oldest.sequence)
        except CheckpointDamaged:  # the log was cut
            if kept is not None:
                return int(kept["job"]["start-time"])
    return int(oldest.written_at * 1000)


def _kept(store: ObjectStore, name: str, generation: int) -> dict[str, Any] | None:
    try:
        kept: dict[str, Any] = json.loads(store.get(JobPaths(name).history(generation)))
    except (StorageNotFound, ValueError):
        return None
    return kept


def _reason_style(state: str) -> str:
    return "red" if state == "FAILED" else "dim"


def _job_table(jobs: list[dict[str, Any]]) -> RenderableType:
    if not jobs:
        return "no job has run here"
    made = tables.table("job", "state", "runs", "checkpoints", "last written", "", numbers=("runs", "checkpoints"))
    for job in jobs:
        made.add_row(
            Text(job["name"], style="bold"),
            tables.state(job["state"]),
            str(job["runs-total"]),
            f"{job['checkpoints']:,}",
            tables.at(job["last-written"]),
            Text(job["reason"], style=_reason_style(job["state"])),
        )
    return made


def _job_page(job: dict[str, Any], width: int) -> RenderableType:
    head = Text.assemble((job["name"], "bold"), "  ", tables.state(job["state"]))
    head.append(f"  {counted(job['runs-total'], 'run')} · {counted(job['checkpoints'], 'checkpoint')}", style="dim")
    parts: list[RenderableType] = [head]
    for run in job["runs"]:
        took = how_long_whole((run["last-written"] - run["started"]) / 1000)
        no_end = "no end" if run is job["runs"][-1] else "no end: the next run took over"
        line = Text(f"\nrun {run['generation']}  ").append_text(tables.state(run["state"] or no_end))
        parts.append(line.append(f"  {tables.at(run['started'])}, {took}, by {run['driver']}", style="dim"))
        if run["reason"]:
            parts.append(Text(f"  {run['reason']}", style=_reason_style(run["state"])))
        statistics = run["statistics"]
        if statistics is not None:
            for failure in statistics["exceptions"]["exceptionHistory"]["entries"][:3]:
                parts.append(
                    Text(f"  {tables.clock(failure['timestamp'])} {failure['stacktrace'].splitlines()[0]}", style="red")
                )
            parts.append(tables.checkpoint_table(statistics["checkpoints"]["history"][:20], width))
        elif run["checkpoints"]:
            made = tables.table("id", "completed", "size", numbers=("id", "size"))
            for checkpoint in run["checkpoints"][-20:]:
                made.add_row(str(checkpoint["id"]), tables.at(checkpoint["completed"]), how_big(checkpoint["size"]))
            parts.append(made)
    if job["retained"]:
        parts.append(Text("\nretained", style="dim"))
        parts += [Text(f"  {entry['path']}  {how_big(entry['size'])}") for entry in job["retained"]]
    return Group(*parts)
