"""A private model in a scikit-learn pipeline: run me with `python examples/estimators.py`."""

import math

from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline

from forethought.estimators import PrivateLogisticRegression, RangeScaler

X, y = load_breast_cancer(return_X_y=True)
X = X[:, :10]  # the means of ten measurements of a sample's cell nuclei
X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)

# Ranges that such measurements have, in round numbers: known beforehand, not read from the data.
lower = [5, 5, 40, 100, 0, 0, 0, 0, 0, 0]
upper = [30, 40, 200, 3000, 0.2, 0.4, 0.5, 0.25, 0.4, 0.1]

pipe = make_pipeline(
    RangeScaler(lower=lower, upper=upper),
    PrivateLogisticRegression(epsilon=1.0, delta=1e-4, feature_bound=math.sqrt(10), classes=[0, 1]),
)
pipe.fit(X_train, y_train)

print(f"accuracy {pipe.score(X_test, y_test):.1%}")
print(*pipe[-1].statement_.sentences(), sep="\n")
