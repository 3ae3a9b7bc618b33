"""A book behind the service: the same methods over HTTPS, repeated after lost answers."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial, wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar
from urllib.parse import urlsplit

from forethought.ledger import book
from forethought.ledger.chain import pieces
from forethought.ledger.wire import ARGUMENTS, CALLS, UNCHANGED, error_from

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")
# Seconds to wait for one answer, and to retry one call before the run is stopped. Methods that read
# the whole book get more time.
ANSWER, PATIENCE = 30.0, 60.0
LONG, WHOLE = 600.0, frozenset({"entries", "reservations", "verify"})
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
# Variables: a PEM file of further trusted authorities; and permission for plain http to others.
AUTHORITY, PLAIN = "FORETHOUGHT_LEDGER_CA", "FORETHOUGHT_LEDGER_PLAIN"
# The largest number of persons in one message.
AT_ONCE = 10_000


def _asked(method: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """The method of a book, asked of the service; arguments at their defaults are not sent.

    A call that can have a name gets one, by which it is found again after a lost answer.
    """
    form = signature(method)

    @wraps(method)
    def ask(*given: _Given.args, **named: _Given.kwargs) -> Any:
        held = form.bind(*given, **named).arguments
        remote: RemoteBook = held.pop("self")
        sent = {name: v for name, v in held.items() if v != form.parameters[name].default}
        if "call" in form.parameters:
            sent.setdefault("call", secrets.token_hex(16))
        return remote._ask(method.__name__, **sent)

    return ask


class RemoteBook(book.Book):
    """See :class:`~forethought.ledger.book.Book`; threads may share it.

    Args:
        url: ``https://host:port`` of ``forethought ledger serve``. Plain http only to this machine,
            unless FORETHOUGHT_LEDGER_PLAIN is 1, since a listener on the network could read the
            token.
        token: of the caller; it decides the caller's role.
        patience: seconds to retry a call while the service cannot be reached.

    Raises:
        BookError: an invalid address, or plain http to another machine.
    """

    def __init__(self, url: str, token: str, *, patience: float = PATIENCE) -> None:
        parts = urlsplit(url)
        host = parts.hostname
        if host is None or parts.scheme not in ("http", "https") or parts.path.strip("/"):
            raise book.BookError(f"{url!r} is no service: give https://host:port")
        if parts.scheme == "http" and host not in LOOPBACK and os.environ.get(PLAIN) != "1":
            raise book.BookError(
                f"{url} would carry the token in plain text: serve with a certificate and give "
                f"https://{parts.netloc}, or set {PLAIN}=1 on a network that nobody else is on"
            )
        self._url, self._token = url, token
        kind: type[http.client.HTTPConnection] = http.client.HTTPConnection
        more: dict[str, Any] = {}
        if parts.scheme == "https":
            kind = http.client.HTTPSConnection
            try:
                more["context"] = ssl.create_default_context(cafile=os.environ.get(AUTHORITY))
            except OSError as error:  # an ssl.SSLError is one
                raise book.BookError(f"{AUTHORITY} names no PEM file: {error}") from None
        self._new = partial(kind, host, parts.port, timeout=ANSWER, **more)
        self._patience, self._lock = patience, threading.Lock()
        self._held: http.client.HTTPConnection | None = None
        self._process = os.getpid()

    def _connection(self) -> http.client.HTTPConnection:
        if self._process != os.getpid():  # after a fork, the connection is the parent's
            self._held, self._process = None, os.getpid()
        if self._held is None:
            self._held = self._new()
        return self._held

    def _drop(self) -> None:
        if self._held is not None:
            with contextlib.suppress(OSError):
                self._held.close()
        self._held = None

    def _ask(self, method: str, **arguments: Any) -> Any:
        """Call a method of the book behind the service.

        Raises:
            BookError, UnsupportedMechanismError: raised by the book, or the service cannot be
                reached.
        """
        call = CALLS[method]
        written = {name: ARGUMENTS.get(name, UNCHANGED)[0](v) for name, v in arguments.items()}
        body = json.dumps(written, allow_nan=False).encode()
        deadline, wait, sent = time.monotonic() + self._patience, 0.05, False
        while True:
            try:
                with self._lock:
                    try:
                        status, answer = self._once(method, body)
                    except BaseException:
                        self._drop()
                        raise
                if status == 200:
                    return call.read(answer)
                if status not in (429, 503):
                    raise error_from(answer)
                reason: object = answer.get("message", status)
                sent = False
            except ssl.SSLCertVerificationError as error:
                raise book.BookError(
                    f"the certificate of {self._url} is not trusted here ({error.verify_message}): "
                    f"name its authority's PEM file in {AUTHORITY}"
                ) from None
            except (OSError, http.client.HTTPException) as error:
                reason = error
                sent = not isinstance(error, ConnectionRefusedError)
            if time.monotonic() + wait > deadline or (sent and not call.again):
                raise book.BookError(
                    f"the ledger at {self._url} does not answer ({reason}): nothing more is "
                    "released; what was reserved stays charged. Resume when it is back"
                ) from None
            time.sleep(wait * (0.5 + secrets.randbelow(1000) / 1000))
            wait = min(2 * wait, 5.0)

    def _once(self, method: str, body: bytes) -> tuple[int, Any]:
        if not CALLS[method].again:
            self._drop()  # a connection that the service closed would look like a lost answer
        connection = self._connection()
        connection.timeout = LONG if method in WHOLE else ANSWER
        if connection.sock is not None:
            connection.sock.settimeout(connection.timeout)
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        connection.request("POST", f"/v1/{method}", body, headers)
        response = connection.getresponse()
        held = response.read()
        try:
            answer = json.loads(held)
            if response.status != 200 and not isinstance(answer, dict):
                raise ValueError("no object")
        except ValueError:
            raise http.client.HTTPException(
                f"status {response.status} without its JSON: is this a ledger's service?"
            ) from None
        if response.status == 401:
            raise book.NotAllowedError(str(answer.get("message")))
        return response.status, answer

    open_account = _asked(book.Book.open_account)
    account = _asked(book.Book.account)
    accounts = _asked(book.Book.accounts)
    fits = _asked(book.Book.fits)
    reserve = _asked(book.Book.reserve)
    begin = _asked(book.Book.begin)
    mark = _asked(book.Book.mark)
    settle = _asked(book.Book.settle)
    end = _asked(book.Book.end)
    reservation = _asked(book.Book.reservation)
    reservations = _asked(book.Book.reservations)
    total = _asked(book.Book.total)
    forget = _asked(book.Book.forget)
    entries = _asked(book.Book.entries)
    verify = _asked(book.Book.verify)

    def add_persons(self, data: str, partition: str | None, persons: Iterable[bytes]) -> int:
        return self._add("add_persons", persons, data=data, partition=partition)

    def add_records(self, data: str, persons: Iterable[bytes], fingerprint: str) -> int:
        return self._add("add_records", persons, data=data, fingerprint=fingerprint)

    def _add(self, method: str, persons: Iterable[bytes], **more: Any) -> int:
        # One change for each piece: to say all again after a refusal adds nobody twice.
        return sum(self._ask(method, persons=some, **more) for some in pieces(persons, AT_ONCE))

    def overlaps(
        self, data: str, persons: Iterable[bytes], partition: str | None = None
    ) -> Mapping[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for some in pieces(persons, AT_ONCE):
            answer = self._ask("overlaps", data=data, persons=some, partition=partition)
            for name, (shared, size) in answer.items():
                before = found.get(name, (0, size))
                both = shared + before[0]
                found[name] = both, max(both, min(size, before[1]))
        return found

    def close(self) -> None:
        with self._lock:
            self._drop()
