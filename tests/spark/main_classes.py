"""A newcomer's first job: classes of the main program, and not a word about types. Run by test_main_program_on_spark.py."""

import enum
import sys
from dataclasses import dataclass
from typing import NamedTuple

import tidegate as tg


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Click:
    user: str
    colour: Colour


class Total(NamedTuple):
    user: str
    clicks: int
    last: Click


class Totals(tg.KeyedProcessFunction):
    clicks = tg.ValueState(int, default=0)
    last = tg.ValueState(tg.Pickled)
    blue = tg.OutputTag("blue")

    def process_element(self, value, ctx):
        before = self.last.get()
        assert before is None or (type(before) is Click and before.colour in Colour)
        self.last.set(value)
        self.clicks.set(self.clicks.get() + 1)
        if value.colour is Colour.BLUE:
            ctx.output(self.blue, value)
        yield Total(ctx.key, self.clicks.get(), value)


if __name__ == "__main__":
    env = tg.StreamEnvironment("newcomer", parallelism=2)
    env.checkpointing(every="200ms", storage=f"file://{sys.argv[1]}")
    clicks = env.from_sequence(0, 99, uid="numbers").map(
        lambda n: Click(f"user-{n % 5}", Colour.BLUE if n % 10 == 0 else Colour.RED)
    )
    totals = clicks.key_by(lambda click: click.user).process(Totals(), uid="totals")
    totals.collect(uid="all")
    totals.side_output(Totals.blue).rebalance().filter(lambda click: click.colour is Colour.BLUE).collect(uid="blue")
    client = env.execute()
    every, blue = client.results("all"), client.results("blue")
    print("totals:", len(every), all(type(each) is Total and type(each.last) is Click for each in every))
    print("blue:", len(blue), {(click.user, click.colour is Colour.BLUE) for click in blue})
