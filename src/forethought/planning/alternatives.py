"""Several plans at once: a Pareto front, the plans of a private search, and phases of a run."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import NDArray

from forethought.accounting import adaptive, exact
from forethought.accounting.dominating_pair import gaussian_delta, gaussian_epsilon
from forethought.accounting.interval import at_most, warn_if_wide
from forethought.options import table
from forethought.papers.calculators import Phase, phase_calculator
from forethought.papers.closed_form import approximate_clt_mu
from forethought.planning import defaults
from forethought.planning.defaults import gradient_computations, noise_to_signal
from forethought.planning.plan_request import PlanError, PlanRequest, least_noise, noise_of
from forethought.planning.solve import largest, plan, unchecked
from forethought.values.caveats import Caveat
from forethought.values.checks import function, instance, real, settle, whole
from forethought.values.mechanism import (
    Adjacency,
    Budget,
    Correlated,
    FullBatch,
    Mechanism,
    Persons,
    Poisson,
    Rounds,
    Sampling,
    scaled_noise,
)
from forethought.values.plan import Plan

if TYPE_CHECKING:
    from forethought.keywords import PlanKeywords

# Several objectives: the plans that no other plan dominates.
#
# Batch × rounds × σ (× C, × records in a group) are searched for the plans that are non-dominated
# in privacy, predicted utility, communication and computation. Grid points are filtered by ε of the
# central limit theorem (:mod:`forethought.papers.closed_form`), which is fast to compute. Of the
# remaining plans at most twenty, spread over the front, are certified exactly and returned.


# The objectives to minimise. Utility from a utility graph enters as the loss 1 − F(w + n)/F(w).
OBJECTIVES = ("epsilon", "noise", "rounds", "gradients")
# Default weights of :meth:`Front.best`. The product of ε and noise is about the same for all plans,
# so with equal weights the plan with the most noise could win: noise must count more. Rounds and
# gradients decide between plans that are otherwise alike.
OBJECTIVE_WEIGHTS = {"epsilon": 1.0, "noise": 2.0, "rounds": 0.1, "gradients": 0.1}
LEAST_BATCH = 32
# Default limit: the largest ε that the defaults were measured at.
MOST_EPSILON = 8.0
MOST_PLANS = 20
# Factor by which a plan's approximate ε may exceed the limit and the exact one is still computed.
_SLACK = 1.25
_IDLE = 50


@dataclass(frozen=True)
class Candidate:
    """One plan of the front with its objectives.

    Args:
        plan: the plan. epsilon: its certified upper ε.
        noise: noise-to-signal ratio, or the predicted loss of utility.
        rounds: number of rounds. gradients: expected number of per-example gradients.
    """

    plan: Plan
    epsilon: float
    noise: float
    rounds: int
    gradients: float

    def costs(self) -> tuple[float, ...]:
        """The objectives in the order of :data:`OBJECTIVES`; less is better."""
        return tuple(float(getattr(self, name)) for name in OBJECTIVES)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: the objectives and the whole plan."""
        return {**dict(zip(OBJECTIVES, self.costs(), strict=True)), "plan": self.plan.to_dict()}


@dataclass(frozen=True)
class Front:
    """The non-dominated plans, from most private to least.

    Args:
        candidates: at most twenty, spread over the front.
        considered: number of plans that were compared.
        limits: objective → largest allowed value, default limits included.
    """

    candidates: tuple[Candidate, ...]
    considered: int
    limits: Mapping[str, float]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: the rows under ``front``, and the limits."""
        return {"front": [row.to_dict() for row in self.candidates], "limits": dict(self.limits)}

    def best(self, weights: Mapping[str, float] | None = None) -> Candidate:
        """The plan with the least weighted sum of the logarithms of its objectives.

        Args:
            weights: objective → weight; missing ones count 0. Default: :data:`OBJECTIVE_WEIGHTS`.

        Raises:
            TypeError: ``weights`` is no mapping of numbers.
            ValueError: an unknown objective, a negative weight, or an empty front.
        """
        weights = OBJECTIVE_WEIGHTS if weights is None else weights
        _known(weights, "weights")
        if not self.candidates:
            raise ValueError("the front is empty: loosen the limits")
        for name, weight in weights.items():
            real(f"weight of {name}", weight, least=0)

        def score(candidate: Candidate) -> float:
            costs = {name: max(getattr(candidate, name), 1e-300) for name in weights}
            return sum(weight * math.log(costs[name]) for name, weight in weights.items())

        return min(self.candidates, key=score)


@dataclass(frozen=True)
class SearchGrid:
    """The values that a front is searched over.

    Args:
        batches, rounds, noise_multipliers: the values to try; None: ten, geometrically spaced.
        clip_norms: norms to try; only with ``loss_of_utility``, since the noise-to-signal ratio
            does not depend on C.
        group_sizes: numbers of records in a group to try, with clipping="group" and without
            ``groups`` in the request. No objective improves with larger groups, so leave out sizes
            that are too small for the inner algorithm: the search would prefer them.
        loss_of_utility: from (C, σ) to the predicted share of utility lost, such as the method
            ``loss`` of a utility graph; it then replaces the objective "noise". The Statement says
            on what data the graph was measured; of another function only the user knows.

    Raises:
        ValueError, TypeError: a value outside its range, or clip norms without that function.
    """

    batches: Sequence[int] | None = None
    rounds: Sequence[int] | None = None
    noise_multipliers: Sequence[float] | None = None
    clip_norms: Sequence[float] | None = None
    loss_of_utility: Callable[[float, float], float] | None = None
    group_sizes: Sequence[int] | None = None

    def __post_init__(self) -> None:
        for name in ("batches", "rounds", "noise_multipliers", "clip_norms", "group_sizes"):
            values = getattr(self, name)
            if values is None:
                continue
            if not isinstance(values, Iterable):
                raise TypeError(f"{name} must be values to try, such as [{values!r}]")
            tried = f"each of {name}"
            known = tuple(
                real(tried, value, above=0)
                if name in ("noise_multipliers", "clip_norms")
                else whole(tried, value)
                for value in values
            )
            settle(self, **{name: known})
        function("loss_of_utility", self.loss_of_utility)
        if self.clip_norms is not None and self.loss_of_utility is None:
            raise ValueError(
                "clip_norms need loss_of_utility=: without it the clip norm changes no objective"
            )


def pareto(
    request: PlanRequest | None = None,
    /,
    *,
    batches: Sequence[int] | None = None,
    rounds: Sequence[int] | None = None,
    noise_multipliers: Sequence[float] | None = None,
    clip_norms: Sequence[float] | None = None,
    group_sizes: Sequence[int] | None = None,
    loss_of_utility: Callable[[float, float], float] | None = None,
    limits: Mapping[str, float] | None = None,
    **keywords: Any,
) -> Front:
    """Search batch × rounds × σ (× C, × records in a group) for the non-dominated plans.

    Args:
        request: the known facts and goals, as for :func:`forethought.plan`. Every plan keeps what
            it fixes (batch, length, noise, clipping, optimizer, step size, …); its budget is a
            limit on ε.
        batches, rounds, noise_multipliers, clip_norms, group_sizes, loss_of_utility: see
            :class:`SearchGrid`.
        limits: objective → largest allowed value, for example ``{"epsilon": 3, "rounds": 500}``.
            Default for ε: :data:`MOST_EPSILON`. Default for the gradients, where neither length
            nor batch is limited or given: 30 passes over the data.
        keywords: of :func:`forethought.plan`, in place of ``request`` or replacing its fields.

    Returns:
        The front. Every candidate's plan can be saved and run.

    Raises:
        ValueError, PlanError: an argument outside its range, or limits that no plan meets.
    """
    grid = SearchGrid(batches, rounds, noise_multipliers, clip_norms, loss_of_utility, group_sizes)
    request = PlanRequest.of(request, **keywords)
    if loss_of_utility is not None:  # it decides on the plan: a graph says on what data it rests
        graph: Any = getattr(loss_of_utility, "__self__", None)
        stated = graph.told("limits of a search") if hasattr(graph, "told") else {}
        declared = {"hyperparameters": request.hyperparameters or Caveat("declared")}
        uses = (*request.not_covered, *stated.get("not_covered", ()))
        request = request.with_(**{**declared, **stated, "not_covered": uses})
    if grid.group_sizes and (request.clipping != "group" or request.groups is not None):
        raise PlanError("group_sizes= go with clipping='group', and with no groups=: drop one")
    limits = _limits(request, grid, limits)
    request = request.with_(budget=None, delta=request.settled_delta())
    plans = _plans(request, grid)
    approximate = _approximate(plans, request.parameters or 1, grid.loss_of_utility)
    allowed = [row for row in approximate if _within(row, limits, _SLACK)]
    if not allowed:
        raise PlanError(_out_of_reach(approximate, limits))
    kept = [allowed[row] for row in _front(allowed)]
    # Plans with less than 1/_IDLE of the allowed ε are left out where there are enough others.
    useful = [row for row in kept if row.epsilon >= limits["epsilon"] / _IDLE]
    chosen = _spread_out(useful if len(useful) >= MOST_PLANS else kept, MOST_PLANS)
    certified = [row for row in map(_certified, chosen) if _within(row, limits, 1.0)]
    if not certified:
        raise PlanError(_out_of_reach([_certified(row) for row in chosen], limits))
    front = [certified[row] for row in _front(certified)]
    return Front(tuple(sorted(front, key=lambda c: c.costs())), len(approximate), limits)


def _limits(
    request: PlanRequest, grid: SearchGrid, given: Mapping[str, float] | None
) -> dict[str, float]:
    given = {} if given is None else given
    _known(given, "limits")
    limits = {name: real(f"limit of {name}", most, above=0) for name, most in given.items()}
    limits.setdefault("epsilon", MOST_EPSILON if request.budget is None else math.inf)
    if request.budget is not None:
        limits["epsilon"] = min(limits["epsilon"], request.budget.epsilon)
    settled = request.timed or request.batch is not None or grid.rounds or grid.batches
    if not settled and "rounds" not in limits:
        limits.setdefault("gradients", defaults.EPOCHS_LIMIT * request.examples)
    return limits


def _plans(request: PlanRequest, grid: SearchGrid) -> list[Plan]:
    """The plans of the grid's points; numbers that the request fixes are not varied.

    Points that no plan fulfils are left out, such as more groups than records of a batch.

    Raises:
        ValueError: every point is one; the error of the last one.
    """
    N = request.examples
    least = min(N, max(LEAST_BATCH, N / 1000))
    batches = grid.batches or _geometric(least, max(least, N / 4))
    if request.sampling == "full-batch" or request.batch is not None:
        batches = [request.batch or N]
    sigmas = list(grid.noise_multipliers or np.geomspace(0.6, 30, 10))
    if request.noise_multiplier is not None:
        sigmas = [request.noise_multiplier]
    lengths: Sequence[int | None] = sorted(set(grid.rounds or _geometric(30, 3000)))
    if request.timed:
        lengths = [request.rounds]
    refused: ValueError = PlanError("there is nothing to search")
    found = []
    for batch, sigma, norm, length, each in product(
        sorted(set(batches)),
        sigmas,
        grid.clip_norms or (None,),
        lengths,
        grid.group_sizes or (None,),
    ):
        try:
            point = request.with_(
                batch=batch,
                groups=request.groups if each is None else batch // each,
                rounds=length,
                noise_multiplier=float(sigma),
                clip_norm=request.clip_norm if norm is None else norm,
                # Settled here, since numbers of the grid are no choice of the user's.
                hyperparameters=request.chosen_by(),
            )
            found.append(unchecked(point))
        except ValueError as error:
            refused = error
    if not found:
        raise refused
    return found


def _approximate(
    plans: Sequence[Plan], parameters: int, loss: Callable[[float, float], float] | None
) -> list[Candidate]:
    return [
        Candidate(
            made,
            float(epsilon),
            noise_to_signal(made, parameters)
            if loss is None
            else loss(made.clip_norm, made.privacy.mechanism.rounds[-1].noise_multiplier),
            made.rounds,
            gradient_computations(made),
        )
        for made, epsilon in zip(plans, approximate_epsilons(plans), strict=True)
    ]


def approximate_epsilons(plans: Sequence[Plan]) -> NDArray[np.float64]:
    """ε of plans with one δ by the central limit theorem, to compare them; not a guarantee.

    Returns:
        Shape (plans,).
    """
    delta = plans[0].delta
    found = np.array(
        [approximate_clt_mu(made.mechanism) * made.records_per_person for made in plans]
    )
    mu = np.minimum(found, 1e4)
    low, high = np.zeros(len(mu)), mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta))
    for _ in range(40):  # bisection from Chernoff's bound
        middle = (low + high) / 2
        above = gaussian_delta(middle, mu) > delta
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return np.asarray(np.where(found < 1e4, high, np.inf))


def _certified(row: Candidate) -> Candidate:
    interval = exact.epsilon(row.plan.mechanism, row.plan.delta, row.plan.records_per_person)
    warn_if_wide(interval)
    return Candidate(row.plan, interval.upper, row.noise, row.rounds, row.gradients)


def _within(row: Candidate, limits: Mapping[str, float], slack: float) -> bool:
    return all(
        getattr(row, name) <= most * (slack if name == "epsilon" else 1.0)
        for name, most in limits.items()
    )


def _front(rows: Sequence[Candidate]) -> NDArray[np.intp]:
    return np.flatnonzero(non_dominated(np.array([row.costs() for row in rows])))


def _spread_out(rows: Sequence[Candidate], most: int) -> list[Candidate]:
    """At most ``most`` rows: the best of each objective and of the default weights, then others.

    Each further row is the one with the largest distance to all rows chosen before.
    """
    if len(rows) <= most:
        return list(rows)
    costs = np.log(np.maximum([row.costs() for row in rows], 1e-300))
    places = (costs - costs.min(0)) / np.maximum(np.ptp(costs, axis=0), 1e-12)
    weights = np.array([OBJECTIVE_WEIGHTS[name] for name in OBJECTIVES])
    chosen = list(dict.fromkeys([int((costs @ weights).argmin()), *map(int, costs.argmin(0))]))
    nearest = np.min([np.linalg.norm(places - places[row], axis=1) for row in chosen], axis=0)
    while len(chosen) < most and nearest.max() > 0:
        chosen.append(int(nearest.argmax()))
        nearest = np.minimum(nearest, np.linalg.norm(places - places[chosen[-1]], axis=1))
    return [rows[row] for row in chosen]


def non_dominated(costs: NDArray[np.float64]) -> NDArray[np.bool_]:
    """True for each row that no other row dominates.

    A row dominates another one if no cost is higher and one is lower.

    Args:
        costs: shape (plans, objectives), less is better.

    Returns:
        Booleans, shape (plans,).
    """
    keep = np.ones(len(costs), dtype=bool)
    for index, row in enumerate(costs):
        if keep[index]:
            worse = (costs >= row).all(axis=1) & (costs > row).any(axis=1)
            keep &= ~worse
    return keep


def _geometric(least: float, most: float) -> list[int]:
    return sorted({max(1, round(value)) for value in np.geomspace(least, max(least, most), 10)})


def _known(values: Mapping[str, float], what: str) -> None:
    if not isinstance(values, Mapping):
        raise TypeError(f"{what} must be a mapping such as {{'epsilon': 2}}, not {values!r}")
    unknown = set(values) - set(OBJECTIVES)
    if unknown:
        raise ValueError(
            f"{what} know the objectives {', '.join(OBJECTIVES)}, not {', '.join(sorted(unknown))}"
        )


def _out_of_reach(found: Sequence[Candidate], limits: Mapping[str, float]) -> str:
    least = {name: min(getattr(row, name) for row in found) for name in limits}
    if least["epsilon"] > limits["epsilon"]:
        return (
            f"none of the plans has ε of at most {limits['epsilon']:g} (the least has about "
            f"{least['epsilon']:.3g}): raise the limit, or allow more noise or smaller batches"
        )
    text = ", ".join(f"{name} {least[name]:.4g} (limit {limits[name]:g})" for name in limits)
    return f"no plan meets all limits at once; the least each reaches alone: {text}"


# Plans for a private search: the noise of one trial such that the whole search keeps the budget.
#
# A search runs a random number of trials, each with one of several plans, and shows the best. With
# the same noise it costs more than one run; here the noise of a trial is solved for, so that the
# search as a whole keeps the budget. Source: Papernot and Steinke 2022, Theorems 2 and 6.


# The arguments in which candidates may differ: they concern post-processing of noised sums, or
# clipping, whose norm the noise is proportional to.
FREE = tuple(name for name, option in table().items() if option.row.candidate)
NOISE_TOLERANCE = 1e-3


def plan_tuning(
    request: PlanRequest | None = None,
    /,
    *,
    trials: adaptive.Trials,
    candidates: Sequence[Mapping[str, Any]],
    **shared: Unpack[PlanKeywords],
) -> tuple[Plan, ...]:
    """One plan for each candidate, all with the least noise at which the search keeps the budget.

    Args:
        request: the arguments that all candidates share, as for :func:`forethought.plan`; its
            budget is that of the whole search.
        trials: distribution of the number of trials.
        candidates: for each, its own arguments of :func:`forethought.plan`, from
            clip_norm, clip_rule, quantile, optimizer, learning_rate, options, schedule, averaging.
        shared: keywords of :func:`forethought.plan`, in place of ``request`` or replacing its
            fields.

    Returns:
        Plans for :func:`forethought.tune`, in the order of the candidates, with one mechanism.

    Raises:
        PlanError: a candidate that would change the releases, a given noise multiplier or
            preparation, or a request that no plan fulfils.
        TypeError: ``trials`` is no distribution of a number of trials, or ``candidates`` are no
            mappings.

    >>> from forethought.accounting.adaptive import NegativeBinomialTrials
    >>> plans = plan_tuning(
    ...     examples=1000, budget=Budget(3, 1e-4), epochs=20,
    ...     trials=NegativeBinomialTrials.of_mean(8, shape=0),
    ...     candidates=[{"learning_rate": rate} for rate in (0.1, 0.3, 1.0)],
    ... )
    >>> len(plans), len({p.mechanism for p in plans})
    (3, 1)
    """
    adaptive.require_trials(trials)
    if not candidates:
        raise PlanError("candidates is empty: give at least one mapping of arguments to try")
    if not isinstance(candidates, Sequence) or not all(isinstance(c, Mapping) for c in candidates):
        raise TypeError(
            "candidates must be several mappings of arguments to try, such as "
            f"[{{'learning_rate': 0.1}}, {{'learning_rate': 1.0}}], not {candidates!r}"
        )
    for candidate in candidates:
        other = sorted(set(candidate) - set(FREE))
        if other:
            raise PlanError(
                f"candidates may differ in {', '.join(FREE)}, not in {', '.join(other)}: what is "
                "released must be the same in every trial. Give it for all, or make plans with "
                "forethought.plan and hand them to forethought.tune, which accounts for the worst"
            )
    request = PlanRequest.of(request, **shared)
    if request.noise_multiplier is not None:
        raise PlanError("noise_multiplier follows from the budget and the trials: drop it")
    if request.preparation is not None:
        raise PlanError(
            "a search pays for its trials only: standardise with public constants, and drop "
            "preparation= ([training] ranges in a job)"
        )
    budget = request.budget
    if budget is None:
        raise PlanError("a search needs budget=, which all its trials together keep")
    alone = plan(request.with_(centre=False))
    if alone.records_per_person > 1:
        raise PlanError(
            "a search promises something to single records: no theorem here has its ε for "
            f"{alone.records_per_person} together. Use person_as='contribution', where a person is "
            "one record"
        )
    found = _noised(alone.mechanism, trials, budget)
    why = (
        "noise",
        f"the least for which the best of a random number of trials (mean {trials.mean:.3g}) "
        f"keeps ε within {budget.epsilon:g} at δ = {budget.delta:.3g}; one run alone would need "
        f"{alone.mechanism.rounds[0].noise_multiplier:.4g}",
    )
    # The way to protect persons is that of the noise: a candidate's own numbers may prefer another.
    persons = "contribution" if isinstance(alone.contribution, Persons) else request.person_as
    plans = []
    for candidate in candidates:
        own = request.with_(**candidate)
        base = plan(own.with_(centre=False, person_as=persons, hyperparameters=own.chosen_by()))
        if base.clip.rule == "quantile" and request.count_noise is None:
            raise PlanError("the clip rule 'quantile' needs count_noise= for all candidates")
        plans.append(
            base.remade(
                mechanism=found,
                not_covered=(*base.not_covered, adaptive.SEARCH_ALONE),
                reasons=(*(pair for pair in base.reasons if pair[0] != "noise"), why),
            )
        )
    return tuple(plans)


def _noised(alone: Mechanism, trials: adaptive.Trials, budget: Budget) -> Mechanism:
    """A single run's mechanism with the least multiple of its noise that pays for the search."""

    def fits(factor: float) -> bool:
        noised = scaled_noise(alone, factor)
        return adaptive.search_epsilon([noised], trials, budget.delta) <= budget.epsilon

    low = high = 1.0
    while not fits(high):
        low, high = high, 2 * high
        if high > 1e4:
            kind = trials.kind.replace("-", " ").replace("poisson", "Poisson")
            raise PlanError(
                f"no noise keeps the search within ε = {budget.epsilon:g}: the {kind} number of "
                f"trials, of mean {trials.mean:.3g}, costs that much by itself. Raise epsilon, or "
                "lower the mean number of trials"
            )
    while low == high or fits(low):  # a search over hardly any trials may cost less than one run
        low, high = low / 1.5, low
        if low < 1e-6:
            return scaled_noise(alone, high)
    while high / low > 1 + NOISE_TOLERANCE:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return scaled_noise(alone, high)


# Phases: a run continues with less noise and a new sample size until the accuracy is reached.
#
# Exact accounting of the phases so far determines the next phase, which is compared with the
# paper's own calculator. Source: van Dijk et al., "Proactive DP", Appendix E (Figure 15) and E.1.
#
# There are two ways to decide, with two ways to account:
#
# - :func:`plan_phases` fixes the whole sequence before the first round, and only the time of
#   stopping depends on results. A stopped run is a function of the full one, so the exact ε of the
#   full sequence holds at whatever time it stops.
# - :func:`next_by_shortfall`, or any rule that looks at results, chooses noise or sample size
#   during the run. Then only a privacy filter that was set beforehand gives a guarantee.


# σ of a phase over that of the phase before. With this factor every phase can be worth twice the
# budget of the one before, if its sample size grows by about the same factor.
SHRINK = 0.85
# The adaptive rule: accuracy within NEAR of the wanted one counts as near, and the factors on σ
# where it is near or far. Each phase spends half of the filter's rest until the share
# HALVE_UNTIL is used; above the share ENOUGH no further phase runs.
NEAR, NEAR_SHRINK, FAR_SHRINK = 0.03, 0.9, 0.7
HALVE_UNTIL, ENOUGH = 0.5, 0.95
CORRELATED = "phases have independent noise each: give rounds that are not correlated"


@dataclass(frozen=True)
class NextPhase:
    """A phase that keeps the budget, and the result of the closed form for the same request.

    Args:
        rounds: the rounds of the phase.
        epsilon: certified upper ε of all phases up to this one, as if fixed in advance.
        closed_form: the phase that Appendix E.1 allows for the same gradients and noise; None where
            Theorem B.4 allows none, or does not cover this sampling.
        remark: the reason why ``closed_form`` is None, otherwise "".
    """

    rounds: Rounds
    epsilon: float
    closed_form: Phase | None
    remark: str


def next_phase(
    earlier: Mechanism | None,
    *,
    examples: int,
    rounds: int,
    noise_multiplier: float,
    budget: Budget,
    like: Rounds,
    adjacency: Adjacency = "add-or-remove",
    group: int = 1,
) -> NextPhase:
    """The next phase with the largest sample size for which all phases keep the budget.

    Args:
        earlier: the phases so far; None before the first.
        examples: number of records N.
        rounds: number of rounds T_j of the phase.
        noise_multiplier: noise multiplier σ_j of the phase.
        budget: of all phases together.
        like: rounds whose kind of sampling and clipping the phase has.
        adjacency: of the first phase; later phases keep it.
        group: number of records that the budget protects together.

    Raises:
        PlanError: not even a sample size of 1 fits (or, with full batches, the phase itself).
        ValueError, TypeError: an argument outside its range.
    """
    if isinstance(like, Correlated):
        raise PlanError(CORRELATED)
    N, count = whole("examples", examples), whole("rounds", rounds)
    sigma = real("noise_multiplier", noise_multiplier, above=0)

    def part(size: float) -> Rounds:
        return _like(like, sigma, count, like.sampling.resized(int(size), N))

    def total(size: float) -> Mechanism:
        return _behind(earlier, part(size), adjacency)

    size = largest(total, budget, N, group)
    if size is None:
        spent = 0.0 if earlier is None else exact.epsilon(earlier, budget.delta, group).upper
        raise PlanError(
            f"{count} rounds with noise multiplier {sigma:g} do not fit into ε = "
            f"{budget.epsilon:g} after ε = {at_most(spent)} has been spent, even with sample size "
            f"{part(1).sampling.expected_batch(N):g}: raise the noise multiplier, run fewer "
            "rounds, or stop here"
        )
    return _stated(earlier, part(size), adjacency, N, budget, group)


def _like(like: Rounds, sigma: float, count: int, sampling: Sampling) -> Rounds:
    """Independent rounds with the clipping of ``like``."""
    return Rounds(sigma, count, sampling, like.clipping, groups=like.groups)


def _behind(earlier: Mechanism | None, part: Rounds, adjacency: Adjacency) -> Mechanism:
    """The phases so far and one more; the adjacency is that of the phases so far, if any."""
    if earlier is None:
        return Mechanism(part, adjacency=adjacency)
    return earlier + Mechanism(part, adjacency=earlier.adjacency)


def _stated(
    earlier: Mechanism | None,
    part: Rounds,
    adjacency: Adjacency,
    examples: int,
    budget: Budget,
    group: int,
) -> NextPhase:
    """The phase with its certified ε and the result of the closed form."""
    interval = exact.epsilon(_behind(earlier, part, adjacency), budget.delta, group)
    warn_if_wide(interval)
    before = () if earlier is None else earlier.rounds
    found, remark = None, "Theorem B.4 speaks of Poisson sampling and single clipped examples only"
    if group == 1 and all(
        isinstance(p.sampling, Poisson) and p.clipping == "example" for p in (*before, part)
    ):
        sizes = [(p.sampling.expected_batch(examples), p.count) for p in before]
        gradients = round(part.sampling.expected_batch(examples)) * part.count
        given = examples, gradients, budget.epsilon, sizes, part.noise_multiplier, budget.delta
        try:
            found, remark = phase_calculator(*given), ""
        except ValueError as error:
            remark = f"Theorem B.4 allows no such phase: {error}"
    return NextPhase(part, interval.upper, found, remark)


def in_phases(
    plan: Plan, lengths: Sequence[int], phases: int | Sequence[float] | None, shrink: float = SHRINK
) -> Plan:
    """A holder's plan, divided into phases of the given lengths.

    Args:
        plan: with one kind of rounds and a budget.
        lengths: number of rounds of each phase; their sum is the plan's number of rounds.
        phases: the number of phases, which share one budget, see :func:`plan_phases`. Or ε of each
            phase, its own budget at the plan's δ: its noise is then the least that keeps it.
        shrink: as for :func:`plan_phases`.

    Raises:
        PlanError: a plan that :func:`plan_phases` refuses, or phases that together spend more than
            the plan's budget.
    """
    if isinstance(phases, int):
        return plan_phases(plan, phases=phases, shrink=shrink, lengths=lengths)
    if plan.budget is None or len(plan.mechanism.rounds) > 1 or plan.preparation is not None:
        raise PlanError("phases are cut from a plan of equal rounds, with a budget")
    like, adjacency = plan.mechanism.rounds[0], plan.mechanism.adjacency
    if isinstance(like, Correlated):
        raise PlanError(CORRELATED)
    parts = []
    for epsilon, length in zip(phases or (), lengths, strict=True):
        own, equal = Budget(float(epsilon), plan.delta), replace(like, count=length)
        sigma = noise_of(equal, adjacency, own, plan.records_per_person)
        parts.append(replace(equal, noise_multiplier=sigma))
    mechanism = Mechanism(*parts, adjacency=adjacency)
    spent = exact.epsilon(mechanism, plan.delta, plan.records_per_person).upper
    if spent > plan.budget.epsilon:
        raise PlanError(
            f"phases of epsilon {', '.join(f'{one:g}' for one in phases or ())} spend "
            f"{at_most(spent)} together, the budget is {plan.budget.epsilon:g}: take smaller ones, "
            "or a larger epsilon in [budget]"
        )
    kept = tuple(pair for pair in plan.reasons if pair[0] != "noise")
    why = tuple(
        (
            f"phase {number}",
            f"{part.count} rounds with σ = {part.noise_multiplier:.4g}, ε {own:g} by itself; all "
            f"phases together {at_most(spent)}",
        )
        for number, (part, own) in enumerate(zip(parts, phases or (), strict=True), start=1)
    )
    return plan.remade(mechanism=mechanism, reasons=(*kept, *why))


def plan_phases(
    plan: Plan, *, phases: int = 3, shrink: float = SHRINK, lengths: Sequence[int] | None = None
) -> Plan:
    """The plan with its rounds and budget divided into phases of decreasing noise.

    All phases have about as many rounds. In each phase σ is ``shrink`` times that of the phase
    before, the sample size is the largest that exact accounting allows, and the budget is about
    twice that of the phase before (in squared Gaussian μ); the last phase spends the rest. Pass the
    result to ``forethought.train_until``, which stops as soon as the accuracy is reached, or to
    ``forethought.train``.

    Args:
        plan: with one kind of rounds and a budget; clipping, optimizer and the rest are kept.
        phases: number of phases. shrink: factor on σ from phase to phase, in (0, 1).
        lengths: number of rounds of each phase; their sum is the plan's number of rounds. Default:
            as equal as possible.

    Raises:
        PlanError: no budget, several parts, fewer rounds than phases, or ``lengths`` that are not
            one a phase, or have another sum.
    """
    plan = instance("plan", plan, Plan)
    count, factor = whole("phases", phases), real("shrink", shrink, above=0, below=1)
    if plan.preparation is not None and plan.preparation.centres:
        plan = plan.remade(preparation=None)  # the phases share all of the budget
    if plan.budget is None:
        raise PlanError("phases share out a budget: make the plan with budget=")
    if plan.preparation is not None:
        raise PlanError(
            "phases pay for no preparation of the data: standardise with public constants, and "
            "plan without preparation="
        )
    if len(plan.mechanism.rounds) > 1:
        raise PlanError("this plan has several parts already: give one with equal rounds")
    if isinstance(plan.mechanism.rounds[0], Correlated):
        raise PlanError(CORRELATED)
    if plan.rounds < count:
        raise PlanError(f"{plan.rounds} rounds do not make {count} phases: plan more rounds")
    if lengths is None:
        lengths = [plan.rounds // count + (j < plan.rounds % count) for j in range(count)]
    lengths = [whole("each of lengths", length) for length in lengths]
    if len(lengths) != count or sum(lengths) != plan.rounds:
        raise PlanError(
            f"lengths= must be {count} numbers, one a phase, whose sum is the plan's "
            f"{plan.rounds:,} rounds, not {lengths}"
        )
    if count == 1:
        return plan
    budget = plan.budget
    shares = [(2**j - 1) / (2**count - 1) for j in range(1, count + 1)]
    targets = [
        gaussian_epsilon(budget.delta, math.sqrt(share) * defaults.budget_mu(budget))
        for share in shares[:-1]
    ]
    if min(targets) == 0:  # δ alone allows more than the first phase's share
        raise PlanError(f"{count} phases leave the first no ε: take fewer, or a larger budget")
    found: list[NextPhase] = []
    for length, target in zip(lengths, [*targets, budget.epsilon], strict=True):
        found.append(_solved(plan, found, length, Budget(target, budget.delta), factor))
    why = tuple(
        (
            f"phase {j}",
            f"{f.rounds.count} rounds with σ = {f.rounds.noise_multiplier:.4g} and sample size "
            f"{f.rounds.sampling.expected_batch(plan.examples):.0f}; exact ε up to here "
            f"{at_most(f.epsilon)}. Closed form: "
            + (
                f.remark
                if f.closed_form is None
                else f"sample size {f.closed_form.size} in {f.closed_form.rounds} rounds"
            ),
        )
        for j, f in enumerate(found, start=1)
    )
    kept = tuple(pair for pair in plan.reasons if pair[0] not in ("noise", "batch", "rounds"))
    return plan.remade(mechanism=_of_phases(plan, found), reasons=(*kept, *why))


def _of_phases(plan: Plan, found: Sequence[NextPhase]) -> Mechanism:
    return Mechanism(*(phase.rounds for phase in found), adjacency=plan.mechanism.adjacency)


def _solved(
    plan: Plan, found: Sequence[NextPhase], length: int, within: Budget, factor: float
) -> NextPhase:
    """The phase after those found, with the least noise or the largest sample."""
    like = plan.mechanism.rounds[0]
    N, adjacency, group = plan.examples, plan.mechanism.adjacency, plan.records_per_person
    done = _of_phases(plan, found) if found else None
    size = max(1, round(like.sampling.expected_batch(N)))
    if found and not isinstance(like.sampling, FullBatch):
        sigma = factor * found[-1].rounds.noise_multiplier
        phase = next_phase(
            done,
            examples=N,
            rounds=length,
            noise_multiplier=sigma,
            budget=within,
            like=like,
            group=group,
        )
        size = round(phase.rounds.sampling.expected_batch(N))
        if size < N and within != plan.budget:
            return phase
    # The sample size is given or cannot grow, or the last phase has found its own, which leaves
    # what one more record would have cost: the noise is reduced until the budget is spent.
    sampling = like.sampling.resized(size, N)

    def part(sigma: float) -> Rounds:
        return _like(like, sigma, length, sampling)

    def total(sigma: float) -> Mechanism:
        return _behind(done, part(sigma), adjacency)

    near = found[-1].rounds.noise_multiplier if found else like.noise_multiplier
    return _stated(done, part(least_noise(total, within, near, group)), adjacency, N, within, group)


def next_by_shortfall(progress: adaptive.Progress) -> Rounds | None:
    """The next phase by the missing accuracy, as a rule for ``forethought.train_until``.

    Near the wanted accuracy σ falls by a tenth, otherwise by three tenths. The phase is as long as
    the one before. Its sample size is the largest that spends half of the filter's remaining
    budget, or all of it once half of the budget is used.

    Returns:
        The next phase, or None when no sample size fits or almost nothing is left.
    """
    last, accuracy = progress.done[-1]
    ledger = progress.filter
    if ledger.fraction_used > ENOUGH:
        return None
    near = progress.wanted - accuracy <= NEAR
    sigma = last.noise_multiplier * (NEAR_SHRINK if near else FAR_SHRINK)
    # Half of the rest is spent if the rest allows twice the rounds.
    spread = 2 if ledger.fraction_used < HALVE_UNTIL else 1

    def part(size: int, times: int) -> Rounds:
        sampling = last.sampling.resized(size, progress.examples)
        return _like(last, sigma, times * last.count, sampling)

    sizes = range(1, 2 if isinstance(last.sampling, FullBatch) else progress.examples + 1)
    size = bisect_left(sizes, True, key=lambda size: ledger.would_exceed(part(size, spread)))
    return part(size, 1) if size else None
