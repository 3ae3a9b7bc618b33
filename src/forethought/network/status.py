"""What a server shows of itself: where the run is, who is there, what was refused. Nothing private.

As a value, as JSON, and as a page on 127.0.0.1.
"""

from __future__ import annotations

import asyncio
import html
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class ClientStatus:
    """One client.

    Args:
        updates: applied. of: most that it sends. heard: seconds since its last frame; None: never.
        absent: the server goes on without it.
    """

    name: str
    connected: bool
    updates: int
    of: int
    heard: float | None
    absent: bool


@dataclass(frozen=True)
class Status:
    """A server at one moment.

    Args:
        run: first digits of the run id. version: of the newest model; of ``rounds``.
        seconds: since this process started. alarms: code → how many. last: the newest alarms.
    """

    run: str
    rule: str
    version: int
    rounds: int
    finished: bool
    seconds: float
    clients: tuple[ClientStatus, ...]
    alarms: dict[str, int]
    last: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


def page(status: Status) -> str:
    """The status as a page that reloads itself; it needs nothing from elsewhere."""
    rows = "".join(
        f"<tr><td>{html.escape(one.name)}</td><td>{_state(one)}</td>"
        f"<td>{one.updates} of {one.of}</td><td>{_ago(one.heard)}</td></tr>"
        for one in status.clients
    )
    alarms = "".join(f"<li>{html.escape(text)}</li>" for text in status.last) or "<li>none</li>"
    state = "finished" if status.finished else f"running for {status.seconds:.0f} s"
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta http-equiv="refresh" content="2"><title>forethought federation</title>'
        "<style>body{font:16px sans-serif;margin:2em}td,th{padding:.2em 1em;text-align:left}"
        "</style>"
        f"<h1>Federation {html.escape(status.run)}</h1>"
        f"<p>{html.escape(status.rule)}, model {status.version} of {status.rounds}, {state}</p>"
        f"<table><tr><th>client</th><th>state</th><th>updates</th><th>heard</th></tr>{rows}"
        f"</table><h2>Alarms</h2><ul>{alarms}</ul></html>"
    )


def _state(client: ClientStatus) -> str:
    if client.connected:
        return "connected"
    return "absent" if client.absent else "not connected"


def _ago(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:.0f} s ago"


class StatusPage:
    """A page for the operator, on 127.0.0.1 only; it can be read and nothing else.

    Args:
        look: gives the status of now.
    """

    def __init__(self, look: Callable[[], Status]) -> None:
        self._look = look
        self._server: asyncio.Server | None = None

    async def start(self, port: int) -> int:
        """Serve; 0 takes any free port. Returns the port.

        Raises:
            OSError: the port is taken.
        """
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", port, limit=8192)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Serve no more."""
        if self._server is not None:
            self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(5):
                head = await reader.readuntil(b"\r\n\r\n")
                code, kind, body = self._content(head.decode("latin-1"))
                text = (
                    f"HTTP/1.1 {code}\r\nContent-Type: {kind}; charset=utf-8\r\n"
                    f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\n"
                    "X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
                )
                writer.write(text.encode() + body)
                await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            pass
        finally:
            writer.close()

    def _content(self, head: str) -> tuple[str, str, bytes]:
        request, *fields = head.split("\r\n")
        values = dict(field.lower().split(": ", 1) for field in fields if ": " in field)
        # A page elsewhere whose name was pointed at 127.0.0.1 must not read this one.
        if values.get("host", "").rsplit(":", 1)[0] not in ("127.0.0.1", "localhost"):
            return "403 Forbidden", "text/plain", b"only as 127.0.0.1 or localhost\n"
        method, _, rest = request.partition(" ")
        path = rest.split(" ")[0]
        if method != "GET":
            return "405 Method Not Allowed", "text/plain", b"only GET\n"
        if path == "/":
            return "200 OK", "text/html", page(self._look()).encode()
        if path == "/status.json":
            return "200 OK", "application/json", json.dumps(self._look().to_dict()).encode()
        return "404 Not Found", "text/plain", b"/ and /status.json are here\n"


class Heard:
    """When every client was last heard of, and whether it is connected."""

    def __init__(self, clients: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._at: list[float | None] = [None] * clients
        self._clock = clock
        self.connected: set[int] = set()

    def note(self, client: int) -> None:
        """It was heard of now."""
        self._at[client] = self._clock()

    def ago(self, client: int) -> float | None:
        """Seconds since then; None: never."""
        at = self._at[client]
        return None if at is None else self._clock() - at
