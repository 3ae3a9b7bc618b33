"""The joint p-value: never below the truth, close to it, and tighter than two intervals."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from forethought.accounting.tradeoff import gaussian
from forethought.auditing.attack import LEVEL, Games, JointErrors
from forethought.auditing.exact_tests import share_at_most

CLAIM = gaussian(1.0)


def chance(errors: JointErrors, alpha: float, beta: float) -> float:
    """P(T ≤ t) at two error rates, by summing the table of both counts."""
    false, missed = np.arange(errors.outside + 1), np.arange(errors.inside + 1)
    table = np.outer(
        stats.binom.pmf(false, errors.outside, alpha),
        stats.binom.pmf(missed, errors.inside, beta),
    )
    below = missed[None, :] + errors.weight * false[:, None] <= errors.total + 1e-9
    return float(table[below].sum())


@pytest.mark.parametrize(("false", "missed"), [(8, 20), (12, 30), (0, 60), (40, 1), (5, 12)])
@pytest.mark.parametrize("independent", [True, False])
def test_it_is_at_least_every_chance_on_the_curve(
    false: int, missed: int, independent: bool
) -> None:
    errors = JointErrors(false, 70, missed, 80, 1.3, independent)
    alphas = np.linspace(0, 1, 301)
    truth = max(chance(errors, *point) for point in zip(alphas, CLAIM(alphas), strict=True))
    found = errors.p_value(CLAIM)
    assert found >= truth * (1 - 1e-9)
    if independent:
        assert found <= 1.15 * truth + 1e-12


@pytest.mark.slow
def test_sound_attacks_are_seldom_refuted() -> None:
    # Of 300 sound attacks 5 % may be refuted; more than chance allows fails once in a million.
    source = np.random.default_rng(0)
    alpha = 0.25
    found = [
        JointErrors(
            int(source.binomial(120, alpha)), 120, int(source.binomial(120, CLAIM(alpha))), 120, 1.1
        )
        for _ in range(300)
    ]
    refuted = sum(errors.p_value(CLAIM) < 0.05 for errors in found)
    assert stats.binom.sf(refuted - 1, len(found), 0.05) > 1e-6


def test_it_is_tighter_than_two_intervals() -> None:
    alpha = 0.2
    false, missed = round(1_000 * alpha), round(1_000 * gaussian(1.25)(alpha))
    assert JointErrors(false, 1_000, missed, 1_000, 1.2).p_value(CLAIM) < LEVEL / 50
    games = Games(
        np.r_[np.ones(false), np.zeros(1_000 - false)],
        np.r_[np.zeros(missed), np.ones(1_000 - missed)],
    )
    upper = games.ends(share_at_most, 0.5, LEVEL)
    assert upper[1] > CLAIM(upper[0]) - 0.05
