"""What comes out of windows: a stream of results, and beside it the records that came too late. Driver only."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic

from typing_extensions import TypeVar

from tidegate.api.building import StreamInput
from tidegate.api.streams import DataStream
from tidegate.functions.process import OutputTag
from tidegate.types import RecordType

if TYPE_CHECKING:
    from tidegate.api.environment import StreamEnvironment
    from tidegate.ids import OperatorUid

T = TypeVar("T", default=Any)  #: of the results


class WindowResults(DataStream[T], Generic[T]):
    """The results of windows."""

    _late_tag: OutputTag
    _late_type: RecordType

    @classmethod
    def of(
        cls, env: StreamEnvironment, uid: OperatorUid, out: RecordType, late: OutputTag, late_type: RecordType
    ) -> WindowResults[Any]:
        """`late`: the side output for late records, which are of the input's type."""
        results: WindowResults[Any] = cls(env, [StreamInput(uid)], out)
        results._late_tag, results._late_type = late, late_type
        return results

    @property
    def late_tag(self) -> OutputTag:
        """The side output of `late()`."""
        return self._late_tag

    def late(self) -> DataStream[Any]:
        """The records that came when all their windows had closed. Where nobody reads them they are dropped, and counted.

        >>> times = tg.WatermarkStrategy.monotonous(timestamp=lambda reading: reading[1])
        >>> readings = env.from_collection([("a", 500), ("a", 2500), ("a", 700)]).assign_timestamps_and_watermarks(times)
        >>> counts = readings.key_by(lambda reading: reading[0], key_type=str).window(
        ...     tg.TumblingEventTimeWindows("1s")
        ... ).reduce(lambda first, later: first)
        >>> late = counts.late()
        """
        uid = self._env._graph.current(self._inputs[0].operator)
        declared = self._env._graph.operators[uid].outputs
        declared[self._late_tag.name] = self._late_type
        return DataStream(self._env, [replace(self._inputs[0], tag=self._late_tag.name)], self._late_type)
