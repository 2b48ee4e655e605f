"""The server around the answers: mistakes, bounds, tokens, operations, ports, the registry folder."""

from __future__ import annotations

import http.client
import json
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rest_kit import Rest, life, lived, serving

from tidegate.config import JobConfig
from tidegate.coordinator.observing import JobStatus, JobView, StatusChanged
from tidegate.errors import CheckpointFailed, ConfigurationError, SavepointFailed
from tidegate.rest import operations, registry
from tidegate.rest.actions import is_inside
from tidegate.rest.app import CANCEL_BY_GET, MAX_BODY_BYTES
from tidegate.rest.identity import job_id
from tidegate.rest.operations import Kind, Operations
from tidegate.rest.problems import Problem
from tidegate.rest.routes import ROUTES
from tidegate.rest.server import RestServer, RestSettings, listen
from tidegate.rest.workers import LOG
from tidegate.spark.runtime_environment import shown_value

NOBODY = "0" * 32


@pytest.fixture(autouse=True)
def own_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TIDEGATE_REGISTRY", str(tmp_path / "registry"))
    return tmp_path / "registry"


@pytest.fixture
def rest() -> Iterator[Rest]:
    with serving() as rest:
        lived(rest.hands.view)
        yield rest


@pytest.fixture(scope="module")
def shared() -> Iterator[Rest]:
    """For requests that change nothing: a server takes its time to end."""
    with serving() as rest:
        lived(rest.hands.view)
        yield rest


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


# -- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status", "says"),
    [
        ("GET", "/nothing", 404, "Not found: /nothing"),
        ("GET", "/v2/jobs", 404, "Not found"),
        ("GET", "/jobs/", 404, "Not found"),
        ("GET", f"/jobs/{NOBODY}", 404, f"Job {NOBODY} not found"),
        ("GET", "/jobs/abc", 400, "32 hexadecimal digits"),
        ("GET", "/jobs/{job}x", 400, "32 hexadecimal digits"),
        ("GET", "/jobs/%2e%2e%2fetc", 404, "Not found"),
        ("GET", "/jobs/%00", 400, "32 hexadecimal digits"),
        ("DELETE", "/jobs/{job}", 405, "DELETE is not possible here"),
        ("POST", "/jobs", 405, "POST is not possible here"),
        ("GET", "/jobs/{job}/stop", 405, "GET is not possible"),
        ("GET", f"/jobs/{{job}}/vertices/{NOBODY}", 404, "has no vertex"),
        ("GET", "/jobs/{job}/vertices/x/backpressure", 400, "vertexid must have"),
        ("GET", "/jobs/{job}/vertices/{vertex}/subtasks/2", 404, "has subtasks 0 to 1, not 2"),
        ("GET", "/jobs/{job}/vertices/{vertex}/subtasks/-1", 400, "whole number"),
        ("GET", "/jobs/{job}/vertices/{vertex}/subtasks/1e3", 400, "whole number"),
        ("GET", "/jobs/{job}/checkpoints/details/99", 404, "checkpoint 99"),
        ("GET", "/jobs/{job}/checkpoints/details/" + "9" * 30, 400, "whole number"),
        ("GET", "/jobs/{job}/checkpoints/details/99/explain", 404, "checkpoint 99"),
        ("GET", f"/jobs/{{job}}/checkpoints/details/2/subtasks/{NOBODY}", 404, "no vertex"),
        ("GET", f"/jobs/{{job}}/checkpoints/{NOBODY}", 404, "There is no checkpoint operation"),
        ("GET", f"/jobs/{{job}}/savepoints/{NOBODY}", 404, "There is no savepoint operation"),
        ("GET", "/jobs/{job}/savepoints/short", 400, "triggerid must have"),
        ("GET", "/jobs/{job}/exceptions?maxExceptions=many", 400, "whole number"),
        ("GET", "/jobs/{job}/vertices/{vertex}/subtasks/metrics?get=a&agg=median", 400, "min, max, avg, sum"),
        ("GET", "/jobs/{job}/logs?level=LOUD", 400, "level must be"),
        ("PATCH", "/jobs/{job}?mode=stop", 400, "POST to the job's /stop"),
        ("PATCH", "/jobs/{job}/rescaling", 400, "between 1 and 32768"),
        ("PATCH", "/jobs/{job}/rescaling?parallelism=two", 400, "whole number"),
    ],
)
def test_a_wrong_request_is_answered_with_a_sentence(
    shared: Rest, method: str, path: str, status: int, says: str
) -> None:
    found, answer = shared(method, path.replace("{vertex}", shared.vertex(0)))
    assert (found, list(answer)) == (status, ["errors"])
    assert says in answer["errors"][0]


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"{", "not JSON"),
        (b"[]", "must be a JSON object"),
        (b'"x"', "must be a JSON object"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"checkpointType": "SOME"}', "one of CONFIGURED, FULL, INCREMENTAL"),
        (b'{"checkpointType": ["FULL"]}', "one of CONFIGURED"),
        (b'{"triggerId": "x"}', "triggerId must have"),
        (b'{"triggerId": 5}', "triggerId must be a string"),
    ],
)
def test_a_wrong_body_is_answered_with_a_sentence(shared: Rest, raw: bytes, says: str) -> None:
    found, answer = shared("POST", "/jobs/{job}/checkpoints", raw=raw)
    assert found == 400
    assert says in answer["errors"][0]
    assert shared.hands.checkpoints == []


def test_a_get_may_have_a_body_which_says_nothing(shared: Rest) -> None:
    """Flink's client sends one with every request."""
    assert shared("GET", "/jobs", raw=b"{}")[0] == 200
    assert shared("GET", "/jobs", raw=b"nonsense")[0] == 200


def test_a_huge_body_is_refused_before_it_is_read(shared: Rest) -> None:
    with socket.create_connection(("127.0.0.1", shared.server.port), timeout=60) as connection:
        head = (
            f"POST /jobs/{shared.job.id}/checkpoints HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n"
        )
        connection.sendall(head.encode() + b"x" * 1000)
        assert connection.recv(1000).startswith(b"HTTP/1.1 413")

    with socket.create_connection(("127.0.0.1", shared.server.port), timeout=60) as connection:
        head = (
            f"POST /jobs/{shared.job.id}/checkpoints HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        connection.sendall(head.encode())
        answer = b""
        chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        try:
            for _ in range(MAX_BODY_BYTES // 0x10000 + 2):
                connection.sendall(chunk)
            answer = connection.recv(1000)
        except ConnectionError:  # it has answered and closed while we were still sending
            answer = answer or connection.recv(1000)
        assert answer.startswith(b"HTTP/1.1 413")


def test_a_bug_of_ours_is_said_and_the_server_lives_on(rest: Rest, caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> dict[object, object]:
        raise RuntimeError("secret details")

    rest.hands.workers = broken  # type: ignore[assignment, method-assign]
    found, answer = rest("GET", "/overview")
    assert (found, answer) == (500, {"errors": ["Internal server error: RuntimeError. The driver's log has more."]})
    assert "secret details" in caplog.text
    assert rest("GET", "/jobs")[0] == 200


def test_every_route_refuses_a_foreign_job_and_other_methods(shared: Rest) -> None:
    ours = {"Sec-Fetch-Site": "same-origin"}
    for route in ROUTES:
        path = route.path.replace("{vertexid}", shared.vertex(0)).replace("{subtaskindex}", "0")
        path = path.replace("{triggerid}", NOBODY).replace("{checkpointid}", "2").replace("{rescaleuuid}", NOBODY)
        path = path.replace("{taskmanagerid}", "node:100").replace("{log}", LOG)
        if "{jobid}" in path:
            found, answer = shared(route.method, f"/v1{path.replace('{jobid}', NOBODY)}", {}, ours)
            assert (found, list(answer)) == (404, ["errors"]), route
        found, answer = shared(
            route.method, path.replace("{jobid}", "{job}"), headers=ours, raw=b" " * (MAX_BODY_BYTES + 1)
        )
        assert (found, list(answer)) == (413, ["errors"]), route
        if route.body is not None:
            for raw in (b"[1]", b"{", b"\xff", b'{"a": NaN'):
                found, answer = shared(route.method, path.replace("{jobid}", "{job}"), raw=raw)
                assert (found, list(answer)) == (400, ["errors"]), route
        others = {other.method for other in ROUTES if other.path == route.path}
        for method in {"PUT", "DELETE", "POST", "PATCH"} - others:
            found, answer = shared(method, path.replace("{jobid}", "{job}"), {})
            assert found in (400, 405), route  # 400: /jobs/overview is not a job's id
            assert list(answer) == ["errors"]


def test_every_route_that_shows_answers_at_each_moment_of_a_life() -> None:
    """Before the first attempt, while the job restarts and nobody beats, after its end."""
    with serving() as rest:
        real = {"vertexid": rest.vertex(1), "subtaskindex": "0", "checkpointid": "2", "triggerid": NOBODY}
        real |= {"rescaleuuid": NOBODY, "taskmanagerid": "node:100", "log": LOG}
        shows = [route.path for route in ROUTES if route.method == "GET" and not route.path.endswith(CANCEL_BY_GET)]
        paths = ["/metrics", *shows]
        for event in [None, *life(), StatusChanged(JobStatus.FINISHED, "", 1.0)]:
            if event is not None:
                rest.hands.view.publish(event)
            for path in paths:
                status, text = rest.text(
                    "GET", path.replace("{jobid}", "{job}").format_map(real | {"job": rest.job.id})
                )
                names = ("{checkpointid}", "{triggerid}", "{rescaleuuid}", "{taskmanagerid}", "{log}")
                may_lack = any(name in path for name in names)
                assert status == 200 or (status == 404 and may_lack), (event, path, text)


# -- who may ask ------------------------------------------------------------------------------------------------------


def test_on_this_machine_a_foreign_name_or_page_is_refused(rest: Rest) -> None:
    assert rest("GET", "/jobs", headers={"Host": "localhost:1"})[0] == 200
    assert rest("GET", "/jobs", headers={"Host": "[::1]:8081"})[0] == 200
    assert rest("GET", "/jobs", headers={"Host": "evil.example"})[0] == 403
    assert rest("GET", "/jobs", headers={"Host": "localhost.evil.example:8081"})[0] == 403
    assert rest("PATCH", "/jobs/{job}", headers={"Host": "localhost", "Origin": "http://evil.example"})[0] == 403
    assert rest("PATCH", "/jobs/{job}", headers={"Host": "localhost", "Origin": "null"})[0] == 403
    assert rest.hands.canceled == 0
    assert rest("PATCH", "/jobs/{job}", headers={"Host": "localhost", "Origin": "http://localhost"})[0] == 202
    assert rest.hands.canceled == 1


def test_with_a_token_every_request_needs_it() -> None:
    with serving(JobConfig(rest_port=0, rest_token="s3cret")) as rest:
        paths = ["/", "/metrics", "/openapi.json", "/nothing", "/jobs?token=wrong", *(route.path for route in ROUTES)]
        for path in paths:
            found, answer = rest("GET", path.replace("{", "").replace("}", ""))
            assert (found, list(answer)) == (401, ["errors"]), path
        for route in ROUTES:
            found, answer = rest(route.method, route.path.replace("{jobid}", "{job}"), {})
            assert (found, list(answer)) == (401, ["errors"]), route
        for headers in (
            {"Authorization": "Bearer wrong"},
            {"Authorization": "Basic s3cret"},
            {"Authorization": "s3cret"},
            {"Authorization": "Bearer s3cret\u00e9"},
            {"Cookie": "tidegate_token=wrong"},
        ):
            assert rest("GET", "/jobs", headers=headers)[0] == 401
        assert rest("PATCH", "/jobs/{job}")[0] == 401
        assert rest.hands.canceled == 0

        assert rest("GET", "/jobs", headers={"Authorization": "Bearer s3cret"})[0] == 200
        assert rest("GET", "/jobs", headers={"authorization": "bearer s3cret", "Host": "any.example"})[0] == 200


def test_a_page_opened_with_the_token_gets_a_cookie_and_a_clean_address() -> None:
    with serving(JobConfig(rest_port=0, rest_token="s3cret")) as rest:
        connection = http.client.HTTPConnection("127.0.0.1", rest.server.port, timeout=60)
        connection.request("GET", "/jobs?token=s3cret")
        answer = connection.getresponse()
        assert (answer.status, answer.headers["Location"]) == (303, "/jobs")
        cookie = answer.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        connection.close()
        assert rest("GET", "/jobs", headers={"Cookie": cookie.partition(";")[0]})[0] == 200


def test_a_server_that_others_can_reach_makes_up_a_token(own_registry: Path) -> None:
    server = RestServer(RestSettings("0.0.0.0", 0, None))
    try:
        assert server.token is not None
        assert len(server.token) >= 32
        assert socket.gethostname() in server.url
    finally:
        server.close()
    with serving() as rest:
        assert rest.server.token is None
        assert rest.server.url == f"http://localhost:{rest.server.port}"


# -- acting -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_only_a_page_of_our_own_cancels_with_get(rest: Rest, method: str) -> None:
    """A page elsewhere can send both without a word of where it comes from, but for what browsers add."""
    path = f"/jobs/{{job}}{CANCEL_BY_GET}"
    for prefix in ("", "/v1"):
        for head in ({}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "none"}):
            for end in ("", "?mode=cancel", "%0A", "%0D"):
                found, answer = rest.text(method, prefix + path + end, headers=head)
                assert (found in (403, 404), rest.hands.canceled) == (True, 0), (end, answer)
    assert rest.text(method, path, headers={"Sec-Fetch-Site": "same-origin"})[0] == 202
    assert rest.hands.canceled == 1


def test_nothing_that_a_page_elsewhere_can_ask_for_acts_on_a_job(rest: Rest) -> None:
    """Such a page sends no origin with GET and HEAD, and may not read the answer: but what is asked for has been done."""
    rest.hands.may_answer.set()
    real = {"vertexid": rest.vertex(1), "subtaskindex": "0", "checkpointid": "2", "triggerid": NOBODY}
    real |= {"rescaleuuid": NOBODY, "taskmanagerid": "node:100", "log": LOG, "jobid": rest.job.id}
    for path in sorted({route.path for route in ROUTES}):
        for method in ("GET", "HEAD"):
            rest.text(method, path.format_map(real), headers={"Sec-Fetch-Site": "cross-site"})
    assert (rest.hands.canceled, rest.server.operations._all) == (0, {})


def test_cancel(rest: Rest) -> None:
    assert rest("PATCH", "/v1/jobs/{job}?mode=cancel", {}) == (202, {})
    assert rest.hands.canceled == 1
    rest.hands.view.publish(StatusChanged(JobStatus.FINISHED, "", 0.0))
    found, answer = rest("PATCH", "/v1/jobs/{job}?mode=cancel", {})
    assert found == 409
    assert "already ended: FINISHED" in answer["errors"][0]


def test_a_checkpoint_is_asked_for_and_its_result_fetched(rest: Rest) -> None:
    rest.hands.checkpoints = [17]
    found, answer = rest("POST", "/v1/jobs/{job}/checkpoints", {"checkpointType": "FULL", "triggerId": None})
    assert found == 202
    poll = f"/v1/jobs/{{job}}/checkpoints/{answer['request-id']}"
    assert rest.get(poll) == {"status": {"id": "IN_PROGRESS"}, "operation": None}
    rest.hands.may_answer.set()
    until(lambda: rest.get(poll)["status"]["id"] == "COMPLETED")
    assert rest.get(poll)["operation"] == {"checkpointId": 17}
    assert rest("GET", poll.replace("/checkpoints/", "/savepoints/"))[0] == 404, "it is not a savepoint's"


def test_a_failed_checkpoint_says_why(rest: Rest) -> None:
    rest.hands.checkpoints = [CheckpointFailed("slot 0.1 declined")]
    rest.hands.may_answer.set()
    _, answer = rest("POST", "/jobs/{job}/checkpoints")
    poll = f"/jobs/{{job}}/checkpoints/{answer['request-id']}"
    until(lambda: rest.get(poll)["status"]["id"] == "COMPLETED")
    cause = rest.get(poll)["operation"]["failureCause"]
    assert cause["class"] == "tidegate.CheckpointFailed"
    assert "slot 0.1 declined" in cause["stack-trace"]
    assert cause["serialized-throwable"].startswith("rO0ABX"), "a Java object, in base64"


def test_a_trigger_id_of_the_clients_own_is_one_operation(rest: Rest) -> None:
    mine = "ab" * 16
    rest.hands.checkpoints = [1, 2]
    rest.hands.may_answer.set()
    for _ in range(3):
        assert rest("POST", "/jobs/{job}/checkpoints", {"triggerId": mine}) == (202, {"request-id": mine})
    until(lambda: rest.get(f"/jobs/{{job}}/checkpoints/{mine}")["operation"] == {"checkpointId": 1})
    assert rest.hands.checkpoints == [2]


def test_operations_are_bounded_and_forgotten() -> None:
    now, gate = [0.0], threading.Event()
    made = Operations(clock=lambda: now[0])

    def work() -> dict[str, object]:
        gate.wait(60)
        return {}

    ids = [made.start(Kind.CHECKPOINT, "job", None, work) for _ in range(operations.MAX_RUNNING)]
    with pytest.raises(Problem, match="operations are in progress") as refused:
        made.start(Kind.CHECKPOINT, "job", None, work)
    assert refused.value.status == 503
    with pytest.raises(Problem, match="another operation"):
        made.start(Kind.SAVEPOINT, "job", ids[0], work)
    gate.set()
    until(lambda: all(made.status(Kind.CHECKPOINT, "job", id)["status"]["id"] == "COMPLETED" for id in ids))
    now[0] = operations.KEEP_S + 1
    with pytest.raises(Problem, match="There is no checkpoint operation"):
        made.status(Kind.CHECKPOINT, "job", ids[0])
    more = [made.start(Kind.CHECKPOINT, "job", f"{n:032x}", dict) for n in range(operations.MAX_RUNNING)]
    until(lambda: all(made.status(Kind.CHECKPOINT, "job", id)["operation"] == {} for id in more))
    for _n in range(operations.KEEP + 20):
        id = made.start(Kind.CHECKPOINT, "job", None, dict)
        until(lambda id=id: made.status(Kind.CHECKPOINT, "job", id)["operation"] == {})  # type: ignore[misc]
    with pytest.raises(Problem):
        made.status(Kind.CHECKPOINT, "job", more[0])


def test_a_driver_waits_for_whoever_still_asks() -> None:
    made = Operations()
    started = time.monotonic()
    made.wait_until_fetched(60)
    id = made.start(Kind.SAVEPOINT, "job", None, dict)
    fetching = threading.Timer(0.2, lambda: until(lambda: made.status(Kind.SAVEPOINT, "job", id)["operation"] == {}))
    fetching.start()
    made.wait_until_fetched(60)
    fetching.join()
    assert made.status(Kind.SAVEPOINT, "job", id)["operation"] == {}
    assert time.monotonic() - started < 60, "it waits for the result to be fetched, no longer"


@pytest.mark.parametrize(
    ("route", "body", "asked"),
    [
        ("savepoints", {}, ("savepoint", "file:///data/sums/savepoints", "canonical")),
        (
            "savepoints",
            {"target-directory": None, "formatType": "NATIVE"},
            ("savepoint", "file:///data/sums/savepoints", "native"),
        ),
        ("savepoints", {"target-directory": "/data/mine"}, ("savepoint", "/data/mine", "canonical")),
        ("stop", {"targetDirectory": "file:///data/x", "drain": False}, ("stop", "file:///data/x", "canonical")),
        ("stop", {"drain": True}, ("drain", "file:///data/sums/savepoints", "canonical")),
    ],
)
def test_a_savepoint_and_a_stop_go_through_the_client(rest: Rest, route: str, body: object, asked: object) -> None:
    rest.hands.may_answer.set()
    found, answer = rest("POST", f"/v1/jobs/{{job}}/{route}", body)
    assert found == 202
    poll = f"/v1/jobs/{{job}}/savepoints/{answer['request-id']}"
    until(lambda: rest.get(poll)["status"]["id"] == "COMPLETED")
    assert rest.get(poll)["operation"] == {"location": "file:///data/savepoint-sums-9"}
    assert rest.hands.asked == [asked]


@pytest.mark.parametrize(
    "key",
    [
        "spark.hadoop.fs.azure.account.key.mine.blob.core.windows.net",
        "spark.hadoop.fs.s3a.encryption.key",
        "spark.hadoop.fs.s3a.access.key",
        "spark.authenticate.secret",
        "spark.ssl.keyPassword",
    ],
)
def test_settings_of_spark_that_are_secrets_are_hidden(key: str) -> None:
    assert "hunter2" not in shown_value(key, "hunter2")
    assert shown_value("spark.driver.extraJavaOptions", f"-D{key}=hunter2").count("hunter2") == 0
    assert shown_value("spark.app.name", "monkey business") == "monkey business"


def test_a_savepoint_with_the_end_of_the_job_is_a_stop_after_which_nothing_more_is_committed(rest: Rest) -> None:
    """A job that runs on commits a checkpoint after the savepoint: whoever resumes from it would have those records twice."""
    rest.hands.may_answer.set()
    _, answer = rest("POST", "/jobs/{job}/savepoints", {"cancel-job": True, "formatType": "NATIVE"})
    poll = f"/jobs/{{job}}/savepoints/{answer['request-id']}"
    until(lambda: rest.get(poll)["operation"] is not None)
    assert rest.get(poll)["operation"] == {"location": "file:///data/savepoint-sums-9"}
    assert rest.hands.asked == [("stop", "file:///data/sums/savepoints", "native")]
    rest.hands.failure = SavepointFailed("no space")
    _, answer = rest("POST", "/jobs/{job}/savepoints", {"cancel-job": True})
    poll = f"/jobs/{{job}}/savepoints/{answer['request-id']}"
    until(lambda: rest.get(poll)["operation"] is not None)
    assert rest.get(poll)["operation"]["failure-cause"]["stack-trace"] == "tidegate.SavepointFailed: no space"
    assert rest.hands.canceled == 0


def test_a_rescale_says_how_long_the_gap_was(rest: Rest) -> None:
    rest.hands.may_answer.set()
    found, answer = rest("PATCH", "/jobs/{job}/rescaling?parallelism=3")
    assert found == 202
    poll = f"/jobs/{{job}}/rescaling/{answer['request-id']}"
    until(lambda: rest.get(poll)["operation"] is not None)
    assert rest.get(poll)["operation"] == {"parallelism": 3, "gap-ms": 1250, "checkpointId": 9}
    assert rest.hands.asked == [("rescale", 3)]


def bounds(upper: object, lower: object = 1) -> dict[str, object]:
    return {"parallelism": {"lowerBound": lower, "upperBound": upper}}


def test_what_flinks_pages_offer_is_done_each_vertex_runs_with_the_number_asked_for(rest: Rest) -> None:
    rest.hands.may_answer.set()
    first, second = rest.vertex(0), rest.vertex(1)
    offered = rest.get("/config")["features"]["web-rescale"]
    shown = rest.get("/jobs/{job}/resource-requirements")
    assert (offered, shown) == (True, {first: bounds(2), second: bounds(2)})

    assert rest("PUT", "/v1/jobs/{job}/resource-requirements", shown | {second: bounds(3)}) == (200, {})
    until(lambda: rest.hands.asked)
    assert rest.hands.asked == [("rescale", {"sums": 3, "printed": 3})]

    nested = {"jobVertexResourceRequirements": {first: bounds(1), second: bounds(2)}}
    assert rest("PUT", "/jobs/{job}/resource-requirements", nested) == (200, {})
    until(lambda: len(rest.hands.asked) == 2)
    assert rest.hands.asked[1] == ("rescale", {"numbers": 1, "numbers~map double": 1})


def test_what_is_so_already_needs_no_rescale(rest: Rest) -> None:
    shown = rest.get("/jobs/{job}/resource-requirements")
    assert rest("PUT", "/jobs/{job}/resource-requirements", shown) == (200, {})
    assert rest.hands.asked == []


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (bounds(0), "1 <= lowerBound <= upperBound <= 128, its max parallelism, must hold; asked for are 1 and 0"),
        (bounds(2, 3), "asked for are 3 and 2"),
        (bounds(129), "asked for are 1 and 129"),
        (bounds("2"), '{"parallelism": {"lowerBound": 1, "upperBound": N}}'),
        (bounds(True), '{"parallelism": {"lowerBound": 1, "upperBound": N}}'),
        (3, '{"parallelism": {"lowerBound": 1, "upperBound": N}}'),
    ],
)
def test_a_parallelism_that_cannot_be_is_refused_with_what_can(shared: Rest, wanted: object, words: str) -> None:
    code, answer = shared("PUT", "/jobs/{job}/resource-requirements", {shared.vertex(1): wanted})
    assert (code, words in answer["errors"][0]) == (400, True), answer


def test_a_vertex_that_is_not_there_is_refused_with_those_that_are(shared: Rest) -> None:
    code, answer = shared("PUT", "/jobs/{job}/resource-requirements", {"f" * 32: bounds(2)})
    assert code == 400
    assert f"{shared.vertex(1)} (sum 1 -> Sink: print)" in answer["errors"][0]


def test_a_rescale_that_cannot_be_done_is_in_the_jobs_log(rest: Rest) -> None:
    rest.hands.may_answer.set()
    rest.hands.failure = SavepointFailed("the job needs 5 task slots at once and the cluster has 4")
    assert rest("PUT", "/jobs/{job}/resource-requirements", {rest.vertex(1): bounds(3)})[0] == 200
    until(lambda: any("needs 5 task slots" in line["message"] for line in rest.get("/jobs/{job}/logs")["lines"]))


def test_only_a_savepoint_of_a_jobs_own_is_disposed_of(tmp_path: Path) -> None:
    storage = tmp_path / "storage"
    savepoint, checkpoint = storage / "savepoint-1", storage / "sums" / "chk-1" / "g1-a1"
    for folder in (savepoint, checkpoint, tmp_path / "elsewhere"):
        folder.mkdir(parents=True)
        (folder / "_metadata.json").write_text(
            '{"savepoint_version": 1}' if folder != checkpoint else '{"format_version": 1}'
        )
    (savepoint / "tables").mkdir()
    (savepoint / "tables" / "x.parquet").write_bytes(b"x")
    with serving(JobConfig(storage=f"file://{storage}", rest_port=0)) as rest:
        for path, status in [
            (None, 400),
            (f"file://{tmp_path}/elsewhere", 403),
            (f"file://{storage}/../elsewhere", 403),
            (f"file://{storage}", 403),
            (str(storage) + "/", 403),
        ]:
            assert rest("POST", "/savepoint-disposal", {"savepoint-path": path})[0] == status, path

        def disposed(path: Path) -> dict[str, object]:
            found, answer = rest("POST", "/v1/savepoint-disposal", {"savepoint-path": f"file://{path}"})
            assert found == 200
            poll = f"/v1/savepoint-disposal/{answer['request-id']}"
            until(lambda: rest.get(poll)["operation"] is not None)
            return dict(rest.get(poll)["operation"])

        assert disposed(savepoint) == {}
        assert not savepoint.exists(), "the folder goes with what it held"
        assert "there is no savepoint" in str(disposed(savepoint)["failure-cause"])
        assert "is not a savepoint: it is a checkpoint" in str(disposed(checkpoint)["failure-cause"])
        assert (checkpoint / "_metadata.json").exists()
        assert (tmp_path / "elsewhere" / "_metadata.json").exists()


@pytest.mark.parametrize(
    ("path", "root", "inside"),
    [
        ("file:///data/sums/savepoints", "file:///data", True),
        ("file:///data", "file:///data/", True),
        ("/data/x", "file:///data", True),
        ("file:///data/../etc", "file:///data", False),
        ("file:///data/%2e%2e/etc", "file:///data", False),
        ("file:///database", "file:///data", False),
        ("s3://bucket/data/x", "s3://bucket/data", True),
        ("s3://other/data/x", "s3://bucket/data", False),
        ("s3://bucket/data", "file:///data", False),
        ("FILE:///data/x", "file:///data", True),
        ("file:///data//x/./y", "file:///data", True),
        ("file:///data/x?a=/../../etc", "file:///data", False),
        ("file:///data/x#/../../etc", "file:///data", False),
    ],
)
def test_what_is_inside_a_folder(path: str, root: str, inside: bool) -> None:
    assert is_inside(path, root) is inside


@pytest.mark.parametrize(("route", "key"), [("savepoints", "target-directory"), ("stop", "targetDirectory")])
def test_no_savepoint_is_written_outside_the_jobs_folders(shared: Rest, route: str, key: str) -> None:
    found, answer = shared("POST", f"/jobs/{{job}}/{route}", {key: "file:///etc/cron.d"})
    assert found == 403
    assert "only inside the job's own folders (file:///data)" in answer["errors"][0]
    for inner in ("sums/chk-4/g1-a1", "sums/log", "other/history/", "sums/./staging/x"):
        found, answer = shared("POST", f"/jobs/{{job}}/{route}", {key: f"file:///data/{inner}"})
        assert found == 403, inner
        assert "cleaned up by jobs themselves" in answer["errors"][0]
    assert shared.hands.asked == []


# -- places -----------------------------------------------------------------------------------------------------------


def test_a_port_in_use_is_refused_by_name_and_passed_over_by_default() -> None:
    taken = listen("localhost", 0)
    port = taken.getsockname()[1]
    with pytest.raises(ConfigurationError, match=rf"cannot listen on localhost:{port}: .*rest.port"):
        listen("localhost", port)
    first, second = listen("localhost", None), listen("localhost", None)
    assert first.getsockname()[1] != second.getsockname()[1]
    with pytest.raises(ConfigurationError, match="is not an address of this machine"):
        listen("no-such-host.invalid", 0)
    for sock in (taken, first, second):
        sock.close()


def test_the_registry_has_the_job_for_its_owner_alone_until_it_ends(own_registry: Path) -> None:
    with serving(JobConfig(storage="s3://k:hush@bucket/d", rest_port=0, rest_token="s3cret")) as rest:
        (path,) = own_registry.iterdir()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(own_registry.stat().st_mode) == 0o700
        (entry,) = registry.entries()
        assert (entry.id, entry.name, entry.url, entry.token) == (rest.job.id, "sums", rest.server.url, "s3cret")
        assert entry.storage == "s3://bucket/d"
        rest.hands.view.publish(StatusChanged(JobStatus.RUNNING, "", 0.0))
        assert path.exists()
        rest.hands.view.publish(StatusChanged(JobStatus.FAILED, "", 0.0))
        assert not path.exists()


def test_a_dead_drivers_entry_is_removed_and_what_is_no_entry_is_left(own_registry: Path) -> None:
    here = socket.gethostname()
    dead = registry.Entry("a" * 32, "dead", "http://localhost:1", 2**22 + 1, here, 1.0)
    elsewhere = registry.Entry("b" * 32, "far", "http://far:1", 2**22 + 1, "another-host", 2.0)
    mine = registry.Entry("c" * 32, "mine", "http://localhost:2", os.getpid(), here, 3.0)
    for entry in (mine, elsewhere, dead):
        assert registry.add(entry)
    (own_registry / "note.json").write_text("not an entry")

    assert [entry.name for entry in registry.entries()] == ["far", "mine"]
    assert sorted(path.name[0] for path in own_registry.iterdir()) == ["b", "c", "n"]


def test_a_registry_that_cannot_be_written_does_not_stop_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TIDEGATE_REGISTRY", str(tmp_path / "file" / "folder"))
    with serving() as rest:
        assert rest("GET", "/jobs")[0] == 200
    assert registry.entries() == []


def test_ids_are_those_of_the_job_not_of_the_run() -> None:
    assert job_id("a", "file:///x") == job_id("a", "file:///x/")
    assert len({job_id("a", "file:///x"), job_id("b", "file:///x"), job_id("a", "file:///y")}) == 3
    assert job_id("a", None) != job_id("a", None)


def test_jobs_that_have_ended_are_forgotten_beyond_a_bound(rest: Rest) -> None:
    from rest_kit import ScriptedHands, served

    for number in range(30):
        hands = ScriptedHands(view=JobView())
        rest.server.serve(served(hands, f"job-{number}", JobConfig(storage="file:///data")))
        hands.view.publish(StatusChanged(JobStatus.FINISHED, "", 1.0))
    names = [entry["name"] for entry in rest.get("/jobs/overview")["jobs"]]
    assert names[0] == "sums", "a job that runs stays"
    assert names[1:] == [f"job-{number}" for number in range(9, 30)]


def test_the_page_names_every_route() -> None:
    page = (Path(__file__).parents[2] / "docs" / "rest.md").read_text(encoding="utf-8")
    for route in ROUTES:
        assert f"| {route.method} | `{route.path}` | {route.says} |" in page


def test_the_description_names_every_route(shared: Rest) -> None:
    described = shared.get("/openapi.json")
    found = {(method.upper(), path) for path, methods in described["paths"].items() for method in methods}
    assert found == {(route.method, f"/v1{route.path}") for route in ROUTES} | {("GET", "/metrics")}
    json.dumps(described)
