"""Every metric there is: name, type, help. Driver; pure data.

`GET /metrics` takes HELP and TYPE from here, docs/metrics.md has a row for each, and the Grafana board and alert rules in
operations/ may name no other; tests hold all of them together. Flink's names are as its Prometheus reporter writes them. What
Flink has no name for begins with `tidegate_` and follows Prometheus' conventions: seconds, bytes, `_total`.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_]")


class Type(enum.Enum):
    COUNTER = "counter"  #: only grows; those of slots begin anew with each attempt
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


_JOB = ("job_id", "job_name")
_TASK = (*_JOB, "task_id", "task_name", "task_attempt_num", "subtask_index", "host", "tm_id")


class Scope(enum.Enum):
    """What a metric is of: what its names begin with, and its labels."""

    JOB = ("flink_jobmanager_job_", _JOB)
    TASK = ("flink_taskmanager_job_task_", _TASK)
    OPERATOR = ("flink_taskmanager_job_task_operator_", (*_TASK, "operator_id", "operator_name"))
    OUR_JOB = ("tidegate_job_", _JOB)
    WORKER = ("tidegate_worker_", (*_JOB, "slot", "host", "tm_id"))
    DRIVER = ("process_", ())

    def __init__(self, prefix: str, labels: tuple[str, ...]) -> None:
        self.prefix = prefix
        self.labels = labels


@dataclass(frozen=True, slots=True)
class Metric:
    scope: Scope
    name: str  #: as REST lists it
    type: Type
    help: str
    more_labels: tuple[str, ...] = ()

    @property
    def family(self) -> str:
        """As Prometheus has it."""
        return family_name(self.scope, self.name)

    @property
    def labels(self) -> tuple[str, ...]:
        return (*self.scope.labels, *self.more_labels)


def family_name(scope: Scope, name: str) -> str:
    return scope.prefix + _NOT_IN_A_NAME.sub("_", name)


def _rows(scope: Scope, *rows: tuple[str, Type, str]) -> list[Metric]:
    return [Metric(scope, name, type, help) for name, type, help in rows]


C, G, H = Type.COUNTER, Type.GAUGE, Type.HISTOGRAM

_FLOW = (
    ("numRecordsIn", C, "records taken in"),
    ("numRecordsOut", C, "records emitted"),
    ("numBytesIn", C, "bytes of records from other slots"),
    ("numBytesOut", C, "bytes of records to other slots"),
    ("numRecordsInPerSecond", G, "records taken in, a second, over the last three"),
    ("numRecordsOutPerSecond", G, "records emitted, a second, over the last three"),
    ("numBytesInPerSecond", G, "bytes of records from other slots, a second"),
    ("numBytesOutPerSecond", G, "bytes of records to other slots, a second"),
)

METRICS: tuple[Metric, ...] = (
    *_rows(
        Scope.JOB,
        ("numRestarts", C, "restarts since the driver began, rescales among them"),
        ("uptime", G, "milliseconds that it has been running without a break; 0 while it is not"),
        ("runningState", G, "1 while the job is RUNNING"),
        ("restartingState", G, "1 while the job is RESTARTING"),
        ("initializingState", G, "1 while its slots start or restore"),
        ("createdState", G, "1 before it has begun"),
        ("totalNumberOfCheckpoints", C, "checkpoints that were triggered"),
        ("numberOfInProgressCheckpoints", G, "checkpoints in progress"),
        ("numberOfCompletedCheckpoints", C, "checkpoints that have completed"),
        ("numberOfFailedCheckpoints", C, "checkpoints that were given up"),
        ("lastCompletedCheckpointId", G, "id of the newest completed checkpoint"),
        ("lastCheckpointCompletedTimestamp", G, "when it was complete, in milliseconds since the epoch"),
        ("lastCheckpointDuration", G, "milliseconds from its trigger until it was complete"),
        ("lastCheckpointSize", G, "bytes that were stored for it"),
        ("lastCheckpointFullSize", G, "bytes of the whole state in it"),
        ("lastCheckpointProcessedData", G, "always 0: what is processed during alignment is not counted"),
        ("lastCheckpointPersistedData", G, "bytes of records in flight that an unaligned one stored"),
        (
            "lastCheckpointRestoreTimestamp",
            G,
            "when the newest restore was, in milliseconds since the epoch; -1: never",
        ),
        ("lastRestoreDuration", G, "milliseconds that the slowest slot took for the newest restore"),
        ("restoredLocalBytes", G, "bytes that the newest restore took from copies on local disks"),
        ("restoredStorageBytes", G, "bytes that the newest restore took from storage"),
        ("rejectedLocalCopies", G, "damaged copies that the newest restore did not use"),
    ),
    *_rows(
        Scope.TASK,
        *_FLOW,
        ("busyTimeMsPerSecond", G, "milliseconds of each second in which the slot worked"),
        ("idleTimeMsPerSecond", G, "milliseconds of each second in which it had nothing to do"),
        (
            "backPressuredTimeMsPerSecond",
            G,
            "milliseconds of each second in which the next slots did not take its output",
        ),
        ("isBackPressured", G, "1 while more than a tenth of its time is back-pressure"),
        ("accumulateBusyTimeMs", C, "milliseconds in which the slot worked"),
        ("accumulateIdleTimeMs", C, "milliseconds in which it had nothing to do"),
        ("accumulateBackPressuredTimeMs", C, "milliseconds in which the next slots did not take its output"),
        ("inboxBytes", G, "bytes of input that wait in memory"),
        ("heldBytes", G, "bytes that alignment holds back"),
        ("currentInputWatermark", G, "event time of the first operator, in milliseconds since the epoch"),
        ("checkpointAlignmentTime", G, "nanoseconds between the first and the last barrier of the newest checkpoint"),
        ("checkpointStartDelayNanos", G, "nanoseconds from the newest checkpoint's trigger to its first barrier here"),
        (
            "longestPauseMs",
            G,
            "longest time in which the slot heard nothing, in milliseconds, before the newest checkpoint",
        ),
    ),
    *_rows(
        Scope.OPERATOR,
        *_FLOW,
        ("currentOutputWatermark", G, "event time, in milliseconds since the epoch"),
        ("watermarkLag", G, "milliseconds that event time is behind the clock"),
        ("stateSize", G, "bytes of its state in the newest completed checkpoint"),
        ("pendingRecords", G, "Kafka: records that are in its partitions and not read yet"),
        ("KafkaSourceReader.KafkaConsumer.records-lag-max", G, "Kafka: the same, of the partition with the most"),
        ("numCommits", C, "sinks: calls of the committer that have returned"),
        ("accumulateCommitTimeMs", C, "sinks: milliseconds that they took"),
        ("lastCommitDuration", G, "sinks: milliseconds that the newest of them took"),
        ("pendingCommittables", G, "sinks: prepared and not committed yet"),
        ("successfulCommittables", C, "sinks: committed"),
        ("alreadyCommittedCommittables", C, "sinks: found committed by an earlier try"),
        ("retriedCommittables", C, "sinks: not now, to be tried again; each try counts"),
        ("failedCommittables", C, "sinks: neither committed nor committable; the job ends"),
        ("rocksdb.block-cache-usage", G, "RocksDB: bytes in the block cache, which all databases of a slot share"),
        ("rocksdb.cur-size-all-mem-tables", G, "RocksDB: bytes that wait in memory to become files"),
        ("rocksdb.estimate-pending-compaction-bytes", G, "RocksDB: bytes that compaction has still to rewrite"),
        ("rocksdb.num-files-at-level0", G, "RocksDB: files that compaction has not merged yet"),
        ("rocksdb.live-sst-files-size", G, "RocksDB: bytes of its table files"),
        ("rocksdb.estimate-num-keys", G, "RocksDB: rows, estimated"),
    ),
    Metric(Scope.OUR_JOB, "failures_total", C, "attempts that failed, by the kind of the error", ("kind",)),
    Metric(
        Scope.OUR_JOB,
        "failed_checkpoints_total",
        C,
        "checkpoints that were given up while the job ran on, by reason",
        ("reason",),
    ),
    Metric(
        Scope.OUR_JOB,
        "scaling_decisions_total",
        C,
        "what the autoscaler has decided: rescaled, or held where more would help and could not be had",
        ("outcome",),
    ),
    Metric(Scope.OUR_JOB, "checkpoint_duration_seconds", H, "from the trigger until a checkpoint was complete"),
    Metric(
        Scope.OUR_JOB,
        "latency_seconds",
        H,
        "from a source to a vertex, measured with the barriers of aligned checkpoints, one for each subtask",
        ("task_id", "task_name"),
    ),
    Metric(Scope.WORKER, "resident_memory_bytes", G, "memory of a slot's Python process"),
    Metric(Scope.WORKER, "cpu_seconds_total", C, "CPU time of a slot's Python process"),
    Metric(Scope.DRIVER, "resident_memory_bytes", G, "memory of the driver's Python process"),
    Metric(Scope.DRIVER, "cpu_seconds_total", C, "CPU time of the driver's Python process"),
)

BY_FAMILY = {metric.family: metric for metric in METRICS}
