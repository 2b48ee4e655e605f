"""What every kind of stream does to put an operator after itself. Driver only; builds the logical graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidegate.api.building import Asked, EdgePlan, add_operator, named
from tidegate.api.expressions import filter_spec, is_expression, refused
from tidegate.functions.class_form import FilterFunction, FlatMapFunction, MapFunction
from tidegate.functions.failed_records import OnError, on_error_of
from tidegate.graph import specs
from tidegate.graph.logical import MAIN_OUTPUT
from tidegate.types import RecordType, record_type, return_annotation_of

if TYPE_CHECKING:
    from tidegate.api.streams import DataStream

#: The operations on one record at a time: their functions in class form, and what a plain function becomes.
_ONE_BY_ONE: dict[str, tuple[type, type[specs.MapSpec | specs.FlatMapSpec | specs.FilterSpec]]] = {
    "map": (MapFunction, specs.MapSpec),
    "flat_map": (FlatMapFunction, specs.FlatMapSpec),
    "filter": (FilterFunction, specs.FilterSpec),
}


class Transformable:
    """What an operator can be put after: a stream, a keyed stream, two streams that are connected."""

    @property
    def _upstream(self) -> DataStream[Any]:
        """The stream that it is of; the first of two."""
        raise NotImplementedError

    def _edges(self) -> list[EdgePlan]:
        """The ways of the records into the new operator."""
        raise NotImplementedError

    def _class_form(self, function: Any) -> specs.Spec:
        """Of a MapFunction and its kin."""
        return specs.ProcessSpec(function)

    def _one_by_one(self, operation: str, function: Any, returns: Any, asked: Asked) -> DataStream[Any]:
        """map, flat_map or filter."""
        in_class_form, plain = _ONE_BY_ONE[operation]
        spec: specs.Spec
        if operation == "filter" and is_expression(function):
            records = self._upstream._type
            if on_error_of(asked.on_error) is not OnError.FAIL:
                raise refused("filter", "an expression works on whole columns, so on_error= is for functions alone")
            return self._apply(filter_spec(function, records), "filter", records, asked)
        if isinstance(function, in_class_form):
            spec, hook = self._class_form(function), getattr(function, operation)
        else:
            spec, hook = plain(function), function
        is_filter = operation == "filter"
        out = self._upstream._type if is_filter else returned_type(returns, hook, operation == "flat_map")
        return self._apply(spec, named(operation, function), out, asked)

    def _apply(self, spec: specs.Spec, name: str, out: RecordType, asked: Asked) -> DataStream[Any]:
        """The stream that comes out of the new operator. `name` is what it is called if the user has given no name."""
        stream = self._upstream
        return stream._output_of(add_operator(stream._env, spec, name, {MAIN_OUTPUT: out}, asked, self._edges()), out)


def returned_type(returns: Any, function: Any, element_of_iterable: bool) -> RecordType:
    """Of what a function returns: as the user declares it, else as its annotation says."""
    if returns is None:
        returns = return_annotation_of(function, element_of_iterable)
    return record_type(returns)
