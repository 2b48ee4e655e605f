"""Answers that are not results: a status and sentences, in Flink's shape `{"errors": [...]}`. Driver; pure."""

from __future__ import annotations


class Problem(Exception):
    """Raised by whatever computes an answer; the server writes it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def not_found(what: str) -> Problem:
    return Problem(404, what)


def bad_request(what: str) -> Problem:
    return Problem(400, what)
