"""From an operator's spec to the running operator. Executor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from tidegate.connectors.contract import ReaderContext, WriterContext
from tidegate.functions.asynchronous import in_flight_type
from tidegate.functions.failed_records import OnError
from tidegate.graph import specs
from tidegate.graph.key_selector import KeySelector
from tidegate.graph.logical import MAIN_OUTPUT
from tidegate.graph.plan import PlannedOperator
from tidegate.ports import CallLoop, ControlPort
from tidegate.state.backend import KeyedStateBackend
from tidegate.state.backends import StateBackends
from tidegate.state.key_groups import key_group_range
from tidegate.task.operators import broadcast, failing, process, stateless
from tidegate.task.operators.async_calls import AsyncOperator
from tidegate.task.operators.async_state import InFlightStore, KeyedInFlightStore
from tidegate.task.operators.base import RunningOperator
from tidegate.task.operators.building_windows import column_windows
from tidegate.task.operators.column_join import ColumnJoinOperator
from tidegate.task.operators.first_rows import CHECKED_ROWS
from tidegate.task.operators.keyed_join import KeyedJoinOperator
from tidegate.task.operators.local_slices import LocalSlicesOperator
from tidegate.task.operators.sink import SinkOperator
from tidegate.task.operators.source import SourceOperator
from tidegate.task.operators.timers import Time
from tidegate.task.operators.timestamps import TimestampOperator
from tidegate.task.operators.windows import WindowOperator
from tidegate.task.program import SlotProgram
from tidegate.types import UNTYPED, RecordType
from tidegate.wire.control import ToDriver


@dataclass(frozen=True, slots=True)
class OperatorContext:
    """What operators need of the slot that hosts them."""

    job: str
    attempt: str
    time: Time
    backends: StateBackends
    sleep: Callable[[float], None]
    hot_keys: bool
    object_reuse: bool  #: records are handed on as they are, not as copies
    checked_rows: float  #: of each output, against its type
    wanted: Callable[[], int]  #: how many records the slots after it can take
    send_to_driver: Callable[[str, int, str, bytes], None]  #: (uid, subtask, topic, payload)
    calls: CallLoop  #: where asynchronous functions run
    wake: Callable[[], None]  #: the task's thread, from any other


def operator_context(
    program: SlotProgram,
    time: Time,
    sleep: Callable[[float], None],
    wanted: Callable[[], int],
    control: ControlPort,
    calls: CallLoop,
    wake: Callable[[], None],
) -> OperatorContext:
    """As a slot's program says."""
    settings = program.settings
    return OperatorContext(
        job=program.plan.job,
        attempt=str(program.attempt),
        time=time,
        backends=StateBackends(settings.state, time.processing_time),
        sleep=sleep,
        hot_keys=settings.hot_keys,
        object_reuse=settings.object_reuse,
        checked_rows=CHECKED_ROWS[settings.type_checks],
        wanted=wanted,
        send_to_driver=lambda uid, subtask, topic, payload: control.send(ToDriver(uid, subtask, topic, payload)),
        calls=calls,
        wake=wake,
    )


def build_operator(
    planned: PlannedOperator, subtask: int, input_type: RecordType | None, context: OperatorContext
) -> RunningOperator:
    """As the operator's spec says, and what the user said of records on which its function raises."""
    spec = planned.operator.spec
    if planned.operator.on_error is OnError.FAIL:
        return _built(spec, planned, subtask, input_type, context)
    taken = input_type or UNTYPED
    if isinstance(spec, specs.MapSpec | specs.FlatMapSpec | specs.FilterSpec):
        return failing.OneByOneOperator(planned, subtask, spec, taken)
    operator = _built(spec, planned, subtask, input_type, context)
    if isinstance(operator, process.FunctionOperator):
        failing.guard(operator, taken)
    return operator


def _built(
    spec: specs.Spec,
    planned: PlannedOperator,
    subtask: int,
    input_type: RecordType | None,
    context: OperatorContext,
) -> RunningOperator:
    match spec:
        case specs.SourceSpec(source):
            return SourceOperator(
                planned,
                subtask,
                source,
                ReaderContext(subtask, planned.parallelism, context.time.clock, context.sleep, context.wanted),
            )
        case specs.MapSpec(function):
            return stateless.MapOperator(planned, subtask, function)
        case specs.FlatMapSpec(function):
            return stateless.FlatMapOperator(planned, subtask, function)
        case specs.FilterSpec(function):
            return stateless.FilterOperator(planned, subtask, function)
        case specs.MapBatchesSpec(function):
            return stateless.MapBatchesOperator(planned, subtask, function)
        case specs.ColumnFilterSpec(expression):
            return stateless.ColumnFilterOperator(planned, subtask, expression)
        case specs.ProjectSpec(names, expressions):
            return stateless.ProjectOperator(planned, subtask, names, expressions)
        case specs.ProcessSpec(function):
            return process.ProcessOperator(planned, subtask, context.job, function)
        case specs.KeyedProcessSpec(function, key, text, _):
            backend = _backend(planned, subtask, key, context)
            followed = text if planned.operator.on_error is OnError.FAIL else None  # else each call is guarded
            return process.KeyedProcessOperator(
                planned, subtask, context.job, function, backend, (key,), context.time, followed
            )
        case specs.KeyedBatchSpec(function, key):
            backend = _backend(planned, subtask, key, context)
            return process.KeyedBatchOperator(planned, subtask, context.job, function, backend, key)
        case specs.CoProcessSpec(function, keys):
            if keys is None:
                return process.CoProcessOperator(planned, subtask, context.job, function, None)
            backend = _backend(planned, subtask, keys[0], context)
            return process.KeyedProcessOperator(planned, subtask, context.job, function, backend, keys, context.time)
        case specs.BroadcastProcessSpec(function, key):
            if key is None:
                return broadcast.BroadcastOperator(planned, subtask, context.job, function, None)
            backend = _backend(planned, subtask, key, context)
            return broadcast.KeyedBroadcastOperator(
                planned, subtask, context.job, function, backend, (key,), context.time
            )
        case specs.AsyncSpec(calls, key):
            taken = input_type or UNTYPED
            if key is None:
                store = InFlightStore(calls.owner, in_flight_type(taken, planned.operator.outputs[MAIN_OUTPUT]))
            else:
                store = KeyedInFlightStore(calls, key, _backend(planned, subtask, key, context))
            return AsyncOperator(planned, subtask, calls, taken, store, context)
        case specs.KeyedJoinSpec(_, keys):
            return KeyedJoinOperator(planned, subtask, spec, _backend(planned, subtask, keys[0], context))
        case specs.ColumnJoinSpec():
            own = key_group_range(subtask, planned.parallelism, planned.max_parallelism)
            return ColumnJoinOperator(planned, subtask, spec, own)
        case specs.WindowSpec(windowed, keys):
            backend = _backend(planned, subtask, keys[0], context)
            records = input_type or UNTYPED
            return WindowOperator(planned, subtask, context.job, windowed, backend, keys, records, context.time)
        case specs.ColumnWindowSpec(windows, key):
            own = key_group_range(subtask, planned.parallelism, planned.max_parallelism)
            return column_windows(planned, subtask, windows, own, key, input_type or UNTYPED, context.time)
        case specs.LocalSlicesSpec(windows, key):
            return LocalSlicesOperator(planned, subtask, windows, key, context.time)
        case specs.AssignTimestampsSpec(strategy):
            return TimestampOperator(planned, subtask, strategy, context.time)
        case specs.SinkSpec(sink):
            writer = WriterContext(
                job=context.job,
                uid=planned.uid,
                subtask=subtask,
                parallelism=planned.parallelism,
                attempt=context.attempt,
                clock=context.time.clock,
                record_type=input_type or UNTYPED,
                send_to_driver=lambda topic, payload: context.send_to_driver(planned.uid, subtask, topic, payload),
            )
            return SinkOperator(planned, subtask, sink, writer)
        case _:
            assert_never(spec)


def _backend(planned: PlannedOperator, subtask: int, key: KeySelector, context: OperatorContext) -> KeyedStateBackend:
    key_groups = key_group_range(subtask, planned.parallelism, planned.max_parallelism)
    return context.backends.new(key.key_type(), key_groups, planned.max_parallelism)
