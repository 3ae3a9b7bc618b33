"""Features of an additive model: hats on declared ranges, surfaces over pairs, and their sizes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forethought.data.basis import SIZE, Curves, hats, pairs_pay
from forethought.data.columns import Encoder, TableSchema

COLUMNS = {
    "age": [0, 110],
    "ward": {"categories": ["A", "B"]},
    "admitted": {"date": ["2015-01-01", "2025-12-31"]},
    "sodium": {"range": [100, 180], "missing": "category"},
}


def encoder(curves: Curves | None = None) -> Encoder:
    return Encoder(
        tuple(TableSchema(COLUMNS).parsed().items()), "died", ("no", "yes"), basis=curves
    )


@given(st.integers(1, 12), st.floats(-5, 5), st.floats(0.1, 9))
def test_hats_interpolate_between_their_knots(pieces: int, low: float, width: float) -> None:
    values = np.random.default_rng(0).uniform(low - 1, low + width + 1, 50)
    knots = np.linspace(low, low + width, pieces + 1)
    heights = np.random.default_rng(1).normal(size=pieces + 1)
    found = hats(values, low, low + width, pieces)
    assert np.allclose(found.sum(-1), 1) and (found >= 0).all()
    assert np.allclose(found @ heights, np.interp(values, knots, heights), atol=1e-6)


def test_features_are_hats_of_each_number_and_products_of_coarse_ones() -> None:
    curves = Curves((0, 3, 6), pieces=4, pairs=True)
    own = np.random.default_rng(0).uniform(-1, 1, (200, 8)).astype(np.float32)
    found = curves.of(own)
    assert found.dtype == np.float32 and found.shape == (200, 8 + curves.more)
    assert np.array_equal(found[:, :8], own)

    def near(place: int, pieces: int, knot: int) -> np.ndarray:
        return np.interp(own[:, place], np.linspace(-1, 1, pieces + 1), np.eye(pieces + 1)[knot])

    wanted = [SIZE * near(place, 4, knot) for place in (0, 3, 6) for knot in range(5)]
    wanted += [
        curves.pair_size * near(one, 2, i) * near(two, 2, j)
        for one, two in ((0, 3), (0, 6), (3, 6))
        for i in range(3)
        for j in range(3)
    ]
    assert np.allclose(found[:, 8:].T, wanted, atol=1e-6)
    assert len(curves.titles(tuple("abcdefgh"))) == len(set(curves.titles(tuple("abcdefgh"))))
    assert len(curves.titles(tuple("abcdefgh"))) == curves.more


@pytest.mark.parametrize("pairs", [False, True])
def test_no_record_is_longer_than_the_bound_and_the_usual_size_is_the_mean(pairs: bool) -> None:
    curves = Curves(tuple(range(5)), pairs=pairs)
    corners = np.random.default_rng(0).choice([-1.0, 0.0, 1.0], (2000, 5))
    spread = np.random.default_rng(1).uniform(-1, 1, (20_000, 5))
    added = [curves.of(own.astype(np.float32))[:, 5:] for own in (corners, spread)]
    squares = [np.square(part, dtype=np.float64).sum(1) for part in added]
    assert squares[0].max() <= curves.bound**2 * (1 + 1e-6)
    assert squares[0].max() >= curves.bound**2 * (1 - 1e-6)  # at a knot it is reached
    # Four deviations of the mean of 20,000.
    error = 4 * squares[1].std() / math.sqrt(len(squares[1]))
    assert abs(squares[1].mean() - curves.usual_square) < error


def test_an_encoder_keeps_its_curves_and_without_any_stays_as_it_was() -> None:
    plain = encoder()
    assert "basis" not in plain.to_dict() and Encoder.from_dict(plain.to_dict()) == plain
    assert plain.bound == pytest.approx(math.sqrt(1 + 1 + 2 + 1))
    assert plain.numbers == (0, 3, 6)  # neither words, nor the season, nor what is missing
    made = encoder(Curves(plain.numbers, 5, True))
    assert Encoder.from_json(made.to_json()) == made
    assert made.basis is not None
    assert made.bound == pytest.approx(math.hypot(plain.bound, made.basis.bound))
    assert made.usual_norm == pytest.approx(
        math.hypot(plain.usual_norm or 0.0, math.sqrt(made.basis.usual_square))
    )
    assert len(made.titles) == len(plain.titles) + 3 * 6 + 3 * 9


def test_pairs_are_taken_by_records_and_epsilon_alone() -> None:
    assert pairs_pay(10, 20_000, 1.0)
    assert not pairs_pay(10, 20_000, 0.1)
    assert not pairs_pay(60, 20_000, 1.0)
    assert pairs_pay(2, 3_000, 1.0) and not pairs_pay(2, 2_999, 1.0)
    assert not pairs_pay(1, 10**6, 8.0) and not pairs_pay(5, 10**6, None)


@pytest.mark.parametrize("wrong", [{"pieces": 0}, {"pieces": 2.5}, {"pairs": "some"}])
def test_what_is_no_curve_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises((TypeError, ValueError)):
        Curves((0,), **wrong)  # type: ignore[arg-type]
