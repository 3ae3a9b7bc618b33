"""The loss in AUC that a plan's noise causes for a linear model of two classes.

The figure is the area under the ROC curve (AUC): the share of pairs, one record of each class, that
the model puts in the right order. Nobody knows in advance what private data allow, so a forecast
begins with a supposition of the user: the AUC that the same model would reach *without* privacy.

Assumptions: the d features of a class are normal around its mean with standard deviation v in every
direction, and the means are 2av apart. A model without noise then orders a share A = Φ(√2 a) of
pairs. Every contribution is clipped to one norm and points along ±x, so their mean is a/√(d + a²)
of that norm towards the difference of the means. Over the run the noise has norm ν√d against
contributions of norm 1 (ν: :func:`forethought.planning.defaults.noise_to_signal`), so the
noise-to-signal ratio in the weights is

    r = ν √d √(d + a²) / a,

and noise that is equal in all directions leaves Φ(√2 a / √(1 + r²)) of the pairs in order. For
small r the loss is proportional to (d/(N ε))²: twice the records are worth twice ε.

Not included: a private run's path is short, so that directions in which the features hardly differ
are not found. On real tables with little noise this costs more than the noise; :data:`MEASURED`
has the measured loss (experiments/forecast).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from scipy.special import ndtr, ndtri

from forethought.planning.defaults import noise_to_signal
from forethought.values.checks import real
from forethought.values.plan import Plan

# Typical AUC of models of tables without privacy.
SUPPOSED = (0.7, 0.8, 0.9)
# A loss of AUC that is called no loss.
POINT = 0.01


class MeasuredLoss(NamedTuple):
    """The loss of runs on public tables against logistic regression without privacy.

    Args:
        noise: largest noise-to-signal ratio r that was tried. most: loss in AUC that nine of ten
            runs did not exceed. runs: number of runs.
    """

    noise: float
    most: float
    runs: int


# The noise-to-signal ratio on real tables over that of the formula: classes have unequal frequency
# and columns differ in use. Chosen on every second table of experiments/forecast.
TABLES = 2.5
MEASURED = MeasuredLoss(10.0, 0.056, 80)


@dataclass(frozen=True)
class Forecast:
    """The forecast for a plan, from the AUC that is supposed without privacy.

    Args:
        without: AUC without privacy, above 0.5.
        noise: r, the noise in the weights over the signal. records: number of records of the plan.
    """

    without: float
    noise: float
    records: int

    @property
    def expected(self) -> float:
        """The AUC with the plan's noise."""
        return float(ndtr(ndtri(self.without) / math.hypot(1.0, self.noise)))

    @property
    def lost(self) -> float:
        """The loss in AUC through the noise."""
        return self.without - self.expected

    @property
    def measured(self) -> MeasuredLoss | None:
        """The measured loss on public tables; None: the noise is larger than was tried."""
        return MEASURED if self.noise <= MEASURED.noise else None

    @property
    def records_needed(self) -> float:
        """The approximate number of records, at least 1, at which this budget costs 0.01 of AUC."""
        wanted = max(0.5 + 1e-9, self.without - POINT)
        if wanted >= self.without:  # there is not so much to lose
            return 1.0
        ratio = float(ndtri(self.without)) / float(ndtri(wanted))
        return max(1.0, self.records * self.noise / math.sqrt(ratio**2 - 1))


def forecast(plan: Plan, features: int, without: float, *, tables: float = TABLES) -> Forecast:
    """The forecast of the loss in AUC for a linear model of two classes.

    Args:
        features: number of features of the model. without: AUC of the same model without privacy,
            above 0.5 and below 1.
        tables: factor on the formula's noise-to-signal ratio; 1: the formula alone.

    Raises:
        ValueError: ``without`` outside its range.
    """
    without = real("without", without, above=0.5, below=1)
    apart = float(ndtri(without)) / math.sqrt(2)
    noise = tables * noise_to_signal(plan, features) * math.sqrt(features + apart**2) / apart
    return Forecast(without, noise, plan.examples)
