"""Private estimators with scikit-learn's interface: ``fit`` plans, trains and accounts.

Linear models run noisy full-batch descent (:mod:`forethought.convex`), networks the default plan of
:func:`forethought.train`. docs/estimators.md says what they keep of scikit-learn's conventions and
what privacy changes.
"""

from __future__ import annotations

from forethought.estimators.estimator import RangeScaler, SelectionNotCoveredWarning
from forethought.estimators.linear import (
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivateSVC,
)
from forethought.estimators.networks import PrivateClassifier, PrivateRegressor

__all__ = [
    "PrivateClassifier",
    "PrivateLinearRegression",
    "PrivateLogisticRegression",
    "PrivateRegressor",
    "PrivateSVC",
    "RangeScaler",
    "SelectionNotCoveredWarning",
]
