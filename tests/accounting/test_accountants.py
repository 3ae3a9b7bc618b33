"""The registry of accountants, and what is left when the attacker knows the batches."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import ndtr

import forethought as ft
from forethought.accounting.accountants import ACCOUNTANTS, batches_known
from forethought.accounting.statement import Randomness, account, required
from forethought.values.caveats import KINDS
from forethought.values.mechanism import (
    CyclicPoisson,
    FullBatch,
    Mechanism,
    Poisson,
    RandomAllocation,
    Rounds,
    Shuffled,
    WithoutReplacement,
)

DELTA = 1e-5
SEEDED = Randomness(seeded_sampling=True)


def gaussian_delta(distance: float, epsilon: float) -> float:
    """δ(ε) of N(distance, 1) against N(0, 1) (Balle and Wang 2018, Theorem 8)."""
    return float(
        ndtr(distance / 2 - epsilon / distance)
        - math.exp(epsilon) * ndtr(-distance / 2 - epsilon / distance)
    )


@pytest.mark.parametrize(
    ("mechanism", "distance", "adjacency"),
    [
        (Mechanism(Rounds(5.0, 100, Poisson(0.01))), math.sqrt(100) / 5, "zero-out"),
        (
            Mechanism(Rounds(5.0, 100, Poisson(0.01)), adjacency="replace-one"),
            2 * math.sqrt(100) / 5,
            "replace-one",
        ),
        (Mechanism(Rounds(5.0, 9, Poisson(0.3), "group")), 2 * math.sqrt(9) / 5, "zero-out"),
        (Mechanism(Rounds(4.0, 64, WithoutReplacement(5, 100))), math.sqrt(64) / 4, "zero-out"),
        (
            Mechanism(Rounds(3.0, 40, Shuffled(10, 100)), adjacency="zero-out"),
            math.sqrt(4) / 3,
            "zero-out",
        ),
        (Mechanism(Rounds(3.0, 16, FullBatch())), math.sqrt(16) / 3, "zero-out"),
        (Mechanism(Rounds(3.0, 41, RandomAllocation(10))), math.sqrt(5) / 3, "zero-out"),
        (Mechanism(Rounds(3.0, 41, CyclicPoisson(0.1, 10))), math.sqrt(5) / 3, "zero-out"),
    ],
)
def test_known_batches_leave_one_gaussian(
    mechanism: Mechanism, distance: float, adjacency: str
) -> None:
    """A record that is in every batch it may be in: a sum of Gaussians, computed by itself here."""
    statement = account(mechanism, DELTA, randomness=SEEDED)
    assert statement.adjacency == adjacency
    found = statement.epsilon
    assert gaussian_delta(distance, found.upper) <= DELTA <= gaussian_delta(distance, found.lower)
    for rate, power in statement.attack:
        best = float(ndtr(distance + float(_quantile(rate))))
        assert best - 1e-9 <= power <= best + 2e-3


def _quantile(rate: float) -> float:
    from scipy.special import ndtri

    return float(ndtri(rate))


def test_the_amplified_figure_would_be_false() -> None:
    """Planted fault: the usual ε, beside an attacker who simulates the batches from the seed."""
    rounds, sigma, rate = 400, 1.0, 0.05
    usual = ft.epsilon(Mechanism(Rounds(sigma, rounds, Poisson(rate))), DELTA)
    # One record's batches, drawn as the run draws them; the attacker adds up those rounds only.
    hits = int((np.random.default_rng(1).random(rounds) < rate).sum())
    truth = math.sqrt(hits) / sigma
    assert gaussian_delta(truth, usual.upper) > 100 * DELTA
    stated = account(Mechanism(Rounds(sigma, rounds, Poisson(rate))), DELTA, randomness=SEEDED)
    assert gaussian_delta(truth, stated.epsilon.upper) <= DELTA


def test_a_seeded_run_says_what_is_left() -> None:
    mechanism = Mechanism(Rounds(5.0, 100, Poisson(0.01)))
    statement = account(mechanism, DELTA, randomness=SEEDED)
    assert statement.private
    assert statement.accountant == {"kind": "known-batches"}
    said = statement.to_markdown()
    assert "no amplification by sampling" in said
    assert "whether there is such a record is not" in said
    assert "which records were in which batch and what all" in said
    assert "stays secret" not in "".join(map(str, statement.assumptions))
    assert batches_known(mechanism).adjacency == "zero-out"


def test_a_seeded_search_has_no_guarantee() -> None:
    from forethought.accounting.adaptive import PoissonTrials, selection_details

    mechanism = Mechanism(Rounds(2.0, 10, Poisson(0.1)))
    details = selection_details(mechanism, [mechanism], PoissonTrials(5.0), None, DELTA)
    statement = account(mechanism, DELTA, accountant=details, randomness=SEEDED)
    assert not statement.private
    assert statement.sentences()[0].startswith("Not private: seeded.")


def test_noise_on_a_grid_needs_no_floating_point_assumption() -> None:
    mechanism = Mechanism(Rounds(2.0, 10, Poisson(0.1)))
    codes = {one.code for one in required(mechanism, {"kind": "exact"}, Randomness())}
    grid = {one.code for one in required(mechanism, {"kind": "exact"}, Randomness(grid=True))}
    assert codes - grid == {"floating-point-noise"}
    assert {"other-runs", "separate-records"} <= grid
    plan = ft.Plan(mechanism, 100, DELTA, noise="grid")
    assert "floating-point" not in account(plan).to_markdown()


@pytest.mark.parametrize("kind", ACCOUNTANTS)
def test_the_adversary_is_one_plain_sentence(kind: str) -> None:
    way = ACCOUNTANTS[kind]
    for mechanism in (
        Mechanism(Rounds(2.0, 10, Poisson(0.1))),
        Mechanism(Rounds(2.0, 10, FullBatch())),
    ):
        said = way.adversary(mechanism)
        assert said.startswith("sees ")
        assert ("knows neither the noise nor" in said) != ("does not know the noise" in said)
        assert ". " not in said
    assert all(one.code in KINDS for one in way.implied(Mechanism(Rounds(2.0, 1, FullBatch()))))


def test_nothing_is_known_besides_what_is_known() -> None:
    """The old wording said "whatever else they know" of an attacker who does not know batches."""
    statement = account(Mechanism(Rounds(2.0, 10, Poisson(0.1))), DELTA)
    assert "whatever else" not in statement.to_markdown()
    assert "everything but the noise and which records were in which batch" in " ".join(
        statement.sentences()
    )
