"""Whole programs without Spark: inside in_process(), execute() runs the job here, and the client does what it does."""

from __future__ import annotations

import pytest

import tidegate as tg
from tidegate.testing import in_process


def counting_job(storage: str, rows: int | None = None, parallelism: int = 2) -> tg.StreamEnvironment:
    env = tg.StreamEnvironment("counting", parallelism=parallelism)
    env.checkpointing(every="100ms", storage=storage)
    source = tg.DataGenerator(lambda i: i % 3, rate=1000, count=rows, type=int)
    env.from_source(source, uid="numbers").key_by(lambda n: n, key_type=int).count(uid="count").collect(uid="out")
    return env


def test_a_job_runs_to_its_end_and_its_results_are_there(tmp_path):
    with in_process():
        client = counting_job(f"file://{tmp_path}", rows=30).execute()

    assert client.status is tg.JobStatus.FINISHED
    assert sorted(client.results())[-1] == (2, 10)


def test_what_a_job_prints_is_printed(capsys):
    env = tg.StreamEnvironment("printing")
    env.from_collection(["a", "b"], uid="in").print()
    with in_process():
        env.execute()

    assert capsys.readouterr().out.splitlines() == ["a", "b"]


def test_a_job_is_stopped_and_goes_on_at_another_parallelism(tmp_path):
    with in_process():
        client = counting_job(f"file://{tmp_path}/job").execute_async()
        before = client.savepoint(f"file://{tmp_path}/savepoints")
        rescaled = client.rescale(1)
        path = client.stop(f"file://{tmp_path}/savepoints")
        counted = [n for key, n in client.results() if key == 2]

        again = counting_job(f"file://{tmp_path}/again", parallelism=3).execute_async(resume=path)
        again.wait_until_running()
        while not any(key == 2 and n > len(counted) for key, n in again.results()):
            again.checkpoint_now()
        again.cancel()
        status = again.wait()

    assert rescaled.parallelism == 1
    assert tg.Savepoint.load(before).states()
    assert status is tg.JobStatus.CANCELED
    # The second driver is handed the output that the savepoint holds, of which it cannot know that the first one had it.
    both = [n for key, n in again.results() if key == 2]
    went_on = [n for n in both if n > len(counted)]
    assert counted == list(range(1, len(counted) + 1))
    assert went_on == list(range(len(counted) + 1, len(counted) + len(went_on) + 1)), "it went on exactly there"
    assert both == counted[len(counted) + len(went_on) - len(both) :] + went_on, "and the rest is the savepoint's"


def test_a_failure_ends_the_program_as_it_does_on_spark():
    env = tg.StreamEnvironment("failing")
    env.from_collection([1, 0], uid="in").map(lambda n: 1 // n, uid="divide").print()

    with in_process(), pytest.raises(tg.JobFailed, match="ZeroDivisionError"):
        env.execute()


def test_a_job_that_still_runs_at_the_end_is_canceled(tmp_path):
    with in_process():
        client = counting_job(f"file://{tmp_path}").execute_async()

    assert client.status is tg.JobStatus.CANCELED
