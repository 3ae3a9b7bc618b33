"""An adversary who knows which rounds, and which groups in them, hold the differing records.

Source: van Dijk et al., "Generalizing DP-SGD with Shuffling and Batch Clipping". Given that
knowledge a run is Gaussian with μ = c/σ, so the mechanism's profile is the mixture over the
distribution q_E(c): δ(ε) = Σ_c q_E(c) δ_Gauss(ε; c/σ) (Definition 5.2), computed here with the
exact q_E. :meth:`StrongAdversary.paper_bounds` has the paper's closed bounds, each marked as
reproduced or refuted.

**Noise.** The paper adds N(0, (2Cσ)²) to a round's sum, forethought N(0, (σC)²):
``noise_multiplier`` is twice the paper's σ, which is ``paper_sigma``.

Against this adversary there is no amplification by sampling. Where the ordinary analysis exists,
i.e. for every sampling scheme but shuffling, :func:`forethought.epsilon` gives a far smaller ε.

**The number of hits by g differing records: the exact distribution q_E(c).**

A round works on m groups of s records each and counts the groups L that hold a differing record;
c² is the sum of L² over all rounds of E epochs. Definition 5.1 of van Dijk et al., "Generalizing
DP-SGD with Shuffling and Batch Clipping"; the paper's own formula for shuffling counts occupancy
vectors as if all were equally likely, which they are not. Everything here is sums and products of
positive numbers, so small probabilities keep their relative accuracy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, get_args

import numpy as np

from forethought.accounting import dominating_pair
from forethought.accounting.dominating_pair import Array
from forethought.accounting.interval import Interval
from forethought.accounting.tradeoff import (
    TradeOff,
    composed,
    gaussian,
    gaussian_mixture,
    lower_envelope,
    upper_envelope,
)
from forethought.values import mechanism
from forethought.values.checks import one_of, real, whole

# Outer tails of c² below this total probability are cut off and reported as missing.
CUT = 1e-19


@dataclass(frozen=True)
class SquaredHits:
    """The law of c²: P(c² = ``squares[i]``) = ``weights[i]``, and at most ``missing`` elsewhere."""

    squares: Array
    weights: Array
    missing: float

    @property
    def mean(self) -> float:
        """Expected c²."""
        return float(self.squares @ self.weights)

    def repeated(self, times: int, cut: float = CUT) -> SquaredHits:
        """The sum of ``times`` independent draws; twice ``cut`` is missing at most."""
        if times < 2:
            return self if times else SquaredHits(np.zeros(1), np.ones(1), 0.0)
        half = self.repeated(times // 2, cut / 4)
        both = half.plus(half, cut / 2)
        return both.plus(self, cut / 2) if times % 2 else both

    def plus(self, other: SquaredHits, cut: float = CUT) -> SquaredHits:
        """The sum of this and an independent one, without outer tails of probability ``cut``."""
        one, first = self._dense()
        two, second = other._dense()
        weights: Array = np.asarray(np.convolve(one, two), dtype=float)
        squares: Array = first + second + np.arange(len(weights), dtype=float)
        return _cut(squares, weights, min(1.0, self.missing + other.missing), cut)

    def _dense(self) -> tuple[Array, float]:
        first = float(self.squares[0])
        weights = np.zeros(round(self.squares[-1] - first) + 1)
        weights[np.rint(self.squares - first).astype(int)] = self.weights
        return weights, first


def _cut(squares: Array, weights: Array, missing: float, cut: float = CUT) -> SquaredHits:
    below, above = np.cumsum(weights), np.cumsum(weights[::-1])[::-1]
    kept = (below > cut / 2) & (above > cut / 2)
    lost = float(np.sum(weights[~kept]))
    kept &= weights > 0
    return SquaredHits(squares[kept], weights[kept], missing + lost)


def _of_quotients(quotients: Array) -> Array:
    """Weights of sum 1, each the one before it times the next of ``quotients``."""
    # Logarithms of factorials of large numbers would be less accurate by many digits.
    logs = np.concatenate([[0.0], np.cumsum(np.log(quotients))])
    weights = np.exp(logs - np.max(logs))
    return np.asarray(weights / np.sum(weights))


def binomial(trials: int, chance: float) -> SquaredHits:
    """The law of c² if each of ``trials`` rounds is hit once with probability ``chance``."""
    if chance <= 0 or chance >= 1:
        return SquaredHits(np.array([float(trials if chance >= 1 else 0)]), np.ones(1), 0.0)
    # All but 1e-20 lies within 20 standard deviations and 60 hits (Bernstein's inequality).
    mean, spread = trials * chance, math.sqrt(trials * chance * (1 - chance))
    first = max(0, math.floor(mean - 20 * spread - 60))
    last = min(trials, math.ceil(mean + 20 * spread + 60))
    k = np.arange(first, last + 1, dtype=float)
    weights = _of_quotients((trials - k[:-1]) / k[1:] * (chance / (1 - chance)))
    return _cut(k, weights, 1e-20)


def hypergeometric(population: int, marked: int, drawn: int) -> Array:
    """P(k marked among ``drawn``), k = 0 … min(marked, drawn)."""
    most, others = min(marked, drawn), population - marked - drawn
    k = np.arange(max(0, -others), most, dtype=float)
    weights = _of_quotients((marked - k) * (drawn - k) / ((k + 1) * (others + k + 1)))
    return np.concatenate([np.zeros(most - len(k)), weights])


def occupied(boxes: int, size: int, balls: int) -> Array:
    """Row t: P(j boxes are occupied) if t ≤ ``balls`` balls take distinct places at random.

    Each of the ``boxes`` has ``size`` places. One more ball opens a new box with probability
    (boxes − j)·size/(places left). All terms are positive, unlike those of inclusion and exclusion.
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
    """P(L = k groups are hit) if a round draws ``groups``·``size`` of ``examples`` records."""
    drawn = hypergeometric(examples, marked, groups * size)
    return np.asarray(drawn @ occupied(groups, size, len(drawn) - 1))


def subsampled(examples: int, groups: int, size: int, marked: int, rounds: int) -> SquaredHits:
    """The law of c² over ``rounds`` rounds, each a fresh draw without replacement."""
    hits = round_hits(examples, groups, size, marked)
    if len(hits) == 2:
        return binomial(rounds, float(hits[1]))
    squares = np.arange(len(hits), dtype=float) ** 2
    kept = hits > 0
    found = SquaredHits(squares[kept], hits[kept], 0.0).repeated(rounds)
    # The rounding of the sum of ``hits`` grows with the rounds; what is cut off is far less.
    return replace(found, weights=found.weights / np.sum(found.weights))


def shuffled_epoch(examples: int, groups: int, size: int, marked: int) -> SquaredHits:
    """The law of c² of an epoch: a permutation in rounds of ``groups``·``size``, the last short."""
    per_round = groups * size
    rounds, short = divmod(examples, per_round)
    in_short = hypergeometric(examples, marked, short) if short else np.ones(1)
    boxes = rounds * groups
    by_balls = occupied(boxes, size, marked) if boxes else np.ones((marked + 1, 1))
    most = by_balls.shape[1] - 1
    by_boxes = _squares_of_boxes(rounds, groups, most)
    total = np.zeros(by_boxes.shape[1] + len(in_short) ** 2)
    for in_last, chance in enumerate(in_short):
        full = by_balls[marked - in_last] @ by_boxes
        for k, share in enumerate(_last_round(short, size, in_last)):
            if share > 0:
                total[k * k : k * k + len(full)] += chance * share * full
    squares = np.arange(len(total), dtype=float)
    kept = total > 0
    # If very uneven occupancies were cut, the total lacks their probability.
    cut = by_boxes.shape[1] - 1 < most + 2 * _most_pairs(rounds, groups, most)
    missing = max(0.0, 1 - float(np.sum(total))) + 1e-14 if cut else 0.0
    return SquaredHits(squares[kept], total[kept], missing)


def _last_round(records: int, size: int, marked: int) -> Array:
    """P(k groups are hit) in a short round: groups of ``size``, and one group of the rest."""
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
    """Row j: P(Σ L_b² = n) if j of the rounds·groups boxes are hit, all choices equally likely.

    It is the coefficient of y^j in (Σ_k C(groups, k) y^k z^{k(k−1)/2})^rounds, where Σ L² = j +
    2·(the exponent of z). Binomial weights keep the coefficients from overflow.
    """
    pairs = _most_pairs(rounds, groups, most)
    # Very uneven occupancies of large groups of records are negligible: they are cut and charged.
    expected = most * (most - 1) / 2 * (groups - 1) / max(1, rounds * groups - 1)
    width = min(pairs, math.ceil(100 + 3 * expected + 10 * math.sqrt(expected))) + 1
    chance = min(0.5, most / (rounds * groups)) if most else 0.5
    k = np.arange(min(groups, most), dtype=float)
    one = _of_quotients((groups - k) / (k + 1) * (chance / (1 - chance)))
    power = _miller_rows if rounds >= most else _squared_rows
    table = power(one, rounds, most, width)
    # At z = 1 nothing is cut: the totals of all rows by the same arithmetic.
    totals = power(one, rounds, most, 0)[:, 0]
    result = np.zeros((most + 1, most + 2 * (width - 1) + 1))
    for row in range(most + 1):
        reach = _most_pairs(rounds, groups, row) + 1
        weights = table[row, :reach]
        total = np.sum(weights) if reach <= width else totals[row]
        if total > 0:
            result[row, row : row + 2 * len(weights) : 2] = weights / total
    return result


def _most_pairs(rounds: int, groups: int, hit: int) -> int:
    """Largest possible Σ L_b (L_b − 1)/2 when ``hit`` boxes are hit; Σ L_b² is hit + 2 of that."""
    full, rest = divmod(hit, groups)
    return full * (groups * (groups - 1) // 2) + rest * (rest - 1) // 2


def _miller_rows(one: Array, rounds: int, most: int, width: int) -> Array:
    """Coefficients of a power of Σ a_k y^k z^{k(k−1)/2}; all terms are positive if rounds ≥ most.

    ``width`` powers of z are kept; 0 sets z = 1 and returns a single column.
    """
    rows = np.zeros((most + 1, max(1, width)))
    # The first coefficient is a common factor, which cancels later.
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


Draw = Literal["shuffling", "subsampling"]

# Relative accuracy of the weights q_E(c).
WEIGHTS = 1e-11


@dataclass(frozen=True)
class KnownHits:
    """A run whose attacker knows the number of hits: δ(ε) = Σ P(c²) δ_Gauss(ε; c·shift).

    Args:
        hits: the distribution of c², the sum over the rounds of squared hits.
        shift: the distance by which one hit moves a round's sum, in standard deviations of its
            noise.
    """

    hits: SquaredHits
    shift: float

    @cached_property
    def mixture(self) -> tuple[Array, Array]:
        """The weights and the μ of the Gaussians, both of shape (n,)."""
        return self.hits.weights, np.sqrt(self.hits.squares) * self.shift

    def delta(self, epsilon: float) -> Interval:
        """δ at ε ≥ 0: Σ q_E(c) δ_Gauss(ε; c/σ)."""
        eps = real("epsilon", epsilon, least=0)
        weights, mus = self.mixture
        above = float(weights @ dominating_pair.gaussian_delta_above(eps, mus)) * (1 + WEIGHTS)
        below = float(weights @ dominating_pair.gaussian_delta_below(eps, mus)) * (1 - WEIGHTS)
        return Interval(below, min(1.0, above + self.hits.missing))

    def epsilon(self, delta: float) -> Interval:
        """ε at δ in (0, 1); the upper end is ∞ if δ is at most the mass that was cut from q_E."""
        target = real("delta", delta, above=0, below=1)
        bounded = self.hits.missing < target

        def profile(epsilon: float, end: int) -> float:
            found = self.delta(epsilon)
            return found.upper if end and bounded else found.lower

        lower, upper = dominating_pair.inverted(profile, target)
        return Interval(lower, upper if bounded else math.inf)

    @staticmethod
    def of_rounds(rounds: mechanism.Rounds, adjacency: mechanism.Adjacency) -> KnownHits:
        """The known hits of one record in rounds of clipped examples.

        In a batch that holds the record, sampling without replacement moves the sum by 2 under
        add-or-remove and replace-one, where another record takes its place, and by 1 under
        zero-out; Poisson sampling and shuffling move it by 2 under replace-one and otherwise by 1.

        Raises:
            UnsupportedMechanismError: group clipping, full batches, a sampling that may draw a
                record twice in a round, or no known sensitivity.
        """
        if rounds.clipping != "example":
            raise mechanism.UnsupportedMechanismError(
                "for groups, see forethought.papers.strong_adversary.StrongAdversary"
            )
        rounds.sensitivity(adjacency)  # raises if there is none
        sampling = rounds.sampling
        if sampling.most(1) > 1:
            raise mechanism.UnsupportedMechanismError(
                f"{type(sampling).__name__} can draw a record several times in a round: known hits "
                "are for samplings that draw it once"
            )
        if sampling.rounds_per_epoch == 1 and not sampling.hides(rounds.count):
            raise mechanism.UnsupportedMechanismError(
                "full batches hide nothing: it is the exact figure"
            )
        exchanged = sampling.exchanges and adjacency != "zero-out"
        distance = 2.0 if exchanged or adjacency == "replace-one" else 1.0
        if sampling.redealt:
            epochs, rest = divmod(rounds.count, sampling.rounds_per_epoch)
            last = binomial(1, min(1.0, math.fsum(map(sampling.turn, range(rest)))))
            hits = SquaredHits(last.squares + epochs, last.weights, last.missing)
        else:
            law = sampling.hits(1)
            chance = law.chance if isinstance(law, mechanism.Binomial) else law.drawn / law.examples
            hits = binomial(rounds.releases, chance)
        return KnownHits(hits, distance / rounds.noise_multiplier)


@dataclass(frozen=True)
class StrongAdversary:
    """A run of ``epochs`` epochs against an adversary who knows the composition of the batches.

    Args:
        examples: N.
        epochs: E.
        noise_multiplier: that of this library, twice the paper's σ.
        groups: m, number of contributions per round.
        group_size: s, number of records of one contribution: s = 1 is individual clipping, m = 1 is
            batch clipping, otherwise mixed.
        sampling: ``"shuffling"`` draws a fresh permutation every epoch, with a short last round if
            m·s does not divide N; ``"subsampling"`` draws every round anew, without replacement.
        group: g, number of records in which the data sets differ.
        adjacency: ``"replace-one"`` is the paper's: g records replaced. ``"zero-out"`` halves the
            shift of an individually clipped record.

    Raises:
        UnsupportedMechanismError: adjacency ``"add-or-remove"``, which moves every later batch.
        TypeError, ValueError: arguments out of range or that do not fit together.
    """

    examples: int
    epochs: int
    noise_multiplier: float
    groups: int = 1
    group_size: int = 1
    sampling: Draw = "shuffling"
    group: int = 1
    adjacency: mechanism.Adjacency = "replace-one"

    def __post_init__(self) -> None:
        for name in ("examples", "epochs", "groups", "group_size"):
            whole(name, getattr(self, name))
        whole("group", self.group, most=self.examples)
        real("noise_multiplier", self.noise_multiplier, above=0)
        one_of("sampling", self.sampling, get_args(Draw))
        one_of("adjacency", self.adjacency, get_args(mechanism.Adjacency))
        if self.adjacency == "add-or-remove":
            raise mechanism.UnsupportedMechanismError(
                "the strong adversary has no bound under adjacency 'add-or-remove': one more "
                "record moves every later batch. Use 'replace-one' or 'zero-out'"
            )
        if self.per_round > self.examples:
            raise ValueError(
                f"a round of {self.groups} groups of {self.group_size} records needs "
                f"{self.per_round} examples, more than the {self.examples} there are"
            )

    @property
    def per_round(self) -> int:
        """Records in a round, m·s."""
        return self.groups * self.group_size

    @property
    def rounds(self) -> int:
        """Rounds in the whole run; E·N/(ms), rounded up (per epoch when shuffling)."""
        if self.sampling == "shuffling":
            return self.epochs * -(-self.examples // self.per_round)
        return -(-self.epochs * self.examples // self.per_round)

    @property
    def paper_sigma(self) -> float:
        """The paper's σ: half of forethought's noise multiplier."""
        return self.noise_multiplier / 2

    @property
    def shift(self) -> float:
        """The distance by which one hit moves a round's sum, in units of its noise.

        It is 1/σ of the paper; half of that for individual clipping under zero-out.
        """
        alone = self.group_size == 1 and self.adjacency == "zero-out"
        return (1.0 if alone else 2.0) / self.noise_multiplier

    @cached_property
    def hits(self) -> SquaredHits:
        """The exact distribution of c² over the run: q_E."""
        if self.sampling == "shuffling":
            epoch = shuffled_epoch(self.examples, self.groups, self.group_size, self.group)
            return epoch.repeated(self.epochs)
        return subsampled(self.examples, self.groups, self.group_size, self.group, self.rounds)

    @cached_property
    def known(self) -> KnownHits:
        """The mixture over q_E, with its δ(ε) and ε(δ)."""
        return KnownHits(self.hits, self.shift)

    def delta(self, epsilon: float) -> Interval:
        """δ at ε ≥ 0: Σ q_E(c) δ_Gauss(ε; c/σ)."""
        return self.known.delta(epsilon)

    def epsilon(self, delta: float) -> Interval:
        """ε at δ in (0, 1); the upper end is ∞ if δ is at most the mass that was cut from q_E."""
        return self.known.epsilon(delta)

    def tradeoff(self) -> TradeOff:
        """The exact trade-off function of Definition 5.2."""
        weights, mus = self.known.mixture
        if self.hits.missing > 0:
            # The cut mass counts as disclosed, which gives a lower bound.
            weights = weights * (1 - self.hits.missing)
        curve = gaussian_mixture(weights / max(1.0, float(np.sum(weights))), mus)
        # The worst case, all hits in the fewest rounds, is this Gaussian.
        each = min(self.groups, self.group)
        most = each * (self.epochs * self.group)
        if self.sampling == "subsampling":
            most = each**2 * self.rounds
        return replace(curve, floor=math.sqrt(most) * self.shift)

    def paper_bounds(self) -> tuple[PaperBound, ...]:
        """The claims of Table 1 and Theorems E.1 and F.1 for this setting, with verdicts."""
        claims = _subsampling(self) if self.sampling == "subsampling" else _shuffling(self)
        return tuple(claim.judged(self) for claim in claims)


@dataclass(frozen=True)
class PaperBound:
    """A published bound beside the exact function.

    Attributes:
        name: theorem and case.
        kind: a ``"guarantee"`` claims to lie on or below the exact trade-off function, a
            ``"limit"`` on or above it.
        curve: the claimed trade-off function.
        verdict: ``"reproduced"`` or ``"refuted"``; ``"unjudged"`` before :meth:`judged`.
        epsilon, claimed_delta, exact_delta: for a refuted claim the ε at which the claimed δ is
            farthest on the wrong side of the exact δ, and both δ; otherwise NaN.
    """

    name: str
    kind: Literal["guarantee", "limit"]
    curve: TradeOff
    verdict: Literal["unjudged", "reproduced", "refuted"] = "unjudged"
    epsilon: float = math.nan
    claimed_delta: float = math.nan
    exact_delta: float = math.nan

    def judged(self, adversary: StrongAdversary) -> PaperBound:
        """Compare the claim with the exact δ(ε), on a grid of ε where δ is above 1e-12."""
        reach = max(1e-3, adversary.epsilon(1e-12).lower)
        worst, seen = 0.0, (math.nan, math.nan, math.nan)
        for epsilon in reach * np.linspace(0, 1, 65) ** 2:
            exact, claimed = adversary.delta(float(epsilon)), self.curve.delta(float(epsilon))
            if self.kind == "guarantee":
                excess = exact.lower - claimed * (1 + 1e-9)
            else:
                excess = claimed * (1 - 1e-9) - exact.upper
            if excess > max(1e-14, worst):
                worst, seen = excess, (float(epsilon), claimed, exact.lower)
        verdict: Literal["reproduced", "refuted"] = "refuted" if worst > 0 else "reproduced"
        return PaperBound(self.name, self.kind, self.curve, verdict, *seen)


def _subsampling(run: StrongAdversary) -> list[PaperBound]:
    sigma, E, g = 1 / run.shift, run.epochs, run.group
    claims = []
    if g == 1:
        claims += _hoeffding("Theorem E.1, g = 1 (Lemmas E.2 and E.3)", float(E), sigma)
    if run.groups == 1:
        hit = 1.0
        if run.group_size + g <= run.examples:
            missed = sum(math.log1p(-run.group_size / (run.examples - j)) for j in range(g))
            hit = -math.expm1(missed)
        mean = run.examples / run.group_size * hit * E
        claims += _hoeffding("Theorem E.1, batch clipping (Lemma E.5)", mean, sigma)
    if run.group_size == 1 and run.examples > g + run.groups:
        # γ > 0 may be chosen; γ = 1 gives the tail e^(−gE).
        beta = math.exp(run.examples / (run.examples - g - run.groups)) + 1
        mu = math.sqrt(beta * min(run.groups, g) * g * E) / sigma
        curve = lower_envelope(math.exp(-g * E), mu)
        name = "Theorem E.1, individual clipping, γ = 1 (Lemma E.4)"
        claims.append(PaperBound(name, "guarantee", curve))
    return claims


def _hoeffding(name: str, mean: float, sigma: float) -> list[PaperBound]:
    # e^(−mean) is Hoeffding's bound without its division by the number of rounds, as printed.
    tail, width = math.exp(-mean), 1 / math.sqrt(2 * mean)
    below = lower_envelope(tail, math.sqrt((1 + width) * mean) / sigma)
    above = upper_envelope(tail, math.sqrt(max(0.0, 1 - width) * mean) / sigma)
    return [
        PaperBound(f"{name}, lower bound", "guarantee", below),
        PaperBound(f"{name}, upper bound", "limit", above),
    ]


def _shuffling(run: StrongAdversary) -> list[PaperBound]:
    sigma, E, g = 1 / run.shift, run.epochs, run.group
    claims = []
    if g == 1:
        one = gaussian(math.sqrt(E) / sigma)
        claims.append(PaperBound("Theorem F.1, g = 1 (Lemma F.2)", "guarantee", one))
        claims.append(PaperBound("Theorem F.1, g = 1, tight (Lemma F.2)", "limit", one))
    if run.groups == 1:
        root = gaussian(math.sqrt(g * E) / sigma)
        name = "Theorem F.1, batch clipping, G_{√(gE)/σ} (Lemma F.4)"
        claims.append(PaperBound(name, "guarantee", root))
        rounds = run.examples // run.group_size
        if g <= run.group_size:
            printed = paper_occupancy(rounds, g).repeated(E)
            curve = gaussian_mixture(printed.weights, np.sqrt(printed.squares) / sigma)
            name = "Theorem F.1, batch clipping, mixture with the printed q_j (Lemma F.4)"
            claims.append(PaperBound(name, "guarantee", curve))
        room = rounds - g - g * g
        if g <= run.group_size and room > g * g:
            one = upper_envelope(g * g / room, math.sqrt(g) / sigma)
            above = composed(one, E, above=True)
            name = "Theorem F.1, batch clipping, upper bound (Lemma F.4)"
            claims.append(PaperBound(name, "limit", above))
    tail = g * g * run.per_round / (run.examples - g) if run.examples > g else math.inf
    if tail < 1:
        below = composed(lower_envelope(tail, math.sqrt(g) / sigma), E)
        epochs = "one epoch" if E == 1 else f"{E} epochs"
        name = f"Theorem F.1, general clipping, {epochs} (Lemma F.3)"
        claims.append(PaperBound(name, "guarantee", below))
    return claims


def paper_occupancy(rounds: int, group: int) -> SquaredHits:
    """Theorem F.1's printed q_j = C(R, j) C(g − 1, j − 1)/C(R − 1 + g, g), c² = j, as published.

    It takes occupancy vectors as equally likely, which they are not for a permutation. See
    :func:`forethought.papers.strong_adversary.shuffled_epoch` for the true distribution.
    """
    R, g = whole("rounds", rounds), whole("group", group)
    total = math.comb(R - 1 + g, g)
    j = range(1, min(R, g) + 1)
    weights = [math.comb(R, i) * math.comb(g - 1, i - 1) / total for i in j]
    return SquaredHits(np.array(j, dtype=float), np.array(weights), 0.0)
