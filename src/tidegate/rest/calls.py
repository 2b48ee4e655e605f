"""One request, taken apart and checked: ids, numbers, fields of the body. Driver; pure.

Every way to get it wrong ends in a Problem with a sentence; nothing a client sends reaches the job unchecked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidegate.rest.identity import is_id
from tidegate.rest.operations import Operations
from tidegate.rest.problems import bad_request, not_found
from tidegate.rest.served import JobTable, ServedJob, Vertex
from tidegate.rest.vertices import check_subtask, find_vertex
from tidegate.rest.workers import WorkerOf, find_worker

_WHOLE_NUMBER = re.compile(r"[0-9]{1,18}")
MAX_TEXT = 4096  #: characters of one field


@dataclass(frozen=True, slots=True)
class PlainText:
    """An answer that is not JSON."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """What a route is given."""

    jobs: JobTable
    operations: Operations
    params: Mapping[str, str]  #: from the path
    query: Mapping[str, str]
    body: dict[str, Any] = field(default_factory=dict)

    # -- the path ---------------------------------------------------------------------------------------------------

    def job(self) -> ServedJob:
        """:raises Problem: for an id that is none, or no job's."""
        id = self._id("jobid")
        job = self.jobs.get(id)
        if job is None:
            raise not_found(f"Job {id} not found")
        return job

    def vertex(self, job: ServedJob) -> Vertex:
        return find_vertex(job, self._id("vertexid"))

    def subtask(self, vertex: Vertex) -> int:
        index = whole_number(self.params["subtaskindex"], "subtask index")
        check_subtask(vertex, index)
        return index

    def checkpoint(self) -> int:
        return whole_number(self.params["checkpointid"], "checkpoint id")

    def trigger(self) -> str:
        return self._id("triggerid")

    def worker(self) -> WorkerOf:
        return find_worker(self.jobs.all(), self.params["taskmanagerid"])

    def _id(self, name: str) -> str:
        text = self.params[name]
        if not is_id(text):
            raise bad_request(
                f"Bad request, could not parse parameters: {name} must have 32 hexadecimal digits, not {shown(text)}"
            )
        return text

    # -- the query --------------------------------------------------------------------------------------------------

    def names(self, key: str) -> list[str] | None:
        """A list with commas; None where it is not given."""
        text = self.query.get(key)
        return None if text is None else [part for part in text.split(",") if part]

    def number(self, key: str, default: int) -> int:
        text = self.query.get(key)
        return default if text is None else whole_number(text, key)

    # -- the body ---------------------------------------------------------------------------------------------------

    def text(self, key: str) -> str | None:
        value = self.body.get(key)
        if value is not None and (not isinstance(value, str) or len(value) > MAX_TEXT or "\0" in value):
            raise bad_request(f"Request did not match expected format: {key} must be a string")
        return value

    def flag(self, key: str) -> bool:
        value = self.body.get(key, False)
        if value is not None and not isinstance(value, bool):
            raise bad_request(f"Request did not match expected format: {key} must be true or false")
        return bool(value)

    def word(self, key: str, words: tuple[str, ...]) -> str:
        """One of the words; the first where nothing is given."""
        value = self.body.get(key)
        if value is None:
            return words[0]
        if value not in words or not isinstance(value, str):
            raise bad_request(f"Request did not match expected format: {key} must be one of {', '.join(words)}")
        return value

    def trigger_id(self) -> str | None:
        value = self.text("triggerId")
        if value is not None and not is_id(value):
            raise bad_request("Request did not match expected format: triggerId must have 32 hexadecimal digits")
        return value


def whole_number(text: str, what: str) -> int:
    """:raises Problem:"""
    if _WHOLE_NUMBER.fullmatch(text) is None:
        raise bad_request(f"Bad request, could not parse parameters: {what} must be a whole number, not {shown(text)}")
    return int(text)


def parse_body(data: bytes) -> dict[str, Any]:
    """An empty body is an empty object. :raises Problem: for anything that is not a JSON object."""
    if not data.strip():
        return {}
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        raise bad_request("Request did not match expected format: the body is not JSON") from None
    if not isinstance(body, dict):
        raise bad_request("Request did not match expected format: the body must be a JSON object")
    return body


def shown(text: str) -> str:
    """What a client sent, in our answer: short, and without anything that a terminal would obey."""
    return ascii(text if len(text) <= 60 else text[:60] + "...")
