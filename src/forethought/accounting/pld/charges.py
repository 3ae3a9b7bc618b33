"""What a line integral proves of δ(ε) once everything that stands between them is charged."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from forethought.accounting.pld.integral import Integral


class Charges(NamedTuple):
    """What the transform on a line leaves out.

    Args:
        shift: what the weights' relative errors may move ε by, and log δ.
        above: mass that counts as disclosed in an upper bound: of no component, or cut off.
        disclosed, undisclosed: P-mass from below, and Q-mass from above, of the event that some
            loss is beyond the cut.
        below: Q-mass that no component holds.
    """

    shift: float
    above: float
    disclosed: float
    undisclosed: float
    below: float


class Charged(NamedTuple):
    """A line integral and its charges: bounds on δ at every ε ≥ 0, sharp near one of them."""

    integral: Integral
    charges: Charges

    def at(self, epsilon: float) -> tuple[float, float]:
        """log of a lower and an upper bound on δ(``epsilon``)."""
        shift, charge, disclosed, undisclosed, lost_below = self.charges
        scale, low, high = self.integral.values(epsilon - shift)
        # Anything but a positive number is a bound that was lost to the range of a double.
        upper = scale + math.log(high) + shift if 0 < high < math.inf else math.inf
        if charge > 0:
            upper = float(np.logaddexp(upper, math.log(charge)))
        if shift > 0:
            scale, low, _ = self.integral.values(epsilon + shift)
        lower = -math.inf
        if 0 < low < math.inf:
            lower = scale + math.log(low) - shift
        gain = disclosed * math.exp(-shift)
        gain -= math.exp(min(epsilon + shift, 700.0)) * undisclosed
        if gain > 0:
            # The event that some round's loss is beyond the cut, beside what lies below it.
            lower = float(np.logaddexp(lower, math.log(gain)))
        if lower > -math.inf and lost_below > 0:
            taken = math.log(lost_below) + epsilon - lower
            lower = lower + math.log1p(-math.exp(taken)) if taken < -1e-9 else -math.inf
        return lower, upper
