"""Windows of all records of a stream. Driver only; builds the logical graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from tidegate.graph.key_selector import KeySelector

if TYPE_CHECKING:
    from tidegate.api.streams import DataStream
    from tidegate.api.windowed import WindowedStream
    from tidegate.functions.windows import WindowAssigner


class AllWindows:
    """Of a stream without keys."""

    def window_all(self, assigner: WindowAssigner) -> WindowedStream[int, Any]:
        """All records in windows, without keys (functions are given the key 0), in one subtask. Where it is given aggregates of
        columns, those before it send it a row for each slice.

        >>> numbers = env.from_sequence(1, 5).window_all(tg.CountWindows(2))
        >>> list(numbers.reduce(lambda a, b: a + b).execute_and_collect())
        [3, 7]
        """
        from tidegate.api.keyed import KeyedStream
        from tidegate.api.window_options import WindowOptions
        from tidegate.api.windowed import WindowedStream

        key = KeySelector(key_annotation=int, function=_of_all)
        return WindowedStream(KeyedStream(cast("DataStream[Any]", self), key), WindowOptions(assigner, is_of_all=True))


def _of_all(record: Any) -> int:
    """The one key that there is."""
    return 0
