"""The names of forethought.estimators: written by tools/options.py."""

from .estimator import RangeScaler as RangeScaler
from .estimator import SelectionNotCoveredWarning as SelectionNotCoveredWarning
from .linear import PrivateLinearRegression as PrivateLinearRegression
from .linear import PrivateLogisticRegression as PrivateLogisticRegression
from .linear import PrivateSVC as PrivateSVC
from .networks import PrivateClassifier as PrivateClassifier
from .networks import PrivateRegressor as PrivateRegressor
