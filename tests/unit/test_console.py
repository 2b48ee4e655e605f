"""What a job prints, and who shows it, never ends the job: terminals of other encodings, closed pipes, displays that fail."""

from __future__ import annotations

import io
import os
import threading

import pytest
from rich.console import Console as Terminal

from tidegate import console
from tidegate.cli import display
from tidegate.cli.display import LiveDisplay
from tidegate.console import printing_through, show_err, show_out
from tidegate.spark import jvm_output


class Broken:
    """A display that cannot show anything."""

    def out(self, text: str) -> None:
        raise BrokenPipeError("nobody reads")

    err = out


@pytest.fixture(autouse=True)
def nothing_said_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "_trouble", [])


def test_text_that_the_terminal_has_no_letters_for_is_written_in_others(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding="ascii"))

    show_out("Zürich \N{SNOWMAN}\n")

    assert written.getvalue() == b"Z\\xfcrich \\u2603\n"


def test_a_pipe_that_nobody_reads_is_said_once_and_the_rest_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    with printing_through(Broken()):
        for _ in range(3):
            show_out("a line\n")
            show_err("a line\n")

    assert [record.message for record in caplog.records] == [
        "what is printed cannot be shown, and is left out: BrokenPipeError: nobody reads"
    ]


def test_what_the_jvm_prints_is_read_to_its_end_though_nobody_can_show_it() -> None:
    """A pipe that nobody reads would fill up, and the JVM would stand still."""
    read_end, write_end = os.pipe()
    with printing_through(Broken()), os.fdopen(write_end, "w") as jvm:
        reader = threading.Thread(target=jvm_output._pass_on, args=(os.fdopen(read_end),))
        reader.start()
        for _ in range(5_000):
            jvm.write("x" * 100 + "\n")
        jvm.close()
        reader.join(30)

    assert not reader.is_alive()


@pytest.fixture
def failing_display(monkeypatch: pytest.MonkeyPatch) -> LiveDisplay:
    def fails(self: LiveDisplay, *arguments: object) -> None:
        raise ValueError("the terminal is gone")

    monkeypatch.setattr(LiveDisplay, "_draw", fails)
    monkeypatch.setattr(LiveDisplay, "_end_live", fails)
    monkeypatch.setattr(display, "DRAW_EVERY_S", 0.0)
    monkeypatch.setattr(display, "MAX_PENDING", 10)
    return LiveDisplay(Terminal(file=io.StringIO()))


def test_a_display_that_has_died_does_not_hold_up_whoever_prints(failing_display: LiveDisplay) -> None:
    failing_display._is_live = True  # as while a job runs: text waits for the next drawing
    failing_display._pending_size = 1_000
    failing_display._thread.start()
    printed = threading.Event()

    def prints() -> None:
        failing_display.out("a line\n")
        printed.set()

    threading.Thread(target=prints, daemon=True).start()

    assert printed.wait(30)
