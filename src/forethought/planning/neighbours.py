"""Two alternatives to a plan, one cheaper, one more accurate, with what each costs and gains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from forethought.accounting import exact
from forethought.accounting.calibration import least_multiplier
from forethought.mechanism import Budget, Clipping, Correlated, Mechanism, Rounds
from forethought.optimizers import kind_of
from forethought.planning import defaults
from forethought.planning.grouping import GROUPS_AGAINST
from forethought.planning.least_noise import least_noise
from forethought.planning.noise_to_signal import gradient_computations, noise_to_signal
from forethought.planning.solve import GIVEN, STEP_SIZE
from forethought.plans import Plan
from forethought.samplings import Sampling


@dataclass(frozen=True)
class Neighbour:
    """A plan near the chosen one: what it is for, and in one line what changes."""

    name: str
    plan: Plan
    reason: str


# Parameters, and of a linear model the norm of its features and its scores' noise.
_Size = tuple[int, float | None, float]

# Less noise for the signal than this share of it is no gain in accuracy.
_GAIN = 0.01


def neighbours(
    plan: Plan,
    parameters: int | None = None,
    feature_norm: float | None = None,
    scores: float = defaults.SCORE_NOISE,
) -> tuple[Neighbour, ...]:
    """A cheaper and a more accurate plan with the same promise; fewer where none exists.

    The cheaper one halves the batch, the more accurate one doubles it, each with exactly
    calibrated noise and, where the planner chose it, a step size of its own. Groups keep their
    size: half or twice as many are made of the batch. A full batch cannot be doubled, and a batch
    near it gains nothing from it: there only a larger ε helps, so the more accurate plan is the one
    at twice ε, if that helps. Beside groups stands the same run with clipped examples.

    Args:
        plan: from :func:`forethought.plan`. None are known beside correlated noise, or none.
        parameters, feature_norm, scores: as the plan was made with.
    """
    parts = plan.privacy.mechanism.rounds
    if any(isinstance(part, Correlated) or part.noise_multiplier == 0 for part in parts):
        return ()
    epsilon = (
        plan.budget.epsilon
        if plan.budget
        else exact.epsilon(plan.mechanism, plan.delta, plan.records_per_person).upper
    )
    budget = Budget(epsilon, plan.delta)
    found = []
    if plan.preparation is not None and plan.preparation.centres:
        feature_norm = plan.preparation.becomes
    size = (defaults.PARAMETERS if parameters is None else parameters, feature_norm, scores)
    half = _resized(plan, 0.5, budget, size)
    if half is not None:
        found.append(Neighbour("cheaper", half, _change(plan, half)))
    double = _resized(plan, 2.0, budget, size)
    if double is None or noise_to_signal(double) > (1 - _GAIN) * noise_to_signal(plan):
        twice = Budget(2 * epsilon, plan.delta)
        double = _with_noise(plan, _samplings(plan), twice, size, plan.groups)
        reason = f"twice ε: {_change(plan, double)}"
    else:
        reason = _change(plan, double)
    # So small an ε next to δ decides nothing, and twice as much of it neither.
    if noise_to_signal(double) <= (1 - _GAIN) * noise_to_signal(plan):
        found.append(Neighbour("more accurate", double, reason))
    if plan.groups is not None:
        alone = _with_noise(plan, _samplings(plan), budget, size, None)
        reason = f"{_change(plan, alone)}; a model with batch normalisation needs groups"
        found.append(Neighbour("clipped examples", alone, reason))
    return tuple(found)


def _samplings(plan: Plan) -> list[Sampling]:
    return [part.sampling for part in plan.privacy.mechanism]


def _resized(plan: Plan, factor: float, budget: Budget, size: _Size) -> Plan | None:
    samplings = []
    for sampling in _samplings(plan):
        batch = sampling.expected_batch(plan.examples) * factor
        other = sampling.resized(batch, plan.examples)
        if other == sampling or not 1 <= int(batch) <= sampling.pool(plan.examples):
            return None
        samplings.append(other)
    # Groups of the same size: more or fewer of them.
    groups = None if plan.groups is None else max(1, round(plan.groups * factor))
    return _with_noise(plan, samplings, budget, size, groups)


def _with_noise(
    plan: Plan, samplings: Sequence[Sampling], budget: Budget, size: _Size, groups: int | None
) -> Plan:
    """The plan with other samplings and so many groups, or clipped examples, within a budget.

    Noise that changes over the run keeps its shape.
    """
    parts, adjacency = plan.privacy.mechanism.rounds, plan.mechanism.adjacency
    clipping: Clipping = "example" if groups is None else "group"
    dealt = None if parts[0].groups is None else groups
    ahead = plan.preparation

    def make(factor: float) -> Mechanism:
        releases = (
            Rounds(part.noise_multiplier * factor, part.count, sampling, clipping, groups=dealt)
            for part, sampling in zip(parts, samplings, strict=True)
        )
        return Mechanism(*releases, adjacency=adjacency)

    def whole_run(factor: float) -> Mechanism:
        return make(factor) if ahead is None else ahead.before(make(factor))

    group = plan.records_per_person
    near = 1.0
    if len(parts) == 1:
        rounds = parts[0].count
        sigma = least_multiplier(budget, samplings[0], rounds, clipping, adjacency, group=group)
        near = sigma / parts[0].noise_multiplier
    factor = near
    if len(parts) > 1 or ahead is not None:
        factor = least_noise(whole_run, budget, near, group)
    kept = {"local": None, "groups": None} if groups is None else {"groups": groups}
    found = plan.with_(**kept, mechanism=make(factor), budget=budget)
    about = ("epsilon", GROUPS_AGAINST, "groups") if groups is None else ("epsilon",)
    found = found.with_(reasons=tuple(pair for pair in plan.reasons if pair[0] not in about))
    if (
        not kind_of(plan.optimizer.name).descends
        or dict(plan.reasons).get(STEP_SIZE, GIVEN) == GIVEN
    ):
        return found
    momentum = float(dict(plan.optimizer.options).get("momentum", 0.0))
    parameters, feature_norm, scores = size
    rate = defaults.learning_rate(found, parameters, momentum, feature_norm, scores)
    return found.with_(optimizer=replace(plan.optimizer, learning_rate=rate))


def _change(old: Plan, new: Plan) -> str:
    cost = gradient_computations(new) / gradient_computations(old)
    noise = noise_to_signal(new) / noise_to_signal(old) - 1
    return f"{cost:.2g} × the gradients, {noise:+.0%} noise for the same signal"
