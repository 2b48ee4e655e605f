"""A program as a user writes it: numbers without an end, counted by key, in files. Arguments: storage, output."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import tidegate as tg

KEYS, SPLITS = 7, 16


class Count(tg.KeyedProcessFunction):
    count = tg.ValueState(int, default=0)

    def open(self, ctx: tg.Context) -> None:
        self.seen = ctx.counter("seen")

    def process_element(self, value: int, ctx: tg.Context) -> Iterator[tuple[int, int, int]]:
        self.count.set(self.count.get() + 1)
        self.seen.inc()
        yield (ctx.key, self.count.get(), value)


def main(storage: str, output: str) -> None:
    env = tg.StreamEnvironment("endless", parallelism=2)
    env.checkpointing(every="500ms", storage=storage)
    numbers = env.from_source(tg.DataGenerator(lambda i: i, rate=1000, type=int, splits=SPLITS), uid="numbers")
    counted = numbers.key_by(lambda n: n % KEYS, key_type=int).process(Count(), uid="counts")
    counted.write_files(output, format="jsonl", uid="files")
    env.execute()


if __name__ == "__main__":
    main(*sys.argv[1:])
