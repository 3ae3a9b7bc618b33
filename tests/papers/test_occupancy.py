import itertools
from collections import Counter
from fractions import Fraction
from math import comb

import numpy as np
import pytest

from forethought.papers.strong_adversary import (
    binomial,
    hypergeometric,
    occupied,
    round_hits,
    shuffled_epoch,
    subsampled,
)


def enumerated(examples, groups, size, marked):
    counts = Counter()
    for places in itertools.combinations(range(examples), marked):
        hit = {}
        for place in places:
            at, inside = divmod(place, groups * size)
            hit.setdefault(at, set()).add(inside // size)
        counts[sum(len(boxes) ** 2 for boxes in hit.values())] += 1
    return {square: count / comb(examples, marked) for square, count in counts.items()}


@pytest.mark.parametrize(
    "case",
    [
        (12, 2, 2, 3),
        (13, 2, 2, 4),
        (15, 3, 2, 5),
        (11, 1, 3, 4),
        (10, 5, 1, 4),
        (12, 3, 1, 5),
        (7, 2, 3, 3),
        (14, 2, 3, 6),
        (9, 4, 1, 6),
        (6, 6, 1, 3),
        (5, 1, 5, 2),
    ],
)
def test_an_epoch_agrees_with_every_placement_counted(case):
    want, got = enumerated(*case), shuffled_epoch(*case)
    assert got.missing == 0
    found = dict(zip(got.squares.astype(int).tolist(), got.weights.tolist(), strict=True))
    for square in want.keys() | found.keys():
        assert found.get(square, 0) == pytest.approx(want.get(square, 0), abs=1e-14)


@pytest.mark.parametrize("case", [(12, 2, 2, 3), (15, 3, 2, 5), (10, 5, 1, 4), (11, 1, 3, 4)])
def test_a_round_agrees_with_every_placement_counted(case):
    examples, groups, size, marked = case
    want = np.zeros(min(groups, marked) + 1)
    for places in itertools.combinations(range(examples), marked):
        hit = {place // size for place in places if place < groups * size}
        want[len(hit)] += 1 / comb(examples, marked)
    assert np.allclose(round_hits(*case), want[: len(round_hits(*case))], atol=1e-13)


def test_occupancy_of_erratum_001_4():
    got = shuffled_epoch(1000, 1, 50, 4)
    assert got.weights.round(4).tolist() == [0.0001, 0.0159, 0.2529, 0.7311]
    R, s, g = 20, 50, 4
    for j, weight in zip((1, 2, 3, 4), got.weights, strict=True):
        ways = sum((-1) ** i * comb(j, i) * comb((j - i) * s, g) for i in range(j + 1))
        assert weight == pytest.approx(comb(R, j) * ways / comb(R * s, g), rel=1e-12)


@pytest.mark.parametrize("case", [(1000, 100, 1, 30), (1000, 10, 5, 30), (990, 7, 9, 40)])
def test_large_groups_agree_with_simulation(case):
    """Mean and spread of c² over 4,000 permutations; five standard errors, false alarm 1e-6."""
    examples, groups, size, marked = case
    random = np.random.default_rng(3)
    seen = []
    for _ in range(4000):
        places = random.choice(examples, marked, replace=False)
        at, inside = np.divmod(places, groups * size)
        boxes = np.unique(np.stack([at, inside // size]), axis=1)
        seen.append(np.sum(np.unique(boxes[0], return_counts=True)[1] ** 2))
    got = shuffled_epoch(*case)
    spread = np.sqrt(got.squares**2 @ got.weights - got.mean**2)
    assert abs(np.mean(seen) - got.mean) < 5 * spread / np.sqrt(len(seen))
    assert np.std(seen) == pytest.approx(spread, rel=0.1)


def test_many_rounds_agree_with_a_transform():
    got = subsampled(60000, 256, 1, 8, 4687)
    hits = round_hits(60000, 256, 1, 8)
    one = np.zeros(2**15)
    one[np.arange(len(hits)) ** 2] = hits
    want = np.fft.irfft(np.fft.rfft(one) ** 4687)
    assert np.allclose(want[got.squares.astype(int)], got.weights, atol=1e-12)
    assert got.missing < 1e-18


@pytest.mark.parametrize(
    ("examples", "groups", "marked", "rounds"),
    [(60000, 256, 2, 4687), (60000, 256, 8, 4687), (1000, 10, 2, 10**6)],
)
def test_the_mean_of_many_rounds_is_exact(examples, groups, marked, rounds):
    ways = comb(examples, marked)
    each = sum(
        Fraction(k * k * comb(groups, k) * comb(examples - groups, marked - k), ways)
        for k in range(marked + 1)
    )
    found = subsampled(examples, groups, 1, marked, rounds)
    assert found.mean == pytest.approx(float(rounds * each), rel=3e-12)
    assert found.weights.sum() == pytest.approx(1, abs=1e-13)


def test_repetition_is_convolution():
    epoch = shuffled_epoch(60, 3, 2, 4)
    dense = np.zeros(17)
    dense[epoch.squares.astype(int)] = epoch.weights
    want = np.convolve(np.convolve(dense, dense), dense)
    got = epoch.repeated(3)
    assert np.allclose(want[got.squares.astype(int)], got.weights, atol=1e-15)


@pytest.mark.parametrize("case", [(60000, 16, 16, 64), (60000, 256, 1, 64), (1000, 1, 10, 200)])
def test_probability_is_conserved(case):
    got = shuffled_epoch(*case)
    assert float(np.sum(got.weights)) + got.missing == pytest.approx(1, abs=1e-12)
    assert np.all(got.weights > 0)


def test_extremes():
    assert binomial(5, 1.0).squares.tolist() == [5]
    assert binomial(5, 0.0).squares.tolist() == [0]
    assert hypergeometric(5, 5, 3).tolist() == [0, 0, 0, 1]
    assert occupied(3, 1, 3)[3].tolist() == pytest.approx([0, 0, 0, 1])
