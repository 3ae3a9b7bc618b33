"""Linear regression. After notebooks/linear_regression.ipynb of github.com/IBM/differential-privacy-library (MIT)."""

import numpy as np
from sklearn import datasets
from sklearn.linear_model import LinearRegression as sk_LinearRegression
from sklearn.model_selection import train_test_split

from forethought.estimators import PrivateLinearRegression  # was: from diffprivlib.models import LinearRegression

dataset = datasets.load_diabetes()
X_train, X_test, y_train, y_test = train_test_split(dataset.data[:, :2], dataset.target, test_size=0.2, random_state=0)
print(f"Train examples: {len(X_train)}, test examples: {len(X_test)}")

baseline = sk_LinearRegression().fit(X_train, y_train).score(X_test, y_test)
print(f"Non-private baseline R2 score: {baseline:.2f}")

regr = PrivateLinearRegression(epsilon=1.0, feature_bound=0.25, target_range=(25, 346))  # was: LinearRegression()
regr.fit(X_train, y_train)
print(f"R2 score for epsilon={regr.epsilon:.2f}: {regr.score(X_test, y_test):.2f}")

epsilons = np.logspace(-1, 2, 8)
accuracy = []
for epsilon in epsilons:
    regr = PrivateLinearRegression(epsilon=epsilon, feature_bound=0.25, target_range=(25, 346))  # was: LinearRegression(epsilon=epsilon, bounds_X=…)
    regr.fit(X_train, y_train)
    accuracy.append(regr.score(X_test, y_test))
print(dict(zip(epsilons.round(2), np.round(accuracy, 2), strict=True)))
