"""Why a job moves to other slots without having failed, as events for whoever looks. Driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ScalingDecided:
    """By the autoscaler. `parallelism`: of each vertex that is to have another; none: more would help, and cannot be had."""

    parallelism: Mapping[str, int]
    reason: str
    at: float

    @property
    def sentence(self) -> str:
        return f"autoscaler: {'rescaling' if self.parallelism else 'not rescaled'}: {self.reason}"


@dataclass(frozen=True, slots=True)
class ExecutorsLeaving:
    """They were told to go, and slots of the job run there: it moves as soon as there is room elsewhere."""

    executors: tuple[str, ...]  #: Spark's ids
    at: float

    @property
    def sentence(self) -> str:
        return f"leaving, with slots of the job: executors {', '.join(self.executors)}"
