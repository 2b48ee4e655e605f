"""Credit: a slot that cannot keep up has about as much under way to it as it can process in time, and nobody waits for ever."""

from __future__ import annotations

import math
import random
from collections import deque

import pytest
import test_slot
from protocol_kit import Numbered, environment
from test_attempt import Driver
from test_slot import SlowTrack, Worker, planned

import tidegate as tg
from tidegate.connectors.contract import ReaderContext, SourceReader
from tidegate.ids import SlotId
from tidegate.protocol.credit import (
    FIRST_WINDOW,
    MANY,
    MAX_MESSAGES_PER_S,
    CreditBoard,
    Grant,
    Progress,
    ReceiveWindow,
    SendCredit,
)
from tidegate.task.program import SlotSettings
from tidegate.testing.clock import ManualClock
from tidegate.testing.ledger_sink import LedgerSink, forget_ledgers, ledger
from tidegate.testing.runner import InProcessRun
from tidegate.wire.control import Credits, Finish, InboxOverBound, PauseSources, Progressed, Start, Trigger
from tidegate.wire.frame import FLAG_UNALIGNED

nothing_has_happened = test_slot.nothing_has_happened
TARGET_S = 0.5
RECORD_BYTES = 1000
RECEIVER = SlotId(1, 0)

# -- the sender -------------------------------------------------------------------------------------------------------


def test_the_first_records_go_without_a_word_of_the_receiver_and_then_it_is_waited_for() -> None:
    credit = SendCredit(2, limited=True)
    credit.sending(0, FIRST_WINDOW - 1)
    assert not credit.is_used_up
    credit.sending(0, 1)
    assert credit.is_used_up  # the next record may be for this one, though the other has credit left

    credit.granted(Grant(1, 0, 100))
    assert credit.is_used_up
    credit.granted(Grant(0, 3, FIRST_WINDOW))
    assert not credit.is_used_up
    assert credit.records_left == 3 + 100


def test_a_smaller_window_counts_against_what_is_under_way() -> None:
    credit = SendCredit(1, limited=True)
    credit.granted(Grant(0, 0, None))
    credit.sending(0, 1000)
    assert not credit.is_used_up

    credit.granted(Grant(0, 200, 10))
    assert credit.is_used_up
    credit.granted(Grant(0, 990, 10))
    assert credit.is_used_up
    credit.granted(Grant(0, 991, 10))
    assert not credit.is_used_up
    assert credit.records_left == 1


def test_without_a_limit_or_a_receiver_nothing_is_waited_for() -> None:
    unlimited = SendCredit(1, limited=False)
    unlimited.sending(0, 10**9)

    assert not unlimited.is_used_up
    assert unlimited.records_left == SendCredit(0, limited=True).records_left == MANY


# -- the receiver -----------------------------------------------------------------------------------------------------


def process(window: ReceiveWindow, records: int, seconds_each: float, channels: tuple[int, ...] = (0,)) -> Progress:
    """Records one by one, the channels in turn; the last word to the senders."""
    last = None
    for number in range(records):
        last = window.on_processed(channels[number % len(channels)], 1, RECORD_BYTES, seconds_each) or last
    assert last is not None
    return last


@pytest.mark.parametrize(("seconds_each", "in_time"), [(0.010, 50), (0.100, 5), (0.001, 500)])
def test_a_slow_slot_takes_what_it_can_process_in_time(seconds_each: float, in_time: int) -> None:
    said = process(ReceiveWindow(2, TARGET_S), 1000, seconds_each, channels=(0, 1))

    assert said.windows is not None
    assert in_time * 0.9 <= sum(said.windows) <= in_time * 1.1 + 2


def test_a_fast_slot_takes_what_comes_and_says_nothing_more() -> None:
    window = ReceiveWindow(1, TARGET_S)
    assert process(window, 10_000, 0.00001).windows is None  # 100 MB a second

    assert not [said for _ in range(10_000) if (said := window.on_processed(0, 100, 100_000, 0.001)) is not None]


def test_a_slot_that_becomes_slow_says_so_soon() -> None:
    window = ReceiveWindow(1, TARGET_S)
    process(window, 10_000, 0.00001)
    words = [window.on_processed(0, 1, RECORD_BYTES, 0.010) for _ in range(300)]

    spoken = [number for number, said in enumerate(words) if said is not None]
    assert spoken[0] <= 100  # within a second
    last = words[spoken[-1]]
    assert last is not None
    assert last.windows is not None
    assert last.windows[0] < 100


def test_a_slot_whose_only_busy_channel_is_one_of_many_gives_it_all() -> None:
    said = process(ReceiveWindow(10, TARGET_S), 1000, 0.010, channels=(3,))

    assert said.windows is not None
    assert said.windows[3] == pytest.approx(50, abs=3)
    assert set(said.windows[:3] + said.windows[4:]) == {5}  # they may begin with their even share


def test_records_that_a_restore_has_brought_give_no_credit_but_tell_the_speed() -> None:
    window = ReceiveWindow(1, TARGET_S)
    words = [window.on_processed(None, 1, RECORD_BYTES, 0.010) for _ in range(100)]
    said = [word for word in words if word is not None]

    assert said
    assert all(word.processed == [0] for word in said)


def test_a_slow_clock_divides_by_nothing() -> None:
    assert process(ReceiveWindow(1, TARGET_S), 10_000, 0.0).windows is None


@pytest.mark.property
@pytest.mark.parametrize("seed", range(40))
def test_sender_and_receiver_never_wait_for_each_other(seed: int) -> None:
    """Whatever the speed, its changes, the delays and the sender's steps: everything is sent, and processed, in the end."""
    rng = random.Random(seed)
    credit, window = SendCredit(1, limited=True), ReceiveWindow(1, rng.choice([0.001, 0.1, 1.0]))
    under_way: deque[int] = deque()
    words: deque[Grant] = deque()
    sent = processed = 0
    while processed < 3000:
        moves = [name for name, possible in [
            ("send", sent < 3000 and not credit.is_used_up), ("process", bool(under_way)), ("hear", bool(words)),
        ] if possible]  # fmt: skip
        assert moves, f"stuck at {sent} sent, {processed} processed; seed {seed}"
        match rng.choice(moves):
            case "send":
                step = min(rng.choice([1, 1, 7, 400]), 3000 - sent)
                credit.sending(0, step)
                sent += step
                under_way.append(step)
            case "process":
                step = under_way.popleft()
                processed += step
                said = window.on_processed(0, step, step * 100, rng.choice([0.0, 1e-6, 0.01, 2.0]))
                if said is not None:
                    words.append(Grant(0, said.processed[0], None if said.windows is None else said.windows[0]))
            case "hear":
                credit.granted(words.popleft())


# -- the driver -------------------------------------------------------------------------------------------------------


def test_each_sender_hears_the_newest_word_of_each_receiver() -> None:
    board = CreditBoard(slots=0)
    for sender in (SlotId(0, 0), SlotId(0, 1)):
        board.on_connected(sender)
    board.on_progress(SlotId(1, 0), Progress([1, 2], [10, 20]))
    board.on_progress(SlotId(1, 1), Progress([5, 6], None))
    board.on_progress(SlotId(1, 0), Progress([3, 4], [11, 21]))

    assert board.take_due(0.0) == [
        (SlotId(0, 0), [Grant(0, 3, 11), Grant(1, 5, None)]),
        (SlotId(0, 1), [Grant(0, 4, 21), Grant(1, 6, None)]),
    ]
    assert board.take_due(1.0) == []


def test_a_word_for_a_sender_that_has_not_called_yet_waits_for_it() -> None:
    board = CreditBoard(slots=0)
    board.on_connected(SlotId(0, 0))
    board.on_progress(SlotId(1, 0), Progress([1, 0], [10, 10]))
    board.on_progress(SlotId(1, 0), Progress([9, 0], None))

    assert board.take_due(0.0) == [(SlotId(0, 0), [Grant(0, 9, None)])]
    assert (board.take_due(1.0), board.due_at) == ([], math.inf)
    board.on_connected(SlotId(0, 1))
    assert board.take_due(2.0) == [(SlotId(0, 1), [Grant(0, 0, None)])]


def test_a_slot_that_calls_late_hears_what_others_were_told_before() -> None:
    driver = Driver()
    (late,) = [slot for slot in driver.plan.slots if slot.layer == 0]
    driver.attempt.slot_connected(RECEIVER)
    driver.attempt.slot_said(RECEIVER, Progressed(Progress([0], None)))
    driver.attempt.slot_said(RECEIVER, InboxOverBound())
    driver.attempt.slot_connected(late)

    assert [type(message) for slot, message in driver.links.sent if slot == late] == [Start, Credits, PauseSources]
    assert driver.links.sent[-2] == (late, Credits([Grant(0, 0, None)]))


def test_a_wide_job_does_not_flood_the_driver() -> None:
    slots = 200
    board = CreditBoard(slots)
    for number in range(100):
        board.on_connected(SlotId(0, number))
    sent = 0
    now = 0.0
    for number in range(4000):
        now += 0.0005
        board.on_progress(SlotId(1, number % 100), Progress([number] * 100, [1] * 100))
        sent += len(board.take_due(now))
    assert sent <= MAX_MESSAGES_PER_S * now + slots
    assert board.due_at <= now + slots / MAX_MESSAGES_PER_S  # and what waits is not forgotten


def test_the_driver_passes_a_receivers_word_on_to_its_senders_alone() -> None:
    driver = Driver().start()
    senders = sorted(slot for slot in driver.plan.slots if slot.layer == 0)
    driver.attempt.slot_said(RECEIVER, Progressed(Progress([7] * len(senders), [3] * len(senders))))
    driver.attempt.tick()

    said = [(slot, message) for slot, message in driver.links.sent if isinstance(message, Credits)]
    assert said == [(slot, Credits([Grant(0, 7, 3)])) for slot in senders]


# -- a slot -----------------------------------------------------------------------------------------------------------


def test_a_slot_without_credit_takes_no_input_and_sends_barriers_all_the_same() -> None:
    worker = Worker(planned(sink_parallelism=2)).start()
    many = FIRST_WINDOW * 4
    worker.get(*(worker.a.records(number) for number in range(many)))
    taken = len(test_slot.events)
    assert FIRST_WINDOW <= taken < many
    assert worker.slot.must_wait

    worker.tell(Trigger(1, 0.0))
    worker.get(worker.a.barrier(1, FLAG_UNALIGNED), worker.b.barrier(1, FLAG_UNALIGNED))
    assert len(test_slot.events) == taken
    assert worker.sent().count(("barrier", 1)) == 2

    worker.tell(Credits([Grant(0, taken, None), Grant(1, taken, None)]))
    assert len(test_slot.events) == many


def test_a_slot_that_is_told_to_finish_needs_no_credit() -> None:
    worker = Worker(planned(sink_parallelism=2)).start()
    worker.get(*(worker.a.records(number) for number in range(FIRST_WINDOW * 4)))
    worker.tell(Finish())

    assert len(test_slot.events) == FIRST_WINDOW * 4


def test_a_slow_slot_says_what_it_has_processed_and_how_much_more_it_takes() -> None:
    worker = Worker(planned(SlowTrack()), settings=SlotSettings(in_flight_target_s=10.0)).start()
    worker.get(*(worker.a.records(number, number) for number in range(50)))

    said = [message.progress for message in worker.said.of(Progressed)]
    assert said[-1].processed[0] > 100 - 10 / 4  # a quarter of the window is too little to say
    assert said[-1].windows == [10, 5]  # a record takes a second; the silent channel may begin with half of them


def test_without_a_target_a_slot_says_nothing_and_waits_for_nobody() -> None:
    settings = SlotSettings(in_flight_target_s=None)
    worker = Worker(planned(SlowTrack(), sink_parallelism=2), settings=settings).start()
    worker.get(*(worker.a.records(number) for number in range(FIRST_WINDOW * 4)))

    assert len(test_slot.events) == FIRST_WINDOW * 4
    assert not worker.said.of(Progressed)


# -- a job ------------------------------------------------------------------------------------------------------------

under_way: list[int] = []  #: records between source and sink, at each poll
clocks: list[ManualClock] = []
counts = {"read": 0, "done": 0}


class Watched(Numbered):
    """A source that gives as much as is wanted, and notes how much is under way."""

    def reader(self, context: ReaderContext) -> SourceReader:
        reader = super().reader(context)
        reader._sizes = iter(lambda: min(500, context.wanted()), -1)  # type: ignore[attr-defined]
        poll = reader.poll

        def watched(deadline: float) -> object:
            under_way.append(counts["read"] - counts["done"])
            records = poll(deadline)
            counts["read"] += len(records or ())
            return records

        reader.poll = watched  # type: ignore[method-assign,assignment]
        return reader


class Slow(tg.ProcessFunction):
    """10 ms a record, all slots of it together."""

    def process_element(self, value: tuple[int, int], ctx: tg.Context) -> list[tuple[int, int]]:
        clocks[0].advance(0.010)
        counts["done"] += 1
        return [value]


def most_under_way(seed: int, target_s: float | None) -> int:
    """In a job of two hops that cannot keep up, once its speed is known."""
    forget_ledgers()
    under_way.clear()
    counts.update(read=0, done=0)
    limits = {"debloat": target_s is not None, "debloat_target_s": target_s or 1.0}
    env = environment(every="500ms", limits=limits)
    source = Watched(1, splits=2, per_split=900)
    numbers = env.from_source(source, uid="source", returns=tuple[int, int])
    passed = numbers.rebalance().process(Pass(), uid="pass", returns=tuple[int, int])
    passed.rebalance().process(Slow(), uid="slow", returns=tuple[int, int]).sink_to(LedgerSink("out"), uid="out")
    run = InProcessRun(env, seed)
    clocks[:] = [run.world.clock]
    result = run.run()
    assert sorted(ledger("out").rows()) == sorted(source.rows())
    assert result.view.completed
    return max(under_way[len(under_way) // 4 :])


class Pass(tg.ProcessFunction):
    def process_element(self, value: tuple[int, int], ctx: tg.Context) -> list[tuple[int, int]]:
        return [value]


@pytest.mark.property
@pytest.mark.parametrize("seed", range(4))
def test_what_is_under_way_in_a_job_that_cannot_keep_up_follows_the_target(seed: int) -> None:
    """A record takes 10 ms, so a second is 100 records; without a target the buffers decide."""
    assert most_under_way(seed, None) > 600
    assert most_under_way(seed, 1.0) < 250
