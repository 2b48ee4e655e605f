"""What we lean on inside Spark, one test for each. After an upgrade of Spark, run this file first: a failure says what
changed, where we use it and what to do. Written up in docs/decisions/0009-spark-internals.md.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from job_kit import PATIENCE
from pyspark.sql import SparkSession

from tidegate.durations import seconds
from tidegate.spark.daemon import BUFFER_BYTES
from tidegate.spark.gang import Gang, GangEnd, GangResult
from tidegate.spark.pipelined import ROW_SCHEMA, _pipelined_copy, build_plan, run_pipelined
from tidegate.spark.session import own_session, total_slots
from tidegate.spark.settings import SESSION, STATIC
from tidegate.spark.slot_worker import streaming_function
from tidegate.wire.frame import OVERHEAD_BYTES

pytestmark = pytest.mark.spark

ROWS = pa.schema([("dst", pa.int32()), ("frame", pa.binary())])
PATIENCE_S = seconds(PATIENCE, "patience")
LEAST_FRAME = bytes(OVERHEAD_BYTES)  #: none is smaller
LOOK_AHEAD_S = 1.0  #: a frame that is not held back arrives within a few milliseconds


@pytest.fixture(scope="module")
def ours(spark_session: SparkSession) -> SparkSession:
    return own_session(spark_session)


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(str(tmp_path))


class Notes:
    """How a layer's function, in its worker, tells the test something: lines of JSON in files."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def write(self, name: str, value: Any) -> None:
        with open(os.path.join(self.folder, name), "a") as file:
            file.write(json.dumps(value) + "\n")

    def read(self, name: str) -> list[Any]:
        path = Path(self.folder, name)
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def appears(self, name: str, within_s: float) -> bool:
        deadline = time.monotonic() + within_s
        while not self.read(name):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.002)
        return True


def rows(*pairs: tuple[int, bytes]) -> pa.RecordBatch:
    receivers, frames = zip(*pairs, strict=True)
    return pa.RecordBatch.from_arrays([pa.array(receivers, pa.int32()), pa.array(frames, pa.binary())], schema=ROWS)


def frames_of(batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
    """An empty row stands between two frames (spark/pipelined.py)."""
    return (frame for batch in batches for frame in batch.column(0).to_pylist() if frame)


def slot_index() -> int:
    from pyspark import TaskContext

    return TaskContext.get().partitionId()


def nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass
    return iter(())


def run_gang(
    session: SparkSession, widths: list[int], layers: list[Any], *, cancelled_first: bool = False
) -> GangResult:
    results: list[GangResult] = []
    gang = Gang(session, f"internals-{time.monotonic_ns()}", widths, layers, results.append)
    if cancelled_first:
        gang.cancel()
    gang.start()
    assert gang.join(PATIENCE_S), "the gang did not end"
    return results[0]


# -- names and signatures -------------------------------------------------------------------------------------------


def test_the_spark_is_one_we_know() -> None:
    assert pyspark.__version__.startswith("4.3."), (
        f"Spark is {pyspark.__version__}. Run this file, repair what it names in src/tidegate/spark/, then widen the pin in "
        "pyproject.toml and this test."
    )


def methods_of(spark: SparkSession, name: str) -> dict[str, list[list[str]]]:
    """Method name to the parameter types of each of its overloads."""
    found: dict[str, list[list[str]]] = defaultdict(list)
    for method in spark._jvm.org.apache.spark.util.Utils.classForName(name, True, False).getMethods():
        found[method.getName()].append([parameter.getSimpleName() for parameter in method.getParameterTypes()])
    return found


METHODS = [
    (
        "org.apache.spark.sql.execution.exchange.ShuffleExchangeExec",
        "copy",
        ["Partitioning", "SparkPlan", "ShuffleOrigin", "Option", "boolean"],
        "spark/pipelined.py copies each exchange with pipelined=true as the fifth and last argument",
    ),
    (
        "org.apache.spark.sql.execution.exchange.ShuffleExchangeExec",
        "pipelined",
        [],
        "the flag that makes a shuffle pipelined; without it there is no pipelined shuffle to ask for",
    ),
    (
        "org.apache.spark.sql.execution.QueryExecution",
        "executedPlan",
        [],
        "spark/pipelined.py copies the physical plan",
    ),
    (
        "org.apache.spark.sql.classic.SparkSession",
        "internalCreateDataFrame",
        ["RDD", "StructType", "boolean"],
        "spark/pipelined.py makes a DataFrame of the copied plan's RDD, so that it runs inside a SQL execution",
    ),
    (
        "org.apache.spark.sql.classic.SparkSession",
        "setActiveSession",
        ["SparkSession"],
        "copying a plan reads the thread's active session, and the coordinator's thread has none by itself",
    ),
    (
        "org.apache.spark.SparkContext",
        "maxNumConcurrentTasks",
        ["ResourceProfile"],
        "spark/session.py counts the slots of the cluster",
    ),
    (
        "org.apache.spark.SparkContext",
        "cancelJobGroupAndFutureJobs",
        ["String"],
        "spark/gang.py cancels an attempt, also one whose job has not been submitted yet",
    ),
    (
        "org.apache.spark.SparkContext",
        "killAndReplaceExecutor",
        ["String"],
        "spark/cluster.py has a frozen executor replaced; killExecutor would do without it from then on",
    ),
    (
        "org.apache.spark.scheduler.cluster.CoarseGrainedSchedulerBackend",
        "executorsPendingDecommission",
        [],
        "spark/cluster.py asks which executors were told to go, so that the job moves before they do",
    ),
    (
        "org.apache.spark.SparkContext",
        "requestTotalExecutors",
        ["int", "int", "Map"],
        "spark/cluster.py has YARN start others in the place of executors that were told to go, before they have gone",
    ),
    (
        "org.apache.spark.status.AppStatusStore",
        "taskList",
        ["int", "int", "int"],
        "spark/gang.py asks which executors still hold slots of an ended attempt",
    ),
]


@pytest.mark.parametrize(
    ("owner", "method", "parameters", "use"), METHODS, ids=lambda value: str(value).split(".")[-1][:40]
)
def test_a_method_of_spark_is_as_we_call_it(
    spark_session: SparkSession, owner: str, method: str, parameters: list[str], use: str
) -> None:
    overloads = methods_of(spark_session, owner).get(method, [])
    assert parameters in overloads, f"{owner}.{method}{parameters} is gone; there is {overloads}. Used because {use}."


def test_settings_of_spark_have_the_names_we_set(spark_session: SparkSession) -> None:
    known = spark_session._jvm.org.apache.spark.internal.config.ConfigEntry
    gone = [setting.key for setting in STATIC if known.findEntry(setting.key) is None]
    gone += [setting.key for setting in SESSION if not spark_session.conf.isModifiable(setting.key)]
    # Spark sets nothing for names that it does not know, and says nothing either.
    assert gone == [], f"Spark no longer knows these settings (spark/settings.py): {gone}. Find their new names."


def test_pyspark_starts_its_jvm_and_its_workers_as_we_call_it() -> None:
    from pyspark import SparkContext, daemon, java_gateway

    assert "popen_kwargs" in inspect.signature(java_gateway.launch_gateway).parameters, (
        "launch_gateway(popen_kwargs=) is gone: spark/jvm_output.py takes the JVM's standard error with it"
    )
    assert {"gateway", "conf"} <= set(inspect.signature(SparkContext._ensure_initialized).parameters), (
        "SparkContext._ensure_initialized(gateway=, conf=) is gone: spark/jvm_output.py hands its JVM over with it"
    )
    assert list(inspect.signature(daemon.manager).parameters) == [], (
        "pyspark.daemon.manager() takes arguments now, or is gone: spark/daemon.py ends by calling it"
    )
    assert "interruptOnCancel" in inspect.signature(SparkContext.setJobGroup).parameters, (
        "setJobGroup(interruptOnCancel=) is gone: without it a cancelled task ends only when its Python does"
    )


# -- the plan -------------------------------------------------------------------------------------------------------


def exchanges_of(plan: Any) -> list[Any]:
    children = plan.children()
    own = [plan] if plan.getClass().getSimpleName() == "ShuffleExchangeExec" else []
    return own + [found for i in range(children.size()) for found in exchanges_of(children.apply(i))]


def test_a_line_of_layers_is_planned_with_one_exchange_between_two(ours: SparkSession) -> None:
    frame = build_plan(ours, [2, 3, 2], [nothing, nothing, nothing])
    plan = frame._jdf.queryExecution().executedPlan()
    assert [e.outputPartitioning().numPartitions() for e in exchanges_of(plan)] == [2, 3], (
        f"the plan has other exchanges than one between two layers:\n{plan.treeString()}\nIs AQE on, or has Spark a rule "
        "that merges or adds exchanges?"
    )
    assert [e.pipelined() for e in exchanges_of(plan)] == [False, False]
    ours._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(ours._jsparkSession)
    assert [e.pipelined() for e in exchanges_of(_pipelined_copy(ours, plan))] == [True, True], (
        "ShuffleExchangeExec.copy(..., pipelined) does not set the flag any more (spark/pipelined.py)"
    )


def test_repartition_by_id_sends_a_row_to_the_partition_of_its_number(ours: SparkSession) -> None:
    frame = ours.range(0, 30, 1, 3).selectExpr("cast(id % 5 as int) as dst").repartitionById(5, "dst")
    pairs = frame.selectExpr("dst", "spark_partition_id() as partition").distinct().collect()
    assert sorted((row.dst, row.partition) for row in pairs) == [(n, n) for n in range(5)], (
        "repartitionById no longer uses the column as the partition's number: frames would reach the wrong slot"
    )


# -- what a running group does --------------------------------------------------------------------------------------


def test_frames_of_one_sender_arrive_in_order_and_where_they_were_sent(ours: SparkSession, notes: Notes) -> None:
    """First in, first out for each writer-reader pair, one row a batch, many rows in flight. The protocol stands on it."""
    count = 400

    def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        me = slot_index()
        for first in range(0, count, 40):
            numbers = range(first, first + 40)
            yield rows(*((n % 3, json.dumps([me, n]).encode()) for n in numbers))

    def receive(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        got = [json.loads(frame) for frame in frames_of(batches)]
        notes.write(f"got-{slot_index()}", got)
        return iter(())

    run_pipelined(ours, build_plan(ours, [2, 3], [send, receive]))

    for receiver in range(3):
        (got,) = notes.read(f"got-{receiver}")
        for sender in range(2):
            assert [n for who, n in got if who == sender] == list(range(receiver, count, 3)), (
                f"frames from sender {sender} to receiver {receiver} came out of order, twice, not at all or elsewhere: the "
                "pipelined shuffle is no longer FIFO for a pair, and no checkpoint can be trusted"
            )


def sends(notes: Notes, *waits: tuple[str, float]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A frame for each of `waits`; after it, so long, for a note that says that a frame has arrived."""

    def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        for name, patience_s in waits:
            yield rows((0, LEAST_FRAME))
            notes.write("seen", notes.appears(name, patience_s))

    return send


def receives(
    notes: Notes, frames: Callable[[Iterator[pa.RecordBatch]], Iterator[bytes]]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def receive(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, _ in enumerate(frames(batches)):
            notes.write(f"frame-{number}", True)
        return iter(())

    return receive


def test_a_frame_arrives_though_nothing_follows_it(ours: SparkSession, notes: Notes) -> None:
    """Sender and receiver run at the same time, and the receiver's JVM finds an empty row after each frame."""
    send = sends(notes, ("frame-0", PATIENCE_S), ("frame-1", PATIENCE_S))
    run_pipelined(ours, build_plan(ours, [1, 1], [send, receives(notes, frames_of)]))

    assert notes.read("seen") == [True, True], (
        "a frame was held back until another came, or the shuffle is not pipelined: the empty row that follows each frame "
        "(spark/pipelined.py), or the size at which an Arrow batch is full (maxBytesPerBatch in spark/settings.py), does not "
        "do its work any more. Look at writeSizedBatch in PythonArrowInput.scala."
    )


def test_a_frame_with_no_row_after_it_is_held_back(ours: SparkSession, notes: Notes) -> None:
    """Why `build_plan` puts an empty row after each."""

    def frames(batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
        return (frame for batch in batches for frame in batch.column(1).to_pylist())

    send = sends(notes, ("frame-0", LOOK_AHEAD_S), ("frame-0", PATIENCE_S))
    plan = ours.range(0, 1, 1, 1).mapInArrow(send, ROW_SCHEMA).repartitionById(1, "dst")
    run_pipelined(ours, plan.mapInArrow(receives(notes, frames), ROW_SCHEMA))

    assert notes.read("seen") == [False, True], (
        "a frame arrived though nothing followed it: Spark has lost its look-ahead (writeSizedBatch in "
        "PythonArrowInput.scala). Good news: spark/pipelined.py needs no empty rows any more."
    )


def test_a_workers_streams_are_handed_over(ours: SparkSession, notes: Notes) -> None:
    """Rows go through no thread, queue or batch of PySpark's."""
    large = os.urandom(300_000)

    def send(index: int, come: Iterator[memoryview]) -> Iterator[list[tuple[int, bytes]]]:
        yield [(1, b"to the second"), (0, b"to the first")]
        yield [(0, large)]

    def receive(index: int, come: Iterator[memoryview]) -> Iterator[list[tuple[int, bytes]]]:
        threads = [thread.name for thread in threading.enumerate()]
        got = [hashlib.sha256(frame).hexdigest() for frame in come]
        notes.write(f"got-{index}", {"threads": threads, "got": got})
        yield [(0, b"to nobody")]

    layers = [streaming_function(send, has_input=False), streaming_function(receive, has_input=True)]
    run_pipelined(ours, build_plan(ours, [1, 2], layers))

    for index, sent in enumerate([(b"to the first", large), (b"to the second",)]):
        (found,) = notes.read(f"got-{index}")
        assert found["got"] == [hashlib.sha256(frame).hexdigest() for frame in sent]
        assert found["threads"] == ["MainThread"], (
            "PySpark has begun to read the worker's input before it loads the function, or asks something else than "
            "SPARK_PIPELINED_UDF whether to: look at pipelined_process in pyspark/worker.py, and at spark/slot_worker.py"
        )


def test_little_stands_between_a_sender_and_a_receiver_that_does_not_read(ours: SparkSession, notes: Notes) -> None:
    """What is on its way stands before every barrier. Two frames in the writer, 512 KB in the reader, two sockets."""
    frame_bytes, count, enough = 64 * 1024, 400, 4 << 20

    def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        for number in range(count):
            yield rows((0, bytes(frame_bytes)))
            notes.write("taken", number)

    def receive(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        taken = -1
        while taken != len(notes.read("taken")) or not taken:  # until the sender has been stuck for a second
            taken = len(notes.read("taken"))
            time.sleep(1.0)
        notes.write("stuck", taken)
        notes.write("got", sum(1 for _ in frames_of(batches)))
        return iter(())

    run_pipelined(ours, build_plan(ours, [1, 1], [send, receive]))

    assert notes.read("got") == [count]
    (stuck,) = notes.read("stuck")
    assert 0 < stuck * frame_bytes <= enough, (
        f"{stuck} frames of 64 KB were on their way to a receiver that read none: the settings of the streaming shuffle "
        "(spark/settings.py) are not applied, or mean something else now. Barriers will be slow under back-pressure."
    )


def test_our_settings_reach_the_worker_and_stay_out_of_the_users(
    spark_session: SparkSession, ours: SparkSession, notes: Notes
) -> None:
    def told(name: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            sizes = [batch.num_rows for batch in batches]
            asked = ("SPARK_BUFFER_SIZE", "SPARK_PIPELINED_UDF", "PYTHON_UNIX_DOMAIN_ENABLED", "OPENBLAS_NUM_THREADS")
            notes.write(name, {"sizes": sizes, **{key: os.environ.get(key, "") for key in asked}})
            return iter(())

        return run

    def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        yield rows(*((0, LEAST_FRAME) for _ in range(20)))

    run_pipelined(ours, build_plan(ours, [1, 1], [send, told("ours")]))
    spark_session.range(0, 20, 1, 1).mapInArrow(told("theirs"), "id long").collect()

    (slot,), (udf,) = notes.read("ours"), notes.read("theirs")
    assert slot["sizes"] == [1, *[2] * 19, 1], (
        "a batch is not an empty row and a frame: maxBytesPerBatch or maxRecordsPerBatch has not reached the slot"
    )
    assert slot["SPARK_BUFFER_SIZE"] == str(BUFFER_BYTES), (
        "the worker's streams have the small buffers that are for the JVM's: it would read and write in small pieces"
    )
    assert slot["SPARK_PIPELINED_UDF"] == "1", (
        "workers do not read and write at the same time: a slot would block itself"
    )
    assert slot["PYTHON_UNIX_DOMAIN_ENABLED"].lower() == "true", "the worker talks TCP to its JVM: 10 ms a hop"
    assert slot["OPENBLAS_NUM_THREADS"] == "1", "the worker was not forked by tidegate.spark.daemon"
    assert udf["sizes"] == [20], "our settings have reached the user's own session"
    assert udf["SPARK_BUFFER_SIZE"] == "65536", "our settings have reached the user's own session"


# -- how a group ends -------------------------------------------------------------------------------------------------


def test_slots_are_counted_and_too_few_are_told_apart_from_a_failure(
    spark_session: SparkSession, ours: SparkSession
) -> None:
    assert total_slots(spark_session) == int(spark_session.sparkContext.master.removeprefix("local[").rstrip("]"))
    half = total_slots(spark_session) // 2 + 1
    result = run_gang(ours, [half, half], [nothing, nothing])
    assert result.end is GangEnd.NO_SLOTS, (
        f"Spark says it in other words when slots are missing (spark/gang.py looks for INSUFFICIENT_SLOT): {result.message}"
    )
    assert "CONCURRENT_SCHEDULER_INSUFFICIENT_SLOT" in result.message


def test_one_failed_task_ends_the_whole_group(ours: SparkSession) -> None:
    """Which task Spark names is chance: the one that failed, or a neighbour that lost it. So slots report themselves."""

    def fails(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        if slot_index() == 1:
            raise ValueError("just this one")
        threading.Event().wait()  # for ever: only the end of the group ends it
        yield rows((0, b""))

    result = run_gang(ours, [3, 2], [fails, nothing])
    assert result.end is GangEnd.FAILED
    assert "just this one" in result.message or "the writer task likely failed" in result.message


def test_a_module_that_an_executor_lacks_is_named_whichever_task_is_heard_first(ours: SparkSession) -> None:
    def lacks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import nobody_has_this  # type: ignore[import-not-found]  # noqa: F401

        yield from batches

    for _ in range(5):
        result = run_gang(ours, [3, 2], [lacks, nothing])
        assert result.end is GangEnd.NO_PYTHON, (
            f"what Spark says of a reader that lost its writer has changed, or its status store (spark/gang.py): "
            f"{result.message}"
        )
        assert "'nobody_has_this'" in result.message


def test_a_group_that_is_cancelled_before_it_starts_does_not_run(ours: SparkSession, notes: Notes) -> None:
    def runs(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        notes.write("ran", True)
        return nothing(batches)

    result = run_gang(ours, [2], [runs], cancelled_first=True)
    assert result.end is GangEnd.FAILED
    assert notes.read("ran") == [], "cancelJobGroupAndFutureJobs does not cancel future jobs any more (spark/gang.py)"


def test_a_plan_is_good_for_one_run_and_a_second_is_built_anew(ours: SparkSession, notes: Notes) -> None:
    def runs(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        notes.write("ran", slot_index())
        return nothing(batches)

    for _ in range(2):
        run_pipelined(ours, build_plan(ours, [1, 2], [nothing, runs]))
    assert sorted(notes.read("ran")) == [0, 0, 1, 1]
