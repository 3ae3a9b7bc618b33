"""A federation of no-op clients as separate processes, which a test kills and starts again.

Run as a program: ``python parties.py server|CLIENT ENGINE FOLDER RULE PARAMETERS ROUNDS ADDRESS``.
No torch. Every number is a multiple of a power of two, so that the last model says how often every
update was applied, whatever the order.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from forethought.exchange import events as on
from forethought.exchange.keys import Keys, Roster
from forethought.exchange.messages import SERVER, Endpoint
from forethought.exchange.storage import ClientLedger, FolderStorage, ServerJournal
from forethought.federated.client import ClientMachine
from forethought.federated.federation import Federation, Member
from forethought.federated.server import ServerMachine
from forethought.holders.driving import ClientDriver, FederationClient, Out, ServerDriver
from forethought.holders.grpc import FederationServer, grpc_stream
from forethought.values.mechanism import Mechanism, Poisson, Rounds
from forethought.values.plan import Clip, Plan
from forethought.values.use import Optimizer, Schedule

ROSTER, PID = "roster.json", "server.pid"
APPS = """from flwr.clientapp import ClientApp
from trials.parties import flower_server

server = flower_server()
client = ClientApp()
"""
Make = Callable[[Out], ServerDriver]


def free_port() -> int:
    """A port to listen on, now and again after a restart.

    Below those that the system hands out to connections: one of those could be somebody's own end
    while the server is down.
    """
    chooser = random.SystemRandom()
    while True:
        port = chooser.randrange(20_000, 32_000)
        with socket.socket() as tried, contextlib.suppress(OSError):
            tried.bind(("127.0.0.1", port))
            return port


def prepare(folder: Path, clients: int = 2) -> Roster:
    """Keys for everybody, and the roster."""
    identities = [
        Keys.make(folder / name, name).identity
        for name in ("server", *(f"client-{place}" for place in range(clients)))
    ]
    roster = Roster.of(identities[0], identities[1:])
    roster.save(folder / ROSTER)
    return roster


def federation(roster: Roster, rule: str, parameters: int, rounds: int) -> Federation:
    plan = Plan(
        Mechanism(Rounds(1.0, rounds, Poisson(0.1)), adjacency="add-or-remove"),
        100,
        1e-5,
        clip=Clip(10.0),
        optimizer=Optimizer("sgd", 1.0, ()),
        schedule=Schedule("constant"),
    )
    members = tuple(Member(one.name, public_key=one.public_key) for one in roster.clients)
    return Federation(
        members,
        (plan,),
        parameters,
        "none",
        rounds,
        rule="synchronous" if rule == "synchronous" else "asynchronous",
        exchanged="weights" if rule == "synchronous" else "gradients",
        resend=0.5,
        server_key=roster.server.public_key,
        nonce=roster.nonce,
    )


def last_model(rule: str, parameters: int, rounds: int, clients: int) -> np.ndarray:
    """What the model must be when every update was applied exactly once."""
    weights = np.zeros(parameters, dtype=np.float32)
    weights[:clients] = rounds / clients * (1 if rule == "synchronous" else -1)
    return weights


def unit(client: int, parameters: int) -> np.ndarray:
    vector = np.zeros(parameters, dtype=np.float32)
    vector[client] = 1
    return vector


def make_machine(folder: Path, agreed: Federation) -> tuple[ServerMachine, Make]:
    """A server's machine, from its journal, and how to make its driver."""
    keys, roster = Keys.load(folder / "server"), Roster.load(folder / ROSTER)
    endpoint = Endpoint(agreed.run_id, SERVER, keys.signing, roster.public_keys, agreed.parameters)
    journal = ServerJournal(FolderStorage(folder / "server" / "kept"), agreed.run_id)
    start = np.zeros(agreed.parameters, dtype=np.float32)
    machine = ServerMachine.restored(agreed, start, *journal.read())
    return machine, lambda out: ServerDriver(machine, journal, endpoint, out, machine.snapshot)


def make_server(folder: Path, agreed: Federation) -> FederationServer:
    keys, roster = Keys.load(folder / "server"), Roster.load(folder / ROSTER)
    machine, make = make_machine(folder, agreed)
    return FederationServer(roster, keys, make, machine)


def flower_server() -> Any:
    """The ServerApp; "job" of its run's configuration has the words of this program."""
    from flwr.serverapp import ServerApp

    from forethought.holders.flower import over_grid

    app = ServerApp()

    @app.main()
    def main(grid: Any, context: Any) -> None:
        folder, agreed, _ = asked(json.loads(str(context.run_config["job"])))
        (folder / PID).write_text(str(os.getpid()))
        machine, make = make_machine(folder, agreed)
        drivers: list[ServerDriver] = []

        def kept(out: Out) -> ServerDriver:
            drivers.append(make(out))
            return drivers[-1]

        over_grid(grid)(machine, kept)
        leave(folder, drivers[-1])

    return app


def leave(folder: Path, driver: ServerDriver) -> None:
    """What a server is judged by: its alarms, and its last model as the very last."""
    alarms = [f"{one.code}: {one.text}\n" for one in driver.alarms]
    (folder / "alarms").write_text("".join(alarms))
    part = folder / "part.npy"
    np.save(part, driver.machine.reported)  # type: ignore[attr-defined]
    part.replace(folder / "model.npy")


def make_client(
    folder: Path, agreed: Federation, me: int, address: str, engine: str = "grpc"
) -> FederationClient:
    roster = Roster.load(folder / ROSTER)
    keys = Keys.load(folder / roster.clients[me].name)
    if engine == "grpc":
        connect = grpc_stream(roster, keys, address)
    else:
        from forethought.holders.flower import node_stream

        connect = node_stream(address)
    server = {SERVER: bytes.fromhex(roster.server.public_key)}
    endpoint = Endpoint(agreed.run_id, me, keys.signing, server, agreed.parameters)
    storage = FolderStorage(folder / roster.clients[me].name / "kept")
    ledger = ClientLedger(storage, endpoint, "no data")
    machine = ClientMachine(agreed, me, ledger.read())
    own = unit(me, agreed.parameters)

    def compute(asked: on.Compute) -> on.Computed:
        vector = own if agreed.exchanged == "gradients" else asked.vector + own
        now = time.monotonic()
        return on.Computed(asked.round, asked.base, vector, asked.round + 1, bytes(32), b"", now)

    return FederationClient(
        connect,
        lambda out, begin: ClientDriver(machine, ledger, endpoint, out, begin),
        compute,
        back_off=(0.05, 0.3),
    )


def asked(words: list[str]) -> tuple[Path, Federation, str]:
    """Folder, federation and address from the words of this program."""
    place, rule, parameters, rounds, address = words
    folder = Path(place)
    roster = Roster.load(folder / ROSTER)
    return folder, federation(roster, rule, int(parameters), int(rounds)), address


def main(who: str, engine: str, words: list[str]) -> None:
    folder, agreed, address = asked(words)
    stop = asyncio.Event()
    if who == "server" and engine == "flower":
        from forethought.holders.flower import submit

        raise SystemExit(submit({"job": json.dumps(words)}, address, apps=APPS, watch=False))
    if who == "server":

        async def serve() -> None:
            server = make_server(folder, agreed)
            await server.start(address)
            await server.run(stop)
            leave(folder, server.driver)

        asyncio.run(serve())
        return
    client = int(who)

    async def take_part() -> None:
        one = make_client(folder, agreed, client, address, engine)
        await one.run(stop)
        alarms = [f"{raised.code}: {raised.text}\n" for raised in one.driver.alarms]
        (folder / f"alarms-{client}").write_text("".join(alarms))

    asyncio.run(take_part())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
