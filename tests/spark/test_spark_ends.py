"""Spark ends under a job that runs: the job says so and fails, so that whoever watches over the program starts it again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.faults, pytest.mark.slow]

JOB = """
import sys

import tidegate as tg
from pyspark import SparkContext

env = tg.StreamEnvironment("loses-spark", parallelism=1)
env.checkpointing(every="1s", storage=sys.argv[1])
numbers = env.from_source(tg.DataGenerator(int, rate=100, type=int, splits=1), uid="numbers")
numbers.key_by(lambda n: n % 3, key_type=int).count(uid="count").collect(uid="all")
client = env.execute_async()
client.wait_until_running("1min")
client.checkpoint_now()
{ends}
try:
    client.wait("1min")
except tg.TidegateError as error:
    print(type(error).__name__, client.status.name, error)
"""
ENDS = {
    "application": "SparkContext._active_spark_context._jsc.sc().stop()",
    "java": "SparkContext._gateway.proc.kill()",
}


@pytest.mark.parametrize("what", ENDS)
def test_a_job_whose_spark_has_ended_fails_for_good(what: str, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB.format(ends=ENDS[what]))
    ran = subprocess.run(
        [sys.executable, "job.py", f"file://{tmp_path}/storage"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "JobFailed FAILED" in ran.stdout, ran.stdout + ran.stderr
    assert "Spark has ended under the job" in ran.stdout, ran.stdout + ran.stderr
