"""Two streams: what was ordered and what was sent in each hour, by item; and each order with the parcel that followed.

    python examples/stream_join.py

`co_group` is given all records of an item and an hour, of both streams. The interval join brings each order together with the
parcels of its number that were sent within a day; with `how("left")` orders of which nothing was sent leave, too.
"""

import tidegate as tg

HOUR = 3_600_000
ORDERS = [("o-1", "tea", 3, 0), ("o-2", "tea", 4, HOUR // 2), ("o-3", "rope", 1, HOUR), ("o-4", "tea", 1, 2 * HOUR)]
PARCELS = [("o-1", "tea", 3, HOUR // 3), ("o-3", "rope", 1, 5 * HOUR), ("o-2", "tea", 4, 30 * HOUR)]

times = tg.WatermarkStrategy.bounded_out_of_orderness("1min", timestamp="f3")
env = tg.StreamEnvironment("parcels", parallelism=2)
orders = env.from_collection(ORDERS, type=tuple[str, str, int, int]).assign_timestamps_and_watermarks(times)
parcels = env.from_collection(PARCELS, type=tuple[str, str, int, int]).assign_timestamps_and_watermarks(times)


class Balance(tg.CoGroupFunction):
    def co_group(self, item, context, ordered, sent):
        hour = context.window.start // HOUR
        yield f"{hour:02}:00 {item}: {sum(row[2] for row in ordered)} ordered, {sum(row[2] for row in sent)} sent"


in_hours = orders.co_group(parcels).where("f1").equal_to("f1").window(tg.TumblingEventTimeWindows("1h"))
in_hours.apply(Balance(), returns=str, uid="balance").collect(uid="hours")

followed = orders.key_by("f0").interval_join(parcels.key_by("f0")).between("0s", "24h").how("left")
pairs = followed.process(lambda order, parcel: (order[0], parcel is not None), returns=tuple[str, bool], uid="followed")
pairs.collect(uid="orders")

client = env.execute()
for line in sorted(client.results("hours")):
    print(line)
for order, is_sent in sorted(client.results("orders")):
    print(order, "sent" if is_sent else "not sent within a day")
