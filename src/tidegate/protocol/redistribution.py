"""Who gets what of a checkpoint's state, at any old and new parallelism. Pure; driven by the coordinator at a start.

What is stored comes in parts: what one old subtask stored of one state (for keyed state: of one of its key groups). A new
subtask's share is a list of pieces, each a run of a part's rows. Flink's rules:

    KEYED      the parts of the new subtask's key groups
    SPLIT      parallelism unchanged: its own part. Else the elements of all parts, in the order of the old subtasks,
               are dealt out in runs: total // new_parallelism for each, one more for the first total % new_parallelism.
               The next state begins with the subtask after the last that got one more, so that many small lists do not
               all end in subtask 0
    UNION      the parts of all old subtasks, in their order, for everyone
    BROADCAST  the copy of the old subtask i modulo the old parallelism; where that stored none, its copy was empty.
               Not another's: in an unaligned checkpoint copies differ by the elements in flight, and those go the
               same way (task/in_flight.py)

Invariant 1. Every row of KEYED and SPLIT parts is in exactly one share.
Invariant 2. Inside a share, the pieces of one state come in the order of the old subtasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from tidegate.errors import ConfigurationError, ProtocolViolation
from tidegate.ids import KeyGroup, SubtaskIndex


class Distribution(Enum):
    """How a kind of state is shared out."""

    KEYED = "keyed"
    SPLIT = "split"
    UNION = "union"
    BROADCAST = "broadcast"


_BY_KIND = {
    "operator-list": Distribution.SPLIT,
    "raw-operator": Distribution.SPLIT,
    "operator-union": Distribution.UNION,
    "operator-broadcast": Distribution.BROADCAST,
}


def distribution_of(kind: str, key_group: int) -> Distribution:
    """Whatever has a key group is keyed, whatever its kind.

    :raises ProtocolViolation: for a kind that is not keyed and not known.
    """
    if key_group >= 0:
        return Distribution.KEYED
    distribution = _BY_KIND.get(kind)
    if distribution is None:
        raise ProtocolViolation(f"state of kind {kind!r} has no key group, and no rule says who gets it", kind=kind)
    return distribution


@dataclass(frozen=True, slots=True)
class StoredPart:
    """What one old subtask stored of one state; of keyed state, of one key group. `rows` is never 0."""

    state: str
    distribution: Distribution
    subtask: SubtaskIndex  #: the old one
    rows: int
    key_group: KeyGroup | None = None  #: of keyed state, and only of that


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows `start` to `stop` of `parts[part]`."""

    part: int
    start: int
    stop: int


Share = list[Piece]


def redistribute(
    parts: Sequence[StoredPart], *, old_parallelism: int, new_parallelism: int, max_parallelism: int
) -> list[Share]:
    """The share of each new subtask of one operator. `max_parallelism` is the one that the state was stored with.

    :raises ConfigurationError: for more subtasks than there are key groups, where the operator has keyed state.
    :raises ProtocolViolation: for parts that cannot be.
    """
    _check(parts, old_parallelism, max_parallelism)
    if any(part.distribution is Distribution.KEYED for part in parts):
        _check_parallelism(new_parallelism, max_parallelism)
    shares: list[Share] = [[] for _ in range(new_parallelism)]
    unchanged = old_parallelism == new_parallelism
    first = 0  # SPLIT: the subtask with which the next state begins
    for distribution, members in _by_state(parts):
        match distribution:
            case Distribution.KEYED:
                for index in members:
                    group = parts[index].key_group
                    assert group is not None
                    shares[owner_of(group, new_parallelism, max_parallelism)].append(_whole(parts, index))
            case Distribution.UNION:
                for share in shares:
                    share += [_whole(parts, index) for index in members]
            case Distribution.BROADCAST:
                copies = {parts[index].subtask: index for index in members}
                for subtask, share in enumerate(shares):
                    copy = copies.get(SubtaskIndex(subtask % old_parallelism))
                    if copy is not None:
                        share.append(_whole(parts, copy))
            case Distribution.SPLIT:
                if unchanged:
                    for index in members:
                        shares[parts[index].subtask].append(_whole(parts, index))
                else:
                    first = _split(parts, members, shares, first)
            case _:
                assert_never(distribution)
    return shares


def key_group_ranges(parallelism: int, max_parallelism: int) -> list[range]:
    """The key groups of each subtask: together all of them, each once, in order."""
    _check_parallelism(parallelism, max_parallelism)
    return [
        range(
            (subtask * max_parallelism + parallelism - 1) // parallelism,
            ((subtask + 1) * max_parallelism - 1) // parallelism + 1,
        )
        for subtask in range(parallelism)
    ]


def owner_of(key_group: KeyGroup, parallelism: int, max_parallelism: int) -> SubtaskIndex:
    return SubtaskIndex(key_group * parallelism // max_parallelism)


def _by_state(parts: Sequence[StoredPart]) -> list[tuple[Distribution, list[int]]]:
    """The parts of each state by old subtask, the states by name: the order in which slots were stored plays no part."""
    members: dict[tuple[str, str], list[int]] = {}
    for index in sorted(range(len(parts)), key=lambda at: parts[at].subtask):
        members.setdefault((parts[index].state, parts[index].distribution.value), []).append(index)
    return [(Distribution(value), members[state, value]) for state, value in sorted(members)]


def _whole(parts: Sequence[StoredPart], index: int) -> Piece:
    return Piece(index, 0, parts[index].rows)


def _split(parts: Sequence[StoredPart], members: list[int], shares: list[Share], first: int) -> int:
    """Deal out one state's elements, beginning with the subtask `first`; with which one the next state begins."""
    base, remainder = divmod(sum(parts[index].rows for index in members), len(shares))
    waiting = [_whole(parts, index) for index in reversed(members)]
    for turn in range(len(shares)):
        share = shares[(first + turn) % len(shares)]
        missing = base + (turn < remainder)
        while missing:
            piece = waiting.pop()
            cut = min(piece.stop, piece.start + missing)
            share.append(Piece(piece.part, piece.start, cut))
            missing -= cut - piece.start
            if cut < piece.stop:
                waiting.append(Piece(piece.part, cut, piece.stop))
    return (first + remainder) % len(shares)


def _check(parts: Sequence[StoredPart], old_parallelism: int, max_parallelism: int) -> None:
    stored_by: dict[tuple[str, Distribution, int], SubtaskIndex] = {}
    for part in parts:
        keyed = part.distribution is Distribution.KEYED
        possible = (
            part.rows > 0
            and 0 <= part.subtask < old_parallelism
            and keyed == (part.key_group is not None)
            and (part.key_group is None or 0 <= part.key_group < max_parallelism)
        )
        unit = (part.state, part.distribution, part.subtask if part.key_group is None else part.key_group)
        # One subtask may store a key group in several parts; two subtasks never have the same one.
        if not possible or (unit in stored_by and (not keyed or stored_by[unit] != part.subtask)):
            raise ProtocolViolation(
                f"{part} cannot be a part, or is a second one, of the state of an operator with parallelism "
                f"{old_parallelism} and max_parallelism {max_parallelism}",
                state=part.state,
            )
        stored_by[unit] = part.subtask


def _check_parallelism(parallelism: int, max_parallelism: int) -> None:
    if not 0 < parallelism <= max_parallelism:
        raise ConfigurationError(
            f"parallelism is {parallelism}, but the state was stored in {max_parallelism} key groups, and a key group is the "
            f"smallest unit that a subtask can own. Use 1 to {max_parallelism}.",
            parallelism=parallelism,
            max_parallelism=max_parallelism,
        )
