"""ε of what looked at results: filters, and the best of a random number of trials.

**A Rényi filter: the accountant for rounds whose parameters are chosen after seeing outputs.**

Composing privacy loss distributions supposes parameters that were fixed in advance. When noise,
batch or the number of further rounds depends on what earlier rounds released, only a filter that
refuses a release *before* it is made keeps the promise. Source: Feldman and Zrnic 2021, Theorem
4.3 (fully adaptive composition at one order); Lécuyer 2021.

**Formal guarantee.** Fix orders α_1 … α_k in advance and let B_i be the largest divergence that
converts to (ε, δ/k) at α_i. A run goes on only while some order i has spent at most B_i. Every
transcript of the run is then a transcript, equally likely, of the run that order i's own filter
would allow, for an i that the transcript decides; the latter runs are each (ε, δ/k)-DP, so over
the k classes of transcripts the whole run is (ε, δ)-DP. One order costs nothing extra; k orders
cost ln(k)/(α − 1) of ε and save the choice of the best one.

**A Gaussian filter: the exact accountant for unsampled rounds chosen after seeing outputs.**

**Formal guarantee.** A run goes on only while Σ μ_t² ≤ B² for the rounds made and the next one,
where round t is μ_t-GDP however it was chosen. Then the whole run is B-GDP: adaptive choice costs
nothing beside rounds that were fixed in advance. Source: Smith and Thakurta 2022 (Fully Adaptive
Composition for Gaussian Differential Privacy); Koskela, Tobaben and Honkela 2022.

In short: given the past, a μ_t-GDP round is a randomised function of one draw of N(μ_t, 1) or of
N(0, 1) (Blackwell), and what is left of B² in the end can be spent on one more draw that nobody
uses. Let S = Σ μ_t X_t. Under N(0, 1) every e^{λ μ_t X_t - λ² μ_t²/2} has mean 1 given the past, so
E e^{λS} = e^{λ²B²/2}, as Σ μ_t² = B² surely: S is N(0, B²). In the same way it is N(B², B²) under
the other hypothesis, and log dP/dQ = S - B²/2 is that of one Gaussian release.

A sampled round is charged like one that holds every record: for those use
:class:`~forethought.accounting.adaptive.RenyiFilter`.

**The price of keeping the best of a random number of trials: tuning that is paid for.**

A trial is one whole private run that returns its model *and* a score. If the number of trials is
random, and only the best is shown, the cost hardly grows with how many there were. Source:
Papernot and Steinke 2022, Theorems 2 (truncated negative binomial) and 6 (Poisson).

Theorem 6 leaves out that there may be no trial, and is false where the mean is below 1. What holds
for every mean μ: let P, P' be one trial's laws with tails u, u' at and above an output (ties broken
by a number drawn for the purpose). The best has density p μ e^(-μu), the default mass e^(-μ).
With w = αu - (α - 1)u',

e^((α - 1)D) = e^(-μ) + ∫ (p^α p'^(1-α)) μ e^(-μw).

Write p^α p'^(1-α) as a part that is never negative (Bernoulli's inequality), of integral
e^((α - 1)D_α) - 1, and αp - (α - 1)p', which is -dw: the second part's integral is 1 - e^(-μ),
whatever the laws. In the first, -w is at most (α - 1)δ̂ where a trial is (ε̂, δ̂)-DP with
e^ε̂ = 1 + 1/(α - 1), so that

e^((α - 1)D) ≤ 1 + μ e^(μ(α - 1)δ̂) (e^((α - 1)D_α) - 1),

which is at most what Theorem 6 says for every mean of at least 1.

The scores are part of a trial's output: computed on public data, or privately and accounted in
the trial's mechanism. Ties are broken by a fixed order that does not look at the data.

**The price of keeping the best of a random number of trials, from one trial's privacy profile.**

Let K trials be drawn, φ(z) = E z^K, and P, Q be the law of one trial's output, ordered by score
(ties by a fixed order, and by a number drawn for the purpose). The best has density
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

**As accountants.** Both are recomputed from a mechanism and a few public details, so that a
Statement can hold them: ``selection_interval`` and ``filter_interval`` are accountants of
:mod:`forethought.accounting.statement`. Sources: Papernot and Steinke 2022, Theorems 2 and 6;
Koskela, Redberg and Wang 2024; Feldman and Zrnic 2021, Theorem 4.3; Smith and Thakurta 2022.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Self

import numpy as np
from scipy.special import gammaln

from forethought.accounting import exact, renyi
from forethought.accounting.dominating_pair import Array, gaussian_mu
from forethought.accounting.interval import Interval, at_most, bisected
from forethought.accounting.line_integral import Curve
from forethought.accounting.renyi import RenyiCurve, canonne_epsilon, rdp
from forethought.values.caveats import Caveat
from forethought.values.checks import one_of, real, settle, whole
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
FILTER_ORDERS: tuple[float, ...] = tuple(
    map(float, (3, 5, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256))
)


class BudgetExceededError(RuntimeError):
    """The release was not made: with it, the run would no longer keep its budget."""


def best_order(mechanism: Mechanism, delta: float) -> float:
    """The order at which ``mechanism``, as foreseen, converts to the least ε.

    A filter at this single order pays nothing for choosing among orders; a run that departs from
    what was foreseen is still safe, only dearer.
    """
    target = real("delta", delta, above=0, below=1)
    curve = rdp(mechanism, renyi.ORDERS)
    epsilon = canonne_epsilon(np.array(curve.orders), np.array(curve.values), target)
    return curve.orders[int(np.argmin(epsilon))]


class Filter:
    """Spends a fixed (ε, δ) over rounds that are chosen one after another.

    A run goes on only while one of its sums of costs is within its limit.

    Args:
        budget: what the whole run may cost, whatever is chosen.
        adjacency: under which every round is accounted.
        limits: of each sum.
    """

    #: In a Statement, in a ``state_dict``, and in words.
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
        """Spent share of the budget, where most of it is left: at most 1."""
        return min(spent / limit for spent, limit in zip(self._sums, self.limits, strict=True))

    def would_exceed(self, rounds: Rounds | Mechanism) -> bool:
        """True if making these releases would break the budget. Changes nothing.

        Raises:
            ValueError: a Mechanism under another adjacency.
        """
        return not self._fits(self._with(rounds))

    def spend(self, rounds: Rounds | Mechanism) -> None:
        """Charge these releases; call it *before* they are made.

        A part of a shuffled epoch is charged as a whole epoch.

        Raises:
            BudgetExceededError: they do not fit. Nothing is charged then, and they must not be
                made.
        """
        sums = self._with(rounds)
        if not self._fits(sums):
            raise BudgetExceededError(
                f"{rounds!r} does not fit into what is left of epsilon {self.budget.epsilon} at "
                f"delta {self.budget.delta} ({100 * self.fraction_used:.1f} % is spent): stop "
                "here, or ask for fewer rounds or more noise"
            )
        self._sums = sums

    def affordable(self, rounds: Rounds) -> int:
        """The number of further rounds like ``rounds`` that fit now; its own count is ignored.

        Rounds that cost nothing measurable are capped at 10⁹, rounds of correlated noise, which
        cost what all of them together do, at 2²⁰.
        """
        if isinstance(rounds, Correlated):
            return self._affordable_together(rounds)
        most = 0
        costs = self._charge(replace(rounds, count=1))
        for spent, limit, each in zip(self._sums, self.limits, costs, strict=True):
            if each == 0:
                return 10**9
            # One step down where the division rounds up past the limit.
            count = max(0, math.floor(min((limit - spent) / each, 1e9)))
            most = max(most, count if spent + count * each <= limit else count - 1)
        # One release of a shuffled part covers the rounds of a whole epoch.
        return min(10**9, most * rounds.sampling.rounds_per_epoch)

    def _affordable_together(self, rounds: Correlated) -> int:
        # More rounds never cost less: the first of them are what a shorter run releases.
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
        if rounds.adjacency != self.adjacency:
            raise ValueError(
                f"this filter accounts under adjacency {self.adjacency!r}, the rounds are stated "
                f"under {rounds.adjacency!r}"
            )
        return self.costs(rounds)

    def costs(self, mechanism: Mechanism) -> tuple[float, ...]:
        """Costs of releases, one in each sum."""
        raise NotImplementedError

    def _with(self, rounds: Rounds | Mechanism) -> tuple[float, ...]:
        return tuple(a + b for a, b in zip(self._sums, self._charge(rounds), strict=True))

    def _fits(self, sums: tuple[float, ...]) -> bool:
        return any(spent <= limit for spent, limit in zip(sums, self.limits, strict=True))

    def _own(self) -> dict[str, Any]:
        """The entries of the state that depend on the kind of filter."""
        raise NotImplementedError

    def details(self) -> dict[str, Any]:
        """The details that a Statement holds of a filter that a run kept to."""
        return {"kind": self.kind, **plain(self.budget), **self._own()}

    def state_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping for checkpoints; :meth:`from_state` reads it back bit for bit."""
        budget = plain(self.budget)
        return {"schema": self.schema, **budget, "adjacency": self.adjacency, **self._own()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """The inverse of :meth:`state_dict`.

        Raises:
            ValueError: another schema, other keys, or values that no filter can have.
        """
        if state.get("schema") != cls.schema:
            raise ValueError(
                f"not a {cls.called} this version can read: schema {state.get('schema')!r}, "
                f"expected {cls.schema!r}"
            )
        orders = () if cls is GaussianFilter else ("orders",)
        exact_keys("filter", state, {"schema", "epsilon", "delta", "adjacency", "spent", *orders})
        budget = Budget(state["epsilon"], state["delta"])
        made = cls(budget, state["adjacency"], *(state[name] for name in orders))
        spent = state["spent"] if orders else [state["spent"]]
        made._sums = tuple(real("spent", value, least=0) for value in spent)
        if len(made._sums) != len(made.limits):
            raise ValueError(f"spent must be {len(made.limits)} numbers, not {len(made._sums)}")
        return made


class RenyiFilter(Filter):
    """Rényi divergence, summed at orders that are fixed before the first release.

    Args:
        budget: what the whole run may cost, whatever is chosen.
        adjacency: under which every round is accounted.
        orders: fixed before the first release; see :func:`best_order` for a single good one.

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
        self.orders = RenyiCurve(tuple(sorted(set(orders))), (0.0,) * len(set(orders))).orders
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
    """Largest divergence that converts to (ε, δ) at this order: next to nothing where it is low.

    The better of two conversions (Canonne, Kamath and Steinke 2020, Proposition 12; the optimal one
    of Asoodeh et al. 2021, Theorem 2).
    """
    overhead = math.log1p(-1 / order) - math.log(delta * order) / (order - 1)
    optimal = renyi.binary_moment(order, epsilon, delta) / (order - 1) / renyi.LIFT
    return max(epsilon - overhead, optimal)


# Relative rounding of sums of squares, charged to every round.
_ROUNDING = 1 + 1e-13
_MOST_TOGETHER = 2**20


class GaussianFilter(Filter):
    """Σ μ² of unsampled rounds.

    Args:
        budget: what the whole run may cost, whatever is chosen.
        adjacency: under which every round is accounted.

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
    if not isinstance(budget, Budget):
        raise TypeError(f"budget must be a Budget(epsilon, delta), not {budget!r}")
    one_of("adjacency", adjacency, ADJACENCIES)


@dataclass(frozen=True)
class NegativeBinomialTrials:
    """K ≥ 1 with P(K = k) ∝ (1 − γ)^k Γ(k + η)/k!: truncated negative binomial.

    Args:
        stopping: γ in (0, 1): small γ, many trials.
        shape: η above −1. 1 is the geometric distribution, 0 the logarithmic one; smaller is
            cheaper in privacy and spreads K more widely.
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
        """The distribution with this expected number of trials (above 1), rounded upwards."""
        wanted = real("mean", mean, above=1)
        low, high = 1e-300, 1.0
        for _ in range(2000):
            middle = math.sqrt(low * high) if low < 0.1 * high else 0.5 * (low + high)
            if not low < middle < high:
                break
            if cls(middle, shape).mean >= wanted:
                low = middle
            else:
                high = middle
        return cls(low, shape)

    def probabilities(self, most: int) -> Array:
        """P(K = k) for k = 1 … ``most``."""
        k = np.arange(1, whole("most", most) + 1)
        log_gamma = math.log(self.stopping)
        log_weight = k * math.log1p(-self.stopping)
        if self.shape == 0:
            return np.asarray(np.exp(log_weight - np.log(k) - math.log(-log_gamma)))
        # Γ(k + η)/Γ(η) is negative for η in (−1, 0), and so is γ^(−η) − 1: the quotient is not.
        scale = math.expm1(-self.shape * log_gamma) / self.shape
        log_terms = log_weight + gammaln(k + self.shape) - gammaln(k + 1)
        return np.asarray(np.exp(log_terms - gammaln(1 + self.shape)) / scale)

    def best_of(self, curve: RenyiCurve, profile: Callable[[float], float]) -> RenyiCurve:
        """The curve of the best trial, Theorem 2; ``profile`` is not needed by it."""
        orders, values = np.array(curve.orders), np.array(curve.values)
        log_gamma = math.log(self.stopping)
        # Any second order is allowed; order 1 with divergence D_1 ≤ D_α leaves (1 + η)ln(1/γ).
        extra = (1 - 1 / orders) * values - log_gamma / orders
        fixed = (1 + self.shape) * min(float(np.min(extra)), -log_gamma)
        return _monotone(orders, values + fixed + math.log(self.mean) / (orders - 1))


@dataclass(frozen=True)
class PoissonTrials:
    """K ~ Poisson(mean): possibly no trial, and then a fixed default is returned."""

    mean: float
    kind: ClassVar[str] = "poisson"

    def __post_init__(self) -> None:
        settle(self, mean=real("mean", self.mean, above=0))

    def probabilities(self, most: int) -> Array:
        """P(K = k) for k = 0 … ``most``."""
        k = np.arange(whole("most", most) + 1)
        return np.asarray(np.exp(k * math.log(self.mean) - self.mean - gammaln(k + 1)))

    def best_of(self, curve: RenyiCurve, profile: Callable[[float], float]) -> RenyiCurve:
        """The curve of the best trial: the last formula of this module's docstring."""
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
_TRIALS: dict[str, type[Trials]] = {
    kind.kind: kind for kind in (NegativeBinomialTrials, PoissonTrials)
}


def _monotone(orders: Array, values: Array) -> RenyiCurve:
    # D_α never falls with α, so a bound at a higher order holds at every lower one.
    least = np.minimum.accumulate(values[::-1])[::-1]
    return RenyiCurve(tuple(orders), tuple(np.maximum(least, 0.0) * renyi.LIFT))


def best_of(
    curve: RenyiCurve, trials: Trials, profile: Callable[[float], float] | None = None
) -> RenyiCurve:
    """The Rényi curve of running ``trials`` trials and showing only the best.

    Args:
        curve: of one trial.
        trials: how the number of trials is drawn.
        profile: δ of one trial at an ε ≥ 0, for Poisson trials; by default what the curve gives.

    Source: Papernot and Steinke 2022, Theorems 2 and 6.
    """
    if not isinstance(trials, Trials):
        raise TypeError(
            f"trials must be NegativeBinomialTrials or PoissonTrials, not {trials!r}: a fixed "
            "number of trials is not covered"
        )
    return trials.best_of(curve, curve.delta if profile is None else profile)


def draw(trials: Trials, generator: np.random.Generator) -> int:
    """Draw the number of trials to run, once before the first; it is never looked at again.

    Inverts the distribution function term by term, so a resumed generator draws the same.
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
    """ε at ``delta`` of the best of ``trials`` runs; ∞ where no curve reaches so far.

    Args:
        curves: upper bounds on one trial's profile, every direction and every candidate.
        trials: how their number is drawn.
        delta: in (0, 1).
    """
    one = max(curve.epsilon(delta / trials.mean * (1 - _LEVEL_ROUNDING)) for curve in curves)
    if not one < math.inf:
        return math.inf
    return (one + _growth(curves, trials, one)) * (1 + _LEVEL_ROUNDING)


def best_of_profile(mechanisms: Sequence[Mechanism], trials: Trials) -> Callable[[Array], Array]:
    """δ at each ε of the best of ``trials`` runs, each of any mechanism: upper ends, at most 1.

    See :func:`best_of_epsilon`; at low ε it says nothing.
    """
    curves = [curve for mechanism in mechanisms for curve in _profile(mechanism)]
    growth = _growth(curves, trials, _FAR) * (1 + _LEVEL_ROUNDING) + _LEVEL_ROUNDING

    def deltas(epsilons: Array) -> Array:
        one = np.max([curve.deltas(epsilons - growth) for curve in curves], axis=0)
        return np.asarray(np.minimum(1.0, trials.mean * one * (1 + _LEVEL_ROUNDING)))

    return deltas


# The levels that are tried end here where no curve falls far enough.
_FAR = 50.0


def _growth(curves: Sequence[Curve], trials: Trials, last: float) -> float:
    """The least log c of this module's docstring, over levels x up to ``last`` or so."""
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
# By how much a search's ε may differ when it is recomputed, by another version for example.
TOLERANCE = 1e-3


def trials_from_dict(values: Mapping[str, Any]) -> Trials:
    """Trials as a Statement holds them. Raises ValueError for anything else."""
    return of_kind(_TRIALS, values, "trials")


def count_mechanism(score_noise: float, mechanism: Mechanism) -> Mechanism:
    """The cost of a noised count to the records it counts, under the adjacency of ``mechanism``.

    One record moves the count by at most 1, also when it is replaced: the sensitivity of 2 that
    is then charged is more than enough.

    Args:
        score_noise: standard deviation of the noise, in records.
    """
    return Mechanism(Rounds(score_noise, 1, FullBatch()), adjacency=mechanism.adjacency)


@dataclass(frozen=True)
class Selection:
    """A private search as one release: the best of a random number of trials.

    Args:
        candidates: a trial runs one of them, drawn by a public rule; under one adjacency.
        trials: how their number is drawn.
        score_noise: of the count of right answers on held-out records, in records; None: scores are
            public, or their records are not covered.
    """

    candidates: tuple[Mechanism, ...]
    trials: Trials
    score_noise: float | None = None

    def __post_init__(self) -> None:
        if len({mechanism.adjacency for mechanism in self.candidates}) != 1:
            raise ValueError("a search has candidates, all stated under one adjacency")
        if self.score_noise is not None:
            real("score_noise", self.score_noise, least=0)

    @property
    def of_a_record(self) -> tuple[tuple[Mechanism, ...], ...]:
        """Mechanisms of a trial, for a record that is trained on; and for one that is held out."""
        if self.score_noise is None:
            return (self.candidates,)
        return self.candidates, (count_mechanism(self.score_noise, self.candidates[0]),)

    def is_of(self, mechanism: Mechanism, details: Mapping[str, Any]) -> bool:
        """True if a Statement's details (:func:`selection_details`) are of this search."""
        if details["kind"] != SELECTION or mechanism not in self.candidates:
            return False
        others = [one.to_dict() for one in self.candidates if one != mechanism]
        own = {**self.to_dict(), "candidates": others}
        return all(details[name] == value for name, value in own.items())

    def divergence(self, order: float) -> float:
        """A bound on the Rényi divergence of the whole search, whichever record it is about."""
        orders = sorted({*renyi.ORDERS, order})
        found = [best_of(_worst(each, orders), self.trials) for each in self.of_a_record]
        return max(best.values[best.orders.index(order)] for best in found)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping; :meth:`from_dict` reads it back."""
        return {
            "candidates": [mechanism.to_dict() for mechanism in self.candidates],
            "trials": tagged(self.trials),
            "score_noise": self.score_noise,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of :meth:`to_dict`. Raises ValueError for anything else."""
        exact_keys("selection", values, {"candidates", "trials", "score_noise"})
        candidates = tuple(map(Mechanism.from_dict, values["candidates"]))
        return cls(candidates, trials_from_dict(values["trials"]), values["score_noise"])


def search_epsilon(candidates: Sequence[Mechanism], trials: Trials, delta: float) -> float:
    """ε at δ of the best of ``trials`` runs, each of a candidate drawn by a public rule.

    A trial is then a mixture with public weights; its divergence is at most the largest of the
    candidates' at every order (quasi-convexity of the Rényi divergence), and so is its δ at any ε.
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
    """The largest divergence of any of the mechanisms, at each order."""
    curves = [rdp(mechanism, orders) for mechanism in mechanisms]
    values = np.max([curve.values for curve in curves], axis=0)
    return RenyiCurve(curves[0].orders, tuple(values))


def _by_divergence(candidates: frozenset[Mechanism], trials: Trials, target: float) -> float:
    curve = _worst(candidates, renyi.ORDERS)
    if isinstance(trials, NegativeBinomialTrials):
        return best_of(curve, trials).epsilon(target)
    # Theorem 6 needs a δ of one trial at each order. The exact one is far below the curve's, and
    # slow: it is computed only where a search for the best order looks. Any order is sound.
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
    """The least noise on the count of right answers that costs a held-out record no more than the
    search costs a training record, within 0.1 %; 0 where the search has no guarantee at all.
    """
    target = search_epsilon(candidates, trials, delta)
    if math.isinf(target):
        return 0.0

    def fits(noise: float) -> bool:
        return search_epsilon([count_mechanism(noise, candidates[0])], trials, delta) <= target

    low, high = 0.0, 1.0
    while not fits(high):
        low, high = high, 2 * high
    return bisected(lambda noise: not fits(noise), low, high, 1e-3)[1]


def selection_details(
    mechanism: Mechanism,
    candidates: Sequence[Mechanism],
    trials: Trials,
    score_noise: float | None,
    delta: float,
) -> dict[str, Any]:
    """The details that a Statement holds of a search.

    Args:
        mechanism: of the trial that is shown.
        candidates: what any trial may have run.
        trials: how their number was drawn.
        score_noise: of the count of right answers on held-out records; None where these are public
            or not covered.
        delta: the Statement's.
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
        mechanism: of the trial that is shown.
        delta: in (0, 1). group: 1.
        details: as :func:`selection_details` gives them.

    Returns:
        Upper end: the larger of what the search costs a training record and what the noised count
        costs a held-out one. Lower end: what one trial costs when the scores say nothing.

    Raises:
        UnsupportedMechanismError: a group of several records.
        ValueError: details that make no sense, or of another mechanism.
    """
    if group != 1:
        raise UnsupportedMechanismError(
            "the theorem on the best of a random number of trials is known here for one record "
            "only: account with group=1"
        )
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
        raise ValueError(
            f"the search costs a training record ε = {at_most(spent, '.6g')} at δ = {at:g}, the "
            f"details say {stated!r}: mechanism, trials and candidates are not "
            "those they were made for"
        )
    if details["score_noise"] is not None:
        count = count_mechanism(real("score_noise", details["score_noise"], least=0), mechanism)
        upper = max(upper, search_epsilon([count], trials, delta))
    # What the best of several trials costs at least depends on their scores: nothing is claimed.
    return Interval(0.0, upper)


def suited_filter(foreseen: Mechanism, budget: Budget) -> Filter:
    """The filter that affords most of what is foreseen; any run that departs from it is safe.

    A Gaussian filter where no round is sampled, else a Rényi filter at the one best order.
    """
    if not any(part.sampling.hides(part.sampling.rounds_per_epoch) for part in foreseen):
        return GaussianFilter(budget, foreseen.adjacency)
    return RenyiFilter(budget, foreseen.adjacency, (best_order(foreseen, budget.delta),))


def filter_from_state(state: Mapping[str, Any]) -> Filter:
    """The filter that a ``state_dict`` is of."""
    gaussian = state.get("schema") == GaussianFilter.schema
    return (GaussianFilter if gaussian else RenyiFilter).from_state(state)


def filter_interval(
    mechanism: Mechanism, delta: float, group: int, details: Mapping[str, Any]
) -> Interval:
    """ε of a run whose rounds were chosen by results, within a filter.

    Args:
        mechanism: what was released in the end.
        delta: at least the filter's. group: 1.
        details: the filter, as :meth:`Filter.details` gives it.

    Returns:
        Upper end: the filter's budget, which holds whatever would have been chosen. Lower end: 0,
        since the rounds that were made say nothing of those that could have been.

    Raises:
        UnsupportedMechanismError: a group of several records.
        ValueError: the rounds do not fit, are not those that the filter was charged for, or δ is
            smaller than the filter's.
    """
    if group != 1:
        raise UnsupportedMechanismError(
            "a filter keeps its budget for one record: account with group=1"
        )
    budget = Budget(details["epsilon"], details["delta"])
    ledger: Filter
    if "orders" in details:
        ledger = RenyiFilter(budget, mechanism.adjacency, details["orders"])
        stated = details["spent"]
    else:
        ledger, stated = GaussianFilter(budget, mechanism.adjacency), [details["spent"]]
    if delta < budget.delta:
        raise ValueError(
            f"the filter kept delta = {budget.delta:g}: nothing is proven at {delta:g}. Account at "
            f"{budget.delta:g} or more"
        )
    if ledger.would_exceed(mechanism):
        raise ValueError(
            f"the stated rounds do not fit into a filter of epsilon {budget.epsilon:g} at delta "
            f"{budget.delta:g}"
        )
    charged = [real("spent", value, least=0) for value in stated]
    spent = ledger.costs(mechanism)
    if len(charged) != len(spent) or not np.allclose(charged, spent, rtol=_SAME, atol=0):
        raise ValueError("the filter was charged for other rounds than the stated ones")
    return Interval(0.0, budget.epsilon)


# The view of a rule that chooses the next phase. No torch in here: planners write rules.


@dataclass(frozen=True)
class Progress:
    """A run in phases, between two of them.

    Args:
        examples: records in the training set.
        wanted: the accuracy that would end the run.
        done: the phases so far, each with the accuracy after it; at least one.
        filter: a copy of the run's filter: ask it what fits, spending from it changes nothing.
    """

    examples: int
    wanted: float
    done: tuple[tuple[Rounds, float], ...]
    filter: Filter


NextPhaseRule = Callable[[Progress], Rounds | None]
