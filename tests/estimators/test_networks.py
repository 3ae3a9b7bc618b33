"""Torch modules behind scikit-learn's interface: the plan is the default one, and what runs."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from torch import nn

import forethought as ft
from forethought.estimators import PrivateClassifier, PrivateRegressor
from forethought.gradients.boundary import turns

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(300, 4))
LABELS = np.array(["low", "high"])[(X[:, 0] > 0).astype(int)]


def network(features: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(features, 8), nn.Tanh(), nn.Linear(8, outputs))


def classifier(**changes: Any) -> PrivateClassifier:
    given = {"epsilon": 3.0, "classes": ["high", "low"], "epochs": 5, **changes}
    return PrivateClassifier(given.pop("module", network), **given)


def test_a_classifier_that_was_never_fitted_says_so() -> None:
    with pytest.raises(NotFittedError):
        classifier().predict(X)


@pytest.mark.slow
def test_the_plan_is_the_default_one() -> None:
    fitted = classifier(epochs=None).fit(X, LABELS)
    parameters = sum(weight.numel() for weight in fitted.module_.parameters())
    wanted = ft.plan(
        examples=300,
        budget=ft.Budget(3.0, 1 / 3000),
        parameters=parameters,
        adjacency="zero-out",
    )
    assert fitted.plan_ == wanted
    assert fitted.statement_.mechanism == wanted.mechanism
    assert fitted.statement_.private
    assert fitted.n_iter_ == wanted.rounds


@pytest.mark.slow
def test_it_learns() -> None:
    fitted = classifier(epsilon=8.0, epochs=None, random_state=0).fit(X, LABELS)
    assert fitted.score(X, LABELS) > 0.85
    assert fitted.predict_proba(X).sum(1) == pytest.approx(1)
    target = 20 + 5 * X[:, 0]
    line = PrivateRegressor(nn.Linear, epsilon=8.0, target_range=(5, 35), random_state=0)
    assert line.fit(X, target).score(X, target) > 0.5
    assert (line.predict(1e6 * X) <= 35).all()


def test_a_seed_gives_the_same_model_and_no_guarantee() -> None:
    before = torch.get_rng_state()
    one, other = (classifier(random_state=1).fit(X, LABELS) for _ in range(2))
    assert (one.decision_function(X) == other.decision_function(X)).all()
    assert not one.statement_.private
    assert (torch.get_rng_state() == before).all()


def test_a_given_module_is_copied_and_images_are_taken() -> None:
    images, digits = load_digits(return_X_y=True)
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 10))
    before = [weight.clone() for weight in module.parameters()]
    fitted = classifier(module=module, classes=range(10)).fit(
        images[:400].reshape(-1, 1, 8, 8), digits[:400]
    )
    assert all((old == new).all() for old, new in zip(before, module.parameters(), strict=True))
    assert fitted.predict_proba(images[:3].reshape(-1, 1, 8, 8)).shape == (3, 10)


def test_sparse_rows_are_the_same_rows() -> None:
    thin = np.where(np.abs(X) < 1, 0, X)
    dense, rows = (
        classifier(random_state=2).fit(form, LABELS) for form in (thin, sparse.csr_array(thin))
    )
    assert np.allclose(
        dense.decision_function(thin), rows.decision_function(sparse.coo_array(thin))
    )


def test_what_makes_no_module_is_refused() -> None:
    for module, words in ((3, "must be a torch"), (lambda *_: 3, "not a torch")):
        with pytest.raises(TypeError, match=words):
            classifier(module=module).fit(X, LABELS)


class OfItsOwnPrecision(nn.Linear):
    """It sets its precision, and has a buffer that is not stored."""

    def __init__(self, features: int, outputs: int) -> None:
        super().__init__(features, outputs)
        self.register_buffer("scale", torch.full((features,), 0.5), persistent=False)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input.float() * self.scale)


class WithBuffer(nn.Linear):
    """A layer whose matrix of constants is not stored with it."""

    def __init__(self, features: int, outputs: int) -> None:
        super().__init__(features, outputs)
        self.register_buffer("turn", torch.eye(features), persistent=False)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input @ self.turn)


@pytest.mark.parametrize("module", [OfItsOwnPrecision, WithBuffer])
def test_what_was_fitted_can_predict(module: Any) -> None:
    fitted = classifier(module=module, epochs=1).fit(X, LABELS)
    probabilities = fitted.predict_proba(X[:5])
    assert probabilities.dtype == np.float64
    assert probabilities.sum(1) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(
    ("module", "words"),
    [(lambda *_: nn.Linear(4, 3), "for one row"), (lambda *_: nn.Linear(5, 2), "cannot predict")],
)
def test_what_could_not_predict_spends_no_budget(module: Any, words: str) -> None:
    class Book:
        def paid(self, *_: Any, **__: Any) -> None:
            raise AssertionError("charged")

    with pytest.raises(ValueError, match=words):
        classifier(module=module, ledger=Book()).fit(X, LABELS)
    with pytest.raises(ValueError, match="for one row"):
        PrivateRegressor(nn.Linear(4, 2), epsilon=1.0, target_range=(0, 1)).fit(X, X[:, 0])


def test_a_stored_network_predicts_without_dropout() -> None:
    module = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 2))
    fitted = classifier(module=module, epochs=1).fit(X, LABELS)
    text, held, ended = pickle.dumps(fitted), Event(), Event()

    def elsewhere() -> bool:
        with turns:
            held.set()
            return ended.wait(10)

    # Reading waits for no one else's turn: nothing is seeded.
    with ThreadPoolExecutor() as threads:
        waited = threads.submit(elsewhere)
        held.wait()
        back = pickle.loads(text)
        ended.set()
        assert waited.result()
    assert (back.decision_function(X) == fitted.decision_function(X)).all()


def test_a_layer_that_mixes_records_is_refused() -> None:
    def mixing(features: int, outputs: int) -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(features), nn.Linear(features, outputs))

    with pytest.raises(ValueError, match="BatchNorm"):
        classifier(module=mixing).fit(X, LABELS)


@pytest.mark.slow
def test_cross_validation_fits_each_part_anew() -> None:
    assert len(cross_val_score(classifier(), X, LABELS, cv=2)) == 2
