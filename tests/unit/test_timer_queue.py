"""The queue of timers against a plain set: what fires, in which order, and how much memory the deleted ones take."""

from __future__ import annotations

import random

import pytest
from state_kit import backend_for

from tidegate.state.keys import key_type
from tidegate.state.timers import EVENT_TIMERS, FEW_ENTRIES, LONGEST_CHAIN, TimerQueue

INT = key_type(int)


class World:
    """A queue, and the timers that are set by its model."""

    def __init__(self) -> None:
        self.backend = backend_for(INT)
        self.queue = TimerQueue(self.backend, EVENT_TIMERS)
        self.timers: set[tuple[int, int]] = set()  # moment, key

    def register(self, key: int, moment: int) -> None:
        self.backend.set_current_key(key)
        self.queue.register(key, moment)
        self.timers.add((moment, key))

    def delete(self, key: int, moment: int) -> None:
        self.backend.set_current_key(key)
        self.queue.delete(key, moment)
        self.timers.discard((moment, key))

    def fire(self, up_to: int) -> None:
        fired = list(self.queue.due(up_to))
        assert [moment for moment, _ in fired] == sorted(moment for moment, _ in fired)
        assert sorted(fired) == sorted(timer for timer in self.timers if timer[0] <= up_to)
        self.timers -= set(fired)

    def check(self) -> None:
        assert len(self.queue) <= 3 * len(self.timers) + FEW_ENTRIES
        following = self.queue.next_timestamp()
        assert not self.timers or (following is not None and following <= min(self.timers)[0])


@pytest.mark.parametrize("seed", range(12))
def test_all_and_only_the_timers_that_are_set_fire_and_few_entries_are_dead(seed: int) -> None:
    print("seed:", seed)
    dice = random.Random(seed)
    world, now = World(), 0
    keys, span, deleting = dice.choice([1, 5, 200]), dice.choice([3, 50, 5000]), dice.choice([0.1, 0.4, 0.6])
    for _ in range(2000):
        step = dice.random()
        if step < 0.01:
            now += dice.randrange(span)
            world.fire(now)
        elif step < deleting and world.timers:
            moment, key = dice.choice(sorted(world.timers))
            world.delete(key, moment)
        elif step < deleting + 0.05:
            world.delete(dice.randrange(keys), now + dice.randrange(span))  # which may not be set
        else:
            world.register(dice.randrange(keys), now + 1 + dice.randrange(span))
        world.check()
    world.fire(now + span)
    world.check()
    assert not world.timers


def test_a_timer_of_inactivity_takes_the_memory_of_one_timer() -> None:
    world = World()
    for record in range(10_000):
        if record:
            world.delete(7, 3_600_000 + record - 1)
        world.register(7, 3_600_000 + record)
    assert len(world.queue) <= FEW_ENTRIES
    world.fire(10_000_000)


def test_timers_of_one_moment_fire_in_the_order_of_their_registration() -> None:
    world = World()
    for key in (3, 1, 2):
        world.register(key, 10)
    for key in range(100, 200):  # of which most are deleted: the others change heaps
        world.register(key, 20)
        world.delete(key, 20)
    assert list(world.queue.due(10)) == [(10, 3), (10, 1), (10, 2)]


def test_at_the_end_of_time_a_chain_of_timers_has_an_end_and_what_is_left_fires_when_time_goes_on() -> None:
    world = World()
    for key in (1, 2):
        world.register(key, 10)
    queue = world.queue

    fired = []
    for moment, key in queue.due_at_the_end():
        fired.append((moment, key))
        queue.register(key, moment + 10)
        if key == 2:  # taken back and set again: the same timer
            queue.delete(key, moment + 10)
            queue.register(key, moment + 10)

    assert fired == [(moment, key) for moment in range(10, 10 * LONGEST_CHAIN + 11, 10) for key in (1, 2)]
    following = fired[-1][0] + 10
    assert list(queue.due(following - 1)) == []
    assert list(queue.due(following)) == [(following, 1), (following, 2)]


def test_what_is_left_at_the_end_of_time_can_be_deleted() -> None:
    world = World()
    world.register(1, 10)
    queue = world.queue
    for moment, key in queue.due_at_the_end():
        queue.register(key, moment + 10)
    left = queue.next_timestamp()
    assert left is not None

    world.delete(1, left)

    assert list(queue.due(left)) == []
