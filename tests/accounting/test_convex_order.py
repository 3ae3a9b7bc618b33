"""Several theorems on one round: what is stated is the least that any of them proves."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from forethought.accounting import exact
from forethought.accounting.discrete_ratio import DisclosedCount
from forethought.accounting.dominating_pair import Pair
from forethought.accounting.exact import of_ratios
from forethought.accounting.theorems import parts
from forethought.values.mechanism import Mechanism, Poisson, Rounds, WithoutReplacement


def test_half_lines_are_asked_where_told_is_sharp_but_large():
    mechanism = Mechanism(Rounds(1.9, 472, WithoutReplacement(2, 20_000)), adjacency="zero-out")
    found = exact.epsilon(mechanism, 4.3e-8, 5)
    assert 0.1395 < found.lower <= found.upper < 0.1397


@pytest.mark.thinned
@pytest.mark.parametrize("seed", range(6))
@np.errstate(all="ignore")
def test_no_theorem_proves_less_than_is_stated(seed):
    rng = np.random.default_rng([31, seed])
    clipping = ("group", "example")[seed % 2]
    adjacency = "zero-out" if clipping == "example" else ("replace-one", "zero-out")[seed // 2 % 2]
    some = []
    for _ in range(1 + seed % 2):
        rate = float(10 ** rng.uniform(-3, -0.5))
        batch = max(1, int(1000 * rate))
        sampling = WithoutReplacement(batch, 1000)
        if clipping == "group" and adjacency == "replace-one":
            sampling = Poisson(rate)
        sigma, count = float(rng.uniform(0.8, 4)), int(rng.integers(2, 500))
        some.append(Rounds(sigma, count, sampling, clipping))
    mechanism, group = Mechanism(*some, adjacency=adjacency), int(rng.integers(2, 7))
    found = exact.epsilon(mechanism, 1e-5, group)
    counts = parts(mechanism, group)
    choices = [
        ((pair, pair.otherwise) if isinstance(pair, DisclosedCount) else (pair,)) for pair in counts
    ]
    ways = [dict(zip(way, counts.values(), strict=True)) for way in itertools.product(*choices)]
    assert len(ways) > 1
    for way in ways:
        if all(isinstance(pair, Pair) for pair in way):
            proven = exact.of_pairs(way, 1e-3, exact.Asked(1e-5))
        else:
            proven = of_ratios(way, 1e-3, exact.Asked(1e-5))
        assert found.upper <= proven.upper and found.lower <= proven.upper
    delta = exact.delta(mechanism, found.upper, group)
    assert delta.lower <= 1e-5
