"""The facts of a run that privacy depends on: plain frozen values, no arithmetic of privacy.

A :class:`Mechanism` is the whole input of the accountant. It holds no data, no model and no
tensor, and it is the only description of a run from which a guarantee is ever computed.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import accumulate
from typing import Any, ClassVar, Literal, TypeAlias, get_args

from forethought.values.checks import one_of, real, whole
from forethought.values.samplings import SAMPLINGS, Sampling
from forethought.values.samplings import Adjacency as Adjacency
from forethought.values.serialisation import Stored, exact_keys, of_kind, tagged
from forethought.values.strategies import STRATEGIES, Strategy

Clipping = Literal["example", "group"]

ADJACENCIES: tuple[Adjacency, ...] = get_args(Adjacency)
CLIPPINGS: tuple[Clipping, ...] = get_args(Clipping)
SCHEMA = "forethought/mechanism/2"


class UnsupportedMechanismError(ValueError):
    """No theorem known to this library covers the combination: nothing is approximated silently."""


@dataclass(frozen=True)
class Budget:
    """A target: (epsilon, delta) differential privacy. epsilon > 0, 0 < delta < 1."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", real("epsilon", self.epsilon, above=0))
        object.__setattr__(self, "delta", real("delta", self.delta, above=0, below=1))


@dataclass(frozen=True)
class Rounds:
    """``count`` equal releases of a noised sum of clipped contributions.

    Args:
        noise_multiplier: standard deviation of the noise on the *sum*, in units of the clipping
            norm (not of the sensitivity). 0 means no noise, hence no privacy (ε = ∞).
        count: how many releases.
        sampling: how each round's batch is drawn.
        clipping: ``"example"`` clips each record's gradient, ``"group"`` clips each group's
            update (batch clipping is one group).
        groups: how many groups a batch is dealt into, where ``clipping`` is ``"group"``: several
            records of one batch then move at most so many updates. None: unknown, any number.
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
        object.__setattr__(self, "noise_multiplier", sigma)
        object.__setattr__(self, "count", whole("count", self.count, most=10**9))
        if self.groups is not None:
            if self.clipping != "group":
                raise ValueError(
                    f"groups={self.groups!r} goes with clipping='group', and only with it: drop "
                    "groups"
                )
            object.__setattr__(self, "groups", whole("groups", self.groups))

    @property
    def releases(self) -> int:
        """Releases that can hold the same record: every round, or one in every epoch."""
        return -(-self.count // self.sampling.rounds_per_epoch)

    def sensitivity(self, adjacency: Adjacency) -> float:
        """The distance that one record can move a round's sum, in units of the clipping norm.

        It follows from clipping, sampling and adjacency and is never an argument: as often as the
        record can be in a batch, times :meth:`per_hit`.

        Raises:
            UnsupportedMechanismError: a sampling under which one record has no bounded influence;
                correlated rounds, which are no mechanisms each.
        """
        return self.reach(adjacency, self.sampling.most(1))

    def per_hit(self, adjacency: Adjacency) -> float:
        """The distance that a record moves a round's sum by being in the batch once, in norms.

        Group clipping, and samplings that exchange records: 2, since one more record changes a
        whole clipped update, or takes another record's place. Otherwise 1 when a record comes or
        goes, 2 when it is replaced.

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
        """The distance that records in batches ``hits`` times move the sums of one epoch, in norms.

        An epoch is one round, but where records take turns: there they may be in several rounds,
        and this is the norm of all that moves. Hit by hit at most :meth:`per_hit`. But k hits of a
        batch are in at most min(k, groups) of its groups, each of whose updates moves by at most 2:
        in an epoch of R rounds Σ min(k_i, groups)² is largest, being convex in each k_i up to
        there, with as many rounds full as there are hits for.

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
        return {
            "noise_multiplier": self.noise_multiplier,
            "count": self.count,
            "sampling": {"kind": self.sampling.kind, **asdict(self.sampling)},
            "clipping": self.clipping,
            "groups": self.groups,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Rounds:
        """The inverse of :meth:`to_dict`; refuses unknown keys."""
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
    strategy's matrix, t counted from these rounds' first. Records take part in every round
    (``FullBatch``) or in turns (``CyclicPoisson``); see :mod:`forethought.accounting.theorems`.

    Args:
        strategy: a :class:`~forethought.values.strategies.Banded` or
            :class:`~forethought.values.strategies.BufferedToeplitz`.
        noise_multiplier, count, sampling, clipping, groups: as of :class:`Rounds`; the noise
            multiplier is that of z.
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
        """Refused: nothing but the whole run is a mechanism."""
        raise UnsupportedMechanismError(
            "a round of correlated noise is no mechanism of its own: only the whole run is"
        )

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping; :meth:`Rounds.from_dict` reads it back."""
        return {**super().to_dict(), "strategy": tagged(self.strategy)}


@dataclass(frozen=True, init=False)
class Mechanism(Stored):
    """A sequence of rounds under one adjacency: everything privacy depends on.

    ``m1 + m2`` composes. Neighbouring equal rounds are merged, so the same run is the same value.

    >>> from forethought.values.samplings import FullBatch
    >>> Mechanism(Rounds(1.0, 2, FullBatch())) + Mechanism(Rounds(1.0, 3, FullBatch()))
    Mechanism(Rounds(noise_multiplier=1.0, count=5, sampling=FullBatch(), clipping='example',
              groups=None), adjacency='add-or-remove')
    """

    SCHEMA: ClassVar[str] = SCHEMA
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
        object.__setattr__(self, "rounds", tuple(merged))
        object.__setattr__(self, "adjacency", adjacency)
        for part in merged:
            if not isinstance(part, Correlated):
                part.sensitivity(adjacency)  # refuses what has no meaning at all

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
            parts.append(replace(part, count=take))
            left -= take
            if not left:
                break
        return Mechanism(*parts, adjacency=self.adjacency)

    def after(self, rounds: int) -> Mechanism:
        """The mechanism behind its first ``rounds`` rounds.

        Raises:
            ValueError: fewer than one round, or none would be left.
            UnsupportedMechanismError: the cut is inside a part of correlated noise, or inside an
                epoch, whose later rounds hold what its earlier ones did not: no mechanism of their
                own.
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
        """The mechanism of the rounds from ``begin`` to before ``end``; raises as :meth:`after`."""
        return (self.after(begin) if begin else self).first(end - begin)

    def _values(self) -> dict[str, Any]:
        return {"adjacency": self.adjacency, "rounds": [part.to_dict() for part in self.rounds]}

    @classmethod
    def _restore(cls, values: dict[str, Any]) -> Mechanism:
        return cls(
            *(Rounds.from_dict(part) for part in values["rounds"]), adjacency=values["adjacency"]
        )


def _same_release(one: Rounds, other: Rounds) -> bool:
    # Rounds of an epoch are counted in whole epochs, and a part may end inside one: two parts are
    # then not one longer part. Whole epochs merge.
    if one.count % one.sampling.rounds_per_epoch:
        return False
    # Correlated noise begins anew with each of its parts.
    if isinstance(one, Correlated) or isinstance(other, Correlated):
        return False
    return (one.noise_multiplier, one.sampling, one.clipping, one.groups) == (
        other.noise_multiplier,
        other.sampling,
        other.clipping,
        other.groups,
    )


# Rounds in updates of several. So many in each: one number, or those of the first updates,
# of which the last one holds for all later updates.
LocalRounds: TypeAlias = int | tuple[int, ...]


def first_round(local: LocalRounds, update: int) -> int:
    """The number of private rounds before an update."""
    each = (local,) if isinstance(local, int) else local
    head = each[: max(0, update)]
    return sum(head) + each[-1] * (update - len(head))


def updates_of(local: LocalRounds, rounds: int) -> int:
    """The most updates that so many private rounds make."""
    *head, last = (local,) if isinstance(local, int) else local
    done = list(accumulate(head))
    if done and rounds < done[-1]:
        return bisect_right(done, rounds)
    return len(head) + (rounds - sum(head)) // last
