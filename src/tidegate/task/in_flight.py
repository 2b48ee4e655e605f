"""In-flight records of an unaligned checkpoint: how they are stored, and who gets them at a restore. Executor.

One section for each edge: uid of the receiver, the edge's identity as the state's name, kind "in-flight". A row is a frame:
origin, target, flags, count and payload, in order. At another parallelism keyed records are filtered by key group, those of
the user's own partitioning are asked for their receiver again, a broadcast's come from one old copy, and all others, whose
receiver was chance or habit, go by their old target.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.batch import Batch
from tidegate.graph.logical import Partitioning
from tidegate.graph.plan import JobPlan, PlannedEdge
from tidegate.ids import KeyGroup
from tidegate.ports import SnapshotStorage
from tidegate.state.backend import Section
from tidegate.state.key_groups import key_groups, subtask_of
from tidegate.storage.metadata import IN_FLIGHT, NOT_KEYED, FileRef
from tidegate.storage.snapshot_file import SnapshotFileWriter, store_snapshot
from tidegate.task.capture import RESTORED
from tidegate.wire.frame import Frame, Kind
from tidegate.wire.records import decode_records, encode_records

SECTION_BYTES = 4 << 20
#: More than that goes into files of its own, one after another: what is uploaded stands in memory.
PART_BYTES = 16 << 20

_SCHEMA = pa.schema(
    [
        ("origin", pa.uint16()),
        ("target", pa.uint16()),
        ("flags", pa.uint16()),
        ("count", pa.uint32()),
        ("payload", pa.large_binary()),
    ]
)


def edge_name(edge: PlannedEdge) -> str:
    """An edge's identity over restarts, as text."""
    return json.dumps(edge.edge.identity)


def in_flight_sections(plan: JobPlan, frames: Iterable[Frame]) -> Iterator[tuple[str, Section]]:
    """(uid of the receiver, section), in order for each edge. Of bounded size: the frames may come from disk."""
    gathered: dict[int, list[Frame]] = {}
    sizes: dict[int, int] = {}
    for frame in frames:
        gathered.setdefault(frame.edge, []).append(frame)
        sizes[frame.edge] = sizes.get(frame.edge, 0) + frame.size_bytes
        if sizes[frame.edge] >= SECTION_BYTES:
            yield _section(plan.edges[frame.edge], gathered.pop(frame.edge))
            sizes[frame.edge] = 0
    for index, rest in sorted(gathered.items()):
        yield _section(plan.edges[index], rest)


def store_parts(
    storage: SnapshotStorage, path_of_part: Callable[[int], str], sections: Iterable[tuple[str, Section]]
) -> tuple[list[FileRef], SnapshotFileWriter]:
    """Files that are stored, in order, and the writer for what follows; it has the sections, where they are small.

    So at most PART_BYTES and a section stand in memory, however many are on disk.
    """
    parts: list[FileRef] = []
    writer = SnapshotFileWriter()

    def store() -> SnapshotFileWriter:
        parts.append(store_snapshot(storage, path_of_part(len(parts)), *writer.finish(), inline_limit=0))
        return SnapshotFileWriter()

    for uid, section in sections:
        writer.add(uid, *section)
        if writer.size_bytes >= PART_BYTES:
            writer = store()
    if parts and writer.size_bytes:
        writer = store()
    return parts, writer


def _section(edge: PlannedEdge, frames: list[Frame]) -> tuple[str, Section]:
    columns = [
        pa.array([frame.origin for frame in frames], pa.uint16()),
        pa.array([frame.target for frame in frames], pa.uint16()),
        pa.array([frame.flags for frame in frames], pa.uint16()),
        pa.array([frame.count for frame in frames], pa.uint32()),
        pa.array([bytes(frame.payload) for frame in frames], pa.large_binary()),
    ]
    rows = pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)
    return edge.edge.downstream, Section(edge_name(edge), IN_FLIGHT, KeyGroup(NOT_KEYED), rows)


def read_in_flight(rows: pa.RecordBatch, edge: PlannedEdge, subtask: int, old_parallelism: int) -> Iterator[Frame]:
    """The frames of a section that subtask `subtask` of the edge's receiver continues with."""
    for row in range(rows.num_rows):
        origin, target, flags, count = (rows.column(i)[row].as_py() for i in range(4))
        payload = memoryview(rows.column(4)[row].as_buffer())
        frame = Frame(Kind.RECORDS, RESTORED, origin, target, edge.index, 0, count, 0, flags, payload)
        mine = _share_of(frame, edge, subtask, old_parallelism)
        if mine is not None:
            yield mine


def remainder(frame: Frame, batch: Batch, position: int) -> Frame:
    """A frame for the part of its records that was not processed yet."""
    rest = batch.slice(position, len(batch))
    flags, payload = encode_records(rest)
    return Frame(
        frame.kind, frame.sender, frame.origin, frame.target, frame.edge, 0, len(rest), 0, flags, memoryview(payload)
    )


def _share_of(frame: Frame, edge: PlannedEdge, subtask: int, old_parallelism: int) -> Frame | None:
    if old_parallelism == edge.down_parallelism:
        return _for(frame, subtask) if frame.target == subtask else None
    match edge.partitioning:
        case Partitioning.BROADCAST:
            return _for(frame, subtask) if frame.target == subtask % old_parallelism else None
        case Partitioning.GLOBAL:
            return _for(frame, subtask) if subtask == 0 else None
        case Partitioning.HASH | Partitioning.CUSTOM:
            return _routed_share(frame, edge, subtask)
        case _:
            return _for(frame, subtask) if frame.target % edge.down_parallelism == subtask else None


def _receivers(edge: PlannedEdge, batch: Batch) -> np.ndarray[Any, Any]:
    """Of each record, where its content decides."""
    if edge.edge.partitioner is not None:
        return edge.edge.partitioner.targets(batch, edge.down_parallelism)
    key = edge.edge.key
    assert key is not None
    groups = key_groups(key.hashes(batch, key.key_type()), edge.down_max_parallelism)
    return subtask_of(groups, edge.down_parallelism, edge.down_max_parallelism)


def _routed_share(frame: Frame, edge: PlannedEdge, subtask: int) -> Frame | None:
    batch = decode_records(frame, edge.record_type)
    mine = np.flatnonzero(_receivers(edge, batch) == subtask)
    if not len(mine):
        return None
    stamps = None if batch.timestamps is None else batch.timestamps[mine]
    if batch.has_columns:
        share = Batch(batch.type, columns=batch.columns().take(pa.array(mine)), timestamps=stamps)
    else:
        rows = batch.rows()
        share = Batch(batch.type, [rows[place] for place in mine.tolist()], timestamps=stamps)
    flags, payload = encode_records(share)
    return Frame(
        frame.kind, frame.sender, frame.origin, subtask, frame.edge, 0, len(share), 0, flags, memoryview(payload)
    )


def _for(frame: Frame, subtask: int) -> Frame:
    return Frame(
        frame.kind,
        frame.sender,
        frame.origin,
        subtask,
        frame.edge,
        frame.sequence,
        frame.count,
        frame.value,
        frame.flags,
        frame.payload,
    )
