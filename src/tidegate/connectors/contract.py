"""What a source and a sink must do. The contracts that every connector, ours or yours, implements.

Where it runs: `Source.discover_splits` on the driver, before each attempt; readers, writers and committers on the
executors. All of it is shipped by cloudpickle, so a connector object holds settings only, never open connections.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Union

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.batch import Batch
    from tidegate.ids import AttemptId, CheckpointId

#: What a position may be made of: it is stored as JSON, so that a savepoint can be read and edited by anyone.
JsonValue = Union[None, bool, int, float, str, list["JsonValue"], dict[str, "JsonValue"]]


MANY_RECORDS = 1 << 20  #: more than a `poll` returns


@dataclass(frozen=True, slots=True)
class Split:
    """A part of the input that one reader reads alone: a file, a partition, a range of numbers.

    `id` is stable over restarts and names the same data for ever. `position` is None at the beginning.
    """

    id: str
    position: JsonValue = None
    finished: bool = False


@dataclass(frozen=True, slots=True)
class ReaderContext:
    """What a reader may ask while it runs."""

    subtask: int
    parallelism: int
    clock: Callable[[], float]  #: monotonic seconds; `poll` deadlines are on it
    sleep: Callable[[float], None]  #: waits; a manual clock advances instead
    #: How many records the job can take at the moment. Where it cannot keep up, a `poll` that returns no more keeps short
    #: what stands in front of the next barrier.
    wanted: Callable[[], int] = lambda: MANY_RECORDS


class Source(ABC):
    """A replayable input: splits with positions.

    Classic mistake: a reader that notes the position *of* the last record instead of the one *after* it. The record is
    then read twice after every restore.
    """

    bounded: bool = True  #: False: never ends by itself
    replayable: bool = True  #: False: a failure loses what was read since the last checkpoint; said at start
    record_type: Any = None  #: annotation, pyarrow schema or None (untyped)
    makes_new_records: bool = False  #: True: readers keep nothing of what `poll` returns, so it need not be copied

    @abstractmethod
    def discover_splits(self, parallelism: int, /) -> list[Split]:
        """Driver. All splits there are now, at their first position. Known ids keep the position of the checkpoint."""

    def appeared(self, split: Split, /) -> Split:
        """Driver. A discovered split that the checkpoint does not know: it came into being after the job began. Where a
        source begins in the middle ("latest"), such a split begins at its beginning all the same, or data is lost."""
        return split

    def owner(self, split_id: str, parallelism: int) -> int | None:
        """Which subtask reads the split. None: the splits are dealt out evenly. A source whose readers find splits by
        themselves, while they run, must answer: it is how they know, without asking, which new ones are theirs."""
        return None

    @abstractmethod
    def reader(self, context: ReaderContext, /) -> SourceReader:
        """Executor. A reader without splits; they are added next."""


@dataclass(frozen=True, slots=True)
class Polled:
    """Records of `poll`, with what else there is to say of them.

    :param side: records for side outputs, by the name of the tag.
    :param origins: the split of each record, for a reader that reads several side by side. Event time then waits for the
        slowest of its splits; else it follows the newest record of all.
    """

    records: list[Any] | pa.RecordBatch
    side: dict[str, list[Any]] = field(default_factory=dict)
    origins: Sequence[str] | None = None


class SourceReader(ABC):
    """Reads the splits of one subtask. Used by one thread."""

    finds_splits: bool = False  #: True: it may find more splits while it runs, so it has not ended without any

    @abstractmethod
    def add_splits(self, splits: Sequence[Split], /) -> None:
        """Continue each split at its position (None: at its beginning). Finished ones are never handed in."""

    @abstractmethod
    def poll(self, deadline: float, /) -> list[Any] | pa.RecordBatch | Polled | None:
        """The next records in order, or None when there are none by `deadline`.

        Must return soon after the deadline (100 ms ahead at the most): checkpoints wait for it. Rows as a list, or one
        Arrow batch of the source's schema. At most a few thousand rows, or about a megabyte, and not many more than the
        context's `wanted()`, which is small where the job cannot keep up. `Polled`, when some of
        them belong to a side output.
        """

    @abstractmethod
    def splits(self) -> list[Split]:
        """Every split that was added, with the position *after* the last record that `poll` has returned.

        A split that has ended says so with `finished`.
        """

    def snapshot(self, checkpoint: CheckpointId, /) -> list[Split]:
        """What `checkpoint` keeps: `splits()`. For a reader that must know in `notify_complete` what that was."""
        return self.splits()

    def notify_complete(self, checkpoint: CheckpointId, /) -> None:
        """The checkpoint is complete. For monitoring outside only (a consumer group's offsets)."""

    def metrics(self) -> Mapping[str, float]:
        """Numbers to show of the reader, like `pendingRecords`. Called about once a second by another thread, while `poll` may
        be under way: return what is at hand, and ask nobody."""
        return {}

    def close(self) -> None:
        """Let go of files and connections. May be called after a failure."""


class CommitOutcome(enum.Enum):
    """What a committer says of one committable."""

    DONE = "done"
    ALREADY_DONE = "already done"  #: by an earlier try; evidence was found
    RETRY = "retry"  #: not now; it will be asked again
    LOST = "lost"  #: neither committed nor committable: the job stops and says so


@dataclass(frozen=True, slots=True)
class WriterContext:
    """What a writer may ask while it runs. `attempt` makes names that no older worker uses."""

    job: str
    uid: str
    subtask: int
    parallelism: int
    attempt: str
    clock: Callable[[], float]
    record_type: Any  #: tidegate.types.RecordType of the stream
    send_to_driver: Callable[[str, bytes], None]  #: (topic, payload): how print and collect reach the driver
    incarnation: str = ""  #: random, one for each job log: checkpoint ids are unique within it, and only there


class SinkWriter(ABC):
    """Takes records and stages them. Used by the task's thread.

    Order of calls: write*, then for each checkpoint flush and prepare, then write* again; end_input before the last
    prepare of a bounded input.
    """

    @abstractmethod
    def write(self, batch: Batch, /) -> None:
        """Stage the records. Nothing may become visible to readers of the sink yet (unless the sink says so)."""

    def flush(self) -> None:
        """Everything written so far has left this process when flush returns."""

    def prepare(self, checkpoint: CheckpointId, /) -> list[bytes]:
        """First phase: close what was staged since the last checkpoint, durably, and name it.

        The committables must be enough for a process that never saw this writer to commit. Versioned bytes, no pickle.
        Also called for epochs without records: return an empty list then.
        """
        return []

    def end_input(self) -> None:
        """No more records will come. Called once over all restores."""

    def close(self) -> None:
        """Let go. Staged but unprepared data may be left behind: nobody will ever commit it."""


class Committer(ABC):
    """Second phase. Runs off the task's thread, in a process that may never have seen the writer."""

    version: ClassVar[int] = 1  #: stored with every committable
    lost_reason: str = ""  #: set when `commit` answers LOST: what was found, and the way out; shown to the user

    @abstractmethod
    def commit(self, committables: list[bytes], /) -> list[CommitOutcome]:
        """Make each visible. Must be idempotent: after a crash the same committables come again.

        One answer for each, in order. An exception means RETRY for all of them, but a ConfigurationError ends the job:
        for what no retry can help and somebody must correct (a table that is gone). Nothing is forgotten by that.
        """

    def close(self) -> None: ...


class Sink(ABC):
    """Where records leave the job."""

    guarantee: ClassVar[str] = "at-least-once"  #: shown in the plan: "exactly-once" or "at-least-once"

    @abstractmethod
    def writer(self, context: WriterContext, /) -> SinkWriter: ...

    def committer(self, context: WriterContext, /) -> Committer | None:
        """None: prepare returns nothing that needs a commit."""
        return None

    commits_on_driver: ClassVar[bool] = False  #: `commit_on_driver` is to be called

    def commit_on_driver(self, prepared: list[tuple[CheckpointId, bytes]], restored: bool) -> None:
        """Driver, when a checkpoint is in the log: publish all of its committables in one step.

        For an outside that has one log for all subtasks, like a table. `prepared`: each with the checkpoint that prepared
        it, oldest first; what an earlier call has published may come again. Called right after the log record, and before
        each attempt with what that one starts from (`restored`: it may be a savepoint from long ago). The committers of the
        subtasks then only look whether it is done. An exception: it is tried a few times, then the attempt fails, and the
        next one begins with it; CommitLost ends the job.
        """

    def clean_up(self, job: str, uid: str, attempt: AttemptId, uncommitted: list[bytes]) -> None:
        """Driver, before `attempt`, and when the job has finished: remove what *earlier* attempts have staged and nobody
        will commit.

        What a later attempt has staged must stay: this driver may have been stopped here, and wake up when another one
        has taken the job over. `uncommitted` are the committables of the checkpoint that the attempt starts from: they
        must stay too. Trouble is logged and never stops the job.
        """
