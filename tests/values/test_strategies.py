"""Strategies of correlated noise as values: entries of their matrices, files, refusals."""

from __future__ import annotations

import numpy as np
import pytest

from forethought.values.mechanism import (
    Correlated,
    CyclicPoisson,
    FullBatch,
    Mechanism,
    Poisson,
    Rounds,
    UnsupportedMechanismError,
)
from forethought.values.strategies import Banded, BufferedToeplitz

BANDED = Banded((1.0, 0.5, 0.375))
BUFFERED = BufferedToeplitz((0.4, 0.2), (0.9, 0.5))


def test_columns_are_those_of_the_definitions() -> None:
    assert BANDED.column(2).tolist() == [1.0, 0.5]
    assert BANDED.column(5).tolist() == [1.0, 0.5, 0.375, 0.0, 0.0]
    wanted = [1.0, *(0.4 * 0.9**i + 0.2 * 0.5**i for i in range(5))]
    np.testing.assert_allclose(BUFFERED.column(6), wanted, rtol=1e-14)
    assert BUFFERED.column(1).tolist() == [1.0]


@pytest.mark.parametrize("strategy", [BANDED, BUFFERED], ids=str)
def test_files_keep_the_strategy_and_prefixes_too(strategy: object) -> None:
    part = Correlated(2.0, 30, CyclicPoisson(0.5, 6), "example", strategy)  # type: ignore[arg-type]
    mechanism = Mechanism(part, Rounds(1.0, 3, Poisson(0.1)))
    assert Mechanism.from_json(mechanism.to_json()) == mechanism
    assert mechanism.first(7).rounds == (
        Correlated(2.0, 7, CyclicPoisson(0.5, 6), "example", strategy),  # type: ignore[arg-type]
    )
    assert mechanism.after(30) == Mechanism(Rounds(1.0, 3, Poisson(0.1)))
    with pytest.raises(UnsupportedMechanismError, match="earlier ones"):
        mechanism.after(7)
    # Correlation begins anew with each part, so equal parts are two.
    assert len(Mechanism(part, part).rounds) == 2
    assert part != Rounds(2.0, 30, CyclicPoisson(0.5, 6))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Banded((0.5, 1.0)), "must be 1"),
        (lambda: Banded(()), "must be 1"),
        (lambda: Banded((1.0, float("nan"))), "number, not nan"),
        (lambda: Banded(1.0), "list of them"),
        (lambda: BufferedToeplitz(0.3, 0.9), "list of them"),
        (lambda: BufferedToeplitz((0.7, 0.4), (0.5, 0.6)), "sum to at most 1"),
        (lambda: BufferedToeplitz((0.7,), (1.0,)), "below 1"),
        (lambda: BufferedToeplitz((0.7,), ()), "as many weights as decays"),
    ],
)
def test_what_is_no_strategy_is_refused(make: object, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        make()  # type: ignore[operator]


def test_only_turns_that_are_apart_by_rule_can_be_correlated() -> None:
    with pytest.raises(UnsupportedMechanismError, match="CyclicPoisson"):
        Correlated(1.0, 3, Poisson(0.1), strategy=BANDED)
    with pytest.raises(TypeError, match="strategy must be"):
        Correlated(1.0, 3, FullBatch())
    with pytest.raises(UnsupportedMechanismError, match="mechanism of its"):
        Correlated(1.0, 3, FullBatch(), strategy=BANDED).sensitivity("zero-out")
