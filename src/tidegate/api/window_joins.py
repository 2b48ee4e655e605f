"""Two streams that meet in windows: `join` and `co_group`. Driver only; builds the logical graph, runs nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, Self, cast

from typing_extensions import TypeVar

from tidegate.api.building import Asked, declared_type
from tidegate.api.joins import HOW, TwoKeyed
from tidegate.api.keys import make_key_selector, with_type_after_it
from tidegate.api.transformable import returned_type
from tidegate.api.window_options import WindowOptions, WindowSettings
from tidegate.errors import GraphError
from tidegate.functions.column_windows import WINDOW_COLUMNS
from tidegate.functions.joins import LATE
from tidegate.functions.window_joins import Applied, CoGroupFunction, Joined, PairColumns, sided_annotation
from tidegate.graph import specs
from tidegate.state.declarations import ListState
from tidegate.types import RecordType, record_type

if TYPE_CHECKING:
    from tidegate.api.keyed import KeyedStream
    from tidegate.api.streams import DataStream
    from tidegate.functions.windowed import WindowFunction
    from tidegate.functions.windows import WindowAssigner


class _WindowedPair(WindowSettings, TwoKeyed):
    """Two streams in windows."""

    def __init__(
        self, left: KeyedStream[Any, Any], right: KeyedStream[Any, Any], what: str, options: WindowOptions
    ) -> None:
        TwoKeyed.__init__(self, left, right, what)
        WindowSettings.__init__(self, options)

    def _made(self, function: WindowFunction, out: RecordType, asked: Asked) -> DataStream[Any]:
        kept = ListState(sided_annotation(self._left._type, self._right._type))
        spec = specs.WindowSpec(self._options.declared(kept, function, LATE), self._keys)
        return self._apply(spec, f"window {self._what}", out, asked)


class WindowJoin(_WindowedPair):
    """Made by `a.join(b).where(...).equal_to(...).window(...)`."""

    def how(self, how: str) -> Self:
        """ "inner", "left", "right" or "full": whose records leave without a partner, if their window has none."""
        self._how = self._checked_how(how, HOW)
        return self

    def apply(
        self, function: Callable[[Any, Any], Any], output_type: Any = None, *, returns: Any = None, uid: str | None = None,
        name: str | None = None, parallelism: int | None = None, max_parallelism: int | None = None,
    ) -> DataStream[Any]:  # fmt: skip
        """`function(left, right)` gives the record of each pair; None stands for a partner that there is not."""
        out = returned_type(declared_type(returns, output_type), function, False)
        types = self._left._type, self._right._type
        return self._made(Joined(function, types, self._how), out, Asked(uid, name, parallelism, max_parallelism))

    def columns(
        self, *, uid: str | None = None, name: str | None = None, parallelism: int | None = None,
        max_parallelism: int | None = None,
    ) -> DataStream[Any]:  # fmt: skip
        """Pairs as columns: `window_start` and `window_end` (ms), those of the left, then those of the right, which are called
        `right_<name>` where the left has the name, too. Records are dicts. Both streams must be typed."""
        out = record_type(self._pair_schema(WINDOW_COLUMNS))
        function = PairColumns(self._left._type, self._right._type, self._how, out)
        return self._made(function, out, Asked(uid, name, parallelism, max_parallelism))


class CoGroupedWindows(_WindowedPair):
    """Made by `a.co_group(b).where(...).equal_to(...).window(...)`."""

    def apply(
        self, function: Callable[[list[Any], list[Any]], Iterable[Any] | None] | CoGroupFunction[Any],
        output_type: Any = None, *, returns: Any = None, uid: str | None = None, name: str | None = None,
        parallelism: int | None = None, max_parallelism: int | None = None,
    ) -> DataStream[Any]:  # fmt: skip
        """`function(first, second)` gives the records of each window of each key that has any: two lists, of which one may be
        empty. Or a CoGroupFunction."""
        is_plain = not isinstance(function, CoGroupFunction)
        hook: Any = function if is_plain else cast(CoGroupFunction[Any], function).co_group
        out = returned_type(declared_type(returns, output_type), hook, True)
        made = Applied(hook) if is_plain else cast(CoGroupFunction[Any], function)
        return self._made(made, out, Asked(uid, name, parallelism, max_parallelism))


W = TypeVar("W", bound=_WindowedPair)


class JoinedStreams(Generic[W]):
    """`where`, `equal_to` and `window`, in this order."""

    def __init__(self, left: DataStream[Any], right: DataStream[Any], what: str, made: type[W]) -> None:
        if not hasattr(right, "_inputs"):
            raise GraphError(f"{what} takes a stream, not {type(right).__name__}: say the keys by where and equal_to")
        self._sides = {"where": left, "equal_to": right}
        self._keyed: dict[str, KeyedStream[Any, Any]] = {}
        self._what = what
        self._made = made

    def where(self, *key: Any, key_type: Any = None) -> Self:
        """The key of the left stream, as `key_by` takes it."""
        return self._with_key("where", key, key_type)

    def equal_to(self, *key: Any, key_type: Any = None) -> Self:
        """The key of the right stream. Both must be of one type."""
        return self._with_key("equal_to", key, key_type)

    def window(self, assigner: WindowAssigner) -> W:
        """In which windows records of one key meet: any assigner."""
        for side in self._sides:
            if side not in self._keyed:
                raise GraphError(f'{self._what}: say the key of both sides before window: .{side}("id") is missing')
        return self._made(self._keyed["where"], self._keyed["equal_to"], self._what, WindowOptions(assigner))

    def _with_key(self, side: str, key: tuple[Any, ...], key_type: Any) -> Self:
        from tidegate.api.keyed import KeyedStream

        stream = self._sides[side]
        parts, declared = with_type_after_it(key, key_type)
        self._keyed[side] = KeyedStream(stream, make_key_selector(stream._type, parts, declared, side))
        return self


class JoinableInWindows:
    """`join` and `co_group`, of a stream without keys."""

    def join(self, other: DataStream[Any]) -> JoinedStreams[WindowJoin]:
        """Each record with each one of the other stream that has its key, in one window. As SQL, of the windows of all
        records of both streams: `SELECT * FROM l JOIN r USING (key, window_start, window_end)`.

            >>> times = tg.WatermarkStrategy.monotonous(timestamp=lambda row: row[1])
            >>> def timed(rows):
            ...     return env.from_collection(rows, type=tuple[str, int]).assign_timestamps_and_watermarks(times)
            >>> views, clicks = timed([("ann", 1_000), ("bob", 2_000)]), timed([("ann", 4_000)])
            >>> met = views.join(clicks).where(0).equal_to(0).window(tg.TumblingEventTimeWindows("5s")).how("left")
            >>> pairs = met.apply(lambda view, click: (view[0], click is not None), uid="met")
            >>> sorted(pairs.execute_and_collect())
            [('ann', True), ('bob', False)]
        """
        return JoinedStreams(cast("DataStream[Any]", self), other, "join", WindowJoin)

    def co_group(self, other: DataStream[Any]) -> JoinedStreams[CoGroupedWindows]:
        """All records of a key and a window, of either stream. As SQL, of the windows of all records of both streams:
        `SELECT key, window_start, window_end, list(price ORDER BY price) FILTER (side = 0),
        list(price ORDER BY price) FILTER (side = 1) FROM windowed GROUP BY ALL`.

            >>> times = tg.WatermarkStrategy.monotonous(timestamp=lambda row: row[1])
            >>> def timed(rows):
            ...     return env.from_collection(rows, type=tuple[str, int]).assign_timestamps_and_watermarks(times)
            >>> views, clicks = timed([("ann", 1_000), ("ann", 2_000)]), timed([("ann", 4_000)])
            >>> both = views.co_group(clicks).where(0).equal_to(0).window(tg.TumblingEventTimeWindows("5s"))
            >>> counts = both.apply(lambda first, second: [(len(first), len(second))], uid="counts")
            >>> list(counts.execute_and_collect())
            [(2, 1)]
        """
        return JoinedStreams(cast("DataStream[Any]", self), other, "co_group", CoGroupedWindows)
