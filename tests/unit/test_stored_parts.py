"""What each slot is given of a checkpoint is what a look at each section of every file would give it."""

from __future__ import annotations

import random

import pytest

from tidegate.coordinator.stored_parts import StoredParts
from tidegate.state.key_groups import overlap
from tidegate.storage.metadata import (
    IN_FLIGHT,
    NOT_KEYED,
    CheckpointMetadata,
    FileRef,
    SectionRef,
    SlotSnapshot,
    SubtaskSnapshot,
)
from tidegate.storage.snapshot_file import select_sections
from tidegate.storage.state_files import StateFiles

UIDS = ("a", "b", "c", "in a slot that is gone")
GROUPS = 16


def section(draw: random.Random) -> SectionRef:
    kind = draw.choice(["value", "list", "union", IN_FLIGHT])
    group = draw.choice([NOT_KEYED, *range(GROUPS)]) if kind in ("value", "list") else NOT_KEYED
    at = draw.randrange(1000)
    return SectionRef(draw.choice(UIDS), draw.choice(["x", "y"]), kind, group, at, 10, 3, f"{at:032x}")


def file(draw: random.Random, name: str) -> FileRef:
    return FileRef(100, path=name, sections=[section(draw) for _ in range(draw.randint(0, 6))])


def states(draw: random.Random) -> list[StateFiles]:
    found = []
    for uid in draw.sample(UIDS, draw.randint(0, 2)):
        first = draw.randrange(GROUPS)
        found.append(StateFiles(uid, draw.randrange(4), first, draw.randint(first, GROUPS - 1)))
    return found


def checkpoint(draw: random.Random) -> CheckpointMetadata:
    slots = []
    for layer in range(3):
        for index in range(draw.randint(1, 4)):
            tables = [file(draw, f"table-{layer}-{index}-{n}") for n in range(draw.randint(0, 2))]
            subtasks = [SubtaskSnapshot(uid, index) for uid in UIDS]
            own = file(draw, f"slot-{layer}-{index}")
            slots.append(SlotSnapshot(layer, index, own, subtasks, tables, states(draw)))
    return CheckpointMetadata("job", 1, 1, 1, 0.0, 0.0, [], slots)


@pytest.mark.property
@pytest.mark.parametrize("seed", range(40))
def test_nothing_is_missed_and_nothing_is_too_much_and_the_order_is_kept(seed: int) -> None:
    draw = random.Random(seed)
    metadata = checkpoint(draw)
    parts = StoredParts(metadata)
    all_files = [file for slot in metadata.slots for file in slot.files()]
    for _ in range(20):
        ranges = {
            uid: range(first, draw.randint(first, GROUPS) + 1)
            for uid in draw.sample(UIDS, draw.randint(0, 3))
            for first in [draw.randrange(GROUPS)]
        }
        dropped = {("a", "x")} if draw.random() < 0.3 else set()

        def is_ours(s: SectionRef, ranges: dict[str, range] = ranges, dropped: set[tuple[str, str]] = dropped) -> bool:
            keyed = s.kind != IN_FLIGHT and (s.uid, s.state) not in dropped
            return keyed and s.uid in ranges and s.key_group in ranges[s.uid]

        def was_under_way(s: SectionRef, ranges: dict[str, range] = ranges) -> bool:
            return s.kind == IN_FLIGHT and s.uid in ranges

        keyed = [chosen for file in all_files if (chosen := select_sections(file, is_ours)).sections]
        assert parts.keyed_files(ranges, dropped) == keyed
        slots = sorted(metadata.slots, key=lambda slot: (-slot.layer, slot.index))
        chosen = [select_sections(file, was_under_way) for slot in slots for file in slot.files()]
        assert parts.in_flight_files(set(ranges)) == [file for file in chosen if file.sections]
        found = [state for slot in metadata.slots for state in slot.states if state.uid in ranges]
        found = [state for state in found if overlap(state.key_groups, ranges[state.uid])]
        assert parts.state_files(ranges) == sorted(found, key=lambda state: (state.uid, state.subtask))
    for uid in UIDS:
        assert parts.unkeyed_sections(uid) == [
            (slot.index, file, s)
            for slot in metadata.slots
            for file in slot.files()
            for s in file.sections
            if s.uid == uid and s.key_group == NOT_KEYED and s.kind != IN_FLIGHT
        ]


def test_of_no_checkpoint_there_is_nothing() -> None:
    parts = StoredParts(None)
    assert parts.keyed_files({"a": range(4)}, set()) == []
    assert parts.in_flight_files({"a"}) == []
    assert parts.state_files({"a": range(4)}) == []
    assert parts.unkeyed_sections("a") == []
