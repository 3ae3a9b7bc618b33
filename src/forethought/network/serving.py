"""A federation's server as a process: its folder, its journal, its signals, what it shows."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from forethought.exchange.journal import ServerJournal
from forethought.exchange.keys import Keys
from forethought.exchange.messages import SERVER, Vector
from forethought.exchange.roster import Roster
from forethought.exchange.signed import Endpoint
from forethought.exchange.storage import FolderStorage
from forethought.federated.federation import Federation, FederationError
from forethought.federated.secure_aggregation.server import SecureServer
from forethought.federated.server import Average, ServerMachine
from forethought.network.driving import Out, ServerDriver
from forethought.network.server import LINGER, FederationServer
from forethought.network.signals import stop_on_signals
from forethought.network.status import ClientStatus, Heard, Status, StatusPage
from forethought.training.folder import locked

START = "start.npy"
# Seconds between two looks at the status.
LOOK = 0.25


Carry: TypeAlias = Callable[[ServerMachine, Callable[[Out], ServerDriver]], Status]


@dataclass(frozen=True)
class Served:
    """What came of serving.

    Args:
        finished: whether the last model is there; else the server was stopped and can go on.
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
    carry: Carry,
    *,
    average: Callable[[Vector], Average] | None = None,
) -> Served:
    """Serve a federation for as long as ``carry`` does: to the end, or until it is stopped.

    Args:
        weights: the first model; once the folder has one, that one is taken.
        folder: of the journal; a folder with one goes on where it was.
        carry: takes frames to the clients and back, given the machine and how to make its driver;
            see :func:`over_grpc`. Returns the last status.
        average: of the models, made from the first one.

    Raises:
        FederationError: roster or keys of another federation. JournalError, LogError: the journal
            is another run's, or damaged. RunFolderBusyError: somebody serves there. OSError: no
            such address, or a write that failed.
    """
    require_roster(federation, roster)
    require_member(keys, roster, SERVER)
    with locked(folder):
        storage = FolderStorage(folder)
        start = _first_model(folder, weights)
        journal = ServerJournal(storage, federation.run_id)
        own = None if average is None else average(start)
        kind = ServerMachine if federation.secure is None else SecureServer
        machine = kind.restored(federation, start, *journal.read(), own)
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
) -> Carry:
    """Over connections that clients open, until the run is finished, or SIGINT or SIGTERM.

    Args:
        address: host:port to listen on.
        page: port of the status page on 127.0.0.1; 0: any free one; None: no page.
        began: called with the port and the page's. look: called with the status now and then.
        linger: seconds that clients have to fetch the last model.
    """

    async def serve_until_done(
        machine: ServerMachine, make: Callable[[Out], ServerDriver]
    ) -> Status:
        server = FederationServer(roster, keys, make, machine, linger)
        begin = time.monotonic()

        def status() -> Status:
            return status_of(machine, server.driver, server.heard, time.monotonic() - begin)

        stop = asyncio.Event()
        async with stop_on_signals(stop), _watched(status, look):
            port = await server.start(address)
            shown = StatusPage(status)
            page_port = None if page is None else await shown.start(page)
            if began is not None:
                began(port, page_port)
            try:
                await server.run(stop)
            finally:
                await shown.stop()
        return status()

    return lambda machine, make: asyncio.run(serve_until_done(machine, make))


@contextlib.asynccontextmanager
async def _watched(
    status: Callable[[], Status], look: Callable[[Status], None] | None
) -> AsyncIterator[None]:
    async def watch(show: Callable[[Status], None]) -> None:
        while True:
            show(status())
            await asyncio.sleep(LOOK)

    if look is None:
        yield
        return
    task = asyncio.create_task(watch(look))
    try:
        yield
    finally:
        task.cancel()
        look(status())


def status_of(machine: ServerMachine, driver: ServerDriver, heard: Heard, seconds: float) -> Status:
    """What a server shows of itself."""
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
        min(machine.version, federation.rounds),  # the asynchronous last model is one more
        federation.rounds,
        machine.finished,
        seconds,
        clients,
        dict(driver.counts),
        tuple(f"{raised.code}: {raised.text}" for raised in list(driver.alarms)[-10:]),
    )


def with_roster(federation: Federation, roster: Roster) -> Federation:
    """The federation with its members' keys, its server's and the nonce in it.

    Raises:
        FederationError: other names, or another order.
    """
    names = [member.name for member in federation.members]
    if names != [identity.name for identity in roster.clients]:
        raise FederationError(
            f"the job's clients are {', '.join(names)}; the roster's "
            f"{', '.join(identity.name for identity in roster.clients)}: join the same, in order"
        )
    members = tuple(
        replace(member, public_key=identity.public_key)
        for member, identity in zip(federation.members, roster.clients, strict=True)
    )
    return replace(
        federation, members=members, server_key=roster.server.public_key, nonce=roster.nonce
    )


def require_roster(federation: Federation, roster: Roster) -> None:
    """Refuse a roster that is not the federation's.

    Raises:
        FederationError: names or keys differ, or secure aggregation.
    """
    if with_roster(federation, roster) != federation:
        raise FederationError(
            "this roster's keys are not those of the federation: take roster.json and "
            "federation.json from one place, made together"
        )


def require_member(keys: Keys, roster: Roster, place: int) -> None:
    """Refuse keys that are not those of a place in the roster.

    Raises:
        FederationError: they belong to somebody else.
    """
    if keys.identity != roster.identity(place):
        raise FederationError(
            f"the keys are those of {keys.identity.name!r}, or were made anew: the roster has "
            f"others for {roster.identity(place).name!r}"
        )


def _first_model(folder: Path, weights: Vector) -> Vector:
    path = folder / START
    if path.exists():
        kept: Any = np.load(path, allow_pickle=False)
        return np.ascontiguousarray(kept, dtype=np.float32)
    part = path.with_name(f".{START}")
    with part.open("wb") as file:
        np.save(file, weights)
    part.replace(path)
    return weights
