"""What cannot work is refused in a sentence that says what, where and the way out; most of it before anything runs."""

from __future__ import annotations

import re
import sys
import threading
import types
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from job_kit import ORDERS, PATIENCE

import tidegate as tg
from tidegate.errors import GraphError, NotEnoughSlots, SparkSettingsError, TypeDeclarationError, UnshippableFunction
from tidegate.spark.pipelined import check_has_jvm
from tidegate.spark.settings import STATIC, check_static, static_settings

pytestmark = pytest.mark.spark

HERE = re.escape(__file__)


def numbers(name: str = "refused", parallelism: int = 1) -> tg.DataStream:
    env = tg.StreamEnvironment(name, parallelism=parallelism).restart_strategy("none")
    return env.from_sequence(1, 5, uid="numbers")


# -- the graph ----------------------------------------------------------------------------------------------------


def test_a_uid_given_twice_is_refused_with_both_lines() -> None:
    stream = numbers().map(int, uid="mine")
    with pytest.raises(
        GraphError, match=rf"'mine' is given twice: to map int at {HERE}:\d+ and to filter at {HERE}:\d+"
    ):
        stream.filter(lambda n: True, uid="mine")


def test_whoever_keeps_state_needs_a_uid_where_checkpoints_are_stored(storage: str) -> None:
    class Sides(tg.KeyedCoProcessFunction):
        seen = tg.ValueState(int)

    stream = numbers()
    both = stream.key_by(lambda n: n).connect(stream.map(int).key_by(lambda n: n)).process(Sides())
    both.print()
    env = stream._env.checkpointing(storage=storage)
    with pytest.raises(
        GraphError, match=rf"^Sides at {HERE}:\d+ keeps something in checkpoints and needs a uid.* write uid="
    ):
        env.execute_async()
    env.from_sequence(1, 5).print()
    with pytest.raises(GraphError, match=rf"^Sides at {HERE}:\d+, sequence at {HERE}:\d+ keep .* and need a uid each"):
        env.execute_async()


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (
            lambda s: s.process(type("Keyed", (tg.KeyedProcessFunction,), {})()),
            r"Keyed works on keyed streams: call key_by",
        ),
        (lambda s: s.process(tg.ProcessFunction), r"needs an instance: write ProcessFunction\(\)"),
        (lambda s: s.key_by(lambda n: n).process(print, uid="p"), "needs a KeyedProcessFunction, not builtin_function"),
        (lambda s: s.union(s.map(str)), "union needs streams of one type; these are int and str"),
        (lambda s: s.map(lambda n: n).map_batches(print), "map_batches works on columns, but this stream is untyped"),
        (lambda s: s.key_by(), "key_by needs a column name, a tuple position or a function"),
        (lambda s: s.key_by("size"), "the stream has no field 'size'; it has value"),
        (lambda s: s.key_by(0).sum("size", uid="s"), "^sum: the stream has no field 'size'; it has value"),
        (lambda s: s.map(int, parallelism=0), "parallelism of map int must be a positive integer, not 0"),
        (lambda s: s.sink_to(print, uid="p"), "sink_to needs a tidegate.Sink, not builtin_function_or_method"),
        (lambda s: s.map(str, returns=object), "object is not a type that Tidegate can store"),
        (lambda s: s.key_by(lambda n: n, key_type=list), "cannot be keys"),
    ],
)
def test_an_impossible_step_is_refused_at_its_line(build: Callable[[tg.DataStream], Any], words: str) -> None:
    with pytest.raises(tg.TidegateError, match=words):
        build(numbers())


def test_a_job_needs_a_source_and_a_sink() -> None:
    with pytest.raises(GraphError, match=r"no operators: start with env\.from_source"):
        tg.StreamEnvironment("empty").execute()
    with pytest.raises(GraphError, match=r"no sink: end at least one stream with \.print\(\), \.collect\(\)"):
        numbers()._env.execute()


# -- settings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "a/b", ".hidden", "two words", "ä", "x" * 101, None])
def test_a_name_that_cannot_be_a_folder_is_refused(name: Any) -> None:
    with pytest.raises(tg.ConfigurationError, match=r"cannot be the name of a job.* Use 1 to 100 letters"):
        tg.StreamEnvironment(name)


@pytest.mark.parametrize(
    ("duration", "words"),
    [
        (10, '10 has no unit. Write a string like "10s"'),
        ("10", "'10' is not a duration. Write a number and a unit"),
        ("5 parsecs", "'5 parsecs' is not a duration"),
        (timedelta(seconds=-1), "is negative"),
        ("5ms", "a checkpoint interval below 10 ms is not possible"),
    ],
)
def test_a_duration_needs_a_number_and_a_unit(duration: Any, words: str) -> None:
    with pytest.raises(tg.ConfigurationError, match=re.escape(words)):
        tg.StreamEnvironment("job").checkpointing(every=duration, storage="/tmp/none")


def test_settings_that_do_not_fit_are_refused() -> None:
    env = tg.StreamEnvironment("job")
    with pytest.raises(tg.ConfigurationError, match="restart strategy 'sometimes' is unknown: use \"exponential-delay"):
        env.restart_strategy("sometimes")
    env.from_sequence(1, 2, uid="n").print()
    env.checkpointing(storage="ftp://host/x")
    with pytest.raises(tg.ConfigurationError, match="'ftp://host/x' is neither an absolute path nor a URI of a known"):
        env.execute()
    with pytest.raises(tg.ConfigurationError, match="parallelism must be a positive integer, not 0"):
        tg.StreamEnvironment("job", parallelism=0)
    stream = numbers()
    stream.print()
    with pytest.raises(tg.ConfigurationError, match="resume needs the storage"):
        stream._env.execute(resume="latest")


def test_a_storage_that_cannot_be_reached_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    stream = numbers()
    stream._env.checkpointing(storage=f"file://{tmp_path}/file/storage")
    stream.print()
    with pytest.raises(tg.StorageError, match=rf"file://{tmp_path}/file/storage"):
        stream._env.execute()


@pytest.mark.parametrize(
    "held", [threading.Lock(), sys.stdout.buffer, threading.current_thread()], ids=lambda h: type(h).__name__
)
def test_a_function_that_holds_on_to_this_process_is_refused(held: Any) -> None:
    stream = numbers()
    stream.map(lambda n: (held, n)[1], returns=int, name="holder").print()
    with pytest.raises(
        UnshippableFunction, match=rf"holder at {HERE}:\d+ cannot be sent to the executors: cannot pickle"
    ):
        stream._env.execute()


# -- Spark --------------------------------------------------------------------------------------------------------


def test_a_session_without_the_settings_is_refused_with_all_that_it_lacks() -> None:
    with pytest.raises(SparkSettingsError) as raised:
        check_static({"spark.speculation": "true", "spark.python.worker.reuse": "false"})
    needed = {s.key for s in STATIC if s.required} - {"spark.dynamicAllocation.enabled", "spark.python.worker.reuse"}
    assert set(raised.value.missing) == needed
    for key in needed:
        assert f'.config("{key}", "{static_settings()[key]}")' in str(raised.value)
    assert "or let StreamEnvironment make the session" in str(raised.value)


def test_a_session_with_the_settings_is_taken_whatever_else_it_says() -> None:
    check_static({**static_settings(), "spark.rpc.io.threads": "8", "spark.dynamicAllocation.enabled": None})


def test_a_session_of_spark_connect_is_refused() -> None:
    class ConnectSession:
        """Has no JVM behind it."""

    with pytest.raises(SparkSettingsError, match=r"a Spark Connect session.* Use a classic session"):
        check_has_jvm(ConnectSession())


def test_too_few_slots_are_counted() -> None:
    stream = numbers(parallelism=60)
    stream.print()
    with pytest.raises(NotEnoughSlots) as raised:
        stream._env.execute()
    assert str(raised.value) == (
        "the job needs 60 task slots at once and the cluster has 48: every subtask of a pipelined job runs at the same time. "
        "Add executor cores (spark.cores.max, --total-executor-cores, local[60]), make slots narrower (spark.task.cpus=0.8, "
        "when Spark starts) or lower the parallelism."
    )
    assert (raised.value.needed, raised.value.there) == (60, 48)


def test_a_layer_that_is_too_wide_is_refused() -> None:
    stream = numbers(parallelism=129)
    stream.print()
    with pytest.raises(tg.ConfigurationError, match=r"129 slots wide.*the limit is 128\. Lower the parallelism"):
        stream._env.execute()


# -- what is only seen when records come --------------------------------------------------------------------------


class SetsText(tg.KeyedProcessFunction):
    number = tg.ValueState(int)

    def process_element(self, value: int, ctx: tg.Context) -> Iterator[int]:
        self.number.set("text")
        yield value


def elsewhere() -> Callable[[int], int]:
    """A function of a module that only this process has."""
    module = types.ModuleType("only_here")
    exec("def same(n):\n    return n", module.__dict__)
    sys.modules["only_here"] = module
    return module.same  # type: ignore[no-any-return]


def misnamed(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.rename_columns(["other"])


RUNNING = {
    "a record that does not fit": (
        lambda s: s.map(lambda n: f"<{n}>", returns=int, uid="doomed").rebalance().map(int, parallelism=2),
        tg.JobFailed,
        r"TypeDeclarationError: in what map returned: "
        rf"'<\d>' \(type str\) does not fit the declared type int.*in map \(uid 'doomed'\), "
        rf"subtask 0, at {HERE}:\d+",
    ),
    "columns that do not fit": (
        lambda s: s.map_batches(misnamed, uid="doomed"),
        tg.JobFailed,
        r"in what map_batches misnamed returned: a batch of int must have the columns \['value'\], each once; it has "
        rf"\['other'\].*\(uid 'doomed'\), subtask 0, at {HERE}:\d+",
    ),
    "a value that does not fit its state": (
        lambda s: s.key_by(lambda n: n).process(SetsText(), uid="doomed"),
        tg.JobFailed,
        rf"state 'number' \({HERE}:\d+\): 'text' \(type str\) does not fit the declared type int.*\(uid 'doomed'\)",
    ),
    "a key of a wrong type": (
        lambda s: s.key_by(lambda n: str(n), key_type=int).count(uid="doomed"),
        tg.JobFailed,
        r"KeyTypeError: '\d' of type builtins.str cannot be a key. The key was declared as int.*in key_by of count "
        rf"\(uid 'doomed'\), subtask 0, at {HERE}:\d+",
    ),
    "a key that cannot be one": (
        lambda s: s.key_by(lambda n: [n], key_type=tuple[int]).count(uid="after", parallelism=2),
        tg.JobFailed,
        r"KeyTypeError: \[\d\] of type builtins.list cannot be a key.*in key_by of count \(uid 'after'\), subtask 0, "
        rf"at {HERE}:\d+",
    ),
    "one record where many are due": (
        lambda s: s.flat_map(lambda n: "text", returns=str, uid="doomed"),
        tg.JobFailed,
        r"flat_map's function returned 'text' \(type str\); it must return None, a list or a generator of records",
    ),
    "a server that is not there": (
        lambda s: s._env.from_source(tg.SocketText("127.0.0.1", 1), uid="doomed"),
        tg.JobFailed,
        r"ConnectorError: The socket source cannot connect to 127.0.0.1:1.*in SocketText \(uid 'doomed'\), subtask 0",
    ),
    "a module that only the driver has": (
        lambda s: s.map(elsewhere(), returns=int, uid="doomed"),
        tg.JobFailed,
        r"its Python \(\S+ on \S+\) has no module 'only_here'.*--py-files",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def errors(spark_session: Any) -> dict[str, Exception]:
    """All of these jobs at once: what each of them raises."""
    clients = {}
    for case, (build, _, _) in RUNNING.items():
        stream = numbers(case.replace(" ", "-"))
        build(stream).collect(uid="out")
        clients[case] = stream._env.execute_async()
    caught = {}
    for case, client in clients.items():
        with pytest.raises(tg.TidegateError) as raised:
            client.wait(PATIENCE)
        caught[case] = raised.value
    return caught


@pytest.mark.parametrize("case", RUNNING)
def test_what_comes_up_while_the_job_runs_is_said_as_clearly(errors: dict[str, Exception], case: str) -> None:
    _, kind, words = RUNNING[case]
    error = errors[case]
    assert type(error) is kind
    assert re.search(words, str(error), re.DOTALL), str(error)


def test_a_record_that_does_not_fit_ends_the_job_without_a_restart() -> None:
    """It would come again, and not fit again."""
    env = tg.StreamEnvironment("misfit").restart_strategy("fixed-delay", attempts=5, delay="0s")
    env.from_collection(ORDERS, uid="orders").map(lambda order: order.item, returns=int).collect()
    client = env.execute_async()
    with pytest.raises(tg.JobFailed, match="does not fit the declared type int"):
        client.wait(PATIENCE)
    assert client.view.restarts == 0


def test_an_item_that_does_not_fit_its_collection_is_refused_at_once() -> None:
    with pytest.raises(TypeDeclarationError, match=r"'two' \(type str\) does not fit the declared type int"):
        tg.StreamEnvironment("job").from_collection([1, "two"], uid="items", type=int)
