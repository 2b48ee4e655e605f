"""Records by POST to a real server of this process."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from connector_kit import batch_of, writer_context

from tidegate.connectors import http_sink
from tidegate.connectors.http_sink import HttpSink
from tidegate.errors import ConfigurationError, ConnectorError


class Service:
    """Keeps what it gets; answers with `answers`, one after the other, then 200."""

    def __init__(self) -> None:
        self.answers: list[int] = []
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.paths: list[str] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                service.requests.append((dict(self.headers), body))
                service.paths.append(self.path)
                self.send_response(service.answers.pop(0) if service.answers else 200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/in"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setattr(http_sink, "FIRST_PAUSE_S", 0.001)
    service = Service()
    yield service
    service.close()


def test_records_are_sent_in_batches_and_the_rest_at_the_checkpoint(service: Service) -> None:
    writer = HttpSink(service.url, max_records=2, headers={"Authorization": "Bearer t0ken"}).writer(
        writer_context(int)[0]
    )
    writer.write(batch_of([1, 2, 3], int))
    assert [json.loads(body) for _, body in service.requests] == [[1, 2]]

    writer.flush()
    assert writer.prepare(1) == []  # type: ignore[arg-type]
    writer.close()

    assert [json.loads(body) for _, body in service.requests] == [[1, 2], [3]]
    headers = [headers for headers, _ in service.requests]
    assert {header["Authorization"] for header in headers} == {"Bearer t0ken"}
    assert [header["Idempotency-Key"] for header in headers] == ["orders/out/0/g1-a1/0", "orders/out/0/g1-a1/1"]


def test_json_lines(service: Service) -> None:
    writer = HttpSink(service.url, format="jsonl").writer(writer_context(None)[0])
    writer.write(batch_of([{"a": 1}, {"a": 2}]))
    writer.flush()
    writer.close()

    assert [body for _, body in service.requests] == [b'{"a":1}\n{"a":2}\n']


def test_a_service_that_is_busy_is_asked_again_with_the_same_key(service: Service) -> None:
    service.answers = [503, 429]
    writer = HttpSink(service.url).writer(writer_context(int)[0])
    writer.write(batch_of([1], int))
    writer.flush()
    writer.close()

    assert [body for _, body in service.requests] == [b"[1]"] * 3
    assert len({headers["Idempotency-Key"] for headers, _ in service.requests}) == 1


def test_a_service_that_stays_busy_ends_the_attempt_and_one_that_refuses_ends_the_job(service: Service) -> None:
    secret_url = f"{service.url}?token=s3cret"
    writer = HttpSink(secret_url, headers={"Authorization": "s3cret"}).writer(writer_context(int)[0])
    writer.write(batch_of([1], int))

    service.answers = [500] * 5
    with pytest.raises(ConnectorError, match="500 Internal Server Error, 5 times") as busy:
        writer.flush()
    service.answers = [403]
    with pytest.raises(ConfigurationError, match="refuses the records: 403 Forbidden") as refused:
        writer.flush()
    writer.close()

    assert "s3cret" not in str(busy.value) + str(refused.value)


def test_a_uid_and_a_path_may_be_any_text(service: Service) -> None:
    """They are sent in ASCII; what is escaped already stays as it is."""
    writer = HttpSink(f"{service.url}/größe 日/a%20b?q=ü&n=1").writer(writer_context(int, uid="größe\n日 %")[0])
    writer.write(batch_of([1], int))
    writer.flush()
    writer.close()

    ((headers, _),) = service.requests
    assert headers["Idempotency-Key"] == "orders/gr%C3%B6%C3%9Fe%0A%E6%97%A5%20%25/0/g1-a1/0"
    assert service.paths == ["/in/gr%C3%B6%C3%9Fe%20%E6%97%A5/a%20b?q=%C3%BC&n=1"]


@pytest.mark.parametrize("headers", [{"A": "b\r\nEvil: 1"}, {"größe": "1"}, {"A": "日"}, {"A\n": "1"}])
def test_headers_that_cannot_be_sent_are_refused_where_they_are_given(headers: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="the header") as refused:
        HttpSink("http://127.0.0.1/", headers=headers)
    assert "Evil" not in str(refused.value)


def test_a_service_that_is_not_there_is_named() -> None:
    writer = HttpSink("http://127.0.0.1:1/x").writer(writer_context(int)[0])
    writer.write(batch_of([1], int))

    with pytest.raises(ConnectorError, match=r"http://127.0.0.1:1/x: ConnectionRefusedError"):
        writer.flush()


@pytest.mark.parametrize(
    "wrong", [{"url": "ftp://x"}, {"url": "http://u:topsecret@h/"}, {"format": "xml"}, {"max_records": 0}]
)
def test_a_wrong_setting_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError) as raised:
        HttpSink(**{"url": "http://h/", **wrong})

    assert "topsecret" not in str(raised.value)
