"""Private estimators with scikit-learn's interface: ``fit`` plans, trains and accounts.

Networks and linear classifiers follow the default plan of :func:`forethought.train`. Linear
regression, and linear classifiers with a penalty or without an intercept, run noisy full-batch
descent (:mod:`forethought.convex`). docs/estimators.md lists the conventions of scikit-learn that
hold and those that privacy changes.
"""

from forethought.names import on_first_use

# Module → its public names.
_HELD = {
    "estimator": "RangeScaler SelectionNotCoveredWarning",
    "linear": "PrivateLinearRegression PrivateLogisticRegression PrivateSVC",
    "networks": "PrivateClassifier PrivateRegressor",
}
__all__, __getattr__, __dir__ = on_first_use(globals(), _HELD)
