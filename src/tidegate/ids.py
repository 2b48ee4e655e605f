"""Names for the integers and strings that must never be swapped for each other. Pure; used everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

CheckpointId = NewType("CheckpointId", int)  #: starts at 1, only grows, never used twice in one job's log
Generation = NewType("Generation", int)  #: one for each driver that took the job over; starts at 1
AttemptNumber = NewType("AttemptNumber", int)  #: one for each run of the Spark job in a generation; starts at 1
OperatorUid = NewType("OperatorUid", str)  #: the user's name for an operator; state is matched by it
SubtaskIndex = NewType("SubtaskIndex", int)  #: 0 .. parallelism-1 of one operator
KeyGroup = NewType("KeyGroup", int)  #: 0 .. max_parallelism-1
EdgeIndex = NewType("EdgeIndex", int)  #: position of a logical edge in the plan; travels in the frame header
ChannelId = NewType("ChannelId", int)  #: the sending slot's index in the layer before

EVENT_TIMERS = "_event_time_timers"  #: the state, of a keyed operator, that its timers are stored as
PROCESSING_TIMERS = "_processing_time_timers"
EVENT_TIME_MARKS = "fired"  #: the operator state that says of key groups how far event time had come


@dataclass(frozen=True, slots=True, order=True)
class SlotId:
    """One Spark task of one layer; it hosts at most one subtask of each chain of that layer."""

    layer: int
    index: int

    def __str__(self) -> str:
        return f"{self.layer}.{self.index}"


@dataclass(frozen=True, slots=True, order=True)
class AttemptId:
    """Fences old workers: everything stored or said by a slot carries it."""

    generation: Generation
    number: AttemptNumber

    def __str__(self) -> str:
        return f"g{self.generation}-a{self.number}"
