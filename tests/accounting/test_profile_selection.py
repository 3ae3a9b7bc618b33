"""The price of selection from profiles, against the best trial's law itself."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from forethought.accounting.adaptive import (
    NegativeBinomialTrials,
    PoissonTrials,
    best_of,
    best_of_epsilon,
    search_epsilon,
)
from forethought.accounting.renyi import rdp
from forethought.values.mechanism import FullBatch, Mechanism, Poisson, Rounds

TRIALS = [
    NegativeBinomialTrials(0.1, 1.0),
    NegativeBinomialTrials(0.03, 0.0),
    NegativeBinomialTrials(0.01, -0.5),
    NegativeBinomialTrials(0.2, 3.0),
    PoissonTrials(6.0),
]


def generated(trials, z):
    """E z^K from the probabilities themselves."""
    first = 0 if isinstance(trials, PoissonTrials) else 1
    masses = trials.probabilities(3000)
    return np.polynomial.polynomial.polyval(z, np.concatenate([np.zeros(first), masses]))


class Known:
    """The exact profile of two laws on finitely many outputs, both directions."""

    def __init__(self, p, q):
        self.p, self.q = p, q

    def delta(self, level):
        pairs = ((self.p, self.q), (self.q, self.p))
        return max(float(np.maximum(a - math.exp(level) * b, 0).sum()) for a, b in pairs)

    def deltas(self, levels):
        return np.array([self.delta(x) for x in levels])

    def epsilon(self, delta):
        low, high = 0.0, 60.0
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if self.delta(middle) > delta else (low, middle)
        return high


def best(p, trials):
    """The law of the best trial; outputs in ascending order of their scores."""
    ends = generated(trials, np.concatenate([[0.0], np.cumsum(p)]))
    return np.diff(ends)


@pytest.mark.parametrize(
    "trials", [TRIALS[0], *(pytest.param(x, marks=pytest.mark.slow) for x in TRIALS[1:])], ids=str
)
def test_no_pair_of_laws_is_worse(trials):
    rng = np.random.default_rng(7)
    closest = 0.0
    for case in range(40):
        p = rng.dirichlet(np.full(7, 0.5 + case % 3))
        q = p * np.exp(rng.normal(size=7) * rng.choice([0.05, 0.4, 1.5]))
        q = q / q.sum()
        if case % 4 == 0:  # what only one of them ever says
            q[int(rng.integers(7))] = 0.0
            q = q / q.sum()
        for delta in (0.3, 0.02, 1e-4):
            claimed = best_of_epsilon([Known(p, q)], trials, delta)
            if claimed > 50:
                continue
            attained = Known(best(p, trials), best(q, trials)).delta(claimed)
            assert attained <= delta * (1 + 1e-6) + 1e-12
            closest = max(closest, attained / delta)
    assert closest > 1e-3


@pytest.mark.parametrize("trials", TRIALS, ids=str)
def test_the_largest_of_several_gaussians(trials):
    # The score is the output itself, in either order.
    mechanism = Mechanism(Rounds(2.0, 1, FullBatch()))
    claimed = search_epsilon([mechanism], trials, 1e-4)
    z = np.linspace(-9, 10, 801)
    first, second = (np.diff(norm.cdf(z, c)) for c in (0.5, 0.0))
    for one, other in ((first, second), (second, first)):
        for a, b in ((one, other), (one[::-1], other[::-1])):
            kept = Known(best(a, trials), best(b, trials))
            assert kept.delta(claimed) <= 1e-4
            assert kept.epsilon(1e-4) >= claimed / 4


def test_profiles_beat_divergences_for_a_small_cost():
    mechanism = Mechanism(Rounds(1.1, 2000, Poisson(0.0043)))
    trials = NegativeBinomialTrials.of_mean(10, 1.0)
    by_divergence = best_of(rdp(mechanism), trials).epsilon(1e-5)
    assert search_epsilon([mechanism], trials, 1e-5) < 0.7 * by_divergence
