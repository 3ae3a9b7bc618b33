"""The plan, the rounds that follow from it, and the transcript of what was released.

The planner returns a :class:`Plan`, the trainer runs it and the accountant analyses it. Every
noised sum appends its :class:`Round` to a :class:`Transcript`, with the standard deviations that
the noise was really drawn with. At the end the transcript is turned into a
:class:`~forethought.values.mechanism.Mechanism`. It must equal the mechanism that was accounted, or
no statement is written. Other releases (scores of a search) are in the transcript by name.
"""

from __future__ import annotations

import json
import math
import os
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import accumulate, groupby
from operator import attrgetter
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    Literal,
    Protocol,
    TypedDict,
    TypeVar,
    Unpack,
    get_args,
)

from forethought.values import serialisation
from forethought.values.caveats import Caveat, caveats, choice, still_chosen
from forethought.values.checks import one_of, optional, real, require_parts, settle, whole
from forethought.values.mechanism import (
    Adjacency,
    Augmentation,
    Budget,
    Clipping,
    Contribution,
    Correlated,
    Examples,
    FullBatch,
    Groups,
    LinearExamples,
    Local,
    LocalUpdates,
    Mechanism,
    Persons,
    Rounds,
    Sampling,
    UnsupportedMechanismError,
)
from forethought.values.strategies import Strategy
from forethought.values.use import (
    Assumed,
    Averaging,
    GradientFilter,
    Optimizer,
    ReleaseUse,
    Schedule,
    ScheduleKind,
)

if TYPE_CHECKING:
    from forethought.accounting.adaptive import Selection


Statistic = Literal["ranges", "moments", "quantiles", "classes", "means", "norms"]
STATISTICS: tuple[Statistic, ...] = get_args(Statistic)
# The name of each release in transcripts and statements.
NAMES: dict[str, str] = {
    "ranges": "usual ranges of the columns",
    "moments": "means and squares of the features",
    "quantiles": "histograms of the features",
    "classes": "numbers of records by class",
    "means": "means of the features",
    "norms": "usual norm of the centred features",
}


# The norm to which records are shortened for the means, in usual norms of a record. A record whose
# numbers all lie at the ends of their ranges has √3 usual norms.
REACH = 1.5
# The norm of a centred record is most often about half of what the declared ranges suggest
# (:data:`LIKELY`). Its logarithm is clipped to between 1/WITHIN and WITHIN times that value.
LIKELY, WITHIN = 0.5, 4.0
# The noise multiplier of the norms over that of the means: they are one number only, which is known
# well enough with more noise.
NORMS_NOISE = 2.0


# Statistics of the private data that are released before training: which, and with how much noise.
# Each is one release: a sum over all records of a vector whose norm the declarations bound, with
# Gaussian noise. It is a round like those of training and is composed with them. A later release
# may depend on the results of earlier ones.


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
            ``"quantiles"``: a histogram of every feature, for inputs in [0, 1]: it gives the least
            and the greatest value that are kept (a share ``tails`` lies beyond each).
            ``"classes"``: the number of records of each class. ``"means"``: the mean of every
            feature, for centred inputs. ``"norms"``, after means: the mean logarithm of the norm
            of centred records, so that inputs can be scaled to a known norm.
            At most one of moments, quantiles and means. ``"ranges"``, first, followed by means at
            most: for each of the ``numbers``, the share of records in each half, quarter, … of its
            declared range, down to 1/``bins``; a job narrows the declared ranges with them.
        bounds: (low, high), the declared range of every feature, chosen without looking at the
            private data. A value beyond it counts as the nearer bound.
        features: number of features, or of channels, each of which counts as one feature.
        classes: number of classes, for ``"classes"``.
        bins: number of bins of a histogram.
        tails: share of the records left out at each end of a histogram.
        reach: for ``"means"``: the norm to which longer records are shortened in their sum.
        becomes: for ``"means"``: the norm that usual records are scaled to; without ``"norms"``
            they are assumed to have norm reach/1.5. The intercept's feature is 1. Default:
            √features, so that a usual feature also has size 1.
        noise_multiplier: σ of each release, in units of its bound; of ``"norms"`` twice that.
            None: the planner's choice.
        numbers: for ``"ranges"``: number of columns that have a range. ranges_noise: σ of their
            release.

    Raises:
        ValueError, TypeError: unknown statistics, or a missing argument that they need.
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
    numbers: int | None = None
    ranges_noise: float | None = None
    LATER: ClassVar[tuple[str, ...]] = ("numbers", "ranges_noise")

    def __post_init__(self) -> None:
        names = (self.statistics,) if isinstance(self.statistics, str) else tuple(self.statistics)
        settle(self, statistics=names)
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
        settle(self, bins=whole("bins", self.bins, least=2, most=10_000))
        if "ranges" in names:
            self._settle_ranges(names)
        if {"moments", "quantiles"} & set(names):
            if self.bounds is None or self.features is None:
                raise ValueError(
                    "private moments and quantiles need bounds=(low, high) and features=: how far "
                    "one record can move them follows from these, as declared"
                )
            low, high = (real("bounds", end) for end in self.bounds)
            if not low < high:
                raise ValueError(f"bounds must be (low, high) with low < high, not {self.bounds!r}")
            settle(self, bounds=(low, high))
            settle(self, features=whole("features", self.features))
        if "means" in names:
            if self.reach is None or self.features is None:
                raise ValueError(
                    "private means need reach= and features=: records longer than the reach are "
                    "shortened to it, so that it is how far one can move the sum"
                )
            settle(self, reach=real("reach", self.reach, above=0))
            settle(self, features=whole("features", self.features))
            norm = math.sqrt(self.features or 1) if self.becomes is None else self.becomes
            settle(self, becomes=real("becomes", norm, above=0))
        if "classes" in names:
            if self.classes is None:
                raise ValueError("private class counts need classes=, their declared number")
            settle(self, classes=whole("classes", self.classes, least=2))
        settle(self, tails=real("tails", self.tails, above=0, below=0.5))
        sigma = optional(real, "noise_multiplier of preparation", self.noise_multiplier, least=0)
        settle(self, noise_multiplier=sigma)

    def _settle_ranges(self, names: tuple[str, ...]) -> None:
        if names[0] != "ranges" or {"moments", "quantiles"} & set(names):
            raise ValueError(
                'ranges come first, before means at most: put "ranges" before the others, and '
                "leave out moments and quantiles, which move the features as well"
            )
        if self.numbers is None or self.ranges_noise is None or self.bins & (self.bins - 1):
            raise ValueError("private ranges need numbers=, ranges_noise= and 2, 4, 8, … bins=")
        settle(self, numbers=whole("numbers", self.numbers))
        settle(self, ranges_noise=real("ranges_noise", self.ranges_noise, least=0))

    def length(self, statistic: Statistic) -> int:
        """The number of entries of one record's vector."""
        return self._sizes[statistic][0]

    def norm(self, statistic: Statistic) -> float:
        """The largest L2 norm of one record's vector."""
        return self._sizes[statistic][1]

    @property
    def _sizes(self) -> dict[Statistic, tuple[int, float]]:
        """The length of a record's vector and its largest L2 norm.

        Features are scaled to [−1, 1], so each adds at most 1 + 1 to the squared norm of the
        moments, and at most 1 to that of the histograms. A record has one class. For ranges, it
        lies in one half, one quarter, … of each number's range.
        """
        features = self.features or 0
        numbers = self.numbers or 0
        return {
            "ranges": (2 * (self.bins - 1) * numbers, math.sqrt(len(self.steps) * numbers)),
            "moments": (2 * features, math.sqrt(2 * features)),
            "quantiles": (self.bins * features, math.sqrt(features)),
            "classes": (self.classes or 0, 1.0),
            "means": (features, self.reach or 0.0),
            "norms": (1, math.log(WITHIN)),
        }

    @property
    def steps(self) -> tuple[int, ...]:
        """The numbers of bins in a half of a range, in a quarter, …, down to 1."""
        return tuple(2**level for level in reversed(range(self.bins.bit_length() - 1)))

    @property
    def centres(self) -> bool:
        """True if it only centres the features; a run then releases the means by itself."""
        return self.statistics in (("means",), ("means", "norms"))

    @property
    def measures(self) -> bool:
        """True if ranges are released; a job then encodes its table again with them."""
        return self.statistics[0] == "ranges"

    @property
    def unmeasured(self) -> Preparation | None:
        """The same preparation without ranges; None where nothing else is released."""
        if not self.measures:
            return self
        rest = self.statistics[1:]
        return replace(self, statistics=rest, numbers=None, ranges_noise=None) if rest else None

    @property
    def releases(self) -> float:
        """The number of releases at ``noise_multiplier`` that cost the same μ² as all of these.

        Ranges are left out.
        """
        names = (name for name in self.statistics if name != "ranges")
        return math.fsum(self._relative(name) ** -2 for name in names)

    def sigma(self, statistic: Statistic) -> float:
        """The noise multiplier of one statistic.

        Raises:
            ValueError: the preparation has no noise multiplier yet.
        """
        if statistic == "ranges":
            assert self.ranges_noise is not None
            return self.ranges_noise
        if self.noise_multiplier is None:
            raise ValueError("the preparation has no noise_multiplier: forethought.plan chooses it")
        return self.noise_multiplier * self._relative(statistic)

    def _relative(self, statistic: Statistic) -> float:
        return NORMS_NOISE if statistic == "norms" else 1.0

    def parts(self) -> tuple[Rounds, ...]:
        """The releases as they are accounted: consecutive ones of equal noise are one part.

        Raises:
            ValueError: the preparation has no noise multiplier yet.
        """
        alike = groupby(self.sigma(name) for name in self.statistics)
        return tuple(Rounds(sigma, len(list(those)), FullBatch()) for sigma, those in alike)

    def before(self, mechanism: Mechanism) -> Mechanism:
        """The mechanism that makes these releases first, then those of ``mechanism``."""
        return Mechanism(*self.parts(), *mechanism, adjacency=mechanism.adjacency)


# The part of a plan that privacy depends on. A round's numbers are derived from it here only.


_Value = TypeVar("_Value")
ClipRule = Literal["flat", "automatic", "per-layer", "quantile"]
NoiseKind = Literal["gaussian", "grid"]
# A smaller noise multiplier hides nothing: ε of one round alone is in the thousands. Only 0, which
# states that there is no noise, is accepted.
LEAST_NOISE = 0.01
NOISES: tuple[NoiseKind, ...] = get_args(NoiseKind)


@dataclass(frozen=True)
class Clip:
    """The bound on one contribution in L2 norm, ``norm``.

    Args:
        norm: the clipping norm C. Under ``"quantile"`` it is only the first round's norm.
        rule: ``"flat"`` scales by min(1, C/‖g‖); ``"automatic"`` by C/(‖g‖ + gamma)
            (Bu et al. 2022); ``"per-layer"`` clips every parameter tensor to its own share of C;
            ``"quantile"`` follows a quantile of the norms, estimated privately each round
            (Andrew et al. 2021), which is part of the mechanism.
        gamma: stability constant of the automatic rule.
        quantile, quantile_rate: target quantile and step size of the quantile rule.
        count_noise: standard deviation of the noise on the count of contributions below the norm;
            the quantile rule needs it, and its cost is taken from the plan's noise multiplier.
        final: norm of the last round; the norm moves to it geometrically from the first round's,
            on a public schedule. None keeps the norm.
        shares: per-layer rule: parameter name → share of C. The squares sum to at most 1.
            None splits evenly.
    """

    norm: float = 1.0
    rule: ClipRule = "flat"
    gamma: float = 0.01
    quantile: float = 0.5
    quantile_rate: float = 0.2
    count_noise: float | None = None
    shares: tuple[tuple[str, float], ...] | None = None
    final: float | None = None

    def __post_init__(self) -> None:
        settle(self, norm=real("clip_norm", self.norm, above=0))
        one_of("clip rule", self.rule, get_args(ClipRule))
        settle(self, gamma=real("gamma", self.gamma, above=0))
        settle(self, quantile=real("quantile", self.quantile, above=0, below=1))
        settle(self, quantile_rate=real("quantile_rate", self.quantile_rate, above=0))
        if (self.rule == "quantile") != (self.count_noise is not None):
            raise ValueError("count_noise goes with the clip rule 'quantile', and only with it")
        settle(self, count_noise=optional(real, "count_noise", self.count_noise, least=1e-100))
        if self.final is not None:
            if self.rule == "quantile":
                raise ValueError("the clip rule 'quantile' moves the norm by itself: drop final")
            settle(self, final=real("final clip norm", self.final, above=0))
        if self.shares is not None:
            if self.rule != "per-layer":
                raise ValueError("shares go with the clip rule 'per-layer' only")
            pairs = self.shares.items() if isinstance(self.shares, Mapping) else self.shares
            shares = tuple(
                (str(name), real(f"share of {name!r}", share, above=0)) for name, share in pairs
            )
            settle(self, shares=shares)
            if math.fsum(share**2 for _, share in shares) > 1 + 1e-12:
                raise ValueError("the squares of the per-layer shares must sum to at most 1")

    def at(self, index: int, rounds: int) -> float:
        """The planned norm of round ``index`` (from 0) of ``rounds``."""
        if self.final is None or rounds == 1:
            return self.norm
        return self.norm * math.pow(self.final / self.norm, index / (rounds - 1))

    def gradient_noise(self, noise_multiplier: float) -> float:
        """The gradients' noise multiplier when that of the whole round is ``noise_multiplier``.

        The count of the quantile rule has sensitivity 1/2, the sum of gradients C. Together they
        are one Gaussian release with σ⁻² = σ_g⁻² + (2 σ_b)⁻² (Andrew et al. 2021, Theorem 1).

        Raises:
            ValueError: the count's noise alone is too small for the total.
        """
        if self.count_noise is None or noise_multiplier == 0:
            return noise_multiplier
        left = noise_multiplier**-2 - (2 * self.count_noise) ** -2
        if left <= 0:
            raise ValueError(
                f"count_noise {self.count_noise} spends more than a noise multiplier of "
                f"{noise_multiplier} allows: it must be above {noise_multiplier / 2:.4g}"
            )
        return float(left**-0.5)


# The annotation makes mypy report what a kind of contribution lacks.
_KINDS: tuple[type[Contribution], ...] = (
    Examples,
    Groups,
    LinearExamples,
    LocalUpdates,
    Persons,
    Statistics,
)
CONTRIBUTIONS: dict[str, type[Any]] = {kind.kind: kind for kind in _KINDS}


@dataclass(frozen=True)
class Round:
    """One round: everything that its noised sum depends on except data, weights and secrets.

    Args:
        index: its number in the run, from 0.
        origin: number of the first round of its part; shuffled epochs begin there.
        examples: number of records.
        sampling: how its batch is drawn.
        contribution: the unit that is clipped. clip: the rule that clips it.
        clip_norm: bound C on the L2 norm of one contribution.
        noise_multiplier: σ of the noise on the sum, in units of C; under a ``strategy``, σ of the
            independent numbers that the correlated noise is computed from.
        accounted: noise multiplier of all of the round's releases together, as it is accounted.
        noise: kind of noise.
        strategy: its correlation with the noise of the part's other rounds; None: independent.
        groups: number of groups that the accounting counts in a batch; None: any number.
        augmentation: the altered copies of each record that are averaged; None: none.
        divisor: the expected number of contributions, which is public; the noised sum is divided by
            it.
    """

    index: int
    origin: int
    examples: int
    sampling: Sampling
    contribution: Contribution
    clip: Clip
    clip_norm: float
    noise_multiplier: float
    accounted: float
    noise: NoiseKind
    divisor: float
    strategy: Strategy | None = None
    groups: int | None = None
    augmentation: Augmentation | None = None

    @property
    def noise_std(self) -> float:
        """The standard deviation σC of the noise on every coordinate of the sum.

        Where noise is correlated: that of the independent numbers it is computed from.
        """
        return self.noise_multiplier * self.clip_norm

    @property
    def mean_variance(self) -> float:
        """The variance of the noise on every coordinate of the mean, for independent rounds."""
        return (self.noise_std / self.divisor) ** 2

    @property
    def count_noise(self) -> float | None:
        """The standard deviation of the noise on the count below the norm; None: no such count."""
        return self.clip.count_noise

    @property
    def mechanism(self) -> Rounds:
        """The round as a mechanism of its own, as it is accounted.

        Raises:
            UnsupportedMechanismError: its noise is correlated, so that only the whole run is a
                mechanism.
        """
        if self.strategy is not None:
            raise UnsupportedMechanismError(
                f"round {self.index} has correlated noise and is no mechanism of its own: account "
                "for the whole run"
            )
        return Rounds(
            self.accounted, 1, self.sampling, self.contribution.clipping, groups=self.groups
        )


_OPTIONAL = {"budget": Budget, "preparation": Preparation, "augmentation": Augmentation}


@dataclass(frozen=True)
class Privacy:
    """The releases of a run: all that its guarantee depends on.

    Args:
        mechanism: the releases of training, all with the same clipping kind.
        examples: size N of the training set, taken as public.
        delta: the δ at which the Statement gives ε.
        clip: how one contribution is bounded.
        contribution: the unit that is clipped.
        noise: ``"gaussian"``: in floating-point numbers. ``"grid"``: discrete Gaussian noise, in
            whole numbers, on the sum rounded to a grid; see :mod:`forethought.rounds.randomness`.
        budget: the target that was asked for, if any. The mechanism need not use it up.
        preparation: the releases before the rounds, to prepare the inputs with.
        records_per_person: largest number of examples of one person; the budget and every
            statement hold for that many examples together.
        augmentation: the altered copies of a record whose mean is its contribution. The guarantee
            does not depend on it, since the mean follows from that record alone.

    Raises:
        ValueError, TypeError: parts that contradict each other.
    """

    mechanism: Mechanism
    examples: int
    delta: float
    clip: Clip = Clip()
    contribution: Contribution = Examples()  # noqa: RUF009 (frozen)
    noise: NoiseKind = "gaussian"
    budget: Budget | None = None
    preparation: Preparation | None = None
    records_per_person: int = 1
    augmentation: Augmentation | None = None

    def __post_init__(self) -> None:
        require_parts(self, {"mechanism": Mechanism, "clip": Clip, **_OPTIONAL})
        settle(self, records_per_person=whole("records_per_person", self.records_per_person))
        if self.records_per_person > 1 and isinstance(self.contribution, Persons):
            raise ValueError(
                "the examples of these contributions are persons already: drop records_per_person"
            )
        settle(self, examples=whole("examples", self.examples))
        settle(self, delta=real("delta", self.delta, above=0, below=1))
        one_of("noise", self.noise, NOISES)
        if type(self.contribution) not in CONTRIBUTIONS.values():
            raise TypeError(
                f"contribution must be one of {', '.join(CONTRIBUTIONS)}, not {self.contribution!r}"
            )
        if self.augmentation is not None and not self.contribution.alterable:
            raise ValueError(
                "augment= averages gradients of altered copies before clipping, which goes with "
                f"examples, groups and persons, not with {self.contribution.kind!r} contributions: "
                "drop it, or local="
            )
        kinds = {part.clipping for part in self.mechanism}
        if len(kinds) > 1:
            raise ValueError("all rounds of a plan clip the same kind of contribution")
        if kinds != {self.contribution.clipping}:
            raise ValueError(
                "groups= goes with clipping='group' (1 is batch clipping), and only with it: the "
                f"mechanism clips {kinds.pop()!r}, the contribution is {self.contribution!r}"
            )
        count = self.contribution.groups
        for part in self.mechanism:
            if part.groups not in (None, count):
                raise ValueError(
                    f"the mechanism speaks of {part.groups} groups, the contribution of {count}: "
                    "several records are charged by the number of groups that they can be in"
                )
            drawn_from = part.sampling.known_examples()
            if drawn_from not in (None, self.examples):
                raise ValueError(
                    f"the sampling speaks of {drawn_from} examples, the plan of {self.examples}"
                )
            self.clip.gradient_noise(part.noise_multiplier)
            if isinstance(part, Correlated) and (
                self.noise != "gaussian" or self.clip.rule == "quantile"
            ):
                raise ValueError(
                    "correlated noise goes with noise='gaussian' and a fixed clip norm: on a grid, "
                    "or with the rule 'quantile', rounds do not cancel each other's noise"
                )

    @cached_property
    def accounted(self) -> Mechanism:
        """Everything that is released: the preparation, then the rounds."""
        if self.preparation is None:
            return self.mechanism
        return self.preparation.before(self.mechanism)

    @property
    def rounds(self) -> int:
        """The number of noised sums that training releases."""
        return self._ends[-1]

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(part.count for part in self.mechanism))

    def part(self, index: int) -> tuple[Rounds, int]:
        """The Rounds that contain round ``index`` (from 0), and the number of their first round.

        Raises:
            IndexError: no such round.
        """
        if not 0 <= index < self._ends[-1]:
            raise IndexError(f"round {index} of a plan with {self._ends[-1]}")
        place = bisect_right(self._ends, index)
        return self.mechanism.rounds[place], self._ends[place - 1] if place else 0

    def round(self, index: int, clip_norm: float | None = None) -> Round:
        """Round ``index``, from 0, with its sampling, clip norm, noise and divisor.

        Args:
            index: the round's number.
            clip_norm: the norm that follows from earlier releases, for the quantile rule only.
                None: the planned norm.

        Raises:
            IndexError: no such round. ValueError: another ``clip_norm`` than the plan's under
                another rule.
        """
        part, origin = self.part(index)
        if clip_norm is None or clip_norm == self.clip.norm:
            clip_norm = self.clip.at(index, self.rounds)
        else:
            if self.clip.rule != "quantile":
                raise ValueError(
                    f"the clip rule {self.clip.rule!r} keeps its norm of {self.clip.norm}: only "
                    "'quantile' moves it"
                )
            clip_norm = real("clip_norm", clip_norm, above=0)
        return Round(
            index,
            origin,
            self.examples,
            part.sampling,
            self.contribution,
            self.clip,
            clip_norm,
            self.clip.gradient_noise(part.noise_multiplier),
            part.noise_multiplier,
            self.noise,
            self.contribution.expected(part.sampling.expected_batch(self.examples)),
            part.strategy if isinstance(part, Correlated) else None,
            part.groups,
            self.augmentation,
        )

    @cached_property
    def _examples_before(self) -> list[float]:
        sizes = (
            part.count * part.sampling.expected_batch(self.examples) for part in self.mechanism
        )
        return [0.0, *accumulate(sizes)]

    def examples_before(self, index: int) -> float:
        """The expected number of records in all rounds before ``index``, from 0 to ``rounds``."""
        place = bisect_left(self._ends, index)  # the part that ends with these rounds, or later
        start = self._ends[place - 1] if place else 0
        size = self.mechanism.rounds[place].sampling.expected_batch(self.examples)
        return self._examples_before[place] + (index - start) * size

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping; :meth:`from_dict` reads it back."""
        values = serialisation.entries(self)
        shares = self.clip.shares
        values["clip"]["shares"] = None if shares is None else dict(shares)
        values["contribution"] = serialisation.tagged(self.contribution)
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Privacy:
        """The inverse of :meth:`to_dict`; refuses unknown keys and kinds."""
        known = dict(values)
        serialisation.exact_keys("privacy", known, {field.name for field in fields(cls)})
        known["mechanism"] = Mechanism.from_dict(known["mechanism"])
        known["clip"] = serialisation.build(Clip, known["clip"])
        for name, kind in _OPTIONAL.items():
            if known[name] is not None:
                known[name] = serialisation.build(kind, known[name])
        known["contribution"] = serialisation.of_kind(
            CONTRIBUTIONS, known["contribution"], "contribution"
        )
        return cls(**known)


# The Plan: one frozen value that is planned, run, accounted and stored with the result.


DECLARED = Caveat("declared")
# Arguments of a plan that are no numbers of its own.
_NO_NUMBERS = frozenset({"reasons", "hyperparameters", "not_covered", "augmentation"})


class Of(Generic[_Value]):
    """An attribute that reads one of a part: ``examples = Of[int]("privacy.examples")``."""

    def __init__(self, path: str) -> None:
        self._read = attrgetter(path)

    def __get__(self, whole: object, _owner: type | None = None) -> _Value:
        return self._read(whole)


class Parts(TypedDict, total=False):
    """Keywords of :class:`Plan`: parts of ``privacy`` up to ``augmentation``, then of ``use``."""

    noise: NoiseKind
    budget: Budget | None
    preparation: Preparation | None
    records_per_person: int
    augmentation: Augmentation | None
    optimizer: Optimizer
    schedule: Schedule
    averaging: Averaging
    assumed: Assumed | None
    gradient_filter: GradientFilter | None


@dataclass(frozen=True, init=False)
class Plan(serialisation.Stored):
    """Everything a private run needs, decided before any private data is touched.

    Args:
        mechanism, examples, delta, clip, contribution, noise, budget, preparation,
            records_per_person, augmentation: see :class:`Privacy`. The argument ``mechanism`` is
            training alone; the attribute of this name includes the preparation.
        use: how the noised means are used: post-processing.
        hyperparameters: how this plan's numbers were chosen, for the Statement: a
            :class:`~forethought.values.caveats.Caveat` of that role, or words.
        not_covered: ways in which private data was used outside the mechanism, and assumptions,
            for the Statement: caveats, or words.
        groups, local: short for ``contribution=Groups(...)``, or ``LocalUpdates(...)``.
        reasons: pairs (name of a number, reason for it), written by the planner for
            :meth:`explain`.
        parts: see :class:`Parts`.

    Raises:
        ValueError, TypeError: parts that contradict each other.

    Attributes:
        privacy: the releases, on which the guarantee depends. use: how the releases are used.
        mechanism: everything that is released, the preparation of the data first.
        groups: the number of groups of a batch; None where examples are clipped.
        rounds: the number of noised sums that are released.
        clip_norm: the bound C on the L2 norm of one contribution.
        examples, delta, …, gradient_filter: those of ``privacy`` and ``use``.
    """

    SCHEMA: ClassVar[str] = "forethought/plan/2"
    CALLED: ClassVar[str] = "plan"

    privacy: Privacy
    use: ReleaseUse
    hyperparameters: Caveat
    not_covered: tuple[Caveat, ...]
    reasons: tuple[tuple[str, str], ...]

    #: Everything that is released, the preparation of the data first.
    mechanism = Of[Mechanism]("privacy.accounted")
    #: The release of the data before training, to prepare inputs with.
    preparation = Of[Preparation | None]("privacy.preparation")
    #: Size N of the training set.
    examples = Of[int]("privacy.examples")
    #: The δ at which the Statement gives ε.
    delta = Of[float]("privacy.delta")
    #: The bound on one contribution.
    clip = Of[Clip]("privacy.clip")
    #: The unit that is clipped.
    contribution = Of[Contribution]("privacy.contribution")
    #: The number of examples that may be one person's, protected together.
    records_per_person = Of[int]("privacy.records_per_person")
    #: The altered copies of a record whose mean is its contribution; None: none.
    augmentation = Of[Augmentation | None]("privacy.augmentation")
    #: The number of groups of a batch; None where examples are clipped.
    groups = Of[int | None]("contribution.groups")
    #: The kind of noise.
    noise = Of[NoiseKind]("privacy.noise")
    #: The target that was asked for.
    budget = Of[Budget | None]("privacy.budget")
    #: The optimizer that steps along a noised mean.
    optimizer = Of[Optimizer]("use.optimizer")
    #: Its step sizes.
    schedule = Of[Schedule]("use.schedule")
    #: The average of the iterates that is reported.
    averaging = Of[Averaging]("use.averaging")
    #: The model that the planner assumed; see :mod:`forethought.values.use`.
    assumed = Of[Assumed | None]("use.assumed")
    #: The filter of noised means before the optimizer; None: none.
    gradient_filter = Of[GradientFilter | None]("use.gradient_filter")
    #: The number of noised sums that are released.
    rounds = Of[int]("privacy.rounds")
    #: The bound C on the L2 norm of one contribution.
    clip_norm = Of[float]("clip.norm")

    def __init__(
        self,
        mechanism: Mechanism,
        examples: int,
        delta: float,
        clip: Clip = Clip(),
        *,
        contribution: Contribution | None = None,
        groups: int | None = None,
        local: Local | None = None,
        use: ReleaseUse = ReleaseUse(),  # noqa: B008 (frozen)
        hyperparameters: Caveat | str = DECLARED,
        not_covered: Iterable[Caveat | str] = (),
        reasons: tuple[tuple[str, str], ...] = (),
        **parts: Unpack[Parts],
    ) -> None:
        if contribution is None:
            contribution = Examples() if groups is None else Groups(groups)
            if local is not None:
                contribution = LocalUpdates(1 if groups is None else groups, local)
        elif groups is not None or local is not None:
            raise ValueError(
                "groups= and local= are short for contribution=Groups(...) or LocalUpdates(...): "
                "give one of them"
            )
        given: dict[str, Any] = dict(parts)
        own = [field.name for field in fields(Privacy) if field.name in given]
        of_privacy = {name: given.pop(name) for name in own}
        for name in given:
            if name not in ReleaseUse.__dataclass_fields__:
                raise TypeError(
                    f"a plan has no argument {name!r}: rounds, batches and noise follow from its "
                    "mechanism, the clip norm from its clip. Plan again with forethought.plan"
                )
        if not isinstance(use, ReleaseUse):
            raise TypeError(f"use must be that of another plan, such as plan.use, not {use!r}")
        try:
            pairs = tuple((str(what), str(why)) for what, why in reasons)
        except (TypeError, ValueError):
            raise TypeError(
                f"reasons must be pairs of a number's name and why, not {reasons!r}"
            ) from None
        privacy = Privacy(mechanism, examples, delta, clip, contribution, **of_privacy)
        settle(self, privacy=privacy, use=replace(use, **given))
        settle(self, hyperparameters=choice(hyperparameters), not_covered=caveats(not_covered))
        settle(self, reasons=pairs)
        filtered = self.gradient_filter is not None or self.optimizer.name == "adam-bc"
        if filtered and privacy.mechanism.correlated:
            raise ValueError(
                "gradient_filter= and the optimizer 'adam-bc' count on independent noise: drop "
                "them, or noise='correlated', which cancels over the rounds by itself"
            )

    @property
    def local(self) -> Local | None:
        """The algorithm that runs inside a group; None where gradients are clipped."""
        return self.contribution.local if isinstance(self.contribution, LocalUpdates) else None

    def round(self, index: int, clip_norm: float | None = None) -> Round:
        """Round ``index``, from 0; see :meth:`forethought.values.plan.Privacy.round`."""
        return self.privacy.round(index, clip_norm)

    def _only(self, what: str) -> Any:
        values = {getattr(part, what) for part in self.privacy.mechanism}
        if len(values) > 1:
            raise ValueError(
                f"this plan has several values of {what}; see each of plan.mechanism.rounds"
            )
        return values.pop()

    @property
    def noise_multiplier(self) -> float:
        """The noise multiplier σ, when all rounds share one (ValueError otherwise)."""
        return float(self._only("noise_multiplier"))

    @property
    def sampling(self) -> Sampling:
        """The sampling of batches, when all rounds share one (ValueError otherwise)."""
        return self._only("sampling")

    @property
    def batch(self) -> float:
        """The expected batch size, when all rounds share one sampling (ValueError otherwise)."""
        return self.sampling.expected_batch(self.examples)

    @property
    def mean_batch(self) -> float:
        """The mean over the run of expected batch sizes; :attr:`batch` where all are equal."""
        return self.privacy.examples_before(self.rounds) / self.rounds

    @property
    def epochs(self) -> float:
        """The expected number of passes over the data in the whole run."""
        sizes = []
        for part in self.privacy.mechanism:
            # A dealt epoch holds every record once, also where its last batch is short.
            length = part.sampling.rounds_per_epoch
            dealt, rest = divmod(part.count, length) if part.sampling.redealt else (0, part.count)
            sizes.append(dealt * self.examples + rest * part.sampling.expected_batch(self.examples))
        return math.fsum(sizes) / self.examples

    def round_at(self, index: int) -> Rounds:
        """The Rounds that contain round ``index`` (from 0)."""
        return self.privacy.part(index)[0]

    def explain(self) -> str:
        """The planner's reason for each number, one per line."""
        if not self.reasons:
            return "This plan was written by hand: every number was given."
        return "\n".join(f"{what}: {why}" for what, why in self.reasons)

    def with_(self, **changes: Any) -> Plan:
        """A copy with the named arguments of :class:`Plan` replaced.

        The planner answers for its own numbers only. So ``reasons`` are dropped and numbers that it
        chose count as declared by the user, unless both are given; a change of those two, of
        ``not_covered`` or of ``augmentation`` alone leaves them. What a user declared stays.
        """
        if set(changes) - _NO_NUMBERS:
            chosen = still_chosen(self.hyperparameters)
            changes = {"reasons": (), "hyperparameters": chosen, **changes}
        return self.remade(**changes)

    def remade(self, **changes: Any) -> Plan:
        """The same copy with the words of the planner on its numbers, for the library itself."""
        values: dict[str, Any] = {
            **_parts(self.privacy),
            "use": self.use,
            "hyperparameters": self.hyperparameters,
            "not_covered": self.not_covered,
            "reasons": self.reasons,
        }
        if {"groups", "local"} & set(changes):
            del values["contribution"]
            changes = {"groups": self.groups, "local": self.local, **changes}
            training = self.privacy.mechanism
            if "mechanism" not in changes and any(part.groups for part in training):
                parts = (replace(part, groups=changes["groups"]) for part in training)
                changes["mechanism"] = Mechanism(*parts, adjacency=training.adjacency)
        made = Plan(**{**values, **changes})
        persons = isinstance(self.contribution, Persons), isinstance(made.contribution, Persons)
        if persons != (True, False) or "not_covered" in changes:
            return made
        # It no longer counts persons.
        return made.remade(not_covered=[one for one in made.not_covered if one.code != "persons"])

    @classmethod
    def _restore(cls, values: dict[str, Any]) -> Plan:
        return cls(
            **_parts(Privacy.from_dict(values["privacy"])),
            use=ReleaseUse.from_dict(values["use"]),
            hyperparameters=Caveat.from_dict(values["hyperparameters"]),
            not_covered=map(Caveat.from_dict, values["not_covered"]),
            reasons=values["reasons"],
        )


def _parts(privacy: Privacy) -> dict[str, Any]:
    return {field.name: getattr(privacy, field.name) for field in fields(privacy)}


def promised(plan: Plan) -> dict[str, Any]:
    """The terms of a plan's guarantee, without the numbers that decide ε.

    Noise, rates and numbers of rounds are left out: their ε is computed and compared with a budget.
    """
    found: dict[str, Any] = serialisation.plain(plan.privacy)
    found.pop("budget", None)
    found["clip"].pop("norm", None)  # the noise goes with it
    mechanism = plan.mechanism
    kinds = {
        (type(part).__name__, type(part.sampling).__name__, part.clipping, str(part.groups))
        for part in mechanism
    }
    return {"adjacency": mechanism.adjacency, **found, "mechanism": sorted(kinds)}


def other_terms(own: Mapping[str, Any], given: Mapping[str, Any], file: str) -> str | None:
    """The first term that differs between a job and a file, in words; None: all are the same.

    Args:
        own, given: terms of the job and of the file, from :func:`promised`. file: its name.
    """
    for name, value in own.items():
        if given[name] != value:
            return (
                f"{file} has {name.replace('_', ' ')} {given[name]!r}, the job here {value!r}: "
                f"the guarantee rests on that. Take the {file} that was made from this job, or "
                "the job that it was made from"
            )
    return None


# The step of the grid on which noise is drawn in whole numbers
# (:mod:`forethought.rounds.randomness`).


# The scale of the noise in grid steps lies between 2^GRID_STEPS and four times that.
GRID_STEPS = 25
# Slack for points 2 and 3 of :mod:`forethought.rounds.randomness`, and for rounding here.
_GRID_SLACK = 1 + 2.0**-30


def grid(std: float, clip_norm: float, size: int) -> tuple[float, int]:
    """The step γ of the grid, a power of two, and the scale s of the noise in steps.

    Args:
        std: standard deviation σC of the noise. clip_norm: C. size: number d of coordinates.

    Raises:
        ValueError: so many coordinates that rounding could move the sum by over a tenth of C.
    """
    step = math.ldexp(1.0, math.frexp(std)[1] - 1 - GRID_STEPS)
    charge = math.sqrt(size) * step
    if charge > clip_norm / 10:
        raise ValueError(
            f"rounding {size:,} coordinates to the grid could move the sum by {charge:.3g}, more "
            f"than a tenth of the clipping norm {clip_norm:g}: use noise='gaussian', or less noise"
        )
    sigma = std / clip_norm
    return step, math.ceil(sigma * (clip_norm + charge) / step * _GRID_SLACK)


# Step sizes: a schedule is a function from time to a number.
#
# The inverse schedule η₀/(1 + βt) and the inverse-root schedule η₀/(1 + β√t) are the diminishing
# step sizes of convex and general problems; cosine is Loshchilov and Hutter 2017 without restarts.


# For each kind: the factor on η₀ from time t, its end T and the schedule.
SHAPES: dict[ScheduleKind, Callable[[float, float, Schedule], float]] = {
    "constant": lambda t, end, schedule: 1.0,
    "inverse": lambda t, end, schedule: 1 / (1 + schedule.decay * t),
    "inverse-sqrt": lambda t, end, schedule: 1 / (1 + schedule.decay * math.sqrt(t)),
    "drops": lambda t, end, schedule: 1.0,
    "cosine": lambda t, end, schedule: (1 + math.cos(math.pi * t / end)) / 2,
    # The slack lets a stage that ends with a round end there in spite of rounding in t/T.
    "stages": lambda t, end, schedule: (
        schedule.decay ** bisect_right(schedule.stages, t / end * (1 + 1e-12))
    ),
}


def step_sizes(plan: Plan) -> Callable[[int], float]:
    """The step size of every round of a plan.

    Time in examples counts *expected* batch sizes: the sizes that were drawn depend on the secret
    sampling and are never used. Over the first ``warmup`` rounds the value is multiplied by
    (round + 1)/warmup.

    Returns:
        A function from a round's number (from 0) to its step size.
    """
    schedule, rate = plan.schedule, plan.optimizer.learning_rate
    shape, warmup = SHAPES[schedule.kind], schedule.warmup
    if schedule.kind == "constant" and not warmup:
        return lambda index: rate
    in_examples = schedule.unit == "examples"
    time = plan.privacy.examples_before if in_examples else float
    end = time(plan.rounds)

    def step_size(index: int) -> float:
        ramp = min(1.0, (index + 1) / warmup) if warmup else 1.0
        return rate * ramp * shape(time(index), end, schedule)

    return step_size


# The transcript's file in a run folder, and its schema.
TRANSCRIPT, TRANSCRIPT_SCHEMA = "transcript.json", "forethought/transcript/1"
COUNTS = "counts below the clipping norm"
# Two releases of one round are accounted as one; the joint noise multiplier has a rounding error.
ROUNDING = 1e-12


class TranscriptError(RuntimeError):
    """The releases are not those that were accounted, so no statement is written for them."""


class Paid(Protocol):
    """A run's reservation in the ledger of its data set: `forethought.ledger.paid_run.PaidRun`.

    Rounds are numbered from 1, as in the mechanism that was reserved.
    """

    @property
    def mechanism(self) -> Mechanism: ...

    @property
    def begun(self) -> int:
        """The number of rounds that may have been released so far."""

    @property
    def known(self) -> int:
        """The number of rounds that were released for sure, by any copy of the run."""

    def ahead(self, rounds: int) -> None:
        """Record a round; called before round ``rounds`` reaches anything outside the process."""

    def again(self, rounds: int, times: int) -> None:
        """Record a repetition; called before a round is released for the second, third … time."""

    def settle(self, rounds: int | None = None) -> tuple[str, str]:
        """Close the reservation at the number of released rounds (None: all).

        Returns:
            The evidence for the statement, and the same in words.
        """


class Payer(Protocol):
    """The source of the budget that runs spend; `forethought.Ledger` is one."""

    def paid(
        self,
        mechanism: Mechanism,
        *,
        group: int = 1,
        unit: Literal["record", "person"] = "record",
        selection: Selection | None = None,
        folder: Path | None = None,
        resume: bool = False,
    ) -> AbstractContextManager[Paid]:
        """Reserve a run; called before any record is read.

        Raises:
            ValueError: the mechanism does not fit into the budget.
        """


def marked(
    paid: Paid, note: Callable[[int, bytes], int] | None, before: int = 0
) -> Callable[[int, bytes], int]:
    """A function that records each release in the ledger before its noise is drawn.

    Args:
        paid: the run's reservation.
        note: another such record, which is called next; None: every round is released once.
        before: number of the reservation's rounds before the one that is noted as round 0.

    Returns:
        A function of the round's number (from 0) and the 32 bytes that its noise is bound to; it
        returns the number of releases of the round, this one included.
    """
    process = os.getpid()

    def noted(index: int, bound: bytes) -> int:
        paid.ahead(before + index + 1)
        times = 1 if note is None else note(index, bound)
        copies = times + (os.getpid() != process)  # after a fork, the parent may release it as well
        if copies > 1:
            paid.again(before + index + 1, copies)
        return times

    return noted


@dataclass(frozen=True)
class Releases:
    """Consecutive equal releases.

    Args:
        name: what was released.
        count: number of releases.
        noise_multiplier: standard deviation of the noise, over the most that one contribution adds.
        rounds: sampling and clipping of their rounds; None: they belong to no round.
    """

    name: str
    count: int
    noise_multiplier: float
    rounds: Rounds | None = None


@dataclass
class _EqualRounds:
    """Consecutive equal rounds: their releases, their sampling and their number.

    Args:
        noises: name and noise multiplier of each release. like: sampling and clipping.
        origin: number of the first round of their part. count: number of rounds.
        times: how often each round was released, on the same batch with fresh noise each time.
    """

    noises: tuple[tuple[str, float], ...]
    like: Rounds
    origin: int
    count: int = 0
    times: int = 1

    @property
    def apart(self) -> bool:
        """True if each round is a mechanism of its own, whichever others were released."""
        return self.like.sampling.rounds_per_epoch == 1 and not isinstance(self.like, Correlated)

    @property
    def together(self) -> tuple[tuple[str, float], ...]:
        """The releases of one round: ``times`` releases of a name as one with less noise."""
        if self.times == 1:
            return self.noises
        root = math.sqrt(self.times) * (1 + 2.0**-50)  # rounded up, so that noise is rounded down
        return tuple((name, sigma / root) for name, sigma in self.noises)

    def takes(
        self,
        noises: tuple[tuple[str, float], ...],
        released: Round,
        strategy: Strategy | None,
        times: int,
    ) -> bool:
        # Asked of every round, so without making one of these.
        own, kind = self.like, released.contribution.clipping
        drawn = getattr(own, "strategy", None), own.sampling, own.clipping, own.groups
        alike = drawn == (strategy, released.sampling, kind, released.groups)
        return alike and (self.noises, self.times, self.origin) == (noises, times, released.origin)


class Transcript:
    """A growing list of releases; its memory grows with the number of *different* rounds only."""

    def __init__(self) -> None:
        self._runs: list[_EqualRounds] = []
        self._others = Counter[tuple[str, float]]()
        self._rounds = 0
        # Rounds of the plan that were left out: pairs (number of releases before, rounds left out).
        self._skipped: list[tuple[int, int]] = []

    def __len__(self) -> int:
        """The number of rounds that were released."""
        return self._rounds

    @property
    def next(self) -> int:
        """The number of the plan's round that is due."""
        return self._rounds + sum(count for _, count in self._skipped)

    def skip(self, index: int) -> None:
        """Continue at round ``index`` of the plan; the unreleased rounds before it are left out."""
        if index > self.next:
            self._skipped.append((self._rounds, index - self.next))

    def ranges(self) -> list[range]:
        """The rounds of the plan that were released, ascending."""
        found, before, at = [], 0, 0
        for place, count in (*self._skipped, (self._rounds, 0)):
            found.append(range(at, at + place - before))
            at, before = at + place - before + count, place
        return [one for one in found if one]

    def append(
        self,
        released: Round,
        noise_std: float,
        clip_norm: float,
        count_std: float | None = None,
        strategy: Strategy | None = None,
        times: int = 1,
    ) -> None:
        """Note a round's noised sum, under the name that its contribution gives it.

        k releases of a round, on one batch with independent noise, are accounted as one release
        with noise σ/√k, since all k can be computed from that one. (A Gaussian number of mean √k·m
        is turned into k independent ones of mean m without knowing m, and every release is such a
        number times what the record adds, with more noise.) Rounds of one epoch, and rounds of
        correlated noise, are accounted together: each of them counts as often as the one that was
        released most often.

        Args:
            released: the round.
            noise_std: standard deviation that the noise on the sum was drawn with.
            clip_norm: the norm that its contributions were clipped to.
            count_std: standard deviation of the noise on the count below the norm; None: no count.
            strategy: correlation of the noise with that of earlier rounds; None: independent.
            times: number of releases of this round, this one included.

        Raises:
            TranscriptError: a round that was released already, or out of order.
        """
        if released.index != self.next:
            what = "again" if released.index < self.next else "before its turn"
            raise TranscriptError(
                f"round {released.index} would be released {what}: round {self.next} is due. "
                "Rounds are released once, in order"
            )
        # σ is the plan's own multiplier where the quotient differs from it by rounding only.
        exact = noise_std == released.noise_multiplier * clip_norm
        sigma = released.noise_multiplier if exact else noise_std / clip_norm
        name = released.contribution.released
        noises: tuple[tuple[str, float], ...] = ((name, sigma),)
        if count_std is not None:
            noises += ((COUNTS, 2 * count_std),)  # a contribution moves the count by 1/2
        last = self._runs[-1] if self._runs else None
        if last is not None and last.origin == released.origin and not last.apart:
            times = last.times = max(times, last.times)
        if last is None or not last.takes(noises, released, strategy, times):
            given = 1.0, 1, released.sampling, released.contribution.clipping
            like = Rounds(*given, groups=released.groups)
            if strategy is not None:
                like = Correlated(*given, strategy, groups=released.groups)
            last = _EqualRounds(noises, like, released.origin, times=times)
            self._runs.append(last)
        last.count += 1
        self._rounds += 1

    def append_other(self, name: str, noise_multiplier: float) -> None:
        """Note a release that belongs to no round, such as a trial's score."""
        self._others[name, float(noise_multiplier)] += 1

    def extend(self, later: Transcript) -> None:
        """Append another run's rounds and its other releases."""
        self._runs += [replace(run, origin=run.origin + self._rounds) for run in later._runs]
        self._skipped += [(place + self._rounds, count) for place, count in later._skipped]
        self._others.update(later._others)
        self._rounds += later._rounds

    @property
    def again(self) -> int:
        """The number of rounds that count as released more than once."""
        return sum(run.count for run in self._runs if run.times > 1)

    def mechanism(self, adjacency: Adjacency, *, once: bool = False) -> Mechanism:
        """The released rounds as a mechanism.

        Args:
            once: count every round once, even those that were released again.

        Raises:
            TranscriptError: nothing was released, or rounds were left out where the others are no
                mechanism without them: of dealt epochs, or of correlated noise.
        """
        if not self._runs:
            raise TranscriptError("nothing was released")
        if self._skipped and not all(run.apart for run in self._runs):
            raise TranscriptError(
                "rounds were left out of epochs or of correlated noise, so that the others are no "
                "mechanism: no statement is written"
            )
        noises = (run.noises if once else run.together for run in self._runs)
        sigmas = (together([sigma for _, sigma in each]) for each in noises)
        parts = (
            replace(run.like, noise_multiplier=sigma, count=run.count)
            for run, sigma in zip(self._runs, sigmas, strict=True)
        )
        return Mechanism(*parts, adjacency=adjacency)

    def releases(self) -> tuple[Releases, ...]:
        """Everything released, by name, for a Statement's table."""
        found = [
            Releases(name, run.count, sigma, run.like)
            for run in self._runs
            for name, sigma in run.together
        ]
        found += [Releases(name, count, sigma) for (name, sigma), count in self._others.items()]
        return tuple(found)

    def require(self, accounted: Mechanism, *, stopped: bool = False, once: bool = False) -> None:
        """Raise unless the released rounds are the mechanism that was accounted.

        Args:
            accounted: the mechanism that the statement is about.
            stopped: the run ended early, so that a prefix of the mechanism is enough.
            once: count every round once, even those that were released again.

        Raises:
            TranscriptError: names the first difference.
        """
        if stopped and 0 < self._rounds < len(accounted):
            accounted = accounted.first(self._rounds)
        found = self.mechanism(accounted.adjacency, once=once)
        joined = any(len(run.noises) > 1 for run in self._runs)
        if len(found) != len(accounted):
            raise TranscriptError(
                f"{len(found)} rounds were released, {len(accounted)} are accounted: no statement "
                "is written"
            )
        for place, (one, other) in enumerate(zip(found, accounted, strict=False)):
            sigmas = one.noise_multiplier, other.noise_multiplier
            same = math.isclose(*sigmas, rel_tol=ROUNDING if joined else 0)
            if not same or replace(one, noise_multiplier=sigmas[1]) != other:
                raise TranscriptError(
                    f"part {place + 1} of what was released is {one}, of what is accounted "
                    f"{other}: no statement is written"
                )
        if len(found.rounds) != len(accounted.rounds):
            raise TranscriptError(
                f"what was released has {len(found.rounds)} parts, what is accounted has "
                f"{len(accounted.rounds)}: no statement is written"
            )

    def to_values(self) -> dict[str, Any]:
        """A JSON-ready mapping for a checkpoint; :meth:`from_values` reads it back."""
        return {
            "rounds": [
                {
                    "noises": [list(pair) for pair in run.noises],
                    "like": run.like.to_dict(),
                    "origin": run.origin,
                    "count": run.count,
                    **({} if run.times == 1 else {"times": run.times}),
                }
                for run in self._runs
            ],
            "others": [[name, sigma, count] for (name, sigma), count in self._others.items()],
            **({"skipped": [list(pair) for pair in self._skipped]} if self._skipped else {}),
        }

    def to_json(self) -> str:
        """The text of ``transcript.json``."""
        return json.dumps({"schema": TRANSCRIPT_SCHEMA, **self.to_values()}) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Transcript:
        """The inverse of :meth:`to_json`.

        Raises:
            ValueError, TypeError, LookupError: the text is no transcript.
        """
        values = serialisation.parse(text)
        if values.pop("schema") != TRANSCRIPT_SCHEMA:
            raise ValueError(f"{TRANSCRIPT} is of a schema that this version cannot read")
        return cls.from_values(values)

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Transcript:
        """The inverse of :meth:`to_values`."""
        known = {"rounds", "others", *({"skipped"} & set(values))}
        serialisation.exact_keys("transcript", values, known)
        transcript = cls()
        for at, count in values.get("skipped", ()):
            transcript._skipped.append((whole("skipped", at, least=0), whole("skipped", count)))
        for row in values["rounds"]:
            wanted = {"noises", "like", "origin", "count", *({"times"} & set(row))}
            serialisation.exact_keys("row of a transcript", row, wanted)
            noises = tuple(
                (str(name), real("noise", size, least=0)) for name, size in row["noises"]
            )
            like, times = Rounds.from_dict(row["like"]), whole("times", row.get("times", 1))
            if (like.noise_multiplier, like.count) != (1.0, 1) or not noises:
                raise ValueError("a transcript's row has its noise and count beside its sampling")
            origin = whole("origin", row["origin"], least=0, most=transcript.next)
            run = _EqualRounds(noises, like, origin, whole("count", row["count"]), times)
            transcript._runs.append(run)
            transcript._rounds += run.count
        places = [*(at for at, _ in transcript._skipped), transcript._rounds]
        if places != sorted(places):
            raise ValueError("a transcript leaves out rounds in order, and none beyond its end")
        for name, size, count in values["others"]:
            key = str(name), real("noise", size, least=0)
            if key in transcript._others:
                raise ValueError(f"the transcript names {name!r} with one noise more than once")
            transcript._others[key] = whole("count", count)
        return transcript


def together(sigmas: Sequence[float]) -> float:
    """The noise multiplier of one Gaussian release that is equivalent to all of these together.

    σ⁻² = Σ σ_j⁻² (Andrew et al. 2021, Theorem 1).
    """
    if len(sigmas) == 1:
        return sigmas[0]
    return 0.0 if min(sigmas) == 0 else 1 / math.hypot(*(1 / sigma for sigma in sigmas))
