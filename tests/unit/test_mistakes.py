"""The mistakes that everybody makes once, each as a small program, and what is said of it, word for word.

Each message says what is wrong, where, and the way out. What can be known without Spark is said before Spark is started; what
shows only with the first records is seen here on the in-process runner, which runs the product's own operators.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

import tidegate as tg
from tidegate.connectors import kafka_client
from tidegate.coordinator.observing import JobStatus
from tidegate.launch import say_warnings
from tidegate.testing.runner import RunResult, run_in_process

HERE = "# here"  #: marks the line that a message points to; "# there", a second one

HEAD = """\
import tidegate as tg
env = tg.StreamEnvironment("job")
env.checkpointing(every="1s", storage="memory")
words = env.from_collection(["aa", "bb"], uid="words")
"""


@dataclass(frozen=True)
class Mistake:
    """A program without its execute(), and the message, in which {here} and {there} stand for file:line."""

    program: str
    message: str

    def write(self, folder: Path) -> tuple[Path, str]:
        """The program's file, and what is said of it."""
        path = folder / "job.py"
        text = HEAD + dedent(self.program)
        path.write_text(text)
        places = {"first": f"{path}:4"}  # the head's last line
        for mark in ("here", "there"):
            lines = [number for number, line in enumerate(text.splitlines(), 1) if line.endswith(f"# {mark}")]
            places[mark] = f"{path}:{lines[0]}" if lines else "nowhere"
        message = self.message
        for mark, place in places.items():
            message = message.replace(f"{{{mark}}}", place)
        return path, message


def environment_of(path: Path) -> tg.StreamEnvironment:
    names: dict[str, Any] = {"__name__": "__main__"}  # as a program, so that its classes travel with it
    exec(compile(path.read_text(), str(path), "exec", dont_inherit=True), names)
    env: tg.StreamEnvironment = names["env"]
    return env


def run_of(path: Path) -> RunResult:
    return run_in_process(environment_of(path), storage=f"memory://mistakes-{path.parent}")


# -- with the first records: the job ends at once ------------------------------------------------------------------------

AT_ONCE = {
    "a map that returns another type": Mistake(
        """
        words.map(str.upper, returns=int).print()  # here
        """,
        "TypeDeclarationError: in what map upper returned: 'AA' (type str) does not fit the declared type int. "
        "Convert it "
        "before, or declare the type that it has.\n  in map upper (uid 'words~map upper'), subtask 0, at {here}",
    ),
    "a function that returns nothing": Mistake(
        """
        def shout(word) -> str:  # here
            word.upper()
        words.map(shout).write_files("/tmp/never", format="text", uid="out")
        """,
        "TypeDeclarationError: in what map shout returned: None (type NoneType) does not fit the declared type str. "
        "Convert it "
        "before, or declare the type that it has. A function that ends without `return` gives None; where None is "
        "meant, "
        "declare Optional[...].\n  in map shout (uid 'words~map shout'), subtask 0, at {here}",
    ),
    "a tuple with a part too many": Mistake(
        """
        pairs = words.map(lambda word: (word, 1, 2), returns=tuple[str, int])  # here
        pairs.write_files("/tmp/never", format="jsonl", uid="out")
        """,
        "TypeDeclarationError: in what map returned: ('aa', 1, 2) (type tuple) does not fit the declared type "
        "tuple[str, int]. "
        "It has 3 parts, not 2.\n  in map (uid 'words~map'), subtask 0, at {here}",
    ),
    "a part of another type": Mistake(
        """
        pairs = words.map(lambda word: (word, None), returns=tuple[str, int])  # here
        pairs.write_files("/tmp/never", format="csv", uid="out")
        """,
        "TypeDeclarationError: in what map returned: in part 1 of tuple[str, int]: None (type NoneType) does not "
        "fit the declared "
        "type int. Convert it before, or declare the type that it has. A function that ends without `return` gives "
        "None; where "
        "None is meant, declare Optional[...].\n  in map (uid 'words~map'), subtask 0, at {here}",
    ),
    "an int that is too large": Mistake(
        """
        words.map(lambda word: 2**70, returns=int).print()  # here
        """,
        "TypeDeclarationError: in what map returned: 1180591620717411303424 (type int) does not fit the declared "
        "type int. int is "
        "64 bits wide: declare Decimal or Pickled for larger ones.\n  in map (uid 'words~map'), subtask 0, at {here}",
    ),
    "a function object that emits another type": Mistake(
        """
        class Lengths(tg.ProcessFunction):
            def process_element(self, word, ctx):  # here
                yield word
        words.process(Lengths(), returns=int).print()
        """,
        "TypeDeclarationError: in what Lengths emitted: 'aa' (type str) does not fit the declared type int. Convert "
        "it before, or "
        "declare the type that it has.\n  in Lengths (uid 'words~Lengths'), subtask 0, at {here}",
    ),
    "a side output of another type": Mistake(
        """
        odd = tg.OutputTag("odd", int)
        class Sort(tg.ProcessFunction):
            def process_element(self, word, ctx):  # here
                ctx.output(odd, word)
        words.process(Sort(), returns=str).side_output(odd).print()
        """,
        "TypeDeclarationError: in what Sort emitted to the side output 'odd': 'aa' (type str) does not fit the "
        "declared type int. "
        "Convert it before, or declare the type that it has.\n  in Sort (uid 'words~Sort'), subtask 0, at {here}",
    ),
    "a wrong type into state": Mistake(
        """
        class Count(tg.KeyedProcessFunction):
            count = tg.ValueState(int)  # there
            def process_element(self, word, ctx):
                self.count.set(word)  # here
        words.key_by(lambda word: word).process(Count(), uid="count").print()
        """,
        "TypeDeclarationError: state 'count' ({there}): 'aa' (type str) does not fit the declared type int. Convert "
        "it before, or "
        "declare the type that it has.\n  in Count (uid 'count'), subtask 0, at {here}",
    ),
    "return of one record in a process function": Mistake(
        """
        class Pairs(tg.ProcessFunction):
            def process_element(self, word, ctx):  # here
                return (word, 1)
        words.process(Pairs()).print()
        """,
        "ContractError: Pairs.process_element returned the tuple ('aa', 1), which is one record, where many are "
        "expected: it would "
        "be taken apart. Write `yield` instead of `return`, or return a list of records. To emit its parts one by "
        "one, return "
        "them as a list.\n  in Pairs (uid 'words~Pairs'), subtask 0, at {here}",
    ),
    "return of one record in flat_map": Mistake(
        """
        words.flat_map(lambda word: (word, 1), returns=tuple[str, int]).print()  # here
        """,
        "ContractError: flat_map's function returned the tuple ('aa', 1), which is one record, where many are "
        "expected: it would "
        "be taken apart. Write `yield` instead of `return`, or return a list of records. To emit its parts one by "
        "one, return "
        "them as a list.\n  in flat_map (uid 'words~flat_map'), subtask 0, at {here}",
    ),
    "return of a number in a keyed function": Mistake(
        """
        class Five(tg.KeyedProcessFunction):
            def process_element(self, word, ctx):  # here
                return 5
        words.key_by(lambda word: word).process(Five(), uid="five").print()
        """,
        "ContractError: Five.process_element returned 5 (type int); it must return None, a list or a generator of "
        "records (write "
        "`yield value` or `return [value]`)\n  in Five (uid 'five'), subtask 0, at {here}",
    ),
    "return of text in flat_map": Mistake(
        """
        words.flat_map(str.upper, returns=str).print()  # here
        """,
        "ContractError: flat_map's function returned 'AA' (type str); it must return None, a list or a generator of "
        "records (write "
        "`yield value` or `return [value]`)\n  in flat_map upper (uid 'words~flat_map upper'), subtask 0, at {here}",
    ),
    "a side output that nothing reads": Mistake(
        """
        odd = tg.OutputTag("odd", str)
        class Sort(tg.ProcessFunction):
            def process_element(self, word, ctx):  # here
                yield odd, word
        words.process(Sort()).print()
        """,
        "ContractError: Sort emits to the side output 'odd', but nothing reads it: call .side_output(tag) on its "
        "stream, with the "
        "same tag\n  in Sort (uid 'words~Sort'), subtask 0, at {here}",
    ),
    "a side output of a map": Mistake(
        """
        odd = tg.OutputTag("odd", str)
        words.map(lambda word: (odd, word)).print()  # here
        """,
        "ContractError: map emits (OutputTag('odd'), 'aa'): only process functions have side outputs. Write a "
        "ProcessFunction, and "
        "stream.process(...)\n  in map (uid 'words~map'), subtask 0, at {here}",
    ),
    "a window of event time on a stream without it": Mistake(
        """
        by_word = words.key_by(lambda word: word, key_type=str)
        by_word.window(tg.TumblingEventTimeWindows("1s")).reduce(max, uid="longest").print()  # here
        """,
        "ContractError: TumblingEventTimeWindows('1s') is a window of event time, and the records of this stream have none: "
        "call assign_timestamps_and_watermarks(...) before key_by, or take a window of processing time\n"
        "  in window reduce (uid 'longest'), subtask 0, at {here}",
    ),
    "a trigger that gives no result": Mistake(
        """
        class Always(tg.Trigger):
            def on_element(self, word, timestamp, window, ctx):
                return True
        by_word = words.key_by(lambda word: word, key_type=str)
        by_word.window(tg.GlobalWindows()).trigger(Always()).reduce(max, uid="longest").print()  # here
        """,
        "ContractError: Always gave True: a trigger gives tg.TriggerResult.CONTINUE, FIRE, PURGE or FIRE_AND_PURGE\n"
        "  in window reduce (uid 'longest'), subtask 0, at {here}",
    ),
    "a list as a key": Mistake(
        """
        letters = words.key_by(lambda word: list(word))  # here
        letters.count(uid="count").print()
        """,
        "KeyTypeError: ['a', 'a'] of type builtins.list cannot be a key. Use None, bool, int, float, str, bytes, "
        "Decimal, "
        "date, datetime, UUID, or a tuple of these (of a dataclass: a tuple of its fields; of an Enum: its name).\n "
        " in key_by of count (uid 'count'), subtask 0, at {here}",
    ),
    "state that open makes where nobody sees it coming": Mistake(
        """
        class Count(tg.KeyedProcessFunction):
            def open(self, ctx):
                setattr(self, "count", tg.ValueState(int))  # here
            def process_element(self, word, ctx):
                yield self.count.get()
        words.key_by(lambda word: word).process(Count(), uid="count").print()
        """,
        "GraphError: Count.open makes state at {here}: self.count = ValueState(...). State is declared on the "
        "class, so that it is "
        "known before anything runs. Write count = tg.ValueState(...) in the body of class Count, above its "
        "methods; inside "
        "process_element, self.count is then the state of the current key.\n  in Count (uid 'count'), subtask 0, at "
        "{here}",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", AT_ONCE)
def test_with_the_first_records_the_job_ends_at_once_and_says(name: str, tmp_path: Path) -> None:
    path, message = AT_ONCE[name].write(tmp_path)
    result = run_of(path)

    assert (result.status, result.attempts) == (JobStatus.FAILED, 1)
    assert str(result.error) == message


# -- with the first records: the same error comes again, and the job ends ------------------------------------------------

NOT_RESTARTED = (
    "\n  The job is not restarted any more: this error has come twice, from the same line, before the run's first "
    "checkpoint was "
    "complete, so it would come again for ever. Correct the function and start the job again. To have it restarted "
    "all the same, "
    'choose a strategy: env.restart_strategy("exponential-delay"), or -D restart-strategy.type=exponential-delay'
)

TWICE = {
    "an attribute that is not declared as state": Mistake(
        """
        class Count(tg.KeyedProcessFunction):
            def process_element(self, word, ctx):
                yield self.count.get()  # here
        words.key_by(lambda word: word).process(Count(), uid="count").print()
        """,
        "AttributeError: 'Count' object has no attribute 'count'. If it is a state: state is declared on the class. "
        "Write "
        "`count = tg.ValueState(int, default=0)`, or what it is, in the body of class Count. What is not state is "
        "set in "
        "open(self, ctx)\n  in Count (uid 'count'), subtask 0, at {here}",
    ),
    "a misspelt state": Mistake(
        """
        class Count(tg.KeyedProcessFunction):
            count = tg.ValueState(int, default=0)
            def process_element(self, word, ctx):
                yield self.cuont.get()  # here
        words.key_by(lambda word: word).process(Count(), uid="count").print()
        """,
        "AttributeError: 'Count' object has no attribute 'cuont'. Did you mean the state self.count?\n"
        "  in Count (uid 'count'), subtask 0, at {here}",
    ),
    "PyFlink's way to get state": Mistake(
        """
        class Count(tg.KeyedProcessFunction):
            def open(self, ctx):
                self.count = ctx.get_state("count")  # here
            def process_element(self, word, ctx):
                yield self.count.value()
        words.key_by(lambda word: word).process(Count(), uid="count").print()
        """,
        "AttributeError: 'Context' object has no attribute 'get_state'. State is declared on the class: "
        "`count = tg.ValueState(int, default=0)` in its body; self.count is then the state of the current key\n"
        "  in Count (uid 'count'), subtask 0, at {here}",
    ),
    "a declaration that is used as if it were the state": Mistake(
        """
        COUNT = tg.ValueState(int, default=0)
        class Count(tg.KeyedProcessFunction):
            def process_element(self, word, ctx):
                yield COUNT.get()  # here
        words.key_by(lambda word: word).process(Count(), uid="count").print()
        """,
        "AttributeError: 'ValueState' object has no attribute 'get'. This is the declaration of a state, not the "
        "state. Declare it "
        "on the class, and use it as self.name in process_element: there it is the state of the current key\n"
        "  in Count (uid 'count'), subtask 0, at {here}",
    ),
    "a trigger that raises": Mistake(
        """
        class Parsed(tg.Trigger):
            def on_element(self, word, timestamp, window, ctx):
                return int(word)  # here
        by_word = words.key_by(lambda word: word, key_type=str)
        by_word.window(tg.GlobalWindows()).trigger(Parsed()).reduce(max, uid="longest").print()
        """,
        "ValueError: invalid literal for int() with base 10: 'aa'\n  in window reduce (uid 'longest'), subtask 0, at {here}",
    ),
    "a function that raises": Mistake(
        """
        def parse(word) -> int:
            return int(word)  # here
        words.map(parse).print()
        """,
        "ValueError: invalid literal for int() with base 10: 'aa'\n  in map parse (uid 'words~map parse'), subtask "
        "0, at {here}",
    ),
}


@pytest.mark.parametrize("name", TWICE)
def test_an_error_that_must_come_again_ends_the_job_the_second_time_and_says(name: str, tmp_path: Path) -> None:
    path, message = TWICE[name].write(tmp_path)
    result = run_of(path)

    assert (result.status, result.attempts) == (JobStatus.FAILED, 2)
    assert str(result.error) == message + NOT_RESTARTED


# -- a service that is not there: it may come back, so the restart strategy decides ---------------------------------------

NOWHERE = {
    "Kafka is down": Mistake(
        """
        env.from_source(tg.KafkaSource("127.0.0.1:1", "clicks"), uid="clicks").print()  # here
        """,
        "The Kafka source of clicks at 127.0.0.1:1 could not look at the topic 'clicks': _TRANSPORT: Failed to get metadata: "
        "Local: Broker transport failure; _TRANSPORT: 127.0.0.1:1/bootstrap: Connect to ipv4#127.0.0.1:1 failed: Connection "
        "refused (after 0ms in state CONNECT). Are the brokers up, and is the address right from every executor?\n"
        "  in KafkaSource (uid 'clicks'), at {here}",
    ),
    "the database is down": Mistake(
        """
        pairs = env.from_collection([("aa", 1)], uid="pairs", type=tuple[str, int])
        pairs.sink_to(tg.DatabaseUpsertSink("postgresql://me@127.0.0.1:1/db", "t", key=["_1"]), uid="db")  # here
        """,
        "ConnectorError: postgresql://me@127.0.0.1:1/db: connecting: connection failed: connection to server at "
        '"127.0.0.1", port 1 failed: Connection refused. The database cannot be reached, or has ended the connection. Is it '
        "up, and is the address right from every executor?\n  in DatabaseUpsertSink (uid 'db'), subtask 0, at {here}",
    ),
    "no server at a socket's address": Mistake(
        """
        env.from_source(tg.SocketText("127.0.0.1", 1), uid="lines").print()  # here
        """,
        "ConnectorError: The socket source cannot connect to 127.0.0.1:1 ([Errno 111] Connection refused). Start the server "
        "first, and check that the executors can reach it under that name.\n"
        "  in SocketText (uid 'lines'), subtask 0, at {here}",
    ),
    "no server at the address of an HTTP sink": Mistake(
        """
        words.sink_to(tg.HttpSink("http://127.0.0.1:1/x"), uid="posts")  # here
        """,
        "ConnectorError: http://127.0.0.1:1/x: ConnectionRefusedError: [Errno 111] Connection refused, 5 times in a row. Is "
        "the server up, and is the address right from every executor?\n"
        "  in HttpSink (uid 'posts'), subtask 0, checkpoint 1, at {here}",
    ),
}


@pytest.mark.parametrize("name", NOWHERE)
def test_a_service_that_is_not_there_is_named_with_its_operator_and_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_client, "METADATA_S", 0.5)
    path, message = NOWHERE[name].write(tmp_path)
    env = environment_of(path).restart_strategy("none")
    result = run_in_process(env, storage=f"memory://mistakes-{path.parent}")

    assert result.status is JobStatus.FAILED
    assert re.sub(r"after \d+ms", "after 0ms", str(result.error)) == message


# -- what nobody can mean otherwise works --------------------------------------------------------------------------------


def test_what_is_yielded_with_a_tag_goes_to_its_side_output(tmp_path: Path) -> None:
    """As in PyFlink: `yield tag, value`."""
    path, _ = Mistake(
        """
        odd = tg.OutputTag("odd", str)
        class Sort(tg.ProcessFunction):
            def process_element(self, word, ctx):
                if word == "aa":
                    yield odd, f"odd {word}"
                else:
                    yield word
        sorted_ = words.process(Sort(), returns=str)
        sorted_.collect(uid="even")
        sorted_.side_output(odd).collect(uid="odd")
        """,
        "",
    ).write(tmp_path)
    result = run_of(path)

    assert result.status is JobStatus.FINISHED
    assert (result.collected.rows("even"), result.collected.rows("odd")) == (["bb"], ["odd aa"])


# -- before anything runs ------------------------------------------------------------------------------------------------

BEFORE_SPARK = {
    "a lateness that is negative": Mistake(
        """
        by_word = words.key_by(lambda word: word, key_type=str)
        by_word.window(tg.TumblingEventTimeWindows("1s")).allowed_lateness("-5s")  # here
        """,
        "error: allowed_lateness: '-5s' is negative: a window cannot close before its end. Give \"0s\" or more."
        "\n  at {here}\n"
        '      by_word.window(tg.TumblingEventTimeWindows("1s")).allowed_lateness("-5s")  # here\n',
    ),
    "a join whose keys differ in type": Mistake(
        """
        counts = env.from_collection([1], type=int, uid="counts")
        both = words.join(counts).where(lambda word: word, key_type=str).equal_to("value")
        both.window(tg.TumblingEventTimeWindows("1s"))  # here
        """,
        "error: the keys of connected streams must be of one type: the first has str (key_by value), the second int (key_by "
        "value), and keys of different types are never equal: 1 is not 1.0. Bring one of them to the type of the other: "
        "key_by(lambda record: float(record.price), key_type=float)"
        "\n  at {here}\n"
        '      both.window(tg.TumblingEventTimeWindows("1s"))  # here\n',
    ),
    "state made in open": Mistake(
        """
        class Count(tg.KeyedProcessFunction):
            def open(self, ctx):
                self.count = tg.ValueState(int)  # here
            def process_element(self, word, ctx):
                yield self.count.get()
        words.key_by(lambda word: word).process(Count(), uid="count").print()
        """,
        "error: Count.open makes state at {here}: self.count = ValueState(...). State is declared on the class, so "
        "that it is known "
        "before anything runs. Write count = tg.ValueState(...) in the body of class Count, above its methods; inside "
        "process_element, self.count is then the state of the current key.\n      self.count = "
        "tg.ValueState(int)  # here\n",
    ),
    "state made in __init__": Mistake(
        """
        class Count(tg.KeyedProcessFunction):
            def __init__(self):
                self.count = tg.ValueState(int)  # here
            def process_element(self, word, ctx):
                yield self.count.get()
        words.key_by(lambda word: word).process(Count(), uid="count").print()
        """,
        "error: Count.__init__ makes state at {here}: self.count = ValueState(...). State is declared on the class, "
        "so that it is "
        "known before anything runs. Write count = tg.ValueState(...) in the body of class Count, above its "
        "methods; inside "
        "process_element, self.count is then the state of the current key.\n      self.count = "
        "tg.ValueState(int)  # here\n",
    ),
    "a function that holds on to a socket": Mistake(
        """
        import socket
        connection = socket.socket()
        words.map(lambda word: connection.send(word), returns=int).print()  # there
        """,
        "error: map at {there} cannot be sent to the executors: cannot pickle 'socket' object. Its function "
        "(<lambda>) holds on to "
        "something that only lives in this process, like an open file, a lock or a connection; open it in "
        "open(self, ctx) "
        "instead.\n  at {here}\n      env.execute()  # here\n",
    ),
    "a field that is not there": Mistake(
        """
        words.key_by("size").count(uid="count").print()  # here
        """,
        "error: key_by: the stream has no field 'size'; it has value (str)\n  at {here}\n"
        '      words.key_by("size").count(uid="count").print()  # here\n',
    ),
    "forgotten uids": Mistake(
        """
        class CountWords(tg.KeyedProcessFunction):
            count = tg.ValueState(int, default=0)
            def process_element(self, word, ctx):
                yield self.count.get()
        counts = words.key_by(lambda word: word).process(CountWords(), returns=int)  # there
        counts.write_files("/tmp/never", format="text", uid="out")
        env.checkpointing(every="1s", storage="file:///tmp/never")
        """,
        "error: CountWords at {there} keeps something in checkpoints and needs a uid, so that it is found again after a "
        'restart: write uid="count-words" in the call, or .uid("count-words") after it; any name will do that stays the '
        "same.\n  at {here}\n      env.execute()  # here\n",
    ),
    "no sink": Mistake(
        "",
        "error: the job has no sink: end at least one stream with .print(), .collect() or .sink_to(...)\n  at {here}\n"
        "      env.execute()  # here\n",
    ),
    "no source": Mistake(
        """
        env = tg.StreamEnvironment("job")
        """,
        "error: the job has no operators: start with env.from_source(...) or env.from_collection(...)\n  at {here}\n"
        "      env.execute()  # here\n",
    ),
    "a storage by a relative path": Mistake(
        """
        words.print()
        env.checkpointing(every="1s", storage="checkpoints")
        """,
        "error: checkpoint storage 'checkpoints' is neither an absolute path nor a URI of a known kind. Use /path, "
        "file:///path, "
        "s3://bucket/folder, gs://bucket/folder, az://container/folder, hdfs://namenode:port/folder, or \"memory\" "
        "for the "
        "driver's memory.\n  at {here}\n      env.execute()  # here\n",
    ),
    "a storage that cannot be written": Mistake(
        """
        words.print()
        env.checkpointing(every="1s", storage="file:///proc/nowhere")
        """,
        "error: cannot create file:///proc/nowhere/job/probe/create: no folder can be made in /proc, whoever asks for it. "
        "It is not a place for files. Use a folder on a disk, or s3://, gs:// or az://.\n  at {here}\n"
        "      env.execute()  # here\n",
    ),
    "a duration without a unit": Mistake(
        """
        env.checkpointing(every="10", storage="memory")  # here
        """,
        "error: checkpointing(every=...): '10' is not a duration. Write a number and a unit, like \"500ms\" or \"10s\"."
        "\n  at {here}\n"
        '      env.checkpointing(every="10", storage="memory")  # here\n',
    ),
    "a strategy that there is not": Mistake(
        """
        env.restart_strategy("fixed")  # here
        """,
        "error: restart strategy 'fixed' is unknown: use \"exponential-delay\", \"fixed-delay\", \"failure-rate\" or "
        '"none"\n  at {here}\n      env.restart_strategy("fixed")  # here\n',
    ),
    "a uid that is taken": Mistake(
        """
        words.map(str.upper, uid="words").print()  # here
        """,
        "error: the uid 'words' is given twice: to collection at {first} and to map upper at {here}. State is matched "
        "by uid, so each operator needs its own.\n"
        '      words.map(str.upper, uid="words").print()  # here\n',
    ),
    "a class instead of an object of it": Mistake(
        """
        class Pairs(tg.ProcessFunction):
            def process_element(self, word, ctx):
                yield word
        words.process(Pairs).print()  # here
        """,
        "error: process needs an instance: write Pairs(), not Pairs\n  at {here}\n"
        "      words.process(Pairs).print()  # here\n",
    ),
    "a function with keys on a stream without": Mistake(
        """
        class Count(tg.KeyedProcessFunction):
            count = tg.ValueState(int)
            def process_element(self, word, ctx):
                yield word
        words.process(Count()).print()  # here
        """,
        "error: Count works on keyed streams: call key_by(...) before it\n  at {here}\n"
        "      words.process(Count()).print()  # here\n",
    ),
    "batches of a stream without a type": Mistake(
        """
        words.map(lambda word: word).map_batches(print).print()  # here
        """,
        "error: map_batches works on columns, but this stream is untyped: declare its type with returns=\n  at {here}\n"
        "      words.map(lambda word: word).map_batches(print).print()  # here\n",
    ),
    "a parallelism that cannot be": Mistake(
        """
        words.key_by(lambda word: word).count(max_parallelism=0).print()  # here
        """,
        "error: max_parallelism of count must be a positive integer, not 0\n  at {here}\n"
        "      words.key_by(lambda word: word).count(max_parallelism=0).print()  # here\n",
    ),
    "a package that is not installed": Mistake(
        """
        import sys
        sys.modules["deltalake"] = None
        words.sink_to(tg.DeltaSink("/tmp/never"), uid="table")  # here
        """,
        "error: DeltaSink needs the package deltalake, here and on every executor: pip install 'tidegate[delta]'\n"
        "  at {here}\n"
        '      words.sink_to(tg.DeltaSink("/tmp/never"), uid="table")  # here\n',
    ),
    "a storage of an unknown kind": Mistake(
        """
        words.print()
        env.checkpointing(every="1s", storage="ftp://host/x")
        """,
        "error: checkpoint storage 'ftp://host/x' is neither an absolute path nor a URI of a known kind. Use /path, "
        "file:///path, "
        "s3://bucket/folder, gs://bucket/folder, az://container/folder, hdfs://namenode:port/folder, or \"memory\" "
        "for the "
        "driver's memory.\n  at {here}\n      env.execute()  # here\n",
    ),
    "S3 without credentials": Mistake(
        """
        words.print()
        env.checkpointing(every="1s", storage="s3://bucket/checkpoints")
        """,
        "error: cannot look at s3://bucket/checkpoints/credentials: there are no credentials: the environment has none, "
        "and this machine has no role that gives any. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, here and on the "
        "executors.\n  at {here}\n      env.execute()  # here\n",
    ),
}  # fmt: skip

OTHER_CODES = {"a storage that cannot be written": 1, "S3 without credentials": 1}

#: Runs each program as `tidegate run` does, one after another in one process, and says what came of each.
RUN_ALL = """
import contextlib, io, json, sys, time
from tidegate.cli.main import main
said = {}
for name, path in json.loads(sys.argv[1]).items():
    text = io.StringIO()
    began = time.process_time()  # whatever else the machine does
    with contextlib.redirect_stderr(text):
        code = main(["run", path])
    took_s = time.process_time() - began
    from pyspark import SparkContext
    said[name] = (code, text.getvalue(), SparkContext._gateway is not None, took_s)
print(json.dumps(said))
"""


def no_java(folder: Path) -> dict[str, str]:
    """Where no Spark can be started."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    nowhere = {"AWS_METADATA_ENDPOINT": "http://127.0.0.1:1"}  # where a role's credentials would be asked for
    return {**own, **nowhere, "JAVA_HOME": str(folder), "PATH": str(folder), "PYTHONWARNINGS": "ignore"}


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, bool, float, str]]:
    """Exit code, what was said, whether Spark was started, the seconds that it took, and what is to be said."""
    folder = tmp_path_factory.mktemp("refused")
    paths, messages = {}, {}
    for name, mistake in BEFORE_SPARK.items():
        own = folder / name.replace(" ", "-")
        own.mkdir()
        ended = mistake.program if HERE in mistake.program else dedent(mistake.program) + "env.execute()  # here\n"
        path, messages[name] = Mistake(ended, mistake.message).write(own)
        paths[name] = str(path)
    ran = subprocess.run(
        [sys.executable, "-c", RUN_ALL, json.dumps(paths)],
        capture_output=True, text=True, timeout=120, env=no_java(folder),
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return {name: (*answer, messages[name]) for name, answer in json.loads(ran.stdout).items()}


@pytest.mark.parametrize("name", BEFORE_SPARK)
def test_before_spark_is_started_the_job_is_refused_and_says(
    name: str, refusals: dict[str, tuple[int, str, bool, float, str]]
) -> None:
    code, said, spark_started, took_s, message = refusals[name]

    assert said == message
    assert code == OTHER_CODES.get(name, 2)
    assert not spark_started
    assert took_s < 3


def test_a_function_that_can_emit_nothing_is_told_before_spark_is_started(tmp_path: Path) -> None:
    path, message = Mistake(
        """
        class Pairs(tg.KeyedProcessFunction):
            def process_element(self, word, ctx):
                (word, 1)
        words.key_by(lambda word: word).process(Pairs(), uid="pairs", returns=tuple[str, int]).print()  # here
        """,
        "Pairs (uid pairs) at {here} emits nothing: its function neither yields nor returns a record, so nothing "
        "reaches "
        "print (uid pairs~print). Write `yield value` where a record is to be emitted.",
    ).write(tmp_path)
    env = environment_of(path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        say_warnings(env._graph)

    assert [str(warning.message) for warning in caught] == [message]
    assert (caught[0].filename, caught[0].lineno) == (str(path), 7), "where the function is"


KEPT_BESIDE_STATE = {
    "a dict": ("{}", "self.kept[word] = self.kept.get(word, 0) + 1"),
    "a dict that fills itself": ("collections.defaultdict(int)", "self.kept[word] += 1"),
    "a set": ("set()", "self.kept.add(word)"),
    "a list": ("[]", "del self.kept[:]"),
    "a number": ("0", "self.kept += 1"),
}


@pytest.mark.parametrize("name", KEPT_BESIDE_STATE)
def test_what_a_keyed_function_keeps_beside_its_state_is_told(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made, changed = KEPT_BESIDE_STATE[name]
    path, message = Mistake(
        f"""
        import collections
        class Count(tg.KeyedProcessFunction):
            def open(self, ctx):
                self.kept = {made}
            def process_element(self, word, ctx):
                {changed}  # here
                yield word
        words.key_by(lambda word: word, key_type=str).process(Count(), uid="count", returns=str).print()
        """,
        "Count changes self.kept at {here}, which is not a state: it is in no checkpoint, holds what one subtask has seen "
        "of all its keys, and is gone after a restart. If that matters, declare it in the body of class Count: "
        "kept = tg.ValueState(...), or tg.MapState(...). A cache may stay as it is.",
    ).write(tmp_path)
    with caplog.at_level("WARNING"):
        say_warnings(environment_of(path)._graph)

    assert [record.getMessage() for record in caplog.records] == [message]


def test_what_a_keyed_function_only_reads_or_has_counted_is_not_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, _ = Mistake(
        """
        class Count(tg.KeyedProcessFunction):
            count = tg.ValueState(int, default=0)
            def open(self, ctx):
                self.seen, self.sizes = ctx.counter("seen"), ctx.histogram("sizes")
                self.rates = {"aa": 1}
            def process_element(self, word, ctx):
                self.seen.inc()
                self.sizes.update(len(word))
                self.count.update(self.count.get() + self.rates.get(word, 0))
                found = {}
                found[self.rates.get(word)] = 1
                yield word
        words.key_by(lambda word: word, key_type=str).process(Count(), uid="count", returns=str).print()
        """,
        "",
    ).write(tmp_path)
    with caplog.at_level("WARNING"):
        say_warnings(environment_of(path)._graph)

    assert caplog.records == []


def test_a_port_that_is_taken_is_refused_before_spark_is_started(tmp_path: Path) -> None:
    path, _ = Mistake("words.print()\nenv.execute()  # here", "").write(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        ran = said_by(path, "-m", "tidegate.cli.main", "run", "-D", f"rest.port={port}")

    assert ran.returncode == 2
    assert ran.stderr == (
        f"error: REST cannot listen on localhost:{port}: Address already in use. Give another rest.port (0: any free one) or "
        f"rest.bind-address, or tidegate.rest.enabled=false\n  at {path}:6\n      env.execute()  # here\n"
    )


def test_a_misspelt_key_is_refused_with_the_one_that_was_meant(tmp_path: Path) -> None:
    path, _ = Mistake("words.print()\nenv.execute()", "").write(tmp_path)
    ran = said_by(path, "-m", "tidegate.cli.main", "run", "-D", "execution.checkpointing.intervall=3s")

    assert ran.returncode == 2
    assert ran.stderr == (
        "error: execution.checkpointing.intervall (-D) is not a key that Tidegate knows. Did you mean "
        "execution.checkpointing.interval or execution.checkpointing.dir?\n"
    )


# -- at the end of the program -------------------------------------------------------------------------------------------

NEVER_EXECUTED = "warning: the job 'job' was built ({here}) and never executed: end the program with env.execute()\n"


def said_by(path: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command, str(path)], capture_output=True, text=True, timeout=120, env=no_java(path.parent)
    )


@pytest.mark.parametrize("command", [(), ("-m", "tidegate.cli.main", "run")], ids=["python", "tidegate run"])
def test_a_job_that_was_built_and_never_executed_is_told_at_the_end(command: tuple[str, ...], tmp_path: Path) -> None:
    path, message = Mistake("words.print()  # here", NEVER_EXECUTED).write(tmp_path)
    ran = said_by(path, *command)

    assert (ran.returncode, ran.stderr) == (0, message)


@pytest.mark.parametrize(
    "program",
    [
        "pass",
        "words.print()\nprint(env.explain())",
        "words.print()\n1 / 0",
        "words.print()\nwords.key_by('size')",
    ],
    ids=["no sink", "explained", "failed", "refused"],
)
def test_nothing_is_told_of_a_job_without_a_sink_or_of_a_program_that_failed_or_looked(
    program: str, tmp_path: Path
) -> None:
    path, _ = Mistake(program, "").write(tmp_path)

    assert "never executed" not in said_by(path).stderr
