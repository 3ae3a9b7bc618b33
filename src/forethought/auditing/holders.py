"""Membership games against one holder of a federation or a gossip network, in a simulated run.

The holder's trainer and state machine, the messages and the virtual network are those of every run.
A client is attacked by its server, which uses everything that it received from the client. A worker
of a gossip network is attacked by its neighbour, which receives mixed weights, never a noised sum.
The neighbour inverts the mixing, because it knows its own messages and the worker's weights before
and after a step. So it recovers every noised sum; statements against neighbours assume this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from forethought.auditing import attack
from forethought.auditing.canaries import CanaryRecords, choices
from forethought.auditing.verdict import Finding
from forethought.exchange.events import Received
from forethought.exchange.messages import Update
from forethought.federated.federation import Federation, Member
from forethought.gossip import events as on
from forethought.gossip import gossip
from forethought.gossip.events import Weights
from forethought.gossip.gossip import HUGE, Trust
from forethought.gossip.graphs import make
from forethought.gossip.mixing import Mixing
from forethought.holders.simulator import GraphSimulator, StarSimulator, Times
from forethought.holders.trainer import Holder, SharedModel
from forethought.holders.workers import InProcess
from forethought.rounds.randomness import Secrets, Seeds
from forethought.rounds.records import as_records
from forethought.values.checks import instance, whole
from forethought.values.plan import Plan
from forethought.values.use import Averaging, Optimizer, ReleaseUse

Listen = Callable[[Plan, list[CanaryRecords]], attack.Array]


def audit_client(
    plan: Plan,
    *,
    canaries: int = 1_000,
    rounds: int = 100,
    clients: int = 2,
    seed: int | None = None,
) -> Finding:
    """Try to refute the claim of a plan that a client of a federation runs.

    Args:
        plan: the claim; a plan that clips examples, one by one, to a fixed norm.
        canaries: number of games, at most as many as the plan has records.
        rounds: the most rounds that are run.
        clients: number of clients in the federation; all but the first hold blank records.
        seed: of the coins. The client draws its own randomness.

    Returns:
        A finding as in :func:`forethought.audit`; it refutes or fails to refute.

    Raises:
        ValueError: a plan in which records are not games of their own.
    """
    whole("clients", clients)
    return _audited(plan, canaries, rounds, clients, seed, received)


def audit_worker(
    plan: Plan, *, canaries: int = 1_000, rounds: int = 100, seed: int | None = None
) -> Finding:
    """Try to refute, as a neighbour, the claim of a plan that a worker of a gossip network runs.

    Args:
        plan: the claim, as for :func:`audit_client`. Its optimizer, which is post-processing, is
            replaced by plain steps.
        canaries: number of games, at most as many as the plan has records.
        rounds: the most rounds that are run.
        seed: of the coins. The worker draws its own randomness.

    Returns:
        A finding as in :func:`forethought.audit`; it refutes or fails to refute.

    Raises:
        ValueError: a plan in which records are not games of their own.
    """
    plain = ReleaseUse(Optimizer("sgd", 1.0, ()), averaging=Averaging("none"))
    plan = instance("plan", plan, Plan).with_(use=plain)
    return _audited(plan, canaries, rounds, 2, seed, recovered)


def _audited(
    plan: Plan, canaries: int, rounds: int, holders: int, seed: int | None, listen: Listen
) -> Finding:
    """Train once with other holders; every canary of the first holder is a game.

    Args:
        listen: function that trains and returns the noised sums of the first holder as an attacker
            knows them, (rounds, coordinates).
    """
    whole("canaries", canaries)
    if attack.directed(instance("plan", plan, Plan)) or plan.clip.rule == "quantile":
        raise ValueError(
            "a client is audited where every record is a game of its own: a plan that clips "
            "examples, to a fixed norm, without batches of a fixed size under add-or-remove"
        )
    small = attack.shortened(plan, rounds)
    count = min(canaries, plan.examples)
    records, there = attack.drawn_canaries(small, count, choices(seed))
    nowhere = np.full(plan.examples, count)
    blank = CanaryRecords(nowhere, np.zeros_like(nowhere), plan.clip.norm, 1)
    seen = listen(small, [records] + [blank] * (holders - 1))[:, :count] / plan.clip.norm
    return attack.judge(small, attack.games_of(small, seen, there))[0]


def received(plan: Plan, held: list[CanaryRecords]) -> attack.Array:
    """Every noised sum of the first client that its server received, shape (rounds, coordinates).

    If a round's sum was received more than once, it is the mean, as an attacker would use it.
    """
    shared, trainers = _trainers(plan, held)
    federation = Federation(
        members=tuple(Member(f"client {client}") for client in range(len(held))),
        plans=(plan,),
        parameters=shared.layout.size,
        architecture=shared.architecture,
        rounds=plan.rounds,
        exchanged="gradients",
        averaging=Averaging("none"),
    )
    simulator = StarSimulator(federation, shared.read(), trainers, Times([1.0] * len(held)))
    sums: dict[int, list[attack.Array]] = {}

    def hear(event: Any) -> None:
        if isinstance(event, Received) and event.sender == 0 and isinstance(event.message, Update):
            update = event.message
            vector = update.vector.astype(np.float64) * plan.round(update.round).divisor
            sums.setdefault(update.round, []).append(vector)

    simulator.server = _Overheard(simulator.server, hear)  # type: ignore[assignment]
    simulator.run()
    return np.array([np.mean(sums[round], axis=0) for round in range(plan.rounds)])


def recovered(plan: Plan, held: list[CanaryRecords]) -> attack.Array:
    """Every noised sum of worker 0 as worker 1 computes it, shape (rounds, coordinates)."""
    shared, trainers = _trainers(plan, held)
    simulator = GraphSimulator(
        gossip.Gossip(
            members=tuple(gossip.Member(f"worker {worker}") for worker in range(len(held))),
            plans=(plan,),
            mixing=Mixing("matchings", make("complete", len(held))),
            parameters=shared.layout.size,
            architecture=shared.architecture,
            rounds=plan.rounds,
            rule="synchronous",
            exchanges=2,
            trust=Trust(largest=HUGE),
        ),
        shared.read(),
        trainers,
        Times([1.0] * len(held)),
    )
    theirs: dict[int, attack.Array] = {}
    own: dict[int, attack.Array] = {}

    def hear(event: Any) -> None:
        if isinstance(event, on.PeerMessage | on.Send) and isinstance(event.message, Weights):
            kept = theirs if isinstance(event, on.PeerMessage) else own
            kept[event.message.base] = event.message.vector.astype(np.float64)

    simulator.machines[1] = _Overheard(simulator.machines[1], hear)  # type: ignore[call-overload]
    simulator.run()
    found = []
    for round in range(plan.rounds):
        before, mine, after = theirs[2 * round], own[2 * round], theirs[2 * round + 1]
        mean = (before + (mine - before) / 2 - after) / plan.optimizer.learning_rate
        found.append(mean * plan.round(round).divisor)
    return np.array(found)


def _trainers(plan: Plan, held: list[CanaryRecords]) -> tuple[SharedModel, InProcess]:
    shared, device = SharedModel(held[0].model(torch.float32)), torch.device("cpu")
    records = [as_records(one.data, torch.float32, device) for one in held]
    holders = [
        Holder(plan, own, held[0].loss, Secrets.draw(Seeds()), gradients=True) for own in records
    ]
    return shared, InProcess(shared, holders)


class _Overheard:
    """A state machine that shows ``hear`` every event that it handles, and every effect of it."""

    def __init__(self, machine: Any, hear: Callable[[Any], None]) -> None:
        self._machine, self._hear = machine, hear

    def __getattr__(self, name: str) -> Any:
        return getattr(self._machine, name)

    def handle(self, event: Any) -> Any:
        self._hear(event)
        effects = self._machine.handle(event)
        for effect in effects:
            self._hear(effect)
        return effects
