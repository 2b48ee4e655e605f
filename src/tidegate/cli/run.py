"""`tidegate run job.py`: the user's program as it is, with settings over its own and a display. Driver.

The program runs as __main__ in this process, so that `python job.py` and `tidegate run job.py` are the same job. Jobs that it
has started and not waited for are waited for.
"""

from __future__ import annotations

import logging
import os
import runpy
import shlex
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import FrameType

from rich.console import Console
from rich.text import Text

from tidegate.api.built_jobs import take_never_executed
from tidegate.cli.display import LiveDisplay
from tidegate.cli.json_lines import JsonDisplay
from tidegate.cli.pipes import output_is_closed
from tidegate.cli.settings import ConfigOverrides
from tidegate.client import JobClient
from tidegate.config import JobConfig
from tidegate.console import show_err
from tidegate.errors import JobFolderInUse, Superseded, TidegateError
from tidegate.graph.plan import JobPlan
from tidegate.other_driver import where_it_goes_on
from tidegate.overrides import Onlooker, overriding, watched_by
from tidegate.python_paths import path_entry, prepend_for_children
from tidegate.telling.exit_codes import EXIT_CONFIGURATION, EXIT_FAILED, EXIT_FINISHED, EXIT_INTERRUPTED, exit_code_of
from tidegate.telling.failures import describe_error, format_program_error
from tidegate.telling.plain import PlainDisplay
from tidegate.terminating import TermHandler, say_on_stderr


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What the command line asks for."""

    script: str
    arguments: tuple[str, ...] = ()
    overrides: ConfigOverrides = field(default_factory=ConfigOverrides)
    quiet: bool = False
    plain: bool = False
    json: bool = False


def run(request: RunRequest) -> int:
    """Run the program; the exit code says how it ended."""
    script = os.path.abspath(request.script)
    if not os.path.isfile(script):
        say_error(f"there is no program {request.script}")
        return EXIT_CONFIGURATION
    jobs = Jobs()
    prepare_process(script, request)
    try:
        with ExitStack() as around:
            around.enter_context(notices(as_json=request.json))
            interrupted = around.enter_context(_shown(request, jobs))
            around.enter_context(_signals(interrupted, request.json))
            around.enter_context(overriding(request.overrides))
            around.enter_context(watched_by(jobs))
            around.callback(take_never_executed)  # of a program that fails nothing more is said
            runpy.run_path(script, run_name="__main__")
            jobs.wait()
            for sentence in take_never_executed():
                (_say_as_json if request.json else _say)("warning", "bold yellow", sentence)
    except TidegateError as error:
        if request.json:
            _say_as_json("error", "", describe_error(error))
            return exit_code_of(error)
        say_error(describe_error(error))
        jobs.say_how_to_continue(error)
        return exit_code_of(error)
    except KeyboardInterrupt:
        if not request.json:  # there the job's last status says it
            sys.stderr.write("\ninterrupted: the job is canceled\n" if jobs.clients else "\ninterrupted\n")
            jobs.say_how_to_continue()
        return EXIT_INTERRUPTED
    except SystemExit as end:
        return _exit_code(end)
    except BaseException as error:
        if isinstance(error, BrokenPipeError) and output_is_closed():
            raise  # nobody reads what the program prints: `tidegate` ends as other commands do
        text = format_program_error(error, script)
        if request.json:
            _say_as_json("error", "", text)
        else:
            sys.stderr.write(text)
        return EXIT_FAILED
    return EXIT_FINISHED


def say_error(text: str) -> None:
    _say("error", "bold red", text)


def prepare_process(script: str, request: RunRequest) -> None:
    """As Python itself would start the program; and what executors on this machine need to find its modules."""
    files = request.overrides.values.get("python_files")
    folders = [os.path.dirname(script), *map(path_entry, files.value if files is not None else ())]
    sys.argv = [request.script, *request.arguments]
    sys.path[:0] = folders
    prepend_for_children(folders)
    if request.overrides.spark:
        given = os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell")
        pairs = [f"--conf {shlex.quote(f'{key}={value}')}" for key, value in request.overrides.spark.items()]
        os.environ["PYSPARK_SUBMIT_ARGS"] = " ".join([*pairs, given])


@dataclass(slots=True)
class Jobs:
    """All jobs that the program starts. Implements Onlooker; passes on to the display."""

    display: Onlooker | None = None
    clients: list[JobClient] = field(default_factory=list)

    def launching(self, draft: JobPlan, config: JobConfig) -> None:
        if self.display is not None:
            self.display.launching(draft, config)

    def launched(self, client: JobClient, plan: JobPlan) -> None:
        self.clients.append(client)
        if self.display is not None:
            self.display.launched(client, plan)

    def wait(self) -> None:
        """For those that the program has left running, or whose failure it has not heard of."""
        for client in self.clients:
            if not client.status.is_terminal or client.has_unheard_failure:
                client.wait(cancel_on_interrupt=True)

    def say_how_to_continue(self, error: TidegateError | None = None) -> None:
        """Where a checkpoint is left that a next run can start from. Not where another driver has the job: it would be taken
        away from it."""
        match error:
            case Superseded():
                sys.stderr.write(f"{where_it_goes_on(error)}\n")
                return
            case JobFolderInUse():
                if not error.context.get("finished") and "driver" not in error.context:
                    sys.stderr.write("here: tidegate run --resume\n")
                return
        latest = self.clients[-1].view.latest_completed() if self.clients else None
        if latest is not None and latest.path and not latest.path.startswith("memory:"):
            sys.stderr.write(f"checkpoint {latest.checkpoint} is kept: tidegate run --resume continues from it\n")


@contextmanager
def _shown(request: RunRequest, jobs: Jobs) -> Iterator[Callable[[], None]]:
    """With the display that fits; gives what to call when the user interrupts."""
    if request.json:
        jobs.display = JsonDisplay(lambda text: sys.stderr.write(text))
        yield lambda: None
    elif request.quiet:
        yield lambda: None
    elif sys.stdout.isatty() and not request.plain:
        live = LiveDisplay(Console(file=sys.stdout, highlight=False))
        jobs.display = live
        with live.showing():
            yield live.interrupted
    else:
        jobs.display = PlainDisplay(lambda text: sys.stderr.write(text))
        yield lambda: None


@contextmanager
def _signals(interrupted: Callable[[], None], as_json: bool) -> Iterator[None]:
    def on_interrupt(number: int, frame: FrameType | None) -> None:
        interrupted()
        raise KeyboardInterrupt

    before = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
    signal.signal(signal.SIGINT, on_interrupt)
    signal.signal(signal.SIGTERM, TermHandler(_resume_option, _terminating_as_json if as_json else say_on_stderr))
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _terminating_as_json(text: str) -> None:
    JsonDisplay(show_err).say("terminating", message=text)


def _resume_option(place: str) -> str:
    return "tidegate run --resume" if place == "latest" else f"tidegate run --resume {place}"


@contextmanager
def notices(as_json: bool = False) -> Iterator[None]:
    """Warnings and our log as single lines. A program that sets up logging itself keeps what it has set up."""
    say = _say_as_json if as_json else _say
    show, handler, logger = warnings.showwarning, _NoticeHandler(say), logging.getLogger("tidegate")
    warnings.showwarning = lambda message, *_, **__: say("warning", "bold yellow", str(message))
    logger.addHandler(handler)
    try:
        yield
    finally:
        warnings.showwarning = show
        logger.removeHandler(handler)


class _NoticeHandler(logging.Handler):
    def __init__(self, say: Callable[[str, str, str], None]) -> None:
        super().__init__(logging.WARNING)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            self._say("warning" if record.levelno < logging.ERROR else "error", "bold yellow", self.format(record))


def _say_as_json(kind: str, style: str, text: str) -> None:
    JsonDisplay(lambda line: sys.stderr.write(line)).say(kind, message=text)


def _say(kind: str, style: str, text: str) -> None:
    """On standard error, as it is at the moment: the display may stand before it."""
    if sys.stderr.isatty():
        console = Console(file=sys.stderr, highlight=False)
        console.print(Text.assemble((f"{kind}: ", style), text), soft_wrap=True)
    else:
        sys.stderr.write(f"{kind}: {text}\n")


def _exit_code(end: SystemExit) -> int:
    """As Python does it."""
    if end.code is None:
        return EXIT_FINISHED
    if isinstance(end.code, int):
        return end.code
    sys.stderr.write(f"{end.code}\n")
    return EXIT_FAILED
