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
import binascii
import json
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from forethought.ledger.book import BookError, NotAllowedError
from forethought.ledger.page import account_page, index_page
from forethought.ledger.remote import LOOPBACK
from forethought.ledger.wire import ARGUMENTS, CALLS, error_to
from forethought.values.serialisation import parse

if TYPE_CHECKING:
    from forethought.ledger.store import Store, TokenHolder

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


class Buckets:
    """Rate limits: a bucket of permits for each name, refilled with time."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst, self._lock = rate, burst, threading.Lock()
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, name: str, amount: float = 1.0) -> bool:
        """Take permits from a name's bucket; False if there are too few. 0 only checks for one."""
        now = time.monotonic()
        with self._lock:
            left, at = self._left.pop(name, (self._burst, now))
            left = min(self._burst, left + (now - at) * self._rate)
            enough = left >= max(amount, 1.0)
            self._left[name] = (left - amount if enough else left, now)
            while len(self._left) > MOST_NAMES:
                del self._left[next(iter(self._left))]
        return enough


class _AskError(Exception):
    """A request that is answered without calling the book; the message is sent as it is."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.headers = status, dict(headers or {})


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

    def call(self, request: Request, body: bytes) -> Response:
        """Call one method of the book, in the name of the token's holder."""
        method = request.path_params["method"]
        with self._answering(request, method) as answer:
            holder = self._holder(request, answer)
            if method not in CALLS:
                raise _AskError(404, f"a book has no {method!r}: {', '.join(CALLS)}")
            call = CALLS[method]
            values = parse(body.decode("utf-8")) if body else {}
            if not isinstance(values, dict):
                raise _AskError(400, "the body must be a JSON object of arguments")
            arguments = {
                name: ARGUMENTS[name][1](value) if name in ARGUMENTS else value
                for name, value in values.items()
            }
            book = self.book.acting(holder.name, holder.role)
            result = call.write(getattr(book, method)(**arguments))
            answer.made = JSONResponse(result, headers=HEADERS)
        return answer.made

    def health(self, request: Request, body: bytes) -> Response:
        """Answer that the book can be read, without its content."""
        with self._answering(request, "health") as answer:
            self.book.accounts()
            answer.made = JSONResponse({"ok": True}, headers=HEADERS)
        return answer.made

    def page(self, request: Request, body: bytes) -> Response:
        """The auditor's pages: the list of accounts, or one account."""
        data = request.path_params.get("data")
        with self._answering(request, "page" if data else "index") as answer:
            holder = self._holder(request, answer, browser=True)
            book = self.book.acting(holder.name, holder.role)
            text = index_page(book) if data is None else account_page(book, data)
            answer.made = HTMLResponse(text, headers=HEADERS)
        return answer.made

    def _holder(
        self, request: Request, answer: _LoggedResponse, *, browser: bool = False
    ) -> TokenHolder:
        """The holder of a request's token.

        Raises:
            _AskError: no known token, too many requests, or too many wrong tokens.
        """
        address = answer.line["from"]
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        token = given.strip()
        if browser and kind.lower() == "basic":
            try:
                token = base64.b64decode(given, validate=True).decode().partition(":")[2]
            except (binascii.Error, UnicodeDecodeError):
                token = ""
        elif kind.lower() != "bearer":
            token = ""
        asks = {"WWW-Authenticate": 'Basic realm="token as password"' if browser else "Bearer"}
        if not self.wrong.take(address, 0.0):
            raise _AskError(429, "too many wrong tokens from here: wait", {"Retry-After": "10"})
        try:
            if not token:
                raise _AskError(401, "give a token (Authorization: Bearer …)", asks)
            holder = self.book.holder(token)
        except NotAllowedError as error:
            self.wrong.take(address)
            raise _AskError(401, str(error), asks) from None
        answer.line.update(who=holder.name, role=holder.role)
        if not self.rate.take(holder.name):
            raise _AskError(429, f"{holder.name!r} asks too often: wait", {"Retry-After": "1"})
        return holder

    @contextmanager
    def _answering(self, request: Request, what: str) -> Iterator[_LoggedResponse]:
        start = time.perf_counter()
        address = "unknown" if request.client is None else request.client.host
        answer = _LoggedResponse({"what": what, "from": address})
        try:
            yield answer
        except _AskError as error:
            values = {"error": "not-allowed", "message": str(error)}
            answer.made = JSONResponse(values, error.status, headers={**HEADERS, **error.headers})
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            text = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            told = error if isinstance(error, ValueError | TypeError) else ValueError(text)
            status, values = error_to(told)
            answer.made = JSONResponse(values, status, headers=HEADERS)
        except Exception as error:  # a failure of one request must not end others
            answer.line["failure"] = f"{type(error).__name__}: {error}"
            values = {"error": "book", "message": "the service failed; its log says why"}
            answer.made = JSONResponse(values, 503, headers=HEADERS)
        took = round(1000 * (time.perf_counter() - start), 2)
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = {"at": stamp, **answer.line, "status": answer.made.status_code, "ms": took}
        print(json.dumps(line), file=self.log, flush=True)


@dataclass
class _LoggedResponse:
    """The response to a request, and its line in the log."""

    line: dict[str, Any]
    made: Response = field(default_factory=lambda: Response(status_code=500))


def app(service: Service) -> Starlette:
    """The ASGI application."""

    def route(path: str, answer: Callable[[Request, bytes], Response], method: str) -> Route:
        async def endpoint(request: Request) -> Response:
            from starlette.concurrency import run_in_threadpool

            body = b""
            async for piece in request.stream():
                body += piece
                if len(body) > LARGEST:
                    told = {"error": "value", "message": f"more than {LARGEST:,} bytes"}
                    return JSONResponse(told, 413, headers=HEADERS)
            return await run_in_threadpool(answer, request, body)

        return Route(path, endpoint, methods=[method])

    return Starlette(
        routes=[
            route("/v1/{method}", service.call, "POST"),
            route("/health", service.health, "GET"),
            route("/", service.page, "GET"),
            route("/accounts/{data:path}", service.page, "GET"),
        ]
    )


def listening(
    host: str, port: int, *, certificate: Path | None, key: Path | None, plain: bool
) -> socket.socket:
    """Open the socket that the service listens on.

    Args:
        certificate, key: PEM files; None: plain http, for this machine only.
        plain: True to allow plain http to other machines.

    Raises:
        BookError: plain http for other machines, or invalid certificate files.
        OSError: the address is in use or not this machine's.
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
        except ssl.SSLError as error:
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
    except OSError:
        found.close()
        raise
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
