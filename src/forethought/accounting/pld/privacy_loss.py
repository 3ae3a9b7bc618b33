"""The whole privacy profile of a composition: few line integrals, placed where they are needed.

Every line bounds δ(ε) at every ε, and is sharp near one of them
(:mod:`forethought.accounting.pld.contour`). What is chosen here decides how tight the bounds are,
never whether they hold. The lines are placed once, so the answers do not depend on what is asked
first.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping

import numpy as np

from forethought.accounting.limits import (
    Bounds,
    gaussian_delta,
    gaussian_epsilon,
    inverted,
)
from forethought.accounting.pld.charges import Charged
from forethought.accounting.pld.contour import Total
from forethought.accounting.pld.law import Law, varies
from forethought.accounting.pld.mixtures import EPS, Array
from forethought.accounting.pld.pair import Pair
from forethought.accounting.pld.profiles import Stack
from forethought.accounting.pld.search import Search

# Down to here the profile is sharp; below it, only certain.
_TAIL = 1e-12
_KNOTS = 25
_MOST_PLACES = 12
# Products of two numbers that all the lines may take.
_WORK = 2e8


class Profile:
    """Bounds on δ(ε), ε ≥ 0, of one direction of a composition.

    Args:
        parts: how often each pair, or law, occurs.
        swapped: compose (Q, P) instead of (P, Q).
        accuracy: wanted relative accuracy of δ where it is above 1e-12.
        exactly: a single round of so few components that its half lines are read off.
        integrable: whether line integrals are worth trying.
    """

    def __init__(
        self,
        parts: Mapping[Pair | Law, int],
        *,
        swapped: bool,
        accuracy: float,
        exactly: bool = False,
        integrable: bool = True,
    ) -> None:
        first = next(iter(parts))
        self._distance, self._stack = -1.0, None
        if isinstance(first, Pair) and len(parts) == 1:
            if first.gaussian:
                self._distance = first.up[0][0]
            elif exactly:
                self._stack = Stack([first], swapped=swapped)
        self._most = min(1.0, math.fsum(n * varies(p) for p, n in parts.items()))
        self._lines: list[Charged] = []
        self._knots, self._lower, self._upper = np.zeros(1), np.zeros(1), np.array([self._most])
        if self._distance < 0 and self._stack is None and integrable:
            self._place(Total(parts, swapped=swapped), accuracy)

    def _place(self, total: Total, accuracy: float) -> None:
        total.work_left = _WORK
        search = Search(total, delta=_TAIL)
        search.refine(max(accuracy, 1e-2))
        self._lines += search.lines
        self._knots = search.upper * np.linspace(0.0, 1.0, _KNOTS)
        if not 0 < search.upper < math.inf:
            self._knots = np.zeros(1)
        tried = np.zeros(self._knots.size, dtype=bool)
        for _ in range(_MOST_PLACES):
            found = [self._by_lines(float(x)) for x in self._knots]
            lower = np.array([x.lower for x in found])
            upper = np.array([x.upper for x in found])
            # A profile falls: what holds at one knot holds beyond it, or before it.
            self._lower = np.maximum.accumulate(lower[::-1])[::-1]
            self._upper = np.minimum.accumulate(np.minimum(upper, self._most))
            width = np.where(tried, 0.0, (self._upper - self._lower) / self._upper)
            worst = int(np.argmax(width))
            if not width[worst] > accuracy or total.work_left < 0.1 * _WORK:
                break
            tried[worst] = True
            search = Search(total, epsilon=float(self._knots[worst]))
            search.refine(accuracy / 2)
            self._lines += search.lines

    def _by_lines(self, epsilon: float) -> Bounds:
        low, high = -math.inf, 0.0
        for line in self._lines:
            found = line.at(epsilon)
            low, high = max(low, found[0]), min(high, found[1])
        lower = math.exp(low) * (1 - 1e-13) if low > -700 else 0.0
        return Bounds(lower, min(self._most, math.exp(high) * (1 + 1e-13) + sys.float_info.min))

    def bounds(self, epsilon: float) -> Bounds:
        """Of δ at ``epsilon`` ≥ 0."""
        if self._distance >= 0:
            return gaussian_delta(self._distance, epsilon)
        if self._stack is not None:
            return Bounds(*self._stack.direct(epsilon))
        low, high = self._by_lines(epsilon)
        after = int(np.searchsorted(self._knots, epsilon, side="left"))
        before = int(np.searchsorted(self._knots, epsilon, side="right")) - 1
        if after < self._knots.size:
            low = max(low, float(self._lower[after]))
        return Bounds(low, min(high, float(self._upper[before])))

    def epsilons(self, delta: float) -> Bounds:
        """Of the smallest ε ≥ 0 at ``delta``; the upper end is ∞ where no line reaches so far."""
        if self._distance >= 0:
            return gaussian_epsilon(self._distance, delta)
        return inverted(self.bounds, delta)


class Curve:
    """One end of a privacy profile, at every real ε.

    Args:
        ahead: the direction's profile; behind: that of the other direction.
        above: whether this is an upper bound.
    """

    def __init__(self, ahead: Profile, behind: Profile, *, above: bool) -> None:
        self._ahead, self._behind, self._above = ahead, behind, above

    def delta(self, epsilon: float) -> float:
        """The bound on δ at ``epsilon``, in [0, 1]."""
        if epsilon >= 0:
            return self._ahead.bounds(epsilon)[self._above]
        # H(α) = 1 - α + α H'(1/α) with the other direction's H'.
        alpha = math.exp(epsilon)
        value = 1 - alpha * (1 - self._behind.bounds(-epsilon)[self._above])
        slip = 4 * EPS if self._above else -4 * EPS
        return min(1.0, max(0.0, value + slip))

    def deltas(self, epsilons: Array) -> Array:
        """The bounds on δ at each of ``epsilons``, in [0, 1]."""
        return np.array([self.delta(float(x)) for x in np.asarray(epsilons, dtype=float)])

    def epsilon(self, delta: float) -> float:
        """The bound on the smallest ε ≥ 0 that holds at ``delta``; ∞ where none is known."""
        return self._ahead.epsilons(delta)[self._above]
