"""Sources whose records are written to files before the stream starts: DataFrames. Driver; the coordinator's thread.

A row number of a partition that Spark computes again is not a position to come back to, a row of a file is. So the files are
written once in the life of a job, and its log says which they are:

    1. the generation is taken: from here on nobody else starts this job, so a start that is refused has written nothing
    2. the rows are written to a folder with a random name, which no other start uses
    3. an INPUT record names the folder, if the job is still this driver's
    4. whatever else lies there was left by starts that died before their record: it goes

    crash after 1 or 2   the log names no folder: the next start writes anew, and step 4 takes what this one left
    crash after 3        the next start finds the folder in the log

A job that a release without such records has written continues with the files that are there.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable
from typing import Protocol, runtime_checkable

from tidegate.errors import ConfigurationError, StorageError, Superseded, TidegateError
from tidegate.graph.plan import PlannedOperator
from tidegate.graph.specs import SourceSpec
from tidegate.storage.log import JobLog, LogRecord
from tidegate.storage.paths import JobPaths
from tidegate.storage.store import ObjectStore

log = logging.getLogger("tidegate.coordinator")

COMPLETE = "_SUCCESS"  #: Spark writes it last


@runtime_checkable
class WrittenSource(Protocol):
    """A source that is read from files which it writes itself."""

    def check_storage(self, storage: str) -> None:
        """:raises ConfigurationError: when its files cannot be there."""

    def write_to(self, folder: str) -> None:
        """All rows, into a new folder, by its URI. Whole when it returns."""

    def read_from(self, folder: str) -> None:
        """Where they are, by its URI."""


def written_sources(operators: Iterable[PlannedOperator]) -> list[tuple[PlannedOperator, WrittenSource]]:
    return [
        (operator, operator.operator.spec.source)
        for operator in operators
        if isinstance(operator.operator.spec, SourceSpec) and isinstance(operator.operator.spec.source, WrittenSource)
    ]


class JobInputs:
    """The written inputs of one job."""

    def __init__(
        self,
        store: ObjectStore,
        paths: JobPaths,
        job_log: JobLog,
        append: Callable[[LogRecord], None],
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._paths = paths
        self._log = job_log
        self._append = append
        self._clock = clock

    def prepare(self, operators: Iterable[PlannedOperator], has_run: bool) -> None:
        """`has_run`: the job has a history, of which a release without records of its inputs may have written a part.

        :raises ConfigurationError: when the rows cannot be computed or written. :raises Superseded: :raises StorageError:
        """
        for operator, source in written_sources(operators):
            folder = self._folder_of(operator.uid, has_run)
            if folder is None:
                folder = self._write(operator, source)
            source.read_from(self._store.uri(self._paths.folder + folder))

    def _folder_of(self, uid: str, has_run: bool) -> str | None:
        record = self._log.last
        assert record is not None
        if uid in record.inputs:
            return record.inputs[uid]
        older = self._paths.input(uid)
        if has_run and self._store.exists(older + COMPLETE):
            self._name(uid, older)
            return older.removeprefix(self._paths.folder)
        return None

    def _write(self, operator: PlannedOperator, source: WrittenSource) -> str:
        path = self._paths.input(operator.uid, secrets.token_hex(8))
        try:
            source.write_to(self._store.uri(path))  # 2
            self._name(operator.uid, path)  # 3
        except Superseded:
            self._delete(self._store.list(path))
            raise
        except TidegateError:
            raise
        except Exception as error:
            self._log.check_held()  # whoever holds the job may have deleted what this driver was writing
            raise ConfigurationError(
                f"the rows of {operator.operator} at {operator.operator.line} could not be written to {self._store.uri(path)}: "
                f"{type(error).__name__}: {error}"
            ) from error
        left = [file for file in self._store.list(self._paths.input(operator.uid)) if not file.startswith(path)]
        self._delete(left)  # 4
        return path.removeprefix(self._paths.folder)

    def _name(self, uid: str, path: str) -> None:
        self._append(self._log.input_written(uid, path.removeprefix(self._paths.folder), self._clock()))

    def _delete(self, paths: list[str]) -> None:
        try:
            self._store.delete_many(paths)
        except StorageError as error:
            log.warning("%d files of a DataFrame that are no longer read were not all deleted: %s", len(paths), error)
