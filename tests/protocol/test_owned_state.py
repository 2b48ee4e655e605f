"""What checkpoints own, and on which of them the next is built: each word in each order."""

from __future__ import annotations

from itertools import permutations

import pytest

from tidegate.ids import CheckpointId
from tidegate.protocol import owned_state
from tidegate.protocol.owned_state import OwnedState


def chk(number: int) -> CheckpointId:
    return CheckpointId(number)


def test_only_a_completed_checkpoint_is_built_on() -> None:
    owned: OwnedState[str] = OwnedState()
    assert owned.stored(chk(1), "one")
    assert owned.base is None
    assert owned.completed(chk(1)) == []
    assert owned.base == "one"


@pytest.mark.parametrize("order", list(permutations(["stored", "aborted", "younger completes"])))
def test_one_that_is_given_up_is_never_built_on_nor_kept_in_whatever_order_the_words_come(
    order: tuple[str, ...],
) -> None:
    owned: OwnedState[str] = OwnedState()
    assert owned.stored(chk(2), "two")
    let_go: list[str | None] = []
    kept = False
    for word in order:
        if word == "stored":
            kept = owned.stored(chk(1), "one")
        elif word == "aborted":
            let_go.append(owned.aborted(chk(1)))
        else:
            let_go += owned.completed(chk(2))

    assert owned.base == "two"
    assert owned.pending == {}
    assert ("one" in let_go) == kept, "what was kept is let go, and nothing else is"
    assert let_go.count("one") <= 1


def test_a_completed_one_lets_go_of_the_old_base_and_of_all_older_ones() -> None:
    owned: OwnedState[str] = OwnedState()
    owned.restored(chk(3), "three")
    for number, name in ((4, "four"), (5, "five"), (6, "six")):
        assert owned.stored(chk(number), name)

    assert sorted(owned.completed(chk(5))) == ["four", "three"]
    assert (owned.base, owned.pending) == ("five", {6: "six"})
    assert owned.completed(chk(4)) == owned.completed(chk(5)) == owned.completed(chk(9)) == []
    assert owned.base == "five"


def test_what_was_given_up_is_remembered_for_a_while_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owned_state, "MAX_GIVEN_UP", 2)
    owned: OwnedState[str] = OwnedState()
    for number in (1, 2, 3):
        assert owned.aborted(chk(number)) is None

    assert [owned.stored(chk(number), "late") for number in (1, 2, 3)] == [True, False, False]
