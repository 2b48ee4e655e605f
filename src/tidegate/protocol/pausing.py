"""When sources pause. Pure; driven by coordinator/attempt.py on the driver.

    FLOWING --the first inbox goes over its bound--> PAUSED --the last is back within its bound--> FLOWING

An unaligned checkpoint opens the inboxes, so that its barriers wait for the network alone. That lets in what stood in the
network. If sources filled the network again, each checkpoint would move as much into the inboxes of slots that cannot
keep up, and they would grow without end. So while an inbox is over its bound sources read nothing; they keep sending
barriers. A slot that is over its bound has enough to work on meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidegate.ids import SlotId


@dataclass(slots=True)
class SourcePauses:
    """`True` from a method: tell the sources."""

    over: set[SlotId] = field(default_factory=set)  #: slots whose inbox is over its bound

    def on_over_bound(self, slot: SlotId) -> bool:
        first = not self.over
        self.over.add(slot)
        return first

    def on_within_bound(self, slot: SlotId) -> bool:
        if slot not in self.over:
            return False
        self.over.discard(slot)
        return not self.over
