"""What `tidegate simulate` says: of the runs without a misfortune, of a seed that failed, of the whole. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidegate.testing.simulation.comparing import Difference
from tidegate.testing.simulation.simulating import Failure, Report
from tidegate.wording import counted

SHOWN_RECORDS = 5
_KINDS = {
    "ProcessDies": ("death at a step of the protocol", "deaths at steps of the protocol"),
    "DiesInSink": ("death within a sink", "deaths within a sink"),
    "OutsideFails": ("failed call of a sink", "failed calls of sinks"),
    "StorageFails": ("failed call of the storage", "failed calls of the storage"),
}
NO_INTERVAL = (
    "the job takes no checkpoints, so a failure would end it, or begin it anew. It is simulated as if it took some: give it "
    'env.checkpointing(every="10s", storage="file:///...")'
)
AT_LEAST_ONCE = (
    "  The job's checkpoints are at-least-once: after a failure records count twice, in its state as well. Nothing is",
    "  compared but that it comes to its end.",
)
_BY_CHANCE = (
    "  Such records depend on the order in which others arrive, on the clock, or on chance (random, uuid, the order of a",
    "  set). Nothing is wrong with that, but no run can be compared with another. To see more: let the job emit what does not",
    "  depend on the order (the last value of a key or of a window), and take times from its records. Globals of modules are",
    "  another reason: here they outlive a run, and on executors a worker.",
)
_BY_ORDER = (
    "  No misfortune is needed: the order of events alone does it. Either results depend on the order of records, so rarely",
    "  that the runs at the beginning were the same, or the job keeps something where no checkpoint finds it.",
)


def plain_lines(report: Report, outsides: Mapping[str, str]) -> list[str]:
    """`outsides`: what stands in for that of each sink."""
    same = "which differ" if report.plain_differences else "all the same"
    lines = [f"{report.job}: {report.plain_runs} runs without a misfortune, {same}"]
    for uid, each in report.expected.items():
        told = f"{counted(each.rows.total(), 'record')}, {outsides[uid]}"
        lines.append("; ".join(part for part in (f"  {uid:<16} {told}", each.in_words()) if part))
    for uid, differ in report.plain_differences.items():
        shown = next((each for each in differ if each.lost or each.foreign), differ[0])
        lines += ["", f"{uid}: without any misfortune something else comes out when events come in another order:"]
        lines += [f"  in one run      {row}" for row in (shown.lost + shown.doubled)[:SHOWN_RECORDS]]
        lines += [f"  in another      {row}" for row in shown.foreign[:SHOWN_RECORDS]]
        lines += _BY_CHANCE
    if report.at_least_once:
        lines += AT_LEAST_ONCE
    return lines


def failure_lines(failure: Failure, again: str) -> list[str]:
    lines = ["", str(failure)]
    for each in failure.differences:
        lines += _records(each)
    if not failure.needed:
        lines += _BY_ORDER
    elif failure.runs:
        order = "in this seed's order of events" if failure.own_order else "in the order of events of a plain run"
        needs = counted(len(failure.needed), "misfortune")
        lines.append(f"  It takes {needs} of the {len(failure.misfortunes)} that were drawn, {order}:")
    else:
        lines.append(f"  Of {counted(len(failure.needed), 'misfortune')} that were drawn (--shrink finds the fewest):")
    lines += [f"    {each}" for each in failure.needed]
    if failure.story:
        lines.append("  What happened, in this order:")
        lines += [f"    {number}. {what}" for number, what in enumerate(failure.story, 1)]
    return [*lines, f"  Again: {again}"]


def _records(found: Difference) -> Iterable[str]:
    for what, rows in (("lost", found.lost), ("doubled", found.doubled), ("foreign", found.foreign)):
        more = len(rows) - SHOWN_RECORDS
        shown = [*rows[:SHOWN_RECORDS], *([f"... and {more:,} more"] if more > 0 else [])]
        yield from (f"  {'' if place else what:<8} {row}" for place, row in enumerate(shown))


def end_lines(report: Report, first_seed: int, interrupted: bool, took: str) -> list[str]:
    if interrupted and not report.seeds:
        return ["", "interrupted before the first seed"]
    seeds = f"{counted(report.seeds, 'seed')} from {first_seed}"
    if report.failures:
        result = f"{len(report.failures)} failed: {', '.join(str(each.seed) for each in report.failures)}"
    elif not report.compares:
        result = "each came to its end; nothing could be compared"
    else:
        result = "nothing was lost, doubled or different"
    happened = [f"{number:,} {_KINDS[kind][number != 1]}" for kind, number in report.happened.items()]
    told = f"interrupted after {seeds}: {result}" if interrupted else f"{seeds}: {result}"
    what = ", ".join(happened) or "no misfortune came to pass"
    return ["", told, f"  {what}; {counted(report.checkpoints, 'checkpoint')}; {took}"]
