"""A slot's start: state into the backends, splits to the sources, in-flight records to the front. Executor; task's thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import groupby

import pyarrow as pa

from tidegate.errors import ConfigurationError, ProtocolViolation
from tidegate.graph.plan import JobPlan
from tidegate.ids import CheckpointId
from tidegate.state.backend import KeyedStateBackend
from tidegate.storage.metadata import SectionRef
from tidegate.storage.snapshot_file import read_sections, select_sections
from tidegate.task.chains import HostedChain
from tidegate.task.in_flight import edge_name, read_in_flight
from tidegate.task.keyed_files import KeyedFiles, restore_files
from tidegate.task.local_copies import RestoreStorage
from tidegate.task.operators.base import OperatorFailed, RunningOperator
from tidegate.wire.control import Start
from tidegate.wire.frame import Frame


def restore_state(
    storage: RestoreStorage, start: Start, chains: list[HostedChain], files: Mapping[str, KeyedFiles]
) -> None:
    """Readers and writers are made here, so that trouble of theirs names the operator; then state goes into what was made.

    :raises CheckpointDamaged: when a stored file is not what it was.
    """
    for chain in chains:
        for operator in chain.operators:
            try:
                operator.begin(start.incarnation)
            except Exception as error:
                raise OperatorFailed(operator, error) from error
    operators = {str(operator.uid): operator for chain in chains for operator in chain.operators}
    for uid, group in groupby(start.states, key=lambda state: state.uid):
        states = list(group)
        backend = _backend_of(operators, uid)
        dropped = {state for of, state in start.dropped_states if of == uid}
        exact = restore_files(backend, storage, states, dropped, storage.copies) and uid not in start.changed
        if exact and start.owned and start.restored_from is not None and uid in files:
            files[uid].restored(CheckpointId(start.restored_from), states[0])
    for file in start.files:
        for section, batch in read_sections(storage, file):
            _give(operators, section, batch)
    for share in start.operator_state:
        for section, batch in read_sections(storage, share.file):
            _give(operators, section, batch.slice(share.start, share.stop - share.start))


def _give(operators: Mapping[str, RunningOperator], section: SectionRef, batch: pa.RecordBatch) -> None:
    operator = operators.get(section.uid)
    if operator is None:
        raise ProtocolViolation(f"state of {section.uid!r} was given to a slot that has no such operator")
    if section.kind.startswith(("operator-", "raw-")):
        if operator.operator_state is None:
            raise ConfigurationError(
                f"the checkpoint holds operator state of {section.uid!r}, whose function is not a CheckpointedFunction any more"
            )
        operator.operator_state.restore(section.state, section.kind, section.key_group, [batch])
    else:
        _backend_of(operators, section.uid).restore(section.state, section.kind, [batch])


def _backend_of(operators: Mapping[str, RunningOperator], uid: str) -> KeyedStateBackend:
    operator = operators.get(uid)
    if operator is None or operator.backend is None:
        raise ProtocolViolation(f"keyed state of {uid!r} was given to a slot that has no such operator with keys")
    return operator.backend


def in_flight_frames(
    storage: RestoreStorage,
    start: Start,
    plan: JobPlan,
    receivers: Mapping[int, tuple[HostedChain, RunningOperator]],
) -> Iterator[Frame]:
    """What was in flight to this slot's operators; it is processed first, in this order, before anything new.

    On edges that are inside one chain now, what was in flight to a later operator was sent before whatever an earlier one
    makes of its own: so the end of the chain comes first.
    """
    edges = {edge_name(edge): edge for edge in plan.edges}
    old_parallelism = {restore.uid: restore.old_parallelism for restore in start.subtasks}
    places = {
        str(operator.uid): place for chain, _ in receivers.values() for place, operator in enumerate(chain.operators)
    }
    wanted = {section.uid for file in start.in_flight for section in file.sections}
    for uid in sorted(wanted, key=lambda uid: (-places[uid], uid)):
        files = (select_sections(file, partial(_is_for, uid)) for file in start.in_flight)
        for file in (file for file in files if file.sections):
            for section, rows in read_sections(storage, file):
                edge = edges[section.state]
                chain, _ = receivers[edge.index]
                yield from read_in_flight(rows, edge, chain.subtask, old_parallelism[uid])


def _is_for(uid: str, section: SectionRef) -> bool:
    return section.uid == uid


def open_operators(start: Start, chains: list[HostedChain]) -> None:
    """Parents before children; on a fresh start only sources are told something: their splits."""
    restores = {(restore.uid, restore.subtask): restore for restore in start.subtasks}
    fresh = start.restored_from is None
    for chain in chains:
        for operator in chain.operators:
            restore = restores.get((operator.uid, operator.subtask))
            operator.ended = restore is not None and restore.ended
            if restore is not None and restore.watermark is not None:
                operator.watermark = restore.watermark
                if operator is chain.head:
                    chain.valve.restore(restore.watermark)
            try:
                operator.open(restore if not fresh or operator is chain.source else None)
            except Exception as error:
                raise OperatorFailed(operator, error) from error
