"""What a slot is shipped with. Made on the driver, used on the executor."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidegate.graph.plan import JobPlan
from tidegate.ids import AttemptId, SlotId
from tidegate.settings.choices import LogFormat, TypeChecks
from tidegate.state.backends import BackendSettings
from tidegate.wire.seal import FrameSeal


@dataclass(frozen=True, slots=True)
class CopySettings:
    """Of local recovery."""

    folder: str | None = None  #: on the executors' local disks; None: the system's folder for temporary files


@dataclass(frozen=True, slots=True)
class SlotSettings:
    """Bounds and times of a slot."""

    exactly_once: bool = True  #: False: at-least-once, nothing is held back
    buffer_timeout_s: float = 0.010
    inbox_bytes: int = 1 << 20
    in_flight_target_s: float | None = 1.0  #: what is in flight through the job takes about so long; None: no limit
    held_memory_bytes: int = 32 << 20
    held_disk_bytes: int = 1 << 30
    inline_limit_bytes: int = 20 * 1024
    log_format: LogFormat = LogFormat.TEXT  #: of a worker's standard error
    hot_keys: bool = True  #: keyed operators sample their keys
    object_reuse: bool = False  #: records are handed from function to function as they are, not as copies
    type_checks: TypeChecks = TypeChecks.FIRST
    state: BackendSettings = BackendSettings()
    asynchronous_snapshots: bool = True  #: False: the task's thread waits until its snapshot is stored
    state_limit_bytes: int | None = None  #: of one state of one subtask, where all state travels to the driver
    local_copies: CopySettings | None = None  #: None: no local recovery
    encrypt: bool = False  #: frames; else they are signed
    silence_s: float = 30.0  #: a coordinator that has confirmed nothing for so long is lost


@dataclass(frozen=True, slots=True)
class SlotProgram:
    """What is shipped to a slot for one attempt."""

    plan: JobPlan
    slot: SlotId
    attempt: AttemptId
    frame_key: bytes = field(repr=False)
    settings: SlotSettings

    def seal(self) -> FrameSeal:
        """Of the frames that it sends and gets. A new one has no channels yet: one for each thread."""
        return FrameSeal(self.frame_key, self.settings.encrypt)
