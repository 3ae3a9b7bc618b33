"""Many targets at once: the plans that no other plan beats in every respect.

Batch × rounds × σ (× C) are searched for the plans that are non-dominated in privacy, predicted
utility, communication and computation. ε is certified in every row, to 1 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forethought.accounting import exact
from forethought.mechanism import real, whole
from forethought.planning.defaults import default_delta
from forethought.planning.noise_to_signal import gradient_computations, noise_to_signal
from forethought.planning.solve import PlanError, plan
from forethought.plans import Plan

# What is minimised. Utility from a utility graph enters as the loss 1 − F(w + n)/F(w).
OBJECTIVES = ("epsilon", "noise", "rounds", "gradients")
# What :meth:`Front.best` weighs by: ε and noise trade one for one whatever the plan, so noise must
# count more or the emptiest plan wins; cost decides between plans that are otherwise alike.
WEIGHTS = {"epsilon": 1.0, "noise": 2.0, "rounds": 0.1, "gradients": 0.1}
LEAST_BATCH = 32


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
    """The non-dominated plans, from most private to least, and how many were looked at."""

    candidates: tuple[Candidate, ...]
    considered: int

    def best(self, weights: Mapping[str, float] | None = None) -> Candidate:
        """The plan with the least weighted sum of log costs.

        Args:
            weights: objective → weight; those left out count 0. Default: :data:`WEIGHTS`.

        Raises:
            ValueError: an unknown objective, a negative weight, or an empty front.
        """
        weights = WEIGHTS if weights is None else dict(weights)
        _known(weights, "weights")
        if not self.candidates:
            raise ValueError("the front is empty: loosen the limits")
        for name, weight in weights.items():
            real(f"weight of {name}", weight, least=0)

        def score(candidate: Candidate) -> float:
            costs = dict(zip(OBJECTIVES, candidate.costs(), strict=True))
            return sum(w * math.log(max(costs[name], 1e-300)) for name, w in weights.items())

        return min(self.candidates, key=score)


def pareto(
    *,
    examples: int,
    delta: float | None = None,
    batches: Sequence[int] | None = None,
    rounds: Sequence[int] | None = None,
    noise_multipliers: Sequence[float] | None = None,
    clip_norms: Sequence[float] | None = None,
    loss_of_utility: Callable[[float, float], float] | None = None,
    parameters: int = 1,
    limits: Mapping[str, float] | None = None,
    **options: Any,
) -> Front:
    """Search batch × rounds × σ (× C) for the non-dominated plans.

    Args:
        examples, delta: as for :func:`forethought.plan`.
        batches, rounds, noise_multipliers: the grid; ten of each, evenly spaced in the logarithm,
            by default.
        clip_norms: norms to try; only with ``loss_of_utility``, since noise relative to signal
            does not depend on C.
        loss_of_utility: from (C, σ) to the predicted share of utility lost, for example from a
            utility graph; then it is the objective "noise".
        parameters: number of trained parameters, for noise relative to signal.
        limits: objective → the most allowed, for example ``{"epsilon": 3, "rounds": 500}``.
        options: handed to :func:`forethought.plan`.

    Returns:
        The front. Every row's plan can be saved and run.

    Raises:
        ValueError, PlanError: an argument outside its range, or limits that nothing meets.
    """
    examples = whole("examples", examples)
    limits = dict(limits or {})
    _known(limits, "limits")
    if clip_norms is not None and loss_of_utility is None:
        raise ValueError(
            "clip_norms need loss_of_utility=: without it the clip norm changes no objective"
        )
    delta = default_delta(examples) if delta is None else real("delta", delta, above=0, below=1)
    if options.get("sampling") == "full-batch":
        batches = [examples]
    least = min(examples, max(LEAST_BATCH, examples / 1000))
    batches = batches or _spread(least, max(least, examples / 4))
    rounds = rounds or _spread(30, 3000)
    sigmas = list(noise_multipliers or np.geomspace(0.6, 30, 10))
    most_epsilon = limits.get("epsilon", math.inf)
    found: list[Candidate] = []
    considered = 0
    lengths = sorted(set(rounds))
    for batch, sigma, clip_norm in product(sorted(set(batches)), sigmas, clip_norms or (None,)):
        make = partial(
            plan,
            examples=examples,
            delta=delta,
            batch=batch,
            noise_multiplier=float(sigma),
            clip_norm=clip_norm,
            **options,
        )
        longest = make(rounds=lengths[-1])
        lost = None if loss_of_utility is None else loss_of_utility(longest.clip_norm, sigma)
        curve = exact.epsilon_curve(longest.mechanism, delta, lengths)
        considered += len(lengths)
        for count, interval in zip(lengths, curve, strict=True):
            if interval.upper > most_epsilon:
                break  # ε only grows with rounds
            chosen = make(rounds=count)
            noise = noise_to_signal(chosen, parameters) if lost is None else lost
            gradients = gradient_computations(chosen)
            found.append(Candidate(chosen, interval.upper, noise, count, gradients))
    allowed = [
        candidate
        for candidate in found
        if all(getattr(candidate, name) <= most for name, most in limits.items())
    ]
    if not allowed:
        raise PlanError(_out_of_reach(found, limits, considered))
    costs = np.array([candidate.costs() for candidate in allowed])
    front = [
        candidate for candidate, keep in zip(allowed, non_dominated(costs), strict=True) if keep
    ]
    return Front(tuple(sorted(front, key=lambda c: c.costs())), considered)


def non_dominated(costs: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which rows no other row beats: at most as costly in every column and cheaper in one.

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


def _spread(least: float, most: float) -> list[int]:
    return sorted({max(1, round(value)) for value in np.geomspace(least, max(least, most), 10)})


def _known(values: Mapping[str, float], what: str) -> None:
    unknown = set(values) - set(OBJECTIVES)
    if unknown:
        raise ValueError(
            f"{what} know the objectives {', '.join(OBJECTIVES)}, not {', '.join(sorted(unknown))}"
        )


def _out_of_reach(found: Sequence[Candidate], limits: Mapping[str, float], considered: int) -> str:
    if not found:
        return (
            f"none of {considered} plans has ε of at most {limits['epsilon']:g}: raise the limit, "
            "or allow more noise or smaller batches"
        )
    least = {name: min(getattr(c, name) for c in found) for name in limits}
    text = ", ".join(f"{name} {least[name]:.4g} (limit {limits[name]:g})" for name in limits)
    return f"no plan meets all limits at once; the least each reaches alone: {text}"
