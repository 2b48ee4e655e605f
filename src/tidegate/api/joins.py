"""Joins of two streams: what the user says, checked, as an operator. Driver only; builds the logical graph, runs nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidegate.api.building import Asked, EdgePlan, declared_type
from tidegate.api.keys import joined_selectors, key_column_types, make_key_selector
from tidegate.api.transformable import Transformable, returned_type
from tidegate.durations import Duration, duration_ms
from tidegate.errors import ConfigurationError, GraphError, TypeDeclarationError
from tidegate.functions.column_joins import declare_column_join
from tidegate.functions.joins import LATE, KeyedJoin, interval_join, temporal_join
from tidegate.functions.process import OutputTag
from tidegate.functions.watermarks import milliseconds
from tidegate.graph import specs
from tidegate.types import RecordType, record_type

if TYPE_CHECKING:
    from tidegate.api.keyed import KeyedStream
    from tidegate.api.streams import DataStream

HOW = ("inner", "left", "right", "full")
TEMPORAL_HOW = ("inner", "left")


class TwoKeyed(Transformable):
    """Two streams with keys of one type, on their way into one operator."""

    def __init__(self, left: KeyedStream[Any, Any], right: KeyedStream[Any, Any], what: str) -> None:
        if not hasattr(right, "_key"):
            raise GraphError(f"{what} needs a keyed stream on both sides: call key_by on the other, too")
        self._left, self._right = left._stream, right._stream
        self._keys = joined_selectors(left._key, right._key)
        self._what = what
        self._how = "inner"

    @property
    def _upstream(self) -> DataStream[Any]:
        return self._left

    def _edges(self) -> list[EdgePlan]:
        return [
            each.keyed_edge(key, index)
            for index, (stream, key) in enumerate(zip((self._left, self._right), self._keys, strict=True))
            for each in stream._inputs
        ]

    @property
    def late_left(self) -> OutputTag:
        """For `side_output`: records of the left stream that came too late to be joined."""
        return OutputTag(LATE[0], self._left._type.annotation if self._left._type.typed else None)

    @property
    def late_right(self) -> OutputTag:
        """The same of the right stream."""
        return OutputTag(LATE[1], self._right._type.annotation if self._right._type.typed else None)

    def _checked_how(self, how: str, known: tuple[str, ...]) -> str:
        if how not in known:
            raise ConfigurationError(f"{self._what}: how={how!r} is not one of {', '.join(known)}")
        return how

    def _pair_schema(self, first: tuple[str, ...] = ()) -> pa.Schema:
        """Of pairs as columns: whole numbers of these names, then the left's columns, then the right's.

        :raises ConfigurationError: where two would have one name.
        """
        left, right = self._left._type.schema, self._right._type.schema
        if left is None or right is None:
            raise TypeDeclarationError(
                f"{self._what}.columns() needs typed streams on both sides: declare them with returns="
            )
        fields = [pa.field(name, pa.int64()) for name in first]
        fields += [each.with_nullable(True) if self._how in ("right", "full") else each for each in left]
        for each in right:
            field = each.with_name(f"right_{each.name}" if each.name in left.names else each.name)
            fields.append(field.with_nullable(True) if self._how in ("left", "full") else field)
        names = [field.name for field in fields]
        for name in names:
            if names.count(name) > 1:
                raise ConfigurationError(
                    f"{self._what}.columns(): two columns of the results would be called {name!r}. Give that column of one "
                    "side another name before: select(...)"
                )
        return pa.schema(fields)


class _KeyedJoin(TwoKeyed):
    """Two keyed streams on their way into a join by event time."""

    def _join(self) -> KeyedJoin:
        raise NotImplementedError

    def process(
        self, function: Callable[[Any, Any], Any], output_type: Any = None, *, returns: Any = None, uid: str | None = None,
        name: str | None = None, parallelism: int | None = None, max_parallelism: int | None = None,
    ) -> DataStream[Any]:  # fmt: skip
        """`function(left, right)` gives the record of each pair; None stands for a partner that there is not."""
        out = returned_type(declared_type(returns, output_type), function, False)
        return self._joined(function, out, Asked(uid, name, parallelism, max_parallelism))

    def columns(
        self, *, uid: str | None = None, name: str | None = None, parallelism: int | None = None,
        max_parallelism: int | None = None,
    ) -> DataStream[Any]:  # fmt: skip
        """Pairs as columns: those of the left, then those of the right, which are called `right_<name>` where the left has the
        name, too. Records are dicts. Both streams must be typed."""
        return self._joined(None, record_type(self._pair_schema()), Asked(uid, name, parallelism, max_parallelism))

    def _joined(self, pair: Callable[[Any, Any], Any] | None, out: RecordType, asked: Asked) -> DataStream[Any]:
        types = (self._left._type, self._right._type)
        return self._apply(specs.KeyedJoinSpec(self._join(), self._keys, pair, types), self._what, out, asked)


class IntervalJoin(_KeyedJoin):
    """Made by `keyed.interval_join(other)`."""

    def __init__(self, left: KeyedStream[Any, Any], right: KeyedStream[Any, Any]) -> None:
        super().__init__(left, right, "interval_join")
        self._bounds: tuple[int, int] | None = None

    def between(self, lower: Duration, upper: Duration) -> IntervalJoin:
        """The right record's time less the left one's, both ends included: `between("-5s", "5s")`."""
        self._bounds = (signed_ms(lower, "between(lower)"), signed_ms(upper, "between(upper)"))
        if self._bounds[0] > self._bounds[1]:
            raise ConfigurationError(
                f"interval_join.between({lower!r}, {upper!r}): the lower bound is above the upper one"
            )
        return self

    def how(self, how: str) -> IntervalJoin:
        """ "inner", "left", "right" or "full": whose records leave without a partner, when none can come any more."""
        self._how = self._checked_how(how, HOW)
        return self

    def _join(self) -> KeyedJoin:
        return interval_join(self._left._type, self._right._type, *self._both_bounds(), self._how)

    def _both_bounds(self) -> tuple[int, int]:
        if self._bounds is None:
            raise ConfigurationError('interval_join: say how far apart both may be: .between("-5s", "5s")')
        return self._bounds

    def _joined(self, pair: Callable[[Any, Any], Any] | None, out: RecordType, asked: Asked) -> DataStream[Any]:
        """As columns over whole batches, where keys are of one type."""
        key_types = key_column_types(self._keys[0])
        if pair is not None or key_types is None:
            return super()._joined(pair, out, asked)
        left, right = self._left._type.schema, self._right._type.schema
        assert left is not None
        assert right is not None
        join = declare_column_join(*self._both_bounds(), self._how, key_types, left, right)
        return self._apply(specs.ColumnJoinSpec(join, self._keys), self._what, out, asked)


class TemporalJoin(_KeyedJoin):
    """Made by `keyed.temporal_join(versions)`."""

    def __init__(
        self,
        left: KeyedStream[Any, Any],
        right: KeyedStream[Any, Any],
        version: str | Callable[[Any], Any] | None,
        how: str,
    ) -> None:
        super().__init__(left, right, "temporal_join")
        self._how = self._checked_how(how, TEMPORAL_HOW)
        self._version = version

    def _join(self) -> KeyedJoin:
        version: Callable[[Any], int] | None = None
        if self._version is not None:
            get = self._version
            if not callable(get):
                get = make_key_selector(self._right._type, (get,), None, "temporal_join").row_key()
            version = _moment(get)
        return temporal_join(self._left._type, self._right._type, self._how, version)


def _moment(get: Callable[[Any], Any]) -> Callable[[Any], int]:
    return lambda row: milliseconds(get(row))


def signed_ms(duration: Duration, what: str) -> int:
    """:raises ConfigurationError: naming `what`, for anything that is not a duration, with or without a sign."""
    if isinstance(duration, timedelta):
        return round(duration / timedelta(milliseconds=1))
    if isinstance(duration, str) and (signed := re.fullmatch(r"\s*-(.*)", duration)):
        return -duration_ms(signed[1], what)
    return duration_ms(duration, what)
