"""Bounds on a composed privacy profile, read off masses on a grid of losses."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from forethought.accounting.pld.profiles import Array

# e^±this stays far inside the range of a double.
_SPAN = 300.0


@dataclass(frozen=True)
class Curve:
    """A privacy profile on a grid of losses, as a bound on δ(ε) from one side.

    Args:
        first, step: losses[i] = first + i step.
        masses: P-mass at each loss.
        constant: added to δ in an upper bound, subtracted in a lower one.
        relative: relative error charged to δ.
        wrapped: log of what bounds the tilted mass that is not where it belongs: in a lower bound
            what may have wrapped around, in an upper one what lies below the first loss.
        tilt: exponent under which ``wrapped`` counts.
        shift: added to ε in an upper bound, subtracted in a lower one.
        above: whether this is an upper bound.
    """

    first: float
    step: float
    masses: Array
    constant: float
    relative: float
    wrapped: float
    tilt: float
    shift: float
    above: bool

    @property
    def losses(self) -> Array:
        """The grid, in increasing order."""
        return np.asarray(self.first + self.step * np.arange(self.masses.size, dtype=float))

    def _values(self) -> tuple[Array, Array]:
        # δ at each grid point, and Σ_{i ≥ j} m_i e^{-(l_i - l_j)}: sums of positive terms only.
        # In blocks short enough for their exponentials, from the right.
        size = self.masses.size
        length = min(size, max(1, int(_SPAN / self.step)))
        discounted = np.empty(size)
        index = np.arange(length) * self.step
        shrink, grow = np.exp(-index), np.exp(index)
        carried = 0.0
        for end in range(size, 0, -length):
            start = max(0, end - length)
            n = end - start
            sums = np.cumsum((self.masses[start:end] * shrink[:n])[::-1])[::-1]
            block = (sums + carried * shrink[n - 1] * math.exp(-self.step)) * grow[:n]
            discounted[start:end] = block
            carried = float(block[0])
        steps = -math.expm1(-self.step) * discounted
        above = np.concatenate([np.cumsum(steps[::-1])[::-1][1:], [0.0]])
        return above, discounted

    def _wrapped(self, losses: Array) -> Array:
        if self.wrapped == -math.inf:
            return np.zeros_like(losses)
        t = self.tilt
        peak = t * math.log(t / (t + 1)) - math.log1p(t) if t > 0 else 0.0
        return np.asarray(np.exp(np.minimum(self.wrapped + peak - t * losses, 0.0)))

    def delta(self, epsilon: float) -> float:
        """The bound on δ at ``epsilon``, in [0, 1]."""
        return float(self.deltas(np.array([epsilon]))[0])

    def deltas(self, epsilons: Array) -> Array:
        """The bounds on δ at each of ``epsilons``, in [0, 1]."""
        values, discounted = self._values()
        at = np.asarray(epsilons, dtype=float)
        at = at - self.shift if self.above else at + self.shift
        size = self.masses.size
        place = np.clip(np.floor((at - self.first) / self.step) + 1, 0, size).astype(np.int64)
        ahead = self.first + place * self.step
        # Nothing lies beyond the last loss.
        here = np.minimum(place, size - 1)
        gain = discounted[here] * -np.expm1(np.minimum(at - ahead, 0.0))
        value = np.where(place < size, values[here] + gain, 0.0)
        if self.above:
            with np.errstate(over="ignore"):
                missing = np.exp(np.minimum(self.wrapped - self.tilt * at, 0.0))
            missing = np.where(at < self.first, missing, 0.0)
            bound = np.maximum(value * (1 + self.relative) + self.constant, 0.0) + missing
        else:
            bound = value * (1 - self.relative) - self.constant - self._wrapped(at)
        return np.asarray(np.clip(bound, 0.0, 1.0))

    def epsilon(self, delta: float) -> float:
        """The bound on the smallest ε ≥ 0 that holds at ``delta``; ∞ if this grid gives none."""
        values, discounted = self._values()
        if self.above:
            wanted = (delta - self.constant) / (1 + self.relative)
            if wanted <= 0:
                return math.inf
            # Largest grid point whose δ is above the target: the answer lies in the cell after it.
            place = int(np.count_nonzero(values > wanted))
            if place >= self.masses.size:
                return math.inf
            missing = wanted - float(values[place])
        else:
            taken = self._wrapped(self.losses) + self.constant
            needed = (delta + taken) / max(1 - self.relative, 1e-300)
            good = np.nonzero(values >= needed)[0]
            if not good.size:
                return 0.0
            place = int(good[-1]) + 1
            if place >= self.masses.size:
                return max(0.0, self.first + (place - 1) * self.step - self.shift)
            missing = float(needed[place - 1] - values[place])
        if place == 0:
            # The window holds nothing below its first loss.
            return max(0.0, self.first + self.shift) if self.above else 0.0
        ahead = self.first + place * self.step
        weight = float(discounted[place])
        share = missing / weight if weight > 0 else 0.0
        loss = ahead + math.log1p(-min(share, 1 - 1e-16)) if share > 0 else ahead
        loss = max(loss, ahead - self.step)
        return max(0.0, loss + self.shift if self.above else loss - self.shift)
