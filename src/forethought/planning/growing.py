"""Sample sizes that grow from round to round, fixed in the plan before anything is released.

The asynchronous framework of van Dijk et al., Appendix A, lets a client's sample sizes {s_i} grow:
early rounds are short, so that a model is exchanged often while it changes fast. The noise of all
rounds is the one that uses the same budget up.
"""

from __future__ import annotations

from forethought.accounting.calibration import calibrate
from forethought.mechanism import Mechanism, Poisson, Rounds, Sampling, real, whole
from forethought.planning.plan_request import PlanError
from forethought.plans import Plan

# Different sizes in one plan, at most: each makes the accounting longer.
STAGES = 8


def growing(plan: Plan, growth: float, multiple: int = 1) -> Plan:
    """A plan of the same length, examples and budget whose sample sizes grow linearly.

    Args:
        plan: of one size, by Poisson sampling, with a budget.
        growth: the last size over the first, at least 1.
        multiple: sizes change only after so many rounds together.

    Raises:
        PlanError: another sampling, no budget, or sizes beyond the data.
    """
    growth = real("growth", growth, least=1)
    if growth == 1:
        return plan
    sampling, budget = plan.sampling, plan.budget
    if not isinstance(sampling, Poisson) or budget is None:
        raise PlanError("growing sample sizes need Poisson sampling and a budget to calibrate for")
    updates = plan.rounds // whole("multiple", multiple)
    stages = min(STAGES, updates)
    first = 2 / (1 + growth)
    counts = [updates * (k + 1) // stages - updates * k // stages for k in range(stages)]
    sizes = [first * (1 + (growth - 1) * k / max(1, stages - 1)) for k in range(stages)]
    mean = sum(c * s for c, s in zip(counts, sizes, strict=True)) / updates
    rates = [sampling.rate * size / mean for size in sizes]
    if rates[-1] > 1:
        raise PlanError(
            f"the last sample would be {rates[-1]:.3g} times the data: give a growth below "
            f"{growth:g}, or a smaller batch"
        )
    # What does not divide comes last, at the largest size.
    counts = [count * multiple for count in counts]
    counts[-1] += plan.rounds - sum(counts)

    def mechanism(sigma: float) -> Mechanism:
        kinds: list[Sampling] = [Poisson(rate) for rate in rates]
        parts = (Rounds(sigma, c, kind) for c, kind in zip(counts, kinds, strict=True))
        return Mechanism(*parts, adjacency=plan.mechanism.adjacency)

    start = plan.noise_multiplier
    sigma = calibrate(mechanism, budget, (start / 4, start * 8 + 1))
    words = f"sample sizes grow {growth:g} times in {stages} stages; noise for the same budget"
    return plan.with_(mechanism=mechanism(sigma), reasons=(*plan.reasons, ("sample sizes", words)))
