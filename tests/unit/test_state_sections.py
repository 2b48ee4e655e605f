"""The stored form of state, pinned by files: what is written today, and that what was written before can be read.

A golden file is the Arrow IPC stream of one section. When the format changes, the files of today stay under another name,
with a test that reads them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from state_kit import Mean, bound

from tidegate.errors import ProtocolViolation, TypeDeclarationError
from tidegate.state.backend import Section, bind_states
from tidegate.state.declarations import AggregatingState, ListState, MapState, ReducingState, ValueState
from tidegate.state.heap import HeapStateBackend
from tidegate.state.keys import key_type
from tidegate.state.operator_state import OperatorStateStore
from tidegate.state.section_writer import SectionWriter
from tidegate.state.ttl import Ttl
from tidegate.storage.memory_store import MemoryStore
from tidegate.storage.snapshot_file import SnapshotFileWriter, read_sections, store_snapshot
from tidegate.testing.clock import ManualClock

GOLDEN = Path(__file__).parents[1] / "golden" / "sections"
STR = key_type(str)
KEYED = ["value", "list", "map", "reducing", "aggregating", "value_ttl", "list_ttl", "map_ttl"]
OPERATOR = ["operator-list", "operator-union", "operator-broadcast", "raw-operator", "raw-keyed"]


class States:
    value = ValueState(int, default=0)
    list = ListState(str)
    map = MapState(str, int)
    reducing = ReducingState(float, max)
    aggregating = AggregatingState(Mean())
    value_ttl = ValueState(str, ttl=Ttl("1h"))
    list_ttl = ListState(int, ttl=Ttl("1h"))
    map_ttl = MapState(int, str, ttl=Ttl("1h"))


def backend_and_states() -> tuple[HeapStateBackend, States, ManualClock]:
    clock = ManualClock(1_700_000_000.0)
    backend, function = HeapStateBackend(STR, range(1), 1, clock), States()
    bind_states(function, backend)
    return backend, function, clock


def keyed_sections() -> dict[str, Section]:
    backend, function, clock = backend_and_states()
    for key, namespace, number in (("ann", b"", 1), ("ann", b"w\x00", 2), ("böb", b"", 3)):
        backend.set_current_key(key)
        backend.set_current_namespace(namespace)
        function.value.set(number)
        function.list.set(["x"] * number)
        function.map.put("entry", number)
        function.reducing.add(number / 2)
        function.aggregating.add(number)
        function.value_ttl.set(str(number))
        function.list_ttl.add(number)
        clock.advance(1)
        function.list_ttl.add(-number)
        function.map_ttl.put(number, "entry")
    return {section.state: section for section in backend.snapshot().sections()}


def operator_sections() -> dict[str, Section]:
    store = OperatorStateStore(range(8))
    store.list_state("lines", str).add_all(["b", "a"])
    store.union_list_state("offsets", tuple[str, int]).add(("p0", 7))
    store.broadcast_state("rules", str, float).put_all({"x": 0.5, "y": 1.5})
    raw = store.raw_output()
    raw.write_operator(b"\x00piece")
    raw.write_keyed(5, b"of group 5")
    return {section.kind: section for section in store.snapshot(raw).sections()}


def golden(name: str) -> pa.RecordBatch:
    with pa.ipc.open_stream(str(GOLDEN / f"{name}.arrow")) as reader:
        return reader.read_next_batch()


def in_order(rows: pa.RecordBatch) -> list[dict[str, Any]]:
    """Keyed rows have no order of their own."""
    return sorted(rows.to_pylist(), key=lambda row: (row["key"], row["namespace"], str(row.get("map_key"))))


@pytest.mark.parametrize("name", KEYED)
def test_keyed_state_is_written_as_in_the_golden_file(name):
    section = keyed_sections()[name]

    assert section.kind == name.removesuffix("_ttl")
    assert section.rows.schema.equals(golden(name).schema, check_metadata=True)
    assert in_order(section.rows) == in_order(golden(name))


@pytest.mark.parametrize("name", KEYED)
def test_keyed_state_is_read_from_the_golden_file(name):
    backend, function, clock = backend_and_states()
    backend.restore(name, name.removesuffix("_ttl"), [golden(name)])
    found = []
    for key, namespace in (("ann", b""), ("ann", b"w\x00"), ("böb", b"")):
        backend.set_current_key(key)
        backend.set_current_namespace(namespace)
        handle: Any = getattr(function, name)
        found.append(dict(handle.items()) if name.startswith("map") else handle.get())

    assert (
        found
        == {
            "value": [1, 2, 3],
            "list": [["x"], ["x", "x"], ["x", "x", "x"]],
            "map": [{"entry": 1}, {"entry": 2}, {"entry": 3}],
            "reducing": [0.5, 1.0, 1.5],
            "aggregating": [1.0, 2.0, 3.0],
            "value_ttl": ["1", "2", "3"],
            "list_ttl": [[1, -1], [2, -2], [3, -3]],
            "map_ttl": [{1: "entry"}, {2: "entry"}, {3: "entry"}],
        }[name]
    )
    clock.advance(3600 + 1.5)  # of the list, the first element of "ann" in the window expires after 3600 + 1 s
    backend.set_current_key("ann")
    backend.set_current_namespace(b"w\x00")
    if name == "list_ttl":
        assert function.list_ttl.get() == [-2]


@pytest.mark.parametrize("kind", OPERATOR)
def test_operator_state_is_written_as_in_the_golden_file(kind):
    section = operator_sections()[kind]

    assert section.rows.schema.equals(golden(kind).schema, check_metadata=True)
    assert section.rows.to_pylist() == golden(kind).to_pylist()
    assert section.key_group == (5 if kind == "raw-keyed" else -1)


def test_operator_state_is_read_from_the_golden_files():
    store = OperatorStateStore(range(8))
    names = {"operator-list": "lines", "operator-union": "offsets", "operator-broadcast": "rules"}
    for kind in OPERATOR:
        store.restore(names.get(kind, kind), kind, 5 if kind == "raw-keyed" else -1, [golden(kind)])

    assert store.list_state("lines", str).get() == ["b", "a"]
    assert store.union_list_state("offsets", tuple[str, int]).get() == [("p0", 7)]
    assert dict(store.broadcast_state("rules", str, float).items()) == {"x": 0.5, "y": 1.5}
    assert store.raw.operator() == [b"\x00piece"]
    assert list(store.raw.keyed()) == [(5, b"of group 5")]


class Before:
    """The states of the files from before there was an expiry."""

    total = ValueState(int, default=0)
    log = ListState(str)
    counts = MapState(str, int)


class Since:
    total = ValueState(int, default=0, ttl=Ttl("1h"))
    log = ListState(str, ttl=Ttl("1h"))
    counts = MapState(str, int, ttl=Ttl("1h"))


@pytest.mark.parametrize("states", [Before, Since], ids=["without a ttl", "with a ttl"])
def test_rows_from_before_there_was_an_expiry_are_restored(states):
    clock = ManualClock()
    backend, function = HeapStateBackend(STR, range(1), 1, clock), states()
    bind_states(function, backend)
    for state, kind in (("total", "value"), ("log", "list"), ("counts", "map")):
        rows = golden(f"without_expiry_{kind}")
        assert "expiry" not in rows.schema.names
        backend.restore(state, kind, [rows])
    found = []
    for key in ("ann", "bob"):
        backend.set_current_key(key)
        found.append((function.total.get(), function.log.get(), dict(function.counts.items())))

    assert found == [(3, ["ann", "x"], {"a": 1, "b": 2}), (6, ["bob", "x"], {"c": 3})]
    clock.advance(3600)
    assert function.total.get() == (6 if states is Before else 0)


def test_every_section_survives_the_snapshot_file():
    written = [*keyed_sections().values(), *operator_sections().values()]
    writer = SnapshotFileWriter()
    for section in written:
        writer.add("op", section.state, section.kind, section.key_group, section.rows)
    store = MemoryStore("sections")
    file = store_snapshot(store, "f", *writer.finish(), inline_limit=0)

    read = list(read_sections(store, file))
    assert [(ref.state, ref.kind, ref.key_group) for ref, _ in read] == [section[:3] for section in written]
    for (_, rows), section in zip(read, written, strict=True):
        assert rows.schema == section.rows.schema
        assert rows.to_pylist() == section.rows.to_pylist()


def test_no_ttl_takes_no_space():
    rows = keyed_sections()["value"].rows

    assert rows.schema.field("expiry").type == pa.null()
    assert rows.column("expiry").nbytes == 0


@pytest.mark.parametrize("declared", [int, int | None, Any])
@given(keys=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=60, unique=True))
@settings(max_examples=30)
def test_int_keys_as_an_array_are_stored_as_those_of_a_list(declared: Any, keys: list[int]) -> None:
    values = pa.array(range(len(keys)), pa.int64())

    def stored(given: Any) -> list[Section]:
        writer = SectionWriter(States.value, key_type(declared), range(128), 128)
        writer.add_value_column(given, values)
        return list(writer.finish())

    assert stored(np.array(keys, np.int64)) == stored(keys)


def test_an_int_key_of_another_subtask_is_refused_by_name_also_in_an_array() -> None:
    for keys in ([17, -5], np.array([17, -5])):
        writer = SectionWriter(States.value, key_type(int), range(0), 128)
        with pytest.raises(ProtocolViolation, match="holds the key 17 of key group"):
            writer.add_value_column(keys, pa.array([1, 2]))


def test_a_misfit_deep_inside_a_value_is_found_on_the_heap_by_the_snapshot_which_names_state_and_key():
    backend, function = bound(key_type(int), columnar=False)
    for key, tags in ((1, ["one"]), (2, [2])):
        backend.set_current_key(key)
        function.tags.set(tags)

    with pytest.raises(TypeDeclarationError, match=r"state 'tags' .* under the key 1 is not"):
        list(backend.snapshot().sections())
