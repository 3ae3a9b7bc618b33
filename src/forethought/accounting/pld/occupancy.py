"""How often g differing records are met: the exact distribution q_E(c) of the strong adversary.

A round works on m groups of s records each and counts the groups L that hold a differing record;
c² is the sum of L² over all rounds of E epochs. Definition 5.1 of van Dijk et al., "Generalizing
DP-SGD with Shuffling and Batch Clipping"; the paper's own formula for shuffling counts occupancy
vectors as if all were equally likely, which they are not. Everything here is sums and products of
positive numbers, so small probabilities keep their relative accuracy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

Array = NDArray[np.float64]

# Outer tails of c² below this total probability are cut off and reported as missing.
CUT = 1e-19


@dataclass(frozen=True)
class SquaredHits:
    """P(c² = ``squares[i]``) = ``weights[i]``; at most ``missing`` lies elsewhere."""

    squares: Array
    weights: Array
    missing: float

    @property
    def mean(self) -> float:
        """Expected c²."""
        return float(self.squares @ self.weights)

    def repeated(self, times: int) -> SquaredHits:
        """The sum of ``times`` independent draws."""
        total, power, left = None, self, times
        while left:
            if left & 1:
                total = power if total is None else total.plus(power)
            left >>= 1
            if left:
                power = power.plus(power)
        if total is None:
            return SquaredHits(np.zeros(1), np.ones(1), 0.0)
        return total

    def plus(self, other: SquaredHits) -> SquaredHits:
        """The sum of this and an independent one; outer tails are cut."""
        one, first = self._dense()
        two, second = other._dense()
        weights: Array = np.asarray(np.convolve(one, two), dtype=float)
        squares: Array = first + second + np.arange(len(weights), dtype=float)
        return _cut(squares, weights, min(1.0, self.missing + other.missing))

    def _dense(self) -> tuple[Array, float]:
        first = float(self.squares[0])
        weights = np.zeros(round(self.squares[-1] - first) + 1)
        weights[np.rint(self.squares - first).astype(int)] = self.weights
        return weights, first


def _cut(squares: Array, weights: Array, missing: float) -> SquaredHits:
    below, above = np.cumsum(weights), np.cumsum(weights[::-1])[::-1]
    kept = (below > CUT / 2) & (above > CUT / 2)
    lost = float(np.sum(weights[~kept]))
    kept &= weights > 0
    return SquaredHits(squares[kept], weights[kept], missing + lost)


def binomial(trials: int, chance: float) -> SquaredHits:
    """c² when each of ``trials`` rounds is hit once with probability ``chance``."""
    if chance <= 0 or chance >= 1:
        return SquaredHits(np.array([float(trials if chance >= 1 else 0)]), np.ones(1), 0.0)
    # 20 standard deviations and 60 hits hold all but 1e-20 (Bernstein's inequality).
    mean, spread = trials * chance, math.sqrt(trials * chance * (1 - chance))
    first = max(0, math.floor(mean - 20 * spread - 60))
    last = min(trials, math.ceil(mean + 20 * spread + 60))
    k = np.arange(first, last + 1, dtype=float)
    log_choose = gammaln(trials + 1) - gammaln(k + 1) - gammaln(trials - k + 1)
    weights = np.exp(log_choose + k * math.log(chance) + (trials - k) * math.log1p(-chance))
    # The logarithms of factorials are good to 1e-16 of their size; their sum is known to be 1.
    return _cut(k, weights / np.sum(weights), 1e-20)


def hypergeometric(population: int, marked: int, drawn: int) -> Array:
    """P(k marked among ``drawn``), k = 0 … min(marked, drawn)."""
    most = min(marked, drawn)
    weights = np.zeros(most + 1)
    least = max(0, drawn - (population - marked))
    k = np.arange(least, most + 1, dtype=float)
    log_weight = (
        -gammaln(k + 1)
        - gammaln(marked - k + 1)
        - gammaln(drawn - k + 1)
        - gammaln(population - marked - drawn + k + 1)
    )
    share = np.exp(log_weight - np.max(log_weight))
    weights[least:] = share / np.sum(share)
    return weights


def occupied(boxes: int, size: int, balls: int) -> Array:
    """Row t: P(j boxes occupied), when t ≤ ``balls`` balls take distinct places at random.

    Each of the ``boxes`` has ``size`` places. A ball more opens a new box with probability
    (boxes − j)·size/(places left): a chain of positive terms, unlike inclusion and exclusion.
    Shape (balls + 1, min(boxes, balls) + 1).
    """
    most = min(boxes, balls)
    rows = np.zeros((balls + 1, most + 1))
    rows[0, 0] = 1.0
    j = np.arange(most + 1)
    for t in range(min(balls, boxes * size)):
        left = boxes * size - t
        opened = rows[t] * np.minimum(1.0, (boxes - j) * (size / left))
        stayed = rows[t] * np.maximum(0.0, (j * size - t) / left)
        rows[t + 1] = stayed
        rows[t + 1, 1:] += opened[:-1]
    return rows


def round_hits(examples: int, groups: int, size: int, marked: int) -> Array:
    """P(L = k groups hit) when a round draws ``groups``·``size`` of ``examples`` records."""
    drawn = hypergeometric(examples, marked, groups * size)
    return np.asarray(drawn @ occupied(groups, size, len(drawn) - 1))


def subsampled(examples: int, groups: int, size: int, marked: int, rounds: int) -> SquaredHits:
    """c² over ``rounds`` rounds, each a fresh draw without replacement."""
    hits = round_hits(examples, groups, size, marked)
    if len(hits) == 2:
        return binomial(rounds, float(hits[1]))
    squares = np.arange(len(hits), dtype=float) ** 2
    kept = hits > 0
    if hits[0] == 0 or rounds < 64:
        return SquaredHits(squares[kept], hits[kept], 0.0).repeated(rounds)
    return _power(hits, rounds)


def _power(hits: Array, rounds: int) -> SquaredHits:
    """(Σ_k p_k z^{k²})^rounds by Miller's recurrence, up to a Chernoff bound of its tail."""
    k = np.arange(1, len(hits), dtype=float)
    p = hits[1:]
    last = _chernoff_end(k**2, p, rounds)
    if last > rounds:
        # The recurrence would subtract; squaring does not.
        squares = np.concatenate([[0.0], k**2])
        kept = hits > 0
        return SquaredHits(squares[kept], hits[kept], 0.0).repeated(rounds)
    steps = (k**2).astype(int)
    ratio = p / hits[0]
    weights = np.zeros(last + 1)
    weights[0] = 1.0
    log_scale = rounds * math.log(hits[0])
    for n in range(1, last + 1):
        reach = int(np.searchsorted(steps, n, side="right"))
        terms = (steps[:reach] * (rounds + 1.0) - n) * ratio[:reach] * weights[n - steps[:reach]]
        weights[n] = np.sum(terms) / n
        if weights[n] > 1e250:
            weights[: n + 1] *= 1e-250
            log_scale += 250 * math.log(10)
    with np.errstate(divide="ignore"):
        weights = np.exp(np.log(weights) + log_scale)
    # The recurrence keeps relative accuracy up to a common factor: p_0^rounds loses digits.
    return _cut(np.arange(last + 1, dtype=float), weights / np.sum(weights), 1e-20)


def _chernoff_end(squares: Array, p: Array, rounds: int) -> int:
    """n with P(c² > n) ≤ 1e-20, by the best exponential moment on a grid."""
    best = math.inf
    for tilt in np.geomspace(1e-4, 50.0, 200) / squares[-1]:
        log_moment = rounds * math.log1p(float(p @ np.expm1(tilt * squares)))
        best = min(best, (log_moment + 20 * math.log(10)) / tilt)
    return min(math.ceil(best), rounds * round(float(squares[-1])))


def shuffled_epoch(examples: int, groups: int, size: int, marked: int) -> SquaredHits:
    """c² of one epoch: a permutation cut into rounds of ``groups``·``size``, the last one short."""
    per_round = groups * size
    rounds, short = divmod(examples, per_round)
    in_short = hypergeometric(examples, marked, short) if short else np.ones(1)
    boxes = rounds * groups
    by_balls = occupied(boxes, size, marked) if boxes else np.ones((marked + 1, 1))
    by_boxes = _squares_of_boxes(rounds, groups, by_balls.shape[1] - 1)
    total = np.zeros(by_boxes.shape[1] + len(in_short) ** 2)
    for in_last, chance in enumerate(in_short):
        full = by_balls[marked - in_last] @ by_boxes
        for k, share in enumerate(_last_round(short, size, in_last)):
            if share > 0:
                total[k * k : k * k + len(full)] += chance * share * full
    squares = np.arange(len(total), dtype=float)
    kept = total > 0
    # Where very uneven occupancies were cut, what is short of 1 is their probability.
    cut = by_boxes.shape[1] - 1 < _most_squares(rounds, groups, by_balls.shape[1] - 1)
    missing = max(0.0, 1 - float(np.sum(total))) + 1e-14 if cut else 0.0
    return SquaredHits(squares[kept], total[kept], missing)


def _last_round(records: int, size: int, marked: int) -> Array:
    """P(k groups hit) in a short round: groups of ``size`` and one with what is left over."""
    whole_groups, rest = divmod(records, size)
    in_rest = hypergeometric(records, marked, rest) if rest else np.ones(1)
    full = occupied(whole_groups, size, marked) if whole_groups else np.ones((marked + 1, 1))
    hit = np.zeros(full.shape[1] + 1)
    for t, chance in enumerate(in_rest):
        if chance > 0:
            moved = 1 if t else 0
            hit[moved : moved + full.shape[1]] += chance * full[marked - t]
    return hit


def _squares_of_boxes(rounds: int, groups: int, most: int) -> Array:
    """Row j: P(Σ L_b² = n) when j of the rounds·groups boxes are hit, all choices alike.

    The coefficient of y^j in (Σ_k C(groups, k) y^k z^{k(k−1)/2})^rounds, where Σ L² = j + 2·(the
    exponent of z). Weighted by a binomial chance so that no coefficient overflows.
    """
    pairs = _most_pairs(rounds, groups, most)
    # Very uneven occupancies of large groups of records are too rare to matter; cut, and charged.
    expected = most * (most - 1) / 2 * (groups - 1) / max(1, rounds * groups - 1)
    width = min(pairs, math.ceil(100 + 3 * expected + 10 * math.sqrt(expected))) + 1
    chance = min(0.5, most / (rounds * groups)) if most else 0.5
    k = np.arange(min(groups, most) + 1, dtype=float)
    log_choose = gammaln(groups + 1) - gammaln(k + 1) - gammaln(groups - k + 1)
    one = np.exp(log_choose + k * math.log(chance) + (groups - k) * math.log1p(-chance))
    power = _miller_rows if rounds >= most else _squared_rows
    table = power(one, rounds, most, width)
    # At z = 1 nothing is cut: by the same arithmetic, what each row would sum to.
    totals = power(one, rounds, most, 0)[:, 0]
    result = np.zeros((most + 1, most + 2 * (width - 1) + 1))
    for row in range(most + 1):
        reach = _most_pairs(rounds, groups, row) + 1
        weights = table[row, :reach]
        total = np.sum(weights) if reach <= width else totals[row]
        if total > 0:
            result[row, row : row + 2 * len(weights) : 2] = weights / total
    return result


def _most_squares(rounds: int, groups: int, hit: int) -> int:
    """Largest possible Σ L_b² when ``hit`` boxes are hit."""
    return hit + 2 * _most_pairs(rounds, groups, hit)


def _most_pairs(rounds: int, groups: int, hit: int) -> int:
    full, rest = divmod(hit, groups)
    return full * (groups * (groups - 1) // 2) + rest * (rest - 1) // 2


def _miller_rows(one: Array, rounds: int, most: int, width: int) -> Array:
    """Coefficients of a power of Σ a_k y^k z^{k(k−1)/2}: positive terms while rounds ≥ most.

    ``width`` powers of z are kept; 0 puts z = 1 and returns a single column.
    """
    rows = np.zeros((most + 1, max(1, width)))
    # Normalised row by row through its first coefficient; the common factor cancels later.
    rows[0, 0] = math.exp(rounds * math.log(one[0])) if rounds * math.log(one[0]) > -700 else 1e-300
    for n in range(1, most + 1):
        for k in range(1, min(n, len(one) - 1) + 1):
            shift = k * (k - 1) // 2 if width else 0
            if shift >= rows.shape[1]:
                break
            factor = (k * (rounds + 1) - n) / n * one[k] / one[0]
            rows[n, shift:] += factor * rows[n - k, : rows.shape[1] - shift]
    return rows


def _squared_rows(one: Array, rounds: int, most: int, width: int) -> Array:
    """The same power by repeated multiplication, for few rounds."""
    total = np.zeros((most + 1, max(1, width)))
    total[0, 0] = 1.0
    for _ in range(rounds):
        product = np.zeros_like(total)
        for k, weight in enumerate(one):
            shift = k * (k - 1) // 2 if width else 0
            if shift < total.shape[1]:
                moved = total[: most + 1 - k, : total.shape[1] - shift]
                product[k:, shift:] += weight * moved
        total = product
    return total
