"""The part of a plan that privacy needs, and the one place where a round's numbers are derived from
it.

:class:`Privacy` says which noised sums are released; :meth:`Privacy.round` derives sampling, clip
norm, noise and divisor of each. Nothing else in the library computes any of these.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import accumulate
from typing import Any, Literal, get_args

from forethought.augmentation import Augmentation
from forethought.checks import one_of, real, whole
from forethought.contributions import Contribution, Examples, Groups, LinearExamples, Persons
from forethought.local_updates import LocalUpdates
from forethought.mechanism import Budget, Correlated, Mechanism, Rounds, UnsupportedMechanismError
from forethought.preparation import Preparation, Statistics
from forethought.samplings import Sampling
from forethought.serialisation import build, exact_keys, plain
from forethought.strategies import Strategy

ClipRule = Literal["flat", "automatic", "per-layer", "quantile"]
NoiseKind = Literal["gaussian", "grid"]
# Below this a round's noise hides nothing: ε of one round alone is in the thousands. 0 says so.
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
        quantile, quantile_rate: target quantile and step of the quantile rule.
        count_noise: standard deviation of the noise on the count of clipped contributions; the
            quantile rule needs it, and its cost is taken from the plan's noise multiplier.
        final: norm of the last round, to which the norm goes geometrically from the first; a
            public schedule. None keeps the norm.
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
        object.__setattr__(self, "norm", real("clip_norm", self.norm, above=0))
        one_of("clip rule", self.rule, get_args(ClipRule))
        real("gamma", self.gamma, above=0)
        real("quantile", self.quantile, above=0, below=1)
        real("quantile_rate", self.quantile_rate, above=0)
        if (self.rule == "quantile") != (self.count_noise is not None):
            raise ValueError("count_noise goes with the clip rule 'quantile', and only with it")
        if self.count_noise is not None:
            real("count_noise", self.count_noise, above=0)
        if self.final is not None:
            if self.rule == "quantile":
                raise ValueError("the clip rule 'quantile' moves the norm by itself: drop final")
            object.__setattr__(self, "final", real("final clip norm", self.final, above=0))
        if self.shares is not None:
            if self.rule != "per-layer":
                raise ValueError("shares go with the clip rule 'per-layer' only")
            pairs = self.shares.items() if isinstance(self.shares, Mapping) else self.shares
            shares = tuple(
                (str(name), real(f"share of {name!r}", share, above=0)) for name, share in pairs
            )
            object.__setattr__(self, "shares", shares)
            if math.fsum(share**2 for _, share in shares) > 1 + 1e-12:
                raise ValueError("the squares of the per-layer shares must sum to at most 1")

    def at(self, index: int, rounds: int) -> float:
        """The norm of round ``index`` of so many, as planned."""
        if self.final is None or rounds == 1:
            return self.norm
        return self.norm * math.pow(self.final / self.norm, index / (rounds - 1))

    def gradient_noise(self, noise_multiplier: float) -> float:
        """Noise multiplier left for the gradients when the round's total is ``noise_multiplier``.

        The quantile rule's count has sensitivity 1/2 where the gradient has C, so both together
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


# mypy lists what a kind does not say.
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
    """One round: everything that its noised sum depends on besides data, weights and secrets.

    Args:
        index: its number in the run, from 0.
        origin: number of the first round of its part; shuffled epochs begin there.
        examples: number of records.
        sampling: how its batch is drawn.
        contribution: what is clipped. clip: the rule that clips it.
        clip_norm: bound C on the L2 norm of one contribution.
        noise_multiplier: noise on the sum, in units of C.
        accounted: noise multiplier of all of the round's releases together, as it is accounted.
        noise: which noise. strategy: how it is correlated with that of the part's other rounds;
            None: not at all. Then ``noise_multiplier`` is that of each round's own numbers.
        groups: how many groups its batch is accounted as dealt into; None: any number.
        augmentation: how many altered copies of each record enter, and how altered; None: none.
        divisor: what the noised sum is divided by: the expected number of contributions, public.
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
        """Standard deviation σC of the noise on every coordinate of the sum; where noise is
        correlated, of the numbers that it is made of.
        """
        return self.noise_multiplier * self.clip_norm

    @property
    def mean_variance(self) -> float:
        """Variance of the noise on every coordinate of the mean, where rounds are independent."""
        return (self.noise_std / self.divisor) ** 2

    @property
    def count_noise(self) -> float | None:
        """Standard deviation of the noise on the count below the norm; None: no such count."""
        return self.clip.count_noise

    @property
    def mechanism(self) -> Rounds:
        """The round by itself, as it is accounted.

        Raises:
            UnsupportedMechanismError: its noise is correlated: only the whole run is accounted.
        """
        if self.strategy is not None:
            raise UnsupportedMechanismError(
                f"round {self.index} has correlated noise and is no mechanism of its own: account "
                "for the whole run"
            )
        return Rounds(
            self.accounted, 1, self.sampling, self.contribution.clipping, groups=self.groups
        )


@dataclass(frozen=True)
class Privacy:
    """The releases of a run: all that its guarantee depends on.

    Args:
        mechanism: the releases, all with the same clipping kind.
        examples: size N of the training set, taken as public.
        delta: the δ at which the Statement gives ε.
        clip: how one contribution is bounded.
        contribution: what is clipped.
        noise: ``"gaussian"``: in floating-point numbers. ``"grid"``: discrete Gaussian noise on
            the gridded sum, in whole numbers, see :mod:`forethought.rounds.grid`.
        budget: the target that was asked for, if any. The mechanism need not use it up.
        preparation: what is released before the rounds, to prepare the inputs with.
        records_per_person: how many of the examples may be one person's: the budget and every
            statement are about so many together.
        augmentation: which altered copies of a record its contribution is the mean over. Nothing
            here depends on it: the mean follows from that record alone.

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
        each = whole("records_per_person", self.records_per_person)
        object.__setattr__(self, "records_per_person", each)
        if each > 1 and isinstance(self.contribution, Persons):
            raise ValueError(
                "the examples of these contributions are persons already: drop records_per_person"
            )
        if not isinstance(self.mechanism, Mechanism):
            raise TypeError("mechanism must be a forethought.Mechanism")
        object.__setattr__(self, "examples", whole("examples", self.examples))
        object.__setattr__(self, "delta", real("delta", self.delta, above=0, below=1))
        one_of("noise", self.noise, NOISES)
        if type(self.contribution) not in CONTRIBUTIONS.values():
            raise TypeError(
                f"contribution must be one of {', '.join(CONTRIBUTIONS)}, not {self.contribution!r}"
            )
        self._require_augmentable()
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
            told = part.sampling.known_examples()
            if told not in (None, self.examples):
                raise ValueError(
                    f"the sampling speaks of {told} examples, the plan of {self.examples}"
                )
            self.clip.gradient_noise(part.noise_multiplier)
            if isinstance(part, Correlated) and (
                self.noise != "gaussian" or self.clip.rule == "quantile"
            ):
                raise ValueError(
                    "correlated noise goes with noise='gaussian' and a fixed clip norm: on a grid, "
                    "or with the rule 'quantile', rounds do not cancel each other's noise"
                )

    def _require_augmentable(self) -> None:
        if not isinstance(self.augmentation, Augmentation | None):
            raise TypeError(
                f"augmentation must be a forethought.Augmentation, not {self.augmentation!r}"
            )
        if self.augmentation is not None and not self.contribution.alterable:
            raise ValueError(
                "augment= averages gradients of altered copies before clipping, which goes with "
                f"examples, groups and persons, not with {self.contribution.kind!r} contributions: "
                "drop it, or local="
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
        """The Rounds that round ``index`` (from 0) belongs to, and the number of its first round.

        Raises:
            IndexError: no such round.
        """
        if not 0 <= index < self._ends[-1]:
            raise IndexError(f"round {index} of a plan with {self._ends[-1]}")
        place = bisect_right(self._ends, index)
        return self.mechanism.rounds[place], self._ends[place - 1] if place else 0

    def round(self, index: int, clip_norm: float | None = None) -> Round:
        """Round ``index``, from 0: sampling, clip norm, noise and divisor, derived here only.

        Args:
            index: the round's number.
            clip_norm: the norm that earlier releases led to; goes with the quantile rule only,
                whose first norm is the plan's.

        Raises:
            IndexError: no such round. ValueError: ``clip_norm`` under another rule.
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
        """Expected number of records that the rounds before round ``index`` use; index may be N."""
        place = bisect_right(self._ends, index)
        before = self._examples_before[place]
        if place == len(self._ends):
            return before
        start = self._ends[place - 1] if place else 0
        part = self.mechanism.rounds[place]
        return before + (index - start) * part.sampling.expected_batch(self.examples)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping; :meth:`from_dict` reads it back."""
        values = {field.name: plain(getattr(self, field.name)) for field in fields(self)}
        shares = self.clip.shares
        values["clip"]["shares"] = None if shares is None else dict(shares)
        values["contribution"] = {"kind": self.contribution.kind, **values["contribution"]}
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Privacy:
        """The inverse of :meth:`to_dict`; refuses unknown keys and kinds."""
        known = dict(values)
        exact_keys("privacy", known, {field.name for field in fields(cls)})
        if known["preparation"] is not None:
            known["preparation"] = build(Preparation, known["preparation"])
        if known["augmentation"] is not None:
            known["augmentation"] = build(Augmentation, known["augmentation"])
        known["mechanism"] = Mechanism.from_dict(known["mechanism"])
        known["clip"] = build(Clip, known["clip"])
        contribution = dict(known["contribution"])
        kind = contribution.pop("kind", None)
        one_of("contribution", kind, tuple(CONTRIBUTIONS))
        known["contribution"] = build(CONTRIBUTIONS[kind], contribution)
        if known["budget"] is not None:
            known["budget"] = build(Budget, known["budget"])
        return cls(**known)
