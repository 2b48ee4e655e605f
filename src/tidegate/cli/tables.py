"""Answers of REST as tables for people. Driver's side or any machine; pure: JSON in, renderables out."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tidegate.wording import counted, how_big, how_big_in_all, how_long, how_long_whole, how_many

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
WIDE = 110  #: columns from which everything is shown


def state(word: str) -> Text:
    return Text(word, style=STATE_STYLES.get(word, "yellow"))


def table(*columns: str, numbers: Iterable[str] = ()) -> Table:
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    right = set(numbers)
    for column in columns:
        made.add_column(
            column, justify="right" if column in right else "left", overflow="fold", no_wrap=column in right
        )
    return made


def at(milliseconds: float) -> str:
    return "" if milliseconds <= 0 else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(milliseconds / 1000))


def lately(milliseconds: float) -> str:
    """Without the date, when it is today's."""
    today = time.strftime("%Y-%m-%d ")
    return at(milliseconds).removeprefix(today)


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


def status(
    details: dict[str, Any], operators: list[dict[str, Any]], checkpoints: dict[str, Any], width: int
) -> RenderableType:
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
    parts += [Text(""), operator_table(operators, width), Text(""), checkpoint_summary(checkpoints)]
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
            Text.assemble(("counters  ", "dim"), ", ".join(f"{n} {v:,}" for n, v in sorted(counters.items()))),
        ]
    return Group(*parts)


def hot_keys(keys: list[dict[str, Any]]) -> Table:
    """With the part of the operator's records that each had, of late."""
    made = table("hottest keys", "operator", "subtask", "part", numbers=("subtask", "part"))
    for hot in keys:
        made.add_row(Text(hot["key"]), hot["uid"], str(hot["subtask"]), f"{hot['share']:.1%}")
    return made


def operator_table(operators: list[dict[str, Any]], width: int) -> Table:
    """On a narrow terminal without what can be done without; a column that nobody fills is left out."""
    rows = [_operator_cells(operator, width >= WIDE) for operator in operators]
    columns = [column for column in rows[0] if any(str(row[column]) for row in rows)] if rows else []
    made = table(*columns, numbers=columns[1:])
    for row in rows:
        made.add_row(*(row[column] for column in columns))
    return made


def _operator_cells(operator: dict[str, Any], with_all: bool) -> dict[str, str | Text]:
    is_head, pressure, lag = operator["isHead"], operator["backPressured"], operator["watermarkLag"]
    name = Text.assemble(("" if is_head else "└ ", "dim"), operator["name"])
    if with_all and operator["uid"] != operator["name"] and "~" not in operator["uid"]:
        name.append(f" {operator['uid']}", style="dim")
    return {
        "operator": name,
        "par": str(operator["parallelism"]),
        "in/s": _rate(operator["inPerSecond"]),
        "out/s": _rate(operator["outPerSecond"]),
        "in": how_many(operator["recordsIn"]) if with_all else "",
        "out": how_many(operator["recordsOut"]) if with_all else "",
        "busy": _part(operator["busy"]) if is_head else "",
        "idle": _part(operator["idle"]) if is_head and with_all else "",
        "back-pr.": Text(_part(pressure) if is_head else "", style="red" if (pressure or 0) > 0.1 else ""),
        "state": how_big(operator["stateSize"]) if operator["stateSize"] else "",
        "event time lag" if with_all else "lag": "" if lag is None else how_long(lag / 1000),
    }


def _rate(value: float | None) -> str:
    return "" if value is None else how_many(value)


def _part(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def checkpoint_summary(checkpoints: dict[str, Any]) -> RenderableType:
    counts = checkpoints["counts"]
    line = Text.assemble(("checkpoints  ", "dim"), f"{counts['completed']:,} completed")
    if counts["failed"]:
        line.append(f", {counts['failed']:,} failed", style="red")
    if counts["in_progress"]:
        line.append(f", {counts['in_progress']} in progress", style="yellow")
    latest = checkpoints["latest"]["completed"]
    if latest:
        took = how_long(latest["end_to_end_duration"] / 1000)
        size = how_big_in_all(latest["state_size"], latest["checkpointed_size"])
        line.append(f"; latest {latest['id']}: {took}, {size}")
    restored = checkpoints["latest"]["restored"]
    if restored:
        line.append(f"; restored from {restored['id']} at {lately(restored['restore_timestamp'])}")
    return line


def checkpoint_table(history: list[dict[str, Any]], width: int) -> RenderableType:
    """On a narrow terminal the reasons of failures and the paths of savepoints come below, where they can be read."""
    with_all = width >= WIDE
    columns = (
        "id",
        "status",
        "type",
        "triggered",
        "took",
        "size",
        "new",
        "acks",
        *(("held back", "") if with_all else ()),
    )
    made = table(*columns, numbers=("id", "took", "size", "new", "acks", "held back", "triggered"))
    below: list[RenderableType] = []
    for entry in history:
        more = entry.get("failure_message") or (entry.get("external_path") if entry["is_savepoint"] else "") or ""
        style = "red" if entry["status"] == "FAILED" else "dim"
        made.add_row(
            str(entry["id"]),
            state(entry["status"]),
            entry["checkpoint_type"].lower().replace("_", " ").removesuffix(" checkpoint"),
            lately(entry["trigger_timestamp"]),
            how_long(entry["end_to_end_duration"] / 1000),
            how_big(entry["state_size"]),
            how_big(entry["checkpointed_size"]),
            f"{entry['num_acknowledged_subtasks']}/{entry['num_subtasks']}",
            *((how_big(entry["alignment_buffered"]), Text(more, style=style)) if with_all else ()),
        )
        if more and not with_all:
            below.append(Text.assemble(f"{entry['id']}  ", (more, style)))
    return Group(made, *([Text("")] if below else []), *below)


def checkpoint_details(details: dict[str, Any], explained: dict[str, Any]) -> RenderableType:
    head = Text.assemble((f"checkpoint {details['id']}  ", "bold"), state(details["status"]))
    facts = [at(details["trigger_timestamp"]), how_big_in_all(details["state_size"], details["checkpointed_size"])]
    if explained["duration"] is not None:
        facts.insert(1, how_long(explained["duration"] / 1000))
    head.append("  " + " · ".join(facts), style="dim")
    parts: list[RenderableType] = [head]
    if details.get("failure_message"):
        parts.append(Text(f"  {details['failure_message']}", style="red"))
    if details.get("external_path"):
        parts.append(Text(f"  {details['external_path']}", style="dim"))
    columns = ("vertex", "acks", "total", "barrier's way", "alignment", "sync", "upload", "pause", "state")
    made = table(*columns, numbers=columns[1:])
    for vertex in explained["vertices"]:
        times = [how_long(vertex[k] / 1000) for k in ("total", "startDelay", "alignment", "sync", "upload", "pause")]
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
        names = [f"{m['vertex']} #{m['subtask']}" for m in explained["missing"][:8]]
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
    return Text.assemble(
        (f"{at(line['at'] * 1000)} ", "dim"),
        (line["level"], {"ERROR": "red", "WARNING": "yellow"}.get(line["level"], "")),
        (f" [{place.strip()}] {line['logger']}: " if place else f" {line['logger']}: ", "dim"),
        line["message"],
    )
