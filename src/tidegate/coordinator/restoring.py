"""Which slot continues from what: a checkpoint's parts, mapped to the operators of the plan by uid. Driver; pure.

Keyed state goes by key group, so it fits any parallelism. Splits are gathered from all old subtasks and dealt out again,
together with newly discovered ones; a split that the checkpoint knows keeps its position. Committables go to any
subtask: a committer needs nothing but their bytes.

A subtask has had its end of input only if the checkpoint says so and nothing can reach it any more: a split that is new
(a file that appeared), a new operator or another parallelism before it makes its end run again, after what comes.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence

import msgspec

from tidegate.connectors.contract import Split
from tidegate.coordinator.restore_check import changed_operators, check_restore, dropped_states, refuse
from tidegate.coordinator.stored_parts import StoredParts
from tidegate.errors import ConfigurationError
from tidegate.graph.plan import Chain, JobPlan, PlannedEdge, PlannedOperator
from tidegate.graph.specs import SourceSpec, keys_of
from tidegate.ids import SlotId, SubtaskIndex
from tidegate.protocol.redistribution import StoredPart, distribution_of, redistribute
from tidegate.protocol.watermarks import MAX_WATERMARK
from tidegate.state.key_groups import key_group_range
from tidegate.storage.metadata import (
    IN_FLIGHT,
    CheckpointMetadata,
    FileRef,
    SectionRef,
    SplitState,
    SubtaskSnapshot,
)
from tidegate.storage.snapshot_file import select_sections
from tidegate.wire.control import Start, StateShare, SubtaskRestore


def plan_start(
    plan: JobPlan,
    metadata: CheckpointMetadata | None,
    discovered: Mapping[str, Sequence[Split]],
    allow_dropped_state: bool = False,
    incarnation: str = "",
    owned: bool = True,
) -> dict[SlotId, Start]:
    """What each slot is told at its start. `owned`: the checkpoint is this job's own, to be built on.

    :raises ConfigurationError: when state has no operator to go to, or does not fit it; before anything runs.
    """
    old = _by_uid(metadata)
    dropped: set[tuple[str, str]] = set()
    changed: set[str] = set()
    if metadata is not None:
        _refuse_lost_edges(plan, metadata)
        findings = check_restore(plan, metadata, allow_dropped_state)
        refuse(findings, metadata)
        dropped, changed = dropped_states(findings), changed_operators(findings)
    splits = _deal_splits(plan, old, discovered)
    ended = _ended(plan, old, splits)
    stored = StoredParts(metadata)
    shares = _operator_state_shares(plan, stored, old)
    starts: dict[SlotId, Start] = {}
    for layer_index, layer in enumerate(plan.layers):
        for index in range(layer.width):
            slot = SlotId(layer_index, index)
            subtasks: list[SubtaskRestore] = []
            ranges: dict[str, range] = {}
            for chain in layer.chains:
                subtask = plan.subtask_in(chain, slot)
                if subtask is not None:
                    subtasks += [
                        _restore(operator, subtask, old.get(operator.uid, []), splits, ended)
                        for operator in chain.operators
                    ]
                    ranges |= _key_ranges(chain, subtask)
            starts[slot] = Start(
                incarnation=incarnation,
                restored_from=None if metadata is None else metadata.checkpoint,
                subtasks=subtasks,
                files=stored.keyed_files(ranges, dropped),
                operator_state=[
                    share for restore in subtasks for share in shares.get((restore.uid, restore.subtask), [])
                ],
                in_flight=stored.in_flight_files({restore.uid for restore in subtasks}),
                states=stored.state_files(ranges),
                owned=owned,
                dropped_states=sorted(state for state in dropped if state[0] in ranges),
                changed=sorted(changed & ranges.keys()),
            )
    return starts


def splits_to_read(starts: Mapping[SlotId, Start], sources: Collection[str]) -> dict[str, int]:
    """How many splits each of these sources has still to read, by uid."""
    found = dict.fromkeys(sources, 0)
    for start in starts.values():
        for restore in start.subtasks:
            if restore.uid in found:
                found[restore.uid] += sum(not split.finished for split in restore.splits)
    return found


def commit_only(start: Start) -> Start:
    """The same without state: the job has stopped, and only what its sinks have prepared is left to do."""
    subtasks = [msgspec.structs.replace(subtask, ended=True) for subtask in start.subtasks]
    return msgspec.structs.replace(
        start, subtasks=subtasks, files=[], operator_state=[], in_flight=[], states=[], commit_only=True
    )


def stored_max_parallelism(metadata: CheckpointMetadata) -> dict[str, int]:
    """Key groups cannot change under stored state: what was derived before is kept."""
    return {info.uid: info.max_parallelism for info in metadata.operators if info.key_type is not None}


def _by_uid(metadata: CheckpointMetadata | None) -> dict[str, list[SubtaskSnapshot]]:
    by_uid: dict[str, list[SubtaskSnapshot]] = {}
    for slot in () if metadata is None else metadata.slots:
        for subtask in slot.subtasks:
            by_uid.setdefault(subtask.uid, []).append(subtask)
    for subtasks in by_uid.values():
        subtasks.sort(key=lambda subtask: subtask.subtask)
    return by_uid


def _deal_splits(
    plan: JobPlan, old: dict[str, list[SubtaskSnapshot]], discovered: Mapping[str, Sequence[Split]]
) -> dict[str, list[list[SplitState]]]:
    """Of each source, the splits of each subtask."""
    dealt: dict[str, list[list[SplitState]]] = {}
    for operator in plan.operators:
        spec = operator.operator.spec
        if isinstance(spec, SourceSpec):
            snapshots = old.get(operator.uid, [])
            known = {split.id: split for snapshot in snapshots for split in snapshot.splits}
            for split in discovered.get(operator.uid, ()):
                if split.id not in known:
                    found = spec.source.appeared(split) if snapshots else split
                    known[split.id] = SplitState(found.id, found.position, found.finished)
            ordered = sorted(known.values(), key=lambda split: split.id)
            shares: list[list[SplitState]] = [[] for _ in range(operator.parallelism)]
            dealt[operator.uid] = shares
            for place, state in enumerate(ordered):
                owner = spec.source.owner(state.id, operator.parallelism)
                shares[place % operator.parallelism if owner is None else owner].append(state)
    return dealt


def _ended(
    plan: JobPlan, old: dict[str, list[SubtaskSnapshot]], splits: dict[str, list[list[SplitState]]]
) -> dict[str, list[bool]]:
    """Of each operator, which subtasks have had their end of input."""
    inputs: dict[str, list[PlannedEdge]] = {}
    for edge in plan.edges:
        inputs.setdefault(edge.edge.downstream, []).append(edge)
    ended: dict[str, list[bool]] = {}
    for operator in plan.operators:  # layer by layer, so upstream comes first
        snapshots = old.get(operator.uid, [])
        if len(snapshots) == operator.parallelism:
            own = [snapshot.ended for snapshot in snapshots]
        else:
            own = [bool(snapshots) and all(snapshot.ended for snapshot in snapshots)] * operator.parallelism
        for edge in inputs.get(operator.uid, []):
            before = ended[edge.edge.upstream]
            own = [flag and all(before[sender] for sender in edge.senders_to(i)) for i, flag in enumerate(own)]
        for i, given in enumerate(splits.get(operator.uid, [])):
            own[i] = own[i] and all(split.finished for split in given)
        ended[operator.uid] = own
    return ended


def _restore(
    operator: PlannedOperator,
    subtask: int,
    old: list[SubtaskSnapshot],
    splits: dict[str, list[list[SplitState]]],
    ended: dict[str, list[bool]],
) -> SubtaskRestore:
    return SubtaskRestore(
        old_parallelism=len(old),
        uid=operator.uid,
        subtask=subtask,
        ended=ended[operator.uid][subtask],
        watermark=_watermark(old, ended[operator.uid][subtask]),
        splits=splits[operator.uid][subtask] if operator.uid in splits else [],
        committables=[
            committable
            for snapshot in old
            if snapshot.subtask % operator.parallelism == subtask
            for committable in snapshot.committables
        ],
    )


def _watermark(old: list[SubtaskSnapshot], ended: bool) -> int | None:
    lowest = min((snapshot.watermark for snapshot in old if snapshot.watermark is not None), default=None)
    # The last watermark says that nothing more comes. Where something does after all, it must not count as late.
    return None if lowest == MAX_WATERMARK and not ended else lowest


def _key_ranges(chain: Chain, subtask: int) -> dict[str, range]:
    return {
        operator.uid: key_group_range(subtask, operator.parallelism, operator.max_parallelism)
        for operator in chain.operators
        if keys_of(operator.operator.spec)
    }


def _refuse_lost_edges(plan: JobPlan, metadata: CheckpointMetadata) -> None:
    """In-flight records need the edge that they were on."""
    edges = {json.dumps(edge.edge.identity) for edge in plan.edges}
    for file in (file for slot in metadata.slots for file in slot.files()):
        for section in file.sections:
            if section.kind == IN_FLIGHT and section.state not in edges:
                upstream, _, downstream, _ = json.loads(section.state)
                raise ConfigurationError(
                    f"checkpoint {metadata.checkpoint} is unaligned and holds records in flight from {upstream!r} to "
                    f"{downstream!r}, an edge that the job no longer has. Restore it with the old program, take an aligned "
                    "checkpoint, and change the program then."
                )


def _operator_state_shares(
    plan: JobPlan, stored: StoredParts, old: dict[str, list[SubtaskSnapshot]]
) -> dict[tuple[str, int], list[StateShare]]:
    """What each new subtask gets of the state that has no keys, by (uid, subtask)."""
    shares: dict[tuple[str, int], list[StateShare]] = {}
    for operator in plan.operators:
        parts: list[StoredPart] = []
        sections: list[tuple[FileRef, SectionRef]] = []
        for subtask, file, section in stored.unkeyed_sections(operator.uid):
            distribution = distribution_of(section.kind, section.key_group)
            parts.append(StoredPart(section.state, distribution, SubtaskIndex(subtask), section.rows))
            sections.append((file, section))
        if not parts:
            continue
        dealt = redistribute(
            parts,
            old_parallelism=len(old[operator.uid]),
            new_parallelism=operator.parallelism,
            max_parallelism=operator.max_parallelism,
        )
        for subtask, share in enumerate(dealt):
            shares[operator.uid, subtask] = [
                StateShare(_only(*sections[piece.part]), piece.start, piece.stop) for piece in share
            ]
    return shares


def _only(file: FileRef, wanted: SectionRef) -> FileRef:
    return select_sections(file, lambda section: section == wanted)
