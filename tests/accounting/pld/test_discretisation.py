"""One round on a grid: below and above its profile, against 40-digit arithmetic."""

from __future__ import annotations

import math
from itertools import pairwise

import mpmath as mp
import numpy as np
import pytest

from forethought.accounting.pld import discretisation
from forethought.accounting.pld.discretisation import discretise
from forethought.accounting.pld.pair import Pair
from forethought.accounting.pld.profiles import Gaps, Stack

# What 40 digits leave of 1 - 1.
NOTHING = mp.mpf("1e-37")

PAIRS = [
    Pair(((1.0, 0.01),)),
    Pair(((0.07, 3e-4),)),
    Pair(((3.3, 1e-8),)),
    Pair(((0.5, 0.999999),)),
    Pair(((2.0, 1.0),)),
    Pair(((1.0, 0.1),), symmetric=True),
    Pair(((0.2, 1e-3),), symmetric=True),
    Pair(((0.8, 0.3),), ((0.8, 0.3),)),
    Pair(((0.5, 0.4), (1.0, 0.1))),
    Pair(((0.5, 0.04), (1.0, 0.001)), ((0.5, 0.04), (1.0, 0.001))),
]


def profile(pair: Pair, *, swapped: bool):
    """H(α) = sup_T P(T) - α Q(T), with 40 digits."""
    mp.mp.dps = 40
    up = [(mp.mpf(c), mp.mpf(w)) for c, w in pair.up]
    down = [(mp.mpf(c), mp.mpf(w)) for c, w in pair.down]
    idle_p, idle_q = (max(mp.mpf(0), 1 - sum((w for _, w in x), mp.mpf(0))) for x in (up, down))

    def forward(alpha):
        low, high = mp.mpf(-20_000), mp.mpf(20_000)
        for _ in range(110):
            z = (low + high) / 2
            p = idle_p + sum(w * mp.exp(c * z - c * c / 2) for c, w in up)
            q = idle_q + sum(w * mp.exp(-c * z - c * c / 2) for c, w in down)
            low, high = (z, high) if p < alpha * q else (low, z)
        above_p = idle_p * mp.ncdf(-low) + sum(w * mp.ncdf(c - low) for c, w in up)
        above_q = idle_q * mp.ncdf(-low) + sum(w * mp.ncdf(-c - low) for c, w in down)
        return above_p - alpha * above_q

    def mirrored(alpha):
        return 1 - alpha + alpha * forward(1 / alpha)

    if pair.symmetric:
        return lambda alpha: forward(alpha) if alpha >= 1 else mirrored(alpha)
    return mirrored if swapped and not pair.two_sided else forward


def misses(pair: Pair, nodes, step: float, *, swapped: bool, points: int = 14) -> tuple[bool, bool]:
    """Whether the upper bound is ever below the profile, and the lower one above it."""
    grid = discretise(Stack([pair], swapped=swapped), nodes, step)
    losses = [mp.mpf(step) * int(i) for i in nodes]
    shift, charge = mp.mpf(float(grid.shift[0])), mp.mpf(float(grid.charge[0]))
    assert not mp.isnan(charge)
    true = profile(pair, swapped=swapped)
    inside = [x for two in pairwise(losses) for x in (two[0], sum(two) / 2)]
    too_low = too_high = False
    for level in [losses[0] - 3, *inside[:: max(1, len(inside) // points)], losses[-1] + 1]:
        exact = true(mp.exp(level))

        def bound(masses, side, level=level):
            terms = (
                mp.mpf(float(m)) * max(mp.mpf(0), 1 - mp.exp(level - x - side * shift))
                for m, x in zip(masses, losses, strict=True)
            )
            return sum(terms, mp.mpf(0))

        too_low |= bound(grid.above[0], 1) + mp.mpf(float(grid.infinity[0])) < exact - NOTHING
        too_high |= bound(grid.below[0], -1) - charge > exact + NOTHING
    return bool(too_low), bool(too_high)


def spread(pair: Pair) -> float:
    loss, log_mass = (x[0] for x in Stack([pair]).sample())
    mass = np.exp(log_mass)
    return float(math.sqrt(mass @ (loss - mass @ loss) ** 2))


GRIDS = [
    np.arange(-30, 31),
    np.arange(-4, 5),
    np.concatenate([[-64, -32, -16, -8], np.arange(-6, 7), [8, 16, 32, 64]]),
]


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("pair", PAIRS, ids=lambda p: f"{p.up}{len(p.down)}{p.symmetric}")
@pytest.mark.parametrize(
    "cells", [3.0, *(pytest.param(x, marks=pytest.mark.slow) for x in (0.3, 100.0))]
)
def test_the_bounds_enclose_the_profile(pair, cells, swapped):
    for nodes in GRIDS:
        assert misses(pair, nodes, cells * spread(pair), swapped=swapped) == (False, False)


def test_an_upper_bound_without_its_infinite_mass_is_caught(monkeypatch):
    tails = Stack.tails
    monkeypatch.setattr(
        Stack, "tails", lambda self, low, high: (tails(self, low, high)[0], np.zeros(self.rows))
    )
    assert misses(PAIRS[0], np.arange(-4, 5), 0.01, swapped=False)[0]


def test_a_lower_bound_that_is_not_lowered_is_caught(monkeypatch):
    monkeypatch.setattr(
        discretisation,
        "_keep_above_lines",
        lambda sag, *_: (sag.fill(0), np.zeros(sag.shape, bool))[1],
    )
    assert misses(PAIRS[0], np.arange(-30, 31), 0.02, swapped=False, points=200)[1]


def test_gaps_that_are_a_billionth_too_small_are_caught(monkeypatch):
    gaps = Stack.gaps

    def shrunk(self, edges):
        true = gaps(self, edges)
        return Gaps(true.low * (1 - 1e-9), true.high * (1 - 1e-9), true.error)

    monkeypatch.setattr(Stack, "gaps", shrunk)
    assert misses(PAIRS[7], np.arange(-300, 301), 0.01, swapped=False)[0]
