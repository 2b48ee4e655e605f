"""An exception in a slot, as a message to the driver: where it happened, the user's line, the cause. Executor."""

from __future__ import annotations

import os
import traceback

from tidegate.errors import (
    CheckpointDamaged,
    CommitLost,
    ConfigurationError,
    ConnectorError,
    ProtocolViolation,
    StorageError,
)
from tidegate.shown import MAX_TEXT, shown_error
from tidegate.storage.store import StorageNotShared
from tidegate.task.operators.base import OperatorFailed
from tidegate.wire.control import SlotFailed

_OUR_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def describe_failure(error: BaseException) -> SlotFailed:
    """An exception as a message: where it happened, the user's line, the cause."""
    operator = checkpoint = None
    cause = error
    if isinstance(error, OperatorFailed):
        operator, cause, checkpoint = error.operator, error.cause, error.checkpoint
    match cause:
        case CommitLost():
            kind = "commit_lost"
        case ConfigurationError() | CheckpointDamaged() | StorageNotShared():
            kind = "permanent"
        case ConnectorError():
            kind = "connector"
        case ProtocolViolation() | StorageError():
            kind = "internal"
        case _:
            kind = "user" if operator is not None else "internal"
    return SlotFailed(
        kind=kind,
        message=shown_error(cause),
        traceback="".join(traceback.format_exception(type(cause), cause, cause.__traceback__))[-MAX_TEXT:],
        operator="" if operator is None else operator.name,
        uid="" if operator is None else operator.uid,
        subtask=-1 if operator is None else operator.subtask,
        checkpoint=checkpoint,
        user_line=_user_line(cause) or ("" if operator is None else str(operator.planned.operator.line)),
    )


def _user_line(error: BaseException) -> str:
    """The innermost line of the traceback that is neither ours nor a library's."""
    found = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if (
            frame.filename.startswith(_OUR_FOLDER)
            or "site-packages" in frame.filename
            or frame.filename.startswith("<")
        ):
            continue
        if os.sep + "lib" + os.sep + "python" in frame.filename:
            continue
        found = f"{frame.filename}:{frame.lineno}"
    return found
