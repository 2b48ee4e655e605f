"""The flame graph of a vertex, in Flink's shape: where the threads of its subtasks are. Driver.

To ask is to look: the slots of the vertex sample from the first request on, until ten seconds after the last one. The first
answer says "wait" as Flink's does, with the end -3; of a job that has ended it is -1.

Beyond Flink's fields a node has `owner` (user, tidegate, spark, library) and `line`, the file and line in full.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tidegate.coordinator.profiling import ORDER_S, SAMPLES_PER_S, WINDOW_S, Count, Stack
from tidegate.rest.actions import Answer
from tidegate.rest.calls import Call, whole_number
from tidegate.rest.numbers import ms
from tidegate.rest.problems import bad_request
from tidegate.rest.vertices import check_subtask
from tidegate.wire.control import CodeLine

TYPES = ("full", "on_cpu", "off_cpu")
ENDED, WAITING = -1, -3  #: Flink's words for "there is none"
USER = "user"


@dataclass(slots=True)
class _Node:
    samples: int = 0
    children: dict[CodeLine, _Node] = field(default_factory=dict)


def flame_graph(call: Call) -> Answer:
    job = call.job()
    vertex = call.vertex(job)
    kind = call.query.get("type", TYPES[0]).lower()
    if kind not in TYPES:
        raise bad_request(f"type must be one of {', '.join(TYPES)}")
    slots = vertex.slots()
    index = call.query.get("subtaskindex")
    if index is not None:
        subtask = whole_number(index, "subtaskindex")
        check_subtask(vertex, subtask)
        slots = [slots[subtask]]
    operator = call.query.get("operator")
    if operator is not None and operator not in vertex.uids:
        raise bad_request(f"operator must be one of the vertex's uids: {', '.join(vertex.uids)}")
    if job.view.status.is_terminal:
        return 200, {"endTimestamp": ENDED}
    now = job.clock()
    due = job.profile.orders_due(slots, now)
    if due:
        job.hands.sample_stacks(due, ORDER_S, SAMPLES_PER_S)
    stacks = job.profile.stacks(slots, now - min(call.number("seconds", int(WINDOW_S)), WINDOW_S))
    # A slot hosts a subtask of each chain of its layer; what is nobody's (it waits) is shown for each.
    wanted = {*vertex.uids, ""} if operator is None else {operator}
    found = [(stack, _counted(count, kind)) for stack, count in stacks.items() if stack.uid in wanted]
    if not stacks:
        return 200, {"endTimestamp": WAITING}
    return 200, {"endTimestamp": ms(time.time()), "data": tree(found)}


def _counted(count: Count, kind: str) -> int:
    match kind:
        case "on_cpu":
            return count.on_cpu
        case "off_cpu":
            return count.samples - count.on_cpu
        case _:
            return count.samples


def tree(stacks: Iterable[tuple[Stack, int]]) -> dict[str, Any]:
    root = _Node()
    for stack, samples in stacks:
        if samples:
            root.samples += samples
            node = root
            for line in stack.lines:
                node = node.children.setdefault(line, _Node())
                node.samples += samples
    return {"name": "root", "value": root.samples, "children": _children(root)}


def _children(node: _Node) -> list[dict[str, Any]]:
    """The hottest first."""
    return [
        {
            "name": shown_line(line),
            "value": child.samples,
            "children": _children(child),
            "owner": line.owner,
            "line": f"{line.file}:{line.line}",
        }
        for line, child in sorted(node.children.items(), key=lambda entry: -entry[1].samples)
    ]


def shown_line(line: CodeLine) -> str:
    """ "Enrich.process_element (jobs/enrich.py:42)"; whose it is stands before it, where it is not the user's."""
    file = "/".join(line.file.replace("\\", "/").rsplit("/", 2)[-2:])
    text = f"{line.function} ({file}:{line.line})"
    return text if line.owner == USER else f"[{line.owner}] {text}"
