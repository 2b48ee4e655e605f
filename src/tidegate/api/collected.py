"""The records of a running job, one after another, in the program that started it. Driver."""

from __future__ import annotations

from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self

from typing_extensions import TypeVar

from tidegate.errors import TimedOut

if TYPE_CHECKING:
    from tidegate.client import JobClient

T = TypeVar("T", default=Any)

LOOKS_EACH = "100ms"  #: for records that have been committed, or for the end


class CollectedRows(Generic[T]):
    """What a `collect()` sink commits, until the job ends. `close()`, or the end of a `with`, cancels a job that still runs.

    :raises JobFailed: and its kin from the iteration, when the job failed.
    """

    def __init__(self, client: JobClient, uid: str) -> None:
        self.client = client
        self._uid = uid
        self._waiting: list[T] = []  #: the newest first
        self._taken = 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        while not self._waiting:
            has_ended = self.client.status.is_terminal  # asked first: what is committed then is all
            rows = self.client.results(self._uid)
            self._waiting = rows[self._taken :]
            self._waiting.reverse()
            self._taken = len(rows)
            if self._waiting:
                break
            if has_ended:
                self.client.wait()  # how it ended
                raise StopIteration
            try:
                self.client.wait(LOOKS_EACH)
            except TimedOut:
                continue
        return self._waiting.pop()

    def first(self, limit: int) -> list[T]:
        """At most so many; then the job is canceled, if it still runs."""
        with self:
            return list(islice(self, limit))

    def close(self) -> None:
        """The job is canceled, if it still runs, and has ended when this returns."""
        if not self.client.status.is_terminal:
            self.client.cancel()
        self.client.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:  # what is on its way is what the program should hear of
            self.client.cancel()
