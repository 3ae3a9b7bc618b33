"""The transcript: what was released, in order, as it was literally done.

Every noised sum appends its round, with the standard deviations that the noise was really drawn
with. At the end the transcript, turned into a :class:`~forethought.values.mechanism.Mechanism`,
must be the one that was accounted; else no statement is written. Other releases (scores of a
search) are in it by their own names. No torch in here.
"""

from __future__ import annotations

import json
import math
import operator
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from forethought.values.mechanism import Adjacency, Correlated, Mechanism, Rounds
from forethought.values.plan import Round
from forethought.values.serialisation import exact_keys, parse
from forethought.values.strategies import Strategy

# Its file in a run folder.
TRANSCRIPT, TRANSCRIPT_SCHEMA = "transcript.json", "forethought/transcript/1"
COUNTS = "counts below the clipping norm"
# Two releases of one round are accounted as one: joining their noise rounds in the last digits.
ROUNDING = 1e-12


class TranscriptError(RuntimeError):
    """The releases are not what was accounted; there is no statement for them."""


class Paid(Protocol):
    """A run's reservation in the book of its data set; `forethought.ledger.paid_run.PaidRun` is one.

    Rounds are numbered from 1, as they are in the mechanism that was reserved.
    """

    @property
    def mechanism(self) -> Mechanism: ...

    def ahead(self, rounds: int) -> None:
        """Called before round ``rounds`` reaches anything outside the process."""

    def again(self, rounds: int, times: int) -> None:
        """Called before a round is released for the second, third … time."""

    def settle(self, rounds: int | None = None) -> tuple[str, str]:
        """Called with the rounds that were released (None: all); gives the statement's evidence,
        and what it says in words."""


class Payer(Protocol):
    """The budget that runs are paid from; `forethought.Ledger` is one."""

    def paid(
        self,
        mechanism: Mechanism,
        *,
        group: int = 1,
        folder: Path | None = None,
        resume: bool = False,
    ) -> AbstractContextManager[Paid]:
        """Called before any record is read. Raises ValueError: it does not fit."""


def marked(
    paid: Paid, note: Callable[[int, bytes], int] | None, before: int = 0
) -> Callable[[int, bytes], int]:
    """A note of releases that is in the book first, and so before the noise of each is drawn.

    Args:
        note: another note of them, which says how often a round was released with this time.
        before: the reservation's rounds before the one that is noted as round 0.
    """
    process = os.getpid()

    def noted(index: int, bound: bytes) -> int:
        paid.ahead(before + index + 1)
        times = 1 if note is None else note(index, bound)
        copies = times + (os.getpid() != process)  # a fork releases what its parent does
        if copies > 1:
            paid.again(before + index + 1, copies)
        return times

    return noted


@dataclass(frozen=True)
class Releases:
    """Equal releases in a row.

    Args:
        name: what was released.
        count: how many times.
        noise_multiplier: standard deviation of the noise over what one contribution can add.
        rounds: sampling and clipping of the rounds it belongs to; None: of no round.
    """

    name: str
    count: int
    noise_multiplier: float
    rounds: Rounds | None = None


@dataclass
class _EqualRounds:
    """Equal rounds in a row: their releases, how they sampled, and how many there were.

    Args:
        times: how often each was released, on the same batch and behind noise of its own each time.
    """

    noises: tuple[tuple[str, float], ...]
    like: Rounds
    origin: int
    count: int = 0
    times: int = 1

    @property
    def together(self) -> tuple[tuple[str, float], ...]:
        """All releases of a name in one round, as one of the noise that they have together."""
        if self.times == 1:
            return self.noises
        root = math.sqrt(self.times) * (1 + 2.0**-50)  # never less than it is
        return tuple((name, sigma / root) for name, sigma in self.noises)

    def takes(
        self,
        noises: tuple[tuple[str, float], ...],
        released: Round,
        strategy: Strategy | None,
        times: int,
    ) -> bool:
        own, kind = self.like, released.contribution.clipping
        drawn = getattr(own, "strategy", None), own.sampling, own.clipping, own.groups
        alike = drawn == (strategy, released.sampling, kind, _groups(released))
        return alike and (self.noises, self.times, self.origin) == (noises, times, released.origin)


class Transcript:
    """A growing list of releases; its memory grows with the *different* rounds only."""

    def __init__(self) -> None:
        self._runs: list[_EqualRounds] = []
        self._others: dict[tuple[str, float], int] = {}
        self._rounds = 0
        # Rounds of the plan that were left out: before which release, and how many.
        self._skipped: list[tuple[int, int]] = []

    def __len__(self) -> int:
        """Rounds that were released."""
        return self._rounds

    @property
    def next(self) -> int:
        """The round of the plan that is due."""
        return self._rounds + sum(count for _, count in self._skipped)

    def skip(self, index: int) -> None:
        """Go on with a round of the plan; those before it that were not released never are."""
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

        k releases of a round, on one batch and behind independent noise, are accounted as one
        release of noise σ/√k: whatever they are, they can be computed from it. (A Gaussian number
        of mean √k·m is turned into k independent ones of mean m without knowing m, and every
        release is such a number times what the record adds, with more noise.) Rounds of an epoch
        and of correlated noise are accounted together, so that all of them count as often as the
        one that was released most.

        Args:
            released: the round.
            noise_std: standard deviation that the noise on the sum was drawn with.
            clip_norm: what its contributions were clipped to.
            count_std: that of the noise on the count below the norm, where there was one.
            strategy: what correlated the noise with that of the rounds before, if anything did.
            times: how many releases of this round there are with this one.

        Raises:
            TranscriptError: a round that was released already, or out of order.
        """
        if released.index != self.next:
            what = "again" if released.index < self.next else "before its turn"
            raise TranscriptError(
                f"round {released.index} would be released {what}: round {self.next} is due. "
                "Rounds are released once, in order"
            )
        # A quotient that rounds differently from the plan's own multiplier is that multiplier.
        exact = noise_std == released.noise_multiplier * clip_norm
        sigma = released.noise_multiplier if exact else noise_std / clip_norm
        name = released.contribution.released
        noises: tuple[tuple[str, float], ...] = ((name, sigma),)
        if count_std is not None:
            noises += ((COUNTS, 2 * count_std),)  # a contribution moves the count by half
        last = self._runs[-1] if self._runs else None
        apart = strategy is None and released.sampling.rounds_per_epoch == 1
        if last is not None and last.origin == released.origin and not apart:
            times = last.times = max(times, last.times)
        if last is None or not last.takes(noises, released, strategy, times):
            groups = _groups(released)
            like = Rounds(1.0, 1, released.sampling, released.contribution.clipping, groups=groups)
            if strategy is not None:
                like = Correlated(1.0, 1, like.sampling, like.clipping, strategy, groups=groups)
            last = _EqualRounds(noises, like, released.origin, times=times)
            self._runs.append(last)
        last.count += 1
        self._rounds += 1

    def append_other(self, name: str, noise_multiplier: float) -> None:
        """Note a release that belongs to no round, such as a trial's score."""
        key = (name, float(noise_multiplier))
        self._others[key] = self._others.get(key, 0) + 1

    def extend(self, later: Transcript) -> None:
        """Take in another run's rounds behind these, and its other releases."""
        for run in later._runs:
            self._runs.append(replace(run, origin=run.origin + self._rounds))
        self._skipped += [(place + self._rounds, count) for place, count in later._skipped]
        for key, count in later._others.items():
            self._others[key] = self._others.get(key, 0) + count
        self._rounds += later._rounds

    @property
    def again(self) -> int:
        """Rounds that count as released more than once."""
        return sum(run.count for run in self._runs if run.times > 1)

    def mechanism(self, adjacency: Adjacency, *, once: bool = False) -> Mechanism:
        """The rounds as a mechanism.

        Args:
            once: as if none of them had been released again.

        Raises:
            TranscriptError: nothing was released.
        """
        if not self._runs:
            raise TranscriptError("nothing was released")
        sigmas = (_together(run.noises if once else run.together) for run in self._runs)
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
        """Refuse anything but what was accounted.

        Args:
            accounted: the mechanism that the statement is about.
            stopped: the run ended early; a prefix is enough.
            once: as if no round had been released again: what was planned.

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
        pairs = zip(_shapes(found), _shapes(accounted), strict=False)
        for place, (one, other) in enumerate(pairs):
            if one[1:] != other[1:] or not _same(one[0], other[0], joined):
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
        """JSON-ready, for a checkpoint."""
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
            ValueError, TypeError, LookupError: something else.
        """
        values = parse(text)
        if values.pop("schema") != TRANSCRIPT_SCHEMA:
            raise ValueError(f"{TRANSCRIPT} is of a schema that this version cannot read")
        return cls.from_values(values)

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Transcript:
        """The inverse of :meth:`to_values`."""
        known = {"rounds", "others", *({"skipped"} & set(values))}
        exact_keys("transcript", values, known)
        transcript = cls()
        transcript._skipped = [(int(at), int(count)) for at, count in values.get("skipped", ())]
        for row in values["rounds"]:
            noises = tuple((str(name), float(sigma)) for name, sigma in row["noises"])
            like, times = Rounds.from_dict(row["like"]), row.get("times", 1)
            if (like.noise_multiplier, like.count) != (1.0, 1):
                raise ValueError("a transcript's row has its noise and count beside its sampling")
            run = _EqualRounds(noises, like, row["origin"], row["count"], times)
            transcript._runs.append(run)
            transcript._rounds += run.count
        transcript._others = {(name, sigma): count for name, sigma, count in values["others"]}
        return transcript


def _groups(released: Round) -> int | None:
    """The groups that the round was dealt into, where the accounting counts on their number."""
    if released.groups is None:
        return None
    return released.contribution.groups


def _together(noises: Iterable[tuple[str, float]]) -> float:
    """Noise multiplier of one Gaussian release that says as much as all of these together.

    σ⁻² = Σ σ_j⁻² (Andrew et al. 2021, Theorem 1).
    """
    values = [sigma for _, sigma in noises]
    if len(values) == 1:
        return values[0]
    if min(values) == 0:
        return 0.0
    return 1 / math.sqrt(math.fsum(sigma**-2 for sigma in values))


def _shapes(mechanism: Mechanism) -> list[tuple[Any, ...]]:
    own = operator.attrgetter("noise_multiplier", "count", "sampling", "clipping", "groups")
    return [(*own(part), getattr(part, "strategy", None)) for part in mechanism]


def _same(one: float, other: float, joined: bool) -> bool:
    return math.isclose(one, other, rel_tol=ROUNDING) if joined else one == other
