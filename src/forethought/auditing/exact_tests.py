"""Tests of counts and Gaussian numbers whose false-alarm rates are exact for all sample sizes.

A count with a known distribution becomes a uniform number by the randomised probability integral
transform U = F(k − 1) + V·P(k) with V uniform, which is exact for discrete distributions
(Rosenblatt 1952; Ferguson 1967, Section 5.3). Uniform numbers that are independent, or each uniform
given the earlier ones, are then tested together by their mean and spread on the normal scale.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from scipy.special import gammaln, ndtri

from forethought.accounting.interval import bisected

Array = NDArray[np.float64]

# Uniform numbers are kept this far from 0, which only makes a test more conservative.
_EDGE = 1e-300


def both_sides(lower: float, upper: float) -> float:
    """p-value of a two-sided test from its tails P(X ≤ x) and P(X ≥ x)."""
    return min(1.0, 2 * min(lower, upper))


def binomial_p(count: int, trials: int, rate: float) -> float:
    """Two-sided exact p-value of ``count`` successes of ``trials`` at ``rate``."""
    lower = float(stats.binom.cdf(count, trials, rate))
    return both_sides(lower, float(stats.binom.sf(count - 1, trials, rate)))


def uniform_binomial(
    counts: ArrayLike, trials: ArrayLike, rate: ArrayLike, generator: np.random.Generator
) -> Array:
    """Binomial(trials, rate) counts, transformed to uniform numbers of the same shape."""
    k = np.asarray(counts)
    below = stats.binom.cdf(k - 1, trials, rate)
    return _uniform(below, stats.binom.pmf(k, trials, rate), generator)


def uniform_hypergeometric(
    counts: ArrayLike,
    population: ArrayLike,
    marked: ArrayLike,
    drawn: ArrayLike,
    generator: np.random.Generator,
) -> Array:
    """Counts of ``marked`` among ``drawn`` records of a uniform subset, as uniform numbers."""
    k = np.asarray(counts)
    # Of no records, none is certainly drawn; scipy has that law of one unmarked record only.
    population = np.maximum(population, 1)
    below = stats.hypergeom.cdf(k - 1, population, marked, drawn)
    return _uniform(below, stats.hypergeom.pmf(k, population, marked, drawn), generator)


def uniform_pairs(
    counts: Sequence[int], pairs: int, drawn: Sequence[int], generator: np.random.Generator
) -> Array:
    """Counts of ``pairs`` couples entirely in a uniform subset of ``drawn`` of their members.

    They become uniform numbers by their distribution,
    P(k) = C(pairs, k)·C(pairs − k, drawn − 2k)·2^(drawn − 2k) / C(2·pairs, drawn).
    """
    below, at = np.empty(len(counts)), np.empty(len(counts))
    for place, (count, size) in enumerate(zip(counts, drawn, strict=True)):
        k = np.arange(max(0, size - pairs), size // 2 + 1)
        single = size - 2 * k
        log = (
            gammaln(pairs + 1)
            - gammaln(k + 1)
            - gammaln(single + 1)
            - gammaln(pairs - k - single + 1)
            + single * math.log(2)
        )
        weights = np.exp(log - log.max())
        weights /= weights.sum()
        at[place] = weights[k == count].sum()
        below[place] = weights[k < count].sum()
    return _uniform(below, at, generator)


def _uniform(below: Array, at: Array, generator: np.random.Generator) -> Array:
    drawn = below + generator.random(np.shape(below)) * at
    return np.clip(drawn, _EDGE, 1 - 2**-53)


def uniform_p(uniforms: ArrayLike) -> float:
    """p-value for numbers that should be independent and uniform, from their mean and spread.

    On the normal scale both tests are exact: Σz/√n is normal, Σz² is χ² with n degrees of freedom.
    """
    return normal_p(ndtri(np.asarray(uniforms, dtype=float).reshape(-1)))


def normal_p(z: Array) -> float:
    """p-value for numbers that should be independent and standard normal, from mean and spread."""
    if not len(z):
        return 1.0
    mean = float(z.sum() / math.sqrt(len(z)))
    return min(1.0, 2 * min(2 * float(stats.norm.sf(abs(mean))), spread_p(z)))


def spread_p(z: Array) -> float:
    """p-value of Σz² for independent standard normal numbers: χ², two-sided."""
    square = float(np.square(z).sum())
    return both_sides(float(stats.chi2.cdf(square, z.size)), float(stats.chi2.sf(square, z.size)))


def kolmogorov_smirnov_p(z: Array) -> float:
    """p-value of the largest distance between the numbers' distribution and the normal one."""
    return float(stats.kstest(z, "norm", method="exact").pvalue)


def share_at_most(successes: int, trials: int, level: float, independent: bool = True) -> float:
    """Upper end of a one-sided confidence interval for a share; wrong with chance ``level``.

    Args:
        independent: True: the trials are independent, and the interval is that of Clopper and
            Pearson (1934). False: the Chernoff-Hoeffding bound exp(−n·KL(k/n ‖ p)) on the tail,
            which also holds for negatively associated trials (Dubhashi and Ranjan 1998, Proposition
            29), such as records that compete for the places of a batch.
    """
    if successes >= trials:
        return 1.0
    if independent:
        return float(stats.beta.ppf(1 - level, successes + 1, trials - successes))
    share, bound = successes / trials, -math.log(level) / trials
    return bisected(lambda end: _divergence(share, end) <= bound, share, 1.0, steps=60)[1]


def share_at_least(successes: int, trials: int, level: float, independent: bool = True) -> float:
    """Lower end of a one-sided confidence interval for a share; see :func:`share_at_most`."""
    return 1 - share_at_most(trials - successes, trials, level, independent)


def _divergence(p: float, q: float) -> float:
    first = p * math.log(p / q) if p > 0 else 0.0
    if p >= 1:
        return first
    return math.inf if q >= 1 else first + (1 - p) * math.log((1 - p) / (1 - q))
