"""Records whose time windows cannot use: those that come too late, and those that have none. Executor."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from tidegate.errors import ContractError

if TYPE_CHECKING:
    from tidegate.functions.windows import WindowAssigner

LATE_RECORDS = "late_records_dropped"  #: the counter of those that no window takes and nobody reads


def refuse_without_time(assigner: WindowAssigner, of: str = "this stream") -> NoReturn:
    """:raises ContractError: a window of event time needs the time of each record."""
    raise ContractError(
        f"{assigner!r} is a window of event time, and the records of {of} have none: call "
        "assign_timestamps_and_watermarks(...) before key_by, or take a window of processing time"
    )
