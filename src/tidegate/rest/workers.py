"""The worker processes of all jobs, as Flink's task managers: one process is one of them, with one slot. Driver; pure.

Its id is host:pid, as everywhere in these answers. Only workers of attempts that run are known.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tidegate.coordinator.observing import JobLine
from tidegate.ids import SlotId
from tidegate.rest.log_text import as_text
from tidegate.rest.metrics import Measured, Numbers
from tidegate.rest.numbers import ms
from tidegate.rest.problems import not_found
from tidegate.rest.served import ServedJob

LOG = "worker.log"  #: of Flink's name for it: lines of the job's log that this worker has sent
_MEMORY_PARTS = (
    "frameworkHeap", "taskHeap", "frameworkOffHeap", "taskOffHeap", "networkMemory", "managedMemory", "jvmMetaspace",
    "jvmOverhead", "totalFlinkMemory", "totalProcessMemory",
)  # fmt: skip
_JVM_NUMBERS = (
    "heapUsed", "heapCommitted", "heapMax", "nonHeapUsed", "nonHeapCommitted", "nonHeapMax", "directCount", "directUsed",
    "directMax", "mappedCount", "mappedUsed", "mappedMax", "nettyShuffleMemorySegmentsAvailable",
    "nettyShuffleMemorySegmentsUsed", "nettyShuffleMemorySegmentsTotal", "nettyShuffleMemoryAvailable",
    "nettyShuffleMemoryUsed", "nettyShuffleMemoryTotal",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class WorkerOf:
    """One worker process, and what it runs."""

    id: str
    job: ServedJob
    slots: tuple[SlotId, ...]

    def subtasks(self) -> list[tuple[str, int]]:
        """Vertex names and indexes."""
        return [
            (vertex.name, index)
            for vertex in self.job.vertices()
            for index, slot in enumerate(vertex.slots())
            if slot in self.slots
        ]


def workers_of(jobs: list[ServedJob]) -> list[WorkerOf]:
    found = []
    for job in jobs:
        if job.view.status.is_terminal:
            continue
        slots: dict[str, list[SlotId]] = {}
        for slot, hello in sorted(job.hands.workers().items()):
            slots.setdefault(f"{hello.host}:{hello.pid}", []).append(slot)
        found += [WorkerOf(id, job, tuple(of_it)) for id, of_it in slots.items()]
    return found


def find_worker(jobs: list[ServedJob], id: str) -> WorkerOf:
    """:raises Problem: where no running attempt has it."""
    for worker in workers_of(jobs):
        if worker.id == id:
            return worker
    raise not_found(f"there is no worker {id[:200]}; GET /taskmanagers lists them")


def task_managers(jobs: list[ServedJob]) -> dict[str, Any]:
    return {"taskmanagers": [_entry(worker) for worker in workers_of(jobs)]}


def task_manager(worker: WorkerOf) -> dict[str, Any]:
    return _entry(worker) | {
        "allocatedSlots": [
            {"jobId": worker.job.id, "resource": _resources(), "assignedTasks": len(worker.subtasks())}
            for _ in worker.slots
        ],
        "metrics": dict.fromkeys(_JVM_NUMBERS, 0) | {"garbageCollectors": []},
    }


def numbers_of(worker: WorkerOf) -> Numbers:
    """The metrics of its subtasks, each with its vertex before it where it runs several."""
    measured = Measured.of(worker.job)
    numbers: Numbers = {}
    for vertex in worker.job.vertices():
        for index, slot in enumerate(vertex.slots()):
            if slot in worker.slots:
                numbers |= {f"{vertex.name}.{index}.{name}": v for name, v in measured.of_task(vertex, index).items()}
    return numbers


def log_of(worker: WorkerOf) -> str:
    return as_text(_lines(worker))


def logs_of(worker: WorkerOf) -> dict[str, Any]:
    lines = list(_lines(worker))
    newest = lines[-1].at if lines else 0.0
    return {"logs": [{"name": LOG, "size": len(as_text(lines).encode()), "mtime": ms(newest)}]}


def _lines(worker: WorkerOf) -> Iterator[JobLine]:
    slots = {str(slot) for slot in worker.slots}
    attempt = str(worker.job.view.attempt or "")
    return (line for line in worker.job.view.lines_from(0)[1] if line.slot in slots and line.attempt == attempt)


def _entry(worker: WorkerOf) -> dict[str, Any]:
    heard = worker.job.memory.heard_at()
    times = [heard[slot] for slot in worker.slots if slot in heard]
    beats = worker.job.view.snapshot().heartbeats
    uses = [use for slot in worker.slots if slot in beats and (use := beats[slot].process) is not None]
    resident_bytes = max((use.resident_bytes for use in uses), default=0)
    cores = [cores for slot, cores in worker.job.cores().items() if slot in worker.slots]
    return {
        "id": worker.id,
        "path": ", ".join(f"{name} #{index}" for name, index in worker.subtasks()),
        "dataPort": -1,
        "jmxPort": -1,
        "timeSinceLastHeartbeat": ms(max(times)) if times else 0,
        "slotsNumber": len(worker.slots),
        "freeSlots": 0,
        "assignedTasks": len(worker.subtasks()),
        "totalResource": _resources(),
        "freeResource": _resources(0.0),
        "hardware": {"cpuCores": 0, "physicalMemory": 0, "freeMemory": 0, "managedMemory": 0},
        "memoryConfiguration": dict.fromkeys(_MEMORY_PARTS, 0) | {"totalProcessMemory": resident_bytes},
        "residentBytes": resident_bytes or None,
        "coresBusy": round(max(cores), 3) if cores else None,
        "blocked": False,
    }


def _resources(cores: float = 1.0) -> dict[str, Any]:
    """Spark gives a slot one core, and no memory of its own."""
    return {
        "cpuCores": cores,
        "taskHeapMemory": 0,
        "taskOffHeapMemory": 0,
        "managedMemory": 0,
        "networkMemory": 0,
        "extendedResources": {},
    }
