"""How sample size and noise change over a run: fixed in the plan before anything is released.

Growing samples, s_i ≈ q N i^p, are those of van Dijk et al., "Proactive DP", Section 3.2, and of
the asynchronous framework of the same authors (Appendix A), where early rounds are short so that a
model is exchanged often while it changes fast. Noise that falls is
:mod:`forethought.planning.noise_schedules`. A course is a staircase of :data:`STEPS` stages: so
many different rounds are accounted as fast as a few, and each stage has the mean of its sizes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, get_args

from forethought.checks import one_of, real
from forethought.mechanism import Correlated, Mechanism, Rounds
from forethought.planning.limits import PlanError
from forethought.planning.noise_schedules import FALL, NoiseScheduleName, noise_at
from forethought.samplings import (
    SAMPLINGS,
    Sampling,
)

SizeScheduleName = Literal["constant", "linear", "geometric", "power"]

STEPS = 12
GROWTH, POWER = 4.0, 0.5


@dataclass(frozen=True)
class Course:
    """How the rounds of a run differ from equal ones; with its defaults not at all.

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
        """Whether any round differs from another."""
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
        """Where stages end, from 0; between epochs where records take turns.

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


def course_of(
    noise: NoiseScheduleName,
    fall: float | None,
    sizes: SizeScheduleName,
    growth: float | None,
    power: float | None,
    sampling: str,
) -> Course:
    """The course that these settings of :func:`forethought.plan` ask for, under such a sampling.

    Raises:
        PlanError: settings that contradict each other. ValueError: one outside its range.
    """
    one_of("noise_schedule", noise, get_args(NoiseScheduleName))
    one_of("size_schedule", sizes, get_args(SizeScheduleName))
    one_of("sampling", sampling, tuple(SAMPLINGS))
    if fall is not None and noise == "constant":
        raise PlanError('noise_fall= goes with noise_schedule="geometric" or another')
    if growth is not None and sizes not in ("linear", "geometric"):
        raise PlanError('size_growth= goes with size_schedule="linear" or "geometric"')
    if power is not None and sizes != "power":
        raise PlanError('size_power= goes with size_schedule="power"')
    one_size = SAMPLINGS[sampling].one_size
    if sizes != "constant" and one_size is not None:
        raise PlanError(one_size)
    return Course(
        noise,
        FALL if fall is None else real("noise_fall", fall, least=0.01, most=100),
        sizes,
        GROWTH if growth is None else real("size_growth", growth, least=0.001, most=1000),
        POWER if power is None else real("size_power", power, above=-1, most=10),
    )


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
