"""Noise on a grid: exact laws, exact arithmetic, and as much of it as is accounted."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from forethought.rounds.randomness import (
    COARSEST,
    LIMIT,
    Stream,
    accepted_far,
    add_grid_noise,
    bernoulli_exp,
    discrete_gaussian,
    discrete_laplace,
    reaching_grid,
)
from forethought.values.plan import GRID_STEPS, grid

FALSE_ALARM = 1e-6


def random(name: str) -> np.random.Generator:
    return Stream(b"g" * 32, name).at(0)


def fits(drawn: np.ndarray, weights: dict[int, float]) -> float:
    """p-value of chi-square against weights on whole numbers, rare ones put together."""
    total = math.fsum(weights.values())
    kept = {k: w / total * len(drawn) for k, w in weights.items() if w / total * len(drawn) >= 10}
    observed = [int((drawn == k).sum()) for k in kept]
    rest = len(drawn) - sum(observed)
    expected = [*kept.values(), len(drawn) - math.fsum(kept.values())]
    return float(stats.chisquare([*observed, rest], expected).pvalue)


@pytest.mark.parametrize("scale", [1, 2, 7, 40])
def test_the_discrete_gaussian_has_its_law(scale: int) -> None:
    """Chi-square on 200,000 draws, false-alarm rate 1e-6."""
    drawn = discrete_gaussian(scale, 200_000, random(f"gaussian {scale}"))
    reach = range(-12 * scale, 12 * scale + 1)
    assert fits(drawn, {k: math.exp(-(k**2) / (2 * scale**2)) for k in reach}) > FALSE_ALARM


@pytest.mark.parametrize("scale", [1, 3, 20])
def test_the_discrete_laplace_has_its_law(scale: int) -> None:
    drawn = discrete_laplace(scale, 200_000, random(f"laplace {scale}"))
    reach = range(-40 * scale, 40 * scale + 1)
    assert fits(drawn, {k: math.exp(-abs(k) / scale) for k in reach}) > FALSE_ALARM


def test_at_the_scale_in_use_it_is_normal() -> None:
    """Kolmogorov-Smirnov and tails (binomial) on 400,000 draws, false-alarm rate 1e-6."""
    scale = (1 << GRID_STEPS) + 12_345
    drawn = discrete_gaussian(scale, 400_000, random("large")) / scale
    assert stats.kstest(drawn, "norm").pvalue > FALSE_ALARM
    for edge in (2.0, 3.5, 4.2):
        found = int((np.abs(drawn) > edge).sum())
        chance = 2 * stats.norm.sf(edge)
        assert stats.binomtest(found, len(drawn), chance).pvalue > FALSE_ALARM
    # No structure in the low digits either.
    low = np.bincount(discrete_gaussian(scale, 200_000, random("low")) & 15, minlength=16)
    assert stats.chisquare(low).pvalue > FALSE_ALARM


@pytest.mark.parametrize(("numerator", "denominator"), [(0, 5), (1, 3), (9, 10), (7, 7)])
def test_a_coin_of_chance_exp_of_minus_a_fraction(numerator: int, denominator: int) -> None:
    up = bernoulli_exp(np.full(100_000, numerator), denominator, random(f"{numerator}"))
    chance = math.exp(-numerator / denominator)
    assert stats.binomtest(int(up.sum()), len(up), chance).pvalue > FALSE_ALARM


def test_far_proposals_are_weighed_exactly_too() -> None:
    """Offsets whose square leaves 64 bits, at a scale where they still come up."""
    scale, generator = 1 << 31, random("far")
    offset = (1 << 31) + 5
    kept = sum(accepted_far(offset, 2 * scale * scale, generator) for _ in range(20_000))
    chance = math.exp(-(offset**2) / (2 * scale * scale))
    assert stats.binomtest(kept, 20_000, chance).pvalue > FALSE_ALARM


@pytest.mark.parametrize("fault", ["scale", "sign", "coin"])
def test_planted_faults_in_the_sampler_are_seen(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import forethought.rounds.randomness as module

    honest_gaussian, honest_coin = module.discrete_gaussian, module.bernoulli_exp

    def coin(numerator: np.ndarray, denominator: int, generator: object) -> np.ndarray:
        less = numerator if denominator == 1 else numerator * 9 // 10
        return honest_coin(less, denominator, generator)

    def gaussian(scale: int, size: int, generator: np.random.Generator) -> np.ndarray:
        if fault == "scale":
            return honest_gaussian(scale - 1, size, generator)
        drawn = honest_gaussian(scale, size, generator)
        return np.where(drawn == 0, 1, drawn) if fault == "sign" else drawn

    if fault == "coin":
        monkeypatch.setattr(module, "bernoulli_exp", coin)
    drawn = gaussian(40 if fault == "scale" else 7, 400_000, random(fault))
    scale = 40 if fault == "scale" else 7
    weights = {k: math.exp(-(k**2) / (2 * scale**2)) for k in range(-12 * scale, 12 * scale + 1)}
    assert fits(drawn, weights) < FALSE_ALARM


@settings(max_examples=60)
@given(
    std=st.floats(1e-6, 1e6),
    ratio=st.floats(0.02, 100),
    size=st.integers(1, 10**8),
)
def test_the_noise_covers_what_is_accounted_with_the_rounding(
    std: float, ratio: float, size: int
) -> None:
    """s·γ ≥ σ(C + √d·γ), and √(s² − 9) still is, in exact arithmetic."""
    norm = std / ratio
    try:
        step, scale = grid(std, norm, size)
    except ValueError as error:
        assert "tenth" in str(error) and math.sqrt(size) * step_of(std) > norm / 10
        return
    assert math.frexp(step)[0] == 0.5  # a power of two
    assert 1 << GRID_STEPS <= scale < 1 << (GRID_STEPS + 2)
    sigma = Fraction(std) / Fraction(norm)
    needed = sigma * (Fraction(norm) + exact_root(size) * Fraction(step))
    assert (Fraction(scale) ** 2 - 9) * Fraction(step) ** 2 >= needed**2


@settings(max_examples=60)
@given(
    std=st.floats(1e-6, 1e6),
    ratio=st.floats(0.02, 100),
    size=st.integers(1, 10**6),
    part=st.floats(2.0**-9, 1.0),
)
def test_a_coarser_grid_covers_it_too_and_is_no_coarser_than_it_must_be(
    std: float, ratio: float, size: int, part: float
) -> None:
    norm, most = std / ratio, part * LIMIT * COARSEST * std
    try:
        usual, _ = grid(std, norm, size)
        step, scale = reaching_grid(std, norm, size, most)
    except ValueError:
        return  # a rounding that would show is refused
    assert most <= LIMIT * step and (step == usual or most > LIMIT * step / 2)
    assert math.frexp(step)[0] == 0.5
    assert 1 << 18 <= scale < 1 << (GRID_STEPS + 2)
    sigma = Fraction(std) / Fraction(norm)
    needed = sigma * (Fraction(norm) + exact_root(size) * Fraction(step))
    assert needed**2 <= (Fraction(scale) ** 2 - 9) * Fraction(step) ** 2
    assert scale * step <= float(needed) * (1 + 2.0**-17)


def test_the_noise_of_a_coarser_grid_is_drawn_on_it_and_large_sums_are_not_clamped() -> None:
    std, norm, most = 0.5, 1.0, 0.9 * LIMIT * COARSEST * 0.5
    found = torch.full((1000,), most, dtype=torch.float64)
    add_grid_noise(found, std, norm, random("coarse"), most)
    step, scale = reaching_grid(std, norm, 1000, most)
    assert step > grid(std, norm, 1000)[0]
    noise = discrete_gaussian(scale, 1000, random("coarse"))
    exact = [(round(most / step) + int(k)) * Fraction(step) for k in noise]
    assert [Fraction(float(x)) for x in found] == exact


def step_of(std: float) -> Fraction:
    return Fraction(2) ** (math.frexp(std)[1] - 1 - GRID_STEPS)


def exact_root(size: int) -> Fraction:
    with mpmath.workdps(50):
        return Fraction(int(mpmath.floor(mpmath.sqrt(size) * mpmath.mpf(10) ** 40)), 10**40)


def test_the_released_sum_lies_on_the_grid_and_its_noise_does_not_depend_on_it() -> None:
    std, norm, size = 3.7, 1.3, 1000
    step, scale = grid(std, norm, size)
    sums = torch.randn(size, dtype=torch.float64) * 100
    found = sums.clone()
    add_grid_noise(found, std, norm, random("release"))
    noise = discrete_gaussian(scale, size, random("release"))
    exact = [
        (round(Fraction(float(x)) / Fraction(step)) + int(k)) * Fraction(step)
        for x, k in zip(sums, noise, strict=True)
    ]
    assert [Fraction(float(x)) for x in found] == exact  # to the last bit


def test_huge_sums_are_clamped_not_rounded() -> None:
    sums = torch.tensor([1e300, -1e300, 0.25], dtype=torch.float64)
    add_grid_noise(sums, 1.0, 1.0, random("huge"))
    step, _ = grid(1.0, 1.0, 3)
    assert torch.isfinite(sums).all() and abs(float(sums[0])) < 2.0**52 * step
    assert all((float(x) / step).is_integer() for x in sums)


def test_rounding_that_would_matter_is_refused() -> None:
    with pytest.raises(ValueError, match="noise='gaussian'"):
        grid(1e4, 1e-3, 10**8)


def test_the_discrete_gaussian_is_a_rounded_real_one_to_76_digits() -> None:
    """Point 3 of the proof: the normalising sum around any centre, to 100 digits."""
    with mpmath.workdps(100):
        r = mpmath.mpf(3)
        whole = r * mpmath.sqrt(2 * mpmath.pi)
        for y in (0, mpmath.mpf(1) / 3, mpmath.mpf(1) / 2):
            terms = [mpmath.exp(-((k - y) ** 2) / (2 * r**2)) for k in range(-70, 71)]
            assert abs(mpmath.fsum(terms) / whole - 1) < mpmath.mpf(10) ** -76
