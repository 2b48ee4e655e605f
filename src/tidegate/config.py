"""Everything a job can be told, in one value. Driver; pure.

Each setting is declared here, once (settings/declaring.py): the methods of the environment, Flink's keys by -D or in a file,
the command line's options, docs/configuration.md and what REST shows are made from the declaration or held against it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tidegate import extras
from tidegate.errors import ConfigurationError
from tidegate.protocol.autoscaling import ScalingPolicy
from tidegate.protocol.checkpointing import MINIMAL_INTERVAL_S, CheckpointPolicy
from tidegate.protocol.restarts import ExponentialDelay, FailureRate, FixedDelay, NoRestart, RestartStrategy
from tidegate.settings.choices import (
    CLAIM_MODE,
    LOG_FORMAT,
    MODE,
    ON_TERM,
    RESTART_KIND,
    RETENTION,
    STATE_BACKEND,
    TYPE_CHECKS,
    CheckpointMode,
    ClaimMode,
    LogFormat,
    OnTerm,
    RestartKind,
    Retention,
    StateBackendKind,
    TypeChecks,
)
from tidegate.settings.declaring import Key, Origin, SetBy, Setting, Told, setting, settings_of
from tidegate.settings.kinds import BYTES, COUNT, FLAG, LIMIT, NUMBER, POSITIVE, SECONDS, WORD, WORDS, Choice

RESTART = "restart."  #: before the names of RestartSettings' fields


def _key_of(strategy: RestartKind, name: str, says: str, default: str | None = None) -> Key:
    return Key(f"restart-strategy.{strategy}.{name}", says, strategy=strategy, default=default)


_exponential = partial(_key_of, RestartKind.EXPONENTIAL_DELAY)
_fixed = partial(_key_of, RestartKind.FIXED_DELAY)
_rate = partial(_key_of, RestartKind.FAILURE_RATE)


@dataclass(frozen=True, slots=True)
class RestartSettings:
    """`kind` None: exponential delay where there are checkpoints to restart from, else none."""

    # fmt: off
    kind: RestartKind | None = setting(None, RESTART_KIND, "restart-strategy.type",
        "what happens after a failure: exponential-delay, fixed-delay, failure-rate or none", ("restart-strategy",),
        shown_default="exponential-delay with checkpoints, none without", said_by="restart_strategy(kind)")
    delay_s: float = setting(1.0, SECONDS, said_by="restart_strategy(delay)", keys=(
        _exponential("initial-backoff", "pause before the second restart; the first comes at once"),
        _fixed("delay", "pause before each"),
        _rate("delay", "pause before each restart")))
    max_delay_s: float = setting(60.0, SECONDS, said_by="restart_strategy(max_delay)", keys=(
        _exponential("max-backoff", "longest pause"),))
    multiplier: float = setting(1.5, NUMBER, keys=(
        _exponential("backoff-multiplier", "by which the pause grows"),))
    jitter: float = setting(0.1, NUMBER, keys=(
        _exponential("jitter-factor", "part of the pause that is random"),))
    reset_after_s: float = setting(3600.0, SECONDS, said_by="restart_strategy(reset_after)", keys=(
        _exponential("reset-backoff-threshold", "a job that ran so long starts again from the first pause"),))
    attempts: int | None = setting(None, LIMIT, said_by="restart_strategy(attempts)", keys=(
        _exponential("attempts-before-reset-backoff", "restarts without such a time between them, then the job fails",
                     default="infinite"),
        _fixed("attempts", "restarts, then the job fails", default="1")))
    max_failures: int = setting(1, POSITIVE, said_by="restart_strategy(max_failures)", keys=(
        _rate("max-failures-per-interval", "failures in the interval that are tolerated"),))
    interval_s: float = setting(60.0, SECONDS, said_by="restart_strategy(interval)", keys=(
        _rate("failure-rate-interval", "the interval"),))
    # fmt: on

    def __post_init__(self) -> None:
        _take_words(self)

    def strategy(self, checkpoints_on: bool) -> RestartStrategy:
        match self.kind or (RestartKind.EXPONENTIAL_DELAY if checkpoints_on else RestartKind.NONE):
            case RestartKind.EXPONENTIAL_DELAY:
                return ExponentialDelay(
                    self.delay_s, self.max_delay_s, self.multiplier, self.jitter, self.reset_after_s, self.attempts
                )
            case RestartKind.FIXED_DELAY:
                return FixedDelay(1 if self.attempts is None else self.attempts, self.delay_s)
            case RestartKind.FAILURE_RATE:
                return FailureRate(self.max_failures, self.interval_s, self.delay_s)
            case RestartKind.NONE:
                return NoRestart()


@dataclass(frozen=True, slots=True)
class JobConfig:
    """Defaults work. Times in seconds."""

    # fmt: off
    interval_s: float | None = setting(None, SECONDS, "execution.checkpointing.interval",
        f"time from one checkpoint's start to the next; at least {MINIMAL_INTERVAL_S * 1000:g} ms",
        shown_default="none: no checkpoints", said_by="checkpointing(every)")
    storage: str | None = setting(None, WORD, "execution.checkpointing.dir",
        "where checkpoints and the job's log are kept: file:///..., s3://..., gs://..., az://..., hdfs://..., or "
        "memory (the driver's)",
        ("state.checkpoints.dir",), said_by="checkpointing(storage)")
    mode: CheckpointMode = setting(CheckpointMode.EXACTLY_ONCE, MODE, "execution.checkpointing.mode",
        "EXACTLY_ONCE, or AT_LEAST_ONCE: nothing is held back, some records may count twice after a failure",
        said_by="checkpointing(mode)")
    unaligned: bool = setting(False, FLAG, "execution.checkpointing.unaligned.enabled",
        "barriers overtake records, which become part of the checkpoint", ("execution.checkpointing.unaligned",),
        said_by="checkpointing(unaligned)")
    aligned_timeout_s: float = setting(0.0, SECONDS, "execution.checkpointing.aligned-checkpoint-timeout",
        "with unaligned: start aligned, overtake after so long", said_by="checkpointing(aligned_timeout)")
    timeout_s: float = setting(600.0, SECONDS, "execution.checkpointing.timeout",
        "a checkpoint that takes longer is given up", said_by="checkpointing(timeout)")
    min_pause_s: float = setting(0.0, SECONDS, "execution.checkpointing.min-pause",
        "from the end of a checkpoint to the start of the next, at least", said_by="checkpointing(min_pause)")
    max_concurrent: int = setting(1, POSITIVE, "execution.checkpointing.max-concurrent-checkpoints",
        "checkpoints in progress at a time", said_by="checkpointing(max_concurrent)")
    tolerable_failures: int = setting(0, COUNT, "execution.checkpointing.tolerable-failed-checkpoints",
        "failed checkpoints in a row that do not fail the attempt", said_by="checkpointing(tolerable_failures)")
    retained: int = setting(1, POSITIVE, "execution.checkpointing.num-retained",
        "completed checkpoints that are kept", ("state.checkpoints.num-retained",),
        said_by="checkpointing(retained)")
    inline_limit_bytes: int = setting(20 * 1024, BYTES, "execution.checkpointing.data-inline-threshold",
        "smaller state is stored in the checkpoint's metadata instead of a file of its own",
        ("state.storage.fs.memory-threshold",))
    resume: str | None = setting(None, WORD, "execution.state-recovery.path",
        "continue from a checkpoint: its path, chk-N, or latest", ("execution.savepoint.path",),
        said_by="checkpointing(resume)", option="--resume")
    allow_dropped_state: bool = setting(False, FLAG, "execution.state-recovery.ignore-unclaimed-state",
        "continue although the checkpoint holds state of operators that the job no longer has",
        ("execution.savepoint.ignore-unclaimed-state",), said_by="checkpointing(allow_dropped_state)")
    claim_mode: ClaimMode = setting(ClaimMode.NO_CLAIM, CLAIM_MODE, "execution.state-recovery.claim-mode",
        "CLAIM: what the job continues from is its own, and deleted when newer checkpoints replace it",
        ("execution.savepoint-restore-mode",), said_by="checkpointing(claim)")
    savepoint_dir: str | None = setting(None, WORD, "execution.checkpointing.savepoint-dir",
        "where savepoints go that name no place", ("state.savepoints.dir",), said_by="checkpointing(savepoints)")
    retention: Retention = setting(Retention.RETAIN, RETENTION,
        "execution.checkpointing.externalized-checkpoint-retention",
        "RETAIN_ON_CANCELLATION, or DELETE_ON_CANCELLATION: a canceled job keeps no checkpoints; a failed one does",
        said_by="checkpointing(delete_on_cancel)")
    restart: RestartSettings = field(default_factory=RestartSettings)
    parallelism: int | None = setting(None, POSITIVE, "parallelism.default",
        "subtasks of each operator that has no number of its own", shown_default="the program's",
        option="--parallelism")
    buffer_timeout_s: float = setting(0.010, SECONDS, "execution.buffer-timeout.interval",
        "how long a record may wait for others to share its frame", ("execution.buffer-timeout",),
        said_by="buffer_timeout(timeout)")
    master: str | None = setting(None, WORD, "tidegate.master", "Spark's master, like spark://host:7077",
        shown_default="this machine", option="--master")
    python_files: tuple[str, ...] = setting((), WORDS, "python.files",
        "modules, packages, folders, wheels or zips for the program and the executors of a cluster, with commas "
        "between",
        said_by="executor_python(files)", option="--py-files")
    python_archives: tuple[str, ...] = setting((), WORDS, "python.archives",
        "archives that are unpacked in the executors' working folders, path#name, with commas between them",
        said_by="executor_python(archives)", option="--archives")
    python_executable: str | None = setting(None, WORD, "python.executable",
        "the executors' Python, like ./name/bin/python of an archive",
        shown_default="none: PYSPARK_PYTHON, or python3", said_by="executor_python(executable)", option="--python")
    rest: bool = setting(True, FLAG, "tidegate.rest.enabled",
        "REST and the dashboard in the driver; see docs/rest.md")
    rest_port: int | None = setting(None, COUNT, "rest.port",
        "where they listen; a number that is given must be free; 0: any free port",
        shown_default="none: 8081, or the next free one")
    rest_address: str = setting("localhost", WORD, "rest.bind-address",
        "the address to listen on; one that others can reach asks every request for a token")
    rest_token: str | None = setting(None, WORD, "tidegate.rest.token",
        "what requests must carry: Authorization: Bearer TOKEN", shown_default="none: made up where one is needed",
        is_secret=True)
    encrypt: bool = setting(False, FLAG, "security.ssl.internal.enabled",
        "what travels between slots is encrypted, and what slots and driver say to each other; see SECURITY.md",
        said_by="encryption(network)")
    rest_tls: bool = setting(False, FLAG, "security.ssl.rest.enabled",
        "REST and the dashboard answer by https alone", said_by="encryption(rest)")
    certificate: str | None = setting(None, WORD, "tidegate.ssl.certificate",
        "a PEM file: the driver's certificate, and those that it was signed with",
        shown_default="none: one is made", said_by="encryption(certificate)")
    certificate_key: str | None = setting(None, WORD, "tidegate.ssl.key",
        "a PEM file: the certificate's private key, without a passphrase", said_by="encryption(key)")
    on_term: OnTerm | None = setting(None, ON_TERM, "tidegate.on-term",
        "what SIGTERM ends the job with: checkpoint, savepoint or cancel",
        shown_default="none: the variable TIDEGATE_ON_TERM, else checkpoint", said_by="on_term(how)",
        option="--on-term")
    on_term_timeout_s: float = setting(25.0, SECONDS, "tidegate.on-term-timeout",
        "how long that may take; then the program ends in any case. Supervisors kill after 30 s, or so",
        said_by="on_term(timeout)")
    log_format: LogFormat = setting(LogFormat.TEXT, LOG_FORMAT, "tidegate.log-format",
        "of what workers write to their standard error: text, or json for one object a line")
    object_reuse: bool = setting(False, FLAG, "pipeline.object-reuse",
        "functions hand records on as they are, not as copies: quicker, and right where no function changes a "
        "record that another function, or it itself, still holds",
        said_by="object_reuse(reuse)")
    type_checks: TypeChecks = setting(TypeChecks.FIRST, TYPE_CHECKS, "tidegate.type-checks",
        "rows that are held against the type that their stream declares, where they leave their function: the first "
        "thousand of each output of each subtask, all, or none",
        said_by="type_checks(rows)")
    hot_keys: bool = setting(True, FLAG, "tidegate.hot-keys",
        "keyed operators sample their keys, and the hottest are shown; false where keys must not be seen")
    debloat: bool = setting(True, FLAG, "taskmanager.network.memory.buffer-debloat.enabled",
        "a slot that cannot keep up lets its senders have only so many records in flight as it can process in time")
    debloat_target_s: float = setting(1.0, SECONDS, "taskmanager.network.memory.buffer-debloat.target",
        "that time, for the whole way from a source to the last slot (Flink counts it for each task)",
        said_by="in_flight_target(target)")
    inbox_bytes: int = setting(1 << 20, BYTES, "tidegate.inbox-bytes",
        "input that a slot buffers before it holds its senders back")
    held_memory_bytes: int = setting(32 << 20, BYTES, "tidegate.held-memory-bytes",
        "input held back for alignment in a slot's memory; more goes to its disk")
    held_disk_bytes: int = setting(1 << 30, BYTES, "tidegate.held-disk-bytes",
        "input held back for alignment on a slot's disk; at the limit the slot declines the checkpoint")
    state_backend: StateBackendKind = setting(StateBackendKind.HASHMAP, STATE_BACKEND, "state.backend.type",
        "where keyed state lives: hashmap or heap (the workers' memory), or rocksdb (their local disks)",
        ("state.backend",), said_by="state_backend(kind)")
    incremental: bool | None = setting(None, FLAG, "execution.checkpointing.incremental",
        "a checkpoint stores what has changed since the last one", ("state.backend.incremental",),
        shown_default="by the backend: true for rocksdb", said_by="state_backend(incremental)")
    rocksdb_memory_bytes: int = setting(256 << 20, BYTES, "state.backend.rocksdb.memory.fixed-per-slot",
        "memory of a slot for RocksDB and the values in use", said_by="state_backend(memory)")
    state_folder: str | None = setting(None, WORD, "state.backend.rocksdb.localdir",
        "where RocksDB keeps its files, on each executor's local disk",
        shown_default="the system's folder for temporary files", said_by="state_backend(folder)")
    local_recovery: bool = setting(False, FLAG, "execution.checkpointing.local-backup.enabled",
        "checkpoints are also kept on the executors' local disks, and restored from there where they are intact",
        ("execution.state-recovery.from-local", "state.backend.local-recovery"),
        said_by="state_backend(local_recovery)")
    local_recovery_folder: str | None = setting(None, WORD, "execution.checkpointing.local-backup.dirs",
        "where, on each executor: one folder on a local disk, best on that of RocksDB's files",
        ("taskmanager.state.local.root-dirs",), shown_default="none: state.backend.rocksdb.localdir")
    asynchronous_snapshots: bool = setting(True, FLAG, "tidegate.asynchronous-snapshots",
        "false: a slot waits while its snapshot is stored; for comparison", ("state.backend.async",))
    memory_state_limit_bytes: int = setting(5 << 20, BYTES, "tidegate.memory-state-limit",
        "with the driver's memory as storage: a larger state of one subtask fails the checkpoint")
    heartbeat_timeout_s: float = setting(30.0, SECONDS, "tidegate.heartbeat-timeout",
        "a slot that is silent for so long fails the attempt; one whose driver has confirmed nothing for so long ends",
        ("heartbeat.timeout",))
    start_timeout_s: float = setting(120.0, SECONDS, "tidegate.start-timeout",
        "within which all slots of an attempt must have started")
    autoscaler: bool = setting(False, FLAG, "job.autoscaler.enabled",
        "the job is rescaled as its load asks for it; see docs/autoscaling.md", said_by="autoscaling(enabled)")
    autoscaler_target: float = setting(0.7, NUMBER, "job.autoscaler.utilization.target",
        "how much of its time the busiest subtask of a vertex is to work", ("job.autoscaler.target.utilization",),
        said_by="autoscaling(target)")
    autoscaler_highest: float = setting(0.9, NUMBER, "job.autoscaler.utilization.max",
        "one that would be busier than this to keep up gets more subtasks")
    autoscaler_lowest: float = setting(0.4, NUMBER, "job.autoscaler.utilization.min",
        "one that is less busy than this gets fewer")
    autoscaler_least: int = setting(1, POSITIVE, "job.autoscaler.vertex.min-parallelism",
        "subtasks that a vertex is given, at least", said_by="autoscaling(min_parallelism)")
    autoscaler_most: int = setting(128, POSITIVE, "job.autoscaler.vertex.max-parallelism",
        "and at most", said_by="autoscaling(max_parallelism)")
    autoscaler_settle_s: float = setting(30.0, SECONDS, "job.autoscaler.stabilization.interval",
        "after each start, the time in which nothing is measured", said_by="autoscaling(stabilization)")
    autoscaler_window_s: float = setting(60.0, SECONDS, "job.autoscaler.metrics.window",
        "the time over which loads are measured", said_by="autoscaling(window)")
    autoscaler_down_s: float = setting(300.0, SECONDS, "job.autoscaler.scale-down.interval",
        "a vertex gets fewer subtasks when so long it has needed no more", said_by="autoscaling(scale_down)")
    autoscaler_catch_up_s: float = setting(300.0, SECONDS, "job.autoscaler.catch-up.duration",
        "within which a backlog is to be read", said_by="autoscaling(catch_up)")
    autoscaler_excluded: tuple[str, ...] = setting((), WORDS, "job.autoscaler.vertex.exclude.ids",
        "uids of operators that keep their parallelism, with commas between them", said_by="autoscaling(exclude)")
    # fmt: on
    origins: Mapping[str, Origin] = field(default_factory=dict, compare=False, repr=False)  #: see `origin`

    def __post_init__(self) -> None:
        _take_words(self)

    @property
    def increments(self) -> bool:
        """Whether checkpoints store only what has changed."""
        return self.state_backend is StateBackendKind.ROCKSDB if self.incremental is None else self.incremental

    # -- values and where they came from ------------------------------------------------------------------------------

    def told(self, values: Mapping[str, Told]) -> JobConfig:
        """With these values, by the settings' names. Another restart strategy begins with its own defaults: the numbers of
        the last one mean nothing to it."""
        restart, origins = self.restart, dict(self.origins)
        kind = values.get(f"{RESTART}kind")
        if kind is not None and kind.value != restart.kind:
            restart = RestartSettings()
            origins = {name: origin for name, origin in origins.items() if not name.startswith(RESTART)}
        own = {name: told.value for name, told in values.items() if not name.startswith(RESTART)}
        of_restart = {name[len(RESTART) :]: told.value for name, told in values.items() if name.startswith(RESTART)}
        origins |= {name: told.origin for name, told in values.items()}
        return replace(self, **own, restart=replace(restart, **of_restart), origins=origins)

    def value(self, name: str) -> Any:
        """Of the setting: "timeout_s", "restart.delay_s"."""
        return getattr(self.restart, name[len(RESTART) :]) if name.startswith(RESTART) else getattr(self, name)

    def origin(self, name: str) -> Origin:
        """Where that value came from. One that nobody was seen to set, and is not the default, is the program's."""
        known = self.origins.get(name)
        if known is not None:
            return known
        return Origin(SetBy.DEFAULT if self.value(name) == SETTINGS[name].default else SetBy.PROGRAM)

    # -- what it means ------------------------------------------------------------------------------------------------

    def policy(self) -> CheckpointPolicy:
        return CheckpointPolicy(
            interval_s=self.interval_s,
            timeout_s=self.timeout_s,
            min_pause_s=self.min_pause_s,
            max_concurrent=self.max_concurrent,
            tolerable_failures=self.tolerable_failures,
            unaligned_after_s=self.aligned_timeout_s if self.unaligned else None,
        )

    def scaling_policy(self) -> ScalingPolicy:
        return ScalingPolicy(
            target=self.autoscaler_target,
            lowest=self.autoscaler_lowest,
            highest=self.autoscaler_highest,
            least=self.autoscaler_least,
            most=self.autoscaler_most,
            settle_s=self.autoscaler_settle_s,
            window_s=self.autoscaler_window_s,
            scale_down_s=self.autoscaler_down_s,
            catch_up_s=self.autoscaler_catch_up_s,
        )

    def validate(self) -> None:
        """:raises ConfigurationError: for settings that cannot work together."""
        if self.interval_s is not None and self.storage is None:
            raise ConfigurationError(
                'checkpoints need a storage: env.checkpointing(every="10s", storage="file:///...")'
            )
        if self.resume is not None and self.storage is None and "/" not in self.resume:
            raise ConfigurationError("resume needs the storage that holds the job's checkpoints")
        if self.interval_s is not None and self.interval_s < MINIMAL_INTERVAL_S:
            raise ConfigurationError(f"a checkpoint interval below {MINIMAL_INTERVAL_S * 1000:g} ms is not possible")
        if self.unaligned and self.mode is not CheckpointMode.EXACTLY_ONCE:
            raise ConfigurationError(
                "unaligned checkpoints are exactly-once; at-least-once never aligns, so it needs no other"
            )
        if self.unaligned and self.max_concurrent > 1:
            raise ConfigurationError("unaligned checkpoints run one at a time: set max_concurrent=1")
        if self.aligned_timeout_s and not self.unaligned:
            raise ConfigurationError("aligned_timeout turns a checkpoint unaligned: set unaligned=True as well")
        if self.state_backend is StateBackendKind.ROCKSDB:
            extras.ROCKSDB.check()
        if self.debloat_target_s <= 0:
            raise ConfigurationError("the debloat target must be above 0; to have none, turn debloating off")
        if self.max_concurrent < 1 or self.retained < 1:
            raise ConfigurationError("max_concurrent and retained must be at least 1")
        if self.parallelism is not None and self.parallelism < 1:
            raise ConfigurationError("parallelism must be at least 1")
        if self.rest_port is not None and not 0 <= self.rest_port <= 65535:
            raise ConfigurationError(f"rest.port must be between 0 and 65535, not {self.rest_port}")
        if not 0 < self.autoscaler_lowest < self.autoscaler_target < self.autoscaler_highest <= 1:
            raise ConfigurationError(
                "the autoscaler's utilization.min, .target and .max must be above 0, at most 1, and in this order"
            )
        if self.autoscaler_least > self.autoscaler_most:
            raise ConfigurationError("the autoscaler's min-parallelism is above its max-parallelism")
        if self.autoscaler_window_s <= 0 or self.autoscaler_catch_up_s <= 0:
            raise ConfigurationError("the autoscaler's metrics.window and catch-up.duration must be above 0")
        if (self.certificate is None) != (self.certificate_key is None):
            raise ConfigurationError("a certificate needs its key: set tidegate.ssl.certificate and tidegate.ssl.key")
        if self.certificate is not None and not (self.encrypt or self.rest_tls):
            raise ConfigurationError(
                "a certificate is given and nothing uses it: set security.ssl.internal.enabled or security.ssl.rest.enabled"
            )
        if self.on_term_timeout_s < 1:
            raise ConfigurationError("the time for an end by SIGTERM must be at least 1 s")


def _take_words(settings: JobConfig | RestartSettings) -> None:
    """Words become members of their enums. :raises ConfigurationError: for a word that is not one of them."""
    for declared in settings_of(type(settings)):
        value = getattr(settings, declared.name)
        if isinstance(declared.kind, Choice) and value is not None:
            object.__setattr__(settings, declared.name, declared.kind.from_program(value))


#: Every setting, by its name.
SETTINGS: dict[str, Setting] = {
    declared.name: declared for declared in (*settings_of(JobConfig), *settings_of(RestartSettings, RESTART))
}
