"""Training under secure aggregation: the sums that are opened, and what clients have spent."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from forethought.exchange import events as on
from forethought.exchange.messages import SERVER, Update
from forethought.federated.federation import (
    Federation,
    Member,
    ServerOptimizer,
)
from forethought.federated.rules import Synchronous, cohort_of
from forethought.federated.secure_aggregation.client import SecureClient
from forethought.federated.secure_aggregation.masking import (
    SecureAggregation,
    SecureAggregationError,
    to_ring,
)
from forethought.federated.secure_aggregation.protocol import MaskedSum, secure_sum
from forethought.federated.secure_aggregation.server import SecureServer
from forethought.federated.secure_aggregation.shared_noise import secured
from forethought.federated.statements import client_statement
from forethought.holders.simulate import SimulatedRun, simulate
from forethought.holders.simulator import Times
from forethought.holders.topology import LEFT, endings
from forethought.holders.trainer import ClientTrainer, Holder, SharedModel
from forethought.rounds.contributions import cross_entropy
from forethought.rounds.private_sum import PrivateRounds
from forethought.rounds.randomness import Secrets, Seeds, add_grid_noise
from forethought.rounds.records import as_records
from forethought.values.mechanism import Mechanism, Poisson, Rounds
from forethought.values.plan import Plan, grid
from forethought.values.use import Averaging

CLIENTS, ROUNDS, RECORDS = 6, 4, 40
SETTINGS = SecureAggregation(CLIENTS, dropouts=1, colluders=1)
SEEDS = Seeds(1, 1)


def agreed(sigma: float = 2.0, settings: SecureAggregation = SETTINGS) -> Federation:
    plan = Plan(Mechanism(Rounds(sigma, ROUNDS, Poisson(0.5))), RECORDS, 1e-5)
    shared = SharedModel(torch.nn.Linear(3, 2))
    plain = Federation(
        tuple(Member(f"c{i}") for i in range(CLIENTS)),
        (plan,),
        shared.layout.size,
        shared.architecture,
        ROUNDS,
        exchanged="gradients",
    )
    return secured(plain, settings)


def in_cohorts(size: int = 4, **changes: Any) -> Federation:
    plain = replace(agreed(), secure=None, cohort=size, **changes)
    return secured(plain, SecureAggregation(size, dropouts=size // 4))


def shares() -> list[tuple[np.ndarray, np.ndarray]]:
    generator = np.random.default_rng(0)
    inputs = [generator.normal(size=(RECORDS, 3)).astype(np.float32) for _ in range(CLIENTS)]
    return [(one, (one[:, 0] > 0).astype(np.int64)) for one in inputs]


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(3, 2)


def run(federation: Federation, **options: Any) -> tuple[SimulatedRun, np.ndarray]:
    """The simulation, and the weights of its model."""
    trained, times = model(), Times([1.0] * CLIENTS)
    found = simulate(trained, shares(), federation, times, seeds=SEEDS, **options)
    return found, SharedModel(trained).read()


def holders_of(federation: Federation) -> list[Holder]:
    """The clients as :func:`run` makes them, with the same secrets."""
    secrets = Secrets.draw(SEEDS)
    records = [as_records(one, torch.float32, torch.device("cpu")) for one in shares()]
    return [
        Holder(federation.plan(k), one, cross_entropy, secrets.of(k), gradients=True)
        for k, one in enumerate(records)
    ]


def in_the_clear(federation: Federation) -> np.ndarray:
    """The same training with plain sums of the released vectors."""
    shared, holders = SharedModel(model()), holders_of(federation)
    rounds = [PrivateRounds(h.plan.privacy, shared.parameters, h.loss, h.secrets) for h in holders]
    rule = Synchronous(federation, shared.read())
    for index in range(ROUNDS):
        shared.write(rule.model)
        total, divisor = np.zeros(shared.layout.size), 0.0
        asked = cohort_of(federation, index, np.arange(CLIENTS, dtype=np.int64))
        for private, holder in ((rounds[client], holders[client]) for client in asked):
            with private:
                opened = private.open(len(private.transcript))
                opened.add(shared.model, holder.records)
                noised = opened.release()
            total += noised.vector.numpy()
            divisor += noised.round.divisor
        for client in asked:
            rule.apply(client, Update(index, index, (total / divisor).astype(np.float32)))
        rule.advance()
    return rule.model


def by_the_machines(federation: Federation) -> np.ndarray:
    """The same training by the machines of real processes."""
    shared = SharedModel(model())
    trainers = [ClientTrainer(shared, one) for one in holders_of(federation)]
    one = federation.plan(0).round(0)
    step, _ = grid(one.noise_std, one.clip_norm, federation.parameters)

    def ring(client: int) -> np.ndarray:
        assert trainers[client].noised is not None
        return to_ring(trainers[client].noised.vector.numpy(), step, 48)

    clients = [
        SecureClient(federation, k, elements=lambda number, k=k: ring(k)) for k in range(CLIENTS)
    ]
    server = SecureServer(federation, shared.read())
    machines: list[Any] = [*clients, server]  # the server is number -1
    wire: deque[tuple[int, on.Send]] = deque()

    def do(who: int, event: on.Event) -> None:
        for effect in machines[who].handle(event):
            if isinstance(effect, on.Send):
                wire.append((who, effect))
            elif isinstance(effect, on.Compute):
                found = trainers[who].compute(effect.planned, effect.vector)
                do(who, found.answer(effect, 0.0))

    for who in (SERVER, *range(CLIENTS)):
        do(who, on.Connected(0.0))
    while not server.finished:
        sender, sent = wire.popleft()
        do(sent.to, on.Received(sender, sent.message, 0.0))
    return server.reported


@pytest.mark.parametrize("federation", [agreed(), in_cohorts()], ids=("all", "cohorts"))
def test_the_model_has_the_bits_of_real_processes_and_is_that_of_the_plain_sums(
    federation: Federation,
) -> None:
    found, weights = run(federation)
    assert np.array_equal(weights, by_the_machines(federation))
    assert np.array_equal(weights, in_the_clear(federation))
    assert found.simulated.rounds.tolist() == [len(one) for one in found.transcripts]


def test_noise_may_change_between_rounds_that_nobody_misses() -> None:
    two = Mechanism(Rounds(2.0, 1, Poisson(0.5)), Rounds(5.0, ROUNDS - 1, Poisson(0.5)))
    plan = agreed().plan(0).with_(mechanism=two)
    federation = secured(replace(agreed(), secure=None, plans=(plan,)), SETTINGS)
    done, weights = run(federation)
    assert np.array_equal(weights, in_the_clear(federation))
    made = client_statement(federation, 0, "secure-server", transcript=done.transcripts[0])
    wanted = client_statement(replace(federation, plans=(plan,), secure=None), 0).guarantee
    assert made.guarantee == pytest.approx(wanted, rel=2e-3)


def test_cohorts_cost_what_their_clients_released() -> None:
    federation = in_cohorts()
    done, _ = run(federation)
    numbers = [len(transcript) for transcript in done.transcripts]
    assert sum(numbers) == 4 * ROUNDS and len(set(numbers)) > 1
    spent = {}
    behind = client_statement(federation, 0, "secure-server").guarantee
    assert client_statement(federation, 0, "outsider").guarantee == behind
    # Another client knows its own noise; nobody was assumed to tell the server any.
    assert client_statement(federation, 0, "client").guarantee > behind
    for client, transcript in enumerate(done.transcripts):
        if len(transcript) in spent:
            continue
        made = client_statement(federation, client, "secure-server", transcript=transcript)
        spent[len(transcript)] = made.guarantee
        assert any(note.code == "no-client-amplification" for note in made.caveats)
    assert [spent[count] for count in sorted(spent)] == sorted(spent.values())


class StopError(Exception):
    pass


def test_an_interrupted_training_behind_masks_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    """With a client that no cohort asks: it has no statement, and the others have theirs."""
    how = {"server": ServerOptimizer("adam", 0.1), "averaging": Averaging("exponential")}
    federation, out = in_cohorts(2, **how), tmp_path / "run"

    def stop(done: int, most: int) -> None:
        if done == 5:
            raise StopError

    whole, expected = run(federation)
    with pytest.raises(StopError):
        run(federation, out=out, progress=stop)
    begun: list[int] = []
    found, weights = run(
        federation, out=out, resume=True, progress=lambda done, most: begun.append(done)
    )
    assert begun == list(range(1, 9)) and np.array_equal(weights, expected)
    made = [len(one.mechanism) if one else 0 for one in found.statements]
    assert made == [len(one.mechanism) if one else 0 for one in whole.statements]
    assert 0 in made and sum(made) == 8
    assert len(list((out / "clients").iterdir())) == len(made) - made.count(0)
    assert not (out / "updates").exists() and not (out / "keys").exists()


def test_statements_say_that_accuracy_on_held_out_records_was_looked_at() -> None:
    done, _ = run(agreed(), test=shares()[0])
    assert len(done.accuracies) == ROUNDS
    for statement in done.statements:
        assert statement is not None
        assert "held-out-accuracy" in {one.code for one in statement.caveats}


def test_behind_masks_a_client_that_left_cannot_begin_again() -> None:
    assert LEFT in endings(agreed())
    assert LEFT not in endings(replace(agreed(), secure=None))


def test_the_planned_epsilon_holds_against_the_server_and_more_is_said_without_it() -> None:
    federation = agreed()
    plain = Plan(Mechanism(Rounds(2.0, ROUNDS, Poisson(0.5))), RECORDS, 1e-5)
    wanted = client_statement(replace(federation, plans=(plain,), secure=None), 0).guarantee
    assert client_statement(federation, 0, "secure-server").guarantee == pytest.approx(
        wanted, rel=2e-3
    )
    assert client_statement(federation, 0, "secure-server").guarantee <= wanted * (1 + 1e-3)
    assert client_statement(federation, 0).guarantee > 1.5 * wanted


def test_noise_of_an_opened_sum_is_what_is_accounted() -> None:
    """One of six drops out and one tells the server its noise: what is left has the planned σC.

    The variance of 20,000 coordinates has a standard error of 1 %; 6 % is a false alarm in 10⁹.
    """
    size = 20_000
    one = agreed().plan(0).round(0)
    step, _ = grid(one.noise_std, one.clip_norm, size)
    noises = {}
    for client in range(CLIENTS):
        vector = torch.zeros(size, dtype=torch.float64)
        add_grid_noise(vector, one.noise_std, one.clip_norm, np.random.default_rng(client))
        noises[client] = vector.numpy()
    opened, survivors = secure_sum(
        SETTINGS,
        noises,
        step,
        lost=lambda who, message: who == 3 and isinstance(message, MaskedSum),
    )
    assert 3 not in survivors
    unknown = opened - noises[0]
    assert unknown.var() == pytest.approx(2.0**2, rel=0.06)
    assert unknown.var() == pytest.approx(SETTINGS.honest * one.noise_std**2, rel=0.06)


def test_a_small_ring_other_plans_and_phases_of_cohorts_are_refused() -> None:
    with pytest.raises(SecureAggregationError, match="use at least"):
        agreed(settings=SecureAggregation(CLIENTS, 1, 1, bits=24))
    federation = agreed()
    small = SecureAggregation(CLIENTS, 1, 1, bits=24).to_dict()
    with pytest.raises(SecureAggregationError, match="use at least"):
        run(replace(federation, secure=small))
    two = Mechanism(Rounds(2.0, 2, Poisson(0.5)), Rounds(3.0, 2, Poisson(0.5)))
    phases = replace(federation, plans=(federation.plan(0).with_(mechanism=two),))
    with pytest.raises(SecureAggregationError, match="leave the cohort"):
        run(replace(phases, cohort=4, secure=SecureAggregation(4).to_dict()))
    short = Plan(Mechanism(Rounds(2.0, 2, Poisson(0.5))), RECORDS, 1e-5)
    with pytest.raises(SecureAggregationError, match="same number of"):
        secured(replace(federation, plans=(federation.plan(0), short), secure=None), SETTINGS)
