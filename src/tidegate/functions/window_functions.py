"""What is made of a window when it fires. They run on the executors, in the task's thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Generic

from tidegate.functions.process import Context, In, Out, _Function

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.functions.windows import TimeWindow


class WindowContext(Context):
    """What a window's function may ask while the window fires."""

    __slots__ = ("_global_state", "_processing_time", "window")

    window: TimeWindow
    _global_state: Callable[[], AbstractContextManager[None]]
    _processing_time: Callable[[], int]

    def current_processing_time(self) -> int:
        """The time of day, in ms."""
        return self._processing_time()

    def global_state(self) -> AbstractContextManager[None]:
        """Declared state is the window's, and is dropped with it. In here it is the key's, which all windows share:

        with ctx.global_state():
            self.windows_so_far.set(self.windows_so_far.get() + 1)
        """
        return self._global_state()


class ProcessWindowFunction(_Function[Out], Generic[In, Out]):
    """All records of a key's window, when it fires; or the one result of a reduce or an aggregate before it.

        >>> class Spread(tg.ProcessWindowFunction):
        ...     def process(self, key, context, elements):
        ...         prices = [price for _, price in elements]
        ...         yield (key, context.window.start, max(prices) - min(prices))
        >>> spread = harness(
        ...     lambda keyed: keyed.window(tg.TumblingEventTimeWindows("10s")).process(Spread()), via="window", key_by=0
        ... )
        >>> spread.process(("tea", 3), timestamp=1000), spread.process(("tea", 7), timestamp=2000)
        ([], [])
        >>> spread.advance_watermark(10_000)
        [('tea', 0, 4)]

    State that the class declares is the window's; `context.global_state()` is the way to the key's.
    """

    def process(self, key: Any, context: WindowContext, elements: list[In], /) -> Iterable[Out] | None:
        raise NotImplementedError(f"{type(self).__name__} must define process(self, key, context, elements)")

    def clear(self, context: WindowContext, /) -> None:
        """The window closes for good. Its declared state is dropped afterwards, without a word from you."""


class WithWindow(ProcessWindowFunction[Any, tuple[int, int, Any, Any]]):
    """The result of a reduce or an aggregate with its window: (window start, window end, key, result).

    >>> clicks = env.from_collection([("ann", 1), ("ann", 5)], type=tuple[str, int])
    >>> by_user = clicks.key_by(0).window(tg.CountWindows(2))
    >>> totals = by_user.reduce(lambda a, b: (a[0], a[1] + b[1]), tg.WithWindow())
    """

    def process(self, key: Any, context: WindowContext, elements: list[Any], /) -> Iterator[tuple[int, int, Any, Any]]:
        for element in elements:
            yield (*context.window, key, element)


class WindowBatchFunction(_Function[Out]):
    """All windows that fire together, of all keys, as one Arrow batch: the columns `window_start` and `window_end`, then those
    of the records. The records of a window stand together, in the order in which they came.

    >>> import pyarrow as pa
    >>> class Spread(tg.WindowBatchFunction):
    ...     def process_batch(self, batch, ctx):
    ...         windows = pa.table(batch).group_by(["f0", "window_start"], use_threads=False)
    ...         found = windows.aggregate([("f1", "max"), ("f1", "min")])
    ...         lowest, highest = found["f1_min"].to_numpy(), found["f1_max"].to_numpy()
    ...         return pa.table({"f0": found["f0"], "f1": found["window_start"], "f2": highest - lowest})
    >>> spread = harness(
    ...     lambda keyed: keyed.window(tg.TumblingEventTimeWindows("10s")).process_batches(
    ...         Spread(), returns=tuple[str, int, int]
    ...     ),
    ...     via="window", key_by=0, input_type=tuple[str, int],
    ... )
    >>> spread.process_many([("tea", 3), ("tea", 7)], timestamps=[1000, 2000])
    []
    >>> spread.advance_watermark(10_000)
    [('tea', 0, 4)]
    """

    def process_batch(self, batch: pa.RecordBatch, ctx: Context, /) -> pa.RecordBatch | pa.Table | None:
        raise NotImplementedError(f"{type(self).__name__} must define process_batch(self, batch, ctx)")
