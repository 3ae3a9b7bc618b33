"""An attack on any sampling by its drawn batches: a lower bound on δ that knows no theorem.

Batches are drawn as training draws them, of data made to be told apart: the records that differ
point one way, all others nowhere or the other way. What they add up to, with Gaussian noise, is
told apart by the likelihood ratio of sums drawn before; how often that succeeds on fresh draws is a
lower bound on δ, short of the stated false-alarm rate, whatever the accountant believes.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import logsumexp
from scipy.stats import binom, hypergeom

from forethought.values.mechanism import SAMPLINGS, Binomial, Rounds, Sampling

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
    # Only this loads torch: whoever lists small runs by ``fewer`` need not have it.
    from forethought.rounds.randomness import Stream, sampler

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
    return sampling.resized(sampling.expected_batch(examples), left)


def sums(
    times: np.ndarray,
    own: float,
    records: int,
    others: float,
    part: Rounds,
    rng: np.random.Generator,
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


def _log_density(
    seen: np.ndarray, sums: np.ndarray, counts: np.ndarray, sigma: float
) -> np.ndarray:
    squares = np.square(seen[..., None, :] - sums).sum(-1)
    return np.asarray(logsumexp(-squares / (2 * sigma**2), b=counts / counts.sum(), axis=-1))


def _least(values: np.ndarray) -> float:
    """A lower bound on the mean of numbers in [0, 1] (Maurer and Pontil 2009, Theorem 4)."""
    log, n = math.log(4 / FALSE_ALARM), len(values)
    spread = math.sqrt(2 * float(values.var(ddof=1)) * log / n)
    return float(values.mean()) - spread - 7 * log / (3 * (n - 1))


def instance(kind: str, examples: int = 12) -> Sampling:
    """A sampling of this kind that draws half of the records, or a quarter where half is all."""
    found = [SAMPLINGS[kind].sized(examples // part, examples, 2) for part in (2, 4)]
    return next((s for s in found if s.hides(s.rounds_per_epoch)), found[0])


def false_facts(sampling: Sampling, examples: int = 12) -> list[str]:
    """What a sampling says of itself and its batches deny; one false alarm in 10⁷ each."""
    rounds, faults = sampling.rounds_per_epoch, []
    times = drawn(sampling, examples, rounds).times
    for records in (1, 2, 3):
        often, said = int(times[..., :records].sum(-1).max()), sampling.most(records)
        if often > said:
            faults.append(f"{records} records are in one batch {often} times, most() says {said}")
    mean, spread = times.sum(-1).mean(), times.sum(-1).std() / math.sqrt(times.shape[0])
    if abs(mean - sampling.expected_batch(examples)) > 6 * spread + 1e-9:
        faults.append(f"batches of {mean:.3f} on average, not {sampling.expected_batch(examples)}")
    if int((times[..., 0] > 0).sum(-1).max()) > 1:
        faults.append("a record is in several rounds of an epoch: it has one turn")
    # Every (round of the turn, how often) by its chance; never being there is one case.
    expected = {(0, 0): 0.0}
    for k, chance in enumerate(law(sampling, 1)):
        for place in range(rounds):
            case = (place, k) if k else (0, 0)
            expected[case] = expected.get(case, 0.0) + sampling.turn(place) * chance
    places, often = times[..., 0].argmax(-1), times[..., 0].max(-1)
    faults += _unlike(list(zip(places * (often > 0), often, strict=True)), expected, "hits(1)")
    faults += _dependent(sampling, examples)
    if rounds == 1:
        for records in (2, 3):
            together = [(0, k) for k in times[:, 0, :records].sum(-1)]
            chances = {(0, k): chance for k, chance in enumerate(law(sampling, records))}
            faults += _unlike(together, chances, f"hits({records})")
    return faults


def _dependent(sampling: Sampling, examples: int) -> list[str]:
    """What a record's second epoch has to do with its first, beyond the turn that it may keep."""
    rounds, chances = sampling.rounds_per_epoch, law(sampling, 1)
    times = drawn(sampling, examples, 2 * rounds).times[..., 0].reshape(-1, 2, rounds)
    often = times.max(-1)
    seen = np.where(often > 0, times.argmax(-1) * len(chances) + often, 0)
    # Of every turn what may come of it, by its chance; never being there is one case.
    turns = [
        [(place * len(chances) + k if k else 0, chance) for k, chance in enumerate(chances)]
        for place in range(rounds)
    ]
    expected: dict[tuple[int, int], float] = {}
    for first in range(rounds):
        for second in range(rounds) if sampling.redealt else [first]:
            both = sampling.turn(first) * (sampling.turn(second) if sampling.redealt else 1.0)
            for (one, p), (other, q) in itertools.product(turns[first], turns[second]):
                expected[one, other] = expected.get((one, other), 0.0) + both * p * q
    return _unlike([(int(a), int(b)) for a, b in seen], expected, "being independent of it")


def law(sampling: Sampling, records: int) -> list[float]:
    """The chances of 0, 1, … hits that a sampling claims."""
    claimed = sampling.hits(records)
    if isinstance(claimed, Binomial):
        return [
            float(x) for x in binom.pmf(range(claimed.trials + 1), claimed.trials, claimed.chance)
        ]
    found = hypergeom(claimed.examples, claimed.marked, claimed.drawn)
    return [float(found.pmf(k)) for k in range(claimed.marked + 1)]


def _unlike(
    seen: list[tuple[int, int]], expected: dict[tuple[int, int], float], name: str
) -> list[str]:
    counts = dict.fromkeys(expected, 0)
    for place, often in seen:
        case = (int(place), int(often))
        counts[case] = counts.get(case, 0) + 1
    for case, count in counts.items():
        chance = expected.get(case, 0.0)
        tail = min(binom.sf(count - 1, len(seen), chance), binom.cdf(count, len(seen), chance))
        if tail * len(counts) < FALSE_ALARM / 2:
            return [
                f"{case} (round, hits) came {count} of {len(seen)} times, {name} says {chance:.4f}"
            ]
    return []
