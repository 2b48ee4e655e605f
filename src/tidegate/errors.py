"""Every error Tidegate raises. Each carries its context as fields, survives pickling, and says the way out.

TidegateError
|-- ConfigurationError          the job or its settings are wrong; nothing has run
|   |-- GraphError              duplicate or missing uid, an impossible edge
|   |-- TypeDeclarationError    a type that cannot be declared, a value that does not fit its type
|   |-- ContractError           a function that does not do what its kind promises: one record where many are expected
|   |-- UnshippableFunction     a user function that cannot be sent to the executors
|   |-- SparkSettingsError      the Spark session lacks a setting
|   `-- NotEnoughSlots          the cluster has fewer task slots than the job needs
|-- KeyTypeError                a key of a type that has no canonical form
|-- JobFailed                   the job has ended FAILED
|   |-- UserCodeFailed          by an exception in the user's code
|   `-- CommitLost              a sink says that prepared data is neither committed nor committable
|-- CheckpointFailed            a checkpoint that was asked for did not complete; the job may continue
|-- SavepointFailed             a savepoint, a stop or a rescale could not be done; the job continues
|-- ConnectorError              a source or sink cannot do its work: unreachable, a bad line, a file that has changed
|-- StorageError                checkpoint storage does not do what it must (unreachable, full, not shared)
|   |-- CheckpointDamaged       a stored file is missing, cut short or changed
|   |-- StateTooLarge           a state that the driver's memory does not take
|   `-- JobFolderInUse          a run without resume on a folder with history, or resume of a FINISHED job
|       `-- JobRunning          another driver runs the job at this moment; nothing was started
|-- SparkUnavailable            Spark does not start, or its master does not answer; nothing has run
|-- Superseded                  a newer driver has taken the job over; this one ends without committing anything
|-- StoppedByUser               the job was canceled
|-- UnansweredCall              an asynchronous function has not answered in time; a TimeoutError, too
|-- TimedOut                    the time of a wait is over, and the job continues; a TimeoutError, too
`-- ProtocolViolation           a message or frame that cannot be: a bug of ours, or somebody on the network
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tidegate.cells import with_cells
from tidegate.shown import shown_text

MAX_MESSAGE = 100_000  #: characters


class TidegateError(Exception):
    """Base of all. Keyword arguments become fields and survive pickling.

    Messages hold users' text. It is made fit to be shown here: logs, answers and displays take it as it is.
    """

    def __init__(self, message: str, **context: Any) -> None:
        message = shown_text(message, MAX_MESSAGE)
        super().__init__(message)
        self.message = message
        self.context: dict[str, Any] = {
            name: shown_text(value, MAX_MESSAGE) if isinstance(value, str) else value for name, value in context.items()
        }
        self.__dict__.update(self.context)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.context)

    def __str__(self) -> str:
        return self.message


def _rebuild(kind: type[TidegateError], message: str, context: dict[str, Any]) -> TidegateError:
    return kind(message, **context)


class ConfigurationError(TidegateError): ...


class GraphError(ConfigurationError): ...


class TypeDeclarationError(ConfigurationError): ...


class ContractError(ConfigurationError, TypeError):
    """Also a TypeError, which is what Python says of such things. Fields: user_line, of the function."""


class UnshippableFunction(ConfigurationError): ...


class SparkSettingsError(ConfigurationError): ...


class NotEnoughSlots(ConfigurationError): ...


class KeyTypeError(TidegateError): ...


class JobFailed(TidegateError): ...


class UserCodeFailed(JobFailed):
    """Fields: operator, uid, subtask, checkpoint (or None), user_line, cause (the remote traceback as text)."""


class CommitLost(JobFailed): ...


class CheckpointFailed(TidegateError): ...


class SavepointFailed(TidegateError): ...


class ConnectorError(TidegateError): ...


class StorageError(TidegateError): ...


class CheckpointDamaged(StorageError): ...


class StateTooLarge(StorageError):
    """Fields: operator (its uid), state, size, limit."""


class JobFolderInUse(StorageError):
    """Fields: uri, job, finished (there is nothing to continue)."""


class JobRunning(JobFolderInUse):
    """Fields: uri, job, driver (where it runs)."""


class SparkUnavailable(TidegateError):
    """Field: master."""


class Superseded(TidegateError):
    """Fields: driver (the newer one, host:pid), generation, written_at."""


class StoppedByUser(TidegateError): ...


class UnansweredCall(TidegateError, TimeoutError):
    """Field: user_line, of the function."""


class TimedOut(TidegateError, TimeoutError):
    """As from a Future: whoever waits for either may catch `TimeoutError`. Fields: job, status, after_s."""


class ProtocolViolation(TidegateError): ...


@dataclass(frozen=True, slots=True)
class UserLine:
    """Where in the user's program something was written; errors point there."""

    file: str
    line: int

    def __str__(self) -> str:
        return with_cells(f"{self.file}:{self.line}")
