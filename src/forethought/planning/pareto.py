"""Many targets at once: the plans that no other plan beats in every respect.

Batch × rounds × σ (× C, × records in a group) are searched for the plans that are non-dominated in
privacy, predicted utility, communication and computation. Which grid points to keep is decided with
the central limit theorem's ε (:mod:`forethought.papers.closed_form`), which takes no time; of
what is left at most twenty plans that differ visibly are certified exactly, and only those are
returned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forethought.accounting import closed_bounds, exact
from forethought.accounting.interval import warn_if_wide
from forethought.papers.closed_form import approximate_clt_mu
from forethought.planning.courses import PlanError
from forethought.planning.defaults import EPOCHS_LIMIT, gradient_computations, noise_to_signal
from forethought.planning.plan_request import PlanRequest
from forethought.planning.solve import unchecked
from forethought.values.checks import real, whole
from forethought.values.mechanism import Rounds
from forethought.values.plan import Plan

# What is minimised. Utility from a utility graph enters as the loss 1 − F(w + n)/F(w).
OBJECTIVES = ("epsilon", "noise", "rounds", "gradients")
# What :meth:`Front.best` weighs by: ε and noise trade one for one whatever the plan, so noise must
# count more or the emptiest plan wins; cost decides between plans that are otherwise alike.
OBJECTIVE_WEIGHTS = {"epsilon": 1.0, "noise": 2.0, "rounds": 0.1, "gradients": 0.1}
LEAST_BATCH = 32
# Limits where none is given: the largest ε that the defaults were measured at, and as many passes
# over the data as they take at most.
MOST_EPSILON = 8.0
MOST_PLANS = 20
# How far beyond the limit the approximate ε may be of a plan whose exact one is looked at.
_SLACK = 1.25
_IDLE = 50


@dataclass(frozen=True)
class Candidate:
    """One plan of the front, with what it costs."""

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
        considered: how many plans were looked at.
        limits: objective → the most allowed, those by default among them.
    """

    candidates: tuple[Candidate, ...]
    considered: int
    limits: Mapping[str, float]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: the rows under ``front``, and the limits."""
        return {"front": [row.to_dict() for row in self.candidates], "limits": dict(self.limits)}

    def best(self, weights: Mapping[str, float] | None = None) -> Candidate:
        """The plan with the least weighted sum of log costs.

        Args:
            weights: objective → weight; those left out count 0. Default: :data:`OBJECTIVE_WEIGHTS`.

        Raises:
            ValueError: an unknown objective, a negative weight, or an empty front.
        """
        weights = OBJECTIVE_WEIGHTS if weights is None else dict(weights)
        _known(weights, "weights")
        if not self.candidates:
            raise ValueError("the front is empty: loosen the limits")
        for name, weight in weights.items():
            real(f"weight of {name}", weight, least=0)

        def score(candidate: Candidate) -> float:
            costs = dict(zip(OBJECTIVES, candidate.costs(), strict=True))
            return sum(w * math.log(max(costs[name], 1e-300)) for name, w in weights.items())

        return min(self.candidates, key=score)


@dataclass(frozen=True)
class SearchGrid:
    """The values that a front is searched over; ten of each, evenly spaced in the logarithm, by
    default.

    Args:
        batches, rounds, noise_multipliers: the values to try.
        clip_norms: norms to try; only with ``loss_of_utility``, since noise relative to signal
            does not depend on C.
        group_sizes: records in a group to try, with clipping="group" and no groups of the
            request's own. Noise and gradients are all that the objectives see, and larger groups
            lower neither: sizes below the least that an inner algorithm needs have no place here.
        loss_of_utility: from (C, σ) to the predicted share of utility lost, for example from a
            utility graph; then it is the objective "noise".
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
            object.__setattr__(self, name, known)
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
        request: what is known and wanted, as for :func:`forethought.plan`. What it fixes (batch,
            length, noise, clipping, optimizer, step size, …) every plan keeps; its budget is a
            limit on ε.
        batches, rounds, noise_multipliers, clip_norms, group_sizes, loss_of_utility: see
            :class:`SearchGrid`.
        limits: objective → the most allowed, for example ``{"epsilon": 3, "rounds": 500}``.
            Without one on ε, :data:`MOST_EPSILON`; without one on the length or the gradients,
            30 passes over the data.
        keywords: of :func:`forethought.plan`, in place of ``request`` or going before it.

    Returns:
        The front. Every row's plan can be saved and run.

    Raises:
        ValueError, PlanError: an argument outside its range, or limits that nothing meets.
    """
    grid = SearchGrid(batches, rounds, noise_multipliers, clip_norms, loss_of_utility, group_sizes)
    request = PlanRequest.of(**keywords) if request is None else request.with_(**keywords)
    if group_sizes and (request.clipping != "group" or request.groups is not None):
        raise PlanError("group_sizes= go with clipping='group', and with no groups=: drop one")
    limits = _limits(request, grid, limits)
    request = request.with_(budget=None, delta=request.settled_delta())
    plans = [unchecked(point) for point in _requests(request, grid)]
    approximate = _approximate(plans, request.parameters or 1, grid.loss_of_utility)
    allowed = [row for row in approximate if _within(row, limits, _SLACK)]
    if not allowed:
        raise PlanError(_out_of_reach(approximate, limits))
    kept = [allowed[row] for row in _front(allowed)]
    # Plans that spend next to nothing of what is allowed are left out where there are others.
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
    limits = {name: real(f"limit of {name}", most, above=0) for name, most in (given or {}).items()}
    _known(limits, "limits")
    if request.budget is not None:
        limits.setdefault("epsilon", request.budget.epsilon)
    limits.setdefault("epsilon", MOST_EPSILON)
    settled = request.timed or request.batch is not None or grid.rounds or grid.batches
    if not settled and "rounds" not in limits:
        limits.setdefault("gradients", EPOCHS_LIMIT * request.examples)
    return limits


def _requests(request: PlanRequest, grid: SearchGrid) -> list[PlanRequest]:
    """One for each point of the grid; what the request fixes has no grid."""
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
    found = [
        request.with_(
            batch=batch,
            groups=request.groups if each is None else batch // each,
            rounds=length,
            noise_multiplier=float(sigma),
            clip_norm=request.clip_norm if norm is None else norm,
            # That these numbers were searched is no choice of the user's.
            hyperparameters=request.chosen_by(),
        )
        for batch, sigma, norm, length, each in product(
            sorted(set(batches)),
            sigmas,
            grid.clip_norms or (None,),
            lengths,
            grid.group_sizes or (None,),
        )
        if batch >= (each or request.groups or 1)
    ]
    if not found:
        raise PlanError("every batch is smaller than a group, or than the number of groups")
    fitting = [point for point in found if _has_room(point)]
    if not fitting:
        raise PlanError(
            "no batch leaves room for the largest sample of size_schedule=: give a growth nearer "
            "to 1, or a smaller batch"
        )
    return fitting


def _has_room(point: PlanRequest) -> bool:
    """True if the largest sample of a course fits into the data."""
    if point.course.sizes == "constant" or point.batch is None:
        return True
    like = Rounds(1.0, point.length_of(point.batch), point.sampling_of(point.batch))
    return point.batch <= point.course.room(like, point.examples)


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
    """ε of plans with one δ by the central limit theorem: to sort them by, never a guarantee."""
    delta = plans[0].delta
    found = np.array(
        [approximate_clt_mu(made.mechanism) * made.records_per_person for made in plans]
    )
    mu = np.minimum(found, 1e4)
    low, high = np.zeros(len(mu)), mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta))
    for _ in range(40):  # Chernoff's bound is halved until its end is as good as exact
        middle = (low + high) / 2
        above = closed_bounds.gaussian_delta(middle, mu) > delta
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
    """The best in each respect and by default, then always the row furthest from all so far."""
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
    """True for each row that no other beats: at most as costly everywhere and cheaper somewhere.

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
