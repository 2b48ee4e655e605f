"""State as tables: read without a job, edited, re-hashed, made from nothing; every savepoint that is written restores."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from protocol_kit import Numbered, environment, fresh_storage
from test_rescaling import Everything
from test_savepoint_jobs import request, run

import tidegate as tg
from tidegate.errors import CheckpointDamaged, ConfigurationError, SavepointFailed, StorageError
from tidegate.ids import EVENT_TIME_MARKS
from tidegate.protocol.checkpoint_events import StopMode
from tidegate.storage.log import JobLog
from tidegate.storage.memory_store import MemoryStore
from tidegate.storage.paths import JobPaths
from tidegate.storage.store import open_store
from tidegate.testing.crash_points import Crash
from tidegate.testing.ledger_sink import LedgerSink, forget_ledgers, ledger
from tidegate.testing.runner import AllDriversDied, Ask, InProcessRun

SOURCE = Numbered(1, splits=5, per_split=40, rows_per_poll=(2, 1, 0))
KEYS = 7


@pytest.fixture(autouse=True)
def empty_ledgers() -> None:
    forget_ledgers()


def without_subtask(told: Any) -> Any:
    key, _, total, names, by_split, *rest = told
    return (key, total, names, dict(by_split), *rest)


def job(storage: str | None = None, name: str = "job", **settings: Any) -> tg.StreamEnvironment:
    env = environment(name, storage=storage, **settings)
    numbers = env.from_source(SOURCE, uid="source", returns=tuple[int, int])
    told = numbers.key_by(lambda row: f"k{row[1] % KEYS}", key_type=str).process(Everything(), uid="every")
    told.map(without_subtask).sink_to(LedgerSink("out"), uid="out")
    return env


def expected() -> list[Any]:
    told = []
    for key in range(KEYS):
        mine = [number for number in SOURCE.numbers() if number % KEYS == key]
        by_split: dict[int, int] = {}
        for number in sorted(mine):
            by_split[number // 1000] = number
        told.append((f"k{key}", len(mine), sorted(f"n{n}" for n in mine), by_split, max(mine), len(mine)))
    return told


def suspended(**settings: Any) -> tg.Savepoint:
    ask = Ask(request(StopMode.SUSPEND, **settings), after_checkpoints=2)
    run(job(), ask)
    return tg.Savepoint.load(ask.outcome.path)


@pytest.mark.parametrize("format", ["canonical", "native"])
def test_the_tables_are_the_state_that_the_job_had(format: str) -> None:
    savepoint = suspended(format=format)

    totals = savepoint.keyed_state("every", "total").to_pandas()
    lists = savepoint.keyed_state("every", "names").to_arrow().to_pylist()
    read = {row["split"]: int(row["position"]) for row in savepoint.sources().to_pylist()}
    numbers = [int(split) * 1000 + at for split, stop in read.items() for at in range(stop)]
    assert numbers
    assert dict(zip(totals["key"], totals["value"])) == Counter(f"k{number % KEYS}" for number in numbers)
    assert {row["key"]: sorted(row["value"]) for row in lists} == {
        f"k{key}": sorted(f"n{n}" for n in numbers if n % KEYS == key) for key in {n % KEYS for n in numbers}
    }
    entries = savepoint.keyed_state("every", "by_split").to_arrow().to_pylist()
    assert len(entries) == len({(n % KEYS, n // 1000) for n in numbers})
    kinds = {state.name: (state.kind, state.type) for state in savepoint.states() if state.uid == "every"}
    assert kinds["seen"] == ("value", "dataclass Seen{count:int,last:datetime}")
    assert kinds["by_split"] == ("map", "map[int, int]")
    assert len(savepoint.timers("every")) == len(totals)


BACKENDS = [
    pytest.param({"state_backend": "hashmap"}, id="heap"),
    pytest.param({"state_backend": "hashmap", "incremental": True}, id="heap-incremental"),
    pytest.param({"state_backend": "rocksdb"}, id="rocksdb"),
    pytest.param({"state_backend": "rocksdb", "incremental": True}, id="rocksdb-incremental"),
]


@pytest.mark.parametrize("unaligned", [False, True], ids=["aligned", "unaligned"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_checkpoint_of_each_backend_is_read_like_a_savepoint(backend: dict[str, Any], unaligned: bool) -> None:
    storage = fresh_storage()
    started = run(job(storage, limits=backend, unaligned=unaligned))
    path = started.world.view.latest_completed().path  # type: ignore[union-attr]
    savepoint = tg.Savepoint.load(path)
    totals = savepoint.keyed_state("every", "total").to_pandas()
    assert sum(totals["value"]) == len(SOURCE.numbers())
    assert {state.name: state.rows for state in savepoint.states()}["names"] == KEYS

    edited = savepoint.edit().write(fresh_storage() + "/converted")
    assert all(change.is_empty for change in savepoint.diff(edited))


def test_nothing_in_a_savepoint_is_pickled() -> None:
    savepoint = suspended()
    store = open_store(savepoint.path)
    for path in store.list(""):
        assert b"tidegate." not in store.get(path), path  # a pickled object of ours names its module
    for state in savepoint.states():
        table = savepoint._table(state.uid, state.name, lambda kind: True).to_arrow()
        for column in table.column("value") if "value" in table.column_names else []:
            value = column.as_py()
            if isinstance(value, bytes):
                with pytest.raises((pickle.UnpicklingError, EOFError, ValueError, KeyError, IndexError)):
                    pickle.loads(value)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_savepoint_that_was_edited_restores(parallelism: int) -> None:
    savepoint = suspended()
    frame = savepoint.keyed_state("every", "total").to_pandas()
    frame["value"] += 1000
    path = fresh_storage() + "/edited"
    edited = savepoint.edit().replace_state("every", "total", frame[["key", "value"]]).write(path)

    changes = {change.name: change for change in savepoint.diff(edited)}
    assert changes["total"].changed == len(frame)
    assert all(change.is_empty for name, change in changes.items() if name != "total")

    run(job(resume=path, parallelism=parallelism))

    was = {key: total - 1000 for key, total, *_ in ledger("out").rows()}
    assert was == {key: total for key, total, *_ in expected()}
    assert sorted(row[2:5] for row in ledger("out").rows()) == sorted(row[2:5] for row in expected())


def test_records_in_flight_keep_their_key_groups() -> None:
    """They were sent to the subtasks that had them: with others, each would find the state of another subtask."""
    for seed in range(20):
        storage = fresh_storage()
        crashes = [Crash("driver.notified", nth=2)]
        run_of = InProcessRun(job(storage, unaligned=True, parallelism=3), seed, crashes, max_drivers=1)
        with pytest.raises(AllDriversDied):
            run_of.run()
        newest = JobLog(open_store(storage), JobPaths("job")).read_newest()
        assert newest is not None
        assert newest.latest is not None
        checkpoint = tg.Savepoint.load(f"{storage}/{newest.latest.metadata_path}")
        if checkpoint.in_flight():
            break

    with pytest.raises(ConfigurationError, match="'every' has records in flight"):
        checkpoint.edit().set_max_parallelism(7)
    renamed = checkpoint.edit().rename_state("every", "total", "sum").write(fresh_storage() + "/renamed")
    assert len(renamed.in_flight()) == len(checkpoint.in_flight())


class Fired(tg.CheckpointedFunction, tg.KeyedProcessFunction):
    """Keeps what operators that drop by event time keep."""

    def __init__(self, marks: list[tuple[int, int, int]]) -> None:
        self.marks = marks

    def process_element(self, value: Any, ctx: tg.Context) -> None:
        pass

    def initialize_state(self, ctx: Any) -> None:
        self.kept = ctx.operator_state.union_list_state(EVENT_TIME_MARKS, tuple[int, int, int])

    def snapshot_state(self, ctx: Any) -> None:
        self.kept.set(self.marks)


@pytest.mark.parametrize("later", [50, 40])
def test_key_groups_of_which_event_time_has_come_further_stay_as_they_are(later: int) -> None:
    env = environment("marks")
    numbers = env.from_source(SOURCE, uid="source", returns=tuple[int, int])
    told = numbers.key_by(lambda row: row[1], key_type=int).process(Fired([(0, 64, 40), (64, 128, later)]), uid="late")
    told.sink_to(LedgerSink("out"), uid="out")
    ask = Ask(request(StopMode.SUSPEND), after_checkpoints=1)
    run(env, ask)
    savepoint = tg.Savepoint.load(ask.outcome.path)

    if later == 40:
        savepoint.edit().set_max_parallelism(300)
        return
    with pytest.raises(ConfigurationError, match="event time had come further"):
        savepoint.edit().set_max_parallelism(300)


def test_a_new_maximum_of_parallelism_hashes_every_key_again() -> None:
    savepoint = suspended()
    path = fresh_storage() + "/wider"
    wider = savepoint.edit().set_max_parallelism(1024).write(path)
    assert all(change.is_empty for change in savepoint.diff(wider))
    assert wider.operator("every").max_parallelism == 1024

    run(job(resume=path, parallelism=5))

    assert sorted(ledger("out").rows()) == sorted(expected())


def test_a_job_goes_on_from_a_savepoint_that_was_made_of_a_dataframe() -> None:
    frame = pd.DataFrame({"key": [f"k{key}" for key in range(KEYS)], "value": [100 * key for key in range(KEYS)]})
    path = fresh_storage() + "/new"
    new = tg.Savepoint.new("job").add_operator("every", Everything, key_type=str).add_state("every", "total", frame)
    new.write(path)

    run(job(resume=path))

    totals = {row[0]: row[1] for row in ledger("out").rows()}
    assert totals == {row[0]: row[1] + 100 * int(row[0][1:]) for row in expected()}


def test_an_operator_is_renamed_and_another_dropped() -> None:
    savepoint = suspended()
    edited = savepoint.edit().rename_operator("every", "all").drop_operator("out").write(fresh_storage() + "/renamed")

    uids = {info.uid for info in edited.operators()}
    assert uids >= {"source", "all"}
    assert not uids & {"every", "out"}
    assert edited.keyed_state("all", "total").to_arrow() == savepoint.keyed_state("every", "total").to_arrow()


def test_a_source_is_rewound() -> None:
    savepoint = suspended()
    edited = savepoint.edit().set_source_position("source", "0", 0).write(fresh_storage() + "/rewound")
    positions = {row["split"]: row["position"] for row in edited.sources().to_pylist()}
    assert positions["0"] == "0"
    assert {split: at for split, at in positions.items() if split != "0"} == {
        row["split"]: row["position"] for row in savepoint.sources().to_pylist() if row["split"] != "0"
    }


def test_what_is_no_state_is_refused_in_words() -> None:
    edit = suspended().edit()
    with pytest.raises(ConfigurationError, match="need the columns 'key' and 'value'"):
        edit.replace_state("every", "total", [{"k": "k1", "value": 1}]).write(fresh_storage() + "/x")
    with pytest.raises(ConfigurationError, match="does not fit state 'total'"):
        edit.replace_state("every", "total", [{"key": "k1", "value": "many"}])
    with pytest.raises(ConfigurationError, match="1 rows are for an entry that has one already"):
        edit.replace_state("every", "total", [{"key": "k1", "value": 1}] * 2).write(fresh_storage() + "/x")
    with pytest.raises(ConfigurationError, match="has no state 'nothing'"):
        edit.replace_state("every", "nothing", pa.table({"key": ["k1"], "value": [1]}))
    with pytest.raises(ConfigurationError, match="there is no savepoint or checkpoint at"):
        tg.Savepoint.load("memory://nowhere")


def test_a_byte_that_changed_is_damage_and_never_state() -> None:
    savepoint = suspended()
    store = open_store(savepoint.path)
    (path,) = [path for path in store.list("keyed/every/total") if path.endswith("part-1-0.parquet")]
    data = bytearray(store.get(path))
    for at in range(0, len(data), max(1, len(data) // 50)):
        changed = bytearray(data)
        changed[at] ^= 0xFF
        store.put(path, bytes(changed))
        with pytest.raises(CheckpointDamaged):
            savepoint.keyed_state("every", "total").to_arrow()


def test_the_largest_keys_come_first() -> None:
    savepoint = suspended()
    largest = savepoint.largest_keys("every", "names", 3)
    assert len(largest) == 3
    assert [size for _, size in largest] == sorted((size for _, size in largest), reverse=True)


class Unwritable(MemoryStore):
    """Takes no files."""

    def put(self, path: str, data: Any) -> None:
        raise StorageError("the disk is full")


@pytest.mark.parametrize(
    ("stop", "attempts"), [(None, 1), (StopMode.SUSPEND, 1), (StopMode.DRAIN, 2)], ids=["savepoint", "suspend", "drain"]
)
def test_a_savepoint_that_fails_leaves_nothing_and_the_job_goes_on(
    stop: StopMode | None, attempts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a drain that failed it continues from the last checkpoint: what has ended cannot be taken back otherwise."""
    ask = Ask(request(stop, directory=fresh_storage() + "/savepoints"), after_checkpoints=1)

    def open_somewhere(uri: str) -> Any:
        return Unwritable(uri.removeprefix("memory://")) if "/savepoint-" in uri else open_store(uri)

    monkeypatch.setattr("tidegate.storage.anywhere.open_store", open_somewhere)
    started = run(job(limits={"tolerable_failures": 0}), ask)

    with pytest.raises(SavepointFailed, match=r"the disk is full.*The job continues"):
        ask.outcome  # noqa: B018
    assert started.attempts == attempts
    assert sorted(ledger("out").rows()) == sorted(expected())


GOLDEN = Path(__file__).parents[1] / "golden" / "savepoint-1"


def test_a_savepoint_of_version_1_is_read_for_ever() -> None:
    """Stored once by the release that made the format; do not make it anew when this fails: read it."""
    savepoint = tg.Savepoint.load(str(GOLDEN))
    read = {row["split"]: int(row["position"]) for row in savepoint.sources().to_pylist()}
    numbers = [int(split) * 1000 + at for split, stop in read.items() for at in range(stop)]
    totals = savepoint.keyed_state("every", "total").to_pandas()
    assert dict(zip(totals["key"], totals["value"])) == Counter(f"k{number % KEYS}" for number in numbers)

    # Its sinks' output was another process's. What is left to do is exactly the rest, and the timers tell all of it.
    restored = savepoint.edit().drop_operator("out").write(fresh_storage() + "/without-output")
    run(job(resume=restored.path, allow_dropped_state=True, parallelism=3))

    assert sorted(ledger("out").rows()) == sorted(expected())


@pytest.mark.parametrize("point", ["slot.table-stored", "driver.tables-stored"])
def test_what_a_drain_fired_does_not_count_when_its_savepoint_dies(point: str) -> None:
    """The timers fire again at the real end of the input, with all of it; nothing of the first time has come out."""
    for seed in range(4):
        forget_ledgers()
        ask = Ask(request(StopMode.DRAIN), after_checkpoints=1)
        run(job(every="10ms"), ask, seed=seed, crashes=(Crash(point),))

        with pytest.raises(SavepointFailed):
            ask.outcome  # noqa: B018
        assert sorted(ledger("out").rows()) == sorted(expected())
