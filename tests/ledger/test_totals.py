"""Rules of an account's totals, against enumerated adversaries and integrals of their own."""

import json
import math
from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm, poisson

from forethought.accounting import exact
from forethought.accounting.adaptive import (
    NegativeBinomialTrials,
    PoissonTrials,
    Selection,
    Trials,
)
from forethought.accounting.dominating_pair import gaussian_delta
from forethought.ledger import totals
from forethought.ledger.book import Account, Charge
from forethought.ledger.chain import charge_from, charge_values
from forethought.ledger.totals import (
    RULES,
    WHOLE,
    Clock,
    ClockRule,
    GaussianRule,
    RenyiRule,
    TotalRule,
)
from forethought.values.mechanism import (
    Budget,
    FullBatch,
    Mechanism,
    Poisson,
    RandomAllocation,
    Rounds,
    Shuffled,
    UnsupportedMechanismError,
    WithoutReplacement,
)

ACCOUNT = Account("patients", Budget(8.0, 1e-6))
CHARGES = (
    Charge(Mechanism(Rounds(4.0, 1, FullBatch()), Rounds(1.5, 100, Poisson(0.01)))),
    Charge(Mechanism(Rounds(2.0, 300, Poisson(0.02)))),
    Charge(Mechanism(Rounds(9.0, 3, FullBatch()))),
    Charge(Mechanism(Rounds(3.0, 40, WithoutReplacement(50, 2000)))),
)


def gaussian(mu: float) -> Charge:
    """A Gaussian release."""
    return Charge(Mechanism(Rounds(1 / mu, 1, FullBatch())))


@pytest.mark.parametrize("kind", RULES)
def test_rule_is_read_back(kind: str) -> None:
    rule = TotalRule.of(ACCOUNT, kind)
    assert TotalRule.from_dict(json.loads(json.dumps(rule.to_dict()))) == rule
    with pytest.raises(ValueError, match="unknown"):
        TotalRule.from_dict({**rule.to_dict(), "other": 1})
    with pytest.raises(ValueError, match="missing"):
        TotalRule.from_dict({key: value for key, value in rule.to_dict().items() if key != "delta"})


@pytest.mark.parametrize("order", [0, 1, None, []])
def test_a_renyi_rule_without_its_order_is_refused(order: object) -> None:
    values = TotalRule.of(ACCOUNT, "renyi").to_dict()
    with pytest.raises((TypeError, ValueError), match="order"):
        TotalRule.from_dict({**values, "order": order})


def test_clock_that_does_not_keep_the_budget_is_refused() -> None:
    values = TotalRule.of(ACCOUNT, "clock").to_dict()
    with pytest.raises(ValueError, match="does not keep"):
        TotalRule.from_dict({**values, "variance": values["variance"] * 1.001})
    with pytest.raises(ValueError, match="does not keep"):
        TotalRule.from_dict({**values, "leaps": 1e-6})
    with pytest.raises(ValueError, match="of a step"):
        TotalRule.from_dict({**values, "steps": [[0, 0.1]]})


@pytest.mark.parametrize("kind", RULES)
def test_charges_fit_until_they_do_not(kind: str) -> None:
    rule = TotalRule.of(ACCOUNT, kind)
    for charge in CHARGES:
        count = rule.more(rule.nothing, charge)
        cost = rule.costs(charge)
        # A rule that knows nothing of sampling has no room for sampled runs.
        assert count > 0 or kind == "gaussian"
        assert rule.fits([count * c for c in cost])
        assert not rule.fits([(count + 1) * c for c in cost])
        assert rule.epsilon([count * c for c in cost]) <= ACCOUNT.budget.epsilon * (1 + 1e-9)
        assert rule.more([(count + 1) * c for c in cost], charge) == 0


@pytest.mark.parametrize("kind", RULES)
def test_what_is_left_buys_one_gaussian_release(kind: str) -> None:
    rule = TotalRule.of(ACCOUNT, kind)
    spent = rule.costs(CHARGES[2])
    epsilon = rule.left(spent)
    for factor, fits in ((1 - 1e-6, True), (1 + 1e-3, False)):
        mu = totals.gaussian_mu(epsilon * factor, ACCOUNT.budget.delta)
        total = [a + b for a, b in zip(spent, rule.costs(gaussian(mu)), strict=True)]
        assert rule.fits(total) == fits
    assert rule.left([WHOLE]) == 0


@pytest.mark.parametrize("kind", RULES)
def test_total_is_never_below_the_exact_composition(kind: str) -> None:
    rule = TotalRule.of(ACCOUNT, kind)
    for some in ([0], [1], [2], [3], [0, 1], [0, 1, 2, 3]):
        whole = CHARGES[some[0]].mechanism
        for at in some[1:]:
            whole = whole + CHARGES[at].mechanism
        costs = [rule.costs(CHARGES[at]) for at in some]
        total = [sum(column) for column in zip(*costs, strict=True)]
        assert rule.epsilon(total) >= exact.epsilon(whole, rule.budget.delta).lower


def test_one_gaussian_release_is_nearly_exact() -> None:
    release = gaussian(0.7)
    truth = exact.epsilon(release.mechanism, 1e-6).upper
    assert GaussianRule(ACCOUNT.budget).epsilon(
        GaussianRule(ACCOUNT.budget).costs(release)
    ) == pytest.approx(truth, rel=1e-9)
    rule = TotalRule.of(ACCOUNT)
    assert truth <= rule.epsilon(rule.costs(release)) <= truth * 1.04
    # All of the budget: what sampled releases need is little beside it.
    assert totals.gaussian_mu(rule.left(rule.nothing), 1e-6) ** 2 >= 0.97 * (
        totals.gaussian_mu(8.0, 1e-6) ** 2
    )


def best_of_two_laws(mu: float, trials: Trials, sign: int) -> tuple[np.ndarray, np.ndarray]:
    """Chances of the best of so many Gaussian releases, in small steps, under both data sets.

    Args:
        sign: 1: what tells the record scores best; -1: what denies it.
    """
    x = np.linspace(-12, 12 + mu, 400_001)
    most = 4000
    odds = trials.probabilities(most)
    numbers = np.arange(most + 1 - len(odds), most + 1)
    grid = np.linspace(0, 1, 20_001)
    slope = sum(
        n * chance * grid ** (n - 1)
        for n, chance in zip(numbers, odds, strict=True)
        if n and chance > 1e-18
    )

    def chances(law: norm) -> np.ndarray:
        below = law.cdf(x) if sign > 0 else law.sf(x)
        return law.pdf(x) * np.interp(below, grid, slope) * (x[1] - x[0])

    return chances(norm(mu, 1)), chances(norm(0, 1))


SEARCHES = (
    (0.3, NegativeBinomialTrials.of_mean(6, shape=0)),
    (0.2, NegativeBinomialTrials.of_mean(12, shape=1)),
    (0.3, PoissonTrials(8.0)),
)


def searched(mu: float, trials: Trials, score_noise: float | None = None) -> Charge:
    mechanism = gaussian(mu).mechanism
    return Charge(mechanism, selection=Selection((mechanism,), trials, score_noise))


@pytest.mark.thinned
@pytest.mark.parametrize(("mu", "trials"), SEARCHES)
@pytest.mark.parametrize("sign", [1, -1])
def test_a_search_is_dominated_by_what_it_costs(mu: float, trials: Trials, sign: int) -> None:
    rule = ClockRule(ACCOUNT.budget)
    (cost,) = rule.costs(searched(mu, trials))
    levels = np.linspace(0, 6, 25)
    one, other = best_of_two_laws(mu, trials, sign)
    pairs = (one, other), (other, one)
    truth = np.array(
        [max(np.maximum(a - math.exp(e) * b, 0).sum() for a, b in pairs) for e in levels]
    )
    covered, _ = rule.clock.below(cost / WHOLE, levels)
    assert np.all(truth <= covered * (1 + 1e-3) + 1e-9)
    one, _ = rule.clock.below(rule.costs(gaussian(mu))[0] / WHOLE, levels)
    assert sign < 0 or np.any(truth > 1.5 * one)
    assert cost < 12 * rule.costs(gaussian(mu))[0]


@pytest.mark.parametrize(("mu", "trials"), SEARCHES)
def test_a_search_has_at_most_the_divergence_that_it_is_charged(mu: float, trials: Trials) -> None:
    rule = RenyiRule(ACCOUNT.budget)
    (cost,) = rule.costs(searched(mu, trials))
    charged, order = cost / WHOLE * rule.limit, rule.order
    one, other = best_of_two_laws(mu, trials, 1)
    none = trials.probabilities(1)[0] if isinstance(trials, PoissonTrials) else 0.0
    truth = max(
        math.log(none + np.sum(a**order * b ** (1 - order), where=(a > 0) & (b > 0)))
        for a, b in ((one, other), (other, one))
    ) / (order - 1)
    assert order * mu**2 / 2 < truth <= charged  # more than of one trial


def test_a_held_out_record_pays_for_the_count_that_it_is_in() -> None:
    rule, trials = ClockRule(ACCOUNT.budget), SEARCHES[0][1]
    (loud,) = rule.costs(searched(0.3, trials, 2.0))
    (plain,) = rule.costs(searched(0.3, trials))
    assert loud > 1.5 * plain
    assert rule.costs(searched(0.3, trials, 0.0)) == (totals.MOST,)


def test_a_search_is_charged_whole_or_not_at_all() -> None:
    charge = searched(0.3, SEARCHES[0][1], 5.0)
    rule = ClockRule(ACCOUNT.budget)
    assert rule.costs(charge, 0) == rule.nothing and rule.costs(charge, 1) == rule.costs(charge)
    with pytest.raises(ValueError, match="rounds"):
        rule.costs(charge, 2)
    with pytest.raises(UnsupportedMechanismError, match="no Gaussian release"):
        GaussianRule(ACCOUNT.budget).costs(charge)
    with pytest.raises(ValueError, match="single records"):
        Charge(charge.mechanism, 2, selection=charge.selection)
    assert charge_from(json.loads(json.dumps(charge_values(charge)))) == charge
    assert "selection" not in charge_values(gaussian(1.0))


def test_numbers_of_trials_count_as_no_fewer_than_they_are() -> None:
    """Candidates that differ: the dearest counts; more trials never cost less."""
    rule, trials = ClockRule(ACCOUNT.budget), SEARCHES[0][1]
    two = (gaussian(0.1).mechanism, gaussian(0.3).mechanism)
    mixed = Charge(two[0], selection=Selection(two, trials))
    assert rule.costs(mixed) == rule.costs(searched(0.3, trials))
    costs = [
        rule.costs(searched(0.2, NegativeBinomialTrials.of_mean(mean, shape=0)))[0]
        for mean in (1.5, 12)
    ]
    assert costs == sorted(costs)


@pytest.mark.slow
def test_blocks_are_as_many_as_a_run_is_hardly_dearer_by() -> None:
    whole, chosen = TotalRule.of(ACCOUNT), TotalRule.of(ACCOUNT, "clock", 0)
    four = TotalRule.of(ACCOUNT, "clock", 4)
    long = Charge(Mechanism(Rounds(3.0, 4000, Poisson(0.02))))
    short = Charge(Mechanism(Rounds(0.7, 100, Poisson(0.01))))
    for charge in (long, short):
        assert whole.costs(charge) <= chosen.costs(charge)
        assert chosen.costs(charge)[0] <= 1.03 * whole.costs(charge)[0]
    assert chosen.costs(long, 100)[0] < 0.3 * whole.costs(long, 100)[0]
    assert chosen.costs(short, 1) == whole.costs(short) < four.costs(short)
    assert TotalRule.from_dict(chosen.to_dict()) == chosen
    with pytest.raises(ValueError, match="round by round"):
        TotalRule.of(ACCOUNT, "renyi", 4)


def test_series_is_one_charge() -> None:
    rule = TotalRule.of(ACCOUNT)
    one = CHARGES[1]
    series = Charge(one.mechanism + one.mechanism + one.mechanism)
    assert rule.costs(series)[0] <= 3 * rule.costs(one)[0]


@given(
    st.lists(st.sampled_from(range(4)), min_size=1, max_size=8),
    st.randoms(use_true_random=False),
    st.sampled_from(sorted(RULES)),
)
@settings(max_examples=40, deadline=None)
def test_order_never_matters_and_a_refund_undoes_its_charge(chosen, random, kind) -> None:
    rule = TotalRule.of(ACCOUNT, kind)

    def after(order: Sequence[int]) -> tuple[int, ...]:
        sums = rule.nothing
        for at in order:
            sums = tuple(a + b for a, b in zip(sums, rule.costs(CHARGES[at]), strict=True))
        return sums

    shuffled = list(chosen)
    random.shuffle(shuffled)
    assert after(chosen) == after(shuffled)
    back = tuple(a - b for a, b in zip(after(chosen), rule.costs(CHARGES[chosen[-1]]), strict=True))
    assert back == after(chosen[:-1])


@pytest.mark.slow
@pytest.mark.parametrize("kind", RULES)
@pytest.mark.parametrize("blocks", [1, 4])
def test_more_never_costs_less(kind: str, blocks: int) -> None:
    rule = TotalRule.of(ACCOUNT, kind)
    if kind == "clock":
        rule = ClockRule(ACCOUNT.budget, blocks=blocks)
    for charge in CHARGES:
        length = len(charge.mechanism)
        some = sorted({0, 1, length // 3, length // 2, length - 1, length})
        costs = [rule.costs(charge, rounds) for rounds in some]
        assert all(a <= b for one, two in pairwise(costs) for a, b in zip(one, two, strict=True))
        assert costs[0] == rule.nothing
        assert costs[-1] == rule.costs(charge)
        pair = Charge(charge.mechanism, group=2)
        one, two = rule.costs(charge)[0], rule.costs(pair)[0]
        assert one < two or one == two == totals.MOST


@pytest.mark.parametrize("kind", RULES)
def test_group_of_two_moves_a_gaussian_release_twice_as_far(kind: str) -> None:
    rule = TotalRule.of(ACCOUNT, kind)
    one, two = (rule.costs(Charge(gaussian(0.3).mechanism, group=n))[0] for n in (1, 2))
    assert two == pytest.approx(4 * one, rel=1e-9)


@pytest.mark.slow
def test_group_is_covered_in_the_clock() -> None:
    # Two records of a Poisson round: the number of hits is binomial, each moves the sum by 1.
    clock = Clock.suited(Budget(2.0, 1e-2))
    mechanism = Mechanism(Rounds(1.5, 1, Poisson(0.3)))
    found = totals.least_time(clock, mechanism, 2) / WHOLE
    present = [(0.49, 0.0), (0.42, 1 / 1.5), (0.09, 2 / 1.5)]
    assert not _misses(clock, found, present)
    assert _misses(clock, found * 0.999, present)


def _misses(clock: Clock, time: float, present: Sequence[tuple[float, float]]) -> bool:
    """True if the clock's release does not dominate a mixture of N(c, 1) against N(0, 1).

    Both profiles are integrated here, on a grid of their own.
    """
    z = np.linspace(-14, 18, 200_001)
    p = sum(weight * norm.pdf(z - shift) for weight, shift in present)
    q = norm.pdf(z)
    step = z[1] - z[0]
    readings, odds = clock.readings(time)
    leapt = -math.expm1(-clock.leaps * time)
    for epsilon in np.linspace(0, 8, 400):
        ours = leapt + float(odds @ gaussian_delta(epsilon, np.sqrt(readings)))
        for one, other in ((p, q), (q, p)):
            theirs = float(np.maximum(one - math.exp(epsilon) * other, 0).sum()) * step
            if theirs > ours + 1e-9:
                return True
    return False


@pytest.mark.thinned
@pytest.mark.parametrize(
    ("rate", "sigma", "less"),
    # Of the third the tail below 1e-9 decides, which is not integrated here.
    [(0.1, 0.8, 0.998), (0.5, 1.0, 0.998), (0.02, 0.7, 0.8), (0.9, 3.0, 0.998)],
)
def test_clock_dominates_a_round_both_ways_and_hardly_more(
    rate: float, sigma: float, less: float
) -> None:
    clock = Clock.suited(Budget(3.0, 1e-3))
    found = totals.least_time(clock, Mechanism(Rounds(sigma, 1, Poisson(rate))), 1) / WHOLE
    present = [(1 - rate, 0.0), (rate, 1 / sigma)]
    assert not _misses(clock, found, present)
    assert _misses(clock, found * less, present)


def test_profile_of_the_clock_is_that_of_counted_steps() -> None:
    clock = Clock(0.8, ((1, 0.5), (3, 0.2), (10, 0.05), (30, 0.01)), 1e-4)
    for time in (1.0, 0.3, 1e-3):
        odds = {0: math.exp(-clock.leaps * time)}
        for size, rate in clock.steps:
            new: dict[int, float] = {}
            for at, mass in odds.items():
                for count in range(12):
                    place = at + count * size
                    new[place] = new.get(place, 0) + mass * poisson.pmf(count, rate * time)
            odds = new
        for epsilon in (0.0, 0.5, 2.0, 6.0):
            truth = -math.expm1(-clock.leaps * time) + math.fsum(
                mass * float(gaussian_delta(epsilon, math.sqrt(0.8 * (time + at / 100))))
                for at, mass in odds.items()
            )
            low, slope = clock.below(time, np.array([epsilon, epsilon + 1e-4]))
            assert clock.above(time, epsilon) == pytest.approx(truth, rel=1e-9, abs=1e-12)
            assert low[0] == pytest.approx(truth, rel=1e-9, abs=1e-12)
            assert low[0] <= clock.above(time, epsilon)
            wide = math.exp(epsilon) * math.expm1(1e-4)
            assert (low[1] - low[0]) / wide == pytest.approx(slope[0], rel=2e-3)


def test_clock_runs_on_as_if_it_began_anew() -> None:
    """What it reads after 0.7 is what it reads after 0.3 and then after 0.4."""
    clock = Clock(1.0, ((1, 0.5), (3, 0.2), (10, 0.05), (30, 0.01)), 1e-3)

    def law(time: float) -> np.ndarray:
        readings, odds = clock.readings(time)
        full = np.zeros(500)
        full[np.rint((readings - time) * 100).astype(int)] = odds
        return full

    joined = np.convolve(law(0.3), law(0.4))[:300]
    assert np.allclose(joined, law(0.7)[:300], rtol=1e-9, atol=1e-20)


def test_even_course_between_knots_is_above_the_chords() -> None:
    places = np.array([1.0, 2.0])
    # (x - 1.5)² against 0.1 at both ends: above it there, below it in the middle.
    values, slopes = np.array([0.25, 0.25]), np.array([-1.0, 1.0])
    assert not totals.above_chords(places, np.array([0.1, 0.1]), values, slopes)
    assert totals.above_chords(places, np.array([0.1, 0.1]), values + 0.6, slopes)
    assert not totals.above_chords(places, np.array([0.3, 0.1]), values, slopes)
    # A line that begins below the chord and rises away from it: below at a knot, nowhere between.
    rising = np.array([0.25, 1.25])
    assert not totals.above_chords(places, np.array([0.3, 0.1]), rising, np.array([1.0, 1.0]))


# An adversary that picks the next charge from what it saw, enumerated to the last outcome.


def _releases(rate: float, sigma: float, rounds: int, bins: int) -> list[tuple[float, float]]:
    """Masses of P and Q of ``rounds`` sampled releases, each told only as a bin of the line."""
    edges = np.concatenate([[-np.inf], np.linspace(-1.5, 3.5, bins - 1) / sigma, [np.inf]])
    one = [
        (
            (1 - rate) * (norm.cdf(b) - norm.cdf(a))
            + rate * (norm.cdf(b - 1 / sigma) - norm.cdf(a - 1 / sigma)),
            norm.cdf(b) - norm.cdf(a),
        )
        for a, b in pairwise(edges)
    ]
    found = [(1.0, 1.0)]
    for _ in range(rounds):
        found = [(p * a, q * b) for p, q in found for a, b in one]
    return found


def _best_adversary(
    rule: TotalRule, menu: Sequence[tuple[Charge, list[tuple[float, float]]]]
) -> float:
    """The largest δ at the account's ε that any adaptive choice of charges reaches, by either
    hypothesis; every choice is tried after every outcome."""
    costs = [rule.costs(charge)[0] for charge, _ in menu]
    arrays = [np.array(outcomes) for _, outcomes in menu]
    growth = math.exp(rule.budget.epsilon)

    def best(spent: int, p: np.ndarray, q: np.ndarray) -> np.ndarray:
        found = np.maximum(p - growth * q, 0.0)
        for cost, masses in zip(costs, arrays, strict=True):
            if rule.fits((spent + cost,)):
                after = best(
                    spent + cost,
                    (p[:, None] * masses[:, 0]).ravel(),
                    (q[:, None] * masses[:, 1]).ravel(),
                )
                # The choice may differ from outcome to outcome: the larger of both for each.
                found = np.maximum(found, after.reshape(len(p), -1).sum(axis=1))
        return found

    one = np.ones(1)
    forward = float(best(0, one, one)[0])
    arrays = [masses[:, ::-1] for masses in arrays]
    return max(forward, float(best(0, one, one)[0]))


@cache
def _menu() -> tuple[tuple[Charge, list[tuple[float, float]]], ...]:
    return tuple(
        (Charge(Mechanism(Rounds(sigma, 1, Poisson(rate)))), _releases(rate, sigma, 1, bins))
        for rate, sigma, bins in ((0.3, 0.8, 10), (0.6, 1.5, 8), (1.0, 2.0, 10))
    )


@pytest.mark.parametrize("kind", RULES)
def test_no_adaptive_adversary_exceeds_the_budget(kind: str) -> None:
    budget = Budget(1.3, 0.05)
    rule = TotalRule.of(Account("games", budget), kind)
    reached = _best_adversary(rule, _menu())
    assert reached <= budget.delta
    # It is an adversary that gets somewhere.
    assert reached > {"clock": 0.4, "gaussian": 0.1, "renyi": 0.05}[kind] * budget.delta


def test_stopping_by_results_gains_nothing() -> None:
    """Blocks that were never begun return: the adversary stops after seeing the first of them."""
    budget = Budget(1.2, 0.05)
    rule = ClockRule(budget, blocks=2)
    run = Charge(Mechanism(Rounds(0.9, 2, Poisson(0.3))))
    whole, half = rule.costs(run)[0], rule.costs(run, 1)[0]
    assert 0 < half < whole
    one = np.array(_releases(0.3, 0.9, 1, 10))
    growth = math.exp(budget.epsilon)

    def best(spent: int, p: np.ndarray, q: np.ndarray, running: bool) -> np.ndarray:
        found = np.maximum(p - growth * q, 0.0)
        ways = [(spent + whole, True)] if not running else [(spent, False)]
        if running:
            # Settle with the first round only, and go on with something else.
            found = np.maximum(found, best(spent - whole + half, p, q, running=False))
        for after, state in ways:
            if rule.fits((after,)):
                values = best(
                    after,
                    (p[:, None] * one[:, 0]).ravel(),
                    (q[:, None] * one[:, 1]).ravel(),
                    running=state,
                )
                found = np.maximum(found, values.reshape(len(p), -1).sum(axis=1))
        return found

    start = np.ones(1)
    assert float(best(0, start, start, running=False)[0]) <= budget.delta


def test_run_that_stops_returns_only_blocks_that_were_not_begun() -> None:
    charge = CHARGES[1]
    single, four = TotalRule.of(ACCOUNT), ClockRule(ACCOUNT.budget, blocks=4)
    assert single.costs(charge, 1) == single.costs(charge)
    with pytest.raises(ValueError, match="at most 300"):
        four.costs(charge, 301)
    steps = [four.costs(charge, rounds)[0] for rounds in range(301)]
    assert len(set(steps)) == 5
    assert steps[75] == steps[1] < steps[76]
    assert four.costs(charge)[0] >= single.costs(charge)[0]


def test_gaussian_rounds_return_one_by_one() -> None:
    rule = TotalRule.of(ACCOUNT)
    charge = Charge(Mechanism(Rounds(9.0, 30, FullBatch())))
    assert rule.costs(charge, 10)[0] == pytest.approx(rule.costs(charge)[0] / 3, rel=1e-9)


@pytest.mark.parametrize("kind", RULES)
def test_hardly_anything_is_more_than_nothing(kind: str) -> None:
    rule = TotalRule.of(ACCOUNT, kind)
    assert rule.costs(gaussian(1e-9)) == (1,)
    assert rule.costs(gaussian(1e-5))[0] > 10_000


def test_worst_part_of_each_scheme_counts() -> None:
    rule = TotalRule.of(ACCOUNT)
    parts = {"site=A": (7,), "site=B": (5,), "year=2020": (1,), "year=2021": (2,)}
    assert rule.total((10,), parts) == (19,)
    assert rule.total((10,), {}) == (10,)


def test_what_no_theorem_covers_is_refused() -> None:
    rule = TotalRule.of(ACCOUNT)
    other = Mechanism(Rounds(2.0, 1, FullBatch()), adjacency="zero-out")
    with pytest.raises(UnsupportedMechanismError, match="zero-out"):
        rule.costs(Charge(other))
    exchanged = Account("exchanged", ACCOUNT.budget, adjacency="replace-one")
    mechanism = Mechanism(Rounds(2.0, 1, FullBatch()), adjacency="replace-one")
    with pytest.raises(UnsupportedMechanismError, match="another part"):
        TotalRule.of(exchanged).costs(Charge(mechanism, partition="site=A"))


@pytest.mark.parametrize("kind", RULES)
def test_release_without_noise_never_fits(kind: str) -> None:
    rule = TotalRule.of(ACCOUNT, kind)
    cost = rule.costs(Charge(Mechanism(Rounds(0.0, 1, FullBatch()))))
    assert not rule.fits(cost)
    assert rule.epsilon(cost) == math.inf
    assert rule.left(cost) == 0
    assert rule.more(rule.nothing, Charge(Mechanism(Rounds(0.0, 1, FullBatch())))) == 0


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_every_sampling_is_charged(adjacency) -> None:
    account = Account("all", ACCOUNT.budget, adjacency=adjacency)
    rule = TotalRule.of(account)
    for sampling in (Poisson(0.05), RandomAllocation(10), Shuffled(100, 1000), FullBatch()):
        mechanism = Mechanism(Rounds(4.0, 20, sampling), adjacency=adjacency)
        spent = rule.costs(Charge(mechanism))
        assert rule.epsilon(spent) >= exact.epsilon(mechanism, account.budget.delta).lower


@pytest.mark.parametrize(("epsilon", "most"), [(4.0, 1.15), (20.0, 2.5)])
def test_an_early_total_is_above_the_exact_one(epsilon: float, most: float) -> None:
    """By how much docs/ledger_theorems.md says."""
    run, rule = Mechanism(Rounds(4.25, 1, FullBatch())), ClockRule(Budget(epsilon, 1e-6))
    own = exact.epsilon(run, 1e-6)
    assert own.upper == pytest.approx(1, abs=0.02)
    assert own.upper <= rule.epsilon(rule.costs(Charge(run))) <= most * own.upper
