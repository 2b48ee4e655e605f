"""Files of a checkpoint that were changed, cut short or lost, on real servers: the next run ends with the file's name
and the way out, nothing is committed, no older checkpoint is taken instead; and with the file back, the job continues exactly.

The job runs in this process, without Spark, on the servers' storage.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

import tidegate as tg
from matrices import chosen, first
from stored_files import newest_record, paths_in
from tidegate.coordinator.observing import JobStatus
from tidegate.errors import CheckpointDamaged
from tidegate.storage.store import ObjectStore, open_store
from tidegate.testing.crash_points import Crash
from tidegate.testing.ledger_sink import LedgerSink, forget_ledgers, ledger
from tidegate.testing.runner import AllDriversDied, InProcessRun, run_in_process

NUMBERS, KEYS = 400, 7
SERVERS = ("s3", "hdfs")
#: how state is stored, and how the names of its files end
LAYOUTS = {
    "hashmap in full": ("hashmap", False, ".snapshot"),
    "hashmap increments": ("hashmap", True, ".state"),
    "rocksdb tables": ("rocksdb", True, ".state"),
}
#: the bytes that are there instead; None: no file
DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "a byte was changed": lambda data: data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :],
    "most of it is missing": lambda data: data[: len(data) // 3],
    "it is not there": lambda data: None,
}  # fmt: skip


class Visits(tg.KeyedProcessFunction):
    """(key, n-th of the key, number)."""

    count = tg.ValueState(int, default=0)
    seen = tg.ListState(int)

    def process_element(self, number: int, ctx: tg.Context) -> Iterator[tuple[int, int, int]]:
        self.count.set(self.count.get() + 1)
        self.seen.add(number)
        assert len(self.seen.get()) == self.count.get()
        yield (ctx.key, self.count.get(), number)


def job(storage: str, layout: str, resume: str | None = None) -> tg.StreamEnvironment:
    backend, incremental, _ = LAYOUTS[layout]
    env = tg.StreamEnvironment("job", parallelism=2)
    env.checkpointing(every="10ms", storage=storage, retained=3, resume=resume)
    env._config = replace(env._config, inline_limit_bytes=0)
    env.state_backend(backend, incremental=incremental, memory="4mb")
    numbers = env.from_collection(list(range(NUMBERS)), uid="numbers", type=int)
    visits = numbers.key_by(lambda n: n % KEYS, key_type=int).process(
        Visits(), uid="visits", returns=tuple[int, int, int]
    )
    visits.sink_to(LedgerSink("out"), uid="out")
    return env


def assert_exact() -> None:
    rows = ledger("out").rows()
    assert sorted(number for _, _, number in rows) == list(range(NUMBERS))
    for key in range(KEYS):
        places = sorted(nth for found, nth, _ in rows if found == key)
        assert places == list(range(1, len(places) + 1))


@pytest.fixture
def storage(request: pytest.FixtureRequest) -> str:
    forget_ledgers()
    if request.param == "s3":
        request.getfixturevalue("in_s3")
        return f"s3://checkpoints/{secrets.token_hex(8)}"
    return f"{request.getfixturevalue('hdfs')}/{secrets.token_hex(8)}"


def interrupted(storage: str, layout: str) -> dict[str, Any]:
    """The only driver of a job dies after its third checkpoint; the log's newest record."""
    with pytest.raises(AllDriversDied):
        InProcessRun(job(storage, layout), 4, [Crash("driver.after-log", nth=3)], max_drivers=1).run()
    return newest_record(open_store(storage))


def newer_than(checkpoint: int) -> list[str]:
    """What was committed under a later one. What belongs to the damaged one may be: the log says that it counts."""
    return [name for name in ledger("out").committed if int(name[:8]) > checkpoint]


def put_instead(store: ObjectStore, path: str, data: bytes | None) -> None:
    if data is None:
        store.delete(path)
    else:
        store.put(path, data)


@pytest.mark.parametrize(
    ("storage", "layout"),
    first(3, [(server, layout) for server in SERVERS for layout in LAYOUTS]),
    indirect=["storage"],
)
def test_a_damaged_file_of_state_ends_the_job_in_words_and_changes_nothing(storage: str, layout: str) -> None:
    latest = interrupted(storage, layout)["latest"]
    store = open_store(storage)
    used = sorted(set(paths_in(json.loads(store.get(latest["metadata_path"])))))
    path = max((path for path in used if path.endswith(LAYOUTS[layout][2])), key=lambda path: len(store.get(path)))
    whole = store.get(path)

    for damage, damaged in DAMAGES.items():
        put_instead(store, path, damaged(whole))
        result = run_in_process(job(storage, layout, resume="latest"))
        assert result.status is JobStatus.FAILED, damage
        assert path in str(result.error), damage
        assert "The checkpoint cannot be restored; start from an older one" in str(result.error), damage
        assert result.attempts == 1, "another attempt would read the same"
        assert newest_record(store)["latest"] == latest, "another checkpoint counts now"
        assert newer_than(latest["id"]) == [], damage
    store.put(path, whole)

    assert run_in_process(job(storage, layout, resume="latest")).status is JobStatus.FINISHED
    assert_exact()


@pytest.mark.parametrize("storage", chosen({"s3"}, SERVERS), indirect=True)
def test_damaged_metadata_or_log_ends_the_job_before_anything_runs(storage: str) -> None:
    record = interrupted(storage, "hashmap in full")
    store = open_store(storage)
    before = [path for path in store.list("job") if "/log/" not in path]

    for of in ("metadata", "log"):
        path = record["latest"]["metadata_path"] if of == "metadata" else store.list("job/log")[-1]
        whole = store.get(path)
        for damage, damaged in DAMAGES.items():
            if of == "log" and damaged(whole) is None:
                continue  # the log ends one record earlier then, and nothing shows that there was another
            put_instead(store, path, damaged(whole))
            with pytest.raises(CheckpointDamaged) as caught:
                run_in_process(job(storage, "hashmap in full", resume="latest"))
            assert path in str(caught.value), damage
            assert "resume" in str(caught.value), "the way out"
            put_instead(store, path, whole)
            assert [path for path in store.list("job") if "/log/" not in path] == before
            assert newest_record(store)["latest"] == record["latest"]
            assert newer_than(record["latest"]["id"]) == []

    assert run_in_process(job(storage, "hashmap in full", resume="latest")).status is JobStatus.FINISHED
    assert_exact()
