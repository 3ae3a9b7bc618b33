"""Predicted costs of a federation or a gossip before training, one row for each holder.

ε is certified for each holder's own plan. Seconds come from the simulator, which runs in virtual
time without data.

The number of global rounds of a federation trades communication for accuracy: with the same private
rounds in all, fewer global rounds of more local ones send less. One local epoch per global round is
said to be best (Bhaskar et al., Theorem 2); it minimises an upper bound and is an observation, not
a proof. docs/federation.md has the experiments.

In a gossip fast workers do rounds that slow ones leave, so each worker plans *headroom*: more
rounds than the average R, with the noise at which its budget allows all of them. The cost of the
headroom is the difference between ε of R rounds and of the whole plan, at the same noise. The best
graph depends on accuracy as well, which is rehearsed on public data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
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
from forethought.values.mechanism import Budget, LocalRounds, first_round, updates_of
from forethought.values.serialisation import entries

# The largest number of updates that a prediction of time simulates; the time of a longer run is
# extrapolated from its beginning.
_MOST_UPDATES = 20_000


_FEWEST_ROUNDS = 10


@dataclass(frozen=True)
class ClientCost:
    """The predicted work and ε of one client.

    Args:
        name: of the client. examples: number of its records n. budget: its budget.
        speed: records per second, relative to the other clients.
        batch: expected sample size s of a private round; asynchronously it fits the speed.
        rounds: private rounds. updates: messages with a release, one per global round.
        noise_multiplier: σ of its own rounds, the largest where they differ.
        epsilon: certified ε against a server that sees every update.
        secure_epsilon: ε against the server under secure aggregation; None without it.
        outsider_epsilon: ε against an observer who sees the models only.
        megabytes: models received and updates sent, in 10⁶ bytes.
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
    """One division of the same private rounds into global rounds: the same ε at another cost.

    Args:
        local_rounds: E, the private rounds of a global round. local_epochs: E in passes over a
            typical client's records.
        rounds: number of global rounds R. updates: of one client.
        megabytes: of one client, sent and received, in 10⁶ bytes.
        seconds: predicted virtual wall-clock time. chosen: whether it is the federation's own.
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
    """The result of :func:`predict`: costs of the clients, divisions into rounds, and notes."""

    federation: Federation
    clients: tuple[ClientCost, ...]
    splits: tuple[RoundSplit, ...]
    seconds: float
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping, with the federation under its own schema."""
        return entries(self)


def predict(
    federation: Federation,
    budgets: Sequence[Budget],
    speeds: Sequence[float],
    times: simulator.Times,
) -> FederatedPlan:
    """The costs of a federation for each client, and of other divisions into global rounds.

    Args:
        federation: the settings that all holders would agree on.
        budgets, speeds: of each client. times: of the simulation, for the federation's own local
            rounds.
    """
    known: dict[int, partial[ClientCost]] = {}
    clients = []
    for client, member in enumerate(federation.members):
        if member.plan not in known or not _alike(federation):
            known[member.plan] = _cost(federation, client)
        budget, speed = budgets[client], float(speeds[client])
        clients.append(known[member.plan](name=member.name, budget=budget, speed=speed))
    splits = tuple(_splits(federation, times))
    seconds = next(split.seconds for split in splits if split.chosen)
    return FederatedPlan(federation, tuple(clients), splits, seconds, tuple(_notes(federation)))


def megabytes(federation: Federation, updates: int) -> float:
    """The traffic of one client: models received, updates and acknowledgements, in 10⁶ bytes."""
    vector = 4 * federation.parameters
    if federation.secure is not None:
        # Ring elements are sent; keys, shares and unmasking add some 200 bytes per pair of clients.
        bits, others = int(federation.secure["bits"]), int(federation.secure["clients"])
        return updates * (-(-bits // 8) * federation.parameters + vector + 200 * others) / 1e6
    return updates * (2 * vector + 3 * simulator.OVERHEAD) / 1e6


def predicted_seconds(federation: Federation, times: simulator.Times) -> float:
    """The predicted wall-clock time of the whole run, in virtual seconds.

    Only the beginning of a long run is simulated; the rest is assumed to take as long per round.

    Raises:
        SimulationError: the federation waits for a message that never arrives.
    """
    members = len(federation.members)
    rounds = federation.rounds
    shown = min(rounds, max(_FEWEST_ROUNDS, _MOST_UPDATES // members))
    # Only times matter: vectors of one parameter are sent, with the latency of the real ones.
    way = times.way
    if way.bandwidth is not None:
        way = replace(way, latency=way.latency + 4 * federation.parameters / way.bandwidth)
    small = replace(federation, parameters=1, rounds=shown, robust=Robust())
    found = simulator.rehearsed(small, replace(times, way=way))
    return found.seconds * rounds / shown


def _alike(federation: Federation) -> bool:
    # Clients with equal plans have equal costs if their weights are equal, too.
    return not federation.taking and len(
        {(member.plan, member.weight) for member in federation.members}
    ) == len({member.plan for member in federation.members})


def _cost(federation: Federation, client: int) -> partial[ClientCost]:
    """The costs that follow from a client's plan, without its name, budget and speed."""
    plan, updates = federation.plan(client), federation.updates(client)
    first = federation.planned(client)
    secure = None
    if federation.secure is not None:
        secure = client_statement(federation, client, "secure-server").guarantee
    return partial(
        ClientCost,
        examples=plan.examples,
        batch=first.rounds[0].sampling.expected_batch(plan.examples),
        rounds=len(first),
        updates=updates,
        noise_multiplier=max(part.noise_multiplier for part in first),
        epsilon=client_statement(federation, client).guarantee,
        secure_epsilon=secure,
        outsider_epsilon=client_statement(federation, client, "outsider").guarantee,
        megabytes=megabytes(federation, updates),
    )


def _splits(federation: Federation, times: simulator.Times) -> list[RoundSplit]:
    """The federation's own division into global rounds, and others that are possible."""
    total = federation.first_round(federation.rounds)
    mean = total / federation.rounds
    typical = federation.plan(len(federation.members) // 2)
    an_epoch = max(1, round(typical.examples / typical.round(0).divisor))
    wanted: set[LocalRounds] = {federation.local_rounds}
    if federation.exchanged == "weights" and not (federation.phases or federation.sizes):
        wanted |= {1, an_epoch, 2 * an_epoch, 5 * an_epoch, total}
    lengths = [total, *(plan.rounds for plan in federation.plans)]
    found = []
    for local in wanted:
        rounds = updates_of(local, total)
        if any(first_round(local, updates_of(local, n)) != n for n in lengths):
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


# Graphs and mixings to compare with the gossip's own, where the number of workers allows them.
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
    """The predicted work and ε of one worker.

    Args:
        name: of the worker. examples: number of its records. budget: its budget.
        batch: expected sample size. rounds: R. cap: largest number of rounds, headroom included.
        noise_multiplier: σ, the largest where rounds differ.
        epsilon: certified ε of all rounds up to the cap, against its neighbours.
        epsilon_without_headroom: ε of the first R rounds, at the same noise.
        outsider_epsilon: ε against an observer who sees final models only.
        paper_epsilon: ε by the theorem of A(DP)²SGD, not claimed; None where it does not apply.
        network_epsilon: ε against the named observers; None: none were named, or it is one.
        expected_rounds: number of rounds in a simulation of the whole gossip. busy: share of that
            time in which the worker computes.
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
        graph, mixing: their kinds. neighbours: largest number of neighbours of a worker.
        eigenvalue: bound on the expected factor by which a step reduces the squared disagreement.
        steps: number of steps until the disagreement is a hundredth of its start.
        seconds: virtual time of the whole gossip. megabytes: sent by all, in 10⁶ bytes.
        own: whether it is the gossip's own.
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
    """The result of :func:`predict_gossip`: costs of the workers, other graphs, and notes."""

    gossip: Gossip
    workers: tuple[WorkerCost, ...]
    routes: tuple[Route, ...]
    seconds: float
    synchronous_seconds: float
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping, with the gossip under its own schema."""
        return entries(self)


def predict_gossip(
    gossip: Gossip, budgets: Sequence[Budget], times: simulator.Times, observers: Sequence[int] = ()
) -> GossipPlan:
    """The costs of a gossip for each worker, and of other graphs that it could run on.

    Args:
        gossip: the settings that all workers would agree on. budgets: of each worker.
        times: of the simulation.
        observers: distant workers who share what they see; see
            :func:`~forethought.gossip.statements.worker_statement`.

    Raises:
        NetworkViewError: no theorem covers the view of these observers in this gossip.
    """
    idle = _idle(gossip, times)
    known: dict[int, partial[WorkerCost]] = {}
    workers = []
    for worker, member in enumerate(gossip.members):
        if member.plan not in known:
            known[member.plan] = _worker_cost(gossip, worker)
        workers.append(
            known[member.plan](
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
    """The gossip's own mixing, and others that are possible for as many workers."""
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
            continue  # this graph does not exist for as many workers
    return found


def headroom(gossip: Gossip, worker: int) -> tuple[float, float]:
    """The upper ε of a worker's first R rounds and of its whole plan, at the plan's noise and δ.

    For example, 120 rounds at rate 0.2 and σ = 4.54 have ε = 2.00, and a tenth more rounds 2.11.
    """
    plan = gossip.plan(worker)
    ends = min(gossip.rounds, plan.rounds), gossip.updates(worker)
    both = map(plan.mechanism.first, ends)
    group = plan.records_per_person
    short, all_of_them = (exact.epsilon(one, plan.delta, group) for one in both)
    warn_if_wide(all_of_them)
    return short.upper, all_of_them.upper


def _worker_cost(gossip: Gossip, worker: int) -> partial[WorkerCost]:
    """The costs that follow from a worker's plan, without what is its own."""
    plan = gossip.plan(worker)
    first = plan.mechanism.first(gossip.updates(worker))
    short, whole_plan = headroom(gossip, worker)
    try:
        paper: float | None = as_in_the_paper(gossip, worker).upper
    except GossipError:
        paper = None
    return partial(
        WorkerCost,
        examples=plan.examples,
        batch=first.rounds[0].sampling.expected_batch(plan.examples),
        rounds=gossip.rounds,
        cap=gossip.updates(worker),
        noise_multiplier=max(part.noise_multiplier for part in first),
        epsilon=whole_plan,
        epsilon_without_headroom=short,
        outsider_epsilon=worker_statement(gossip, worker, "outsider").guarantee,
        paper_epsilon=paper,
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
    """A simulation of the whole gossip: vectors of one parameter, with the latency of real ones."""
    way = times.way
    if way.bandwidth is not None:
        travel = (4 * (gossip.coordinates - 1) + simulator.OVERHEAD) / way.bandwidth
        way = replace(way, latency=way.latency + travel, bandwidth=None)
    small = replace(gossip, parameters=1, tracking=False, trust=Trust())
    return simulator.rehearsed_graph(small, replace(times, way=way))


def undisturbed(times: simulator.Times) -> simulator.Times:
    """The same times without outages and deadline, for SYNC.

    SYNC would wait for ever for an absent worker, and it does not stop at a deadline.
    """
    always = replace(times, outages=())
    return replace(always, deadline=None) if isinstance(always, simulator.GraphTimes) else always


def _gossip_notes(gossip: Gossip) -> list[str]:
    notes = []
    if gossip.rule == "asynchronous":
        notes.append(
            f"all stop together at {gossip.total:,} updates; a worker stops alone at its cap, so "
            "that headroom is what fast workers can take over from slow ones"
        )
        kind, most = gossip.plans[0].schedule.kind, max(plan.rounds for plan in gossip.plans)
        if kind in ("stages", "cosine") and gossip.clock == "own" and most > gossip.rounds:
            notes.append(
                f"the schedule {kind!r} follows a worker's own rounds and does not come to its "
                'end where headroom is left over: clock = "all" ends it with the run'
            )
    notes.append(
        "epsilon is against neighbours, who see who stepped; the paper's figure takes that for a "
        "secret and is not claimed"
    )
    notes.append("records and speeds of all workers are public, and so is when updates arrive")
    return notes
