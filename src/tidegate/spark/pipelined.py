"""A job's layers as one pipelined group of Spark stages. Driver. The heart of what we lean on in Spark's internals.

    spark.range(W0) -> mapInArrow(layer 0) -> repartitionById(W1, dst) -> explode -> mapInArrow(layer 1) -> ...

The JVM asks for the next row before it hands one to Python. So an empty row is put after each frame, in the receiver's JVM: a
frame is handed over at once, whatever comes next. The empty row travels in front of the next frame, in its Arrow batch: it
leaves room in a batch, and a frame does not (`maxBytesPerBatch` in settings.py).

A batch DataFrame is planned as usual; then every `ShuffleExchangeExec` of its physical plan is copied with
`pipelined = true`, and that plan is executed. A plan is single-use: build it anew for each attempt.
Each fact used here has a test in tests/spark/test_spark_internals.py, which says at once what a newer Spark changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tidegate.errors import SparkSettingsError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    LayerFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

ROW_SCHEMA = "dst int, frame binary"
FOLLOWED = "explode(array(frame, X'')) AS frame"  #: rows of a slot's input: a frame, nothing, a frame, nothing, ...


def build_plan(session: SparkSession, widths: Sequence[int], layers: Sequence[LayerFunction]) -> DataFrame:
    """The logical line of stages. `session` is ours, with the settings of `settings.SESSION`."""
    frame = session.range(0, widths[0], 1, widths[0]).mapInArrow(layers[0], ROW_SCHEMA)
    for width, layer in zip(widths[1:], layers[1:]):
        frame = frame.repartitionById(width, "dst").selectExpr(FOLLOWED).mapInArrow(layer, ROW_SCHEMA)
    return frame


def run_pipelined(session: SparkSession, frame: DataFrame) -> None:
    """Execute; returns when every slot has ended. Blocks the calling thread, which must have set its job group."""
    from pyspark.sql import DataFrame

    # The copy reads the *thread's* active session (SparkPlan.scala), and a coordinator thread has none by itself.
    session._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session._jsparkSession)
    plan = _pipelined_copy(session, frame._jdf.queryExecution().executedPlan())
    rows = session._jsparkSession.internalCreateDataFrame(plan.execute(), frame._jdf.schema(), False)
    DataFrame(rows, session).collect()


def _pipelined_copy(session: SparkSession, plan: Any) -> Any:
    children = plan.children()
    copies = [_pipelined_copy(session, children.apply(i)) for i in range(children.size())]
    if plan.getClass().getSimpleName() == "ShuffleExchangeExec":
        return plan.copy(plan.outputPartitioning(), copies[0], plan.shuffleOrigin(), plan.advisoryPartitionSize(), True)
    return plan.withNewChildren(session._jvm.PythonUtils.toSeq(copies)) if copies else plan


def check_has_jvm(session: Any) -> None:
    """:raises SparkSettingsError: for Spark Connect, which has no plan to copy."""
    if not hasattr(session, "_jsparkSession"):
        raise SparkSettingsError(
            "this is a Spark Connect session; Tidegate copies the physical plan inside the driver's JVM, which Connect does "
            "not expose. Use a classic session: a SparkSession with .master(...), or spark-submit."
        )
