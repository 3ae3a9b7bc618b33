"""Correlated noise: sensitivities by brute force over patterns, ε against closed forms."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import forethought as ft
from forethought.accounting.renyi import rdp, zcdp
from forethought.accounting.statement import Randomness, account
from forethought.accounting.theorems import sensitivity_over_turns, uncorrelated
from forethought.accounting.verification import verify
from forethought.papers.strong_adversary import KnownHits
from forethought.values.mechanism import (
    Correlated,
    CyclicPoisson,
    FullBatch,
    Mechanism,
    Poisson,
    Rounds,
    Sampling,
    UnsupportedMechanismError,
)
from forethought.values.strategies import Banded, BufferedToeplitz, Strategy

BANDED = Banded((1.0, 0.5, 0.375))
BUFFERED = BufferedToeplitz((0.4, 0.2), (0.9, 0.5))
DELTA = 1e-5


def matrix(strategy: Strategy, count: int) -> np.ndarray:
    column = strategy.column(count)
    return np.array(
        [[column[i - j] if i >= j else 0.0 for j in range(count)] for i in range(count)]
    )


def brute(strategy: Strategy, count: int, separation: int) -> float:
    """Largest ‖Σ_j s_j C[:, p + j·b]‖ over patterns, subsets of turns and signs s_j."""
    C, best = matrix(strategy, count), 0.0
    for start in range(separation):
        columns = C[:, start::separation]
        for signs in itertools.product([-1, 0, 1], repeat=columns.shape[1]):
            best = max(best, float(np.linalg.norm(columns @ np.array(signs, dtype=float))))
    return best


@pytest.mark.parametrize("strategy", [BANDED, BUFFERED, Banded((1.0, 0.7))], ids=str)
@pytest.mark.parametrize(("count", "separation"), [(1, 1), (5, 1), (12, 3), (11, 2), (10, 4)])
def test_sensitivity_is_the_worst_of_all_patterns(
    strategy: Strategy, count: int, separation: int
) -> None:
    found = sensitivity_over_turns(strategy, count, separation)
    assert found == pytest.approx(brute(strategy, count, separation), rel=1e-12)
    assert found >= brute(strategy, count, separation) * (1 - 1e-15)


def test_negative_coefficients_need_turns_that_do_not_overlap() -> None:
    strategy = Banded((1.0, -0.5, 0.25))
    assert sensitivity_over_turns(strategy, 9, 3) == pytest.approx(brute(strategy, 9, 3))
    with pytest.raises(UnsupportedMechanismError, match="negative coefficients"):
        sensitivity_over_turns(strategy, 9, 2)


@pytest.mark.parametrize(("adjacency", "moved"), [("zero-out", 1.0), ("replace-one", 2.0)])
@pytest.mark.parametrize("group", [1, 3])
def test_fixed_turns_are_one_gaussian(adjacency: str, moved: float, group: int) -> None:
    part = Correlated(5.0, 20, CyclicPoisson(1.0, 4), "example", BUFFERED)
    distance = group * moved * brute(BUFFERED, 20, 4) / 5
    found = ft.epsilon(Mechanism(part, adjacency=adjacency), DELTA, group)
    wanted = ft.epsilon(Mechanism(Rounds(1 / distance, 1, FullBatch())), DELTA)
    assert found.upper == pytest.approx(wanted.upper, rel=1e-9)
    assert found.upper >= wanted.lower
    rho = zcdp(Mechanism(part, adjacency=adjacency))
    assert rho == pytest.approx((distance / group) ** 2 / 2)


def test_sampled_turns_are_poisson_rounds_of_the_bands_norm() -> None:
    norm = math.sqrt(1 + 0.25 + 0.375**2)
    turns = Mechanism(Correlated(2.0, 50, CyclicPoisson(0.2, 10), strategy=BANDED))
    rounds = Mechanism(Rounds(2.0 / norm, 5, Poisson(0.2)))
    assert ft.epsilon(turns, DELTA).upper == pytest.approx(
        ft.epsilon(rounds, DELTA).upper, rel=1e-6
    )
    assert rdp(turns).epsilon(DELTA) == pytest.approx(rdp(rounds).epsilon(DELTA), rel=1e-6)
    # Groups overlap, so every turn counts as taken.
    whole = Mechanism(Rounds(2.0 / (norm * math.sqrt(5)), 1, FullBatch()))
    assert ft.epsilon(turns, DELTA, 2).upper == pytest.approx(
        ft.epsilon(whole, DELTA, 2).upper, rel=1e-3
    )


@pytest.mark.parametrize("sampling", [FullBatch(), CyclicPoisson(0.2, 10)])
def test_more_rounds_than_fit_into_memory_are_refused(sampling: Sampling) -> None:
    part = Correlated(3.0, 10**9, sampling, strategy=BANDED)
    with pytest.raises(ValueError, match="at most 10000000"):
        ft.epsilon(Mechanism(part), DELTA)


def test_turns_that_never_come_take_no_memory() -> None:
    found = sensitivity_over_turns(BUFFERED, 12, 10**9)
    assert found == sensitivity_over_turns(BUFFERED, 12, 12)


@pytest.mark.filterwarnings("ignore:overflow")
def test_coefficients_that_leave_no_noise_are_refused() -> None:
    part = Correlated(1.0, 3, FullBatch(), strategy=Banded((1.0, 1e200)))
    with pytest.raises(UnsupportedMechanismError, match="too large"):
        ft.epsilon(Mechanism(part), DELTA)


def test_one_band_is_independent_noise() -> None:
    for sampling in (CyclicPoisson(0.3, 4), CyclicPoisson(1.0, 4), FullBatch()):
        one = Mechanism(Correlated(3.0, 20, sampling, strategy=Banded((1.0,))))
        other = Mechanism(Rounds(3.0, 20, sampling))
        assert ft.epsilon(one, DELTA).upper == pytest.approx(ft.epsilon(other, DELTA).upper)


@pytest.mark.parametrize(
    "strategy", [BUFFERED, Banded((1.0, *[0.1] * 10))], ids=["buffers", "bands"]
)
def test_sampled_turns_that_overlap_are_refused(strategy: Strategy) -> None:
    part = Correlated(2.0, 40, CyclicPoisson(0.2, 10), strategy=strategy)
    with pytest.raises(UnsupportedMechanismError, match="rate 1"):
        ft.epsilon(Mechanism(part), DELTA)
    assert ft.epsilon(Mechanism(part), DELTA, 2).upper > 0


def test_every_beginning_of_a_run_costs_less_and_is_accounted_by_itself() -> None:
    for sampling in (CyclicPoisson(1.0, 7), CyclicPoisson(0.3, 7)):
        mechanism = Mechanism(Correlated(3.0, 60, sampling, strategy=BANDED))
        spent = [ft.epsilon(mechanism.first(n), DELTA).upper for n in (1, 8, 15, 59, 60)]
        assert spent == sorted(spent)
        once = Mechanism(Correlated(3.0, 1, sampling, strategy=BANDED))
        assert spent[0] == ft.epsilon(once, DELTA).upper


def test_other_analyses_refuse_or_take_the_whole_run() -> None:
    part = Correlated(3.0, 20, CyclicPoisson(1.0, 4), strategy=BANDED)
    with pytest.raises(UnsupportedMechanismError, match="the whole run"):
        KnownHits.of_rounds(part, "zero-out")
    assert uncorrelated(part) == Rounds(part.noise_multiplier / uncorrelated_size(), 1, FullBatch())


def uncorrelated_size() -> float:
    return (
        3.0
        / uncorrelated(Correlated(3.0, 20, CyclicPoisson(1.0, 4), strategy=BANDED)).noise_multiplier
    )


def test_statements_say_that_rounds_have_no_guarantee_of_their_own() -> None:
    sampled = Mechanism(Correlated(2.0, 40, CyclicPoisson(0.2, 10), strategy=BANDED))
    statement = account(sampled, DELTA)
    verify(statement)
    assert any(caveat.code == "correlated-noise" for caveat in statement.facts)
    assert "banded correlated noise" in statement.theorems[0]
    assert "correlated over rounds (3 bands)" in statement.to_markdown()
    known = account(sampled, DELTA, randomness=Randomness(seeded_sampling=True))
    fixed = Mechanism(Correlated(2.0, 40, CyclicPoisson(1.0, 10), strategy=BANDED))
    assert known.epsilon.upper == pytest.approx(ft.epsilon(fixed, DELTA).upper)
    assert "secret-batches" not in [c.code for c in account(fixed, DELTA).assumptions]


def test_the_best_attack_on_fixed_turns_meets_the_claim() -> None:
    """The likelihood ratio of 2·10⁵ runs: its errors are on the claimed curve (six deviations)."""
    part = Correlated(4.0, 12, CyclicPoisson(1.0, 3), strategy=BUFFERED)
    C = matrix(BUFFERED, 12)
    move = C[:, ::3].sum(axis=1)
    rng = np.random.default_rng(2)
    noise = np.linalg.solve(C, rng.standard_normal((12, 200_000)))
    seen = np.zeros(12)
    seen[::3] = 1
    claim = ft.tradeoff(Mechanism(part))
    score = [(move @ C @ (x[:, None] + 4.0 * noise)) for x in (0 * seen, seen)]
    for level in (0.1, 0.3):
        threshold = np.quantile(score[0], 1 - level)
        missed = float((score[1] <= threshold).mean())
        assert abs(missed - claim(level)) < 6 * 0.5 / math.sqrt(200_000) + 2e-3


def test_records_of_several_parts_are_in_several_groups():
    # One group a round, three records: in one part they move 2, in three parts up to 6 together.
    part = Correlated(40.0, 9, CyclicPoisson(1.0, 3), "group", Banded((1.0, 0.5, 0.25)), groups=1)
    unknown = Correlated(40.0, 9, CyclicPoisson(1.0, 3), "group", Banded((1.0, 0.5, 0.25)))
    three, any_number = (ft.epsilon(Mechanism(x), 1e-5, 3) for x in (part, unknown))
    assert three == any_number
    all_nine, any_nine = (ft.epsilon(Mechanism(x), 1e-5, 9) for x in (part, unknown))
    assert all_nine.upper < any_nine.lower
    full = Correlated(40.0, 9, FullBatch(), "group", Banded((1.0, 0.5, 0.25)), groups=1)
    assert ft.epsilon(Mechanism(full), 1e-5, 3).upper == pytest.approx(
        ft.epsilon(Mechanism(full), 1e-5).upper
    )
