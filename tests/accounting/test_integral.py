"""The line integral on Gaussians, whose transform and profile are known: every charge is needed.

Each test puts the integral where one of its errors is large (a coarse step, a short line, strong
smoothing, a transform that is off): the bounds must still hold, and they do not when that charge is
left out.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from forethought.accounting.dominating_pair import gaussian_delta
from forethought.accounting.line_integral import Integral, log_peak
from forethought.accounting.transform import Line, gaussian_line

MU = 1.5


def integral(
    *,
    tilt: float = 2.0,
    step: float = 0.05,
    smoothing: float = 0.02,
    end: float = 400.0,
    change: float = 0.0,
    doubt: float = 0.0,
    beyond: float = 4.0,
    mu: float = MU,
) -> Integral:
    count = math.ceil(end / step)
    line = gaussian_line(mu, tilt, step * np.arange(count, dtype=float))
    wave = change * np.cos(0.7 * np.arange(count))
    line = Line(line.real + wave, line.phase, line.doubt + doubt)
    moment = beyond * (beyond + 1) * mu * mu / 2
    return Integral(tilt, step, smoothing, line, beyond, moment)


def bounds(found: Integral, epsilon: float) -> tuple[float, float]:
    (scale, low), (same, high) = found.bound(epsilon, 0), found.bound(epsilon, 1)
    return low * math.exp(scale), high * math.exp(same)


@pytest.mark.parametrize("epsilon", [-1.0, 0.0, 0.5, 2.0, 5.0, 9.0])
@pytest.mark.parametrize("mu", [0.3, 1.5])
def test_fine_lines_are_sharp(epsilon, mu):
    tilt = max(1.0, epsilon / mu**2)
    found = integral(
        mu=mu,
        smoothing=0.004 / tilt,
        end=2000 * tilt,
        step=0.1 * tilt,
        tilt=tilt,
        beyond=1.5 * tilt,
    )
    truth = float(gaussian_delta(epsilon, mu))
    low, high = bounds(found, epsilon)
    assert low <= truth <= high
    if truth > 1e-8:
        assert high - low <= 1e-3 * truth


CASES = [
    {"step": 0.9},  # wraps around from the left
    {"step": 2.0, "tilt": 4.0, "beyond": 5.0},
    {"step": 3.0, "tilt": 1.0, "beyond": 2.0},  # and from the right
    {"step": 1.2, "tilt": 0.3, "beyond": 1.0},
    {"smoothing": 0.3, "end": 25.0},  # smooths, and stops early
    {"smoothing": 1.0, "end": 8.0},
    {"smoothing": 0.05, "end": 2.5},
    {"smoothing": 0.5, "end": 2.5, "tilt": 1.0},
    {"smoothing": 0.02, "end": 1.0},
    {"change": 1e-3, "doubt": 1e-3},  # a transform that is off as it says
    {"change": -0.3, "doubt": 0.31},
    {"change": 0.02, "doubt": 0.0202, "smoothing": 0.2, "end": 60.0},
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rough_lines_still_enclose(case):
    found = integral(**case)
    for epsilon in np.linspace(-2, 9, 45):
        truth = float(gaussian_delta(float(epsilon), MU))
        low, high = bounds(found, float(epsilon))
        assert low <= truth * (1 + 1e-12)
        assert high >= truth * (1 - 1e-12)


def test_smoothing_errs_to_both_sides_by_what_is_documented():
    tau, c, epsilon = 0.05, 2.0, 2.0
    found = integral(smoothing=tau, tilt=c, end=400)
    truth = float(gaussian_delta(epsilon, MU))
    low, high = bounds(found, epsilon)
    # δ'' and δ' of a Gaussian stand for c (c + 1) here.
    h = 1e-3
    up, down = (float(gaussian_delta(epsilon + s * h, MU)) for s in (1, -1))
    bend = (up + down - 2 * truth) / h**2 - (up - down) / (2 * h)
    assert high - truth == pytest.approx(tau * tau / 2 * bend, rel=0.05)
    assert truth - low == pytest.approx(tau * tau / 2 * bend, rel=0.05)


def test_the_peak_of_chernoffs_bound():
    x = np.linspace(0, 40, 400_001)
    for tilt in (0.2, 1.0, 7.0):
        peak = np.max(np.exp(-tilt * x) * -np.expm1(-x))
        assert math.exp(log_peak(tilt)) == pytest.approx(float(peak), rel=1e-6)
