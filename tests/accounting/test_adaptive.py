"""What a search or a filtered run costs: never below the truth, and below nothing it should be."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import jsonschema
import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import chisquare

from forethought.accounting import exact
from forethought.accounting.adaptive import (
    NegativeBinomialTrials,
    PoissonTrials,
    RenyiFilter,
    Trials,
    count_mechanism,
    draw,
    filter_interval,
    matching_score_noise,
    search_epsilon,
    selection_details,
    selection_interval,
    trials_from_dict,
)
from forethought.accounting.statement import (
    Statement,
    StatementError,
    account,
    json_schema,
)
from forethought.accounting.verification import verify
from forethought.values.mechanism import (
    Budget,
    FullBatch,
    Mechanism,
    Poisson,
    Rounds,
    UnsupportedMechanismError,
)
from forethought.values.serialisation import tagged

MECHANISM = Mechanism(Rounds(2.0, 50, Poisson(0.1)))
DELTA = 1e-5
DISTRIBUTIONS = (
    PoissonTrials(20.0),
    NegativeBinomialTrials.of_mean(20, 1.0),
    NegativeBinomialTrials.of_mean(20, 0.0),
    NegativeBinomialTrials.of_mean(20, -0.5),
)


def generating_function(trials: Trials) -> Callable[[np.ndarray], np.ndarray]:
    """s ↦ E[s^K], written down from the definitions of the distributions."""
    if isinstance(trials, PoissonTrials):
        return lambda s: np.exp(trials.mean * (s - 1))
    gamma, eta = trials.stopping, trials.shape
    if eta == 0:
        return lambda s: np.log1p(-(1 - gamma) * s) / math.log(gamma)
    return lambda s: ((1 - (1 - gamma) * s) ** -eta - 1) / (gamma**-eta - 1)


def best_of_gaussians(trials: Trials, sigma: float, delta: float) -> float:
    """ε that the largest of K numbers from N(0 or 1, σ²) has at least, by integration.

    The trial's score is its output. Bins only lose information, so the truth is not below.
    """
    edges = np.linspace(-12 * sigma, 1 + 12 * sigma, 40_001)
    pgf = generating_function(trials)
    at_one, at_zero = (np.diff(pgf(ndtr((edges - shift) / sigma))) for shift in (1.0, 0.0))

    def loss(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
        return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())

    low, high = 0.0, 50.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        over = max(loss(at_one, at_zero, middle), loss(at_zero, at_one, middle)) > delta
        low, high = (middle, high) if over else (low, middle)
    return low


@pytest.mark.parametrize("trials", DISTRIBUTIONS)
@pytest.mark.parametrize("sigma", [1.0, 4.0])
def test_a_search_is_never_charged_below_the_truth(trials: Trials, sigma: float) -> None:
    """Planted fault: the ε of a single trial is below what the best of about 20 really has."""
    mechanism = Mechanism(Rounds(sigma, 1, FullBatch()))
    truth = best_of_gaussians(trials, sigma, DELTA)
    assert truth <= search_epsilon([mechanism], trials, DELTA) <= 4 * truth
    assert exact.epsilon(mechanism, DELTA).upper < truth


@pytest.mark.thinned
@pytest.mark.parametrize("trials", DISTRIBUTIONS)
def test_the_number_of_trials_follows_its_distribution(trials: Trials) -> None:
    """χ² over 20,000 draws at p > 1e-4: fails a right generator once in 10,000 seeds. Planted
    fault: counts that are one too large are noticed."""
    generator = np.random.default_rng(0)
    first = 0 if isinstance(trials, PoissonTrials) else 1
    counts = np.array([draw(trials, generator) for _ in range(20_000)])
    probabilities = trials.probabilities(4000)

    def fit(found: np.ndarray) -> float:
        expected, observed = [], []
        left, seen = 1.0, 0
        for k, p in enumerate(probabilities[:60], start=first):
            if p * len(found) < 10:
                continue
            expected.append(p * len(found))
            observed.append(int((found == k).sum()))
            left, seen = left - p, seen + observed[-1]
        if left * len(found) >= 5:
            expected.append(left * len(found))
            observed.append(len(found) - seen)
        total = sum(observed)
        scaled = np.array(expected) * total / sum(expected)
        return float(chisquare(observed, scaled).pvalue)

    assert counts.min() >= first
    assert fit(counts) > 1e-4
    assert fit(counts + 1) < 1e-12


@pytest.mark.slow
def test_more_trials_and_worse_candidates_cost_more() -> None:
    spent = [search_epsilon([MECHANISM], PoissonTrials(mean), DELTA) for mean in (2, 10, 50)]
    assert spent == sorted(spent)
    worse = Mechanism(Rounds(1.5, 50, Poisson(0.1)))
    both = search_epsilon([MECHANISM, worse], DISTRIBUTIONS[2], DELTA)
    assert both >= search_epsilon([worse], DISTRIBUTIONS[2], DELTA) * (1 - 1e-12)
    assert both > search_epsilon([MECHANISM], DISTRIBUTIONS[2], DELTA)


def test_nothing_is_claimed_from_below_where_no_theorem_bounds_it() -> None:
    for trials in DISTRIBUTIONS:
        details = selection_details(MECHANISM, [MECHANISM], trials, None, DELTA)
        found = selection_interval(MECHANISM, DELTA, 1, details)
        alone = exact.epsilon(MECHANISM, DELTA)
        assert found.lower == 0
        assert alone.upper < found.upper


def test_matching_noise_is_the_least_that_costs_no_more() -> None:
    trials = DISTRIBUTIONS[2]
    noise = matching_score_noise([MECHANISM], trials, DELTA)
    target = search_epsilon([MECHANISM], trials, DELTA)
    assert search_epsilon([count_mechanism(noise, MECHANISM)], trials, DELTA) <= target
    assert search_epsilon([count_mechanism(0.99 * noise, MECHANISM)], trials, DELTA) > target


def test_a_score_that_costs_more_sets_the_price() -> None:
    trials = DISTRIBUTIONS[2]
    details = selection_details(MECHANISM, [MECHANISM], trials, 0.5, DELTA)
    found = selection_interval(MECHANISM, DELTA, 1, details)
    assert found.upper == search_epsilon([count_mechanism(0.5, MECHANISM)], trials, DELTA)
    assert found.upper > search_epsilon([MECHANISM], trials, DELTA)


def test_no_noise_is_no_guarantee() -> None:
    loud = Mechanism(Rounds(0.0, 1, FullBatch()))
    assert math.isinf(search_epsilon([loud, MECHANISM], DISTRIBUTIONS[0], DELTA))
    details = selection_details(loud, [loud], DISTRIBUTIONS[0], 0.0, DELTA)
    statement = account(loud, DELTA, accountant=details)
    assert not statement.private
    assert math.isinf(verify(statement).epsilon.upper)
    assert "not differentially private" in statement.to_markdown()


def test_trials_round_trip() -> None:
    for trials in DISTRIBUTIONS:
        assert trials_from_dict(tagged(trials)) == trials
    for values in ({}, {"kind": "fixed"}, {"kind": "poisson", "mean": 1, "more": 2}):
        with pytest.raises(ValueError, match="trials"):
            trials_from_dict(values)


def test_statements_meet_the_published_schema_and_round_trip() -> None:
    ledger = RenyiFilter(Budget(3.0, DELTA), orders=(6.0,))
    ledger.spend(MECHANISM)
    for details in (
        selection_details(MECHANISM, [MECHANISM], DISTRIBUTIONS[2], 5.0, DELTA),
        ledger.details(),
    ):
        statement = account(MECHANISM, DELTA, accountant=details)
        jsonschema.validate(json.loads(statement.to_json()), json_schema())
        again = Statement.from_json(statement.to_json())
        assert again.to_markdown() == statement.to_markdown()
        assert verify(again).epsilon == statement.epsilon
    with pytest.raises(StatementError, match="unknown accountant"):
        account(MECHANISM, DELTA, accountant={"kind": "guess"})


def test_groups_are_refused() -> None:
    details = selection_details(MECHANISM, [MECHANISM], DISTRIBUTIONS[0], None, DELTA)
    with pytest.raises(UnsupportedMechanismError, match="group=1"):
        account(MECHANISM, DELTA, group=2, accountant=details)
    ledger = RenyiFilter(Budget(3.0, DELTA), orders=(8.0,))
    with pytest.raises(UnsupportedMechanismError, match="group=1"):
        account(MECHANISM, DELTA, group=2, accountant=ledger.details())


def test_a_filter_holds_its_budget_at_its_delta_and_above() -> None:
    ledger = RenyiFilter(Budget(3.0, DELTA), orders=(6.0,))
    ledger.spend(MECHANISM)
    details = ledger.details()
    found = filter_interval(MECHANISM, DELTA, 1, details)
    assert found.upper == 3.0
    assert found.lower == 0
    assert account(MECHANISM, 1e-4, accountant=details).epsilon.upper == 3.0
    with pytest.raises(ValueError, match="nothing is proven"):
        filter_interval(MECHANISM, DELTA / 2, 1, details)
    with pytest.raises(ValueError, match="other rounds"):
        filter_interval(MECHANISM.first(49), DELTA, 1, details)
    with pytest.raises(ValueError, match="do not fit"):
        filter_interval(MECHANISM + MECHANISM + MECHANISM + MECHANISM, DELTA, 1, details)
