"""The live display and the plain one, driven by the events of a job that never runs."""

from __future__ import annotations

import io

import pytest
from cli_kit import attempt, checkpoint, client_of, failed, planned_sums, reported, started, status
from rich.console import Console
from terminal_screen import TerminalScreen

from tidegate.cli.display import LiveDisplay, starting_line
from tidegate.cli.screen import JobScreen
from tidegate.config import JobConfig
from tidegate.console import current_console
from tidegate.coordinator.moving import ExecutorsLeaving, ScalingDecided
from tidegate.coordinator.observing import CheckpointStatus, JobEvent, JobStatus, JobView, SlotReported
from tidegate.coordinator.rates import RateMeter
from tidegate.ids import SlotId
from tidegate.telling.plain import PlainDisplay
from tidegate.wire.control import Heartbeat, ProcessUse
from tidegate.wording import how_big, how_long, how_long_whole, how_many

CONFIG = JobConfig(interval_s=10.0, storage="file:///data")


def screen_after(*events: JobEvent, at: float = 100.0, config: JobConfig = CONFIG) -> JobScreen:
    screen = JobScreen(planned_sums(), config, started_at=10.0)
    for event in events:
        screen.on(event, at)
    return screen


def text_of(screen: JobScreen, now: float = 100.0, width: int = 120, height: int = 50) -> str:
    terminal = Console(record=True, width=width, file=io.StringIO())
    terminal.print(screen.render(now, width, height))
    return terminal.export_text()


def line_with(word: str, text: str) -> str:
    return next(line for line in text.splitlines() if word in line)


# -- rates ---------------------------------------------------------------------------------------------------------------


def noted(meter: RateMeter, event: SlotReported, at: float) -> None:
    meter.note(event.slot, event.heartbeat, at)


def test_rates_are_differences_summed_over_subtasks() -> None:
    meter = RateMeter()
    for index, factor in ((0, 1), (1, 3)):
        slot = SlotId(1, index)
        noted(meter, reported(slot, {"sums": (100, 50)}), at=10.0)
        noted(meter, reported(slot, {"sums": (100 + 200 * factor, 50 + 20 * factor)}), at=12.0)

    rates = meter.operators()["sums"]
    assert (rates.in_per_s, rates.out_per_s) == (400.0, 40.0)
    assert (rates.records_in, rates.records_out) == (1000, 180)


def test_one_heartbeat_is_no_rate() -> None:
    meter = RateMeter()
    noted(meter, reported(SlotId(0, 0), {"sums": (7, 7)}, busy=10), at=10.0)

    rates = meter.operators()["sums"]
    assert (rates.records_in, rates.in_per_s, rates.busy) == (7, None, None)


def test_a_rate_is_taken_over_the_last_few_heartbeats_only() -> None:
    meter = RateMeter()
    for second in range(20):
        noted(meter, reported(SlotId(0, 0), {"sums": (0 if second < 16 else 90 * (second - 16), 0)}), at=float(second))

    assert meter.operators()["sums"].in_per_s == 90.0


def test_load_is_the_mean_over_the_slots_of_the_operator() -> None:
    meter = RateMeter()
    for index, busy in ((0, 1000), (1, 200)):
        noted(meter, reported(SlotId(0, index), {"sums": (0, 0)}), at=1.0)
        noted(
            meter,
            reported(SlotId(0, index), {"sums": (0, 0)}, busy=busy, idle=(1000 - busy) // 2, backpressured=(1000 - busy) // 2),
            at=2.0,
        )  # fmt: skip

    rates = meter.operators()["sums"]
    assert (rates.busy, rates.idle, rates.backpressured) == (0.6, 0.2, 0.2)


def test_the_cores_that_a_worker_keeps_busy_are_its_cpu_time_over_the_clocks() -> None:
    meter = RateMeter()
    for second, cpu_ms in enumerate((100, 600, 1600)):
        beat = Heartbeat(0, 0, 0, 0, 0, [], process=ProcessUse(resident_bytes=1, cpu_ms=cpu_ms))
        meter.note(SlotId(0, 0), beat, at=10.0 + second)
    noted(meter, reported(SlotId(0, 1), {}), at=10.0)
    noted(meter, reported(SlotId(0, 1), {}), at=11.0)

    assert meter.cores() == {SlotId(0, 0): 0.75}, "the other one does not say"


# -- the screen ----------------------------------------------------------------------------------------------------------


def test_the_header_says_how_the_job_is() -> None:
    screen = screen_after(started(1), failed("boom"), started(2, restored_from=14), status(JobStatus.RUNNING))

    header = line_with("RUNNING", text_of(screen, now=135.0))
    assert "sums" in header
    assert "up 2 min 05 s · 4 slots · attempt g1-a2 · 1 restart · restored from checkpoint 14" in header


def test_operators_show_rates_and_the_head_of_a_chain_its_load() -> None:
    screen = screen_after(started(), status(JobStatus.RUNNING))
    for index in (0, 1):
        screen.on(reported(SlotId(1, index), {"sums": (0, 0), "printed": (0, 0)}), at=100.0)
        screen.on(
            reported(
                SlotId(1, index), {"sums": (500, 250), "printed": (250, 0)}, busy=700, idle=200, backpressured=100
            ),
            at=101.0,
        )

    text = text_of(screen)
    sums = line_with("sum 1 sums", text).split()
    assert sums[3:] == ["2", "1,000", "500", "1,000", "500", "████████░░", "70%", "20%", "10%"]
    assert line_with("print printed", text).split() == ["└", "print", "printed", "2", "500", "500"]


def test_while_a_job_restarts_nothing_is_shown_of_what_flowed_before() -> None:
    screen = screen_after(started(1))
    screen.on(reported(SlotId(1, 0), {"sums": (0, 0)}), at=100.0)
    screen.on(reported(SlotId(1, 0), {"sums": (77777, 0)}), at=101.0)
    assert "77,777" in text_of(screen)

    screen.on(status(JobStatus.RESTARTING, "in 50.0 s: ValueError: bad"), at=102.0)
    assert "77,777" not in text_of(screen)


def test_a_new_attempt_shows_nothing_of_the_rates_of_the_last() -> None:
    screen = screen_after(started(1))
    screen.on(reported(SlotId(1, 0), {"sums": (0, 0)}), at=100.0)
    screen.on(reported(SlotId(1, 0), {"sums": (77777, 0)}), at=101.0)
    assert "77,777" in text_of(screen)

    screen.on(started(2), at=102.0)
    assert "77,777" not in text_of(screen)


def test_a_narrow_terminal_leaves_out_totals_rather_than_cutting_rates() -> None:
    screen = screen_after(started())
    screen.on(reported(SlotId(1, 0), {"sums": (0, 0)}), at=100.0)
    screen.on(reported(SlotId(1, 0), {"sums": (123_456, 9_999_000)}, busy=5), at=101.0)

    line = line_with("sum 1 sums", text_of(screen, width=80))
    assert line.split()[3:6] == ["2", "123,456", "9,999,000"]
    assert max(map(len, text_of(screen, width=80).splitlines())) <= 80


def test_a_short_terminal_leaves_out_the_middle_of_the_operators() -> None:
    text = text_of(screen_after(started()), height=14)

    assert "... 2 more" in text
    assert "print printed" in text


def test_checkpoints_show_progress_duration_size_and_the_slowest_alignment() -> None:
    screen = screen_after(
        checkpoint(1, duration_s=0.25, size_bytes=2048, triggered_at=95.0),
        checkpoint(2, CheckpointStatus.IN_PROGRESS, acknowledged=3, triggered_at=99.0),
    )

    text = text_of(screen)
    assert "1 completed  every 10.0 s · file:///data" in text
    done = line_with("✓", text)
    assert all(part in done for part in ("250 ms", "4/4 slots", "2 kb", "aligned within 120 ms", "4 s ago"))
    assert "1.0 s  3/4 slots" in line_with("…", text)


def test_a_checkpoint_that_stored_less_than_its_whole_says_how_much() -> None:
    screen = screen_after(checkpoint(1, duration_s=0.25, size_bytes=5 << 20, added_bytes=2048))

    assert "5 mb, 2 kb new" in line_with("✓", text_of(screen))


def test_only_the_newest_checkpoints_are_shown_newest_first() -> None:
    screen = screen_after(*(checkpoint(n, duration_s=0.1) for n in range(1, 10)))

    shown = [line.split()[1] for line in text_of(screen).splitlines() if "✓" in line]
    assert shown == ["9", "8", "7", "6", "5"]


def test_a_failed_checkpoint_says_why() -> None:
    screen = screen_after(checkpoint(3, CheckpointStatus.FAILED, acknowledged=1, failure="expired: after 10 min"))

    assert "0 completed, 1 failed" in text_of(screen)
    assert "1/4 slots  expired: after 10 min" in line_with("✗", text_of(screen))


def test_the_latest_failure_is_shown_with_its_place() -> None:
    error = "ValueError: no number\n  in map double (uid 'm'), subtask 1, at job.py:7"
    screen = screen_after(started(), failed(error, at=95.0), status(JobStatus.RESTARTING, f"in 1.0 s: {error}"))

    text = text_of(screen)
    assert "● RESTARTING in 1.0 s" in text
    assert f"latest failure  attempt {attempt()}, 5 s ago" in text
    assert "ValueError: no number" in text
    assert "in map double (uid 'm'), subtask 1, at job.py:7" in text


def test_an_interrupted_job_is_shown_as_being_canceled() -> None:
    screen = screen_after(status(JobStatus.RUNNING))
    screen.interrupted = True

    assert "● CANCELING" in text_of(screen)


def test_the_end_shows_no_counts_because_the_last_heartbeat_is_older() -> None:
    screen = screen_after(started(), reported(SlotId(1, 0), {"sums": (77777, 0)}), status(JobStatus.FINISHED), at=50.0)

    text = text_of(screen, now=500.0)
    assert "● FINISHED  after 40 s" in text
    assert "77,777" not in text


# -- the display ---------------------------------------------------------------------------------------------------------


def test_what_is_printed_stands_above_the_last_picture_of_the_job() -> None:
    file = io.StringIO()
    display = LiveDisplay(Console(file=file, force_terminal=True, width=100, height=30), clock=lambda: 100.0)
    view = JobView()
    with display.showing():
        display.launching(planned_sums(), CONFIG)
        display.launched(client_of(view), planned_sums())
        view.publish(status(JobStatus.RUNNING))
        print("from the program")
        current_console().out("1> from a sink\n")
        current_console().err("from the JVM\n")
        print("without a line feed", end="")
        view.publish(status(JobStatus.FINISHED))

    text = file.getvalue()
    for line in ("from the program\n", "1> from a sink\n", "from the JVM\n"):
        assert text.count(line) == 1
        assert text.index(line) < text.rindex("FINISHED")
    assert text.index("from the program") < text.index("from a sink") < text.index("from the JVM")


def test_the_picture_goes_on_while_the_job_prints_all_the_time() -> None:
    file = io.StringIO()
    display = LiveDisplay(Console(file=file, force_terminal=True, width=100, height=30), clock=lambda: 100.0)
    view = JobView()
    display.launching(planned_sums(), CONFIG)
    display.launched(client_of(view), planned_sums())
    display._draw()
    for change in (JobStatus.INITIALIZING, JobStatus.RUNNING):
        view.publish(status(change))
        drawn = len(file.getvalue())
        display.out("1> a line\n")
        display._draw()
        assert change.value in file.getvalue()[drawn:]
    display._end_live([])


def test_nothing_of_an_older_drawing_stays_when_the_terminal_echoes_what_was_typed() -> None:
    file = io.StringIO()
    display = LiveDisplay(Console(file=file, force_terminal=True, width=100, height=30), clock=lambda: 100.0)
    view = JobView()
    display.launching(planned_sums(), CONFIG)
    display.launched(client_of(view), planned_sums())
    view.publish(status(JobStatus.RUNNING))
    view.publish(checkpoint(1, CheckpointStatus.FAILED, failure="why " * 40))  # its line is as wide as the terminal
    display._draw()

    file.write("^C")  # by the terminal: the display does not know of it
    display.interrupted()
    display._draw()
    view.publish(status(JobStatus.CANCELED))
    display._draw()

    screen = TerminalScreen(width=100)
    screen.feed(file.getvalue())
    rule = "─" * 100
    assert [line for line in screen.lines if line.startswith(("─", "sums"))] == [
        rule, line_with("sums", "\n".join(screen.lines)), rule,
    ]  # fmt: skip
    assert "CANCELED" in line_with("sums", "\n".join(screen.lines))
    assert "^C" not in "".join(screen.lines)


def test_a_job_that_failed_before_its_first_attempt_says_why_in_its_last_picture() -> None:
    screen = screen_after(status(JobStatus.FAILED, "the topic 'clicks' does not exist"))

    assert "the topic 'clicks' does not exist" in text_of(screen)


def test_a_job_that_was_rescaled_is_shown_as_it_runs_now() -> None:
    file = io.StringIO()
    display = LiveDisplay(Console(file=file, force_terminal=True, width=100, height=30))
    view = JobView()
    with display.showing():
        display.launching(planned_sums(), CONFIG)
        display.launched(client_of(view, plan=planned_sums(parallelism=5)), planned_sums())
        view.publish(started(2))
        view.publish(status(JobStatus.RUNNING))

    assert "10 slots" in file.getvalue()


def test_a_job_that_has_not_ended_leaves_its_picture_when_the_program_ends() -> None:
    file = io.StringIO()
    display = LiveDisplay(Console(file=file, force_terminal=True, width=100, height=30))
    view = JobView()
    with display.showing():
        display.launching(planned_sums(), CONFIG)
        display.launched(client_of(view), planned_sums())
        view.publish(status(JobStatus.RUNNING))

    assert "RUNNING" in file.getvalue()


def test_a_long_failure_is_wrapped_and_a_long_line_of_the_job_is_not() -> None:
    file = io.StringIO()
    display = LiveDisplay(Console(file=file, force_terminal=True, width=60, height=30))
    view = JobView()
    error, line = "E " + "why " * 30 + "END-OF-CAUSE", "x" * 150
    with display.showing():
        display.launching(planned_sums(), CONFIG)
        display.launched(client_of(view), planned_sums())
        view.publish(failed(error))
        view.publish(status(JobStatus.RUNNING))
        print(line)
        view.publish(status(JobStatus.FINISHED))

    assert line in file.getvalue()
    last = next(shown for shown in file.getvalue().splitlines() if "END-OF-CAUSE" in shown)
    assert last.startswith("  ")
    assert len(last.rstrip()) <= 60


def test_after_the_display_the_streams_are_as_they_were(capsys: pytest.CaptureFixture[str]) -> None:
    file = io.StringIO()
    display = LiveDisplay(Console(file=file, force_terminal=True, width=100, height=30))
    with display.showing():
        display.launching(planned_sums(), CONFIG)  # and the launch fails
        print("inside")
    print("afterwards")

    assert capsys.readouterr().out == "afterwards\n"
    assert "inside\n" in file.getvalue()
    assert "afterwards" not in file.getvalue()


def test_while_spark_starts_the_screen_says_so() -> None:
    terminal = Console(record=True, width=100, file=io.StringIO())
    terminal.print(starting_line(planned_sums(), JobConfig(master="spark://h:7077"), 3.0))

    assert "sums  ● STARTING SPARK  3 s · 4 slots on spark://h:7077" in terminal.export_text()


# -- plain ---------------------------------------------------------------------------------------------------------------


class Plain:
    """A plain display, its clock and its lines (without the time of day)."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.written: list[str] = []
        self.view = JobView()
        display = PlainDisplay(self.written.append, clock=lambda: 1000.0 - self.now, steady=lambda: self.now)
        display.launching(planned_sums(), CONFIG)
        display.launched(client_of(self.view), planned_sums())

    def publish(self, *events: JobEvent) -> None:
        for event in events:
            self.view.publish(event)

    @property
    def lines(self) -> list[str]:
        return [line.partition(" sums: ")[2] for line in "".join(self.written).splitlines()]


def test_plain_says_one_line_for_each_change_of_status() -> None:
    plain = Plain()
    plain.publish(
        started(1, restored_from=3), status(JobStatus.INITIALIZING, "attempt g1-a1"), status(JobStatus.RUNNING)
    )
    plain.publish(status(JobStatus.FINISHED))

    assert plain.lines == [
        "starting Spark for 4 slots on this machine",
        "INITIALIZING (attempt g1-a1, from checkpoint 3)",
        "RUNNING",
        "FINISHED",
    ]


def test_plain_says_a_failure_once_and_when_the_restart_comes() -> None:
    plain = Plain()
    plain.publish(failed("ValueError: x", restart_in_s=1.5), status(JobStatus.RESTARTING, "in 1.5 s: ValueError: x"))

    assert plain.lines[1:] == ["attempt g1-a1 failed: ValueError: x", "RESTARTING in 1.5 s"]


def test_plain_says_what_the_autoscaler_has_decided_and_which_executors_are_leaving() -> None:
    plain = Plain()
    plain.publish(
        ScalingDecided({"count": 4}, "count: 2 to 4 (95% busy)", 0.0), ScalingDecided({}, "too few slots", 0.0)
    )
    plain.publish(ExecutorsLeaving(("3",), 0.0))

    assert plain.lines[1:] == [
        "autoscaler: rescaling: count: 2 to 4 (95% busy)",
        "autoscaler: not rescaled: too few slots",
        "leaving, with slots of the job: executors 3",
    ]


def test_plain_sums_checkpoints_up_at_most_every_ten_seconds() -> None:
    plain = Plain()
    for number in range(1, 26):
        plain.publish(
            checkpoint(number, CheckpointStatus.IN_PROGRESS), checkpoint(number, duration_s=0.1, size_bytes=10)
        )
        plain.now += 1.0
    plain.publish(status(JobStatus.FINISHED))

    assert plain.lines[1:] == [
        "1 checkpoint completed, latest 1: 100 ms, 10 b",
        "11 checkpoints completed, latest 11: 100 ms, 10 b",
        "21 checkpoints completed, latest 21: 100 ms, 10 b",
        "25 checkpoints completed, latest 25: 100 ms, 10 b",
        "FINISHED",
    ]


def test_plain_says_why_a_job_failed_that_never_came_to_an_attempt() -> None:
    plain = Plain()
    plain.publish(status(JobStatus.FAILED, "the topic 'clicks' does not exist"))

    assert plain.lines[1:] == ["FAILED (the topic 'clicks' does not exist)"]


# -- words ---------------------------------------------------------------------------------------------------------------


def test_numbers_are_written_for_people() -> None:
    assert [how_many(n) for n in (0, 0.25, 7.0, 1234.5, 123_456_789)] == ["0", "0.2", "7", "1,234", "123.5 M"]
    assert [how_long(s) for s in (-3600, 0.0123, 1.44, 59.96, 125)] == ["0 ms", "12 ms", "1.4 s", "59 s", "2 min 05 s"]
    assert [how_long_whole(s) for s in (0.9, 3700, 90_000)] == ["0 s", "1 h 01 min", "1 d 01 h"]
    assert [how_big(b) for b in (512, 2048, 20_000_000, 5 << 40)] == ["512 b", "2 kb", "19.1 mb", "5 tb"]


def test_the_address_of_the_dashboard_is_shown_while_the_job_runs() -> None:
    lines: list[str] = []
    client = client_of(JobView())
    client.url = "http://localhost:8081"
    PlainDisplay(lines.append).launched(client, planned_sums())
    assert lines[0].endswith("sums: dashboard and REST at http://localhost:8081\n")

    screen = JobScreen(planned_sums(), JobConfig(), 0.0, client.url)
    screen.on(status(JobStatus.RUNNING), 1.0)
    assert client.url in text_of(screen, 2.0)
    screen.on(status(JobStatus.FINISHED), 3.0)
    assert client.url not in text_of(screen, 4.0), "nobody answers there any more"
