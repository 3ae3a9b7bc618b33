"""Sums on a grid as ring elements."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forethought.federated.secure_aggregation.masking import (
    from_ring,
    overflow_chance,
    pack,
    to_ring,
    unpack,
)

STEP = 2.0**-20


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(-(2**30), 2**30), min_size=1, max_size=20), st.integers(33, 64))
def test_sums_in_the_ring_are_sums_outside(values, bits):
    parts = [np.array(values, float) * STEP, np.array(values[::-1], float) * -STEP]
    total = np.zeros(len(values), np.uint64)
    for part in parts:
        total += unpack(pack(to_ring(part, STEP, bits), bits), bits, len(values))
    total &= np.uint64((1 << bits) - 1)
    assert np.array_equal(from_ring(total, STEP, bits), parts[0] + parts[1])


@pytest.mark.parametrize("bits", [8, 13, 40, 63, 64])
def test_the_whole_range_comes_back(bits):
    largest = min(2 ** (bits - 1) - 1, 2**53)
    values = np.array([-largest, -1, 0, 1, largest], float) * STEP
    content = pack(to_ring(values, STEP, bits), bits)
    assert content.nbytes == -(-5 * -(-bits // 8) // 8) * 8
    assert np.array_equal(from_ring(unpack(content, bits, 5), STEP, bits), values)


@pytest.mark.parametrize("value", [STEP / 2, np.nan, np.inf, 2.0**54 * STEP])
def test_what_is_not_on_the_grid_is_refused(value):
    with pytest.raises(ValueError, match="number of steps"):
        to_ring(np.array([0.0, value]), STEP, 64)


def test_bytes_of_another_length_or_ring_are_refused():
    with pytest.raises(ValueError, match="and padding belong"):
        unpack(np.zeros(1, np.int64), 40, 2)
    with pytest.raises(ValueError, match="and padding belong"):
        unpack(np.array([1 << 40]), 40, 1)
    with pytest.raises(ValueError, match="outside the ring"):
        unpack(np.array([0xFFFF]), 13, 1)


def test_the_chance_of_an_overflow_bounds_what_happens():
    generator = np.random.default_rng(0)
    noise = generator.normal(0, 40.0, (20_000, 4))  # in steps; a ring of ±127
    seen = float((np.abs(noise + 20) > 127).any(axis=1).mean())
    bound = overflow_chance(20 * STEP, 40.0 * STEP, STEP, 8, 4)
    assert 0 < seen <= bound < 1
    assert overflow_chance(200 * STEP, STEP, STEP, 8, 4) == 1.0
    assert overflow_chance(0.0, STEP, STEP, 40, 1000) == 0.0
