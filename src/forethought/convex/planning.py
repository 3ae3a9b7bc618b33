"""From what is public (loss, sizes, budget) to the plan of a descent."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from forethought.accounting import exact
from forethought.accounting.closed_bounds import gaussian_mu
from forethought.caveats import Caveat
from forethought.checks import real, whole
from forethought.contributions import LinearExamples
from forethought.convex.descent_plan import DescentPlan
from forethought.convex.problems import PROBLEMS, Problem
from forethought.convex.recipe import Recipe, recipe
from forethought.convex.schedules import MOST_ROUNDS, Horizon, Schedule, horizon
from forethought.mechanism import Adjacency, Budget, Mechanism, Rounds, sensitivity
from forethought.preparation import Preparation
from forethought.privacy import LEAST_NOISE, Clip, NoiseKind, Privacy
from forethought.samplings import FullBatch

# Share of the budget's μ² that a preparation is given.
PREPARATION = 0.1


def plan(
    problem: Problem,
    budget: Budget,
    *,
    examples: int,
    features: int,
    schedule: Schedule | None = None,
    clip_norm: float | None = None,
    rounds: int | None = None,
    adjacency: Adjacency = "replace-one",
    noise: NoiseKind = "gaussian",
    preparation: Preparation | None = None,
    hyperparameters: Caveat | str | None = None,
    not_covered: Iterable[Caveat | str] = (),
) -> DescentPlan:
    """A private descent, planned: how much noise and how long a step in each of how many rounds.

    Args:
        problem: the loss with its public bounds.
        budget: (ε, δ).
        examples: N, taken as public. features: columns of the data.
        schedule: t → (σ_t, η_t), of :mod:`forethought.convex.schedules` or any function of t that
            does not look at the data; it runs as long as the budget lasts, counted exactly.
            Default: the schedule that needs no tuning (docs/adaptive_noise.md), for convex losses.
        clip_norm: C. Default: with a schedule the bound L, by which nothing is clipped that keeps
            to its bounds; without, what the default schedule takes, L/2 to L.
        rounds: at most so many with a ``schedule``.
        adjacency: what a neighbour is. Replacing a record moves a sum twice as far as adding one.
        noise: "gaussian", or "grid" for discrete noise in whole numbers.
        preparation: moments or quantiles of the features that are released first, and paid for, to
            standardise them with (:func:`forethought.prepare`); the problem's bounds are then those
            of prepared features. Its noise is the planner's choice where it has none.
        hyperparameters, not_covered: for the Statement.

    Returns:
        A plan whose certified ε is within the budget.

    Raises:
        TypeError, ValueError: arguments that no plan fulfils; a budget too small for one round of
            the schedule says which ε it needs.
    """
    if type(problem) not in PROBLEMS.values():
        raise TypeError(f"problem must be one of forethought.convex's losses, not {problem!r}")
    if not isinstance(budget, Budget):
        raise TypeError(f"budget must be a Budget(epsilon, delta), not {budget!r}")
    N, d = whole("examples", examples), whole("features", features)
    if problem.convexity > problem.smoothness:
        raise ValueError(
            f"the constants contradict each other: strong convexity {problem.convexity:g} exceeds "
            f"smoothness {problem.smoothness:g}"
        )
    weights = (d + bool(problem.intercept)) * problem.outputs
    moved = sensitivity(Rounds(1.0, 1, FullBatch()), adjacency)
    why: dict[str, str] = {}
    preparation, before = _prepared(preparation, budget, moved, why)
    if schedule is None:
        if rounds is not None:
            raise ValueError("rounds= goes with a schedule=: the default one has its own number")
        mu = math.sqrt(gaussian_mu(budget.epsilon, budget.delta) ** 2 - before)
        found = recipe(problem, N, weights, mu, moved)
        C = found.clip_norm if clip_norm is None else real("clip_norm", clip_norm, above=0)
        length = _scaled(found, mu, moved * C / N)
        _explain(why, problem, found, length)
        accelerated = found.accelerated
    else:
        C = problem.lipschitz if clip_norm is None else real("clip_norm", clip_norm, above=0)
        length = horizon(schedule, budget, moved * C / N, rounds, before)
        accelerated = False
        why["noise and steps"] = "the schedule that was given"
        capped = len(length.sigmas) == (rounds or MOST_ROUNDS)
        why["rounds"] = "as many as were allowed" if capped else "as many as the budget affords"
    why["clipping"] = (
        f"{C:.4g}, {C / problem.lipschitz:.0%} of the bound {problem.lipschitz:.4g} on a gradient "
        "that follows from the declared bounds"
    )
    mechanism = _within(budget, length, N / C, adjacency, preparation)
    chosen = hyperparameters or _chosen_by(schedule, clip_norm)
    return DescentPlan(
        problem,
        Privacy(mechanism, N, budget.delta, Clip(C), LinearExamples(), noise, budget, preparation),
        d,
        length.steps,
        accelerated=accelerated,
        hyperparameters=chosen,
        not_covered=not_covered,
        reasons=tuple(why.items()),
    )


def _chosen_by(schedule: Schedule | None, clip_norm: float | None) -> Caveat:
    given = [("schedule", schedule), ("clip norm", clip_norm)]
    named = ", ".join(name for name, value in given if value is not None)
    if not named:
        return Caveat("planned")
    return Caveat("declared-as", f"{named}; the planner chose the rest from no data")


def _prepared(
    asked: Preparation | None, budget: Budget, moved: float, why: dict[str, str]
) -> tuple[Preparation | None, float]:
    """The preparation with its noise, and the μ² that it spends."""
    if asked is None:
        return None, 0.0
    mu, releases = gaussian_mu(budget.epsilon, budget.delta), asked.releases
    sigma = asked.noise_multiplier
    if sigma is None:
        sigma = moved / mu * math.sqrt(releases / PREPARATION)
        why["preparation"] = (
            f"{PREPARATION:.0%} of the budget's μ² for its {len(asked.statistics)} releases"
        )
    if sigma == 0 or releases * (moved / sigma) ** 2 >= mu**2:
        raise ValueError(
            f"the preparation leaves nothing of ε = {budget.epsilon:g}: give it a noise_multiplier "
            f"above {moved * math.sqrt(releases) / mu:.4g}, or none"
        )
    return replace(asked, noise_multiplier=sigma), releases * (moved / sigma) ** 2


def _scaled(found: Recipe, mu: float, delta: float) -> Horizon:
    """The recipe's noise at the scale that spends the budget: Σ (Δ/σ_t)² = μ²."""
    mu *= 1 - 1e-9
    scale = delta * math.sqrt(math.fsum(size**-2 for size in found.shape)) / mu
    sigmas = tuple(scale * size for size in found.shape)
    return Horizon(sigmas, (found.step,) * len(sigmas), mu)


def _explain(why: dict[str, str], problem: Problem, found: Recipe, length: Horizon) -> None:
    T = len(length.sigmas)
    kind = "accelerated steps" if found.accelerated else "plain steps"
    why["rounds"] = (
        f"{T:,} {kind} of {found.step:.4g}, a total step of about {found.travel:.4g}: where what "
        "the weights still lack and the noise that they have gathered are least together"
    )
    why["noise"] = (
        f"from {length.sigmas[0]:.4g} to {length.sigmas[-1]:.4g} a coordinate of the mean "
        "gradient, falling because early noise is forgotten; all rounds together spend the budget"
    )


def _within(
    budget: Budget,
    length: Horizon,
    scale: float,
    adjacency: Adjacency,
    preparation: Preparation | None,
) -> Mechanism:
    """The rounds with noise multipliers σ_t N/C, a hair larger where the certified ε needs it."""
    grow = 1.0
    while True:
        multipliers = [sigma * scale * grow for sigma in length.sigmas]
        if min(multipliers) < LEAST_NOISE:
            raise ValueError(
                f"a noise of {min(length.sigmas):.4g} on the mean is {min(multipliers):.3g} of "
                f"what one record can add, which protects nothing: use at least {LEAST_NOISE:g}"
            )
        rounds = (Rounds(value, 1, FullBatch()) for value in multipliers)
        mechanism = Mechanism(*rounds, adjacency=adjacency)
        whole_run = mechanism if preparation is None else preparation.before(mechanism)
        if exact.epsilon(whole_run, budget.delta).upper <= budget.epsilon:
            return mechanism
        if grow > 1.001:
            raise ArithmeticError(
                "the certified ε stays above the budget whatever the noise, which is a fault of "
                "this library: please report it"
            )
        grow = 1 + max(1e-12, 10 * (grow - 1))
