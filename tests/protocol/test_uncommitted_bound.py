"""What waits for its commit has a bound: then the job restarts, and reads nothing until it is committed."""

from __future__ import annotations

import pytest

import tidegate as tg
from tidegate.batch import Batch
from tidegate.connectors.contract import CommitOutcome
from tidegate.coordinator.observing import JobStatus
from tidegate.task.operators import sink as sink_operator
from tidegate.testing.ledger_sink import LedgerSink, forget_ledgers, ledger
from tidegate.testing.runner import run_in_process
from tidegate.testing.scripted_source import Checkpoint, ScriptedSource
from tidegate.wire import control

EPOCHS = 40
LIMIT_BYTES = 400  #: a committable of the ledger has about 40


class AwayAtFirst(LedgerSink):
    """Its outside takes nothing until a second attempt has asked a few times."""

    asked: list[int] = []

    def committer(self, context: tg.WriterContext) -> tg.Committer:
        inner = super().committer(context)
        answer = inner.commit

        def commit(committables: list[bytes]) -> list[CommitOutcome]:
            self.asked.append(sum(map(len, committables)))
            is_back = context.attempt != "g1-a1" and len(self.asked) - self.asked_before() > 3
            return answer(committables) if is_back else [CommitOutcome.RETRY] * len(committables)

        inner.commit = commit  # type: ignore[method-assign]
        if context.attempt != "g1-a1" and not self.before_second:
            self.before_second.append(len(self.asked))
        return inner

    before_second: list[int] = []

    def asked_before(self) -> int:
        return self.before_second[0]


@pytest.mark.property
def test_an_outside_that_stays_away_stops_the_job_from_reading_on_at_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_ledgers()
    AwayAtFirst.asked.clear()
    AwayAtFirst.before_second.clear()
    monkeypatch.setattr(sink_operator, "MAX_UNCOMMITTED_BYTES", LIMIT_BYTES)
    script = [line for number in range(EPOCHS) for line in (number, Checkpoint())]
    env = tg.StreamEnvironment("away")
    env.checkpointing(every="20ms", storage="memory://uncommitted-bound")
    env.restart_strategy("fixed-delay", attempts=1, delay="0s")
    env.from_source(ScriptedSource(script[:-1], int), uid="in").sink_to(AwayAtFirst("away"), uid="out")

    result = run_in_process(env, seed=5)

    assert result.status is JobStatus.FINISHED
    assert result.attempts == 2
    (failure,) = result.view.failures
    assert "sink 'out', subtask 0, holds" in failure.error
    assert "checkpoints that are not committed yet" in failure.error
    assert 0 < max(AwayAtFirst.asked) <= LIMIT_BYTES
    assert ledger("away").rows() == list(range(EPOCHS))


class CountingSink(tg.Sink):
    """Its outside is a number: each committable adds one, whatever its bytes are. It takes one at a time."""

    guarantee = "exactly-once"
    added: list[int] = []

    def writer(self, context: tg.WriterContext) -> tg.SinkWriter:
        return CountingWriter()

    def committer(self, context: tg.WriterContext) -> tg.Committer:
        return CountingCommitter()


class CountingWriter(tg.SinkWriter):
    def __init__(self) -> None:
        self._rows: list[int] = []

    def write(self, batch: Batch) -> None:
        self._rows += batch.rows()

    def prepare(self, checkpoint: int) -> list[bytes]:
        prepared, self._rows = [b"one more"] * len(self._rows), []
        return prepared


class CountingCommitter(tg.Committer):
    def commit(self, committables: list[bytes]) -> list[CommitOutcome]:
        CountingSink.added.append(1)
        return [CommitOutcome.DONE] + [CommitOutcome.RETRY] * (len(committables) - 1)


@pytest.mark.property
def test_what_is_prepared_twice_in_the_same_bytes_is_committed_twice() -> None:
    CountingSink.added.clear()
    env = tg.StreamEnvironment("same")
    env.checkpointing(every="20ms", storage="memory://same-bytes")
    script = [1, 2, 3, Checkpoint(), 4, 5]
    env.from_source(ScriptedSource(script, int), uid="in").sink_to(CountingSink(), uid="out")

    assert run_in_process(env, seed=1).status is JobStatus.FINISHED
    assert len(CountingSink.added) == 5


@pytest.mark.property
def test_more_than_an_acknowledgement_has_room_for_declines_the_checkpoint_and_says_whose_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A slot may host several sinks, each within its own bound."""
    forget_ledgers()
    monkeypatch.setattr(control, "MAX_MESSAGE_BYTES", 1500)
    script = [line for number in range(EPOCHS) for line in (number, Checkpoint())]
    env = tg.StreamEnvironment("two-sinks")
    env.checkpointing(every="20ms", storage="memory://acknowledgement-bound")
    env.restart_strategy("none")
    numbers = env.from_source(ScriptedSource(script[:-1], int), uid="in")
    for name in ("one", "two"):
        numbers.sink_to(LedgerSink(name, flaky_commits=1_000_000), uid=name)

    result = run_in_process(env, seed=5)

    assert result.status is JobStatus.FAILED
    assert "the slot's part of the checkpoint cannot be sent" in str(result.error)
    assert "(Acknowledge) of " in str(result.error)
    assert "bytes is over the limit of 1500. It holds, of 'in': " in str(result.error)
    assert "'two': 0 splits, " in str(result.error)
    assert "give these operators a higher parallelism" in str(result.error)
