"""A search over private estimators warns once; statements name searches and fitted scalers."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import polars as pl
import pytest
from joblib import Parallel, delayed, parallel_config
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import (
    TransformedTargetRegressor,
    make_column_selector,
    make_column_transformer,
)
from sklearn.ensemble import (
    BaggingClassifier,
    BaggingRegressor,
    StackingClassifier,
    VotingClassifier,
    VotingRegressor,
)
from sklearn.experimental import enable_iterative_imputer  # noqa: F401 (for IterativeImputer)
from sklearn.feature_selection import SelectFromModel, SequentialFeatureSelector
from sklearn.impute import IterativeImputer, SimpleImputer
from sklearn.model_selection import (
    GridSearchCV,
    RandomizedSearchCV,
    TunedThresholdClassifierCV,
    cross_val_score,
)
from sklearn.multiclass import (
    OneVsOneClassifier,
    OneVsRestClassifier,
    OutputCodeClassifier,
)
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline, make_union
from sklearn.preprocessing import (
    FunctionTransformer,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    PolynomialFeatures,
    StandardScaler,
)

from forethought.estimators import (
    PrivateLinearRegression,
    PrivateLogisticRegression,
    RangeScaler,
    SelectionNotCoveredWarning,
)

Table = tuple[NDArray[np.float64], NDArray[np.int64]]

CHOSEN, PREPARED = "chosen-on-private-data", "preparation-from-data"
LABELS = "classes-from-data"


def private(**changes: Any) -> PrivateLogisticRegression:
    chosen = {"epsilon": 1.0, "feature_bound": 2.0, "classes": [0, 1], **changes}
    return PrivateLogisticRegression(**chosen)


def regression(**changes: Any) -> PrivateLinearRegression:
    return PrivateLinearRegression(
        **{"epsilon": 1.0, "feature_bound": 2.0, "target_range": (-3, 3), **changes}
    )


def codes(fitted: Any) -> set[str]:
    return {caveat.code for caveat in fitted.statement_.not_covered}


GRID = {"l2": [0.0, 0.1]}
STEP = {f"privatelogisticregression__{name}": values for name, values in GRID.items()}
SEARCHES = {
    "grid": lambda: GridSearchCV(private(), GRID, cv=2),
    "no-refit": lambda: GridSearchCV(private(), GRID, cv=2, refit=False),
    "random": lambda: RandomizedSearchCV(private(), GRID, n_iter=2, cv=2),
    "pipeline": lambda: GridSearchCV(make_pipeline(Normalizer(), private()), STEP, cv=2),
    "inside-pipeline": lambda: make_pipeline(Normalizer(), GridSearchCV(private(), GRID, cv=2)),
    "threads": lambda: GridSearchCV(private(), GRID, cv=2, n_jobs=2),
}


@pytest.mark.thinned
@pytest.mark.parametrize("search", SEARCHES)
def test_a_search_warns_once_and_names_the_private_one(search: str, table: Table) -> None:
    from joblib import parallel_backend

    made = SEARCHES[search]()
    with warnings.catch_warnings(record=True) as caught, parallel_backend("threading"):
        warnings.simplefilter("always")
        made.fit(*table)
    found = [one for one in caught if issubclass(one.category, SelectionNotCoveredWarning)]
    assert len(found) == 1
    assert "forethought.tune" in str(found[0].message)
    assert found[0].filename == __file__


@pytest.mark.slow  # processes of joblib load torch
def test_a_search_in_other_processes_warns_once_here(table: Table) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        search = GridSearchCV(private(), GRID, cv=2, n_jobs=2).fit(*table)
    found = [one for one in caught if issubclass(one.category, SelectionNotCoveredWarning)]
    assert len(found) == 1
    assert codes(search.best_estimator_) >= {CHOSEN}


@pytest.mark.parametrize(
    "made",
    [
        lambda: TunedThresholdClassifierCV(private(l2=0.1), cv=2),
        lambda: SequentialFeatureSelector(private(l2=0.1), n_features_to_select=1, cv=2),
        lambda: CalibratedClassifierCV(private(l2=0.1), cv=2),
    ],
)
def test_all_that_use_private_scores_warn_once(made: Any, table: Table) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made().fit(*table)
    found = [one for one in caught if issubclass(one.category, SelectionNotCoveredWarning)]
    assert len(found) == 1


@pytest.mark.filterwarnings("ignore::forethought.estimators.SelectionNotCoveredWarning")
def test_a_model_under_a_tuned_threshold_says_so(table: Table) -> None:
    tuned = TunedThresholdClassifierCV(private(l2=0.1), cv=2).fit(*table)
    assert CHOSEN in codes(tuned.estimator_)


REFUSED = {
    "bagging": lambda **jobs: BaggingClassifier(private(l2=0.1), n_estimators=2, **jobs),
    "bagging-once": lambda **jobs: BaggingClassifier(
        private(l2=0.1), n_estimators=2, bootstrap=False, **jobs
    ),
    "bagged-numbers": lambda **jobs: BaggingRegressor(
        regression(), n_estimators=2, bootstrap=False, **jobs
    ),
    "voting": lambda **jobs: VotingClassifier([("one", private(l2=0.1))], **jobs),
    # With random codes all could be the same for both classes, and then nothing would be fitted.
    "codes": lambda **jobs: OutputCodeClassifier(private(l2=0.1), random_state=0, **jobs),
    "one-against-one": lambda **jobs: OneVsOneClassifier(private(l2=0.1), **jobs),
}


@pytest.mark.parametrize("jobs", [None, 2])
@pytest.mark.parametrize("name", REFUSED)
def test_a_part_whose_statement_would_be_false_is_refused(
    name: str, jobs: int | None, table: Table
) -> None:
    """One record's label would change those of all others, or no model would be private."""
    from joblib import parallel_backend

    features, labels = table
    with parallel_backend("threading"), pytest.raises(ValueError, match="by itself"):
        REFUSED[name](n_jobs=jobs).fit(features, 2 * labels)


@pytest.mark.parametrize("jobs", [None, 2])
def test_one_model_for_each_label_that_occurs_says_that_it_reads_them(
    jobs: int | None, table: Table
) -> None:
    from joblib import parallel_backend

    features, labels = table
    with parallel_backend("threading"):
        rest = OneVsRestClassifier(private(l2=0.1), n_jobs=jobs).fit(features, labels)
    assert LABELS in codes(rest.estimators_[0])
    several = MultiOutputClassifier(private(l2=0.1)).fit(features, np.stack([labels, labels], 1))
    assert LABELS not in codes(several.estimators_[0])


@pytest.mark.thinned
@pytest.mark.parametrize("jobs", [None, 2])
@pytest.mark.parametrize("process", ["fit", "fit_transform"])
@pytest.mark.filterwarnings("ignore::forethought.estimators.SelectionNotCoveredWarning")
def test_workers_name_what_their_parent_saw(jobs: int | None, process: str, table: Table) -> None:
    """A worker's stack begins at its own first frame; so clones bring along what was above."""
    from joblib import parallel_backend

    voting = VotingRegressor([("one", regression())], n_jobs=jobs)
    stacked = StackingClassifier([("one", private(l2=0.1))], n_jobs=jobs, cv=2)
    rest = OneVsRestClassifier(private(l2=0.1), n_jobs=jobs)
    with parallel_backend("threading"):
        for made in (voting, stacked):
            getattr(make_pipeline(StandardScaler(), made), process)(*table)
        make_pipeline(StandardScaler(), rest).fit(*table)
    (voter,), (layer,), (one,) = voting.estimators_, stacked.estimators_, rest.estimators_
    named = {caveat.code: caveat.detail for caveat in voter.statement_.not_covered}
    assert named[PREPARED].endswith("StandardScaler")
    # It numbers the labels that occur.
    assert codes(layer) >= {CHOSEN, PREPARED, LABELS}
    # It is cloned in the worker: that something was not seen is all that can be said.
    assert PREPARED in codes(one)


@pytest.mark.parametrize("place", [0, 1])
def test_masked_entries_are_refused(place: int, table: Table) -> None:
    given = list(table)
    given[place] = np.ma.masked_array(given[place], mask=np.zeros_like(given[place], bool))
    private(l2=0.1).fit(*given)
    given[place][3] = np.ma.masked
    with pytest.raises(ValueError, match="masked"):
        private(l2=0.1).fit(*given)


@pytest.mark.slow
def test_searches_over_clones_of_one_estimator_warn_once(table: Table) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cross_val_score(GridSearchCV(private(), GRID, cv=2), *table, cv=3)
    found = [one for one in caught if issubclass(one.category, SelectionNotCoveredWarning)]
    assert len(found) == 1


@pytest.mark.parametrize("alone", [clone, OneVsRestClassifier])
def test_no_warning_without_a_search(alone: Any, table: Table) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", SelectionNotCoveredWarning)
        alone(private()).fit(*table)
        cross_val_score(private(), *table, cv=2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::forethought.estimators.SelectionNotCoveredWarning")
def test_the_statement_of_a_chosen_model_says_so(table: Table) -> None:
    search = GridSearchCV(private(), GRID, cv=2).fit(*table)
    chosen = search.best_estimator_.statement_
    assert CHOSEN in codes(search.best_estimator_)
    assert any("GridSearchCV" in str(caveat) for caveat in chosen.not_covered)
    assert CHOSEN not in codes(private().fit(*table))


@pytest.mark.thinned
@pytest.mark.parametrize(
    ("step", "named"),
    [
        (StandardScaler(), ["StandardScaler"]),
        (make_pipeline(Normalizer(), StandardScaler()), ["StandardScaler"]),
        (make_union(Normalizer(), MinMaxScaler()), ["MinMaxScaler"]),
        (make_column_transformer((StandardScaler(), [0])), ["StandardScaler"]),
        (make_column_transformer((OneHotEncoder(handle_unknown="ignore"), [1])), ["OneHotEncoder"]),
        (SimpleImputer(), ["SimpleImputer"]),
        (Normalizer(), []),
        (FunctionTransformer(), []),
        (RangeScaler(), []),
        (PolynomialFeatures(), []),
        (FunctionTransformer(np.tanh), []),
        (FunctionTransformer(lambda X: X - X.mean(0)), ["FunctionTransformer"]),
        (SimpleImputer(strategy="constant", keep_empty_features=True), []),
        # It drops the columns in which every entry is missing.
        (SimpleImputer(strategy="constant"), ["SimpleImputer"]),
        (
            SimpleImputer(strategy="constant", keep_empty_features=True, add_indicator=True),
            ["SimpleImputer"],
        ),
        (
            make_column_transformer((RangeScaler(), [0]), remainder=StandardScaler()),
            ["StandardScaler"],
        ),
        (
            make_column_transformer(
                (RangeScaler(), [0, 2]),
                (OneHotEncoder(categories=[[0.0, 1.0]], handle_unknown="ignore"), [1]),
                remainder="drop",
            ),
            [],
        ),
        ("passthrough", []),
    ],
)
def test_steps_fitted_on_private_data_are_named(step: Any, named: list[str], table: Table) -> None:
    pipeline = make_pipeline(step, private()).fit(*table)
    words = [str(caveat) for caveat in pipeline[-1].statement_.not_covered]
    assert (PREPARED in codes(pipeline[-1])) == bool(named)
    assert all(any(word.endswith(f": {name}") for word in words) for name in named)


def test_targets_scaled_by_the_data_are_named(table: Table) -> None:
    X, _ = table
    by_mean = {"func": lambda y: y - y.mean(), "inverse_func": lambda y: y, "check_inverse": False}
    one_by_one = {"func": np.sinh, "inverse_func": np.arcsinh}
    for how, named in (
        ({"transformer": StandardScaler()}, True),
        (by_mean, True),
        (one_by_one, False),
        ({}, False),
    ):
        whole = TransformedTargetRegressor(regression(), **how).fit(X, X[:, 0])
        assert (PREPARED in codes(whole.regressor_)) == named


@pytest.mark.slow
def test_columns_that_a_function_chooses_are_named(table: Table) -> None:
    """It may look at the values, as one that leaves out columns of one value does."""
    for chosen, named in (([0, 1], False), (lambda X: [0, 1], True)):
        scaler = make_column_transformer((RangeScaler(), chosen))
        pipe = make_pipeline(scaler, private()).fit(*table)
        assert (PREPARED in codes(pipe[-1])) == named
        around = make_column_transformer((SelectFromModel(private()), chosen)).fit(*table)
        assert (PREPARED in codes(around.transformers_[0][1].estimator_)) == named


def test_a_selector_by_names_reads_no_values(table: Table) -> None:
    frame = pl.DataFrame(dict(zip("abc", table[0].T[:3], strict=False))).to_pandas()
    for how, named in (({"pattern": "^[ab]"}, False), ({"dtype_include": float}, True)):
        scaler = make_column_transformer((RangeScaler(), make_column_selector(**how)))
        pipe = make_pipeline(scaler, private()).fit(frame, table[1])
        assert (PREPARED in codes(pipe[-1])) == named


class Centred(ClassifierMixin, BaseEstimator):
    """An estimator of one's own that takes the means away before it fits a private one."""

    def fit(self, X: Any, y: Any) -> Centred:
        self.later_ = clone(private())
        self.inner_ = private().fit(X - X.mean(0), y)
        with parallel_config("threading", n_jobs=2):
            jobs = [delayed(clone(private()).fit)(X - X.mean(0), y)]
            self.worker_ = Parallel()(jobs)[0]
        return self

    def partial_fit(self, X: Any, y: Any) -> Centred:
        self.inner_ = private().fit(X - X.mean(0), y)
        return self

    def __sklearn_tags__(self) -> Any:
        raise AttributeError("tags are those of what was not made yet")


class OwnModel(PrivateLogisticRegression):
    def fit(self, X: Any, y: Any, **refused: Any) -> OwnModel:
        return super().fit(X - X.mean(0), y, **refused)


class OwnPipeline(Pipeline):
    def fit(self, X: Any, y: Any = None) -> OwnPipeline:
        return super().fit(X - X.mean(0), y)


class OwnUnion(FeatureUnion):
    def fit(self, X: Any, y: Any = None) -> OwnUnion:
        self.inner_ = private().fit(X - X.mean(0), y)
        return self


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*Early stopping")
def test_an_estimator_that_may_change_the_records_is_named(table: Table) -> None:
    """It may, and need not: the words say perhaps."""
    one = Centred().fit(*table)
    for fitted, name in (
        (one.inner_, "Centred"),
        (one.worker_, "Centred"),
        (Centred().partial_fit(*table).inner_, "Centred"),
        (OwnModel(epsilon=1.0, feature_bound=2.0, classes=[0, 1]).fit(*table), "OwnModel"),
        (OwnPipeline([("model", private())]).fit(*table)[-1], "OwnPipeline"),
        (OwnUnion([]).fit(*table).inner_, "OwnUnion"),
    ):
        (told,) = (c for c in fitted.statement_.not_covered if c.code == PREPARED)
        assert f"perhaps by {name}, " in str(told)
    # A clone that is fitted later, on other records, has nothing to do with its maker.
    assert PREPARED not in codes(one.later_.fit(*table))
    gaps = table[0].copy()
    gaps[::7, 0] = np.nan
    imputer = IterativeImputer(regression(), max_iter=1).fit(gaps)
    triplets = imputer.imputation_sequence_
    assert triplets and all(PREPARED in codes(one.estimator) for one in triplets)


def test_a_pipeline_inside_a_pipeline_counts(table: Table) -> None:
    pipeline = make_pipeline(StandardScaler(), make_pipeline(Normalizer(), private())).fit(*table)
    assert PREPARED in codes(pipeline[-1][-1])
