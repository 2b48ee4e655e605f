"""Processing time never goes back and never stands still, whatever is done to the wall clock."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from tidegate.task.processing_time import ProcessingTime


@dataclass
class Machine:
    wall: float = 1_000_000.0
    monotonic: float = 50.0

    def pass_time(self, seconds: float, asleep: bool = False) -> None:
        self.wall += seconds
        self.monotonic += 0.0 if asleep else seconds

    def time(self) -> ProcessingTime:
        return ProcessingTime(lambda: self.wall, lambda: self.monotonic)


def looked(time: ProcessingTime) -> float:
    """What it is in the slot's next turn."""
    time.follow()
    return time()


def test_it_is_the_wall_clock_where_nobody_sets_it() -> None:
    machine = Machine()
    time = machine.time()
    assert looked(time) == 1_000_000.0

    machine.pass_time(10.0)
    assert looked(time) == 1_000_010.0


def test_it_goes_on_when_the_wall_clock_is_set_back() -> None:
    machine = Machine()
    time = machine.time()
    machine.wall -= 3600.0

    machine.pass_time(10.0)

    assert looked(time) == 1_000_010.0


def test_it_follows_when_the_wall_clock_is_set_forward_or_the_machine_has_slept() -> None:
    machine = Machine()
    time = machine.time()
    machine.wall += 100.0
    assert looked(time) == 1_000_100.0

    machine.pass_time(1000.0, asleep=True)
    assert looked(time) == 1_001_100.0


steps = st.one_of(
    st.tuples(st.just("passes"), st.integers(0, 1000)),
    st.tuples(st.just("sleeps"), st.integers(0, 1000)),
    st.tuples(st.just("set"), st.integers(-5000, 5000)),
)


@given(st.lists(steps, max_size=30))
def test_however_the_clock_is_set_an_interval_is_never_longer_than_it_takes(happens: list[tuple[str, int]]) -> None:
    machine = Machine()
    time = machine.time()
    for what, seconds in happens:
        before, monotonic_before = looked(time), machine.monotonic
        match what:
            case "passes":
                machine.pass_time(seconds)
            case "sleeps":
                machine.pass_time(seconds, asleep=True)
            case _:
                machine.wall += seconds
        assert looked(time) >= before + (machine.monotonic - monotonic_before)
        assert looked(time) >= machine.wall
