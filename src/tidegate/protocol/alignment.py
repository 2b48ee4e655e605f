"""Sources of one group stay together in event time. Pure; the board on the driver, the limit in each slot of the first layer.

    source subtask: "my watermark is at w"     --> driver: the lowest of the group, when it has moved
                                               --> all source slots: who is above lowest + drift reads nothing

Who has said nothing yet, is idle, or has ended holds nobody back.

Invariant. While a group has a lowest member, that member is below every limit: one at least may read.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidegate.protocol.watermarks import IDLE, MAX_WATERMARK

Member = tuple[str, int]  #: (uid, subtask)


@dataclass(slots=True)
class AlignmentBoard:
    """Where the members of each group stand."""

    groups: dict[str, dict[Member, int]] = field(default_factory=dict)  #: those that hold others back
    lowest: dict[str, int] = field(default_factory=dict)  #: as it was told

    def on_reached(self, group: str, member: Member, watermark: int) -> int | None:
        """The lowest of the group, if there is news; MAX_WATERMARK when nobody holds anybody back."""
        members = self.groups.setdefault(group, {})
        if watermark in (IDLE, MAX_WATERMARK):
            members.pop(member, None)
        else:
            members[member] = watermark
        lowest = min(members.values(), default=MAX_WATERMARK)
        if self.lowest.get(group) == lowest:
            return None
        self.lowest[group] = lowest
        return lowest


def may_read(watermark: int, lowest: int | None, drift_ms: int) -> bool:
    """`lowest`: of the group, as far as it was told."""
    return lowest is None or lowest == MAX_WATERMARK or watermark <= lowest + drift_ms
