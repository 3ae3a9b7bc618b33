"""Membership games against one client of a federation: the attacker is its server.

The client's trainer, its machine, the messages and the virtual network are those that every
federation runs. What is attacked is everything that the server ever received from the client, held
against the client's own plan.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from forethought.auditing.attack import LARGE, contributions, directed, judge, shortened
from forethought.auditing.inference import Games
from forethought.auditing.noise import scales
from forethought.auditing.planted import PlantedRecords
from forethought.auditing.scores import log_likelihood_ratio
from forethought.auditing.verdict import Finding
from forethought.exchange.events import Received
from forethought.exchange.messages import Update
from forethought.federated.federation import Federation, Member
from forethought.holders.simulator import StarSimulator
from forethought.holders.times import Times
from forethought.holders.trainer import Holder, SharedModel
from forethought.holders.workers import InProcess
from forethought.rounds.randomness import Secrets, Seeds
from forethought.rounds.records import as_records
from forethought.values.checks import whole
from forethought.values.plan import Plan
from forethought.values.use import Averaging

Array = NDArray[np.float64]


def audit_client(
    plan: Plan,
    *,
    canaries: int = 1_000,
    rounds: int = 100,
    clients: int = 2,
    seed: int | None = None,
) -> Finding:
    """Try to refute what a plan claims when a client of a federation runs it.

    Args:
        plan: what is claimed; examples are clipped, one by one, to a fixed norm.
        canaries: games, at most as many as the plan has records. rounds: that are played, at most.
        clients: in the federation; all but the first hold blank records.
        seed: of the coins. The client draws its own randomness.

    Returns:
        A finding of the kind that :func:`forethought.audit` has; it refutes or fails to.

    Raises:
        ValueError: a plan whose records do not make independent games.
    """
    whole("clients", clients)
    require_games(plan)
    small = shortened(plan, rounds)
    generator = np.random.default_rng(seed)
    games = holder_games(small, min(canaries, plan.examples), clients, generator, received)
    return judge(small, games, contributions(small))[0]


def require_games(plan: Plan) -> None:
    """Refuse a plan whose records do not make independent games. Raises ValueError."""
    if directed(plan) or plan.clip.rule == "quantile":
        raise ValueError(
            "a client is audited where every record is a game of its own: a plan that clips "
            "examples, to a fixed norm, without batches of a fixed size under add-or-remove"
        )


def holder_games(
    plan: Plan,
    canaries: int,
    holders: int,
    generator: np.random.Generator,
    listen: Callable[[Plan, list[PlantedRecords]], Array],
) -> Games:
    """Train once with others; every canary of the first holder is a game.

    Args:
        plan: of every holder. canaries: how many records of the first take part in games.
        listen: trains, and says what an attacker made of the first holder's noised sums.
    """
    inside, outside = contributions(plan)
    there = generator.random(canaries) < 0.5
    index = np.full(plan.examples, canaries)
    weight = np.zeros(plan.examples, dtype=np.int64)
    index[:canaries] = np.arange(canaries)
    weight[:canaries] = np.where(there, inside, outside) * LARGE
    planted = PlantedRecords(index, weight, plan.clip.norm, canaries + 1)
    blank = PlantedRecords(np.full(plan.examples, canaries), weight * 0, plan.clip.norm, 1)
    seen = listen(plan, [planted] + [blank] * (holders - 1))[:, :canaries] / plan.clip.norm
    score = log_likelihood_ratio(
        plan.mechanism, scales(plan, [1.0] * plan.rounds), seen, inside, outside
    )
    competing = any(part.sampling.exchanges for part in plan.mechanism)
    return Games(score[~there], score[there], independent=not competing)


def received(plan: Plan, held: list[PlantedRecords]) -> Array:
    """Every noised sum of the first client that its server received, shape (rounds, coordinates).

    A round that came more than once counts as the mean of what came, as an attacker would use it.
    """
    shared = SharedModel(held[0].model(torch.float32))
    federation = Federation(
        members=tuple(Member(f"client {client}") for client in range(len(held))),
        plans=(plan,),
        parameters=shared.layout.size,
        architecture=shared.architecture,
        rounds=plan.rounds,
        exchanged="gradients",
        averaging=Averaging("none"),
    )
    device = torch.device("cpu")
    holders = [
        Holder(plan, as_records(r.data, torch.float32, device), held[0].loss, Secrets.draw(Seeds()))
        for r in held
    ]
    trainers = InProcess(shared, holders, gradients=True)
    simulator = StarSimulator(federation, shared.read(), trainers, Times([1.0] * len(held)))
    sums: dict[int, list[Array]] = {}
    handle = simulator.server.handle

    def watched(event: object) -> object:
        if isinstance(event, Received) and event.sender == 0 and isinstance(event.message, Update):
            divisor = plan.round(event.message.round).divisor
            vector = event.message.vector.astype(np.float64) * divisor
            sums.setdefault(event.message.round, []).append(vector)
        return handle(event)  # type: ignore[arg-type]

    simulator.server.handle = watched  # type: ignore[method-assign, assignment]
    simulator.run()
    return np.array([np.mean(sums[round], axis=0) for round in range(plan.rounds)])
