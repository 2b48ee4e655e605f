"""The built-in keyed aggregations, as process functions: each emits the updated result for every record, as Flink does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tidegate.functions.process import Context, KeyedProcessFunction
from tidegate.state.declarations import ValueState
from tidegate.types import Pickled


class AggregateFunction:
    """An aggregation of your own: how to begin, add and give the result. `accumulator_type` declares what is stored.

    >>> class Average(tg.AggregateFunction):
    ...     accumulator_type = tuple[int, int]
    ...     def create_accumulator(self):
    ...         return (0, 0)
    ...     def add(self, n, accumulator):
    ...         return (accumulator[0] + 1, accumulator[1] + n)
    ...     def get_result(self, accumulator):
    ...         return accumulator[1] / accumulator[0]
    >>> class Averages(tg.KeyedProcessFunction):
    ...     average = tg.AggregatingState(Average())
    ...     def process_element(self, n, ctx):
    ...         self.average.add(n)
    ...         yield self.average.get()
    >>> harness(Averages(), key_by=lambda n: "all").process_many([2, 4])
    [2.0, 3.0]
    """

    accumulator_type: Any = Pickled

    def create_accumulator(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__} must define create_accumulator(self)")

    def add(self, value: Any, accumulator: Any, /) -> Any:
        """The new accumulator."""
        raise NotImplementedError(f"{type(self).__name__} must define add(self, value, accumulator)")

    def get_result(self, accumulator: Any, /) -> Any:
        raise NotImplementedError(f"{type(self).__name__} must define get_result(self, accumulator)")


def reduce_function(function: Callable[[Any, Any], Any], value_type: Any) -> KeyedProcessFunction:
    """Combine each record with the one so far."""

    class Reduce(KeyedProcessFunction):
        value = ValueState(value_type)

        def process_element(self, value: Any, ctx: Context) -> Iterator[Any]:
            current = self.value.get()
            result = value if current is None else function(current, value)
            self.value.set(result)
            yield result

    return Reduce()


def aggregate_function(aggregate: AggregateFunction) -> KeyedProcessFunction:
    class Aggregate(KeyedProcessFunction):
        accumulator = ValueState(aggregate.accumulator_type)

        def process_element(self, value: Any, ctx: Context) -> Iterator[Any]:
            current = self.accumulator.get()
            if current is None:
                current = aggregate.create_accumulator()
            current = aggregate.add(value, current)
            self.accumulator.set(current)
            yield aggregate.get_result(current)

    return Aggregate()


def count_function() -> KeyedProcessFunction:
    class Count(KeyedProcessFunction):
        count = ValueState(int, default=0)

        def process_element(self, value: Any, ctx: Context) -> Iterator[Any]:
            n = self.count.get() + 1
            self.count.set(n)
            yield (ctx.key, n)

    return Count()


def fold_function(get: Callable[[Any], Any], fold: Callable[[Any, Any], Any], value_type: Any) -> KeyedProcessFunction:
    """sum, min, max of one field: emits (key, result). None is passed over, where a field may be None."""

    class Fold(KeyedProcessFunction):
        value = ValueState(value_type)

        def process_element(self, row: Any, ctx: Context) -> Iterator[Any]:
            current, value = self.value.get(), get(row)
            if value is None:
                yield (ctx.key, current)
                return
            result = value if current is None else fold(current, value)
            self.value.set(result)
            yield (ctx.key, result)

    return Fold()
