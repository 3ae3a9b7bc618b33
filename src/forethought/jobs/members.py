"""The processes of the members of a job: keys and roster, the server, clients and workers.

Clients reach their server by gRPC or by Flower; workers reach each other on a Ray cluster, under
torchrun, or between sites.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from forethought.data import Dataset
from forethought.data.synthetic import share_of
from forethought.exchange.events import Compute, Computed
from forethought.exchange.keys import IDENTITY, ROSTER, SERVER_NAME, Identity, Keys, Roster
from forethought.exchange.messages import SERVER, Join, Vector
from forethought.exchange.storage import JOURNAL, LEDGER, FolderStorage, counted
from forethought.federated.federation import (
    FEDERATION,
    Federation,
    FederationError,
    require_contract,
)
from forethought.federated.statements import Policy
from forethought.gossip.gossip import GOSSIP, Gossip, GossipError, digest_of
from forethought.holders import flower, taking_part
from forethought.holders.cluster import WorkerActor, cluster, run_workers
from forethought.holders.driving import Begin, CarryClient, ClientDriver, Out, over_streams
from forethought.holders.grpc import SCHEMES, PeerRoster, SiteLinks, grpc_stream, is_address
from forethought.holders.links import Launched, Pace, TeamLinks, WorkerOutcome
from forethought.holders.server import START, CarryServer, Served, over_grpc, serve
from forethought.holders.trainer import ReportedAverage, SharedModel
from forethought.jobs import holders
from forethought.jobs.job import JobError, JobRequest, from_file
from forethought.jobs.load import Loaded, arranged_for, load_job, module_of, require_possible
from forethought.planning import defaults
from forethought.rounds.contributions import Loss, default_loss
from forethought.rounds.randomness import Seeds
from forethought.rounds.records import blank
from forethought.training.execution import InterruptGuard, launched
from forethought.training.folder import KEYS, RESERVATION, untied, wipe
from forethought.training.metrics import evaluate
from forethought.training.records import require_fit
from forethought.values.checks import one_of, require_only
from forethought.values.plan import other_terms, promised

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp


MODEL, FIRST, FIRST_PORT = "model.safetensors", "first.npy", 8760
DEFAULT_ADDRESS, SUPERLINK = "127.0.0.1:8750", "127.0.0.1:8000"
# The transports between a federation's server and its clients.
ENGINES = ("grpc", "flower")
# The beginning of a declared table's encoding, which is a digest.
_TABLE = "sha256:"


# Keys and roster.


@dataclass(frozen=True)
class Membership:
    """The content of a member's folder of keys.

    Args:
        keys: its own keys. roster: all members' public keys. agreed: the agreed federation or
            gossip.
        first: the first weights, for a gossip only; in a federation the server has them.
    """

    keys: Keys
    roster: Any  # Roster, or PeerRoster of a gossip
    agreed: Any
    first: Vector | None = None

    @classmethod
    def load(cls, folder: Path, kind: holders.Kind) -> Membership:
        """Read a folder that ``forethought federate keys`` or ``forethought gossip keys`` made.

        Raises:
            OSError: a file is missing. ValueError: a file is damaged.
        """
        file = FEDERATION if kind == "federation" else GOSSIP
        if missing := [one for one in (IDENTITY, ROSTER, file) if not (folder / one).is_file()]:
            raise FileNotFoundError(
                f"{folder} lacks {' and '.join(missing)}: give a member's own folder of keys, with "
                f"{ROSTER} and {file} in it, which the command keys writes"
            )
        keys = Keys.load(folder)
        if kind == "federation":
            return cls(keys, Roster.load(folder / ROSTER), Federation.load(folder / FEDERATION))
        own = keys, PeerRoster.load(folder / ROSTER), Gossip.load(folder / GOSSIP)
        return cls(*own, _first_in(folder))

    @property
    def place(self) -> int:
        """The member's own place in the roster."""
        return int(self.roster.place(self.keys))


def _first_in(folder: Path) -> Vector:
    """The first weights of a gossip. Raises GossipError: their file is damaged."""
    try:
        return np.ascontiguousarray(np.load(folder / FIRST, allow_pickle=False), dtype=np.float32)
    except (EOFError, zipfile.BadZipFile, ValueError, TypeError) as error:
        raise GossipError(f"{folder / FIRST} is damaged ({error}): take another's copy") from None


def make_everybody(
    request: JobRequest, kind: holders.Kind, out: Path, data_dir: Path | None = None
) -> Roster | PeerRoster:
    """Make the keys of all members in one place, for a trial.

    A person who has the folder ``out`` can act for every member.

    Returns:
        The roster. Every member's folder, ``out/NAME``, holds it and the agreed terms.

    Raises:
        FileExistsError: there are keys already. JobError: as for :func:`planned`; and all errors of
            data and planner.
    """
    found, first = planned(request, kind, data_dir)
    names = _names(found)
    identities = [Keys.make(out / name, name).identity for name in names]
    folders = (out, *(out / name for name in names))
    return _hand_out(request, found, first, identities, folders)


def join(
    request: JobRequest,
    kind: holders.Kind,
    identities: Sequence[Path],
    out: Path,
    data_dir: Path | None = None,
) -> Roster | PeerRoster:
    """Write the roster and the agreed terms, from the identities that members made.

    Args:
        identities: files of all members, for a federation also the server's, in any order.

    Raises:
        OSError: no such file. JobError: other members than the job's. RosterError: a repeated key.
    """
    agreed_on, first = planned(request, kind, data_dir)
    wanted = _names(agreed_on)
    found = {one.name: one for one in map(Identity.load, identities)}
    if sorted(found) != sorted(wanted) or len(identities) != len(wanted):
        raise JobError(
            f"the job needs the identities of {', '.join(wanted)}, not {', '.join(sorted(found))}"
        )
    return _hand_out(request, agreed_on, first, [found[name] for name in wanted], (out,))


def planned(
    request: JobRequest, kind: holders.Kind, data_dir: Path | None = None
) -> tuple[holders.Agreed, Vector]:
    """A job's federation or gossip, without signatures, and the first weights.

    See :func:`~forethought.jobs.holders.holders_of`.

    Raises:
        JobError: the rule is "allreduce", or a setting changes nothing.
    """
    section = holders.require_used(request.job, kind)
    if section.rule == "allreduce":
        raise JobError(
            "rule = 'allreduce' needs links that can reduce: run it under torchrun, or take "
            "'synchronous' or 'asynchronous' between sites"
        )
    held = holders.holders_of(request, kind, data_dir)
    return held.agreed, held.shared.read()


def _names(agreed: holders.Agreed) -> list[str]:
    server = [SERVER_NAME] if isinstance(agreed, Federation) else []
    return [*server, *agreed.names]


def _hand_out(
    request: JobRequest,
    agreed: holders.Agreed,
    first: Vector,
    identities: Sequence[Identity],
    folders: Sequence[Path],
) -> Roster | PeerRoster:
    """Write the roster, and the agreed terms with its keys, into folders."""
    roster: Roster | PeerRoster
    if isinstance(agreed, Federation):
        roster = Roster.of(identities[0], identities[1:])
    else:
        tables = holders.section_of(request.job, "gossip").worker
        given = [table.address for table in tables] or [None] * len(identities)
        addresses = [own or f"127.0.0.1:{FIRST_PORT + k}" for k, own in enumerate(given)]
        roster = PeerRoster.of(identities, addresses)
    agreed = roster.with_keys(agreed)
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        roster.save(folder / ROSTER)
        agreed.save(folder / agreed.file)
        if isinstance(agreed, Gossip):
            np.save(folder / FIRST, first)
    return roster


# A member: its own records, and the model that it saves.


@dataclass(frozen=True)
class _Member:
    """A member with its own records and the model that it trains.

    Args:
        agreed: the agreed federation or gossip. me: its place in it. out: its folder.
        loaded: its job. own: its own records. shared: the model.
    """

    agreed: Any  # holders.Agreed
    me: int
    out: Path
    loaded: Loaded
    own: Dataset
    shared: SharedModel

    @classmethod
    def of(
        cls, request: JobRequest, agreed: holders.Agreed, me: int, out: Path, data_dir: Path | None
    ) -> _Member:
        """The member with its own records; see :func:`own_records`."""
        section, name = holders.section_of(request.job, agreed.CALLED), agreed.names[me]
        loaded, own = own_records(request, section, me, name, data_dir, out)
        return cls(agreed, me, out, loaded, own, SharedModel(module_of(loaded)))

    @property
    def section(self) -> Any:
        """The section of the job: ``[federation]`` or ``[gossip]``."""
        return holders.section_of(self.loaded.request.job, self.agreed.CALLED)

    @property
    def allowed(self) -> float | None:
        """The largest ε that its own job allows: its table's, or the budget's."""
        found: float | None = _own_table(self.section, self.agreed.names[self.me], "epsilon")
        return found or self.loaded.request.job.budget.epsilon

    def terms(self) -> Any:
        """The terms that follow from its own job, for the agreed numbers of records."""
        sizes = [plan.examples for plan in self.agreed.own_plans]
        speeds = holders.speeds_of(self.section, len(sizes))
        network = holders.Network.of(self.loaded, self.shared)
        return holders.agreed(self.loaded.request, self.section, sizes, speeds, network)[0]

    def require_encoding(self) -> None:
        """Refuse a job that turns records into other inputs or losses than was agreed.

        Raises:
            JobError: it does.
        """
        own, agreed = holders.encoding_of(self.loaded), self.agreed.encoding
        # A declared table and other data say different things, and cannot be compared.
        if own != agreed and own.startswith(_TABLE) == agreed.startswith(_TABLE):
            raise JobError(
                f"[data] turns records into other inputs than {self.agreed.file} has: take "
                "the columns, words, ranges, classes, weights, features and standardise agreed on"
            )

    def share(
        self, allowed: tuple[float | None, float | None], witness: Path | None
    ) -> tuple[taking_part.Share, Any]:
        """Its share, of its own records, and the terms for its statement.

        Args:
            allowed: (epsilon, delta) that a worker's plan may spend.
            witness: folder for the count by which a restored ledger is recognised.
        """
        if not (self.out / LEDGER).exists():  # these, where it was killed before the ledger was
            require_only(self.out, KEYS, RESERVATION, "member", "member.part")
        job, agreed, loaded = self.loaded.request.job, self.agreed, self.loaded
        found = arranged_for(loaded, self.own, agreed.plan(self.me))
        records = self.shared.records(found.data)
        loss = found.loss or default_loss(blank(records)[1])
        require_fit(self.shared.model, loss, records)
        seeds = Seeds(job.run.seed, job.run.noise_seed).part(self.me)
        plans = tuple(loaded.with_caveats(plan) for plan in agreed.plans)
        known = records, loss, *allowed, seeds, job.run.micro_batch, witness, job.payer
        return taking_part.Share(*known), replace(agreed, plans=plans)

    def ended(self, took: taking_part.TookPart) -> taking_part.TookPart:
        """Its outcome; once its part is over, its folder has its model and no secret."""
        if took.weights is not None:
            self.shared.write(took.weights)
        if took.over:
            if took.weights is not None:
                _save_model(self.shared, self.out)
            wipe(self.out / KEYS)
        return took


def own_records(
    request: JobRequest,
    section: holders.Section,
    place: int,
    name: str,
    data_dir: Path | None,
    out: Path,
) -> tuple[Loaded, Dataset]:
    """The job and a member's own records: those it brings, or its share of the job's data.

    All members divide the job's data in the same way. For records that it brings, ``[ledger]`` of
    the job is asked whether it knows them, unless ``out`` has a reservation already.
    """
    if not section.brings_own:
        loaded, parts = holders.deal(request, section, data_dir)
        return loaded, share_of(loaded.dataset, parts[place])
    folder = _own_table(section, name, "folder")
    own = data_dir or (None if folder is None else (request.folder or Path()) / folder)
    loaded = load_job(request, own)
    if not (out / RESERVATION).is_file():
        request.job.recognise(own, loaded.dataset)
    return loaded, loaded.dataset


def _own_table(section: Any, name: str, key: str) -> Any:
    """A key of a member's own table in its job; None where there is no such table."""
    return next((getattr(table, key) for table in section.tables if table.name == name), None)


def _accuracy(loaded: Loaded, shared: SharedModel, loss: Loss | None = None) -> float | None:
    """The model's accuracy on the job's held-out data; None: there are none."""
    if loaded.held_out is None:
        return None
    records = shared.records(loaded.held_out, "test")
    loss = loss or default_loss(blank(records)[1])
    return evaluate(shared.model, dict(shared.parameters), loss, records)[1]


def _save_model(shared: SharedModel, out: Path) -> None:
    """Write the model's weights into a folder, atomically."""
    from safetensors.torch import save_file

    part = out / f".{MODEL}.part"
    save_file(untied(shared.model.state_dict()), str(part))
    part.replace(out / MODEL)


# A federation's server and its clients.


def serve_job(
    request: JobRequest,
    folder: Path,
    out: Path,
    *,
    address: str | None = None,
    data_dir: Path | None = None,
    carry: CarryServer | None = None,
    **options: Any,
) -> tuple[Served, float | None]:
    """Serve a job's federation; write the model to ``out`` when it is finished.

    Args:
        folder: the server's keys, with roster and federation. out: journal and results.
        address: host:port to listen on; the job's by default.
        carry: another transport than gRPC.
        options: of :func:`forethought.holders.server.over_grpc`.

    Returns:
        The outcome, and the model's accuracy on the job's held-out data (None: no data, or not
        finished).

    Raises:
        JobError: the job has other terms than the federation.
    """
    member = Membership.load(folder, "federation")
    federation = member.agreed
    _require_same(request, federation)
    loaded = load_job(request, data_dir)
    shared = SharedModel(module_of(loaded))
    taking_part.require_architecture(shared, federation)
    if not (out / JOURNAL).exists():
        require_only(out, START)
    if carry is None:
        where = _address(request, address, 0)
        carry = over_grpc(member.roster, member.keys, where, **options)
    served = serve(
        federation,
        member.roster,
        member.keys,
        shared.read(),
        out,
        carry,
        average=partial(ReportedAverage.of, federation, shared.layout),
    )
    if not served.finished:
        return served, None
    shared.write(served.weights)
    _save_model(shared, out)
    return served, _accuracy(loaded, shared)


def take_part_in_job(
    request: JobRequest,
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
) -> taking_part.TookPart:
    """Take part in a job's federation as a client; write statement and model to ``out``.

    Args:
        folder: the client's keys, with roster and federation. out: ledger, secrets and results.
        policy: the most that this client allows; the job's budget by default.
        data_dir: folder of the job's data: this client's own, or the data that all members divide.
        address: host:port of the server; the job's by default. For "flower", of its SuperLink.
        engine: transport to the server, "grpc" or "flower".
        certificates, node_key: of :func:`forethought.holders.flower.node_stream`.
        carry: another transport than an engine's.
        witness: folder for the count by which a restored ledger is recognised; ``folder`` by
            default.
        options: of :func:`forethought.holders.driving.over_streams`.

    Raises:
        ValueError: no such engine. FederationError: the federation has other terms than the job.
    """
    one_of("engine", engine, ENGINES)
    held = Membership.load(folder, "federation")
    federation, me = held.agreed, held.place
    if request.job.payer is not None and not (out / RESERVATION).is_file():
        request.job.payer.require()  # report an exhausted budget before the data are read
    member = _Member.of(request, federation, me, out, data_dir)
    count, tables = len(federation.members), member.section.tables
    if tables and len(tables) != count:
        raise FederationError(
            f"the federation has {count} members, this client's job {len(tables)}"
        )
    require_contract(federation, member.terms(), me)
    member.require_encoding()
    if carry is None:
        connect = (
            grpc_stream(held.roster, held.keys, _address(request, address))
            if engine == "grpc"
            else flower.node_stream(address or SUPERLINK, certificates, node_key)
        )
        carry = over_streams(connect, **options)
    if policy is None:
        epsilon, budget = member.allowed, request.job.budget
        if epsilon is None:
            raise JobError("a client needs a policy: epsilon in [budget], or --epsilon")
        delta = budget.delta or defaults.default_delta(federation.plan(me).examples)
        policy = Policy(epsilon, delta, secure=federation.secure is not None)
    share, stated = member.share((None, None), witness or folder)
    known = federation, held.roster, held.keys, member.shared, share, policy, out, carry
    return member.ended(taking_part.take_part_as_client(*known, stated=stated))


def _address(request: JobRequest, address: str | None, least: int = 1) -> str:
    """The address of the server over gRPC: by default the job's.

    Args:
        least: the lowest port; 0 for a server, which may listen on any free one.

    Raises:
        JobError: it is none.
    """
    section = request.job.federation
    where = address or (section and section.address) or DEFAULT_ADDRESS
    if not where.startswith(SCHEMES) and not is_address(where, least):
        raise JobError(f"the address {where!r} is none: give host:port, such as {DEFAULT_ADDRESS}")
    return where


# Flower as a transport: the same state machines in a ServerApp and in a ClientApp of a SuperNode.
#
# Authentication, signatures, ledger, journal and statements are those of a federation over gRPC. A
# ServerApp that is restarted continues from its journal.
#
# Run configuration: ``job`` (the job file), ``keys`` (the server's folder of keys), ``out`` (its
# journal and results). Each SuperNode has the same keys for its client in ``--node-config``.


ENDED = "ended"


def server_app() -> ServerApp:
    """The ServerApp of the federation that the run configuration names."""
    from flwr.serverapp import ServerApp

    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator]
    def main(grid: Grid, context: Context) -> None:
        job, keys, out = _places(context.run_config)
        served, accuracy = serve_job(from_file(job), keys, out, carry=flower.over_grid(grid))
        words = "" if accuracy is None else f", accuracy on held-out data {accuracy:.2%}"
        print(f"federation finished after {served.status.version} models{words}", flush=True)

    return app


def client_app() -> ClientApp:
    """The ClientApp of the client that the node configuration names."""
    from flwr.app import Message
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.query()  # type: ignore[untyped-decorator]
    def query(message: Message, context: Context) -> Message:
        replies = answered(context.node_config, flower.frames_of(message.content) or [])
        return Message(content=flower.content_of(replies), reply_to=message)

    return app


def answered(config: Mapping[str, Any], frames: list[bytes]) -> list[bytes]:
    """A client's answer to one request; its statement in its folder is updated.

    Args:
        config: the node configuration. frames: of the request.

    Returns:
        The frames of the answer.

    Raises:
        JobError: the configuration names no job, keys or folder. FederationError: the federation
            has a cadence or secure aggregation.
    """
    job, keys, out = _places(config)
    terms = Federation.load(keys / FEDERATION)
    if terms.cadence is not None or terms.secure is not None:
        raise FederationError(
            "a cadence and secure aggregation need a client that stays, and Flower's SuperNode "
            "starts one for every message: use federate client --engine flower in its place"
        )
    if (out / ENDED).exists():
        # Its secrets are deleted; it reports its presence, so that the server can dismiss it.
        return [] if frames else [(out / ENDED).read_bytes()]
    replies: list[bytes] = []
    last_words = b""

    def carry(
        make: Callable[[Out, Begin], ClientDriver], compute: Callable[[Compute], Computed | None]
    ) -> ClientDriver:
        nonlocal last_words
        driver, found = flower.answer_requests(frames, make, compute)
        replies.extend(found)
        state = driver.ledger.read()
        last_words = driver.endpoint.seal(SERVER, Join(state.updates, state.base))
        return driver

    took = take_part_in_job(from_file(job), keys, out, carry=carry)
    if took.over:
        (out / ENDED).write_bytes(last_words)
    return replies


def _places(config: Mapping[str, Any]) -> tuple[Path, Path, Path]:
    if missing := [name for name in ("job", "keys", "out") if not config.get(name)]:
        raise JobError(
            f"the configuration lacks {', '.join(missing)}: give job, keys and out, each a path"
        )
    return Path(str(config["job"])), Path(str(config["keys"])), Path(str(config["out"]))


# A gossip's workers.


@dataclass(frozen=True)
class PeerResult:
    """The outcome of a worker of a job.

    Args:
        name: of the worker. took: its outcome.
        accuracy: of its own model on the job's held-out data; None: there are none.
    """

    name: str
    took: taking_part.TookPart
    accuracy: float | None

    def summary(self) -> dict[str, Any]:
        """The outcome as a JSON-ready mapping."""
        took = self.took
        return {
            "name": self.name,
            "reason": took.drove.reason,
            "updates": took.updates,
            "exchanges": took.drove.averaged,
            "seconds": took.drove.seconds,
            "epsilon": None if took.statement is None else took.statement.guarantee,
            "outsider": None if took.outsider is None else took.outsider.guarantee,
            "accuracy": self.accuracy,
            "alarms": dict(took.drove.counts),
        }


def cluster_workers(
    request: JobRequest,
    out: Path,
    *,
    address: str | None = None,
    data_dir: Path | None = None,
    look: Callable[[list[int]], None] | None = None,
) -> list[PeerResult]:
    """Train a job's gossip on a Ray cluster until all workers have ended.

    SIGINT and SIGTERM pause all workers; the same call continues the run.

    Args:
        out: folder for the agreed terms; each worker's folder is ``out/NAME`` on its node.
        address: of a cluster ("auto": the one that runs here); None: processes of this machine.
        data_dir: folder of the job's data on every node.
        look: called about once a second with the number of updates of every worker.

    Returns:
        The outcome of every worker, in the order of the job.

    Raises:
        GossipError: ``out`` is of another gossip.
        HolderError: no Ray, no cluster, or too small a one. JobError: the rule is "allreduce".
        Exception: the error of the first worker that failed, once all have ended.
    """

    if holders.section_of(request.job, "gossip").rule == "allreduce":
        raise JobError("rule = 'allreduce' is run under torchrun: see examples/gossip.py")
    held = holders.holders_of(request, "gossip", data_dir)
    gossip, first = begun_in(request, held.gossip, held.shared.read(), out)
    folder = None if data_dir is None else data_dir.resolve()
    works = [
        partial(cluster_worker, request, gossip, first, me, out.resolve(), folder)
        for me in range(gossip.workers)
    ]
    with cluster(address, gossip.workers), InterruptGuard() as guard:
        run = f"{request.name}-{gossip.run_id.hex()[:16]}"
        outcomes = run_workers(run, works, stop=lambda: guard.requested, look=look)
    failed = [outcome.error for outcome in outcomes if outcome.error is not None]
    if failed:
        raise failed[0]
    return [outcome.result for outcome in outcomes if outcome.result is not None]


def begun_in(
    request: JobRequest, gossip: Gossip, first: Vector, out: Path
) -> tuple[Gossip, Vector]:
    """The gossip and the first weights with which these workers began, stored in ``out``.

    Step sizes depend on first weights that may be random, so another planning gives other ones; a
    run that continues keeps those of its beginning.

    Raises:
        JobError, GossipError: the job has other terms now.
    """
    if not (out / GOSSIP).exists():
        holders.require_used(request.job, "gossip")
        require_only(out, FIRST)
        out.mkdir(parents=True, exist_ok=True)
        np.save(out / FIRST, first)
        gossip.save(out / GOSSIP)
        return gossip, first
    kept = Gossip.load(out / GOSSIP)
    _require_same(request, kept)
    if [member.name for member in kept.members] != [member.name for member in gossip.members]:
        raise GossipError(f"{out} holds a gossip of other workers: choose another folder")
    for me in range(gossip.workers):
        now, then = gossip.plan(me), kept.plan(me)
        problem = other_terms(promised(now), promised(then), GOSSIP)
        if problem is None and (now.budget, now.examples) != (then.budget, then.examples):
            problem = f"the job's budget or data are not those of {GOSSIP}: choose another folder"
        if problem is not None:
            raise GossipError(f"{out}: {problem}")
    return kept, _first_in(out)


def cluster_worker(
    request: JobRequest,
    gossip: Gossip,
    first: Vector,
    me: int,
    out: Path,
    data_dir: Path | None,
    here: WorkerActor,
) -> PeerResult:
    """Run one worker in a Ray actor; see :func:`cluster_workers`.

    Args:
        gossip, first: the planned gossip, and the first weights. me: the worker's place.
        out: folder of all workers. data_dir: folder of the job's data on its node.
        here: context of the actor.
    """
    # The gossip was planned from this very job, so its terms need no check.
    member = _Member.of(request, gossip, me, out / gossip.names[me], data_dir)
    member.shared.write(first)
    return _take_part(
        member,
        lambda keys: here.links(gossip, me),
        look=lambda drove: here.tell(drove.rounds),
        halted=here.stop,
    )


def launched_worker(request: JobRequest, out: Path, *, data_dir: Path | None = None) -> PeerResult:
    """Run the worker of SYNC with this process's rank under torchrun.

    All processes must be able to read the job's data.

    Args:
        out: folder of all workers; each worker's own folder is ``out/NAME``.

    Raises:
        PeersError: torchrun did not start this process, or a worker was lost.
        GossipError: a process has another gossip than the first one, or a lost worker came back.
        JobError: another rule than "allreduce"; and all errors of data, planner and gossip.
    """
    here = Launched.here()
    if holders.section_of(request.job, "gossip").rule != "allreduce":
        raise JobError(
            "torchrun carries rule = 'allreduce' alone, since it ends all workers with the first "
            "that dies: run the other rules with forethought gossip train"
        )
    holders.require_used(request.job, "gossip")  # such a run is always a new one
    held = holders.holders_of(request, "gossip", data_dir)
    shared, name = held.shared, held.agreed.names[here.rank]
    # A lost worker cannot join again: it gets this error before it tries.
    if (out / name / LEDGER).exists() and counted(FolderStorage(out / name)):
        raise GossipError(
            f"{out / name} holds releases, and under the rule 'allreduce' a worker that was lost "
            "cannot come back: begin again with another folder and new plans"
        )
    with launched():
        first = here.agree(held.gossip, shared.read())
        shared.write(first)
        gossip = replace(held.gossip, start=digest_of(first))
        own = held.share(here.rank)
        member = _Member(gossip, here.rank, out / name, held.loaded, own, shared)
        return _take_part(member, lambda keys: TeamLinks())


def site_worker(
    request: JobRequest,
    folder: Path,
    out: Path,
    *,
    listen: str | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    data_dir: Path | None = None,
    look: Callable[[WorkerOutcome], None] | None = None,
    witness: Path | None = None,
) -> PeerResult:
    """Run one site's worker; write statement and model to ``out``.

    SIGINT and SIGTERM pause it; the same call continues the run.

    Args:
        folder: its keys, with roster, gossip and first weights. out: ledger, secrets and results.
        listen: host:port to listen on; its address in the roster by default.
        epsilon, delta: the most that its plan may spend; its own table's or the job's by default.
        data_dir: folder of the job's data: this worker's own, or the data that all members divide.
        witness: folder for the count by which a restored ledger is recognised; ``folder`` by
            default.

    Raises:
        GossipError: roster, model or plan do not fit the gossip. JobError: the job has other terms.
    """
    held = Membership.load(folder, "gossip")
    gossip, me, first = held.agreed, held.place, held.first
    held.roster.require(gossip)
    _require_same(request, gossip)
    require_possible(request.job)
    member = _Member.of(request, gossip, me, out, data_dir)
    if first is None or len(first) != member.shared.layout.size:
        raise GossipError("the job's model is not the gossip's: another number of parameters")
    # Noise, rates and rounds are not compared here: their ε is compared with the budget later.
    own_terms = promised(member.terms().plan(me))
    if (problem := other_terms(own_terms, promised(gossip.plan(me)), GOSSIP)) is not None:
        raise GossipError(problem)
    member.require_encoding()
    member.shared.write(first)
    epsilon = member.allowed if epsilon is None else epsilon
    return _take_part(
        member,
        lambda keys: SiteLinks(gossip, held.roster, keys, listen),
        keys=held.keys,
        allowed=(epsilon, request.job.budget.delta if delta is None else delta),
        look=look,
        witness=witness or folder,
    )


def _require_same(request: JobRequest, agreed: holders.Agreed) -> None:
    """Refuse a job with other settings than what was agreed on, since they would have no effect.

    Raises:
        JobError: a setting differs; the message names it.
    """
    section: Any = holders.section_of(request.job, agreed.CALLED)
    count, star = len(agreed.members), isinstance(agreed, Federation)
    keys = holders.FEDERATION_KEYS if star else holders.GOSSIP_KEYS
    compared = {name: (getattr(section, name), getattr(agreed, name)) for name in keys}
    compared["rounds"] = (section.rounds or agreed.rounds, agreed.rounds)
    compared[f"{section.member}s"] = (section.count or count, count)
    if isinstance(agreed, Gossip):
        compared["difference"] = (section.difference, agreed.trust.difference)
        compared["largest"] = (section.largest, agreed.trust.largest)
        compared["compression"] = (holders.compression_of(section), agreed.compression)
        mixing = holders.mixing_of(section, count, request.folder)
        compared["graph and mixing"] = (mixing, agreed.mixing)
    for name, (here, there) in compared.items():
        if here != there:
            words = "" if name == "graph and mixing" else f" ({here!r} here, {there!r} agreed)"
            raise JobError(
                f"[{section.kind}] {name} differs from what was agreed on{words}: take the job "
                "that all agreed on; or begin anew, with other keys or in another folder"
            )


def _take_part(
    member: _Member,
    links: Any,
    *,
    allowed: tuple[float | None, float | None] = (None, None),
    witness: Path | None = None,
    halted: Callable[[], bool] = lambda: False,
    **options: Any,
) -> PeerResult:
    section, loaded, shared = member.section, member.loaded, member.shared
    exchange = {} if section.exchange is None else {"exchange": section.exchange}
    pace = Pace(deadline=section.deadline, **exchange)
    with InterruptGuard() as guard:
        options |= {"pace": pace, "stop": lambda: guard.requested or halted()}
        share, stated = member.share(allowed, witness)
        known = member.agreed, member.me, shared, share, member.out, links
        took = member.ended(taking_part.take_part(*known, stated=stated, **options))
    name = member.agreed.names[member.me]
    return PeerResult(name, took, _accuracy(loaded, shared, loaded.loss))
