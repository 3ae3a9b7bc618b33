"""Correlated noise is C⁻¹z, drawn round by round, the same however the run is cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.linalg import toeplitz

import forethought as ft
from drawn import randn, reseed
from forethought.rounds.contributions import cross_entropy
from forethought.rounds.private_sum import PrivateRounds
from forethought.rounds.randomness import BoundNoise, CorrelatedNoise, Secrets, Seeds
from forethought.rounds.records import TensorRecords
from forethought.values.mechanism import Correlated, CyclicPoisson, FullBatch, Mechanism, Rounds
from forethought.values.plan import Clip, Plan, TranscriptError
from forethought.values.strategies import Banded, BufferedToeplitz, Strategy

BANDED = Banded((1.0, 0.5, 0.375, 0.1))
BUFFERED = BufferedToeplitz((0.4, 0.2), (0.9, 0.5))
TURNS = CyclicPoisson(0.5, 4)
SIZE, ROUNDS = 70_000, 12


NOISE = BoundNoise(bytes([7] * 32))
# What each round's noise is bound to.
BOUND = [bytes([round] * 32) for round in range(3 + ROUNDS)]


def drawn(strategy: Strategy, rounds: list[int], first: int = 0) -> np.ndarray:
    noise = CorrelatedNoise(SIZE, strategy, NOISE, BOUND, first)
    found = []
    for index in rounds:
        vector = torch.zeros(SIZE, dtype=torch.float64)
        noise.add_to(vector, 2.0, index)
        found.append(vector.numpy() / 2)
    return np.array(found)


@pytest.mark.parametrize("strategy", [BANDED, BUFFERED, Banded((1.0,))], ids=str)
def test_the_strategy_turns_the_noise_into_independent_numbers(strategy: Strategy) -> None:
    """Exactly: C times the noise is what each round's sum is bound to."""
    rows = drawn(strategy, list(range(3, 3 + ROUNDS)), first=3)
    C = np.tril(toeplitz(strategy.column(ROUNDS)))
    numbers = [NOISE.at(BOUND[index]).standard_normal(SIZE) for index in range(3, 3 + ROUNDS)]
    np.testing.assert_allclose(C @ rows, numbers, atol=1e-11)


@pytest.mark.parametrize("strategy", [BANDED, BUFFERED], ids=str)
def test_a_run_that_goes_on_has_the_same_bits(strategy: Strategy) -> None:
    whole = drawn(strategy, list(range(ROUNDS)))
    again = drawn(strategy, [7, 8, 11])
    assert np.array_equal(again, whole[[7, 8, 11]])
    with pytest.raises(ValueError, match="in order"):
        drawn(strategy, [7, 5])


def test_prefix_sums_have_less_noise_than_independent_rounds() -> None:
    """The point of it: variance of the summed noise, against the matrix (1 % of it)."""
    rows = drawn(BUFFERED, list(range(ROUNDS))).cumsum(axis=0)
    sums = np.tril(np.ones((ROUNDS, ROUNDS)))
    wanted = sums @ np.linalg.inv(np.tril(toeplitz(BUFFERED.column(ROUNDS))))
    np.testing.assert_allclose(rows.var(axis=1), (wanted**2).sum(axis=1), rtol=0.04)
    assert rows[-1].var() < 0.6 * ROUNDS


def plan(sampling: Any = TURNS, strategy: Strategy = BANDED, **options: Any) -> Plan:
    part = Correlated(2.0, 20, sampling, "example", strategy)
    return Plan(Mechanism(part), 40, 1e-5, **options)


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = np.random.default_rng(0)
    inputs = randn(40, 6, generator=generator)
    return inputs, (inputs[:, 0] > 0).long()


def network() -> torch.nn.Module:
    reseed(0)
    return torch.nn.Linear(6, 2)


@pytest.mark.parametrize("strategy", [BANDED, BUFFERED], ids=str)
def test_an_interrupted_run_resumes_bit_for_bit(strategy: Strategy, tmp_path: Path) -> None:
    chosen = plan(CyclicPoisson(1.0, 4), strategy)
    options = {"seed": 1, "noise_seed": 2}
    whole = ft.train(network(), data(), chosen, **options)

    def cut(event: Any) -> None:
        if event.round == 13:
            raise KeyboardInterrupt

    run = {"out": tmp_path / "run", "checkpoint_every": 5}
    with pytest.raises(KeyboardInterrupt):
        ft.train(network(), data(), chosen, progress=cut, log_every=1, **run, **options)
    resumed = ft.train(network(), data(), chosen, resume=True, log_every=1, **run, **options)
    for one, other in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert resumed.statement.mechanism == chosen.mechanism


def test_the_transcript_holds_the_strategy_that_was_drawn_with() -> None:
    chosen = plan()
    model = network()
    rounds = PrivateRounds(
        chosen.privacy, dict(model.named_parameters()), cross_entropy, Secrets.draw(Seeds(1, 2))
    )
    records = TensorRecords(*data())
    for index in range(20):
        total = rounds.open(index)
        total.add(model, records)
        total.release()
    rounds.transcript.require(chosen.mechanism)
    again = type(rounds.transcript).from_values(rounds.transcript.to_values())
    again.require(chosen.mechanism)
    other = Mechanism(Rounds(2.0, 20, CyclicPoisson(0.5, 4)))
    with pytest.raises(TranscriptError):
        again.require(other)
    lied = Mechanism(Correlated(2.0, 20, CyclicPoisson(0.5, 4), strategy=Banded((1.0, 0.5))))
    with pytest.raises(TranscriptError):
        again.require(lied)


def test_parts_begin_their_correlation_anew() -> None:
    part = Correlated(2.0, 3, FullBatch(), strategy=BANDED)
    rounds = Plan(Mechanism(part, part), 40, 1e-5)
    assert [rounds.round(index).origin for index in range(6)] == [0, 0, 0, 3, 3, 3]
    run = ft.train(network(), data(), rounds, seed=1, noise_seed=1)
    assert run.statement.mechanism == rounds.mechanism


def test_what_cannot_be_correlated_is_refused() -> None:
    for options in ({"noise": "grid"}, {"clip": Clip(1.0, "quantile", count_noise=5.0)}):
        with pytest.raises(ValueError, match="fixed clip norm"):
            plan(**options)
    chosen = plan()
    with pytest.raises(ft.UnsupportedMechanismError, match="mechanism of its"):
        _ = chosen.round(3).mechanism
