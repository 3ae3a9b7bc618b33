"""The ledger as a small service: training machines need a token and no database credentials.

Every method of a book is one POST of JSON under ``/v1/``, with the caller's token as a bearer
token. The book is called in the caller's name, and checks what the caller's role may do. ``/`` and
``/accounts/NAME`` are the auditor's pages, for which a browser asks for the token as a password;
they can change nothing. ``/health`` needs no token.

Each request writes a log line of JSON: caller, method, result and duration. The log never contains
tokens or bodies.
"""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from forethought.ledger.book import BookError, NotAllowedError
from forethought.ledger.page import account_page, index_page
from forethought.ledger.remote import LOOPBACK
from forethought.ledger.wire import ARGUMENTS, CALLS, UNCHANGED, error_to
from forethought.values.serialisation import parse

if TYPE_CHECKING:
    from forethought.ledger.store import Store

# Largest body in bytes; requests a second (and at once) of a token; wrong tokens of an address.
LARGEST = 4 << 20
RATE, BURST = 50.0, 200.0
WRONG_RATE, WRONG_BURST = 0.2, 10.0
# The largest number of buckets in memory.
MOST_NAMES = 10_000

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


# What the log has of a request; and a handler, which adds to it.
Line = dict[str, Any]
Answer = Callable[[Request, bytes, Line], Response]


class Buckets:
    """Rate limits: a bucket of permits for each name, refilled with time."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst, self._lock = rate, burst, threading.Lock()
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, name: str) -> bool:
        """Take a permit from a name's bucket; False if it is empty."""
        now = time.monotonic()
        with self._lock:
            left, at = self._left.pop(name, (self._burst, now))
            left = min(self._burst, left + (now - at) * self._rate)
            enough = left >= 1
            self._left[name] = (left - enough, now)
            while len(self._left) > MOST_NAMES:
                del self._left[next(iter(self._left))]
        return enough


@dataclass
class Service:
    """The handlers of requests; :func:`app` makes an application of them.

    Args:
        book: opened by an owner; callers act in their own names.
        log: gets one line for each request.
    """

    book: Store
    log: IO[str] = field(default_factory=lambda: sys.stderr)
    rate: Buckets = field(default_factory=lambda: Buckets(RATE, BURST))
    wrong: Buckets = field(default_factory=lambda: Buckets(WRONG_RATE, WRONG_BURST))

    def call(self, request: Request, body: bytes, line: Line) -> Response:
        """Call one method of the book, in the name of the token's holder."""
        line["what"] = method = request.path_params["method"]
        book = self._acting(request, line)
        if method not in CALLS:
            raise HTTPException(404, f"a book has no {method!r}: {', '.join(CALLS)}")
        call = CALLS[method]
        values = parse(body.decode("utf-8")) if body else {}
        if not isinstance(values, dict):
            raise HTTPException(400, "the body must be a JSON object of arguments")
        arguments = {name: ARGUMENTS.get(name, UNCHANGED)[1](v) for name, v in values.items()}
        return JSONResponse(call.write(getattr(book, method)(**arguments)), headers=HEADERS)

    def health(self, request: Request, body: bytes, line: Line) -> Response:
        """Answer that the book can be read, without its content."""
        line["what"] = "health"
        self.book.accounts()
        return JSONResponse({"ok": True}, headers=HEADERS)

    def page(self, request: Request, body: bytes, line: Line) -> Response:
        """The auditor's pages: the list of accounts, or one account."""
        data = request.path_params.get("data")
        line["what"] = "page" if data else "index"
        book = self._acting(request, line, browser=True)
        text = index_page(book) if data is None else account_page(book, data)
        return HTMLResponse(text, headers=HEADERS)

    def _acting(self, request: Request, line: Line, *, browser: bool = False) -> Store:
        """The book, for the holder of a request's token.

        Raises:
            HTTPException: no known token, too many requests, or too many wrong tokens.
        """
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        token = ""
        if kind.lower() == "bearer":
            token = given.strip()
        elif browser and kind.lower() == "basic":
            with contextlib.suppress(ValueError):  # it is no base64, or no UTF-8
                token = base64.b64decode(given, validate=True).decode().partition(":")[2]
        asks = {"WWW-Authenticate": 'Basic realm="token as password"' if browser else "Bearer"}
        try:
            if not token:
                raise HTTPException(401, "give a token (Authorization: Bearer …)", asks)
            holder = self.book.holder(token)
        except NotAllowedError as error:
            # Only now, since many may share an address: one's wrong token stops no other's.
            if self.wrong.take(line["from"]):
                raise HTTPException(401, str(error), asks) from None
            raise HTTPException(429, "too many wrong tokens: wait", {"Retry-After": "10"}) from None
        line.update(who=holder.name, role=holder.role)
        if not self.rate.take(holder.name):
            raise HTTPException(429, f"{holder.name!r} asks too often: wait", {"Retry-After": "1"})
        return self.book.acting(holder.name, holder.role)

    def answered(self, answer: Answer | HTTPException, request: Request, body: bytes) -> Response:
        """The answer of a handler, or the reason that there is none; it is logged."""
        start = time.perf_counter()
        line: Line = {"from": "unknown" if request.client is None else request.client.host}
        line["what"] = request.url.path[:100]
        try:
            if isinstance(answer, HTTPException):
                raise answer
            made = answer(request, body, line)
        except HTTPException as error:
            name = "not-allowed" if error.status_code in (401, 403, 429) else "value"
            values = {"error": name, "message": error.detail}
            headers = {**HEADERS, **(error.headers or {})}
            made = JSONResponse(values, error.status_code, headers=headers)
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            missing = isinstance(error, KeyError)
            status, values = error_to(ValueError(f"{error} is missing") if missing else error)
            made = JSONResponse(values, status, headers=HEADERS)
        except Exception as error:  # a failure of one request must not end others
            line["failure"] = f"{type(error).__name__}: {error}"
            values = {"error": "book", "message": "the service failed; its log says why"}
            made = JSONResponse(values, 503, headers=HEADERS)
        took = round(1000 * (time.perf_counter() - start), 2)
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = {"at": stamp, **line, "status": made.status_code, "ms": took}
        print(json.dumps(line), file=self.log, flush=True)
        return made


def app(service: Service) -> Starlette:
    """The ASGI application."""

    def unknown(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        error.detail = "nothing here answers that"
        return service.answered(error, request, b"")

    def route(path: str, answer: Answer, method: str) -> Route:
        async def endpoint(request: Request) -> Response:
            from starlette.concurrency import run_in_threadpool

            body = b""
            chosen: Answer | HTTPException = answer
            try:
                async for piece in request.stream():
                    body += piece
                    if len(body) > LARGEST:
                        chosen = HTTPException(413, f"more than {LARGEST:,} bytes")
                        break
            except ClientDisconnect:
                chosen = HTTPException(400, "the caller hung up")
            return await run_in_threadpool(service.answered, chosen, request, body)

        return Route(path, endpoint, methods=[method])

    return Starlette(
        routes=[
            route("/v1/{method}", service.call, "POST"),
            route("/health", service.health, "GET"),
            route("/", service.page, "GET"),
            route("/accounts/{data:path}", service.page, "GET"),
        ],
        exception_handlers={404: unknown, 405: unknown},
    )


def listening(
    host: str, port: int, *, certificate: Path | None, key: Path | None, plain: bool
) -> socket.socket:
    """Open the socket that the service listens on.

    Args:
        certificate, key: PEM files; None: plain http, for this machine only.
        plain: True to allow plain http to other machines.

    Raises:
        BookError: plain http for other machines, missing or invalid certificate files, or an
            address that is in use or not this machine's.
    """
    if (certificate is None) != (key is None):
        raise BookError("a certificate goes with its key: give --certificate and --certificate-key")
    if certificate is None and host not in LOOPBACK and not plain:
        raise BookError(
            f"tokens would go to {host} in plain text: give --certificate and --certificate-key, "
            "or --plain-http where a proxy before it has TLS"
        )
    if certificate is not None:
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key)
        except OSError as error:  # an ssl.SSLError is one
            raise BookError(
                f"{certificate} and {key} are no certificate and key: {error}"
            ) from None
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol number makes asyncio switch off Nagle's algorithm, so answers are sent at once.
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(128)
    except OSError as error:
        found.close()
        raise BookError(
            f"port {port} of {host} cannot be served ({error.strerror}): give --host or --port"
        ) from None
    return found


def server(
    book: Store,
    *,
    certificate: Path | None = None,
    key: Path | None = None,
    log: IO[str] | None = None,
) -> uvicorn.Server:
    """A server of a book; ``run(sockets=[listener])`` answers until SIGINT or SIGTERM.

    Args:
        certificate, key: as for :func:`listening`.
        log: gets one line for each request; default: standard error.
    """
    config = uvicorn.Config(
        app(Service(book, log or sys.stderr)),
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        ssl_certfile=certificate,
        ssl_keyfile=None if key is None else str(key),
        timeout_graceful_shutdown=10,
    )
    return uvicorn.Server(config)
