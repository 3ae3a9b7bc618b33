"""Features onto a common scale by ranges that the user declares: no figure of the data is read."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data


class RangeScaler(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Map every column from its declared range onto [−1, 1]; values outside go to the nearer end.

    What ``StandardScaler`` and ``MinMaxScaler`` do with figures of the private data, which would
    be a release, this does with ranges that are known beforehand: of a questionnaire, a sensor, a
    law. After it no row is longer than √columns, which is then a ``feature_bound``.

    Args:
        lower, upper: the range of each column, (columns,), or one number for all of them.

    Attributes:
        n_features_in_: how many columns.
        feature_bound_: √columns, the longest that a row can be.

    >>> RangeScaler(lower=0, upper=[10, 200]).fit_transform([[5, 50], [10, 900]])
    array([[ 0. , -0.5],
           [ 1. ,  1. ]])
    """

    def __init__(self, *, lower: ArrayLike = -1.0, upper: ArrayLike = 1.0) -> None:
        self.lower = lower
        self.upper = upper

    def fit(self, X: Any, y: Any = None) -> RangeScaler:
        """Check the ranges against the number of columns; no value is used.

        Raises:
            ValueError: ranges of another length, or a lower end that is not below its upper one.
        """
        X = validate_data(self, X, dtype=(np.float64, np.float32), accept_sparse="csr")
        ends = []
        for name in ("lower", "upper"):
            given = np.asarray(getattr(self, name), dtype=float)
            if given.shape not in ((), (X.shape[1],)) or not np.isfinite(given).all():
                raise ValueError(
                    f"{name} must be one finite number or {X.shape[1]} of them, one a column, "
                    f"not {getattr(self, name)!r}"
                )
            ends.append(np.broadcast_to(given, X.shape[1:]))
        empty = np.flatnonzero(ends[0] >= ends[1])
        if len(empty):
            raise ValueError(
                f"lower must be below upper in every column; in column {empty[0]} they are "
                f"{ends[0][empty[0]]:g} and {ends[1][empty[0]]:g}"
            )
        self._centre, self._half = (ends[0] + ends[1]) / 2, (ends[1] - ends[0]) / 2
        self.feature_bound_ = float(np.sqrt(X.shape[1]))
        return self

    def transform(self, X: Any) -> Any:
        """The scaled columns. Sparse rows stay sparse where every range is centred at 0.

        Raises:
            ValueError: another number of columns, or sparse rows that would be filled.
        """
        check_is_fitted(self)
        X = validate_data(
            self, X, reset=False, dtype=(np.float64, np.float32), accept_sparse="csr", copy=True
        )
        half, centre = self._half.astype(X.dtype), self._centre.astype(X.dtype)
        if sparse.issparse(X):
            if centre.any():
                raise ValueError(
                    "sparse rows would be filled by ranges that are not centred at 0: declare "
                    "lower = -upper, or give dense rows"
                )
            X.data = np.clip(X.data / half[X.indices], -1, 1)
            return X
        return np.clip((X - centre) / half, -1, 1)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags
