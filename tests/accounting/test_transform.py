"""Transforms of rounds against 24 digits: what is said of their errors is true, and needed."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from forethought.accounting import transform
from forethought.accounting.dominating_pair import Mixture, Pair
from forethought.accounting.transform import (
    Demand,
    IntegratedPairs,
    UnresolvedError,
    gaussian_line,
    growth,
    rule,
)

PAIRS = {
    "rare": Pair(((1.0, 1e-4),)),
    "often": Pair(((0.7, 0.3),)),
    "nearly always": Pair(((2.0, 0.999),), idle=0.001),
    "two-sided": Pair(((1.0, 0.2),), ((1.0, 0.2),)),
    "group": Pair(((1.0, 0.18), (2.0, 0.01)), idle=0.81),
    "symmetric": Pair(((1.5, 0.1),), symmetric=True),
}


def _densities(pair: Pair, z, *, swapped: bool):
    def mixture(parts, idle, sign):
        return mpmath.mpf(idle) + sum(
            mpmath.mpf(w) * mpmath.exp(sign * mpmath.mpf(c) * z - mpmath.mpf(c) ** 2 / 2)
            for c, w in parts
        )

    first, second = mixture(pair.up, pair.idle, 1), mixture(pair.down, pair.rest, -1)
    return (second, first) if swapped else (first, second)


def moment(pair: Pair, s: complex, *, swapped: bool = False, cut: float = math.inf) -> complex:
    """E e^{s loss} - 1 by adaptive quadrature in 24 digits."""
    mpmath.mp.dps = 24
    s = mpmath.mpc(s)
    phi = mpmath.npdf

    def plain(z):
        p, q = _densities(pair, z, swapped=swapped)
        return phi(z) * p * (mpmath.exp(s * mpmath.log(p / q)) - 1)

    def mirrored(z):
        p, q = _densities(pair, z, swapped=False)
        return phi(z) * q * (mpmath.exp(-s * mpmath.log(p / q)) - 1)

    if pair.symmetric:
        start = pair.up[0][0] / 2
        grid = [start + x for x in (0, 1, 2, 3, 5, 8, 12, 20, 32)]
        return complex(mpmath.quad(plain, grid) + mpmath.quad(mirrored, grid))
    grid = [*range(-16, 36, 2)]
    if swapped:
        grid = [-x for x in grid][::-1]
    return complex(mpmath.quad(plain, grid))


def _line(pair: Pair, tilt: float, frequencies, *, swapped: bool = False, log_error: float = -30.0):
    rows = IntegratedPairs([pair], np.ones(1), swapped=swapped)
    first = round(frequencies[0] / frequencies[1]) if frequencies[0] else 0
    step = frequencies[1] - frequencies[0]
    assert first == 0
    line, _ = rows.along(tilt, step, 0, len(frequencies), log_error, 1e9)
    return line


@pytest.mark.thinned
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("swapped", [False, True])
def test_the_line_is_within_its_doubt_of_many_digits(name, swapped):
    pair = PAIRS[name]
    if swapped and pair.two_sided:
        return
    step = 0.9
    line = _line(pair, 1.3, step * np.arange(12), swapped=swapped)
    for k in (0, 2, 11):
        truth = 1 + moment(pair, 1.3 + 1j * k * step, swapped=swapped)
        got = math.exp(line.real[k]) * complex(math.cos(line.phase[k]), math.sin(line.phase[k]))
        allowed = math.exp(line.real[k]) * math.expm1(line.doubt[k])
        assert abs(got - truth) <= allowed * (1 + 1e-6) + 1e-17
        assert allowed < 1e-9 or math.exp(line.real[k]) < 1e-5


def test_rounding_is_relative_to_the_distance_from_one():
    # 10^6 rounds of it lose no digit that counts.
    pair = Pair(((1.0, 1e-7),))
    line = _line(pair, 1.0, 0.5 * np.arange(4), log_error=-70.0)
    gap = moment(pair, 1.0)
    assert math.expm1(line.real[0]) == pytest.approx(gap.real, rel=1e-6)
    assert line.doubt[0] < 1e-20 + 1e-4 * gap.real


@pytest.mark.parametrize("name", ["rare", "often", "two-sided", "symmetric"])
def test_a_coarse_rule_errs_by_less_than_it_says_and_by_more_than_rounding(name):
    pair = PAIRS[name]
    rows = IntegratedPairs([pair], np.ones(1), swapped=False)
    worst = 0.0
    for tilt, frequency in ((1.0, 3.0), (2.0, 20.0), (3.0, 40.0)):
        rough, fine = (
            rows.along(tilt, frequency, 0, 2, log_error, 1e9)[0] for log_error in (-1.0, -32.0)
        )
        for k in (0, 1):
            values = [math.exp(x.real[k]) * np.exp(1j * x.phase[k]) for x in (rough, fine)]
            allowed = math.exp(rough.real[k]) * math.expm1(min(rough.doubt[k], 50.0))
            assert abs(values[0] - values[1]) <= allowed + 1e-12
            worst = max(worst, abs(values[0] - values[1]))
    assert worst > 1e-9


@pytest.mark.parametrize("tilt, frequency, log_error", [(2.0, 300.0, -20.0), (2.0, 1.0, -34.0)])
def test_nodes_that_are_kept_serve_only_what_they_were_taken_for(tilt, frequency, log_error):
    kept, fresh = (IntegratedPairs([PAIRS["often"]], np.ones(1), swapped=False) for _ in range(2))
    kept.keep(2.0, [(1.0, -21.0)], 4.0, -20.0)
    lines = [x.along(tilt, frequency, 0, 2, log_error, 1e9)[0] for x in (kept, fresh)]
    values = [np.exp(x.real + 1j * x.phase) for x in lines]
    assert (np.abs(values[0] - values[1]) <= 2 * np.expm1(lines[1].doubt)).all()
    for beyond in (4.0, 4.5):
        assert kept.log_moment_above(beyond, -20.0) == pytest.approx(
            fresh.log_moment_above(beyond, -20.0), abs=1e-8
        )


@pytest.mark.parametrize("name", ["rare", "often"])
def test_bounds_of_moments_hold_and_are_close(name):
    pair = PAIRS[name]
    rows = IntegratedPairs([pair], np.array([3.0]), swapped=False)
    for tilt in (0.5, 3.0, 8.0):
        truth = 3 * math.log1p(moment(pair, tilt).real)
        bound = rows.log_moment_above(tilt, -20.0)
        assert truth <= bound <= truth + 1e-6


def test_what_is_cut_off_is_taken_from_the_measure():
    pair = PAIRS["often"]
    rows = IntegratedPairs([pair], np.ones(1), swapped=False)
    gone, some, second = rows.truncate(1.5)
    z = np.linspace(1.5, 12, 400_001)
    phi = np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    p = np.trapezoid(phi * (0.7 + 0.3 * np.exp(0.7 * z - 0.245)), z)
    assert gone == pytest.approx(p, rel=1e-6)
    assert some <= p <= gone
    assert second == pytest.approx(np.trapezoid(phi, z), rel=1e-6)
    line, _ = rows.along(1e-9, 1.0, 0, 1, -30.0, 1e9)
    # At s = 0 the transform is what is left.
    assert math.exp(line.real[0]) == pytest.approx(1 - p, rel=1e-6)


def test_powers_and_products():
    pairs = [PAIRS["rare"], Pair(((0.8, 0.02),)), Pair(((1.1, 0.3),))]
    counts = np.array([50.0, 7.0, 2.0])
    line, _ = IntegratedPairs(pairs, counts, swapped=False).along(2.0, 0.7, 0, 5, -30.0, 1e9)
    alone = [
        IntegratedPairs([p], np.array([n]), swapped=False)
        for p, n in zip(pairs, counts, strict=True)
    ]
    parts = [rows.along(2.0, 0.7, 0, 5, -30.0, 1e9)[0] for rows in alone]
    assert line.real == pytest.approx(sum(p.real for p in parts), abs=1e-10)
    assert line.phase == pytest.approx(sum(p.phase for p in parts), abs=1e-10)


def test_a_few_rows_bound_them_all():
    pairs = [Pair(((1.0 + 0.01 * i, 0.3),)) for i in range(16)]
    rows = IntegratedPairs(pairs, np.full(16, 5.0), swapped=False)
    every, _ = rows.along(1.0, 2.0, 1, 9, -30.0, 1e9)
    few, _ = rows.along(1.0, 2.0, 1, 9, -30.0, 1e9, every=4)
    assert np.all(few.real + few.doubt >= every.real - every.doubt)


def test_too_much_work_is_refused():
    rows = IntegratedPairs([PAIRS["often"]], np.ones(1), swapped=False)
    with pytest.raises(UnresolvedError, match="products"):
        rows.along(1.0, 0.1, 0, 1000, -30.0, 1e3)
    wide = Mixture(np.array([[1e7]]), np.array([[0.5]]), np.array([0.5]), 1.0, np.array([1e14]))
    none = Mixture(np.zeros((1, 0)), np.zeros((1, 0)), np.ones(1), -1.0, np.zeros(1))
    with pytest.raises(UnresolvedError, match="panels"):
        rule(wide, none, (transform.FORWARD,), [Demand(1.0, 0.0, -20.0)])


def test_the_gaussian_line_is_its_own_transform():
    line = gaussian_line(1.2, 0.5, np.array([0.0, 2.0]))
    for k, t in enumerate((0.0, 2.0)):
        s = 0.5 + 1j * t
        wanted = s * (s + 1) * 0.72
        assert line.real[k] == pytest.approx(wanted.real)
        assert line.phase[k] == pytest.approx(wanted.imag)


@pytest.mark.parametrize("group", [2, 5, 40])
@pytest.mark.parametrize("unit", [0.05, 0.6, 2.0, 9.0])
def test_the_posterior_of_a_lattice_mixture_is_no_wider_than_assumed(group, unit):
    k = np.arange(1, group + 1)
    weights = np.array([math.comb(group, int(i)) * 0.3**i * 0.7 ** (group - i) for i in k])
    side = transform.side_of(
        [tuple(zip((unit * k).tolist(), weights.tolist(), strict=True))], [0.7**group]
    )
    z = np.linspace(-12, unit * group + 12, 4001)
    all_k = np.r_[0, k]
    log = np.log(np.r_[0.7**group, weights])[:, None] + unit * all_k[:, None] * z
    log -= (unit * all_k[:, None]) ** 2 / 2
    p = np.exp(log - log.max(axis=0))
    p /= p.sum(axis=0)
    shift = unit * all_k[:, None]
    variance = (p * shift**2).sum(axis=0) - (p * shift).sum(axis=0) ** 2
    assert variance.max() <= side.spread[0, 0] * (1 + 1e-9)
    # And its mean is the derivative of the log density.
    assert side.at(z).mean[0] == pytest.approx((p * shift).sum(axis=0), rel=1e-9, abs=1e-12)


def test_weights_that_are_not_log_concave_get_the_general_bound():
    side = transform.side_of([((1.0, 0.001), (2.0, 0.5))], [0.499])
    assert side.spread[0, 0] == 1.0


RATE = [Pair(((c, 0.01),)) for c in (0.5, 0.61, 0.65, 0.7)]


@pytest.mark.parametrize("cut", [math.inf, 6.0])
@pytest.mark.parametrize("swapped", [False, True])
def test_rounds_of_one_rate_share_their_losses(swapped, cut):
    counts = np.array([3.0, 2.0, 5.0, 1.0])
    together = IntegratedPairs(RATE, counts, swapped=swapped)
    alone = [
        IntegratedPairs([p], np.array([n]), swapped=swapped)
        for p, n in zip(RATE, counts, strict=True)
    ]
    assert together.shared and not any(rows.shared for rows in alone)
    gone = together.truncate(cut) if cut < math.inf else (0.0, 0.0, 0.0)
    found = []
    for i, rows in enumerate(alone):
        if cut < math.inf:
            # The common end, in standard deviations of each round's own line.
            end = (together.cut - together.base.mean[i, 0]) / together.base.deviation[i, 0]
            found.append(rows.truncate(float(end)))
    if found:
        assert gone == pytest.approx(tuple(map(sum, zip(*found, strict=True))), rel=1e-7)
    line, _ = together.along(5.0, 1.3, 0, 40, -28.0, 1e9)
    each = [rows.along(5.0, 1.3, 0, 40, -28.0, 1e9)[0] for rows in alone]
    for name in ("real", "phase"):
        truth = np.sum([getattr(x, name) for x in each], axis=0)
        doubt = line.doubt + np.sum([x.doubt for x in each], axis=0)
        assert (np.abs(getattr(line, name) - truth) <= doubt).all()
    assert line.doubt.max() < 1e-10
    above = together.log_moment_above(5.0, -14.0)
    alone_above = sum(r.log_moment_above(5.0, -14.0) for r in alone)
    assert above == pytest.approx(alone_above, rel=1e-4)  # both err upwards, by e^-14 a round
    truth = sum(r.log_moment_above(5.0, -33.0) for r in alone)
    assert above >= truth * (1 - 1e-9)


@pytest.mark.parametrize("pairs", [RATE, [PAIRS["often"]], [PAIRS["group"]]], ids=len)
@pytest.mark.parametrize("swapped", [False, True])
def test_no_transform_changes_faster_than_its_swing(pairs, swapped):
    rows = IntegratedPairs(pairs, np.ones(len(pairs)), swapped=swapped)
    tilt, step = 3.0, 0.01
    swing = rows.swing(tilt)
    fastest = 0.0
    for i, pair in enumerate(pairs):
        alone = IntegratedPairs([pair], np.ones(1), swapped=swapped)
        line, _ = alone.along(tilt, step, 0, 4000, -30.0, 1e9)
        change = np.abs(np.diff(np.exp(line.real))) / step
        assert change.max() <= swing[i]
        fastest = max(fastest, change.max() / swing[i])
    assert fastest > 0.05


def test_a_line_with_slack_holds_in_between():
    rows = IntegratedPairs(RATE, np.full(4, 50.0), swapped=False)
    tilt, step = 4.0, 2.0
    coarse, _ = rows.along(tilt, step, 0, 30, -20.0, 1e9, 1, step / 2 * rows.swing(tilt))
    fine, _ = rows.along(tilt, step / 8, 0, 8 * 29, -20.0, 1e9)
    nearest = np.rint(np.arange(8 * 29) / 8).astype(int)
    assert (fine.real <= (coarse.real + coarse.doubt)[nearest]).all()


@pytest.mark.slow
def test_very_different_moments_are_bounded_one_by_one():
    pairs, counts = [Pair(((0.2, 0.3),)), Pair(((0.25, 0.9),))], np.array([2.0, 5.0])
    tilt = 60.0
    together = IntegratedPairs(pairs, counts, swapped=False)
    assert np.ptp(together._scales(tilt)) > 20
    got = together.log_moment_above(tilt, -8.0)
    truth = sum(
        n * math.log1p(moment(pair, tilt).real) for pair, n in zip(pairs, counts, strict=True)
    )
    assert truth <= got <= truth + 0.02


@pytest.mark.parametrize("variance", [0.04, 1.0, 30.0])
def test_a_density_above_the_line_is_larger_by_what_is_said(variance):
    """The bound on a panel's error needs it, and is too cautious for an error to show."""
    for x in (-3.0, 0.0, 0.7):
        for y in (0.1, 1.3):
            high = abs(np.exp(-((x + 1j * y - 0.4) ** 2) / (2 * variance)))
            low = math.exp(-((x - 0.4) ** 2) / (2 * variance))
            assert growth(np.array(y), np.array(variance)) == pytest.approx(math.log(high / low))


@pytest.mark.parametrize(
    ("shift", "rate", "swapped", "begin", "length", "tilt"),
    [
        (60.0, 0.3, True, -1.33, 1.5, 0.01),
        (70.0, 1e-6, True, -1.32, 1.5, 0.01),
        (45.0, 1e-14, False, -0.2, 0.6, 0.01),
        (240.0, 0.3, False, -1.0, 1.5, 2.0),
    ],
)
def test_a_panel_near_a_sharp_bend_errs_by_less_than_it_says(
    shift, rate, swapped, begin, length, tilt
):
    # Left of the bend, where a large shift takes over, the mixture looks like one Gaussian.
    side, none = transform.side_of([((shift, rate),)], [1 - rate]), transform.side_of([()], [1.0])
    up, down = (none, side) if swapped else (side, none)
    down.sign, sign = -1.0, -1.0 if swapped else 1.0
    bend = sign * (shift / 2 - math.log(rate) / shift)
    start = bend + begin

    def log_value(z):
        log = np.logaddexp(math.log1p(-rate), math.log(rate) + sign * shift * z - shift**2 / 2)
        return -z * z / 2 - math.log(2 * math.pi) / 2 + log * ((not swapped) + sign * tilt)

    def integral(z, weights):
        return float(weights @ np.exp(log_value(z) - top))

    top = float(log_value(np.linspace(start, start + length, 200)).max())
    demand = Demand(tilt, 0.0, top - 12)
    found = rule(up, down, [transform.FORWARD], [demand], np.array([start]), start + length)
    edges = np.linspace(0.0, length, 2 * math.ceil(length * shift) + 1)
    nodes, weights = np.polynomial.legendre.leggauss(20)
    half = np.diff(edges)[:, None] / 2
    fine = integral(
        (start + edges[:-1, None] + half * (1 + nodes)).ravel(), (half * weights).ravel()
    )
    rough = integral(start + found.nodes, found.weights)
    assert abs(rough - fine) <= math.exp(found.log_errors[0] - top) + 1e-11 * fine


@pytest.mark.parametrize("rate", [1e-20, 0.01, 0.7])
def test_the_posterior_mean_has_all_its_digits_however_small(rate):
    side, shift = transform.side_of([((3.0, rate),)], [1 - rate]), 3.0
    z = np.array([-20.0, -11.0, 0.0, 6.0, 14.0, 17.0, 30.0])
    mpmath.mp.dps = 30
    for at, mean in zip(z.tolist(), side.at(z).mean[0], strict=True):
        hit = mpmath.mpf(rate) * mpmath.exp(shift * mpmath.mpf(at) - mpmath.mpf(shift) ** 2 / 2)
        assert mean == pytest.approx(float(shift * hit / (mpmath.mpf(1 - rate) + hit)), rel=1e-12)
