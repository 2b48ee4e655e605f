"""Records whose time windows and joins cannot use: those that come too late, and those that have none. Executor."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from tidegate.errors import ContractError
from tidegate.functions.joins import SIDES
from tidegate.protocol.watermarks import IDLE, MAX_WATERMARK, MIN_WATERMARK

if TYPE_CHECKING:
    from tidegate.functions.windows import WindowAssigner
    from tidegate.task.operators.base import RunningOperator

LATE_RECORDS = "late_records_dropped"  #: the counter of those that no window takes and nobody reads


def refuse_without_time(assigner: WindowAssigner, of: str = "this stream") -> NoReturn:
    """:raises ContractError: a window of event time needs the time of each record."""
    raise ContractError(
        f"{assigner!r} is a window of event time, and the records of {of} have none: call "
        "assign_timestamps_and_watermarks(...) before key_by, or take a window of processing time"
    )


def refuse_join_without_time(operator: RunningOperator, side: int) -> NoReturn:
    """:raises ContractError: a join by event time needs the time of each record."""
    raise ContractError(
        f"{operator.name} joins by event time, and the records of its {SIDES[side]} input have none: "
        "call assign_timestamps_and_watermarks on it before key_by",
        user_line=str(operator.planned.operator.line),
    )


def held_back(watermark: int, hold_ms: int) -> int:
    """What has met nobody leaves with its own time, later than that: whoever comes next must not take it for late."""
    if watermark in (IDLE, MAX_WATERMARK) or not hold_ms:
        return watermark
    return max(watermark - hold_ms, MIN_WATERMARK + 2)
