"""A job in a notebook: what `JobClient` shows when it is the last line of a cell. Driver; pure: the view's copy in, HTML out.

No script and nothing from another host; colours follow the notebook's own, light or dark. It shows the moment it was drawn at;
the link leads to what moves.
"""

from __future__ import annotations

import time
from html import escape

from tidegate.coordinator.observing import CheckpointStatistics, CheckpointStatus, JobSnapshot, JobStatus
from tidegate.graph.plan import JobPlan, PlannedOperator
from tidegate.ids import SlotId
from tidegate.wording import counted, how_big_in_all, how_long

CHECKPOINTS_SHOWN = 3
_COLOURS = {JobStatus.RUNNING: "#2e9e5b", JobStatus.FINISHED: "#2e9e5b", JobStatus.FAILED: "#d64545"}
_OTHERS = "#c98a1b"
_CELL = "padding:2px 12px 2px 0;text-align:{};border:none"


def job_html(name: str, url: str | None, plan: JobPlan, snapshot: JobSnapshot) -> str:
    colour = _COLOURS.get(snapshot.status, _OTHERS)
    facts = [counted(len(plan.slots), "slot")]
    if snapshot.attempt is not None:
        facts.append(f"attempt {snapshot.attempt}")
    if snapshot.restarts:
        facts.append(counted(snapshot.restarts, "restart"))
    facts.append(counted(snapshot.completed, "checkpoint"))
    if snapshot.failed:
        facts.append(f"{snapshot.failed} failed")
    link = f' · <a href="{escape(url)}" target="_blank" rel="noopener">{escape(url)}</a>' if url else ""
    parts = [
        f'<div style="margin-bottom:6px"><b>{escape(name)}</b> <span style="color:{colour};font-weight:bold">● '
        f"{escape(snapshot.status.value)}</span> <span style='opacity:.7'>{escape(' · '.join(facts))}</span>{link}</div>",
        _operators(plan, snapshot),
    ]
    newest = list(snapshot.checkpoints.values())[-CHECKPOINTS_SHOWN:]
    if newest:
        parts.append(
            "<div style='margin-top:6px;opacity:.8'>" + "<br>".join(map(_checkpoint, reversed(newest))) + "</div>"
        )
    if snapshot.failures and snapshot.status is not JobStatus.FINISHED:
        failure = snapshot.failures[-1]
        text = escape(failure.error[:1000])
        parts.append(f"<pre style='margin:6px 0 0;color:#d64545;white-space:pre-wrap'>{text}</pre>")
    return f"<div style='font-family:system-ui,sans-serif;font-size:13px'>{''.join(parts)}</div>"


def _operators(plan: JobPlan, snapshot: JobSnapshot) -> str:
    counts: dict[str, tuple[int, int]] = {}
    for heartbeat in snapshot.heartbeats.values():
        for metrics in heartbeat.operators:
            taken, given = counts.get(metrics.uid, (0, 0))
            counts[metrics.uid] = (taken + metrics.records_in, given + metrics.records_out)
    rows = [_row(("operator", "parallelism", "in", "out", "busy", "back-pressured"), "th")]
    for layer in plan.layers:
        for chain in layer.chains:
            slots = [plan.slot_of(chain, subtask) for subtask in range(chain.parallelism)]
            for planned in chain.operators:
                rows.append(_operator_row(planned, planned is chain.head, counts.get(planned.uid), snapshot, slots))
    return f"<table style='border-collapse:collapse;border:none'>{''.join(rows)}</table>"


def _operator_row(
    planned: PlannedOperator,
    is_head: bool,
    counts: tuple[int, int] | None,
    snapshot: JobSnapshot,
    slots: list[SlotId],
) -> str:
    name = ("" if is_head else "└ ") + planned.operator.name
    taken, given = ("", "") if counts is None else (f"{counts[0]:,}", f"{counts[1]:,}")
    busy = pressed = ""
    beats = [snapshot.heartbeats[slot] for slot in slots if slot in snapshot.heartbeats]
    whole = sum(beat.busy_ms + beat.idle_ms + beat.backpressured_ms for beat in beats)
    if is_head and whole:
        busy = f"{sum(beat.busy_ms for beat in beats) / whole:.0%}"
        pressed = f"{sum(beat.backpressured_ms for beat in beats) / whole:.0%}"
    return _row((name, str(planned.parallelism), taken, given, busy, pressed), "td")


def _row(cells: tuple[str, ...], tag: str) -> str:
    made = [
        f"<{tag} style='{_CELL.format('left' if n == 0 else 'right')}'>{escape(cell)}</{tag}>"
        for n, cell in enumerate(cells)
    ]
    return f"<tr style='background:none'>{''.join(made)}</tr>"


def _checkpoint(checkpoint: CheckpointStatistics) -> str:
    at = time.strftime("%H:%M:%S", time.localtime(checkpoint.triggered_at))
    text = f"checkpoint {checkpoint.checkpoint} at {at}: {checkpoint.status.value.lower().replace('_', ' ')}"
    if checkpoint.status is CheckpointStatus.COMPLETED:
        size = how_big_in_all(checkpoint.size_bytes, checkpoint.added_bytes)
        text += f", {how_long(checkpoint.duration_s or 0)}, {size}"
    elif checkpoint.failure:
        text += f", {checkpoint.failure}"
    return escape(text)
