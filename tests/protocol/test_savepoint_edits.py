"""Edits of a savepoint, one after the other in any order, against a model of it that is a few dictionaries."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from protocol_kit import fresh_storage

import tidegate as tg
from tidegate.errors import CheckpointDamaged, ConfigurationError
from tidegate.savepoints.editing import SavepointEdit
from tidegate.state.key_groups import key_groups
from tidegate.state.keys import key_type
from tidegate.storage.paths import METADATA_NAME
from tidegate.storage.savepoint_format import CANONICAL, store_savepoint
from tidegate.storage.store import open_store
from tidegate.testing.stores import FlakyStore, RepeatedCreate

UIDS = ["a", "b", "c"]
STATES = ["x", "y"]
SPLITS = ["p", "q"]
Rows = dict[str, int]


@dataclass
class Model:
    """What the savepoint is to hold."""

    states: dict[str, dict[str, Rows]] = field(default_factory=dict)  #: by operator with keys, and state
    positions: dict[str, dict[str, int]] = field(default_factory=dict)  #: by source, and split
    widths: dict[str, int] = field(default_factory=dict)

    def names(self) -> list[str]:
        return [*self.states, *self.positions]


def rows(values: Rows) -> pa.Table:
    return pa.table({"key": list(values), "value": pa.array(values.values(), pa.int64())})


def base() -> tuple[tg.Savepoint, Model]:
    """Two operators with two states each, and a source with two splits."""
    model = Model(
        {"a": {"x": {"k": 1, "l": 2}, "y": {"k": 3}}, "b": {"x": {"m": 4}, "y": {"k": 5, "n": 6}}},
        {"source": {"p": 1, "q": 2}},
        {"a": 128, "b": 128},
    )
    edit = tg.Savepoint.new("job")
    for uid, of in model.states.items():
        edit.add_operator(uid, key_type=str)
        for name, values in of.items():
            edit.add_state(uid, name, rows(values), kind="value", type="int")
    edit.add_operator("source")
    for split, position in model.positions["source"].items():
        edit.set_source_position("source", split, position)
    return edit.write(fresh_storage() + "/base"), model


def held(savepoint: tg.Savepoint) -> Model:
    model = Model()
    for info in savepoint.operators():
        if info.key_type is not None:
            model.states[info.uid], model.widths[info.uid] = {}, info.max_parallelism
    for state in savepoint.states():
        table = savepoint.keyed_state(state.uid, state.name).to_arrow()
        keys = table.column("key").to_pylist()
        assert len(set(keys)) == len(keys), f"{state.uid}: {state.name} has a key twice"
        hashes = np.fromiter(map(key_type(str).hash, keys), np.uint64, len(keys))
        groups = key_groups(hashes, model.widths[state.uid]).tolist()
        assert table.column("key_group").to_pylist() == groups, "a row stands where no subtask looks for it"
        model.states[state.uid][state.name] = dict(zip(keys, table.column("value").to_pylist(), strict=True))
    for row in savepoint.sources().to_pylist():
        model.positions.setdefault(row["uid"], {})[row["split"]] = json.loads(row["position"])
    return model


def shown(model: Model) -> Any:
    """Without what is empty: a state without rows is in no table, and a source without splits in none either."""
    states = {uid: {name: values for name, values in of.items() if values} for uid, of in model.states.items()}
    return states, {uid: of for uid, of in model.positions.items() if of}, model.widths


# -- one edit, on both; False: it is refused ------------------------------------------------------------------------------


def drop_operator(model: Model, uid: str) -> bool:
    model.widths.pop(uid, None)
    return model.states.pop(uid, None) is not None or model.positions.pop(uid, None) is not None


def rename_operator(model: Model, old: str, new: str) -> bool:
    if old not in model.names() or new in model.names():
        return False
    for of in (model.states, model.positions, model.widths):
        if old in of:
            of[new] = of.pop(old)  # type: ignore[attr-defined, index]
    return True


def add_operator(model: Model, uid: str) -> bool:
    if uid in model.names():
        return False
    model.states[uid], model.widths[uid] = {}, 128
    return True


def drop_state(model: Model, uid: str, name: str) -> bool:
    if uid not in model.names():
        return False
    model.states.get(uid, {}).pop(name, None)
    return True


def rename_state(model: Model, uid: str, old: str, new: str) -> bool:
    of = model.states.get(uid, {})
    if old not in of or new in of:
        return False
    of[new] = of.pop(old)
    return True


def replace_state(model: Model, uid: str, name: str, values: Rows) -> bool:
    if name not in model.states.get(uid, {}):
        return False
    model.states[uid][name] = values
    return True


def add_state(model: Model, uid: str, name: str, values: Rows) -> bool:
    if uid not in model.states:
        return False
    model.states[uid][name] = values
    return True


def set_max_parallelism(model: Model, width: int, uid: str) -> bool:
    if uid not in model.names():
        return False
    if uid in model.widths:
        model.widths[uid] = width
    return True


def set_source_position(model: Model, uid: str, split: str, position: int) -> bool:
    if uid not in model.positions:
        return False
    model.positions[uid][split] = position
    return True


uids = st.sampled_from([*UIDS, "source"])
names, values = st.sampled_from(STATES), st.dictionaries(st.sampled_from("klmno"), st.integers(10, 99), max_size=3)
EDITS = st.one_of(
    st.tuples(st.just(drop_operator), uids),
    st.tuples(st.just(rename_operator), uids, uids),
    st.tuples(st.just(add_operator), st.sampled_from(UIDS)),
    st.tuples(st.just(drop_state), uids, names),
    st.tuples(st.just(rename_state), uids, names, names),
    st.tuples(st.just(replace_state), uids, names, values),
    st.tuples(st.just(add_state), uids, names, values),
    st.tuples(st.just(set_max_parallelism), st.sampled_from([7, 64, 300]), uids),
    st.tuples(st.just(set_source_position), uids, st.sampled_from(SPLITS), st.integers(10, 99)),
)


def carry_out(edit: SavepointEdit, change: Any, arguments: tuple[Any, ...]) -> None:
    given = [rows(each) if isinstance(each, dict) else each for each in arguments]
    more = {"kind": "value", "type": "int"} if change is add_state else {}
    more |= {"key_type": str} if change is add_operator else {}
    getattr(edit, change.__name__)(*given, **more)


@pytest.mark.property
@settings(max_examples=150, deadline=None)
@given(st.lists(EDITS, min_size=1, max_size=6))
def test_edits_in_any_order_give_what_they_say(changes: list[Any]) -> None:
    savepoint, model = base()
    edit = savepoint.edit()
    for change, *arguments in changes:
        if change is set_source_position and arguments[0] in model.states:
            continue  # that it reads nothing is seen when all is written
        if change(model, *arguments):
            carry_out(edit, change, tuple(arguments))
        else:
            with pytest.raises(ConfigurationError):
                carry_out(edit, change, tuple(arguments))
    assert shown(held(edit.write(fresh_storage() + "/edited"))) == shown(model)


@pytest.mark.parametrize("change", [lambda edit: edit, lambda edit: edit.set_max_parallelism(7)])
def test_a_savepoint_is_not_written_over_another(change: Any, tmp_path: Path) -> None:
    """Nothing of it: whoever is refused finds the old one as it was, in all of its files."""
    savepoint, _ = base()
    first = savepoint.edit().write(str(tmp_path / "one"))
    files = {path: path.read_bytes() for path in (tmp_path / "one").rglob("*") if path.is_file()}

    for edit in (change(first.edit()), change(savepoint.edit()).set_source_position("source", "p", 9)):
        with pytest.raises(ConfigurationError, match="already"):
            edit.write(str(tmp_path / "one"))

    assert {path: path.read_bytes() for path in (tmp_path / "one").rglob("*") if path.is_file()} == files


def test_a_savepoint_stands_whose_last_request_was_carried_out_twice() -> None:
    """And says that it was there already: what is there is looked at."""
    savepoint, _ = base()
    inner = open_store(fresh_storage())
    store = FlakyStore(inner, [RepeatedCreate(call=1)])
    metadata = msgspec.structs.replace(savepoint.metadata, slots=[])

    data = store_savepoint(store, "here", metadata, format=CANONICAL)

    assert inner.get(f"here/{METADATA_NAME}") == data
    with pytest.raises(CheckpointDamaged, match="already"):
        store_savepoint(store, "here", msgspec.structs.replace(metadata, checkpoint=7), format=CANONICAL)


def test_a_number_that_is_not_equal_to_itself_has_not_changed() -> None:
    edit = tg.Savepoint.new("job").add_operator("a", key_type=str)
    values = pa.table({"key": ["k", "l", "m"], "value": [float("nan"), 0.0, 1.0]})
    savepoint = edit.add_state("a", "x", values, kind="value", type="float").write(fresh_storage() + "/nan")
    other = pa.table({"key": ["k", "l", "m"], "value": [float("nan"), float("nan"), 1.0]})

    assert savepoint.diff(tg.Savepoint.load(savepoint.path))[0].is_empty
    (change,) = savepoint.diff(savepoint.edit().replace_state("a", "x", other).write(fresh_storage() + "/more"))
    assert (change.changed, change.same) == (1, 2)
