"""A job's federation as processes: keys and roster, server, client; by gRPC or by Flower."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forethought.exchange.events import Compute, Computed
from forethought.exchange.keys import ROSTER, Keys, Roster
from forethought.exchange.messages import SERVER, Join
from forethought.federated.federation import (
    FEDERATION,
    Federation,
    FederationError,
    require_contract,
    with_roster,
)
from forethought.federated.statements import Policy
from forethought.holders.driving import Begin, ClientDriver, Send
from forethought.holders.flower import client_turn, content_of, frames_of, node_stream, over_grid
from forethought.holders.server import CarryServer, Served, over_grpc, serve
from forethought.jobs.federate import agreed, federation_of, section_of
from forethought.jobs.holders import (
    accuracy_of,
    identities_of,
    own_records,
    prepared_records,
    save_model,
    speeds_of,
)
from forethought.jobs.job import JobError
from forethought.jobs.load import load_job, module_of
from forethought.jobs.request import Request, from_file
from forethought.planning import defaults

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp

    from forethought.holders.taking_part import CarryClient, TookPart


# From a job to the processes of its federation: keys and roster, the server, a client.


SERVER_NAME = "server"
DEFAULT_ADDRESS = "127.0.0.1:8750"
SUPERLINK = "127.0.0.1:8000"
# What carries frames between a federation's server and its clients.
ENGINES = ("grpc", "flower")


@dataclass(frozen=True)
class Membership:
    """The content of a member's folder.

    Args:
        keys: its own. roster, federation: everybody's.
    """

    keys: Keys
    roster: Roster
    federation: Federation

    @classmethod
    def load(cls, folder: Path) -> Membership:
        """Read a folder that ``forethought federate keys`` made.

        Raises:
            OSError: something is missing. ValueError: something is damaged.
        """
        return cls(
            Keys.load(folder), Roster.load(folder / ROSTER), Federation.load(folder / FEDERATION)
        )


def make_everybody(request: Request, out: Path, data_dir: Path | None = None) -> Roster:
    """Keys for all members in one place, for a trial: whoever has the folder can act for anyone.

    Returns:
        The roster; it and the federation are in every member's folder, ``out/NAME``.

    Raises:
        FileExistsError: there are keys. JobError and what data and planner refuse.
    """
    federation = planned(request, data_dir)
    names = [SERVER_NAME, *(member.name for member in federation.members)]
    identities = [Keys.make(out / name, name).identity for name in names]
    roster = Roster.of(identities[0], identities[1:])
    agreed_on = with_roster(federation, roster)
    for folder in (out, *(out / name for name in names)):
        roster.save(folder / ROSTER)
        agreed_on.save(folder / FEDERATION)
    return roster


def join(
    request: Request, identities: Sequence[Path], out: Path, data_dir: Path | None = None
) -> Roster:
    """A roster and a federation from the identities that members made and handed over.

    Args:
        identities: files, the server's among them; clients in any order.

    Raises:
        OSError: no such file. JobError: other members than the job's. RosterError: keys twice.
    """
    federation = planned(request, data_dir)
    found = identities_of(identities, [SERVER_NAME, *(one.name for one in federation.members)])
    roster = Roster.of(found[0], found[1:])
    out.mkdir(parents=True, exist_ok=True)
    roster.save(out / ROSTER)
    with_roster(federation, roster).save(out / FEDERATION)
    return roster


def planned(request: Request, data_dir: Path | None = None) -> Federation:
    """A job's federation, not signed by anybody yet.

    Where every client's number of examples is in the job, nothing but the model's shape is taken
    from the data at hand, which may be a public sample; else the data is dealt out.
    """
    section = section_of(request.job)
    if not section.brings_own:
        return federation_of(request, data_dir).federation
    from forethought.holders.trainer import SharedModel

    sizes = [table.examples or 0 for table in section.tables]
    loaded = load_job(request, data_dir)
    shared = SharedModel(module_of(loaded))
    speeds = speeds_of(section, len(sizes))
    size, architecture = shared.layout.size, shared.architecture
    return agreed(request.job, sizes, speeds, size, architecture, loaded.noise_borne)[0]


def serve_job(
    request: Request,
    folder: Path,
    out: Path,
    *,
    address: str | None = None,
    data_dir: Path | None = None,
    carry: CarryServer | None = None,
    **options: Any,
) -> tuple[Served, float | None]:
    """Serve a job's federation; leave the model in ``out`` when it is finished.

    Args:
        folder: the server's keys, with roster and federation. out: journal and results.
        address: host:port to listen on; the job's by default.
        carry: another way than gRPC to take frames to the clients and back.
        options: of :func:`forethought.holders.server.over_grpc`.

    Returns:
        What came of it, and the model's accuracy on the job's held-out data if it has any.
    """
    from forethought.holders.secure_training import ReportedAverage
    from forethought.holders.trainer import SharedModel

    member = Membership.load(folder)
    loaded = load_job(request, data_dir)
    shared = SharedModel(module_of(loaded))
    federation = member.federation
    if shared.architecture != federation.architecture:
        raise FederationError(
            "the job's model is not the federation's: names or shapes of its parameters differ"
        )
    served = serve(
        federation,
        member.roster,
        member.keys,
        shared.read(),
        out,
        carry or over_grpc(member.roster, member.keys, _address(request, address), **options),
        average=(
            None
            if federation.averaging.kind == "none"
            else lambda first: ReportedAverage(federation, shared.layout, first)
        ),
    )
    if not served.finished:
        return served, None
    shared.write(served.weights)
    save_model(shared, out)
    return served, accuracy_of(loaded, shared)


def take_part_in_job(
    request: Request,
    folder: Path,
    out: Path,
    *,
    policy: Policy | None = None,
    address: str | None = None,
    engine: str = "grpc",
    certificates: Path | None = None,
    node_key: Path | None = None,
    data_dir: Path | None = None,
    carry: CarryClient | None = None,
    witness: Path | None = None,
    **options: Any,
) -> TookPart:
    """Take part in a job's federation; leave statement and model in ``out``.

    Args:
        folder: the client's keys, with roster and federation. out: ledger, secrets and results.
        policy: the most that this client allows; the job's budget by default.
        data_dir: where the job's data is: this client's own, or what all deal out alike.
        address: host:port of the server; the job's by default. Of Flower's SuperLink for "flower".
        engine: what carries frames to the server and back, "grpc" or "flower".
        certificates, node_key: of :func:`forethought.holders.flower.node_stream`.
        carry: another way than an engine's.
        witness: folder for the count that a restored ledger is told by; the keys' by default.
        options: of :func:`forethought.holders.driving.over`.
    """
    from forethought.holders.driving import over
    from forethought.holders.grpc import grpc_stream
    from forethought.holders.taking_part import Share, take_part_as_client
    from forethought.holders.trainer import SharedModel, end
    from forethought.rounds.randomness import Seeds
    from forethought.training.folder import RESERVATION

    require_engine(engine)
    member = Membership.load(folder)
    federation, name = member.federation, member.keys.identity.name
    me = member.roster.place(name)
    section = section_of(request.job)
    if request.job.payer is not None and not (out / RESERVATION).is_file():
        request.job.payer.require()  # a used-up budget is told before the data are read
    loaded, own = own_records(request, section, me, name, data_dir)
    shared = SharedModel(module_of(loaded))
    sizes = [plan.examples for plan in map(federation.plan, range(len(federation.members)))]
    if section.tables and len(section.tables) != len(sizes):
        raise FederationError(
            f"the federation has {len(sizes)} members, this client's job {len(section.tables)}"
        )
    speeds, size = speeds_of(section, len(sizes)), shared.layout.size
    terms = agreed(request.job, sizes, speeds, size, shared.architecture, loaded.noise_borne)[0]
    require_contract(federation, terms, me)
    records, loss = prepared_records(loaded, own, shared, federation.plan(me))
    run = request.job.run
    seeds = Seeds(run.seed, run.noise_seed).part(me)
    share = Share(
        records,
        loss,
        seeds=seeds,
        micro_batch=run.micro_batch,
        witness=witness or folder,
        payer=request.job.payer,
    )
    if carry is None:
        where = _address(request, address, engine)
        connect = (
            grpc_stream(member.roster, member.keys, where)
            if engine == "grpc"
            else node_stream(where, certificates, node_key)
        )
        carry = over(connect, **options)
    plans = tuple(loaded.with_caveats(plan) for plan in federation.plans)
    stated = replace(federation, plans=plans)
    took = take_part_as_client(
        federation,
        member.roster,
        member.keys,
        shared,
        share,
        policy or _policy(request, federation, me),
        out,
        carry,
        stated=stated,
    )
    if took.weights is not None and took.over:
        shared.write(took.weights)
        save_model(shared, out)
    if took.over:
        end(out)
    return took


def _policy(request: Request, federation: Federation, me: int) -> Policy:
    section, name = section_of(request.job), federation.members[me].name
    own = next((table.epsilon for table in section.client if table.name == name), None)
    epsilon = own or request.job.budget.epsilon
    if epsilon is None:
        raise JobError("a client needs a policy: epsilon in [budget], or --epsilon")
    delta = request.job.budget.delta or defaults.default_delta(federation.plan(me).examples)
    return Policy(epsilon, delta, secure=section.secure is not None)


def _address(request: Request, address: str | None, engine: str = "grpc") -> str:
    """The address of the server, or of the SuperLink; the job's is the server's."""
    if engine == "grpc":
        return address or section_of(request.job).address or DEFAULT_ADDRESS
    return address or SUPERLINK


def require_engine(name: str) -> None:
    """Refuse an engine that does not exist.

    Raises:
        JobError: it names those that do.
    """
    if name not in ENGINES:
        raise JobError(f"no engine {name!r}: {' or '.join(ENGINES)}")


# Flower as an engine: the same machines in a ServerApp, and in a ClientApp for Flower's SuperNode.
#
# Who sent frames, their signatures, ledger, journal and statements are those of a federation over
# gRPC. A ServerApp that is started again goes on from its journal.
#
# Configuration of the run: ``job`` (the job file), ``keys`` (the server's folder of keys), ``out``
# (its journal and results). Of each SuperNode (``--node-config``): the same, for its client.


ENDED = "ended"


def server_app() -> ServerApp:
    """The ServerApp of a federation; its run config says which."""
    from flwr.serverapp import ServerApp

    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator]
    def main(grid: Grid, context: Context) -> None:
        job, keys, out = _places(context.run_config)
        served, accuracy = serve_job(from_file(job), keys, out, carry=over_grid(grid))
        words = "" if accuracy is None else f", accuracy on held-out data {accuracy:.2%}"
        print(f"federation finished after {served.status.version} models{words}", flush=True)

    return app


def client_app() -> ClientApp:
    """The ClientApp of a federation; its node config says whose."""
    from flwr.app import Message
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.query()  # type: ignore[untyped-decorator]
    def query(message: Message, context: Context) -> Message:
        replies = answered(context.node_config, frames_of(message.content) or [])
        return Message(content=content_of(replies), reply_to=message)

    return app


def answered(config: Mapping[str, Any], frames: list[bytes]) -> list[bytes]:
    """A client's answer to one request, and its statement up to date in its folder.

    Args:
        config: of the node. frames: of the request.

    Raises:
        JobError: the configuration names no job, keys or folder.
    """
    job, keys, out = _places(config)
    terms = Federation.load(keys / FEDERATION)
    if terms.cadence is not None or terms.secure is not None:
        raise FederationError(
            "a cadence and secure aggregation need a client that stays, and Flower's SuperNode "
            "starts one for every message: use federate client --engine flower in its place"
        )
    if (out / ENDED).exists():
        # Its secrets are gone; it says that it is here, so that the server can let it go.
        return [] if frames else [(out / ENDED).read_bytes()]
    replies: list[bytes] = []
    last_words = b""

    def carry(
        make: Callable[[Send, Begin], ClientDriver], compute: Callable[[Compute], Computed | None]
    ) -> ClientDriver:
        nonlocal last_words
        driver, found = client_turn(frames, make, compute)
        replies.extend(found)
        state = driver.ledger.read()
        last_words = driver.endpoint.seal(SERVER, Join(state.updates, state.base))
        return driver

    took = take_part_in_job(from_file(job), keys, out, carry=carry)
    if took.over:
        (out / ENDED).write_bytes(last_words)
    return replies


def _places(config: Mapping[str, Any]) -> tuple[Path, Path, Path]:
    missing = [name for name in ("job", "keys", "out") if not config.get(name)]
    if missing:
        raise JobError(
            f"the configuration lacks {', '.join(missing)}: give job, keys and out, each a path"
        )
    job, keys, out = (Path(str(config[name])) for name in ("job", "keys", "out"))
    return job, keys, out
