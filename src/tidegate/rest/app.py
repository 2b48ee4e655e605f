"""The ASGI application: routes, the token, the bounds on requests, errors in Flink's shape. Driver; the server's thread.

Handlers only read copies and start threads, so they run in the loop itself. Order of checks: who asks (host, origin, token),
how much is sent, what is asked.
"""

from __future__ import annotations

import hmac
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from tidegate.rest import prometheus
from tidegate.rest.calls import Call, PlainText, parse_body
from tidegate.rest.openapi import description
from tidegate.rest.operations import Operations
from tidegate.rest.problems import Problem
from tidegate.rest.routes import ROUTES, Route
from tidegate.rest.served import JobTable

log = logging.getLogger("tidegate.rest")

MAX_BODY_BYTES = 1 << 20
COOKIE = "tidegate_token"
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
CANCEL_BY_GET = "/yarn-cancel"  #: of Flink's web pages
_JSON = "application/json; charset=UTF-8"


def make_app(jobs: JobTable, operations: Operations, token: str | None, pages: list[BaseRoute]) -> ASGIApp:
    """`token` None: this machine alone may ask, and by a name of its own."""
    routes: list[BaseRoute] = []
    for route in ROUTES:
        endpoint = _endpoint(route, jobs, operations)
        for prefix in ("", "/v1"):
            routes.append(StarletteRoute(prefix + route.path, endpoint, methods=[route.method]))

    async def metrics(request: Request) -> Response:
        return PlainTextResponse(prometheus.exposition(jobs.all()), media_type=prometheus.CONTENT_TYPE)

    async def openapi(request: Request) -> Response:
        return _answer(200, description())

    routes += [StarletteRoute("/metrics", metrics), StarletteRoute("/openapi.json", openapi), *pages]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _on_http, Problem: _on_problem})
    app.router.redirect_slashes = False
    return Guard(app, token)


class Guard:
    """Who may ask. In front of everything, pages included."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        refusal = self._refusal(request)
        await (self._app if refusal is None else refusal)(scope, receive, send)

    def _refusal(self, request: Request) -> Response | None:
        origin = request.headers.get("origin")
        host = request.headers.get("host", "")
        if origin is not None and request.method not in ("GET", "HEAD") and urlsplit(origin).netloc != host:
            return _errors(403, "a page of another origin may not act on jobs")
        if self._token is None:
            # A page elsewhere can point a name of its own at this machine; then the browser sends that name.
            if _host_name(host) not in LOOPBACK_NAMES:
                return _errors(403, "this server answers to localhost; with a token it answers to any name")
            # A picture on a page elsewhere is a GET without an origin, but browsers tell it by this. (Cookies stay at home.)
            by_get = request.method in ("GET", "HEAD") and CANCEL_BY_GET in request.url.path
            if by_get and request.headers.get("sec-fetch-site") != "same-origin":
                return _errors(
                    403, "only a page of this server may cancel with GET; PATCH /jobs/ID cancels for everybody"
                )
            return None
        given = request.query_params.get("token")
        if given is not None and request.method == "GET" and self._is_token(given):
            response = RedirectResponse(request.url.path, 303)  # so that the token does not stay in the address
            response.set_cookie(COOKIE, given, httponly=True, samesite="strict", secure=request.url.scheme == "https")
            return response
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._is_token(bearer.strip()):
            return None
        if self._is_token(request.cookies.get(COOKIE, "")):
            return None
        return _errors(401, "a token is needed: Authorization: Bearer TOKEN", {"WWW-Authenticate": "Bearer"})

    def _is_token(self, given: str) -> bool:
        assert self._token is not None
        return hmac.compare_digest(given.encode("utf-8", "replace"), self._token.encode())


def _host_name(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _endpoint(route: Route, jobs: JobTable, operations: Operations) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        data = await _read(request)
        body = (
            parse_body(data) if route.body is not None else {}
        )  # Flink's client sends a body with a GET; it says nothing
        call = Call(jobs, operations, request.path_params, request.query_params, body)
        try:
            return _answer(*route.handler(call))
        except Problem:
            raise
        except Exception as error:  # a bug of ours: said once, and the server lives on
            log.error("REST could not answer %s %s", request.method, request.url.path, exc_info=error)
            return _errors(500, f"Internal server error: {type(error).__name__}. The driver's log has more.")

    return handle


async def _read(request: Request) -> bytes:
    """:raises Problem: for a body over the bound, before it is read to its end."""
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced[:18]) > MAX_BODY_BYTES:
        raise Problem(413, f"the body is larger than {MAX_BODY_BYTES} bytes")
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > MAX_BODY_BYTES:
            raise Problem(413, f"the body is larger than {MAX_BODY_BYTES} bytes")
    return bytes(data)


def _answer(status: int, content: Any) -> Response:
    if isinstance(content, PlainText):
        text = content.text.encode("utf-8", "replace")
        return Response(text, status, {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}, "text/plain")
    data = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(data.encode("utf-8", "replace"), status, {"Cache-Control": "no-store"}, media_type=_JSON)


def _errors(status: int, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"errors": [message]}, status, headers, media_type=_JSON)


async def _on_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return _errors(error.status, error.message)


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return _errors(404, f"Not found: {request.url.path[:200]}")
    if error.status_code == 405:
        return _errors(405, f"{request.method} is not possible here", dict(error.headers or {}))
    return _errors(error.status_code, str(error.detail), dict(error.headers or {}))
