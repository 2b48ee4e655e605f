"""Positions of a user's source over a failure: they come back as they were, or the job says why they cannot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from protocol_kit import environment

import tidegate as tg
from tidegate.testing.crash_points import Crash
from tidegate.testing.ledger_sink import LedgerSink, forget_ledgers, ledger
from tidegate.testing.runner import InProcessRun, RunResult

RECORDS = 300
KEPT = {"n": 0, "nested": [1, 1.0, True, None, "é", {"": -0.0}], "far": [-(2**63), 2**64 - 1]}


class Noting(tg.Source):
    """Counts up. What it notes of its place is the number, as `note` makes it; `read` makes the number of a note again."""

    def __init__(self, note: Any, read: Any) -> None:
        self.note, self.read = note, read

    def discover_splits(self, parallelism: int) -> list[tg.Split]:
        return [tg.Split("numbers")]

    def reader(self, context: tg.ReaderContext) -> tg.SourceReader:
        return NotingReader(self)


class NotingReader(tg.SourceReader):
    def __init__(self, source: Noting) -> None:
        self.source = source
        self.at: int | None = None

    def add_splits(self, splits: Sequence[tg.Split]) -> None:
        for split in splits:
            self.at = 0 if split.position is None else self.source.read(split.position)

    def poll(self, deadline: float) -> list[tuple[int, int]] | None:
        if self.at is None or self.at >= RECORDS:
            return None
        self.at += 1
        return [(0, self.at)]

    def splits(self) -> list[tg.Split]:
        return [] if self.at is None else [tg.Split("numbers", self.source.note(self.at), self.at >= RECORDS)]


def read_checked(position: Any) -> int:
    assert repr({**position, "n": 0}) == repr(KEPT)
    return position["n"]


def run(source: tg.Source, seed: int = 1) -> RunResult:
    forget_ledgers()
    env = environment(every="10ms", parallelism=1)
    env.from_source(source, uid="numbers", returns=tuple[int, int]).sink_to(LedgerSink("positions"), uid="out")
    return InProcessRun(env, seed, [Crash("slot.after-commit", nth=2, times=2)], max_actions=100_000).run()


@pytest.mark.parametrize(
    ("note", "read", "told"),
    [
        (lambda n: {0: n}, lambda p: p.get(0, 0), r"the key 0 is an int"),
        (lambda n: {("topic", 0): n}, lambda p: p.get(("topic", 0), 0), r"the key \('topic', 0\) is a tuple"),
        (lambda n: (n, n), lambda p: p[0] if isinstance(p, tuple) else 0, r"is a tuple, and would come back as a list"),
        (lambda n: b"%d" % n, lambda p: int(p) if isinstance(p, bytes) else 0, r"is a bytes"),
        (
            lambda n: datetime.fromtimestamp(n, UTC),
            lambda p: int(p.timestamp()) if isinstance(p, datetime) else 0,
            r"is a datetime",
        ),
        (lambda n: float("nan"), lambda p: 0, r"nan is a float"),
        (lambda n: 2**64 + n, lambda p: p - 2**64, "beyond 64 bits"),
        (lambda n: f"\udc80{n}", lambda p: int(p[1:]), "is not Unicode"),
    ],
)
def test_a_position_that_would_change_ends_the_job_before_anything_is_committed(note, read, told):
    result = run(Noting(note, read))

    assert result.status.value == "FAILED"
    assert ledger("positions").rows() == []
    with pytest.raises(tg.JobFailed, match=rf"NotingReader gives the split 'numbers' a position.*{told}"):
        raise result.error
    assert "in Noting (uid 'numbers'), subtask 0, checkpoint 1, at " in str(result.error)  # and the user's line


def test_a_position_that_json_has_comes_back_as_it_was():
    result = run(Noting(lambda n: {**KEPT, "n": n}, read_checked))

    assert (result.status.value, result.attempts > 1) == ("FINISHED", True)
    assert Counter(ledger("positions").rows()) == Counter({(0, n): 1 for n in range(1, RECORDS + 1)})


class Moving(Noting):
    def reader(self, context: tg.ReaderContext) -> tg.SourceReader:
        return MovingReader(self)


class MovingReader(NotingReader):
    """Notes its place in one dict that it keeps changing."""

    def __init__(self, source: Noting) -> None:
        super().__init__(source)
        self.place = {"n": 0}

    def add_splits(self, splits: Sequence[tg.Split]) -> None:
        super().add_splits(splits)
        self.place["n"] = self.at or 0

    def poll(self, deadline: float) -> list[tuple[int, int]] | None:
        polled = super().poll(deadline)
        self.place["n"] = self.at or 0
        return polled

    def splits(self) -> list[tg.Split]:
        return [] if self.at is None else [tg.Split("numbers", self.place, self.at >= RECORDS)]


@pytest.mark.property
@pytest.mark.parametrize("seed", range(6))
def test_a_reader_that_goes_on_changing_what_it_noted_changes_no_checkpoint(seed):
    """The snapshot is stored while the reader reads on: a position that moved with it would skip records."""
    result = run(Moving(None, lambda position: position["n"]), seed)

    assert (result.status.value, result.attempts > 1) == ("FINISHED", True)
    assert Counter(ledger("positions").rows()) == Counter({(0, n): 1 for n in range(1, RECORDS + 1)})


class Found(tg.Source):
    def __init__(self, split: tg.Split) -> None:
        self.split = split

    def discover_splits(self, parallelism: int) -> list[tg.Split]:
        return [self.split]

    def reader(self, context: tg.ReaderContext) -> tg.SourceReader:
        raise AssertionError("nothing is read")


@pytest.mark.parametrize(
    ("split", "told"),
    [
        (tg.Split("a", (1, 2)), "Found gives the split 'a' a position"),
        (tg.Split("caf\udce9"), r"Found names a split that no checkpoint can keep: the text 'caf\\udce9'"),
        (tg.Split(3), "Found names a split 3: an id is text"),
    ],
)
def test_a_split_that_no_checkpoint_can_keep_is_refused_where_it_is_found(split, told):
    result = run(Found(split))
    assert result.status.value == "FAILED"
    with pytest.raises(tg.ConfigurationError, match=rf"numbers.*test_stored_positions\.py:\d+: {told}"):
        raise result.error


# -- what sinks hand in ---------------------------------------------------------------------------------------------


class Slipping(tg.Sink):
    """A sink of somebody's own, with a slip in it."""

    def __init__(self, prepared: Any = b"rows", answer: Any = None) -> None:
        self.prepared, self.answer = prepared, answer

    def writer(self, context: tg.WriterContext) -> tg.SinkWriter:
        return SlippingWriter(self.prepared)

    def committer(self, context: tg.WriterContext) -> tg.Committer:
        return SlippingCommitter(self.answer)


class SlippingWriter(tg.SinkWriter):
    def __init__(self, prepared: Any) -> None:
        self.prepared = prepared

    def write(self, batch: Any) -> None: ...

    def prepare(self, checkpoint: Any) -> list[bytes]:
        return [self.prepared]


class SlippingCommitter(tg.Committer):
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def commit(self, committables: list[bytes]) -> list[tg.CommitOutcome]:
        return self.answer


@pytest.mark.parametrize(
    ("sink", "told"),
    [
        (Slipping("text"), r"SlippingWriter\.prepare of sink 'out' returned str: each committable must be bytes"),
        (Slipping(bytearray(b"x")), r"SlippingWriter\.prepare of sink 'out' returned bytearray"),
        (Slipping(answer=None), r"SlippingCommitter\.commit returned None: it must return a list"),
        (Slipping(answer=[True]), r"SlippingCommitter\.commit answered True, which is not a CommitOutcome"),
    ],
)
def test_a_slip_in_a_sink_of_ones_own_is_said_in_words(sink, told):
    env = environment(every="10ms", parallelism=1)
    env.from_collection([1, 2, 3], uid="numbers").sink_to(sink, uid="out")
    result = InProcessRun(env, 1, max_actions=20_000).run()
    assert result.status.value == "FAILED"
    with pytest.raises(tg.JobFailed, match=told):
        raise result.error
