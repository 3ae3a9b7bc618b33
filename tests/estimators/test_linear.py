"""Linear estimators: against scikit-learn's own at a large budget, and what they promise at any."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse
from scipy.stats import chi2
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from torch.nn import Linear

from forethought.accounting.exact import epsilon
from forethought.estimators import (
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivateSVC,
    RangeScaler,
    linear,
)
from forethought.estimators.linear import Ball, batches
from forethought.planning.defaults import noise_to_signal
from forethought.planning.solve import plan
from forethought.values.mechanism import Budget

Array = NDArray[Any]
FEATURES = 3
BOUND = math.sqrt(FEATURES)


def rows(count: int = 3000) -> Array:
    return np.random.default_rng(0).uniform(-1, 1, (count, FEATURES))


def labels(X: Array, classes: int) -> Array:
    noise = np.random.default_rng(1).normal(size=(len(X), classes))
    directions = np.random.default_rng(2).normal(size=(FEATURES, classes))
    return (X @ directions * 2 + noise).argmax(1)


@pytest.mark.parametrize("classes", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_with_a_large_budget_it_is_scikit_learns_logistic_regression(
    classes: int, fit_intercept: bool
) -> None:
    X, λ = rows(), 0.01
    y = labels(X, classes)
    ours = PrivateLogisticRegression(
        epsilon=1e4,
        delta=1e-6,
        feature_bound=BOUND,
        classes=range(classes),
        l2=λ,
        fit_intercept=fit_intercept,
    ).fit(X, y)
    # The constant column counts in ‖θ‖² as one more feature, so scikit-learn gets it as one.
    column = BOUND / math.sqrt(FEATURES)
    held = np.column_stack([X, np.full(len(X), column)]) if fit_intercept else X
    theirs = LogisticRegression(C=1 / (λ * len(X)), fit_intercept=False, tol=1e-8).fit(held, y)
    assert np.allclose(ours.coef_, theirs.coef_[:, :FEATURES], atol=0.02)
    if fit_intercept:
        assert np.allclose(ours.intercept_, column * theirs.coef_[:, FEATURES], atol=0.02)
    assert np.allclose(ours.predict_proba(X), theirs.predict_proba(held), atol=0.02)


def test_with_a_large_budget_it_is_least_squares() -> None:
    X = rows()
    y = 40 + 10 * X @ [1.0, -0.5, 0.2] + np.random.default_rng(3).normal(0, 1, len(X))
    ours = PrivateLinearRegression(
        epsilon=1e4, delta=1e-6, feature_bound=BOUND, target_range=(20, 60)
    ).fit(X, y)
    theirs = LinearRegression().fit(X, y)
    assert np.allclose(ours.coef_, theirs.coef_, atol=0.05)
    assert abs(ours.intercept_ - theirs.intercept_) < 0.05
    assert np.allclose(ours.predict(X), theirs.predict(X), atol=0.1)


def test_the_support_vector_machine_finds_the_margin() -> None:
    X = rows()
    gap = X @ [1.0, 1.0, 0.0] + 0.2
    kept = np.abs(gap) > 0.3
    y = np.where(gap > 0, "right", "left")[kept]
    ours = PrivateSVC(epsilon=10.0, delta=1e-6, feature_bound=BOUND, classes=["left", "right"]).fit(
        X[kept], y
    )
    assert ours.score(X[kept], y) > 0.99
    assert (ours.predict(X) == np.where(ours.decision_function(X) > 0, "right", "left")).all()
    assert not hasattr(ours, "predict_proba")


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one", "add-or-remove"])
def test_the_statement_is_of_what_ran_and_within_the_budget(adjacency: Any) -> None:
    X = rows(500)
    fitted = PrivateLogisticRegression(
        epsilon=0.7,
        delta=1e-5,
        feature_bound=BOUND,
        classes=[0, 1],
        adjacency=adjacency,
    ).fit(X, labels(X, 2))
    statement, plan = fitted.statement_, fitted.plan_
    assert statement.private
    assert statement.mechanism == plan.mechanism
    assert fitted.n_iter_ == plan.rounds == len(plan.privacy.mechanism)
    spent = epsilon(plan.mechanism, 1e-5)
    assert 0.69 < spent.lower <= spent.upper <= 0.7
    assert plan.preparation.reach == pytest.approx(1.5 * BOUND / math.sqrt(3))
    assert plan.examples == 500


@pytest.mark.parametrize("kind", [PrivateLogisticRegression, PrivateSVC])
def test_a_classifier_is_the_planners_own_linear_model(kind: Any) -> None:
    X = rows(2000)
    given = {"epsilon": 1.0, "delta": 1e-5, "feature_bound": BOUND, "classes": [0, 1]}
    fitted = kind(**given, random_state=1).fit(X, labels(X, 2))
    wanted = plan(
        examples=2000,
        budget=Budget(1.0, 1e-5),
        model=Linear(FEATURES, 2),
        feature_norm=BOUND / math.sqrt(3),
        feature_norm_known=True,
        adjacency="zero-out",
    )
    assert fitted.plan_ == wanted
    assert wanted.preparation.statistics == ("means", "norms")


def test_few_records_are_passed_over_in_full_batches() -> None:
    X = rows(300)
    given = {"epsilon": 1.0, "feature_bound": BOUND, "classes": [0, 1]}
    few = PrivateLogisticRegression(**given).fit(X, labels(X, 2)).plan_
    drawn = plan(examples=300, budget=few.budget, parameters=8, features=3, feature_norm=1.0)
    assert {part.sampling.kind for part in few.mechanism} == {"full-batch"}
    assert few.rounds == drawn.rounds
    assert few.epochs >= 30 < drawn.epochs


@pytest.mark.thinned
@pytest.mark.parametrize("examples", [80, 300, 800, 1_700])
@pytest.mark.parametrize("features, classes", [(4, 2), (30, 3), (90, 15)])
def test_full_batches_of_few_records_are_no_worse_than_drawn_ones(
    examples: int, features: int, classes: int
) -> None:
    """The same path through noise that is no louder: what tables show beyond it is chance."""
    for budget in (Budget(0.1, 1e-5), Budget(1.0, 1e-5), Budget(8.0, 1e-5)):
        given = {
            "examples": examples,
            "budget": budget,
            "model": Linear(features, classes),
            "feature_norm": math.sqrt(features / 3),
            "feature_norm_known": True,
            "adjacency": "zero-out",
        }
        own, drawn = plan(**given, **batches(examples)), plan(**given)
        assert own.preparation == drawn.preparation and own.clip == drawn.clip
        weights = features * classes
        noise, other = (noise_to_signal(one, weights) for one in (own, drawn))
        assert noise <= 1.001 * other
        length, least = (one.rounds * one.optimizer.learning_rate for one in (own, drawn))
        assert 0.999 * least <= length


@pytest.mark.parametrize("kind", [PrivateLogisticRegression, PrivateSVC])
def test_columns_far_from_the_middle_of_wide_ranges_are_told_apart(kind: Any) -> None:
    """Features of a tenth of their declared range, near its lower end, as of words in mails.

    Descent on them as they are says the larger class to everybody (0.6). False alarms: the private
    score is above 0.8 by more than ten standard deviations of it, over ten seeds.
    """
    generator = np.random.default_rng(4)
    X = -0.9 + 0.1 * np.abs(generator.normal(size=(4000, 20))).clip(max=2)
    y = (X[:, :10].sum(1) - X[:, 10:].sum(1) > 0.05).astype(int)
    given = {"epsilon": 1.0, "delta": 1e-5, "feature_bound": math.sqrt(20), "classes": [0, 1]}
    fitted = kind(**given).fit(X[:3000], y[:3000])
    assert fitted.score(X[3000:], y[3000:]) > 0.8


def test_rows_of_float32_are_held_to_a_bound_whose_square_is_beyond_it() -> None:
    X = np.full((40, 2), 3e19, np.float32)
    model = PrivateLogisticRegression(
        epsilon=1.0, classes=[0, 1], feature_bound=2e19, above="refuse"
    )
    with pytest.raises(ValueError, match="longer"):
        model.fit(X, np.arange(40) % 2)


def test_rows_beyond_the_bound_are_refused_where_asked() -> None:
    X = rows(300)
    given = {"epsilon": 1.0, "classes": [0, 1], "above": "refuse"}
    with pytest.raises(ValueError, match="feature_bound"):
        PrivateLogisticRegression(**given, feature_bound=1.0).fit(X, labels(X, 2))
    PrivateLogisticRegression(**given, feature_bound=BOUND).fit(X, labels(X, 2))


def test_a_small_penalty_costs_next_to_nothing() -> None:
    X = rows(3000)
    y = labels(X, 2)
    given = {"epsilon": 1.0, "delta": 1e-5, "feature_bound": BOUND, "classes": [0, 1]}
    plans = [
        PrivateLogisticRegression(**given, l2=λ, fit_intercept=False).fit(X, y).plan_
        for λ in (0.0, 1e-9, 1e-5)
    ]
    assert len({plan.rounds for plan in plans}) == 1


def test_twice_the_sensitivity_is_twice_the_noise() -> None:
    X = rows(500)
    # Of descent, whose releases are full batches and nothing else.
    given = {"epsilon": 1.0, "feature_bound": BOUND, "classes": [0, 1], "fit_intercept": False}
    one, two = (
        PrivateLogisticRegression(**given, adjacency=name).fit(X, labels(X, 2)).plan_
        for name in ("zero-out", "replace-one")
    )
    # μ² = Σ 1/σ² in units of what one record moves is the same.
    spent = [
        sum(part.count / part.noise_multiplier**2 for part in plan.mechanism) for plan in (one, two)
    ]
    assert spent[0] == pytest.approx(4 * spent[1], rel=1e-3)


@pytest.mark.slow
def test_a_seed_takes_the_guarantee_and_gives_the_same_model() -> None:
    X = rows(200)
    y = labels(X, 2)
    given = {"epsilon": 1.0, "feature_bound": BOUND, "classes": [0, 1]}
    seeded = [PrivateLogisticRegression(**given, random_state=4).fit(X, y) for _ in range(2)]
    assert (seeded[0].coef_ == seeded[1].coef_).all()
    assert not seeded[0].statement_.private
    assert "Not private: seeded" in seeded[0].statement_.sentences()[0]
    free = [PrivateLogisticRegression(**given).fit(X, y) for _ in range(2)]
    assert (free[0].coef_ != free[1].coef_).all()
    assert free[0].statement_.private


@pytest.mark.usefixtures("noise_by_round")
def test_rows_beyond_the_bound_are_scaled_to_it_everywhere() -> None:
    X = rows(400)
    far = X.copy()
    far[:50] *= 1e6
    held = far / np.maximum(1, np.linalg.norm(far, axis=1, keepdims=True) / BOUND)
    y = labels(X, 2)
    given = {"epsilon": 1.0, "feature_bound": BOUND, "classes": [0, 1], "random_state": 0}
    one, other = (PrivateLogisticRegression(**given).fit(data, y) for data in (far, held))
    assert np.allclose(one.coef_, other.coef_)
    assert one.features_clipped_ == 50
    assert other.features_clipped_ == 0
    assert np.allclose(one.decision_function(far), one.decision_function(held))


@pytest.mark.usefixtures("noise_by_round")
def test_targets_beyond_the_range_go_to_its_end() -> None:
    X = rows(400)
    y = X[:, 0].copy()
    far = np.where(y > 0.9, 1e9, y)
    given = {"epsilon": 1.0, "feature_bound": BOUND, "random_state": 0}
    one = PrivateLinearRegression(**given, target_range=(-0.9, 0.9)).fit(X, far)
    other = PrivateLinearRegression(**given, target_range=(-0.9, 0.9)).fit(X, np.clip(y, -0.9, 0.9))
    assert np.allclose(one.coef_, other.coef_)
    assert one.targets_clipped_ == (np.abs(far) > 0.9).sum()
    assert np.abs(one.predict(1e6 * X)).max() <= 0.9


def test_a_target_far_beyond_a_narrow_range_goes_to_its_end_too() -> None:
    X = rows(100)
    y = np.r_[np.zeros(99), 1e305]
    given = {"epsilon": 1.0, "feature_bound": BOUND, "target_range": (0, 1e-6)}
    assert PrivateLinearRegression(**given).fit(X, y).targets_clipped_ == 1
    with pytest.raises(ValueError, match="targets lie beyond"):
        PrivateLinearRegression(**given, above="refuse", fit_intercept=False).fit(0 * X, y)


@pytest.mark.parametrize("form", [sparse.csr_array, sparse.csc_matrix, sparse.coo_array])
def test_sparse_rows_are_the_same_rows(form: Any) -> None:
    X = rows(300)
    X[np.abs(X) < 0.5] = 0
    y = labels(X, 2)
    given = {"epsilon": 1.0, "feature_bound": BOUND, "classes": [0, 1], "random_state": 0}
    dense = PrivateLogisticRegression(**given).fit(X, y)
    thin = PrivateLogisticRegression(**given).fit(form(X), y)
    assert (dense.coef_ == thin.coef_).all()
    assert np.allclose(dense.predict_proba(X), thin.predict_proba(form(X)))


@pytest.mark.slow
def test_a_pipeline_reads_as_in_scikit_learns_documentation() -> None:
    X = 50 + 10 * rows(2000)
    y = labels((X - 50) / 10, 2)
    X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)
    pipe = make_pipeline(
        RangeScaler(lower=40, upper=60),
        PrivateLogisticRegression(epsilon=2.0, feature_bound=BOUND, classes=[0, 1]),
    )
    pipe.fit(X_train, y_train)
    bayes = LogisticRegression().fit(X_train, y_train).score(X_test, y_test)
    # The sixth decimal of noise: 0.05 is more than ten standard deviations of the private score.
    assert pipe.score(X_test, y_test) > bayes - 0.05
    assert len(cross_val_score(pipe, X, y, cv=3)) == 3
    assert [caveat.code for caveat in pipe[-1].statement_.breaks] == []


@pytest.mark.parametrize("ball", [linear.LABELS, linear.TARGETS])
def test_the_ball_grows_with_what_can_be_heard(ball: Ball) -> None:
    def radius(records: int, adjacency: Any = "zero-out") -> float:
        budget = Budget(1.0, 1e-5)
        return ball.radius(budget, adjacency, records=records, weights=4, bound=2.0)

    sizes = [radius(records) for records in (1, 10, 1000, 100_000)]
    assert sizes == sorted(sizes)
    assert sizes[0] == ball.least < sizes[-1]
    # Twice the records make up for twice the sensitivity.
    assert radius(2000, "replace-one") == pytest.approx(radius(1000))


def test_the_ball_reads_no_value_of_the_data() -> None:
    model = PrivateLogisticRegression(
        epsilon=1.0, feature_bound=2.0, classes=[0, 1], fit_intercept=False
    )
    shapes = [model._shape(np.full((50, 4), value), linear.LABELS) for value in (0.0, 1e9)]
    assert shapes[0] == shapes[1]
    fitted = model.fit(rows(50), labels(rows(50), 2))
    assert np.linalg.norm(fitted.coef_) <= fitted.plan_.problem.radius * (1 + 1e-12)


def test_the_noise_in_the_weights_is_the_plans() -> None:
    """Rows of zeros say nothing, so the weights are noise alone: of the variance that the plan's
    noise and steps add up to. False alarms: one in a million.
    """
    count = 500
    fitted = PrivateLogisticRegression(
        epsilon=50.0, delta=1e-6, feature_bound=1.0, classes=[0, 1], fit_intercept=False
    ).fit(np.zeros((2000, count)), np.arange(2000) % 2)
    plan = fitted.plan_
    # How much of each round's noise is in the weights: the steps are linear in it.
    before = weights = np.zeros(plan.rounds)
    for t, size in enumerate(plan.steps, 1):
        pull = (t - 1) / (t + 2) if plan.accelerated else 0.0
        place = weights + pull * (weights - before)
        before, weights = weights, place - size * np.eye(plan.rounds)[t - 1]
    variance = float(weights**2 @ np.square(plan.sigmas))
    found = float(np.square(fitted.coef_).sum()) / variance
    assert np.linalg.norm(fitted.coef_) < plan.problem.radius / 2  # never projected
    assert 5e-7 < chi2.cdf(found, count) < 1 - 5e-7
