"""The programs of docs/state.md, bound to a backend and run: the page shows what works, and its traps are traps."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from state_kit import backend_for

from tidegate.api.checkpointed import InitializationContext, SnapshotContext
from tidegate.state.backend import bind_states
from tidegate.state.broadcast import Gate, bind_broadcast_states
from tidegate.state.keys import key_type
from tidegate.state.operator_state import OperatorStateStore

PAGE = (Path(__file__).parents[2] / "docs" / "state.md").read_text(encoding="utf-8")
STR = key_type(str)


def shown() -> dict[str, Any]:
    """Every class of the page."""
    names: dict[str, Any] = {}
    for program in re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        exec(compile(program, "docs/state.md", "exec", dont_inherit=True), names)
    return names


class Keyed:
    """A function of the page at work on one key."""

    def __init__(self, name: str) -> None:
        self.function: Any = shown()[name]()
        backend = backend_for(STR)
        bind_states(self.function, backend)
        backend.set_current_key("ann")

    def process(self, value: Any) -> list[Any]:
        result = self.function.process_element(value, SimpleNamespace(key="ann"))
        return [] if result is None else list(result)


def test_the_first_program_counts():
    visits = Keyed("Visits")
    visits.process(SimpleNamespace(page="/", seconds=2))
    result = visits.process(SimpleNamespace(page="/", seconds=3))

    assert result == [("ann", 2, 1)]
    assert visits.function.seconds_on["/"] == 5.0


def test_declared_state_drops_duplicates():
    right = Keyed("Right")

    assert [len(right.process(SimpleNamespace(id=id))) for id in "aab"] == [1, 0, 1]


def test_a_list_is_handed_back_with_set():
    tags = Keyed("Tags")
    tags.process("a")
    tags.process("b")

    assert tags.function.tags.get() == ["a", "b"]


def test_a_map_may_be_changed_while_it_is_read():
    expire = Keyed("Expire")
    expire.function.sessions.put_all({"old": 0, "new": 100})
    expire.process(100)

    assert list(expire.function.sessions) == ["new"]


def test_folds_give_their_results():
    prices = Keyed("Prices")
    prices.process(SimpleNamespace(size=2, price=10.0))

    assert prices.process(SimpleNamespace(size=3, price=20.0)) == [("ann", 5, 15.0)]


def test_state_with_a_ttl_works_as_without():
    sessions = Keyed("Sessions")
    sessions.process(SimpleNamespace(page="/", item="tea"))
    sessions.process(SimpleNamespace(page="/cart", item="tea"))

    assert sessions.function.last_page.get() == "/cart"
    assert sessions.function.items["tea"] == 2


@pytest.mark.parametrize(("name", "values", "found"), [("Batches", ["a", "b"], 2), ("Sketch", [b"a", b"b"], 1)])
def test_operator_state_comes_back(name, values, found):
    function, store = shown()[name](), OperatorStateStore(range(4))
    function.initialize_state(InitializationContext(store, False, 0, 1, range(4), lambda key: 3))
    for value in values:
        list(function.process_element(value, SimpleNamespace(key="ann")) or [])
    context = SnapshotContext(1, store.raw_output())
    function.snapshot_state(context)
    again, restored = shown()[name](), OperatorStateStore(range(4))
    for section in store.snapshot(context.raw).sections():
        assert section.rows.num_rows == found
        restored.restore(section.state, section.kind, section.key_group, [section.rows])
    again.initialize_state(InitializationContext(restored, True, 0, 1, range(4), lambda key: 3))
    restored.check_all_claimed()

    if name == "Batches":
        assert again.rows.get() == values
    else:
        assert (again.sketches, again.by_key_group) == ([b"ab"], {3: b"ab"})


def test_broadcast_rules_are_read_by_records():
    function, store, gate = shown()["Alarms"](), OperatorStateStore(), Gate()
    backend = backend_for(STR)
    bind_states(function, backend)
    bind_broadcast_states(function, store, gate)
    with gate.opened():
        function.process_broadcast_element(("heat", 1), None)
    backend.set_current_key("s1")
    found = [list(function.process_element(("s1", "heat"), SimpleNamespace(key="s1"))) for _ in range(2)]

    assert found == [[], [("s1", "heat")]]


def test_keys_are_one_or_two_as_the_page_says() -> None:
    page, keys = shown(), key_type(None)

    for one, other in page["ONE_KEY"]:
        assert keys.encode(one) == keys.encode(other), (one, other)
        assert keys.normalise(one) == keys.normalise(other), (one, other)
    for one, other in page["TWO_KEYS"]:
        assert keys.encode(one) != keys.encode(other), (one, other)
        assert keys.normalise(one) != keys.normalise(other), (one, other)
