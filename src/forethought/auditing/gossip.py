"""Membership games against one worker of a gossip, by its neighbour, through the real machines.

What a neighbour is sent are mixed weights, never a noised sum. It takes the mixing away: it knows
what it said itself, and what the worker held before and after a step. So it has every noised sum of
the worker, and statements against neighbours count on nothing less.
"""

from __future__ import annotations

import numpy as np
import torch

from forethought.auditing.attack import contributions, judge, shortened
from forethought.auditing.federated import Array, holder_games, require_games
from forethought.auditing.planted import PlantedRecords
from forethought.auditing.verdict import Finding
from forethought.exchange.messages import Vector
from forethought.gossip import events as on
from forethought.gossip.clipping import HUGE, Trust
from forethought.gossip.gossip import Gossip, Member
from forethought.gossip.graphs import make
from forethought.gossip.messages import Weights
from forethought.gossip.mixing import Mixing
from forethought.gossip.worker import Effects, Machine
from forethought.holders.simulator import GraphSimulator
from forethought.holders.times import Times
from forethought.holders.trainer import Holder, SharedModel
from forethought.holders.workers import InProcess
from forethought.rounds.randomness import Secrets, Seeds
from forethought.rounds.records import as_records
from forethought.values.plan import Plan
from forethought.values.use import Averaging, Optimizer, Use


def audit_worker(
    plan: Plan, *, canaries: int = 1_000, rounds: int = 100, seed: int | None = None
) -> Finding:
    """Try to refute what a plan claims when a worker of a gossip runs it, as its neighbour.

    Args:
        plan: what is claimed; examples are clipped, one by one, to a fixed norm. How its noised
            sums are used is post-processing, and a plain step is taken in its place.
        canaries: games, at most as many as the plan has records. rounds: that are played, at most.
        seed: of the coins. The worker draws its own randomness.

    Returns:
        A finding of the kind that :func:`forethought.audit` has; it refutes or fails to.

    Raises:
        ValueError: a plan whose records do not make independent games.
    """
    require_games(plan)
    plain = Use(Optimizer("sgd", 1.0, ()), averaging=Averaging("none"))
    small = shortened(plan, rounds).with_(use=plain)
    generator = np.random.default_rng(seed)
    games = holder_games(small, min(canaries, plan.examples), 2, generator, recovered)
    return judge(small, games, contributions(small))[0]


def recovered(plan: Plan, held: list[PlantedRecords]) -> Array:
    """Every noised sum of worker 0 as worker 1 works it out, shape (rounds, coordinates)."""
    shared = SharedModel(held[0].model(torch.float32))
    gossip = Gossip(
        members=tuple(Member(f"worker {worker}") for worker in range(len(held))),
        plans=(plan,),
        mixing=Mixing("matchings", make("complete", len(held))),
        parameters=shared.layout.size,
        architecture=shared.architecture,
        rounds=plan.rounds,
        rule="synchronous",
        exchanges=2,
        trust=Trust(largest=HUGE),
    )
    device = torch.device("cpu")
    holders = [
        Holder(plan, as_records(r.data, torch.float32, device), held[0].loss, Secrets.draw(Seeds()))
        for r in held
    ]
    trainers = InProcess(shared, holders, gradients=True)
    simulator = GraphSimulator(gossip, shared.read(), trainers, Times([1.0] * len(held)))
    theirs: dict[int, Vector] = {}
    own: dict[int, Vector] = {}
    simulator.machines[1] = _Listening(simulator.machines[1], theirs, own)
    simulator.run()
    found = []
    for round in range(plan.rounds):
        before, mine, after = (
            one.astype(np.float64)
            for one in (theirs[2 * round], own[2 * round], theirs[2 * round + 1])
        )
        mean = (before + (mine - before) / 2 - after) / plan.optimizer.learning_rate
        found.append(mean * plan.round(round).divisor)
    return np.array(found)


class _Listening:
    """A worker that follows the protocol and keeps what it is sent and what it says."""

    def __init__(self, machine: Machine, theirs: dict[int, Vector], own: dict[int, Vector]) -> None:
        self._machine, self._theirs, self._own = machine, theirs, own

    @property
    def updates(self) -> int:
        return self._machine.updates

    @property
    def finished(self) -> str | None:
        return self._machine.finished

    @property
    def weights(self) -> Vector:
        return self._machine.weights

    def handle(self, event: on.Event) -> Effects:
        if isinstance(event, on.Received) and isinstance(event.message, Weights):
            self._theirs[event.message.base] = event.message.vector
        effects = self._machine.handle(event)
        for effect in effects:
            if isinstance(effect, on.Send) and isinstance(effect.message, Weights):
                self._own[effect.message.base] = effect.message.vector
        return effects
