"""The plan of a descent and its default schedule, from public numbers only."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar

from scipy.optimize import minimize_scalar

from forethought.accounting import exact
from forethought.accounting.dominating_pair import gaussian_mu
from forethought.accounting.interval import warn_if_hollow
from forethought.convex.problems import PROBLEMS, Problem, problem_from_dict
from forethought.convex.schedules import MOST_ROUNDS, Horizon, Schedule, horizon
from forethought.values import mechanism as kinds
from forethought.values.caveats import Caveat, caveats, choice, chosen_but
from forethought.values.checks import instance, real, settle, whole
from forethought.values.plan import LEAST_NOISE, Clip, NoiseKind, Of, Preparation, Privacy, Round
from forethought.values.serialisation import Readers, Stored, each

# The default schedule: it needs no tuning and no data.
#
# In directions without curvature, noise adds the variance (uΔ/μ)² to each weight after the total
# step u = Σ η_t, for any number of iterations. The excess risk by it is at most half the trace of
# the Hessian times that variance. So u balances this risk against the bias of the weights after u.
# The number of iterations only has to be large enough that steps of 1/M reach u. Without strong
# convexity steps are accelerated (Nesterov 1983). The noise decreases in either case, since later
# steps contract early noise but not late noise.


# Most rounds of the default schedule.
MOST = 2_000


@dataclass(frozen=True)
class ScheduleConstants:
    """The constants of the default schedule.

    docs/adaptive_noise.md names the data on which they were chosen, and those of the checks.

    Args:
        clip_scale, clip_power, clip_least: C = L·clip((s/scale)^power, least, 1) at a signal of s.
        radius: R in units of √d/Z if none is declared: the expected norm of the best weights.
        fall: ratio of the noise of the first and of the last accelerated round.
        plain: the λu from which on steps are not accelerated, if :data:`MOST` of them suffice: the
            bias then shrinks by e^(−λu), and momentum would only increase the late noise.
    """

    clip_scale: float = 1500.0
    clip_power: float = 0.4
    clip_least: float = 0.5
    radius: float = 4.0
    fall: float = 3.0
    plain: float = 0.5


CONSTANTS = ScheduleConstants()


@dataclass(frozen=True)
class Recipe:
    """The parts of the default schedule.

    Attributes:
        clip_norm: C.
        shape: σ_t up to a common factor, which follows from the budget; shape (T,).
        step: η.
        accelerated: True if steps have Nesterov's momentum.
        travel: u, the intended total step.
    """

    clip_norm: float
    shape: tuple[float, ...]
    step: float
    accelerated: bool
    travel: float


def signal(examples: int, weights: int, mu: float) -> float:
    """s = Nμ/√d: the ratio of the largest mean gradient to the noise of one release of it."""
    return whole("examples", examples) * mu / math.sqrt(whole("weights", weights))


def recipe(
    problem: Problem,
    examples: int,
    weights: int,
    mu: float,
    moved: float,
    constants: ScheduleConstants = CONSTANTS,
) -> Recipe:
    """The default schedule.

    Args:
        examples: N.
        weights: d, of all outputs together.
        mu: μ of the whole budget as one Gaussian release.
        moved: sensitivity of a sum in units of the clipping norm, 1 or 2.
        constants: other constants than the default ones, for experiments.

    Raises:
        ValueError: the loss is not convex.
    """
    if not problem.is_convex:
        raise ValueError(
            "the default schedule is for convex losses: give schedule=schedules.nonconvex(…)"
        )
    # The constants were chosen for a sensitivity of 2C/N.
    mu = 2 * mu / moved
    share = (signal(examples, weights, mu) / constants.clip_scale) ** constants.clip_power
    clip_norm = problem.lipschitz * min(1.0, max(constants.clip_least, share))
    delta = 2 * clip_norm / examples
    strong = problem.convexity
    radius = problem.radius or constants.radius * math.sqrt(weights) / problem.row_bound

    def risk(log_u: float) -> float:
        u = math.exp(log_u)
        bias = radius**2 / (2 * u)
        # For a small total step this bound is no better than that of no step at all.
        if strong * u >= constants.plain:
            bias = min(bias, problem.loss_at_zero * math.exp(-2 * strong * u))
        settled = min(u, 1 / (2 * strong)) if strong else u
        return float(bias + (delta / mu) ** 2 * problem.trace / 2 * u * settled)

    M = problem.smoothness
    low, high = math.log(1e-3 / M), math.log(MOST**2 / (8 * M))
    bend = min(high, max(low, math.log(constants.plain / strong))) if strong else high
    parts = [(low, bend), (bend, high)] if bend < high else [(low, high)]
    found = [minimize_scalar(risk, bounds=ends, method="bounded") for ends in parts]
    u = math.exp(float(min(found, key=lambda one: one.fun).x))
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


# The plan of a descent: one immutable value that is planned, run, accounted and stored.


_PLANNED = Caveat("planned")


@dataclass(frozen=True)
class DescentPlan(Stored):
    """All parameters of a private descent, fixed before any private data is read.

    Args:
        problem: the loss with its constants.
        privacy: the releases; the schedule's noise is in its mechanism.
        features: number of columns of the data, without the constant column.
        steps: η_t, one for each round.
        accelerated: True if steps have Nesterov's momentum (t − 1)/(t + 2).
        hyperparameters, not_covered, reasons: as in :class:`forethought.Plan`.

    Raises:
        ValueError, TypeError: parts contradict each other or are of the wrong kind.
    """

    SCHEMA: ClassVar[str] = "forethought/descent-plan/1"
    CALLED: ClassVar[str] = "descent plan"
    PARTS: ClassVar[Readers] = {
        "problem": problem_from_dict,
        "privacy": Privacy.from_dict,
        "hyperparameters": Caveat.from_dict,
        "not_covered": each(Caveat.from_dict),
    }

    problem: Problem
    privacy: Privacy
    features: int
    steps: tuple[float, ...]
    _: KW_ONLY
    accelerated: bool = False
    hyperparameters: Caveat = _PLANNED
    not_covered: tuple[Caveat, ...] = ()
    reasons: tuple[tuple[str, str], ...] = ()

    #: The releases: those of the preparation, then the rounds.
    mechanism = Of[kinds.Mechanism]("privacy.accounted")
    #: The preparation of the features, released before the rounds; None if there is none.
    preparation = Of[Preparation | None]("privacy.preparation")
    #: Size N of the training set.
    examples = Of[int]("privacy.examples")
    #: The δ at which the Statement gives ε.
    delta = Of[float]("privacy.delta")
    #: The budget of the plan, if there is one.
    budget = Of[kinds.Budget | None]("privacy.budget")
    #: The kind of noise.
    noise = Of[NoiseKind]("privacy.noise")
    #: C, the bound on one record's gradient.
    clip_norm = Of[float]("privacy.clip.norm")
    #: T, the number of noised sums.
    rounds = Of[int]("privacy.rounds")

    def __post_init__(self) -> None:
        privacy = self.privacy
        settle(self, steps=tuple(real("step size", size, above=0) for size in self.steps))
        if len(self.steps) != privacy.rounds:
            raise ValueError(f"{len(self.steps)} steps for {privacy.rounds} rounds: one for each")
        if privacy.contribution.kind != "linear-examples" or privacy.clip.rule != "flat":
            raise ValueError("a descent sums linear examples that are clipped flat")
        if privacy.records_per_person > 1:
            raise ValueError(
                "a descent protects single records: drop records_per_person; account has group="
            )
        if any(part.sampling.kind != "full-batch" for part in privacy.mechanism):
            raise ValueError("a descent takes full batches; for others there is forethought.train")
        if not isinstance(self.accelerated, bool):
            raise TypeError(f"accelerated must be true or false, not {self.accelerated!r}")
        settle(self, features=whole("features", self.features))
        settle(self, hyperparameters=choice(self.hyperparameters))
        settle(self, not_covered=caveats(self.not_covered))
        settle(self, reasons=tuple((str(what), str(why)) for what, why in self.reasons))

    @property
    def columns(self) -> int:
        """Number of columns of the feature matrix, with the constant column."""
        return self.features + bool(self.problem.intercept)

    @property
    def weights(self) -> int:
        """d, the number of trained weights."""
        return self.columns * self.problem.outputs

    @property
    def sigmas(self) -> tuple[float, ...]:
        """σ_t: standard deviation of the noise on every coordinate of the mean gradient."""
        return tuple(
            part.noise_multiplier * self.clip_norm / self.examples
            for part in self.privacy.mechanism
            for _ in range(part.count)
        )

    def round(self, index: int) -> Round:
        """Round ``index``, from 0; see :meth:`forethought.values.plan.Privacy.round`."""
        return self.privacy.round(index)

    def schedule(self, t: int) -> tuple[float, float]:
        """(σ_t, η_t) of iteration t = 1 … T; ValueError for another t."""
        found = self.round(whole("t", t, most=self.rounds) - 1)
        return found.noise_std / found.divisor, self.steps[t - 1]

    def explain(self) -> str:
        """The reasons for the plan's numbers, one line each."""
        return "\n".join(f"{what}: {why}" for what, why in self.reasons)


# From public values (loss, sizes, budget) to the plan of a descent.


# Share of the budget's μ² for a preparation without its own noise.
PREPARATION = 0.1


def plan(
    problem: Problem,
    budget: kinds.Budget,
    *,
    examples: int,
    features: int,
    schedule: Schedule | None = None,
    clip_norm: float | None = None,
    rounds: int | None = None,
    adjacency: kinds.Adjacency = "replace-one",
    noise: NoiseKind = "gaussian",
    preparation: Preparation | None = None,
    hyperparameters: Caveat | str | None = None,
    not_covered: Iterable[Caveat | str] = (),
) -> DescentPlan:
    """Plan a private descent: the number of rounds, and the noise and the step size of each.

    Args:
        problem: the loss with its public bounds.
        budget: (ε, δ).
        examples: N, which is public.
        features: number of columns of the data.
        schedule: t → (σ_t, η_t), of :mod:`forethought.convex.schedules` or any function of t that
            does not depend on the data; it runs as long as the exact cost is within the budget.
            Default: the schedule without tuning (docs/adaptive_noise.md), for convex losses.
        clip_norm: C. Default: with a schedule the bound L, which clips no gradient of records
            within their bounds; otherwise the default schedule's choice, L/2 to L.
        rounds: the largest number of rounds of a ``schedule``.
        adjacency: the neighbouring relation. A replaced record moves a sum twice as far as an added
            one.
        noise: "gaussian", or "grid" for discrete noise in whole numbers.
        preparation: moments or quantiles of the features that are released first, within the
            budget, to standardise the features (:func:`forethought.prepare`); the problem's bounds
            are then those of prepared features. The planner chooses its noise if it has none.
        hyperparameters, not_covered: for the Statement.

    Returns:
        A plan whose certified ε is within the budget.

    Raises:
        TypeError, ValueError: no plan meets the arguments. If the budget is too small for one round
            of the schedule, the message names the ε that one round needs.
    """
    if type(problem) not in PROBLEMS.values():
        raise TypeError(f"problem must be one of forethought.convex's losses, not {problem!r}")
    instance("budget", budget, kinds.Budget)
    N, d = whole("examples", examples), whole("features", features)
    warn_if_hollow(budget.delta, N)
    weights = (d + bool(problem.intercept)) * problem.outputs
    moved = kinds.Rounds(1.0, 1, kinds.FullBatch()).sensitivity(adjacency)
    why: dict[str, str] = {}
    preparation, before = _prepared(preparation, budget, moved, why)
    if schedule is None:
        if rounds is not None:
            raise ValueError("rounds= goes with a schedule=: the default one has its own number")
        mu = math.sqrt(gaussian_mu(budget.epsilon, budget.delta) ** 2 - before)
        found = recipe(problem, N, weights, mu, moved)
        C = found.clip_norm if clip_norm is None else real("clip_norm", clip_norm, above=0)
        length = _scaled(found, mu, moved * C / N)
        accelerated = found.accelerated
        why["rounds"] = (
            f"{len(length.sigmas):,} {'accelerated' if accelerated else 'plain'} steps of "
            f"{found.step:.4g}, a total step of about {found.travel:.4g}: where what the weights "
            "still lack and the noise that they have gathered are least together"
        )
        why["noise"] = (
            f"from {length.sigmas[0]:.4g} to {length.sigmas[-1]:.4g} a coordinate of the mean "
            "gradient, falling because early noise is forgotten; all rounds together spend the "
            "budget"
        )
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
    given = {"schedule": schedule, "clip norm": clip_norm}
    own = (name for name, value in given.items() if value is not None)
    return DescentPlan(
        problem,
        Privacy(
            mechanism, N, budget.delta, Clip(C), kinds.LinearExamples(), noise, budget, preparation
        ),
        d,
        length.steps,
        accelerated=accelerated,
        hyperparameters=choice(hyperparameters or chosen_but(own)),
        not_covered=caveats(not_covered),
        reasons=tuple(why.items()),
    )


def _prepared(
    asked: Preparation | None, budget: kinds.Budget, moved: float, why: dict[str, str]
) -> tuple[Preparation | None, float]:
    """The preparation with its noise, and the μ² that it spends."""
    if asked is None:
        return None, 0.0
    instance("preparation", asked, Preparation)
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


def _within(
    budget: kinds.Budget,
    length: Horizon,
    scale: float,
    adjacency: kinds.Adjacency,
    preparation: Preparation | None,
) -> kinds.Mechanism:
    """The rounds with noise multipliers σ_t N/C, slightly larger if the certified ε requires it."""
    grow = 1.0
    while True:
        multipliers = [sigma * scale * grow for sigma in length.sigmas]
        if min(multipliers) < LEAST_NOISE:
            raise ValueError(
                f"a noise of {min(length.sigmas):.4g} on the mean is {min(multipliers):.3g} of "
                f"what one record can add, which protects nothing: use at least {LEAST_NOISE:g}"
            )
        rounds = (kinds.Rounds(value, 1, kinds.FullBatch()) for value in multipliers)
        mechanism = kinds.Mechanism(*rounds, adjacency=adjacency)
        whole_run = mechanism if preparation is None else preparation.before(mechanism)
        if exact.epsilon(whole_run, budget.delta).upper <= budget.epsilon:
            return mechanism
        if grow > 1.001:
            raise ArithmeticError(
                "the certified ε stays above the budget whatever the noise: please report this"
            )
        grow = 1 + max(1e-12, 10 * (grow - 1))
