"""How a round's batch is drawn: plain frozen values, each with its kind's name in files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from forethought.checks import real, whole


@dataclass(frozen=True)
class Poisson:
    """Every record is in a round's batch with probability ``rate``, independently."""

    rate: float
    kind: ClassVar[str] = "poisson"

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", real("rate", self.rate, above=0, most=1))


@dataclass(frozen=True)
class WithoutReplacement:
    """Every round's batch is a fresh uniform subset of exactly ``batch`` of ``examples``."""

    batch: int
    examples: int
    kind: ClassVar[str] = "without-replacement"

    def __post_init__(self) -> None:
        object.__setattr__(self, "examples", whole("examples", self.examples))
        object.__setattr__(self, "batch", whole("batch", self.batch, most=self.examples))

    @property
    def rate(self) -> float:
        """Chance that a given record is in a round's batch."""
        return self.batch / self.examples


@dataclass(frozen=True)
class Shuffled:
    """Every epoch permutes the records and cuts them into batches of ``batch`` (last one short)."""

    batch: int
    examples: int
    kind: ClassVar[str] = "shuffled"

    def __post_init__(self) -> None:
        object.__setattr__(self, "examples", whole("examples", self.examples))
        object.__setattr__(self, "batch", whole("batch", self.batch, most=self.examples))

    @property
    def rounds_per_epoch(self) -> int:
        """Batches that one pass over the data is cut into."""
        return -(-self.examples // self.batch)


@dataclass(frozen=True)
class RandomAllocation:
    """Every epoch of ``rounds`` rounds puts each record into one of them, chosen uniformly.

    Records choose independently of each other (balls in bins), so that batches have random sizes.
    """

    rounds: int
    kind: ClassVar[str] = "random-allocation"

    def __post_init__(self) -> None:
        object.__setattr__(self, "rounds", whole("rounds", self.rounds, most=10**9))

    @property
    def rate(self) -> float:
        """Chance that a given record is in a round's batch."""
        return 1 / self.rounds

    @property
    def rounds_per_epoch(self) -> int:
        """Rounds of one pass over the data."""
        return self.rounds


@dataclass(frozen=True)
class CyclicPoisson:
    """Records belong to ``parts`` parts, which take turns: round i draws from part i mod parts.

    Each record's part is uniform, independent and fixed. A round holds every record of its part
    with probability ``rate``, independently; rate 1 takes the whole part.
    """

    rate: float
    parts: int
    kind: ClassVar[str] = "cyclic-poisson"

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", real("rate", self.rate, above=0, most=1))
        object.__setattr__(self, "parts", whole("parts", self.parts, most=10**9))

    @property
    def rounds_per_epoch(self) -> int:
        """Rounds until it is the same part's turn again."""
        return self.parts


@dataclass(frozen=True)
class FullBatch:
    """Every record is in every round's batch."""

    kind: ClassVar[str] = "full-batch"


Sampling = Poisson | WithoutReplacement | Shuffled | RandomAllocation | CyclicPoisson | FullBatch
SAMPLINGS: dict[str, type[Sampling]] = {
    kind.kind: kind
    for kind in (Poisson, WithoutReplacement, Shuffled, RandomAllocation, CyclicPoisson, FullBatch)
}


def expected_batch(sampling: Sampling, examples: int) -> float:
    """Expected number of records in one round: what a noised sum is divided by."""
    match sampling:
        case Shuffled(batch=batch):
            return float(batch)
        case CyclicPoisson(rate=rate, parts=parts):
            return rate * examples / parts
        case FullBatch():
            return float(examples)
        case _:
            return sampling.rate * examples


def epoch_length(sampling: Sampling) -> int:
    """Rounds of an epoch in which a record has its turn once; 1 where every round may hold it."""
    return int(getattr(sampling, "rounds_per_epoch", 1))
