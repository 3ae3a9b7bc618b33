"""Private estimators with scikit-learn's interface: ``fit`` plans, trains and accounts.

Networks and linear classifiers follow the default plan of :func:`forethought.train`. Linear
regression, and linear classifiers with a penalty or without an intercept, run noisy full-batch
descent (:mod:`forethought.convex`). docs/estimators.md lists the conventions of scikit-learn that
hold and those that privacy changes.
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
