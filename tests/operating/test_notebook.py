"""A job in a real kernel: the cell returns at once, the client shows itself, an interrupt cancels where it was asked for."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.spark

PATIENCE_S = 120.0
PAGE = Path(__file__).parents[2] / "docs" / "notebooks.md"
PAGE_EXAMPLE = PAGE.read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]
JOB = """
import os, sys, threading, time
import tidegate as tg

def job(name):
    env = tg.StreamEnvironment(name)
    env.checkpointing(every="200ms", storage="file://" + os.getcwd() + "/storage")
    numbers = env.from_source(tg.DataGenerator(lambda i: i, rate=200, type=int), uid="numbers")
    numbers.key_by(lambda n: n % 3, key_type=int).count(uid="counts").collect(uid="out")
    return env

def tell_when_waiting():
    # Says so when the kernel's main thread is inside JobClient.wait: an interrupt before that would prove nothing.
    def watch():
        while True:
            frame = sys._current_frames()[threading.main_thread().ident]
            while frame is not None:
                if frame.f_code.co_name == "wait" and frame.f_code.co_filename.endswith("client.py"):
                    print("it waits", flush=True)
                    return
                frame = frame.f_back
            time.sleep(0.01)
    threading.Thread(target=watch, daemon=True).start()

client = job("in-a-notebook").execute_async()
"""


class Notebook:
    """Cells, one after another, in a kernel of its own process."""

    def __init__(self, manager: Any, client: Any) -> None:
        self._manager = manager
        self._client = client

    def run(self, code: str, interrupt_at: str = "") -> tuple[dict[str, Any], dict[str, str]]:
        """The reply, and what the cell's last line shows, by media type. Interrupts the kernel when it prints those words: a
        thread prints them, and which cell a thread's words are counted to is the kernel's affair."""
        asked = self._client.execute(code)
        shown: dict[str, str] = {}
        deadline = time.monotonic() + PATIENCE_S
        while True:
            message = self._client.get_iopub_msg(timeout=max(0.1, deadline - time.monotonic()))
            kind, content = message["msg_type"], message["content"]
            if kind == "stream" and interrupt_at and interrupt_at in content["text"]:
                self._manager.interrupt_kernel()
            elif message["parent_header"].get("msg_id") != asked:
                continue
            elif kind == "execute_result":
                shown = content["data"]
            elif kind == "status" and content["execution_state"] == "idle":
                break
        while True:  # a kernel that was slow to begin may have been asked twice whether it is there
            reply = self._client.get_shell_msg(timeout=PATIENCE_S)
            if reply["parent_header"].get("msg_id") == asked:
                break
        return reply["content"], shown

    def ok(self, code: str) -> dict[str, str]:
        reply, shown = self.run(code)
        assert reply["status"] == "ok", "\n".join(reply.get("traceback", []))
        return shown

    def until(self, code: str, *parts: str) -> str:
        """The HTML of the cell, once it has all parts."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            html = self.ok(code).get("text/html", "")
            if all(part in html for part in parts):
                return html
            assert time.monotonic() < deadline, f"never had {parts}: {html}"
            time.sleep(0.1)


@pytest.fixture
def notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(
        startup_timeout=PATIENCE_S, kernel_name="python3", cwd=str(tmp_path), env=dict(os.environ)
    )
    try:
        yield Notebook(manager, client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_a_job_beside_the_kernel_shows_itself_and_is_canceled_by_an_interrupt(notebook: Notebook) -> None:
    notebook.ok(JOB)  # returns although the job has no end

    html = notebook.until("client", "RUNNING", "count", "http://localhost:", "completed")
    assert "in-a-notebook" in html
    assert notebook.ok("client")["text/plain"].startswith("<job in-a-notebook: RUNNING, http://localhost:")
    notebook.until("len(client.results('out')) and client", "RUNNING")

    # Waiting is interrupted, the job is not.
    reply, _ = notebook.run("tell_when_waiting(); client.wait()", interrupt_at="it waits")
    assert reply["ename"] == "KeyboardInterrupt"
    assert notebook.ok("client.status.value")["text/plain"] == "'RUNNING'"

    # Asked to cancel, it is; the kernel and its Spark live on.
    reply, _ = notebook.run("tell_when_waiting(); client.wait(cancel_on_interrupt=True)", interrupt_at="it waits")
    assert reply["ename"] == "KeyboardInterrupt"
    assert notebook.ok("client.status.value")["text/plain"] == "'CANCELED'"

    # So does execute(), which waits by itself.
    reply, _ = notebook.run("tell_when_waiting(); job('again').execute()", interrupt_at="it waits")
    assert reply["ename"] == "KeyboardInterrupt"
    ended = notebook.ok(
        "from tidegate.rest.server import _servers; [j.view.status.value for s in _servers.values() for j in s.jobs.all()]"
    )
    assert ended["text/plain"] == "['CANCELED', 'CANCELED']"

    # A line of a cell is named by the cell, in what is refused before anything runs and in what workers say.
    twice = "env.from_sequence(1, 9, uid='n')\n"
    reply, _ = notebook.run(f"env = tg.StreamEnvironment('bad')\n{twice}{twice}")
    assert re.search(r"at In\[\d+\]:2 and to .* at In\[\d+\]:3", reply["evalue"]), reply["evalue"]
    reply, _ = notebook.run(
        "env = tg.StreamEnvironment('raises')\n"
        "def double(n):\n"
        "    return n * 2 / 0\n"
        "env.from_sequence(1, 9, uid='n').map(double, returns=int).print()\n"
        "env.execute()"
    )
    assert re.search(r"ZeroDivisionError: .*\n  in map double .*, at In\[\d+\]:3", reply["evalue"]), reply["evalue"]

    # The page's own example: what has come out is there while the job runs.
    notebook.ok(PAGE_EXAMPLE)
    notebook.until("len(client.results('all')) and client", "RUNNING", "numbers")
    notebook.ok("client.cancel(); client.wait()")
