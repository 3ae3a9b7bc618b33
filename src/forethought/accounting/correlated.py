"""Correlated noise, as the ordinary rounds that its accounting comes to.

The run releases x_t + σ(C⁻¹z)_t for all t, in units of the clipping norm, which says as much as
Cx + σz. Let a record take part in rounds p, p + b, p + 2b, … with contributions u_j of length at
most 1, which may depend on what was released before.

- *Every turn is taken* (rate 1, or every round, where b is 1). The record moves Cx by
  Σ_j C[:, p + jb] u_j, whose length is at most that of v = Σ_j C[:, jb] where C has no negative
  entry: inner products of columns are then at least 0, so that aligned u_j are the worst, and
  pattern p is a beginning of pattern 0. Where C has at most b bands the columns do not overlap, and
  signs do not matter. So the whole run is one Gaussian release of sensitivity ‖v‖, for inputs that
  follow what was released, too (Denisov et al. 2022). Fewer turns, or smaller
  contributions, only shorten the sum.
- *Turns are sampled* (rate below 1), and C has at most b bands. Turn j is seen in the rounds from
  p + jb up to p + (j + 1)b and in no other: each is a Poisson-sampled Gaussian release of
  sensitivity ‖C[:, 0]‖, and the run composes them (Choquette-Choo et al. 2023, "(Amplified) banded
  matrix factorization").
- *Groups* of a sampled run are charged as if every turn were taken: their turns overlap.

A run that stops early has released the first rows of Cx + σz, which is the same strategy over fewer
rounds; nothing but a beginning of the run has a guarantee of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from forethought.mechanism import Correlated, Mechanism, Rounds, UnsupportedMechanismError
from forethought.samplings import FullBatch
from forethought.strategies import Strategy

EPS = float(np.finfo(float).eps)

TURNS = (
    "correlated noise: one Gaussian release at the strategy's sensitivity over all of a record's "
    "turns (Denisov et al. 2022)"
)
SAMPLED_TURNS = (
    "banded correlated noise, parts in turns: each turn one release at the bands' norm "
    "(Choquette-Choo et al. 2023)"
)


@lru_cache(maxsize=256)
def sensitivity_over_turns(strategy: Strategy, count: int, separation: int) -> float:
    """‖Σ_j C[:, j·separation]‖ over ``count`` rounds, rounded up.

    How far a record can move Cx that takes part in every ``separation``-th round.

    Raises:
        UnsupportedMechanismError: columns overlap and some coefficient is negative.
    """
    if strategy.bands > separation and not strategy.nonnegative:
        raise UnsupportedMechanismError(
            f"a strategy of {strategy.bands} bands with negative coefficients needs turns at least "
            f"as many rounds apart, not {separation}: no bound on its sensitivity is known"
        )
    column = strategy.column(count)
    turns = -(-count // separation)
    padded = np.zeros(turns * separation)
    padded[:count] = column
    moved = padded.reshape(turns, separation).cumsum(axis=0).ravel()[:count]
    size = math.sqrt(math.fsum(moved * moved))
    # Coefficients good to a few units, sums of positive terms, one square root.
    return size * (1 + (turns + 32) * EPS)


def uncorrelated(rounds: Rounds, group: int = 1) -> Rounds:
    """The ordinary rounds whose dominating pairs are those of ``rounds``; itself if it is ordinary.

    Raises:
        UnsupportedMechanismError: sampled turns with more bands than parts.
    """
    if not isinstance(rounds, Correlated):
        return rounds
    sampling, sigma = rounds.sampling, rounds.noise_multiplier
    separation = sampling.turns_apart
    if separation is None or sampling.most(1) > 1:
        raise UnsupportedMechanismError(
            f"correlated noise with {type(sampling).__name__} sampling is not supported: a "
            "record's turns are not equally far apart, or it can be drawn several times in one"
        )
    if group == 1 and sampling.hides(rounds.count):
        if rounds.strategy.bands > separation:
            raise UnsupportedMechanismError(
                f"parts that are sampled ({sampling.words()}) need a banded strategy of "
                f"at most as many bands as parts ({separation}), not "
                f"{rounds.strategy.bands}: a record's turns would overlap, and no theorem is "
                "known. Take fewer bands, or rate 1"
            )
        size = sensitivity_over_turns(rounds.strategy, min(rounds.count, separation), separation)
        return Rounds(
            _over(sigma, size), rounds.count, sampling, rounds.clipping, groups=rounds.groups
        )
    size = sensitivity_over_turns(rounds.strategy, rounds.count, separation)
    # Several records may be in as many groups as all parts have together.
    groups = None if rounds.groups is None else rounds.groups * separation
    return Rounds(_over(sigma, size), 1, FullBatch(), rounds.clipping, groups=groups)


def all_uncorrelated(mechanism: Mechanism, group: int = 1) -> Mechanism:
    """The mechanism with :func:`uncorrelated` parts; itself where none is correlated."""
    if not any(isinstance(part, Correlated) for part in mechanism):
        return mechanism
    parts: Iterable[Rounds] = (uncorrelated(part, group) for part in mechanism)
    return Mechanism(*parts, adjacency=mechanism.adjacency)


def named_theorem(rounds: Rounds, group: int) -> str:
    """Which of the theorems above covers correlated rounds."""
    sampled = rounds.sampling.hides(rounds.count)
    return SAMPLED_TURNS if sampled and group == 1 else TURNS


def _over(sigma: float, size: float) -> float:
    return sigma / size * (1 - 4 * EPS)
