"""δ(ε) of a composition by line integrals with proven error bounds, and the search for ε or δ.

With M the transform of the total privacy loss L under P, δ(ε) = (1/2πi) ∫ M(s) e^(-sε) / (s(s+1))
along Re s = c > 0. Two smoothed versions of it bound it from both sides, and both integrands
decrease like a Gaussian:

- *above*: δ is convex in α = e^ε, so by Jensen E δ(ε + U) ≥ δ(ε) for U ~ N(-τ²/2, τ²), where
  E e^U = 1. The kernel becomes e^(τ²(s²+s)/2) / (s(s+1)).
- *below*: for any test ψ with values in [0, 1], δ(ε) ≥ E ψ(L)(1 - e^(ε-L)); with
  ψ(L) = Φ((L - ε - b)/τ) the kernel is e^(τ²s²/2 - bs)/s - e^(τ²(s+1)²/2 - b(s+1))/(s+1). If τ is
  above 1, losses far below ε would take most of the bound, so b is (τ² - 1)/2 then, otherwise 0.

The relative error of both is about τ²c(c+1)/2. The trapezoidal rule with step 2π/W sums the
integral's value at ε + kW times e^(ckW) over all k (Poisson summation). For the upper bound the
other terms are nonnegative; for the lower bound they are at most 1 to the left, and at most
Chernoff's bound to the right.

One integral (:class:`Integral`) with its error terms is a bound (:class:`Charged`) on δ of a
:class:`Composition`; :class:`Search` refines such bounds.

**The profile of one round.** A pair is P = Σ w_k N(c_k, 1) against Q = Σ v_k N(-d_k, 1) in units of
the noise's standard deviation, with all c_k, d_k ≥ 0, so that the privacy loss log(dP/dQ) increases
along the line and half lines attain the privacy profile H(α) = sup_T P(T) - α Q(T). For a single
round no integral is needed (:class:`HalfLines`).

**The profile of a composition** (:class:`Profile`). Every line bounds δ(ε) at every ε, and is sharp
near one of them. The choice of lines affects only the tightness of the bounds, never their
validity. The lines are placed once, so the answers do not depend on the order of the questions.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial, reduce
from operator import add, attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx, ndtr, ndtri_exp

from forethought.accounting import transform
from forethought.accounting.discrete_ratio import DiscreteRatio, RatioRows, represented, varies
from forethought.accounting.dominating_pair import (
    EPS,
    Array,
    Bounds,
    Pair,
    gaussian_delta_bounds,
    inverted,
)
from forethought.accounting.interval import bisected


def log_peak(tilt: float) -> float:
    """log of the largest e^(-tilt x)(1 - e^-x) over x ≥ 0: δ(ε) ≤ M(c) e^(-cε) times this."""
    return tilt * math.log(tilt / (tilt + 1)) - math.log1p(tilt) if tilt > 0 else 0.0


def exp_or_inf(exponent: float) -> float:
    """e^``exponent``, and ∞ beyond the range of a double: a charge is never taken too small."""
    return math.exp(exponent) if exponent < 709 else math.inf


class Integral:
    """Bounds on δ(ε) of one measure from its transform along a line.

    Args:
        tilt: c.
        step: distance of the line's points.
        smoothing: τ.
        line: the log transform at c + i k ``step``.
        beyond: a tilt above c.
        log_moment: an upper bound on the log transform at ``beyond``.
    """

    def __init__(
        self,
        tilt: float,
        step: float,
        smoothing: float,
        line: transform.Line,
        beyond: float,
        log_moment: float,
    ) -> None:
        self.tilt, self.step, self.smoothing = tilt, step, smoothing
        self.beyond, self.log_moment = beyond, log_moment
        c, tau = tilt, smoothing
        t = step * np.arange(line.real.size, dtype=float)
        s: transform.Complex = np.asarray(c + 1j * t)
        weight = np.full(t.size, step / math.pi)
        weight[0] /= 2
        self.base = float(line.real[0])
        size = weight * np.exp(np.minimum(line.real - self.base, 50.0))
        grown = np.where(
            line.doubt < 1,
            size * np.expm1(np.minimum(line.doubt, 1.0)),
            weight * np.exp(np.minimum(line.real - self.base + line.doubt, 600.0)),
        )
        damp = np.exp(tau * tau * (c * c - t * t) / 2)
        common = damp * np.exp(1j * (tau * tau * c) * t) / (s * (s + 1))
        above = common * np.exp(tau * tau * s / 2)
        margin = max(0.0, (tau * tau - 1) / 2)
        below = common * np.exp(-margin * s) * (1 - s * _expm1(tau * tau * (s + 0.5) - margin))
        # |M| is at most its value on the real line: the truncation error is a Gaussian tail.
        last = step * line.real.size
        square = (tau * last) ** 2
        tail = math.exp(tau * tau * (c * c + c) / 2 - square / 2) / (last - step) / math.pi
        most = max(tau * tau * x * x / 2 - margin * x for x in (c, c + 1))
        tail_below = math.exp(most - (tau * (last - step)) ** 2 / 2)
        tail_below *= 2 / ((tau * (last - step)) ** 2 * math.pi)
        # Rounding of the kernels and of the sum, in addition to the transform's error.
        units = 32 + t.size + 2 * np.abs(line.phase) + tau * tau * (t * t + (c + 1) * (c + t))
        wrong = grown + size * (EPS * units)
        peak = exp_or_inf(float(line.doubt[0]))
        self._wrong = (
            float((np.abs(below) * wrong).sum()) + tail_below * peak,
            float((np.abs(above) * wrong).sum()) + tail * peak,
        )
        above, below = above * size, below * size
        self._moved = (float((np.abs(below) * t).sum()), float((np.abs(above) * t).sum()))
        # Negligible terms are charged once instead of being summed for every ε.
        weight = np.abs(above) + np.abs(below)
        kept = weight > 1e-17 * float(weight.sum()) / weight.size
        dropped = float(weight[~kept].sum())
        self._wrong = (self._wrong[0] + dropped, self._wrong[1] + dropped)
        self._t, self._phase = t[kept], line.phase[kept]
        self._above, self._below = above[kept], below[kept]

    def bound(self, epsilon: float, end: int) -> tuple[float, float]:
        """(log of a scale, bound/scale) of a lower (``end`` 0) or an upper (1) bound on δ(ε)."""
        kernel = (self._below, self._above)[end]
        scale = self.base - self.tilt * epsilon
        turn = np.exp(1j * (self._phase - self._t * epsilon))
        value = float((kernel * turn).real.sum())
        off = self._wrong[end] + EPS * 4 * abs(epsilon) * self._moved[end]
        # The rounding of the scale.
        unit = EPS * 4 * (abs(self.base) + abs(self.tilt * epsilon) + 1)
        if end:
            return scale, (value + off) * (1 + unit)
        value -= off
        value -= abs(value) * unit
        width = 2 * math.pi / self.step
        left = -self.tilt * width
        aliased = exp_or_inf(left - math.log(-math.expm1(left)) - scale)
        rate = -(self.beyond - self.tilt) * width
        right = self.log_moment + log_peak(self.beyond) - self.beyond * epsilon
        right += rate - math.log(-math.expm1(rate))
        aliased += exp_or_inf(right - scale)
        return scale, value - aliased * (1 + 1e-9)


def _expm1(x: transform.Complex) -> transform.Complex:
    half = np.sin(x.imag / 2)
    return np.asarray(
        np.expm1(x.real) * np.cos(x.imag) - 2 * half * half + 1j * np.exp(x.real) * np.sin(x.imag)
    )


class Charged(NamedTuple):
    """A line integral and its charges: bounds on δ at every ε ≥ 0, sharp near one of them.

    The charges are bounds on the part that the transform on the line leaves out.

    Args:
        shift: bound on the change of ε, and of log δ, by the weights' relative errors.
        above: mass that counts as disclosed in an upper bound: in no component, or cut off.
        disclosed, undisclosed: a lower bound on the P-mass and an upper bound on the Q-mass of the
            event that some loss is beyond the cut.
        below: Q-mass that is in no component.
    """

    integral: Integral
    shift: float
    above: float
    disclosed: float
    undisclosed: float
    below: float

    def upper(self, epsilon: float) -> float:
        """log of an upper bound on δ(``epsilon``); ∞ if none is known."""
        scale, high = self.integral.bound(epsilon - self.shift, 1)
        # A value that is not positive and finite left the range of a double: no bound.
        upper = scale + math.log(high) + self.shift if 0 < high < math.inf else math.inf
        return float(np.logaddexp(upper, _log(self.above)))

    def lower(self, epsilon: float) -> float:
        """log of a lower bound on δ(``epsilon``); -∞ if none is known."""
        _, shift, _, disclosed, undisclosed, lost_below = self
        scale, low = self.integral.bound(epsilon + shift, 0)
        lower = scale + math.log(low) - shift if 0 < low < math.inf else -math.inf
        gain = disclosed * math.exp(-shift)
        # The mass of Q beyond the cut may have underflowed.
        gain -= exp_or_inf(epsilon + shift) * (undisclosed + sys.float_info.min)
        if gain > 0:
            # Add the event that some round's loss is beyond the cut; the integral lacks it.
            lower = float(np.logaddexp(lower, math.log(gain)))
        if lower > -math.inf and lost_below > 0:
            taken = math.log(lost_below) + epsilon - lower
            lower = lower + math.log1p(-math.exp(taken)) if taken < -1e-9 else -math.inf
        return lower


_MOST_POINTS = 2**19
_MOST_WORK = 3e9
_FACTORS = np.array([1.02, 1.05, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 9.0, 15.0])
# Once the transform has decreased by e^-_DEEP, the rest of the line needs little accuracy.
_DEEP = 60.0
# Number of tilts that are tried for the bound on the part beyond the window.
_MOST_BEYOND = 5
# A line of at most this number of points is one band.
_SHORT = 160
# Demands on shared nodes are raised by this factor, since they are estimates at that time.
_ROOM = 1.05
# Lines of at most this number of points, times 2π, share their nodes with the bound beyond.
_KEPT = 1e4
# Least number of pairs of one rate that are integrated with shared losses.
SEVERAL = 3
# Wanted distance of a line from the pole, in standard deviations, and the largest loss by it.
_CLEARANCE, _DEARER = 0.7, 3.0
# Least estimated difference of the wanted log δ and the true one for which a line is tried.
_LEAST_ROOM = 0.03
# Largest relative correction of a saddle point's ε by its skew.
_SERIES = 0.02
_TINY = -745.0


class AnswerRegion(NamedTuple):
    """An estimate of the answer's place, for the choice of lines only."""

    tilt: float
    epsilon: float
    log_delta: float
    slack: float = 0.3  # ε may be this much smaller, relatively


def _alike(parts: Mapping[Pair, int]) -> list[list[Pair]]:
    """Groups of pairs to integrate together: of one rate if several have it, else of one shape."""
    rates: dict[tuple[object, ...], list[Pair]] = {}
    shapes: dict[tuple[object, ...], list[Pair]] = {}
    for pair in sorted(parts, key=attrgetter("up", "down")):
        if not pair.gaussian:
            key = (*pair.shape, round(2 * math.log2(pair.largest)))
            rates.setdefault((*key, pair.up[0][1], pair.idle, pair.rest), []).append(pair)
    for rate, pairs in rates.items():
        kept = len(pairs) >= SEVERAL and transform.of_one_rate(pairs)
        shapes.setdefault(rate if kept else rate[:-3], []).extend(pairs)
    return list(shapes.values())


def _skewed(rate: float, variance: float, third: float) -> float:
    """E[e^(-rate X); X > 0] of a variable of mean 0, by the first term of Edgeworth's series."""
    deviation = math.sqrt(max(variance, 1e-100))
    slope = rate * deviation
    plain, height = float(erfcx(slope / math.sqrt(2))) / 2, 1 / math.sqrt(2 * math.pi)
    return plain + third / (6 * deviation**3) * (slope * slope * (height - slope * plain) - height)


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


Parts = Mapping[Pair, int] | Mapping[Pair | DiscreteRatio, int]


class Composition:
    """The composition of rounds in one direction, with total privacy loss L.

    Args:
        parts: pair or law → its number of rounds.
        swapped: True composes (Q, P) instead of (P, Q).
    """

    def __init__(self, parts: Parts, *, swapped: bool = False) -> None:
        pairs = {p: n for p, n in parts.items() if isinstance(p, Pair)}
        self.distance = math.sqrt(
            math.fsum(n * p.up[0][0] ** 2 for p, n in pairs.items() if p.gaussian)
        )
        self.rows: list[transform.IntegratedPairs | RatioRows] = [
            transform.IntegratedPairs(
                alike, np.array([float(pairs[p]) for p in alike]), swapped=swapped
            )
            for alike in _alike(pairs)
        ]
        laws = [
            RatioRows(law, n, swapped=swapped)
            for law, n in parts.items()
            if isinstance(law, DiscreteRatio)
        ]
        represented(laws)
        self.rows += laws
        self.work_left = _MOST_WORK
        self.many = sum(rows.size for rows in self.rows) > 8
        self.count = math.fsum(n for p, n in parts.items() if not p.gaussian)
        self._tight = -math.log(self.count + 1) - 3  # log of a moment's relative error
        # Bounds on the effect of the weights' errors on ε, and on the mass in no component.
        self.shift = math.fsum(2 * n * p.doubt for p, n in parts.items())
        lost = [(n * p.lost, n * p.lost_rest) for p, n in parts.items()]
        first, second = map(math.fsum, zip(*lost, strict=True))
        self.cut_off = self.disclosed = self.undisclosed = 0.0
        self.lost, self.lost_below = (second, first) if swapped else (first, second)

    def cumulant(self, tilts: Array) -> Array:
        """An estimate of log E e^{tilt·L}, for each of ``tilts``."""
        total = tilts * (tilts + 1) * (self.distance**2 / 2)
        for rows in self.rows:
            total = total + rows.cumulant(tilts)
        return np.asarray(total)

    @cached_property
    def deviation(self) -> float:
        """An estimate of the standard deviation of L."""
        variance = self.distance**2 + sum(rows.variance() for rows in self.rows)
        return max(math.sqrt(max(variance, 0.0)), 1e-150)

    def jump(self, delta: float) -> float:
        """The ε at which the rounds' own δ(ε) add up to ``delta``, as if one large loss decides."""

        def total(level: float) -> float:
            sums = 0.0
            for rows in self.rows:
                if not rows.few_counts.any():
                    continue
                loss, log_mass = rows.sample()
                gain = -np.expm1(np.minimum(level - loss, 0.0))
                sums += float(rows.few_counts @ (np.exp(log_mass) * gain).sum(axis=1))
            return sums

        high = math.log(max(1e-26, *(float(r.sample()[0].max()) for r in self.rows)))
        return math.exp(
            bisected(lambda log: total(math.exp(log)) > delta, -60.0, high, steps=40)[1]
        )

    def locate(
        self,
        *,
        delta: float | None = None,
        epsilon: float = 0.0,
        rough: bool = False,
        near: float | None = None,
    ) -> AnswerRegion:
        """The tilt of the best Chernoff bound, which is close to the saddle point.

        Args:
            delta: search for ε at this δ; None: for δ at ``epsilon``.
            rough: True searches on one coarse grid only.
            near: a tilt near the result, if known.
        """
        low, high = -16.0, 5.0
        unit = 1 / self.deviation
        best = 0.0
        sizes = (43,) if rough else (43, 13)
        if near is not None:
            middle = math.log(near / unit)
            low, high, sizes = middle - 1.0, middle + 1.0, (17,)
        for points in sizes:
            exponents = np.linspace(low, high, points)
            tilts = unit * np.exp(exponents)
            peak = tilts * np.log(tilts / (tilts + 1)) - np.log1p(tilts)
            value = self.cumulant(tilts) + peak
            if delta is not None:
                value = (value - math.log(delta)) / tilts
            else:
                value = value - tilts * epsilon
            at = int(np.nanargmin(value))
            if near is not None and at in (0, points - 1):
                return self.locate(delta=delta, epsilon=epsilon)  # `near` was not near
            best, width = float(value[at]), (high - low) / (points - 1)
            low, high = float(exponents[at]) - width, float(exponents[at]) + width
        tilt = float(tilts[at])
        if delta is not None:
            return AnswerRegion(tilt, max(best, 0.0), math.log(delta))
        return AnswerRegion(self._off_the_pole(tilt, epsilon), epsilon, min(best, 0.0), 0.0)

    def estimate(self, delta: float) -> float:
        """An estimate of ε at ``delta``, by a saddle point with its skew; no bound."""
        found = about = self.nearly(delta)
        if not about > 0:
            return about
        tilt = self.locate(epsilon=about, rough=True).tilt
        mean, variance, third = self.tilted(tilt)
        for _ in range(3):
            tilt += (found - mean) / max(variance, 1e-100)  # Newton step: the tilted mean is ε
            if not 0 < tilt < math.inf:
                return about
            mean, variance, third = self.tilted(tilt)
            gain = _skewed(tilt, variance, third) - _skewed(tilt + 1, variance, third)
            if not gain > 0:
                return about
            log = float(self.cumulant(np.array([tilt]))[0]) + math.log(gain)
            found = (log - math.log(delta)) / tilt
        # If one large loss decides, the series does not hold.
        return found if abs(found - about) <= _SERIES * about else about

    def nearly(self, delta: float) -> float:
        """An estimate of ε at ``delta``, by a saddle point without its skew."""
        place = self.locate(delta=delta)
        log = self.saddle(place.tilt)
        if log == -math.inf:
            return place.epsilon
        return max((log - math.log(delta)) / place.tilt, 0.0)

    def saddle(self, tilt: float) -> float:
        """An estimate of log δ(ε) + ``tilt``·ε, where ``tilt`` is the best at ε.

        It is exact if the tilted loss is Gaussian.
        """
        spread = self.spread(tilt)
        first, second = (float(erfcx(x * spread / math.sqrt(2))) / 2 for x in (tilt, tilt + 1))
        return float(self.cumulant(np.array([tilt]))[0]) + _log(first - second)

    def _off_the_pole(self, tilt: float, epsilon: float) -> float:
        """A tilt further from the pole at 0 than that of the best bound, if δ is near 1.

        There the best line would need very many points, while a line a little further right loses
        almost nothing.
        """
        best = None
        for _ in range(60):
            if tilt * self.spread(tilt) >= _CLEARANCE:
                break
            if best is None:
                best = float(self.cumulant(np.array([tilt]))[0]) - tilt * epsilon
            further = 1.5 * tilt
            dearer = float(self.cumulant(np.array([further]))[0]) - further * epsilon - best
            if not dearer <= _DEARER:
                break
            tilt = further
        return tilt

    def spread(self, tilt: float) -> float:
        """An estimate of the standard deviation of L under the measure tilted by e^{tilt·L}."""
        return max(math.sqrt(self.tilted(tilt)[1]), 1e-150)

    def tilted(self, tilt: float) -> tuple[float, float, float]:
        """Estimates of mean, variance and third cumulant of L, tilted by e^{tilt·L}."""
        square = self.distance**2
        found = [(square * (tilt + 0.5), square, 0.0), *(rows.tilted(tilt) for rows in self.rows)]
        mean, variance, third = map(math.fsum, zip(*found, strict=True))
        return mean, variance, third

    def truncate(self, log_first: float, log_second: float) -> None:
        """Cut off the rounds' largest losses: they count as disclosed, and are charged.

        Args:
            log_first: log of the P-mass below which losses are negligible.
            log_second: log of the Q-mass below which losses count as infinite.
        """
        self.cut_off = self.disclosed = self.undisclosed = 0.0
        share = math.log(self.count + 1)
        far = min(40.0, -float(ndtri_exp(log_first - share)))
        for rows in self.rows:
            cut = rows.farthest + far
            if log_second > -math.inf:
                cut = min(cut, max(-float(ndtri_exp(log_second - share)), 3.0))
            gone, first, second = rows.truncate(cut)
            self.cut_off += gone
            self.disclosed = max(self.disclosed, first)
            self.undisclosed += second

    def charged(self, line: Integral) -> Charged:
        """The line with bounds on the part that is left out with the current cut."""
        above = self.lost + self.cut_off
        return Charged(line, self.shift, above, self.disclosed, self.undisclosed, self.lost_below)

    def chernoff(self, epsilon: float, tilt: float) -> float:
        """A proven upper bound on log δ(``epsilon``), not tight; 0 if none is known.

        Args:
            tilt: any tilt above 0; the bound is least at one place of it.
        """
        at = max(0.0, epsilon - self.shift)
        try:
            moment = self._moment_above(tilt)
        except transform.UnresolvedError:
            return 0.0
        value = moment + log_peak(tilt) - tilt * at + self.shift
        charge = self.lost + self.cut_off
        return float(np.logaddexp(value, _log(charge))) + 1e-9 * (1 + tilt * at)

    def lesser(self, epsilon: float, delta: float) -> bool:
        """True if ε at ``delta`` is provably at most ``epsilon``, by Chernoff's bound or one line.

        The line is as coarse as the saddle point's estimate allows. False means that it is unknown.
        """
        wanted = math.log(delta)
        if not epsilon > 0:
            return False
        self.cut(wanted, epsilon)
        tilt, _, least, _ = self.locate(epsilon=max(0.0, epsilon - self.shift), rough=True)
        if least <= wanted and self.chernoff(epsilon, tilt) <= wanted:
            return True
        about = self.saddle(tilt) - tilt * epsilon
        room = wanted - about
        if not room > _LEAST_ROOM:
            return False
        relative = min(room / 3, 0.3)
        try:
            smoothing = self.smoothing(tilt, relative)
            line = self.integral(AnswerRegion(tilt, epsilon, about, 0.0), smoothing, 0.1 * relative)
        except (transform.UnresolvedError, FloatingPointError, OverflowError):
            return False
        return self.charged(line).upper(epsilon) <= wanted

    def smoothing(self, tilt: float, relative: float) -> float:
        """The τ for which the relative error of δ on the line through ``tilt`` is ``relative``."""
        bend = tilt * (tilt + 1) + 0.1 / self.spread(tilt) ** 2
        return math.sqrt(2 * relative / bend)

    def cut(self, log_delta: float, epsilon: float) -> float:
        """Cut off losses that are negligible at δ or count as infinite; return log of that mass."""
        first = max(log_delta - 14.0, _TINY + 5)
        second = log_delta - epsilon - 16.0
        self.truncate(first, second if second > _TINY + 45 else -math.inf)
        return first

    def _moment_above(self, tilt: float) -> float:
        bound = tilt * (tilt + 1) * self.distance**2 / 2 * (1 + 8 * EPS)
        return bound + math.fsum(rows.log_moment_above(tilt, self._tight) for rows in self.rows)

    def integral(self, place: AnswerRegion, smoothing: float, accuracy: float) -> Integral:
        """The integral of the transform along the line through ``place``.

        Args:
            place: the place where the bounds are sharp.
            smoothing: τ.
            accuracy: bound on all errors but that of smoothing, relative to δ.

        Raises:
            UnresolvedError: it would take too much work.
        """
        c, epsilon, log_delta, slack = place
        small = log_delta + math.log(accuracy)
        # log of the line's first value over the answer: errors are relative to the former.
        excess = max(0.0, float(self.cumulant(np.array([c]))[0]) - c * epsilon - log_delta)
        if not excess < 500:
            raise transform.UnresolvedError(f"a line e^{excess:.0f} above the answer")
        ahead = 6.0 - math.log(accuracy) + excess
        end = math.sqrt(c * c + 2 * ahead / smoothing**2)
        accuracy *= math.exp(-excess)
        beyond, need, bound = self._beyond(c, epsilon * (1 - slack), small, end, accuracy)
        step = 2 * math.pi / max((1 - small) / c, need)
        points = math.ceil(end / step) + 1
        if points > _MOST_POINTS:
            raise transform.UnresolvedError(f"{points} points on the line")
        line = self._line(c, step, points, accuracy)
        return Integral(c, step, smoothing, line, beyond, bound)

    def _beyond(
        self, tilt: float, nearest: float, small: float, end: float, accuracy: float
    ) -> tuple[float, float, float]:
        """A tilt beyond ``tilt``, the window W that Chernoff's bound there needs, and that bound.

        The part of δ at ``nearest`` beyond the window is then below e^``small``. The line through
        ``tilt`` ends at the frequency ``end``; if it is short, its nodes are also used for the
        bound.
        """
        tilts = tilt * _FACTORS
        moments = self.cumulant(tilts)
        # Moments beyond the range of a double give no bound.
        moments[~(moments <= 400 * max(self.count, 1.0))] = np.inf

        def needs(at: NDArray[np.intp], moments: Array) -> Array:
            peaks = tilts[at] * np.log(tilts[at] / (tilts[at] + 1)) - np.log1p(tilts[at])
            return np.asarray(
                (moments + peaks - tilts[at] * nearest - small + 1) / (tilts[at] - tilt)
            )

        everything = np.arange(tilts.size)
        about = needs(everything, moments)
        best: tuple[float, float, float] | None = None
        failed = transform.UnresolvedError("no moment beyond the line")
        for at in np.argsort(about)[:_MOST_BEYOND]:
            try:
                width = max((1 - small) / tilt, float(about[at]))
                if not self.many and end * width < _KEPT:
                    self._keep(tilt, width, end, accuracy, float(tilts[at]))
                moment = self._moment_above(float(tilts[at]))
            except transform.UnresolvedError as error:
                failed = error
                continue
            # The estimate may be far below the proven bound.
            need = float(needs(everything[at : at + 1], np.array([moment]))[0])
            if best is None or need < best[1]:
                best = (float(tilts[at]), need, moment)
            if need <= 1.2 * about[at]:
                break
        if best is None:
            raise failed
        return best

    def _keep(self, tilt: float, width: float, end: float, accuracy: float, beyond: float) -> None:
        points = math.ceil(end * width / (2 * math.pi)) + 1
        step = 2 * math.pi / width
        first = self._first_band(step, points)
        # Slightly stricter than necessary, so that the bounds do not depend on it.
        bands = [(first * step * _ROOM, self._loose(accuracy, 0.0) - 1)]
        if first < points:
            fallen = self.fall(tilt, (first - 1) * step) / _ROOM - 1
            bands.append((end + 3 * step, self._loose(accuracy, max(0.0, fallen)) - 1))
        for rows in self.rows:
            if isinstance(rows, transform.IntegratedPairs):
                rows.keep(tilt, bands, beyond, self._tight)

    def _first_band(self, step: float, points: int) -> int:
        if not self.many and points <= _SHORT:
            return points  # panels cost more than products
        return min(points, max(16, math.ceil(8 / (step * self.deviation))))

    def _loose(self, accuracy: float, fallen: float) -> float:
        """log of a factor's allowed error, where log of the product has decreased by ``fallen``."""
        wanted = math.log(1e-3 * accuracy / (self.count + 1))
        # The error of a factor may be larger where the product is smaller.
        loose = min(wanted + 0.8 * fallen, -math.log(self.count + 1) - 1)
        if fallen > _DEEP:
            loose = max(loose, math.log(0.3 * (fallen - 30) / (self.count + 1)))
        return min(loose, -2.0)

    def fall(self, tilt: float, frequency: float) -> float:
        """An estimate of the decrease of log |transform| from the real line to ``frequency``."""
        own = (self.distance * frequency) ** 2 / 2
        return own + math.fsum(rows.fall(tilt, frequency) for rows in self.rows)

    def _line(self, tilt: float, step: float, points: int, accuracy: float) -> transform.Line:
        # In bands: further out the panels are finer and the transform of the composition smaller.
        pieces: list[transform.Line] = []
        first, peak, swing, alike = 0, 0.0, 0.0, 0.0
        swings: list[Array] | None = None
        last = self._first_band(step, points)
        while first < points:
            frequencies = step * np.arange(first, last, dtype=float)
            line = transform.gaussian_line(self.distance, tilt, frequencies)
            fallen = peak - float(pieces[-1].real[-1]) if pieces else 0.0
            deep = fallen > _DEEP
            error = self._loose(accuracy, fallen)
            stride = 1
            if deep and self.many:
                if swings is None:
                    swings = [rows.swing(tilt) for rows in self.rows]
                    swing = math.fsum(
                        float(r.counts @ x) for r, x in zip(self.rows, swings, strict=True)
                    )
                    alike = swing / max(float(x.max()) for x in swings)
                # Half a stride times its swing is added to each round's bound, so every stride is
                # sound. The product regains only a part of its decrease if that slack is a share
                # of what is left of the transforms of the `alike` rounds that swing most.
                kept = min(fallen, max(2 * _DEEP, alike))
                kept *= math.exp(-kept / alike)
                stride = max(1, int(0.3 * kept / (swing * step)))
            here = (first // stride, (last - 1) // stride + (2 if stride > 1 else 1))
            spent = self.work_left
            for i, rows in enumerate(self.rows):
                # No round's transform is larger than on the real line, so a few rounds suffice for
                # a bound where the product is nearly 0.
                every = max(1, min(rows.size // 4, int(fallen / _DEEP))) if deep else 1
                if swings:
                    # The few may not lack the rounds that make the product fall.
                    weight = rows.counts * swings[i] ** 2
                    while weight[::every].sum() * fallen < 0.8 * _DEEP * weight.sum() and every > 1:
                        every -= 1
                reach = step * stride / 2 * swings[i] if swings and stride > 1 else None
                some, work = rows.along(
                    tilt, step * stride, *here, error, self.work_left, every, reach
                )
                if stride > 1:
                    nearest = np.rint(np.arange(first, last) / stride).astype(int) - here[0]
                    some = transform.Line(*(x[nearest] for x in some))
                self.work_left -= work
                line = line + some
            if not pieces:
                peak = float(line.real[0])
            if deep:
                # Use only the bound on its size, as the value with an error of twice that size.
                most = line.real + np.minimum(line.doubt, 700.0)
                line = transform.Line(most, np.zeros(most.size), np.full(most.size, math.log(3)))
            pieces.append(line)
            # The rest takes at least as many products per point, unless the transform decreases
            # further: stop now if that is too much.
            further = points / last
            falls = (peak - float(line.real[-1])) * further**2
            if falls < _DEEP and (spent - self.work_left) * (further - 1) > 2 * self.work_left:
                raise transform.UnresolvedError(f"{points} points on the line")
            large = self.many or points > 4096
            first, last = last, min(points, 2 * last if large else max(3 * last, 512))
        return transform.Line(*(np.concatenate(x) for x in zip(*pieces, strict=True)))


_TRIES = 7
_ROUGH = 0.02
# An ε up to this counts as 0.
SMALLEST = 1e-9
# Assumed relative error of the saddle point's ε on a line that starts from it.
_NEAR = 0.1


class Search:
    """Bounds on one direction's ε at ``delta``, or on its δ at ``epsilon``.

    Every line gives valid bounds; the choices here affect only their tightness.
    """

    def __init__(
        self, total: Composition, delta: float | None = None, epsilon: float = 0.0
    ) -> None:
        self.total, self.delta, self.epsilon = total, delta, epsilon
        self.lower, self.upper = 0.0, math.inf if delta is not None else 1.0
        self.place: AnswerRegion | None = None
        self.smoothing, self.gap = 0.0, 1.0
        self._coarser = 1.0  # factor on τ after lines that were too much work
        self._stale = False  # True if `place` was not updated after the last line
        self._blind = 0  # number of lines in a row that gave no lower end
        # With this much mass in no component, no line can give a finite ε.
        self.finished = delta is not None and total.lost >= delta
        self.lines: list[Charged] = []
        self._cut_at = math.inf
        self._retreats = 0

    def refine(self, accuracy: float, *, beaten_by: float = -1.0) -> None:
        """Refine until the bounds are ``accuracy`` apart, relatively, or no line helps.

        It also stops if the upper bound is below ``beaten_by``.
        """
        for _ in range(_TRIES):
            width = self.upper - self.lower
            enough = max(accuracy * self.upper, 0.0 if self.delta is None else SMALLEST)
            if self.finished or self.upper < beaten_by or width <= enough < math.inf:
                return
            self._next(accuracy)

    def _next(self, accuracy: float) -> None:
        if self._stale and self.place is not None:
            self._stale = False
            self._replace(self.place)
        place = self.place or self._first()
        relative = accuracy / 4
        if self.delta is not None:
            # A relative error of δ moves ε by 1/c of it.
            relative *= max(place.epsilon * place.tilt, 1e-3)
            if place.epsilon == 0:
                relative = 0.1  # δ(0) is likely to be enough
        relative = min(relative, 0.1)
        natural = self.total.smoothing(place.tilt, relative)
        smoothing = self._coarser * natural / 4.0 ** max(0, self._blind - 1)
        if self._coarser == 1 and not self._blind and self.smoothing:
            # The smoothing's part of the gap is proportional to τ².
            wanted = self.smoothing * math.sqrt(0.6 * accuracy / self.gap)
            smoothing = min(max(wanted, 0.04 * self.smoothing), 0.9 * self.smoothing)
        try:
            line = self.total.charged(self.total.integral(place, smoothing, 0.03 * relative))
        except (transform.UnresolvedError, FloatingPointError, OverflowError):
            self._retreat(place, smoothing)
            return
        self._retreats = 0
        before = self.upper - self.lower
        self.lines.append(line)
        low, high = self._epsilons(line, place) if self.delta is not None else self._deltas(line)
        self.lower, self.upper = max(self.lower, low), min(self.upper, high)
        self._blind = self._blind + 1 if self.lower == 0 else 0
        if self.delta is not None and self._blind and self.upper < math.inf:
            # Beyond this ε the mass in no component leaves no lower end: stop if that is near.
            farthest = math.log(self.delta) - _log(self.total.lost_below)
            self.finished = farthest < 0.1 * self.upper
            if self.finished:
                return
        width = self.upper - self.lower
        if width <= min(accuracy, _ROUGH / 2) * self.upper < math.inf:
            return
        if width <= accuracy * self.upper < math.inf:
            self.place, self._stale = place, True
            self.smoothing, self.gap = smoothing, width / self.upper
            return
        self._replace(place)
        self.smoothing, self._coarser = smoothing, 1.0
        self.gap = width / self.upper if 0 < width < math.inf else 1.0
        self.finished = self.place == place and width > 0.9 * before and width < math.inf

    def _retreat(self, place: AnswerRegion, smoothing: float) -> None:
        # If one rare loss decides, Chernoff's bound is far from the answer; otherwise a coarser
        # line may be affordable.
        self._retreats += 1
        self.finished = self._retreats > 2
        if self._retreats == 1 and self.delta is not None and self.place is None:
            jump = self.total.jump(self.delta)
            if jump < 0.7 * place.epsilon:
                self._cut_at = self.total.cut(place.log_delta, jump)
                found = self.total.locate(epsilon=jump)
                self.place = AnswerRegion(found.tilt, jump, place.log_delta, 0.3)
                return
        self._coarser *= 8

    def _first(self) -> AnswerRegion:
        place = self.total.locate(delta=self.delta, epsilon=self.epsilon, rough=True)
        self._cut_at = self.total.cut(place.log_delta, place.epsilon)
        place = self.total.locate(delta=self.delta, epsilon=self.epsilon, near=place.tilt)
        if self.delta is None or not self.total.many:
            return place
        # The saddle point's ε is much closer than Chernoff's: one line may be enough.
        about = self.total.nearly(self.delta)
        if not 0.2 * place.epsilon < about < place.epsilon:
            return place
        self._cut_at = self.total.cut(place.log_delta, about)
        found = self.total.locate(epsilon=about, near=place.tilt)
        return AnswerRegion(found.tilt, about, place.log_delta, _NEAR)

    def _replace(self, place: AnswerRegion) -> None:
        if self.delta is not None:
            if not 0 < self.upper < math.inf:
                return
            # The window has to contain all possible answers.
            slack = min(1.0, max(0.02, 1.2 * (1 - self.lower / self.upper)))
            if self.place and abs(self.upper - place.epsilon) <= 0.01 * self.upper:
                self.place = place._replace(slack=slack)
            else:
                self._cut_at = self.total.cut(math.log(self.delta), self.upper)
                found = self.total.locate(epsilon=self.upper)
                self.place = AnswerRegion(found.tilt, self.upper, math.log(self.delta), slack)
            return
        if not self.upper > 0:
            return
        log_delta = math.log(self.upper)
        if log_delta < self._cut_at + 11:
            self._cut_at = self.total.cut(log_delta, self.epsilon)
        found = self.total.locate(epsilon=self.epsilon)
        self.place = AnswerRegion(found.tilt, found.epsilon, log_delta, 0.0)

    def _deltas(self, line: Charged) -> tuple[float, float]:
        low, high = line.lower(self.epsilon), line.upper(self.epsilon)
        upper = math.exp(min(high, 0.0)) * (1 + 1e-13) if high > _TINY else 5e-324
        return math.exp(min(low, 0.0)) * (1 - 1e-13) if low > -700 else 0.0, min(upper, 1.0)

    def _epsilons(self, line: Charged, place: AnswerRegion) -> tuple[float, float]:
        wanted = math.log(self.delta or 1.0)
        if line.upper(0.0) <= wanted:
            return 0.0, 0.0
        high = self._crossing(line, place.epsilon, wanted, upper=True)
        start = high if high < math.inf else place.epsilon
        low = self._crossing(line, start, wanted, upper=False)
        return low, high

    def _crossing(self, line: Charged, start: float, wanted: float, *, upper: bool) -> float:
        """The ε at which a bound crosses log δ, rounded to the side where the bound holds."""
        low, high = 0.0, math.inf
        above = below = math.nan  # log of the bound over δ, at low and at high
        at, stride = max(start, 0.0), 0.25
        tilt, bound = line.integral.tilt, line.upper if upper else line.lower
        for step in range(80):
            gap = bound(at) - wanted
            if gap > 0:
                low, above = max(low, at), gap
            else:
                high, below = min(high, at), gap
            near = abs(gap) < 1e-7 * at * tilt and (gap <= 0) == upper
            if near or (high < math.inf and high - low <= 1e-12 * high):
                break
            if math.isfinite(above - below) and step % 3:
                # Interpolate between both known sides, slightly towards the wanted side.
                share = above / (above - below)
                share = share * (1 - 1e-8) + (1e-8 if upper else 0.0)
                following = low + share * (high - low)
            elif math.isfinite(gap):
                # A Newton step with slope -c, slightly longer, so that both sides are found.
                following = at + 1.02 * gap / tilt + (1e-10 if gap > 0 else -1e-10) * at
            else:
                # There is no bound here; the window with bounds may be narrow.
                following, stride = at - stride / tilt, 2 * stride
            if not low < following < high:
                following = (low + high) / 2 if high < math.inf else 2 * at + 1 / tilt
            at = following
        return high if upper else low


# Privacy profiles: of single rounds on the line, and the whole profile of a composition.


Side = tuple[tuple[float, float], ...]


class HalfLines:
    """The profile of one pair in one direction, which half lines attain.

    Args:
        pair: the dominating pair of one round.
        swapped: True takes (Q, P) instead of (P, Q).
    """

    def __init__(self, pair: Pair, *, swapped: bool = False) -> None:
        self.swapped = swapped and not pair.two_sided
        self.up, self.down, self.idle, self.rest = pair.up, pair.down, pair.idle, pair.rest
        # Binomial weights may add up to 1 plus a rounding error.
        sides = (self.up, self.down)
        self.masses = [min(reduce(add, (w for _, w in side), 0.0), 1.0) for side in sides]
        self.reach = max(c for c, _ in (*self.up, *self.down))
        lost = (pair.lost, pair.lost_rest)
        self.lost, self.lost_below = lost[::-1] if self.swapped else lost

    def loss(self, z: Array) -> Array:
        """log(dP/dQ) at ``z``."""
        up = _log_mixture(z, self.up, self.idle, 1.0)
        return up - _log_mixture(z, self.down, self.rest, -1.0)

    def above(self, level: float) -> tuple[float, float]:
        """P- and Q-mass of the half line where the loss exceeds ``level`` > 0.

        The half line's end is rounded. Both masses are of the same half line, with relative errors
        below 1e-10.
        """
        _, p, _, q = self._masses(self._place(np.array([level])))
        return float(p[0]), float(q[0])

    def profile(self, level: float) -> Bounds:
        """Bounds on δ at ``level`` ≥ 0, with a bound on rounding."""
        at = np.array([-level if self.swapped else level])
        z = self._place(at)
        p_low, p_high, q_low, q_high = self._masses(z)
        p, q = (q_low[0], p_low[0]) if self.swapped else (p_high[0], q_high[0])
        taken = math.exp(min(level, 700.0)) * float(q)
        value = float(p) - taken
        # Relative errors of the normal distribution function, and of the test's threshold.
        size = float(np.where(np.isfinite(z), np.abs(z), 0)[0] + self.reach)
        slip = math.expm1(min(700.0, 2 * float(self._slips(at, z)[0])))
        noise = (1e-13 + 16 * EPS * (size * size + level) + slip) * (float(p) + taken)
        # Q's mass may have underflowed.
        noise_below = noise + math.exp(min(level, 700.0)) * (self.lost_below + sys.float_info.min)
        lower = max(0.0, value - noise_below) if level < 700 else 0.0
        return Bounds(lower, min(1.0, max(0.0, value) + noise + self.lost))

    def _slips(self, edges: Array, z: Array) -> Array:
        fine = np.isfinite(z)
        z = np.where(fine, z, 0)
        size = np.minimum(1.0, np.abs(edges) + self.masses[0] + self.masses[1])
        error = 8 * EPS * (1 + (np.abs(z) + self.reach) * self.reach) * size
        if len(self.up) > 1 or self.down:
            error = error + np.where(fine, np.abs(self.loss(z) - edges), 0)
        return np.asarray(error)

    def _masses(self, z: Array) -> tuple[Array, Array, Array, Array]:
        # P below, P above, Q below, Q above the points.
        p_low, p_high = self.idle * ndtr(z), self.idle * ndtr(-z)
        for c, w in self.up:
            p_low, p_high = p_low + w * ndtr(z - c), p_high + w * ndtr(c - z)
        q_low, q_high = self.rest * ndtr(z), self.rest * ndtr(-z)
        for c, w in self.down:
            q_low, q_high = q_low + w * ndtr(z + c), q_high + w * ndtr(-c - z)
        return p_low, p_high, q_low, q_high

    def _place(self, loss: Array) -> Array:
        """Points of the line where the privacy loss takes these values; -∞ if it never does."""
        if len(self.up) > 1 or self.down:
            return self._solve(loss)
        ((shift, rate),) = self.up
        if rate == 1:
            return np.asarray(loss / shift + shift / 2)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            small = np.log(_above_idle(np.minimum(loss, 1), rate) / rate)
            large = loss + np.log1p((rate - 1) * np.exp(-np.maximum(loss, 1))) - np.log(rate)
            z = np.where(loss > 1, large, small)
        return np.asarray(np.where(np.isnan(z), -np.inf, z) / shift + shift / 2)

    def _solve(self, loss: Array) -> Array:
        # For large |z| the loss is linear in z with the largest shift as its slope; on the left of
        # a pair without `down` it is within e^-40 of its infimum.
        reach = sum(c for c, _ in self.up + self.down)
        most = 40 + float(np.abs(loss).max())
        right = 40 + reach + most / max(c for c, _ in self.up)
        slopes = [c for c, _ in self.down or self.up]
        left = 40 + reach + most / (max(slopes) if self.down else min(slopes))
        grid = np.linspace(-left, right, 4000)
        table = self.loss(grid)
        rising = np.concatenate([[True], np.diff(np.maximum.accumulate(table)) > 0])
        z = np.interp(loss, table[rising], grid[rising])
        bottom = np.log(self.idle) if not self.down else -np.inf
        inside = (loss > bottom) & (z > grid[0]) & (z < grid[-1])
        most_step = 4 * float(grid[1] - grid[0])
        for _ in range(8):
            with np.errstate(divide="ignore", invalid="ignore"):
                step = (self.loss(z) - loss) / self._slope(z)
            # Bounded Newton steps, so that a flat stretch does not send z far away.
            z = z - np.where(inside & np.isfinite(step), np.clip(step, -most_step, most_step), 0)
        return np.where(loss > bottom, z, -np.inf)

    def _slope(self, z: Array) -> Array:
        slope = np.zeros_like(z)
        for side, idle, sign in ((self.up, self.idle, 1.0), (self.down, self.rest, -1.0)):
            top = _log_mixture(z, side, idle, sign)
            for c, w in side:
                slope = slope + c * w * np.exp(sign * c * z - c * c / 2 - top)
        return slope


def _above_idle(loss: Array, mass: float) -> Array:
    """e^loss - (1 - mass), with a rounding error that is small relative to mass and to e^loss."""
    return np.asarray(np.where(loss < -0.69, np.exp(loss) - (1 - mass), np.expm1(loss) + mass))


def _log_mixture(z: Array, parts: Side, idle: float, sign: float) -> Array:
    """log of a mixture's density over that of N(0, 1), with full relative accuracy near 0."""
    if not parts:
        return np.zeros_like(z)
    exponents = [sign * c * z - c * c / 2 for c, _ in parts]
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        excess = sum(w * np.expm1(e) for e, (_, w) in zip(exponents, parts, strict=True))
        near = np.log1p(np.maximum(excess, -0.9))
        far = np.log(idle)
        for e, (_, w) in zip(exponents, parts, strict=True):
            far = np.logaddexp(far, np.log(w) + e)
        return np.where(np.abs(excess) < 0.5, near, far)


# For a single round with more components an integral is faster.
_FEW_COMPONENTS = 4


def alone(parts: Parts) -> bool:
    """True for a single round whose profile is computed without a line."""
    return sum(parts.values()) == 1 and all(
        isinstance(part, DiscreteRatio)
        or part.gaussian
        or (part.integrable and len(part.up) <= _FEW_COMPONENTS)
        for part in parts
    )


def of_one_round(part: Pair | DiscreteRatio, *, swapped: bool) -> Callable[[float], Bounds]:
    """The profile of one round in one direction: ε ≥ 0 → bounds on δ."""
    if isinstance(part, DiscreteRatio):
        return partial(part.profile, swapped=swapped)
    if part.gaussian:
        return partial(gaussian_delta_bounds, part.up[0][0])
    return HalfLines(part, swapped=swapped).profile


# The profile is sharp down to this δ; below it the bounds hold, but are loose.
_TAIL = 1e-12
_KNOTS = 25
# Places beyond the last knot, in multiples of it, at which lines are compared.
_BEYOND = np.geomspace(1.05, 12.0, 24)
_MOST_PLACES = 12
# Most multiplications for all lines of a profile.
_WORK = 2e8


class Profile:
    """Bounds on δ(ε), ε ≥ 0, of one direction of a composition.

    Args:
        parts: pair or law → its number of rounds.
        swapped: True composes (Q, P) instead of (P, Q).
        accuracy: wanted relative accuracy of δ where it is above 1e-12.
    """

    def __init__(
        self, parts: Mapping[Pair | DiscreteRatio, int], *, swapped: bool, accuracy: float = 1e-3
    ) -> None:
        single = alone(parts)
        self._single = of_one_round(next(iter(parts)), swapped=swapped) if single else None
        self._most = min(1.0, math.fsum(n * varies(p) for p, n in parts.items()))
        self._lines: list[Charged] = []
        self._knots = self._lower = np.zeros(1)
        self._upper = np.full(1, self._most)
        integrable = all(part.integrable for part in parts)
        if integrable and not single:
            self._place(Composition(parts, swapped=swapped), accuracy)

    def _place(self, total: Composition, accuracy: float) -> None:
        # A place where the bounds do not meet takes half of what is left at most.
        spare = total.work_left = _WORK / 2
        search = Search(total, delta=_TAIL)
        search.refine(max(accuracy, 1e-2))
        if 0 < search.upper < math.inf:
            self._knots = search.upper * np.linspace(0.0, 1.0, _KNOTS)
        knots = self._knots.size
        self._places = np.concatenate([self._knots, self._knots[-1] * _BEYOND])
        known = np.empty((0, self._places.size, 2))
        tried = np.zeros(knots, dtype=bool)
        for _ in range(_MOST_PLACES + 1):
            self._lines += search.lines
            logs = [[(x.lower(e), x.upper(e)) for e in self._places] for x in search.lines]
            known = np.concatenate([known, np.reshape(logs, (-1, self._places.size, 2))])
            if not self._lines:
                break
            # Near a place only the line that is sharpest there is evaluated.
            self._sharpest = known[:, :, 0].argmax(axis=0), known[:, :, 1].argmin(axis=0)
            # A profile decreases: upper bounds at a knot hold beyond it, lower bounds before it.
            lower = [self._mass(x, 0) for x in known[:, :knots, 0].max(axis=0)]
            upper = [self._mass(x, 1) for x in known[:, :knots, 1].min(axis=0)]
            self._lower = np.maximum.accumulate(lower[::-1])[::-1]
            self._upper = np.minimum.accumulate(upper)
            width = np.where(tried, 0.0, (self._upper - self._lower) / self._upper)
            worst = int(np.argmax(width))
            spare = total.work_left = (spare + total.work_left) / 2
            if not width[worst] > accuracy or spare < 0.05 * _WORK:
                break
            tried[worst] = True
            search = Search(total, epsilon=float(self._knots[worst]))
            search.refine(accuracy / 2)

    def _mass(self, log: float, end: int) -> float:
        if end == 0:
            return math.exp(min(log, 0.0)) * (1 - 1e-13) if log > -700 else 0.0
        return min(self._most, math.exp(min(log, 0.0)) * (1 + 1e-13) + sys.float_info.min)

    def bound(self, epsilon: float, end: int) -> float:
        """A lower (``end`` 0) or an upper (1) bound on δ at ``epsilon`` ≥ 0."""
        if self._single is not None:
            return self._single(epsilon)[end]
        after = int(np.searchsorted(self._knots, epsilon, side="left"))
        before = int(np.searchsorted(self._knots, epsilon, side="right")) - 1
        logs = []
        if self._lines:
            place = int(np.searchsorted(self._places, epsilon, side="right"))
            near = self._sharpest[end][max(place - 1, 0) : place + 1]
            lines = [self._lines[at] for at in set(near.tolist())]
            logs = [line.upper(epsilon) if end else line.lower(epsilon) for line in lines]
        if end:
            return min(self._mass(min(logs, default=0.0), 1), float(self._upper[before]))
        low = self._mass(max(logs, default=-math.inf), 0)
        return max(low, float(self._lower[after])) if after < self._knots.size else low


# (ε ≥ 0, end) → a lower (``end`` 0) or an upper (1) bound on one direction's δ(ε).
DirectionBound = Callable[[float, int], float]


class Curve:
    """A lower or an upper bound on a privacy profile, at every real ε.

    Args:
        ahead: bounds on the profile of this direction, of which the least counts.
        behind: bounds on the profile of the other direction.
        above: True for an upper bound.
    """

    def __init__(
        self, ahead: Sequence[DirectionBound], behind: Sequence[DirectionBound], *, above: bool
    ) -> None:
        self._ahead, self._behind, self._above = ahead, behind, above

    def delta(self, epsilon: float) -> float:
        """The bound on δ at ``epsilon``, in [0, 1]."""
        if epsilon >= 0:
            return self._least(self._ahead, epsilon)
        # H(α) = 1 - α + α H'(1/α), where H' is the profile of the other direction.
        alpha = math.exp(epsilon)
        value = 1 - alpha * (1 - self._least(self._behind, -epsilon))
        slip = 4 * EPS if self._above else -4 * EPS
        return min(1.0, max(0.0, value + slip))

    def _least(self, bounds: Sequence[DirectionBound], epsilon: float) -> float:
        return min(bound(epsilon, int(self._above)) for bound in bounds)

    def deltas(self, epsilons: Array) -> Array:
        """The bounds on δ at each of ``epsilons``, shape (n,), in [0, 1]."""
        return np.array([self.delta(float(x)) for x in np.asarray(epsilons, dtype=float)])

    def epsilon(self, delta: float) -> float:
        """The bound on the smallest ε ≥ 0 that holds at ``delta``; ∞ if none is known."""
        return inverted(lambda at, _: self._least(self._ahead, at), delta)[self._above]
