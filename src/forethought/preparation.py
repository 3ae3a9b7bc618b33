"""Figures of the private data that are paid for before training: which, and with how much noise.

Each statistic is one release of its own: a sum over all records of a vector whose norm is bounded
by what is declared, with Gaussian noise. It is a round like those of training, and composed with
them. What a later one asks may depend on what an earlier one released.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar, Literal, get_args

from forethought.checks import one_of, real, whole
from forethought.mechanism import Clipping, Mechanism, Rounds
from forethought.samplings import FullBatch

Statistic = Literal["moments", "quantiles", "classes", "means", "norms"]
STATISTICS: tuple[Statistic, ...] = get_args(Statistic)
# What each release is called in transcripts and statements.
NAMES: dict[str, str] = {
    "moments": "means and squares of the features",
    "quantiles": "histograms of the features",
    "classes": "numbers of records by class",
    "means": "means of the features",
    "norms": "usual norm of the centred features",
}


# The reach of means, in usual norms of a record: numbers at the ends of their ranges measure √3.
REACH = 1.5
# A centred record's norm counts between a quarter and four times :data:`LIKELY` usual norms, as a
# logarithm: half of what declared ranges make it is what it most often is.
LIKELY, WITHIN = 0.5, 4.0
# The noise multiplier of the norms, in that of the means: one number is known well enough with it.
NORMS_NOISE = 2.0


@dataclass(frozen=True)
class Statistics:
    """Every record's vector of one statistic is a contribution.

    Args:
        name: what is released, one of :data:`NAMES`' values.
    """

    name: str
    kind: ClassVar[str] = "statistics"
    clipping: ClassVar[Clipping] = "example"
    alterable: ClassVar[bool] = False
    groups: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        one_of("statistics", self.name, tuple(NAMES.values()))

    @property
    def released(self) -> str:
        """The release's name in the transcript."""
        return self.name

    def expected(self, batch: float) -> float:
        """One for each record."""
        return batch


@dataclass(frozen=True)
class Preparation:
    """The release of the training data before training, to prepare inputs with.

    Args:
        statistics: ``"moments"``: mean and variance of every feature, for standardised inputs.
            ``"quantiles"``: a histogram of every feature, from which the least and the greatest
            value worth having are taken (``tails`` left out on each side), for inputs in [0, 1].
            ``"classes"``: how many records each class has. ``"means"``: the mean of every feature,
            for centred inputs. ``"norms"``, after means: the usual norm of what is left when these
            are subtracted, the mean of its logarithm, so that inputs can be scaled to a known one.
            Of moments, quantiles and means there is one at most.
        bounds: (low, high), the range that every feature is declared to have, without looking at
            the private data. What lies beyond counts as the bound.
        features: how many features (or channels, each of which is one) there are.
        classes: how many classes there are, for ``"classes"``.
        bins: of a histogram.
        tails: share of the records left out at each end of a histogram.
        reach: of ``"means"``: the norm to which longer records are shortened in their sum.
        becomes: of ``"means"``: the norm that usual records are scaled to; without ``"norms"``
            they are taken to have norm reach/1.5. The intercept's feature is 1. Default:
            √features, a usual feature's size being 1 as well.
        noise_multiplier: σ of each release, in units of its bound; of ``"norms"`` twice that.
            None: the planner's choice.

    Raises:
        ValueError, TypeError: unknown statistics, or what they need is missing.
    """

    statistics: tuple[Statistic, ...] = ("moments",)
    bounds: tuple[float, float] | None = None
    features: int | None = None
    classes: int | None = None
    bins: int = 64
    tails: float = 0.01
    reach: float | None = None
    becomes: float | None = None
    noise_multiplier: float | None = None

    def __post_init__(self) -> None:
        def settle(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        names = (self.statistics,) if isinstance(self.statistics, str) else tuple(self.statistics)
        settle("statistics", names)
        if not names or len(set(names)) != len(names):
            raise ValueError(f"statistics must name each once, and at least one, not {names!r}")
        for name in names:
            one_of("statistics", name, STATISTICS)
        if len({"moments", "quantiles", "means"} & set(names)) > 1:
            raise ValueError(
                "moments, quantiles and means all move the features: ask for one of them"
            )
        if "norms" in names and "means" not in names[: names.index("norms")]:
            raise ValueError(
                'private norms are those of centred features: put "means" before "norms"'
            )
        if {"moments", "quantiles"} & set(names):
            if self.bounds is None or self.features is None:
                raise ValueError(
                    "private moments and quantiles need bounds=(low, high) and features=: how far "
                    "one record can move them follows from these, as declared"
                )
            low, high = (real("bounds", end) for end in self.bounds)
            if not low < high:
                raise ValueError(f"bounds must be (low, high) with low < high, not {self.bounds!r}")
            settle("bounds", (low, high))
            settle("features", whole("features", self.features))
        if "means" in names:
            if self.reach is None or self.features is None:
                raise ValueError(
                    "private means need reach= and features=: records longer than the reach are "
                    "shortened to it, so that it is how far one can move the sum"
                )
            settle("reach", real("reach", self.reach, above=0))
            settle("features", whole("features", self.features))
            norm = math.sqrt(self.features or 1) if self.becomes is None else self.becomes
            settle("becomes", real("becomes", norm, above=0))
        if "classes" in names:
            if self.classes is None:
                raise ValueError("private class counts need classes=, their declared number")
            settle("classes", whole("classes", self.classes, least=2))
        settle("bins", whole("bins", self.bins, least=2, most=10_000))
        settle("tails", real("tails", self.tails, above=0, below=0.5))
        if self.noise_multiplier is not None:
            sigma = real("noise_multiplier of preparation", self.noise_multiplier, least=0)
            settle("noise_multiplier", sigma)

    def length(self, statistic: Statistic) -> int:
        """Entries of one record's vector."""
        match statistic:
            case "moments":
                return 2 * (self.features or 0)
            case "quantiles":
                return self.bins * (self.features or 0)
            case "classes":
                return self.classes or 0
            case "means":
                return self.features or 0
            case "norms":
                return 1

    def norm(self, statistic: Statistic) -> float:
        """The most that one record's vector can measure.

        Features are scaled to [−1, 1], so that each adds at most 1 + 1 to the square of the
        moments' norm, and at most 1 to that of the histograms'; a record has one class.
        """
        match statistic:
            case "moments":
                return math.sqrt(2 * (self.features or 0))
            case "quantiles":
                return math.sqrt(self.features or 0)
            case "classes":
                return 1.0
            case "means":
                return self.reach or 0.0
            case "norms":
                return math.log(WITHIN)

    @property
    def centres(self) -> bool:
        """True if it does nothing but centre the features, which no linear model needs to know."""
        return self.statistics in (("means",), ("means", "norms"))

    @property
    def releases(self) -> float:
        """The number of releases with ``noise_multiplier`` that cost as much, in μ², as these
        together."""
        return math.fsum(self._relative(name) ** -2 for name in self.statistics)

    def sigma(self, statistic: Statistic) -> float:
        """Noise multiplier of one statistic.

        Raises:
            ValueError: no noise multiplier yet.
        """
        if self.noise_multiplier is None:
            raise ValueError("the preparation has no noise_multiplier: forethought.plan chooses it")
        return self.noise_multiplier * self._relative(statistic)

    def _relative(self, statistic: Statistic) -> float:
        return NORMS_NOISE if statistic == "norms" else 1.0

    def parts(self) -> tuple[Rounds, ...]:
        """The releases, as they are accounted: those of equal noise in a row are one part.

        Raises:
            ValueError: no noise multiplier yet.
        """
        alike = groupby(self.sigma(name) for name in self.statistics)
        return tuple(Rounds(sigma, len(list(those)), FullBatch()) for sigma, those in alike)

    def before(self, mechanism: Mechanism) -> Mechanism:
        """The releases, then a mechanism."""
        return Mechanism(*self.parts(), *mechanism, adjacency=mechanism.adjacency)
