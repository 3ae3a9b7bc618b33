"""The audit of a federated client: sound ones pass, planted faults are found."""

from __future__ import annotations

import math
from contextlib import contextmanager
from unittest import mock

import numpy as np
import pytest

from forethought.auditing.holders import audit_client, audit_worker, received
from forethought.rounds.randomness import GaussianNoise
from forethought.values.mechanism import FullBatch, Mechanism, Poisson, Rounds
from forethought.values.plan import Clip, Plan
from trials.audits import FAULTS

FALSE_ALARM = 1e-4
PLAN = Plan(Mechanism(Rounds(1.0, 30, Poisson(0.1))), 800, 1e-5)


def finding(plan: Plan = PLAN, seed: int = 3):
    return audit_client(plan, canaries=800, rounds=30, seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize(
    "plan",
    [
        PLAN,
        Plan(Mechanism(Rounds(3.0, 10, FullBatch()), adjacency="replace-one"), 800, 1e-5),
        PLAN.with_(noise="grid"),
    ],
    ids=["poisson", "replace-one", "grid"],
)
def test_a_sound_client_is_not_refuted(plan: Plan) -> None:
    """Fails with probability 10⁻⁴ each."""
    assert not finding(plan).refutes(FALSE_ALARM)


@contextmanager
def noise_shared_without_masks():
    """A client that adds its share of the noise, though nothing hides its sum."""
    add = GaussianNoise.add_to

    def less(self, vector, std, generator):
        add(self, vector, std / math.sqrt(6), generator)

    with mock.patch.object(GaussianNoise, "add_to", less):
        yield


@pytest.mark.slow
@pytest.mark.parametrize("plant", [noise_shared_without_masks, FAULTS[0].plant])
def test_faults_in_a_client_are_found(plant) -> None:
    with plant():
        assert finding().refutes(FALSE_ALARM)


@pytest.mark.slow
def test_a_client_whose_server_gets_each_round_anew_is_found() -> None:
    """Noise drawn again for every copy of a release: their mean has less of it."""
    several = received

    def copies(plan: Plan, held: list) -> np.ndarray:
        return np.mean([several(plan, held) for _ in range(9)], axis=0)

    # Full batches: each copy holds the same sum, and all that differs is the noise.
    plan = Plan(Mechanism(Rounds(6.0, 10, FullBatch())), 800, 1e-5)
    assert not finding(plan).refutes(FALSE_ALARM)
    with mock.patch("forethought.auditing.holders.received", copies):
        assert finding(plan).refutes(FALSE_ALARM)


def test_plans_without_games_of_their_own_are_refused() -> None:
    moving = PLAN.with_(clip=Clip(1.0, "quantile", count_noise=20.0))
    for plan in (
        moving,
        Plan(Mechanism(Rounds(1.0, 5, Poisson(0.1), "group")), 50, 1e-5, groups=1),
    ):
        with pytest.raises(ValueError, match="game of its"):
            audit_client(plan)


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(TypeError, match="must be a"):
        audit_client("plan.json")
    with pytest.raises(TypeError, match="must be a"):
        audit_worker("plan.json")
    with pytest.raises(ValueError, match="canaries must be"):
        audit_client(PLAN, canaries=0)
    with pytest.raises(ValueError, match="seed must be"):
        audit_client(PLAN, seed=-1)


def test_a_single_coin_refutes_nothing() -> None:
    small = Plan(Mechanism(Rounds(1.0, 1, FullBatch())), 20, 1e-5)
    assert not audit_client(small, canaries=1).refutes(FALSE_ALARM)
