"""How long a federation's round takes over a network when nobody computes anything.

python benchmarks/federation.py             # 1,000 and 1,000,000 parameters
python benchmarks/federation.py --smoke     # a few rounds

A server and three clients, each a process of its own, on 127.0.0.1: mutual TLS 1.3, signed frames,
every write synced to disk. A round is the time between two models. Wall time is what a user waits
and grows with the machine's load; processor time is what the four processes used, all together and
at the server alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import subprocess
import sys
import tempfile
import time
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
from forethought.holders.driving import ClientDriver, FederationClient, ServerDriver
from forethought.holders.grpc import FederationServer, grpc_stream
from forethought.values.mechanism import Mechanism, Poisson, Rounds
from forethought.values.plan import Plan

CLIENTS = 3
# Parameters → rounds, and the goal in milliseconds.
SIZES = {1_000: (300, 5.0), 1_000_000: (40, 100.0)}
WARM = 3  # rounds that are not counted: connections and caches begin cold


def federation(roster: Roster, parameters: int, rounds: int) -> Federation:
    plan = Plan(Mechanism(Rounds(1.0, rounds, Poisson(0.1))), 1_000, 1e-5)
    members = tuple(Member(one.name, public_key=one.public_key) for one in roster.clients)
    return Federation(
        members,
        (plan,),
        parameters,
        "none",
        rounds,
        server_key=roster.server.public_key,
        nonce=roster.nonce,
    )


async def serve(folder: Path, agreed: Federation, roster: Roster, address: str) -> None:
    keys = Keys.load(folder / "server")
    endpoint = Endpoint(agreed.run_id, SERVER, keys.signing, roster.public_keys, agreed.parameters)
    journal = ServerJournal(FolderStorage(folder / "server" / "kept"), agreed.run_id)
    start = np.zeros(agreed.parameters, dtype=np.float32)
    machine = ServerMachine.restored(agreed, start, *journal.read())
    times: list[tuple[float, float]] = []

    class Timed(ServerDriver):
        def handle(self, event: on.Event) -> None:
            before = machine.version
            super().handle(event)
            if machine.version > before:
                times.append((time.perf_counter(), time.process_time()))

    server = FederationServer(
        roster,
        keys,
        lambda out: Timed(machine, journal, endpoint, out, machine.snapshot),
        machine,
    )
    await server.start(address)
    await server.run(asyncio.Event())
    wall, used = np.diff(np.array(times[WARM:]), axis=0).T * 1e3
    print(json.dumps({"wall": wall.tolist(), "server": used.mean()}))


async def take_part(
    folder: Path, agreed: Federation, roster: Roster, address: str, me: int
) -> None:
    keys = Keys.load(folder / roster.clients[me].name)
    public = {SERVER: bytes.fromhex(roster.server.public_key)}
    endpoint = Endpoint(agreed.run_id, me, keys.signing, public, agreed.parameters)
    ledger = ClientLedger(FolderStorage(folder / roster.clients[me].name / "kept"), endpoint, "")
    machine = ClientMachine(agreed, me, ledger.read())
    used: list[float] = []

    def compute(asked: on.Compute) -> on.Computed:
        used.append(time.process_time())
        now = time.monotonic()
        return on.Computed(
            asked.round, asked.base, asked.vector, asked.round + 1, bytes(32), b"", now
        )

    client = FederationClient(
        grpc_stream(roster, keys, address),
        lambda out, begin: ClientDriver(machine, ledger, endpoint, out, begin),
        compute,
    )
    await client.run(asyncio.Event())
    print(json.dumps({"client": 1e3 * (used[-1] - used[WARM]) / (len(used) - 1 - WARM)}))


def measured(parameters: int, rounds: int) -> dict[str, Any]:
    """One federation: milliseconds of every round, and of processor time a round."""
    with tempfile.TemporaryDirectory() as place, socket.socket() as free:
        folder = Path(place)
        names = ["server", *(f"client-{number}" for number in range(CLIENTS))]
        identities = [Keys.make(folder / name, name).identity for name in names]
        Roster.of(identities[0], identities[1:]).save(folder / "roster.json")
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        common = [place, str(parameters), str(rounds), f"127.0.0.1:{port}"]
        parties = [
            subprocess.Popen(
                [sys.executable, __file__, "--party", str(who), *common],
                stdout=subprocess.PIPE,
                text=True,
            )
            for who in range(-1, CLIENTS)
        ]
        try:
            outputs = [json.loads(party.communicate(timeout=600)[0]) for party in parties]
        finally:
            for party in parties:
                party.kill()
    used = outputs[0]["server"] + sum(row["client"] for row in outputs[1:])
    return {"wall": outputs[0]["wall"], "server": outputs[0]["server"], "all": used}


def party(who: int, place: str, parameters: str, rounds: str, address: str) -> None:
    folder = Path(place)
    roster = Roster.load(folder / "roster.json")
    agreed = federation(roster, int(parameters), int(rounds))
    if who == SERVER:
        asyncio.run(serve(folder, agreed, roster, address))
    else:
        asyncio.run(take_part(folder, agreed, roster, address, who))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="a few rounds")
    parser.add_argument("--party", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.party:
        party(int(options.party[0]), *options.party[1:])
        return
    print(f"no-op rounds of {CLIENTS} clients and a server, milliseconds")
    print("| parameters | goal | median | best tenth | processor, all four | of it the server |")
    print("| --- | --- | --- | --- | --- | --- |")
    for parameters, (rounds, goal) in SIZES.items():
        found = measured(parameters, WARM + 5 if options.smoke else rounds)
        wall = np.array(found["wall"])
        print(
            f"| {parameters:,} | {goal:g} | {np.median(wall):.1f} | {np.quantile(wall, 0.1):.1f} "
            f"| {found['all']:.1f} | {found['server']:.1f} |"
        )


if __name__ == "__main__":
    main()
