"""What goes wrong in a simulated run, as values: drawn from the seed, left out one by one, told in words. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tidegate.testing.crash_points import DRIVER_POINTS, SLOT_POINTS, Crash
from tidegate.testing.crash_steps import Moment
from tidegate.testing.stores import FailCall, RepeatedCreate

MOST = 6  #: in one run
_NTH = (1, 1, 2, 3, 4, 6, 9)
_TIMES = (1, 1, 1, 2)  #: twice in a row: what recovers dies too
_STORAGE_CALLS = ("create", "create", "put", "get", "get_range", "exists", "list", "delete")
#: Calls of the contract in which a worker may die, and those that may fail. Not `close` and `clean_up`, which decide nothing.
SINK_CALLS = ("writer", "write", "flush", "prepare", "commit")
FAILING_CALLS = ("write", "prepare", "commit", "commit")


@dataclass(frozen=True, slots=True)
class ProcessDies:
    """At a step of the protocol: a worker, or the driver."""

    crash: Crash

    def __str__(self) -> str:
        return f"{'the driver' if self.crash.point in DRIVER_POINTS else 'a worker'} dies at {self.crash.point}"


@dataclass(frozen=True, slots=True)
class DiesInSink:
    """A worker dies right before or after a call of a sink, or within a commit when half of it is done."""

    uid: str
    call: str
    moment: Moment
    nth: int = 1
    times: int = 1

    def __str__(self) -> str:
        return f"a worker dies {self.moment.value} {self.call}() of the sink {self.uid!r}"


@dataclass(frozen=True, slots=True)
class OutsideFails:
    """A call of a sink, or of the model of its outside, raises: before it has done anything, or when all is done."""

    uid: str
    call: str
    nth: int = 1
    times: int = 1
    after_effect: bool = False

    def __str__(self) -> str:
        if self.call == "end":
            return f"the end of a transaction of the sink {self.uid!r} is seen late"
        what = "is done, and its answer is lost" if self.after_effect else "fails"
        return f"{self.call} of the sink {self.uid!r} {what}"


@dataclass(frozen=True, slots=True)
class StorageFails:
    """The storage of checkpoints."""

    fault: FailCall | RepeatedCreate

    def __str__(self) -> str:
        if isinstance(self.fault, RepeatedCreate):
            return "storage carries a create out twice, and says that the object was there"
        what = "is done, and its answer is lost" if self.fault.after_effect else "fails"
        return f"{self.fault.method} of the checkpoint storage {what}"


Misfortune = ProcessDies | DiesInSink | OutsideFails | StorageFails


def once(misfortune: Misfortune) -> Misfortune:
    """The same, but not twice in a row."""
    match misfortune:
        case ProcessDies(crash):
            return ProcessDies(replace(crash, times=1))
        case StorageFails(FailCall() as fault):
            return StorageFails(replace(fault, times=1))
        case DiesInSink() | OutsideFails():
            return replace(misfortune, times=1)
    return misfortune


def draw(seed: int, calls: Mapping[str, Sequence[str]]) -> list[Misfortune]:
    """Those of a seed. `calls`: what can fail, besides the contract's own calls, of each sink, by its uid."""
    rng = random.Random(f"misfortunes {seed}")
    return [_draw_one(rng, calls) for _ in range(rng.randint(1, MOST))]


def _draw_one(rng: random.Random, calls: Mapping[str, Sequence[str]]) -> Misfortune:
    kind = rng.choice(["worker", "worker", "driver", "driver", "in sink", "in sink", "outside", "outside", "storage"])
    nth, times = rng.choice(_NTH), rng.choice(_TIMES)
    if kind == "worker":
        return ProcessDies(Crash(rng.choice(SLOT_POINTS), nth, times))
    if kind == "driver":
        return ProcessDies(Crash(rng.choice(DRIVER_POINTS), nth, times))
    if kind == "storage":
        return StorageFails(_draw_storage(rng))
    uid = rng.choice(sorted(calls))
    if kind == "in sink":
        call = rng.choice(SINK_CALLS)
        moments = [Moment.BEFORE, Moment.AFTER, *([Moment.WITHIN] if call == "commit" else [])]
        return DiesInSink(uid, call, rng.choice(moments), nth, times)
    call = rng.choice([*FAILING_CALLS, *calls[uid], *calls[uid]])
    return OutsideFails(uid, call, nth, times, after_effect=rng.random() < 0.6)


def _draw_storage(rng: random.Random) -> FailCall | RepeatedCreate:
    if rng.random() < 0.2:
        return RepeatedCreate(call=rng.randint(1, 6))
    method = rng.choice(_STORAGE_CALLS)
    return FailCall(method, call=rng.randint(1, 12), after_effect=rng.random() < 0.6, times=rng.choice([1, 1, 1, 3]))
