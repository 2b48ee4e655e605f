"""The live display of `tidegate run` on a terminal: running jobs at the bottom, everything that is printed above. Driver.

A thread of its own draws, ten times a second at most. Whoever prints (the program, `print()` sinks through the coordinator's
thread, the JVM) only leaves text here: a slow terminal must not slow the job down before MAX_PENDING of it has piled up.

    program, sinks, JVM --text--> pending --+
    coordinator --events--> queue ----------+--> draw: text first, then the screens of the jobs
"""

from __future__ import annotations

import io
import logging
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.rule import Rule
from rich.segment import Segment
from rich.text import Text

from tidegate.cli.screen import JobScreen
from tidegate.client import JobClient
from tidegate.config import JobConfig
from tidegate.console import printing_through
from tidegate.coordinator.observing import AttemptStarted, JobEvent
from tidegate.graph.plan import JobPlan
from tidegate.wording import counted, how_long_whole

log = logging.getLogger("tidegate.cli")

DRAW_EVERY_S = 0.1
MAX_PENDING = 4 << 20  #: characters


class LiveDisplay:
    """Implements overrides.Onlooker and console.Console."""

    def __init__(self, terminal: Console, clock: Callable[[], float] = time.time) -> None:
        self._terminal = terminal
        self._clock = clock
        self._changed = threading.Condition()
        self._pending: list[str] = []
        self._pending_size = 0
        self._is_live = False  #: text waits for the next drawing; without it text goes straight out
        self._events: queue.SimpleQueue[tuple[JobScreen, float, JobEvent]] = queue.SimpleQueue()
        self._starting: dict[str, tuple[JobPlan, JobConfig, float]] = {}  #: by job, until Spark is there
        self._screens: list[JobScreen] = []
        self._live: Live | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tidegate-display", daemon=True)

    @contextmanager
    def showing(self) -> Iterator[None]:
        """Inside, this process's standard streams print above the display."""
        stdout, stderr = sys.stdout, sys.stderr
        out = _LinesTo(stdout, self.out)
        err = _LinesTo(stderr, self.err) if stderr.isatty() else stderr
        sys.stdout, sys.stderr = out, err
        self._thread.start()
        try:
            with printing_through(self):
                yield
        finally:
            self._stop.set()
            self._thread.join()
            sys.stdout, sys.stderr = stdout, stderr
            for stream in (out, err):
                if isinstance(stream, _LinesTo):
                    stream.drain()

    # -- any thread ---------------------------------------------------------------------------------------------------

    def out(self, text: str) -> None:
        with self._changed:
            if self._is_live:
                while self._pending_size > MAX_PENDING and self._is_live:
                    self._changed.wait()
                self._pending.append(text)
                self._pending_size += len(text)
                return
        self._terminal.file.write(text)
        self._terminal.file.flush()

    def err(self, text: str) -> None:
        self.out(text)

    def launching(self, draft: JobPlan, config: JobConfig) -> None:
        with self._changed:
            self._starting[draft.job] = (draft, config, self._clock())
            self._is_live = self._thread.is_alive()  # from here on text waits for the next drawing

    def launched(self, client: JobClient, plan: JobPlan) -> None:
        with self._changed:
            _, config, started_at = self._starting.pop(client.name)
            screen = JobScreen(plan, config, started_at, client.url)
            self._screens.append(screen)

        def note(event: JobEvent) -> None:
            if isinstance(event, AttemptStarted):
                screen.plan = client.plan
            self._events.put((screen, self._clock(), event))

        client.view.subscribe(note)

    def interrupted(self) -> None:
        """The user has pressed Ctrl-C: the jobs are being canceled."""
        with self._changed:
            for screen in self._screens:
                screen.interrupted = True

    # -- the display's thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stop.wait(DRAW_EVERY_S):
                self._draw()
            self._draw()
        except Exception:
            log.exception("the display failed; the job continues without it")
        finally:
            try:
                self._end_live(self._screens)
            except Exception:
                log.exception("the last picture of the display could not be drawn")
            with self._changed:  # nobody draws any more: whoever has text must not wait for it
                self._is_live = False
                self._changed.notify_all()

    def _draw(self) -> None:
        while not self._events.empty():
            screen, at, event = self._events.get()
            screen.on(event, at)
        with self._changed:
            ended = [screen for screen in self._screens if screen.status.is_terminal]
            self._screens = [screen for screen in self._screens if not screen.status.is_terminal]
            going_on = bool(self._screens or self._starting)
            if going_on:
                self._is_live = True
            text = self._take_pending()
        if going_on and self._live is None:
            # Each drawing replaces the last one, and the end of the job leaves a picture of its own.
            self._live = Live(
                console=self._terminal, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
            )
            self._live.start()
        if text:
            self._print(Verbatim(text))
        if self._live is not None and going_on:
            self._live.update(self._jobs(), refresh=True)  # text alone would bring the last drawing along, not this one
        for screen in ended:
            self._print(self._picture(screen))
        if not going_on:
            self._end_live([])

    def _end_live(self, unfinished: list[JobScreen]) -> None:
        """Leave the last picture of what is left, and let text go straight to the terminal again."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        with self._changed:  # printed inside, so that nobody's next line comes before it
            text = self._take_pending()
            if text:
                self._print(Verbatim(text))
            self._is_live = False
        for screen in unfinished:
            self._print(self._picture(screen))

    def _take_pending(self) -> str:
        text = "".join(self._pending)
        self._pending.clear()
        self._pending_size = 0
        self._changed.notify_all()
        return text

    def _print(self, renderable: RenderableType) -> None:
        self._terminal.print(renderable, crop=False, end="")  # long lines of the job's stay whole

    def _jobs(self) -> RenderableType:
        now, size = self._clock(), self._terminal.size
        height = (size.height - 2) // max(1, len(self._screens))
        parts: list[RenderableType] = [screen.render(now, size.width, height) for screen in self._screens]
        with self._changed:
            starting = list(self._starting.values())
        parts += [starting_line(draft, config, now - at) for draft, config, at in starting]
        # The cursor rests in an empty line: what the terminal echoes there (^C) would break a full one in two, and the next
        # drawing would begin a line too low.
        return Group(*parts, Text(""))

    def _picture(self, screen: JobScreen) -> RenderableType:
        return Group(screen.render(self._clock(), self._terminal.size.width), Rule(style="dim"))


class Verbatim:
    """Text that goes to the terminal as it is, with the escape sequences that it may hold."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Segment(self._text)


def starting_line(draft: JobPlan, config: JobConfig, seconds: float) -> RenderableType:
    line = Text(draft.job, style="bold", no_wrap=True, overflow="ellipsis")
    line.append("  ● STARTING SPARK", style="yellow")
    line.append(
        f"  {how_long_whole(seconds)} · {counted(len(draft.slots), 'slot')} on {config.master or 'this machine'}",
        style="not bold dim",
    )
    return Group(Rule(style="dim"), line)


class _LinesTo(io.TextIOBase):
    """Stands in for a standard stream: whole lines go to the display, the rest waits for its line feed."""

    def __init__(self, stream: TextIO, write_lines: Callable[[str], None]) -> None:
        self._stream = stream
        self._write_lines = write_lines
        self._rest = ""
        self._lock = threading.Lock()

    def write(self, text: str) -> int:
        with self._lock:
            lines, feed, rest = (self._rest + text).rpartition("\n")
            self._rest = rest
            if feed:
                self._write_lines(lines + feed)
        return len(text)

    def drain(self) -> None:
        """What had no line feed."""
        with self._lock:
            rest, self._rest = self._rest, ""
        self._stream.write(rest)
        self._stream.flush()

    def flush(self) -> None:
        self._stream.flush()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding
