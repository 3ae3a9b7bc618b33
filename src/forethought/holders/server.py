"""A federation's server as a process: its folder, its journal, its signals, its status page."""

from __future__ import annotations

import asyncio
import html
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any, TypeAlias

import numpy as np

from forethought.exchange.keys import Keys, Roster
from forethought.exchange.messages import SERVER, Endpoint, Vector
from forethought.exchange.storage import FolderStorage, ServerJournal
from forethought.federated.federation import Federation, FederationError
from forethought.federated.secure_aggregation.server import SecureServer
from forethought.federated.server import Average, ServerMachine
from forethought.holders.driving import LastHeard, Out, ServerDriver, attended
from forethought.holders.grpc import LINGER, FederationServer
from forethought.training.folder import locked
from forethought.values.serialisation import replaced

# The status that a server shows: progress of the run, connected clients, refused frames. It
# contains nothing private, and is a value, JSON, and a page on 127.0.0.1.


@dataclass(frozen=True)
class ClientStatus:
    """The status of one client.

    Args:
        updates: number applied. of: most that it sends. heard: seconds since its last frame; None:
            it sent none. absent: True if the server goes on without it.
    """

    name: str
    connected: bool
    updates: int
    of: int
    heard: float | None
    absent: bool

    @property
    def state(self) -> str:
        """Its connection in words."""
        if self.connected:
            return "connected"
        return "absent" if self.absent else "not connected"

    @property
    def last_heard(self) -> str:
        """The time since its last frame in words."""
        return "never" if self.heard is None else f"{self.heard:.0f} s ago"


@dataclass(frozen=True)
class Status:
    """The status of a server at one moment.

    Args:
        run: the first 12 digits of the run id. version: of the newest model, out of ``rounds``.
        seconds: since this process started. alarms: code → number. last: the newest 10 alarms.
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
        """The status as values for JSON."""
        return asdict(self)


def page(status: Status) -> str:
    """The status as a self-contained HTML page that keeps itself up to date."""
    rows = "".join(
        f"<tr><td>{html.escape(one.name)}</td><td>{one.state}</td>"
        f"<td>{one.updates} of {one.of}</td><td>{one.last_heard}</td></tr>"
        for one in status.clients
    )
    values = {name: html.escape(str(value)) for name, value in vars(status).items()}
    values["state"] = "finished" if status.finished else f"running for {status.seconds:.0f} s"
    alarms = "".join(f"<li>{html.escape(text)}</li>" for text in status.last) or "<li>none</li>"
    text = resources.files("forethought.holders").joinpath("status.html").read_text("utf-8")
    return Template(text).substitute(values, rows=rows, alarms=alarms)


class StatusPage:
    """A read-only page for the operator, on 127.0.0.1 only.

    Args:
        look: gives the present status.
    """

    def __init__(self, look: Callable[[], Status]) -> None:
        self._look = look
        self._server: asyncio.Server | None = None

    async def start(self, port: int) -> int:
        """Serve on a port (0: any free one), and return the port.

        Raises:
            OSError: the port is taken.
        """
        try:
            self._server = await asyncio.start_server(self._answer, "127.0.0.1", port, limit=8192)
        except OSError as error:
            raise OSError(f"no status page on port {port} ({error}): give another one") from None
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Stop serving."""
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
        # Against DNS rebinding: a web page whose host name resolves to 127.0.0.1 must not read it.
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


# The server's process.
START = "start.npy"


CarryServer: TypeAlias = Callable[[ServerMachine, Callable[[Out], ServerDriver]], Status]


@dataclass(frozen=True)
class Served:
    """The outcome of serving.

    Args:
        finished: True if the last model exists; otherwise the server was stopped and can go on.
        weights: the reported model, float32, shape (parameters,). status: the last one.
    """

    finished: bool
    weights: Vector
    status: Status


def serve(
    federation: Federation,
    roster: Roster,
    keys: Keys,
    weights: Vector,
    folder: Path,
    carry: CarryServer,
    *,
    average: Callable[[Vector], Average | None] = lambda start: None,
) -> Served:
    """Serve a federation while ``carry`` runs: to the end, or until it is stopped.

    Args:
        federation: the agreement. roster: of its members. keys: the server's own.
        weights: the first model, float32, shape (parameters,); if the folder has one, it is used
            instead.
        folder: of the journal; a run with a journal there is continued.
        carry: carries frames to the clients and back, given the machine and the function that makes
            its driver; see :func:`over_grpc`. Returns the last status.
        average: makes the average of the models from the first one.

    Raises:
        FederationError: roster or keys of another federation. JournalError, LogError: the journal
            belongs to another run, or is damaged. RunFolderBusyError: another process serves there.
            OSError: the address cannot be used, or a write failed.
    """
    roster.require(federation)
    if roster.place(keys) != SERVER:
        raise FederationError(f"the keys are of {keys.identity.name!r}, not of the server")
    with locked(folder):
        storage = FolderStorage(folder)
        start = _first_model(folder, weights)
        journal = ServerJournal(storage, federation.run_id)
        kind = ServerMachine if federation.secure is None else SecureServer
        machine = kind.restored(federation, start, *journal.read(), average(start))
        if isinstance(machine, SecureServer):
            machine.verify = roster.signed
        endpoint = Endpoint(
            federation.run_id, SERVER, keys.signing, roster.public_keys, federation.parameters
        )
        status = carry(
            machine, lambda out: ServerDriver(machine, journal, endpoint, out, machine.snapshot)
        )
        if not machine.finished:
            journal.snapshot(machine.snapshot())
        return Served(machine.finished, machine.reported, status)


def over_grpc(
    roster: Roster,
    keys: Keys,
    address: str,
    *,
    page: int | None = None,
    began: Callable[[int, int | None], None] | None = None,
    look: Callable[[Status], None] | None = None,
    linger: float = LINGER,
) -> CarryServer:
    """A carrier over gRPC connections from clients, until the run is finished, SIGINT or SIGTERM.

    Args:
        roster: of the members. keys: the server's own. address: host:port to listen on.
        page: port of the status page on 127.0.0.1; 0: any free one; None: no page.
        began: called with the port and the page's port. look: called with the status every 0.25 s.
        linger: seconds that clients have to fetch the last model.
    """

    async def serve_until_done(
        machine: ServerMachine, make: Callable[[Out], ServerDriver]
    ) -> Status:
        server = FederationServer(roster, keys, make, machine, linger)
        begin = time.monotonic()

        def status() -> Status:
            return status_of(machine, server.driver, server.heard, time.monotonic() - begin)

        def show() -> None:
            if look is not None:
                look(status())

        async with attended(show) as stop:
            own = StatusPage(status)
            page_port = None if page is None else await own.start(page)
            try:
                port = await server.start(address)
                if began is not None:
                    began(port, page_port)
                await server.run(stop)
            finally:
                await own.stop()
                show()
        return status()

    return lambda machine, make: asyncio.run(serve_until_done(machine, make))


def status_of(
    machine: ServerMachine, driver: ServerDriver, heard: LastHeard, seconds: float
) -> Status:
    """The status that a server shows."""
    federation = machine.federation
    clients = tuple(
        ClientStatus(
            member.name,
            client in heard.connected,
            int(machine.applied[client]),
            federation.updates(client),
            heard.ago(client),
            client in machine.absent,
        )
        for client, member in enumerate(federation.members)
    )
    return Status(
        federation.run_id.hex()[:12],
        federation.rule,
        min(machine.version, federation.rounds),  # an asynchronous run's last version is one higher
        federation.rounds,
        machine.finished,
        seconds,
        clients,
        dict(driver.counts),
        tuple(f"{raised.code}: {raised.text}" for raised in list(driver.alarms)[-10:]),
    )


def _first_model(folder: Path, weights: Vector) -> Vector:
    path = folder / START
    if path.exists():
        return np.ascontiguousarray(np.load(path, allow_pickle=False), dtype=np.float32)
    with replaced(path) as file:
        np.save(file, weights)
    return weights
