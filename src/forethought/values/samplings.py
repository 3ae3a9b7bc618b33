"""The sampling of a round's batch: plain frozen values, each with its kind's name in files.

A kind says itself everything that follows from it (:class:`Sampling`): what is not said is refused
where the class is defined, and nothing is inherited from another kind. How it is drawn stands in
:mod:`forethought.rounds.randomness`, its theorems in :mod:`forethought.accounting.theorems`; see
docs/adding_a_sampling.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from forethought.values.checks import real, whole

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
    """So many independent trials, each a hit with this chance.

    ``rounded``: the chance is the nearest double to the one that is drawn with.
    """

    trials: int
    chance: float
    rounded: bool = False


class Hypergeometric(NamedTuple):
    """The number of ``marked`` among ``drawn`` different ones of ``examples``."""

    marked: int
    drawn: int
    examples: int


Law = Binomial | Hypergeometric


@dataclass(frozen=True)
class Sampling(ABC):
    """The sampling of a round's batch, and its consequences for privacy, planning and audits.

    A record *has its turn* in one round of every epoch (in every round, where an epoch is one); in
    its turn it is in the batch so many times as :meth:`hits` says, independently of other turns.

    Attributes:
        kind: its name in files.
        exchanges: whether a record that is drawn takes the place of another one: batches have a
            fixed size, so that everybody else's draws depend on it.
        redealt: whether every epoch deals the turns anew. Else a record's turn is the same in all
            epochs.
        usual_adjacency: what a plan promises unless it is told otherwise.
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
        missing = sorted(fact for fact in facts if fact not in vars(cls))
        if missing:
            raise TypeError(
                f"the sampling {cls.__name__} does not say: {', '.join(missing)}. A kind says all "
                "of it itself, since guarantees follow from it: see docs/adding_a_sampling.md"
            )

    @classmethod
    @abstractmethod
    def sized(cls, batch: int, examples: int, parts: int | None = None) -> Sampling:
        """The kind with (expected) batches of ``batch`` of ``examples`` records.

        Args:
            parts: into how many parts the records are dealt, for a kind that deals them.

        Raises:
            ValueError: such batches do not exist.
        """

    @abstractmethod
    def resized(self, size: float, examples: int) -> Sampling:
        """The same draw with (expected) batches of ``size`` of ``examples`` records.

        One whose batches have no size of their own returns itself.
        """

    @abstractmethod
    def known_examples(self) -> int | None:
        """The number of records that it is drawn from; None: it goes with any number."""

    @abstractmethod
    def pool(self, examples: int) -> float:
        """The number of ``examples`` records that one batch is drawn from, on average."""

    @abstractmethod
    def expected_batch(self, examples: int) -> float:
        """Expected size of a round's batch: what a noised sum is divided by."""

    @property
    @abstractmethod
    def rounds_per_epoch(self) -> int:
        """Rounds of an epoch, in which a record has its turn once."""

    @abstractmethod
    def turn(self, place: int) -> float:
        """Chance that a record's turn is in the round ``place`` of an epoch, from 0."""

    @property
    @abstractmethod
    def turns_apart(self) -> int | None:
        """Rounds from one turn of a record to its next; None: not the same for all turns."""

    @abstractmethod
    def hits(self, records: int) -> Law:
        """The law of how often so many records together are in the batch of a round that is
        their turn."""

    @abstractmethod
    def most(self, records: int) -> int:
        """The largest number of times that so many records together are in one batch."""

    @abstractmethod
    def hides(self, rounds: int) -> bool:
        """True if ε of so many rounds counts on an attacker who does not know the batches."""

    @abstractmethod
    def words(self) -> str:
        """The sampling in words."""


@dataclass(frozen=True)
class Poisson(Sampling):
    """Every record is in a round's batch with probability ``rate``, independently."""

    rate: float
    kind: ClassVar[str] = "poisson"
    exchanges: ClassVar[bool] = False
    redealt: ClassVar[bool] = False
    usual_adjacency: ClassVar[Adjacency] = "add-or-remove"
    one_size: ClassVar[str | None] = None
    refused: ClassVar[Mapping[Adjacency, str]] = {}

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", real("rate", self.rate, above=0, most=1))

    @classmethod
    def sized(cls, batch: int, examples: int, parts: int | None = None) -> Poisson:
        return cls(batch / examples)

    def resized(self, size: float, examples: int) -> Poisson:
        return Poisson(min(1.0, size / examples))

    def known_examples(self) -> None:
        return None

    def pool(self, examples: int) -> float:
        return examples

    def expected_batch(self, examples: int) -> float:
        return self.rate * examples

    @property
    def rounds_per_epoch(self) -> int:
        return 1

    def turn(self, place: int) -> float:
        return 1.0

    @property
    def turns_apart(self) -> None:
        return None

    def hits(self, records: int) -> Binomial:
        return Binomial(records, self.rate)

    def most(self, records: int) -> int:
        return records

    def hides(self, rounds: int) -> bool:
        return True

    def words(self) -> str:
        return f"Poisson, rate {self.rate:.4g}"


@dataclass(frozen=True)
class WithoutReplacement(Sampling):
    """Every round's batch is a fresh uniform subset of exactly ``batch`` of ``examples``."""

    batch: int
    examples: int
    kind: ClassVar[str] = "without-replacement"
    exchanges: ClassVar[bool] = True
    redealt: ClassVar[bool] = False
    usual_adjacency: ClassVar[Adjacency] = "replace-one"
    one_size: ClassVar[str | None] = None
    refused: ClassVar[Mapping[Adjacency, str]] = {}

    def __post_init__(self) -> None:
        object.__setattr__(self, "examples", whole("examples", self.examples))
        object.__setattr__(self, "batch", whole("batch", self.batch, most=self.examples))

    @classmethod
    def sized(cls, batch: int, examples: int, parts: int | None = None) -> WithoutReplacement:
        return cls(batch, examples)

    def resized(self, size: float, examples: int) -> WithoutReplacement:
        return WithoutReplacement(min(examples, max(1, round(size))), examples)

    def known_examples(self) -> int:
        return self.examples

    def pool(self, examples: int) -> float:
        return examples

    @property
    def rate(self) -> float:
        """Chance that a given record is in a round's batch."""
        return self.batch / self.examples

    def expected_batch(self, examples: int) -> float:
        return self.rate * examples

    @property
    def rounds_per_epoch(self) -> int:
        return 1

    def turn(self, place: int) -> float:
        return 1.0

    @property
    def turns_apart(self) -> None:
        return None

    def hits(self, records: int) -> Hypergeometric:
        return Hypergeometric(records, self.batch, self.examples)

    def most(self, records: int) -> int:
        return min(records, self.batch)

    def hides(self, rounds: int) -> bool:
        return True

    def words(self) -> str:
        return f"without replacement, rate {self.rate:.4g}"


@dataclass(frozen=True)
class Shuffled(Sampling):
    """Every epoch permutes the records and cuts them into batches of ``batch`` (last one short)."""

    batch: int
    examples: int
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "examples", whole("examples", self.examples))
        object.__setattr__(self, "batch", whole("batch", self.batch, most=self.examples))

    @classmethod
    def sized(cls, batch: int, examples: int, parts: int | None = None) -> Shuffled:
        return cls(batch, examples)

    def resized(self, size: float, examples: int) -> Shuffled:
        return Shuffled(min(examples, max(1, round(size))), examples)

    def known_examples(self) -> int:
        return self.examples

    def pool(self, examples: int) -> float:
        return examples

    def expected_batch(self, examples: int) -> float:
        return float(self.batch)

    @property
    def rounds_per_epoch(self) -> int:
        """Batches that one pass over the data is cut into."""
        return -(-self.examples // self.batch)

    def turn(self, place: int) -> float:
        return min(self.batch, self.examples - place * self.batch) / self.examples

    @property
    def turns_apart(self) -> None:
        return None

    def hits(self, records: int) -> Binomial:
        return Binomial(records, 1.0)

    def most(self, records: int) -> int:
        return records

    def hides(self, rounds: int) -> bool:
        # The beginning of an epoch may not have come to the record yet.
        return rounds % self.rounds_per_epoch > 0

    def words(self) -> str:
        return "shuffled"


@dataclass(frozen=True)
class RandomAllocation(Sampling):
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
        object.__setattr__(self, "rounds", whole("rounds", self.rounds, most=10**9))

    @classmethod
    def sized(cls, batch: int, examples: int, parts: int | None = None) -> RandomAllocation:
        return cls(max(1, round(examples / batch)))

    def resized(self, size: float, examples: int) -> RandomAllocation:
        return RandomAllocation(max(1, round(examples / size)))

    def known_examples(self) -> None:
        return None

    def pool(self, examples: int) -> float:
        return examples

    @property
    def rate(self) -> float:
        """Chance that a given record is in a round's batch."""
        return 1 / self.rounds

    def expected_batch(self, examples: int) -> float:
        return self.rate * examples

    @property
    def rounds_per_epoch(self) -> int:
        """Rounds of one pass over the data."""
        return self.rounds

    def turn(self, place: int) -> float:
        return self.rate

    @property
    def turns_apart(self) -> None:
        return None

    def hits(self, records: int) -> Binomial:
        return Binomial(records, 1.0)

    def most(self, records: int) -> int:
        return records

    def hides(self, rounds: int) -> bool:
        return True

    def words(self) -> str:
        return f"random allocation, each record in one of {self.rounds:,} rounds an epoch"


@dataclass(frozen=True)
class CyclicPoisson(Sampling):
    """Records belong to ``parts`` parts, which take turns: round i draws from part i mod parts.

    Each record's part is uniform, independent and fixed. A round holds every record of its part
    with probability ``rate``, independently; rate 1 takes the whole part.
    """

    rate: float
    parts: int
    kind: ClassVar[str] = "cyclic-poisson"
    exchanges: ClassVar[bool] = False
    redealt: ClassVar[bool] = False
    usual_adjacency: ClassVar[Adjacency] = "add-or-remove"
    one_size: ClassVar[str | None] = None
    refused: ClassVar[Mapping[Adjacency, str]] = {}

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", real("rate", self.rate, above=0, most=1))
        object.__setattr__(self, "parts", whole("parts", self.parts, most=10**9))

    @classmethod
    def sized(cls, batch: int, examples: int, parts: int | None = None) -> CyclicPoisson:
        parts = parts or 1
        if batch * parts > examples:
            raise ValueError(
                f"batches of {batch} do not fit into one of {parts} parts of {examples} examples: "
                f"choose at most {examples // parts}, or fewer parts"
            )
        # What is left over makes no part a sample: a whole part is taken whole.
        return cls(1.0 if batch == examples // parts else batch * parts / examples, parts)

    def resized(self, size: float, examples: int) -> CyclicPoisson:
        return CyclicPoisson(min(1.0, size * self.parts / examples), self.parts)

    def known_examples(self) -> None:
        return None

    def pool(self, examples: int) -> float:
        return examples / self.parts

    def expected_batch(self, examples: int) -> float:
        return self.rate * examples / self.parts

    @property
    def rounds_per_epoch(self) -> int:
        """Rounds until it is the same part's turn again."""
        return self.parts

    def turn(self, place: int) -> float:
        return 1 / self.parts

    @property
    def turns_apart(self) -> int:
        return self.parts

    def hits(self, records: int) -> Binomial:
        return Binomial(records, self.rate)

    def most(self, records: int) -> int:
        return records

    def hides(self, rounds: int) -> bool:
        return self.rate < 1

    def words(self) -> str:
        return f"Poisson, rate {self.rate:.4g}, of {self.parts:,} parts in turn"


@dataclass(frozen=True)
class FullBatch(Sampling):
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

    @classmethod
    def sized(cls, batch: int, examples: int, parts: int | None = None) -> FullBatch:
        return cls()

    def resized(self, size: float, examples: int) -> FullBatch:
        return self

    def known_examples(self) -> None:
        return None

    def pool(self, examples: int) -> float:
        return examples

    def expected_batch(self, examples: int) -> float:
        return float(examples)

    @property
    def rounds_per_epoch(self) -> int:
        return 1

    def turn(self, place: int) -> float:
        return 1.0

    @property
    def turns_apart(self) -> int:
        return 1

    def hits(self, records: int) -> Binomial:
        return Binomial(records, 1.0)

    def most(self, records: int) -> int:
        return records

    def hides(self, rounds: int) -> bool:
        return False

    def words(self) -> str:
        return "every record in every round"


SAMPLINGS: dict[str, type[Sampling]] = {
    kind.kind: kind
    for kind in (Poisson, WithoutReplacement, Shuffled, RandomAllocation, CyclicPoisson, FullBatch)
}
