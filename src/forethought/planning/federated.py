"""The cost and traffic of a federation, before anybody trains: a row a client.

ε is certified for each client's own plan. Seconds come from the simulator, driven through virtual
time without data. How often to talk is a choice between communication and accuracy: with the same
private rounds in all, fewer global rounds of more local ones send less. That one local epoch a
global round is best (Bhaskar et al., Theorem 2) minimises an upper bound and is an observation, not
a proof; docs/federation.md has what it was worth in experiments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from forethought.federated.federation import Federation, Robust
from forethought.federated.simulator import Simulator
from forethought.federated.statements import client_statement
from forethought.holders.work import NoTraining, no_gradients
from forethought.simulation.times import OVERHEAD, Times
from forethought.values.mechanism import Budget, LocalRounds, first_round, updates_of
from forethought.values.use import Averaging

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
class Split:
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
    splits: tuple[Split, ...]
    seconds: float
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; the federation itself under its own schema."""
        return {
            "federation": self.federation.to_dict(),
            "clients": [asdict(client) for client in self.clients],
            "splits": [asdict(split) for split in self.splits],
            "seconds": self.seconds,
            "notes": list(self.notes),
        }


def predict(
    federation: Federation, budgets: Sequence[Budget], speeds: Sequence[float], times: Times
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
    return updates * (2 * vector + 3 * OVERHEAD) / 1e6


def predicted_seconds(federation: Federation, times: Times) -> float:
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
    last = Averaging(kind="none")
    small = replace(federation, parameters=1, rounds=shown, robust=Robust(), averaging=last)
    vector = no_gradients(1) if federation.exchanged == "gradients" else None
    trainers = NoTraining(federation.local_rounds, vector)
    weights = np.zeros(1, dtype=np.float32)
    found = Simulator(small, weights, trainers, replace(times, way=way)).run()
    return found.seconds * rounds / shown


def _alike(federation: Federation) -> bool:
    # Equal plans cost the same against everybody where their weights are equal too.
    return len({(member.plan, member.weight) for member in federation.members}) == len(
        {member.plan for member in federation.members}
    )


def _cost(federation: Federation, client: int, budget: Budget, speed: float) -> ClientCost:
    plan, updates = federation.plan(client), federation.updates(client)
    rounds = federation.first_round(updates)
    own = client_statement(federation, client)
    secure = None
    if federation.secure is not None:
        secure = client_statement(federation, client, "secure-server").guarantee
    first = plan.mechanism.first(rounds)
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


def _splits(federation: Federation, times: Times) -> list[Split]:
    """The federation's own split, and others of the same private rounds where they are possible."""
    total = federation.first_round(federation.rounds)
    mean = total / federation.rounds
    typical = federation.plan(len(federation.members) // 2)
    an_epoch = max(1, round(typical.examples / typical.round(0).divisor))
    wanted: set[LocalRounds] = {federation.local_rounds}
    if federation.exchanged == "weights":
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
            Split(
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
