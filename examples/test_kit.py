"""Tests of a function and of a job, without Spark: the test kit.

    pytest examples/test_kit.py

A function is fed by hand; a job runs in this process, and dies where it is told to.
"""

import tidegate as tg
from tidegate.testing import Checkpoint, Fail, LedgerSink, ScriptedSource, in_process, ledger, run_in_process


class Alarm(tg.KeyedProcessFunction):
    """Says that a sensor is silent, after a minute of event time without a reading."""

    last = tg.ValueState(int)

    def process_element(self, reading, ctx):
        last = self.last.get()
        if last is not None:
            ctx.timer_service().delete_event_time_timer(last + 60_000)
        self.last.set(ctx.timestamp())
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 60_000)

    def on_timer(self, timestamp, ctx):
        yield f"{ctx.key} is silent"
        self.last.clear()


def test_a_silent_sensor_is_told_once(harness):
    alarm = harness(Alarm(), key_by=0)
    alarm.process(("boiler", 80), timestamp=0)
    alarm.process(("boiler", 81), timestamp=30_000)

    assert alarm.advance_watermark(89_999) == []
    assert alarm.advance_watermark(90_000) == ["boiler is silent"]
    assert alarm.keys() == set(), "state is left behind"


def test_a_failure_does_not_silence_the_alarm(harness):
    alarm = harness(Alarm(), key_by=0)
    alarm.process(("boiler", 80), timestamp=0)

    alarm.restore(alarm.snapshot(), backend="rocksdb")

    assert alarm.advance_watermark(60_000) == ["boiler is silent"]


def test_the_job_counts():
    env = tg.StreamEnvironment("counts", parallelism=2)
    env.from_collection(["a", "b", "a"], type=str).key_by(lambda word: word, key_type=str).count().collect(uid="out")

    with in_process():
        client = env.execute()

    assert sorted(client.results("out")) == [("a", 1), ("a", 2), ("b", 1)]


def test_the_job_counts_when_it_fails():
    env = tg.StreamEnvironment("counts-and-fails", parallelism=2)
    env.checkpointing(every="20ms", storage="memory://counts-and-fails")
    words = env.from_source(ScriptedSource(["a", Checkpoint(), "b", Fail(), "a"]), uid="words", returns=str)
    words.key_by(lambda word: word, key_type=str).count(uid="count").sink_to(LedgerSink("counts"), uid="out")

    run_in_process(env, seed=3)

    assert sorted(ledger("counts").rows()) == [("a", 1), ("a", 2), ("b", 1)]
