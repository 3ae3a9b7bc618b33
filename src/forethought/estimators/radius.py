"""How far weights may go, from public numbers: the ball that a linear estimator keeps them in."""

from __future__ import annotations

import math
from dataclasses import dataclass

from forethought.accounting.closed_bounds import gaussian_mu
from forethought.convex.recipe import signal
from forethought.mechanism import Adjacency, Budget, Rounds, sensitivity
from forethought.samplings import FullBatch


@dataclass(frozen=True)
class Ball:
    """A ball of radius max(least, factor sᵖ)·√d/Z around zero.

    Weights of norm √d/Z and coordinates of size Z/√d give outputs of 1 in the root mean square.
    s = nμ/√d is how far the largest mean gradient stands above the noise of one release of it:
    where noise would fill a larger ball this one is small, where the data are heard well it is
    large. The default schedule reads from it how long the way is.

    Args:
        factor, power, least: docs/estimators.md says on which data they were chosen.
    """

    factor: float
    power: float
    least: float

    def radius(
        self, budget: Budget, adjacency: Adjacency, *, records: int, weights: int, bound: float
    ) -> float:
        """The radius.

        Args:
            budget, adjacency: of the fit. records: n. weights: d, of all outputs together.
            bound: Z, on the norm of a row with its constant column.
        """
        moved = sensitivity(Rounds(1.0, 1, FullBatch()), adjacency)
        # In units of a sensitivity of 2C/n, as the default schedule has it.
        mu = 2 * gaussian_mu(budget.epsilon, budget.delta) / moved
        share = max(self.least, self.factor * signal(records, weights, mu) ** self.power)
        return float(share * math.sqrt(weights) / bound)
