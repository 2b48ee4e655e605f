"""The broadcast pattern: rules that change while the stream runs, and that every subtask knows.

    python examples/rules.py

A reading is judged by the limit of its kind. Limits are a stream of their own; every subtask gets all of them and keeps a copy
in broadcast state. A reading whose limit has not come yet waits for it in keyed state.
"""

import tidegate as tg

READINGS = [("boiler", "heat", 90), ("boiler", "heat", 120), ("cellar", "damp", 70), ("cellar", "damp", 40)]
LIMITS = [("heat", 100), ("damp", 60)]


class Judge(tg.KeyedBroadcastProcessFunction):
    waiting = tg.ListState(tuple[str, str, int])
    limits = tg.BroadcastState(str, int)

    def process_element(self, reading, ctx):
        place, kind, value = reading
        if kind not in self.limits:
            self.waiting.add(reading)
        elif value > self.limits[kind]:
            yield (place, kind, value)

    def process_broadcast_element(self, limit, ctx):
        kind, highest = limit
        self.limits[kind] = highest
        alarms = []

        def judge(place, waiting):  # for every key that has readings waiting
            alarms.extend(each for each in waiting.get() if each[1] == kind and each[2] > highest)
            waiting.set([each for each in waiting.get() if each[1] != kind])

        ctx.apply_to_keyed_state(self.waiting, judge)
        return alarms


env = tg.StreamEnvironment("rules", parallelism=2)
readings = env.from_collection(READINGS, type=tuple[str, str, int])
limits = env.from_collection(LIMITS, type=tuple[str, int], parallelism=1)
alarms = readings.key_by(0).connect(limits.broadcast()).process(Judge(), returns=tuple[str, str, int])
alarms.collect()

for place, kind, value in sorted(env.execute().results()):
    print(f"{place}: {kind} of {value}")
