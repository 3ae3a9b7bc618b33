"""The cost of a plan's noise for a linear model of two classes, in pairs of records put in order.

The figure is the area under the curve (AUC): of 100 pairs, one record of either class, how many the
model puts in the right order. What private data allow nobody knows beforehand, so a forecast begins
with what the same model would reach *without* privacy, which the user supposes.

Assumed: the d features of a class are normal around its mean with deviation v in every direction,
and the means are 2av apart. A model without noise then orders a share A = Φ(√2 a) of pairs. Every
contribution is clipped to one norm and points along ±x, so their mean is a/√(d + a²) of that norm
towards the difference of the means. Over the run the noise has norm ν√d against contributions of
norm 1 (ν: :func:`forethought.planning.defaults.noise_to_signal`), so in the weights noise stands to
signal as

    r = ν √d √(d + a²) / a,

and noise of all directions alike leaves Φ(√2 a / √(1 + r²)) of the pairs. For small r that is lost
with (d/(N ε))²: twice the records are worth twice ε.

Not in it: a private run's path is short, so that directions in which the features hardly differ are
not found. Real tables lose more by that than by the noise where noise is low;
:data:`MEASURED` says how much (experiments/forecast).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from scipy.special import ndtr, ndtri

from forethought.planning.defaults import noise_to_signal
from forethought.values.checks import real
from forethought.values.plan import Plan

# Where a table without privacy may be: what a job's owner most often hopes for.
SUPPOSED = (0.7, 0.8, 0.9)
# Points of a hundred that are called no loss.
POINT = 0.01


class MeasuredLoss(NamedTuple):
    """The loss of runs on public tables against logistic regression without privacy.

    Args:
        noise: over signal, the most that was tried. most: share of pairs that nine of ten runs lost
            at most. runs: how many there were.
    """

    noise: float
    most: float
    runs: int


# Noise over signal on real tables, in units of the formula's: classes are of unequal frequency and
# columns of unequal use. Chosen on every second table of experiments/forecast.
TABLES = 2.5
MEASURED = MeasuredLoss(10.0, 0.056, 80)


@dataclass(frozen=True)
class Forecast:
    """A plan's noise beside what a model without privacy is supposed to reach.

    Args:
        without: share of pairs put in the right order without privacy, above one half.
        noise: r, the noise in the weights over the signal. records: that the plan is for.
    """

    without: float
    noise: float
    records: int

    @property
    def expected(self) -> float:
        """The share of pairs that the noise leaves in the right order."""
        return float(ndtr(ndtri(self.without) / math.hypot(1.0, self.noise)))

    @property
    def lost(self) -> float:
        """The share of pairs that the noise costs."""
        return self.without - self.expected

    @property
    def measured(self) -> MeasuredLoss | None:
        """The loss on public tables; None: under more noise than was tried."""
        return MEASURED if self.noise <= MEASURED.noise else None

    @property
    def records_needed(self) -> float:
        """About as many records cost one pair in a hundred, the budget as it is."""
        wanted = max(0.5 + 1e-9, self.without - POINT)
        ratio = float(ndtri(self.without)) / float(ndtri(wanted))
        return self.records * self.noise / math.sqrt(ratio**2 - 1)


def forecast(plan: Plan, features: int, without: float, *, tables: float = TABLES) -> Forecast:
    """The cost of a plan's noise for a linear model of two classes.

    Args:
        features: of the model. without: share of pairs that the same model puts in the right order
            without privacy, above 0.5 and below 1.
        tables: how many times the formula's noise counts; 1: the formula alone.

    Raises:
        ValueError: another share.
    """
    without = real("without", without, above=0.5, below=1)
    apart = float(ndtri(without)) / math.sqrt(2)
    noise = tables * noise_to_signal(plan, features) * math.sqrt(features + apart**2) / apart
    return Forecast(without, noise, plan.examples)
