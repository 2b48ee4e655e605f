"""One stream in, three out: good orders, bad lines, and late ones.

    python examples/side_outputs.py

A function emits what does not belong into the stream to a side output, by a tag. Nothing is dropped in silence.
"""

import dataclasses

import tidegate as tg

BAD, LATE = tg.OutputTag("bad", str), tg.OutputTag("late", str)
LINES = ["o-1,10:00,3", "o-2,10:05,4", "what is this", "o-3,10:10,5", "o-4,09:00,6"]


@dataclasses.dataclass(frozen=True)
class Order:
    id: str
    at: int  # milliseconds of the day
    amount: int


class Parse(tg.ProcessFunction):
    def process_element(self, line, ctx):
        try:
            id, time, amount = line.split(",")
            hours, minutes = time.split(":")
            yield Order(id, (int(hours) * 60 + int(minutes)) * 60_000, int(amount))
        except ValueError:
            ctx.output(BAD, line)


class OnTime(tg.KeyedProcessFunction):
    newest = tg.ValueState(int, default=0)

    def process_element(self, order, ctx):
        if order.at < self.newest.get() - 30 * 60_000:  # half an hour behind the newest
            ctx.output(LATE, order.id)
        else:
            self.newest.set(max(order.at, self.newest.get()))
            yield order


env = tg.StreamEnvironment("side-outputs")
parsed = env.from_collection(LINES, type=str, parallelism=1).process(Parse(), returns=Order)
in_time = parsed.key_by(lambda order: "all", key_type=str).process(OnTime(), returns=Order)

in_time.print("order")
in_time.side_output(LATE).print("late")
parsed.side_output(BAD).print("bad")

env.execute()
