"""What Flink is given in every one of its scripts: parallelism, exactly-once checkpoints each second to local files, objects
reused between chained operators, and a heap like that of the other JVMs. The rest is as it comes.
"""

from __future__ import annotations

import work
from pyflink.common import Configuration


def configuration(task: work.Task, more: dict[str, str] | None = None) -> Configuration:
    settings = {
        "parallelism.default": str(work.PARALLELISM),
        "execution.checkpointing.interval": f"{work.CHECKPOINT_S}s",
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "execution.checkpointing.storage": "filesystem",
        "execution.checkpointing.dir": (task.state / "checkpoints").as_uri(),
        "state.backend.type": "hashmap",
        "pipeline.object-reuse": "true",
        **(more or {}),
    }
    made = Configuration()
    for name, value in settings.items():
        made.set_string(name, value)
    return made
