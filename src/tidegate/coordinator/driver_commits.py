"""The second phase of sinks that have one log for all subtasks: a table. Driver; no Spark job, the job holds all slots.

    step 5c   the checkpoint is in the log; each such sink publishes all of its committables in one step

Done by the thread that wrote the log record, before any slot is told; and before each attempt, for what it starts from: a
driver that dies between the two leaves it to the next.

A driver may be stopped at any place here, and wake up when another one has started the job from an older checkpoint. So it
looks into the log before each commit, and the sink looks whether the files are still there. What is left is a stop between
that look and the commit itself: docs/failure-scenarios.md says what comes of it.
"""

from __future__ import annotations

from collections.abc import Callable

from tidegate.errors import CommitLost, ConfigurationError, ConnectorError, ProtocolViolation
from tidegate.graph.plan import JobPlan
from tidegate.graph.specs import SinkSpec
from tidegate.ids import CheckpointId
from tidegate.protocol.logged import LoggedCheckpoint
from tidegate.storage.metadata import CheckpointMetadata


def commit_on_driver(
    plan: JobPlan,
    logged: LoggedCheckpoint,
    metadata: CheckpointMetadata,
    restored: bool,
    check_held: Callable[[], None],
) -> None:
    """`metadata` is that of `logged`. `check_held`: raises Superseded when another driver holds the job.

    :raises ConnectorError: :raises ConfigurationError: :raises CommitLost: naming the sink. What was published stays so.
    :raises Superseded: :raises StorageError: by `check_held`; nothing more was published.
    """
    if metadata.checkpoint != logged.id:
        raise ProtocolViolation(f"checkpoint {metadata.checkpoint} is to be committed by the record of {logged.id}")
    for operator in plan.operators:
        spec = operator.operator.spec
        if not isinstance(spec, SinkSpec) or not spec.sink.commits_on_driver:
            continue
        prepared = [
            (CheckpointId(committable.checkpoint), committable.payload)
            for slot in metadata.slots
            for subtask in slot.subtasks
            for committable in subtask.committables
            if committable.uid == operator.uid
        ]
        if not prepared:
            continue
        check_held()
        try:
            spec.sink.commit_on_driver(sorted(prepared), restored)
        except (ConfigurationError, CommitLost) as error:
            raise type(error)(f"{operator.operator} could not be committed: {error}") from error
        except Exception as error:
            raise ConnectorError(
                f"{operator.operator} could not be committed: {type(error).__name__}: {error}"
            ) from error
