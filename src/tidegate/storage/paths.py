"""The one place that builds, and takes apart, the paths of a job in its checkpoint storage. Pure; used everywhere.

    <job>/log/00000042.json                         the job's log (storage/log.py)
    <job>/chk-17/g3-a5/_metadata.json               a checkpoint, by the attempt that wrote it
    <job>/chk-17/g3-a5/slot-1-0.snapshot
    <job>/chk-17/g3-a5/slot-1-0.in-flight-0         records in flight, where there are many
    <job>/chk-17/g3-a5/slot-1-0.<uid>.<name>.state  keyed state as files; later checkpoints may refer to them too
    <job>/staging/g3-a5/...                         what an attempt keeps for itself
    <job>/input/<uid>/<random>/...                  a DataFrame, written before the first attempt; the log says which
    <job>/probe/g3-a5                               "do the executors of this attempt share this storage?"
    <job>/probe/create                              "does this storage create only if absent?"; stays for ever
    <job>/savepoints/...                            savepoints that were asked for without a place
    <job>/history/g3.json                           how a driver's run went, written when it ends (rest/keeping.py)

Generation and attempt are part of every path that an attempt writes, so two attempts, also of two drivers that both
believe they hold the job, never write the same file.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import xxhash

from tidegate.errors import ConfigurationError
from tidegate.ids import AttemptId, AttemptNumber, CheckpointId, Generation, SlotId

_JOB_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")
_LOG_FILE = re.compile(r"([0-9]{8,})\.json")
_CHECKPOINT_FILE = re.compile(r"chk-([0-9]+)/g([0-9]+)-a([0-9]+)/")
_STAGING_FILE = re.compile(r"staging/g([0-9]+)-a([0-9]+)/")
_PROBE_FILE = re.compile(r"probe/\.?g([0-9]+)-a([0-9]+)(?:\.|$)")  # also half-written

_OWN_FOLDER = re.compile(r"log|staging|input|probe|history|chk-[0-9]+")

METADATA_NAME = "_metadata.json"
STATE_SUFFIX = ".state"


@dataclass(frozen=True, slots=True)
class JobPaths:
    """All paths of one job, relative to the store.

    :raises ConfigurationError: when the name cannot be a folder everywhere.
    """

    job: str

    def __post_init__(self) -> None:
        if not isinstance(self.job, str) or _JOB_NAME.fullmatch(self.job) is None:
            raise ConfigurationError(
                f"{self.job!r} cannot be the name of a job: it names a folder in the checkpoint storage. Use 1 to 100 "
                "letters, digits, '.', '_' and '-', not beginning with a dot.",
                job=self.job,
            )

    @staticmethod
    def is_machinery(parts: list[str]) -> bool:
        """Whether a path below the storage, in its parts, lies in a folder that jobs write, read and clean up by themselves."""
        return len(parts) > 1 and _OWN_FOLDER.fullmatch(parts[1]) is not None

    @property
    def folder(self) -> str:
        return f"{self.job}/"

    @property
    def log_folder(self) -> str:
        return f"{self.job}/log/"

    @property
    def input_folder(self) -> str:
        return f"{self.job}/input/"

    def log(self, sequence: int) -> str:
        return f"{self.job}/log/{sequence:08d}.json"

    def log_number(self, path: str) -> int | None:
        """Of a record; None for what is not one, such as a half-written file."""
        found = _LOG_FILE.fullmatch(path, len(self.log_folder)) if path.startswith(self.log_folder) else None
        return None if found is None else int(found[1])

    def checkpoint(self, checkpoint: CheckpointId, attempt: AttemptId) -> str:
        """A folder, with a slash at the end."""
        return f"{self.job}/chk-{checkpoint}/{attempt}/"

    def metadata(self, checkpoint: CheckpointId, attempt: AttemptId) -> str:
        return self.checkpoint(checkpoint, attempt) + METADATA_NAME

    def slot_file(self, checkpoint: CheckpointId, attempt: AttemptId, slot: SlotId) -> str:
        return f"{self.checkpoint(checkpoint, attempt)}slot-{slot.layer}-{slot.index}.snapshot"

    def in_flight_file(self, checkpoint: CheckpointId, attempt: AttemptId, slot: SlotId, part: int) -> str:
        return f"{self.checkpoint(checkpoint, attempt)}slot-{slot.layer}-{slot.index}.in-flight-{part}"

    def state_files(self, attempt: AttemptId, slot: SlotId, uid: str) -> Callable[[CheckpointId, str], str]:
        """Of an operator: gives the path of a file by its checkpoint and its name."""
        label = f"slot-{slot.layer}-{slot.index}.{_plain(uid)}"
        return lambda checkpoint, name: f"{self.checkpoint(checkpoint, attempt)}{label}.{name}{STATE_SUFFIX}"

    def staging(self, attempt: AttemptId, name: str) -> str:
        return f"{self.job}/staging/{attempt}/{name}"

    @property
    def savepoints(self) -> str:
        """A folder, without a slash at the end: users are told of what is in it."""
        return f"{self.job}/savepoints"

    def history(self, generation: int) -> str:
        return f"{self.job}/history/g{generation}.json"

    def probe(self, attempt: AttemptId) -> str:
        return f"{self.job}/probe/{attempt}"

    @property
    def create_probe(self) -> str:
        return f"{self.job}/probe/create"

    def input(self, uid: str, nonce: str = "") -> str:
        """A folder, with a slash at the end; Spark writes to it by URI. Older releases had no nonce."""
        return f"{self.input_folder}{_plain(uid)}/" + (f"{nonce}/" if nonce else "")

    def checkpoint_of(self, path: str) -> tuple[CheckpointId, AttemptId] | None:
        """Which checkpoint the file belongs to; None for any other file."""
        if not path.startswith(self.folder):
            return None
        found = _CHECKPOINT_FILE.match(path, len(self.folder))
        if found is None:
            return None
        return CheckpointId(int(found[1])), _attempt(found[2], found[3])

    def attempt_of(self, path: str) -> AttemptId | None:
        """Which attempt wrote the file; None for what no attempt writes."""
        owner = self.checkpoint_of(path)
        if owner is not None:
            return owner[1]
        if not path.startswith(self.folder):
            return None
        inside = len(self.folder)
        found = _STAGING_FILE.match(path, inside) or _PROBE_FILE.match(path, inside)
        return None if found is None else _attempt(found[1], found[2])

    def written_by_attempts(self, folder: str) -> bool:
        """Whether a folder right below the job's is one in which attempts write."""
        return folder in {"staging", "probe"} or re.fullmatch(r"chk-[0-9]+", folder) is not None


def _plain(uid: str) -> str:
    """A uid may hold any character, a path may not."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", uid)[:80]
    if plain != uid or not uid:
        plain = f"{plain}-{xxhash.xxh3_64_hexdigest(uid.encode('utf-8', 'surrogatepass'))}"
    return plain


def _attempt(generation: str, number: str) -> AttemptId:
    return AttemptId(Generation(int(generation)), AttemptNumber(int(number)))
