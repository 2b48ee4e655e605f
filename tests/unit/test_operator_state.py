"""Operator state and raw state: what a function gets in initialize_state, and what snapshots hold."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest

from tidegate.errors import CheckpointDamaged, ConfigurationError, TypeDeclarationError
from tidegate.functions.checkpointed import CheckpointedFunction, InitializationContext, SnapshotContext
from tidegate.protocol.redistribution import StoredPart, distribution_of, redistribute
from tidegate.state.backend import Section
from tidegate.state.operator_state import OperatorStateStore


def restored(sections: Iterable[Section], key_groups: range = range(0)) -> OperatorStateStore:
    store = OperatorStateStore(key_groups)
    for section in sections:
        store.restore(section.state, section.kind, section.key_group, [section.rows])
    return store


def filled() -> OperatorStateStore:
    store = OperatorStateStore()
    store.list_state("lines", str).add_all(["a", "b"])
    store.union_list_state("offsets", tuple[str, int]).add(("p0", 7))
    store.broadcast_state("rules", str, list[int]).put("x", [1, 2])
    return store


def test_every_kind_is_stored_in_a_section_of_its_own_and_comes_back():
    sections = list(filled().snapshot().sections())
    again = restored(sections)

    assert [(s.state, s.kind, s.key_group, s.rows.num_rows) for s in sections] == [
        ("lines", "operator-list", -1, 2),
        ("offsets", "operator-union", -1, 1),
        ("rules", "operator-broadcast", -1, 1),
    ]
    assert again.list_state("lines", str).get() == ["a", "b"]
    assert again.union_list_state("offsets", tuple[str, int]).get() == [("p0", 7)]
    assert dict(again.broadcast_state("rules", str, list[int]).items()) == {"x": [1, 2]}
    again.check_all_claimed()
    assert [s.rows for s in again.snapshot().sections()] == [s.rows for s in sections]
    assert again.state_size() == {"lines": 2, "offsets": 1, "rules": 1}


def test_empty_state_makes_no_section():
    store = filled()
    store.list_state("lines", str).clear()
    store.union_list_state("offsets", tuple[str, int]).set([])
    store.broadcast_state("rules", str, list[int]).remove("x")

    assert list(store.snapshot(store.raw_output()).sections()) == []


def test_a_snapshot_is_of_its_moment_whatever_is_written_before_it_is_read():
    store = filled()
    lines, rules = store.list_state("lines", str), store.broadcast_state("rules", str, list[int])
    first = store.snapshot()
    lines.add("c")
    rules["y"] = [3]
    del rules["x"]
    second = store.snapshot()
    lines.set(["z"])
    lines.add("zz")
    rules.clear()
    rules.put("w", [])

    contents = [
        {s.state: s.rows.column("value").to_pylist() for s in snapshot.sections() if s.state != "offsets"}
        for snapshot in (first, second, store.snapshot())
    ]
    assert contents == [
        {"lines": ["a", "b"], "rules": [[1, 2]]},
        {"lines": ["a", "b", "c"], "rules": [[3]]},
        {"lines": ["z", "zz"], "rules": [[]]},
    ]


def test_values_are_the_callers_own():
    store = OperatorStateStore()
    rows, rules = store.list_state("rows", list[int]), store.broadcast_state("rules", str, list[int])
    mine = [1]
    rows.add(mine)
    rules.put("x", mine)
    mine.append(2)
    rows.get()[0].append(3)
    rows.get().append([4])
    rules["x"].append(5)
    next(rules.values()).append(6)

    assert rows.get() == [[1]]
    assert rules.get("x") == [1]


def test_a_broadcast_map_behaves_like_a_dictionary():
    rules = OperatorStateStore().broadcast_state("rules", str, int)
    rules.put_all({"a": 1, "b": 2})
    rules.put_all([("c", 3)])
    seen = []
    for key in rules:
        seen.append(key)
        rules.remove("b")
        rules.put(key + "!", 0)

    assert seen == ["a", "b", "c"]
    assert rules.get("b") is None
    assert rules.get("b", 9) == 9
    assert "a" in rules
    assert len(rules) == 5
    rules.remove("never there")
    with pytest.raises(KeyError):
        rules["b"]


def test_values_that_do_not_fit_are_refused_and_change_nothing():
    store = filled()
    with pytest.raises(TypeDeclarationError, match="state 'lines'"):
        store.list_state("lines", str).add_all(["c", 4])
    with pytest.raises(TypeDeclarationError, match="state 'rules'"):
        store.broadcast_state("rules", str, list[int]).put("y", 3)
    store.broadcast_state("rules", str, list[int]).put("deep", ["x"])

    assert store.list_state("lines", str).get() == ["a", "b"]
    with pytest.raises(TypeDeclarationError, match=r"'rules' \(.*test_operator_state\.py:\d+\) is declared as map"):
        list(store.snapshot().sections())


def test_the_same_question_gets_the_same_state_and_another_one_is_refused():
    store = filled()

    assert store.list_state("lines", str) is store.list_state("lines", str)
    with pytest.raises(ConfigurationError, match=r"'lines' is asked for twice: .*list\[str\].*list\[int\]"):
        store.list_state("lines", int)
    with pytest.raises(ConfigurationError, match=r"operator-list of .* operator-union of"):
        store.union_list_state("lines", str)
    with pytest.raises(ConfigurationError, match="cannot be the name"):
        store.list_state("raw-operator", str)


def test_stored_state_that_is_asked_for_in_another_way_is_refused():
    sections = list(filled().snapshot().sections())
    with pytest.raises(ConfigurationError, match=r"'lines' as operator-list, but .* Ask for it with list_state"):
        restored(sections).union_list_state("lines", str)
    with pytest.raises(TypeDeclarationError, match=r"'lines' .* the checkpoint holds string"):
        restored(sections).list_state("lines", int)
    store = OperatorStateStore()
    store.restore("rules", "operator-broadcast", -1, [sections[0].rows])
    with pytest.raises(CheckpointDamaged, match="no column 'map_key'"):
        store.broadcast_state("rules", str, str)
    with pytest.raises(CheckpointDamaged, match="not a kind of operator state"):
        OperatorStateStore().restore("lines", "operator-tree", -1, [])


def test_stored_state_that_nobody_asks_for_stops_the_start():
    store = restored(filled().snapshot().sections())
    store.list_state("lines", str)
    store.broadcast_state("rules", str, list[int])

    with pytest.raises(ConfigurationError, match=r"'offsets' \(operator-union\).*Call union_list_state\('offsets'"):
        store.check_all_claimed()


# -- raw ---------------------------------------------------------------------------------------------------------------


def test_raw_state_is_kept_byte_for_byte():
    store = OperatorStateStore(range(4, 8))
    raw = store.raw_output()
    raw.write_operator(b"one")
    raw.write_operator(b"")
    raw.write_keyed(7, b"seven")
    raw.write_keyed(4, b"fo")
    raw.write_keyed(4, bytearray(b"ur"))
    sections = list(store.snapshot(raw).sections())
    again = restored(sections)

    assert [(s.state, s.kind, s.key_group) for s in sections] == [
        ("raw-operator", "raw-operator", -1),
        ("raw-keyed", "raw-keyed", 4),
        ("raw-keyed", "raw-keyed", 7),
    ]
    assert again.raw.operator() == [b"one", b""]
    assert list(again.raw.keyed()) == [(4, b"four"), (7, b"seven")]
    again.check_all_claimed()


def test_raw_state_that_is_not_read_would_be_lost_and_stops_the_start():
    store = OperatorStateStore(range(2))
    raw = store.raw_output()
    raw.write_keyed(1, b"x")
    again = restored(store.snapshot(raw).sections())
    again.raw.operator()

    with pytest.raises(ConfigurationError, match=r"raw-keyed state, but .* ctx\.raw\.keyed\(\)"):
        again.check_all_claimed()


def test_raw_state_is_bytes_of_ones_own_key_groups():
    raw = OperatorStateStore(range(4, 8)).raw_output()
    with pytest.raises(ConfigurationError, match="key group 8, but this subtask has 4 to 7"):
        raw.write_keyed(8, b"")
    with pytest.raises(ConfigurationError, match="this operator has no keys"):
        OperatorStateStore().raw_output().write_keyed(0, b"")
    with pytest.raises(TypeDeclarationError, match="raw state is bytes, not str"):
        raw.write_operator("text")


# -- a function over a change of parallelism ---------------------------------------------------------------------------


class Buffer(CheckpointedFunction):
    """Keeps lines, an offset for each subtask, and rules; counts its restores in raw bytes."""

    def initialize_state(self, ctx: InitializationContext) -> None:
        self.lines = ctx.operator_state.list_state("lines", str)
        self.offsets = ctx.operator_state.union_list_state("offsets", tuple[int, int])
        self.rules = ctx.operator_state.broadcast_state("rules", str, int)
        self.all_offsets = sorted(self.offsets.get())
        self.offset = dict(self.all_offsets).get(ctx.subtask, 0)
        self.subtask = ctx.subtask
        self.past = ctx.raw.operator()
        if not ctx.is_restored:
            self.past = [f"made by {ctx.subtask}".encode()]

    def snapshot_state(self, ctx: SnapshotContext) -> None:
        self.offsets.set([(self.subtask, self.offset)])
        for piece in self.past:
            ctx.raw.write_operator(piece)


def start(parallelism: int, old: list[list[Section]] | None) -> list[Buffer]:
    """As the runtime does it: each subtask gets its share of the sections of all old subtasks."""
    stored = [(subtask, section) for subtask, sections in enumerate(old or []) for section in sections]
    parts = [
        StoredPart(s.state, distribution_of(s.kind, s.key_group), subtask, s.rows.num_rows) for subtask, s in stored
    ]
    shares = redistribute(parts, old_parallelism=len(old or [0]), new_parallelism=parallelism, max_parallelism=128)
    functions = []
    for subtask, share in enumerate(shares):
        store = OperatorStateStore()
        for piece in share:
            section = stored[piece.part][1]
            rows = section.rows.slice(piece.start, piece.stop - piece.start)
            store.restore(section.state, section.kind, section.key_group, [rows])
        function: Any = Buffer()
        function.store = store
        function.initialize_state(InitializationContext(store, old is not None, subtask, parallelism, range(0)))
        store.check_all_claimed()
        functions.append(function)
    return functions


def checkpoint(functions: list[Any]) -> list[list[Section]]:
    taken = []
    for function in functions:
        context = SnapshotContext(1, function.store.raw_output())
        function.snapshot_state(context)
        taken.append(list(function.store.snapshot(context.raw).sections()))
    return taken


@pytest.mark.parametrize(("old", "new"), [(2, 3), (3, 2), (1, 5), (4, 1), (3, 3)])
def test_a_functions_state_survives_a_change_of_parallelism(old, new):
    before: list[Any] = start(old, None)
    for subtask, function in enumerate(before):
        function.lines.add_all([f"{subtask}-{n}" for n in range(subtask + 2)])
        function.offset = 100 + subtask
        function.rules.put("limit", 5)
    after: list[Any] = start(new, checkpoint(before))

    assert [line for f in after for line in f.lines.get()] == [line for f in before for line in f.lines.get()]
    assert sorted(piece for f in after for piece in f.past) == sorted(f"made by {n}".encode() for n in range(old))
    for function in after:
        assert function.all_offsets == [(n, 100 + n) for n in range(old)]
        assert dict(function.rules.items()) == {"limit": 5}
    assert [f.offset for f in after] == [100 + n if n < old else 0 for n in range(new)]
    again: list[Any] = start(new, checkpoint(after))
    assert [f.lines.get() for f in again] == [f.lines.get() for f in after], "unchanged: each keeps its own"
    assert [f.past for f in again] == [f.past for f in after]


def test_a_function_that_forgets_initialize_state_is_told():
    class Forgetful(CheckpointedFunction):
        pass

    with pytest.raises(NotImplementedError, match="Forgetful must define initialize_state"):
        Forgetful().initialize_state(InitializationContext(OperatorStateStore(), False, 0, 1, range(0)))


def test_sections_are_plain_columns():
    rows = {section.state: section.rows.schema for section in filled().snapshot().sections()}

    assert rows["lines"] == pa.schema([("value", pa.string())])
    assert rows["rules"].names == ["map_key", "value"]
