"""Who gets what of stored state: Flink's rules by example, and what must hold at every old and new parallelism."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import ConfigurationError, ProtocolViolation
from tidegate.ids import KeyGroup, SubtaskIndex
from tidegate.protocol.redistribution import (
    Distribution,
    Piece,
    StoredPart,
    distribution_of,
    key_group_ranges,
    owner_of,
    redistribute,
)
from tidegate.state.key_groups import key_group_range, subtask_of

CHANGES = [(2, 3), (3, 2), (1, 5), (4, 1), (3, 3), (1, 1), (7, 4)]
MAX_PARALLELISM = 16


def part(
    subtask: int, rows: int, state: str = "s", of: Distribution = Distribution.SPLIT, group: int | None = None
) -> StoredPart:
    return StoredPart(state, of, SubtaskIndex(subtask), rows, None if group is None else KeyGroup(group))


def elements(parts: list[StoredPart], old: int, new: int, state: str = "s") -> list[list[str]]:
    """What each new subtask gets of a state; an element is called by old subtask and position."""
    shares = redistribute(parts, old_parallelism=old, new_parallelism=new, max_parallelism=MAX_PARALLELISM)
    return [
        [
            f"{parts[piece.part].subtask}.{position}"
            for piece in share
            if parts[piece.part].state == state
            for position in range(piece.start, piece.stop)
        ]
        for share in shares
    ]


# -- by example --------------------------------------------------------------------------------------------------------


def test_a_list_is_dealt_out_in_runs_the_first_subtasks_getting_one_more():
    assert elements([part(0, 3), part(1, 4)], 2, 3) == [["0.0", "0.1", "0.2"], ["1.0", "1.1"], ["1.2", "1.3"]]
    assert elements([part(0, 1), part(1, 1), part(2, 3)], 3, 2) == [["0.0", "1.0", "2.0"], ["2.1", "2.2"]]
    assert elements([part(0, 3)], 1, 5) == [["0.0"], ["0.1"], ["0.2"], [], []]
    assert elements([part(3, 1), part(0, 2)], 4, 1) == [["0.0", "0.1", "3.0"]]


def test_the_next_list_begins_where_the_one_before_stopped():
    parts = [part(0, 1, name) for name in ("a", "b", "c", "d")]

    assert [elements(parts, 1, 3, name) for name in ("a", "b", "c", "d")] == [
        [["0.0"], [], []],
        [[], ["0.0"], []],
        [[], [], ["0.0"]],
        [["0.0"], [], []],
    ]
    parts = [part(0, 4, "a"), part(0, 4, "b")]
    assert elements(parts, 1, 3, "b") == [["0.3"], ["0.0", "0.1"], ["0.2"]]


def test_a_list_stays_where_it_is_when_the_parallelism_does_not_change():
    assert elements([part(0, 5), part(2, 1)], 3, 3) == [["0.0", "0.1", "0.2", "0.3", "0.4"], [], ["2.0"]]


def test_everyone_gets_all_of_a_union_list_also_when_nothing_changes():
    parts = [part(1, 1, of=Distribution.UNION), part(0, 2, of=Distribution.UNION)]

    assert elements(parts, 2, 3) == [["0.0", "0.1", "1.0"]] * 3
    assert elements(parts, 2, 2) == [["0.0", "0.1", "1.0"]] * 2


def test_a_broadcast_copy_is_that_of_the_old_subtask_modulo_their_number():
    parts = [part(subtask, 1, of=Distribution.BROADCAST) for subtask in range(2)]

    assert elements(parts, 2, 2) == [["0.0"], ["1.0"]]
    assert elements(parts, 2, 5) == [["0.0"], ["1.0"], ["0.0"], ["1.0"], ["0.0"]]
    assert elements(parts, 2, 1) == [["0.0"]]


def test_a_broadcast_copy_that_was_empty_stays_empty():
    # In an unaligned checkpoint the element that fills it, or the one that empties the others, is in flight.
    parts = [part(subtask, 1, of=Distribution.BROADCAST) for subtask in (1, 2)]

    assert elements(parts, 3, 3) == [[], ["1.0"], ["2.0"]]
    assert elements(parts, 3, 5) == [[], ["1.0"], ["2.0"], [], ["1.0"]]


def test_key_groups_go_to_the_subtask_whose_range_has_them():
    parts = [part(group * 2 // 16, 3, of=Distribution.KEYED, group=group) for group in range(16)]
    shares = redistribute(parts, old_parallelism=2, new_parallelism=3, max_parallelism=16)

    assert [[piece.part for piece in share] for share in shares] == [
        list(range(6)),
        list(range(6, 11)),
        list(range(11, 16)),
    ]
    assert shares[0][0] == Piece(0, 0, 3)


def test_kinds_say_how_state_is_shared_out():
    assert distribution_of("raw-keyed", 3) is Distribution.KEYED
    assert distribution_of("reducing", 0) is Distribution.KEYED
    assert distribution_of("operator-list", -1) is distribution_of("raw-operator", -1) is Distribution.SPLIT
    assert distribution_of("operator-union", -1) is Distribution.UNION
    assert distribution_of("operator-broadcast", -1) is Distribution.BROADCAST
    with pytest.raises(ProtocolViolation, match="'value' has no key group"):
        distribution_of("value", -1)


@pytest.mark.parametrize(
    "wrong",
    [
        [part(2, 1)],
        [part(0, 0)],
        [part(0, 1), part(0, 1)],
        [part(0, 1, group=1)],
        [part(0, 1, of=Distribution.KEYED)],
        [part(0, 1, of=Distribution.KEYED, group=16)],
        [part(0, 1, of=Distribution.KEYED, group=7), part(1, 1, of=Distribution.KEYED, group=7)],
    ],
)
def test_parts_that_cannot_be_are_refused(wrong):
    with pytest.raises(ProtocolViolation, match="cannot be a part"):
        redistribute(wrong, old_parallelism=2, new_parallelism=2, max_parallelism=16)


def test_keyed_state_cannot_have_more_subtasks_than_key_groups_but_other_state_can():
    with pytest.raises(ConfigurationError, match=r"stored in 16 key groups.*Use 1 to 16"):
        redistribute(
            [part(0, 1, of=Distribution.KEYED, group=0)], old_parallelism=1, new_parallelism=17, max_parallelism=16
        )
    assert len(elements([part(0, 1)], 1, 17)) == 17


# -- at any parallelism ------------------------------------------------------------------------------------------------


@st.composite
def stored(draw: st.DrawFn, old: int) -> list[StoredPart]:
    """Some states of every kind, in any order; a subtask may have nothing."""
    parts: list[StoredPart] = []
    for of in (Distribution.SPLIT, Distribution.UNION, Distribution.BROADCAST):
        for name in draw(st.sets(st.sampled_from("abcd"))):
            rows = draw(st.lists(st.integers(0, 7), min_size=old, max_size=old))
            parts += [part(subtask, count, name, of) for subtask, count in enumerate(rows) if count]
    for name in draw(st.sets(st.sampled_from("ab"))):
        groups = draw(st.sets(st.integers(0, MAX_PARALLELISM - 1)))
        parts += [part(g * old // MAX_PARALLELISM, 1 + g % 3, name, Distribution.KEYED, g) for g in groups]
    return draw(st.permutations(parts))


def check(parts: list[StoredPart], old: int, new: int) -> None:
    shares = redistribute(parts, old_parallelism=old, new_parallelism=new, max_parallelism=MAX_PARALLELISM)
    assert len(shares) == new
    got = [
        [(index, row) for index, start, stop in map(fields, share) for row in range(start, stop)] for share in shares
    ]
    for of in Distribution:
        for name in {p.state for p in parts if p.distribution is of}:
            members = [i for i, p in enumerate(parts) if (p.state, p.distribution) == (name, of)]
            in_order = [
                (i, row) for i in sorted(members, key=lambda i: parts[i].subtask) for row in range(parts[i].rows)
            ]
            mine = [[unit for unit in rows if unit[0] in members] for rows in got]
            if of in (Distribution.KEYED, Distribution.SPLIT):
                assert sorted(unit for rows in mine for unit in rows) == sorted(in_order), "lost or doubled"
            if of is Distribution.KEYED:
                for subtask, rows in enumerate(mine):
                    assert {parts[i].key_group for i, _ in rows} <= set(key_group_ranges(new, MAX_PARALLELISM)[subtask])
            elif of is Distribution.SPLIT:
                for rows in mine:
                    assert rows == [unit for unit in in_order if unit in rows], "order was not kept"
                if old == new:
                    assert all(parts[i].subtask == subtask for subtask, rows in enumerate(mine) for i, _ in rows)
                else:
                    sizes = [len(rows) for rows in mine]
                    assert max(sizes) - min(sizes) <= 1, "not evenly"
            elif of is Distribution.UNION:
                assert mine == [in_order] * new
            else:
                for subtask, rows in enumerate(mine):
                    copy = [i for i in members if parts[i].subtask == subtask % old]
                    assert rows == [(i, row) for i in copy for row in range(parts[i].rows)]
    if old != new:
        lists = [[row for row in rows if parts[row[0]].distribution is Distribution.SPLIT] for rows in got]
        assert max(map(len, lists)) - min(map(len, lists)) <= 1, "many small lists have ended in one place"


def fields(piece: Piece) -> tuple[int, int, int]:
    return piece.part, piece.start, piece.stop


@pytest.mark.parametrize(("old", "new"), CHANGES)
@given(data=st.data())
def test_nothing_is_lost_nothing_is_doubled_and_order_is_kept(old, new, data):
    check(data.draw(stored(old)), old, new)


@given(data=st.data(), old=st.integers(1, MAX_PARALLELISM), new=st.integers(1, MAX_PARALLELISM))
def test_the_same_holds_at_any_parallelism(data, old, new):
    check(data.draw(stored(old)), old, new)


@given(data=st.data(), old=st.integers(1, 8), new=st.integers(1, 8))
def test_the_order_in_which_slots_were_stored_plays_no_part(data, old, new):
    parts = data.draw(stored(old))
    shuffled = data.draw(st.permutations(parts))

    def contents(of: list[StoredPart]) -> list[list[tuple[StoredPart, int, int]]]:
        shares = redistribute(of, old_parallelism=old, new_parallelism=new, max_parallelism=MAX_PARALLELISM)
        found = [[(of[piece.part], piece.start, piece.stop) for piece in share] for share in shares]
        return [sorted(share, key=lambda piece: (repr(piece[0]), piece[1])) for share in found]

    assert contents(shuffled) == contents(parts)


@pytest.mark.parametrize("max_parallelism", [1, 7, 128, 32768])
def test_key_group_ranges_are_those_by_which_records_are_routed(max_parallelism):
    for parallelism in {1, 2, 3, 5, 64, max_parallelism} & set(range(1, max_parallelism + 1)):
        ranges = key_group_ranges(parallelism, max_parallelism)

        assert ranges == [key_group_range(subtask, parallelism, max_parallelism) for subtask in range(parallelism)]
        assert [group for groups in ranges for group in groups] == list(range(max_parallelism))
        for group in range(0, max_parallelism, 97):
            assert owner_of(KeyGroup(group), parallelism, max_parallelism) == subtask_of(
                group, parallelism, max_parallelism
            )
