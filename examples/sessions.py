"""Visits of a web site: the clicks of a user with no pause of more than ten minutes between them. Event time and timers.

    python examples/sessions.py [folder]

Clicks come out of order by up to half a minute. A visit is written when the watermark has passed its end, as Parquet. Each run
of this program has a folder of its own, in the one that is named or in the system's for temporary files.
"""

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pyarrow.dataset as ds

import tidegate as tg

PAUSE_MS = 10 * 60_000
CLICKS = 50_000


@dataclass
class Click:
    user: int
    at: int  # milliseconds


@dataclass
class Visit:
    user: int
    began: int
    ended: int
    clicks: int


def click(index: int) -> Click:
    """A hundred users, a click each second; every user pauses for an hour now and then."""
    user = index * 31 % 100
    pauses = index // 5_000
    late = index * 17 % 30 * 1000
    return Click(user, index * 1000 + pauses * 3_600_000 - late)


class Visits(tg.KeyedProcessFunction):
    current = tg.ValueState(Visit)

    def process_element(self, click: Click, ctx):
        visit = self.current.get() or Visit(click.user, click.at, click.at, 0)
        ctx.timer_service().delete_event_time_timer(visit.ended + PAUSE_MS)
        if click.at > visit.ended + PAUSE_MS:  # the click came before the watermark that would have ended the visit
            yield visit
            visit = Visit(click.user, click.at, click.at, 0)
        visit.began, visit.ended = min(visit.began, click.at), max(visit.ended, click.at)
        visit.clicks += 1
        self.current.set(visit)  # what `get` gave is a copy
        ctx.timer_service().register_event_time_timer(visit.ended + PAUSE_MS)

    def on_timer(self, timestamp, ctx):
        yield self.current.get()
        self.current.clear()


folder = Path(tempfile.mkdtemp(prefix="sessions-", dir=sys.argv[1] if len(sys.argv) > 1 else None))
env = tg.StreamEnvironment("sessions", parallelism=2)
env.checkpointing(every="1s", storage=f"file://{folder}/checkpoints")

clicks = env.from_source(
    tg.DataGenerator(click, count=CLICKS, type=Click), uid="clicks"
).assign_timestamps_and_watermarks(tg.WatermarkStrategy.bounded_out_of_orderness("30s", timestamp="at"))
visits = clicks.key_by("user").process(Visits(), uid="visits", returns=Visit)
visits.write_files(folder / "visits", format="parquet", uid="written")

env.execute()

written = ds.dataset(folder / "visits", format="parquet").to_table()
print(
    f"{written.num_rows} visits of {len(written['user'].unique())} users, {sum(written['clicks'].to_pylist())} clicks"
)
print(f"in {folder}/visits", file=sys.stderr)
