"""The heap backend against plain dictionaries: random operations, snapshots that are read later, restores."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from state_kit import Everything, InNamespace, Model, bound, plain

from tidegate.state.backend import KeyedSnapshot
from tidegate.state.heap import HeapStateBackend
from tidegate.state.keys import KeyType, key_type

INT_KEYS = [0, 1, -1, 7, 1024, 2048, 2**31, -(2**63), 2**63 - 1, 2**63, 2**70]
STR_KEYS = ["", "a", "b", "ab", "key", "ключ", "a\x00b"]
TUPLE_KEYS = [(0, "a"), (1, "a"), (1, "b"), (-5, "")]
MIXED_KEYS = [1, True, 1.0, "1", b"1", None, (1, "a"), (True, "a"), 0.5, float("nan")]
KEY_SETS: dict[str, tuple[Any, list[Any]]] = {
    "int": (int, INT_KEYS),
    "str": (str, STR_KEYS),
    "tuple": (tuple[int, str], TUPLE_KEYS),
    "mixed": (None, MIXED_KEYS),
}
NAMESPACES = [b"", b"", b"w1", b"\x00\xff"]
SMALL = st.integers(-100, 100)
WORD = st.sampled_from(["x", "y", "z"])


@dataclass
class Run:
    """One backend and its model, moved together."""

    type: KeyType
    backend: HeapStateBackend
    function: Everything
    model: Model = field(default_factory=Model)
    snapshots: list[tuple[KeyedSnapshot, dict[str, dict[Any, Any]]]] = field(default_factory=list)

    def at(self, place: tuple[Any, bytes]) -> Any:
        """Make a key and a namespace current; what the model calls them."""
        key, namespace = place
        normalised = self.type.normalise(key)
        self.backend.set_current_key(normalised)
        if not namespace:
            return normalised
        self.backend.set_current_namespace(b"somewhere else")
        self.backend.set_current_namespace(namespace)
        return InNamespace(normalised, namespace)

    # -- one key ---------------------------------------------------------------------------------------------------

    def set_total(self, key: Any, number: int, _: str) -> None:
        at = self.at(key)
        self.function.total.set(number)
        self.model.state["total"][at] = number

    def add_total(self, key: Any, number: int, _: str) -> None:
        at = self.at(key)
        before = self.model.state["total"].get(at, 0)
        assert self.function.total.get() == before
        self.function.total.set(before + number)
        self.model.state["total"][at] = before + number

    def clear_total(self, key: Any, _: int, __: str) -> None:
        at = self.at(key)
        self.function.total.clear()
        self.model.state["total"].pop(at, None)
        assert self.function.total.get() == 0

    def set_tags(self, key: Any, number: int, _: str) -> None:
        at = self.at(key)
        mine = [number]
        self.function.tags.set(mine)
        self.model.state["tags"][at] = [number]
        mine.append(999)  # the caller's own list: must not reach the state

    def extend_tags(self, key: Any, number: int, _: str) -> None:
        at = self.at(key)
        tags = self.function.tags.get()
        assert tags == self.model.state["tags"].get(at)
        tags = tags or []
        tags.append(number)
        assert self.function.tags.get() == self.model.state["tags"].get(at), "a change without set was seen"
        self.function.tags.set(tags)
        self.model.state["tags"].setdefault(at, []).append(number)

    def append_log(self, key: Any, _: int, word: str) -> None:
        at = self.at(key)
        self.function.log.add(word)
        self.model.state["log"].setdefault(at, []).append(word)
        assert self.function.log.get() == self.model.state["log"][at]

    def replace_log(self, key: Any, number: int, word: str) -> None:
        at = self.at(key)
        words = [word] * (abs(number) % 4)
        self.function.log.set(words)
        self.model.state["log"].pop(at, None)
        if words:
            self.model.state["log"][at] = words
        self.function.log.get().append("not mine to keep")

    def put_count(self, key: Any, number: int, word: str) -> None:
        at = self.at(key)
        self.function.counts.put(word, number)
        self.model.state["counts"].setdefault(at, {})[word] = number
        assert dict(self.function.counts.items()) == self.model.state["counts"][at]

    def remove_count(self, key: Any, _: int, word: str) -> None:
        at = self.at(key)
        self.function.counts.remove(word)
        entries = self.model.state["counts"].get(at, {})
        entries.pop(word, None)
        if not entries:
            self.model.state["counts"].pop(at, None)
        assert len(self.function.counts) == len(entries)

    def clear_nested(self, key: Any, _: int, __: str) -> None:
        at = self.at(key)
        self.function.log.clear()
        self.function.counts.clear()
        self.model.state["log"].pop(at, None)
        self.model.state["counts"].pop(at, None)

    def add_best(self, key: Any, number: int, _: str) -> None:
        at = self.at(key)
        best = self.model.state["best"]
        assert self.function.best.get() == best.get(at)
        self.function.best.add(number)
        best[at] = max(best.get(at, number), number)
        assert self.function.best.get() == best[at]

    def add_mean(self, key: Any, number: int, _: str) -> None:
        at = self.at(key)
        total, count = self.model.state["mean"].get(at, (0, 0))
        assert self.function.mean.get() == (total / count if count else None)
        self.function.mean.add(number)
        self.model.state["mean"][at] = [total + number, count + 1]

    def clear_folded(self, key: Any, _: int, __: str) -> None:
        at = self.at(key)
        self.function.best.clear()
        self.function.mean.clear()
        self.model.state["best"].pop(at, None)
        self.model.state["mean"].pop(at, None)
        assert self.function.best.get() is None

    # -- columns of keys -------------------------------------------------------------------------------------------

    def add_batch(self, keys: pa.Array, numbers: list[int]) -> None:
        expected = []
        totals = self.model.state["total"]
        for key, number in zip(keys_in(keys), numbers, strict=True):
            at = self.type.normalise(key)
            totals[at] = totals.get(at, 0) + number
            expected.append(totals[at])
        running = self.function.total.add_many(keys, pa.array(numbers, pa.int64()), running=sum(numbers) % 2 == 0)
        assert running is None or running.to_pylist() == expected

    def update_batch(self, keys: pa.Array, numbers: list[int]) -> None:
        for key, number in zip(keys_in(keys), numbers, strict=True):
            self.model.state["total"][self.type.normalise(key)] = number
        self.function.total.update_many(keys, pa.array(numbers, pa.int64()))

    def get_batch(self, keys: pa.Array, _: list[int]) -> None:
        expected = [self.model.state["total"].get(self.type.normalise(key), 0) for key in keys_in(keys)]
        assert self.function.total.get_many(keys).to_pylist() == expected

    # -- snapshots -------------------------------------------------------------------------------------------------

    def snapshot(self) -> None:
        self.snapshots.append((self.backend.snapshot(), self.model.copy()))

    def read_and_release(self, number: int) -> None:
        if self.snapshots:
            snapshot, expected = self.snapshots.pop(number % len(self.snapshots))
            assert plain(snapshot.sections(), self.type) == expected
            snapshot.release()

    def release_unread(self, number: int) -> None:
        if self.snapshots:
            snapshot, _ = self.snapshots.pop(number % len(self.snapshots))
            snapshot.release()
            snapshot.release()


SCALAR_OPERATIONS = [
    Run.set_total,
    Run.add_total,
    Run.clear_total,
    Run.set_tags,
    Run.extend_tags,
    Run.append_log,
    Run.replace_log,
    Run.put_count,
    Run.remove_count,
    Run.clear_nested,
    Run.add_best,
    Run.add_mean,
    Run.clear_folded,
]
BATCH_OPERATIONS = [Run.add_batch, Run.update_batch, Run.get_batch]


def column_of(keys: list[Any], pick: list[int]) -> pa.Array:
    """A column of some of the keys: those that have one Arrow type together."""
    if isinstance(keys[0], tuple):
        rows = [{"f0": keys[i % len(keys)][0], "f1": keys[i % len(keys)][1]} for i in pick]
        return pa.array(rows, pa.struct([("f0", pa.int64()), ("f1", pa.string())]))
    if isinstance(keys[0], str):
        return pa.array([keys[i % len(keys)] for i in pick], pa.string())
    return pa.array([i % 9 - 4 for i in pick], pa.int64())


def keys_in(column: pa.Array) -> list[Any]:
    return [tuple(key.values()) if isinstance(key, dict) else key for key in column.to_pylist()]


@st.composite
def steps(draw: st.DrawFn, keys: list[Any]) -> list[tuple[Any, ...]]:
    place = st.tuples(st.sampled_from(keys), st.sampled_from(NAMESPACES))
    scalar = st.tuples(st.sampled_from(SCALAR_OPERATIONS), place, SMALL, WORD)
    rows = st.lists(st.tuples(st.integers(0, 50), SMALL), max_size=12)
    batch = st.tuples(
        st.sampled_from(BATCH_OPERATIONS),
        rows.map(lambda rows: (column_of(keys, [i for i, _ in rows]), [number for _, number in rows])),
    ).map(lambda step: (step[0], *step[1]))
    snapshot = st.one_of(
        st.tuples(st.just(Run.snapshot)),
        st.tuples(st.sampled_from([Run.read_and_release, Run.release_unread]), st.integers(0, 3)),
    )
    return draw(st.lists(st.one_of(scalar, scalar, scalar, batch, snapshot), max_size=60))


@pytest.mark.parametrize("columnar", [False, True], ids=["dictionaries", "columns"])
@pytest.mark.parametrize("keys", list(KEY_SETS))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_state_snapshots_and_restores_agree_with_plain_dictionaries(keys, columnar, data):
    annotation, pool = KEY_SETS[keys]
    type_of_key = key_type(annotation)
    run = Run(type_of_key, *bound(type_of_key, columnar))
    for operation, *arguments in data.draw(steps(pool)):
        operation(run, *arguments)

    run.snapshot()
    final = list(run.snapshots[-1][0].sections())
    run.snapshots.pop()[0].release()
    while run.snapshots:
        run.read_and_release(0)

    assert plain(final, type_of_key) == run.model.state
    assert run.backend.state_size() == {name: len(entries) for name, entries in run.model.state.items()}
    for restored_columnar in (columnar, not columnar):
        restored, function = bound(type_of_key, restored_columnar)
        for section in final:
            restored.restore(section.state, section.kind, [section.rows])
        assert plain(restored.snapshot().sections(), type_of_key) == run.model.state
        again = Run(type_of_key, restored, function)
        for key in pool:
            for namespace in NAMESPACES:
                at = again.at((key, namespace))
                assert function.total.get() == run.model.state["total"].get(at, 0)
                assert function.log.get() == run.model.state["log"].get(at, [])
                assert function.best.get() == run.model.state["best"].get(at)
