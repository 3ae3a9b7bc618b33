"""The scaler of declared ranges reads no value of the data."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import sparse

from forethought.estimators import RangeScaler

VALUES = arrays(np.float64, (5, 2), elements=st.floats(-1e6, 1e6))


@given(VALUES, VALUES)
def test_what_it_was_fitted_on_makes_no_difference(first: np.ndarray, second: np.ndarray) -> None:
    one, other = (RangeScaler(lower=[0, -3], upper=7).fit(rows) for rows in (first, second))
    assert (one.transform(first) == other.transform(first)).all()


@given(VALUES)
def test_no_row_is_longer_than_the_bound(rows: np.ndarray) -> None:
    scaler = RangeScaler(lower=[-100, 0], upper=[1e5, 3]).fit(rows)
    found = scaler.transform(rows)
    assert (np.linalg.norm(found, axis=1) <= scaler.feature_bound_).all()
    inside = (rows >= [-100, 0]) & (rows <= [1e5, 3])
    back = found * [50050, 1.5] + [49950, 1.5]
    assert np.allclose(back[inside], rows[inside], atol=1e-6)


def test_ranges_that_single_precision_cannot_tell_apart_are_scaled() -> None:
    scaler = RangeScaler(lower=[2.0**27, 0, -1e308], upper=[2.0**27 + 1, 1e-50, 1e308])
    rows = np.array([[2.0**27, 0, 0], [2.0**28, 1, 0]])
    for kind in (np.float32, np.float64):
        found = scaler.fit_transform(rows.astype(kind))
        assert found.dtype == kind
        assert found.tolist() == [[-1, -1, 0], [1, 1, 0]]
    assert scaler.transform([[0.0, 0.0, 1e308]])[0, 2] == 1
    with pytest.raises(ValueError, match="in column 0"):
        RangeScaler(lower=0, upper=5e-324).fit(rows)


def test_sparse_rows_stay_sparse() -> None:
    rows = sparse.csr_array([[0.0, 4.0], [-9.0, 0.0]])
    found = RangeScaler(lower=-8, upper=8).fit_transform(rows)
    assert sparse.issparse(found)
    assert found.toarray().tolist() == [[0.0, 0.5], [-1.0, 0.0]]
    with pytest.raises(ValueError, match="centred at 0"):
        RangeScaler(lower=0, upper=8).fit_transform(rows)


@pytest.mark.parametrize(
    ("lower", "upper", "words"),
    [
        ([0, 0, 0], 1, "one finite number or 2"),
        (0, [1, np.inf], "one finite number or 2"),
        ([0, 2], [1, 2], "in column 1 they are 2 and 2"),
    ],
)
def test_ranges_that_cannot_be_are_refused(lower: object, upper: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        RangeScaler(lower=lower, upper=upper).fit(np.zeros((3, 2)))
