"""Which slot continues from what: state by key group, splits dealt out again, committables to anyone. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from protocol_kit import CountEach, Numbered, counting_job, environment

import tidegate as tg
from tidegate.connectors.contract import Split
from tidegate.coordinator.recording import operator_infos
from tidegate.coordinator.restoring import plan_start, splits_to_read, stored_max_parallelism
from tidegate.errors import ConfigurationError
from tidegate.graph.plan import JobPlan, plan_job
from tidegate.protocol.watermarks import MAX_WATERMARK
from tidegate.state.key_groups import key_group_range
from tidegate.storage.metadata import (
    CheckpointMetadata,
    Committable,
    FileRef,
    SectionRef,
    SlotSnapshot,
    SplitState,
    SubtaskSnapshot,
)
from tidegate.testing.ledger_sink import LedgerSink
from tidegate.wire.control import Start, SubtaskRestore

KEY_GROUPS = 128


def planned(parallelism: int, keys: Any = int, max_parallelism: int | None = None) -> JobPlan:
    env = environment(parallelism=parallelism)
    stream = env.from_source(Numbered(1, 4, 3), uid="source", returns=tuple[int, int])
    selector = (lambda row: row[1] % 5) if keys is int else (lambda row: str(row[1]))
    counted = stream.key_by(selector, key_type=keys).process(CountEach(), uid="count", max_parallelism=max_parallelism)
    counted.sink_to(LedgerSink("out"), uid="out")
    return plan_job("job", env._graph, parallelism)


def checkpoint(plan: JobPlan, ended: dict[str, list[bool]] | None = None, splits: int = 4) -> CheckpointMetadata:
    """What the slots of `plan` would hand in: state in every key group, splits at positions, a committable each."""
    slots = []
    for slot in plan.slots:
        sections, subtasks, offset = [], [], 0
        for chain in plan.layers[slot.layer].chains:
            subtask = plan.subtask_in(chain, slot)
            assert subtask is not None
            for operator in chain.operators:
                own = SubtaskSnapshot(
                    operator.uid,
                    subtask,
                    (ended or {}).get(operator.uid, [False] * operator.parallelism)[subtask],
                    splits=[
                        SplitState(str(id), 100 + id)
                        for id in range(splits)
                        if operator.uid == "source" and id % operator.parallelism == subtask
                    ],
                    committables=[Committable("out", 7, 1, f"from {subtask}".encode())]
                    if operator.uid == "out"
                    else [],
                )
                subtasks.append(own)
                if operator.uid == "count":
                    for group in key_group_range(subtask, operator.parallelism, operator.max_parallelism):
                        sections.append(SectionRef("count", "seen", "map", group, offset, 10, 1, "checksum"))
                        offset += 10
        file = FileRef(offset, path=f"slot-{slot}", sections=sections)
        slots.append(SlotSnapshot(slot.layer, slot.index, file, subtasks))
    return CheckpointMetadata(
        job="job",
        checkpoint=7,
        generation=1,
        attempt=1,
        triggered_at=0.0,
        completed_at=0.0,
        operators=operator_infos(plan),
        slots=slots,
        final=False,
    )


def restores(starts: dict[Any, Start], uid: str) -> list[SubtaskRestore]:
    found = [restore for start in starts.values() for restore in start.subtasks if restore.uid == uid]
    return sorted(found, key=lambda restore: restore.subtask)


def key_groups_given(starts: dict[Any, Start]) -> Counter[int]:
    return Counter(section.key_group for start in starts.values() for file in start.files for section in file.sections)


def discovered(count: int) -> dict[str, list[Split]]:
    return {"source": [Split(str(id)) for id in range(count)]}


def test_a_fresh_start_deals_out_the_splits_and_restores_nothing() -> None:
    plan = planned(3)
    starts = plan_start(plan, None, discovered(4))

    assert set(starts) == set(plan.slots)
    assert all(start.restored_from is None and start.files == [] for start in starts.values())
    dealt = [[split.id for split in restore.splits] for restore in restores(starts, "source")]
    assert dealt == [["0", "3"], ["1"], ["2"]]
    assert splits_to_read(starts, ["source"]) == {"source": 4}


def test_splits_that_are_finished_are_not_to_be_read() -> None:
    plan = planned(2)
    splits = [Split("0"), Split("1", 5, finished=True), Split("2")]
    assert splits_to_read(plan_start(plan, None, {"source": splits}), ["source"]) == {"source": 2}


@pytest.mark.parametrize("before", [1, 2, 3, 4])
@pytest.mark.parametrize("after", [1, 2, 3, 4, 5])
def test_at_any_parallelism_each_part_goes_to_exactly_one_subtask(before: int, after: int) -> None:
    plan = planned(after)
    starts = plan_start(plan, checkpoint(planned(before)), discovered(4))

    assert all(start.restored_from == 7 for start in starts.values())
    splits = [split for restore in restores(starts, "source") for split in restore.splits]
    assert sorted((split.id, split.position) for split in splits) == [(str(id), 100 + id) for id in range(4)]
    committables = [each.payload for restore in restores(starts, "out") for each in restore.committables]
    assert sorted(committables) == [f"from {subtask}".encode() for subtask in range(before)]
    assert key_groups_given(starts) == Counter(range(KEY_GROUPS))


@pytest.mark.parametrize("after", [1, 2, 3, 4, 5])
def test_a_subtask_gets_the_key_groups_that_are_routed_to_it(after: int) -> None:
    plan = planned(after)
    starts = plan_start(plan, checkpoint(planned(3)), discovered(4))
    for slot, start in starts.items():
        chain = plan.layers[slot.layer].chains[0]
        subtask = plan.subtask_in(chain, slot)
        assert subtask is not None
        given = {section.key_group for file in start.files for section in file.sections}
        wanted = set(key_group_range(subtask, after, KEY_GROUPS)) if chain.head.uid == "count" else set()
        assert given == wanted


def test_a_known_split_keeps_its_position_and_a_new_one_begins_at_its_beginning() -> None:
    starts = plan_start(planned(2), checkpoint(planned(2), splits=3), discovered(5))
    splits = {split.id: split.position for restore in restores(starts, "source") for split in restore.splits}

    assert splits == {"0": 100, "1": 101, "2": 102, "3": None, "4": None}


def test_a_split_that_is_gone_from_the_source_is_still_continued() -> None:
    starts = plan_start(planned(2), checkpoint(planned(2)), discovered(0))

    assert sum(len(restore.splits) for restore in restores(starts, "source")) == 4


def all_read(metadata: CheckpointMetadata, watermark: int | None = None) -> CheckpointMetadata:
    """The same, with every split of a subtask that has ended finished."""
    return msgspec.structs.replace(
        metadata,
        slots=[
            msgspec.structs.replace(
                slot,
                subtasks=[
                    msgspec.structs.replace(
                        subtask,
                        watermark=watermark,
                        splits=[SplitState(split.id, split.position, subtask.ended) for split in subtask.splits],
                    )
                    for subtask in slot.subtasks
                ],
            )
            for slot in metadata.slots
        ],
    )


def everywhere(flags: list[bool]) -> dict[str, list[bool]]:
    return {uid: list(flags) for uid in ("source", "count", "out")}


def ended(starts: dict[Any, Start], uid: str) -> list[bool]:
    return [restore.ended for restore in restores(starts, uid)]


def test_at_the_same_parallelism_each_subtask_knows_whether_it_has_ended() -> None:
    old = all_read(checkpoint(planned(3), ended={"source": [True, False, True]}))
    starts = plan_start(planned(3), old, discovered(4))

    assert ended(starts, "source") == [True, False, True]
    assert ended(starts, "count") == ended(starts, "out") == [False] * 3


@pytest.mark.parametrize(("flags", "expected"), [([True, True, True], True), ([True, False, True], False)])
def test_at_another_parallelism_an_operator_has_ended_only_if_all_of_it_had(flags: list[bool], expected: bool) -> None:
    old = all_read(checkpoint(planned(3), ended=everywhere(flags)))
    starts = plan_start(planned(2), old, discovered(4))

    assert ended(starts, "source") == ended(starts, "count") == ended(starts, "out") == [expected] * 2


@pytest.mark.parametrize(
    ("way", "expected"),
    [
        (lambda stream: stream.rescale(), [True, True, False, False]),  # 0 and 1 hear of source 0 alone
        (lambda stream: stream.rebalance(), [False] * 4),
    ],
)
def test_a_subtask_has_ended_when_all_have_that_reach_it(
    way: Callable[[tg.DataStream], tg.DataStream], expected: list[bool]
) -> None:
    env = environment(parallelism=2)
    way(env.from_source(Numbered(1, 4, 3), uid="source")).sink_to(LedgerSink("out"), uid="out", parallelism=4)
    plan = plan_job("job", env._graph, 2)
    old = all_read(checkpoint(plan, ended={"source": [True, False], "out": [True, True, False, False]}))

    assert ended(plan_start(plan, old, discovered(4)), "out") == expected


def test_an_operator_behind_one_that_will_send_again_has_not_ended() -> None:
    """source -> keyed -> out, all ended; now there is a new operator between, whose own end may emit."""
    old = all_read(checkpoint(without_count(), ended={"source": [True, True], "out": [True, True]}))
    starts = plan_start(planned(2), old, discovered(4))

    assert ended(starts, "source") == [True, True]
    assert ended(starts, "count") == ended(starts, "out") == [False, False]


def test_a_subtask_that_gets_a_split_which_is_not_finished_has_not_ended() -> None:
    """A file that appeared since: its subtask had ended, and must run its end again after reading it."""
    old = all_read(checkpoint(planned(2), ended=everywhere([True, True])), MAX_WATERMARK)
    starts = plan_start(planned(2), old, discovered(5))

    unread = [[split.id for split in restore.splits if not split.finished] for restore in restores(starts, "source")]
    assert unread == [["4"], []]
    assert ended(starts, "source") == [False, True]
    assert ended(starts, "count") == ended(starts, "out") == [False, False]
    # What comes now must not be late: the last watermark of those that had ended is not taken over.
    assert [restore.watermark for restore in restores(starts, "count")] == [None, None]
    assert [restore.watermark for restore in restores(starts, "source")] == [None, MAX_WATERMARK]


def test_the_watermark_is_the_lowest_of_the_old_subtasks() -> None:
    old = checkpoint(planned(3))
    for slot in old.slots:
        slot.subtasks[:] = [msgspec.structs.replace(each, watermark=10 + each.subtask) for each in slot.subtasks]
    starts = plan_start(planned(2), old, discovered(4))

    assert [restore.watermark for restore in restores(starts, "count")] == [10, 10]


# -- what does not fit ------------------------------------------------------------------------------------------------


def without_count() -> JobPlan:
    env = environment(parallelism=2)
    env.from_source(Numbered(1, 4, 3), uid="source").sink_to(LedgerSink("out"), uid="out")
    return plan_job("job", env._graph, 2)


def test_state_that_has_no_operator_to_go_to_is_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigurationError, match=r"uid 'count'.*allow_dropped_state=True"):
        plan_start(without_count(), checkpoint(planned(2)), {})


def test_state_may_be_dropped_when_the_user_says_so() -> None:
    starts = plan_start(without_count(), checkpoint(planned(2)), {}, allow_dropped_state=True)

    assert not key_groups_given(starts)
    assert len([split for restore in restores(starts, "source") for split in restore.splits]) == 4


def test_an_operator_that_is_gone_and_held_nothing_is_no_trouble() -> None:
    env = environment(parallelism=2)
    mapped = env.from_source(Numbered(1, 4, 3), uid="source").map(lambda row: row, uid="plain")
    mapped.sink_to(LedgerSink("out"), uid="out")
    before = plan_job("job", env._graph, 2)

    assert plan_start(without_count(), checkpoint(before), {})


def test_a_new_operator_begins_empty() -> None:
    starts = plan_start(planned(2), checkpoint(without_count()), discovered(4))

    assert [restore.ended for restore in restores(starts, "count")] == [False, False]
    assert not key_groups_given(starts)


def test_another_number_of_key_groups_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"had max_parallelism 128 and has 64 now"):
        plan_start(planned(2, max_parallelism=64), checkpoint(planned(2)), {})


def test_the_number_of_key_groups_of_the_checkpoint_is_taken_over() -> None:
    assert stored_max_parallelism(checkpoint(planned(2, max_parallelism=300))) == {"count": 300}


def test_keys_of_another_type_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"had keys of type int and has str now"):
        plan_start(planned(2, keys=str), checkpoint(planned(2)), {})


def test_an_operator_that_is_no_longer_keyed_is_refused() -> None:
    class Plain(tg.ProcessFunction):
        def process_element(self, value: Any, ctx: tg.Context) -> None: ...

    env = environment(parallelism=2)
    stream = env.from_source(Numbered(1, 4, 3), uid="source").process(Plain(), uid="count")
    stream.sink_to(LedgerSink("out"), uid="out")
    with pytest.raises(ConfigurationError, match="had"):
        plan_start(plan_job("job", env._graph, 2), checkpoint(planned(2)), {})


def test_the_job_of_the_kit_is_the_job_of_these_tests() -> None:
    """So that what is shown here holds for what test_in_process_jobs runs."""
    env = counting_job(environment(parallelism=2), Numbered(1, 4, 3), LedgerSink("out"))
    assert plan_start(plan_job("job", env._graph, 2), checkpoint(planned(2)), discovered(4))
