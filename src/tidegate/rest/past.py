"""The last half hour of a job, as columns for plots. Driver; pure."""

from __future__ import annotations

from typing import Any

from tidegate.coordinator.past import STEP_S
from tidegate.rest.numbers import ms
from tidegate.rest.served import ServedJob


def past(job: ServedJob) -> dict[str, Any]:
    """All lists have one entry for each moment, the oldest first; null where it was not known."""
    moments = job.memory.past()
    vertices = {vertex.id: vertex.name for vertex in job.vertices()}
    return {
        "now": ms(job.memory.wall_clock()),
        "step": ms(STEP_S),
        "at": [ms(moment.at) for moment in moments],
        "fromSourcesPerSecond": [moment.from_sources_per_s for moment in moments],
        "lag": [moment.lag_ms for moment in moments],
        "checkpointDuration": [moment.checkpoint_ms for moment in moments],
        "restarts": [moment.restarts for moment in moments],
        "vertices": [
            {
                "id": id,
                "name": name,
                "busy": [m.loads[id][0] if id in m.loads else None for m in moments],
                "backPressured": [m.loads[id][1] if id in m.loads else None for m in moments],
            }
            for id, name in vertices.items()
        ],
    }
