"""Sections are bounded in bytes, whatever the sizes of values: here a few kilobytes take the place of Arrow's 2 GiB."""

from __future__ import annotations

import random
from typing import Any

import pytest
from rocksdb_kit import rocks_backends
from state_kit import MAX_PARALLELISM, backend_for

from tidegate.errors import StateTooLarge
from tidegate.state import rocksdb_sections
from tidegate.state.backend import Section, bind_states
from tidegate.state.declarations import Declaration, ListState, MapState, ValueState, declared_states
from tidegate.state.keys import key_type
from tidegate.state.rocksdb_store import StoredStates, row_format
from tidegate.state.section_writer import SectionWriter
from tidegate.state.ttl import Ttl
from tidegate.types.base import TooManyBytes

INT = key_type(int)
ALL = range(MAX_PARALLELISM)
SECTION_BYTES = 4000
HOUR = Ttl("1h")


class States:
    value = ValueState(bytes)
    lists = ListState(bytes)
    maps = MapState(int, bytes)
    value_ttl = ValueState(bytes, ttl=HOUR)
    lists_ttl = ListState(bytes, ttl=HOUR)
    maps_ttl = MapState(int, bytes, ttl=HOUR)


def of_any_size(dice: random.Random) -> bytes:
    """Most are small, some are larger than a section: what comes is not a measure of what will come."""
    return b"x" * dice.choice([1, 10, 10, 10, 200, SECTION_BYTES // 3, SECTION_BYTES + 1])


def fill(backend: Any, states: Any, dice: random.Random) -> dict[str, dict[int, Any]]:
    model: dict[str, dict[int, Any]] = {name: {} for name in declared_states(States())}
    for key in range(dice.choice([1, 30, 300])):
        backend.set_current_key(key)
        for suffix in ("", "_ttl"):
            one, many, entries = model[f"value{suffix}"], model[f"lists{suffix}"], model[f"maps{suffix}"]
            one[key] = of_any_size(dice)
            many[key] = [of_any_size(dice) for _ in range(dice.choice([1, 3]))]
            entries[key] = {at: of_any_size(dice) for at in range(dice.choice([1, 3]))}
            getattr(states, f"value{suffix}").set(one[key])
            getattr(states, f"lists{suffix}").add(many[key][0])
            getattr(states, f"maps{suffix}").put_all(entries[key])
    backend.snapshot().release()
    for key in model["lists"]:  # in RocksDB the others are in another row
        backend.set_current_key(key)
        states.lists.add_all(model["lists"][key][1:])
        states.lists_ttl.add_all(model["lists_ttl"][key][1:])
    backend.clear_current_key()
    return model


def check(sections: list[Section], model: dict[int, Any], declaration: Declaration) -> None:
    """Nothing is cut, nothing is missing, and no section is larger than it must be."""
    found: dict[int, Any] = {}
    assert [section.key_group for section in sections] == sorted(section.key_group for section in sections)
    for section in sections:
        assert section.rows.nbytes <= 2 * SECTION_BYTES or section.rows.num_rows == 1
        for row in section.rows.to_pylist():
            key = INT.decode(row["key"])
            if declaration.kind == "map":
                found.setdefault(key, {})[row["map_key"]] = row["value"]
            else:
                assert key not in found
                found[key] = row["value"]
    assert found == model
    restored, again = backend_for(INT), States()
    bind_states(again, restored)
    for section in sections:
        restored.restore(section.state, section.kind, [section.rows])
    assert sorted(key for key, _ in restored.entries(declaration.name)) == sorted(model)


@pytest.mark.parametrize("seed", range(6))
def test_sections_of_the_heap_are_bounded_in_bytes(seed: int) -> None:
    backend, states = backend_for(INT), States()
    bind_states(states, backend)
    model = fill(backend, states, random.Random(seed))
    for name, (declaration, table, _) in backend._states.items():
        writer = SectionWriter(declaration, INT, ALL, MAX_PARALLELISM, section_bytes=SECTION_BYTES)
        table.freeze().write(writer)
        check(list(writer.finish()), model[name], declaration)


@pytest.mark.parametrize("seed", range(3))
def test_sections_of_rocksdb_are_bounded_in_bytes(seed: int) -> None:
    with rocks_backends() as backends:
        backend, states = backends.backend(INT), States()
        bind_states(states, backend)
        model = fill(backend, states, random.Random(seed))
        snapshot = backend.snapshot()
        with StoredStates(snapshot.files()[0].path.parent, backend._options) as stored:
            for name, (declaration, _, _) in backend._states.items():
                form = row_format(declaration)
                sections = rocksdb_sections.stored_sections(stored, form, ALL, section_bytes=SECTION_BYTES)
                check(list(sections), model[name], declaration)


class Narrow:
    """Columns of bytes as if Arrow could hold no more than this in one."""

    def __init__(self, data_type: Any, most_bytes: int) -> None:
        self._type = data_type
        self._most_bytes = most_bytes

    def to_arrow(self, values: list[bytes]) -> Any:
        if sum(map(len, values)) > self._most_bytes:
            raise TooManyBytes("these make more than fits")
        return self._type.to_arrow(values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._type, name)


@pytest.mark.parametrize("kind", ["value", "lists", "maps"])
def test_what_makes_no_column_together_is_stored_in_parts(kind: str) -> None:
    declaration = declared_states(States())[kind]
    sizes = [10] * 100 + [900] * 50 + [10] * 30
    written = write_narrow(kind, [b"x" * size for size in sizes], most_bytes=1000)
    assert sorted(written) == sorted(b"x" * size for size in sizes), declaration.kind


@pytest.mark.parametrize("kind", ["value", "lists", "maps"])
def test_a_value_that_is_too_large_alone_is_named_with_its_key(kind: str) -> None:
    with pytest.raises(StateTooLarge, match=rf"'{kind}'.*more than 2 GiB.*under the key 3.*MapState"):
        write_narrow(kind, [b"x" * 10] * 3 + [b"x" * 1001] + [b"x" * 10], most_bytes=1000)


def write_narrow(kind: str, values: list[bytes], most_bytes: int) -> list[bytes]:
    class Fresh(States):
        value = ValueState(bytes)
        lists = ListState(bytes)
        maps = MapState(int, bytes)

    declaration = declared_states(Fresh())[kind]
    declaration.value_type = Narrow(declaration.value_type, most_bytes)  # type: ignore[assignment]
    writer = SectionWriter(declaration, INT, ALL, MAX_PARALLELISM)
    keys = list(range(len(values)))
    if kind == "value":
        writer.add_values(keys, values)
    elif kind == "lists":
        writer.add_lists(keys, [[value] for value in values])
    else:
        writer.add_map_entries(keys, [1] * len(keys), keys, values)
    stored = [row for section in writer.finish() for row in section.rows["value"].to_pylist()]
    return [row[0] for row in stored] if kind == "lists" else stored
