"""execute_and_collect's iterator: rows as they are committed, the job's end, its failure, and that closing ends it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tidegate as tg
from tidegate.api.collected import CollectedRows
from tidegate.errors import JobFailed, TimedOut


class ScriptedClient:
    """Stands for a JobClient whose sink commits the next portion each time somebody waits; then the job ends."""

    def __init__(self, *portions: list[int], error: Exception | None = None, endless: bool = False) -> None:
        self._portions = list(portions)
        self._rows: list[int] = []
        self._error = error
        self._endless = endless
        self.status = tg.JobStatus.RUNNING
        self.canceled = 0

    def results(self, uid: str) -> list[int]:
        assert uid == "out"
        return list(self._rows)

    def wait(self, timeout: str | None = None) -> tg.JobStatus:
        if self._portions:
            self._rows += self._portions.pop(0)
        elif not self._endless and not self.status.is_terminal:
            self.status = tg.JobStatus.FAILED if self._error else tg.JobStatus.FINISHED
        if not self.status.is_terminal:
            assert timeout is not None, "it would wait for ever"
            raise TimedOut("still running")
        if self._error is not None:
            raise self._error
        return self.status

    def cancel(self) -> None:
        self.canceled += 1
        self.status = tg.JobStatus.CANCELED


def rows_of(client: ScriptedClient) -> CollectedRows[int]:
    return CollectedRows(client, "out")  # type: ignore[arg-type]


def test_rows_come_in_their_order_and_once_until_the_job_ends() -> None:
    client = ScriptedClient([1, 2], [], [3], [4, 5])

    with rows_of(client) as rows:
        assert list(rows) == [1, 2, 3, 4, 5]
    assert list(rows) == []
    assert client.canceled == 0


def test_what_was_committed_with_the_end_comes_too() -> None:
    client = ScriptedClient()
    client._rows, client.status = [1, 2, 3], tg.JobStatus.FINISHED

    assert list(rows_of(client)) == [1, 2, 3]


def test_a_failure_comes_after_the_rows_that_were_committed() -> None:
    rows = rows_of(ScriptedClient([1], error=JobFailed("no")))

    assert next(rows) == 1
    with pytest.raises(JobFailed, match="no"):
        next(rows)


def test_closing_ends_a_job_without_end() -> None:
    client = ScriptedClient([1, 2, 3], endless=True)

    with rows_of(client) as rows:
        assert next(rows) == 1
    assert (client.canceled, client.status) == (1, tg.JobStatus.CANCELED)


def test_a_limit_gives_a_list_and_ends_the_job() -> None:
    client = ScriptedClient([1, 2], [3, 4], endless=True)

    assert rows_of(client).first(3) == [1, 2, 3]
    assert client.canceled == 1
    assert rows_of(ScriptedClient([1, 2])).first(3) == [1, 2], "there were no more"


def test_an_error_of_the_program_is_what_it_hears_of() -> None:
    client = ScriptedClient([1, 2, 3], endless=True)

    def half_way() -> Iterator[int]:
        with rows_of(client) as rows:
            yield next(rows)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(half_way())
    assert client.canceled == 1
