"""The machine's Chromium, driven by Playwright, and what every test of a page wants to know of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
PATIENCE_MS = 60_000
ARTIFACTS = Path(os.environ.get("TIDEGATE_ARTIFACTS") or Path(__file__).parents[2] / "artifacts") / "dashboard"


@contextmanager
def chromium() -> Iterator[Browser]:
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    assert program is not None, (
        "no Chromium is installed: sh tools/services.sh installs it (or apt-get install chromium)"
    )
    # The sandbox needs rights that containers do not give; the pages are our own.
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"])
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Screen:
    """One page, what went wrong in it, and everything that it asked for."""

    page: Page
    url: str  #: the driver's
    job: str
    requested: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.set_default_timeout(PATIENCE_MS)
        self.page.on("request", lambda request: self.requested.append(request.url))
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("console", lambda message: self.faults.append(message.text) if message.type == "error" else None)

    def show(self, tab: str) -> Page:
        """Until it is loaded and shown."""
        place = f"#/jobs/{self.job}/{tab}"
        self.page.goto(f"{self.url}/{place}")
        self.until("h => document.getElementById('page').dataset.ready === h", place)
        return self.page

    def until(self, true: str, argument: Any = None) -> None:
        self.page.wait_for_function(true, arg=argument)

    def text(self) -> str:
        return self.page.inner_text("#page")

    def keep(self, name: str) -> None:
        """A picture of all of it, for people."""
        ARTIFACTS.mkdir(parents=True, exist_ok=True)
        (ARTIFACTS / f"{name}.png").write_bytes(self.page.screenshot(full_page=True))

    def assert_clean(self) -> None:
        """No script failed, nothing was refused by the page's policy, no other host was asked."""
        assert self.faults == []
        assert [url for url in self.requested if not url.startswith(self.url + "/")] == []


@contextmanager
def screen(browser: Browser, url: str, job: str, *, dark: bool = False, width: int = 1280) -> Iterator[Screen]:
    context = browser.new_context(color_scheme="dark" if dark else "light", viewport={"width": width, "height": 900})
    try:
        yield Screen(context.new_page(), url, job)
    finally:
        context.close()
