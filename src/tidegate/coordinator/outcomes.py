"""How an attempt ends. Driver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from tidegate.errors import TidegateError
from tidegate.graph.plan import Parallelism


@dataclass(frozen=True, slots=True)
class AttemptFinished:
    """FINISHED is in the log."""


@dataclass(frozen=True, slots=True)
class AttemptRescaled:
    """Its last checkpoint is committed everywhere: continue with another plan."""

    parallelism: Parallelism
    reason: str = ""  #: for whoever looks; "": a user wants it so


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """Failed. `permanent`: no restart can help, or none is allowed to."""

    error: TidegateError
    permanent: bool = False


Outcome = Union[AttemptFinished, AttemptRescaled, AttemptEnded]
