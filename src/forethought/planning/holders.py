"""The cost and traffic of a federation or a gossip, before anybody trains: a row a holder.

ε is certified for each holder's own plan. Seconds come from the simulator, driven through virtual
time without data.

How often a federation talks is a choice between communication and accuracy: with the same private
rounds in all, fewer global rounds of more local ones send less. That one local epoch a global round
is best (Bhaskar et al., Theorem 2) minimises an upper bound and is an observation, not a proof;
docs/federation.md has what it was worth in experiments.

In a gossip fast workers do what slow ones leave, so each plans *headroom*: more rounds than the R
that all make on average, at the noise that its budget has room for with all of them. What the
headroom costs is the ε of R rounds against that of the whole plan, at one noise. Which graph is
best is a matter of accuracy as well: that is rehearsed on public data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from forethought.accounting import exact
from forethought.accounting.interval import warn_if_wide
from forethought.federated.federation import Federation, Robust
from forethought.federated.statements import client_statement
from forethought.gossip.gossip import Gossip, GossipError, Trust
from forethought.gossip.graphs import GraphError, make
from forethought.gossip.graphs import Kind as GraphKind
from forethought.gossip.mixing import Mixing, MixingError
from forethought.gossip.mixing import Named as MixingKind
from forethought.gossip.statements import as_in_the_paper, worker_statement
from forethought.holders import simulator
from forethought.values.checks import whole
from forethought.values.mechanism import Budget, LocalRounds, first_round, updates_of
from forethought.values.serialisation import entries

# Updates that a prediction of time simulates at most; longer runs are scaled up from their
# beginning.
_MOST_UPDATES = 20_000


_FEWEST_ROUNDS = 10


@dataclass(frozen=True)
class ClientCost:
    """The work and the spending of one client.

    Args:
        name: of the client. examples: its records n. budget: what it asked for.
        speed: records a second, against the others'.
        batch: expected sample size s of a private round; asynchronously it fits the speed.
        rounds: private rounds. updates: messages with a release, one a global round.
        noise_multiplier: σ of its own rounds, the largest where they differ.
        epsilon: certified, against a server that sees every update.
        secure_epsilon: against the server under secure aggregation; None where there is none.
        outsider_epsilon: against whoever sees the models only.
        megabytes: models received and updates sent, 10⁶ bytes.
    """

    name: str
    examples: int
    budget: Budget
    speed: float
    batch: float
    rounds: int
    updates: int
    noise_multiplier: float
    epsilon: float
    secure_epsilon: float | None
    outsider_epsilon: float
    megabytes: float


@dataclass(frozen=True)
class RoundSplit:
    """One way to cut the same private rounds into global ones: the same ε, another cost.

    Args:
        local_rounds: E in steps. local_epochs: the same in passes over a typical client's records.
        rounds: global rounds R. updates: of one client. megabytes: of one client, both ways.
        seconds: predicted virtual wall-clock. chosen: whether it is the federation's own.
    """

    local_rounds: LocalRounds
    local_epochs: float
    rounds: int
    updates: int
    megabytes: float
    seconds: float
    chosen: bool


@dataclass(frozen=True)
class FederatedPlan:
    """The findings of :func:`predict`. ``to_dict`` is JSON-ready."""

    federation: Federation
    clients: tuple[ClientCost, ...]
    splits: tuple[RoundSplit, ...]
    seconds: float
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; the federation itself under its own schema."""
        return entries(self)


def predict(
    federation: Federation,
    budgets: Sequence[Budget],
    speeds: Sequence[float],
    times: simulator.Times,
) -> FederatedPlan:
    """Costs of a federation, a row a client, and of other splits into global rounds.

    Args:
        federation: what everybody would agree on.
        budgets, speeds: of each client. times: of its simulation, for its own local rounds.
    """
    known: dict[int, ClientCost] = {}
    clients = []
    for client, member in enumerate(federation.members):
        if member.plan not in known or not _alike(federation):
            known[member.plan] = _cost(federation, client, budgets[client], speeds[client])
        clients.append(
            replace(
                known[member.plan],
                name=member.name,
                budget=budgets[client],
                speed=float(speeds[client]),
            )
        )
    splits = tuple(_splits(federation, times))
    seconds = next(split.seconds for split in splits if split.chosen)
    return FederatedPlan(federation, tuple(clients), splits, seconds, tuple(_notes(federation)))


def megabytes(federation: Federation, updates: int) -> float:
    """Models received and updates sent, with their acknowledgements, in 10⁶ bytes."""
    vector = 4 * federation.parameters
    if federation.secure is not None:
        # Ring elements up; keys, shares and unmasking besides, some 200 bytes a pair of clients.
        bits, others = int(federation.secure["bits"]), int(federation.secure["clients"])
        return updates * (-(-bits // 8) * federation.parameters + vector + 200 * others) / 1e6
    return updates * (2 * vector + 3 * simulator.OVERHEAD) / 1e6


def predicted_seconds(federation: Federation, times: simulator.Times) -> float:
    """Virtual wall-clock of the whole run.

    Long runs are simulated from their beginning, and the rest is taken to go on at the same pace.

    Raises:
        SimulationError: the federation waits for something that never comes.
    """
    members = len(federation.members)
    rounds = federation.rounds
    shown = min(rounds, max(_FEWEST_ROUNDS, _MOST_UPDATES // members))
    # Only times matter: vectors of one parameter, whose way takes as long as the real one's.
    way = times.way
    if way.bandwidth is not None:
        way = replace(way, latency=way.latency + 4 * federation.parameters / way.bandwidth)
    small = replace(federation, parameters=1, rounds=shown, robust=Robust())
    found = simulator.rehearsed(small, replace(times, way=way))
    return found.seconds * rounds / shown


def _alike(federation: Federation) -> bool:
    # Equal plans cost the same against everybody where their weights are equal too.
    return not federation.taking and len(
        {(member.plan, member.weight) for member in federation.members}
    ) == len({member.plan for member in federation.members})


def _cost(federation: Federation, client: int, budget: Budget, speed: float) -> ClientCost:
    plan, updates = federation.plan(client), federation.updates(client)
    rounds = federation.first_round(updates)
    own = client_statement(federation, client)
    secure = None
    if federation.secure is not None:
        secure = client_statement(federation, client, "secure-server").guarantee
    first = plan.mechanism.first(rounds)
    if federation.phases:
        first = federation.planned(client)
        rounds = len(first)
    return ClientCost(
        name=federation.members[client].name,
        examples=plan.examples,
        budget=budget,
        speed=speed,
        batch=first.rounds[0].sampling.expected_batch(plan.examples),
        rounds=rounds,
        updates=updates,
        noise_multiplier=max(part.noise_multiplier for part in first),
        epsilon=own.guarantee,
        secure_epsilon=secure,
        outsider_epsilon=client_statement(federation, client, "outsider").guarantee,
        megabytes=megabytes(federation, updates),
    )


def _splits(federation: Federation, times: simulator.Times) -> list[RoundSplit]:
    """The federation's own split, and others of the same private rounds where they are possible."""
    total = federation.first_round(federation.rounds)
    mean = total / federation.rounds
    typical = federation.plan(len(federation.members) // 2)
    an_epoch = max(1, round(typical.examples / typical.round(0).divisor))
    wanted: set[LocalRounds] = {federation.local_rounds}
    if federation.exchanged == "weights" and not (federation.phases or federation.sizes):
        wanted |= {1, an_epoch, 2 * an_epoch, 5 * an_epoch, total}
    found = []
    for local in wanted:
        rounds = updates_of(local, total)
        if any(first_round(local, updates_of(local, n)) != n for n in _lengths(federation, total)):
            continue
        other = replace(federation, local_rounds=local, rounds=rounds)
        slower = total / rounds / mean
        compute = [seconds * slower for seconds in times.compute]
        updates = other.updates(0)
        found.append(
            RoundSplit(
                local_rounds=local,
                local_epochs=total / rounds / an_epoch,
                rounds=other.rounds,
                updates=updates,
                megabytes=megabytes(other, updates),
                seconds=predicted_seconds(other, replace(times, compute=compute)),
                chosen=local == federation.local_rounds,
            )
        )
    return sorted(found, key=lambda split: split.local_epochs)


def _lengths(federation: Federation, total: int) -> list[int]:
    return [total, *(plan.rounds for plan in federation.plans)]


def _notes(federation: Federation) -> list[str]:
    notes = []
    if federation.exchanged == "weights":
        notes.append(
            "fewer local rounds in a global one keep clients together and cost messages; that one "
            "local epoch is best is an observation (Bhaskar et al.), not a proof"
        )
    if federation.rule != "synchronous":
        notes.append("a client's batch is matched to its speed, so that all rounds take as long")
    if federation.cohort is not None:
        notes.append(
            "a cohort is known to the server: no amplification by leaving clients out is claimed, "
            "and epsilon is that of a client that is asked in every round its plan has"
        )
    if federation.secure is not None:
        notes.append(
            "the noise is shared: the budget holds against the server under secure aggregation, "
            "and epsilon is what is left should that fail"
        )
    padded = "" if federation.cadence is None else f", padded to {federation.cadence:g} seconds"
    notes.append(
        f"records and speeds of all clients are public, and so is when updates arrive{padded}"
    )
    return notes


# Graphs and mixings that are compared with the gossip's own, where the number of workers allows.
ROUTES: tuple[tuple[GraphKind, MixingKind], ...] = (
    ("complete", "matchings"),
    ("exponential", "exponential"),
    ("exponential", "matchings"),
    ("hypercube", "matchings"),
    ("random-regular", "matchings"),
    ("torus", "matchings"),
    ("ring", "matchings"),
)


_DEGREE = 4


@dataclass(frozen=True)
class WorkerCost:
    """The work and the spending of one worker.

    Args:
        name: of the worker. examples: its records. budget: what it asked for.
        batch: expected sample size. rounds: R. cap: the most rounds it makes, its headroom with it.
        noise_multiplier: σ, the largest where rounds differ.
        epsilon: certified, of all rounds up to the cap, against its neighbours.
        epsilon_without_headroom: the same of the first R rounds, at the same noise.
        outsider_epsilon: against whoever sees final models only.
        paper_epsilon: what A(DP)²SGD's theorem counts, not claimed; None where it has no reading.
        network_epsilon: against the observers that were named; None: none were, or it is one.
        expected_rounds: in a simulation of the whole gossip. busy: its share of that time.
    """

    name: str
    examples: int
    budget: Budget
    batch: float
    rounds: int
    cap: int
    noise_multiplier: float
    epsilon: float
    epsilon_without_headroom: float
    outsider_epsilon: float
    paper_epsilon: float | None
    network_epsilon: float | None
    expected_rounds: int
    busy: float


@dataclass(frozen=True)
class Route:
    """One graph with one mixing, for the same plans and the same ε.

    Args:
        graph, mixing: their kinds. neighbours: of the worker with most.
        eigenvalue: by which a step shrinks the squared disagreement at least, in expectation.
        steps: until the disagreement is a hundredth of what it was.
        seconds: virtual, of the whole gossip. megabytes: sent by all. own: the gossip's own.
    """

    graph: str
    mixing: str
    neighbours: int
    eigenvalue: float
    steps: int
    seconds: float
    megabytes: float
    own: bool


@dataclass(frozen=True)
class GossipPlan:
    """The findings of :func:`predict_gossip`. ``to_dict`` is JSON-ready."""

    gossip: Gossip
    workers: tuple[WorkerCost, ...]
    routes: tuple[Route, ...]
    seconds: float
    synchronous_seconds: float
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; the gossip itself under its own schema."""
        return entries(self)


def predict_gossip(
    gossip: Gossip, budgets: Sequence[Budget], times: simulator.Times, observers: Sequence[int] = ()
) -> GossipPlan:
    """Costs of a gossip, a row a worker, and the graphs that it could run on.

    Args:
        gossip: what everybody would agree on. budgets: of each worker.
        times: of its simulation.
        observers: distant workers who tell each other what they see; see
            :func:`~forethought.gossip.statements.worker_statement`.

    Raises:
        NetworkViewError: no theorem covers what these observers see of this gossip.
    """
    idle = _idle(gossip, times)
    known: dict[int, WorkerCost] = {}
    workers = []
    for worker, member in enumerate(gossip.members):
        if member.plan not in known:
            known[member.plan] = _worker_cost(gossip, worker, budgets[worker])
        workers.append(
            replace(
                known[member.plan],
                name=member.name,
                budget=budgets[worker],
                network_epsilon=_seen(gossip, worker, observers),
                expected_rounds=int(idle.rounds[worker]),
                busy=float(idle.busy[worker] / idle.seconds) if idle.seconds else 0.0,
            )
        )
    everybody = gossip.with_allreduce()
    return GossipPlan(
        gossip,
        tuple(workers),
        tuple(_route(gossip, mixing, times) for mixing in mixings(gossip)),
        idle.seconds,
        _idle(everybody, undisturbed(times)).seconds,
        tuple(_gossip_notes(gossip)),
    )


def mixings(gossip: Gossip) -> list[Mixing]:
    """The gossip's own mixing, and others on which as many workers could run."""
    own = gossip.mixing
    found, seen = [own], {(own.graph.kind, own.kind)}
    for graph, kind in ROUTES:
        if (graph, kind) in seen:
            continue
        try:
            degree = _DEGREE if graph == "random-regular" else None
            other = make(graph, gossip.workers, degree=degree, seed=own.seed)
            found.append(Mixing(kind, other, own.seed))
        except (GraphError, MixingError, ValueError):
            continue  # this graph has no so many workers
    return found


def headroom(gossip: Gossip, worker: int) -> tuple[float, float]:
    """ε of a worker's first R rounds and of its whole plan, at the plan's noise and δ.

    120 rounds at a rate of 0.2 and σ = 4.54 are ε = 2.00; a tenth more of them is 2.11.
    """
    plan = gossip.plan(worker)
    first = plan.mechanism.first(whole("rounds", min(gossip.rounds, plan.rounds)))
    both = (first, plan.mechanism.first(gossip.updates(worker)))
    short, all_of_them = (exact.epsilon(one, plan.delta) for one in both)
    warn_if_wide(all_of_them)
    return short.upper, all_of_them.upper


def _worker_cost(gossip: Gossip, worker: int, budget: Budget) -> WorkerCost:
    plan = gossip.plan(worker)
    first = plan.mechanism.first(gossip.updates(worker))
    short, whole_plan = headroom(gossip, worker)
    try:
        paper: float | None = as_in_the_paper(gossip, worker).upper
    except GossipError:
        paper = None
    return WorkerCost(
        name="",
        examples=plan.examples,
        budget=budget,
        batch=first.rounds[0].sampling.expected_batch(plan.examples),
        rounds=gossip.rounds,
        cap=gossip.updates(worker),
        noise_multiplier=max(part.noise_multiplier for part in first),
        epsilon=whole_plan,
        epsilon_without_headroom=short,
        outsider_epsilon=worker_statement(gossip, worker, "outsider").guarantee,
        paper_epsilon=paper,
        network_epsilon=None,
        expected_rounds=0,
        busy=0.0,
    )


def _seen(gossip: Gossip, worker: int, observers: Sequence[int]) -> float | None:
    if not observers or worker in observers:
        return None
    return worker_statement(gossip, worker, "network", observers=observers).guarantee


def _route(gossip: Gossip, mixing: Mixing, times: simulator.Times) -> Route:
    on_it = replace(gossip, mixing=mixing)
    run = _idle(on_it, times)
    vector = 4 * gossip.coordinates
    return Route(
        mixing.graph.kind,
        mixing.kind,
        max(mixing.graph.degree(worker) for worker in range(gossip.workers)),
        mixing.second_eigenvalue(),
        mixing.time(),
        run.seconds,
        (run.sent_bytes + run.messages * (vector - 4)) / 1e6,
        mixing == gossip.mixing,
    )


def _idle(gossip: Gossip, times: simulator.Times) -> simulator.SimulatedGraph:
    """The whole gossip through virtual time: vectors of one parameter that travel like the real."""
    way = times.way
    if way.bandwidth is not None:
        travel = (4 * (gossip.coordinates - 1) + simulator.OVERHEAD) / way.bandwidth
        way = replace(way, latency=way.latency + travel, bandwidth=None)
    small = replace(gossip, parameters=1, tracking=False, trust=Trust())
    return simulator.rehearsed_graph(small, replace(times, way=way))


def undisturbed(times: simulator.Times) -> simulator.Times:
    """For SYNC, which would wait for ever for a worker that is away, and stops at no deadline."""
    always = replace(times, outages=())
    return replace(always, deadline=None) if isinstance(always, simulator.GraphTimes) else always


def _gossip_notes(gossip: Gossip) -> list[str]:
    notes = []
    if gossip.rule == "asynchronous":
        notes.append(
            f"all stop together at {gossip.total:,} updates; a worker stops alone at its cap, so "
            "that headroom is what fast workers can take over from slow ones"
        )
    notes.append(
        "epsilon is against neighbours, who see who stepped; the paper's figure takes that for a "
        "secret and is not claimed"
    )
    notes.append("records and speeds of all workers are public, and so is when updates arrive")
    return notes
