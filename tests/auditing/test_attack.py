"""The attack's score is the log-likelihood ratio: against densities written out by hand."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from scipy import stats

import forethought as ft
from forethought.auditing import attack as attacks
from forethought.auditing.attack import log_likelihood_ratio, shortened, simulate
from forethought.auditing.canaries import LEVELS

SIGMA = 0.8


def density(seen: np.ndarray, taken: tuple[bool, ...], shift: float) -> float:
    means = [shift * part for part in taken]
    return float(np.prod(stats.norm.pdf(seen, means, SIGMA)))


@pytest.mark.parametrize("outside", [0.0, -1.0])
def test_poisson_sums_over_all_ways_to_take_part(outside: float) -> None:
    seen, rate = np.array([0.3, -1.2, 2.0]), 0.3

    def likelihood(shift: float) -> float:
        return sum(
            density(seen, taken, shift) * math.prod(rate if part else 1 - rate for part in taken)
            for taken in product([False, True], repeat=3)
        )

    mechanism = ft.Mechanism(ft.Rounds(SIGMA, 3, ft.Poisson(rate)))
    found = log_likelihood_ratio(mechanism, [SIGMA] * 3, seen[:, None], 1.0, outside)
    assert found[0] == pytest.approx(math.log(likelihood(1.0) / likelihood(outside)))


def test_shuffled_sums_over_the_places_of_every_epoch() -> None:
    # 5 records in batches of 2: an epoch has rounds of 2, 2 and 1; then a started epoch of 2.
    seen = np.array([0.3, -0.2, 1.0, 0.6, 0.1])
    weights = (0.4, 0.4, 0.2)

    def likelihood(shift: float) -> float:
        whole = sum(
            weight * density(seen[:3], tuple(t == place for t in range(3)), shift)
            for place, weight in enumerate(weights)
        )
        begun = sum(
            weight * density(seen[3:], tuple(t == place for t in range(2)), shift)
            for place, weight in enumerate(weights)
        )
        return whole * begun

    mechanism = ft.Mechanism(ft.Rounds(SIGMA, 5, ft.Shuffled(2, 5)), adjacency="zero-out")
    found = log_likelihood_ratio(mechanism, [SIGMA] * 5, seen[:, None], 1.0, 0.0)
    assert found[0] == pytest.approx(math.log(likelihood(1.0) / likelihood(0.0)))


def test_full_batches_and_parts_add_up() -> None:
    seen = np.array([0.5, 1.5, -0.5])
    mechanism = ft.Mechanism(
        ft.Rounds(SIGMA, 2, ft.FullBatch()), ft.Rounds(2.0, 1, ft.WithoutReplacement(3, 10))
    )
    found = log_likelihood_ratio(mechanism, [SIGMA, SIGMA, 2.0], seen[:, None], 1.0, 0.0)
    expected = sum((2 * y - 1) / (2 * SIGMA**2) for y in seen[:2])
    expected += math.log(0.7 + 0.3 * math.exp((2 * seen[2] - 1) / 8))
    assert found[0] == pytest.approx(expected)


@pytest.mark.parametrize(
    "sampling",
    [
        ft.Poisson(0.2),
        ft.WithoutReplacement(4, 20),
        ft.Shuffled(4, 20),
        ft.RandomAllocation(5),
        ft.CyclicPoisson(0.4, 2),
    ],
)
def test_simulated_records_take_part_at_the_rate(sampling: object) -> None:
    mechanism = ft.Mechanism(ft.Rounds(1.0, 5, sampling), adjacency="zero-out")
    seen = simulate(mechanism, [1e-9] * 5, 40_000, 1.0, np.random.default_rng(0))
    taken = int((seen > 0.5).sum())
    # Dealt-out records take part once in five rounds, exactly.
    expected = 0.2 * seen.size
    exactly = sampling.kind in ("shuffled", "random-allocation")
    assert abs(taken - expected) <= (0 if exactly else 6 * expected**0.5)


def test_allocated_records_and_parts_in_turns_sum_over_where_they_may_be() -> None:
    seen = np.array([0.3, -0.2, 1.0, 0.6])

    def allocated(shift: float) -> float:
        return math.prod(
            sum(
                density(seen[at : at + 2], taken, shift) for taken in ((True, False), (False, True))
            )
            / 2
            for at in (0, 2)
        )

    mechanism = ft.Mechanism(ft.Rounds(SIGMA, 4, ft.RandomAllocation(2)))
    found = log_likelihood_ratio(mechanism, [SIGMA] * 4, seen[:, None], 1.0, 0.0)
    assert found[0] == pytest.approx(math.log(allocated(1.0) / allocated(0.0)))

    def in_turns(shift: float) -> float:
        rate, total = 0.3, 0.0
        for mine in (seen[::2], seen[1::2]):
            other = seen[1::2] if mine is not seen[1::2] and mine[0] == seen[0] else seen[::2]
            chance = sum(
                density(mine, taken, shift)
                * math.prod(rate if part else 1 - rate for part in taken)
                for taken in product([False, True], repeat=2)
            )
            total += chance * density(other, (False, False), shift) / 2
        return total

    mechanism = ft.Mechanism(ft.Rounds(SIGMA, 4, ft.CyclicPoisson(0.3, 2)))
    found = log_likelihood_ratio(mechanism, [SIGMA] * 4, seen[:, None], 1.0, 0.0)
    assert found[0] == pytest.approx(math.log(in_turns(1.0) / in_turns(0.0)))


@pytest.mark.parametrize("rate", [1.0, 0.4])
def test_correlated_noise_is_scored_through_its_covariance(rate: float) -> None:
    """Against the density of a Gaussian vector with covariance σ²(CᵀC)⁻¹, over parts and turns."""
    strategy = ft.Banded((1.0, 0.5))
    C = np.array([[1, 0, 0, 0], [0.5, 1, 0, 0], [0, 0.5, 1, 0], [0, 0, 0.5, 1]])
    covariance = SIGMA**2 * np.linalg.inv(C.T @ C)
    seen = np.array([0.3, -0.2, 1.0, 0.6])

    def likelihood(shift: float) -> float:
        total = 0.0
        for part, taken in product((0, 1), product([False, True], repeat=2)):
            mean = np.zeros(4)
            mean[part::2] = shift * np.array(taken)
            chance = math.prod(rate if there else 1 - rate for there in taken) / 2
            total += chance * float(stats.multivariate_normal.pdf(seen, mean, covariance))
        return total

    part = ft.Correlated(SIGMA, 4, ft.CyclicPoisson(rate, 2), strategy=strategy)
    found = log_likelihood_ratio(ft.Mechanism(part), [SIGMA] * 4, seen[:, None], 1.0, 0.0)
    assert found[0] == pytest.approx(math.log(likelihood(1.0) / likelihood(0.0)))
    drawn = simulate(ft.Mechanism(part), [SIGMA] * 4, 200_000, 0.0, np.random.default_rng(0))
    np.testing.assert_allclose(np.cov(drawn), covariance, atol=0.02)


def test_a_norm_that_falls_falls_in_shorter_runs_too() -> None:
    clip = ft.Clip(1.0, "per-layer", shares=(("weight", 0.6), ("bias", 0.8)), final=0.5)
    plan = ft.Plan(ft.Mechanism(ft.Rounds(1.0, 20, ft.Poisson(0.1))), 200, 1e-5, clip=clip)
    assert shortened(plan, 5).clip == ft.Clip(1.0, "per-layer", final=0.5)


def test_games_on_few_records_keep_a_norm_that_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    played = list[ft.Plan]()

    def games(plan: ft.Plan, *_: object) -> None:
        played.append(plan)
        raise InterruptedError

    monkeypatch.setattr(attacks, "directed_games", games)
    rounds = ft.Rounds(1.0, 20, ft.Poisson(0.1), "group")
    plan = ft.Plan(ft.Mechanism(rounds), 200, 1e-5, groups=4, clip=ft.Clip(1.0, final=0.5))
    with pytest.raises(InterruptedError):
        attacks.attack(plan, LEVELS["quick"], np.random.default_rng(0))
    assert [one.clip for one in played] == [plan.clip]
