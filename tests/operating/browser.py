"""A real Chromium without a screen, driven by the WebDriver protocol over plain HTTP."""

from __future__ import annotations

import base64
import json
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ARTIFACTS = ROOT / "artifacts" / "dashboard"
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  #: the protocol's name for a reference to an element
PATIENCE_S = 60.0


class Browser:
    """One window; ends with its `with`."""

    def __init__(self, folder: Path, dark: bool = False) -> None:
        found = subprocess.run(["sh", str(ROOT / "tools" / "chromium.sh")], capture_output=True, text=True, timeout=170)
        assert found.returncode == 0, found.stderr
        browser, driver = found.stdout.split()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._url = f"http://127.0.0.1:{port}"
        self._driver = subprocess.Popen(
            [driver, f"--port={port}", f"--log-path={folder}/chromedriver.log"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/profile"]
        arguments += ["--disable-background-networking", "--no-first-run", "--window-size=1300,900"]
        arguments += ["--blink-settings=preferredColorScheme=0"] if dark else []
        try:
            self._until_up()
            options = {"binary": browser, "args": arguments}
            asked = {
                "capabilities": {
                    "alwaysMatch": {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
                }
            }
            self._session = f"/session/{self._call('POST', '/session', asked)['sessionId']}"
        except BaseException:
            self._driver.kill()
            self._driver.wait()
            raise

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._call("DELETE", self._session)
        finally:
            self._driver.terminate()
            self._driver.wait()

    def open(self, url: str) -> None:
        self._call("POST", f"{self._session}/url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """The value of `return ...`."""
        return self._call("POST", f"{self._session}/execute/sync", {"script": script, "args": list(arguments)})

    def text(self, selector: str) -> str:
        return str(self.run("const e = document.querySelector(arguments[0]); return e ? e.innerText : ''", selector))

    def click(self, selector: str) -> None:
        """As a user does: the element must be there and not be covered."""
        self.until(f"{selector} is there", lambda: self.run("return !!document.querySelector(arguments[0])", selector))
        found = self._call("POST", f"{self._session}/element", {"using": "css selector", "value": selector})
        self._call("POST", f"{self._session}/element/{found[ELEMENT]}/click", {})

    def until(self, what: str, true: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + PATIENCE_S
        while not (found := true()):
            assert time.monotonic() < deadline, f"not in time: {what}\n{self.text('body')[:2000]}"
            time.sleep(0.05)
        return found

    def resize(self, width: int, height: int) -> None:
        self._call("POST", f"{self._session}/window/rect", {"width": width, "height": height})

    def screenshot(self, name: str) -> None:
        ARTIFACTS.mkdir(parents=True, exist_ok=True)
        data = base64.b64decode(self._call("GET", f"{self._session}/screenshot"))
        (ARTIFACTS / f"{name}.png").write_bytes(data)

    def complaints(self) -> list[str]:
        """Errors in the browser's console: scripts that fail, what the policy has blocked."""
        entries = self._call("POST", f"{self._session}/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if entry["level"] == "SEVERE"]

    def loaded_from(self) -> set[str]:
        """The origins of everything that the page has loaded."""
        return set(self.run("return performance.getEntriesByType('resource').map(e => new URL(e.name).origin)"))

    def _until_up(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                self._call("GET", "/status")
                return
            except OSError:
                assert time.monotonic() < deadline, "chromedriver did not start"
                time.sleep(0.05)

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.read().decode()[:1000]}") from None
