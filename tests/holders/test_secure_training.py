"""Training under secure aggregation: the sums that are opened, and what clients have spent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from forethought.federated.federation import (
    Federation,
    FederationError,
    Member,
    ServerOptimizer,
)
from forethought.federated.rules import cohort_of
from forethought.federated.secure_aggregation.masking import (
    SecureAggregation,
    SecureAggregationError,
)
from forethought.federated.secure_aggregation.protocol import MaskedSum, MaskKeys, secure_sum
from forethought.federated.secure_aggregation.shared_noise import secured
from forethought.federated.statements import client_statement
from forethought.federated.steps import moved
from forethought.holders.secure_training import train_securely
from forethought.holders.simulate import SimulatedRun, simulate
from forethought.holders.simulator import Times
from forethought.holders.trainer import Holder, SharedModel
from forethought.rounds.contributions import cross_entropy
from forethought.rounds.private_sum import PrivateRounds
from forethought.rounds.randomness import Secrets, Seeds, add_grid_noise
from forethought.rounds.records import TensorRecords, as_records
from forethought.values.mechanism import Mechanism, Poisson, Rounds
from forethought.values.plan import Plan, grid, step_sizes
from forethought.values.use import Averaging
from trials.storage import CrashError, MemoryStorage

CLIENTS, ROUNDS, RECORDS = 6, 4, 40
SETTINGS = SecureAggregation(CLIENTS, dropouts=1, colluders=1)


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


def brought(federation: Federation) -> tuple[SharedModel, list[Holder]]:
    torch.manual_seed(0)
    shared = SharedModel(torch.nn.Linear(3, 2))
    generator = np.random.default_rng(0)
    holders = []
    for client in range(CLIENTS):
        inputs = generator.normal(size=(RECORDS, 3)).astype(np.float32)
        targets = (inputs[:, 0] > 0).astype(np.int64)
        records = as_records((inputs, targets), torch.float32, torch.device("cpu"))
        secrets = Secrets.draw(Seeds(client, client))
        holders.append(Holder(federation.plan(client), records, cross_entropy, secrets))
    return shared, holders


def in_the_clear(federation: Federation) -> np.ndarray:
    """The same training with plain sums of the released vectors, in the same order."""
    shared, holders = brought(federation)
    rounds = [PrivateRounds(h.plan.privacy, shared.parameters, h.loss, h.secrets) for h in holders]
    weights, sizes = shared.read(), step_sizes(federation.plan(0))
    for index in range(ROUNDS):
        shared.write(weights)
        total, divisor = np.zeros(shared.layout.size), 0.0
        asked = cohort_of(federation, index, np.arange(CLIENTS, dtype=np.int64))
        for private, holder in ((rounds[client], holders[client]) for client in asked):
            with private:
                opened = private.open(len(private.transcript))
                opened.add(shared.model, holder.records)
                noised = opened.release()
            total += noised.vector.numpy()
            divisor += noised.round.divisor
        weights = moved(federation.server, {}, weights, -sizes(index) * (total / divisor))
    return weights


def test_the_model_is_that_of_the_plain_sums_bit_for_bit() -> None:
    federation = agreed()
    done = train_securely(*brought(federation), federation)
    assert np.array_equal(done.weights, in_the_clear(federation))
    assert done.survivors == (tuple(range(CLIENTS)),) * ROUNDS


def test_noise_may_change_between_rounds_that_nobody_misses() -> None:
    two = Mechanism(Rounds(2.0, 1, Poisson(0.5)), Rounds(5.0, ROUNDS - 1, Poisson(0.5)))
    plan = agreed().plan(0).with_(mechanism=two)
    federation = secured(replace(agreed(), secure=None, plans=(plan,)), SETTINGS)
    done = train_securely(*brought(federation), federation)
    assert np.array_equal(done.weights, in_the_clear(federation))
    made = client_statement(federation, 0, "secure-server", transcript=done.transcripts[0])
    wanted = client_statement(replace(federation, plans=(plan,), secure=None), 0).guarantee
    assert made.guarantee == pytest.approx(wanted, rel=2e-3)


@pytest.mark.parametrize("write", [2, 6, 7, 10])
def test_a_round_cut_off_is_the_same_release_or_counts_as_another(write: int) -> None:
    """Crashes at a note in the first round, at its checkpoint, and at notes after it."""
    federation = agreed()

    def crash(number: int, length: int) -> int | None:
        return length // 2 if number == write else None

    storage = MemoryStorage(fault=crash)
    with pytest.raises(CrashError):
        train_securely(*brought(federation), federation, storage=storage)
    left = storage.contents()
    same = train_securely(*brought(federation), federation, storage=MemoryStorage(left))
    assert np.array_equal(same.weights, in_the_clear(federation))
    assert not any(transcript.again for transcript in same.transcripts)

    shared, holders = brought(federation)
    inputs, targets = holders[0].records.take(np.arange(RECORDS))
    holders[0] = replace(holders[0], records=TensorRecords(inputs + 1, targets))
    other = train_securely(shared, holders, federation, storage=MemoryStorage(left))
    # The first client's note of the round that was cut off: torn at write 7, whole before others.
    assert [t.again for t in other.transcripts] == [int(write != 7), 0, 0, 0, 0, 0]


def test_cohorts_are_summed_as_in_the_clear_and_cost_what_their_clients_released() -> None:
    plain = replace(agreed(), secure=None, cohort=4)
    federation = secured(plain, SecureAggregation(4, dropouts=1))
    done = train_securely(*brought(federation), federation)
    assert np.array_equal(done.weights, in_the_clear(federation))
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


def test_an_interrupted_training_behind_masks_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    plain = replace(
        agreed(),
        secure=None,
        cohort=4,
        server=ServerOptimizer("adam", 0.1),
        averaging=Averaging("exponential"),
    )
    federation = secured(plain, SecureAggregation(4, dropouts=1))
    shares = [(h.records.inputs, h.records.targets) for h in brought(federation)[1]]

    class StopError(Exception):
        pass

    def stop(done: int, most: int) -> None:
        if done == 2:
            raise StopError

    def run(**changes: Any) -> tuple[SimulatedRun, np.ndarray]:
        shared, _ = brought(federation)
        times = Times([1.0] * CLIENTS)
        found = simulate(shared.model, shares, federation, times, **changes)
        return found, SharedModel(shared.model).read()

    out = tmp_path / "run"
    whole, expected = run(seeds=Seeds(1, 1))
    with pytest.raises(StopError):
        run(seeds=Seeds(1, 1), out=out, progress=stop)
    begun: list[int] = []
    found, weights = run(out=out, resume=True, progress=lambda done, most: begun.append(done))
    assert begun == [3, 4] and np.array_equal(weights, expected)
    assert [len(one.mechanism) if one else 0 for one in found.statements] == [
        len(one.mechanism) if one else 0 for one in whole.statements
    ]
    assert not (out / "secure-state").exists() and not (out / "keys").exists()


def test_every_client_has_spent_what_it_released_even_in_lost_rounds() -> None:
    federation = agreed()

    def lost(round: int, sender: int, message: object) -> bool:
        gone = {1: (5,), 2: (0, 1)}.get(round, ())
        return sender in gone and isinstance(message, MaskedSum | MaskKeys)

    done = train_securely(*brought(federation), federation, lost=lost)
    assert done.survivors[1] == (0, 1, 2, 3, 4)
    assert done.survivors[2] == ()
    for client, transcript in enumerate(done.transcripts):
        assert len(transcript) == ROUNDS
        client_statement(federation, client, "secure-server", transcript=transcript)


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
    shared, holders = brought(federation)
    with pytest.raises(FederationError, match="no secure aggregation"):
        train_securely(shared, holders, replace(federation, secure=None))
    with pytest.raises(FederationError, match="holders' plans"):
        train_securely(shared, holders[:-1], federation)
    two = Mechanism(Rounds(2.0, 2, Poisson(0.5)), Rounds(3.0, 2, Poisson(0.5)))
    phases = replace(federation, plans=(federation.plan(0).with_(mechanism=two),))
    with pytest.raises(SecureAggregationError, match="leave the cohort"):
        train_securely(
            shared, holders, replace(phases, cohort=4, secure=SecureAggregation(4).to_dict())
        )
    short = Plan(Mechanism(Rounds(2.0, 2, Poisson(0.5))), RECORDS, 1e-5)
    with pytest.raises(SecureAggregationError, match="same number of"):
        secured(replace(federation, plans=(federation.plan(0), short), secure=None), SETTINGS)
