"""The one table of configuration keys: Flink's own names, Tidegate's few, and Flink's that are not supported. Driver; pure.

The table drives parsing, the messages and docs/configuration.md (`configuration_table`). To support another key: move it
from UNSUPPORTED into OPTIONS, with the field of JobConfig that it sets.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.cli import option_values as read
from tidegate.cli.option_values import Reader


@dataclass(frozen=True, slots=True)
class Option:
    """A key that sets a field of JobConfig, or of its RestartSettings ("restart.delay_s")."""

    key: str
    field: str
    read: Reader
    default: str
    meaning: str
    aliases: tuple[str, ...] = ()  #: older names of Flink's; they mean the same
    strategy: str = ""  #: for which restart strategy it counts; "": for all


@dataclass(frozen=True, slots=True)
class FixedOption:
    """A key of Flink's for which Tidegate knows one way only; that value is accepted, others are refused."""

    key: str
    only: str
    reason: str
    aliases: tuple[str, ...] = ()


OPTIONS = (
    Option("execution.checkpointing.interval", "interval_s", read.duration, "none: no checkpoints",
           "time from one checkpoint's start to the next; at least 10 ms"),
    Option("execution.checkpointing.dir", "storage", read.word, "none",
           "where checkpoints and the job's log are kept: file:///..., s3://..., gs://..., az://..., hdfs://..., or memory "
           "(the driver's)",
           ("state.checkpoints.dir",)),
    Option("execution.checkpointing.mode", "mode", read.mode, "EXACTLY_ONCE",
           "EXACTLY_ONCE, or AT_LEAST_ONCE: nothing is held back, some records may count twice after a failure"),
    Option("execution.checkpointing.unaligned.enabled", "unaligned", read.flag, "false",
           "barriers overtake records, which become part of the checkpoint", ("execution.checkpointing.unaligned",)),
    Option("execution.checkpointing.aligned-checkpoint-timeout", "aligned_timeout_s", read.duration, "0 s",
           "with unaligned: start aligned, overtake after so long"),
    Option("execution.checkpointing.timeout", "timeout_s", read.duration, "10 min",
           "a checkpoint that takes longer is given up"),
    Option("execution.checkpointing.min-pause", "min_pause_s", read.duration, "0 s",
           "from the end of a checkpoint to the start of the next, at least"),
    Option("execution.checkpointing.max-concurrent-checkpoints", "max_concurrent", read.positive, "1",
           "checkpoints under way at a time"),
    Option("execution.checkpointing.tolerable-failed-checkpoints", "tolerable_failures", read.count, "0",
           "failed checkpoints in a row that do not fail the attempt"),
    Option("execution.checkpointing.num-retained", "retained", read.positive, "1", "completed checkpoints that are kept",
           ("state.checkpoints.num-retained",)),
    Option("execution.checkpointing.data-inline-threshold", "inline_limit_bytes", read.size, "20 kb",
           "smaller state is stored in the checkpoint's metadata instead of a file of its own",
           ("state.storage.fs.memory-threshold",)),
    Option("execution.state-recovery.path", "resume", read.word, "none",
           "continue from a checkpoint: its path, chk-N, or latest (same as --resume)",
           ("execution.savepoint.path",)),
    Option("execution.state-recovery.ignore-unclaimed-state", "allow_dropped_state", read.flag, "false",
           "continue although the checkpoint holds state of operators that the job no longer has",
           ("execution.savepoint.ignore-unclaimed-state",)),
    Option("execution.state-recovery.claim-mode", "claim_mode", read.claim_mode, "NO_CLAIM",
           "CLAIM: what the job continues from is its own, and deleted when newer checkpoints replace it",
           ("execution.savepoint-restore-mode",)),
    Option("execution.checkpointing.savepoint-dir", "savepoint_dir", read.word, "none",
           "where savepoints go that name no place", ("state.savepoints.dir",)),
    Option("execution.checkpointing.externalized-checkpoint-retention", "retention", read.retention,
           "RETAIN_ON_CANCELLATION",
           "RETAIN_ON_CANCELLATION, or DELETE_ON_CANCELLATION: a canceled job keeps no checkpoints; a failed one does"),
    Option("restart-strategy.type", "restart.kind", read.restart_kind,
           "exponential-delay with checkpoints, none without",
           "what happens after a failure: exponential-delay, fixed-delay, failure-rate or none", ("restart-strategy",)),
    Option("restart-strategy.exponential-delay.initial-backoff", "restart.delay_s", read.duration, "1 s",
           "pause before the second restart; the first comes at once", strategy="exponential-delay"),
    Option("restart-strategy.exponential-delay.max-backoff", "restart.max_delay_s", read.duration, "1 min",
           "longest pause", strategy="exponential-delay"),
    Option("restart-strategy.exponential-delay.backoff-multiplier", "restart.multiplier", read.number, "1.5",
           "by which the pause grows", strategy="exponential-delay"),
    Option("restart-strategy.exponential-delay.jitter-factor", "restart.jitter", read.number, "0.1",
           "part of the pause that is random", strategy="exponential-delay"),
    Option("restart-strategy.exponential-delay.reset-backoff-threshold", "restart.reset_after_s", read.duration, "1 h",
           "a job that ran so long starts again from the first pause", strategy="exponential-delay"),
    Option("restart-strategy.exponential-delay.attempts-before-reset-backoff", "restart.attempts", read.limit, "infinite",
           "restarts without such a time between them, then the job fails", strategy="exponential-delay"),
    Option("restart-strategy.fixed-delay.attempts", "restart.attempts", read.limit, "1", "restarts, then the job fails",
           strategy="fixed-delay"),
    Option("restart-strategy.fixed-delay.delay", "restart.delay_s", read.duration, "1 s", "pause before each",
           strategy="fixed-delay"),
    Option("restart-strategy.failure-rate.max-failures-per-interval", "restart.max_failures", read.positive, "1",
           "failures in the interval that are tolerated", strategy="failure-rate"),
    Option("restart-strategy.failure-rate.failure-rate-interval", "restart.interval_s", read.duration, "1 min",
           "the interval", strategy="failure-rate"),
    Option("restart-strategy.failure-rate.delay", "restart.delay_s", read.duration, "1 s", "pause before each restart",
           strategy="failure-rate"),
    Option("parallelism.default", "parallelism", read.positive, "the program's", "subtasks of each operator that has no "
           "number of its own (same as --parallelism)"),
    Option("execution.buffer-timeout.interval", "buffer_timeout_s", read.duration, "10 ms",
           "how long a record may wait for others to share its frame", ("execution.buffer-timeout",)),
    Option("tidegate.master", "master", read.word, "this machine", "Spark's master, like spark://host:7077 (same as --master)"),
    Option("python.files", "python_files", read.words, "none",
           "modules, packages, folders, wheels or zips for the program and the executors of a cluster, with commas between "
           "(same as --py-files)"),
    Option("python.archives", "python_archives", read.words, "none",
           "archives that are unpacked in the executors' working folders, path#name, with commas between them (same as "
           "--archives)"),
    Option("python.executable", "python_executable", read.word, "none: PYSPARK_PYTHON, or python3",
           "the executors' Python, like ./name/bin/python of an archive (same as --python)"),
    Option("tidegate.rest.enabled", "rest", read.flag, "true", "REST and the dashboard in the driver; see docs/rest.md"),
    Option("rest.port", "rest_port", read.count, "none: 8081, or the next free one",
           "where they listen; a number that is given must be free; 0: any free port"),
    Option("rest.bind-address", "rest_address", read.word, "localhost",
           "the address to listen on; one that others can reach asks every request for a token"),
    Option("tidegate.rest.token", "rest_token", read.word, "none: made up where one is needed",
           "what requests must carry: Authorization: Bearer TOKEN"),
    Option("tidegate.on-term", "on_term", read.word, "none: the variable TIDEGATE_ON_TERM, else checkpoint",
           "what SIGTERM ends the job with: checkpoint, savepoint or cancel (same as --on-term)"),
    Option("tidegate.on-term-timeout", "on_term_timeout_s", read.duration, "25 s",
           "how long that may take; then the program ends in any case. Supervisors kill after 30 s, or so"),
    Option("tidegate.log-format", "log_format", read.word, "text",
           "of what workers write to their standard error: text, or json for one object a line"),
    Option("pipeline.object-reuse", "object_reuse", read.flag, "false",
           "functions hand records on as they are, not as copies: quicker, and right where no function changes a record that "
           "another function, or it itself, still holds"),
    Option("tidegate.type-checks", "type_checks", read.type_checks, "first",
           "rows that are held against the type that their stream declares, where they leave their function: the "
           "first thousand "
           "of each output of each subtask, all, or none"),
    Option("tidegate.hot-keys", "hot_keys", read.flag, "true",
           "keyed operators sample their keys, and the hottest are shown; false where keys must not be seen"),
    Option("taskmanager.network.memory.buffer-debloat.enabled", "debloat", read.flag, "true",
           "a slot that cannot keep up lets its senders have only so many records under way as it can process in time"),
    Option("taskmanager.network.memory.buffer-debloat.target", "debloat_target_s", read.duration, "1 s",
           "that time, for the whole way from a source to the last slot (Flink counts it for each task)"),
    Option("tidegate.inbox-bytes", "inbox_bytes", read.size, "1 mb",
           "input that a slot buffers before it holds its senders back"),
    Option("tidegate.held-memory-bytes", "held_memory_bytes", read.size, "32 mb",
           "input held back for alignment in a slot's memory; more goes to its disk"),
    Option("tidegate.held-disk-bytes", "held_disk_bytes", read.size, "1 gb",
           "input held back for alignment on a slot's disk; at the limit the slot declines the checkpoint"),
    Option("state.backend.type", "state_backend", read.word, "hashmap",
           "where keyed state lives: hashmap (the workers' memory) or rocksdb (their local disks)", ("state.backend",)),
    Option("execution.checkpointing.incremental", "incremental", read.flag, "by the backend: true for rocksdb",
           "a checkpoint stores what has changed since the last one", ("state.backend.incremental",)),
    Option("state.backend.rocksdb.memory.fixed-per-slot", "rocksdb_memory_bytes", read.size, "256 mb",
           "memory of a slot for RocksDB and the values in use"),
    Option("state.backend.rocksdb.localdir", "state_folder", read.word, "the system's folder for temporary files",
           "where RocksDB keeps its files, on each executor's local disk"),
    Option("execution.checkpointing.local-backup.enabled", "local_recovery", read.flag, "false",
           "checkpoints are also kept on the executors' local disks, and restored from there where they are intact",
           ("execution.state-recovery.from-local", "state.backend.local-recovery")),
    Option("execution.checkpointing.local-backup.dirs", "local_recovery_folder", read.word,
           "none: state.backend.rocksdb.localdir",
           "where, on each executor: one folder on a local disk, best on that of RocksDB's files",
           ("taskmanager.state.local.root-dirs",)),
    Option("tidegate.asynchronous-snapshots", "asynchronous_snapshots", read.flag, "true",
           "false: a slot stands still while its snapshot is stored; for comparison", ("state.backend.async",)),
    Option("tidegate.memory-state-limit", "memory_state_limit_bytes", read.size, "5 mb",
           "with the driver's memory as storage: a larger state of one subtask fails the checkpoint"),
    Option("tidegate.heartbeat-timeout", "heartbeat_timeout_s", read.duration, "30 s",
           "a slot that is silent for so long fails the attempt", ("heartbeat.timeout",)),
    Option("tidegate.start-timeout", "start_timeout_s", read.duration, "2 min",
           "within which all slots of an attempt must have started"),
)  # fmt: skip

FIXED = (
    FixedOption("execution.checkpointing.storage", "filesystem",
                "set execution.checkpointing.dir; memory there is Flink's jobmanager",
                ("state.checkpoint-storage",)),
    FixedOption("execution.checkpointing.checkpoints-after-tasks-finish", "true",
                "checkpoints go on when a part of the job has finished",
                ("execution.checkpointing.checkpoints-after-tasks-finish.enabled",)),
    FixedOption("execution.checkpointing.create-subdir", "true", "each job has a folder of its own, by its name"),
    FixedOption("execution.checkpointing.snapshot-compression", "false", "snapshots are not compressed",
                ("execution.checkpointing.snapshot-compression.enabled",)),
    FixedOption("execution.buffer-timeout.enabled", "true", "set execution.buffer-timeout.interval"),
    FixedOption("execution.runtime-mode", "STREAMING", "jobs are streams; bounded ones end by themselves"),
    FixedOption("state.changelog.enabled", "false", "there is no changelog"),
)  # fmt: skip

#: Flink's keys that a user may well try, by name; all are refused with "not supported yet".
UNSUPPORTED = (
    "execution.checkpointing.cleaner.parallel-mode",
    "execution.checkpointing.during-recovery.enabled",
    "execution.checkpointing.file-merging.across-checkpoint-boundary",
    "execution.checkpointing.file-merging.enabled",
    "execution.checkpointing.file-merging.max-file-size",
    "execution.checkpointing.file-merging.max-space-amplification",
    "execution.checkpointing.file-merging.pool-blocking",
    "execution.checkpointing.interval-during-backlog",
    "execution.checkpointing.sync-phase-timeout",
    "execution.checkpointing.unaligned.forced",
    "execution.checkpointing.unaligned.interruptible-timers.emit-intermediate-watermarks",
    "execution.checkpointing.unaligned.interruptible-timers.enabled",
    "execution.checkpointing.unaligned.max-subtasks-per-channel-state-file",
    "execution.checkpointing.unaligned.recover-output-on-downstream.enabled",
    "execution.checkpointing.write-buffer-size",
    "execution.state-recovery.without-channel-state.checkpoint-id",
    "pipeline.auto-watermark-interval",
    "pipeline.max-parallelism",
    "pipeline.name",
    "pipeline.operator-chaining.enabled",
    "pipeline.sources.pause-until-first-checkpoint",
)

#: Whole families that are not supported yet.
UNSUPPORTED_FAMILIES = (
    "state.backend.rocksdb.",
    "state.backend.forst.",
    "state.changelog.",
    "table.",
    "python.",
    "metrics.",
)

#: Families that configure Flink's own processes; Spark's take their place.
FLINK_PROCESSES = (
    "akka.", "blob.", "classloader.", "cluster.", "env.", "high-availability", "io.", "jobmanager.", "jobstore.",
    "kubernetes.", "pekko.", "queryable-state.", "resourcemanager.", "rest.", "security.", "slot.", "slotmanager.",
    "taskmanager.", "web.", "yarn.", "zookeeper.",
)  # fmt: skip


def configuration_table() -> str:
    """The tables of docs/configuration.md, in Markdown."""
    lines = ["| key | default | meaning |", "| --- | --- | --- |"]
    for option in OPTIONS:
        older = f" Older name: {_names(option.aliases)}." if option.aliases else ""
        lines.append(f"| `{option.key}` | {option.default} | {option.meaning}.{older} |")
    lines += ["", "Keys of Flink's that are accepted with one value only, because Tidegate knows one way:", ""]
    lines += ["| key | value | why |", "| --- | --- | --- |"]
    for fixed in FIXED:
        older = f" Older name: {_names(fixed.aliases)}." if fixed.aliases else ""
        lines.append(f"| `{fixed.key}` | {fixed.only} | {fixed.reason}.{older} |")
    lines += ["", "Keys of Flink's that are refused, because Tidegate does not support them yet:", ""]
    lines += [f"- `{key}`" for key in UNSUPPORTED]
    lines += [f"- `{family}*`" for family in UNSUPPORTED_FAMILIES]
    return "\n".join(lines) + "\n"


def _names(keys: tuple[str, ...]) -> str:
    return ", ".join(f"`{key}`" for key in keys)
