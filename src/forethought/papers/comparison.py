"""The papers' bounds beside a plan: ε of its mechanism, and what its rounds attain."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from forethought.accounting import exact
from forethought.accounting.interval import at_least
from forethought.accounting.renyi import rdp, zcdp
from forethought.papers import closed_form
from forethought.papers.adaptive_noise import paper_epsilon
from forethought.papers.convergence import (
    UtilityBound,
    best_step,
    improvement,
    local_degradation,
    proposition_3,
    proposition_4,
)
from forethought.papers.strong_adversary import KnownHits
from forethought.values.checks import instance, real, whole
from forethought.values.mechanism import Mechanism, Poisson, Rounds, UnsupportedMechanismError
from forethought.values.plan import Plan
from forethought.values.serialisation import entries


@dataclass(frozen=True)
class ComparisonRow:
    """The ε of one analysis.

    Args:
        name: the analysis.
        epsilon: its ε; None if it does not apply.
        guarantee: True if the number is a proven upper bound for the stated attacker.
        note: a remark, or the reason why the analysis does not apply.
    """

    name: str
    epsilon: float | None
    guarantee: bool
    note: str

    def to_dict(self) -> dict[str, Any]:
        """A mapping ready for JSON."""
        return entries(self)


# ε, True if it is a proven upper bound, and a remark.
_Answer = tuple[float, bool, str]


class _DoesNotApplyError(ValueError):
    """An analysis does not apply to the mechanism; the message is the reason."""


def compare(
    mechanism: Mechanism, delta: float, examples: int | None = None, group: int = 1
) -> list[ComparisonRow]:
    """ε by every analysis of this library.

    Args:
        mechanism: the released rounds.
        delta: in (0, 1).
        examples: number of records; the closed form needs it.
        group: number of records in which neighbours differ; most analyses are for one record only.

    Returns:
        One row for each analysis, the exact one first.

    Raises:
        UnsupportedMechanismError: no theorem covers the mechanism.
    """
    interval = exact.epsilon(mechanism, delta, group)
    note = f"certified; at least {at_least(interval.lower, '.6g')}"
    rows = [ComparisonRow("exact", interval.upper, True, note)]
    analyses: dict[str, Callable[[], _Answer]] = {
        "Rényi": lambda: (rdp(mechanism).epsilon(delta), True, "loses what orders cannot see"),
        "zCDP": lambda: _zcdp(mechanism, delta),
        "closed form": lambda: _closed_form(mechanism, delta, examples),
        "CLT (approximate)": lambda: (
            closed_form.approximate_clt_epsilon(mechanism, delta),
            False,
            "no bound: may be too small as well as too large",
        ),
        "strong adversary": lambda: _strong_adversary(mechanism, delta),
    }
    for name, analyse in analyses.items():
        try:
            if group > 1:
                raise _DoesNotApplyError(f"speaks of one record, not of {group} together")
            rows.append(ComparisonRow(name, *analyse()))
        except (_DoesNotApplyError, UnsupportedMechanismError) as error:
            rows.append(ComparisonRow(name, None, False, str(error)))
    return rows


def _zcdp(mechanism: Mechanism, delta: float) -> _Answer:
    rho = zcdp(mechanism)
    if not math.isfinite(rho):
        raise _DoesNotApplyError("there is no noise")
    return paper_epsilon(rho, delta), True, f"ρ = {rho:.6g}; sampling does not lower ρ"


def _only(mechanism: Mechanism) -> Rounds:
    if len(mechanism.rounds) != 1:
        raise _DoesNotApplyError("speaks of equal rounds only")
    return mechanism.rounds[0]


def _closed_form(mechanism: Mechanism, delta: float, examples: int | None) -> _Answer:
    part = _only(mechanism)
    if (
        not isinstance(part.sampling, Poisson)
        or part.clipping != "example"
        or mechanism.adjacency == "replace-one"
    ):
        raise _DoesNotApplyError("speaks of Poisson batches and clipped examples only")
    if examples is None:
        raise _DoesNotApplyError("needs the number of examples")
    examples, sigma = whole("examples", examples), part.noise_multiplier
    if sigma**2 <= 2:
        raise _DoesNotApplyError("needs σ above √2")
    epsilon = closed_form.closed_form_epsilon(sigma, delta)
    sizes = closed_form.SampleSizes.constant(part.sampling.rate * examples, part.count, examples)
    for theorem in (closed_form.theorem_b_4, closed_form.theorem_3_1):
        found = theorem(epsilon, delta, sigma, sizes)
        if found.holds:
            return epsilon, True, f"{found.theorem} of the proactive paper holds"
    found = closed_form.theorem_b_4(epsilon, delta, sigma, sizes)
    failed = next(condition for condition in found.conditions if not condition.holds)
    return epsilon, False, f"not proven here: Theorem B.4 lacks {failed.name}"


def _strong_adversary(mechanism: Mechanism, delta: float) -> _Answer:
    part = _only(mechanism)
    if part.noise_multiplier == 0:
        raise _DoesNotApplyError("there is no noise")
    known = KnownHits.of_rounds(part, mechanism.adjacency)
    note = "the attacker also knows which batches held the record"
    return known.epsilon(delta).upper, True, note


# What a plan's rounds attain.


class AttainedBound(NamedTuple):
    """A bound of a paper, and the same quantity of the plan's own rounds on F(θ) = M‖θ‖²/2."""

    bound: UtilityBound
    runs: float


@np.errstate(over="ignore", invalid="ignore")
def utility_bounds(
    plan: Plan, parameters: int, smoothness: float, gap: float, convexity: float | None = None
) -> list[AttainedBound]:
    """The papers' bounds on utility at a plan's step size, noise and rounds, beside what runs.

    None is a promise: they hold for descent along whole gradients, without sampling and clipping,
    and rest on constants of F that are not known for a network. ``runs`` is exact for
    F(θ) = M‖θ‖²/2 in as many dimensions, from F(θ_0) − F* = ``gap``, with the plan's noise and
    momentum and at its first step size.

    Args:
        plan: of SGD with independent noise.
        parameters: d.
        smoothness: M, the largest curvature of F.
        gap: F(θ_0) − F*.
        convexity: μ, the least curvature; None: the bounds for any F.

    Raises:
        ValueError: a number outside its range, or a plan with another optimizer, with other options
            than momentum, or with correlated noise.
    """
    d, M = whole("parameters", parameters), real("smoothness", smoothness, above=0)
    first, step = instance("plan", plan, Plan).round(0), plan.optimizer.learning_rate
    more = any(value for name, value in plan.optimizer.options if name != "momentum")
    if plan.optimizer.name != "sgd" or more or first.strategy is not None:
        raise ValueError(
            "the papers' bounds are for gradient descent with independent noise: make the plan "
            "with optimizer='sgd', no option but momentum, and no strategy"
        )
    rounds = map(plan.round, range(plan.rounds))
    sigmas = [each.noise_std / each.divisor for each in rounds]
    start = math.sqrt(2 * real("gap", gap, above=0) / M)
    squares = _squared_distances(start, M, step, plan.optimizer.momentum, sigmas, d)
    told: dict[str, Any] = {"gap": gap, "convexity": convexity}
    attained = M * (M * squares[:-1].mean()) if convexity is None else M / 2 * squares[-1]
    rates = [proposition_3(plan.rounds, M, **told)]
    if 0 < (rho := zcdp(plan.privacy.accounted)) < math.inf:
        rates.append(proposition_4(rho, M, plan.clip.norm, plan.examples, d, **told))
    best = best_step(sigmas[0], M * start, M, d)
    gained = improvement(step, sigmas[0], M * start, M, d)
    why = f"equation (12): most at step size {best:.4g}; the plan has {step:.4g}"
    lemma = UtilityBound("Lemma 1", "F(θ_0) − E F(θ_1), at least", gained, gained, why)
    apart = local_degradation(1, step, plan.clip.norm, first.noise_multiplier / first.divisor, 1, d)
    note = "of private federated learning; what runs is the noise alone"
    shift = UtilityBound("Theorem 2", "E‖θ̃_1 − θ_1‖, of one release", apart, apart, note)
    return [
        *(AttainedBound(rate, float(attained)) for rate in rates),
        AttainedBound(lemma, float(M / 2 * (squares[0] - squares[1]))),
        AttainedBound(shift, apart - step * plan.clip.norm),
    ]


def _squared_distances(
    start: float, M: float, step: float, momentum: float, sigmas: list[float], d: int
) -> NDArray[np.float64]:
    """E‖θ_t‖² of SGD on M‖θ‖²/2 from a θ_0 of length ``start``, t = 0 to the number of rounds."""
    turn = np.array([[1 - step * M, -step * momentum], [M, momentum]])
    noise = np.outer([-step, 1.0], [-step, 1.0])
    second = np.diag([start * start, 0.0])  # of θ and of the momentum's sum, over all coordinates
    found = [second[0, 0]]
    for sigma in sigmas:
        second = turn @ second @ turn.T + d * (sigma * sigma) * noise
        found.append(second[0, 0])
    # A path that leaves the doubles is infinite from there on, where products with 0 give NaN.
    return np.asarray(np.nan_to_num(found, nan=math.inf, posinf=math.inf))
