"""A job's life in one driver: take a generation, then attempt after attempt until it ends. Driver; one thread.

    CREATED -> INITIALIZING -> RUNNING -> FINISHED
                   ^              |
                   +- RESTARTING -+-> FAILED | CANCELED

A stop ends FINISHED too: its savepoint is in the log, and what it holds is committed. A rescale is an attempt that ends
by its own wish, and a restart with another plan.

Decides nothing about processes: its shell (coordinator/execution.py, or the in-process runner) runs the attempts.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Union

import msgspec

from tidegate.config import JobConfig
from tidegate.connectors.contract import Split
from tidegate.connectors.split_check import kept_splits
from tidegate.coordinator.driver_commits import commit_on_driver
from tidegate.coordinator.failures import mistake_in, not_restarted
from tidegate.coordinator.inputs import JobInputs
from tidegate.coordinator.observing import (
    AttemptFailed,
    AttemptStarted,
    CheckpointsDiscarded,
    JobStatus,
    JobView,
    StatusChanged,
    when_it_restarts,
)
from tidegate.coordinator.outcomes import AttemptEnded, AttemptFinished, AttemptRescaled, Outcome
from tidegate.coordinator.recording import CheckpointRecorder, LogInDoubt, shared_files
from tidegate.coordinator.restoring import commit_only, plan_start, splits_to_read, stored_max_parallelism
from tidegate.errors import (
    CheckpointDamaged,
    ConfigurationError,
    ConnectorError,
    JobFolderInUse,
    Superseded,
    TidegateError,
    UserCodeFailed,
)
from tidegate.graph.logical import LogicalGraph
from tidegate.graph.plan import JobPlan, Parallelism, PlannedOperator, plan_job
from tidegate.graph.specs import SinkSpec, SourceSpec, keys_of
from tidegate.ids import AttemptId, AttemptNumber, CheckpointId, Generation, SlotId
from tidegate.ports import CrashPoints
from tidegate.protocol.repeated_mistakes import RepeatedMistakes
from tidegate.protocol.shared_state import SharedStateRegistry
from tidegate.settings.choices import ClaimMode, Retention
from tidegate.shown import first_line, shown_error
from tidegate.storage.anywhere import reaching_anywhere
from tidegate.storage.checkpoints import is_claimed_with, load_checkpoint, resolve
from tidegate.storage.log import CheckpointPointer, JobLog, LogRecord, Resume, when
from tidegate.storage.metadata import CheckpointMetadata
from tidegate.storage.paths import JobPaths
from tidegate.storage.store import DRIVER_MEMORY, ObjectStore, write_probe
from tidegate.storage.sweep import after_attempt
from tidegate.wire.control import Start

log = logging.getLogger("tidegate.coordinator")


@dataclass(frozen=True, slots=True)
class AttemptInputs:
    """What an attempt starts from."""

    id: AttemptId
    starts: dict[SlotId, Start]
    next_checkpoint_id: CheckpointId
    latest_completed: CheckpointId
    restored_from: int | None
    shared: SharedStateRegistry
    commit_only: bool = False  #: the savepoint of a stop is in the log


@dataclass(frozen=True, slots=True)
class RestartIn:
    seconds: float


@dataclass(frozen=True, slots=True)
class JobEnded:
    status: JobStatus
    error: TidegateError | None


Decision = Union[RestartIn, JobEnded]


class JobRun:
    """One job in one driver."""

    def __init__(
        self,
        name: str,
        graph: LogicalGraph,
        default_parallelism: int,
        config: JobConfig,
        store: ObjectStore,
        driver: str,
        view: JobView,
        crash_points: CrashPoints,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        sleep: Callable[[float], None],
        jitter: Callable[[], float],
    ) -> None:
        self.config = config
        self.view = view
        self._graph = graph
        self._driver = driver
        self._store = store = reaching_anywhere(store)
        self._clock = clock
        self._wall_clock = wall_clock
        self._jitter = jitter
        self._crash_points = crash_points
        self._name = name
        self._paths = JobPaths(name)
        self._log = JobLog(store, self._paths)
        self._holds_job = False  #: a generation was taken: only then may this driver write to the log
        self._strategy = config.restart.strategy(config.interval_s is not None)
        self._number = 0
        self._attempt = AttemptId(Generation(0), AttemptNumber(0))
        self._next_id = CheckpointId(1)
        self._shared = SharedStateRegistry()
        self._known: set[str] = set()  #: metadata paths of the checkpoints that the registry began with
        config.validate()
        resume: Resume | object = self._resume_point(config.resume)
        metadata = self._look_at(resume)
        self.plan: JobPlan = plan_job(
            name, graph, default_parallelism, {} if metadata is None else stored_max_parallelism(metadata)
        )
        if metadata is not None:  # refuse what does not fit before the generation is taken
            plan_start(self.plan, metadata, {}, config.allow_dropped_state)
        self._resume = resume
        self.recorder = CheckpointRecorder(
            store=store,
            paths=self._paths,
            log=self._log,
            plan=self.plan,
            keep=config.retained,
            crash_points=crash_points,
            wall_clock=wall_clock,
            sleep=sleep,
        )
        self._inputs = JobInputs(store, self._paths, self._log, self.recorder.append, wall_clock)
        self._has_run = False  #: before this driver's generation
        self._began_with: CheckpointPointer | None = None  #: the newest checkpoint when this driver began
        # Who has chosen a strategy has it as it is.
        self._mistakes = RepeatedMistakes(is_on=config.restart.kind is None)

    def _resume_point(self, resume: str | None) -> object:
        if resume is None:
            return Resume.FRESH
        if resume == "latest":
            return Resume.LATEST
        pointer = resolve(self._store, self._paths, resume)
        inside = pointer.metadata_path.startswith(self._paths.folder)
        if self.config.claim_mode is ClaimMode.CLAIM and not inside:
            # Named by its URI, so that nobody takes it for one of the job's own files.
            return msgspec.structs.replace(pointer, owned=True, metadata_path=self._store.uri(pointer.metadata_path))
        return pointer

    def _look_at(self, resume: object) -> CheckpointMetadata | None:
        """The checkpoint that the job would start from now."""
        if resume is Resume.FRESH:
            return None
        while True:
            newest = self._log.read_newest()
            pointer = resume if isinstance(resume, CheckpointPointer) else None if newest is None else newest.latest
            if pointer is None:
                return None
            try:
                return load_checkpoint(self._store, pointer, newest.retained if newest else ())
            except CheckpointDamaged:
                if isinstance(resume, CheckpointPointer) or self._log.read_newest() == newest:
                    raise
                # Another driver is still at work: it has completed a newer one, and deleted this one, as we looked.

    def check_start(self) -> None:
        """Whether the job may begin as it was asked to; nothing is taken yet. :raises JobFolderInUse:"""
        self._log.check_resume(self._resume)  # type: ignore[arg-type]

    @property
    def newest_record(self) -> LogRecord | None:
        """Of the job's log, as `check_start` has found it."""
        return self._log.last

    def begin(self) -> None:
        """Become the job's driver. :raises JobFolderInUse:"""
        self._warn_of_what_comes_again()
        record = self._log.take_generation(self._driver, self._wall_clock(), self._resume)  # type: ignore[arg-type]
        self._holds_job = True
        self._began_with = record.latest
        self._has_run = record.sequence > 0 and self._resume is not Resume.FRESH
        self._crash_points.reach("driver.generation-taken")

    def _warn_of_what_comes_again(self) -> None:
        newest = self._log.read_newest()
        latest = None if newest is None else newest.latest
        if newest is None and self._resume is Resume.LATEST and self._store.location == DRIVER_MEMORY:
            log.warning(
                "there is nothing to resume: the checkpoints of %r are kept in the driver's memory, and ended with the driver "
                "that ran before, if there was one. So the job begins at the beginning: what that driver's sinks have "
                "committed comes again, or is refused by sinks that notice, like files. To continue after the death of a "
                "driver, keep checkpoints in a storage (file:///..., s3://, gs://, az://, hdfs://)",
                self.plan.job,
            )
        if isinstance(self._resume, CheckpointPointer) and latest is not None and latest.id > self._resume.id:
            sinks = [repr(op.uid) for op in self.plan.operators if isinstance(op.operator.spec, SinkSpec)]
            log.warning(
                "the job goes back to checkpoint %d (%s), but has completed checkpoint %d (%s): what its sinks (%s) have "
                "committed since stays where it is, and will be written again",
                self._resume.id,
                when(self._resume.completed_at),
                latest.id,
                when(latest.completed_at),
                ", ".join(sinks),
            )

    def next_attempt(self) -> AttemptInputs | JobEnded:
        """What the next attempt starts from: always what the log says, never what memory remembers.

        JobEnded when the log turns out to say FINISHED: it was in doubt whether that record stands.

        :raises CheckpointDamaged: :raises ConfigurationError: :raises CommitLost: :raises Superseded: when no attempt can help.
        :raises StorageError: when storage does not answer at the moment.
        """
        record = self._log.reread()  # this driver may have been away while another took the job over
        if record.finished:
            return self._finished()
        if self._log.in_doubt is not None:
            try:
                record = self._log.take_generation(self._driver, self._wall_clock())
            except JobFolderInUse:
                if self._log.reread().finished:  # the record in doubt has come there since it was looked for
                    return self._finished()
                raise
        if record.open_savepoint and not record.stopping:
            # The job continues from an older checkpoint, and what sinks had prepared for the savepoint is thrown away.
            self.recorder.discard_savepoint(record.open_savepoint)
        self._inputs.prepare(self.plan.operators, self._has_run)
        metadata: CheckpointMetadata | None = None
        if record.latest is not None:
            older = [pointer for pointer in record.retained if pointer != record.latest]
            metadata = load_checkpoint(self._store, record.latest, older)
        self._know_retained(record, metadata)
        self._number += 1
        self._next_id = CheckpointId(max(self._next_id, record.next_checkpoint_id))
        self._attempt = attempt = AttemptId(Generation(record.generation), AttemptNumber(self._number))
        discovered = {
            str(operator.uid): _discover(operator)
            for operator in self.plan.operators
            if isinstance(operator.operator.spec, SourceSpec)
        }
        self._log.check_held()  # looking for splits may have taken long
        self._clean_up_sinks(attempt, metadata)
        write_probe(self._store, self.plan.job, attempt)
        if metadata is not None:
            logged = self._log.latest_logged()
            commit_on_driver(self.plan, logged, metadata, restored=True, check_held=self._log.check_held)
        restored_from = None if metadata is None else metadata.checkpoint
        starts = plan_start(
            self.plan,
            metadata,
            discovered,
            self.config.allow_dropped_state,
            record.incarnation,
            owned=record.latest is not None and record.latest.owned,
        )
        if record.stopping:
            starts = {slot: commit_only(start) for slot, start in starts.items()}
        inputs = AttemptInputs(
            id=attempt,
            starts=starts,
            commit_only=record.stopping,
            next_checkpoint_id=self._next_id,
            latest_completed=CheckpointId(restored_from or 0),
            restored_from=restored_from,
            shared=self._shared,
        )
        restored_path = "" if record.latest is None else self._store.uri(record.latest.metadata_path)
        splits = splits_to_read(starts, discovered)
        self.view.publish(AttemptStarted(attempt, restored_from, self._wall_clock(), restored_path, splits))
        self._status(JobStatus.INITIALIZING, f"attempt {attempt}")
        return inputs

    def _know_retained(self, record: LogRecord, latest: CheckpointMetadata | None) -> None:
        """Tell the registry of shared files what the log retains, and delete what is not needed any more."""
        for pointer in [*record.retained, *([] if record.latest is None else [record.latest])]:
            if pointer.metadata_path in self._known:
                continue
            self._known.add(pointer.metadata_path)
            try:
                metadata = latest if pointer == record.latest else load_checkpoint(self._store, pointer)
            except CheckpointDamaged as error:
                # Nothing is restored from it. Files that only it refers to are left to whoever repairs it.
                log.warning("a retained checkpoint cannot be read: %s", error)
                continue
            assert metadata is not None
            files = shared_files(metadata.slots)
            foreign = [file for file in files if not is_claimed_with(pointer, metadata, file.path)]
            ours = [file for file in files if file not in foreign]
            self._shared.restored(CheckpointId(pointer.id), foreign, owned=False)
            self._shared.restored(CheckpointId(pointer.id), ours, owned=pointer.owned)
        oldest = min((CheckpointId(pointer.id) for pointer in record.retained), default=CheckpointId(0))
        if oldest > self._shared.oldest_retained:
            self.recorder.delete_files(self._shared.completed(oldest))

    def _clean_up_sinks(self, attempt: AttemptId, metadata: CheckpointMetadata | None) -> None:
        """What attempts before this one have staged and is not in the checkpoint belongs to nobody."""
        subtasks = [] if metadata is None else [subtask for slot in metadata.slots for subtask in slot.subtasks]
        for operator in self.plan.operators:
            spec = operator.operator.spec
            if isinstance(spec, SinkSpec):
                kept = [c.payload for subtask in subtasks for c in subtask.committables if c.uid == operator.uid]
                try:
                    spec.sink.clean_up(self.plan.job, operator.uid, attempt, kept)
                except Exception as error:
                    log.warning(
                        "what dead attempts left behind at %s was not removed: %s",
                        operator.operator,
                        shown_error(error),
                    )

    def used_ids_below(self, next_id: CheckpointId) -> None:
        """Ids that an attempt has given out are not given out again."""
        self._next_id = CheckpointId(max(self._next_id, next_id))

    def attempt_ended(self, outcome: Outcome) -> Decision:
        match outcome:
            case AttemptFinished():
                return self._finished()
            case AttemptRescaled(parallelism, reason):
                self._replan(parallelism)
                shown = parallelism if isinstance(parallelism, int) else _shown(parallelism)
                self._status(JobStatus.RESTARTING, reason or f"with parallelism {shown}")
                return RestartIn(0.0)
            case AttemptEnded(error, permanent):
                delay = None if permanent else self._strategy.delay_after_failure(self._clock(), self._jitter())
                if delay is not None and self._mistakes.must_come_again(mistake_in(error), self._has_progressed()):
                    delay, error = None, not_restarted(error)
                self.view.publish(AttemptFailed.of(self._attempt, error, delay, self._wall_clock()))
                if delay is None:
                    return self.fail(error)
                self._status(JobStatus.RESTARTING, f"{when_it_restarts(delay)}: {first_line(error)}")
                return RestartIn(delay)

    def _has_progressed(self) -> bool:
        """Whether a checkpoint was completed since this driver has begun."""
        return self._log.last is not None and self._log.last.latest != self._began_with

    def check_parallelism(self, parallelism: Parallelism) -> JobPlan:
        """The plan at another parallelism. :raises ConfigurationError: when the job cannot have it."""
        kept = {str(op.uid): op.max_parallelism for op in self.plan.operators if keys_of(op.operator.spec)}
        if isinstance(parallelism, int):
            return plan_job(self._name, self._graph, parallelism, kept)
        now: dict[str, int] = {op.uid: op.parallelism for op in self.plan.operators}
        unknown = parallelism.keys() - now.keys()
        if unknown:
            raise ConfigurationError(f"the job has no operator {min(unknown)!r}; it has {', '.join(now)}")
        return plan_job(self._name, self._graph, 1, kept, now | dict(parallelism))

    def _replan(self, parallelism: Parallelism) -> None:
        self.plan = self.recorder.plan = self.check_parallelism(parallelism)

    def _tidy_up_sinks(self) -> None:
        """The job has finished: all that it prepared is committed, and nobody comes by here again to sweep up after workers
        that were stopped and woke up late."""
        if self._attempt.number == 0:
            return  # it had finished before this driver
        try:
            self._log.check_held()
        except TidegateError:
            return
        self._clean_up_sinks(AttemptId(self._attempt.generation, AttemptNumber(self._attempt.number + 1)), None)

    def _finished(self) -> JobEnded:
        self._tidy_up_sinks()
        self._status(JobStatus.FINISHED, self.recorder.why)
        return JobEnded(JobStatus.FINISHED, None)

    def fail(self, error: TidegateError) -> JobEnded:
        """The job ends FAILED. Its newest checkpoint stays: the next run continues with resume="latest".

        When another driver has taken the job over meanwhile, that is why: it has swept away what this one's slots needed.
        """
        reason = first_line(error)
        if not isinstance(error, (Superseded, LogInDoubt)):
            never_ran = self._number == 0 and self._resume is Resume.FRESH
            superseded = self._try(lambda: self.recorder.fail(reason, never_ran))
            if superseded is not None:
                log.warning("before it ended, this driver had failed: %s", error)
                error, reason = superseded, first_line(superseded)
        self._status(JobStatus.FAILED, reason)
        return JobEnded(JobStatus.FAILED, error)

    def canceled(self, keep: bool = False) -> JobEnded:
        """With `keep` the checkpoints stay, whatever the settings say."""
        deleted: list[int] = []
        keep = keep or self.config.retention is Retention.RETAIN
        self._try(lambda: deleted.extend(self.recorder.cancel(keep)))
        if deleted:
            self.view.publish(CheckpointsDiscarded(tuple(deleted)))
        self._status(JobStatus.CANCELED, self.recorder.why)
        return JobEnded(JobStatus.CANCELED, None)

    def _try(self, write: Callable[[], None]) -> Superseded | None:
        """A record for people; that it cannot be written must not hide why the job ended."""
        if not self._holds_job or self._log.in_doubt is not None:
            return None
        try:
            write()
        except Superseded as error:
            return error
        except Exception as error:
            log.warning("the end of the job could not be noted in its log: %s", shown_error(error))
            return None
        self.recorder.sweep(after_attempt(self._attempt))
        return None

    def _status(self, status: JobStatus, detail: str) -> None:
        self.view.publish(StatusChanged(status, detail, self._wall_clock()))


def _shown(parallelism: Mapping[str, int]) -> str:
    return ", ".join(f"{number} of {uid}" for uid, number in parallelism.items())


def _discover(operator: PlannedOperator) -> list[Split]:
    """The splits there are now. The source's trouble is the user's to see, and may pass: it is retried."""
    spec = operator.operator.spec
    assert isinstance(spec, SourceSpec)
    try:
        found = spec.source.discover_splits(operator.parallelism)
        kept_splits(found, spec.source)  # what no checkpoint can keep is refused before anything is read
        return found
    except ConfigurationError as error:
        raise type(error)(f"{operator.operator} at {operator.operator.line}: {error}", **error.context) from error
    except ConnectorError as error:
        place = f"in {operator.operator.name} (uid {str(operator.uid)!r}), at {operator.operator.line}"
        raise type(error)(f"{error}\n  {place}", **error.context) from error
    except TidegateError:
        raise
    except Exception as error:
        raise UserCodeFailed(
            f"{shown_error(error)}\n  in discover_splits of {operator.operator}",
            operator=operator.operator.name,
            uid=operator.uid,
            user_line=str(operator.operator.line),
            cause="".join(traceback.format_exception(error)),
        ) from error
