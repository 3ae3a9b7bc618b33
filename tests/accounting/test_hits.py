"""Weights of groups: every one of them within the relative error that is stated."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from forethought.accounting.theorems import GroupHits, binomial, hypergeometric


def _exact_binomial(group: int, rate: float, k: int) -> Fraction:
    q = Fraction(rate)
    return math.comb(group, k) * q**k * (1 - q) ** (group - k)


def _check(found: GroupHits, exact, group: int) -> None:
    total = Fraction(0)
    worst = 0.0
    for i, weight in enumerate(found.weights):
        wanted = exact(found.first + i)
        total += wanted
        worst = max(worst, abs(float(Fraction(float(weight)) / wanted - 1)))
    assert worst <= found.doubt
    assert 1 - total <= found.lost
    assert found.doubt < 1e-10


@pytest.mark.parametrize(
    ("group", "rate"),
    [
        (1, 0.3),
        (1, 0.9999999),
        (3, 0.9999),
        (12, 0.9),
        (64, 0.003),
        (300, 0.5),
        (5, 1e-9),
        (7, 1.0),
    ],
)
def test_binomial_weights_are_as_exact_as_stated(group, rate):
    _check(binomial(group, rate), lambda k: _exact_binomial(group, rate, k), group)


@pytest.mark.parametrize(
    ("group", "batch", "examples"),
    [(1, 3, 7), (3, 20, 100), (8, 100, 100), (64, 471, 1000), (5, 3, 4), (12, 4713, 70704)],
)
def test_hypergeometric_weights_are_as_exact_as_stated(group, batch, examples):
    some = min(group, examples)

    def exact(k: int) -> Fraction:
        ways = math.comb(batch, k) * math.comb(examples - batch, some - k)
        return Fraction(ways, math.comb(examples, some))

    _check(hypergeometric(group, batch, examples), exact, some)


def test_the_record_that_is_almost_always_in_keeps_its_idle_mass():
    found = binomial(12, 0.9)
    assert found.first == 0
    assert found.weights[0] == pytest.approx(1e-12, rel=1e-9)


def test_huge_groups_are_cut_and_say_so():
    found = binomial(100_000, 0.004)
    assert 0 < found.lost <= 1e-100
    assert found.weights.size < 2000
    assert math.fsum(found.weights) == pytest.approx(1, abs=1e-12)
