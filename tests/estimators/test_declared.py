"""What is declared is checked, and what cannot be chosen is asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from forethought.estimators import (
    PrivateClassifier,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivateSVC,
    estimator,
)

X = np.random.default_rng(0).uniform(-1, 1, (60, 2))
LABELS = (X[:, 0] > 0).astype(int)
GIVEN: dict[str, Any] = {"epsilon": 1.0, "feature_bound": 2.0, "classes": [0, 1]}


def logistic(**changes: Any) -> PrivateLogisticRegression:
    return PrivateLogisticRegression(**{**GIVEN, **changes})


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_delta_follows_from_a_public_number_of_records(adjacency: str) -> None:
    fitted = logistic(adjacency=adjacency).fit(X, LABELS)
    assert fitted.statement_.delta == 1 / 600
    assert fitted.statement_.mechanism.adjacency == adjacency
    assert fitted.statement_.epsilon.upper <= 1.0


def test_delta_must_be_given_where_the_number_of_records_is_private() -> None:
    with pytest.raises(ValueError, match=r"delta is missing.*zero-out"):
        logistic(adjacency="add-or-remove").fit(X, LABELS)
    fitted = logistic(adjacency="add-or-remove", delta=1e-4).fit(X, LABELS)
    assert fitted.statement_.delta == 1e-4
    with pytest.raises(ValueError, match="delta is missing"):
        PrivateClassifier(None, epsilon=1.0, classes=[0, 1], adjacency="add-or-remove").fit(
            X, LABELS
        )


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"epsilon": 0.0}, ValueError, "epsilon must be .* above 0"),
        ({"epsilon": "much"}, TypeError, "epsilon must be a number"),
        ({"delta": 1.0}, ValueError, "delta must be"),
        ({"feature_bound": 0.0}, ValueError, "feature_bound must be .* above 0"),
        ({"feature_bound": 1e200}, ValueError, "scale the features"),
        ({"feature_bound": 1e-200}, ValueError, "scale the features"),
        ({"feature_bound": None}, TypeError, "feature_bound must be a number"),
        ({"l2": -1.0}, ValueError, "l2 must be .* at least 0"),
        ({"adjacency": "near"}, ValueError, "adjacency must be one of"),
        ({"fit_intercept": "no"}, TypeError, "True or False"),
        ({"above": "ignore"}, ValueError, "above must be one of 'clip', 'refuse'"),
        ({"above": "refuse", "feature_bound": 0.1}, ValueError, "longer than feature_bound"),
        ({"classes": "some"}, TypeError, "classes must list every label"),
        ({"classes": None}, TypeError, "classes must list every label"),
        ({"classes": [0, 0, 1]}, ValueError, "two or more different labels"),
        ({"classes": [0]}, ValueError, "two or more different labels"),
        ({"classes": []}, ValueError, "two or more different labels"),
        ({"classes": [None, "a"]}, ValueError, "labels of one kind"),
        ({"classes": [0, "a"]}, ValueError, "labels of one kind"),
        ({"classes": [[0], [1, 2]]}, ValueError, "labels of one kind"),
        ({"classes": [0, 1, np.nan]}, ValueError, "without gaps"),
        ({"classes": [0, 2]}, ValueError, r"not among the declared classes \[0, 2\]: 1"),
    ],
)
def test_what_is_wrong_is_said(changes: dict[str, Any], error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        logistic(**changes).fit(X, LABELS)


def test_the_noise_fits_any_budget() -> None:
    few = logistic(epsilon=1e-9, delta=1e-12)
    few.fit(X, LABELS)  # the default schedule scales its noise to any budget
    assert few.statement_.epsilon.upper <= 1e-9


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_none_are_refused(bad: float) -> None:
    rows = X.copy()
    rows[3, 1] = bad
    with pytest.raises(ValueError, match=r"NaN|infinity"):
        logistic().fit(rows, LABELS)


def test_declared_classes_may_be_missing_from_the_data() -> None:
    fitted = logistic(classes=["no", "perhaps", "yes"]).fit(X, np.array(["no", "yes"])[LABELS])
    assert fitted.classes_.tolist() == ["no", "perhaps", "yes"]
    assert fitted.predict_proba(X).shape == (60, 3)
    codes = {caveat.code for caveat in fitted.statement_.not_covered}
    assert "classes-from-data" not in codes
    read = logistic(classes="from-data").fit(X, LABELS)
    assert "classes-from-data" in {caveat.code for caveat in read.statement_.not_covered}


def test_one_class_in_the_data_is_refused_where_they_are_read() -> None:
    with pytest.raises(ValueError, match="only one class"):
        logistic(classes="from-data").fit(X, np.ones(60))


@pytest.mark.parametrize(
    ("given", "error"),
    [
        *[((1, 0), ValueError), ((0, np.inf), ValueError), (3, TypeError), ((0, 1, 2), TypeError)],
        *[((-1.7e308, 1.7e308), ValueError), ((0, 5e-324), ValueError)],
    ],
)
def test_ranges_of_targets_are_checked(given: Any, error: type) -> None:
    with pytest.raises(error, match="target_range must"):
        PrivateLinearRegression(epsilon=1.0, feature_bound=2.0, target_range=given).fit(X, LABELS)


def test_three_classes_of_a_support_vector_machine_name_the_way_out() -> None:
    with pytest.raises(ValueError, match="use PrivateLogisticRegression"):
        PrivateSVC(epsilon=1.0, feature_bound=2.0, classes=[0, 1, 2]).fit(X, LABELS)


def test_a_book_given_as_text_is_refused() -> None:
    for fitted in (logistic(ledger="b.db#p"), logistic(ledger="b.db#p", l2=0.1)):
        with pytest.raises(TypeError, match="such as ft"):
            fitted.fit(X, LABELS)


def test_weights_are_refused_with_the_reason() -> None:
    for fitted in (logistic(), PrivateClassifier(None, epsilon=1.0, classes=[0, 1])):
        with pytest.raises(ValueError, match=r"sample_weight is refused: .*w times"):
            fitted.fit(X, LABELS, sample_weight=np.ones(60))
        with pytest.raises(TypeError, match="not coef_init"):
            fitted.fit(X, LABELS, coef_init=1)


def test_seeds_of_a_random_state_are_two_different_secrets() -> None:
    seeds, weights = estimator.seeds(3)
    assert len({seeds.sampling, seeds.noise, weights}) == 3
    assert estimator.seeds(3) == (seeds, weights)
    assert estimator.seeds(None)[0].noise is None
    state = np.random.RandomState(3)
    assert estimator.seeds(state) == (seeds, weights)
    assert estimator.seeds(state) != (seeds, weights)
