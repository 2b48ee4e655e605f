"""Everything a job can be told, in one value. Driver; pure. The user's ways to say it (Python, Flink's keys by -D or in a
file) all end here; cli/options.py knows the keys."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field

from tidegate.errors import ConfigurationError
from tidegate.protocol.checkpointing import MINIMAL_INTERVAL_S, CheckpointPolicy
from tidegate.protocol.restarts import ExponentialDelay, FailureRate, FixedDelay, NoRestart, RestartStrategy


@dataclass(frozen=True, slots=True)
class RestartSettings:
    """`kind` None: exponential delay where there are checkpoints to restart from, else none."""

    kind: str | None = None
    attempts: int | None = None
    delay_s: float = 1.0
    max_delay_s: float = 60.0
    multiplier: float = 1.5
    jitter: float = 0.1
    reset_after_s: float = 3600.0
    max_failures: int = 1
    interval_s: float = 60.0

    def strategy(self, checkpoints_on: bool) -> RestartStrategy:
        match self.kind or ("exponential-delay" if checkpoints_on else "none"):
            case "exponential-delay":
                return ExponentialDelay(
                    self.delay_s, self.max_delay_s, self.multiplier, self.jitter, self.reset_after_s, self.attempts
                )
            case "fixed-delay":
                return FixedDelay(1 if self.attempts is None else self.attempts, self.delay_s)
            case "failure-rate":
                return FailureRate(self.max_failures, self.interval_s, self.delay_s)
            case "none" | "disable" | "off":
                return NoRestart()
            case other:
                raise ConfigurationError(
                    f"restart strategy {other!r} is unknown: use exponential-delay, fixed-delay, failure-rate or none"
                )


@dataclass(frozen=True, slots=True)
class JobConfig:
    """Defaults work. Times in seconds."""

    interval_s: float | None = None
    mode: str = "exactly-once"  #: or "at-least-once"
    unaligned: bool = False
    aligned_timeout_s: float = 0.0  #: with `unaligned`: start aligned, turn unaligned after so long
    storage: str | None = None
    timeout_s: float = 600.0
    min_pause_s: float = 0.0
    max_concurrent: int = 1
    tolerable_failures: int = 0
    retained: int = 1
    resume: str | None = None
    allow_dropped_state: bool = False
    claim_mode: str = (
        "no-claim"  #: or "claim": what the job was started from is its own, and deleted when it is not needed
    )
    savepoint_dir: str | None = None  #: where savepoints go that name no place
    retention: str = "retain"  #: of checkpoints when the job is canceled: "retain", or "delete"
    restart: RestartSettings = field(default_factory=RestartSettings)
    buffer_timeout_s: float = 0.010
    inbox_bytes: int = 1 << 20
    debloat: bool = True  #: slots that cannot keep up let their senders have less under way
    debloat_target_s: float = 1.0  #: what is under way from a source to the last slot should take no longer
    held_memory_bytes: int = 32 << 20
    held_disk_bytes: int = 1 << 30
    inline_limit_bytes: int = 20 * 1024
    state_backend: str = "hashmap"  #: or "rocksdb"
    incremental: bool | None = None  #: None: RocksDB's checkpoints are, the heap's are not
    rocksdb_memory_bytes: int = 256 << 20
    state_folder: str | None = None  #: RocksDB's files, on the executors' local disks; None: the system's folder
    local_recovery: bool = False  #: checkpoints are also kept on the executors' local disks, and restored from there
    local_recovery_folder: str | None = None  #: where; None: beside RocksDB's files
    asynchronous_snapshots: bool = True  #: False: a slot stands still while its snapshot is stored; for comparison
    memory_state_limit_bytes: int = 5 << 20  #: of one state of one subtask, with storage="memory"
    heartbeat_timeout_s: float = 30.0
    start_timeout_s: float = 120.0
    parallelism: int | None = None
    master: str | None = None
    python_files: tuple[str, ...] = ()  #: modules, packages, zips for the executors of a cluster
    python_archives: tuple[str, ...] = ()  #: "path#name": unpacked in the executors' working folders
    python_executable: str | None = None  #: the executors' Python
    rest: bool = True  #: REST and the dashboard, in the driver
    rest_port: int | None = None  #: None: 8081, or the next free one; 0: any free one
    rest_address: str = "localhost"  #: to listen on; anything but this machine alone needs a token
    rest_token: str | None = field(default=None, repr=False)  #: None: made up where one is needed
    object_reuse: bool = False  #: records are handed from function to function as they are, not as copies
    type_checks: str = "first"  #: rows of each typed output that are held against its type: "first", "all" or "none"
    hot_keys: bool = True  #: sample the keys of keyed operators, to show the hottest
    on_term: str | None = (
        None  #: what SIGTERM ends the job with: "checkpoint", "savepoint" or "cancel"; None: see terminating.py
    )
    on_term_timeout_s: float = 25.0  #: supervisors kill after 30 s, or so
    log_format: str = "text"  #: of what workers write to their standard error; or "json"

    def __post_init__(self) -> None:
        if self.state_backend == "heap":  # as the docs call it
            object.__setattr__(self, "state_backend", "hashmap")

    @property
    def increments(self) -> bool:
        """Whether checkpoints store only what has changed."""
        return self.state_backend == "rocksdb" if self.incremental is None else self.incremental

    def policy(self) -> CheckpointPolicy:
        return CheckpointPolicy(
            interval_s=self.interval_s,
            timeout_s=self.timeout_s,
            min_pause_s=self.min_pause_s,
            max_concurrent=self.max_concurrent,
            tolerable_failures=self.tolerable_failures,
            unaligned_after_s=self.aligned_timeout_s if self.unaligned else None,
        )

    def validate(self) -> None:
        """:raises ConfigurationError: for settings that cannot work together."""
        if self.interval_s is not None and self.storage is None:
            raise ConfigurationError(
                'checkpoints need a storage: env.checkpointing(every="10s", storage="file:///...")'
            )
        if self.resume is not None and self.storage is None and "/" not in self.resume:
            raise ConfigurationError("resume needs the storage that holds the job's checkpoints")
        if self.claim_mode not in ("claim", "no-claim"):
            raise ConfigurationError(f'claim mode {self.claim_mode!r} is unknown: use "claim" or "no-claim"')
        if self.retention not in ("retain", "delete"):
            raise ConfigurationError(f'retention {self.retention!r} is unknown: use "retain" or "delete"')
        if self.interval_s is not None and self.interval_s < MINIMAL_INTERVAL_S:
            raise ConfigurationError(f"a checkpoint interval below {MINIMAL_INTERVAL_S * 1000:g} ms is not possible")
        if self.mode not in ("exactly-once", "at-least-once"):
            raise ConfigurationError(
                f'checkpoint mode {self.mode!r} is unknown: use "exactly-once" or "at-least-once"; without checkpoints (leave '
                "out `every`) a record is processed at most once"
            )
        if self.unaligned and self.mode != "exactly-once":
            raise ConfigurationError(
                "unaligned checkpoints are exactly-once; at-least-once never aligns, so it needs no other"
            )
        if self.unaligned and self.max_concurrent > 1:
            raise ConfigurationError("unaligned checkpoints run one at a time: set max_concurrent=1")
        if self.aligned_timeout_s and not self.unaligned:
            raise ConfigurationError("aligned_timeout turns a checkpoint unaligned: set unaligned=True as well")
        if self.state_backend not in ("hashmap", "rocksdb"):
            raise ConfigurationError(
                f'state backend {self.state_backend!r} is unknown: use "heap" or "hashmap" (memory), or "rocksdb" (local disk)'
            )
        if self.state_backend == "rocksdb" and importlib.util.find_spec("rocksdict") is None:
            raise ConfigurationError(
                'the RocksDB backend needs rocksdict: pip install "tidegate[rocksdb]", here and on the executors'
            )
        if self.debloat_target_s <= 0:
            raise ConfigurationError("the debloat target must be above 0; to have none, turn debloating off")
        if self.max_concurrent < 1 or self.retained < 1:
            raise ConfigurationError("max_concurrent and retained must be at least 1")
        if self.parallelism is not None and self.parallelism < 1:
            raise ConfigurationError("parallelism must be at least 1")
        if self.rest_port is not None and not 0 <= self.rest_port <= 65535:
            raise ConfigurationError(f"rest.port must be between 0 and 65535, not {self.rest_port}")
        if self.on_term not in (None, "checkpoint", "savepoint", "cancel"):
            raise ConfigurationError(f'on_term {self.on_term!r} is unknown: use "checkpoint", "savepoint" or "cancel"')
        if self.on_term_timeout_s < 1:
            raise ConfigurationError("the time for an end by SIGTERM must be at least 1 s")
        if self.type_checks not in ("first", "all", "none"):
            raise ConfigurationError(
                f'type checks {self.type_checks!r} are unknown: use "first" (the first rows of each output), "all" or "none"'
            )
        if self.log_format not in ("text", "json"):
            raise ConfigurationError(f'the log format {self.log_format!r} is unknown: use "text" or "json"')
