"""Every kind of state at another parallelism, from every kind of snapshot: after Flink's RescalingITCase and SavepointITCase.

The job is stopped, or dies, on its way, and continues with another parallelism. Then: each key's state is on the subtask that
owns its key group, and once; elements of list state are dealt out evenly, none is lost or doubled; union state is at every
subtask, whole; broadcast state is the same everywhere; and what comes out at the end is what plain Python says.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from protocol_kit import Numbered, environment, fresh_storage, log_records
from test_savepoint_jobs import request, run

import tidegate as tg
from tidegate.coordinator.savepoints import SavepointRequest
from tidegate.functions.checkpointed import InitializationContext, SnapshotContext
from tidegate.protocol.checkpoint_events import StopMode
from tidegate.state.keys import key_type
from tidegate.storage.store import open_store
from tidegate.testing.crash_points import Crash
from tidegate.testing.ledger_sink import LedgerSink, forget_ledgers, ledger
from tidegate.testing.runner import AllDriversDied, Ask, InProcessRun

SOURCE = Numbered(1, splits=5, per_split=50, rows_per_poll=(2, 1, 0, 0))
RULES = Numbered(2, splits=2, per_split=20, rows_per_poll=(1, 0))
KEYS = 7
MAX_PARALLELISM = 128
PAIRS = [(2, 3), (3, 2), (4, 1), (1, 5)]
Row = tuple[int, int]


@dataclass(frozen=True)
class Share:
    """What a subtask was given at its start."""

    subtask: int
    kept: list[int]
    everyone: list[int]
    rules: dict[int, int]


shares: list[Share] = []  #: of the subtasks that were restored


@pytest.fixture(autouse=True)
def begin_anew() -> None:
    forget_ledgers()
    shares.clear()


@dataclass(frozen=True)
class Seen:
    count: int
    last: datetime


class Everything(tg.KeyedProcessFunction):
    """Every kind of keyed state, and timers. It tells all of it when the input ends."""

    total = tg.ValueState(int, default=0)
    names = tg.ListState(str)
    by_split = tg.MapState(int, int)
    largest = tg.ReducingState(int, max)
    seen = tg.ValueState(Seen)

    def process_element(self, value: Row, ctx: tg.Context) -> None:
        number = value[1]
        self.total.set(self.total.get() + 1)
        self.names.add(f"n{number}")
        self.by_split.put(number // 1000, max(number, self.by_split.get(number // 1000) or 0))
        self.largest.add(number)
        self.seen.set(Seen(self.total.get(), datetime.fromtimestamp(number, UTC)))
        ctx.timer_service().register_event_time_timer(10**15)

    def on_timer(self, timestamp: int, ctx: tg.Context) -> Iterable[Any]:
        names, by_split = sorted(self.names.get()), sorted(self.by_split.items())
        yield (ctx.key, ctx.subtask, self.total.get(), names, by_split, self.largest.get(), self.seen.get().count)


class Hoard(tg.CheckpointedFunction, tg.BroadcastProcessFunction):
    """List, union and broadcast state. What it has kept comes out at the end."""

    rules = tg.BroadcastState(int, int)

    def initialize_state(self, ctx: InitializationContext) -> None:
        self.kept = ctx.operator_state.list_state("kept", int)
        self.everyone = ctx.operator_state.union_list_state("everyone", int)
        self.numbers = list(self.kept.get())
        if ctx.is_restored:
            shares.append(Share(ctx.subtask, self.numbers[:], list(self.everyone.get()), dict(self.rules.items())))

    def process_element(self, value: Row, ctx: tg.Context) -> None:
        self.numbers.append(value[1])

    def process_broadcast_element(self, rule: Row, ctx: tg.BroadcastContext) -> None:
        self.rules[rule[1]] = self.rules.get(rule[1], 0) + 1

    def snapshot_state(self, ctx: SnapshotContext) -> None:
        self.kept.set(self.numbers)
        self.everyone.set([len(self.numbers)])

    def end_input(self, ctx: tg.Context) -> list[Any]:
        return [*(("number", n) for n in self.numbers), ("rules", sorted(self.rules.items()))]


def job(storage: str, every: str = "10ms", **settings: Any) -> tg.StreamEnvironment:
    env = environment(storage=storage, every=every, **settings)
    numbers = env.from_source(SOURCE, uid="source", returns=Row)
    rules = env.from_source(RULES, uid="rules", returns=Row)
    told = numbers.key_by(lambda row: f"k{row[1] % KEYS}", key_type=str).process(Everything(), uid="every")
    told.sink_to(LedgerSink("told"), uid="told")
    kept = numbers.rebalance().connect(rules.broadcast()).process(Hoard(), uid="hoard")
    kept.sink_to(LedgerSink("kept"), uid="kept")
    return env


# -- the answer, without Tidegate -------------------------------------------------------------------------------------


def owner(key: str, parallelism: int) -> int:
    (hashed,) = key_type(str).hash_many([key_type(str).normalise(key)])
    group = (int(hashed) >> 32) * MAX_PARALLELISM >> 32
    return group * parallelism // MAX_PARALLELISM


def assert_all_came_out(parallelism: int) -> None:
    expected = []
    for key in range(KEYS):
        mine = sorted(number for number in SOURCE.numbers() if number % KEYS == key)
        by_split = sorted({number // 1000: number for number in mine}.items())
        name = f"k{key}"
        names = sorted(f"n{n}" for n in mine)
        expected.append((name, owner(name, parallelism), len(mine), names, by_split, max(mine), len(mine)))
    assert sorted(map(_plain, ledger("told").rows())) == sorted(map(_plain, expected))
    numbers = [what for kind, what in ledger("kept").rows() if kind == "number"]
    assert Counter(numbers) == Counter(SOURCE.numbers())
    rules = [_plain(what) for kind, what in ledger("kept").rows() if kind == "rules"]
    assert rules == [_plain(sorted((number, 1) for number in RULES.numbers()))] * parallelism


def _plain(value: Any) -> Any:
    return tuple(map(_plain, value)) if isinstance(value, (list, tuple)) else value


def assert_shared_out(snapshot: tg.Savepoint, parallelism: int) -> None:
    """What the subtasks were given is what the snapshot holds."""
    assert sorted(share.subtask for share in shares) == list(range(parallelism))
    kept = _values(snapshot, "kept")
    assert Counter(n for share in shares for n in share.kept) == Counter(kept)
    sizes = [len(share.kept) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    everyone = _values(snapshot, "everyone")
    assert Counter(n for share in shares for n in share.everyone) == Counter(everyone * parallelism)
    assert all(Counter(share.everyone) == Counter(everyone) for share in shares)
    copies = [] if "rules" not in {s.name for s in snapshot.states()} else _copies(snapshot)
    if snapshot.in_flight():  # a copy, and the rules that were under way to it; at the end they are all the same
        assert all(share.rules in [*copies, {}] for share in shares)
    else:
        assert all(share.rules == (copies or [{}])[0] for share in shares)


def _copies(snapshot: tg.Savepoint) -> list[dict[int, int]]:
    tables = snapshot.operator_state("hoard", "rules").batches()
    return [{row["map_key"]: row["value"] for row in rows.to_pylist()} for rows in tables]


def _values(snapshot: tg.Savepoint, name: str) -> list[int]:
    return [row["value"] for row in snapshot.operator_state("hoard", name).to_arrow().to_pylist()]


# -- snapshots of a job on its way ------------------------------------------------------------------------------------

BACKENDS = {
    "heap": {"state_backend": "hashmap"},
    "rocksdb": {"state_backend": "rocksdb"},
}


def snapshot_of(kind: str, settings: dict[str, Any]) -> tg.Savepoint:
    """Of a job on its way; of an unaligned checkpoint, with records in flight. Not every order of events gives one."""
    for seed in range(30):
        forget_ledgers()
        snapshot = stopped(kind, seed, settings) if kind in ("canonical", "native") else died(kind, seed, settings)
        is_checkpoint = snapshot.kind == "checkpoint"
        on_its_way = not all(snapshot.sources()["finished"].to_pylist())
        if on_its_way and (snapshot.in_flight() or not (is_checkpoint and settings["unaligned"])):
            return snapshot
    raise AssertionError("its input always ended first, or nothing was ever in flight")


def stopped(kind: str, seed: int, settings: dict[str, Any]) -> tg.Savepoint:
    ask = Ask(request(StopMode.SUSPEND, kind), after_checkpoints=1)
    run(job(fresh_storage(), **settings), ask, seed=seed)
    return tg.Savepoint.load(ask.outcome.path)


def died(kind: str, seed: int, settings: dict[str, Any]) -> tg.Savepoint:
    """The driver, after a checkpoint."""
    storage = fresh_storage()
    limits = {**settings["limits"], "incremental": kind == "incremental"}
    env = job(storage, **{**settings, "limits": limits})
    with pytest.raises(AllDriversDied):
        InProcessRun(env, seed, [Crash("driver.notified", nth=2)], max_drivers=1).run()
    newest = log_records(storage)[-1].latest
    assert newest is not None
    return tg.Savepoint.load(open_store(storage).uri(newest.metadata_path))


def the_table(kinds: list[str]) -> list[Any]:
    """Every combination. Half of them, in which each pair meets each other choice, run always; all with the slow ones."""
    table = []
    for numbers in itertools.product(range(len(BACKENDS)), range(len(kinds)), range(2), range(len(PAIRS))):
        backend, kind, unaligned, pair = numbers
        marks = [pytest.mark.slow] if sum(numbers) % 2 else []
        values = [*BACKENDS][backend], kinds[kind], bool(unaligned), *PAIRS[pair]
        names = (values[0], values[1], "unaligned" if unaligned else "aligned", f"{values[3]}-{values[4]}")
        table.append(pytest.param(*values, marks=marks, id="-".join(names)))
    return table


@pytest.mark.parametrize(
    ("backend", "kind", "unaligned", "old", "new"), the_table(["canonical", "native", "full", "incremental"])
)
def test_all_state_at_another_parallelism(backend: str, kind: str, unaligned: bool, old: int, new: int) -> None:
    """Savepoints are restored on the other backend as well, where their format allows it: every second pair."""
    settings: dict[str, Any] = {"parallelism": old, "unaligned": unaligned, "limits": BACKENDS[backend]}
    snapshot = snapshot_of(kind, settings)
    then = backend if old < new else {"heap": "rocksdb", "rocksdb": "heap"}[backend]
    limits = {**BACKENDS[then], "incremental": kind == "incremental"}

    run(job(fresh_storage(), "200ms", parallelism=new, unaligned=unaligned, resume=snapshot.path, limits=limits))

    assert_shared_out(snapshot, new)
    assert_all_came_out(new)


@pytest.mark.parametrize(("backend", "kind", "unaligned", "old", "new"), the_table(["incremental"]))
def test_a_running_job_is_rescaled(backend: str, kind: str, unaligned: bool, old: int, new: int) -> None:
    limits = {**BACKENDS[backend], "incremental": kind == "incremental"}
    ask = Ask(SavepointRequest(None, stop=StopMode.RESCALE, parallelism=new), after_checkpoints=1)
    run(job(fresh_storage(), limits=limits, parallelism=old, unaligned=unaligned), ask)

    assert ask.outcome.parallelism == new
    assert sorted(share.subtask for share in shares) == list(range(new))
    assert_all_came_out(new)


@pytest.mark.parametrize("unaligned", [False, True], ids=["aligned", "unaligned"])
def test_single_operators_of_a_running_job_are_rescaled_also_where_that_breaks_their_chains(unaligned: bool) -> None:
    """Their sinks stay at two subtasks, so what was a function call becomes an exchange."""
    ask = Ask(SavepointRequest(None, stop=StopMode.RESCALE, parallelism={"every": 3, "hoard": 3}), after_checkpoints=1)
    run(job(fresh_storage(), parallelism=2, unaligned=unaligned), ask)

    assert sorted(share.subtask for share in shares) == [0, 1, 2]
    assert_all_came_out(3)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_unaligned_checkpoint_becomes_a_savepoint_with_its_records_in_flight(backend: str) -> None:
    settings: dict[str, Any] = {"parallelism": 2, "unaligned": True, "limits": BACKENDS[backend]}
    snapshot = snapshot_of("full", settings)

    written = snapshot.edit().write(fresh_storage() + "/converted")
    assert [each.to_arrow().num_rows for each in written.in_flight()] == [
        each.to_arrow().num_rows for each in snapshot.in_flight()
    ]
    store = open_store(snapshot.path.rpartition("/chk-")[0])
    store.delete_many(store.list(""))  # it needs nothing of the old one
    run(job(fresh_storage(), "200ms", parallelism=3, resume=written.path))

    assert_shared_out(written, 3)
    assert_all_came_out(3)


GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.mark.parametrize("name", ["savepoint-1-all", "savepoint-2-rocksdb"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_stored_savepoints_of_each_version_are_restored_for_ever(name: str, backend: str) -> None:
    """Of the job above at parallelism 2: canonical, and RocksDB's own files. Do not make them anew when this fails: read them,
    and keep the job as it is."""
    snapshot = tg.Savepoint.load(str(GOLDEN / name))
    assert not all(snapshot.sources()["finished"].to_pylist())

    run(job(fresh_storage(), "200ms", parallelism=3, resume=str(GOLDEN / name), limits=BACKENDS[backend]))

    assert_shared_out(snapshot, 3)
    assert_all_came_out(3)
