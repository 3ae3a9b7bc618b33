"""What happened, as far as privacy depends on it: plain frozen values, no arithmetic of privacy.

A :class:`Mechanism` is the whole input of the accountant. It holds no data, no model and no
tensor, and it is the only description of a run from which a guarantee is ever computed.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Literal, get_args

from forethought.serialisation import Stored, exact_keys

Adjacency = Literal["add-or-remove", "zero-out", "replace-one"]
Clipping = Literal["example", "group"]

ADJACENCIES: tuple[Adjacency, ...] = get_args(Adjacency)
CLIPPINGS: tuple[Clipping, ...] = get_args(Clipping)
SCHEMA = "forethought/mechanism/2"


class UnsupportedMechanismError(ValueError):
    """No theorem known to this library covers the combination: nothing is approximated silently."""


def real(
    name: str,
    value: object,
    *,
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
    most: float | None = None,
) -> float:
    """``value`` as a finite float inside the bounds, or an error in the user's words.

    Raises:
        TypeError: not a number. ValueError: not finite, or outside the bounds.
    """
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    number = float(value)
    wanted = [
        text
        for bound, text in (
            (above, f"above {above}"),
            (least, f"at least {least}"),
            (below, f"below {below}"),
            (most, f"at most {most}"),
        )
        if bound is not None
    ]
    if (
        not math.isfinite(number)
        or (above is not None and not number > above)
        or (least is not None and not number >= least)
        or (below is not None and not number < below)
        or (most is not None and not number <= most)
    ):
        raise ValueError(f"{name} must be a finite number {' and '.join(wanted)}, not {value!r}")
    return number


def whole(name: str, value: object, *, least: int = 1, most: int | None = None) -> int:
    """``value`` as an integer inside the bounds, or an error in the user's words.

    Raises:
        TypeError: not a whole number. ValueError: outside the bounds.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be a whole number, not {value!r}")
    number = int(value.__index__())
    if number < least or (most is not None and number > most):
        bounds = f"at least {least}" + ("" if most is None else f" and at most {most}")
        raise ValueError(f"{name} must be {bounds}, not {number}")
    return number


def one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Refuse a word that is not in ``allowed``, naming the choices."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, not {value!r}")


@dataclass(frozen=True)
class Budget:
    """A target: (epsilon, delta) differential privacy. epsilon > 0, 0 < delta < 1."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", real("epsilon", self.epsilon, above=0))
        object.__setattr__(self, "delta", real("delta", self.delta, above=0, below=1))


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


def releases(rounds: Rounds) -> int:
    """How many releases can hold the same record: every round, or one in every epoch."""
    return -(-rounds.count // _epoch(rounds.sampling))


def _epoch(sampling: Sampling) -> int:
    """Rounds of an epoch in which a record has its turn once; 1 where every round may hold it."""
    return int(getattr(sampling, "rounds_per_epoch", 1))


@dataclass(frozen=True, init=False)
class Rounds:
    """``count`` equal releases of a noised sum of clipped contributions.

    Args:
        noise_multiplier: standard deviation of the noise on the *sum*, in units of the clipping
            norm (not of the sensitivity). 0 means no noise, hence no privacy (ε = ∞).
        count: how many releases.
        sampling: how each round's batch is drawn.
        clipping: ``"example"`` clips each record's gradient, ``"group"`` clips each group's
            update (batch clipping is one group).
        rounds: the former name of ``count``; deprecated.
    """

    noise_multiplier: float
    count: int
    sampling: Sampling
    clipping: Clipping = "example"

    def __init__(
        self,
        noise_multiplier: float,
        count: int | None = None,
        sampling: Sampling | None = None,
        clipping: Clipping = "example",
        *,
        rounds: int | None = None,
    ) -> None:
        if rounds is not None:
            _warn_renamed()
            count = rounds
        if count is None:
            raise TypeError("Rounds needs count=, the number of releases")
        if not isinstance(sampling, Sampling):
            names = ", ".join(f"{kind.__name__}(...)" for kind in SAMPLINGS.values())
            raise TypeError(f"sampling must be one of {names}, not {sampling!r}")
        one_of("clipping", clipping, CLIPPINGS)
        sigma = real("noise_multiplier", noise_multiplier, least=0)
        object.__setattr__(self, "noise_multiplier", sigma)
        object.__setattr__(self, "count", whole("count", count, most=10**9))
        object.__setattr__(self, "sampling", sampling)
        object.__setattr__(self, "clipping", clipping)

    @property
    def rounds(self) -> int:
        """The former name of ``count``; deprecated."""
        _warn_renamed()
        return self.count

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping; :meth:`from_dict` reads it back."""
        sampling = {"kind": self.sampling.kind, **asdict(self.sampling)}
        return {
            "noise_multiplier": self.noise_multiplier,
            "count": self.count,
            "sampling": sampling,
            "clipping": self.clipping,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Rounds:
        """The inverse of :meth:`to_dict`; refuses unknown keys. Reads the former "rounds" too."""
        if "rounds" in values and "count" not in values:
            values = {("count" if key == "rounds" else key): v for key, v in values.items()}
        exact_keys("rounds", values, {field.name for field in fields(cls)})
        sampling = dict(values["sampling"])
        kind = sampling.pop("kind", None)
        one_of("sampling kind", kind, tuple(SAMPLINGS))
        chosen = SAMPLINGS[kind]
        exact_keys(f"sampling {kind!r}", sampling, {field.name for field in fields(chosen)})
        return cls(
            values["noise_multiplier"], values["count"], chosen(**sampling), values["clipping"]
        )


def _warn_renamed() -> None:
    warnings.warn(
        "Rounds.rounds is now Rounds.count, and so is the keyword: Rounds(sigma, count=...)",
        DeprecationWarning,
        stacklevel=3,
    )


def sensitivity(rounds: Rounds, adjacency: Adjacency) -> float:
    """How far one record can move a round's sum, in units of the clipping norm.

    It follows from clipping, sampling and adjacency and is never an argument. Group clipping and
    sampling without replacement: 2, since one more record changes a whole clipped update, or
    takes another record's place. Otherwise 1 when a record comes or goes, 2 when it is replaced.

    Raises:
        UnsupportedMechanismError: shuffling under add-or-remove, where one more record shifts the
            cut between all batches behind it.
    """
    if isinstance(rounds.sampling, Shuffled) and adjacency == "add-or-remove":
        raise UnsupportedMechanismError(
            "Shuffled sampling under adjacency 'add-or-remove' has no bound: one more record "
            "shifts every later batch. Use adjacency='zero-out' or 'replace-one', or Poisson "
            "sampling"
        )
    if rounds.clipping == "group" or isinstance(rounds.sampling, WithoutReplacement):
        return 2.0
    return 2.0 if adjacency == "replace-one" else 1.0


@dataclass(frozen=True, init=False)
class Mechanism(Stored):
    """A sequence of rounds under one adjacency: everything privacy depends on.

    ``m1 + m2`` composes. Neighbouring equal rounds are merged, so the same run is the same value.

    >>> Mechanism(Rounds(1.0, 2, FullBatch())) + Mechanism(Rounds(1.0, 3, FullBatch()))
    Mechanism(Rounds(noise_multiplier=1.0, count=5, sampling=FullBatch(), clipping='example'),
              adjacency='add-or-remove')
    """

    SCHEMA: ClassVar[str] = SCHEMA
    CALLED: ClassVar[str] = "mechanism"
    # Version 1 said "rounds" where Rounds.from_dict now reads "count", and still reads "rounds".
    UPGRADES: ClassVar[Mapping[str, Any]] = {
        "forethought/mechanism/1": lambda values: {**values, "schema": SCHEMA}
    }

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
                total = last.count + part.count
                merged[-1] = Rounds(part.noise_multiplier, total, part.sampling, part.clipping)
            else:
                merged.append(part)
        if not merged:
            raise ValueError("a Mechanism needs at least one Rounds(...)")
        object.__setattr__(self, "rounds", tuple(merged))
        object.__setattr__(self, "adjacency", adjacency)
        for part in merged:
            sensitivity(part, adjacency)  # refuses what has no meaning at all

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
        """Rounds in total."""
        return sum(part.count for part in self.rounds)

    def __iter__(self) -> Iterator[Rounds]:
        return iter(self.rounds)

    def first(self, rounds: int) -> Mechanism:
        """The mechanism of the first ``rounds`` rounds: what a run has released by then.

        Raises:
            ValueError: fewer than one round, or more than there are.
        """
        left = whole("rounds", rounds, most=len(self))
        parts = []
        for part in self.rounds:
            take = min(left, part.count)
            parts.append(Rounds(part.noise_multiplier, take, part.sampling, part.clipping))
            left -= take
            if not left:
                break
        return Mechanism(*parts, adjacency=self.adjacency)

    def after(self, rounds: int) -> Mechanism:
        """The mechanism behind its first ``rounds`` rounds.

        Raises:
            ValueError: fewer than one round, or none would be left.
        """
        left = whole("rounds", rounds, most=len(self) - 1)
        parts = []
        for part in self.rounds:
            taken = min(left, part.count)
            left -= taken
            if part.count > taken:
                count = part.count - taken
                parts.append(Rounds(part.noise_multiplier, count, part.sampling, part.clipping))
        return Mechanism(*parts, adjacency=self.adjacency)

    def _values(self) -> dict[str, Any]:
        return {
            "adjacency": self.adjacency,
            "rounds": [part.to_dict() for part in self.rounds],
        }

    @classmethod
    def _restore(cls, values: dict[str, Any]) -> Mechanism:
        return cls(
            *(Rounds.from_dict(part) for part in values["rounds"]), adjacency=values["adjacency"]
        )


def _same_release(one: Rounds, other: Rounds) -> bool:
    # Rounds of an epoch are counted in whole epochs, and a part may end inside one: two parts are
    # then not one longer part. Whole epochs merge.
    if one.count % _epoch(one.sampling):
        return False
    return (one.noise_multiplier, one.sampling, one.clipping) == (
        other.noise_multiplier,
        other.sampling,
        other.clipping,
    )
