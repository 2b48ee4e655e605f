"""State that expires: an order comes through once in a day, however often it is sent.

    python examples/deduplicate.py

The state of an order id is a flag with a TTL. After a day it is gone, and its memory is free: the job does not grow for ever.
The day is processing time; here it is over in a second, because the TTL is one.
"""

import time

import tidegate as tg


class Once(tg.KeyedProcessFunction):
    seen = tg.ValueState(bool, ttl=tg.Ttl("1s"))  # tg.Ttl("1d") in real life

    def process_element(self, order, ctx):
        if not self.seen.get():
            self.seen.set(True)
            yield order


def order(index: int) -> str:
    """Three orders, each sent again and again."""
    return f"o-{index % 3}"


env = tg.StreamEnvironment("deduplicate")
env.checkpointing(every="1s", storage="memory", resume="latest")
orders = env.from_source(tg.DataGenerator(order, rate=50, type=str), uid="orders")
orders.key_by(lambda order: order, key_type=str).process(Once(), uid="once", returns=str).collect(uid="out")

client = env.execute_async()
client.wait_until_running()
while len(client.results()) < 6:  # each of them twice: before and after its second
    time.sleep(0.1)
client.cancel()
client.wait()

for id in sorted(set(client.results())):
    print(id, "came through", "again" if client.results().count(id) > 1 else "once")
