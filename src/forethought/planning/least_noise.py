"""The least noise with which a whole mechanism, whatever else it releases, keeps a budget."""

from __future__ import annotations

from collections.abc import Callable

from forethought.accounting import exact
from forethought.accounting.calibration import solved
from forethought.mechanism import Budget, Mechanism
from forethought.planning.limits import PlanError


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
