"""Sessionisation: the visits of users, which end when nothing has come for half an hour. As columns: no Python for each click.

python examples/visits.py
"""

import dataclasses

import tidegate as tg


@dataclasses.dataclass(frozen=True)
class Click:
    user: str
    page: str
    at: int  # ms


MINUTE = 60_000
CLICKS = [
    Click("ann", "/", 0),
    Click("bob", "/prices", 2 * MINUTE),
    Click("ann", "/basket", 12 * MINUTE),
    Click("ann", "/sails", 5 * MINUTE),  # out of order
    Click("bob", "/", 45 * MINUTE),
    Click("ann", "/", 90 * MINUTE),
]

env = tg.StreamEnvironment("visits")
times = tg.WatermarkStrategy.bounded_out_of_orderness("10min", timestamp="at")
clicks = env.from_collection(CLICKS, type=Click).assign_timestamps_and_watermarks(times)

visits = (
    clicks.key_by("user")
    .window(tg.EventTimeSessionWindows("30min"))
    .aggregate(clicks=tg.count(), came_by=tg.first("page"), left_from=tg.last("page"), pages=tg.count_distinct("page"))
    .uid("visits")
)
visits.map(
    lambda visit: (
        f"{visit['user']} at {visit['window_start'] // MINUTE}: {visit['clicks']} clicks, {visit['pages']} pages, "
        f"from {visit['came_by']} to {visit['left_from']}"
    ),
    returns=str,
).print()

env.execute()
