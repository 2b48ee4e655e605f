"""The dashboard's files, served by the driver: one page, its style and scripts. Driver; the server's thread.

Everything the page shows comes from REST; nothing comes from another host, and the browser is told to allow nothing else.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

_TYPES = {"html": "text/html; charset=utf-8", "css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}
_HEADERS = {
    # Styles in attributes are widths of bars.
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def pages() -> list[BaseRoute]:
    return [Route("/", _index), Route("/pages/{name}", _file)]


async def _index(request: Request) -> Response:
    return _answer("index.html")


async def _file(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _contents():
        raise HTTPException(404)
    return _answer(name)


def _answer(name: str) -> Response:
    return Response(_contents()[name], headers=_HEADERS, media_type=_TYPES[name.rpartition(".")[2]])


@cache
def _contents() -> dict[str, bytes]:
    """Read once: a request names one of these, never a path."""
    folder = files("tidegate.rest") / "pages"
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name.rpartition(".")[2] in _TYPES}
