"""Integrals over the line with a proven error: Gauss-Legendre in panels, each with its own bound.

A round's transform is M(s) = ∫ φ R^a S^b with exponents linear in s (R, S: the densities of the
pair's two sides over φ). The integrand is analytic where neither mixture vanishes, and in an
ellipse around a panel it is bounded by the values at the panel's centre: with posterior mean m and
variance at most V of the shift, |R(x + iy)| lies between R(x)(1 - V y²/2) and R(x), and
|arg R(x + iy) - m y| ≤ asin(V y²/2). The rule's error is then at most 64/15 · sup|f| ρ^(-2(n-1)) /
(1 - ρ^-2) times the half width (Trefethen, Approximation Theory and Approximation Practice,
Theorem 19.3).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from forethought.accounting.pld.mixtures import EPS, Array, Mixture

_ORDER = 20
_NODES, _WEIGHTS = (np.asarray(x) for x in np.polynomial.legendre.leggauss(_ORDER))
_RHO = np.array([1.25, 1.6, 2.1, 2.8, 3.8, 5.2, 7.5])[:, None, None]
_LOG_NORMAL = 0.5 * math.log(2 * math.pi)
_WIDTH = 1.5
_MOST_PANELS = 4000
_SPLITS = 24


class UnresolvedError(ArithmeticError):
    """No affordable set of panels gives the wanted accuracy."""


class Base(NamedTuple):
    """The Gaussian under which a round's integrals are taken, one for each row.

    Args:
        mean, variance: shape (rows, 1), or (1, 1) for all rows alike.
    """

    mean: Array
    variance: Array

    @property
    def deviation(self) -> Array:
        """Standard deviations."""
        return np.asarray(np.sqrt(self.variance))

    def log(self, x: Array) -> Array:
        """log of the density at ``x``, rows by point."""
        away = x - self.mean
        scale = _LOG_NORMAL + 0.5 * np.log(self.variance)
        return np.asarray(-0.5 * away * away / self.variance - scale)


STANDARD = Base(np.zeros((1, 1)), np.ones((1, 1)))


class Measure(NamedTuple):
    """One of the integrals that a transform is made of: ∫ φ R^(up + sign·s) S^(-sign·s).

    The privacy loss is ``sign``·(log R - log S), and e^(s loss) its tilt.
    """

    up: float
    sign: float

    def exponents(self, tilt: float) -> tuple[float, float]:
        """Real exponents of R and of S at the real part ``tilt`` of s."""
        return self.up + self.sign * tilt, -self.sign * tilt


FORWARD = Measure(1.0, 1.0)
# The mirror image of a symmetric pair: losses below 0, of which Q holds the mass.
MIRROR = Measure(0.0, -1.0)


class Demand(NamedTuple):
    """Where a transform is wanted: Re s = ``tilt``, |Im s| ≤ ``frequency``; how well (log)."""

    tilt: float
    frequency: float
    log_error: float


class Rule(NamedTuple):
    """Nodes and weights on the line, and the log of a bound on the error at each demand."""

    nodes: Array
    weights: Array
    log_errors: Array


def rule(
    up: Mixture,
    down: Mixture,
    measures: Sequence[Measure],
    demands: Sequence[Demand],
    start: Array | None = None,
    cut: float = math.inf,
    base: Base = STANDARD,
) -> Rule:
    """Panels on which every measure meets every demand, for every row.

    Args:
        up, down: the two sides of the pairs.
        measures: what is integrated.
        demands: with absolute errors.
        start: where the integrals begin, one for each row: nodes and weights are then relative to
            it and the first panel begins at 0. None: the whole line.
        cut: where the integrals end, if not at infinity.
        base: what R and S are densities over, if not N(0, 1).

    Raises:
        UnresolvedError: too many panels would be needed.
    """
    cases = [(m, d, *m.exponents(d.tilt)) for m in measures for d in demands]
    a, d = up.largest, down.largest
    margin = math.sqrt(2 * max(30.0, 20 - min(x.log_error for x in demands))) * base.deviation
    right = max(
        float((base.mean + base.variance * (max(r, 0) * a + max(-s, 0) * d) + margin).max())
        for _, _, r, s in cases
    )
    left = min(
        float((base.mean - base.variance * (max(-r, 0) * a + max(s, 0) * d) - margin).min())
        for _, _, r, s in cases
    )
    high, low = right, left
    offset = np.zeros((up.shifts.shape[0], 1)) if start is None else start[:, None]
    whole = high <= cut
    high = min(high, cut)
    if start is not None:
        low, high = 0.0, high - float(start.min())
    count = math.ceil((high - low) / (_WIDTH * min(1.0, float(base.deviation.max()))))
    if not count <= _MOST_PANELS:
        raise UnresolvedError(f"{count} panels")
    edges = np.linspace(low, high, count + 1)
    centres, halves = (edges[1:] + edges[:-1]) / 2, (edges[1:] - edges[:-1]) / 2
    errors = np.full(len(demands), -np.inf)
    share = math.log(64.0)
    kept: list[tuple[Array, Array]] = []
    accepted = 0
    for _ in range(_SPLITS):
        sup, bound = _bounds(up, down, cases, centres, halves, offset, base)
        wanted = np.array([case[1].log_error - share for case in cases])[:, None]
        dropped = (sup <= wanted).all(axis=0)
        good = ~dropped & (bound <= wanted).all(axis=0)
        for settled, cost in ((dropped, sup), (good, bound)):
            if settled.any():
                for i in range(len(cases)):
                    total = float(np.logaddexp.reduce(cost[i, settled]))
                    at = i % len(demands)
                    errors[at] = np.logaddexp(errors[at], total)
        kept.append((centres[good], halves[good]))
        accepted += int(good.sum())
        rest = ~(dropped | good)
        if not rest.any():
            break
        if accepted + 2 * int(rest.sum()) > _MOST_PANELS:
            raise UnresolvedError(f"more than {_MOST_PANELS} panels")
        c, h = centres[rest], halves[rest] / 2
        centres, halves = np.concatenate([c - h, c + h]), np.concatenate([h, h])
    else:
        raise UnresolvedError("panels too narrow")
    centre = np.concatenate([c for c, _ in kept])
    half = np.concatenate([h for _, h in kept])
    order = np.argsort(centre)
    centre, half = centre[order], half[order]
    ends = (high + offset if whole else None, low + offset if start is None else None)
    tails = _tails(up, down, cases, ends, base)
    for i in range(len(cases)):
        at = i % len(demands)
        errors[at] = np.logaddexp(errors[at], tails[i])
    nodes = (centre[:, None] + half[:, None] * _NODES).ravel()
    weights = (half[:, None] * _WEIGHTS).ravel()
    return Rule(nodes, weights, errors + 1e-9)


def _bounds(
    up: Mixture,
    down: Mixture,
    cases: list[tuple[Measure, Demand, float, float]],
    centres: Array,
    halves: Array,
    offset: Array,
    base: Base,
) -> tuple[Array, Array]:
    """log of ∫|f| on each panel and of the rule's error there; rows of the result by case."""
    x = centres + offset
    (log_r, m, _), (log_s, k, _) = up.at(x), down.at(x)
    # Ellipse with foci at the panel's ends; ρ = 1 is the panel itself.
    rho = np.concatenate([np.ones((1, 1, 1)), _RHO])
    wide, tall = halves * (rho + 1 / rho) / 2, halves * (rho - 1 / rho) / 2
    vr, mr = _posterior(up, m, wide)
    vs, ms = _posterior(down, k, wide)
    dip_r, dip_s = vr * tall * tall / 2, vs * tall * tall / 2
    analytic = (dip_r < 0.9) & (dip_s < 0.9)
    dip_r, dip_s = np.minimum(dip_r, 0.9), np.minimum(dip_s, 0.9)
    turn = tall * (mr + ms) + np.arcsin(dip_r) + np.arcsin(dip_s)
    log_rho = np.log(_RHO)
    rate = (
        math.log(64 / 15)
        - 2 * (_ORDER - 1) * log_rho
        - np.log1p(-np.exp(-2 * log_rho))
        + np.log(halves)
    )
    density, pull = base.log(x), (base.mean - x) / base.variance
    sup, bound = [], []
    for _, demand, r, s in cases:
        level = density + r * log_r + s * log_s
        slope = np.abs(pull + r * m - s * k)
        bend = np.maximum(-0.5 / base.variance + 0.5 * (max(r, 0) * vr + max(s, 0) * vs), 0)
        size = level + slope * wide + bend * wide * wide
        sup.append((size[0] + np.log(2 * halves)).max(axis=0))
        size = size + growth(tall, base.variance)
        size = size + min(r, 0) * np.log1p(-dip_r) + min(s, 0) * np.log1p(-dip_s)
        size = np.where(analytic, size + demand.frequency * turn, np.inf)
        bound.append((size[1:] + rate).min(axis=0).max(axis=0))
    return np.array(sup), np.array(bound)


def growth(height: Array, variance: Array) -> Array:
    """Logarithm of how much larger a normal density is so high above the line than on it.

    |e^(−(x + iy − m)²/2v)| = e^(−(x − m)²/2v) · e^(y²/2v).
    """
    rise: Array = height * height / (2 * variance)
    return rise


def _posterior(side: Mixture, mean: Array, reach: Array) -> tuple[Array, Array]:
    """Bounds on the posterior variance and mean of the shift within ``reach`` of the points."""
    most, a = side.spread, side.largest
    # Both the mean and what it lacks of the largest shift change at a rate of at most ``a`` times
    # themselves.
    grow = np.exp(np.minimum(a * reach, 50.0))
    high = np.minimum(np.minimum(mean + most * reach, mean * grow), a)
    lacks = np.minimum((a - mean) + most * reach, (a - mean) * grow)
    lacks = np.maximum(lacks, 4 * EPS * a)
    return np.minimum(most, a * np.minimum(high, lacks)), high


def _tails(
    up: Mixture,
    down: Mixture,
    cases: list[tuple[Measure, Demand, float, float]],
    ends: tuple[Array | None, Array | None],
    base: Base,
) -> list[float]:
    """log of ∫|f| beyond the outermost panels: the shifts bound how fast f can grow there."""
    a, d = up.largest[:, 0], down.largest[:, 0]
    high, low = ends
    found = []
    for _, _, r, s in cases:
        total = -np.inf
        for end, slope in (
            (high, np.maximum(r, 0) * a + np.maximum(-s, 0) * d),
            (low, np.maximum(-r, 0) * a + np.maximum(s, 0) * d),
        ):
            if end is None:
                continue
            size = base.log(end) + r * up.at(end).log + s * down.at(end).log
            room = (np.abs(end - base.mean) / base.variance)[:, 0] - slope
            total = np.logaddexp(total, float((size[:, 0] - np.log(room)).max()))
        found.append(total)
    return found
