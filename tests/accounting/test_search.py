"""The search over lines: what is cut off, lost or in doubt counts; both directions; no crossing."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from forethought.accounting import exact, line_integral
from forethought.accounting.dominating_pair import Bounds, Pair
from forethought.accounting.interval import Interval
from forethought.accounting.line_integral import Composition, Search
from forethought.accounting.transform import IntegratedPairs
from forethought.values.mechanism import Mechanism, Poisson, Rounds, WithoutReplacement

PAIR = Pair(((1.0, 0.02),))
COUNT = 200


def delta_bounds(total: Composition, epsilon: float) -> tuple[float, float]:
    search = Search(total, epsilon=epsilon)
    total.cut = lambda *_: math.inf  # type: ignore[method-assign]
    search.refine(1e-4)
    return search.lower, search.upper


def truth(epsilon: float) -> float:
    low, high = delta_bounds(Composition({PAIR: COUNT}), epsilon)
    assert high - low <= 2e-4 * high
    return (low + high) / 2


@pytest.mark.thinned
@pytest.mark.parametrize("cut", [2.5, 3.5, 4.5])
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 2.5])
def test_cut_off_losses_count_as_disclosed(cut, epsilon):
    total = Composition({PAIR: COUNT})
    (rows,) = total.rows
    total.cut_off, total.disclosed, total.undisclosed = rows.truncate(cut)
    low, high = delta_bounds(total, epsilon)
    exactly = truth(epsilon)
    assert low <= exactly * (1 + 2e-4)
    assert high >= exactly * (1 - 2e-4)
    # Without the charges the bounds would not hold.
    total.cut_off = 0.0
    assert delta_bounds(total, epsilon)[1] < exactly or cut > 4
    if epsilon == 2.5 and cut == 2.5:
        total.undisclosed = 0.0
        assert delta_bounds(total, epsilon)[0] > exactly


def test_disclosed_losses_raise_the_lower_bound():
    total = Composition({PAIR: COUNT})
    (rows,) = total.rows
    total.cut_off, total.disclosed, total.undisclosed = rows.truncate(3.5)
    with_them, _ = delta_bounds(total, 0.3)
    total.disclosed = 0.0
    assert delta_bounds(total, 0.3)[0] < with_them


@pytest.mark.parametrize("swapped", [False, True])
def test_lost_mass_is_charged_once_a_round(swapped):
    lost = replace(PAIR, lost=1e-5, lost_rest=1e-6)
    exactly = truth(1.0) if not swapped else None
    total = Composition({lost: COUNT}, swapped=swapped)
    plain = Composition({PAIR: COUNT}, swapped=swapped)
    assert total.lost == pytest.approx(COUNT * (1e-6 if swapped else 1e-5))
    assert total.lost_below == pytest.approx(COUNT * (1e-5 if swapped else 1e-6))
    low, high = delta_bounds(total, 1.0)
    bare_low, bare_high = delta_bounds(plain, 1.0)
    assert high == pytest.approx(bare_high + total.lost, rel=1e-3)
    assert low <= max(0.0, bare_low - math.e * total.lost_below * 0.99)
    if exactly is not None:
        assert low < exactly < high


@pytest.mark.parametrize("sign", [1, -1])
def test_doubtful_weights_are_covered(sign):
    doubt = 1e-3
    # Every component within the doubt, in the direction that hurts.
    off = Pair(((1.0, 0.02 * (1 + sign * doubt)),), idle=0.98 * (1 - sign * doubt * 0.02 / 0.98))
    low, high = delta_bounds(Composition({replace(PAIR, doubt=doubt): COUNT}), 1.0)
    other_low, other_high = delta_bounds(Composition({off: COUNT}), 1.0)
    assert low <= other_low
    assert other_high <= high


def test_the_reverse_direction_counts_where_it_is_the_worse_one():
    pair = Pair(((0.2, 0.1),), ((1.5, 0.2),))
    ahead = delta_bounds(Composition({pair: 5}), 1.0)
    behind = delta_bounds(Composition({pair: 5}, swapped=True), 1.0)
    assert behind[0] > 2 * ahead[1]
    got = exact.of_pairs({pair: 5}, 1e-3, exact.Asked(epsilon=1.0))
    assert got.lower >= 0.999 * behind[0]
    assert got.upper >= behind[0]
    for delta in (1e-2, 1e-6):
        worse = Search(Composition({pair: 5}, swapped=True), delta=delta)
        worse.refine(1e-3)
        found = exact.of_pairs({pair: 5}, 1e-3, exact.Asked(delta))
        assert found.lower >= 0.998 * worse.lower
        assert found.upper >= worse.lower


@pytest.mark.parametrize("swapped", [False, True])
def test_chernoffs_bound_lies_above(swapped):
    total = Composition({PAIR: COUNT}, swapped=swapped)
    for epsilon in (0.1, 1.0):
        low, _ = delta_bounds(Composition({PAIR: COUNT}, swapped=swapped), epsilon)
        tilt = total.locate(epsilon=epsilon, rough=True).tilt
        assert math.log(low) <= total.chernoff(epsilon, tilt) <= math.log(low) + 6


@pytest.mark.parametrize("delta", [1e-3, 1e-7])
@pytest.mark.parametrize("misled", [0.0, 1.0])
def test_a_direction_is_the_lesser_one_only_where_it_is(delta, misled, monkeypatch):
    """Whatever is expected before: that only says how rough a line may be."""
    search = Search(Composition({PAIR: COUNT}, swapped=True), delta=delta)
    search.refine(1e-4)
    saddle = Composition.saddle
    monkeypatch.setattr(Composition, "saddle", lambda self, tilt: saddle(self, tilt) - misled)
    total = Composition({PAIR: COUNT}, swapped=True)
    assert not total.lesser(search.lower * (1 - 1e-3), delta)
    assert not total.lesser(0.0, delta)
    assert misled or total.lesser(search.upper * 1.05, delta)


def test_the_reverse_direction_is_looked_at_wherever_it_could_matter(monkeypatch):
    seen = []

    class Watched(Composition):
        def __init__(self, parts, *, swapped=False):
            seen.append(swapped)
            super().__init__(parts, swapped=swapped)

    monkeypatch.setattr(exact, "Composition", Watched)
    exact.enclose(Mechanism(Rounds(1.0, 300, Poisson(0.05))), 1, 1e-3, exact.Asked(1e-5))
    assert seen == [False, True]


def test_a_crossing_is_an_error_with_its_inputs(monkeypatch):
    monkeypatch.setattr(exact, "searched", lambda *_: Bounds(2.0, 1.0))
    monkeypatch.setattr(exact, "floor_of", lambda *_: 0.0)
    mechanism = Mechanism(Rounds(1.234, 77, Poisson(0.01)))
    with pytest.raises(exact.CertificateError, match=r"1\.234.*count=77.*group=1"):
        exact.enclose(mechanism, 1, 1e-3, exact.Asked(1e-5))


def test_a_direction_that_contradicts_itself_is_an_error(monkeypatch):
    refine = Search.refine

    def crossed(self, accuracy, *, beaten_by=-1.0):
        refine(self, accuracy, beaten_by=beaten_by)
        self.lower, self.upper = 2.0, 1.0

    monkeypatch.setattr(Search, "refine", crossed)
    with pytest.raises(exact.CertificateError):
        exact.enclose(Mechanism(Rounds(1.0, 70, Poisson(0.01))), 1, 1e-3, exact.Asked(1e-5))


ROWS = [
    # What the issue listed: group weights, crashes, hangs, and intervals that said nothing.
    (Rounds(1.0, 1, Poisson(0.9)), "replace-one", 12, 1e-6, 151.441),
    (Rounds(0.3, 1, Poisson(0.9999)), "replace-one", 3, 1e-5, 119.447),
    (Rounds(1.0, 10_000, Poisson(1e-4)), "add-or-remove", 1, 1e-9, 0.0697),
    (Rounds(10.0, 20, WithoutReplacement(100, 100)), "replace-one", 4, 1e-5, 21.003),
]


@pytest.mark.parametrize(("rounds", "adjacency", "group", "delta", "value"), ROWS, ids=str)
def test_rows_that_were_wrong_or_wide(rounds, adjacency, group, delta, value):
    got = exact.epsilon(Mechanism(rounds, adjacency=adjacency), delta, group)
    assert got.lower == pytest.approx(value, rel=2e-3)
    assert got.relative_width <= 1e-3


EXTREMES = [
    (Rounds(0.0514203, 326, WithoutReplacement(15, 471362)), "replace-one", 3, 1.3e-11),
    (Rounds(0.0575314, 74226, Poisson(1.4246e-5)), "zero-out", 2, 6.1e-29),
    (Rounds(1e-160, 1000, Poisson(0.1)), "add-or-remove", 1, 1e-5),
    (Rounds(1e-9, 1000, Poisson(0.1)), "add-or-remove", 1, 1e-5),
    (Rounds(1e-6, 1000, Poisson(0.1)), "replace-one", 5, 1e-5),
    (Rounds(1.1, 14_000, Poisson(0.0043)), "add-or-remove", 1, 1e-300),
    (Rounds(1e9, 10**9, Poisson(0.5)), "zero-out", 1, 1e-12),
    (Rounds(1e-3, 1, Poisson(1e-12)), "add-or-remove", 64, 1e-30),
    (Rounds(1e160, 10, Poisson(0.5)), "replace-one", 2, 1e-10),
    (Rounds(5e-324, 1, Poisson(0.5)), "add-or-remove", 1, 1e-10),
]


@pytest.mark.parametrize(("rounds", "adjacency", "group", "delta"), EXTREMES, ids=str)
def test_extremes_get_sound_bounds(rounds, adjacency, group, delta):
    got = exact.epsilon(Mechanism(rounds, adjacency=adjacency), delta, group)
    assert 0 <= got.lower <= got.upper
    # ε itself is above the largest double only where the noise is absurd.
    assert got.upper < math.inf or rounds.noise_multiplier < 1e-100


def test_delta_far_out_is_tiny_and_not_an_overflow():
    got = exact.delta(Mechanism(Rounds(0.3, 1000, Poisson(0.1))), 800.0)
    assert isinstance(got, Interval)
    assert 0 < got.lower <= got.upper < 1e-19
    assert exact.delta(Mechanism(Rounds(1.0, 100, Poisson(0.01))), 5000.0).upper < 1e-300


def test_the_swapped_direction_does_not_underflow():
    pair = Pair(((1 / 0.15, 0.999),), idle=0.001)
    search = Search(Composition({pair: 40}, swapped=True), delta=1e-6)
    search.refine(1e-3)
    # At least what the idle component proves: 40 rounds of losses near 1/(2·0.15²).
    assert search.lower > 200
    assert np.isfinite(search.upper)


def test_many_noises_at_once_agree_with_each_by_itself(monkeypatch):
    many = Mechanism(*(Rounds(1 + 0.02 * i, 1, Poisson(0.02)) for i in range(60)))
    together = exact.enclose(many, 1, 1e-3, exact.Asked(1e-6))
    monkeypatch.setattr(line_integral, "SEVERAL", math.inf)
    apart = exact.enclose(many, 1, 1e-3, exact.Asked(1e-6))
    assert together.relative_width <= 1e-3 >= apart.relative_width
    assert together.lower <= apart.upper and apart.lower <= together.upper


@pytest.mark.parametrize("counts", [[4] * 12, [1] * 40, [1] * 6 + [300] + [1] * 5])
def test_kinds_that_hardly_differ_are_as_sharp_as_one(counts):
    # Slack that did not shrink with the transform, or a few rounds without the one that counts,
    # gave upper ends up to six times too large.
    parts = (Rounds(65 * (1 + 1e-7 * i), n, Poisson(0.5)) for i, n in enumerate(counts))
    one = Mechanism(Rounds(65, sum(counts), Poisson(0.5)))
    got, same = (exact.enclose(m, 1, 1e-3, exact.Asked(5e-3)) for m in (Mechanism(*parts), one))
    assert got.relative_width <= 1e-3
    assert got.lower <= same.upper * (1 + 1e-5) and same.lower <= got.upper * (1 + 1e-5)


def test_a_line_with_gaps_holds_between_its_points(monkeypatch):
    """Half-way between two computed points no transform is larger than either point's bound."""
    along, seen = IntegratedPairs.along, []

    def spied(self, tilt, step, first, last, log_error, most_work, every=1, slack=None):
        found = along(self, tilt, step, first, last, log_error, most_work, every, slack)
        if slack is not None:
            fine, _ = along(self, tilt, step / 2, 2 * first, 2 * last, log_error, math.inf)
            bound = found[0].real + found[0].doubt
            here, after = fine.real[::2] - fine.doubt[::2], fine.real[1::2] - fine.doubt[1::2]
            assert (here <= bound + 1e-9).all()
            assert (after <= bound + 1e-9).all() and (after[:-1] <= bound[1:] + 1e-9).all()
            seen.append(len(bound))
        return found

    monkeypatch.setattr(IntegratedPairs, "along", spied)
    parts = (Rounds(5 * (1 + 0.05 * i), 20, Poisson(0.1)) for i in range(12))
    exact.enclose(Mechanism(*parts), 1, 1e-5, exact.Asked(5e-3))
    assert sum(seen) > 10


def test_no_lower_end_rests_on_a_mass_that_underflowed():
    # Q's mass is e^-712 there; P's alone is 4.35e-51, and the truth (60 digits) 2.72997e-51.
    got = exact.delta(
        Mechanism(Rounds(0.039810541765705594, 1, Poisson(0.12895211632503242))), 686.5
    )
    assert got.lower <= 2.72997e-51 <= got.upper


FEW = [
    (Mechanism(Rounds(1.7918557649252316, 253, WithoutReplacement(1, 3038))), 1.6825e-06, 3),
    (
        Mechanism(
            Rounds(0.68609, 4, Poisson(1.2255e-4)),
            Rounds(18.6858, 1, Poisson(0.1262), "group"),
            adjacency="zero-out",
        ),
        1.3181e-12,
        1,
    ),
    (
        Mechanism(
            Rounds(16.53779, 2, Poisson(0.00215047), "group"),
            Rounds(15.06672, 1, Poisson(0.01536529), "group"),
        ),
        8.8122e-06,
        2,
    ),
    (
        Mechanism(
            Rounds(14.6098, 13, Poisson(6.24e-4), "group"),
            Rounds(1.02434, 1, Poisson(1.4087e-4)),
            adjacency="zero-out",
        ),
        5.63923e-08,
        1,
    ),
    (
        Mechanism(
            Rounds(1.7690220669873074, 24, Poisson(0.00010839088190399708)),
            Rounds(1.8359210925558143, 2, Poisson(0.0017625155175103819)),
            adjacency="zero-out",
        ),
        1.694253069731622e-11,
        2,
    ),
]


@pytest.mark.parametrize(("mechanism", "wanted", "group"), FEW, ids=range(len(FEW)))
def test_few_rounds_with_rare_records_are_sharp(mechanism, wanted, group):
    # Windows too short for the answer, moments that were only estimated, and crossings by a
    # slope of half the true one once left these up to [0, large].
    got = exact.enclose(mechanism, group, 1e-3, exact.Asked(wanted))
    assert got.lower > 0 and got.relative_width <= 1e-3


@pytest.mark.parametrize("level", [0.0, 1.0, 10.0, 20.0, 30.0])
def test_delta_is_sharp_where_it_is_near_one(level):
    mechanism = Mechanism(Rounds(1.1, 14_000, Poisson(0.0043)), adjacency="replace-one")
    got = exact.delta(mechanism, level, 8)
    assert got.lower > 0.4 and got.relative_width <= 1e-3
