"""The planner's choices where the user leaves a number out, and their reasons."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, assert_never

import numpy as np
import scipy  # its signal room loads at first use: half a second that other plans need not wait
from scipy.optimize import brentq, minimize

from forethought.accounting.dominating_pair import gaussian_mu
from forethought.accounting.theorems import sensitivity_over_turns
from forethought.options import BasisName
from forethought.values.mechanism import Budget, Correlated, Rounds
from forethought.values.plan import Plan, Statistic
from forethought.values.strategies import Array, Banded, BufferedToeplitz, Strategy
from forethought.values.use import USUAL_RATE, kind_of

# Strategies of correlated noise for a workload: the least error for the same promise.
#
# What an optimizer makes of the noised sums is a workload A, lower triangular and Toeplitz: prefix
# sums for plain SGD, sums of momentum's running sums for SGD with momentum. Noise σC⁻¹z reaches the
# weights as σAC⁻¹z, and σ goes with the strategy's sensitivity, so the error to keep small is
#
#     sensitivity(C)² · (1/n) ‖AC⁻¹‖²_F,
#
# the mean over the rounds of the squared error a coordinate has (Denisov et al. 2022, Equation 2;
# Choquette-Choo et al. 2023, Section 3). Nothing here needs the data.


# More bands cost memory and gain little; rounds beyond are alike for a strategy.
MOST_BANDS = 64
LONGEST = 4096
BUFFERS = 3
INDEPENDENT = Banded((1.0,))


def workload(count: int, momentum: float = 0.0) -> Array:
    """First column of A: how a round's sum counts in the weights so many rounds later."""
    impulse = np.zeros(count)
    impulse[0] = 1
    return np.asarray(np.cumsum(scipy.signal.lfilter([1.0], [1.0, -momentum], impulse)))


def error(strategy: Strategy, count: int, separation: int, momentum: float = 0.0) -> float:
    """Root mean square of the noise in the weights at unit ε, in units of a round's clip norm.

    Relative to other strategies' of the same participation only.

    Args:
        count: rounds. separation: rounds from one turn of a record to its next.
        momentum: of torch's SGD.
    """
    return sensitivity_over_turns(strategy, count, separation) * math.sqrt(
        _mean_square(strategy, count, momentum)
    )


def gain(strategy: Strategy, count: int, momentum: float = 0.0) -> float:
    """Noise in the weights over that of independent noise with the same noise multiplier."""
    own = _mean_square(strategy, count, momentum)
    return math.sqrt(own / _mean_square(INDEPENDENT, count, momentum))


@lru_cache(maxsize=64)
def banded(bands: int, count: int, separation: int, momentum: float = 0.0) -> Banded:
    """The strategy of ``bands`` bands that has the least :func:`error`, by gradient descent.

    Args:
        bands: at most ``separation``, so that a record's turns do not overlap.

    Begins at the banded square root of the prefix sums (Kalinin and Lampert 2024).
    """
    n = min(count, LONGEST)
    bands = min(bands, separation, n)
    if bands <= 1:
        return INDEPENDENT
    work, weights = workload(n, momentum), _weights(n)
    start = np.cumprod([1.0, *((2 * i - 1) / (2 * i) for i in range(1, bands))])

    def loss(free: Array) -> tuple[float, Array]:
        column = np.concatenate([[1.0], free])
        through = scipy.signal.lfilter([1.0], column, work)
        twice = scipy.signal.lfilter([1.0], column, through)
        mean, size = float(weights @ through**2), float(column @ column)
        # d through / d c_j is -(through C⁻¹) moved by j.
        slope = scipy.signal.correlate(weights * through, twice, mode="full", method="fft")[n - 1 :]
        slope = -2 * slope[1:bands]
        return math.log(mean) + math.log(size), slope / mean + 2 * free / size

    with np.errstate(all="ignore"):
        found = minimize(
            loss,
            start[1:],
            jac=True,
            method="L-BFGS-B",
            bounds=[(0.0, 1.0)] * (bands - 1),
            options={"maxiter": 300},
        )
    best = found.x if np.isfinite(found.fun) else start[1:]
    return Banded((1.0, *(float(x) for x in best)))


@lru_cache(maxsize=64)
def buffered(buffers: int, count: int, separation: int, momentum: float = 0.0) -> BufferedToeplitz:
    """The strategy of ``buffers`` buffers that has the least :func:`error` found."""
    n = min(count, LONGEST)

    def strategy(free: Array) -> BufferedToeplitz:
        shares = np.exp(free[: buffers + 1] - free[: buffers + 1].max())
        weights = (shares / shares.sum())[:buffers] * (1 - 1e-9)
        decays = 1 / (1 + np.exp(-np.clip(free[buffers + 1 :], -30, 30)))
        return BufferedToeplitz(
            tuple(np.maximum(weights, 1e-12).tolist()),
            tuple(np.minimum(decays, 1 - 1e-12).tolist()),
        )

    def loss(free: Array) -> float:
        return math.log(error(strategy(free), n, separation, momentum))

    spread = np.linspace(1.0, math.log(4 * n), buffers) if buffers > 1 else np.array([2.0])
    start = np.concatenate([np.zeros(buffers + 1), spread])
    found = minimize(loss, start, method="L-BFGS-B", options={"maxiter": 200})
    return strategy(found.x)


def best(
    count: int, separation: int, momentum: float = 0.0, *, sampled: bool = False
) -> tuple[Strategy, float]:
    """The strategy of the least error among independent, banded and buffered ones.

    Args:
        sampled: a record's turns are sampled, which only bands are proven for.

    Returns:
        The strategy, and its error over that of independent noise.
    """
    tried: list[Strategy] = [INDEPENDENT]
    tried.append(banded(min(separation, MOST_BANDS), count, separation, momentum))
    if not sampled:
        tried.append(buffered(BUFFERS, count, separation, momentum))
    alone = error(INDEPENDENT, count, separation, momentum)
    errors = [error(strategy, count, separation, momentum) / alone for strategy in tried]
    place = int(np.argmin(errors))
    return tried[place], errors[place]


def _mean_square(strategy: Strategy, count: int, momentum: float) -> float:
    """(1/n) ‖AC⁻¹‖²_F."""
    column = _through(workload(count, momentum), strategy)
    return float(_weights(count) @ column**2)


def _through(work: Array, strategy: Strategy) -> Array:
    """First column of AC⁻¹."""
    match strategy:
        case Banded():
            return np.asarray(scipy.signal.lfilter([1.0], strategy.coefficients, work))
        case BufferedToeplitz():
            return _through_buffers(work, strategy)
        case _:
            assert_never(strategy)


def _through_buffers(work: Array, strategy: BufferedToeplitz) -> Array:
    # As a power series C is 1 + x Σ w_j/(1 - d_j x): a quotient of short polynomials.
    below = np.ones(1)
    for decay in strategy.decays:
        below = np.convolve(below, [1.0, -decay])
    above = below.copy()
    for place, weight in enumerate(strategy.weights):
        others = np.ones(1)
        for decay in (*strategy.decays[:place], *strategy.decays[place + 1 :]):
            others = np.convolve(others, [1.0, -decay])
        above[1:] += weight * others
    return np.asarray(scipy.signal.lfilter(below, above, work))


def _weights(count: int) -> Array:
    """The count of each entry of a Toeplitz matrix's first column, over n."""
    return np.asarray(1 - np.arange(count) / count)


# How loud the noise of a plan is against the signal: the predicted utility without data.


def noise_to_signal(plan: Plan, parameters: int = 1) -> float:
    """Noise that reaches the weights over the whole run, against the most the data can say.

    Round t adds N(0, σ_t² C² I_d) to a sum of at most B_t contributions of norm C, and divides by
    B_t. Over the run the noise has norm √(Σ (σ_t/B_t)²) C √d and the contributions at most T C, so
    the ratio is √(d Σ (σ_t/B_t)²) / T; with equal rounds σ √d / (B √T). Group clipping counts
    groups, not records.
    A preparation of the data says nothing to the weights and is left out.
    Correlated noise counts as independent noise that leaves the same mean square in the weights,
    under the plan's momentum.

    Args:
        plan: what will run. parameters: d, the number of trained parameters; 1 compares plans for
            the same model.
    """
    momentum = plan.optimizer.momentum
    parts = plan.privacy.mechanism.rounds
    noise = math.fsum(part.count * _of_a_round(plan, part, momentum) ** 2 for part in parts)
    return math.sqrt(parameters * noise) / plan.rounds


def _of_a_round(plan: Plan, part: Rounds, momentum: float) -> float:
    """Noise of one round's mean, in clipping norms."""
    signal = plan.contribution.expected(part.sampling.expected_batch(plan.examples))
    # The rest of the noise in the weights under correlation.
    left = gain(part.strategy, part.count, momentum) if isinstance(part, Correlated) else 1.0
    return part.noise_multiplier * left / signal


def weight_noise(plan: Plan) -> float | None:
    """Deviation that the plan's noise puts on each weight over the whole run, at most.

    That is what would be left if no later step took any of it back. Gradient descent of a convex
    loss with steps that do not swing only takes noise back, and so do averages and falling steps.

    Returns:
        None for optimizers that are no gradient descent, for groups with an algorithm inside, and
        where clip norms follow records.
    """
    optimizer, clip = plan.optimizer, plan.clip
    plain = plan.local is None and plan.gradient_filter is None and clip.rule != "quantile"
    if not (plain and kind_of(optimizer.name).descends):
        return None
    longest = optimizer.learning_rate / (1 - optimizer.momentum)
    return longest * plan.rounds * max(clip.norm, clip.final or 0.0) * noise_to_signal(plan)


def gradient_computations(plan: Plan) -> float:
    """Expected number of per-example gradients that the whole run computes.

    An inner algorithm computes one for each record in each of its passes; what a function of the
    user's own computes is not known, and counts as one pass.
    """
    passes = 1 if plan.local is None else plan.local.passes
    return plan.epochs * plan.examples * passes


# Step sizes of Adam and its kin under noise: gradient descent's, in units of what they divide by.
#
# Where noise of variance φ outweighs the gradients, Adam's second moment is φ in every coordinate,
# so a step is that of gradient descent with an averaged gradient divided by √φ (Tang, Shpilevskiy
# and Lécuyer 2023: "DP-Adam is actually DP-SGD"). So η for gradient descent, which the planner
# knows how to choose, is η√φ for Adam. With the noise taken out (their DP-AdamBC) such a coordinate
# is divided by the root of the floor instead. φ is public, so no record is looked at.


# The longest of a network of which nothing is known. Chosen on the small language models of
# experiments/large_models, of whose four columns it is near the best in three; not held out.
UNTRIED_RATE = 0.01


def adaptive_rate(plan: Plan, optimizer: str, options: Mapping[str, Any], rate: float) -> float:
    """The step size with which an optimizer goes as far as gradient descent with ``rate``.

    Args:
        plan: all but its optimizer. rate: of gradient descent without momentum.

    Returns:
        At least :data:`~forethought.values.use.USUAL_RATE`; that where there is no noise or rounds'
        noises cancel each other.
    """
    divides = kind_of(optimizer).divides
    if divides is None or any(isinstance(p, Correlated) for p in plan.privacy.mechanism):
        return USUAL_RATE
    divided = divides(_variance(plan), options, plan.rounds)
    return max(USUAL_RATE, rate * math.sqrt(divided))


def _variance(plan: Plan) -> float:
    """Of the noise on a coordinate of a mean, in the mean over the rounds."""
    index, variance = 0, 0.0
    for part in plan.privacy.mechanism:  # the rounds differ little within β₂
        variance += part.count * plan.round(index).mean_variance / plan.rounds
        index += part.count
    if plan.gradient_filter is not None:
        variance *= plan.gradient_filter.noise_left(plan.rounds)
    return variance


# The rules look at the number of records, the number of parameters and the budget; never at data.
# Notation: N records, p parameters, rate q, T rounds, noise multiplier σ, clip norm C, μ the
# Gaussian-DP parameter that the budget is worth. docs/defaults.md has the reasoning and the
# figures.
#
# - *Noise against signal.* Over the run the noise in the weights has, against the path that the
#   data's part of the steps may lead them along, the ratio ν = σ √(p/T)/(q N)
#   (:func:`forethought.planning.defaults.noise_to_signal`). No plan gets below √p/(μ N).
# - *Step size.* A path of length L leaves noise of norm ν L in the weights. L is chosen so that
#   this norm is :data:`NOISE`: travel as far as the noise allows, at most :data:`STEP` clip norms a
#   round. For a linear model whose features have a known norm R the noise that counts is that of
#   its scores, ν L √(R² + 1)/√p: L is chosen so that this is :func:`score_noise`. Scaling the
#   features then scales the weights and changes nothing else. For a network that could be tried
#   (:mod:`forethought.planning.plan_request`) the norm is what it bears, which
#   :attr:`~forethought.planning.plan_request.PlanRequest.size` turns into weights.
# - *Rounds.* With σ/q near its limit ν does not depend on T, and neither does accuracy from 50
#   rounds on: :data:`ROUNDS`.
# - *Batch.* ν falls with q towards its limit. A larger batch never costs accuracy, only gradients:
#   the batch is the smallest whose ν is within :data:`WASTE` of the limit, or half of what the
#   longest path can use. At least :data:`BATCH` (a smaller one saves no time), at least one pass,
#   at most :data:`EPOCHS_LIMIT` passes.
# - *Clipping.* Automatic normalisation (Bu et al. 2022): there is no norm to tune. For a linear
#   model of known R flat clipping, at :data:`SCORE_CLIP` of the longest feature vector's usual
#   norm: it is as loud as normalisation while a record's label is in doubt, but lets go of records
#   whose label is settled and never counts a wrong one for more than that, so that intercept and
#   directions find their balance at scores of about 1 where normalisation needs 5.
# - *Averaging, schedule.* The exponential average of the iterates takes most of the last rounds'
#   noise away, so a constant step size does as well as a decaying one.
#
# Poisson sampling's central limit theorem (Bu et al. 2020), μ = q √(T (e^(1/σ²) − 1)), is accurate
# enough to *choose* with; the noise itself is always calibrated exactly.


ROUNDS = 200
FEWEST_ROUNDS = 50
NOISE = 30.0
STEP = 30.0
# The share of that noise, in a network's weights or a linear model's scores, that is left where the
# outputs are values in [−1, 1] and not the scores of classes: it shows in every answer. Chosen on
# the first tables of experiments/tables/values.py.
OF_VALUES = 0.1
# For a linear model with features of known norm: deviation of the noise in the scores of two
# classes, the longest step a round in units of the scores of a model of up to STEP_WEIGHTS weights,
# beyond which descent of a logistic loss swings, and the clip norm in units of a record's usual
# norm with its intercept.
SCORE_NOISE, SCORE_STEP, SCORE_CLIP = 2.25, 40.0, 0.25
STEP_WEIGHTS = 100
# Declared ranges overstate the norm, most often by a factor of two, and paths for declared norms
# allow for that. Where the norm is released: the noise in a score against that, and the clip norm
# in units of a record's norm, on short paths and on long ones.
RELEASED_SHORT, RELEASED_LONG = (0.7, SCORE_CLIP), (0.42, 0.5)
FEATURES = 50  # how many have that noise
# Of more features than these the sixth root of score_noise says nothing: features of images, 3,969
# or 16,384 of them, want the same noise.
MOST_FEATURES = 1_000
WASTE = 0.1
BATCH = 256
EPOCHS_LIMIT = 30.0
# Error of a private mean, in units of half the declared range, and the most that it may cost.
PRECISION, PREPARATION = 0.01, 0.1
# A mean's error, in units of the declared norm, that is not worth having.
LEAST_CENTRE = math.sqrt(3.0)


@dataclass(frozen=True)
class CentringChoice:
    """The centring of a linear model's features.

    Args:
        error: of the means, in units of the declared norm: better is not worth paying for.
        share: of the budget's μ², the most that is paid.
        path, norm: on a path longer than this, in units of a score, features are scaled to this
            norm beside an intercept of 1, so that thresholds are learnt; else they would be noise.
        statistics: what is released.
    """

    error: float
    share: float
    path: float
    norm: float
    statistics: tuple[Statistic, ...]


# What stands beside a table's numbers, and where they lie in their ranges: from public numbers.
#
# A basis has more weights, and noise grows with their number: it is taken where records times μ are
# many against it: sooner for hats, which bend each number by itself, than for Fourier features,
# which see all at once. Where numbers lie is released as shares of halves, quarters, … of their
# ranges, to :data:`RANGE_ERROR` of the records, for at most :data:`RANGES` of the budget's μ².
# Where noise is larger the last of these are left out: a range ten times too wide shows in the
# first four.


HATS, WAVES = 8, 300
RANGES, RANGE_ERROR = 0.1, 0.002
# Bins of a range, and the noise of a share beyond which they say less than the declaration does.
RANGE_BINS = {256: 0.03, 16: 0.06}
# Records times μ, for each weight, that hats want, and that waves want beside them.
HATS_SIGNAL, WAVES_SIGNAL = 0.3, 1.5


def basis_for(
    examples: int, budget: Budget | None, features: int, numbers: int, classes: int
) -> tuple[BasisName, str]:
    """The basis that suits a table's sizes, and why.

    Args:
        features: encoded, of which so many are ``numbers``. classes: of the label.
    """
    if budget is None or not numbers:
        return "none", ""
    outputs = 1 if classes <= 2 else classes  # two classes share their weights' signal
    each = examples * budget_mu(budget) / outputs
    hats = features + HATS * numbers
    if (hats + WAVES) * WAVES_SIGNAL <= each:
        return "both", f"{hats + WAVES} features are few for {examples:,} records at this ε"
    if hats * HATS_SIGNAL <= each:
        return "hats", f"{hats} features are few for {examples:,} records at this ε"
    return "none", f"{hats} features would be many for {examples:,} records at this ε"


def ranges_release(
    examples: int, budget: Budget, numbers: int, sensitivity: float = 1.0, wanted: bool = False
) -> tuple[int, float] | None:
    """Bins and σ of the shares that say where numbers lie; None: not worth their price.

    Args:
        sensitivity: how far a record moves their sum, in norms: 2 where one takes another's place.
        wanted: whatever they are worth.
    """
    least = sensitivity * least_preparation_noise(budget, 1, RANGES)
    for bins, worst in RANGE_BINS.items():
        unit = math.sqrt(math.log2(bins) * numbers) / examples  # of a share, for σ = 1
        sigma = max(RANGE_ERROR / unit, least)
        if sigma * unit <= worst:
            return bins, sigma
    return (bins, sigma) if wanted else None


# Features of images have much the norm that is declared: only their means are released.
OF_IMAGES = CentringChoice(0.2, PREPARATION, 1000.0, 3.0, ("means",))
_OF_TABLES = CentringChoice(0.1, 0.15, 450.0, 2.0, ("means", "norms"))
# Records in a group on which an inner algorithm runs.
GROUP = 32
# Records in a step of an inner algorithm that is given by name.
INNER_STEP = 8
# When nobody says how large the model is: a large linear model or a small network.
PARAMETERS = 10_000


def groups_for(batch: float) -> int:
    """The number of groups of :data:`GROUP` records that a batch is dealt into, at least one."""
    return max(1, round(batch / GROUP))


def least_preparation_noise(budget: Budget, releases: float, share: float = PREPARATION) -> float:
    """σ of so many releases at which all of them spend this share of the budget's μ²."""
    return math.sqrt(releases / share) / budget_mu(budget)


def default_delta(examples: int) -> float:
    """δ when only ε is given: 1/(10 N), well below the 1/N at which one record may be leaked."""
    return 1 / (10 * examples)


@lru_cache(maxsize=256)
def budget_mu(budget: Budget) -> float:
    """The μ for which a Gaussian mechanism just meets the budget (Dong et al. 2022)."""
    return gaussian_mu(budget.epsilon, budget.delta)


@lru_cache(maxsize=8)
def _allowed_x(waste: float) -> float:
    """The x = μ²/(q² T) at which ν is 1 + ``waste`` times its limit: √(x/log(1 + x)) times."""
    return float(brentq(lambda x: math.sqrt(x / math.log1p(x)) - 1 - waste, 1e-9, 1e6))


def _signal(examples: int, parameters: int, mu: float, rounds: float, rate: float) -> float:
    """1/ν by the central limit theorem."""
    inverse_sigma = math.sqrt(math.log1p(mu**2 / (rate**2 * rounds)))
    return math.sqrt(rounds / parameters) * rate * examples * inverse_sigma


def score_noise(classes: int, features: int | None = None) -> float:
    """Deviation of noise that each score of a linear model may carry.

    A record goes wrong where the loudest of K − 1 rivals' scores is, and the largest of so many
    normal numbers grows as √log K: with more classes each score may carry less. The root of that
    lies between what ten and twenty classes want where noise is strong and where it is weak. Few
    features tend to be of unequal use, which takes a longer path to find, many rare ones are best
    told apart by their means, which takes a short one: the sixth root is what the sets that were
    looked at (experiments/defaults/sets.py) want; beyond :data:`MOST_FEATURES` it is left alone.
    """
    of_features = (
        1.0 if features is None else math.pow(FEATURES / min(features, MOST_FEATURES), 1 / 6)
    )
    of_classes = math.pow(math.log(2) / math.log(max(2, classes)), 1 / 4)
    return SCORE_NOISE * of_features * of_classes


def centring(images: bool) -> CentringChoice:
    """The rule for fixed features of images, or for columns of tables."""
    return OF_IMAGES if images else _OF_TABLES


@dataclass(frozen=True)
class ScoreRule:
    """The consequences for a linear model of the noise that its scores may carry.

    Args:
        noise: deviation in each score. clip: clip norm in units of a record's usual norm.
        long: whether the budget pays for a path on which thresholds are learnt.
    """

    noise: float
    clip: float
    long: bool


def score_rule(
    examples: int,
    budget: Budget | None,
    classes: int,
    features: int | None,
    images: bool,
    *,
    released: bool,
) -> ScoreRule:
    """The rule for features whose norm is declared, or ``released`` with the means.

    Args:
        images: whether they are fixed features of images.
    """
    declared = score_noise(classes, features)
    long = budget is not None and declared * budget_mu(budget) * examples > centring(images).path
    if not released:
        return ScoreRule(declared, SCORE_CLIP, long)
    factor, clip = RELEASED_LONG if long else RELEASED_SHORT
    # Around means and a norm that are known more classes bear more noise, not less.
    return ScoreRule(declared * factor * math.sqrt(math.log2(max(2, classes))), clip, long)


def linear_clip(feature_norm: float, share: float = SCORE_CLIP) -> float:
    """Clip norm for a linear model whose features, an intercept beside them, have a usual norm."""
    return share * math.hypot(feature_norm, 1.0)


class Trained(NamedTuple):
    """The model that is trained, as the rules of choice count it.

    Args:
        parameters: how many weights. feature_norm: usual norm of a record's features, where the
            model is linear. scores: noise that each of its scores may carry, :func:`score_noise`.
    """

    parameters: int = PARAMETERS
    feature_norm: float | None = None
    scores: float = SCORE_NOISE

    @property
    def noise(self) -> float:
        """The norm of noise in the weights that a path may leave."""
        if self.feature_norm is None:
            return NOISE
        return self.scores * math.sqrt(self.parameters) / self._usual(self.feature_norm)

    @property
    def step(self) -> float:
        """The weights' longest step in a round, in clip norms."""
        if self.feature_norm is None:
            return STEP
        return longest_score_step(self.parameters) / self._usual(self.feature_norm)

    def _usual(self, feature_norm: float) -> float:
        return math.hypot(feature_norm, 1.0)  # the bias is a feature, too


# Of a size that nobody says.
UNKNOWN = Trained()


def longest_rate(plan: Plan, parameters: int, feature_norm: float | None = None) -> float:
    """The largest η of a plan, beyond which its steps along newest gradients would swing.

    Args:
        parameters: how many are trained. feature_norm: usual norm of a linear model's features.
    """
    return Trained(parameters, feature_norm).step / plan.clip.norm


def longest_rate_of_squares(feature_norm: float, momentum: float = 0.0) -> float:
    """The largest η along the squared error (y − θ·x)², whose curvature is 2 x xᵀ.

    Steps swing from 1/‖x‖² on where all features lie along one direction. Three quarters of it
    leave room for records of larger norm. Chosen on the first tables of experiments/newcomer, where
    shorter steps did not arrive and longer ones gained little.

    Args:
        feature_norm: usual norm ‖x‖ of a linear model's features. momentum: of torch's SGD.
    """
    return 0.75 * (1 - momentum) / (feature_norm**2 + 1.0)


def longest_score_step(parameters: int) -> float:
    """The longest step a round of a linear model, in units of a score.

    A step swings where it is long against the largest curvature. That is the usual squared norm of
    a record's features where all of them lie along one direction, and a d-th of it where they are
    spread over d: the root of the number lies between.
    """
    return SCORE_STEP * math.sqrt(max(1.0, parameters / STEP_WEIGHTS))


def _enough(examples: int, model: Trained, mu: float, rounds: float, rate: float) -> float:
    """The smallest rate, up to ``rate``, that has twice the signal the longest path can use."""
    wanted = 2 * rounds * model.step / model.noise

    def excess(log_rate: float) -> float:
        signal = _signal(examples, model.parameters, mu, rounds, math.exp(log_rate))
        return signal - wanted

    most, least = math.log(rate), math.log(rate) - 60
    if excess(most) <= 0:
        return rate
    return math.exp(float(brentq(excess, least, most))) if excess(least) < 0 else math.exp(least)


def _batch(examples: int, rate: float) -> int:
    return min(examples, max(1, math.ceil(min(rate, 1.0) * examples)))


def batch_for_rounds(examples: int, budget: Budget, rounds: int, model: Trained = UNKNOWN) -> int:
    """The batch for a given number of rounds: as large as it pays, see the module's text.

    Returns:
        Between 1 and ``examples``.
    """
    mu = budget_mu(budget)
    rate = min(1.0, mu / math.sqrt(_allowed_x(WASTE) * rounds))
    rate = _enough(examples, model, mu, rounds, rate)
    rate = min(max(rate, 1 / rounds, BATCH / examples), max(EPOCHS_LIMIT, 1.0) / rounds)
    # The limit of passes is about time, and the smallest sensible batch takes none.
    return _batch(examples, max(rate, min(BATCH, examples) / examples))


def batch_of_image_features(examples: int, rounds: int) -> int:
    """The batch for linear models on fixed features of images: all passes that are taken at most.

    Such features are computed once and kept, so that a pass is one product of matrices: there is no
    reason to leave :data:`WASTE` of the signal in the noise.

    Returns:
        Between 1 and ``examples``.
    """
    least = min(BATCH, examples) / examples
    return _batch(examples, max(EPOCHS_LIMIT / rounds, 1 / rounds, least))


def batch_for_epochs(examples: int, budget: Budget, epochs: float) -> int:
    """The batch for a given number of passes: the most rounds that their batches do not waste.

    At least :data:`FEWEST_ROUNDS`, even where the batch then is below :data:`BATCH`.

    Returns:
        Between 1 and ``examples``.
    """
    rate = budget_mu(budget) ** 2 / (_allowed_x(WASTE) * epochs)
    rate = min(max(rate, BATCH / examples), epochs / FEWEST_ROUNDS)
    return _batch(examples, rate)


def rounds_for_batch(examples: int, budget: Budget, batch: int) -> int:
    """As many rounds as the batch serves without waste: between :data:`ROUNDS` and the limit."""
    rate = batch / examples
    useful = budget_mu(budget) ** 2 / (_allowed_x(WASTE) * rate**2)
    return max(FEWEST_ROUNDS, round(min(max(useful, ROUNDS), EPOCHS_LIMIT / rate)))


def batch_for_noise(examples: int, budget: Budget, noise_multiplier: float) -> int:
    """The batch for which the budget lasts about :data:`ROUNDS` rounds at a given σ."""
    spread = math.sqrt(ROUNDS * math.expm1(min(1 / noise_multiplier**2, 700)))
    return _batch(examples, budget_mu(budget) / spread)


def path_length(plan: Plan, model: Trained = UNKNOWN) -> float:
    """The distance, in all, that the data's part of the steps may carry the weights.

    As far as leaves noise of norm :data:`NOISE` in them, but at most :data:`STEP` a round; with a
    linear model's ``feature_norm``, as far as leaves ``scores`` in each score.
    """
    most = model.step * plan.rounds
    ratio = noise_to_signal(plan, model.parameters)
    return most if ratio * most <= model.noise else model.noise / ratio


def learning_rate(plan: Plan, model: Trained = UNKNOWN, momentum: float = 0.0) -> float:
    """η for which the plan's rounds, contributions of norm C, follow :func:`path_length`.

    With momentum m the weights have moved by η (T − m (1 − mᵀ)/(1 − m))/(1 − m) unit steps.

    Args:
        plan: all but its optimizer. model: what is trained. momentum: of torch's SGD, below 1.
    """
    rounds = plan.rounds
    lag = momentum * (1 - momentum**rounds) / (1 - momentum)
    length = path_length(plan, model)
    return length * (1 - momentum) / ((rounds - lag) * plan.clip.norm)
