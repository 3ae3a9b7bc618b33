"""Trade-off functions: the smallest type II error an attacker can have at each type I error.

**Half of a convex trade-off function as linear pieces, exact under composition of functions.**

A half holds the points (α, power) where the slope of the power is at least 1, with α ascending from
0: there false positives are rarer than false negatives. The other half is the same for the inverse
function. The power 1 − f is stored instead of f, so that rounding is relative to small powers.

**Trade-off functions.** A :class:`TradeOff` f is stored as its two privacy profiles on ε ≥ 0: δ(ε)
= sup_α 1 − e^ε α − f(α) for the pair of distributions in either order. Then f(α) = sup_ε 1 − δ(ε) −
e^ε α, where *any* ε gives a value on or below f, so numerical error can only make a bound weaker.
The result is convex by construction, profiles of mixtures are mixtures of profiles, and the inverse
swaps the two profiles. Source: Dong, Roth and Su 2022; for mixtures and envelopes van Dijk et al.,
"Generalizing DP-SGD with Shuffling and Batch Clipping" (Definitions 5.2 to 5.4, Lemmas B.1 and
B.5).

**Envelopes** bound mixtures of Gaussian trade-off functions of which only one mass and one μ are
known: the same source, Definitions 5.3 and 5.4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import overload

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri

from forethought.accounting import exact
from forethought.accounting.dominating_pair import Array, Pair, gaussian_delta_above
from forethought.accounting.exact import all_integrable, single_changes
from forethought.accounting.interval import bisected, reached
from forethought.accounting.theorems import parts, unsampled_distance
from forethought.values.checks import real, whole
from forethought.values.mechanism import Mechanism

Profile = Callable[[Array], Array]

PIECES = 2000
# δ below this counts as 0 when a profile is replaced by its support lines.
NEGLIGIBLE = 1e-22


@dataclass(frozen=True)
class Half:
    """Points (alphas[i], powers[i]) of a concave power; both ascend, alphas[0] = 0; shape (n,)."""

    alphas: Array
    powers: Array

    def delta(self, epsilon: Array) -> Array:
        """δ at each ``epsilon`` ≥ 0: sup over the points of power − e^ε α."""
        with np.errstate(divide="ignore"):
            steepness = np.log(np.diff(self.powers)) - np.log(np.diff(self.alphas))
        # The power is concave: its slope decreases, and the best point is where it passes e^ε.
        best = np.searchsorted(-steepness, -epsilon, side="left")
        first = self.alphas[best] == 0
        with np.errstate(over="ignore", invalid="ignore"):
            lost = np.exp(epsilon) * self.alphas[best]
        # A bound on the difference's rounding is added; at α = 0 there is no rounding.
        value = self.powers[best] * (1 + 1e-15) - lost
        return np.asarray(np.where(first, self.powers[0], np.maximum(value, self.powers[0])))


def half_below(profile: Profile) -> Half:
    """The support lines 1 − δ(ε_j) − e^{ε_j} α of a profile δ on ε ≥ 0, as points of the power.

    Their maximum lies on or below the trade-off function, so the approximation is a lower bound.
    """
    epsilon = _grid(profile)
    delta = np.minimum.accumulate(profile(epsilon))
    # The lines that no others cover are the corners of δ's convex hull over e^ε, and two of them
    # meet at the hull's slope between their corners.
    kept = _hull(np.expm1(epsilon), -delta)
    knots = np.diff(kept.powers) / np.diff(kept.alphas)
    corners = (kept.alphas[:-1] + 1) * knots - kept.powers[:-1]
    alphas = np.concatenate([[0.0], knots[::-1]])
    powers = np.concatenate([-kept.powers[-1:], corners[::-1]])
    distinct = np.concatenate([[True], np.diff(alphas) > 0])
    return Half(alphas[distinct], np.maximum.accumulate(powers[distinct]))


def _grid(profile: Profile) -> Array:
    def at(epsilon: float) -> float:
        return float(profile(np.array([epsilon]))[0])

    # Beyond its reach a profile is negligible or constant (mass that is disclosed at every ε).
    reach = 700.0
    while reach > 1e-12 and at(reach / 2) <= max(NEGLIGIBLE, (1 + 1e-9) * at(reach)):
        reach /= 2
    return np.asarray(reach * np.linspace(0.0, 1.0, PIECES) ** 1.5)


def repeated(left: Half, right: Half, times: int) -> Half:
    """Left half of the power F = 1 − f composed ``times`` times with itself: F∘…∘F."""
    # The whole power from both halves: the inverse's (a, p) is the point (α, β) = (1 − p, a) of f.
    x = np.concatenate([left.alphas, (1 - right.powers)[::-1], [1.0]])
    y = np.concatenate([left.powers, (1 - right.alphas)[::-1], [1.0]])
    x, y = (np.maximum.accumulate(np.clip(one, 0, 1)) for one in (x, y))
    distinct = np.concatenate([[True], np.diff(x) > 0])
    x, y = x[distinct], y[distinct]
    alphas, powers = x, y
    for _ in range(times - 1):
        # New corners are where the power so far takes the α of a corner of F.
        inside = (x > powers[0]) & (x < powers[-1])
        corners = np.interp(x[inside], powers, alphas)
        joined = np.unique(np.concatenate([alphas, corners]))
        powers = np.interp(np.interp(joined, alphas, powers), x, y)
        alphas = joined
    with np.errstate(divide="ignore", invalid="ignore"):
        steep = np.diff(powers) >= np.diff(alphas)
    ends = 1 + (int(np.argmin(steep)) if not steep.all() else len(steep))
    return _hull(alphas[:ends], powers[:ends])


def _hull(alphas: Array, powers: Array) -> Half:
    """Least concave power through or above the points, up to slope 1."""
    kept: list[int] = []
    for j in range(len(alphas)):
        while len(kept) > 1:
            a, b = kept[-2], kept[-1]
            first = (powers[b] - powers[a]) / (alphas[b] - alphas[a])
            second = (powers[j] - powers[b]) / (alphas[j] - alphas[b])
            if second < first:
                break
            kept.pop()
        kept.append(j)
    return Half(alphas[kept], powers[kept])


# Slopes beyond e^±700 leave the range of a double; the slopes inside bound f from below.
REACH = 700.0

# :func:`tradeoff` evaluates a mechanism's certified profile at POINTS equally spaced ε from 0 to
# the ε of δ = TAIL.
POINTS = 40
TAIL = 1e-8


@dataclass(frozen=True)
class TradeOff:
    """f(α), convex and non-increasing on [0, 1], with f(α) ≤ 1 − α.

    Build one with the functions of this module.

    Attributes:
        forward: δ(ε) of f for ε ≥ 0, from array to array.
        backward: the same for f's inverse.
        floor: a μ for which G_μ ≤ f is known by a theorem; ∞ if none is.
        over: the curves of a pointwise maximum, whose profiles have more than one peak.
    """

    forward: Profile = field(repr=False)
    backward: Profile = field(repr=False)
    floor: float = math.inf
    over: tuple[TradeOff, ...] = field(default=(), repr=False)

    @overload
    def __call__(self, alpha: float) -> float: ...
    @overload
    def __call__(self, alpha: Sequence[float] | Array) -> Array: ...
    def __call__(self, alpha: ArrayLike) -> Array | float:
        """Type II errors at the type I errors ``alpha`` (in [0, 1], any shape); the same shape.

        Raises:
            ValueError: an error rate outside [0, 1].
        """
        points = np.asarray(alpha, dtype=float)
        if np.any(~((points >= 0) & (points <= 1))):
            raise ValueError(f"a type I error is between 0 and 1, not {alpha!r}")
        flat = points.reshape(-1)
        value = self._convex(flat)
        if math.isfinite(self.floor):
            value = np.maximum(value, gaussian_curve(flat, self.floor))
        return float(value[0]) if points.ndim == 0 else value.reshape(points.shape)

    def _convex(self, flat: Array) -> Array:
        if self.over:
            return np.asarray(np.max([c._convex(flat) for c in self.over], axis=0))
        # The value is concave in e^ε, so it has one peak in ε: golden-section search.
        ratio = (math.sqrt(5) - 1) / 2
        low, high = np.full(flat.shape, -REACH), np.full(flat.shape, REACH)
        a, b = high - ratio * (high - low), low + ratio * (high - low)
        at_a, at_b = self._line(a, flat), self._line(b, flat)
        best = np.maximum(at_a, at_b)
        for _ in range(72):
            left = at_a >= at_b
            high, low = np.where(left, b, high), np.where(left, low, a)
            new = np.where(left, high - ratio * (high - low), low + ratio * (high - low))
            value = self._line(new, flat)
            a, b, at_a, at_b = (
                np.where(left, new, b),
                np.where(left, a, new),
                np.where(left, value, at_b),
                np.where(left, at_a, value),
            )
            best = np.maximum(best, value)
        # The lines of slope 0 and of the steepest slope need no search.
        steepest = np.where(flat == 0, 1 - self.forward(np.array([REACH]))[0], 0.0)
        return np.asarray(np.clip(np.maximum(best, steepest) - 1e-15, 0.0, 1.0 - flat))

    def _line(self, epsilon: Array, alpha: Array) -> Array:
        """1 − δ(ε) − e^ε α, on or below f for every real ε."""
        size = np.abs(epsilon)
        up = 1 - self.forward(size) - np.exp(size) * alpha
        # δ(−ε) = 1 − e^−ε (1 − δ′(ε)) with δ′ of the reversed pair.
        down = np.exp(-size) * (1 - self.backward(size) - alpha)
        return np.asarray(np.where(epsilon >= 0, up, down))

    def delta(self, epsilon: float) -> float:
        """An upper bound on the smallest δ for which f ≥ f_{ε,δ}, for both orders of the pair.

        Raises:
            ValueError: ε below 0 or not finite.
        """
        at = np.array([real("epsilon", epsilon, least=0)])
        return float(min(1.0, max(self.forward(at)[0], self.backward(at)[0])))

    def epsilon(self, delta: float) -> float:
        """The smallest ε ≥ 0 with f ≥ f_{ε,δ}, rounded up; ∞ if it is above 700.

        Raises:
            ValueError: δ outside (0, 1).
        """
        target = real("delta", delta, above=0, below=1)
        if self.delta(0.0) <= target:
            return 0.0
        return reached(lambda at: self.delta(at) > target, 0.0, 1.0, REACH, steps=100)[1]

    def gaussian_mu(self, slack: float = 0.0) -> float:
        """A certified, small μ with G_μ(α + slack) − slack ≤ f(α) for all α.

        Without slack, G_μ lies below f. The far tail then determines μ: for a subsampled mechanism
        it is the μ without amplification, and ∞ if f(0) < 1. A slack such as 1e-6 (an error of that
        size in both error rates) gives the μ that matters to an attacker. Each linear piece of a
        lower bound of f is checked at its ends only, which suffices as G_μ is convex.

        Raises:
            ValueError: slack outside [0, 1).
        """
        give = real("slack", slack, least=0, below=1)
        needed = 0.0
        for profile in (self.forward, self.backward):
            half = half_below(profile)
            power = np.clip(half.powers - give, 0.0, 1.0)
            alpha = np.minimum(half.alphas + give, 1.0)
            # Points whose power is at most that of guessing allow any μ.
            left = power > alpha
            mu = ndtri(power[left]) - ndtri(alpha[left])
            needed = float(np.max(mu, initial=needed))
        return min(self.floor, needed * (1 + 1e-12))

    def inverse(self) -> TradeOff:
        """f⁻¹: type I and type II errors exchanged."""
        over = tuple(curve.inverse() for curve in self.over)
        return TradeOff(self.backward, self.forward, self.floor, over)

    def symmetrised(self) -> TradeOff:
        """min{f, f⁻¹}**: a bound for the pair in both orders."""
        return minimum(self, self.inverse())

    def group(self, size: int) -> TradeOff:
        """1 − (1 − f)^{∘size}: f for groups of records (Dong, Roth and Su 2022, Theorem 2.14).

        It is computed on linear pieces below f, hence below the true group curve. A Gaussian floor
        μ becomes size·μ.
        """
        if whole("group", size) == 1:
            return self
        left, right = half_below(self.forward), half_below(self.backward)
        forward = repeated(left, right, size).delta
        backward = repeated(right, left, size).delta
        curve = TradeOff(forward, backward, size * self.floor)
        return maximum(curve, gaussian(curve.floor)) if math.isfinite(curve.floor) else curve


def gaussian_curve(alpha: Array, mu: float) -> Array:
    """G_μ(α) = Φ(Φ⁻¹(1 − α) − μ), elementwise."""
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(alpha <= 0, 1.0, ndtr(ndtri(1 - alpha) - mu)))


def gaussian(mu: float) -> TradeOff:
    """G_μ = T(N(0, 1), N(μ, 1)): α → Φ(Φ⁻¹(1 − α) − μ), for μ ≥ 0."""
    size = real("mu", mu, least=0)

    def profile(epsilon: Array) -> Array:
        return gaussian_delta_above(epsilon, size)

    return TradeOff(profile, profile, size)


def from_epsilon_delta(epsilon: float, delta: float) -> TradeOff:
    """f_{ε,δ} = max{0, 1 − δ − e^ε α, e^−ε(1 − δ − α)}: a *maximum* (Wasserman and Zhou 2010)."""
    eps, size = real("epsilon", epsilon, least=0), real("delta", delta, least=0, most=1)
    corner = (1 - size) / (1 + math.exp(min(eps, REACH)))
    half = Half(np.array([0.0, corner]), np.array([size, 1 - corner]))
    if size == 1 or eps > REACH:  # steeper lines leave the doubles: 0 is below them
        half = Half(np.array([0.0, 1.0]), np.array([1.0, 1.0]))
    return TradeOff(half.delta, half.delta)


def from_profile(profile: Profile) -> TradeOff:
    """A symmetric f from δ(ε) on ε ≥ 0 (array to array, decreasing).

    f is a lower bound if ``profile`` is an upper bound.
    """
    return TradeOff(profile, profile)


def from_points(epsilons: ArrayLike, deltas: ArrayLike) -> TradeOff:
    """The symmetric f that a list of guarantees proves: (ε_j, δ_j)-DP for every j.

    Between the ε_j, δ is at most the chord over e^ε, since a profile is convex in e^ε; beyond the
    last ε_j it is at most the last δ_j.

    Args:
        epsilons: ascending from 0, shape (n,).
        deltas: in [0, 1], shape (n,).

    Raises:
        ValueError: ``epsilons`` do not ascend from 0, the lengths differ, or δ is outside [0, 1].
    """
    eps, values = np.asarray(epsilons, dtype=float), np.asarray(deltas, dtype=float)
    if eps.ndim != 1 or eps.shape != values.shape or len(eps) == 0:
        raise ValueError(f"one delta per epsilon: shapes {eps.shape} and {values.shape}")
    if eps[0] != 0 or np.any(~(np.diff(eps) > 0)):
        raise ValueError("epsilons must ascend strictly and begin with 0")
    if np.any(~((values >= 0) & (values <= 1))):
        raise ValueError("each delta lies between 0 and 1")
    values = np.minimum.accumulate(values)

    def profile(epsilon: Array) -> Array:
        at = np.asarray(epsilon, dtype=float)
        right = np.clip(np.searchsorted(eps, at, side="right"), 1, len(eps) - 1)
        left = right - 1
        # (e^ε - e^left)/(e^right - e^left), in powers that cannot overflow.
        share = np.expm1(eps[left] - at) / np.expm1(eps[left] - eps[right])
        share = np.clip(np.exp(np.minimum(at - eps[right], 0.0)) * share, 0.0, 1.0)
        share = np.where(at >= eps[-1], 1.0, share)
        return np.asarray((1 - share) * values[left] + share * values[right])

    if len(eps) == 1:
        return from_profile(lambda epsilon: np.full(np.shape(epsilon), values[0]))
    return from_profile(profile)


def through(alphas: ArrayLike, betas: ArrayLike) -> TradeOff:
    """The largest convex trade-off function below the points: the double conjugate of a list.

    It is linear between the points. So for points of a strictly convex f it lies above f between
    them; it equals f where f is linear.

    Args:
        alphas, betas: type I and type II errors in [0, 1], shape (n,).

    Raises:
        ValueError: the lengths differ, or an error rate is outside [0, 1].
    """
    x, y = np.asarray(alphas, dtype=float), np.asarray(betas, dtype=float)
    if x.ndim != 1 or x.shape != y.shape or len(x) == 0:
        raise ValueError(f"one beta per alpha: shapes {x.shape} and {y.shape}")
    if np.any(~((x >= 0) & (x <= 1) & (y >= 0) & (y <= 1))):
        raise ValueError("error rates lie between 0 and 1")
    # The halves of the largest convex function below the points and below α + β = 1.
    order = np.argsort(x, kind="stable")
    y = np.concatenate([[1.0], y[order], [0.0]])
    x, first = np.unique(np.concatenate([[0.0], x[order], [1.0]]), return_inverse=True)
    lowest = np.full(len(x), np.inf)
    np.minimum.at(lowest, first, y)
    hull = _hull(x, 1 - np.minimum.accumulate(lowest))
    steep = np.diff(hull.powers) >= np.diff(hull.alphas)
    turn = 1 + int(np.sum(steep))
    left = Half(hull.alphas[:turn], hull.powers[:turn])
    right = Half(1 - hull.powers[turn - 1 :][::-1], 1 - hull.alphas[turn - 1 :][::-1])
    if right.alphas[0] > 0:
        right = Half(np.append(0.0, right.alphas), np.append(right.powers[0], right.powers))
    return TradeOff(left.delta, right.delta)


def minimum(*curves: TradeOff) -> TradeOff:
    """min{f_1, …, f_n}**, exact: a bound if at least one of the curves is one; n ≥ 1."""
    if not curves:
        raise ValueError("a minimum needs at least one trade-off function")
    return _joined(curves, lambda each: np.max(each, axis=0), max(c.floor for c in curves))


def maximum(*curves: TradeOff) -> TradeOff:
    """max{f_1, …, f_n}: a bound if all curves are; f is exact, its δ an upper bound; n ≥ 1."""
    if not curves:
        raise ValueError("a maximum needs at least one trade-off function")
    floor = min(curve.floor for curve in curves)
    return replace(_joined(curves, lambda each: np.min(each, axis=0), floor), over=curves)


def _joined(
    curves: Sequence[TradeOff], join: Callable[[list[Array]], Array], floor: float
) -> TradeOff:
    """The trade-off function whose profile, in each direction, joins those of ``curves``."""

    def profile(direction: str) -> Profile:
        of_each = attrgetter(direction)
        return lambda epsilon: np.asarray(join([of_each(curve)(epsilon) for curve in curves]))

    return TradeOff(profile("forward"), profile("backward"), floor)


def mixture(weights: ArrayLike, curves: Sequence[TradeOff]) -> TradeOff:
    """inf{Σ q_i f_i(α_i) : Σ q_i α_i = α}: a mechanism that is drawn with weights q and disclosed.

    Source: Lemma B.1; profiles of mixtures are the mixtures of profiles, which is Lemma B.5 and
    Definition 5.2 for Gaussians. If the weights sum to less than 1, the rest discloses everything.

    Raises:
        ValueError: the lengths differ, a weight is negative, or the sum is above 1.
    """
    q = _weights(weights)
    if len(q) != len(curves):
        raise ValueError(f"one weight per curve: {len(q)} weights, {len(curves)} curves")
    rest = max(0.0, 1 - float(np.sum(q)))
    floor = math.inf if rest > 0 else max(curve.floor for curve in curves)
    return _joined(
        curves, lambda each: rest + sum(w * one for w, one in zip(q, each, strict=True)), floor
    )


def gaussian_mixture(weights: ArrayLike, mus: ArrayLike) -> TradeOff:
    """:func:`mixture` of G_{μ_i}, vectorised: Definition 5.2 with μ = c/σ.

    Args:
        weights, mus: q_i and μ_i, shape (n,).

    Raises:
        ValueError: the shapes differ, a weight is negative, or the sum is above 1.
    """
    q, sizes = _weights(weights), np.asarray(mus, dtype=float)
    if q.shape != sizes.shape:
        raise ValueError(f"one weight per mu: shapes {q.shape} and {sizes.shape}")
    rest = max(0.0, 1 - float(np.sum(q)))

    def profile(epsilon: Array) -> Array:
        at = np.asarray(epsilon, dtype=float)
        # Chunks of components bound the memory to a few megabytes.
        chunk = max(1, 400_000 // max(1, at.size))
        total = np.full(at.shape, rest)
        for start in range(0, len(q), chunk):
            part = slice(start, start + chunk)
            total = total + gaussian_delta_above(at[..., None], sizes[part]) @ q[part]
        return total

    # Missing mass, even if it is a rounding error only, counts in δ and leaves no Gaussian floor.
    return TradeOff(profile, profile, math.inf if rest > 0 else float(np.max(sizes)))


def _weights(weights: ArrayLike) -> Array:
    q = np.asarray(weights, dtype=float)
    if q.ndim != 1 or len(q) == 0 or np.any(~(q >= 0)) or float(np.sum(q)) > 1 + 1e-9:
        raise ValueError("weights are at least 0 and sum to at most 1")
    return q


@np.errstate(all="ignore")
def tradeoff(mechanism: Mechanism, group: int = 1, accuracy: float = 5e-3) -> TradeOff:
    """A certified *lower* bound on the trade-off function of a mechanism.

    No attacker who distinguishes data sets that differ in ``group`` records has errors below it.
    The result is exact for a Gaussian mechanism. Otherwise :func:`from_points` joins certified
    upper bounds on δ at a grid of ε; in the far tail the Gaussian of the run without amplification
    is higher, and replaces it as the ``floor``.

    Args:
        mechanism: the released rounds.
        group: number of differing records.
        accuracy: relative accuracy of the certified δ, in [1e-6, 0.1].

    Raises:
        UnsupportedMechanismError: no theorem covers a part of the mechanism.
        TypeError: ``mechanism`` is no Mechanism.
        ValueError: ``group`` or ``accuracy`` is out of range.
    """
    if not isinstance(mechanism, Mechanism):
        raise TypeError(
            f"tradeoff takes a Mechanism, such as plan.mechanism, not a {type(mechanism).__name__}"
        )
    size = whole("group", group)
    if any(part.noise_multiplier == 0 for part in mechanism):
        return from_epsilon_delta(0.0, 1.0)
    # The run without amplification: the records are in every batch.
    unamplified = gaussian(unsampled_distance(mechanism, size) * (1 + 1e-14))
    counts = parts(mechanism, size)
    first = next(iter(counts))
    alone = single_changes(mechanism, size) is None
    if alone and len(counts) == 1 and isinstance(first, Pair) and first.gaussian:
        return gaussian(first.up[0][0] * (1 + 1e-14))
    if exact.only_pairs(counts) is None and not all_integrable(counts):
        return unamplified
    uppers = [above for _, above in exact.privacy_loss(mechanism, size, accuracy=accuracy)]
    last = max(above.epsilon(TAIL) for above in uppers)
    last = min(last, unamplified.epsilon(TAIL))
    if not 0 < last < math.inf:
        return unamplified
    epsilons = last * np.linspace(0, 1, POINTS)
    deltas = np.max([above.deltas(epsilons) for above in uppers], axis=0)
    joined = from_points(epsilons, deltas)
    return replace(maximum(joined, unamplified), floor=unamplified.floor)


def upper_envelope(mass: float, mu: float) -> TradeOff:
    """f^U of Definition 5.3, min{û, û⁻¹}** with û = u + (1 − u)G_μ: an *upper* bound on a mixture.

    Args:
        mass: u in [0, 1], at least the weight of the components below μ.
        mu: c^U/σ, at least 0.
    """
    u, size = real("mass", mass, least=0, most=1), real("mu", mu, least=0)
    if u == 1:
        return gaussian(0.0)
    shift = -math.log1p(-u)

    def profile(epsilon: Array) -> Array:
        ahead = (1 - u) * gaussian_delta_above(epsilon + shift, size)
        with np.errstate(over="ignore"):
            behind = gaussian_delta_above(epsilon - shift, size) - u * np.exp(epsilon)
        return np.asarray(np.maximum(np.maximum(ahead, behind), 0.0))

    return TradeOff(profile, profile, size)


def lower_envelope(mass: float, mu: float, symmetric: bool = True) -> TradeOff:
    """f^L of Definition 5.4, max{l̂, l̂⁻¹} with l̂(α) = G_μ(min{1, α + l}): a *lower* bound.

    Args:
        mass: l in [0, 1], at least the weight of the components above μ.
        mu: c^L/σ, at least 0.
        symmetric: False gives l̂ itself, the weaker bound that Table 1 states.
    """
    tail, size = real("mass", mass, least=0, most=1), real("mu", mu, least=0)
    floor = size if tail == 0 else math.inf
    top = float(gaussian_curve(np.array([tail]), size)[0])

    def touch(epsilon: Array) -> Array:
        """The point at which G_μ has slope −e^ε."""
        return np.asarray(ndtr(-epsilon / max(size, 1e-300) - size / 2))

    def behind(epsilon: Array) -> Array:
        # l̂⁻¹ = max(0, G − l), which is 0 from α = G(l) on.
        with np.errstate(over="ignore", invalid="ignore"):
            bottom = 1 - np.exp(epsilon) * top
        return np.asarray(
            np.where(touch(epsilon) <= top, tail + gaussian_delta_above(epsilon, size), bottom)
        )

    def ahead(epsilon: Array) -> Array:
        with np.errstate(over="ignore"):
            moved = np.exp(epsilon) * tail + gaussian_delta_above(epsilon, size)
        return np.asarray(np.where(touch(epsilon) >= tail, moved, 1 - top))

    if not symmetric:
        return TradeOff(ahead, behind, floor)

    # The halves meet at β with G(β) − l = β.
    def above(alpha: float) -> bool:
        return float(gaussian_curve(np.array([alpha]), size)[0]) - tail > alpha

    corner = bisected(above, 0.0, 1.0)[0]

    def profile(epsilon: Array) -> Array:
        with np.errstate(over="ignore"):
            kink = 1 - (1 + np.exp(epsilon)) * corner
        return np.asarray(
            np.where(touch(epsilon) <= corner, tail + gaussian_delta_above(epsilon, size), kink)
        )

    return TradeOff(profile, profile, floor)


# Grid cells of a profile on each side of ε = 0, for composition.
_CELLS = 3000


def composed(curve: TradeOff, times: int, *, above: bool = False) -> TradeOff:
    """f^{⊗times}: the trade-off function of independent runs that each have f.

    A profile is convex in e^ε, so chords between grid points lie above it. They are the profile of
    masses at those points, whose losses add (Doroshenko et al. 2022). So the result is on or below
    the true curve.

    Args:
        curve: f.
        times: number of runs, at least 1.
        above: True moves every loss down to the next grid point; the result is then on or above the
            true curve.
    """
    count = whole("times", times)
    if count == 1:
        return curve
    forward = _composed(curve.forward, curve.backward, count, above)
    symmetric = curve.forward is curve.backward
    backward = forward if symmetric else _composed(curve.backward, curve.forward, count, above)
    return TradeOff(forward, backward, math.sqrt(count) * curve.floor)


def _composed(profile: Profile, reverse: Profile, count: int, above: bool) -> Profile:
    reach = float(max(_grid(profile)[-1], _grid(reverse)[-1]))
    cell = reach / _CELLS
    up = np.linspace(0.0, reach, _CELLS + 1)
    # δ(−ε) = 1 − e^−ε (1 − δ′(ε)), so 1 − δ is stored for negative ε.
    right = np.minimum.accumulate(np.clip(profile(up), 0.0, 1.0))
    left = (np.exp(-up) * (1 - np.clip(reverse(up), 0.0, 1.0)))[:0:-1]
    losses = np.concatenate([-up[:0:-1], up])
    x = np.exp(losses)
    # Slopes of the chords; the first chord starts at (0, 1), and the slope beyond the last is 0.
    drops = np.concatenate([[left[0]], np.diff(left), [1 - left[-1] - right[0]], -np.diff(right)])
    slopes = np.concatenate([drops / np.diff(np.concatenate([[0.0], x])), [0.0]])
    masses = np.maximum(slopes[:-1] - slopes[1:], 0.0) * x
    never = float(right[-1])
    total = masses
    for _ in range(count - 1):
        length = len(total) + len(masses) - 1
        ways = np.fft.rfft(total, length) * np.fft.rfft(masses, length)
        total = np.maximum(np.fft.irfft(ways, length), 0.0)
    spread = count * reach
    points = np.linspace(-spread, spread, len(total))
    lost = 1 - (1 - never) ** count + 1e-15 * count * len(masses) * (not above)
    moved = count * cell if above else 0.0
    # Sums over all losses from each point on: of the masses, and of masses times e^−loss (for
    # losses above 0).
    tails = np.cumsum(total[::-1])[::-1]
    shares = np.cumsum((total * np.exp(-np.maximum(points, 0.0)))[::-1])[::-1]

    def found(epsilon: Array) -> Array:
        at = np.asarray(epsilon, dtype=float) + moved
        first = np.searchsorted(points, at, side="right")
        inside = np.minimum(first, len(points) - 1)
        with np.errstate(over="ignore", invalid="ignore"):
            finite = tails[inside] - np.exp(np.minimum(at, 700.0)) * shares[inside]
        finite = np.where(first < len(points), np.maximum(finite, 0.0), 0.0)
        return np.asarray(np.minimum(1.0, lost + math.exp(-moved) * finite))

    return found
