"""Sample sizes of a federation's client that grow from update to update.

The asynchronous framework of van Dijk et al., Appendix A, lets a client's sample sizes {s_i} grow:
early rounds are short, so that a model is exchanged often while it changes fast. The noise of all
rounds is the one that uses the same budget up.
"""

from __future__ import annotations

from dataclasses import replace

from forethought.checks import real, whole
from forethought.mechanism import Mechanism
from forethought.planning.courses import Course, explain_course
from forethought.planning.least_noise import least_noise
from forethought.planning.limits import PlanError
from forethought.plans import Plan
from forethought.samplings import Poisson


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
