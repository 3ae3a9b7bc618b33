"""An oracle of its own for composed rounds: pairs, weights and convolution share no code with src.

A round's losses are split between neighbouring points of a grid, tilted so that the answer is not
lost in rounding, and convolved by FFT. The splitting errs upwards with the square of the step, so
two grids and Richardson's extrapolation give the value and how far it can be trusted. It is no
bound: a certified interval is wrong if it lies beyond ``error`` of ``value``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product

import numpy as np
from scipy.stats import norm

from forethought.values.mechanism import CyclicPoisson, FullBatch, Mechanism, Poisson, Shuffled


@dataclass(frozen=True)
class Side:
    """Components (shift, weight), the one at 0 included."""

    shifts: tuple[float, ...]
    weights: tuple[float, ...]


def hits(sampling, group: int) -> list[float]:
    """P(k of the group are in a batch), from whole numbers."""
    if isinstance(sampling, Poisson):
        rate, rest = Fraction(sampling.rate), 1 - Fraction(sampling.rate)
        return [
            float(math.comb(group, k) * rate**k * rest ** (group - k)) for k in range(group + 1)
        ]
    total = math.comb(sampling.examples, sampling.batch)
    return [
        float(
            Fraction(
                math.comb(group, k) * math.comb(sampling.examples - group, sampling.batch - k)
                if 0 <= sampling.batch - k <= sampling.examples - group
                else 0,
                total,
            )
        )
        for k in range(group + 1)
    ]


def moved(records: int, groups: int | None, places: int) -> float:
    """The longest move of so many records dealt into groups in so many rounds; one update: 1."""
    if groups is None:
        return float(records)
    best = [0.0] * (records + 1)
    for _ in range(places):
        best = [
            max(best[k - j] + min(j, groups) ** 2 for j in range(k + 1)) for k in range(records + 1)
        ]
    return math.sqrt(best[records])


def pair(rounds, adjacency: str, group: int):
    """(P's side, Q's side, symmetric, releases) of one part, from the documented table."""
    epoch = getattr(rounds.sampling, "parts", 1)
    if isinstance(rounds.sampling, Shuffled):
        epoch = -(-rounds.sampling.examples // rounds.sampling.batch)
    places = min(epoch, rounds.count, group)
    if isinstance(rounds.sampling, CyclicPoisson):
        # A record has a turn in every so many rounds, from its part's first.
        turns = len(range(0, rounds.count, rounds.sampling.parts))
        rounds = replace(rounds, count=turns, sampling=Poisson(rounds.sampling.rate))
    sigma, sampling = rounds.noise_multiplier, rounds.sampling
    whole_batch = rounds.clipping == "group" or sampling.kind == "without-replacement"
    replaced = adjacency == "replace-one"
    distance = 2.0 if whole_batch or replaced else 1.0
    if isinstance(sampling, FullBatch | Shuffled):
        count = rounds.count
        if isinstance(sampling, Shuffled):
            count = -(-count // -(-sampling.examples // sampling.batch))
        reached = moved(group, rounds.groups, places) * distance / sigma
        return Side((reached,), (1.0,)), Side((0.0,), (1.0,)), False, count
    weights = hits(sampling, group)
    if rounds.groups == 1 and places == 1:
        # All that there are act as one record that is in if any is.
        weights, group = [weights[0], math.fsum(weights[1:])], 1
    shifts = [moved(k, rounds.groups, places) for k in range(group + 1)]

    def side(radius: float) -> Side:
        kept = [(radius * k / sigma, w) for k, w in zip(shifts, weights, strict=True) if w > 0]
        return Side(tuple(c for c, _ in kept), tuple(w for _, w in kept))

    none = Side((0.0,), (1.0,))
    poisson = sampling.kind == "poisson"
    if poisson and not replaced:
        return side(distance), none, False, rounds.count
    if poisson and rounds.clipping == "example":
        one = side(1.0)
        return one, Side(tuple(-c for c in one.shifts), one.weights), False, rounds.count
    if not poisson and adjacency == "add-or-remove":
        return side(2.0), none, False, rounds.count
    if group == 1:
        return side(2.0), none, True, rounds.count
    one = side(2.0)
    return one, Side(tuple(-c for c in one.shifts), one.weights), False, rounds.count


def told(rounds, adjacency: str, group: int):
    """Cells in which hits replace something: (weight, P, Q, and both backwards) for each number of
    hits, and the releases; None for other cells.
    """
    kind, sigma = rounds.sampling.kind, rounds.noise_multiplier
    turns = len(range(0, rounds.count, getattr(rounds.sampling, "parts", 1)))
    blanked = (kind, adjacency, rounds.clipping) == ("without-replacement", "zero-out", "example")
    replaced = kind == "without-replacement" and adjacency != "add-or-remove"
    replaced |= "poisson" in kind and rounds.clipping == "group" and adjacency == "replace-one"
    if not replaced or (group == 1 and not blanked):
        return None
    sampling = Poisson(rounds.sampling.rate) if kind == "cyclic-poisson" else rounds.sampling
    places = min(getattr(rounds.sampling, "parts", 1), rounds.count, group)
    weights = hits(sampling, group)
    hit = math.fsum(weights[1:])
    unit = (1 if blanked else 2) / sigma
    found, largest, least = [], 0.0, math.inf
    for k in range(1, group + 1):
        if weights[k] == 0:
            continue
        r = unit * moved(k, rounds.groups, places)
        largest, least = max(largest, 2 * r if blanked else r), min(least, r)

        def side(c):
            if c and weights[0] == 0:  # no batch without any of them
                return Side((c,), (1.0,))
            return Side((0.0, c), (1 - hit, hit)) if c else Side((0.0,), (1.0,))

        ahead = (side(2 * r), side(r)) if blanked else (side(r), side(0.0))
        found.append((weights[k] / hit, *ahead, side(r), side(0.0)))
    if largest > 18 or hit * least < 1e-8:
        return None
    return found, turns


def told_losses(found, points: int):
    """Losses, log P- and log Q-masses of one round of :func:`told`."""
    losses, log_p, log_q = [], [], []
    for share, first, second, back_first, back_second in found:
        masses = [0.0, 0.0]
        for one, other, sign in ((first, second, 1), (back_first, back_second, -1)):
            low = (one.shifts[-1] + other.shifts[-1]) / 2
            h = (one.shifts[-1] + 16 - low) / points
            z = low + h * (np.arange(points) + 0.5)
            top, bottom = (_log_density(side, z) + math.log(h * share) for side in (one, other))
            losses.append(sign * (top - bottom))
            log_p.append(top if sign > 0 else bottom)
            log_q.append(bottom if sign > 0 else top)
            masses = [masses[0] + np.exp(log_p[-1]).sum(), masses[1] + np.exp(log_q[-1]).sum()]
        losses.append(np.zeros(1))
        for log, mass in zip((log_p, log_q), masses, strict=True):
            log.append(np.log(np.full(1, max(share - mass, 1e-300))))
    return (np.concatenate(x) for x in (losses, log_p, log_q))


def _log_density(side: Side, z: np.ndarray) -> np.ndarray:
    terms = [
        math.log(w) - 0.5 * (z - c) ** 2 for c, w in zip(side.shifts, side.weights, strict=True)
    ]
    return np.logaddexp.reduce(terms) - 0.5 * math.log(2 * math.pi)


def losses(first: Side, second: Side, symmetric: bool, points: int):
    """Losses and log masses of one round by the midpoint rule."""
    low = min(*first.shifts, *second.shifts, 0.0) - 16
    high = max(*first.shifts, *second.shifts, 0.0) + 16
    if symmetric:
        low = max(first.shifts) / 2
    h = (high - low) / points
    z = low + h * (np.arange(points) + 0.5)
    log_p, log_q = _log_density(first, z), _log_density(second, z)
    rise = np.expm1(np.minimum(log_p - log_q, 1))
    loss = log_p - log_q
    if all(c == 0 for c in second.shifts):
        # Differences of nearly equal logarithms lose digits; sums of expm1 do not.
        rise = sum(
            w * np.expm1(np.minimum(c * z - c * c / 2, 50))
            for c, w in zip(first.shifts, first.weights, strict=True)
        )
        loss = np.where(np.abs(rise) < 0.5, np.log1p(np.maximum(rise, -0.9)), loss)
    log_p, log_q = log_p + math.log(h), log_q + math.log(h)
    if not symmetric:
        return loss, log_p
    atom = 1 - np.exp(log_p).sum() - np.exp(log_q).sum()
    with np.errstate(divide="ignore"):
        return np.r_[loss, -loss, 0.0], np.r_[log_p, log_q, np.log(max(atom, 0.0))]


def _composed(parts, level: float, size: int, share: float = 1.0) -> float:
    """log δ at ``level`` of losses on a grid of ``size`` points, by a tilted FFT."""

    def moment(tilt: float):
        total = mean = variance = 0.0
        for loss, log_mass, n in parts:
            exponent = log_mass + tilt * loss
            top = exponent.max()
            weight = np.exp(exponent - top)
            mass = weight.sum()
            first = (weight * loss).sum() / mass
            total += n * (top + math.log(mass))
            mean += n * first
            variance += n * (weight * (loss - first) ** 2).sum() / mass
        return total, mean, variance

    _, mean, variance = moment(0.0)
    unit = 1 / math.sqrt(variance)
    tilts = unit * np.exp(np.linspace(-4, 5, 40))
    best = min(tilts, key=lambda t: moment(t)[0] - t * level - math.log(t * (t + 1)))
    tilt = share * float(best)
    total, mean, variance = moment(tilt)
    # The window: up to where the tilted distribution has no mass to speak of.
    reach = 12 * math.sqrt(variance)
    low, high = mean - reach, max(mean, level) + reach
    for loss, log_mass, _ in parts:
        heavy = loss[log_mass + tilt * loss > (log_mass + tilt * loss).max() - 60]
        low, high = min(low, mean - reach + heavy.min()), max(high, mean + reach + heavy.max())
    step = (high - low) / size
    spectrum = np.ones(size // 2 + 1, dtype=complex)
    for loss, log_mass, n in parts:
        exponent = log_mass + tilt * loss
        top = exponent.max()
        # Split in Q- and P-mass as connect-the-dots does, then tilt.
        index = np.floor(loss / step)
        offset = loss - index * step
        share = np.expm1(-offset) / np.expm1(-step)
        below = np.exp(log_mass - top + tilt * index * step) * (1 - share)
        above = np.exp(log_mass - top + tilt * (index + 1) * step) * share
        place = index.astype(np.int64)
        line = np.bincount(place % size, below, size) + np.bincount((place + 1) % size, above, size)
        mass = line.sum()
        total_line = np.fft.rfft(line / mass)
        spectrum *= total_line**n
        total += n * (math.log(mass) + top) - n * (top + math.log(np.exp(exponent - top).sum()))
    start = math.floor(low / step)
    density = np.maximum(np.roll(np.fft.irfft(spectrum, size), -(start % size)), 0)
    grid = (start + np.arange(size)) * step
    ahead = np.minimum(level - grid, 0.0)
    gain = -np.expm1(ahead) * np.exp(tilt * ahead)
    value = float((density * gain).sum())
    return total - tilt * level + math.log(max(value, 1e-300))


@dataclass(frozen=True)
class Truth:
    """log δ, and by how much it may be off."""

    log_delta: float
    error: float


def truth(
    mechanism: Mechanism,
    level: float,
    group: int = 1,
    size: int = 2**17,
    points: int = 60_000,
) -> Truth:
    """log δ(``level``) of the dominating pairs named in the documentation, whichever proves less.

    Each part may have the pair that is told how many hit, where there is one, or the one that is
    not. The error is infinite where the convolution cannot be trusted at all.
    """
    either = [
        (True, False) if told(rounds, mechanism.adjacency, group) is not None else (False,)
        for rounds in mechanism
    ]
    choices = list(product(*either))
    if len(choices) > 64:  # the accountant then has one for all parts
        choices = [tuple(one[0] for one in either), (False,) * len(either)]
    found = [_truth(mechanism, level, group, size, points, choice) for choice in choices]
    least = min(found, key=lambda one: one.log_delta)
    if any(math.isinf(one.error) for one in found):
        return Truth(least.log_delta, math.inf)
    # A pair whose value is not known well may prove less than the one that seems to.
    unknown = least.log_delta - min(one.log_delta - one.error for one in found)
    return Truth(least.log_delta, max(least.error, unknown))


def _truth(
    mechanism: Mechanism,
    level: float,
    group: int,
    size: int,
    points: int,
    choice: tuple[bool, ...],
) -> Truth:
    """By one pair for each part; ``choice``: whether it is the one that is told how many hit."""
    forward, backward, gaussian = [], [], 0.0
    for rounds, count_told in zip(mechanism, choice, strict=True):
        hidden = told(rounds, mechanism.adjacency, group) if count_told else None
        if hidden is not None:
            loss, log_p, log_q = told_losses(hidden[0], points)
            forward.append((loss, log_p, hidden[1]))
            backward.append((-loss, log_q, hidden[1]))
            continue
        first, second, symmetric, count = pair(rounds, mechanism.adjacency, group)
        if len(first.shifts) == 1 and len(second.shifts) == 1:
            gaussian += count * (first.shifts[0] - second.shifts[0]) ** 2
            continue
        forward.append((*losses(first, second, symmetric, points), count))
        backward.append(
            (
                *losses(*((first, second) if symmetric else (second, first)), symmetric, points),
                count,
            )
            if not symmetric
            else forward[-1]
        )
    if gaussian:
        mu = math.sqrt(gaussian)
        if not forward:
            a, b = mu / 2 - level / mu, -mu / 2 - level / mu
            log_p, log_q = norm.logcdf(a), norm.logcdf(b)
            return Truth(log_p + math.log(-math.expm1(level + log_q - log_p)), 1e-9)
        z = np.linspace(mu - 16, mu + 16, points)
        row = (mu * z - mu * mu / 2, norm.logpdf(z, mu) + math.log(z[1] - z[0]), 1)
        forward.append(row)
        backward.append(row)
    found = []
    for parts in (forward, backward):
        # Half the saddle point's tilt: at the whole one a few huge losses may hide all others.
        coarse, fine = (_composed(parts, level, n, 0.5) for n in (size, 2 * size))
        # Another tilt, another window: what rounding or a missing tail spoils differs.
        other = _composed(parts, level, 2 * size, 0.2)
        found.append((fine + (fine - coarse) / 3, abs(fine - coarse) + abs(fine - other) + 1e-7))
    best = max(value for value, _ in found)
    if not all(math.isfinite(value) and value < 0.1 for value, _ in found):
        return Truth(math.nan, math.inf)
    return Truth(best, max(error for value, error in found if value > best - 5))
