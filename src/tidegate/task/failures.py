"""An exception in a slot, as a message to the driver: where it happened, the user's line, the cause. Executor."""

from __future__ import annotations

import traceback

from tidegate.errors import (
    CheckpointDamaged,
    CommitLost,
    ConfigurationError,
    ConnectorError,
    KeyTypeError,
    ProtocolViolation,
    StorageError,
    TidegateError,
)
from tidegate.graph.specs import SinkSpec, SourceSpec
from tidegate.shown import MAX_TEXT, shown_error
from tidegate.storage.store import StorageNotShared
from tidegate.task.code_owners import Owner, owner_of
from tidegate.task.hints import hint_for
from tidegate.task.operators.base import OperatorFailed, RunningOperator
from tidegate.wire.control import SlotFailed

MAX_CAUSES = 100  #: that are followed; they may go round in a circle


def describe_failure(error: BaseException) -> SlotFailed:
    """An exception as a message: where it happened, the user's line, the cause."""
    operator = checkpoint = place = None
    cause = error
    if isinstance(error, OperatorFailed):
        operator, cause, checkpoint, place = error.operator, error.cause, error.checkpoint, error.place
    match cause:
        case CommitLost():
            kind = "commit_lost"
        case ConfigurationError() | KeyTypeError() | CheckpointDamaged() | StorageNotShared():
            kind = "permanent"
        case ConnectorError():
            kind = "connector"
        case ProtocolViolation() | StorageError():
            kind = "internal"
        case _:
            kind = "user" if operator is not None else "internal"
    return SlotFailed(
        kind=kind,
        message=shown_error(cause) + hint_for(cause, operator),
        traceback="".join(traceback.format_exception(type(cause), cause, cause.__traceback__))[-MAX_TEXT:],
        operator="" if place is None else place.name,
        uid="" if place is None else place.uid,
        subtask=-1 if operator is None else operator.subtask,
        checkpoint=checkpoint,
        user_line=_user_line(cause) or _known_line(cause) or ("" if place is None else place.line),
        may_pass=operator is None or _may_pass(operator, cause),
    )


def _known_line(error: BaseException) -> str:
    """Where no frame of the user's is left: a function had returned what was then refused."""
    return str(error.context.get("user_line", "")) if isinstance(error, TidegateError) else ""


def _may_pass(operator: RunningOperator, error: BaseException) -> bool:
    """Whether the same call may succeed later. A source, a sink, a connection, a file, a full memory: all of them change.
    What a function does with a record is taken to be the same each time."""
    if isinstance(operator.planned.operator.spec, (SourceSpec, SinkSpec)):
        return True
    found: BaseException | None = error
    for _ in range(MAX_CAUSES):
        if found is None:
            return False
        if isinstance(found, (OSError, MemoryError)):
            return True
        found = found.__cause__ or found.__context__
    return False


def _user_line(error: BaseException) -> str:
    """The innermost line of the traceback that is neither ours nor a library's."""
    found = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if owner_of(frame.filename) is Owner.USER:
            found = f"{frame.filename}:{frame.lineno}"
    return found
