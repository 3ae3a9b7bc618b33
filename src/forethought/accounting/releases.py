"""What was literally released: the transcript's rows, as a Statement lists and compares them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol

from forethought.checks import real, whole
from forethought.mechanism import Mechanism
from forethought.preparation import NAMES
from forethought.samplings import FullBatch
from forethought.serialisation import exact_keys

# Noise of several releases in one round, joined to one, may differ in the last digits.
_ROUNDING = 1e-9
# Names of releases that belong to no round, however often they were made.
SCORE = "score of the trial"
OF_NO_ROUND = frozenset({SCORE})
# Those that come before the rounds of training, each a release of its own.
OF_PREPARATION = frozenset(NAMES.values())


class Released(Protocol):
    """What is read of a row of a transcript."""

    @property
    def name(self) -> str: ...
    @property
    def count(self) -> int: ...
    @property
    def noise_multiplier(self) -> float: ...


@dataclass(frozen=True)
class Release:
    """Equal releases in a row.

    Args:
        name: what was released.
        count: how many times.
        noise_multiplier: standard deviation of the noise over what one contribution can add.
    """

    name: str
    count: int
    noise_multiplier: float

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise TypeError(f"a release needs a name, not {self.name!r}")
        if not self.name.isprintable():
            raise ValueError(f"the name of a release must be one line, not {self.name!r}")
        object.__setattr__(self, "count", whole("count", self.count))
        sigma = real("noise_multiplier", self.noise_multiplier, least=0)
        object.__setattr__(self, "noise_multiplier", sigma)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Release:
        """From a JSON object that has exactly the fields. Raises ValueError, TypeError."""
        exact_keys("release", values, {"name", "count", "noise_multiplier"})
        return cls(values["name"], values["count"], values["noise_multiplier"])


def listed(rows: Iterable[Released]) -> tuple[Release, ...]:
    """A transcript's rows as a statement holds them; equal ones in a row become one."""
    found = [Release(row.name, row.count, row.noise_multiplier) for row in rows]
    merged = groupby(found, key=lambda row: (row.name, row.noise_multiplier))
    return tuple(
        Release(name, sum(row.count for row in same), sigma) for (name, sigma), same in merged
    )


def of_the_rounds(releases: Iterable[Release], rounds: int) -> dict[str, list[Release]]:
    """The rows by name, of the names that are released once in every round."""
    by_name: dict[str, list[Release]] = {}
    for row in releases:
        if row.name not in OF_NO_ROUND:
            by_name.setdefault(row.name, []).append(row)
    return {name: rows for name, rows in by_name.items() if sum(r.count for r in rows) == rounds}


# Of a run that ended before its last round, with all of them accounted.
STOPPED = frozenset({"phases-fixed", "stopped-early"})


def difference(
    releases: Iterable[Release],
    mechanism: Mechanism,
    *,
    stopped: bool = False,
    score_noise: float | None = None,
) -> str | None:
    """How the releases differ from what is accounted; None where every row of them is.

    All releases of one round together are one of noise σ⁻² = Σ σ_j⁻² (Andrew et al. 2021,
    Theorem 1).

    Args:
        stopped: results decided when the run ended: the first of the rounds are enough.
        score_noise: of the scores of trials, where a search accounts for them.
    """
    releases = tuple(releases)
    for row in releases:
        if row.name in OF_NO_ROUND and row.noise_multiplier != score_noise:
            return f"{row.name!r} with noise {row.noise_multiplier:.6g} is not accounted"
    before = [row for row in releases if row.name in OF_PREPARATION]
    if before:
        left = _after(before, mechanism)
        if left is None:
            return "the preparation of the data was released otherwise than it is accounted"
        mechanism = left
        releases = tuple(row for row in releases if row.name not in OF_PREPARATION)
    if stopped:
        sums = (row for row in releases if row.name not in OF_NO_ROUND)
        totals: dict[str, int] = {}
        for row in sums:
            totals[row.name] = totals.get(row.name, 0) + row.count
        done_rounds = max(totals.values(), default=0)
        if 0 < done_rounds < len(mechanism):
            mechanism = mechanism.first(done_rounds)
    names = of_the_rounds(releases, len(mechanism))
    if not names:
        return f"no release is listed {len(mechanism)} times, once in each round"
    for row in releases:
        if row.name not in names and row.name not in OF_NO_ROUND:
            return f"{row.name!r} was released besides the rounds, and is not accounted"
    place = 0
    accounted = _steps([(part.count, part.noise_multiplier) for part in mechanism])
    done = [_steps([(row.count, row.noise_multiplier) for row in rows]) for rows in names.values()]
    ends = sorted({end for steps in (accounted, *done) for end, _ in steps})
    at = [iter(steps) for steps in (accounted, *done)]
    now = [next(steps) for steps in at]
    for end in ends:
        sigma, *parts = (step[1] for step in now)
        if not math.isclose(_together(parts), sigma, rel_tol=_ROUNDING):
            return (
                f"rounds {place + 1:,} to {end:,} were released with noise {_together(parts):.6g}, "
                f"they are accounted with {sigma:.6g}"
            )
        now = [
            next(steps, step) if step[0] == end else step
            for steps, step in zip(at, now, strict=True)
        ]
        place = end
    return None


def _after(before: list[Release], mechanism: Mechanism) -> Mechanism | None:
    """What is accounted behind the preparation; None where the first rounds are not these."""
    count = sum(row.count for row in before)
    if count >= len(mechanism):
        return None
    for row in before:
        first = mechanism.rounds[0]
        same = (first.noise_multiplier, first.sampling, first.clipping)
        if same != (row.noise_multiplier, FullBatch(), "example") or first.count < row.count:
            return None
        mechanism = mechanism.after(row.count)
    return mechanism


def _steps(rows: Iterable[tuple[int, float]]) -> list[tuple[int, float]]:
    """(round after the last, noise) of each row."""
    end, steps = 0, []
    for count, sigma in rows:
        end += count
        steps.append((end, sigma))
    return steps


def _together(values: list[float]) -> float:
    if len(values) == 1:
        return values[0]
    return 0.0 if min(values) == 0 else 1 / math.sqrt(math.fsum(sigma**-2 for sigma in values))


def rows(releases: Iterable[Release]) -> Iterator[tuple[str, int, str]]:
    """For a table: name, how many times in all, and the noise or its range."""
    by_name: dict[str, list[Release]] = {}
    for row in releases:
        by_name.setdefault(row.name, []).append(row)
    for name, same in by_name.items():
        noises = [row.noise_multiplier for row in same]
        low, high = min(noises), max(noises)
        noise = f"{low:.6g}" if low == high else f"{low:.6g} to {high:.6g}"
        yield name, sum(row.count for row in same), noise
