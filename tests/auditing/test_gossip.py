"""The audit of a gossiping worker: a neighbour has every noised sum, and finds planted faults."""

from __future__ import annotations

import numpy as np
import pytest

from forethought.auditing.canaries import LARGE, CanaryRecords
from forethought.auditing.holders import audit_worker, recovered
from forethought.values.mechanism import FullBatch, Mechanism, Poisson, Rounds
from forethought.values.plan import Clip, Plan
from forethought.values.use import Averaging, Optimizer, ReleaseUse
from trials.audits import FAULTS

FALSE_ALARM = 1e-4
PLAN = Plan(Mechanism(Rounds(1.0, 30, Poisson(0.1))), 800, 1e-5)


def finding(plan: Plan = PLAN, seed: int = 3):
    return audit_worker(plan, canaries=800, rounds=30, seed=seed)


def test_a_neighbour_recovers_the_sums_from_mixed_weights() -> None:
    """With next to no noise they are the clipped sums themselves, in every round.

    Clipping leaves up to 1 % of room for rounding.
    """
    use = ReleaseUse(Optimizer("sgd", 1.0, ()), averaging=Averaging("none"))
    plan = Plan(Mechanism(Rounds(1e-4, 4, FullBatch())), 6, 1e-5, use=use)
    index = np.arange(6)
    planted = CanaryRecords(index, np.array([1, 0, 1, 1, 0, 1]) * LARGE, 1.0, 7)
    blank = CanaryRecords(np.full(6, 6), np.zeros(6, dtype=np.int64), 1.0, 7)
    seen = recovered(plan, [planted, blank])
    assert seen.shape[0] == 4
    assert np.abs(seen[:, :6]) == pytest.approx(np.tile([1, 0, 1, 1, 0, 1], (4, 1)), abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    "plan",
    [PLAN, Plan(Mechanism(Rounds(3.0, 10, FullBatch()), adjacency="replace-one"), 800, 1e-5)],
    ids=["poisson", "replace-one"],
)
def test_a_sound_worker_is_not_refuted(plan: Plan) -> None:
    """Fails with probability 10⁻⁴ each."""
    assert not finding(plan).refutes(FALSE_ALARM)


@pytest.mark.slow
def test_a_fault_in_a_worker_is_found_by_its_neighbour() -> None:
    with FAULTS[0].plant():
        assert finding().refutes(FALSE_ALARM)


def test_plans_without_games_of_their_own_are_refused() -> None:
    with pytest.raises(ValueError, match="game of its"):
        audit_worker(PLAN.with_(clip=Clip(1.0, "quantile", count_noise=20.0)))
