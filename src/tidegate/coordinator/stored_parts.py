"""What a checkpoint holds, by operator: so that a slot that is restored looks only at what may be its own. Driver; pure.

Without it each slot of a job would look at each section of every other slot's file, and a start would take minutes with
thousands of slots.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tidegate.state.key_groups import overlap
from tidegate.storage.metadata import IN_FLIGHT, NOT_KEYED, CheckpointMetadata, FileRef, SectionRef
from tidegate.storage.snapshot_file import select_sections
from tidegate.storage.state_files import StateFiles


class StoredParts:
    """Of one checkpoint; None: of none, which holds nothing."""

    def __init__(self, metadata: CheckpointMetadata | None) -> None:
        slots = [] if metadata is None else metadata.slots
        self._files = [file for slot in slots for file in slot.files()]
        #: By uid: places in _files, and the key groups between which they have some.
        self._keyed: dict[str, dict[int, range]] = {}
        nearest_first = sorted(slots, key=lambda slot: (-slot.layer, slot.index))
        self._under_way = [file for slot in nearest_first for file in slot.files()]
        self._in_flight: dict[str, set[int]] = {}  #: by uid: places in _under_way
        self._states: dict[str, list[StateFiles]] = {}
        self._unkeyed: dict[str, list[tuple[int, FileRef, SectionRef]]] = {}
        for place, file in enumerate(self._files):
            for section in file.sections:
                if section.kind != IN_FLIGHT and section.key_group != NOT_KEYED:
                    known = self._keyed.setdefault(section.uid, {})
                    group, before = section.key_group, known.get(place)
                    if before is None:
                        known[place] = range(group, group + 1)
                    elif group not in before:
                        known[place] = range(min(before.start, group), max(before.stop, group + 1))
        for place, file in enumerate(self._under_way):
            for section in file.sections:
                if section.kind == IN_FLIGHT:
                    self._in_flight.setdefault(section.uid, set()).add(place)
        for slot in slots:
            for state in slot.states:
                self._states.setdefault(state.uid, []).append(state)
            subtasks = {snapshot.uid: snapshot.subtask for snapshot in reversed(slot.subtasks)}
            for file in slot.files():
                for section in file.sections:
                    if section.key_group == NOT_KEYED and section.kind != IN_FLIGHT:
                        own = self._unkeyed.setdefault(section.uid, [])
                        own.append((subtasks[section.uid], file, section))

    def keyed_files(self, ranges: Mapping[str, range], dropped: Collection[tuple[str, str]]) -> list[FileRef]:
        """With the sections of these key groups, by uid; states that are dropped are left out."""

        def wanted(section: SectionRef) -> bool:
            if section.kind == IN_FLIGHT or (section.uid, section.state) in dropped:
                return False
            return section.uid in ranges and section.key_group in ranges[section.uid]

        places = {
            place
            for uid, groups in ranges.items()
            for place, there in self._keyed.get(uid, {}).items()
            if there.start < groups.stop and groups.start < there.stop
        }
        files = (select_sections(self._files[place], wanted) for place in sorted(places))
        return [file for file in files if file.sections]

    def state_files(self, ranges: Mapping[str, range]) -> list[StateFiles]:
        """In the order of the old subtasks."""
        found = [
            state
            for uid, groups in ranges.items()
            for state in self._states.get(uid, [])
            if overlap(state.key_groups, groups)
        ]
        return sorted(found, key=lambda state: (state.uid, state.subtask))

    def in_flight_files(self, uids: Collection[str]) -> list[FileRef]:
        """With records that were in flight to these operators. What stood nearer to them is older, so it comes first."""

        def wanted(section: SectionRef) -> bool:
            return section.kind == IN_FLIGHT and section.uid in uids

        places = sorted({place for uid in uids for place in self._in_flight.get(uid, ())})
        files = (select_sections(self._under_way[place], wanted) for place in places)
        return [file for file in files if file.sections]

    def unkeyed_sections(self, uid: str) -> list[tuple[int, FileRef, SectionRef]]:
        """Of an operator's state without keys: the subtask that has stored it, the file, the section."""
        return self._unkeyed.get(uid, [])
