"""One job as a screen: header, operators, checkpoints, latest failure. Driver; pure: events and the time in, renderables out.

Used by display.py's thread alone, so nothing here is locked.
"""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from tidegate.config import JobConfig
from tidegate.coordinator.observing import (
    AttemptFailed,
    AttemptStarted,
    CheckpointStatistics,
    CheckpointStatus,
    JobEvent,
    JobStatus,
    JobView,
    SlotReported,
    StatusChanged,
)
from tidegate.coordinator.rates import OperatorRates, RateMeter
from tidegate.graph.plan import Chain, JobPlan, PlannedOperator
from tidegate.graph.specs import SinkSpec, SourceSpec
from tidegate.wording import counted, how_big_in_all, how_long, how_long_whole, how_many

CHECKPOINTS_SHOWN = 5
FAILURE_LINES = 4
FAILURE_CHARACTERS = 400  #: of each; it is wrapped, so that the way out can be read
TOTALS_FROM_WIDTH = 100
HIGH_LOAD = 0.8
_FIXED_LINES = 11  #: rules, headings, empty and wrapped lines
_STATUS_STYLES = {
    JobStatus.CREATED: "yellow",
    JobStatus.INITIALIZING: "yellow",
    JobStatus.WAITING: "yellow",
    JobStatus.RUNNING: "bold green",
    JobStatus.RESTARTING: "bold yellow",
    JobStatus.FINISHED: "bold green",
    JobStatus.CANCELED: "bold yellow",
    JobStatus.FAILED: "bold red",
}


class JobScreen:
    """The state of one job's display."""

    def __init__(self, plan: JobPlan, config: JobConfig, started_at: float, url: str | None = None) -> None:
        self.plan = plan  #: the newest: a rescaled job has another
        self._config = config
        self._started_at = started_at
        self._url = url
        self._view = JobView(history=100)  #: a copy of our own, so that no lock is shared with the coordinator
        self._rates = RateMeter()
        self._failed_at: AttemptFailed | None = None
        self._ended_at: float | None = None
        self.interrupted = False

    @property
    def status(self) -> JobStatus:
        return self._view.status

    def on(self, event: JobEvent, at: float) -> None:
        self._view.publish(event)
        match event:
            case StatusChanged(status) if status is not JobStatus.RUNNING:
                self._rates.clear()  # nothing flows: what was measured last is not of now
            case AttemptStarted():
                self._rates.clear()
            case SlotReported(slot, heartbeat):
                self._rates.note(slot, heartbeat, at)
            case AttemptFailed():
                self._failed_at = event
        if self._view.status.is_terminal and self._ended_at is None:
            self._ended_at = at

    def render(self, now: float, width: int = 120, height: int = 50) -> RenderableType:
        """At most about `height` lines: the middle of a long list of operators is left out."""
        parts: list[RenderableType] = [Rule(style="dim"), self._header(now)]
        if self._view.status is JobStatus.WAITING:
            parts.append(Text(f"  {_first_line(self._view.status_detail)}", style="yellow"))
        checkpoints = self._checkpoints(now)
        failure = self._failure(now)
        if not self._view.status.is_terminal:  # the last heartbeat is older than the end: its counts would be wrong
            free = height - _FIXED_LINES - len(checkpoints) - len(failure)
            parts += [Text(""), self._operators(width, max(3, free))]
        for block in (checkpoints, failure):
            if block:
                parts += [Text(""), *block]
        return Group(*parts)

    # -- parts --------------------------------------------------------------------------------------------------------

    def _header(self, now: float) -> RenderableType:
        view = self._view
        status = view.status.value
        if self.interrupted and not view.status.is_terminal:
            status = "CANCELING"
        header = Text(no_wrap=True, overflow="ellipsis")
        header.append(self.plan.job, style="bold")
        header.append("  ")
        if view.status is JobStatus.RESTARTING:
            status += f" {view.status_detail.partition(':')[0]}"  # why, is shown as the latest failure
        header.append(f"● {status}", style=_STATUS_STYLES[view.status])
        ended = now if self._ended_at is None else self._ended_at
        facts = [f"{'up' if self._ended_at is None else 'after'} {how_long_whole(ended - self._started_at)}"]
        if self._url is not None and not view.status.is_terminal:
            facts.append(self._url)  # early: the end of the line is cut off where there is no room
        facts.append(counted(len(self.plan.slots), "slot"))
        if view.attempt is not None:
            facts.append(f"attempt {view.attempt}")
        if view.restarts:
            facts.append(counted(view.restarts, "restart"))
        if view.restored_from is not None:
            facts.append(f"restored from checkpoint {view.restored_from}")
        header.append("  " + " · ".join(facts), style="dim")
        return header

    def _operators(self, width: int, lines: int) -> Table:
        with_totals = width >= TOTALS_FROM_WIDTH
        numbers = ["par", "in/s", "out/s", *(["in", "out"] if with_totals else [])]
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("operator", no_wrap=True, overflow="ellipsis", max_width=width - (78 if with_totals else 60))
        for heading in numbers:
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("load", no_wrap=True)
        for heading in ("busy", "idle", "back-pr."):
            table.add_column(heading, justify="right", no_wrap=True)
        rates = self._rates.operators()
        rows = [row for layer in self.plan.layers for chain in layer.chains for row in in_tree(chain)]
        shown = rows if len(rows) <= lines else [*rows[: lines - 2], None, rows[-1]]
        for row in shown:
            if row is None:
                table.add_row(Text(f"... {len(rows) - lines + 1} more", style="dim"))
            else:
                table.add_row(*_operator_row(row[0], row[1], rates.get(row[0].uid), with_totals))
        return table

    def _checkpoints(self, now: float) -> list[RenderableType]:
        view = self._view
        if self._config.interval_s is None and not view.checkpoints:
            return []
        heading = Text(no_wrap=True, overflow="ellipsis").append("checkpoints", style="dim")
        heading.append(f"  {view.completed:,} completed")
        if view.failed:
            heading.append(f", {view.failed:,} failed", style="red")
        if self._config.interval_s is not None:
            heading.append(f"  every {how_long(self._config.interval_s)}", style="dim")
        if self._config.storage is not None:
            heading.append(f" · {self._config.storage}", style="dim")
        newest = list(view.checkpoints.values())[-CHECKPOINTS_SHOWN:]
        return [heading, *(_checkpoint_line(checkpoint, now) for checkpoint in reversed(newest))]

    def _failure(self, now: float) -> list[RenderableType]:
        failed = self._failed_at
        detail = self._view.status_detail
        if self._view.status is JobStatus.FAILED and (failed is None or detail not in failed.error):
            return [Padding(Text(detail[:FAILURE_CHARACTERS], style="red"), (0, 0, 0, 2))]  # it ended before an attempt
        if failed is None or self._view.status is JobStatus.FAILED:
            return []  # the error itself is shown when the job has failed for good
        heading = Text(no_wrap=True, overflow="ellipsis").append("latest failure", style="red")
        heading.append(f"  attempt {failed.attempt}, {how_long_whole(now - failed.at)} ago", style="dim")
        lines = failed.error.strip().splitlines()[:FAILURE_LINES]
        return [heading, *(Padding(Text(line.strip()[:FAILURE_CHARACTERS]), (0, 0, 0, 2)) for line in lines)]


def in_tree(chain: Chain) -> list[tuple[PlannedOperator, int]]:
    """The operators of a chain with their depth below its head, parents before children."""
    depths = {chain.head.uid: 0}
    for operator in chain.operators:
        for link in operator.chained:
            depths[link.downstream] = depths[operator.uid] + 1
    return [(operator, depths[operator.uid]) for operator in chain.operators]


def _operator_row(
    operator: PlannedOperator, depth: int, rates: OperatorRates | None, with_totals: bool
) -> list[RenderableType]:
    name = Text("  " * (depth - 1) + "└ " if depth else "", style="dim")
    name.append(operator.operator.name.strip(), style="not dim")
    if operator.operator.uid_given and operator.uid != operator.operator.name and "~" not in operator.uid:
        name.append(f" {operator.uid}", style="dim")
    cells: list[RenderableType] = [name, str(operator.parallelism)]
    if rates is None:
        return cells
    has_input = not isinstance(operator.operator.spec, SourceSpec)
    has_output = not isinstance(operator.operator.spec, SinkSpec)
    cells.append(_rate(rates.in_per_s) if has_input else "")
    cells.append(_rate(rates.out_per_s) if has_output else "")
    if with_totals:
        cells.append(Text(how_many(rates.records_in) if has_input else "", style="dim"))
        cells.append(Text(how_many(rates.records_out) if has_output else "", style="dim"))
    return cells if depth else [*cells, *_load(rates)]


def _rate(per_s: float | None) -> str:
    return "" if per_s is None else how_many(per_s)


def _load(rates: OperatorRates) -> list[RenderableType]:
    """A bar of ten and its numbers. The operators of a chain share their slots, so the head shows it for all."""
    if rates.busy is None or rates.idle is None or rates.backpressured is None:
        return []
    held = round(rates.backpressured * 10)
    busy = min(round(rates.busy * 10), 10 - held)
    bar = Text("█" * busy, style="green" if rates.busy < HIGH_LOAD else "yellow")
    bar.append("█" * held, style="red").append("░" * (10 - busy - held), style="dim")
    pressure = Text(f"{rates.backpressured:.0%}", style="red" if held else "")
    return [bar, f"{rates.busy:.0%}", f"{rates.idle:.0%}", pressure]


def _checkpoint_line(checkpoint: CheckpointStatistics, now: float) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    acknowledged = f"{len(checkpoint.acknowledged)}/{checkpoint.slots} slots"
    match checkpoint.status:
        case CheckpointStatus.IN_PROGRESS:
            line.append("  … ", style="yellow").append(f"{checkpoint.checkpoint:<5} ")
            line.append(f"{how_long(now - checkpoint.triggered_at):>8}  {acknowledged}", style="yellow")
        case CheckpointStatus.COMPLETED:
            line.append("  ✓ ", style="green").append(f"{checkpoint.checkpoint:<5} ")
            line.append(
                f"{how_long(checkpoint.duration_s or 0.0):>8}  {acknowledged}  "
                f"{how_big_in_all(checkpoint.size_bytes, checkpoint.added_bytes):>8}"
            )
            alignment = max((part.timings.alignment_s for part in checkpoint.acknowledged.values()), default=0.0)
            line.append(f"  aligned within {how_long(alignment):>6}", style="dim")
            ended = checkpoint.triggered_at + (checkpoint.duration_s or 0.0)
            line.append(f"  {how_long_whole(now - ended)} ago", style="dim")
        case CheckpointStatus.FAILED:
            line.append("  ✗ ", style="red").append(f"{checkpoint.checkpoint:<5} ")
            line.append(f"{acknowledged}  ").append(_first_line(checkpoint.failure), style="red")
    if checkpoint.purpose not in ("periodic", ""):
        line.append(f"  {checkpoint.purpose}", style="dim")
    return line


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else ""
