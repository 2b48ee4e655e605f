"""The functions a user writes. They run on the executors, one instance for each subtask, in the task's thread.

Only declared state is saved in checkpoints. A plain attribute (`self.seen = set()`) is not: it is empty again after every
restart, and results that lean on it are wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias

from typing_extensions import TypeVar

from tidegate.errors import ContractError
from tidegate.functions.counters import Counter
from tidegate.functions.user_metrics import Histogram, UserMetrics
from tidegate.protocol.watermarks import MIN_WATERMARK

if TYPE_CHECKING:
    import pyarrow as pa

In = TypeVar("In", default=Any)  #: what comes in; of a function that does not say it, anything
In2 = TypeVar("In2", default=Any)  #: and by the second input
Out = TypeVar("Out", default=Any)  #: what goes out


class Context:
    """What a function may ask while it works on a record."""

    __slots__ = (
        "_emit_side",
        "_metrics",
        "_timers",
        "_timestamp",
        "current_watermark",
        "job",
        "key",
        "name",
        "parallelism",
        "restored",
        "subtask",
        "time_domain",
        "uid",
    )

    def __init__(self, job: str, uid: str, name: str, subtask: int, parallelism: int, restored: bool) -> None:
        self.job = job
        self.uid = uid
        self.name = name
        self.subtask = subtask  #: 0 .. parallelism-1
        self.parallelism = parallelism
        self.restored = restored  #: True when this attempt continues from a checkpoint
        self.key: Any = None  #: the current key, on keyed streams
        self.current_watermark = MIN_WATERMARK  #: no record up to this event time (ms) will come any more
        self.time_domain: str | None = None  #: in on_timer: "event" or "processing"
        self._timestamp: int | None = None
        self._emit_side: Any = None
        self._timers: TimerService | None = None
        self._metrics = UserMetrics()

    def timestamp(
        self,
    ) -> int | Any:  # not `int | None`: who asks has event time, and should not have to say so each time
        """The record's event time in ms, or the timer's; None where the stream has no event time.

        >>> class Timed(tg.ProcessFunction):
        ...     def process_element(self, value, ctx):
        ...         yield value, ctx.timestamp()
        >>> harness(Timed()).process("a", timestamp=1000)
        [('a', 1000)]
        """
        return self._timestamp

    def get_current_key(self) -> Any:
        """`ctx.key`, as PyFlink calls it.

        >>> class Named(tg.KeyedProcessFunction):
        ...     def process_element(self, value, ctx):
        ...         yield ctx.get_current_key() == ctx.key
        >>> harness(Named(), key_by=lambda name: name).process("ann")
        [True]
        """
        return self.key

    def timer_service(self) -> TimerService:
        """Timers of the current key; only where the function defines on_timer.

        >>> class Remind(tg.KeyedProcessFunction):
        ...     def process_element(self, name, ctx):
        ...         ctx.timer_service().register_event_time_timer(ctx.timestamp() + 1000)
        ...     def on_timer(self, timestamp, ctx):
        ...         yield f"{ctx.key} at {timestamp}"
        >>> reminder = harness(Remind(), key_by=lambda name: name)
        >>> reminder.process("ann", timestamp=5), reminder.advance_watermark(1005)
        ([], ['ann at 1005'])
        """
        if self._timers is None:
            raise ContractError(f"{self.name} has no timers: define on_timer(self, timestamp, ctx) in a keyed function")
        return self._timers

    def counter(self, name: str) -> Counter:
        """A number of yours to count with; get it once, in open(). Its subtasks are added up and shown as an accumulator.

        It counts from zero in each attempt and is not part of checkpoints: for watching, not for results.

            >>> class Parse(tg.ProcessFunction):
            ...     def open(self, ctx):
            ...         self.bad = ctx.counter("bad")
            ...     def process_element(self, line, ctx):
            ...         if line.isdigit():
            ...             yield int(line)
            ...         else:
            ...             self.bad.inc()
            >>> harness(Parse()).process_many(["1", "?"])
            [1]
        """
        return self._metrics.counter(name)

    def gauge(self, name: str, value: Callable[[], float]) -> None:
        """A number of yours to be looked at, about once a second: `ctx.gauge("cached", lambda: len(self.cache))`, in open().

        Classic mistake: to change something in it, or to wait. It is called in another thread while records are processed.

        >>> class Lookup(tg.ProcessFunction):
        ...     def open(self, ctx):
        ...         self.cache = {}
        ...         ctx.gauge("cached", lambda: len(self.cache))
        ...     def process_element(self, word, ctx):
        ...         yield self.cache.setdefault(word, word.upper())
        >>> harness(Lookup()).process("a")
        ['A']
        """
        self._metrics.gauge(name, value)

    def histogram(self, name: str) -> Histogram:
        """How a number of yours is spread: get it once, in open(), and `update(value)` it. Shown with its quantiles.

        >>> class Sizes(tg.ProcessFunction):
        ...     def open(self, ctx):
        ...         self.sizes = ctx.histogram("sizes")
        ...     def process_element(self, word, ctx):
        ...         self.sizes.update(len(word))
        ...         yield word
        >>> harness(Sizes()).process("abc")
        ['abc']
        """
        return self._metrics.histogram(name)

    def get_metrics_group(self) -> Context:
        """Counters, gauges and histograms are the context's own; PyFlink has them one call further away.

        >>> class Parse(tg.ProcessFunction):
        ...     def open(self, ctx):
        ...         self.lines = ctx.get_metrics_group().counter("lines")
        ...     def process_element(self, line, ctx):
        ...         self.lines.inc()
        ...         yield line.strip()
        >>> harness(Parse()).process(" a ")
        ['a']
        """
        return self

    def get_index_of_this_subtask(self) -> int:
        """`ctx.subtask`, as PyFlink calls it.

        >>> class Where(tg.ProcessFunction):
        ...     def process_element(self, value, ctx):
        ...         yield ctx.get_index_of_this_subtask()
        >>> harness(Where()).process("a")
        [0]
        """
        return self.subtask

    def get_number_of_parallel_subtasks(self) -> int:
        """`ctx.parallelism`, as PyFlink calls it.

        >>> class Where(tg.ProcessFunction):
        ...     def process_element(self, value, ctx):
        ...         yield ctx.get_number_of_parallel_subtasks()
        >>> harness(Where()).process("a")
        [1]
        """
        return self.parallelism

    def output(self, tag: OutputTag, value: Any) -> None:
        """Emit to a side output. The record inherits the timestamp, as what is returned does.

        >>> odd = tg.OutputTag("odd", int)
        >>> class Split(tg.ProcessFunction):
        ...     def process_element(self, number, ctx):
        ...         if number % 2:
        ...             ctx.output(odd, number)
        ...         else:
        ...             yield number
        >>> split = env.from_sequence(1, 4, uid="numbers").process(Split(), returns=int)
        >>> odd_numbers = split.side_output(odd)
        """
        self._emit_side(tag.name, value, None if self.time_domain == "processing" else self._timestamp)


class BroadcastContext(Context):
    """What a function may ask while it works on an element of the broadcast side. No key is current."""

    __slots__ = ("_apply",)

    _apply: Callable[[Any, Callable[[Any, Any], None]], None]

    def apply_to_keyed_state(self, state: Any, function: Callable[[Any, Any], None]) -> None:
        """`function(key, state)` for every key of this subtask that has something in `state`, which may be changed.

            ctx.apply_to_keyed_state(self.count, lambda key, count: count.clear())

        All of it runs in the task's thread, at once: with many keys it takes its time. Every other state of the
        function is that of the same key meanwhile. Keys come in no order.

        :raises ConfigurationError: for what is not a keyed state of this function.
        """
        self._apply(state, function)

    def timer_service(self) -> TimerService:
        raise ContractError(
            f"{self.name} asks for timers in process_broadcast_element, where no key is current, and timers belong to a key. "
            "Register them in process_element."
        )


class TimerService(Protocol):
    """Timers of one key. Times are milliseconds since the epoch; the same timer registered twice fires once."""

    def register_event_time_timer(self, timestamp: int) -> None:
        """Fire when the watermark reaches it; with the next watermark if it already has."""

    def register_processing_time_timer(self, timestamp: int) -> None:
        """Fire when the clock reaches it, also while no record comes."""

    def delete_event_time_timer(self, timestamp: int) -> None: ...

    def delete_processing_time_timer(self, timestamp: int) -> None: ...

    def current_watermark(self) -> int: ...

    def current_processing_time(self) -> int: ...


class OutputTag:
    """Names a side output and its type: `late = tg.OutputTag("late", str)`.

    >>> late = tg.OutputTag("late", int)
    >>> class Sort(tg.ProcessFunction):
    ...     def process_element(self, n, ctx):
    ...         ctx.output(late, n)
    >>> sorting = harness(Sort(), side_outputs=[late])
    >>> sorting.process(3), sorting.side_output(late)
    ([], [3])
    """

    __slots__ = ("name", "type")

    def __init__(self, name: str, type: Any = None) -> None:
        if not name:
            raise ValueError("an output tag needs a name")
        self.name = name
        self.type = type

    def __deepcopy__(self, memo: object) -> OutputTag:
        return self  # a name: nobody changes it

    def __repr__(self) -> str:
        return f"OutputTag({self.name!r})"


_Context = Context


class _PyFlinkNames:
    """Of the context, as programs for PyFlink write them in annotations: `ctx: KeyedProcessFunction.OnTimerContext`."""

    Context: TypeAlias = _Context
    OnTimerContext: TypeAlias = _Context
    ReadOnlyContext: TypeAlias = _Context


class _Function(_PyFlinkNames, Generic[Out]):
    """The life of a function: open, records, end_input (bounded input only), close."""

    def open(self, ctx: Context, /) -> None:
        """Before the first record of each attempt. State that was declared is already restored."""

    def end_input(self, ctx: Context, /) -> Iterable[Out] | None:
        """All input has ended; may emit. Runs once over all restores."""
        return None

    def close(self) -> None:
        """At the end of the job. Must not emit. A worker that fails or is cancelled is gone without it."""


class _TimedFunction(_Function[Out]):
    """A function of keyed records, whose keys have timers."""

    def on_timer(self, timestamp: int, ctx: Context, /) -> Iterable[Out] | None:
        """A timer of `ctx.key` is due; `ctx.time_domain` says by which clock. May emit and register more."""
        return None


def has_timers(function: Any) -> bool:
    """Whether a function defines on_timer: only then timers are kept for it."""
    nothing = _TimedFunction.on_timer
    return getattr(type(function), "on_timer", nothing) is not nothing


class ProcessFunction(_Function[Out], Generic[In, Out]):
    """One record in, any number out; no keyed state.

    >>> class Words(tg.ProcessFunction):
    ...     def process_element(self, line, ctx):
    ...         yield from line.split()
    >>> harness(Words()).process("to be")
    ['to', 'be']
    """

    def process_element(self, value: In, ctx: Context, /) -> Iterable[Out] | None:
        raise NotImplementedError(f"{type(self).__name__} must define process_element(self, value, ctx)")


class KeyedProcessFunction(_TimedFunction[Out], Generic[In, Out]):
    """One record in, any number out, with state for each key.

        >>> class CountWords(tg.KeyedProcessFunction):
        ...     count = tg.ValueState(int, default=0)
        ...     def process_element(self, word, ctx):
        ...         n = self.count.get() + 1
        ...         self.count.set(n)
        ...         yield (word, n)
        >>> harness(CountWords(), key_by=lambda word: word).process_many(["a", "b", "a"])
        [('a', 1), ('b', 1), ('a', 2)]

    For whoever wants its types checked: `tg.KeyedProcessFunction[str, tuple[str, int]]` says what comes in and what goes out.
    """

    def process_element(self, value: In, ctx: Context, /) -> Iterable[Out] | None:
        raise NotImplementedError(f"{type(self).__name__} must define process_element(self, value, ctx)")


class KeyedBatchFunction(_Function[Out]):
    """Whole Arrow batches, with vectorised access to the state of all their keys.

    >>> class Total(tg.KeyedBatchFunction):
    ...     total = tg.ValueState(int, default=0)
    ...     def process_batch(self, keys, batch, ctx):
    ...         self.total.add_many(keys, batch.column("f1"))
    >>> totals = harness(Total(), key_by=0, input_type=tuple[str, int])
    >>> totals.process_many([("a", 1), ("b", 2), ("a", 3)])
    []
    >>> totals.state("a")
    {'total': 4}
    """

    def process_batch(self, keys: pa.Array, batch: pa.RecordBatch, ctx: Context, /) -> pa.RecordBatch | None:
        raise NotImplementedError(f"{type(self).__name__} must define process_batch(self, keys, batch, ctx)")


class CoProcessFunction(_Function[Out], Generic[In, In2, Out]):
    """Two inputs of different types, without keyed state.

    >>> class Label(tg.CoProcessFunction):
    ...     def process_element1(self, n, ctx):
    ...         yield ("number", str(n))
    ...     def process_element2(self, text, ctx):
    ...         yield ("text", text)
    >>> label = harness(Label())
    >>> label.process(1) + label.process2("a")
    [('number', '1'), ('text', 'a')]
    """

    def process_element1(self, value: In, ctx: Context, /) -> Iterable[Out] | None:
        raise NotImplementedError(f"{type(self).__name__} must define process_element1(self, value, ctx)")

    def process_element2(self, value: In2, ctx: Context, /) -> Iterable[Out] | None:
        raise NotImplementedError(f"{type(self).__name__} must define process_element2(self, value, ctx)")


class KeyedCoProcessFunction(CoProcessFunction[In, In2, Out], _TimedFunction[Out]):
    """Two keyed inputs that share the state of their common key.

    >>> class Convert(tg.KeyedCoProcessFunction):
    ...     rate = tg.ValueState(float, default=1.0)
    ...     def process_element1(self, amount, ctx):
    ...         yield amount[1] * self.rate.get()
    ...     def process_element2(self, rate, ctx):
    ...         self.rate.set(rate[1])
    >>> converted = harness(Convert(), key_by=0)
    >>> converted.process2(("usd", 0.5))
    []
    >>> converted.process(("usd", 10)) + converted.process(("eur", 10))
    [5.0, 10.0]
    """


class BroadcastProcessFunction(_Function[Out], Generic[In, In2, Out]):
    """Two inputs: records, and elements that every subtask gets, like rules; without keyed state.

    >>> class Filter(tg.BroadcastProcessFunction):
    ...     blocked = tg.BroadcastState(str, bool)
    ...     def process_element(self, user, ctx):
    ...         if user not in self.blocked:
    ...             yield user
    ...     def process_broadcast_element(self, user, ctx):
    ...         self.blocked[user] = True
    >>> users = harness(Filter())
    >>> users.process("bob"), users.broadcast("bob"), users.process("bob")
    (['bob'], [], [])
    """

    def process_element(self, value: In, ctx: Context, /) -> Iterable[Out] | None:
        """A record. Broadcast state can be read."""
        raise NotImplementedError(f"{type(self).__name__} must define process_element(self, value, ctx)")

    def process_broadcast_element(self, value: In2, ctx: BroadcastContext, /) -> Iterable[Out] | None:
        """An element that every subtask gets. Broadcast state can be written.

        Classic mistake: to write what depends on the subtask, on time or on chance. Every subtask must do the same.
        """
        raise NotImplementedError(f"{type(self).__name__} must define process_broadcast_element(self, value, ctx)")


class KeyedBroadcastProcessFunction(BroadcastProcessFunction[In, In2, Out], _TimedFunction[Out]):
    """The same on a keyed stream: `process_element` has the state of its key, and timers.

    >>> class Limit(tg.KeyedBroadcastProcessFunction):
    ...     count = tg.ValueState(int, default=0)
    ...     limit = tg.BroadcastState(str, int)
    ...     def process_element(self, user, ctx):
    ...         self.count.set(self.count.get() + 1)
    ...         if self.count.get() > self.limit.get("all", 100):
    ...             yield user
    ...     def process_broadcast_element(self, limit, ctx):
    ...         self.limit["all"] = limit
    >>> users = harness(Limit(), key_by=lambda user: user)
    >>> users.broadcast(1), users.process("ann"), users.process("ann")
    ([], [], ['ann'])
    """
