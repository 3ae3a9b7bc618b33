"""The price of keeping the best of a random number of trials: tuning that is paid for.

A trial is one whole private run that returns its model *and* a score. If the number of trials is
random, and only the best is shown, the cost hardly grows with how many there were. Source:
Papernot and Steinke 2022, Theorems 2 (truncated negative binomial) and 6 (Poisson).

Theorem 6 leaves out that there may be no trial, and is false where the mean is below 1. What holds
for every mean μ: let P, P' be one trial's laws with tails u, u' at and above an output (ties broken
by a number drawn for the purpose). The best has density p μ e^(-μu), the default mass e^(-μ).
With w = αu - (α - 1)u',

e^((α - 1)D) = e^(-μ) + ∫ (p^α p'^(1-α)) μ e^(-μw).

Write p^α p'^(1-α) as a part that is never negative (Bernoulli's inequality), of integral
e^((α - 1)D_α) - 1, and αp - (α - 1)p', which is -dw: the second part's integral is 1 - e^(-μ),
whatever the laws. In the first, -w is at most (α - 1)δ̂ where a trial is (ε̂, δ̂)-DP with
e^ε̂ = 1 + 1/(α - 1), so that

e^((α - 1)D) ≤ 1 + μ e^(μ(α - 1)δ̂) (e^((α - 1)D_α) - 1),

which is at most what Theorem 6 says for every mean of at least 1.

The scores are part of a trial's output: computed on public data, or privately and accounted in
the trial's mechanism. Ties are broken by a fixed order that does not look at the data.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from forethought.accounting.renyi.curves import LIFT, RenyiCurve, rdp
from forethought.checks import real, whole
from forethought.mechanism import Mechanism

Array = NDArray[np.float64]


@dataclass(frozen=True)
class NegativeBinomialTrials:
    """K ≥ 1 with P(K = k) ∝ (1 − γ)^k Γ(k + η)/k!: truncated negative binomial.

    Args:
        stopping: γ in (0, 1): small γ, many trials.
        shape: η above −1. 1 is the geometric distribution, 0 the logarithmic one; smaller is
            cheaper in privacy and spreads K more widely.
    """

    stopping: float
    shape: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "stopping", real("stopping", self.stopping, above=0, below=1))
        object.__setattr__(self, "shape", real("shape", self.shape, above=-1))

    @property
    def mean(self) -> float:
        """E[K] (Papernot and Steinke 2022, Definition 1)."""
        log_gamma = math.log(self.stopping)
        # η(1 − γ)/(γ(1 − γ^η)), with its limit (1/γ − 1)/ln(1/γ) at η = 0.
        ratio = -log_gamma if self.shape == 0 else -math.expm1(self.shape * log_gamma) / self.shape
        return (1 / self.stopping - 1) / ratio

    @classmethod
    def of_mean(cls, mean: float, shape: float = 1.0) -> NegativeBinomialTrials:
        """The distribution with this expected number of trials (above 1), rounded upwards."""
        wanted = real("mean", mean, above=1)
        low, high = 1e-300, 1.0
        for _ in range(2000):
            middle = math.sqrt(low * high) if low < 0.1 * high else 0.5 * (low + high)
            if not low < middle < high:
                break
            if cls(middle, shape).mean >= wanted:
                low = middle
            else:
                high = middle
        return cls(low, shape)

    def probabilities(self, most: int) -> Array:
        """P(K = k) for k = 1 … ``most``."""
        k = np.arange(1, whole("most", most) + 1)
        log_gamma = math.log(self.stopping)
        log_weight = k * math.log1p(-self.stopping)
        if self.shape == 0:
            return np.asarray(np.exp(log_weight - np.log(k) - math.log(-log_gamma)))
        # Γ(k + η)/Γ(η) is negative for η in (−1, 0), and so is γ^(−η) − 1: the quotient is not.
        scale = math.expm1(-self.shape * log_gamma) / self.shape
        log_terms = log_weight + gammaln(k + self.shape) - gammaln(k + 1)
        return np.asarray(np.exp(log_terms - gammaln(1 + self.shape)) / scale)

    def best_of(self, curve: RenyiCurve, profile: Callable[[float], float]) -> RenyiCurve:
        """The curve of the best trial, Theorem 2; ``profile`` is not needed by it."""
        orders, values = np.array(curve.orders), np.array(curve.values)
        log_gamma = math.log(self.stopping)
        # Any second order is allowed; order 1 with divergence D_1 ≤ D_α leaves (1 + η)ln(1/γ).
        extra = (1 - 1 / orders) * values - log_gamma / orders
        fixed = (1 + self.shape) * min(float(np.min(extra)), -log_gamma)
        return _monotone(orders, values + fixed + math.log(self.mean) / (orders - 1))


@dataclass(frozen=True)
class PoissonTrials:
    """K ~ Poisson(mean): possibly no trial, and then a fixed default is returned."""

    mean: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", real("mean", self.mean, above=0))

    def probabilities(self, most: int) -> Array:
        """P(K = k) for k = 0 … ``most``."""
        k = np.arange(whole("most", most) + 1)
        return np.asarray(np.exp(k * math.log(self.mean) - self.mean - gammaln(k + 1)))

    def best_of(self, curve: RenyiCurve, profile: Callable[[float], float]) -> RenyiCurve:
        """The curve of the best trial: the last formula of this module's docstring."""
        values = [
            self._best_of(order, value, profile(math.log1p(1 / (order - 1))))
            for order, value in zip(curve.orders, curve.values, strict=True)
        ]
        return _monotone(np.array(curve.orders), np.array(values))

    def _best_of(self, order: float, value: float, lost: float) -> float:
        grown = (order - 1) * value
        if grown == 0:
            return 0.0
        # log(e^grown - 1), however large.
        log_rise = grown + math.log(-math.expm1(-grown))
        log_rise += math.log(self.mean) + self.mean * (order - 1) * lost
        return float(np.logaddexp(0.0, log_rise)) / (order - 1)


Trials = NegativeBinomialTrials | PoissonTrials


def _monotone(orders: Array, values: Array) -> RenyiCurve:
    # D_α never falls with α, so a bound at a higher order holds at every lower one.
    least = np.minimum.accumulate(values[::-1])[::-1]
    return RenyiCurve(tuple(orders), tuple(np.maximum(least, 0.0) * LIFT))


def best_of(
    curve: RenyiCurve, trials: Trials, profile: Callable[[float], float] | None = None
) -> RenyiCurve:
    """The Rényi curve of running ``trials`` trials and showing only the best.

    Args:
        curve: of one trial.
        trials: how the number of trials is drawn.
        profile: δ of one trial at an ε ≥ 0, for Poisson trials; by default what the curve gives.

    Source: Papernot and Steinke 2022, Theorems 2 and 6.
    """
    if not isinstance(trials, Trials):
        raise TypeError(
            f"trials must be NegativeBinomialTrials or PoissonTrials, not {trials!r}: a fixed "
            "number of trials is not covered"
        )
    return trials.best_of(curve, curve.delta if profile is None else profile)


def selection_epsilon(mechanism: Mechanism, trials: Trials, delta: float) -> float:
    """ε at δ of the best of ``trials`` runs of ``mechanism``."""
    return best_of(rdp(mechanism), trials).epsilon(delta)


def draw(trials: Trials, generator: np.random.Generator) -> int:
    """How many trials to run, drawn once before the first and never looked at again.

    Inverts the distribution function term by term, so a resumed generator draws the same.
    """
    left = float(generator.random())
    first = 0 if isinstance(trials, PoissonTrials) else 1
    most = 64
    while True:
        total = np.cumsum(trials.probabilities(most))
        if total[-1] > left or most >= 2**24:
            return first + int(np.searchsorted(total, left, side="right"))
        most *= 4
