"""What holds of all checkpoints of an attempt in the driver, as far as a state shows it. Pure.

`CheckpointScheduler.validate` asserts it, for tests, after each event. The invariants are told in checkpointing.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.protocol.checkpoint_states import MOVES, CheckpointState

if TYPE_CHECKING:
    from tidegate.protocol.checkpointing import CheckpointScheduler


def invariants(of: CheckpointScheduler) -> list[tuple[str, bool]]:
    """Each in words, and whether it holds."""
    known = list(of.checkpoints.values())
    ids = list(of.checkpoints)
    storing = [each.checkpoint for each in known if each.storing and each.commits]
    return [
        ("only slots of the plan are ready, or have ended", of.ready <= of.slots >= of.ended),
        ("ids grow, and the next is above all", ids == sorted(ids) and all(id < of.next_id for id in ids)),
        ("each is under its own id", all(id == each.checkpoint for id, each in of.checkpoints.items())),
        ("what has ended is forgotten", all(MOVES[each.state] for each in known)),
        (
            "exactly those that wait for a slot are PENDING",
            all((each.snapshots.keys() != of.slots) == (each.state is CheckpointState.PENDING) for each in known),
        ),
        (
            "nobody but a slot of the plan has acknowledged",
            all(each.snapshots.keys() <= of.slots for each in known),
        ),
        (
            "only savepoints wait for another",
            all(not each.commits for each in known if each.state is CheckpointState.UNCOVERED),
        ),
        (
            "a savepoint that is covered is stored",
            all(each.checkpoint > of.latest_completed for each in known if each.state is CheckpointState.UNCOVERED),
        ),
        ("what commits is newer than what was completed", all(id > of.latest_completed for id in storing)),
        (
            "at most so many as allowed wait for slots",
            len(of.in_state(CheckpointState.PENDING)) <= of.policy.max_concurrent,
        ),
        ("nothing is triggered before all are ready", not known or of.ready == of.slots),
        (
            "after the last checkpoint there is none",
            of.final is None or all(id <= of.final for id in ids),
        ),
        (
            "a finished attempt has nothing under way",
            not of.finished or (of.final is not None and not of.under_way),
        ),
    ]
