"""Strategies of correlated noise for a workload: the least error for the same promise.

What an optimizer makes of the noised sums is a workload A, lower triangular and Toeplitz: prefix
sums for plain SGD, sums of momentum's running sums for SGD with momentum. Noise σC⁻¹z reaches the
weights as σAC⁻¹z, and σ goes with the strategy's sensitivity, so the error to keep small is

    sensitivity(C)² · (1/n) ‖AC⁻¹‖²_F,

the mean over the rounds of the squared error a coordinate has (Denisov et al. 2022, Equation 2;
Choquette-Choo et al. 2023, Section 3). Nothing here needs the data.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import assert_never

import numpy as np
import scipy  # its signal room loads at first use: half a second that other plans need not wait
from numpy.typing import NDArray
from scipy.optimize import minimize

from forethought.accounting.theorems import sensitivity_over_turns
from forethought.strategies import Banded, BufferedToeplitz, Strategy

Array = NDArray[np.float64]

# More bands cost memory and gain little; rounds beyond are alike for a strategy.
MOST_BANDS = 64
LONGEST = 4096
BUFFERS = 3
INDEPENDENT = Banded((1.0,))


def workload(count: int, momentum: float = 0.0) -> Array:
    """First column of A: how a round's sum counts in the weights so many rounds later."""
    impulse = np.zeros(count)
    impulse[0] = 1
    return np.asarray(np.cumsum(scipy.signal.lfilter([1.0], [1.0, -momentum], impulse)))


def error(strategy: Strategy, count: int, separation: int, momentum: float = 0.0) -> float:
    """Root mean square of the noise in the weights at unit ε, in units of a round's clip norm.

    Relative to other strategies' of the same participation only.

    Args:
        count: rounds. separation: rounds from one turn of a record to its next.
        momentum: of torch's SGD.
    """
    return sensitivity_over_turns(strategy, count, separation) * math.sqrt(
        _mean_square(strategy, count, momentum)
    )


def gain(strategy: Strategy, count: int, momentum: float = 0.0) -> float:
    """Noise in the weights over that of independent noise with the same noise multiplier."""
    own = _mean_square(strategy, count, momentum)
    return math.sqrt(own / _mean_square(INDEPENDENT, count, momentum))


@lru_cache(maxsize=64)
def banded(bands: int, count: int, separation: int, momentum: float = 0.0) -> Banded:
    """The strategy of ``bands`` bands that has the least :func:`error`, by gradient descent.

    Args:
        bands: at most ``separation``, so that a record's turns do not overlap.

    Begins at the banded square root of the prefix sums (Kalinin and Lampert 2024).
    """
    n = min(count, LONGEST)
    bands = min(bands, separation, n)
    if bands <= 1:
        return INDEPENDENT
    work, weights = workload(n, momentum), _weights(n)
    start = np.cumprod([1.0, *((2 * i - 1) / (2 * i) for i in range(1, bands))])

    def loss(free: Array) -> tuple[float, Array]:
        column = np.concatenate([[1.0], free])
        through = scipy.signal.lfilter([1.0], column, work)
        twice = scipy.signal.lfilter([1.0], column, through)
        mean, size = float(weights @ through**2), float(column @ column)
        # d through / d c_j is -(through C⁻¹) moved by j.
        slope = scipy.signal.correlate(weights * through, twice, mode="full", method="fft")[n - 1 :]
        slope = -2 * slope[1:bands]
        return math.log(mean) + math.log(size), slope / mean + 2 * free / size

    with np.errstate(all="ignore"):
        found = minimize(
            loss,
            start[1:],
            jac=True,
            method="L-BFGS-B",
            bounds=[(0.0, 1.0)] * (bands - 1),
            options={"maxiter": 300},
        )
    best = found.x if np.isfinite(found.fun) else start[1:]
    return Banded((1.0, *(float(x) for x in best)))


@lru_cache(maxsize=64)
def buffered(buffers: int, count: int, separation: int, momentum: float = 0.0) -> BufferedToeplitz:
    """The strategy of ``buffers`` buffers that has the least :func:`error` found."""
    n = min(count, LONGEST)

    def strategy(free: Array) -> BufferedToeplitz:
        shares = np.exp(free[: buffers + 1] - free[: buffers + 1].max())
        weights = (shares / shares.sum())[:buffers] * (1 - 1e-9)
        decays = 1 / (1 + np.exp(-np.clip(free[buffers + 1 :], -30, 30)))
        return BufferedToeplitz(
            tuple(np.maximum(weights, 1e-12).tolist()),
            tuple(np.minimum(decays, 1 - 1e-12).tolist()),
        )

    def loss(free: Array) -> float:
        return math.log(error(strategy(free), n, separation, momentum))

    spread = np.linspace(1.0, math.log(4 * n), buffers) if buffers > 1 else np.array([2.0])
    start = np.concatenate([np.zeros(buffers + 1), spread])
    found = minimize(loss, start, method="L-BFGS-B", options={"maxiter": 200})
    return strategy(found.x)


def best(
    count: int, separation: int, momentum: float = 0.0, *, sampled: bool = False
) -> tuple[Strategy, float]:
    """The strategy of the least error among independent, banded and buffered ones.

    Args:
        sampled: a record's turns are sampled, which only bands are proven for.

    Returns:
        The strategy, and its error over that of independent noise.
    """
    tried: list[Strategy] = [INDEPENDENT]
    tried.append(banded(min(separation, MOST_BANDS), count, separation, momentum))
    if not sampled:
        tried.append(buffered(BUFFERS, count, separation, momentum))
    alone = error(INDEPENDENT, count, separation, momentum)
    errors = [error(strategy, count, separation, momentum) / alone for strategy in tried]
    place = int(np.argmin(errors))
    return tried[place], errors[place]


def _mean_square(strategy: Strategy, count: int, momentum: float) -> float:
    """(1/n) ‖AC⁻¹‖²_F."""
    column = _through(workload(count, momentum), strategy)
    return float(_weights(count) @ column**2)


def _through(work: Array, strategy: Strategy) -> Array:
    """First column of AC⁻¹."""
    match strategy:
        case Banded():
            return np.asarray(scipy.signal.lfilter([1.0], strategy.coefficients, work))
        case BufferedToeplitz():
            return _through_buffers(work, strategy)
        case _:
            assert_never(strategy)


def _through_buffers(work: Array, strategy: BufferedToeplitz) -> Array:
    # As a power series C is 1 + x Σ w_j/(1 - d_j x): a quotient of short polynomials.
    below = np.ones(1)
    for decay in strategy.decays:
        below = np.convolve(below, [1.0, -decay])
    above = below.copy()
    for place, weight in enumerate(strategy.weights):
        others = np.ones(1)
        for decay in (*strategy.decays[:place], *strategy.decays[place + 1 :]):
            others = np.convolve(others, [1.0, -decay])
        above[1:] += weight * others
    return np.asarray(scipy.signal.lfilter(below, above, work))


def _weights(count: int) -> Array:
    """How often each entry of a Toeplitz matrix's first column occurs, over n."""
    return np.asarray(1 - np.arange(count) / count)
