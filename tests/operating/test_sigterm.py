"""A supervisor ends a driver with SIGTERM: what it had done is kept, and a next run continues exactly there. Real Spark."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from operating.driver import Driver, assert_exact, rows_in
from tidegate.cli.main import main

pytestmark = pytest.mark.faults


def test_a_terminated_driver_goes_on_from_its_checkpoint_and_stops_with_a_savepoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TIDEGATE_REGISTRY", str(tmp_path / "registry"))
    with Driver(tmp_path, plain=True) as plain:
        plain.entry()
        plain.until("rows are committed", lambda: rows_in(tmp_path))
        plain.terminate()
        assert plain.end() == 143
    said = plain.log.read_text()
    kept = re.search(r'endless: (stopped by SIGTERM; checkpoint \d+ is kept): resume="latest" continues from it', said)
    assert kept, said
    before = assert_exact(tmp_path, at_least=1)

    with Driver(tmp_path, "--resume", "--on-term=savepoint") as again:
        again.entry()
        again.until("more rows are committed", lambda: len(rows_in(tmp_path)) > before)
        again.terminate()
        assert again.end() == 143
    said = again.log.read_text()
    savepoint = re.search(
        r"endless: stopped by SIGTERM; a savepoint is stored: tidegate run --resume (\S+) continues", said
    )
    assert savepoint, said
    assert_exact(tmp_path, at_least=before + 1)

    assert main(["history", again.storage, "endless", "--json"]) == 0
    history = json.loads(capsys.readouterr().out)
    assert [(run["state"], run["reason"]) for run in history["runs"]] == [
        ("CANCELED", kept[1]),
        ("FINISHED", "stopped by SIGTERM, with a savepoint"),
    ]
    assert f"{savepoint[1]}/_metadata.json" in [entry["path"] for entry in history["retained"]]
