"""All metrics in Prometheus' text format, with the names that Flink's reporter gives them. Driver; pure.

flink_jobmanager_job_lastCheckpointDuration{job_id="...",job_name="sums"} 12
flink_taskmanager_job_task_busyTimeMsPerSecond{...,task_name="Source: numbers",subtask_index="0"} 430
flink_taskmanager_job_task_operator_numRecordsIn{...,operator_name="sums",operator_id="sums"} 1000
"""

from __future__ import annotations

import re

from tidegate.rest.metrics import Measured, Numbers, as_text
from tidegate.rest.served import ServedJob
from tidegate.rest.vertices import endpoint

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_]")
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_JOB = "flink_jobmanager_job_"
_TASK = "flink_taskmanager_job_task_"
_OPERATOR = "flink_taskmanager_job_task_operator_"


def exposition(jobs: list[ServedJob]) -> str:
    """Every metric of every job that has not ended."""
    families: dict[str, list[str]] = {}

    def add(prefix: str, numbers: Numbers, labels: dict[str, str]) -> None:
        text = ",".join(f'{key}="{value.translate(_ESCAPES)}"' for key, value in labels.items())
        for name, value in numbers.items():
            family = prefix + _NOT_IN_A_NAME.sub("_", name)
            families.setdefault(family, []).append(f"{family}{{{text}}} {as_text(value)}")

    for job in jobs:
        if job.view.status.is_terminal:
            continue
        measured = Measured.of(job)
        of_job = {"job_id": job.id, "job_name": job.name}
        add(_JOB, measured.of_job(), of_job)
        attempt = "" if measured.snapshot.attempt is None else str(measured.snapshot.attempt.number)
        for vertex in job.vertices():
            of_vertex = of_job | {"task_id": vertex.id, "task_name": vertex.name, "task_attempt_num": attempt}
            for index in range(vertex.parallelism):
                place = endpoint(job, vertex, index)
                of_task = of_vertex | {
                    "subtask_index": str(index),
                    "host": place.rpartition(":")[0],
                    "tm_id": place,
                }
                add(_TASK, measured.of_task(vertex, index), of_task)
                for planned in vertex.chain.operators:
                    of_operator = of_task | {"operator_id": planned.uid, "operator_name": planned.operator.name}
                    add(_OPERATOR, measured.of_operator(planned.uid, index, vertex.slot(index)), of_operator)
    lines = [line for family, samples in families.items() for line in (f"# TYPE {family} gauge", *samples)]
    return "\n".join(lines) + "\n"
