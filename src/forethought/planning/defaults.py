"""The planner's rules for the numbers that the user leaves out, and their reasons."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import scipy  # scipy.signal loads at first use, since it takes half a second
from scipy.optimize import brentq, minimize

from forethought.accounting.dominating_pair import gaussian_mu
from forethought.accounting.theorems import sensitivity_over_turns
from forethought.options import BasisName
from forethought.values.mechanism import Budget, Correlated, Rounds
from forethought.values.plan import Plan, Statistic
from forethought.values.strategies import Array, Banded, BufferedToeplitz, Strategy
from forethought.values.use import USUAL_RATE, kind_of

# Strategies of correlated noise for a workload: the least error for the same guarantee.
#
# The optimizer's linear map from noised sums to weights is a workload A, lower triangular and
# Toeplitz: prefix sums for plain SGD, sums of momentum's running sums for SGD with momentum. Noise
# σC⁻¹z reaches the weights as σAC⁻¹z, and σ is proportional to the strategy's sensitivity, so the
# error to minimise is
#
#     sensitivity(C)² · (1/n) ‖AC⁻¹‖²_F,
#
# the mean over the rounds of the squared error of a coordinate (Denisov et al. 2022, Equation 2;
# Choquette-Choo et al. 2023, Section 3). Nothing here needs the data.


# More bands cost memory and gain little.
MOST_BANDS = 64
# Longer runs get the strategy of this number of rounds: the best one hardly changes from there.
LONGEST = 4096
BUFFERS = 3
INDEPENDENT = Banded((1.0,))


def workload(count: int, momentum: float = 0.0) -> Array:
    """The first column of A: the weight of a round's sum in the weights 0, 1, … rounds later.

    Returns:
        Shape (count,).
    """
    impulse = np.zeros(count)
    impulse[0] = 1
    return np.asarray(np.cumsum(scipy.signal.lfilter([1.0], [1.0, -momentum], impulse)))


def error(strategy: Strategy, count: int, separation: int, momentum: float = 0.0) -> float:
    """The root mean square of the noise in the weights at unit ε, in units of the clip norm.

    Only comparable with strategies for the same participation.

    Args:
        count: number of rounds. separation: rounds from one turn of a record to its next.
        momentum: of torch's SGD.
    """
    return sensitivity_over_turns(strategy, count, separation) * math.sqrt(
        _mean_square(strategy, count, momentum)
    )


def gain(strategy: Strategy, count: int, momentum: float = 0.0) -> float:
    """The noise in the weights over that of independent noise with the same noise multiplier."""
    own = _mean_square(strategy, count, momentum)
    return math.sqrt(own / _mean_square(INDEPENDENT, count, momentum))


@lru_cache(maxsize=64)
def banded(bands: int, count: int, separation: int, momentum: float = 0.0) -> Banded:
    """The strategy of ``bands`` bands with the least :func:`error`, found by L-BFGS-B.

    The search starts at the banded square root of the prefix sums (Kalinin and Lampert 2024).

    Args:
        bands: reduced to ``separation``, so that a record's turns do not overlap.
        count, separation, momentum: as for :func:`error`.
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
        # d through / d c_j is −(through C⁻¹), shifted by j.
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
    """The strategy of ``buffers`` buffers with the least :func:`error` found by L-BFGS-B."""
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
    """The strategy with the least error among independent, banded and buffered noise.

    Args:
        count, separation, momentum: as for :func:`error`.
        sampled: whether records are sampled in their turns; only bands are proven for this.

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
    """The mean square (1/n) ‖AC⁻¹‖²_F."""
    below: Any = [1.0]
    if isinstance(strategy, Banded):
        above: Any = strategy.coefficients
    else:
        # The power series of C is 1 + x Σ w_j/(1 − d_j x), a quotient of short polynomials.
        below = np.poly(strategy.decays)
        above = below.copy()
        for place, weight in enumerate(strategy.weights):
            above[1:] += weight * np.poly(strategy.decays[:place] + strategy.decays[place + 1 :])
    column = scipy.signal.lfilter(below, above, workload(count, momentum))  # the first of AC⁻¹
    return float(_weights(count) @ column**2)


def _weights(count: int) -> Array:
    """The number of times that a Toeplitz matrix has each entry of its first column, over n."""
    return np.asarray(1 - np.arange(count) / count)


# The noise-to-signal ratio of a plan: the predicted utility, without data.


def noise_to_signal(plan: Plan, parameters: int = 1) -> float:
    """The noise in the weights over the whole run, over the largest possible signal.

    Round t adds N(0, σ_t² C² I_d) to a sum of at most B_t contributions of norm C, and divides by
    B_t. Over the run the noise has norm √(Σ (σ_t/B_t)²) C √d and the contributions at most T C, so
    the ratio is √(d Σ (σ_t/B_t)²) / T; with equal rounds σ √d / (B √T). Group clipping counts
    groups, not records. A preparation of the data adds no noise to the weights and is left out.
    Correlated noise counts as independent noise that leaves the same mean square in the weights,
    under the plan's momentum.

    Args:
        plan: the plan. parameters: d, the number of trained parameters; 1 compares plans for
            the same model.
    """
    momentum = plan.optimizer.momentum
    parts = plan.privacy.mechanism.rounds
    noise = math.fsum(part.count * _of_a_round(plan, part, momentum) ** 2 for part in parts)
    return math.sqrt(parameters * noise) / plan.rounds


def _of_a_round(plan: Plan, part: Rounds, momentum: float) -> float:
    """The noise of one round's mean, in clipping norms."""
    signal = plan.contribution.expected(part.sampling.expected_batch(plan.examples))
    # The share of the noise that correlation leaves in the weights.
    left = gain(part.strategy, part.count, momentum) if isinstance(part, Correlated) else 1.0
    return part.noise_multiplier * left / signal


def weight_noise(plan: Plan) -> float | None:
    """An upper bound on the standard deviation of the noise in each weight after the whole run.

    The bound would be reached if no later step reduced the noise. Gradient descent of a convex loss
    with steps that do not oscillate only reduces it, and so do averages and falling step sizes.

    Returns:
        None for optimizers that are no gradient descent, for groups with an algorithm inside, for
        gradient filters, and where clip norms depend on records.
    """
    optimizer, clip = plan.optimizer, plan.clip
    plain = plan.local is None and plan.gradient_filter is None and clip.rule != "quantile"
    if not (plain and kind_of(optimizer.name).descends):
        return None
    longest = optimizer.learning_rate / (1 - optimizer.momentum)
    return longest * plan.rounds * max(clip.norm, clip.final or 0.0) * noise_to_signal(plan)


def gradient_computations(plan: Plan) -> float:
    """The expected number of per-example gradients that the whole run computes.

    An inner algorithm computes one for each record in each of its passes. A function of the user's
    own counts as one pass, since its work is not known.
    """
    return plan.epochs * plan.examples * (1 if plan.local is None else plan.local.passes)


# Step sizes of Adam and similar optimizers under noise: gradient descent's times their divisor.
#
# Where noise of variance φ is larger than the gradients, Adam's second moment is φ in every
# coordinate, so a step is that of gradient descent with an averaged gradient divided by √φ (Tang,
# Shpilevskiy and Lécuyer 2023: "DP-Adam is actually DP-SGD"). So the planner's η for gradient
# descent corresponds to η√φ for Adam. With the noise subtracted (their DP-AdamBC) such a coordinate
# is divided by the root of the floor instead. φ is public, so no record is used.


# The largest step size for a network about which nothing is known. Chosen on the small language
# models of experiments/large_models, where it is near the best in three of four columns; not tested
# on other models.
UNTRIED_RATE = 0.01


def adaptive_rate(plan: Plan, optimizer: str, options: Mapping[str, Any], rate: float) -> float:
    """The step size with which an optimizer moves as far as gradient descent with ``rate``.

    Args:
        plan: the plan; its own optimizer is not used. optimizer, options: the optimizer.
        rate: step size of gradient descent without momentum.

    Returns:
        At least :data:`~forethought.values.use.USUAL_RATE`; exactly that without noise, under
        correlated noise, and for optimizers with an unknown divisor.
    """
    divides = kind_of(optimizer).divides
    if divides is None or plan.privacy.mechanism.correlated:
        return USUAL_RATE
    divided = divides(_variance(plan), options, plan.rounds)
    return max(USUAL_RATE, rate * math.sqrt(divided))


def _variance(plan: Plan) -> float:
    """The mean over the rounds of the variance of the noise on a coordinate of a mean."""
    index, variance = 0, 0.0
    for part in plan.privacy.mechanism:  # rounds within Adam's memory (β₂) differ little
        variance += part.count * plan.round(index).mean_variance / plan.rounds
        index += part.count
    if plan.gradient_filter is not None:
        variance *= plan.gradient_filter.noise_left(plan.rounds)
    return variance


# The rules use the number of records, the number of parameters and the budget; never the data.
# Notation: N records, p parameters, rate q, T rounds, noise multiplier σ, clip norm C, μ the
# Gaussian-DP parameter that the budget is worth. docs/defaults.md has the reasoning and the
# figures.
#
# - *Noise-to-signal ratio.* Over the run the norm of the noise in the weights, over the length of
#   the path that the data's part of the steps can take, is ν = σ √(p/T)/(q N)
#   (:func:`forethought.planning.defaults.noise_to_signal`). No plan gets below √p/(μ N).
# - *Step size.* A path of length L leaves noise of norm ν L in the weights. L is chosen so that
#   this norm is :data:`NOISE`, with at most :data:`STEP` clip norms per round. For a linear model
#   whose features have a known norm R the noise in its scores decides, ν L √(R² + 1)/√p: L is
#   chosen so that this is :func:`score_noise`. Scaling the features then scales the weights and
#   changes nothing else. For a network that could be tried
#   (:mod:`forethought.planning.plan_request`) the norm is the noise that it tolerates, which
#   :attr:`~forethought.planning.plan_request.PlanRequest.size` converts into a number of weights.
# - *Rounds.* With σ/q near its limit ν does not depend on T, and from 50 rounds on accuracy does
#   not either: :data:`ROUNDS`. A network takes more rounds where its steps would be longer than
#   :data:`DIVIDED_STEP`, in as many passes.
# - *Batch.* ν falls with q towards its limit. A larger batch never costs accuracy, only gradients:
#   the batch is the smallest whose ν is within :data:`WASTE` of the limit, or half of what the
#   longest path can use. At least :data:`BATCH` (a smaller one saves no time), at least one pass,
#   at most :data:`EPOCHS_LIMIT` passes.
# - *Clipping.* Automatic normalisation (Bu et al. 2022): there is no norm to tune. For a linear
#   model of known R flat clipping, at :data:`SCORE_CLIP` of the usual norm of a feature vector with
#   its intercept. While a record's label is uncertain its contribution is as large as under
#   normalisation. It falls once the label is predicted well, and a wrong label counts no more than
#   an uncertain one. So intercept and weights are balanced at scores of about 1, where
#   normalisation needs 5.
# - *Averaging, schedule.* The exponential average of the iterates removes most of the noise of the
#   last rounds, so a constant step size does as well as a decaying one.
#
# Poisson sampling's central limit theorem (Bu et al. 2020), μ = q √(T (e^(1/σ²) − 1)), is accurate
# enough for these choices; the noise itself is always calibrated exactly.


ROUNDS = 200
FEWEST_ROUNDS = 50
NOISE = 30.0
STEP = 30.0
# Longer steps of a network are divided into more rounds, up to so many, where nobody gave their
# number. Chosen on perceptrons and LeNet-5 (experiments/defaults/epochs.md).
DIVIDED_STEP, MOST_DIVIDED = 8.0, 1_000
# The factor on that noise, in a network's weights or a linear model's scores, where the outputs are
# values in [−1, 1] and not scores of classes: every prediction then shows the noise. Chosen on the
# first tables of experiments/tables/values.py.
OF_VALUES = 0.1
# For a linear model with features of known norm: standard deviation of the noise in the scores of
# two classes; the longest step per round, in units of a score, of a model of up to STEP_WEIGHTS
# weights (longer steps make the descent of a logistic loss oscillate); and the clip norm in units
# of a record's usual norm with its intercept.
SCORE_NOISE, SCORE_STEP, SCORE_CLIP = 2.25, 40.0, 0.25
STEP_WEIGHTS = 100
# Declared ranges overstate the norm, most often by a factor of two, and the rules for declared
# norms allow for that. Where the norm is released: the factor on the noise in a score, and the clip
# norm in units of a record's norm, on short paths and on long ones.
RELEASED_SHORT, RELEASED_LONG = (0.7, SCORE_CLIP), (0.42, 0.5)
FEATURES = 50  # number of features for which SCORE_NOISE holds
# Larger numbers count as this one in :func:`score_noise`: 3,969 and 16,384 features of images need
# the same noise.
MOST_FEATURES = 1_000
WASTE = 0.1
BATCH = 256
EPOCHS_LIMIT = 30.0
# Error of a private mean, in units of half the declared range, and the largest share of the
# budget's μ² that the preparation may cost.
PRECISION, PREPARATION = 0.01, 0.1
# Means with a larger error, in units of the declared norm, are not released.
LEAST_CENTRE = math.sqrt(3.0)


@dataclass(frozen=True)
class CentringChoice:
    """The rule for centring a linear model's features.

    Args:
        error: the wanted error of the means, in units of the declared norm.
        share: largest share of the budget's μ² that the release may cost.
        path, norm: on a path longer than ``path``, in units of a score, features are scaled to
            ``norm`` beside an intercept of 1, so that the intercept is learnt; on a shorter path it
            would be mostly noise.
        statistics: the statistics to release.
    """

    error: float
    share: float
    path: float
    norm: float
    statistics: tuple[Statistic, ...]


# The basis functions that are added to a table's numbers, and the release of their ranges: both are
# chosen from public numbers.
#
# A basis adds weights, and noise grows with their number: it is used where records times μ are many
# per weight. Hat functions, one set for each number, need fewer records than Fourier features,
# which depend on all numbers at once. The shares of records in halves, quarters, … of the declared
# ranges are released with an error of :data:`RANGE_ERROR`, for at most :data:`RANGES` of the
# budget's μ². Where the noise is too large for 256 bins, 16 are used: the first four halvings are
# enough to recognise a range that is ten times too wide.


HATS, WAVES = 8, 300
RANGES, RANGE_ERROR = 0.1, 0.002
# Number of bins → largest noise of a share at which the release is still better than the declared
# range alone.
RANGE_BINS = {256: 0.03, 16: 0.06}
# Records times μ, per weight, needed for hat functions, and for Fourier features with them.
HATS_SIGNAL, WAVES_SIGNAL = 0.3, 1.5


def basis_for(
    examples: int, budget: Budget | None, features: int, numbers: int, classes: int
) -> tuple[BasisName, str]:
    """The basis for a table, and the reason for it.

    Args:
        features: number of encoded features. numbers: how many of them are numbers.
        classes: number of classes of the label.
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
    """The number of bins and σ of the release of ranges; None: not worth its cost.

    Args:
        numbers: number of columns that have a range.
        sensitivity: in units of a record's norm: 2 where one record replaces another.
        wanted: return bins and σ even where the release is not worth its cost.
    """
    least = sensitivity * least_preparation_noise(budget, 1, RANGES)
    for bins, worst in RANGE_BINS.items():
        unit = math.sqrt(math.log2(bins) * numbers) / examples  # of a share, for σ = 1
        sigma = max(RANGE_ERROR / unit, least)
        if sigma * unit <= worst:
            return bins, sigma
    return (bins, sigma) if wanted else None


# Fixed features of images have about the declared norm, so only their means are released.
OF_IMAGES = CentringChoice(0.2, PREPARATION, 1000.0, 3.0, ("means",))
_OF_TABLES = CentringChoice(0.1, 0.15, 450.0, 2.0, ("means", "norms"))
# Number of records of a group on which an inner algorithm runs.
GROUP = 32
# Number of records of a step of an inner algorithm that is given by name.
INNER_STEP = 8
# The number of weights where it is not given: a large linear model or a small network.
PARAMETERS = 10_000


def least_preparation_noise(budget: Budget, releases: float, share: float = PREPARATION) -> float:
    """The σ at which ``releases`` releases together spend ``share`` of the budget's μ²."""
    return math.sqrt(releases / share) / budget_mu(budget)


def default_delta(examples: int) -> float:
    """The default δ, 1/(10 N): well below 1/N, at which publishing a random record is allowed."""
    return 1 / (10 * examples)


@lru_cache(maxsize=256)
def budget_mu(budget: Budget) -> float:
    """The Gaussian-DP parameter μ that corresponds to the budget (Dong et al. 2022)."""
    return gaussian_mu(budget.epsilon, budget.delta)


@lru_cache(maxsize=8)
def _allowed_x(waste: float) -> float:
    """The x = μ²/(q² T) with √(x/log(1 + x)) = 1 + ``waste``, that is, ν over its limit."""
    return float(brentq(lambda x: math.sqrt(x / math.log1p(x)) - 1 - waste, 1e-9, 1e6))


def score_noise(classes: int, features: int | None = None) -> float:
    """The standard deviation of noise that each score of a linear model may have.

    A record is misclassified if the largest of the K − 1 other scores exceeds its own, and the
    largest of K normal numbers grows as √log K: with more classes each score may have less noise.
    The root of that factor is used, between the best values for ten and twenty classes under strong
    and weak noise. With few features their weights differ much and need a longer path; with many
    rare features the class means are enough, on a short path. The sixth root fits the development
    sets (experiments/defaults/sets.py); from :data:`MOST_FEATURES` on it stays constant.

    Args:
        classes: number K of classes. features: number of features; None: :data:`FEATURES`.
    """
    of_features = (
        1.0 if features is None else math.pow(FEATURES / min(features, MOST_FEATURES), 1 / 6)
    )
    of_classes = math.pow(math.log(2) / math.log(max(2, classes)), 1 / 4)
    return SCORE_NOISE * of_features * of_classes


def centring(images: bool) -> CentringChoice:
    """The centring rule for fixed features of images, or for columns of tables."""
    return OF_IMAGES if images else _OF_TABLES


@dataclass(frozen=True)
class ScoreRule:
    """The rule for a linear model's path and clipping.

    Args:
        noise: standard deviation of the noise in each score, at which the path ends.
        clip: clip norm in units of a record's usual norm.
        long: whether the budget allows a path on which the intercept is learnt.
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
    """The rule for a linear model's path and clipping, from public numbers.

    Args:
        images: whether the features are fixed features of images.
        released: whether their norm is released with the means; otherwise it is declared.
    """
    declared = score_noise(classes, features)
    long = budget is not None and declared * budget_mu(budget) * examples > centring(images).path
    if not released:
        return ScoreRule(declared, SCORE_CLIP, long)
    factor, clip = RELEASED_LONG if long else RELEASED_SHORT
    # With known means and norm, more classes tolerate more noise, not less.
    return ScoreRule(declared * factor * math.sqrt(math.log2(max(2, classes))), clip, long)


class Trained(NamedTuple):
    """The facts about the trained model that the rules use.

    Args:
        parameters: number of weights. feature_norm: usual norm of a record's features; None: the
            model is not linear or the norm is unknown. scores: standard deviation of the noise
            that each of its scores may have, :func:`score_noise`.
    """

    parameters: int = PARAMETERS
    feature_norm: float | None = None
    scores: float = SCORE_NOISE

    @property
    def noise(self) -> float:
        """The norm of the noise that a path may leave in the weights."""
        if self.feature_norm is None:
            return NOISE
        return self.scores * math.sqrt(self.parameters) / self._usual(self.feature_norm)

    @property
    def step(self) -> float:
        """The longest step of the weights in a round, in clip norms."""
        if self.feature_norm is None:
            return STEP
        # Steps that are too long for the largest curvature oscillate. It is the usual squared norm
        # of a record's features where all of them lie along one direction, and 1/d of it where they
        # are spread over d directions: a factor of √d on the step lies between the two.
        longest = SCORE_STEP * math.sqrt(max(1.0, self.parameters / STEP_WEIGHTS))
        return longest / self._usual(self.feature_norm)

    def _usual(self, feature_norm: float) -> float:
        return math.hypot(feature_norm, 1.0)  # the intercept counts as a feature of size 1


# A model of unknown size.
UNKNOWN = Trained()


def longest_rate_of_squares(feature_norm: float, momentum: float = 0.0) -> float:
    """The largest η for the squared error (y − θ·x)², whose curvature is 2 x xᵀ.

    Steps above 1/‖x‖² oscillate where all features lie along one direction. Three quarters of that
    leave room for records of larger norm. Chosen on the first tables of experiments/newcomer, where
    shorter steps did not converge in time and longer ones gained little.

    Args:
        feature_norm: usual norm ‖x‖ of a linear model's features. momentum: of torch's SGD.
    """
    return 0.75 * (1 - momentum) / (feature_norm**2 + 1.0)


def _signal(examples: int, model: Trained, mu: float, rounds: float, rate: float) -> float:
    """The signal-to-noise ratio 1/ν by the central limit theorem."""
    inverse_sigma = math.sqrt(math.log1p(mu**2 / (rate**2 * rounds)))
    return math.sqrt(rounds / model.parameters) * rate * examples * inverse_sigma


def _enough(examples: int, model: Trained, mu: float, rounds: float, rate: float) -> float:
    """The smallest rate, up to ``rate``, with twice the signal that the longest path can use."""
    wanted = 2 * rounds * model.step / model.noise

    def excess(log_rate: float) -> float:
        return _signal(examples, model, mu, rounds, math.exp(log_rate)) - wanted

    most, least = math.log(rate), math.log(rate) - 60
    if excess(most) <= 0:
        return rate
    return math.exp(float(brentq(excess, least, most))) if excess(least) < 0 else math.exp(least)


def rounds_of_short_steps(examples: int, budget: Budget, epochs: float, model: Trained) -> float:
    """The number of rounds in which so many passes have steps of :data:`DIVIDED_STEP`.

    At most :data:`MOST_DIVIDED`, in batches of at least :data:`BATCH`; 1 where one is no longer.
    """

    def excess(log_rounds: float) -> float:
        rounds = math.exp(log_rounds)
        signal = _signal(examples, model, budget_mu(budget), rounds, epochs / rounds)
        return model.noise * signal / rounds - DIVIDED_STEP

    most = math.log(max(1.0, min(MOST_DIVIDED, epochs * examples / BATCH)))
    if excess(0) <= 0:
        return 1.0
    return math.exp(float(brentq(excess, 0, most)) if excess(most) < 0 else most)


def _batch(examples: int, rate: float) -> int:
    return min(examples, max(1, math.ceil(min(rate, 1.0) * examples)))


def batch_for_rounds(examples: int, budget: Budget, rounds: int, model: Trained = UNKNOWN) -> int:
    """The batch size for a given number of rounds, by the rule *Batch* above.

    Returns:
        Between 1 and ``examples``.
    """
    mu = budget_mu(budget)
    rate = min(1.0, mu / math.sqrt(_allowed_x(WASTE) * rounds))
    rate = _enough(examples, model, mu, rounds, rate)
    rate = min(max(rate, 1 / rounds, BATCH / examples), max(EPOCHS_LIMIT, 1.0) / rounds)
    # The limit of passes saves time, and below BATCH no time is saved.
    return _batch(examples, max(rate, min(BATCH, examples) / examples))


def batch_of_image_features(examples: int, rounds: int) -> int:
    """The batch size for linear models on fixed features of images: that of EPOCHS_LIMIT passes.

    Such features are computed once and kept, so that a pass is one product of matrices and costs
    little: there is no reason to accept noise of :data:`WASTE` above the limit.

    Returns:
        Between 1 and ``examples``.
    """
    least = min(BATCH, examples) / examples
    return _batch(examples, max(EPOCHS_LIMIT / rounds, 1 / rounds, least))


def batch_for_epochs(examples: int, budget: Budget, epochs: float) -> int:
    """The batch size for a given number of passes: as many rounds as waste no noise.

    There are at least :data:`FEWEST_ROUNDS`, even where the batch is then below :data:`BATCH`.

    Returns:
        Between 1 and ``examples``.
    """
    rate = budget_mu(budget) ** 2 / (_allowed_x(WASTE) * epochs)
    return _batch(examples, min(max(rate, BATCH / examples), epochs / FEWEST_ROUNDS))


def rounds_for_batch(examples: int, budget: Budget, batch: int) -> int:
    """The number of rounds for a given batch size: as many as waste no noise.

    At least :data:`FEWEST_ROUNDS`; otherwise from :data:`ROUNDS` up to :data:`EPOCHS_LIMIT` passes.
    """
    rate = batch / examples
    useful = budget_mu(budget) ** 2 / (_allowed_x(WASTE) * rate**2)
    return max(FEWEST_ROUNDS, round(min(max(useful, ROUNDS), EPOCHS_LIMIT / rate)))


def batch_for_noise(examples: int, budget: Budget, noise_multiplier: float) -> int:
    """The batch size for which the budget lasts about :data:`ROUNDS` rounds at a given σ."""
    spread = math.sqrt(ROUNDS * math.expm1(min(1 / noise_multiplier**2, 700)))
    return _batch(examples, budget_mu(budget) / spread)


def path_length(plan: Plan, model: Trained = UNKNOWN) -> float:
    """The total length of the path that the data's part of the steps may take, in clip norms.

    It leaves noise of norm :data:`NOISE` in the weights, but has at most :data:`STEP` per round;
    with a linear model's ``feature_norm``, it leaves noise ``scores`` in each score.
    """
    most = model.step * plan.rounds
    ratio = noise_to_signal(plan, model.parameters)
    return most if ratio * most <= model.noise else model.noise / ratio


def learning_rate(plan: Plan, model: Trained = UNKNOWN, momentum: float = 0.0) -> float:
    """The η for which the plan's rounds, with contributions of norm C, cover :func:`path_length`.

    With momentum m the weights move by η (T − m (1 − mᵀ)/(1 − m))/(1 − m) unit steps.

    Args:
        plan: the plan; its step size is not used. model: the facts about the trained model.
        momentum: of torch's SGD, below 1.
    """
    rounds = plan.rounds
    lag = momentum * (1 - momentum**rounds) / (1 - momentum)
    length = path_length(plan, model)
    return length * (1 - momentum) / ((rounds - lag) * plan.clip.norm)
