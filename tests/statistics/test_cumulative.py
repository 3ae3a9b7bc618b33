"""Running sums from C·h: the factor, its inverse, its noise, each against plain matrices."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.linalg import toeplitz

from forethought.statistics import cumulative


def factor(bins: int) -> np.ndarray:
    return np.tril(toeplitz(cumulative.coefficients(bins).astype(float)))


@pytest.mark.parametrize("bins", [1, 2, 7, 64])
def test_the_factor_is_the_square_root_of_running_sums(bins: int) -> None:
    matrix = factor(bins) / cumulative.UNIT
    sums = np.tril(np.ones((bins, bins)))
    # Each coefficient is rounded by at most half a unit.
    assert np.abs(matrix @ matrix - sums).max() <= 2 * bins / cumulative.UNIT


@pytest.mark.parametrize("bins", [1, 2, 7, 64, 500])
def test_no_record_moves_the_sum_further_than_the_norm(bins: int) -> None:
    columns = np.linalg.norm(factor(bins), axis=0)
    assert columns.max() <= cumulative.norm(bins) <= columns.max() * (1 + 1e-12)
    assert cumulative.norm(bins) ** 2 / cumulative.UNIT**2 == pytest.approx(
        1.07 + math.log(bins) / math.pi, abs=0.15
    )


def test_counts_are_encoded_without_rounding_and_come_back() -> None:
    generator = np.random.default_rng(1)
    counts = generator.integers(0, 1 << 20, 300).astype(float)
    exact = [
        sum(
            int(c) * int(h)
            for c, h in zip(cumulative.coefficients(300)[place::-1], counts, strict=False)
        )
        for place in range(300)
    ]
    assert cumulative.encoded(counts).tolist() == [float(one) for one in exact]
    assert np.abs(cumulative.decoded(cumulative.encoded(counts)) - counts).max() < 1e-5
    # A billion records in one of the most bins: still whole numbers that doubles hold.
    assert 10**9 * int(cumulative.coefficients(cumulative.MOST_BINS).max()) < 2**53


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_noise_of_running_sums_is_that_of_the_matrices(share: float) -> None:
    bins = 40
    matrix = np.tril(np.ones((bins, bins))) @ np.linalg.inv(factor(bins))
    wanted = np.linalg.norm(matrix - share * matrix[-1], axis=1)
    assert np.allclose(cumulative.noise_of_sums(bins, share), wanted, rtol=1e-9, atol=1e-12)


def test_a_known_total_is_met_and_takes_noise_away() -> None:
    bins, repeats = 16, 4000
    generator = np.random.default_rng(2)
    noise = generator.standard_normal((repeats, 2 * bins))
    counts = np.full(bins, 10.0)
    sums = []
    for one in noise:
        parts = [counts + cumulative.decoded(part) for part in np.split(one, 2)]
        settled = cumulative.settled(parts, 2 * counts.sum())
        assert sum(part.sum() for part in settled) == pytest.approx(2 * counts.sum())
        sums.append(np.cumsum(cumulative.settled(parts[:1], counts.sum())[0]))
    found = np.std(sums, axis=0)
    # 4,000 draws: a standard deviation is within 6 % of its law's but for a chance below 1e-6 each.
    wanted = cumulative.noise_of_sums(bins, None)
    assert np.allclose(found[:-1], wanted[:-1], rtol=0.06)
    assert wanted[-1] == pytest.approx(0, abs=1e-12)
    assert (wanted <= cumulative.noise_of_sums(bins, 0.0) + 1e-12).all()


def test_running_sums_rise_and_stay_as_near_as_they_can() -> None:
    assert cumulative.rising(np.array([1.0, -2.0, 4.0])).tolist() == [0.0, 0.0, 3.0]
    kept = np.array([0.0, 2.0, 5.0])
    assert cumulative.rising(kept).tolist() == kept.tolist()
