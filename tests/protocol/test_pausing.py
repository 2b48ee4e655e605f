"""When sources pause: from the first inbox over its bound to the last one that is within its bound again."""

from __future__ import annotations

from test_attempt import Driver

from tidegate.ids import SlotId
from tidegate.protocol.pausing import SourcePauses
from tidegate.wire.control import InboxOverBound, InboxWithinBound, PauseSources, ResumeSources

A, B = SlotId(1, 0), SlotId(1, 1)


def test_sources_are_told_of_the_first_and_of_the_last() -> None:
    pauses = SourcePauses()

    assert pauses.on_over_bound(A)
    assert not pauses.on_over_bound(B)
    assert not pauses.on_over_bound(A)
    assert not pauses.on_within_bound(A)
    assert pauses.on_within_bound(B)
    assert pauses.on_over_bound(B)


def test_what_is_said_twice_or_for_nothing_changes_nothing() -> None:
    pauses = SourcePauses()

    assert not pauses.on_within_bound(A)
    assert pauses.on_over_bound(A)
    assert pauses.on_within_bound(A)
    assert not pauses.on_within_bound(A)


def test_only_the_slots_of_sources_are_told() -> None:
    driver = Driver().start()
    receivers = sorted(slot for slot in driver.plan.slots if slot.layer > 0)
    sources = {slot for slot in driver.plan.slots if slot.layer == 0}
    driver.attempt.slot_said(receivers[0], InboxOverBound())
    driver.attempt.slot_said(receivers[0], InboxWithinBound())

    for kind in (PauseSources, ResumeSources):
        assert {slot for slot, message in driver.links.sent if isinstance(message, kind)} == sources
