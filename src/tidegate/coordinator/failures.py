"""Failures of slots as errors that a user can act on: what ran there, where it was, and whether a restart can help. Driver."""

from __future__ import annotations

from typing import Any

from tidegate.cells import with_cells
from tidegate.errors import CommitLost, JobFailed, TidegateError, UserCodeFailed
from tidegate.graph.plan import JobPlan
from tidegate.ids import SlotId
from tidegate.protocol.repeated_mistakes import Mistake, mistake_of
from tidegate.wire.control import SlotFailed, Start, Unsendable


def lost_slot(plan: JobPlan, slot: SlotId, reason: str) -> JobFailed:
    """With what ran in it: nobody knows which of them was at work."""
    message = f"slot {slot} was lost: {reason}"
    context: dict[str, object] = {}
    for chain, subtask in plan.hosted_in(slot):
        names = " -> ".join(planned.operator.name for planned in chain.operators)
        message += f"\n  with {names} (uid {chain.head.uid!r}), subtask {subtask}"
        context = context or {"operator": names, "uid": chain.head.uid, "subtask": subtask}
    return JobFailed(message, slot=str(slot), lost_slot=str(slot), **context)


def unsendable_start(plan: JobPlan, slot: SlotId, start: Start, error: Unsendable) -> JobFailed:
    """What the slot was to continue from does not fit into a message."""
    message = f"slot {slot} cannot be told what it continues from: {error}"
    for restored in start.subtasks:
        waiting = sum(len(committable.payload) for committable in restored.committables)
        if waiting or restored.splits:
            message += (
                f"\n  uid {restored.uid!r}, subtask {restored.subtask}: {len(restored.splits)} splits, {waiting} bytes that "
                "wait to be committed"
            )
    message += "\n  Start the job with a higher parallelism, so that each subtask has less of it."
    return JobFailed(message, slot=str(slot))


def failure_of(failed: SlotFailed) -> tuple[TidegateError, bool]:
    """The error to show the user, and whether a restart cannot help."""
    line = with_cells(failed.user_line)
    context: dict[str, Any] = {
        "operator": failed.operator,
        "uid": failed.uid,
        "subtask": failed.subtask,
        "checkpoint": failed.checkpoint,
        "user_line": line,
        "cause": with_cells(failed.traceback),
    }
    if failed.kind == "user" and not failed.may_pass:
        context["mistake"] = mistake_of(failed.uid, failed.message, failed.user_line)
    message = with_cells(failed.message)
    if failed.operator:
        message += f"\n  in {failed.operator} (uid {failed.uid!r}), subtask {failed.subtask}"
        if failed.checkpoint is not None:
            message += f", checkpoint {failed.checkpoint}"
        if line:
            message += f", at {line}"
    match failed.kind:
        case "user":
            return UserCodeFailed(message, **context), False
        case "commit_lost":
            return CommitLost(message, **context), True
        case "permanent":
            return JobFailed(message, **context), True
        case _:
            return JobFailed(message, **context), False


def mistake_in(error: TidegateError) -> Mistake | None:
    """What of it would come again with the same input; None where nothing says that it must."""
    mistake = error.context.get("mistake")
    return mistake if isinstance(mistake, Mistake) else None


def not_restarted(error: TidegateError) -> TidegateError:
    """The same error, saying why the job is not restarted after it, and how to have it restarted all the same."""
    return type(error)(
        f"{error.message}\n  The job is not restarted any more: this error has come twice, from the same line, before the "
        "run's first checkpoint was complete, so it would come again for ever. Correct the function and start the job again. "
        'To have it restarted all the same, choose a strategy: env.restart_strategy("exponential-delay"), or '
        "-D restart-strategy.type=exponential-delay",
        **error.context,
    )
