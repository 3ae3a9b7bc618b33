"""ε of runs that depend on results: filters, and the best of a random number of trials.

**A Rényi filter: the accountant for rounds whose parameters are chosen after seeing outputs.**

The composition of privacy loss distributions requires parameters that were fixed in advance. If the
noise, the batch or the number of further rounds depends on earlier releases, a filter keeps the
guarantee: it refuses a release *before* it is made. Source: Feldman and Zrnic 2021, Theorem 4.3
(fully adaptive composition at one order); Lécuyer 2021.

**Formal guarantee.** Fix orders α_1 … α_k in advance and let B_i be the largest divergence that
converts to (ε, δ/k) at α_i. A run goes on only while some order i has spent at most B_i. Every
transcript of the run is then a transcript, with the same probability, of the run that the filter at
order i alone would allow; the transcript determines i. Each of these k runs is (ε, δ/k)-DP, so the
whole run is (ε, δ)-DP. A single order has no extra cost; k orders cost ln(k)/(α − 1) of ε, and the
best one need not be chosen in advance.

**A Gaussian filter: the exact accountant for unsampled rounds chosen after seeing outputs.**

**Formal guarantee.** A run goes on only while Σ μ_t² ≤ B² for the rounds made and the next one,
where round t is μ_t-GDP for every past. Then the whole run is B-GDP: the adaptive choice costs no
more than rounds that were fixed in advance. Source: Smith and Thakurta 2022 (Fully Adaptive
Composition for Gaussian Differential Privacy); Koskela, Tobaben and Honkela 2022.

Sketch of the proof: given the past, a μ_t-GDP round is a randomised function of one draw of
N(μ_t, 1) or of N(0, 1) (Blackwell), and the rest of B² at the end can be spent on one more unused
draw. Let S = Σ μ_t X_t. Under N(0, 1) every e^{λ μ_t X_t - λ² μ_t²/2} has mean 1 given the past, so
E e^{λS} = e^{λ²B²/2}, as Σ μ_t² = B² surely: S is N(0, B²). In the same way it is N(B², B²) under
the other hypothesis, and log dP/dQ = S - B²/2 is that of one Gaussian release.

This filter charges a sampled round like one that holds every record. For sampled rounds use
:class:`~forethought.accounting.adaptive.RenyiFilter`.

**The cost of the best of a random number of trials: private hyperparameter tuning.**

A trial is one whole private run that returns its model *and* a score. If the number of trials is
random, and only the best is shown, the cost hardly grows with the number of trials. Source:
Papernot and Steinke 2022, Theorems 2 (truncated negative binomial) and 6 (Poisson).

Theorem 6 leaves out that there may be no trial, and is false for a mean below 1. The following
holds for every mean μ: let P, P' be one trial's laws with tails u, u' at and above an output (ties
broken by an extra random number). The best has density p μ e^(-μu), the default output has mass
e^(-μ). With w = αu - (α - 1)u',

e^((α - 1)D) = e^(-μ) + ∫ (p^α p'^(1-α)) μ e^(-μw).

Write p^α p'^(1-α) as the sum of a part that is never negative (Bernoulli's inequality), with
integral e^((α - 1)D_α) - 1, and αp - (α - 1)p', which is -dw: the integral with the second part is
1 - e^(-μ) for any laws. In the first, -w is at most (α - 1)δ̂ where a trial is (ε̂, δ̂)-DP with
e^ε̂ = 1 + 1/(α - 1), so that

e^((α - 1)D) ≤ 1 + μ e^(μ(α - 1)δ̂) (e^((α - 1)D_α) - 1),

which is at most the bound of Theorem 6 for every mean of at least 1.

The scores are part of a trial's output: computed on public data, or privately and accounted in
the trial's mechanism. Ties are broken by a fixed order that does not depend on the data.

**The cost of the best of a random number of trials, from one trial's privacy profile.**

Let K trials be drawn, φ(z) = E z^K, and P, Q be the law of one trial's output, ordered by score
(ties by a fixed order, and by an extra random number). The best has density
p(y) φ'(P(≤ y)). One trial is (x, δ(x))-indistinguishable, so with u = Q(> y) P(> y) is at least
e^-x (u - δ(x)), and φ' grows. Where φ'(1 - e^-x (u - δ(x))+) is at most c φ'(1 - u) for every u in
[0, 1],

H(ε) of the best ≤ ∫ φ'(1 - e^-x (u - δ(x))+) [p - (e^ε/c) q]+ ≤ E[K] δ(ε - log c),

as φ' is at most φ'(1) = E[K]. Any x holds. For a truncated negative binomial number φ' is
proportional to (1 - (1 - γ)z)^-(η + 1), so that c^(1/(η + 1)) is the larger of
1 + (1 - γ)δ(x)/γ, at u = δ(x), and 1/(γ + (1 - γ)e^-x (1 - δ(x))), at u = 1: between them the
quotient is monotone. For a Poisson one φ' is E[K] e^(E[K](z - 1)), and
log c = E[K](1 - e^-x (1 - δ(x))), at u = 1. Source of the approach: Koskela, Redberg and Wang 2024,
"Privacy profiles for private selection".

**As accountants.** Both can be recomputed from a mechanism and a few public details, so a Statement
can use them: ``selection_interval`` and ``filter_interval`` are registered in
:mod:`forethought.accounting.accountants`. Sources: Papernot and Steinke 2022, Theorems 2 and 6;
Koskela, Redberg and Wang 2024; Feldman and Zrnic 2021, Theorem 4.3; Smith and Thakurta 2022.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Self, get_args

import numpy as np
from scipy.special import gammaln

from forethought.accounting import exact, renyi
from forethought.accounting.dominating_pair import Array, gaussian_mu
from forethought.accounting.interval import Interval, at_most, bisected, reached
from forethought.accounting.line_integral import Curve
from forethought.accounting.renyi import RenyiCurve, canonne_epsilon, rdp
from forethought.values.caveats import Caveat
from forethought.values.checks import instance, one_of, optional, real, reals, settle, whole
from forethought.values.mechanism import (
    ADJACENCIES,
    Adjacency,
    Budget,
    Correlated,
    FullBatch,
    Mechanism,
    Rounds,
    UnsupportedMechanismError,
)
from forethought.values.serialisation import exact_keys, of_kind, plain, tagged

SELECTION, FILTER, GAUSSIAN_FILTER = "selection", "renyi-filter", "gaussian-filter"
# Accountants of rounds that results chose.
CHOSEN = (SELECTION, FILTER, GAUSSIAN_FILTER)
FILTER_ORDERS: tuple[float, ...] = tuple(
    map(float, (3, 5, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256))
)


class BudgetExceededError(RuntimeError):
    """The release must not be made: with it, the run would exceed its budget."""


def best_order(mechanism: Mechanism, delta: float) -> float:
    """The order at which the planned ``mechanism`` converts to the least ε.

    A filter at this single order has no cost for several orders. A run that departs from the plan
    keeps its guarantee; it only affords fewer rounds.

    Raises:
        ValueError, TypeError: ``delta`` outside (0, 1).
    """
    target = real("delta", delta, above=0, below=1)
    curve = rdp(mechanism, renyi.ORDERS)
    epsilon = canonne_epsilon(np.array(curve.orders), np.array(curve.values), target)
    return curve.orders[int(np.argmin(epsilon))]


class Filter:
    """Base of filters: they spend a fixed (ε, δ) on rounds that are chosen one after another.

    A filter adds up costs in several sums. A run goes on only while one of the sums is within its
    limit.

    Args:
        budget: the most that the whole run may cost, for any choice of rounds.
        adjacency: the neighbouring relation under which every round is accounted.
        limits: the limit of each sum.
    """

    #: Names of the filter: in a Statement, in a ``state_dict``, and in error messages.
    kind: ClassVar[str]
    schema: ClassVar[str]
    called: ClassVar[str]

    def __init__(self, budget: Budget, adjacency: Adjacency, limits: Iterable[float]) -> None:
        self.budget = budget
        self.adjacency: Adjacency = adjacency
        self.limits = tuple(limits)
        self._sums = (0.0,) * len(self.limits)

    @property
    def fraction_used(self) -> float:
        """Spent share of the limit, the least over all sums; in [0, 1]."""
        return min(spent / limit for spent, limit in zip(self._sums, self.limits, strict=True))

    def would_exceed(self, rounds: Rounds | Mechanism) -> bool:
        """True if these releases would exceed the budget; the filter is not changed.

        Raises:
            ValueError: ``rounds`` is a Mechanism under another adjacency.
        """
        return not self._fits(self._with(rounds))

    def spend(self, rounds: Rounds | Mechanism) -> None:
        """Charge these releases; call it *before* they are made.

        A part of a shuffled epoch is charged as a whole epoch.

        Raises:
            BudgetExceededError: the releases do not fit. They are not charged and must not be
                made.
            ValueError: ``rounds`` is a Mechanism under another adjacency.
        """
        sums = self._with(rounds)
        if not self._fits(sums):
            left = f"what is left of {self.budget} ({100 * self.fraction_used:.1f} % is spent)"
            text = f"{rounds!r} does not fit into {left}"
            raise BudgetExceededError(f"{text}: stop here, or ask for fewer rounds or more noise")
        self._sums = sums

    def affordable(self, rounds: Rounds) -> int:
        """The number of further rounds like ``rounds`` that fit now; its own count is ignored.

        The result is at most 10⁹, and at most 2²⁰ for rounds of correlated noise, whose cost is not
        additive.
        """
        if isinstance(rounds, Correlated):
            return self._affordable_together(rounds)
        most = 0
        costs = self._charge(replace(rounds, count=1))
        for spent, limit, each in zip(self._sums, self.limits, costs, strict=True):
            if each == 0:
                return 10**9
            # One less if the division rounds up past the limit.
            count = max(0, math.floor(min((limit - spent) / each, 1e9)))
            most = max(most, count if spent + count * each <= limit else count - 1)
        # One release of a shuffled part covers the rounds of a whole epoch.
        return min(10**9, most * rounds.sampling.rounds_per_epoch)

    def _affordable_together(self, rounds: Correlated) -> int:
        # The cost is monotone in the count: a shorter run is the beginning of a longer one.
        low, high = 0, 1
        while high <= _MOST_TOGETHER and not self.would_exceed(replace(rounds, count=high)):
            low, high = high, 2 * high
        while high - low > 1 and low < _MOST_TOGETHER:
            middle = (low + high) // 2
            exceeds = self.would_exceed(replace(rounds, count=middle))
            low, high = (low, middle) if exceeds else (middle, high)
        return low

    def _charge(self, rounds: Rounds | Mechanism) -> tuple[float, ...]:
        if isinstance(rounds, Rounds):
            rounds = Mechanism(rounds, adjacency=self.adjacency)
        instance("what is charged", rounds, Mechanism)
        if rounds.adjacency != self.adjacency:
            stated = f"the rounds are stated under {rounds.adjacency!r}"
            raise ValueError(f"this filter accounts under adjacency {self.adjacency!r}, {stated}")
        return self.costs(rounds)

    def costs(self, mechanism: Mechanism) -> tuple[float, ...]:
        """Costs of a mechanism's releases, one for each sum."""
        raise NotImplementedError

    def _with(self, rounds: Rounds | Mechanism) -> tuple[float, ...]:
        return tuple(a + b for a, b in zip(self._sums, self._charge(rounds), strict=True))

    def _fits(self, sums: tuple[float, ...]) -> bool:
        return any(spent <= limit for spent, limit in zip(sums, self.limits, strict=True))

    def _own(self) -> dict[str, Any]:
        """The entries of the state that depend on the kind of filter."""
        raise NotImplementedError

    def details(self) -> dict[str, Any]:
        """The details of this filter for a Statement, ready for JSON."""
        return {"kind": self.kind, **plain(self.budget), **self._own()}

    def state_dict(self) -> dict[str, Any]:
        """A mapping ready for JSON, for checkpoints; :meth:`from_state` restores it exactly."""
        budget = plain(self.budget)
        return {"schema": self.schema, **budget, "adjacency": self.adjacency, **self._own()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """The inverse of :meth:`state_dict`.

        Raises:
            ValueError: another schema, other keys, or values that no filter can have.
        """
        if state.get("schema") != cls.schema:
            text = f"schema {state.get('schema')!r}, expected {cls.schema!r}"
            raise ValueError(f"not a {cls.called} this version can read: {text}")
        orders = () if cls is GaussianFilter else ("orders",)
        exact_keys("filter", state, {"schema", "epsilon", "delta", "adjacency", "spent", *orders})
        return cls._charged(state, state["adjacency"])

    @classmethod
    def _charged(cls, values: Mapping[str, Any], adjacency: Adjacency) -> Self:
        """The filter with the budget, the orders if it has some, and the sums of ``values``."""
        orders = [values["orders"]] if "orders" in values else []
        made = cls(Budget(values["epsilon"], values["delta"]), adjacency, *orders)
        made._sums = reals("spent", values["spent"] if orders else [values["spent"]], least=0)
        if len(made._sums) != len(made.limits):
            raise ValueError(f"spent must be {len(made.limits)} numbers, not {len(made._sums)}")
        return made


class RenyiFilter(Filter):
    """A filter that sums Rényi divergences at orders that are fixed before the first release.

    Args:
        budget: the most that the whole run may cost, for any choice of rounds.
        adjacency: the neighbouring relation under which every round is accounted.
        orders: orders fixed before the first release; :func:`best_order` gives a good single one.

    Raises:
        TypeError: ``budget`` is not a Budget, or ``orders`` are not several numbers.
        ValueError: an unknown adjacency, or orders that are not allowed.

    >>> from forethought.values.mechanism import Budget, Rounds
    >>> from forethought.values.mechanism import Poisson
    >>> ledger = RenyiFilter(Budget(1.0, 1e-5))
    >>> ledger.would_exceed(Rounds(0.1, 1, Poisson(1.0)))
    True
    >>> ledger.spend(Rounds(2.0, 100, Poisson(0.01)))
    """

    kind, schema, called = FILTER, "forethought/renyi-filter/1", "Rényi filter"

    def __init__(
        self,
        budget: Budget,
        adjacency: Adjacency = "add-or-remove",
        orders: Sequence[float] = FILTER_ORDERS,
    ) -> None:
        _check(budget, adjacency)
        ascending = tuple(sorted(set(reals("order", orders))))
        self.orders = RenyiCurve(ascending, (0.0,) * len(ascending)).orders
        share = budget.delta / len(self.orders)
        limits = (limit_of(order, budget.epsilon, share) for order in self.orders)
        super().__init__(budget, adjacency, limits)

    @property
    def spent(self) -> RenyiCurve:
        """Divergence spent so far, at each order."""
        return RenyiCurve(self.orders, self._sums)

    def costs(self, mechanism: Mechanism) -> tuple[float, ...]:
        return rdp(mechanism, self.orders).values

    def _own(self) -> dict[str, Any]:
        return {"orders": list(self.orders), "spent": list(self._sums)}


def limit_of(order: float, epsilon: float, delta: float) -> float:
    """The largest divergence that converts to (ε, δ) at this order; close to 0 at low orders.

    Source: Asoodeh et al. 2021, Theorem 2.
    """
    return renyi.binary_moment(order, epsilon, delta) / (order - 1) / renyi.LIFT


# Relative rounding error of sums of squares, charged to every round.
_ROUNDING = 1 + 1e-13
_MOST_TOGETHER = 2**20


class GaussianFilter(Filter):
    """A filter that sums μ² of rounds, each charged as if it were not sampled.

    Args:
        budget: the most that the whole run may cost, for any choice of rounds.
        adjacency: the neighbouring relation under which every round is accounted.

    Raises:
        TypeError: ``budget`` is not a Budget.
        ValueError: an unknown adjacency.

    >>> from forethought.values.mechanism import Budget, Rounds
    >>> from forethought.values.mechanism import FullBatch
    >>> ledger = GaussianFilter(Budget(1.0, 1e-5))
    >>> ledger.affordable(Rounds(100.0, 1, FullBatch()))
    718
    """

    kind, schema = GAUSSIAN_FILTER, "forethought/gaussian-filter/1"
    called = "Gaussian filter"

    def __init__(self, budget: Budget, adjacency: Adjacency = "add-or-remove") -> None:
        _check(budget, adjacency)
        limit = gaussian_mu(budget.epsilon, budget.delta) ** 2 / _ROUNDING
        super().__init__(budget, adjacency, [limit])

    @property
    def spent(self) -> float:
        """Σ μ² of the rounds charged so far."""
        return self._sums[0]

    def costs(self, mechanism: Mechanism) -> tuple[float, ...]:
        return (2 * renyi.zcdp(mechanism) * _ROUNDING,)

    def _own(self) -> dict[str, Any]:
        return {"spent": self.spent}


def _check(budget: Budget, adjacency: Adjacency) -> None:
    instance("budget", budget, Budget)
    one_of("adjacency", adjacency, ADJACENCIES)


@dataclass(frozen=True)
class NegativeBinomialTrials:
    """K ≥ 1 with P(K = k) ∝ (1 − γ)^k Γ(k + η)/k!: truncated negative binomial.

    Args:
        stopping: γ in (0, 1); a smaller γ gives more trials.
        shape: η above −1. 1 is the geometric distribution, 0 the logarithmic one; a smaller η costs
            less privacy and gives K a larger variance.
    """

    stopping: float
    shape: float = 1.0
    kind: ClassVar[str] = "negative-binomial"

    def __post_init__(self) -> None:
        settle(self, stopping=real("stopping", self.stopping, above=0, below=1))
        settle(self, shape=real("shape", self.shape, above=-1))

    @property
    def mean(self) -> float:
        """E[K] (Papernot and Steinke 2022, Definition 1)."""
        log_gamma = math.log(self.stopping)
        # η(1 − γ)/(γ(1 − γ^η)), with its limit (1/γ − 1)/ln(1/γ) at η = 0.
        ratio = -log_gamma if self.shape == 0 else -math.expm1(self.shape * log_gamma) / self.shape
        return (1 / self.stopping - 1) / ratio

    @classmethod
    def of_mean(cls, mean: float, shape: float = 1.0) -> NegativeBinomialTrials:
        """The distribution whose mean is ``mean`` (above 1), or larger by rounding."""
        wanted = real("mean", mean, above=1)

        def more(stopping: float) -> bool:
            return cls(stopping, shape).mean >= wanted

        low, _ = bisected(more, 1e-300, 1.0, steps=2000)
        return cls(low, shape)

    def probabilities(self, most: int) -> Array:
        """P(K = k) for k = 1 … ``most``."""
        k = np.arange(1, whole("most", most) + 1)
        log_gamma = math.log(self.stopping)
        log_weight = k * math.log1p(-self.stopping)
        if self.shape == 0:
            return np.asarray(np.exp(log_weight - np.log(k) - math.log(-log_gamma)))
        # Γ(k + η)/Γ(η) and γ^(−η) − 1 are negative for η in (−1, 0); their quotient is positive.
        scale = math.expm1(-self.shape * log_gamma) / self.shape
        log_terms = log_weight + gammaln(k + self.shape) - gammaln(k + 1)
        return np.asarray(np.exp(log_terms - gammaln(1 + self.shape)) / scale)

    def best_of(self, curve: RenyiCurve, profile: Callable[[float], float]) -> RenyiCurve:
        """The Rényi curve of the best trial (Theorem 2); ``profile`` is not used."""
        orders, values = np.array(curve.orders), np.array(curve.values)
        log_gamma = math.log(self.stopping)
        # Any second order is allowed; order 1 with divergence D_1 ≤ D_α gives (1 + η)ln(1/γ).
        extra = (1 - 1 / orders) * values - log_gamma / orders
        fixed = (1 + self.shape) * min(float(np.min(extra)), -log_gamma)
        return _monotone(orders, values + fixed + math.log(self.mean) / (orders - 1))


@dataclass(frozen=True)
class PoissonTrials:
    """K ~ Poisson(mean). If K = 0 there is no trial, and a fixed default is returned.

    Args:
        mean: E[K], above 0.
    """

    mean: float
    kind: ClassVar[str] = "poisson"

    def __post_init__(self) -> None:
        settle(self, mean=real("mean", self.mean, above=0))

    def probabilities(self, most: int) -> Array:
        """P(K = k) for k = 0 … ``most``."""
        k = np.arange(whole("most", most) + 1)
        return np.asarray(np.exp(k * math.log(self.mean) - self.mean - gammaln(k + 1)))

    def best_of(self, curve: RenyiCurve, profile: Callable[[float], float]) -> RenyiCurve:
        """The Rényi curve of the best trial: the corrected Theorem 6 of this module's docstring."""
        values = [
            self._best_of(order, value, profile(math.log1p(1 / (order - 1))))
            for order, value in zip(curve.orders, curve.values, strict=True)
        ]
        return _monotone(np.array(curve.orders), np.array(values))

    def _best_of(self, order: float, value: float, lost: float) -> float:
        grown = (order - 1) * value
        if grown == 0:
            return 0.0
        # log(e^grown - 1), however large.
        log_rise = grown + math.log(-math.expm1(-grown))
        log_rise += math.log(self.mean) + self.mean * (order - 1) * lost
        return float(np.logaddexp(0.0, log_rise)) / (order - 1)


Trials = NegativeBinomialTrials | PoissonTrials
_TRIALS: dict[str, type[Trials]] = {kind.kind: kind for kind in get_args(Trials)}


def require_trials(trials: Trials) -> None:
    """Refuse, with a TypeError, what is no distribution of a number of trials."""
    if not isinstance(trials, Trials):
        text = "trials must be forethought.PoissonTrials or forethought.NegativeBinomialTrials"
        raise TypeError(f"{text}, not {trials!r}: the best of a fixed number is not covered")


def _monotone(orders: Array, values: Array) -> RenyiCurve:
    # D_α does not decrease in α, so a bound at a higher order holds at every lower one.
    least = np.minimum.accumulate(values[::-1])[::-1]
    return RenyiCurve(tuple(orders), tuple(np.maximum(least, 0.0) * renyi.LIFT))


def best_of(
    curve: RenyiCurve, trials: Trials, profile: Callable[[float], float] | None = None
) -> RenyiCurve:
    """The Rényi curve of a run of ``trials`` trials of which only the best is shown.

    Source: Papernot and Steinke 2022, Theorems 2 and 6.

    Args:
        curve: the Rényi curve of one trial.
        trials: the distribution of the number of trials.
        profile: ε ≥ 0 → δ of one trial, for Poisson trials; default: the conversion of ``curve``.

    Raises:
        TypeError: ``trials`` is no such distribution.
    """
    require_trials(trials)
    return trials.best_of(curve, curve.delta if profile is None else profile)


def draw(trials: Trials, generator: np.random.Generator) -> int:
    """Draw the number of trials: once, before the first trial; do not show it.

    It inverts the distribution function with one uniform draw, so a generator in the same state
    gives the same number.
    """
    left = float(generator.random())
    first = 0 if isinstance(trials, PoissonTrials) else 1
    most = 64
    while True:
        total = np.cumsum(trials.probabilities(most))
        if total[-1] > left or most >= 2**24:
            return first + int(np.searchsorted(total, left, side="right"))
        most *= 4


_LEVELS = 400
_LEVEL_ROUNDING = 1e-9


def best_of_epsilon(curves: Sequence[Curve], trials: Trials, delta: float) -> float:
    """ε at ``delta`` of the best of ``trials`` runs; ∞ if some curve has no finite ε there.

    Args:
        curves: upper bounds on one trial's profile, for every direction and every candidate.
        trials: the distribution of the number of trials.
        delta: in (0, 1).
    """
    one = max(curve.epsilon(delta / trials.mean * (1 - _LEVEL_ROUNDING)) for curve in curves)
    if not one < math.inf:
        return math.inf
    return (one + _growth(curves, trials, one)) * (1 + _LEVEL_ROUNDING)


def best_of_profile(mechanisms: Sequence[Mechanism], trials: Trials) -> Callable[[Array], Array]:
    """Upper bounds on δ at each ε of the best of ``trials`` runs of any of the mechanisms.

    See :func:`best_of_epsilon`; at low ε the bound is 1.
    """
    curves = [curve for mechanism in mechanisms for curve in _profile(mechanism)]
    growth = _growth(curves, trials, _FAR) * (1 + _LEVEL_ROUNDING) + _LEVEL_ROUNDING

    def deltas(epsilons: Array) -> Array:
        one = np.max([curve.deltas(epsilons - growth) for curve in curves], axis=0)
        return np.asarray(np.minimum(1.0, trials.mean * one * (1 + _LEVEL_ROUNDING)))

    return deltas


# Largest level that is tried if no curve falls far enough.
_FAR = 50.0


def _growth(curves: Sequence[Curve], trials: Trials, last: float) -> float:
    """The least log c of this module's docstring over levels x.

    The levels end at ε of δ = 1e-11, or at ``last`` if that ε is infinite.
    """
    most = max(curve.epsilon(1e-11) for curve in curves)
    levels = np.linspace(0.0, most if most < math.inf else last, _LEVELS)
    lost = np.max([curve.deltas(levels) for curve in curves], axis=0)
    kept = np.exp(-levels) * (1 - lost)
    if isinstance(trials, NegativeBinomialTrials):
        stop = trials.stopping
        near = np.log1p((1 - stop) * lost / stop)
        far = -np.log(stop + (1 - stop) * kept)
        grown = (trials.shape + 1) * np.maximum(near, far)
    else:
        grown = trials.mean * (1 - kept)
    return float(grown.min())


SEARCH_ALONE, PHASES_ALONE = Caveat("search"), Caveat("chosen-phases")
_SAME = 1e-9
# Largest relative difference of a search's ε when it is recomputed, for example by another version.
TOLERANCE = 1e-3


def trials_from_dict(values: Mapping[str, Any]) -> Trials:
    """Read the trials of a Statement's details.

    Raises:
        ValueError: not a known distribution of trials.
    """
    return of_kind(_TRIALS, values, "trials")


def count_mechanism(score_noise: float, mechanism: Mechanism) -> Mechanism:
    """The mechanism of a noised count of records, under the adjacency of ``mechanism``.

    One record changes the count by at most 1, also when it is replaced; the sensitivity of 2 that
    is charged for a replacement is an upper bound.

    Args:
        score_noise: standard deviation of the noise, in records.
    """
    return Mechanism(Rounds(score_noise, 1, FullBatch()), adjacency=mechanism.adjacency)


@dataclass(frozen=True)
class Selection:
    """A private search as one release: the best of a random number of trials.

    Args:
        candidates: the mechanisms that a trial may run, drawn by a public rule; all under one
            adjacency.
        trials: the distribution of the number of trials.
        score_noise: standard deviation of the noise on the count of right answers on held-out
            records, in records; None: scores are public, or their records are not covered.

    Raises:
        ValueError: no candidates, or candidates under different adjacencies.
    """

    candidates: tuple[Mechanism, ...]
    trials: Trials
    score_noise: float | None = None

    def __post_init__(self) -> None:
        if len({mechanism.adjacency for mechanism in self.candidates}) != 1:
            raise ValueError("a search has candidates, all stated under one adjacency")
        optional(real, "score_noise", self.score_noise, least=0)

    @property
    def of_a_record(self) -> tuple[tuple[Mechanism, ...], ...]:
        """Mechanisms of one trial for a training record and, with noised scores, a held-out one."""
        if self.score_noise is None:
            return (self.candidates,)
        return self.candidates, (count_mechanism(self.score_noise, self.candidates[0]),)

    def is_of(self, mechanism: Mechanism, details: Mapping[str, Any]) -> bool:
        """True if a Statement's details (:func:`selection_details`) describe this search."""
        if details["kind"] != SELECTION or mechanism not in self.candidates:
            return False
        others = [one.to_dict() for one in self.candidates if one != mechanism]
        own = {**self.to_dict(), "candidates": others}
        return all(details[name] == value for name, value in own.items())

    def divergence(self, order: float) -> float:
        """A bound on the Rényi divergence of the whole search, for any record."""
        orders = sorted({*renyi.ORDERS, order})
        found = [best_of(_worst(each, orders), self.trials) for each in self.of_a_record]
        return max(best.values[best.orders.index(order)] for best in found)

    def to_dict(self) -> dict[str, Any]:
        """A mapping ready for JSON; :meth:`from_dict` is the inverse."""
        return {
            "candidates": [mechanism.to_dict() for mechanism in self.candidates],
            "trials": tagged(self.trials),
            "score_noise": self.score_noise,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of :meth:`to_dict`.

        Raises:
            ValueError: other keys or values.
        """
        exact_keys("selection", values, {"candidates", "trials", "score_noise"})
        candidates = tuple(map(Mechanism.from_dict, values["candidates"]))
        return cls(candidates, trials_from_dict(values["trials"]), values["score_noise"])


def search_epsilon(candidates: Sequence[Mechanism], trials: Trials, delta: float) -> float:
    """ε at ``delta`` of the best of ``trials`` runs, each of a candidate drawn by a public rule.

    A trial is a mixture with public weights. At every order its divergence is at most the largest
    of the candidates' (quasi-convexity of the Rényi divergence); the same holds for its δ at any ε.
    ε is ∞ if some candidate has a round without noise.
    """
    return _search_epsilon(frozenset(candidates), trials, real("delta", delta, above=0, below=1))


@lru_cache(maxsize=1024)
def _search_epsilon(candidates: frozenset[Mechanism], trials: Trials, target: float) -> float:
    if any(part.noise_multiplier == 0 for mechanism in candidates for part in mechanism):
        return math.inf
    profiles = [curve for mechanism in candidates for curve in _profile(mechanism)]
    by_profile = best_of_epsilon(profiles, trials, target)
    return min(by_profile, _by_divergence(candidates, trials, target))


@lru_cache(maxsize=256)
def _profile(mechanism: Mechanism) -> tuple[Curve, ...]:
    return tuple(above for _, above in exact.privacy_loss(mechanism, accuracy=1e-2))


def _worst(mechanisms: Collection[Mechanism], orders: Sequence[float]) -> RenyiCurve:
    """The largest divergence of the mechanisms at each order."""
    curves = [rdp(mechanism, orders) for mechanism in mechanisms]
    values = np.max([curve.values for curve in curves], axis=0)
    return RenyiCurve(curves[0].orders, tuple(values))


def _by_divergence(candidates: frozenset[Mechanism], trials: Trials, target: float) -> float:
    curve = _worst(candidates, renyi.ORDERS)
    if isinstance(trials, NegativeBinomialTrials):
        return best_of(curve, trials).epsilon(target)
    # Theorem 6 needs a δ of one trial at each order. The exact δ is far below the curve's, but it
    # is slow: it is computed only at orders that the search for the best visits. Any order holds.
    found: dict[int, RenyiCurve] = {}

    def profile(epsilon: float) -> float:
        return max(exact.delta(mechanism, epsilon).upper for mechanism in candidates)

    def at(index: int) -> float:
        if index not in found:
            one = RenyiCurve((curve.orders[index],), (curve.values[index],))
            found[index] = best_of(one, trials, profile)
        order, value = found[index].orders[0], found[index].values[0]
        return float(canonne_epsilon(np.array([order]), np.array([value]), target)[0])

    low, high = 0, len(curve.orders) - 1
    while high - low > 3:
        third = (high - low) // 3
        left, right = low + third, high - third
        low, high = (low, right) if at(left) <= at(right) else (left, high)
    best = min(range(low, high + 1), key=at)
    return min(found[best].epsilon(target), best_of(curve, trials).epsilon(target))


def matching_score_noise(candidates: Sequence[Mechanism], trials: Trials, delta: float) -> float:
    """The least noise on the scores for which held-out records cost no more than training records.

    Returns:
        Standard deviation of the noise on the count of right answers, in records, within 0.1 %; 0
        if the search has no guarantee.
    """
    target = search_epsilon(candidates, trials, delta)
    if math.isinf(target):
        return 0.0

    def exceeds(noise: float) -> bool:
        return search_epsilon([count_mechanism(noise, candidates[0])], trials, delta) > target

    return reached(exceeds, 0.0, 1.0, relative=1e-3)[1]


def selection_details(
    mechanism: Mechanism,
    candidates: Sequence[Mechanism],
    trials: Trials,
    score_noise: float | None,
    delta: float,
) -> dict[str, Any]:
    """The details of a search for a Statement.

    Args:
        mechanism: the mechanism of the trial that is shown.
        candidates: the mechanisms that any trial may have run.
        trials: the distribution of the number of trials.
        score_noise: standard deviation of the noise on the count of right answers on held-out
            records; None if these are public or not covered.
        delta: δ of the Statement.
    """
    epsilon = search_epsilon([mechanism, *candidates], trials, delta)
    return {
        "kind": SELECTION,
        "trials": tagged(trials),
        "candidates": [
            other.to_dict() for other in dict.fromkeys(candidates) if other != mechanism
        ],
        "score_noise": score_noise,
        "training": {"epsilon": epsilon if math.isfinite(epsilon) else "infinity", "delta": delta},
    }


def selection_interval(
    mechanism: Mechanism, delta: float, group: int, details: Mapping[str, Any]
) -> Interval:
    """ε of a search of which only the best trial is shown.

    Args:
        mechanism: the mechanism of the trial that is shown.
        delta: in (0, 1).
        group: 1.
        details: the details of :func:`selection_details`.

    Returns:
        Upper end: the larger of ε of a training record by the search and ε of a held-out record by
        the noised counts. Lower end: 0.

    Raises:
        UnsupportedMechanismError: a group of several records.
        ValueError: the details are malformed or do not fit the mechanism.
    """
    if group != 1:
        text = "the theorem on the best of a random number of trials is for one record"
        raise UnsupportedMechanismError(f"{text}: account with group=1")
    trials = trials_from_dict(details["trials"])
    exact_keys("training", details["training"], {"epsilon", "delta"})
    others = [Mechanism.from_dict(values) for values in details["candidates"]]
    if any(other.adjacency != mechanism.adjacency for other in others):
        raise ValueError("all candidates of a search must be stated under one adjacency")
    upper = search_epsilon([mechanism, *others], trials, delta)
    stated, at = details["training"]["epsilon"], real("delta", details["training"]["delta"])
    number = math.inf if stated == "infinity" else real("training epsilon", stated, least=0)
    spent = search_epsilon([mechanism, *others], trials, at)
    if not math.isclose(number, spent, rel_tol=TOLERANCE):
        text = f"the search costs a training record ε = {at_most(spent, '.6g')} at δ = {at:g}"
        raise ValueError(f"{text}, the details say {stated!r}: they were made for another search")
    if details["score_noise"] is not None:
        count = count_mechanism(real("score_noise", details["score_noise"], least=0), mechanism)
        upper = max(upper, search_epsilon([count], trials, delta))
    # The true cost of the best of several trials depends on their scores: no lower end is claimed.
    return Interval(0.0, upper)


def suited_filter(foreseen: Mechanism, budget: Budget) -> Filter:
    """The filter that affords most of the planned rounds; any other run keeps its guarantee too.

    It is a Gaussian filter if no round is sampled, else a Rényi filter at the one best order.
    """
    if not any(part.sampling.hides(part.sampling.rounds_per_epoch) for part in foreseen):
        return GaussianFilter(budget, foreseen.adjacency)
    return RenyiFilter(budget, foreseen.adjacency, (best_order(foreseen, budget.delta),))


def filter_from_state(state: Mapping[str, Any]) -> Filter:
    """The filter of a ``state_dict``; raises like :meth:`Filter.from_state`."""
    gaussian = state.get("schema") == GaussianFilter.schema
    return (GaussianFilter if gaussian else RenyiFilter).from_state(state)


def filter_interval(
    mechanism: Mechanism, delta: float, group: int, details: Mapping[str, Any]
) -> Interval:
    """ε of a run whose rounds were chosen by results, within a filter.

    Args:
        mechanism: the rounds that were released.
        delta: at least the filter's δ.
        group: 1.
        details: the details of :meth:`Filter.details`.

    Returns:
        Upper end: the filter's budget, which holds for any choice of rounds. Lower end: 0, since
        the released rounds give no bound for those that could have been chosen.

    Raises:
        UnsupportedMechanismError: a group of several records.
        ValueError: the rounds exceed the budget or are not those that the filter was charged for,
            or δ is smaller than the filter's.
    """
    if group != 1:
        raise UnsupportedMechanismError(
            "a filter keeps its budget for one record: account with group=1"
        )
    kind: type[Filter] = RenyiFilter if "orders" in details else GaussianFilter
    ledger = kind._charged(details, mechanism.adjacency)
    budget, spent = ledger.budget, ledger.costs(mechanism)
    if delta < budget.delta:
        text = f"the filter kept delta = {budget.delta:g}: nothing is proven at {delta:g}"
        raise ValueError(f"{text}. Account at {budget.delta:g} or more")
    if not ledger._fits(spent):
        raise ValueError(f"the stated rounds do not fit into a filter of {budget}")
    if not np.allclose(ledger._sums, spent, rtol=_SAME, atol=0):
        raise ValueError("the filter was charged for other rounds than the stated ones")
    return Interval(0.0, budget.epsilon)


# The input of a rule that chooses the next phase; free of torch, as planners write such rules.


@dataclass(frozen=True)
class Progress:
    """The state of a run in phases, between two phases.

    Args:
        examples: number of records in the training set.
        wanted: the accuracy that would end the run.
        done: the phases so far, each with the accuracy after it; at least one.
        filter: a copy of the run's filter, to ask which rounds fit; spending from it has no effect
            on the run.
    """

    examples: int
    wanted: float
    done: tuple[tuple[Rounds, float], ...]
    filter: Filter


NextPhaseRule = Callable[[Progress], Rounds | None]
