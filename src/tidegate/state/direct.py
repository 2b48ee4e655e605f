"""What a loop that is written out for a function (graph/record_loop.py) knows of a backend: where value states in memory lie.

Executor, the task's thread, per-record path. A backend that keeps its state elsewhere has none of this, and is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidegate.state.heap_tables import CurrentKey


@dataclass(frozen=True, slots=True)
class DirectValue:
    """A value state whose values nobody can change: a dictionary for each chunk. To be written as DictValue.set does."""

    handle: object  #: what the function's attribute is bound to
    kind: str  #: "int", "text", or "plain": how it is seen that a value needs `fit`
    exact: type | None  #: of "plain": a value of exactly this class needs none
    fit: Callable[[Any], Any]
    default: Any
    chunks: list[dict[Any, Any]]
    owned: bytearray
    own: Callable[[int], None]  #: before the first change of a chunk that is not owned


@dataclass(frozen=True, slots=True)
class DirectAccess:
    current: CurrentKey  #: to be set for each record, for all that is asked through handles
    chunks_of: Callable[[list[Any]], list[int]]  #: of normalised keys
    values: dict[str, DirectValue]  #: by the name of the state
