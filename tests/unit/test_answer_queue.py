"""The order in which answers leave: a model says what may, for random scripts of everything that can happen."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest

from tidegate.protocol.answer_queue import AnswerQueue, Entry, Fence
from tidegate.protocol.watermarks import IDLE


@dataclass(eq=False)
class Named(Entry):
    name: str


def queue_of(ordered: bool, *items: str | int) -> tuple[AnswerQueue[Named], dict[str, Named]]:
    queue: AnswerQueue[Named] = AnswerQueue(ordered)
    entries: dict[str, Named] = {}
    for item in items:
        if isinstance(item, int):
            queue.fence(item)
        else:
            entries[item] = Named(item)
            queue.add(entries[item])
    return queue, entries


def taken(queue: AnswerQueue[Named]) -> list[Any]:
    return [item.watermark if isinstance(item, Fence) else item.name for item in queue.take()]


def test_ordered_answers_wait_for_older_ones():
    queue, of = queue_of(True, "a", "b")

    queue.answered(of["b"])
    assert not queue.can_leave
    assert taken(queue) == []
    queue.answered(of["a"])
    assert queue.can_leave
    assert taken(queue) == ["a", "b"]


def test_unordered_answers_leave_as_they_come_and_pass_no_fence():
    queue, of = queue_of(False, "a", "b", 10, "c")

    for name in "cb":
        queue.answered(of[name])
    assert taken(queue) == ["b"]
    queue.answered(of["a"])
    assert taken(queue) == ["a", 10, "c"]


def test_a_fence_before_which_nothing_stands_leaves_at_once():
    queue, _ = queue_of(True, 5)

    assert queue.can_leave
    assert taken(queue) == [5]
    assert not queue.can_leave


def test_of_fences_side_by_side_the_last_is_kept_and_idle_after_a_watermark():
    queue, of = queue_of(False, "a", 1, 2, IDLE, IDLE)
    queue.answered(of["a"])
    assert taken(queue) == ["a", 2, IDLE]

    queue, of = queue_of(False, "a", *[1, IDLE, 3, IDLE] * 50, 7, IDLE)
    assert len(queue._segments[0].fences) == 2
    queue.answered(of["a"])
    assert taken(queue) == ["a", 7, IDLE]


@pytest.mark.parametrize("ordered", [True, False])
def test_what_leaves_is_what_the_model_says(ordered: bool):
    for seed in range(200):
        rng = random.Random(seed)
        queue: AnswerQueue[Named] = AnswerQueue(ordered)
        line: list[Named | int] = []  # what has not left, as it came
        left: list[Any] = []
        for step in range(60):
            draw = rng.random()
            waiting = [item for item in line if isinstance(item, Named) and not item.is_answered]
            if draw < 0.4:
                entry = Named(str(step))
                queue.add(entry)
                line.append(entry)
            elif draw < 0.55:
                mark = step if rng.random() < 0.7 else IDLE
                queue.fence(mark)
                while mark != IDLE and line and isinstance(line[-1], int):
                    line.pop()
                if line[-1:] != [IDLE] or mark != IDLE:
                    line.append(mark)
            elif draw < 0.8 and waiting:
                queue.answered(rng.choice(waiting))
            else:
                may = _may_leave(line, ordered)
                assert queue.can_leave == bool(may), seed
                got = list(queue.take())
                names = [item.watermark if isinstance(item, Fence) else item for item in got]
                if ordered:
                    assert names == may, seed
                else:
                    assert [n for n in names if isinstance(n, int)] == [n for n in may if isinstance(n, int)], seed
                    assert _between_fences(names) == _between_fences(may), seed
                for item in names:
                    line.remove(item)
                left += names
            assert len(queue) == sum(isinstance(item, Named) for item in line)
            assert set(queue.entries()) == {item for item in line if isinstance(item, Named)}
        named = [item for item in left if isinstance(item, Named)]
        assert len(named) == len(set(named)), seed


def _may_leave(line: list[Any], ordered: bool) -> list[Any]:
    may: list[Any] = []
    blocked = False
    for item in line:
        if isinstance(item, int):
            if blocked:
                break
            may.append(item)
        elif item.is_answered and not (ordered and blocked):
            may.append(item)
        else:
            blocked = True
    return may


def _between_fences(items: list[Any]) -> list[set[Any]]:
    parts: list[set[Any]] = [set()]
    for item in items:
        if isinstance(item, int):
            parts.append(set())
        else:
            parts[-1].add(item)
    return parts
