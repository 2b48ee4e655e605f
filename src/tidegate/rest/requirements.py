"""The parallelism of each vertex, shown and asked for as Flink does it: `/jobs/ID/resource-requirements`. Driver.

A vertex runs with its `upperBound`: a job has all of its slots, or does not run, so `lowerBound` is 1 and asks for nothing.
What is asked for is done in the background by a rescale, as in Flink; where it cannot be done, the job's log says why, and the
job continues as it was.
"""

from __future__ import annotations

import time
from typing import Any

from tidegate.coordinator.observing import JobLine
from tidegate.errors import TidegateError
from tidegate.rest.calls import Call, shown
from tidegate.rest.operations import Kind
from tidegate.rest.problems import Problem, bad_request
from tidegate.rest.served import ServedJob, Vertex

_NESTED = "jobVertexResourceRequirements"  #: as Flink's description has it; its web pages send what is inside alone


def requirements(job: ServedJob) -> dict[str, Any]:
    return {
        vertex.id: {"parallelism": {"lowerBound": 1, "upperBound": vertex.parallelism}} for vertex in job.vertices()
    }


def require(call: Call) -> tuple[int, Any]:
    """Vertices that are not named stay as they are."""
    job = call.job()
    asked = asked_parallelism(job, call.body.get(_NESTED, call.body))
    status = job.view.status
    if status.is_terminal:
        raise Problem(409, f"Job {job.id} has already ended: {status.value}")
    numbers = {uid: number for vertex, number in asked if number != vertex.parallelism for uid in vertex.uids}
    if numbers:
        call.operations.start(Kind.RESCALE, job.id, None, lambda: _rescale(job, numbers))
    return 200, {}


def asked_parallelism(job: ServedJob, body: Any) -> list[tuple[Vertex, int]]:
    """:raises Problem: for what no job can have."""
    if not isinstance(body, dict):
        raise bad_request("Request did not match expected format: an object with the parallelism of each vertex")
    vertices = {vertex.id: vertex for vertex in job.vertices()}
    asked = []
    for id, wanted in body.items():
        vertex = vertices.get(id)
        if vertex is None:
            known = ", ".join(f"{vertex.id} ({vertex.name})" for vertex in vertices.values())
            raise bad_request(f"the job has no vertex {shown(id)}; it has {known}")
        bounds = wanted.get("parallelism") if isinstance(wanted, dict) else None
        upper = bounds.get("upperBound") if isinstance(bounds, dict) else None
        lower = bounds.get("lowerBound", 1) if isinstance(bounds, dict) else None
        if type(upper) is not int or type(lower) is not int:
            raise bad_request(
                'Request did not match expected format: a vertex needs {"parallelism": {"lowerBound": 1, "upperBound": N}}'
            )
        if not 1 <= lower <= upper <= vertex.max_parallelism:
            raise bad_request(
                f"{vertex.name}: 1 <= lowerBound <= upperBound <= {vertex.max_parallelism}, its max parallelism, must hold; "
                f"asked for are {lower} and {upper}"
            )
        asked.append((vertex, upper))
    return asked


def _rescale(job: ServedJob, numbers: dict[str, int]) -> dict[str, Any]:
    try:
        done = job.hands.rescale(numbers)
    except TidegateError as error:  # nobody asks for the result: Flink's answer has no id to ask by
        job.view.log(JobLine(time.time(), "WARNING", "tidegate.rest", str(error), str(job.view.attempt or "")))
        raise
    return {"gap-ms": int(done.gap_s * 1000), "checkpointId": done.checkpoint}
