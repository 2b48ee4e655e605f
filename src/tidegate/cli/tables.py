"""Answers of REST as tables for people. Driver's side or any machine; pure: JSON in, renderables out."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tidegate.cli.wording import counted, how_big, how_long, how_long_whole, how_many

STATE_STYLES = {
    "RUNNING": "green",
    "FINISHED": "green",
    "COMPLETED": "green",
    "FAILED": "red",
    "CANCELED": "yellow",
    "RESTARTING": "bold yellow",
    "IN_PROGRESS": "yellow",
}


HOTTEST = 5  #: keys that `status` shows


def state(word: str) -> Text:
    return Text(word, style=STATE_STYLES.get(word, "yellow"))


def table(*columns: str, numbers: Iterable[str] = ()) -> Table:
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    right = set(numbers)
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return made


def at(milliseconds: float) -> str:
    return "" if milliseconds <= 0 else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(milliseconds / 1000))


def clock(milliseconds: float) -> str:
    return "" if milliseconds <= 0 else time.strftime("%H:%M:%S", time.localtime(milliseconds / 1000))


def job_list(jobs: list[dict[str, Any]]) -> RenderableType:
    made = table("job", "state", "since", "up", "tasks", "address", "id", numbers=("tasks", "up"))
    for job in jobs:
        made.add_row(
            Text(job["name"], style="bold"),
            state(job["state"]),
            at(job["start-time"]),
            how_long_whole(job["duration"] / 1000),
            str(job["tasks"]["total"]),
            job["address"],
            Text(job["jid"][:8], style="dim"),
        )
    return made


def status(details: dict[str, Any], operators: list[dict[str, Any]], checkpoints: dict[str, Any]) -> RenderableType:
    head = Text()
    head.append(details["name"], style="bold").append("  ").append_text(state(details["state"]))
    facts = [
        f"up {how_long_whole(details['duration'] / 1000)}",
        counted(sum(v["parallelism"] for v in details["vertices"]), "task"),
    ]
    if details["attempt"]:
        facts.append(f"attempt {details['attempt']}")
    if details["restarts"]:
        facts.append(counted(details["restarts"], "restart"))
    head.append("  " + " · ".join(facts), style="dim")
    parts: list[RenderableType] = [head]
    if details["status-detail"]:
        parts.append(Text(f"  {details['status-detail']}", style="yellow"))
    parts += [Text(""), operator_table(operators), Text(""), checkpoint_summary(checkpoints)]
    hot = sorted((key for operator in operators for key in operator["hotKeys"]), key=lambda key: -key["share"])
    if hot:
        parts += [Text(""), hot_keys(hot[:HOTTEST])]
    counters: dict[str, int] = {}
    for operator in operators:
        for name, value in operator["counters"].items():
            counters[name] = counters.get(name, 0) + value
    if counters:
        parts += [
            Text(""),
            Text("counters  ", style="dim") + Text(", ".join(f"{n} {v:,}" for n, v in sorted(counters.items()))),
        ]
    return Group(*parts)


def hot_keys(keys: list[dict[str, Any]]) -> Table:
    """With the part of the operator's records that each had, of late."""
    made = table("hottest keys", "operator", "subtask", "records", numbers=("subtask", "records"))
    for hot in keys:
        made.add_row(Text(hot["key"]), hot["uid"], str(hot["subtask"]), f"{hot['share']:.1%}")
    return made


def operator_table(operators: list[dict[str, Any]]) -> Table:
    columns = ("operator", "par", "in/s", "out/s", "in", "out", "busy", "idle", "back-pr.", "state", "event time lag")
    made = table(*columns, numbers=columns[1:])
    for operator in operators:
        is_head = operator["isHead"]
        name = Text("" if is_head else "└ ", style="dim").append(operator["name"], style="not dim")
        if operator["uid"] != operator["name"] and "~" not in operator["uid"]:
            name.append(f" {operator['uid']}", style="dim")
        pressure = operator["backPressured"]
        made.add_row(
            name,
            str(operator["parallelism"]),
            _rate(operator["inPerSecond"]),
            _rate(operator["outPerSecond"]),
            how_many(operator["recordsIn"]),
            how_many(operator["recordsOut"]),
            *((_part(operator["busy"]), _part(operator["idle"])) if is_head else ("", "")),
            Text(_part(pressure) if is_head else "", style="red" if (pressure or 0) > 0.1 else ""),
            how_big(operator["stateSize"]) if operator["stateSize"] else "",
            "" if operator["watermarkLag"] is None else how_long(operator["watermarkLag"] / 1000),
        )
    return made


def _rate(value: float | None) -> str:
    return "" if value is None else how_many(value)


def _part(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def checkpoint_summary(checkpoints: dict[str, Any]) -> RenderableType:
    counts = checkpoints["counts"]
    line = Text("checkpoints  ", style="dim")
    line.append(f"{counts['completed']:,} completed", style="not dim")
    if counts["failed"]:
        line.append(f", {counts['failed']:,} failed", style="red")
    if counts["in_progress"]:
        line.append(f", {counts['in_progress']} in progress", style="yellow")
    latest = checkpoints["latest"]["completed"]
    if latest:
        took, size = how_long(latest["end_to_end_duration"] / 1000), how_big(latest["state_size"])
        line.append(f"; latest {latest['id']}: {took}, {size}", style="not dim")
    restored = checkpoints["latest"]["restored"]
    if restored:
        line.append(f"; restored from {restored['id']} at {clock(restored['restore_timestamp'])}", style="not dim")
    return line


def checkpoint_table(history: list[dict[str, Any]]) -> RenderableType:
    columns = ("id", "status", "type", "triggered", "took", "size", "acks", "held back", "")
    made = table(*columns, numbers=("id", "took", "size", "acks", "held back"))
    for entry in history:
        more = entry.get("failure_message") or (entry.get("external_path") if entry["is_savepoint"] else "")
        made.add_row(
            str(entry["id"]),
            state(entry["status"]),
            entry["checkpoint_type"].lower().replace("_", " "),
            at(entry["trigger_timestamp"]),
            how_long(entry["end_to_end_duration"] / 1000),
            how_big(entry["state_size"]),
            f"{entry['num_acknowledged_subtasks']}/{entry['num_subtasks']}",
            how_big(entry["alignment_buffered"]),
            Text(more or "", style="red" if entry["status"] == "FAILED" else "dim"),
        )
    return made


def checkpoint_details(details: dict[str, Any], explained: dict[str, Any]) -> RenderableType:
    head = Text(f"checkpoint {details['id']}  ", style="bold").append_text(state(details["status"]))
    facts = [at(details["trigger_timestamp"]), how_big(details["state_size"])]
    if explained["duration"] is not None:
        facts.insert(1, how_long(explained["duration"] / 1000))
    head.append("  " + " · ".join(facts), style="dim")
    parts: list[RenderableType] = [head]
    if details.get("failure_message"):
        parts.append(Text(f"  {details['failure_message']}", style="red"))
    if details.get("external_path"):
        parts.append(Text(f"  {details['external_path']}", style="dim"))
    columns = ("vertex", "acks", "total", "barrier's way", "alignment", "sync", "upload", "state")
    made = table(*columns, numbers=columns[1:])
    for vertex in explained["vertices"]:
        times = [how_long(vertex[k] / 1000) for k in ("total", "startDelay", "alignment", "sync", "upload")]
        acks = f"{vertex['acknowledged']}/{vertex['parallelism']}"
        made.add_row(vertex["name"], acks, *times, how_big(vertex["stateSize"]))
    parts += [Text(""), made]
    slowest = explained["slowest"]
    if slowest:
        what = f"slowest: subtask {slowest['subtask']} of {slowest['vertex']}, {how_long(slowest['total'] / 1000)}"
        parts += [Text(""), Text(what)]
    if explained["storing"] is not None:
        parts.append(Text(f"storing metadata and log record: {how_long(explained['storing'] / 1000)}"))
    if explained["missing"]:
        names = [f"{m['vertex']}#{m['subtask']}" for m in explained["missing"][:8]]
        parts.append(Text(f"no answer from {', '.join(names)}", style="red"))
    if explained["largestStates"]:
        largest = table("largest states", "subtask", "size", numbers=("subtask", "size"))
        for entry in explained["largestStates"]:
            largest.add_row(entry["uid"], str(entry["subtask"]), how_big(entry["size"]))
        parts += [Text(""), largest]
    if explained["hottestKeys"]:
        parts += [Text(""), hot_keys(explained["hottestKeys"])]
    return Group(*parts)


def log_line(line: dict[str, Any]) -> Text:
    place = line["attempt"]
    if line["slot"]:
        place += f" {line['slot']}"
    if line["uid"]:
        place += f" {line['uid']}#{line['subtask']}"
    shown = Text(at(line["at"] * 1000) + " ", style="dim")
    shown.append(line["level"], style={"ERROR": "red", "WARNING": "yellow"}.get(line["level"], ""))
    shown.append(f" [{place}] ", style="dim").append(f"{line['logger']}: ", style="dim").append(line["message"])
    return shown
