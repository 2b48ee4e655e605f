"""A slot in a worker of Spark's, with the worker's streams in our hands. Executor; the worker's main thread.

PySpark would read rows in a thread of its own, hand each through a queue to the thread that asks for it, unpack a struct, wrap
another, and write the parts of a batch one by one.

A worker loads the function before it asks how to serve it, and it serves this one only (`spark.python.worker.reuse`). So
loading the function changes this process, and no other:

    SPARK_PIPELINED_UDF                  taken away: PySpark starts no thread. The JVM goes by its own setting: it reads and
                                         writes at the same time
    ArrowStreamSerializer.load_stream    is given the input, and reads nothing
    ArrowStreamSerializer.dump_stream    is given the output, and runs the function, which writes to it
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

from tidegate.ids import SlotId
from tidegate.spark.arrow_rows import RowWriter, drain, frames
from tidegate.task.main import run_slot

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.spark.pipelined import LayerFunction
    from tidegate.task.outbox import Row

    Work = Callable[[int, Iterator[memoryview]], Iterator[list[Row]]]  #: of a partition, with what comes for it


def layer_function(shipped: bytes, layer: int) -> LayerFunction:
    """The function of one layer's `mapInArrow`. Driver."""
    return streaming_function(lambda index, come: run_slot(shipped, SlotId(layer, index), come), has_input=layer > 0)


def streaming_function(work: Work, has_input: bool) -> LayerFunction:
    """`work` sends what it yields, before it goes on. Driver."""
    streams = WorkerStreams()

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return streams.serve(work, has_input)

    return run


class WorkerStreams:
    """Of a worker, once this has been unpickled there."""

    def __init__(self) -> None:
        self._input: BinaryIO | None = None
        self._output: BinaryIO | None = None

    def __reduce__(self) -> tuple[Callable[[], WorkerStreams], tuple[()]]:
        return _taken_over, ()

    def serve(self, work: Work, has_input: bool) -> Iterator[pa.RecordBatch]:
        """Yields nothing: rows are written as they come."""
        from pyspark import TaskContext
        from pyspark.serializers import SpecialLengths

        context = TaskContext.get()
        assert context is not None
        assert self._input is not None
        assert self._output is not None
        if not has_input:
            drain(self._input)
        writer = RowWriter(self._output, SpecialLengths.START_ARROW_STREAM.to_bytes(4, "big", signed=True))
        for rows in work(context.partitionId(), frames(self._input) if has_input else iter(())):
            writer.write(rows)
        writer.end()
        yield from ()

    def take_over(self) -> None:
        from pyspark.sql.pandas.serializers import ArrowStreamSerializer

        def load_stream(serializer: Any, stream: BinaryIO) -> Iterator[Any]:
            self._input = stream
            return iter(())

        def dump_stream(serializer: Any, iterator: Iterable[Any], stream: BinaryIO) -> None:
            self._output = stream
            for _ in iterator:
                pass

        ArrowStreamSerializer.load_stream = load_stream
        ArrowStreamSerializer.dump_stream = dump_stream
        os.environ.pop("SPARK_PIPELINED_UDF", None)


def _taken_over() -> WorkerStreams:
    streams = WorkerStreams()
    streams.take_over()
    return streams
