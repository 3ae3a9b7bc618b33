"""The change of sizes and noise over a run, within limits, and the least noise that keeps a
budget."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

from scipy.special import lambertw

from forethought.accounting import exact
from forethought.accounting.calibration import solved
from forethought.options import NoiseScheduleName, SizeScheduleName
from forethought.values.checks import real, whole
from forethought.values.mechanism import Budget, Correlated, Mechanism, Rounds
from forethought.values.plan import Plan
from forethought.values.samplings import (
    Poisson,
    Sampling,
)


class PlanError(ValueError):
    """A request that no plan fulfils: over- or under-determined, or out of reach."""


# Noise that falls (or grows) over a run of subsampled rounds, at the exact cost of each.
#
# Weights of late rounds' noise stay in the model; of early rounds' noise the rest of the run
# forgets some. With w_t the share of round t's noise variance that is left at the end, and w_T/w_1
# = fall⁴:
#
# - "forgetting" minimises Σ w_t σ_t² at a given Σ c(σ_t). For Poisson rounds the central limit
#   theorem (Bu et al. 2020) has c ∝ e^(1/σ²) − 1; the optimum is w_t σ_t⁴ = ν e^(1/σ_t²), that is
#   1/σ_t² = 2W(√(w_t/ν)/2) with Lambert's W. For full batches c ∝ 1/σ², and σ_t ∝ w_t^(−1/4).
# - "geometric" takes σ_t ∝ w_t^(−1/4), whatever the sampling; "linear" a line through the middle
#   between the same first and last noise, up to scale.
#
# "Adaptive Hyperparameter Selection for Differentially Private Gradient Descent" leaves subsampled
# gradients open: by its ratio, with costs that add in μ², the best noise is infinite. So the number
# of rounds is fixed and the shape is solved for. Both are chosen before the run from no data; the
# scale is calibrated with the exact accountant, so only the shape rests on the theorem's
# approximation.


FALL = 2.0


def noise_at(
    name: NoiseScheduleName, fall: float, place: float, middle: float, optimal: bool = True
) -> float:
    """The noise multiplier at a place of the run.

    Args:
        name: which shape. fall: the fourth root of w_T/w_1, above 0; below 1 the noise grows.
        place: share of the run that has gone, in (0, 1).
        middle: the noise multiplier in the middle of the run; the result is monotone in it.
        optimal: whether "forgetting" is to follow a sampled round's costs, not a full batch's.
    """
    if name == "constant" or middle == 0:
        return middle
    if name == "linear":
        return middle * (fall + (1 - fall) * place) / (fall + (1 - fall) * 0.5)
    # √w_t, 1 in the middle of the run.
    root = math.exp(2 * (place - 0.5) * math.log(fall))
    if name == "geometric" or not optimal:
        return middle / math.sqrt(root)
    # W(y) for y = √(w_t/ν)/2 = √w_t h e^h, ν from the middle's own σ, by its logarithm: h is large
    # where noise is small.
    half = 1 / (2 * middle**2)
    log = math.log(root) + math.log(half) + half
    if log < 500:
        return 1 / math.sqrt(2 * float(lambertw(math.exp(log)).real))
    w = log
    for _ in range(6):  # Newton's steps for w + ln w = log, which double the digits
        w -= (w + math.log(w) - log) / (1 + 1 / w)
    return 1 / math.sqrt(2 * w)


# How sample size and noise change over a run: fixed in the plan before anything is released.
#
# Growing samples, s_i ≈ q N i^p, are those of van Dijk et al., "Proactive DP", Section 3.2, and of
# the asynchronous framework of the same authors (Appendix A), where early rounds are short so that
# a model is exchanged often while it changes fast. Noise that falls is
# :mod:`forethought.planning.courses`. A course is a staircase of :data:`STEPS` stages: so many
# different rounds are accounted as fast as a few, and each stage has the mean of its sizes.


STEPS = 12
GROWTH, POWER = 4.0, 0.5


@dataclass(frozen=True)
class Course:
    """The difference of a run's rounds from equal ones; with its defaults none.

    Args:
        noise, fall: shape of the noise and its first value over its last, below 1 where it grows.
        sizes: shape of the sample sizes. growth: last size over the first, below 1 where samples
            shrink; of "linear" and "geometric". power: p of s_i ∝ i^p, above −1; of "power".
        multiple: size and noise change only after so many rounds together.
    """

    noise: NoiseScheduleName = "constant"
    fall: float = FALL
    sizes: SizeScheduleName = "constant"
    growth: float = GROWTH
    power: float = POWER
    multiple: int = 1

    @property
    def varies(self) -> bool:
        """True if any round differs from another."""
        return self.noise != "constant" or self.sizes != "constant"

    def relative_sizes(self, edges: list[int]) -> list[float]:
        """The size of every stage against the mean over the run.

        Args:
            edges: rounds before each stage, and all of them last.
        """
        counts = [high - low for low, high in pairwise(edges)]
        middles = [(low + high) / 2 for low, high in pairwise(edges)]
        first, last = middles[0], middles[-1]
        places = [0.0 if last == first else (at - first) / (last - first) for at in middles]
        if self.sizes == "linear":
            sizes = [1 + (self.growth - 1) * place for place in places]
        elif self.sizes == "geometric":
            sizes = [math.exp(place * math.log(self.growth)) for place in places]
        elif self.sizes == "power":
            # The mean of i^p over a stage, by the integral.
            p = self.power + 1
            ends = [(edge / edges[-1]) ** p for edge in edges]
            sizes = [(b - a) / n for (a, b), n in zip(pairwise(ends), counts, strict=True)]
        else:
            return [1.0] * len(counts)
        mean = math.fsum(c * s for c, s in zip(counts, sizes, strict=True)) / edges[-1]
        return [size / mean for size in sizes]

    def edges(self, rounds: Rounds) -> list[int]:
        """The ends of stages, from 0; between epochs where records take turns.

        Raises:
            PlanError: rounds that are one epoch, or not even that.
        """
        together = math.lcm(self.multiple, rounds.sampling.rounds_per_epoch)
        updates = rounds.count // together
        if updates < 2 <= rounds.count and together > 1:
            raise PlanError(
                f"sizes and noise can change every {together:,} rounds only, and the run has "
                f"{rounds.count:,}: plan at least {2 * together:,}, or drop the schedule"
            )
        steps = max(1, min(STEPS, updates))
        # What does not divide comes last.
        return [*(round(updates * k / steps) * together for k in range(steps)), rounds.count]

    def parts(self, equal: Rounds, examples: int) -> tuple[Rounds, ...]:
        """The rounds of this course in place of as many equal ones.

        Args:
            equal: their mean sample size, and their noise in the middle of the run.
            examples: number of records.

        Raises:
            PlanError: a sample beyond the data, or a sampling whose rounds cannot differ.
        """
        if not self.varies:
            return (equal,)
        edges = self.edges(equal)
        optimal = equal.sampling.hides(equal.sampling.rounds_per_epoch)
        found = []
        for (low, high), size in zip(pairwise(edges), self.relative_sizes(edges), strict=True):
            place = (low + high) / (2 * equal.count)
            sigma = noise_at(self.noise, self.fall, place, equal.noise_multiplier, optimal)
            sampling = equal.sampling if size == 1 else scaled(equal.sampling, size, examples)
            part = replace(equal, noise_multiplier=sigma, count=high - low, sampling=sampling)
            found.append(part)
        return tuple(found)

    def room(self, rounds: Rounds, examples: int) -> float:
        """The largest mean sample with which every sample fits into the data.

        A little less, since a run of another length has other stages.
        """
        if self.sizes == "constant":
            return float(examples)
        pool = rounds.sampling.pool(examples)
        return 0.97 * pool / max(self.relative_sizes(self.edges(rounds)))


def scaled(sampling: Sampling, factor: float, examples: int) -> Sampling:
    """The same kind of sampling with samples so many times as large.

    Raises:
        PlanError: a sample beyond the data, or a sampling whose rounds are all of one size.
    """
    size = factor * sampling.expected_batch(examples)
    if sampling.one_size is not None:
        raise PlanError(sampling.one_size)
    pool = sampling.pool(examples)
    if size > pool + 0.5:
        raise PlanError(
            f"the largest sample would be {size / pool:.3g} times the data it is drawn from: give "
            "a growth nearer to 1, or a smaller batch"
        )
    return sampling.resized(size, examples)


def with_course(equal: Rounds, course: Course, examples: int) -> tuple[Rounds, ...]:
    """The rounds of a course; correlated ones, which have none, as they are."""
    return (equal,) if isinstance(equal, Correlated) else course.parts(equal, examples)


def explain_course(
    course: Course, mechanism: Mechanism, examples: int, why: dict[str, str]
) -> None:
    """Add to a plan's reasons how its sample sizes and its noise change."""
    first, last = mechanism.rounds[0], mechanism.rounds[-1]
    if course.sizes != "constant":
        small, large = (part.sampling.expected_batch(examples) for part in (first, last))
        rule = {"linear": "linearly", "geometric": "geometrically"}.get(
            course.sizes, f"as i^{course.power:g}"
        )
        why["sample sizes"] = (
            f"{'grow' if large >= small else 'shrink'} {rule} from {small:,.4g} to {large:,.4g} in "
            f"{len(mechanism.rounds)} stages, as asked; in all they use as many records as equal "
            "samples of the batch would"
        )
    if course.noise != "constant":
        high, low = first.noise_multiplier, last.noise_multiplier
        moves = (
            "falls over the run, since early noise is forgotten"
            if high >= low
            else ("grows over the run, as asked")
        )
        why["noise"] += f". It {moves}: {course.noise}, from {high:.4g} to {low:.4g}"


# The least noise with which a whole mechanism, whatever else it releases, keeps a budget.


def least_noise(
    make: Callable[[float], Mechanism], budget: Budget, near: float, group: int = 1
) -> float:
    """The least noise multiplier that keeps the budget.

    Args:
        make: noise multiplier → mechanism, with everything that is released; ε falls with it.
        near: about the answer, such as the noise of equal rounds, or of these alone.
        group: how many records the budget is for together.

    Raises:
        PlanError: what else is released, such as a preparation, leaves nothing of the budget.
    """

    def meets(value: float) -> bool:
        return exact.epsilon(make(value), budget.delta, group).upper <= budget.epsilon

    high = near
    while not meets(high):
        high *= 2
        if high > 1e3 * near:
            raise PlanError(
                "the preparation of the data leaves nothing of the budget: give it more noise "
                "(noise_multiplier of the Preparation), or drop it"
            )
    low = high / 2
    while high <= near and meets(low):
        high, low = low, low / 2
        if high < 1e-6 * near:  # hardly any noise is needed, so large is the budget
            return high
    return solved(make, budget, (low, high), group=group)


# Sample sizes of a federation's client that grow from update to update.
#
# The asynchronous framework of van Dijk et al., Appendix A, lets a client's sample sizes {s_i}
# grow: early rounds are short, so that a model is exchanged often while it changes fast. The noise
# of all rounds is the one that uses the same budget up.


def growing(plan: Plan, growth: float, multiple: int = 1) -> Plan:
    """A plan of the same length, examples and budget whose sample sizes grow linearly.

    Args:
        plan: of equal rounds, by Poisson sampling, with a budget.
        growth: the last size over the first, at least 1.
        multiple: sizes change only after so many rounds together.

    Raises:
        PlanError: another sampling, rounds that differ already, no budget, or sizes beyond the
            data.
    """
    growth = real("growth", growth, least=1)
    if growth == 1:
        return plan
    equal, *others = plan.privacy.mechanism.rounds
    if others:
        raise PlanError(
            "growth= makes sizes grow from one update to the next, and the plan's rounds differ "
            "already: drop growth=, or size_schedule= and noise_schedule="
        )
    if not isinstance(equal.sampling, Poisson) or plan.budget is None:
        raise PlanError("growing sample sizes need Poisson sampling and a budget to calibrate for")
    course = Course(sizes="linear", growth=growth, multiple=whole("multiple", multiple))

    ahead = plan.preparation

    def training(sigma: float) -> Mechanism:
        parts = course.parts(replace(equal, noise_multiplier=sigma), plan.examples)
        return Mechanism(*parts, adjacency=plan.mechanism.adjacency)

    def whole_run(sigma: float) -> Mechanism:
        return training(sigma) if ahead is None else ahead.before(training(sigma))

    group = plan.records_per_person
    sigma = least_noise(whole_run, plan.budget, equal.noise_multiplier, group)
    why: dict[str, str] = {}
    explain_course(course, training(sigma), plan.examples, why)
    reasons = (*plan.reasons, *why.items())
    return plan.with_(mechanism=training(sigma), reasons=reasons)
