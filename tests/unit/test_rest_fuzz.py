"""A fuzzer with the description of REST in hand finds no answer that is a bug of ours, and no status that is not described."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from rest_kit import Rest, lived, serving

from matrices import first

CASES = (10, 100)  #: for each route, beside those that cover every parameter's border


@pytest.fixture
def described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TIDEGATE_REGISTRY", str(tmp_path / "registry"))
    return tmp_path / "openapi.json"


def with_real_ids(rest: Rest) -> dict[str, object]:
    """Half of the time an id that exists: else a fuzzer sees little but 404."""
    description = rest.get("/openapi.json")
    vertices = [vertex.id for vertex in rest.job.vertices()]
    real = {"jobid": [rest.job.id], "vertexid": vertices, "checkpointid": [1, 2, 3, 4], "subtaskindex": [0, 1]}
    for methods in description["paths"].values():
        for operation in methods.values():
            for parameter in operation.get("parameters", ()):
                known = real.get(parameter["name"])
                if known is not None:
                    parameter["schema"] = {"anyOf": [{"enum": known}, parameter["schema"]]}
    return dict(description)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("cases", first(1, CASES))
def test_no_request_makes_the_server_fail(described: Path, cases: int) -> None:
    with serving() as rest:
        lived(rest.hands.view)
        rest.hands.may_answer.set()
        rest.hands.checkpoints = list(range(1, 10_000))
        described.write_text(json.dumps(with_real_ids(rest)))
        command = [
            sys.executable,
            "-m",
            "schemathesis.cli",
            "run",
            str(described),
            "--url",
            rest.server.url,
            "--no-color",
        ]
        command += ["--checks", "not_a_server_error,status_code_conformance,content_type_conformance"]
        command += [
            "--phases",
            "coverage,fuzzing",
            "--max-examples",
            str(cases),
            "--seed",
            "1",
            "--continue-on-failure",
        ]
        done = subprocess.run(command, cwd=described.parent, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        assert "No issues found" in done.stdout or "passed" in done.stdout, done.stdout[-2000:]
        assert rest("GET", "/jobs")[0] == 200
        assert rest.hands.asked, "it got as far as to the job"
