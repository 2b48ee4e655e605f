"""A kind of state in one module, a set for each key: it shows what a kind has to bring, and that backends ask for no more.

Not for use. It is stored as a map whose values say nothing.
"""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.state import declarations, folding
from tidegate.state.declarations import Attribute, StoredMap
from tidegate.state.handles import MapHandle
from tidegate.state.ttl import Ttl


class SetHandle:
    """What user code holds."""

    def __init__(self, declaration: SetState, entries: MapHandle[Any, bool]) -> None:
        self._entries = entries

    def add(self, element: Any) -> None:
        self._entries.put(element, True)

    def discard(self, element: Any) -> None:
        self._entries.remove(element)

    def clear(self) -> None:
        self._entries.clear()

    def get(self) -> set[Any]:
        return set(self._entries.keys())

    def __contains__(self, element: Any) -> bool:
        return self._entries.contains(element)


class SetState(StoredMap, Attribute[SetHandle]):
    kind = "set"

    def __init__(self, type: Any, *, ttl: Ttl | None = None) -> None:
        super().__init__(ttl)
        self.key_type, self.value_type = self._type(type), self._type(bool)


def known_to_the_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two lines that a kind has in tables of the product."""
    monkeypatch.setitem(declarations.ROWS, "set", "map")
    monkeypatch.setitem(folding.OVER_STORED, "set", SetHandle)
