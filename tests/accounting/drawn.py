"""An attack on any sampling by its drawn batches: a lower bound on δ that knows no theorem.

Batches are drawn as training draws them, of data made to be told apart: the records that differ
point one way, all others nowhere or the other way. What they add up to, with Gaussian noise, is
told apart by the likelihood ratio of sums drawn before; how often that succeeds on fresh draws is a
lower bound on δ, short of the stated false-alarm rate, whatever the accountant believes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import logsumexp

from forethought.mechanism import Rounds
from forethought.rounds.randomness import Stream
from forethought.rounds.sampling import sampler
from forethought.samplings import Sampling

DRAWS, NOISES, KNOWN = 12_000, 4, 3_000
# One comparison's chance to accuse a sound accountant.
FALSE_ALARM = 1e-7


@dataclass(frozen=True)
class Drawn:
    """Runs of several rounds: how often each record is in each batch, (draws, rounds, records)."""

    times: np.ndarray


@lru_cache(maxsize=64)
def drawn(sampling: Sampling, examples: int, rounds: int, draws: int = DRAWS) -> Drawn:
    """Each run with secrets of its own: a part's first round is another one every time."""
    stream = Stream(bytes([examples]) * 32, "attack by drawn batches")
    times = np.zeros((draws, rounds, examples), dtype=np.int64)
    for run in range(draws):
        draw = sampler(sampling, examples, stream, first=run * rounds)
        for place in range(rounds):
            times[run, place] = np.bincount(draw(run * rounds + place), minlength=examples)
    return Drawn(times)


def fewer(sampling: Sampling, examples: int, left: int) -> Sampling:
    """The same sampling where only ``left`` of the records are there."""
    if sampling.known_examples() is None:
        return sampling
    return sampling.resized(min(left, sampling.expected_batch(examples)), left)


def sums(
    times: np.ndarray, own: float, records: int, others: float, part: Rounds, rng: np.random.Generator
) -> np.ndarray:
    """Every round's sum in clipping norms, (draws, rounds); the first ``records`` say ``own``."""
    if part.clipping == "example":
        mine = times[..., :records].sum(-1) * own
        return mine + times[..., records:].sum(-1) * others
    # An update of length 1 may be anything that follows from its group: here, whether one of the
    # records is in it. An empty group has none.
    groups = part.groups or 2
    dealt = rng.integers(groups, size=(*times.shape, int(times.max(initial=1))))
    there = np.arange(dealt.shape[-1]) < times[..., None]
    found = np.zeros(times.shape[:2])
    for group in range(groups):
        inside = there & (dealt == group)
        mine = inside[:, :, :records].any((-1, -2)) & (own != 0)
        rest = inside[:, :, records:].any((-1, -2))
        found += np.where(mine, own, np.where(rest, others, 0.0))
    return found


def delta_reached(
    part: Rounds, adjacency: str, group: int, examples: int, epsilon: float, seed: int = 0
) -> float:
    """The largest δ at ``epsilon`` that an attack reaches for certain, up to the false alarms."""
    own, replaced = 1.0, {"add-or-remove": 0.0, "zero-out": 0.0, "replace-one": -1.0}[adjacency]
    left = examples - group if adjacency == "add-or-remove" else examples
    best = 0.0
    here = drawn(part.sampling, examples, part.count).times
    there = drawn(fewer(part.sampling, examples, left), left, part.count).times
    for number, others in enumerate((0.0, -1.0)):
        rng = np.random.default_rng([seed, number])
        first = sums(here, own, group, others, part, rng)
        if adjacency == "add-or-remove":
            second = sums(there, 0.0, 0, others, part, rng)
        else:
            second = sums(there, replaced, group, others, part, rng)
        for one, other in ((first, second), (second, first)):
            best = max(best, _told_apart(one, other, part.noise_multiplier, epsilon, rng))
    return best


def _told_apart(
    first: np.ndarray, second: np.ndarray, sigma: float, epsilon: float, rng: np.random.Generator
) -> float:
    known = [np.unique(x[:KNOWN], axis=0, return_counts=True) for x in (first, second)]
    chances = []
    for fresh in (first[KNOWN:], second[KNOWN:]):
        seen = fresh[:, None, :] + sigma * rng.standard_normal((len(fresh), NOISES, first.shape[1]))
        top, bottom = (_log_density(seen, *law, sigma) for law in known)
        chances.append((top - bottom > epsilon).mean(axis=1))
    low, high = _least(chances[0]), 1 - _least(1 - chances[1])
    return max(0.0, low - math.exp(epsilon) * high)


def _log_density(seen: np.ndarray, sums: np.ndarray, counts: np.ndarray, sigma: float) -> np.ndarray:
    squares = np.square(seen[..., None, :] - sums).sum(-1)
    return np.asarray(logsumexp(-squares / (2 * sigma**2), b=counts / counts.sum(), axis=-1))


def _least(values: np.ndarray) -> float:
    """A lower bound on the mean of numbers in [0, 1] (Maurer and Pontil 2009, Theorem 4)."""
    log, n = math.log(4 / FALSE_ALARM), len(values)
    spread = math.sqrt(2 * float(values.var(ddof=1)) * log / n)
    return float(values.mean()) - spread - 7 * log / (3 * (n - 1))
