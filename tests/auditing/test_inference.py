"""From games to bounds: the one-run algorithm, effective noise, the figures of the setting."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

import forethought as ft
from forethought.auditing.attack import (
    LEVEL,
    Games,
    critical_noise,
    epsilon_of_guesses,
    judge,
    orthogonal_games,
    scaled_noise,
    summarise,
)
from forethought.values.plan import Plan


def published_p_value(m: int, r: int, v: int, eps: float, delta: float) -> float:
    """Steinke, Nasr and Jagielski 2023, Appendix D, written out as their listing has it."""
    q = 1 / (1 + math.exp(-eps))
    beta = stats.binom.sf(v - 1, r, q)
    alpha, total = 0.0, 0.0
    for i in range(1, v + 1):
        total += stats.binom.pmf(v - i, r, q)
        alpha = max(alpha, total / i)
    return float(min(beta + alpha * delta * 2 * m, 1))


@pytest.mark.parametrize(("m", "r", "v"), [(1_000, 200, 170), (2_000, 40, 40), (300, 300, 201)])
def test_the_one_run_bound_is_the_published_one(m: int, r: int, v: int) -> None:
    found = epsilon_of_guesses(m, r, v, 1e-5, LEVEL)
    assert published_p_value(m, r, v, found * 0.999, 1e-5) < LEVEL
    assert published_p_value(m, r, v, found * 1.001, 1e-5) > LEVEL


def test_random_guesses_show_nothing() -> None:
    assert epsilon_of_guesses(1_000, 200, 104, 1e-5, LEVEL) == 0.0


def test_critical_noise_is_found_where_it_is() -> None:
    mechanism = ft.Mechanism(ft.Rounds(2.0, 3, ft.FullBatch()))
    for true in (0.45, 0.9, 1.7):
        found = critical_noise(
            lambda scaled, true=true: scaled.rounds[0].noise_multiplier > 2 * true, mechanism
        )
        assert true <= found <= true * 1.005
    assert critical_noise(lambda _: False, mechanism) == math.inf
    assert scaled_noise(mechanism, 0.5).rounds[0].noise_multiplier == 1.0


def test_error_counts_are_those_of_the_threshold() -> None:
    games = Games(np.array([0.0, 1.0, 2.0]), np.array([0.5, 1.5, 2.5, 3.5]))
    assert games.errors(1.0) == (1, 1)


@pytest.mark.slow
def test_two_thousand_games_show_most_of_the_claim() -> None:
    # Medians of repeated runs are 5.8 and 2.3 of 7.05; below these is a chance under 1e-4.
    plan = Plan(ft.Mechanism(ft.Rounds(1.0, 100, ft.Poisson(0.1))), 2_000, 1e-5)
    games = orthogonal_games(plan, 2_000, np.random.default_rng(0))
    finding, chosen = judge(plan, games)
    found = summarise(plan, games, chosen)
    assert finding.p_value is not None and finding.p_value > 1e-6
    # The p-value judges the claim: a lower end of 95 % is above it now and then.
    assert found.epsilon[0] > 3.8
    assert found.claimed_epsilon < 7.06
    assert found.epsilon[0] < found.epsilon[1]
    assert found.one_run_epsilon is not None
    assert 1.0 < found.one_run_epsilon < found.epsilon[0]
    assert found.noise_at_most > 0.8  # an upper end of 95 %, too; the noise is 1
