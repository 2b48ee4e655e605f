"""The page of benchmarks/growth.py: a plot for each thing that grows, as SVG within one HTML file, which needs nothing else."""

from __future__ import annotations

import html
import math
from typing import Any

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 460, 260, 70, 20, 30, 40
STYLE = "body{font:14px sans-serif;margin:2em}svg{margin:0 1em 1em 0}text{font:11px sans-serif}.line{fill:none;stroke:#25688a}"
WHAT = {"records_per_s": "records/s", "checkpoint_s": "checkpoint, s"}


def page(found: dict[str, list[dict[str, float]]], machine: dict[str, Any]) -> str:
    plots = "".join(
        f"<h2>{html.escape(name)}</h2>" + "".join(plot(name, what, rows) for what in WHAT)
        for name, rows in found.items()
    )
    about = f"{machine['cores']} cores, {machine['memory_gb']} GB, Python {machine['python']}"
    axes = "Axes are logarithmic, but for times of checkpoints."
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>How cost grows</title><style>{STYLE}</style>'
        f"<h1>How cost grows</h1><p>{html.escape(about)}. {axes}</p>{plots}</html>\n"
    )


def plot(name: str, what: str, rows: list[dict[str, float]]) -> str:
    values = [row[what] for row in rows]
    logarithmic = what == "records_per_s" and min(values, default=0) > 0
    xs = scaled([row[name] for row in rows], LEFT, WIDTH - RIGHT, True)
    low, high = bounds(values, logarithmic)
    ys = [y_of(value, low, high, logarithmic) for value in values]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys))
    points = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="#25688a"><title>{row[name]:,g}: {row[what]:,g}</title></circle>'
        for x, y, row in zip(xs, ys, rows)
    )
    under = "".join(
        f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{row[name]:,g}</text>'
        for x, row in zip(xs, rows)
    )
    beside = "".join(
        f'<text x="{LEFT - 6}" y="{y_of(value, low, high, logarithmic) + 4:.1f}" text-anchor="end">{value:,.4g}</text>'
        for value in sorted({low, high, *values})[:: max(len(values) // 3, 1)]
    )
    frame = f'<path d="M{LEFT},{TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}" fill="none" stroke="#999"/>'
    title = f'<text x="{LEFT}" y="16">{WHAT[what]}, by {html.escape(name)}</text>'
    drawn = f'{title}{frame}<polyline class="line" points="{line}"/>{points}{under}{beside}'
    return f'<svg width="{WIDTH}" height="{HEIGHT}" role="img">{drawn}</svg>'


def scaled(values: list[float], start: float, end: float, logarithmic: bool) -> list[float]:
    places = [math.log(value) if logarithmic else value for value in values]
    span = max(places) - min(places)
    return [start if not span else start + (place - min(places)) / span * (end - start) for place in places]


def bounds(values: list[float], logarithmic: bool) -> tuple[float, float]:
    """A power of ten around them, or from nothing upwards."""
    if logarithmic:
        return 10 ** math.floor(math.log10(min(values))), 10 ** math.ceil(math.log10(max(values)) + 1e-9)
    return 0.0, max(values) * 1.1 or 1.0


def y_of(value: float, low: float, high: float, logarithmic: bool) -> float:
    if logarithmic:
        value, low, high = math.log(value), math.log(low), math.log(high)
    return HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - BOTTOM - TOP)
