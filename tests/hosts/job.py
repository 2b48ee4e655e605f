"""The job whose network is cut, and its driver as a program: `python -m hosts.job '<settings as JSON>'`.

    readings from Kafka -> key_by source: the n-th of its source -> key_by bucket: the m-th of its bucket -> Kafka, files in S3

Three layers of two slots each: each worker has a slot of every layer. Settings are the product's own, but for a short interval.
A process can be made to wait at a step of a checkpoint, for the test to cut in exactly there (`Waits`).
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import cloudpickle

import tidegate as tg
from faults.jobs.faulty import Trips
from faults.jobs.tally import BUCKETS, CountOfBucket, CountOfSource, narrate, say
from tidegate.errors import TidegateError
from tidegate.ids import SlotId
from tidegate.testing.crash_points import Crash, claim

WAIT_S = 30.0  #: at the most, for the test to cut

if __name__ != "__main__":  # the executors cannot import the tests
    cloudpickle.register_pickle_by_value(sys.modules[__name__])


@dataclasses.dataclass(frozen=True)
class Settings:
    name: str
    notes: str  #: a folder, shared by all processes of the test: files do not go over the network that is cut
    master: str
    spark_conf: dict[str, str]
    environment: dict[str, str]  #: of driver and workers: where S3 is
    servers: str
    readings: str  #: topics
    rows: str
    markers: str
    every: str = "500ms"
    resume: str | None = None
    config: dict[str, Any] = dataclasses.field(default_factory=dict)  #: of the job, in place of the defaults

    @property
    def files(self) -> str:
        """A folder of the bucket."""
        return f"{self.name}/rows"

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))


class Waits:
    """Crash points where nobody dies: whoever comes to the point that the test has armed says so, and waits until the test has
    cut the network."""

    def __init__(self, notes: str) -> None:
        self._notes = notes

    def reach(self, point: str, slot: SlotId | None = None, checkpoint: int | None = None) -> None:
        try:
            armed = json.loads(Path(self._notes, "armed").read_text())
        except FileNotFoundError:
            return
        step = Crash(point=armed["point"], layer=armed["layer"])
        reached = f"{self._notes}/reached-{armed['number']}"
        if not step.fits(point, slot) or not claim(reached, f"{point} {slot} {checkpoint}"):
            return
        deadline = time.monotonic() + WAIT_S
        while not os.path.exists(f"{self._notes}/cut-{armed['number']}") and time.monotonic() < deadline:
            time.sleep(0.005)


def build(settings: Settings) -> tg.StreamEnvironment:
    env = tg.StreamEnvironment(settings.name, parallelism=2, master=settings.master, spark_conf=settings.spark_conf)
    env.checkpointing(every=settings.every, storage=f"s3://checkpoints/{settings.name}", resume=settings.resume)
    env._config = dataclasses.replace(env._config, **settings.config)
    env._crash_points = Waits(settings.notes)
    readings = env.from_source(
        tg.KafkaSource(settings.servers, settings.readings, type=tuple[int, int], discover_every=None), uid="readings"
    )
    counted = (
        readings.key_by(0)
        .process(CountOfSource(Trips(None)), uid="of-source", returns=tuple[int, int, int])
        .key_by(bucket, key_type=int)
        .process(CountOfBucket(0.0), uid="of-bucket", returns=tuple[int, int, int, int, int, int])
    )
    counted.sink_to(tg.KafkaSink(settings.servers, settings.rows, markers=settings.markers), uid="kafka")
    counted.sink_to(tg.FileSink(f"s3://checkpoints/{settings.files}", "jsonl"), uid="files")
    return env


def bucket(counted: tuple[int, int, int]) -> int:
    return counted[1] % BUCKETS


def main() -> None:
    settings = Settings(**json.loads(sys.argv[1]))
    os.environ.update(settings.environment)
    try:
        client = build(settings).execute_async()
        narrate(client)
        say(launched=os.getpid())
        say(ended=client.wait().name)
    except TidegateError as error:
        say(ended=type(error).__name__, error=str(error))


if __name__ == "__main__":
    main()
