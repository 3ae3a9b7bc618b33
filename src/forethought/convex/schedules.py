"""Schedules: functions t = 1, 2, … → (noise, step size) that are fixed before the run.

σ_t is the standard deviation of the noise on every coordinate of the *mean* gradient, η_t the step
size. Sources: "Adaptive Hyperparameter Selection for Differentially Private Gradient Descent",
Proposition 3; :mod:`forethought.papers.adaptive_noise` has its formulas under their own names.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from forethought.accounting.dominating_pair import gaussian_epsilon, gaussian_mu
from forethought.accounting.interval import at_most
from forethought.convex.problems import Problem
from forethought.papers import adaptive_noise
from forethought.values.checks import real, whole
from forethought.values.mechanism import Budget

Schedule = Callable[[int], tuple[float, float]]
"""t, from 1 → (σ_t, η_t)."""

# Most rounds of a plan; each is a pass over the data.
MOST_ROUNDS = 1_000_000


@dataclass(frozen=True)
class Horizon:
    """The rounds of a schedule that a budget affords.

    Attributes:
        sigmas, steps: σ_t and η_t of these rounds, shape (T,).
        mu: μ of these rounds as one Gaussian release, μ² = Σ (Δ/σ_t)².
    """

    sigmas: tuple[float, ...]
    steps: tuple[float, ...]
    mu: float


def nonconvex(problem: Problem, features: int, gap: float | None = None) -> Schedule:
    """Proposition 3(a): σ_t = 4M √(F(θ_0) − F*)/(√d t), η = 1/(2M).

    Args:
        features: d, the number of weights.
        gap: F(θ_0) − F*; default: the loss at zero.
    """
    M, S = problem.smoothness, problem.loss_at_zero if gap is None else gap
    return lambda t: (adaptive_noise.nonconvex_sigma(t, M, S, features), 1 / (2 * M))


def convex(problem: Problem, features: int, radius: float | None = None) -> Schedule:
    """Proposition 3(b): σ_t = 4MR/(√d t), η = 1/(2M); iterates stay in the ball of radius R.

    Args:
        radius: R; default: the problem's.

    Raises:
        ValueError: no radius, or a loss that is not convex.
    """
    _require_convex(problem)
    M, R = problem.smoothness, problem.radius if radius is None else radius
    if R is None:
        raise ValueError(
            "Proposition 3(b) needs a radius: give the problem one, or l2= and strongly_convex"
        )
    return lambda t: (adaptive_noise.convex_sigma(t, M, R, features), 1 / (2 * M))


def strongly_convex(problem: Problem, features: int, gap: float | None = None) -> Schedule:
    """Proposition 3(c): σ_t = √(2μ (F(θ_0) − F*)(1 − μ/(2M))^t/d), η = 1/(2M).

    Raises:
        ValueError: no strong convexity (l2 = 0), or a loss that is not convex.
    """
    _require_convex(problem)
    M, mu = problem.smoothness, problem.convexity
    if mu == 0:
        raise ValueError(
            "Proposition 3(c) needs strong convexity: give l2= above 0, or convex and a radius"
        )
    S = problem.loss_at_zero if gap is None else gap
    return lambda t: (adaptive_noise.strongly_convex_sigma(t, M, mu, S, features), 1 / (2 * M))


def published(problem: Problem, features: int) -> Schedule:
    """The paper's choice: (c) if the loss is strongly convex, (b) if it is convex, else (a)."""
    if not problem.is_convex:
        return nonconvex(problem, features)
    return strongly_convex(problem, features) if problem.convexity else convex(problem, features)


def constant(problem: Problem, sigma: float, step: float | None = None) -> Schedule:
    """σ_t = σ; the step size is ``step``, 1/(2M) by default."""
    return geometric(problem, real("sigma", sigma, above=0), 1.0, step)


def geometric(problem: Problem, first: float, ratio: float, step: float | None = None) -> Schedule:
    """σ_t = first · ratio^(t − 1); the step size is ``step``, 1/(2M) by default."""
    size, factor = real("first", first, above=0), real("ratio", ratio, above=0)
    eta = 1 / (2 * problem.smoothness) if step is None else real("step", step, above=0)
    return lambda t: (size * factor ** (t - 1), eta)


def _require_convex(problem: Problem) -> None:
    if not problem.is_convex:
        raise ValueError("this schedule is for convex losses: use the schedule nonconvex")


def horizon(
    schedule: Schedule,
    budget: Budget,
    sensitivity: float,
    most: int | None = None,
    before: float = 0.0,
) -> Horizon:
    """The most iterations of a schedule whose exact cost is within the budget.

    Gaussian releases with noise fixed in advance compose to one Gaussian release with
    μ² = Σ (Δ/σ_t)² (Dong, Roth and Su 2022, Corollary 3.3), also if each depends on earlier
    outputs; the largest μ within (ε, δ) is exact (Balle and Wang 2018, Theorem 8).

    Args:
        schedule: any function of t; called in order, once for each t.
        budget: (ε, δ).
        sensitivity: Δ, the distance by which one record moves the mean gradient.
        most: largest number of iterations; default :data:`MOST_ROUNDS`.
        before: μ² of earlier releases.

    Raises:
        ValueError: the schedule gives no σ_t and η_t, or one that is not above 0, or the budget
            does not pay for one round; the message names the ε that one round needs.
    """
    delta = real("sensitivity", sensitivity, above=0)
    limit = MOST_ROUNDS if most is None else whole("most", most, most=MOST_ROUNDS)
    # Slightly below the limit, for the rounding of this sum and of the certified ε.
    allowed = (gaussian_mu(budget.epsilon, budget.delta) * (1 - 1e-9)) ** 2 - before
    sigmas: list[float] = []
    steps: list[float] = []
    spent = lost = 0.0
    while len(sigmas) < limit:
        t = len(sigmas) + 1
        try:
            sigma, eta = schedule(t)
        except (TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise ValueError(
                f"no noise and step size for iteration {t}: give both, or end by rounds= ({error})"
            ) from error
        sigma = real(f"sigma of iteration {t}", sigma, above=0)
        cost = (delta / sigma) * (delta / sigma)  # a power is an error where this is infinite
        # Kahan summation: no rounding error accumulates over a million small costs.
        part = cost - lost
        total = spent + part
        if total > allowed:
            break
        lost, spent = (total - spent) - part, total
        sigmas.append(sigma)
        steps.append(real(f"step size of iteration {t}", eta, above=0))
    if not sigmas:
        first = math.hypot(delta / sigma, math.sqrt(before))
        needed = gaussian_epsilon(budget.delta, first * (1 + 1e-9))
        raise ValueError(
            f"the budget pays for no iteration of this schedule: its first noise, {sigma:.4g}, "
            f"against a sensitivity of {delta:.4g} spends ε = {at_most(needed)} at δ = "
            f"{at_most(budget.delta)}. Raise ε to that, take more noise, or the default schedule"
        )
    return Horizon(tuple(sigmas), tuple(steps), math.sqrt(spent))
