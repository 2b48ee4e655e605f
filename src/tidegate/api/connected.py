"""Connected streams: two inputs for one function. Driver only; builds the logical graph, runs nothing.

a.connect(b)                              CoProcessFunction
a.key_by(...).connect(b.key_by(...))      KeyedCoProcessFunction: the inputs share the state of their common key
a.connect(b.broadcast())                  BroadcastProcessFunction: every subtask gets every element of b
a.key_by(...).connect(b.broadcast())      KeyedBroadcastProcessFunction

CoMapFunction and CoFlatMapFunction work on the first two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic

from typing_extensions import TypeVar

from tidegate.api.building import Asked, EdgePlan, declared_type, need_instance
from tidegate.api.transformable import Transformable, returned_type
from tidegate.errors import GraphError
from tidegate.functions.class_form import CoFlatMapFunction, CoMapFunction
from tidegate.functions.process import (
    BroadcastProcessFunction,
    CoProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
)
from tidegate.graph import specs

if TYPE_CHECKING:
    from tidegate.api.streams import DataStream
    from tidegate.graph.key_selector import KeySelector

A = TypeVar("A", default=Any)  #: of the first stream's records
B = TypeVar("B", default=Any)
U = TypeVar("U")


class ConnectedStreams(Transformable, Generic[A, B]):
    """Two inputs for one function. Each has a key, or none."""

    def __init__(
        self,
        first: DataStream[A],
        second: DataStream[B],
        keys: tuple[KeySelector | None, KeySelector | None] = (None, None),
    ) -> None:
        self._first = first
        self._second = second
        self._keys = keys

    def process(
        self, function: CoProcessFunction[A, B, U] | BroadcastProcessFunction[A, B, U], output_type: Any = None, *,
        uid: str | None = None, returns: Any = None, name: str | None = None, parallelism: int | None = None,
        max_parallelism: int | None = None,
        on_error: str = "fail",
    ) -> DataStream[U]:  # fmt: skip
        """A CoProcessFunction, keyed when both streams are; a BroadcastProcessFunction when the second is broadcast,
        keyed when the first is.

            >>> class Greet(tg.KeyedCoProcessFunction):
            ...     name = tg.ValueState(str, default="somebody")
            ...     def process_element1(self, visit, ctx):
            ...         yield f"hello {self.name.get()}"
            ...     def process_element2(self, person, ctx):
            ...         self.name.set(person[1])
            >>> visits = env.from_collection([(1, "/")], type=tuple[int, str])
            >>> people = env.from_collection([(2, "Bob")], type=tuple[int, str])
            >>> greetings = visits.key_by(0).connect(people.key_by(0)).process(Greet(), returns=str)
            >>> list(greetings.execute_and_collect())
            ['hello somebody']
        """
        spec = self._broadcast_spec(function) if self._is_broadcast(function) else self._co_spec(function)
        main = function.process_element if isinstance(function, BroadcastProcessFunction) else function.process_element1
        out = returned_type(declared_type(returns, output_type), main, True)
        return self._apply(
            spec, type(function).__name__, out, Asked(uid, name, parallelism, max_parallelism, on_error=on_error)
        )

    def map(
        self, function: CoMapFunction[A, B, U], output_type: Any = None, *, uid: str | None = None, returns: Any = None,
        name: str | None = None, parallelism: int | None = None, max_parallelism: int | None = None,
    ) -> DataStream[U]:  # fmt: skip
        """One record out for each record in, of either stream.

        >>> class AsText(tg.CoMapFunction):
        ...     def map1(self, n):
        ...         return str(n)
        ...     def map2(self, text):
        ...         return text
        >>> both = env.from_collection([1]).connect(env.from_collection(["a"])).map(AsText(), returns=str)
        >>> sorted(both.execute_and_collect())
        ['1', 'a']
        """
        spec = self._in_class_form(function, CoMapFunction, "map")
        out = returned_type(declared_type(returns, output_type), function.map1, False)
        return self._apply(spec, type(function).__name__, out, Asked(uid, name, parallelism, max_parallelism))

    def flat_map(
        self, function: CoFlatMapFunction[A, B, U], output_type: Any = None, *, uid: str | None = None,
        returns: Any = None, name: str | None = None, parallelism: int | None = None,
        max_parallelism: int | None = None,
    ) -> DataStream[U]:  # fmt: skip
        """Any number of records out for each record in, of either stream.

        >>> class Words(tg.CoFlatMapFunction):
        ...     def flat_map1(self, line):
        ...         return line.split()
        ...     def flat_map2(self, word):
        ...         return [word]
        >>> both = env.from_collection(["to be"]).connect(env.from_collection(["or"])).flat_map(Words(), returns=str)
        >>> sorted(both.execute_and_collect())
        ['be', 'or', 'to']
        """
        spec = self._in_class_form(function, CoFlatMapFunction, "flat_map")
        out = returned_type(declared_type(returns, output_type), function.flat_map1, True)
        return self._apply(spec, type(function).__name__, out, Asked(uid, name, parallelism, max_parallelism))

    @property
    def _upstream(self) -> DataStream[A]:
        return self._first

    def _edges(self) -> list[EdgePlan]:
        edges: list[EdgePlan] = []
        streams: tuple[DataStream[Any], DataStream[Any]] = (self._first, self._second)
        for index, (stream, key) in enumerate(zip(streams, self._keys, strict=True)):
            edges += [each.edge(index) if key is None else each.keyed_edge(key, index) for each in stream._inputs]
        return edges

    def _in_class_form(self, function: Any, kind: type, what: str) -> specs.CoProcessSpec:
        need_instance(function, kind, f"{what} on connected streams")
        first, second = self._keys
        if first is None and second is None:
            return specs.CoProcessSpec(function, None)
        if first is None or second is None:
            raise GraphError(
                f"{type(function).__name__} takes two inputs alike; this is a keyed stream connected to a broadcast one: use a "
                "KeyedBroadcastProcessFunction"
            )
        return specs.CoProcessSpec(function, (first, second))

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
