"""Functions of encoded numbers: against formulas, bounds and a kernel that are worked out here."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forethought.data import Encoder, TableSchema
from forethought.data.basis import Basis


def drawn(rows: int, columns: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).uniform(-1, 1, (rows, columns)).astype(np.float32)


def encoder(basis: Basis | None = None) -> Encoder:
    columns = TableSchema({"a": [0, 10], "w": ["x", "y"], "b": [5, 7]}).parsed()
    return Encoder(tuple(columns.items()), "t", ("n", "y"), basis=basis)


def test_hats_are_shares_of_the_two_places_that_a_number_lies_between() -> None:
    features = drawn(50, 3)
    found = Basis((2, 0), hats=5).of(features)
    assert np.array_equal(found[:, :3], features)
    places = np.linspace(-1, 1, 5)
    for block, column in enumerate((2, 0)):
        hats = found[:, 3 + 5 * block : 8 + 5 * block]
        for at, place in enumerate(places):
            one = np.interp(features[:, column], places, places == place)
            assert np.allclose(hats[:, at], one, atol=1e-6)


def test_waves_stand_for_a_gaussian_kernel() -> None:
    numbers = drawn(40, 2, seed=3)
    basis = Basis((0, 1), waves=20_000, width=0.5)
    waves = basis.of(numbers)[:, 2:].astype(np.float64)
    apart = ((numbers[:, None] - numbers[None]) ** 2).sum(2)
    kernel = np.exp(-apart / 2 / (0.5 * math.sqrt(2)) ** 2)
    # Each entry of the mean of 20,000 products of cosines has a deviation below 1/141: seven of it.
    assert np.abs(waves @ waves.T / (2 / 3) - kernel).max() < 0.05


def test_waves_are_the_same_on_every_machine() -> None:
    """Directions and phases from bits that NumPy promises to keep, by another quantile function."""
    found = Basis((0,), waves=3).of(np.full((1, 1), 0.5, np.float32))[0, 1:]
    bits = [int(word) >> 11 for word in np.random.PCG64(0).random_raw(6)]
    chances = [(word + 0.5) / 2**53 for word in bits]
    turned = [0.5 * NormalDist().inv_cdf(chance) / 0.25 for chance in chances[:3]]
    size = math.sqrt(2 / 3 / 3)
    wanted = [
        size * math.cos(t + 2 * math.pi * c) for t, c in zip(turned, chances[3:], strict=True)
    ]
    assert found == pytest.approx(wanted, abs=1e-5)
    assert bits[0] == 5737240835340368  # the stream itself


def test_no_record_changes_a_bit_of_another_s_features() -> None:
    """A matrix product over all records rounds by their number and order."""
    features = drawn(6000, 8)
    basis = Basis(tuple(range(8)), hats=4, waves=40, ranges=((-0.8, 0.7),) * 8)
    found = basis.of(features)
    for gone in (1, 2, 7, 3000, 5999):
        assert np.array_equal(basis.of(features[gone:]), found[gone:])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-1, 1, width=32), min_size=3, max_size=3),
    st.sampled_from([(0, 9), (8, 0), (2, 40), (0, 0)]),
    st.tuples(st.floats(-1, 1), st.floats(-1, 1)).filter(lambda ends: ends[0] + 1e-3 < ends[1]),
)
def test_nothing_is_longer_than_its_bound(
    values: list[float], counts: tuple[int, int], ends: tuple[float, float]
) -> None:
    basis = Basis((0, 1, 2), *counts, ranges=(ends,) * 3)
    found = basis.of(np.array([values], np.float32))[0].astype(np.float64)
    assert np.linalg.norm(found[3:]) <= basis.bound * (1 + 1e-5)
    assert np.abs(found[:3]).max() <= 1


def test_the_usual_norm_is_that_of_numbers_spread_evenly() -> None:
    found = Basis((0, 1), hats=8, waves=400).of(drawn(20_000, 2))[:, 2:]
    usual = Basis((0, 1), hats=8, waves=400).usual_square
    assert float(np.square(found, dtype=np.float64).sum(1).mean()) == pytest.approx(usual, rel=0.03)


def test_a_range_is_stretched_to_the_whole() -> None:
    features = np.array([[-1.0], [-0.9], [-0.8], [0.5]], np.float32)
    found = Basis((0,), hats=3, ranges=((-1.0, -0.8),)).of(features)
    assert found[:, 0] == pytest.approx([-1, 0, 1, 1], abs=1e-5)
    assert found[:, 1:] == pytest.approx(
        np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1]]), abs=1e-5
    )


def test_an_encoder_with_a_basis_is_read_back_and_names_every_feature() -> None:
    own = encoder(Basis(encoder().numbers, hats=4, waves=6, ranges=((-1.0, 0.5), (0.0, 1.0))))
    again = Encoder.from_json(own.to_json())
    assert again == own
    frame = pl.DataFrame({"a": [1.0, 9.0], "w": ["x", "y"], "b": [5.5, 7.0]})
    found = own.encode(frame, "rows")
    assert found.shape == (2, len(own.titles)) == (2, 4 + 8 + 6)
    assert np.array_equal(found, again.encode(frame, "rows"))
    assert own.titles[4] == "a near 0% of its range"
    assert own.numbers == (0, 3)  # the words between them are no numbers
    assert "basis" not in encoder().to_dict()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"numbers": ()}, "needs numbers"),
        ({"numbers": (0, 0)}, "each once"),
        ({"hats": 1}, "one hat"),
        ({"waves": -1}, "waves"),
        ({"width": 0.0}, "width"),
        ({"ranges": ((0.0, 1.0),) * 2}, "2 ranges"),
        ({"ranges": ((1.0, 0.0),)}, "lower and a"),
    ],
)
def test_what_is_no_basis_is_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(Basis((0,)), **wrong)
