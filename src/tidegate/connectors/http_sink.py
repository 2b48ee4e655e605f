"""Records to a web service, by POST. At-least-once: the service may see a batch again. Executor, the task's thread.

A batch is one request: a JSON array, or JSON lines. Each carries `Idempotency-Key`, made of job, sink, subtask, attempt and a
number: a service that looks at it can drop what *this* attempt sends twice (after a lost answer). A replay after a failure is
another attempt, cut into other batches, so it has other keys: only something in the records themselves tells those apart.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit

from tidegate.batch import Batch
from tidegate.connectors.contract import Sink, SinkWriter, WriterContext
from tidegate.connectors.json_records import json_encoder
from tidegate.errors import ConfigurationError, ConnectorError

TRIES = 5
FIRST_PAUSE_S = 0.1
_LATER = frozenset({408, 425, 429, *range(500, 600)})  #: worth another try


_OF_URLS = "/?%:@!$&'()*+,;=~[]-._"


def _is_header(text: str) -> bool:
    try:
        text.encode("latin-1")
    except UnicodeEncodeError:
        return False
    return not set(text) & set("\r\n\0")


class HttpSink(Sink):
    """POSTs records to a URL, in batches. **At-least-once**: after a failure the service sees some of them again.

    :param url: http:// or https://; without a password: give `headers` for that, which are shown nowhere
    :param format: "json" (an array) or "jsonl"
    :param max_records: of one request; a checkpoint sends what waits
    :param headers: of every request, like {"Authorization": "Bearer ..."}
    :param timeout_s: of one request
    """

    guarantee = "at-least-once"

    def __init__(
        self,
        url: str,
        *,
        format: str = "json",
        max_records: int = 500,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigurationError("HttpSink needs a URL that begins with http:// or https:// and names a host.")
        if parts.username is not None:
            raise ConfigurationError("HttpSink: a URL with a user is shown in errors; give headers= instead.")
        if format not in ("json", "jsonl"):
            raise ConfigurationError(f"HttpSink: there is no format {format!r}; there are 'json' and 'jsonl'.")
        if max_records < 1:
            raise ConfigurationError(f"max_records must be at least 1; got {max_records}.")
        self.scheme, self.host, self.port = parts.scheme, parts.hostname, parts.port
        # A space or a letter that is not ASCII is written with escapes; those that are there stay.
        self.target = quote((parts.path or "/") + (f"?{parts.query}" if parts.query else ""), safe=_OF_URLS)
        self.format = format
        self.max_records = max_records
        self.headers = dict(headers or {})
        for name, value in self.headers.items():
            if not (name.isascii() and _is_header(name) and _is_header(value)):
                raise ConfigurationError(f"HttpSink: the header {name!a}, or its value, is not what HTTP can send.")
        self.timeout_s = timeout_s

    @property
    def shown(self) -> str:
        """Without the query, which may hold a token."""
        port = "" if self.port is None else f":{self.port}"
        return f"{self.scheme}://{self.host}{port}{self.target.partition('?')[0]}"

    def writer(self, context: WriterContext) -> SinkWriter:
        return _HttpWriter(self, context)


class _HttpWriter(SinkWriter):
    def __init__(self, sink: HttpSink, context: WriterContext) -> None:
        self._sink = sink
        self._key = quote(f"{context.job}/{context.uid}/{context.subtask}/{context.attempt}")  # a uid may be any text
        self._sent = 0
        self._waiting: list[Any] = []
        self._connection: http.client.HTTPConnection | None = None

    def write(self, batch: Batch) -> None:
        self._waiting += batch.rows()
        while len(self._waiting) >= self._sink.max_records:
            self._send(self._waiting[: self._sink.max_records])
            self._waiting = self._waiting[self._sink.max_records :]

    def flush(self) -> None:
        if self._waiting:
            self._send(self._waiting)
            self._waiting = []

    def _send(self, rows: list[Any]) -> None:
        body = json_encoder.encode(rows) if self._sink.format == "json" else json_encoder.encode_lines(rows)
        pause = FIRST_PAUSE_S
        for tries_left in reversed(range(TRIES)):
            trouble = self._try(body)
            if trouble is None:
                self._sent += 1
                return
            if not tries_left:
                raise ConnectorError(
                    f"{self._sink.shown}: {trouble}, {TRIES} times in a row. Is the server up, and is the "
                    "address right from every executor?"
                )
            time.sleep(pause)
            pause *= 2

    def _try(self, body: bytes) -> str | None:
        """None when the service has taken it. :raises ConfigurationError: when it never will."""
        kind = "application/json" if self._sink.format == "json" else "application/x-ndjson"
        try:
            if self._connection is None:
                make = http.client.HTTPSConnection if self._sink.scheme == "https" else http.client.HTTPConnection
                self._connection = make(self._sink.host, self._sink.port, timeout=self._sink.timeout_s)
            headers = {"Content-Type": kind, "Idempotency-Key": f"{self._key}/{self._sent}", **self._sink.headers}
            self._connection.request("POST", self._sink.target, body, headers)
            answer = self._connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            return f"{type(error).__name__}: {error}"
        if 200 <= answer.status < 300:
            return None
        self.close()
        if answer.status in _LATER:
            return f"the answer was {answer.status} {answer.reason}"
        raise ConfigurationError(
            f"{self._sink.shown} refuses the records: {answer.status} {answer.reason}. Look at the URL, the headers and what "
            "the service expects."
        )

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


__all__ = ["HttpSink"]
