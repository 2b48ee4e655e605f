"""State that is kept in the driver's memory: what travels there, and what is refused."""

from __future__ import annotations

import dataclasses
import secrets
from pathlib import Path

import pyarrow as pa
import pytest

import tidegate as tg
from tidegate.errors import StateTooLarge, StorageError
from tidegate.launch import keeps_state_in_driver, slot_settings
from tidegate.storage.anywhere import reaching_anywhere
from tidegate.storage.memory_store import UnreachableStore
from tidegate.storage.snapshot_file import SnapshotFileWriter, carry_snapshot, read_sections
from tidegate.storage.store import open_store
from tidegate.testing.crash_points import Crash
from tidegate.testing.runner import AllDriversDied, InProcessRun, run_in_process


def snapshot(rows: int) -> tuple[pa.Buffer, list]:
    writer = SnapshotFileWriter()
    for group in range(4):
        writer.add("count", "total", "value", group, pa.record_batch({"value": list(range(rows))}))
    return writer.finish()


def test_all_of_a_snapshot_travels_and_is_read_back_without_a_storage() -> None:
    file = carry_snapshot(*snapshot(1000), state_limit=1 << 20)

    assert file.path is None
    found = [batch.column(0).to_pylist() for _, batch in read_sections(UnreachableStore(), file)]
    assert found == [list(range(1000))] * 4


def test_one_state_over_the_limit_is_refused_with_its_name_its_size_and_the_ways_out() -> None:
    data, sections = snapshot(1000)
    size = sum(section.length for section in sections)
    assert carry_snapshot(data, sections, state_limit=size).size == size

    with pytest.raises(
        StateTooLarge, match=r"state 'total' of operator 'count' takes .* Keep checkpoints in a storage"
    ):
        carry_snapshot(data, sections, state_limit=size - 1)


def test_executors_store_nothing_there_but_reach_other_places(tmp_path) -> None:
    store = reaching_anywhere(UnreachableStore())
    for ask in (lambda: store.put("a", b"x"), lambda: store.get("a"), lambda: store.list("job")):
        with pytest.raises(StorageError, match="driver's memory, which executors cannot reach"):
            ask()

    store.put(f"file://{tmp_path}/a", b"x")
    assert store.get(f"file://{tmp_path}/a") == b"x"


def test_the_limit_is_five_megabytes_unless_another_is_set() -> None:
    env = tg.StreamEnvironment("job")
    env.checkpointing(every="1s", storage="memory")

    assert keeps_state_in_driver(env.config())
    assert slot_settings(env.config()).state_limit_bytes == 5 * 1024 * 1024
    assert slot_settings(dataclasses.replace(env.config(), memory_state_limit_bytes=7)).state_limit_bytes == 7
    assert slot_settings(dataclasses.replace(env.config(), storage="file:///x")).state_limit_bytes is None


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_job_in_one_process_leaves_its_checkpoint_in_memory_and_no_files(asynchronous: bool) -> None:
    """Also with synchronous snapshots, which must change nothing but the time."""
    name = f"job-{secrets.token_hex(4)}"
    env = tg.StreamEnvironment(name, parallelism=2)
    env.checkpointing(every="20ms", storage="memory")
    env._config = dataclasses.replace(env._config, asynchronous_snapshots=asynchronous)
    env.from_collection(list(range(300)), uid="numbers", type=int).key_by(lambda n: n % 3, key_type=int).count(
        uid="count"
    ).collect(uid="counts")
    result = run_in_process(env, seed=1)

    assert result.status is tg.JobStatus.FINISHED
    files = open_store("memory").list(name)
    assert any(path.endswith("_metadata.json") for path in files)
    assert not any(path.endswith(".snapshot") for path in files)


@pytest.mark.parametrize("storage", ["memory", "a folder"])
def test_a_driver_that_finds_nothing_in_its_memory_says_that_all_comes_again(
    storage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    env = tg.StreamEnvironment(f"job-{secrets.token_hex(4)}", parallelism=1)
    env.checkpointing(every="20ms", storage="memory" if storage == "memory" else f"file://{tmp_path}", resume="latest")
    env.from_collection([1, 2, 3], uid="numbers", type=int).collect(uid="rows")

    assert run_in_process(env, seed=1).status is tg.JobStatus.FINISHED
    said = "there is nothing to resume: the checkpoints of" in caplog.text
    assert said == (storage == "memory"), "in a folder there is nothing that could have been lost"


def test_a_second_run_in_the_same_process_goes_on_from_memory(caplog: pytest.LogCaptureFixture) -> None:
    name = f"job-{secrets.token_hex(4)}"

    def job(resume: str | None) -> tg.StreamEnvironment:
        env = tg.StreamEnvironment(name, parallelism=1)
        env.checkpointing(every="10ms", storage="memory", resume=resume)
        env.restart_strategy("none")
        numbers = env.from_collection(list(range(200)), uid="numbers", type=int)
        numbers.key_by(lambda n: n % 3, key_type=int).count(uid="count").collect(uid="counts")
        return env

    with pytest.raises(AllDriversDied):
        InProcessRun(job(None), 1, [Crash("driver.after-log", nth=2)], max_drivers=1).run()
    result = run_in_process(job("latest"), seed=1)

    assert result.status is tg.JobStatus.FINISHED
    assert result.view.restored_from is not None
    assert "nothing to resume" not in caplog.text
