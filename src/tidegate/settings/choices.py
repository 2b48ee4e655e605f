"""Settings that are one word of a few. Pure. Equal to their words, so that they can be written, compared and stored as text."""

from __future__ import annotations

import enum

from tidegate.settings.kinds import Choice


class CheckpointMode(enum.StrEnum):
    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


class ClaimMode(enum.StrEnum):
    """Whose is what the job was started from?"""

    NO_CLAIM = "no-claim"
    CLAIM = "claim"  #: the job's, which deletes it when newer checkpoints replace it


class Retention(enum.StrEnum):
    """Of checkpoints, when the job is canceled."""

    RETAIN = "retain"
    DELETE = "delete"


class StateBackendKind(enum.StrEnum):
    HASHMAP = "hashmap"
    ROCKSDB = "rocksdb"


class RestartKind(enum.StrEnum):
    EXPONENTIAL_DELAY = "exponential-delay"
    FIXED_DELAY = "fixed-delay"
    FAILURE_RATE = "failure-rate"
    NONE = "none"


class TypeChecks(enum.StrEnum):
    """Rows of each typed output that are held against its type."""

    FIRST = "first"
    ALL = "all"
    NONE = "none"


class OnTerm(enum.StrEnum):
    """What SIGTERM ends a job with."""

    CHECKPOINT = "checkpoint"
    SAVEPOINT = "savepoint"
    CANCEL = "cancel"


class LogFormat(enum.StrEnum):
    TEXT = "text"
    JSON = "json"


MODE = Choice(
    CheckpointMode,
    "checkpoint mode",
    flink={"exactly-once": "EXACTLY_ONCE", "at-least-once": "AT_LEAST_ONCE"},
    hint="; without checkpoints (leave out `every`) a record is processed at most once",
)
CLAIM_MODE = Choice(ClaimMode, "claim mode", flink={"claim": "CLAIM", "no-claim": "NO_CLAIM"})
RETENTION = Choice(
    Retention, "retention", flink={"retain": "RETAIN_ON_CANCELLATION", "delete": "DELETE_ON_CANCELLATION"}
)
STATE_BACKEND = Choice(StateBackendKind, "state backend", others={"heap": "hashmap"})
RESTART_KIND = Choice(
    RestartKind,
    "restart strategy",
    others={
        "disable": "none",
        "off": "none",
        "exponentialdelay": "exponential-delay",
        "fixeddelay": "fixed-delay",
        "failurerate": "failure-rate",
    },
)
TYPE_CHECKS = Choice(TypeChecks, "type check")
ON_TERM = Choice(OnTerm, "on_term")
LOG_FORMAT = Choice(LogFormat, "log format")
