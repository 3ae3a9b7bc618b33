"""The default schedule: nothing to tune, no look at the data.

In directions that the data leave flat, noise moves each weight by (uΔ/μ)² in variance after the
total step u = Σ η_t, however many iterations it takes, and rows of norm Z spread it over an excess
risk of at most half the trace of the Hessian times that. So u is chosen, against what the weights
still lack after it; the number of iterations only has to let steps of 1/M reach u. Without strong
convexity steps are accelerated (Nesterov 1983); the noise falls in either case, since early noise
is forgotten and late noise stays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy.optimize import minimize_scalar

from forethought.checks import whole
from forethought.convex.problems import Problem

MOST = 2_000


@dataclass(frozen=True)
class Constants:
    """The numbers of the default schedule; docs/adaptive_noise.md says on which data they were
    chosen, and on which checked.

    Args:
        clip_scale, clip_power, clip_least: C = L·clip((s/scale)^power, least, 1) at a signal of s.
        radius: R in units of √d/Z where none is declared: how far the best weights may be expected.
        fall: of the noise from the first to the last accelerated round.
        plain: λu from which steps are plain, if :data:`MOST` of them suffice: what is left then
            shrinks by e^(−λu), without what momentum adds to late noise.
    """

    clip_scale: float = 1500.0
    clip_power: float = 0.4
    clip_least: float = 0.5
    radius: float = 4.0
    fall: float = 3.0
    plain: float = 0.5


CONSTANTS = Constants()


@dataclass(frozen=True)
class Recipe:
    """What the default schedule consists of.

    Attributes:
        clip_norm: C. shape: σ_t up to a factor, which the budget decides. step: η.
        accelerated: whether steps carry Nesterov's momentum.
        travel: u, the total step that was aimed at.
    """

    clip_norm: float
    shape: tuple[float, ...]
    step: float
    accelerated: bool
    travel: float


def signal(examples: int, weights: int, mu: float) -> float:
    """s = Nμ/√d: how far the largest mean gradient stands above the noise of one release of it."""
    return whole("examples", examples) * mu / math.sqrt(whole("weights", weights))


def recipe(
    problem: Problem,
    examples: int,
    weights: int,
    mu: float,
    moved: float,
    constants: Constants = CONSTANTS,
) -> Recipe:
    """The default schedule.

    Args:
        examples: N. weights: d, of all outputs together.
        mu: what the budget affords in all, as one Gaussian release.
        moved: sensitivity of a sum in units of the clipping norm, 1 or 2.
        constants: others than the default ones, to study them.

    Raises:
        ValueError: a loss that is not convex.
    """
    if not problem.is_convex:
        raise ValueError(
            "the default schedule is for convex losses: give schedule=schedules.nonconvex(…)"
        )
    # In units of a sensitivity of 2C/N, which its constants were chosen for.
    mu = 2 * mu / moved
    s = signal(examples, weights, mu)
    share = (s / constants.clip_scale) ** constants.clip_power
    clip_norm = problem.lipschitz * min(1.0, max(constants.clip_least, share))
    delta = 2 * clip_norm / examples
    strong = problem.convexity
    radius = problem.radius or constants.radius * math.sqrt(weights) / problem.row_bound

    def risk(log_u: float) -> float:
        u = math.exp(log_u)
        bias = radius**2 / (2 * u)
        if strong:
            bias = min(bias, problem.loss_at_zero * math.exp(-2 * strong * u))
        settled = min(u, 1 / (2 * strong)) if strong else u
        return float(bias + (delta / mu) ** 2 * problem.trace / 2 * u * settled)

    M = problem.smoothness
    low, high = math.log(1e-3 / M), math.log(MOST**2 / (8 * M))
    u = math.exp(float(minimize_scalar(risk, bounds=(low, high), method="bounded").x))
    shrinking = strong * u >= constants.plain and u * M <= MOST
    if shrinking:
        rounds = min(MOST, max(1, math.ceil(u * M)))
        step = min(u / rounds, 1 / M)
        fall = math.exp(min(strong * u / 2, math.log(1e3)))
    else:
        rounds = min(MOST, max(1, math.ceil(math.sqrt(8 * u * M))))
        step = min(8 * u / rounds**2, 1 / M)
        fall = constants.fall
    shape = tuple(fall ** (-t / max(1, rounds - 1)) for t in range(rounds))
    return Recipe(clip_norm, shape, step, not shrinking, u)
