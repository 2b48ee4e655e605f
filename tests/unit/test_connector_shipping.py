"""What a connector does to the user's classes must not keep them from the executors."""

from __future__ import annotations

from dataclasses import make_dataclass
from pathlib import Path
from typing import Any

import cloudpickle

from tidegate.connectors.files_source import Files


def test_a_dataclass_that_no_worker_can_import_can_be_shipped_after_files_were_declared_with_it(tmp_path: Path) -> None:
    inner = make_dataclass("Inner", [("x", int)])
    kinds: list[Any] = [inner, list[inner], dict[str, inner], tuple[inner, int], inner | None]
    fields = [(f"f{number}", kind) for number, kind in enumerate(kinds)]
    outer = make_dataclass("Outer", fields)

    source = Files(tmp_path, "jsonl", type=outer)

    shipped = cloudpickle.loads(cloudpickle.dumps(source))
    assert shipped.record_type.__name__ == "Outer"
