"""Sorted runs on the disk: what is found, what merging keeps, what a damaged file and a full disk do."""

from __future__ import annotations

import gc
import itertools
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from rocksdb_kit import NONE, RocksBackends

from tidegate.errors import CheckpointDamaged, ProtocolViolation, StorageError
from tidegate.state import cold as cold_module
from tidegate.state import tiers as tiers_module
from tidegate.state.cold import Changed, Cold
from tidegate.state.cold_keys import ENTRIES, INTS, OTHERS
from tidegate.state.key_groups import key_groups
from tidegate.state.key_hash import hash_int64s
from tidegate.state.keys import key_type
from tidegate.state.namespaces import in_namespace
from tidegate.state.rocksdb_keys import Addresses
from tidegate.state.run_files import RunsOf, rows_of, runs_of, taken_over
from tidegate.state.runs import Columns, Loaded, Part, Run, find_in, listed, merged, order_range
from tidegate.state.tiers import MAX_RUNS, MAX_WAITING

GROUPS = 16
SMALL_PART_BYTES = 2_000


@pytest.fixture
def cold(tmp_path: Path) -> Iterator[Cold]:
    made = new_cold(tmp_path / "runs")
    yield made
    made.close()


def new_cold(folder: Path, own: range = range(GROUPS), tiers: tuple[str, ...] = (INTS, OTHERS)) -> Cold:
    folder.mkdir()
    return Cold(folder, Addresses(key_type(Any), own, GROUPS), "total", SMALL_PART_BYTES, tiers)


def change(cold: Cold, values: dict[Any, int | None]) -> Changed:
    """None: the key is gone."""
    keys = list(values)
    present = np.array([value is not None for value in values.values()])
    cells = np.array([value or 0 for value in values.values()], dtype=np.int64)
    return Changed(lambda: (cold.keys(keys), cells, present), len(keys))


def put(cold: Cold, values: dict[Any, int | None]) -> None:
    cold.write(change(cold, values))


def found(cold: Cold, keys: Any) -> dict[Any, int]:
    return {
        keys[place]: cell
        for places, cells in cold.find(keys)
        for place, cell in zip(places.tolist(), listed(cells), strict=True)
    }


def test_a_batch_finds_the_newest_value_of_each_key_whatever_was_written_and_merged(cold: Cold) -> None:
    """Against a dictionary: ints, text, keys in namespaces, keys that go and come again."""
    dice, model = random.Random(3), dict[Any, int]()
    all_keys = [*range(300), -5, 1 << 70, None, *map(str, range(40)), *(in_namespace(at, b"w") for at in range(40))]
    for step in range(120):
        some = dice.sample(all_keys, dice.randrange(1, 60))
        values = {key: dice.choice([None, step, step]) for key in some}
        put(cold, values)
        model |= {key: value for key, value in values.items() if value is not None}
        for key in [key for key, value in values.items() if value is None]:
            model.pop(key, None)
        asked = dice.sample(all_keys, 50)
        assert found(cold, asked) == {key: model[key] for key in asked if key in model}
        assert len(cold.tiers[INTS].runs) <= MAX_RUNS
        assert len(cold.tiers[OTHERS].runs) <= MAX_RUNS
    assert dict(cold.rows()) == model


def test_the_rows_of_a_key_are_found_together_and_alone_whatever_was_written_and_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against dictionaries: keys with no rows, with a few, and with more than are read ahead or looked at one by one."""
    monkeypatch.setattr(cold_module, "FEW_ROWS", 30)
    monkeypatch.setattr(cold_module, "FEW_ROWS_OF_KEY", 12)
    cold = new_cold(tmp_path / "runs", tiers=(ENTRIES,))
    dice, model = random.Random(5), dict[Any, dict[bytes, bytes]]()
    keys = [*range(40), "a", "ab", None, 1 << 70, in_namespace(3, b"w"), in_namespace("a", b"b")]
    many = [dice.choice(keys) for _ in range(3)]
    for step in range(80):
        parts = []
        some = dice.sample(keys, 12)
        for key in some:
            names = dice.sample(range(60), dice.randrange(25) if key in many else dice.randrange(3))
            rows = {name.to_bytes(2, "big"): dice.choice([None, b"", b"%d" % step]) for name in names}
            parts.append(rows)
            of_key = model.setdefault(key, {})
            of_key |= {part: cell for part, cell in rows.items() if cell is not None}
            for part in [part for part, cell in rows.items() if cell is None]:
                of_key.pop(part, None)
        cells = [cell for rows in parts for cell in rows.values()]
        present = np.array([cell is not None for cell in cells], np.bool_)
        column = pa.array([cell or b"" for cell in cells], pa.large_binary())
        names_of = [list(rows) for rows in parts]
        cold.write(Changed(lambda: (cold.parts_of(some, names_of), column, present), len(cells)))  # noqa: B023
        for key in keys:
            assert dict(cold.parts(key)) == model.get(key, {})
            name = dice.randrange(60).to_bytes(2, "big")
            assert cold.get_part(key, name) == model.get(key, {}).get(name)
        max_bytes = dice.choice([20, 10_000])
        ahead = cold.parts_of_some(keys, dice.choice([0, 20, 1000]), max_bytes)
        assert sum(len(cell) for rows in ahead.values() for _, cell in rows) <= max_bytes
        assert {key: dict(rows) for key, rows in ahead.items()} == {key: model.get(key, {}) for key in ahead}
        assert len(cold.tiers[ENTRIES].runs) <= MAX_RUNS
    assert {key: dict(rows) for key, rows in cold.rows_by_key()} == {key: rows for key, rows in model.items() if rows}
    assert 10 < len(cold.parts_of_some(keys, 1000, 10_000)) < len(keys)
    cold.close()


def test_long_rows_are_not_all_in_memory_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However few they are: read ahead of many keys, and walked of one."""
    cold = new_cold(tmp_path / "runs", tiers=(ENTRIES,))
    keys, parts = list(range(20)), [[bytes([part]) for part in range(10)]] * 20
    cells = pa.array([bytes(1000)] * 200, pa.large_binary())
    cold.write(Changed(lambda: (cold.parts_of(keys, parts), cells, np.ones(200, np.bool_)), 200))
    assert len(cold.parts_of_some(keys, 1000, 35_000)) == 3
    assert not cold.parts_of_some(keys, 1000, 9_999)

    sizes: list[int] = []

    def seen(*args: Any, **kwargs: Any) -> Iterator[Columns]:
        for columns in merged(*args, **kwargs):
            sizes.append(columns.size_bytes)
            yield columns

    monkeypatch.setattr(cold_module, "merged", seen)
    assert sorted(cold.parts(7)) == [(bytes([part]), bytes(1000)) for part in range(10)]
    assert len(sizes) >= 3
    assert max(sizes) <= 2 * SMALL_PART_BYTES
    cold.close()


def test_many_rows_are_merged_in_a_thread_into_parts_that_do_not_overlap(cold: Cold) -> None:
    for start in range(0, 40_000, 5_000):
        put(cold, dict.fromkeys(range(start, start + 6_000), start))
    cold.tiers[INTS].wait()
    oldest = cold.tiers[INTS].runs[-1]

    assert cold.tiers[INTS].merged_rows
    assert len(oldest.parts) > 10
    ends = [(part.first, part.last) for part in oldest.parts]
    assert all(last < first for (_, last), (first, _) in itertools.pairwise(ends))
    assert dict(cold.rows()) == {key: min(key // 5_000 * 5_000, 35_000) for key in range(41_000)}


def test_what_is_written_while_a_long_merge_is_under_way_is_merged_meanwhile(
    cold: Cold, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on, check = threading.Event(), threading.Event(), Part.check

    def slow(part: Part) -> None:
        if threading.current_thread().name == "tidegate-merge":
            began.set()
            assert go_on.wait(30)
        check(part)

    monkeypatch.setattr(Part, "check", slow)
    for step in range(MAX_RUNS + 1):
        put(cold, dict.fromkeys(range(10_000), step))
    assert began.wait(30)
    for step in range(3 * MAX_RUNS):
        put(cold, dict.fromkeys(range(100), 100 + step))
    assert len(cold.tiers[INTS].runs) <= 2 * MAX_RUNS + 1
    assert found(cold, [0, 99, 100]) == {0: 99 + 3 * MAX_RUNS, 99: 99 + 3 * MAX_RUNS, 100: MAX_RUNS}
    go_on.set()
    cold.tiers[INTS].wait()

    assert len(cold.tiers[INTS].runs) <= MAX_RUNS
    assert found(cold, [0, 99, 100]) == {0: 99 + 3 * MAX_RUNS, 99: 99 + 3 * MAX_RUNS, 100: MAX_RUNS}


def test_runs_that_wait_for_a_merge_are_bounded_a_write_waits_for_it(
    cold: Cold, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, check, tier = threading.Event(), Part.check, cold.tiers[INTS]

    def slow(part: Part) -> None:
        if threading.current_thread().name == "tidegate-merge":
            assert go_on.wait(30)
        check(part)

    monkeypatch.setattr(Part, "check", slow)
    monkeypatch.setattr(tiers_module, "AT_ONCE_ROWS", 0)
    for step in range(MAX_RUNS + 1):
        put(cold, dict.fromkeys(range(10_000), step))
    while len(tier.runs) < MAX_WAITING:
        put(cold, {0: len(tier.runs)})
    writer = threading.Thread(target=put, args=(cold, {0: -1}))
    writer.start()
    writer.join(0.2)
    assert writer.is_alive()
    assert len(tier.runs) == MAX_WAITING + 1
    go_on.set()
    writer.join(30)
    tier.wait()

    assert len(tier.runs) <= MAX_RUNS
    assert found(cold, [0, 1]) == {0: -1, 1: MAX_RUNS}


def test_a_merge_goes_in_small_steps_however_short_the_parts_are() -> None:
    orders = np.arange(10_000, dtype=np.uint64)
    rows = Columns(orders, orders.astype(np.int64), orders.astype(np.int64), np.ones(len(orders), np.bool_))
    for part_rows in (1, 7, 100, 3_000):
        run = Run([Loaded(rows.slice(start, start + part_rows)) for start in range(0, len(rows), part_rows)])
        steps = list(merged([run], forget_absent=True, part_bytes=100 * 26))

        assert max(map(len, steps)) <= 101
        assert len(steps) <= 101
        assert np.concatenate([step.order for step in steps]).tolist() == orders.tolist()


def test_a_merge_goes_in_small_steps_when_the_runs_are_of_different_subtasks() -> None:
    orders = np.arange(40_000, dtype=np.uint64)
    rows = Columns(orders, orders.astype(np.int64), orders.astype(np.int64), np.ones(len(orders), np.bool_))
    runs = [Run([Loaded(rows.slice(start, stop))]) for start, stop in ((0, 30_000), (30_000, 39_000), (39_000, 40_000))]
    for order in itertools.permutations(runs):
        steps = list(merged(order, forget_absent=True, part_bytes=100 * 26))

        assert max(map(len, steps)) <= 101 + 3 * 9
        assert len(steps) <= 501
        assert np.concatenate([step.order for step in steps]).tolist() == orders.tolist()


def test_a_batch_is_written_together_however_little_memory_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, write = [], Cold._write
    monkeypatch.setattr(Cold, "_write", lambda cold, changed: (written.append(changed.rows), write(cold, changed)))
    backends = RocksBackends(tmp_path, NONE)
    try:
        backend, function = backends.bound(key_type(int))
        function.total.add_many(pa.array(range(10_000)), 1)
        backend.set_current_key(9_999)

        assert function.total.get() == 1
        assert sum(written) == 10_000
        assert len(written) < 10_000 // 100
    finally:
        backends.close()


def columns(*rows: tuple[int, bytes, int]) -> Columns:
    """Hash, key, value, in the order of their hashes."""
    hashes, keys, values = zip(*rows, strict=True)
    present = np.ones(len(rows), dtype=np.bool_)
    return Columns(np.array(hashes, np.uint64), pa.array(keys, pa.large_binary()), np.array(values), present)


def test_keys_with_one_hash_are_told_apart() -> None:
    newer = Run([Loaded(columns((5, b"b", 20), (7, b"c", 30), (7, b"d", 40)))])
    older = Run([Loaded(columns((5, b"a", 1), (5, b"b", 2), (7, b"d", 4), (7, b"e", 5)))])
    asked = [b"e", b"a", b"b", b"c", b"d", b"none", b"z"]
    order = np.array([7, 5, 5, 7, 7, 7, 99], np.uint64)
    got = {
        asked[place]: int(of.cell[at])
        for of, places, rows in find_in([newer, older], order, pa.array(asked, pa.large_binary()))
        for place, at in zip(places.tolist(), rows.tolist(), strict=True)
    }
    (together,) = merged([newer, older], forget_absent=True, part_bytes=1 << 20)

    assert got == {b"a": 1, b"b": 20, b"c": 30, b"d": 40, b"e": 5}
    assert dict(zip(together.identity.to_pylist(), together.cell.tolist(), strict=True)) == got


@pytest.mark.parametrize("max_parallelism", [1, 2, 7, 128, 32_768])
def test_the_range_of_a_key_group_holds_its_keys_and_no_others(max_parallelism: int) -> None:
    hashes = np.concatenate([hash_int64s(np.arange(3_000)), np.array([0, (1 << 64) - 1], np.uint64)])
    groups = key_groups(hashes.copy(), max_parallelism)
    for group in {*groups.tolist()[:50], int(groups.min()), int(groups.max())}:
        first, last = order_range(range(group, group + 1), max_parallelism)
        inside = (hashes >= np.uint64(first)) & (hashes <= np.uint64(last))
        assert (inside == (groups == group)).all()


def test_files_are_taken_over_as_they_are_and_rows_of_foreign_key_groups_do_not_come_back(tmp_path: Path) -> None:
    """From one subtask to two and back to one: what the second has changed is not hidden by the old rows of the first."""
    values = {**{key: key for key in range(500)}, **{str(key): key for key in range(100)}}
    cold = new_cold(tmp_path / "one")
    put(cold, values)
    chk = checkpoint(cold, tmp_path / "chk")
    halves = []
    for name, own in (("low", range(GROUPS // 2)), ("high", range(GROUPS // 2, GROUPS))):
        half = new_cold(tmp_path / name, own)
        taken_over(copy_of(chk, tmp_path / f"{name}-files"), required(chk), "total", own, half)
        mine = {key: value for key, value in values.items() if key in dict(half.rows())}
        put(half, {key: value + 1000 for key, value in mine.items()})
        halves.append((own, mine, checkpoint(half, tmp_path / f"{name}-chk"), half))
    assert {**halves[0][1], **halves[1][1]} == values
    assert not halves[0][1].keys() & halves[1][1].keys()
    again = new_cold(tmp_path / "again")
    for own, _, folder, _ in halves:
        rows = list(
            rows_of(folder, required(folder), "total", *(group.to_bytes(2, "big") for group in (own.start, own.stop)))
        )
        taken_over(folder, required(folder), "total", own, again)
        assert len(rows) == len({address for address, _ in rows})
        assert [*rows] == sorted(rows, key=lambda row: row[0][:2])

    assert dict(again.rows()) == {key: value + 1000 for key, value in values.items()}
    for each in (cold, again, *(half for *_, half in halves)):
        each.close()


def test_rows_that_nobody_has_taken_over_stay_away_after_any_number_of_restores(tmp_path: Path) -> None:
    """From one to two and back: both bring the same file, and of each only its own half counts, in later checkpoints too."""
    cold = new_cold(tmp_path / "one")
    put(cold, {key: key for key in range(500)})
    chk = checkpoint(cold, tmp_path / "chk")
    halves = []
    for name, own in (("low", range(GROUPS // 2)), ("high", range(GROUPS // 2, GROUPS))):
        half = new_cold(tmp_path / name, own)
        taken_over(copy_of(chk, tmp_path / f"{name}-files"), required(chk), "total", own, half)
        halves.append((own, half))
    mine = list(dict(halves[1][1].rows()))
    put(halves[1][1], {key: -key for key in mine})
    expected = {key: -key if key in mine else key for key in range(500)}
    folders = [(own, checkpoint(half, tmp_path / f"{own.start}-chk")) for own, half in halves]
    opened = [cold, *(half for _, half in halves)]
    for turn in range(3):
        again = new_cold(tmp_path / f"again-{turn}")
        opened.append(again)
        for own, folder in folders:
            taken_over(folder, required(folder), "total", own, again, keep_names=len(folders) == 1)
        assert dict(again.rows()) == expected
        folders = [(range(GROUPS), checkpoint(again, tmp_path / f"chk-{turn}"))]
        stored = rows_of(folders[0][1], required(folders[0][1]), "total", b"\0\0", GROUPS.to_bytes(2, "big"))
        assert len(list(stored)) == 500
    for each in opened:
        each.close()


def checkpoint(cold: Cold, folder: Path) -> Path:
    folder.mkdir()
    frozen = cold.hand_over(None)
    frozen.settle()
    RunsOf(GROUPS, {"total": frozen.link(folder)}).write(folder)
    return folder


def required(folder: Path) -> RunsOf:
    stored = runs_of(folder)
    assert stored is not None
    return stored


def copy_of(folder: Path, to: Path) -> Path:
    to.mkdir()
    for path in folder.iterdir():
        (to / path.name).write_bytes(path.read_bytes())
    return to


def test_a_snapshot_is_the_state_of_its_moment_whatever_is_written_and_merged_before_it_is_stored(
    cold: Cold, tmp_path: Path
) -> None:
    put(cold, dict.fromkeys(range(100), 1))
    keys, ones = list(range(50)), np.full(50, 2)
    frozen = cold.hand_over(Changed(lambda: (cold.keys(keys), ones, np.ones(50, np.bool_)), 50))
    for step in range(3 * MAX_RUNS):
        put(cold, dict.fromkeys(range(100), 10 + step))
    frozen.settle()
    (tmp_path / "chk").mkdir()
    RunsOf(GROUPS, {"total": frozen.link(tmp_path / "chk")}).write(tmp_path / "chk")

    other = new_cold(tmp_path / "other")
    taken_over(tmp_path / "chk", required(tmp_path / "chk"), "total", range(GROUPS), other)
    assert dict(other.rows()) == {key: 2 if key < 50 else 1 for key in range(100)}
    other.close()


def test_nobody_waits_for_what_is_written_ahead_and_a_snapshot_meanwhile_has_it(
    cold: Cold, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    began, go_on, write = threading.Event(), threading.Event(), Part.write

    def slow(folder: Path, columns: Columns) -> Part:
        if threading.current_thread().name == "tidegate-write":
            began.set()
            assert go_on.wait(30)
        return write(folder, columns)

    monkeypatch.setattr(cold_module.Part, "write", staticmethod(slow))
    monkeypatch.setattr(tiers_module, "AT_ONCE_ROWS", 0)
    put(cold, {1: 1, 2: 1, 3: 1})
    cold.write_ahead(change(cold, {1: 10, 2: 20}))
    assert began.wait(30)
    assert found(cold, [1, 2, 3]) == {1: 10, 2: 20, 3: 1}
    frozen = cold.hand_over(change(cold, {2: 30}))
    assert found(cold, [1, 2, 3]) == {1: 10, 2: 30, 3: 1}
    go_on.set()
    cold.write(change(cold, {1: 99}))
    chk = tmp_path / "chk"
    chk.mkdir()
    frozen.settle()
    RunsOf(GROUPS, {"total": frozen.link(chk)}).write(chk)

    other = new_cold(tmp_path / "other")
    taken_over(chk, required(chk), "total", range(GROUPS), other)
    assert dict(other.rows()) == {1: 10, 2: 30, 3: 1}
    assert dict(cold.rows()) == {1: 99, 2: 30, 3: 1}
    assert not cold.pending
    other.close()


def test_an_error_of_what_is_written_ahead_is_raised_by_the_next_read_and_write_and_by_the_snapshot(
    cold: Cold, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: Path, columns: Columns) -> Part:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cold_module.Part, "write", staticmethod(full))
    monkeypatch.setattr(tiers_module, "AT_ONCE_ROWS", 0)
    cold.write_ahead(change(cold, {1: 10}))
    assert cold._writer is not None
    cold._writer.join(30)
    uses = [
        lambda: cold.get(1),
        lambda: found(cold, [1]),
        lambda: put(cold, {2: 2}),
        lambda: cold.write_ahead(change(cold, {2: 2})),
        lambda: cold.hand_over(None).settle(),
    ]
    for use in uses:
        with pytest.raises(StorageError, match=r"No space left.*state 'total'"):
            use()


def test_files_go_when_nobody_needs_them_any_more(cold: Cold) -> None:
    for step in range(4 * MAX_RUNS):
        put(cold, dict.fromkeys(range(50), step))
    gc.collect()
    kept = {part.path for tier in cold.tiers.values() for run in tier.runs for part in run.parts}

    assert set(cold.folder.iterdir()) == kept


def test_a_damaged_file_is_found_when_it_is_merged_and_stops_the_task_not_the_data(cold: Cold) -> None:
    """Long after it was written: a bit of a value has changed on the disk."""
    put(cold, dict.fromkeys(range(5_000), 7))
    (part,) = cold.tiers[INTS].runs[0].parts
    data = bytearray(part.path.read_bytes())
    at = data.index(np.full(4, 7).tobytes())
    data[at] ^= 1
    part.path.write_bytes(data)

    def go_on() -> None:
        for step in range(2 * MAX_RUNS):
            put(cold, dict.fromkeys(range(5_000), step))
            cold.tiers[INTS].wait()

    with pytest.raises(CheckpointDamaged, match=part.name):
        go_on()
    with pytest.raises(CheckpointDamaged, match="checksum"):  # again and again, until the job restarts
        list(cold.find([1]))


def test_a_file_that_is_cut_short_is_refused_when_it_is_taken_over(cold: Cold, tmp_path: Path) -> None:
    put(cold, dict.fromkeys(range(1_000), 7))
    chk = copy_of(checkpoint(cold, tmp_path / "chk"), tmp_path / "fetched")
    (path,) = chk.glob("*.run")
    path.write_bytes(path.read_bytes()[:-100])
    other = new_cold(tmp_path / "other")
    with pytest.raises(CheckpointDamaged, match=path.name):
        taken_over(chk, required(chk), "total", range(GROUPS), other)
    other.close()


def test_a_full_disk_names_state_and_folder_and_what_was_handed_over_stays(
    cold: Cold, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    keys, cells = [1, 2], np.array([10, 20])
    frozen = cold.hand_over(Changed(lambda: (cold.keys(keys), cells, np.ones(2, np.bool_)), 2))
    write = Part.write

    def full(folder: Path, columns: Columns) -> Part:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cold_module.Part, "write", staticmethod(full))
    for _ in range(2):
        with pytest.raises(StorageError, match=r"cannot write to its folder .*No space left.*state 'total'.*folder="):
            frozen.settle()
    assert found(cold, [1, 2, 3]) == {1: 10, 2: 20}
    monkeypatch.setattr(cold_module.Part, "write", staticmethod(write))
    frozen.settle()
    assert found(cold, [1, 2, 3]) == {1: 10, 2: 20}
    assert not cold.pending


def test_what_is_to_be_written_ahead_is_not_lost_when_the_disk_refuses_what_is_older(
    cold: Cold, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function may catch what the state raises, a snapshot that fails may be tolerated, and somebody makes room."""

    def full(folder: Path, columns: Columns) -> Part:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(cold_module.Part, "write", staticmethod(full))
        for key in (1, 2, 3):
            with pytest.raises(StorageError, match="No space left"):
                cold.write_ahead(change(cold, {key: 10 * key, 9: key}))
    cold.settle()
    assert found(cold, [1, 2, 3, 9]) == {1: 10, 2: 20, 3: 30, 9: 3}
    assert not cold.pending


def test_a_snapshot_of_state_that_is_closed_before_it_is_written_fails_and_is_not_one_without_it(cold: Cold) -> None:
    put(cold, {1: 1})
    frozen = cold.hand_over(change(cold, {1: 2}))
    cold.close()
    with pytest.raises(ProtocolViolation, match="'total' was used after it was closed"):
        frozen.settle()
