"""Sensor anomaly: a reading that stands out from its sensor's last ten seconds. With an aggregate of one's own over columns.

python examples/sensors.py
"""

import dataclasses

import numpy as np
import pyarrow as pa

import tidegate as tg


@dataclasses.dataclass(frozen=True)
class Reading:
    sensor: str
    level: float
    at: int  # ms


class Deviation(tg.ColumnAggregate):
    """The standard deviation, from three sums."""

    columns = ("level",)

    def accumulators(self, types):
        return [tg.Accumulator(pa.float64(), "sum")] * 3

    def partial(self, columns, times):
        level = columns[0].to_numpy()
        return [pa.array(np.ones(len(level))), pa.array(level), pa.array(level * level)]

    def result(self, accumulators):
        count, total, squares = (column.to_numpy() for column in accumulators)
        return pa.array(np.sqrt(np.maximum(squares / count - (total / count) ** 2, 0.0)))


READINGS = [
    Reading(sensor, 90.0 if (sensor, second) == ("boiler", 14) else 20.0 + second % 3, second * 1000)
    for second in range(20)
    for sensor in ("boiler", "cellar")
]

env = tg.StreamEnvironment("sensors")
readings = env.from_collection(READINGS, type=Reading).assign_timestamps_and_watermarks(
    tg.WatermarkStrategy.monotonous(timestamp="at")
)
windows = (
    readings.key_by("sensor")
    .window(tg.SlidingEventTimeWindows("10s", "5s"))
    .aggregate(highest=tg.max("level"), mean=tg.mean("level"), deviation=Deviation(), uid="last-ten-seconds")
)
anomalies = windows.filter(lambda seen: seen["highest"] > seen["mean"] + 2.5 * seen["deviation"])
anomalies.map(
    lambda seen: (
        f"{seen['sensor']}: {seen['highest']:.0f} until {seen['window_end'] // 1000} s, where {seen['mean']:.0f} is usual"
    ),
    returns=str,
).print()

env.execute()
