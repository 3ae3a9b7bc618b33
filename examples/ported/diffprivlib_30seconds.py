"""Iris. After notebooks/30seconds.ipynb of github.com/IBM/differential-privacy-library (MIT), with logistic regression for its naive Bayes, which is not here."""

import numpy as np
from sklearn import datasets
from sklearn.model_selection import train_test_split

from forethought.estimators import PrivateLogisticRegression  # was: from diffprivlib.models import GaussianNB

dataset = datasets.load_iris()
X_train, X_test, y_train, y_test = train_test_split(dataset.data, dataset.target, test_size=0.2, random_state=0)

clf = PrivateLogisticRegression(epsilon=1.0, feature_bound=12.0, classes=[0, 1, 2])  # was: clf = GaussianNB()
clf.fit(X_train, y_train)
print("Test accuracy:", clf.score(X_test, y_test))

accuracy = []
epsilons = np.logspace(-1, 2, 8)
# was: bounds = ([4.3, 2.0, 1.1, 0.1], [7.9, 4.4, 6.9, 2.5])
for epsilon in epsilons:
    clf = PrivateLogisticRegression(epsilon=epsilon, feature_bound=12.0, classes=[0, 1, 2])  # was: GaussianNB(bounds=bounds, epsilon=epsilon)
    clf.fit(X_train, y_train)
    accuracy.append(clf.score(X_test, y_test))
print(dict(zip(epsilons.round(2), np.round(accuracy, 2), strict=True)))
