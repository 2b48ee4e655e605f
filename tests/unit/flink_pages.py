"""Flink's own web pages, unmodified, from the jar of its package, in front of our REST."""

from __future__ import annotations

import mimetypes
import zipfile
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Page, Route

import fetch

INDEX = "index.html"


def pages_of_flink() -> dict[str, bytes]:
    """By name. :raises fetch.NotFetched:"""
    (jar,) = Path(fetch.folder_of("flink"), "pyflink", "lib").glob("flink-dist-*.jar")
    with zipfile.ZipFile(jar) as archive:
        names = [name for name in archive.namelist() if name.startswith("web/") and not name.endswith("/")]
        return {name.removeprefix("web/"): archive.read(name) for name in names}


def serve(page: Page, files: dict[str, bytes]) -> None:
    """The page gets these files from the server's address; all else that it asks for goes to the server."""

    def answer(route: Route) -> None:
        name = urlsplit(route.request.url).path.lstrip("/")
        if name in files:
            route.fulfill(body=files[name], content_type=mimetypes.guess_type(name)[0] or "text/plain")
        else:
            route.continue_()

    page.route("**/*", answer)
