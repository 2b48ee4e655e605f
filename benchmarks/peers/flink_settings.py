"""What Flink is given in every one of its scripts: parallelism, exactly-once checkpoints each second to local files, objects
reused between chained operators, and a heap like that of the other JVMs. The rest is as it comes.
"""

from __future__ import annotations

import work
from pyflink.common import Configuration, Types, WatermarkStrategy
from pyflink.datastream import DataStream, StreamExecutionEnvironment
from pyflink.datastream.connectors.number_seq import NumberSequenceSource


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


def numbers(env: StreamExecutionEnvironment, records: int) -> DataStream:
    """From 0 on, by a reader in each subtask."""
    source = NumberSequenceSource(0, records - 1)
    return env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers", Types.LONG())


def numbers_in_order(env: StreamExecutionEnvironment, records: int) -> DataStream:
    """One reader, so that times advance together; its numbers are dealt out in turn."""
    return numbers(env, records).set_parallelism(1).rebalance()
