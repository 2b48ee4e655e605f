"""Text that no encoder takes is refused at the line that puts it into state, by every kind of state and on every backend.

It would be found by the next checkpoint otherwise, and by each one after it: the job could only go back and meet it again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from state_backends import Backends

import tidegate as tg
from tidegate.errors import TypeDeclarationError
from tidegate.state.keys import key_type

LONE = "half of a pair: \ud83d"
WHOLE = ["", "plain", "schön", "日本", "\U0001f600"]
INT = key_type(int)


class Notes:
    note = tg.ValueState(str)
    maybe = tg.ValueState(str | None)
    all = tg.ListState(str)
    by_name = tg.MapState(str, str)
    longest = tg.ReducingState(str, lambda a, b: max(a, b, key=len))


class Fleeting:
    note = tg.ValueState(str, ttl=tg.Ttl("10s"))
    maybe = tg.ValueState(str | None, ttl=tg.Ttl("10s"))
    all = tg.ListState(str, ttl=tg.Ttl("10s"))
    by_name = tg.MapState(str, str, ttl=tg.Ttl("10s"))
    longest = tg.ReducingState(str, lambda a, b: max(a, b, key=len), ttl=tg.Ttl("10s"))


WAYS_IN: dict[str, Callable[[Any, str], Any]] = {
    "note": lambda notes, text: notes.note.set(text),
    "maybe": lambda notes, text: notes.maybe.set(text),
    "all, one": lambda notes, text: notes.all.add(text),
    "all, several": lambda notes, text: notes.all.add_all(["before", text]),
    "all, instead": lambda notes, text: notes.all.set([text]),
    "by_name, its value": lambda notes, text: notes.by_name.put("name", text),
    "by_name, its key": lambda notes, text: notes.by_name.put(text, "value"),
    "by_name, several": lambda notes, text: notes.by_name.put_all({"name": text}),
    "longest": lambda notes, text: notes.longest.add(text),
}


@pytest.mark.parametrize("way", WAYS_IN)
@pytest.mark.parametrize("of", [Notes, Fleeting])
def test_text_with_a_lone_surrogate_is_refused_where_it_is_set_and_other_text_is_kept(
    backends: Backends, of: type, way: str
) -> None:
    backend, notes = backends.bound(INT, function=of())
    backend.set_current_key(1)
    for text in WHOLE:
        WAYS_IN[way](notes, text)
    before = everything_in(notes)

    with pytest.raises(TypeDeclarationError, match=f"state '{way.split(',')[0]}'.*lone surrogate"):
        WAYS_IN[way](notes, LONE)

    assert everything_in(notes) == before
    assert list(backend.snapshot().sections()), "and a checkpoint holds what was kept"


def everything_in(notes: Any) -> list[Any]:
    return [
        notes.note.get(),
        notes.maybe.get(),
        notes.all.get(),
        sorted(notes.by_name.items()),
        notes.longest.get(),
    ]
