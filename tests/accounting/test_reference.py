"""Reference values, corrected figures of the papers, and dp-accounting as an oracle."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from dp_accounting.pld import privacy_loss_distribution as oracle

from forethought.accounting import transform
from forethought.accounting.exact import epsilon, noise_multiplier
from forethought.values.mechanism import (
    Budget,
    FullBatch,
    Mechanism,
    Poisson,
    Rounds,
    Shuffled,
    WithoutReplacement,
)

REFERENCE = json.loads((Path(__file__).parent / "reference.json").read_text())


def _cases() -> list[tuple[Mechanism, float, int, float, float]]:
    """Mechanism, δ, group, ε and the relative uncertainty of ε."""
    found = []

    def add(rounds, case, *, adjacency="add-or-remove", group=1, uncertainty=1e-4):
        rounds = rounds if isinstance(rounds, list) else [rounds]
        mechanism = Mechanism(*rounds, adjacency=adjacency)
        found.append((mechanism, case["delta"], group, case["epsilon"], uncertainty))

    for case in REFERENCE.get("poisson", []):
        sampling = Poisson(case["batch"] / case["examples"])
        add(Rounds(case["noise_multiplier"], case["rounds"], sampling), case)
    for case in REFERENCE.get("wor_replace_one", []):
        sampling = WithoutReplacement(case["batch"], case["examples"])
        rounds = Rounds(case["noise_multiplier"], case["rounds"], sampling)
        add(rounds, case, adjacency="replace-one")
    for case in REFERENCE.get("heterogeneous", []):
        if isinstance(case["parts"], str):
            parts = [Rounds(1 + 0.002 * i, 1, Poisson(256 / 60000)) for i in range(500)]
        else:
            parts = [Rounds(s, n, Poisson(q)) for q, s, n in case["parts"]]
        add(parts, case)
    for case in REFERENCE.get("group_poisson", []):
        rounds = Rounds(case["noise_multiplier"], case["rounds"], Poisson(case["rate"]))
        add(rounds, case, group=case["group"])
    for case in REFERENCE.get("gaussian", []):
        add(Rounds(case["noise_multiplier"], case["rounds"], FullBatch()), case)
    for case in REFERENCE.get("shuffled", []):
        rounds = Rounds(case["noise_multiplier"], 10 * case["epochs"], Shuffled(5, 50))
        add(rounds, case, adjacency=case["adjacency"])
    for case in REFERENCE.get("published", []):
        if "epsilon" in case:
            rounds = Rounds(case["noise_multiplier"], case["rounds"], Poisson(case["rate"]))
            add(rounds, case, uncertainty=case["tolerance"] / case["epsilon"])
    return found


@pytest.mark.parametrize("case", _cases(), ids=lambda c: f"{c[3]:.4g}")
def test_every_reference_value_lies_in_a_narrow_certified_interval(case):
    mechanism, delta, group, truth, uncertainty = case
    got = epsilon(mechanism, delta, group)
    assert got.lower <= truth * (1 + uncertainty)
    assert truth * (1 - uncertainty) <= got.upper
    assert got.relative_width <= 1e-3


@pytest.mark.parametrize(
    ("rate", "sigma", "rounds", "delta", "exact"),
    [
        (26 / 10_000, 19.29962, 1923, 1e-4, 0.01026),
        (288 / 60_000, 12.10881, 1250, 1 / 60_000, 0.03763),
        (406 / 50_000, 6.572, 862, 1 / 50_000, 0.1071),
        (256 / 60_000, 8.0, 4688, 1e-5, 0.1144),
    ],
)
def test_exact_values_beside_the_loose_closed_forms(rate, sigma, rounds, delta, exact):
    got = epsilon(Mechanism(Rounds(sigma, rounds, Poisson(rate))), delta)
    assert got.lower == pytest.approx(exact, rel=5e-3)
    assert got.upper == pytest.approx(exact, rel=5e-3)


@pytest.mark.parametrize(
    ("batch", "examples", "gradients", "budget", "sigma"),
    [(26, 10_000, 50_000, 0.0497, 5.21), (370, 60_000, 360_000, 0.1521, 3.98)],
)
def test_the_same_promise_needs_three_times_less_noise(batch, examples, gradients, budget, sigma):
    rounds = math.ceil(gradients / batch)
    got = noise_multiplier(Budget(budget, 1 / examples), Poisson(batch / examples), rounds)
    assert got == pytest.approx(sigma, rel=0.01)


ORACLE_CASES = [
    (0.01, 1.0, 500, 1e-5),
    (0.2, 3.0, 40, 1e-6),
    (0.02, 2.0, 1000, 1e-7),
    (1.0, 20.0, 30, 1e-5),
]


def _oracle_epsilon(rate: float, sigma: float, rounds: int, delta: float) -> float:
    one = oracle.from_gaussian_mechanism(
        sigma, sampling_prob=rate, value_discretization_interval=1e-4
    )
    return float(one.self_compose(rounds).get_epsilon_for_delta(delta))


@pytest.mark.parametrize("case", ORACLE_CASES)
def test_dp_accounting_agrees(case):
    rate, sigma, rounds, delta = case
    got = epsilon(Mechanism(Rounds(sigma, rounds, Poisson(rate))), delta)
    theirs = _oracle_epsilon(*case)
    # Theirs is an upper bound on a fine grid.
    assert got.lower <= theirs
    assert theirs == pytest.approx(got.upper, rel=5e-3)


def test_dp_accounting_agrees_on_groups():
    group, rate, sigma, rounds = 3, 0.02, 2.0, 200
    weights = [math.comb(group, k) * rate**k * (1 - rate) ** (group - k) for k in range(group + 1)]
    theirs = oracle.from_mixture_gaussian_mechanism(
        sigma, list(range(group + 1)), weights, value_discretization_interval=1e-3
    )
    bound = theirs.self_compose(rounds).get_epsilon_for_delta(1e-6)
    got = epsilon(Mechanism(Rounds(sigma, rounds, Poisson(rate))), 1e-6, group)
    assert got.lower <= bound
    assert bound == pytest.approx(got.upper, rel=5e-3)


def test_losses_one_percent_too_small_are_caught(monkeypatch):
    case = ORACLE_CASES[0]
    mechanism = Mechanism(Rounds(case[1], case[2] + 1, Poisson(case[0])))
    points = transform.IntegratedPairs._on

    def shrunk(self, *nodes):
        loss, *rest = points(self, *nodes)
        return 0.99 * loss, *rest

    monkeypatch.setattr(transform.IntegratedPairs, "_on", shrunk)
    theirs = _oracle_epsilon(case[0], case[1], case[2] + 1, case[3])
    assert epsilon(mechanism, case[3]).upper < theirs * (1 - 5e-3)
