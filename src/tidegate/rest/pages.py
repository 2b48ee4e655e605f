"""The dashboard's files, from the package itself, read once. Driver; the server's thread.

`/` is the page; it loads what lies under `/dashboard/` and asks the routes of REST, nothing else: its policy forbids other
hosts, inline scripts and frames. The files are known by name beforehand, so no request reaches the disk.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import xxhash
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # asked for again each time, and then answered with 304
}
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
INDEX = "index.html"
ICON = "icon.svg"


@cache
def assets() -> dict[str, tuple[bytes, str, str]]:
    """By name: content, media type, tag."""
    found = {}
    for file in files("tidegate.rest").joinpath("dashboard").iterdir():
        kind = TYPES.get(file.name[file.name.rfind(".") :])
        if kind is not None:
            data = file.read_bytes()
            found[file.name] = (data, kind, f'"{xxhash.xxh3_64_hexdigest(data)}"')
    return found


def pages() -> list[BaseRoute]:
    return [Route("/", _index), Route("/dashboard/{name}", _asset), Route("/favicon.ico", _icon)]


async def _index(request: Request) -> Response:
    return _file(request, INDEX)


async def _icon(request: Request) -> Response:
    """Browsers ask for it by this name with an answer that is not our page: a refusal, JSON."""
    return _file(request, ICON)


async def _asset(request: Request) -> Response:
    return _file(request, request.path_params["name"])


def _file(request: Request, name: str) -> Response:
    found = assets().get(name)
    if found is None:
        return Response("Not found", 404, HEADERS, media_type="text/plain")
    data, kind, tag = found
    headers = HEADERS | {"ETag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(data, 200, headers, media_type=kind)
