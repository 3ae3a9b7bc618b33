"""Rényi and zero-concentrated curves: valid under adaptively chosen parameters, slightly loose.

A curve is D_α at a grid of orders α > 1; curves compose by addition. Sources: Mironov 2017;
Mironov, Talwar and Zhang 2019 (Poisson-sampled Gaussian); Wang, Balle and Kasiviswanathan 2019
(without replacement); Canonne, Kamath and Steinke 2020 and Asoodeh et al. 2021 (conversion to
(ε, δ)).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.special import gammaln, logsumexp

from forethought.accounting.dominating_pair import Array
from forethought.accounting.interval import bisected
from forethought.accounting.theorems import all_uncorrelated
from forethought.values import mechanism as kinds
from forethought.values.checks import real, reals, settle

# Small fractional orders matter for large ε, large orders for small ε. A minimum over any grid is
# a valid bound.
ORDERS: tuple[float, ...] = (
    *(1 + x / 20 for x in range(1, 20)),
    *(x / 4 for x in range(8, 48)),
    *map(float, range(12, 64)),
    *(float(round(64 * 2 ** (x / 4))) for x in range(0, 21)),
)

# Factor on all curves, more than the relative error (about 1e-13) of quadrature and logarithms.
LIFT = 1 + 1e-11
# Of noise outside these, the divergence without sampling is used: integrals would take as many
# points as memory has, or leave the doubles.
LEAST, MOST = 0.015, 1e100


@dataclass(frozen=True)
class RenyiCurve:
    """Bounds ``values[i]`` on the Rényi divergence at ``orders[i]``.

    Args:
        orders: strictly ascending, above 1.
        values: at least 0, one for each order.

    Raises:
        ValueError: the lengths differ, or orders or values are not as above.
    """

    orders: tuple[float, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        orders = reals("order", self.orders, above=1)
        values = tuple(float(value) for value in self.values)
        if not orders or len(orders) != len(values):
            raise ValueError(
                f"a curve needs one value per order: {len(orders)} orders, {len(values)} values"
            )
        if any(left >= right for left, right in pairwise(orders)):
            raise ValueError("orders must be strictly ascending")
        if any(math.isnan(value) or value < 0 for value in values):
            raise ValueError("Rényi divergences are at least 0 and never NaN")
        settle(self, orders=orders, values=values)

    def __add__(self, other: RenyiCurve) -> RenyiCurve:
        """Adaptive composition (Mironov 2017, Proposition 1); ValueError if the orders differ."""
        if self.orders != other.orders:
            raise ValueError("curves compose at equal orders only: compute both at the same grid")
        total = tuple(a + b for a, b in zip(self.values, other.values, strict=True))
        return RenyiCurve(self.orders, total)

    def times(self, rounds: int) -> RenyiCurve:
        """The curve of ``rounds`` equal releases."""
        return RenyiCurve(self.orders, tuple(rounds * value for value in self.values))

    def epsilon(self, delta: float) -> float:
        """An ε at which the mechanism is (ε, δ)-DP: the least optimal conversion over the orders.

        Source: Asoodeh et al. 2021, Theorem 2 (binary reduction by data processing).
        """
        target = real("delta", delta, above=0, below=1)
        # The optimal conversion is only a little below the closed one, so the best order is among
        # the best few of the closed one; a minimum over fewer orders is still a valid bound.
        quick = canonne_epsilon(np.array(self.orders), np.array(self.values), target)
        best = np.argsort(quick, kind="stable")[:4]
        return min(self._epsilon_at(target, self.orders[i], self.values[i]) for i in best)

    @staticmethod
    def _epsilon_at(delta: float, order: float, rdp: float) -> float:
        if rdp == 0 or math.isinf(rdp):
            return rdp
        high = float(canonne_epsilon(np.array([order]), np.array([rdp]), delta)[0])
        if binary_moment(order, 0.0, delta) > (order - 1) * rdp:
            return 0.0

        def below(epsilon: float) -> bool:
            return binary_moment(order, epsilon, delta) <= (order - 1) * rdp

        return bisected(below, 0.0, high, 1e-12, 60)[1] * LIFT

    def delta(self, epsilon: float) -> float:
        """A δ at which the mechanism is (ε, δ)-DP (Canonne, Kamath and Steinke 2020, Prop. 12)."""
        eps = real("epsilon", epsilon, least=0)
        orders, values = np.array(self.orders), np.array(self.values)
        log_delta = (orders - 1) * (values - eps + np.log1p(-1 / orders)) - np.log(orders)
        # δ² ≤ 1 − e^(−D) for every order (Bretagnolle and Huber), better at small divergences.
        with np.errstate(divide="ignore"):
            huber = 0.5 * np.log(-np.expm1(-values))
        smallest = float(np.min(np.minimum(log_delta, huber)))
        return min(1.0, math.exp(smallest) * LIFT)


def canonne_epsilon(orders: Array, values: Array, delta: float) -> Array:
    """ε at each order: D + ln(1 − 1/α) − ln(δ α)/(α − 1), at least 0.

    Source: Canonne, Kamath and Steinke 2020, Proposition 12.
    """
    epsilon = values + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
    return np.asarray(np.maximum(epsilon, 0.0))


def binary_moment(order: float, epsilon: float, delta: float) -> float:
    """Least (α − 1) D_α(Bern(p) ‖ Bern(q)) over p − e^ε q = δ, or a little less by rounding.

    By data processing with the event {dP > e^ε dQ}, a mechanism whose divergence is below this has
    a smaller δ at ε (Asoodeh et al. 2021, Theorem 2).
    """
    # q ranges over (0, (1 − δ)e^−ε]; the moment is convex in q. Golden-section search in log q.
    top = high = math.log1p(-delta) - epsilon
    low = top + math.log(delta) + math.log(min(order - 1, 1.0)) - 50

    def moment(log_q: float) -> float:
        q, rest = math.exp(log_q), -math.expm1(log_q)
        p = min(delta + math.exp(epsilon + log_q), 1.0)
        first = order * math.log(p) + (1 - order) * log_q
        lost = _LOST * (1 + order * (epsilon - math.log(p) - 2 * log_q))
        if first > 0.5:
            left = -math.inf if p == 1 else order * math.log1p(-p)
            return float(np.logaddexp(first, left + (1 - order) * math.log(rest))) - lost
        # A little more than 0, as the logarithm of 1 and two parts that are not negative.
        moved = delta + math.expm1(epsilon) * q
        if moved < 1e100 * q:
            part = q * _above_tangent(order, moved / q)
        else:
            part = math.exp(first) * (1 - lost) - order * p
        return math.log1p(part + rest * _above_tangent(order, -moved / rest))

    ratio = (math.sqrt(5) - 1) / 2
    a, b = high - ratio * (high - low), low + ratio * (high - low)
    at_a, at_b = moment(a), moment(b)
    while high - low > 1e-7 / order:
        if at_a <= at_b:
            high, b, at_b = b, a, at_a
            a = high - ratio * (high - low)
            at_a = moment(a)
        else:
            low, a, at_a = a, b, at_b
            b = low + ratio * (high - low)
            at_b = moment(b)
    return min(at_a, at_b, moment(top))


# More than the relative rounding error of a power, for each unit of its exponent.
_LOST = 2.0**-50


def _above_tangent(order: float, x: float) -> float:
    """(1 + x)^α − 1 − αx, which is at least 0, or a little less by rounding; x ≥ −1."""
    if x <= -1:
        return order - 1
    if order * abs(x) < 0.1:  # the difference would be lost in rounding: its power series
        total = term = order * (order - 1) * x * x / 2
        for power in range(3, 22):
            term *= (order - power + 1) * x / power
            total += term
        return total * (1 - 16 * _LOST)
    exponent = min(order * math.log1p(x), 700.0)
    grown = math.expm1(exponent)
    lost = _LOST * (abs(grown) + (1 + grown) * abs(exponent) + order * abs(x))
    return max(grown - order * x - lost, 0.0)


def gaussian_rdp(noise: float, orders: Sequence[float]) -> RenyiCurve:
    """The Gaussian mechanism: α/(2σ²), with σ = ``noise`` in units of the sensitivity."""
    sigma = real("noise", noise, least=0)
    # Divided twice, since the square of a huge or tiny σ is no finite number above 0.
    values = (math.inf if sigma == 0 else order / 2 / sigma / sigma for order in orders)
    return RenyiCurve(tuple(orders), tuple(values))


def poisson_rdp(rate: float, noise: float, orders: Sequence[float]) -> RenyiCurve:
    """One Poisson-sampled Gaussian release, the record present against absent.

    D_α((1 − q)N(0, σ²) + qN(1, σ²) ‖ N(0, σ²)), which is the larger of the two directions
    (Mironov, Talwar and Zhang 2019, Theorems 4 and 5). The trapezoidal rule integrates it at any
    order; its error decreases exponentially for this analytic integrand. The known series with
    terms of alternating sign is not needed.

    Args:
        rate: q in (0, 1].
        noise: σ in units of the sensitivity.
        orders: each above 1.
    """
    q, sigma = real("rate", rate, above=0, most=1), real("noise", noise, least=0)
    if not LEAST <= sigma <= MOST or q == 1:  # sampling only lowers the divergence
        return gaussian_rdp(sigma, orders)
    step = _step(sigma)
    values = []
    for order in orders:
        z = np.arange(-12 * sigma, order + 12 * sigma + step, step)
        tilt = (2 * z - 1) / (2 * sigma**2)
        log_weight = _log_weight(z, sigma, step)
        log_excess = float(logsumexp(_log_convexity_gap(q, tilt, order) + log_weight))
        values.append(LIFT * float(np.logaddexp(0.0, log_excess)) / (order - 1))
    # D_α does not decrease in α, so the value at a higher order bounds every lower one.
    monotone = np.minimum.accumulate(np.array(values)[::-1])[::-1]
    return RenyiCurve(tuple(orders), tuple(monotone))


def _step(sigma: float) -> float:
    # The branch point nearest the real line is at Im z = πσ²: this step leaves errors below 1e-16.
    return min(sigma / 4, sigma**2 / 2)


def _log_weight(z: Array, sigma: float, step: float) -> Array:
    log_norm = math.log(step / (sigma * math.sqrt(2 * math.pi)))
    return np.asarray(-(z**2) / (2 * sigma**2) + log_norm)


def _log_convexity_gap(rate: float, tilt: Array, order: float) -> Array:
    """ln((1 + u)^α − 1 − αu), u = q(e^x − 1): its mean is A_α − 1, and it is never negative."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        large = math.log(rate) + tilt  # log u, up to rounding
        u = np.where(tilt < 500, rate * np.expm1(np.minimum(tilt, 500.0)), np.exp(large))
        log_ratio = np.where((tilt < 500) | (large < 30), np.log1p(u), large)
        power = order * log_ratio
        direct = np.log(np.expm1(np.minimum(power, 300.0)) - order * u)
        # For a large power, (1 + u)^α is an upper bound that is exact up to rounding.
        gap = np.where(power > 60, power, direct)
        # Near u = 0 the direct form cancels; the Taylor series does not.
        series = 1 + (order - 2) * u / 3 * (1 + (order - 3) * u / 4 * (1 + (order - 4) * u / 5))
        small = math.log(order * (order - 1) / 2) + 2 * np.log(np.abs(u)) + np.log(series)
        return np.asarray(np.where(np.abs(order * u) < 1e-3, small, gap))


def exchange_rdp(rate: float, noise: float, orders: Sequence[float]) -> RenyiCurve:
    """One sampled release in which a hit replaces one contribution by another.

    The differing record is in the sample with probability ``rate``. This covers sampling without
    replacement under any adjacency, and Poisson sampling under replace-one: the
    outputs are (1 − q)A + qB against (1 − q)A + qB′ with all three within the sensitivity.
    Source: Wang, Balle and Kasiviswanathan 2019, Theorems 9 and 27, at integer orders; between them
    by convexity of (α − 1)D_α (Corollary 10).

    Args:
        rate, noise, orders: as in :func:`poisson_rdp`.
    """
    q, sigma = real("rate", rate, above=0, most=1), real("noise", noise, least=0)
    if not LEAST <= sigma <= MOST or q == 1:  # sampling only lowers the divergence
        return gaussian_rdp(sigma, orders)
    wanted = sorted({whole for order in orders for whole in (math.floor(order), math.ceil(order))})
    cumulants = _exchange_cumulants(q, sigma, wanted)
    unamplified = np.array(gaussian_rdp(sigma, orders).values)
    values = []
    for order in orders:
        low, high = math.floor(order), math.ceil(order)
        share = order - low
        bound = (1 - share) * cumulants[low] + share * cumulants[high]
        values.append(LIFT * bound / (order - 1))
    return RenyiCurve(tuple(orders), tuple(np.minimum(values, unamplified)))


def _exchange_cumulants(rate: float, sigma: float, wanted: list[int]) -> dict[int, float]:
    most = max(wanted)
    j = np.arange(2, most + 1)
    # 2 e^((j−1)ε(j)) is the j-th term of Theorem 9 when ε(∞) = ∞ ...
    plain = math.log(2) + j * (j - 1) / (2 * sigma**2)
    # ... and 4 sqrt(B(2⌊j/2⌋) B(2⌈j/2⌉)) of Theorem 27, B(l) = E[(dP/dQ − 1)^l] for even l, an
    # integral of a positive function. It can only be smaller for moderate moments.
    reach = min(most, 64)
    moments = {length: _even_moment(sigma, length) for length in range(2, reach + 2, 2)}
    finer = [
        math.log(4) + 0.5 * (moments[2 * (k // 2)] + moments[2 * -(-k // 2)])
        for k in range(2, reach + 1)
    ]
    terms = np.concatenate([np.minimum(plain[: len(finer)], finer), plain[len(finer) :]])
    terms = terms + j * math.log(rate)
    cumulants = {1: 0.0}
    for order in wanted:
        if order >= 2:
            k = j[: order - 1]
            choose = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
            cumulants[order] = float(np.logaddexp(0.0, logsumexp(terms[: order - 1] + choose)))
    return cumulants


def _even_moment(sigma: float, length: int) -> float:
    """ln E[(e^x − 1)^l] for even l under N(0, σ²), x = (2z − 1)/(2σ²)."""
    step = _step(sigma)
    z = np.arange(-12 * sigma, length + 12 * sigma + step, step)
    x = (2 * z - 1) / (2 * sigma**2)
    with np.errstate(divide="ignore", over="ignore"):
        log_abs = np.where(x < 500, np.log(np.abs(np.expm1(np.minimum(x, 500.0)))), x)
    return float(logsumexp(length * log_abs + _log_weight(z, sigma, step)))


def rdp(mechanism: kinds.Mechanism, orders: Sequence[float] = ORDERS) -> RenyiCurve:
    """The Rényi curve of a mechanism for one differing record.

    Poisson sampling under add-or-remove and zero-out uses :func:`poisson_rdp`. Poisson sampling
    under replace-one and sampling without replacement use :func:`exchange_rdp`. A full batch, and
    each epoch of shuffling and of random allocation (the record is in one batch of it), use the
    curve of :func:`gaussian_rdp`.

    Raises:
        UnsupportedMechanismError: no Rényi curve is known for a part.
        ValueError: an order is at or below 1.
    """
    grid = reals("order", orders, above=1)
    total = RenyiCurve(grid, (0.0,) * len(grid))
    for part in all_uncorrelated(mechanism):
        total = total + _release(part, mechanism.adjacency, grid).times(part.releases)
    return total


def _release(
    part: kinds.Rounds, adjacency: kinds.Adjacency, orders: tuple[float, ...]
) -> RenyiCurve:
    if part.sampling.kind not in CURVES:
        known = ", ".join(kinds.SAMPLINGS[kind].__name__ for kind in CURVES)
        text = (
            f"no Rényi curve is known for {type(part.sampling).__name__} sampling, only for {known}"
        )
        raise kinds.UnsupportedMechanismError(f"{text}. Account exactly, with no filter or search")
    noise, hits = part.noise_multiplier / part.sensitivity(adjacency), part.sampling.hits(1)
    if isinstance(hits, kinds.Hypergeometric):
        return exchange_rdp(hits.drawn / hits.examples, noise, orders)
    if hits.trials != 1:
        text = f"a record is in a batch as often as {hits}: this Rényi curve is of one drawn once"
        raise kinds.UnsupportedMechanismError(f"{text} at most. Account for the mechanism exactly")
    # Each of the two records is nearer to the absent record than to the other one, so the
    # sensitivity 2 covers all three pairs.
    curve = exchange_rdp if adjacency == "replace-one" else poisson_rdp
    return curve(hits.chance, noise, orders)


_DRAWN = (
    "(Mironov, Talwar and Zhang 2019, Theorems 4 and 5; under replace-one Wang, Balle and "
    "Kasiviswanathan 2019, Theorem 27)"
)
_EPOCH = "one Gaussian for each started epoch"

# Kind of sampling → the theorem on one release. Other kinds have no Rényi accounting: :func:`rdp`
# refuses them.
CURVES = {
    "poisson": f"Poisson-sampled Gaussian {_DRAWN}",
    "without-replacement": "sampling without replacement (Wang, Balle and Kasiviswanathan 2019, "
    "Theorems 9 and 27)",
    "cyclic-poisson": f"rounds of one part, each Poisson-sampled {_DRAWN}",
    "random-allocation": f"{_EPOCH}, by joint convexity (Mironov 2017, Proposition 7)",
    "shuffled": f"{_EPOCH} (Mironov 2017, Proposition 7)",
    "full-batch": "Gaussian (Mironov 2017, Proposition 7)",
}


def zcdp(mechanism: kinds.Mechanism) -> float:
    """ρ of zero-concentrated DP: D_α ≤ ρα at every order α > 1 (Bun and Steinke 2016).

    Sampling does not amplify ρ, since it has no effect at high orders: each release counts
    (Δ/σ)²/2, each shuffled epoch once. ρ is ∞ without noise.
    """
    rho = 0.0
    # A group of 2 charges every turn of correlated noise, since sampling does not count here.
    for part in all_uncorrelated(mechanism, 2):
        if part.noise_multiplier == 0:
            return math.inf
        shift = part.sensitivity(mechanism.adjacency) / part.noise_multiplier
        rho += part.releases * shift * shift / 2
    return rho
