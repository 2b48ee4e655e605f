"""Local folders: whose they are, and when they go."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tidegate.errors import StorageError
from tidegate.state.rocksdb_files import StateFolder, checkpoint_files, default_base, sweep

HOLDER = """
import sys
from pathlib import Path
from tidegate.state.rocksdb_files import StateFolder
folder = StateFolder(Path(sys.argv[1]))
(folder.path / "data").write_bytes(b"x")
print(folder.path, flush=True)
sys.stdin.read()
"""


def holder(base: Path) -> tuple[subprocess.Popen[str], Path]:
    """Another process that owns a folder until it is killed or its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(base)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def end(process: subprocess.Popen[str]) -> None:
    process.wait()
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    process.stdout.close()


def test_a_folder_is_gone_when_it_is_closed_and_leaves_no_lock(tmp_path):
    folder = StateFolder(tmp_path)
    (folder.path / "data").write_bytes(b"x")
    folder.close()
    folder.close()

    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_a_killed_process_is_swept_and_that_of_a_live_one_is_not(tmp_path):
    killed, killed_folder = holder(tmp_path)
    alive, alive_folder = holder(tmp_path)
    mine = StateFolder(tmp_path)
    killed.send_signal(signal.SIGKILL)
    end(killed)

    assert sweep(tmp_path) == [killed_folder]
    assert not killed_folder.exists()
    assert (alive_folder / "data").exists()
    assert mine.path.exists()
    assert sweep(tmp_path) == []
    alive.kill()
    end(alive)
    assert sweep(tmp_path) == [alive_folder]
    mine.close()
    assert list(tmp_path.iterdir()) == []


def test_a_lock_whose_folder_was_never_made_is_swept(tmp_path):
    (tmp_path / "state-1-aa.lock").touch()

    assert sweep(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_of_a_folder_that_does_not_exist_does_nothing(tmp_path):
    assert sweep(tmp_path / "nothing") == []


def test_a_place_where_no_folder_can_be_made_is_refused_in_words(tmp_path):
    (tmp_path / "file").touch()

    with pytest.raises(StorageError, match="Give a folder on a local disk"):
        StateFolder(tmp_path / "file" / "below")


def test_of_a_checkpoint_only_tables_and_what_opens_them_is_kept(tmp_path):
    for name in (
        "000012.sst",
        "000009.sst",
        "CURRENT",
        "MANIFEST-000005",
        "OPTIONS-000007",
        "LOG",
        "000004.log",
        "LOCK",
    ):
        (tmp_path / name).write_bytes(b"12345")

    assert [(file.name, file.size, file.shareable) for file in checkpoint_files(tmp_path)] == [
        ("000009.sst", 5, True),
        ("000012.sst", 5, True),
        ("CURRENT", 5, False),
        ("MANIFEST-000005", 5, False),
    ]


def test_the_default_folder_is_the_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    StateFolder(default_base()).close()
    assert default_base().stat().st_mode & 0o777 == 0o700

    default_base().chmod(0o755)
    with pytest.raises(StorageError, match="alone can read"):
        StateFolder(default_base())
