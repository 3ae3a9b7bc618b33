"""The facts of a run that privacy depends on: frozen values without any privacy accounting.

A :class:`Mechanism` is the whole input of the accountant. It holds no data, no model and no
tensor, and it is the only description of a run from which a guarantee is ever computed.

This module defines how a round's batch is drawn (:class:`Sampling`), the rounds and their number,
and the contributions that are clipped and summed. Each kind of sampling states all of its
consequences itself: a class that leaves one out is refused at its definition, and nothing is
inherited from another kind. :mod:`forethought.rounds.randomness` draws the batches,
:mod:`forethought.accounting.theorems` has the theorems; see docs/adding_a_sampling.md.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import accumulate
from types import FunctionType
from typing import (
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Protocol,
    Self,
    TypeAlias,
    get_args,
    runtime_checkable,
)

from forethought.values import checks
from forethought.values.checks import described, frozen, one_of, optional, real, settle, whole
from forethought.values.serialisation import Stored, build, exact_keys, of_kind, tagged
from forethought.values.strategies import STRATEGIES, Strategy

Adjacency = Literal["add-or-remove", "zero-out", "replace-one"]
SamplingName = Literal[
    "poisson",
    "without-replacement",
    "shuffled",
    "random-allocation",
    "cyclic-poisson",
    "full-batch",
]


class Binomial(NamedTuple):
    """The number of hits in ``trials`` independent trials of probability ``chance`` each.

    ``rounded``: ``chance`` is the double nearest to the probability that is drawn with.
    """

    trials: int
    chance: float
    rounded: bool = False


class Hypergeometric(NamedTuple):
    """The number of ``marked`` records among ``drawn`` different ones of ``examples`` records."""

    marked: int
    drawn: int
    examples: int


Law = Binomial | Hypergeometric


@dataclass(frozen=True)
class Sampling(ABC):
    """The sampling of a round's batch, and its consequences for privacy, planning and audits.

    A record *has its turn* in one round of every epoch (in every round, where an epoch is one
    round). In its turn it is in the batch as many times as the law of :meth:`hits` gives,
    independently of other turns.

    Attributes:
        kind: its name in files.
        exchanges: whether a drawn record takes the place of another one: batches have a fixed size,
            so that the draws of all other records depend on it.
        redealt: whether every epoch assigns the turns anew; otherwise a record has the same turn in
            all epochs.
        usual_adjacency: a plan's adjacency by default.
        one_size: why the size of batches cannot change during a run; None: it can.
        refused: adjacencies under which one record's influence has no bound, and why.
    """

    kind: ClassVar[str]
    exchanges: ClassVar[bool]
    redealt: ClassVar[bool]
    usual_adjacency: ClassVar[Adjacency]
    one_size: ClassVar[str | None]
    refused: ClassVar[Mapping[Adjacency, str]]

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        facts = [*Sampling.__abstractmethods__, *Sampling.__annotations__]
        # What it names beside Sampling speaks for it; another kind does not.
        named = [base for base in cls.__bases__ if not issubclass(base, Sampling)]
        stated = {fact for one in (cls, *named) for fact in vars(one)}
        missing = sorted(fact for fact in facts if fact not in stated)
        if missing:
            raise TypeError(
                f"the sampling {cls.__name__} does not say: {', '.join(missing)}. A kind says all "
                "of it itself, since guarantees follow from it: see docs/adding_a_sampling.md"
            )

    @classmethod
    @abstractmethod
    def sized(cls, batch: int, examples: int, parts: int | None = None) -> Sampling:
        """A sampling of this kind whose (expected) batch size is ``batch`` of ``examples``.

        Args:
            parts: number of parts that the records are divided into, for a kind that has parts.

        Raises:
            ValueError: such batches do not exist.
        """

    @abstractmethod
    def resized(self, size: float, examples: int) -> Sampling:
        """The same kind with an (expected) batch size of ``size`` of ``examples`` records.

        A kind without a batch size of its own returns itself.
        """

    @abstractmethod
    def known_examples(self) -> int | None:
        """The number of records that batches are drawn from; None: any number."""

    @abstractmethod
    def pool(self, examples: int) -> float:
        """The average number of records, of ``examples``, that one batch is drawn from."""

    @abstractmethod
    def expected_batch(self, examples: int) -> float:
        """The expected size of a round's batch, in records."""

    @property
    @abstractmethod
    def rounds_per_epoch(self) -> int:
        """The number of rounds of an epoch, in which each record has its turn once."""

    @abstractmethod
    def turn(self, place: int) -> float:
        """The probability that a record's turn is in round ``place`` (from 0) of an epoch."""

    @property
    @abstractmethod
    def turns_apart(self) -> int | None:
        """The number of rounds from one turn of a record to its next; None: it is not constant."""

    @abstractmethod
    def hits(self, records: int) -> Law:
        """The distribution of how often ``records`` records are in one batch in their turn."""

    @abstractmethod
    def most(self, records: int) -> int:
        """The largest number of times that ``records`` records together are in one batch."""

    @abstractmethod
    def hides(self, rounds: int) -> bool:
        """True if ε of ``rounds`` rounds assumes that the attacker does not know the batches."""

    @abstractmethod
    def words(self) -> str:
        """The sampling in words."""


# Facts that several kinds have in common. None is a kind of its own: a sampling that names one says
# its facts with it.


class EveryRound:
    """Facts of a sampling in which every round is an epoch."""

    rounds_per_epoch: ClassVar[int] = 1

    def turn(self, place: int) -> float:
        return 1.0


class AnyExamples:
    """Facts of a sampling that draws from any number of records."""

    def known_examples(self) -> None:
        return None

    def pool(self, examples: int) -> float:
        return examples


class SureTurns:
    """Facts of a sampling in which a record is in the batch of its turn, once."""

    def hits(self, records: int) -> Binomial:
        return Binomial(records, 1.0)

    def most(self, records: int) -> int:
        return records


class FreshBatches:
    """Facts of a sampling whose batches are never known, of ``rate`` times all records on average.

    No record's turns are a constant number of rounds apart.
    """

    rate: Any
    turns_apart: ClassVar[None] = None

    def expected_batch(self, examples: int) -> float:
        return float(self.rate * examples)

    def hides(self, rounds: int) -> bool:
        return True


@dataclass(frozen=True)
class IndependentDraws:
    """Facts of a sampling in which a record is in the batch of its turn with probability ``rate``.

    Records are drawn independently of each other.
    """

    rate: float
    exchanges: ClassVar[bool] = False
    redealt: ClassVar[bool] = False
    usual_adjacency: ClassVar[Adjacency] = "add-or-remove"
    one_size: ClassVar[str | None] = None
    refused: ClassVar[Mapping[Adjacency, str]] = {}

    def __post_init__(self) -> None:
        settle(self, rate=real("rate", self.rate, above=0, most=1))

    def hits(self, records: int) -> Binomial:
        return Binomial(records, self.rate)

    def most(self, records: int) -> int:
        return records


@dataclass(frozen=True)
class FixedBatches:
    """Facts of a sampling whose batches have ``batch`` records, of ``examples`` in all."""

    batch: int
    examples: int

    def __post_init__(self) -> None:
        settle(self, examples=whole("examples", self.examples))
        settle(self, batch=whole("batch", self.batch, most=self.examples))

    @classmethod
    def sized(cls, batch: int, examples: int, parts: int | None = None) -> Self:
        return cls(batch, examples)

    def resized(self, size: float, examples: int) -> Self:
        return type(self)(min(examples, max(1, round(size))), examples)

    def known_examples(self) -> int:
        return self.examples

    def pool(self, examples: int) -> float:
        return examples


@dataclass(frozen=True)
class Poisson(EveryRound, AnyExamples, FreshBatches, IndependentDraws, Sampling):
    """Every record is in a round's batch with probability ``rate``, independently."""

    kind: ClassVar[str] = "poisson"

    @classmethod
    def sized(cls, batch: int, examples: int, parts: int | None = None) -> Poisson:
        return cls(batch / examples)

    def resized(self, size: float, examples: int) -> Poisson:
        return Poisson(min(1.0, size / examples))

    def words(self) -> str:
        return f"Poisson, rate {self.rate:.4g}"


@dataclass(frozen=True)
class WithoutReplacement(EveryRound, FreshBatches, FixedBatches, Sampling):
    """Every round's batch is a fresh uniform subset of exactly ``batch`` of ``examples``."""

    kind: ClassVar[str] = "without-replacement"
    exchanges: ClassVar[bool] = True
    redealt: ClassVar[bool] = False
    usual_adjacency: ClassVar[Adjacency] = "replace-one"
    one_size: ClassVar[str | None] = None
    refused: ClassVar[Mapping[Adjacency, str]] = {}

    @property
    def rate(self) -> float:
        """Chance that a given record is in a round's batch."""
        return self.batch / self.examples

    def hits(self, records: int) -> Hypergeometric:
        return Hypergeometric(records, self.batch, self.examples)

    def most(self, records: int) -> int:
        return min(records, self.batch)

    def words(self) -> str:
        return f"without replacement, rate {self.rate:.4g}"


@dataclass(frozen=True)
class Shuffled(SureTurns, FixedBatches, Sampling):
    """Every epoch permutes the records and cuts them into batches of ``batch`` (last one short)."""

    kind: ClassVar[str] = "shuffled"
    exchanges: ClassVar[bool] = False
    redealt: ClassVar[bool] = True
    usual_adjacency: ClassVar[Adjacency] = "zero-out"
    one_size: ClassVar[str | None] = (
        "a shuffled epoch holds every record once, in batches of one size: a size that changes "
        "would change how many rounds an epoch has. Use sampling='poisson'"
    )
    refused: ClassVar[Mapping[Adjacency, str]] = {
        "add-or-remove": "one more record shifts every later batch, and no bound is known. Use "
        "adjacency='zero-out' or 'replace-one', or Poisson sampling"
    }
    turns_apart: ClassVar[None] = None

    def expected_batch(self, examples: int) -> float:
        return float(self.batch)

    @property
    def rounds_per_epoch(self) -> int:
        """The number of batches that one pass over the data is cut into."""
        return -(-self.examples // self.batch)

    def turn(self, place: int) -> float:
        return min(self.batch, self.examples - place * self.batch) / self.examples

    def hides(self, rounds: int) -> bool:
        # In an unfinished epoch the record may not have been used yet.
        return rounds % self.rounds_per_epoch > 0

    def words(self) -> str:
        return "shuffled"


@dataclass(frozen=True)
class RandomAllocation(SureTurns, AnyExamples, FreshBatches, Sampling):
    """Every epoch of ``rounds`` rounds puts each record into one of them, chosen uniformly.

    Records choose independently of each other (balls in bins), so that batches have random sizes.
    """

    rounds: int
    kind: ClassVar[str] = "random-allocation"
    exchanges: ClassVar[bool] = False
    redealt: ClassVar[bool] = True
    usual_adjacency: ClassVar[Adjacency] = "add-or-remove"
    one_size: ClassVar[str | None] = (
        "an epoch of random allocation deals every record to one of its rounds, all alike: a size "
        "that changes would change how many rounds an epoch has. Use sampling='poisson'"
    )
    refused: ClassVar[Mapping[Adjacency, str]] = {}

    def __post_init__(self) -> None:
        settle(self, rounds=whole("rounds", self.rounds, most=10**9))

    @classmethod
    def sized(cls, batch: int, examples: int, parts: int | None = None) -> RandomAllocation:
        return cls(max(1, round(examples / batch)))

    def resized(self, size: float, examples: int) -> RandomAllocation:
        return RandomAllocation(max(1, round(examples / size)))

    @property
    def rate(self) -> float:
        """Chance that a given record is in a round's batch."""
        return 1 / self.rounds

    @property
    def rounds_per_epoch(self) -> int:
        """The number of rounds of one pass over the data."""
        return self.rounds

    def turn(self, place: int) -> float:
        return self.rate

    def words(self) -> str:
        return f"random allocation, each record in one of {self.rounds:,} rounds an epoch"


@dataclass(frozen=True)
class CyclicPoisson(AnyExamples, IndependentDraws, Sampling):
    """The records are divided into ``parts`` parts, and round i draws from part i mod parts.

    Each record's part is uniform, independent and fixed. A round's batch holds every record of its
    part with probability ``rate``, independently; rate 1 takes the whole part.
    """

    parts: int
    kind: ClassVar[str] = "cyclic-poisson"

    def __post_init__(self) -> None:
        super().__post_init__()
        settle(self, parts=whole("parts", self.parts, most=10**9))

    @classmethod
    def sized(cls, batch: int, examples: int, parts: int | None = None) -> CyclicPoisson:
        parts = parts or 1
        if batch * parts > examples:
            raise ValueError(
                f"batches of {batch} do not fit into one of {parts} parts of {examples} examples: "
                f"choose at most {examples // parts}, or fewer parts"
            )
        # A batch of a whole part has rate exactly 1, also where parts does not divide examples.
        return cls(1.0 if batch == examples // parts else batch * parts / examples, parts)

    def resized(self, size: float, examples: int) -> CyclicPoisson:
        return CyclicPoisson(min(1.0, size * self.parts / examples), self.parts)

    def pool(self, examples: int) -> float:
        return examples / self.parts

    def expected_batch(self, examples: int) -> float:
        return self.rate * examples / self.parts

    @property
    def rounds_per_epoch(self) -> int:
        """The number of rounds from one turn of a part to its next."""
        return self.parts

    def turn(self, place: int) -> float:
        return 1 / self.parts

    @property
    def turns_apart(self) -> int:
        return self.parts

    def hides(self, rounds: int) -> bool:
        return self.rate < 1

    def words(self) -> str:
        return f"Poisson, rate {self.rate:.4g}, of {self.parts:,} parts in turn"


@dataclass(frozen=True)
class FullBatch(SureTurns, EveryRound, AnyExamples, Sampling):
    """Every record is in every round's batch."""

    kind: ClassVar[str] = "full-batch"
    exchanges: ClassVar[bool] = False
    redealt: ClassVar[bool] = False
    usual_adjacency: ClassVar[Adjacency] = "add-or-remove"
    one_size: ClassVar[str | None] = (
        "a full batch holds every record in every round: no size can change. Drop size_schedule=, "
        "or use sampling='poisson'"
    )
    refused: ClassVar[Mapping[Adjacency, str]] = {}
    turns_apart: ClassVar[int] = 1

    @classmethod
    def sized(cls, batch: int, examples: int, parts: int | None = None) -> FullBatch:
        return cls()

    def resized(self, size: float, examples: int) -> FullBatch:
        return self

    def expected_batch(self, examples: int) -> float:
        return float(examples)

    def hides(self, rounds: int) -> bool:
        return False

    def words(self) -> str:
        return "every record in every round"


SAMPLINGS: dict[str, type[Sampling]] = {
    kind.kind: kind
    for kind in (Poisson, WithoutReplacement, Shuffled, RandomAllocation, CyclicPoisson, FullBatch)
}


Clipping = Literal["example", "group"]

ADJACENCIES: tuple[Adjacency, ...] = get_args(Adjacency)
CLIPPINGS: tuple[Clipping, ...] = get_args(Clipping)


class UnsupportedMechanismError(ValueError):
    """No theorem of this library covers the combination, and nothing is approximated silently."""


@dataclass(frozen=True)
class Budget:
    """A target of (epsilon, delta)-differential privacy, with epsilon > 0 and 0 < delta < 1."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        settle(self, epsilon=real("epsilon", self.epsilon, above=0))
        settle(self, delta=real("delta", self.delta, above=0, below=1))


@dataclass(frozen=True)
class Rounds:
    """``count`` equal releases of a noised sum of clipped contributions.

    Args:
        noise_multiplier: standard deviation of the noise on the *sum*, in units of the clipping
            norm (not of the sensitivity). 0 means no noise, hence no privacy (ε = ∞).
        count: number of releases.
        sampling: how each round's batch is drawn.
        clipping: ``"example"`` clips each record's gradient, ``"group"`` clips each group's
            update (batch clipping is one group).
        groups: number of groups of a batch, where ``clipping`` is ``"group"``: several records of
            one batch then change at most this number of updates. None: unknown.

    Raises:
        ValueError, TypeError: an unknown sampling or clipping, or a number outside its range.
    """

    noise_multiplier: float
    count: int
    sampling: Sampling
    clipping: Clipping = "example"
    groups: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        kind = type(self.sampling)
        if not issubclass(kind, Sampling) or kind not in SAMPLINGS.values():
            names = ", ".join(f"{kind.__name__}(...)" for kind in SAMPLINGS.values())
            raise TypeError(f"sampling must be one of {names}, not {self.sampling!r}")
        one_of("clipping", self.clipping, CLIPPINGS)
        sigma = real("noise_multiplier", self.noise_multiplier, least=0)
        settle(self, noise_multiplier=sigma, count=whole("count", self.count, most=10**9))
        if self.groups is not None:
            if self.clipping != "group":
                raise ValueError(
                    f"groups={self.groups!r} goes with clipping='group', and only with it: drop "
                    "groups"
                )
            settle(self, groups=whole("groups", self.groups))

    @property
    def releases(self) -> int:
        """The number of releases that can hold the same record: one in every (begun) epoch."""
        return -(-self.count // self.sampling.rounds_per_epoch)

    def sensitivity(self, adjacency: Adjacency) -> float:
        """The sensitivity of a round's sum to one record, in units of the clipping norm.

        It follows from clipping, sampling and adjacency and is never an argument: the largest
        number of times that the record is in one batch, times :meth:`per_hit`.

        Raises:
            UnsupportedMechanismError: a sampling under which one record's influence has no bound,
                or correlated rounds, of which only all together are a mechanism.
        """
        return self.reach(adjacency, self.sampling.most(1))

    def per_hit(self, adjacency: Adjacency) -> float:
        """The most that one occurrence of a record in the batch moves a round's sum, in norms.

        Under group clipping, and for samplings that exchange records: 2, since one more record
        changes a whole clipped update, or takes another record's place. Otherwise 1 when a record
        is added or removed, 2 when it is replaced.

        Raises:
            UnsupportedMechanismError: as for :meth:`sensitivity`.
        """
        refused = self.sampling.refused
        if adjacency in refused:
            raise UnsupportedMechanismError(
                f"{type(self.sampling).__name__} sampling under adjacency {adjacency!r} has no "
                f"bound: {refused[adjacency]}"
            )
        if self.clipping == "group" or self.sampling.exchanges:
            return 2.0
        return 2.0 if adjacency == "replace-one" else 1.0

    def reach(self, adjacency: Adjacency, hits: int) -> float:
        """The most that ``hits`` occurrences of records move the sums of one epoch, in norms.

        Where an epoch has several rounds, the records may be in several of them, and this is the L2
        norm over all their sums. Each occurrence moves a sum by at most :meth:`per_hit`. With
        groups, k occurrences in a batch are in at most min(k, groups) of its groups, and each
        group's update moves by at most 2. In an epoch of R rounds Σ min(k_i, groups)² is largest
        when as many rounds as possible have k_i = groups, since it is convex in each k_i up to
        there.

        Raises:
            UnsupportedMechanismError: as for :meth:`sensitivity`.
        """
        each = self.per_hit(adjacency)
        if self.groups is None:
            return hits * each
        places = min(self.sampling.rounds_per_epoch, self.count)
        full, rest = divmod(hits, self.groups)
        if full >= places:
            return each * self.groups * math.sqrt(places)
        return each * math.sqrt(full * self.groups**2 + rest**2)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping; :meth:`from_dict` reads it back."""
        sampling = {"kind": self.sampling.kind, **asdict(self.sampling)}
        return {**asdict(self), "sampling": sampling}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Rounds:
        """The inverse of :meth:`to_dict`; refuses unknown keys, and what is no mapping."""
        if not isinstance(values, Mapping):
            raise TypeError(f"each entry of rounds must be a JSON object, not {values!r}")
        values = dict(values)
        strategy = values.pop("strategy", None)
        exact_keys("rounds", values, {one.name for one in fields(Rounds)})
        values["sampling"] = of_kind(SAMPLINGS, values["sampling"], "sampling")
        if strategy is None:
            return Rounds(**values)
        return Correlated(**values, strategy=of_kind(STRATEGIES, strategy, "strategy"))


@dataclass(frozen=True)
class Correlated(Rounds):
    """``count`` releases whose noise is correlated: one mechanism, accounted as a whole.

    Round t's noise is clip norm · noise_multiplier · (C⁻¹z)_t with z standard normal, C the
    strategy's matrix, t counted from the first of these rounds. Records take part in every round
    (``FullBatch``) or in turns (``CyclicPoisson``); see :mod:`forethought.accounting.theorems`.

    Args:
        strategy: a :class:`~forethought.values.strategies.Banded` or
            :class:`~forethought.values.strategies.BufferedToeplitz`.
        noise_multiplier, count, sampling, clipping, groups: as for :class:`Rounds`; the noise
            multiplier is that of z.

    Raises:
        TypeError: no strategy. UnsupportedMechanismError: another sampling.
    """

    strategy: Strategy = None  # type: ignore[assignment]  # refused below

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.strategy, Strategy):
            names = ", ".join(f"{kind.__name__}(...)" for kind in STRATEGIES.values())
            raise TypeError(f"strategy must be one of {names}, not {self.strategy!r}")
        if self.sampling.turns_apart is None:
            raise UnsupportedMechanismError(
                f"correlated noise with {type(self.sampling).__name__} sampling is not supported: "
                "a record's turns may be next to each other. Use CyclicPoisson(rate, parts) (rate "
                "1: every record of a part, in turn) or FullBatch()"
            )

    def per_hit(self, adjacency: Adjacency) -> float:
        """Raise UnsupportedMechanismError: only all rounds together are a mechanism."""
        raise UnsupportedMechanismError(
            "a round of correlated noise is no mechanism of its own: only the whole run is"
        )

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping; :meth:`Rounds.from_dict` reads it back."""
        return {**super().to_dict(), "strategy": tagged(self.strategy)}


@dataclass(frozen=True, init=False)
class Mechanism(Stored):
    """A sequence of rounds under one adjacency: everything that privacy depends on.

    ``m1 + m2`` composes. Consecutive equal rounds are merged, so that equal runs are equal values.

    >>> from forethought.values.mechanism import FullBatch
    >>> Mechanism(Rounds(1.0, 2, FullBatch())) + Mechanism(Rounds(1.0, 3, FullBatch()))
    Mechanism(Rounds(noise_multiplier=1.0, count=5, sampling=FullBatch(), clipping='example',
              groups=None), adjacency='add-or-remove')
    """

    SCHEMA: ClassVar[str] = "forethought/mechanism/2"
    CALLED: ClassVar[str] = "mechanism"

    rounds: tuple[Rounds, ...]
    adjacency: Adjacency

    def __init__(self, *rounds: Rounds, adjacency: Adjacency = "add-or-remove") -> None:
        one_of("adjacency", adjacency, ADJACENCIES)
        merged: list[Rounds] = []
        for part in rounds:
            if not isinstance(part, Rounds):
                raise TypeError(f"a Mechanism is made of Rounds, not {type(part).__name__}")
            last = merged[-1] if merged else None
            if last is not None and _same_release(last, part):
                merged[-1] = replace(last, count=last.count + part.count)
            else:
                merged.append(part)
        if not merged:
            raise ValueError("a Mechanism needs at least one Rounds(...)")
        settle(self, rounds=tuple(merged), adjacency=adjacency)
        for part in merged:
            if not isinstance(part, Correlated):
                part.sensitivity(adjacency)  # raises where there is no bound

    @property
    def correlated(self) -> bool:
        """True if the noise of some rounds is correlated."""
        return any(isinstance(part, Correlated) for part in self.rounds)

    def __repr__(self) -> str:
        parts = ", ".join(map(repr, self.rounds))
        return f"Mechanism({parts}, adjacency={self.adjacency!r})"

    def __add__(self, other: Mechanism) -> Mechanism:
        if not isinstance(other, Mechanism):
            return NotImplemented
        if other.adjacency != self.adjacency:
            raise ValueError(
                f"cannot compose adjacency {self.adjacency!r} with {other.adjacency!r}: "
                "state both parts under the same adjacency"
            )
        return Mechanism(*self.rounds, *other.rounds, adjacency=self.adjacency)

    def __len__(self) -> int:
        """The total number of rounds."""
        return sum(part.count for part in self.rounds)

    def __iter__(self) -> Iterator[Rounds]:
        return iter(self.rounds)

    def first(self, rounds: int) -> Mechanism:
        """The mechanism of the first ``rounds`` rounds: all that a run has released by then.

        Raises:
            ValueError: fewer than one round, or more than the mechanism has.
        """
        left = whole("rounds", rounds, most=len(self))
        parts = []
        for part in self.rounds:
            take = min(left, part.count)
            parts.append(replace(part, count=take))
            left -= take
            if not left:
                break
        return Mechanism(*parts, adjacency=self.adjacency)

    def after(self, rounds: int) -> Mechanism:
        """The mechanism of the rounds after the first ``rounds``.

        Raises:
            ValueError: fewer than one round, or none would be left.
            UnsupportedMechanismError: the cut is inside a part of correlated noise, or inside an
                epoch. The later rounds of an epoch hold the records that its earlier ones did not,
                so that they are no mechanism of their own.
        """
        left = whole("rounds", rounds, most=len(self) - 1)
        parts = []
        for part in self.rounds:
            taken = min(left, part.count)
            left -= taken
            if taken and part.count > taken and isinstance(part, Correlated):
                raise UnsupportedMechanismError(
                    "the later rounds of correlated noise are no mechanism without the earlier ones"
                )
            if part.count > taken and taken % part.sampling.rounds_per_epoch:
                raise UnsupportedMechanismError(
                    f"{rounds} rounds end inside an epoch of {part.sampling.rounds_per_epoch}: its "
                    "later rounds are no mechanism without the earlier ones. Cut between epochs"
                )
            if part.count > taken:
                parts.append(replace(part, count=part.count - taken))
        return Mechanism(*parts, adjacency=self.adjacency)

    def between(self, begin: int, end: int) -> Mechanism:
        """The mechanism of rounds ``begin`` to ``end`` − 1 (from 0); raises as :meth:`after`."""
        return (self.after(begin) if begin else self).first(end - begin)

    def _values(self) -> dict[str, Any]:
        return {"adjacency": self.adjacency, "rounds": [part.to_dict() for part in self.rounds]}

    @classmethod
    def _restore(cls, values: dict[str, Any]) -> Mechanism:
        parts = values["rounds"]
        if not isinstance(parts, list | tuple):
            raise TypeError(f"rounds must be a list of JSON objects, not {parts!r}")
        return cls(*map(Rounds.from_dict, parts), adjacency=values["adjacency"])


def scaled_noise(mechanism: Mechanism, factor: float) -> Mechanism:
    """The mechanism with every noise multiplier times ``factor``."""
    parts = [replace(part, noise_multiplier=part.noise_multiplier * factor) for part in mechanism]
    return Mechanism(*parts, adjacency=mechanism.adjacency)


def _same_release(one: Rounds, other: Rounds) -> bool:
    # An epoch begins with each part: a part that ends inside one cannot be merged with the next.
    # Correlated noise begins anew with each part.
    if one.count % one.sampling.rounds_per_epoch or isinstance(one, Correlated):
        return False
    return {**vars(one), "count": other.count} == vars(other)


# The number of private rounds in each update: one number, or one for each of the first updates; the
# last one then holds for all later updates.
LocalRounds: TypeAlias = int | tuple[int, ...]


def first_round(local: LocalRounds, update: int) -> int:
    """The number of private rounds before update number ``update``, from 0."""
    each = (local,) if isinstance(local, int) else local
    head = each[: max(0, update)]
    return sum(head) + each[-1] * (update - len(head))


def updates_of(local: LocalRounds, rounds: int) -> int:
    """The largest number of whole updates in ``rounds`` private rounds."""
    *head, last = (local,) if isinstance(local, int) else local
    done = list(accumulate(head))
    if done and rounds < done[-1]:
        return bisect_right(done, rounds)
    return len(head) + (rounds - sum(head)) // last


AugmentationKind = Literal["mirror", "flip", "shift", "crop"]
MOST_COPIES = 1024


@dataclass(frozen=True)
class Augmentation:
    """Data augmentation: the randomly altered copies of an image that are averaged.

    Args:
        copies: K, number of copies of a record; their mean gradient is its contribution.
        kinds: ``"mirror"``: left and right are exchanged with probability 1/2; ``"flip"``: top and
            bottom, likewise; ``"shift"``: moved by a uniform whole number of pixels in each
            direction (padding by reflection and a crop of the old size, as De et al. do);
            ``"crop"``: a window with a share of both sides, enlarged to the old size bilinearly.
            Each copy is altered independently.
        pixels: the farthest that ``"shift"`` moves. None: an eighth of the shorter side (4 of 32).
        least: the least share of a side that ``"crop"`` keeps.

    Raises:
        ValueError, TypeError: an unknown or repeated kind, or a number outside its range.
    """

    copies: int = 8
    kinds: tuple[AugmentationKind, ...] = ("mirror", "shift")
    pixels: int | None = None
    least: float = 0.75

    def __post_init__(self) -> None:
        settle(self, copies=whole("augmentations", self.copies, most=MOST_COPIES))
        kinds = (self.kinds,) if isinstance(self.kinds, str) else tuple(self.kinds)
        for kind in kinds:
            one_of("augment", kind, get_args(AugmentationKind))
        if not kinds or len(set(kinds)) < len(kinds):
            raise ValueError(
                f"augment names each kind once, and at least one of "
                f"{', '.join(get_args(AugmentationKind))}: not {list(kinds)}"
            )
        settle(self, kinds=kinds)
        if self.pixels is not None:
            settle(self, pixels=whole("pixels of augment", self.pixels))
            if "shift" not in kinds:
                raise ValueError("pixels= says how far 'shift' moves: add that kind, or drop it")
        settle(self, least=real("least of augment", self.least, above=0, most=1))

    @classmethod
    def of(cls, asked: object, copies: int | None = None) -> Augmentation | None:
        """An augmentation from an Augmentation, from names of kinds, or from a mapping of fields.

        Args:
            asked: one of these; None: the default, if ``copies`` is given.
            copies: K; None: the default, or K of ``asked``.

        Returns:
            None where both arguments are None.

        Raises:
            ValueError, TypeError: another value, or K given twice.
        """
        such = 'names of kinds such as ["mirror", "shift"],'
        found = described("augment", cls, asked, "kinds", such)
        if copies is None:
            return found
        if isinstance(asked, Augmentation) or (isinstance(asked, Mapping) and "copies" in asked):
            raise ValueError(
                "augmentations= is said in augment= already: say it once, drop one of them"
            )
        return cls(copies) if found is None else replace(found, copies=copies)

    def describe(self) -> str:
        """The number of copies and their alterations, in a few words."""
        kinds = {"mirror": "mirrored", "flip": "flipped", "shift": "shifted", "crop": "cropped"}
        return f"{self.copies} copies, {', '.join(kinds[kind] for kind in self.kinds)} at random"


# Local updates: a frozen value for the optimization algorithm that runs inside one contribution.


@dataclass(frozen=True)
class Inner:
    """An inner optimizer; all of them step coordinate by coordinate.

    Args:
        home: name of the class in torch.optim. preset: options that this name stands for.
        options: options that the user may give. rate: its usual step size.
        along: whether its steps are sums of gradients, so that they lie along their mean.
        decoupled: whether weight decay is a separate step, no part of the gradient.
    """

    home: str
    preset: Mapping[str, Any]
    options: tuple[str, ...]
    rate: float
    along: bool
    decoupled: bool


_OF_ADAM = ("betas", "eps", "amsgrad", "weight_decay")
_OF_ADAGRAD = ("lr_decay", "eps", "initial_accumulator_value", "weight_decay")
_OF_RMSPROP = ("alpha", "eps", "momentum", "centered", "weight_decay")
_OF_SGD = ("momentum", "dampening", "nesterov", "weight_decay")
_NONE = {"weight_decay": 0.0}
INNER: dict[str, Inner] = {
    "sgd": Inner("SGD", {}, _OF_SGD, 0.1, True, False),
    "momentum": Inner("SGD", {"momentum": 0.9}, (*_OF_SGD[:2], "weight_decay"), 0.1, True, False),
    "nesterov": Inner(
        "SGD", {"momentum": 0.9, "nesterov": True}, ("momentum", "weight_decay"), 0.1, True, False
    ),
    "adam": Inner("Adam", _NONE, _OF_ADAM, 1e-3, False, False),
    "adamw": Inner("AdamW", {"weight_decay": 0.01}, _OF_ADAM, 1e-3, False, True),
    "adagrad": Inner("Adagrad", _NONE, _OF_ADAGRAD, 1e-2, False, False),
    "rmsprop": Inner("RMSprop", _NONE, _OF_RMSPROP, 1e-2, False, False),
}
MOST_PASSES = 10_000


@dataclass(frozen=True)
class Local:
    """The algorithm that runs inside a group; it starts at the round's weights with fresh state.

    Args:
        optimizer: ``"sgd"``, ``"momentum"``, ``"nesterov"``, ``"adam"``, ``"adamw"``,
            ``"adagrad"`` or ``"rmsprop"``: optimizers of torch.optim, by name.
        learning_rate: its step size. Default: 0.1, or torch's own for the adaptive ones.
        options: pairs of its other options, such as ``momentum``, ``betas``, ``weight_decay``.
        passes: number of passes over the group's records, each in a new order.
        step: records in an inner step; the last one of a pass may have fewer. None: the whole
            group.
        function: ``"module:function"``, or such a function itself, in place of all of the above:
            ``function(model, (inputs, targets))`` returns the weight change by parameter name. It
            must be a top-level function of a module: an object or a closure could keep a state
            across groups.

    Raises:
        ValueError, TypeError: an unknown optimizer or option, or a function that has no name.
    """

    optimizer: str = "sgd"
    learning_rate: float | None = None
    options: tuple[tuple[str, Any], ...] = ()
    passes: int = 1
    step: int | None = None
    function: str | None = None

    def __post_init__(self) -> None:
        settle(self, function=None if self.function is None else function_name(self.function))
        settle(self, options=frozen(self.options))
        if self.function is not None:
            given = (self.optimizer, self.learning_rate, self.options, self.passes, self.step)
            if given != ("sgd", None, (), 1, None):
                raise ValueError(
                    "function= is the whole algorithm of a group: drop optimizer, learning_rate, "
                    "options, passes and step, or the function"
                )
            return
        _known_optimizer(self.optimizer)
        known = INNER[self.optimizer]
        rate = known.rate if self.learning_rate is None else self.learning_rate
        settle(self, learning_rate=real("learning_rate of local", rate, above=0))
        unknown = sorted({name for name, _ in self.options} - set(known.options))
        if unknown:
            raise ValueError(
                f"the inner optimizer {self.optimizer!r} has no option "
                f"{', '.join(map(repr, unknown))}; it takes {', '.join(known.options)}"
            )
        for name, value in self.options:
            _check_option(name, value)
        settle(self, passes=whole("passes of local", self.passes, most=MOST_PASSES))
        settle(self, step=optional(whole, "step of local", self.step))

    @property
    def is_gradient(self) -> bool:
        """True if the update is the mean gradient itself: one plain step of size 1."""
        plain = not {name for name, value in self.options if name != "nesterov" and value}
        return (
            self.function is None
            and (self.optimizer, self.passes, self.step) == ("sgd", 1, None)
            and self.learning_rate == 1.0
            and plain
        )

    def describe(self) -> str:
        """The algorithm in a few words."""
        if self.function is not None:
            return self.function
        step = "the whole group" if self.step is None else f"{self.step} records"
        passes = "one pass" if self.passes == 1 else f"{self.passes} passes"
        return f"{self.optimizer} at {self.learning_rate:g}, {passes}, steps of {step}"


@dataclass(frozen=True)
class LocalUpdates:
    """Contributions are weight changes: a batch is divided into ``count`` groups, each trains.

    Records are assigned as for :class:`Groups`. One more record changes one whole update, so the
    sensitivity is that of groups.

    Args:
        count: number of groups. local: the algorithm that runs on each group.
    """

    count: int
    local: Local = field(default_factory=Local)
    kind: ClassVar[str] = "local"
    clipping: ClassVar[Clipping] = "group"
    alterable: ClassVar[bool] = False
    released: ClassVar[str] = "sums of clipped contributions"

    @property
    def groups(self) -> int:
        """The number of groups, ``count``."""
        return self.count

    def __post_init__(self) -> None:
        settle(self, count=whole("groups", self.count))
        if isinstance(self.local, Mapping):
            settle(self, local=build(Local, self.local))
        if not isinstance(self.local, Local):
            raise TypeError(f"local must be a forethought.Local, not {self.local!r}")

    def expected(self, batch: float) -> float:
        """The number of groups, empty ones included, since the mean is over groups."""
        return float(self.count)


def _known_optimizer(name: object) -> None:
    if not isinstance(name, str):
        if hasattr(name, "state") and hasattr(name, "step"):
            raise TypeError(
                "local runs a fresh optimizer in every group: give its name, such as "
                f"{type(name).__name__.lower()!r}, not an optimizer, whose state would survive the "
                "round"
            )
        raise TypeError(f"optimizer of local must be a name, not {name!r}")
    if name == "lbfgs":
        raise ValueError(
            "the inner optimizer 'lbfgs' needs a closure, which evaluates the loss again at other "
            "weights: write it as function=, or use 'adam'"
        )
    if name not in INNER:
        raise ValueError(
            f"unknown inner optimizer {name!r}: it is one of {', '.join(INNER)}, or function= for "
            "an algorithm of your own"
        )


def _check_option(name: str, value: Any) -> None:
    if name in ("nesterov", "amsgrad", "centered"):
        if not isinstance(value, bool):
            raise TypeError(f"option {name} of local must be true or false, not {value!r}")
    elif name == "betas":
        if not isinstance(value, tuple) or len(value) != 2:
            raise TypeError(f"option betas of local must be two numbers, not {value!r}")
        for one in value:
            real("betas of local", one, least=0, below=1)
    elif name in ("momentum", "alpha", "dampening"):
        real(f"{name} of local", value, least=0, most=1)
    else:
        real(f"{name} of local", value, least=0)


def function_name(function: str | Callable[..., Any]) -> str:
    """The name ``"module:function"`` of a top-level function of a module.

    Raises:
        ValueError, TypeError: a malformed name, an object, a closure, or a nested function.
    """
    if isinstance(function, str):
        module, _, name = function.partition(":")
        if not module or not name:
            raise ValueError(f"a function of your own is named module:function, not {function!r}")
        return function
    if not isinstance(function, FunctionType) or function.__closure__:
        raise TypeError(
            "function= of local must be a module's own function: an object or a closure could "
            f"keep a state from one group to the next ({function!r} is one)"
        )
    if "." in function.__qualname__ or function.__name__ == "<lambda>":
        raise TypeError(
            f"function= of local must be importable by name, which {function.__qualname__} is not: "
            "define it at the top of a module"
        )
    return f"{function.__module__}:{function.__qualname__}"


def imported(name: str) -> Callable[..., Any]:
    """The function with the name ``"module:function"``.

    Raises:
        ValueError: no such module or function. TypeError: an object that could keep a state.
    """
    found = checks.imported("function of local", name)
    function_name(found)
    return found


# The kinds of contribution, that is, the units that are clipped in a round; a plan holds one.


# The name of noised sums in transcripts.
GRADIENTS = "sums of clipped contributions"


@runtime_checkable
class Contribution(Protocol):
    """The unit that is clipped: one contribution to a round's sum.

    A kind is a frozen dataclass of JSON-ready fields, listed in
    :data:`forethought.values.plan.CONTRIBUTIONS`; its computation is registered in
    :mod:`forethought.rounds.contributions`.

    Attributes:
        kind: its name in files.
        clipping: the kind of clipping, from which the sensitivity follows: see
            :meth:`~forethought.values.mechanism.Rounds.sensitivity`.
        alterable: whether it may be the mean over altered copies of a record.
    """

    kind: ClassVar[str]
    clipping: ClassVar[Clipping]
    alterable: ClassVar[bool]

    @property
    def groups(self) -> int | None:
        """The number of groups that a batch is divided into; None: there are no groups."""
        ...

    @property
    def released(self) -> str:
        """The name of its noised sums in transcripts."""
        ...

    def expected(self, batch: float) -> float:
        """The expected number of contributions to a round of expected batch size ``batch``."""
        ...


@dataclass(frozen=True)
class Examples:
    """Every record's gradient is a contribution."""

    kind: ClassVar[str] = "examples"
    clipping: ClassVar[Clipping] = "example"
    alterable: ClassVar[bool] = True
    groups: ClassVar[int | None] = None
    released: ClassVar[str] = GRADIENTS

    def expected(self, batch: float) -> float:
        """One for each record of the batch."""
        return batch


@dataclass(frozen=True)
class Groups:
    """Contributions are mean gradients of groups: a batch is divided into ``count`` groups.

    Each record is assigned to a group independently, uniformly at random, so that one more record
    never moves another to a different group. One group is batch clipping.
    """

    count: int
    kind: ClassVar[str] = "groups"
    clipping: ClassVar[Clipping] = "group"
    alterable: ClassVar[bool] = True
    released: ClassVar[str] = GRADIENTS

    def __post_init__(self) -> None:
        settle(self, count=whole("groups", self.count))

    @property
    def groups(self) -> int:
        """The number of groups, ``count``."""
        return self.count

    def expected(self, batch: float) -> float:
        """The number of groups, empty ones included: an update is already a mean over records."""
        return float(self.count)


@dataclass(frozen=True)
class LinearExamples:
    """Every record's gradient is a contribution, and the model is a linear map of the record.

    The contributions equal those of :class:`Examples`, but are computed by one product with the
    matrix of all records (:mod:`forethought.rounds.contributions`).
    """

    kind: ClassVar[str] = "linear-examples"
    clipping: ClassVar[Clipping] = "example"
    alterable: ClassVar[bool] = False
    groups: ClassVar[int | None] = None
    released: ClassVar[str] = GRADIENTS

    def expected(self, batch: float) -> float:
        """One for each record of the batch."""
        return batch


@dataclass(frozen=True)
class Persons:
    """All of a person's rows together are one contribution: the mean of their gradients.

    The examples of such a plan are persons, so one person moves a sum by one clipping norm,
    however many rows are theirs.

    Args:
        records: largest number of rows of one person that are kept.
    """

    records: int
    kind: ClassVar[str] = "persons"
    clipping: ClassVar[Clipping] = "example"
    alterable: ClassVar[bool] = True
    groups: ClassVar[int | None] = None
    released: ClassVar[str] = GRADIENTS

    def __post_init__(self) -> None:
        settle(self, records=whole("records_per_person", self.records))

    def expected(self, batch: float) -> float:
        """One for each person of the batch."""
        return batch
