"""Connected streams: two inputs for one function. Driver only; builds the logical graph, runs nothing.

a.connect(b)                              CoProcessFunction
a.key_by(...).connect(b.key_by(...))      KeyedCoProcessFunction: the inputs share the state of their common key
a.connect(b.broadcast())                  BroadcastProcessFunction: every subtask gets every element of b
a.key_by(...).connect(b.broadcast())      KeyedBroadcastProcessFunction
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidegate.api.building import EdgePlan, add_operator, need_instance
from tidegate.api.functions import (
    BroadcastProcessFunction,
    CoProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
)
from tidegate.errors import GraphError
from tidegate.graph import specs
from tidegate.graph.logical import MAIN_OUTPUT

if TYPE_CHECKING:
    from tidegate.api.streams import DataStream
    from tidegate.state.key_selector import KeySelector


class ConnectedStreams:
    """Two inputs for one function. Each has a key, or none."""

    def __init__(
        self,
        first: DataStream,
        second: DataStream,
        keys: tuple[KeySelector | None, KeySelector | None] = (None, None),
    ) -> None:
        self._first = first
        self._second = second
        self._keys = keys

    def process(
        self, function: CoProcessFunction | BroadcastProcessFunction, *, uid: str | None = None, returns: Any = None,
        name: str | None = None, parallelism: int | None = None, max_parallelism: int | None = None,
    ) -> DataStream:  # fmt: skip
        """A CoProcessFunction, keyed when both streams are; a BroadcastProcessFunction when the second is broadcast,
        keyed when the first is."""
        spec = self._broadcast_spec(function) if self._is_broadcast(function) else self._co_spec(function)
        main = function.process_element if isinstance(function, BroadcastProcessFunction) else function.process_element1
        out = self._first._returned(returns, main, True)
        edges: list[EdgePlan] = []
        for index, (stream, key) in enumerate(zip((self._first, self._second), self._keys, strict=True)):
            edges += [each.edge(index) if key is None else each.keyed_edge(key, index) for each in stream._inputs]
        env = self._first._env
        new = add_operator(
            env, spec, name or type(function).__name__, {MAIN_OUTPUT: out}, uid, parallelism, max_parallelism, edges
        )
        return self._first._output_of(new, out)

    def _is_broadcast(self, function: Any) -> bool:
        """By the function; a keyed stream beside one without keys can only be that."""
        return isinstance(function, BroadcastProcessFunction) or (self._keys[0] is None) != (self._keys[1] is None)

    def _broadcast_spec(self, function: Any) -> specs.BroadcastProcessSpec:
        what = "process on a stream connected to a broadcast one"
        key, other = self._keys
        if other is not None or not self._second._is_broadcast:
            raise GraphError(
                f"{type(function).__name__} has a broadcast side: write stream.connect(other.broadcast()), so that every "
                "subtask gets every element of the other stream"
            )
        need_instance(function, BroadcastProcessFunction if key is None else KeyedBroadcastProcessFunction, what)
        if key is None and isinstance(function, KeyedBroadcastProcessFunction):
            raise GraphError(f"{type(function).__name__} needs a keyed stream: call key_by on the first before connect")
        return specs.BroadcastProcessSpec(function, key)

    def _co_spec(self, function: Any) -> specs.CoProcessSpec:
        first, second = self._keys
        if first is not None and second is not None:
            need_instance(function, KeyedCoProcessFunction, "process on connected keyed streams")
            return specs.CoProcessSpec(function, (first, second))
        need_instance(function, CoProcessFunction, "process on connected streams")
        if isinstance(function, KeyedCoProcessFunction):
            raise GraphError(f"{type(function).__name__} needs keyed streams: call key_by on both before connect")
        return specs.CoProcessSpec(function, None)
