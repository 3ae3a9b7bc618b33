"""Sums of discrete Gaussians against their probabilities, added up one by one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from mpmath import mp

from forethought.accounting.accountants import charged, real_divergence, sum_divergence
from forethought.accounting.interval import Interval


def weights(scale: float, reach: int) -> list:
    raw = [mp.exp(-(mp.mpf(k) ** 2) / (2 * mp.mpf(scale) ** 2)) for k in range(-reach, reach + 1)]
    total = mp.fsum(raw)
    return [value / total for value in raw]


@pytest.mark.parametrize(("scale", "parties"), [(0.7, 2), (0.7, 4), (0.9, 3), (1.1, 2), (1.3, 5)])
def test_the_charge_of_a_sum_holds_and_is_not_far_from_it(scale: float, parties: int) -> None:
    mp.dps = 40
    reach = 60
    one = np.array(weights(scale, reach))
    found = one
    for _ in range(parties - 1):
        found = np.convolve(found, one)
    middle, side = len(found) // 2, 12
    wanted = weights(scale * math.sqrt(parties), len(found) // 2)
    worst = max(abs(mp.log(found[middle + k] / wanted[middle + k])) for k in range(-side, side + 1))
    bound = sum_divergence(scale, parties)
    assert worst <= bound
    if parties == 2:  # what comes later smooths the first sums, which no charge takes in
        assert bound <= 4 * worst
    paper = 10 * sum(math.exp(-2 * math.pi**2 * scale**2 * k / (k + 1)) for k in range(1, parties))
    assert bound <= paper


@pytest.mark.parametrize(("scale", "rounding"), [(1.0, 0.6), (2.0, 0.8), (5.0, 1.0)])
def test_a_rounded_real_gaussian_is_a_discrete_one_up_to_the_charge(
    scale: float, rounding: float
) -> None:
    std = math.sqrt(scale**2 - rounding**2)
    discrete = np.array([float(value) for value in weights(scale, 80)])
    # Equal steps converge faster than any power for functions that are smooth and die out.
    y = np.arange(-40, 40, 1 / 64)
    chances = np.exp(-((np.arange(-60, 61)[:, None] - y) ** 2) / (2 * rounding**2))
    chances /= chances.sum(axis=0)
    density = np.exp(-(y**2) / (2 * std**2)) / (std * math.sqrt(2 * math.pi))
    for k in range(-8, 9):
        ratio = abs(math.log((density * chances[60 + k]).sum() / 64 / discrete[80 + k]))
        assert ratio <= real_divergence(scale, rounding) + 1e-12
    assert real_divergence(scale, rounding) < 0.01


def test_large_scales_cost_nothing_and_small_ones_are_refused() -> None:
    assert sum_divergence(2.0**25, 250) == 0.0
    assert real_divergence(2.0**25) < 1e-75
    assert sum_divergence(0.8, 1) == 0.0
    assert sum_divergence(0.8, 3) > sum_divergence(0.8, 2) > sum_divergence(0.9, 2)
    with pytest.raises(ValueError, match="at least"):
        sum_divergence(0.4, 2)
    with pytest.raises(ValueError, match="finer grid"):
        real_divergence(3.0)


def test_charged_moves_both_ends_outward() -> None:
    moved = charged(Interval(1.0, 1.1), 0.01)
    assert moved.lower == pytest.approx(0.98) and moved.upper == pytest.approx(1.12)
    assert moved.upper >= 1.12
