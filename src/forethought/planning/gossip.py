"""The cost and traffic of a gossip, before anybody trains: a row a worker, a row a graph.

Fast workers do what slow ones leave, so each plans *headroom*: more rounds than the R that all make
on average, at the noise that its budget has room for with all of them. What the headroom costs is
the ε of R rounds against that of the whole plan, at one noise. Seconds come from the simulator,
driven through virtual time without data. Which graph is best is a matter of accuracy as well: that
is rehearsed on public data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from forethought.accounting import exact
from forethought.accounting.interval import warn_if_wide
from forethought.gossip.clipping import Trust
from forethought.gossip.gossip import Gossip, GossipError
from forethought.gossip.graphs import GraphError, make
from forethought.gossip.graphs import Kind as GraphKind
from forethought.gossip.mixing import Mixing, MixingError
from forethought.gossip.mixing import Named as MixingKind
from forethought.gossip.simulator import Pace, Simulated, Simulator
from forethought.gossip.statements import as_in_the_paper, worker_statement
from forethought.holders.work import NoTraining, no_gradients
from forethought.simulation.times import OVERHEAD, Times
from forethought.values.checks import whole
from forethought.values.mechanism import Budget

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
    """The findings of :func:`predict`. ``to_dict`` is JSON-ready."""

    gossip: Gossip
    workers: tuple[WorkerCost, ...]
    routes: tuple[Route, ...]
    seconds: float
    synchronous_seconds: float
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; the gossip itself under its own schema."""
        return {
            "gossip": self.gossip.to_dict(),
            "workers": [asdict(worker) for worker in self.workers],
            "routes": [asdict(route) for route in self.routes],
            "seconds": self.seconds,
            "synchronous_seconds": self.synchronous_seconds,
            "notes": list(self.notes),
        }


def predict(
    gossip: Gossip, budgets: Sequence[Budget], times: Times, observers: Sequence[int] = ()
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
            known[member.plan] = _cost(gossip, worker, budgets[worker])
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
        tuple(_notes(gossip)),
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


def _cost(gossip: Gossip, worker: int, budget: Budget) -> WorkerCost:
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


def _route(gossip: Gossip, mixing: Mixing, times: Times) -> Route:
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


def _idle(gossip: Gossip, times: Times) -> Simulated:
    """The whole gossip through virtual time: vectors of one parameter that travel like the real."""
    way = times.way
    if way.bandwidth is not None:
        travel = (4 * (gossip.coordinates - 1) + OVERHEAD) / way.bandwidth
        way = replace(way, latency=way.latency + travel, bandwidth=None)
    small = replace(gossip, parameters=1, tracking=False, trust=Trust())
    weights = np.zeros(1, dtype=np.float32)
    trainers = NoTraining(1, no_gradients(1))
    return Simulator(small, weights, trainers, replace(times, way=way)).run()


def undisturbed(times: Times) -> Times:
    """For SYNC, which would wait for ever for a worker that is away, and stops at no deadline."""
    always = replace(times, outages=())
    return replace(always, deadline=None) if isinstance(always, Pace) else always


def _notes(gossip: Gossip) -> list[str]:
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
