"""Stored estimators are whole, and hold no key of the noise and no count of private records."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import skops.io
from sklearn.base import BaseEstimator, clone
from sklearn.pipeline import make_pipeline
from sklearn.utils import estimator_html_repr
from torch import nn

import forethought as ft
from forethought.estimators import (
    PrivateClassifier,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivateRegressor,
    PrivateSVC,
)
from forethought.ledger.book import OverBudgetError
from forethought.rounds.randomness import Secrets, Seeds

X = np.random.default_rng(0).uniform(-1, 1, (80, 3))
LABELS, TARGETS = (X[:, 0] > 0).astype(int), X[:, 0]
LINEAR = {"epsilon": 1.0, "feature_bound": 1.5}
SHORT = {"epsilon": 1.0, "epochs": 2}
ESTIMATORS: dict[str, tuple[BaseEstimator, Any]] = {
    "logistic": (PrivateLogisticRegression(**LINEAR, classes=[0, 1]), LABELS),
    "svc": (PrivateSVC(**LINEAR, classes=[0, 1]), LABELS),
    "linear": (PrivateLinearRegression(**LINEAR, target_range=(-1, 1)), TARGETS),
    "classifier": (PrivateClassifier(nn.Linear, epsilon=1.0, classes=[0, 1], epochs=2), LABELS),
    "regressor": (
        PrivateRegressor(nn.Linear, epsilon=1.0, target_range=(-1, 1), epochs=2),
        TARGETS,
    ),
}
TRUSTED = [
    "torch.nn.modules.linear.Linear",
    *(f"{type(one).__module__}.{type(one).__name__}" for one, _ in ESTIMATORS.values()),
]


class UsedUp:
    """A book that pays for nothing."""

    def paid(self, *_: Any, **__: Any) -> None:
        raise OverBudgetError("nothing is left", 0.0)


def _wider(features: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(features, 9), nn.Linear(9, outputs))


def by_pickle(fitted: BaseEstimator) -> tuple[bytes, BaseEstimator]:
    text = pickle.dumps(fitted)
    return text, pickle.loads(text)


def by_skops(fitted: BaseEstimator) -> tuple[bytes, BaseEstimator]:
    text = skops.io.dumps(fitted, compression=0)
    return text, skops.io.loads(text, trusted=TRUSTED)


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """Every secret that is drawn while the test runs."""
    drawn: list[bytes] = []
    draw = Secrets.draw

    def noted(seeds: Seeds) -> Secrets:
        made = draw(seeds)
        drawn.extend((made.sampling, made.noise))
        return made

    monkeypatch.setattr(Secrets, "draw", noted)
    yield drawn
    assert drawn


def traces(secret: bytes) -> set[bytes]:
    return {secret, secret.hex().encode(), repr(secret)[2:-1].encode()}


@pytest.mark.thinned
@pytest.mark.parametrize("way", [by_pickle, by_skops])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_stored_estimator_is_whole_and_holds_no_secret(
    name: str,
    way: Callable[[BaseEstimator], tuple[bytes, BaseEstimator]],
    secrets: list[bytes],
) -> None:
    estimator, y = ESTIMATORS[name]
    fitted = copy.deepcopy(estimator).fit(X, y)
    text, back = way(fitted)
    assert (back.predict(X) == fitted.predict(X)).all()
    assert back.get_params() == fitted.get_params()
    assert back.statement_ == fitted.statement_
    assert back.plan_ == fitted.plan_
    assert not any(trace in text for secret in secrets for trace in traces(secret))


def test_a_planted_secret_is_found(secrets: list[bytes]) -> None:
    fitted = PrivateLogisticRegression(**LINEAR, classes=[0, 1]).fit(X, LABELS)
    fitted.key_ = secrets[-1]
    assert any(trace in pickle.dumps(fitted) for trace in traces(secrets[-1]))


def test_counts_of_private_records_are_not_stored() -> None:
    fitted = PrivateLinearRegression(**LINEAR, target_range=(-0.5, 0.5)).fit(X, TARGETS)
    assert fitted.targets_clipped_ > 0
    back = pickle.loads(pickle.dumps(fitted))
    for count in ("targets_clipped_", "features_clipped_"):
        assert hasattr(fitted, count)
        assert not hasattr(back, count)


def test_notebooks_show_no_counts_of_private_records() -> None:
    fitted = PrivateLinearRegression(**LINEAR, target_range=(-0.5, 0.5)).fit(X, TARGETS)
    for one in (fitted, make_pipeline(fitted)):
        assert "_clipped_" not in estimator_html_repr(one)
    # The newest scikit-learn shows what dir() names, the oldest no attribute.
    assert fitted.targets_clipped_ and "targets_clipped_" not in dir(fitted)


@pytest.mark.thinned
@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("logistic", {"feature_bound": 0.1}),
        ("svc", {"feature_bound": 0.1}),
        ("linear", {"feature_bound": 0.1, "target_range": (5, 6)}),
        ("classifier", {"module": _wider}),
        ("regressor", {"target_range": (5, 6), "module": _wider}),
    ],
)
def test_what_was_fitted_predicts_as_it_was_trained(name: str, changed: dict[str, Any]) -> None:
    """New parameters are for the next fit; one stored by an earlier version has only parameters."""
    estimator, y = ESTIMATORS[name]
    fitted = copy.deepcopy(estimator).fit(X, y)
    found = fitted.predict(X)
    changed_later = by_pickle(fitted)[1].set_params(**changed)
    for one in (changed_later, by_pickle(changed_later)[1]):
        assert (one.predict(X) == found).all()
    for own in [one for one in vars(fitted) if one.startswith("_")]:
        delattr(fitted, own)
    assert (fitted.predict(X) == found).all()


@pytest.mark.thinned
@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_fit_that_fails_leaves_the_model_of_an_earlier_one(name: str) -> None:
    """It was paid for, and would else be lost or, with other classes, tell wrong labels."""
    estimator, y = ESTIMATORS[name]
    fitted = copy.deepcopy(estimator).fit(X, y)
    found, statement = fitted.predict(X), fitted.statement_
    fitted.set_params(ledger=UsedUp())
    others = y
    if hasattr(fitted, "classes_"):
        fitted.set_params(classes=["a", "b", "c"][: 2 + (name != "svc")])
        others = np.array(["a", "b"])[y]
    with pytest.raises(OverBudgetError, match="nothing is left"):
        fitted.fit(X[:, :2], others)
    assert (fitted.predict(X) == found).all()
    assert fitted.statement_ == statement and fitted.n_features_in_ == 3


@pytest.mark.parametrize("name", ESTIMATORS)
def test_an_unfitted_one_is_stored_too(name: str) -> None:
    estimator, _ = ESTIMATORS[name]
    back = pickle.loads(pickle.dumps(estimator))
    assert back.get_params() == estimator.get_params()


def test_a_ledgers_password_is_not_in_a_model() -> None:
    x, y = [[0.0], [1.0]] * 20, [0, 1] * 20
    model = PrivateLogisticRegression(epsilon=1.0, feature_bound=1.0, classes=[0, 1], l2=0.1)
    model.fit(x, y).set_params(ledger=ft.Ledger("postgresql://me:s3cret@host/db", "patients"))
    assert "s3cret" not in repr(model) and b"s3cret" not in pickle.dumps(model)
    assert "s3cret" in clone(model).ledger.url  # which is to be fitted, and needs it
    assert pickle.loads(pickle.dumps(clone(model))).ledger == model.ledger
