"""A chain's subtask, as a slot hosts it: operators joined by function calls, their inputs and outputs. Executor.

A chain has ended when every logical channel into its head has ended. Then `end_input` of its operators runs, parents
first, at most once over all restores, and the end is passed on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import cloudpickle

from tidegate.batch import Batch
from tidegate.graph.plan import Chain, JobPlan, PlannedEdge, PlannedOperator
from tidegate.graph.specs import keys_of
from tidegate.ids import CheckpointId, SlotId
from tidegate.protocol.watermarks import MAX_WATERMARK, Channel, WatermarkValve
from tidegate.task.edges import EdgeWriter
from tidegate.task.hot_keys import KeySampler
from tidegate.task.operators.base import Emit, OperatorFailed, Readers, RunningOperator
from tidegate.task.operators.build import OperatorContext, build_operator
from tidegate.task.operators.sink import SinkOperator
from tidegate.task.operators.source import SourceOperator
from tidegate.task.outbox import Outbox
from tidegate.types import RecordType


@dataclass(slots=True)
class HostedChain:
    """One subtask of one chain."""

    subtask: int
    operators: list[RunningOperator]  #: parents before children
    writers: list[EdgeWriter]
    open_channels: set[Channel] = field(default_factory=set)  #: (edge, origin) that have not ended
    valve: WatermarkValve[Channel] = field(default_factory=WatermarkValve)
    ends: bool = False  #: its input has ended, in this attempt
    ended: bool = False  #: and the end was passed on
    _timed: list[RunningOperator] = field(init=False)  #: those that anything is due of

    def __post_init__(self) -> None:
        self._timed = [each for each in self.operators if type(each).next_time is not RunningOperator.next_time]

    @property
    def head(self) -> RunningOperator:
        return self.operators[0]

    @property
    def source(self) -> SourceOperator | None:
        return self.head if isinstance(self.head, SourceOperator) else None

    @property
    def sinks(self) -> list[SinkOperator]:
        return [operator for operator in self.operators if isinstance(operator, SinkOperator)]

    def flush(self) -> None:
        for writer in self.writers:
            writer.flush()

    def on_watermark(self, channel: Channel, watermark: int) -> None:
        for news in self.valve.on_watermark(channel, watermark):
            self.head.run_watermark(news)

    def end_channel(self, channel: Channel) -> None:
        """The last watermark comes first: all event-time timers fire before `end_input`."""
        self.open_channels.discard(channel)
        for news in self.valve.on_end(channel):
            self.head.run_watermark(news)

    def next_time(self) -> float | None:
        if not self._timed:
            return None
        return min((time for op in self._timed if (time := op.next_time()) is not None), default=None)

    def on_time(self) -> None:
        for operator in self.operators:
            try:
                operator.on_time()
            except OperatorFailed:
                raise
            except Exception as error:
                raise OperatorFailed(operator, error) from error

    def on_kept_back(self) -> None:
        for operator in self.operators:
            operator.on_kept_back()

    def input_has_ended(self) -> bool:
        source = self.source
        return source.exhausted if source is not None else not self.open_channels

    def end(self) -> bool:
        """Run the ends that have not run yet, then pass the end on. False where calls in flight have to come back before."""
        if self.source is not None and not self.ends:
            self.head.run_watermark(MAX_WATERMARK)
        self.ends = True
        for operator in self.operators:
            if operator.is_pending:
                return False
            if not operator.ended:
                try:
                    operator.end_input()
                except OperatorFailed:
                    raise
                except Exception as error:
                    raise OperatorFailed(operator, error) from error
                operator.ended = True
        for writer in self.writers:
            writer.end()
        self.ended = True
        return True


def host_chains(plan: JobPlan, slot: SlotId, outbox: Outbox, context: OperatorContext) -> list[HostedChain]:
    """Every chain of the layer that has a subtask in this slot."""
    return [_host(plan, chain, subtask, outbox, context) for chain, subtask in plan.hosted_in(slot)]


def receivers(
    chains: Sequence[HostedChain], edges: Sequence[PlannedEdge]
) -> dict[int, tuple[HostedChain, RunningOperator]]:
    """Whom the records of each edge are for, by the edge's index; only edges that end in these chains."""
    return {
        edge.index: (chain, operator)
        for chain in chains
        for operator in chain.operators
        for edge in edges
        if edge.edge.downstream == operator.uid
    }


def _host(plan: JobPlan, chain: Chain, subtask: int, outbox: Outbox, context: OperatorContext) -> HostedChain:
    input_types = _input_types(plan, chain)
    running = {
        planned.uid: build_operator(_own_copy(planned), subtask, input_types.get(planned.uid), context)
        for planned in chain.operators
    }
    writers: list[EdgeWriter] = []
    for planned in chain.operators:
        operator = running[planned.uid]
        if context.object_reuse:
            operator.copiers.clear()
        keys = keys_of(planned.operator.spec)
        if keys and context.hot_keys:
            operator.hot_keys = KeySampler(keys[0].key_type(), context.time.clock, seed=subtask)
        readers: dict[str, Readers] = {}
        watermarks: list[Callable[[int], None]] = []
        for link in planned.chained:
            target = running[link.downstream]
            readers.setdefault(link.tag, Readers()).operators.append(_into(target, link.input_index))
            watermarks.append(target.run_watermark)
        for index in planned.network:
            writer = EdgeWriter(plan, plan.edges[index], subtask, outbox, operator)
            writers.append(writer)
            readers.setdefault(plan.edges[index].edge.tag, Readers()).edges.append(writer.write)
            watermarks.append(writer.write_watermark)
        operator.connect(readers, watermarks, context.checked_rows)
    open_channels: set[Channel] = {
        (edge.index, origin)
        for edge in plan.edges
        if edge.edge.downstream == chain.head.uid
        for origin in edge.senders_to(subtask)
    }
    return HostedChain(subtask, list(running.values()), writers, open_channels, WatermarkValve.over(open_channels))


def call_all(
    operators: Iterable[RunningOperator], call: Callable[[RunningOperator], None], checkpoint: CheckpointId
) -> None:
    """:raises OperatorFailed: for the first that fails; the others are not called."""
    for operator in operators:
        try:
            call(operator)
        except Exception as error:
            raise OperatorFailed(operator, error, checkpoint) from error


def close_all(operators: list[RunningOperator]) -> None:
    """:raises OperatorFailed: for the first that failed; the others are closed all the same."""
    failed: OperatorFailed | None = None
    for operator in operators:
        try:
            operator.close()
        except Exception as error:
            failed = failed or OperatorFailed(operator, error)
        if operator.backend is not None:
            operator.backend.close()
    if failed is not None:
        raise failed from failed.cause


def _into(operator: RunningOperator, input_index: int) -> Emit:
    def emit(batch: Batch) -> None:
        operator.run(batch, input_index)

    return emit


def _own_copy(planned: PlannedOperator) -> PlannedOperator:
    """A function object given to two operators must not share its state handles."""
    copied: PlannedOperator = cloudpickle.loads(cloudpickle.dumps(planned))
    return copied


def _input_types(plan: JobPlan, chain: Chain) -> dict[str, RecordType]:
    """The record type of each operator's first input."""
    types: dict[str, RecordType] = {}
    for edge in plan.edges:
        if edge.edge.downstream == chain.head.uid:
            types.setdefault(chain.head.uid, edge.record_type)
    for planned in chain.operators:
        for link in planned.chained:
            types[link.downstream] = planned.operator.outputs[link.tag]
    return types
