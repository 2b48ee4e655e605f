"""A job in a notebook: it shows itself in every state, escapes what it shows, and an interrupt while waiting cancels it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any

import pytest
from cli_kit import planned_sums
from rest_kit import lived

from tidegate.client import JobClient
from tidegate.coordinator.failures import failure_of
from tidegate.coordinator.observing import AttemptFailed, JobStatus, JobView, StatusChanged
from tidegate.errors import UserLine
from tidegate.ids import AttemptId, AttemptNumber, Generation
from tidegate.wire.control import SlotFailed

VOID = {"br"}


class Page(HTMLParser):
    """Checks that tags are closed in order, and keeps the text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data + " "


class ScriptedExecution:
    """Stands for JobExecution: whoever waits is interrupted once, and a cancel ends the job."""

    def __init__(self) -> None:
        self.plan = planned_sums()
        self.ended: Any = None
        self.canceled = 0
        self.end_event = self
        self._interrupts = 1
        self._event = threading.Event()

    def wait(self, limit: float | None = None) -> bool:
        if self._interrupts:
            self._interrupts -= 1
            raise KeyboardInterrupt
        return self._event.wait(limit)

    def request_cancel(self, why: str, keep: bool, commits_within_s: float) -> None:
        self.canceled += 1
        self._event.set()


def is_waiting(thread: threading.Thread) -> bool:
    """Whether it is inside Event.wait."""
    frame = sys._current_frames()[thread.ident or 0]
    return frame.f_code.co_name == "wait" and frame.f_code.co_filename == threading.__file__


def client(view: JobView) -> JobClient:
    made = JobClient("sums", ScriptedExecution(), view, None)  # type: ignore[arg-type]
    made.url = "http://localhost:8081"
    return made


def test_a_running_job_shows_operators_and_checkpoints() -> None:
    view = JobView()
    lived(view)
    page = Page(client(view)._repr_html_())
    for part in (
        "sums",
        "RUNNING",
        "attempt g1-a2",
        "4 slots · attempt g1-a2 · 1 restart · 3 checkpoints",
        "450 ms, 2.34 kb",
        "map double",
        "400",
        "checkpoint 4 at",
    ):
        assert part in page.text
    (link,) = [attributes for tag, attributes in page.seen if tag == "a"]
    assert link["href"] == "http://localhost:8081"


KERNELS_FILE = "/tmp/ipykernel_4711/1234567.py"


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """IPython as it answers in a kernel of whose cells number 11 is that file."""

    def format_code_name(file: str) -> tuple[str, str] | None:
        return ("Cell", "In[11]") if file == KERNELS_FILE else None

    shell = SimpleNamespace(compile=SimpleNamespace(format_code_name=format_code_name))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))


def test_a_line_of_a_cell_is_named_as_people_know_it(kernel: None) -> None:
    failed = SlotFailed(
        message="ValueError: bad",
        kind="user",
        operator="map",
        uid="doubled",
        subtask=1,
        user_line=f"{KERNELS_FILE}:6",
        traceback=f'  File "{KERNELS_FILE}", line 6, in double\n  File "/tmp/ipykernel_1/2.py", line 1, in other\n',
    )
    error, _ = failure_of(failed)

    assert error.message == "ValueError: bad\n  in map (uid 'doubled'), subtask 1, at In[11]:6"
    assert error.context["cause"] == (
        '  File "In[11]", line 6, in double\n  File "/tmp/ipykernel_1/2.py", line 1, in other\n'
    )
    assert str(UserLine(KERNELS_FILE, 6)) == "In[11]:6"
    assert str(UserLine("/home/me/job.py", 6)) == "/home/me/job.py:6"


def test_outside_of_a_kernel_a_file_is_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    assert str(UserLine(KERNELS_FILE, 6)) == f"{KERNELS_FILE}:6"

    monkeypatch.delitem(sys.modules, "IPython")
    assert str(UserLine(KERNELS_FILE, 6)) == f"{KERNELS_FILE}:6"


@pytest.mark.parametrize("status", list(JobStatus))
def test_every_state_is_shown(status: JobStatus) -> None:
    view = JobView()
    view.publish(StatusChanged(status, "", 1.0))
    assert status.value in Page(client(view)._repr_html_()).text
    assert repr(client(view)) == f"<job sums: {status.value}, http://localhost:8081>"


def test_what_is_shown_is_escaped() -> None:
    view = JobView()
    attempt = AttemptId(Generation(1), AttemptNumber(1))
    view.publish(AttemptFailed(attempt, "<script>alert('x')</script> & more", None, 1.0))
    view.publish(StatusChanged(JobStatus.FAILED, "", 1.0))
    html = client(view)._repr_html_()
    assert "<script" not in html
    assert "<script>alert('x')</script> & more" in Page(html).text


def test_an_interrupt_while_waiting_cancels_where_asked() -> None:
    view = JobView()
    patient = client(view)
    with pytest.raises(KeyboardInterrupt):
        patient.wait()
    assert patient._execution.canceled == 0  # type: ignore[attr-defined]
    eager = client(view)
    with pytest.raises(KeyboardInterrupt):
        eager.wait(cancel_on_interrupt=True)
    assert eager._execution.canceled == 1  # type: ignore[attr-defined]


def test_an_interrupt_that_the_system_hands_to_another_thread_is_heard() -> None:
    execution = ScriptedExecution()
    execution._interrupts = 0
    waiting = JobClient("sums", execution, JobView(), None)  # type: ignore[arg-type]
    interrupted = threading.Event()

    def interrupt() -> None:
        while not is_waiting(threading.main_thread()):
            interrupted.wait(0.05)
        interrupted.wait(0.05)  # the frame is there a moment before it sleeps
        os.kill(os.getpid(), signal.SIGINT)
        if not interrupted.wait(20.0):
            execution._event.set()  # nobody has heard it: the end of the job ends the wait

    other = threading.Thread(target=interrupt)
    other.start()  # with the mask of a thread that takes signals
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job starts without it
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with pytest.raises(KeyboardInterrupt):
            waiting.wait()
    finally:
        interrupted.set()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(signal.SIGINT, handler)
    other.join()
    assert not execution._event.is_set()
