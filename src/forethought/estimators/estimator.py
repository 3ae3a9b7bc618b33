"""The common parts of private estimators: declarations, callers, scaling, clones and pickles."""

from __future__ import annotations

import json
import math
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, ClassVar, NamedTuple, Self, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn import ensemble, multiclass, multioutput
from sklearn.base import BaseEstimator, MetaEstimatorMixin, OneToOneFeatureMixin, TransformerMixin
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor, make_column_selector
from sklearn.feature_selection import SelectFromModel
from sklearn.impute import SimpleImputer
from sklearn.model_selection import FixedThresholdClassifier
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
)
from sklearn.utils import check_random_state, get_tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from forethought.accounting.statement import Statement
from forethought.convex import DescentPlan
from forethought.ledger.paid_run import Ledger
from forethought.planning.defaults import default_delta
from forethought.planning.solve import plan
from forethought.rounds.contributions import Loss
from forethought.rounds.randomness import Seeds
from forethought.training.run import train
from forethought.values.caveats import Caveat
from forethought.values.checks import one_of, real, require_payer
from forethought.values.mechanism import Adjacency, Budget
from forethought.values.plan import Payer, Plan

# Scaling of features by ranges that the user declares, without reading any statistic of the data.


class _TakesSparseRows(BaseEstimator):
    """An estimator that tells scikit-learn that its rows may be sparse."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


class RangeScaler(OneToOneFeatureMixin, TransformerMixin, _TakesSparseRows):
    """Map every column from its declared range onto [−1, 1]; clip values outside.

    ``StandardScaler`` and ``MinMaxScaler`` use statistics of the private data, which would be a
    release. This scaler uses ranges that are known beforehand, such as those of a questionnaire, a
    sensor or a law. Afterwards the L2 norm of a row is at most √columns, which can be the
    ``feature_bound``.

    Args:
        lower, upper: the range of each column, (columns,), or one number for all of them.

    Attributes:
        n_features_in_: number of columns.
        feature_bound_: √columns, the largest possible norm of a row.

    >>> RangeScaler(lower=0, upper=[10, 200]).fit_transform([[5, 50], [10, 900]])
    array([[ 0. , -0.5],
           [ 1. ,  1. ]])
    """

    def __init__(self, *, lower: ArrayLike = -1.0, upper: ArrayLike = 1.0) -> None:
        self.lower = lower
        self.upper = upper

    def fit(self, X: Any, y: Any = None) -> RangeScaler:
        """Check the ranges against the number of columns; no value of the data is used.

        Raises:
            ValueError: ranges of another length, or a lower end that is not below its upper one.
        """
        X = validate_data(self, X, dtype=(np.float64, np.float32), accept_sparse="csr")
        ends = []
        for name in ("lower", "upper"):
            given = np.asarray(getattr(self, name), dtype=float)
            if given.shape not in ((), (X.shape[1],)) or not np.isfinite(given).all():
                raise ValueError(
                    f"{name} must be one finite number or {X.shape[1]} of them, one a column, "
                    f"not {getattr(self, name)!r}"
                )
            ends.append(np.broadcast_to(given, X.shape[1:]))
        self._centre, self._half = ends[0] / 2 + ends[1] / 2, ends[1] / 2 - ends[0] / 2
        empty = np.flatnonzero(self._half <= 0)
        if len(empty):
            raise ValueError(
                f"lower must be below upper: in column {empty[0]} they are "
                f"{ends[0][empty[0]]:g} and {ends[1][empty[0]]:g}"
            )
        self.feature_bound_ = float(np.sqrt(X.shape[1]))
        return self

    def transform(self, X: Any) -> Any:
        """The scaled columns. Sparse rows stay sparse; every range must then be centred at 0.

        Raises:
            ValueError: another number of columns, or sparse rows with a range that is not centred.
        """
        check_is_fitted(self)
        X = validate_data(
            self, X, reset=False, dtype=(np.float64, np.float32), accept_sparse="csr", copy=True
        )
        if sparse.issparse(X):
            if self._centre.any():
                raise ValueError(
                    "sparse rows need ranges centred at 0: lower = -upper; or give dense rows"
                )
            X.data = np.clip(X.data / self._half[X.indices], -1, 1).astype(X.dtype)
            return X
        # In double precision: in single, both ends of a range far from zero may be one number.
        return np.clip((X - self._centre) / self._half, -1, 1).astype(X.dtype)


# Transformers that compute statistics of the data that they are fitted on: each is a release.


def _categories_found(encoder: Any) -> bool:
    rare = (encoder.min_frequency, encoder.max_categories)
    return encoder.categories == "auto" or rare != (None, None)


def _values_of_columns(imputer: Any) -> bool:
    # Which columns are empty, or have gaps at all, is read from the data too.
    kept = imputer.strategy == "constant" and imputer.keep_empty_features
    return not kept or imputer.add_indicator


# Type → function of a transformer; False: its fit reads only the number of columns.
_READS: dict[type, Callable[[Any], bool]] = {
    # A ufunc computes each number by itself; any other function may take the columns' means.
    FunctionTransformer: lambda step: step.func is not None and not isinstance(step.func, np.ufunc),
    OneHotEncoder: _categories_found,
    OrdinalEncoder: _categories_found,
    PolynomialFeatures: lambda step: False,
    RangeScaler: lambda step: False,
    SimpleImputer: _values_of_columns,
}


def fitted_on_data(step: Any) -> Iterator[str]:
    """Names of the transformers in a step (itself or its parts) whose fit reads values of the data.

    An unknown transformer counts as reading values.
    """
    if step is None or isinstance(step, str):  # "passthrough", "drop"
        return
    if isinstance(step, Pipeline | FeatureUnion | ColumnTransformer):
        # The parts as the user gave them: pairs, or triples with the columns.
        given = step.get_params(deep=False)
        parts = given.get("steps") or given.get("transformer_list") or given.get("transformers")
        for _, part, *columns in parts or ():
            yield from fitted_on_data(part)
            if any(map(_reads_columns, columns)):
                yield type(step).__name__
        yield from fitted_on_data(given.get("remainder"))
    elif _READS.get(type(step), _by_tags)(step):
        yield type(step).__name__


def _reads_columns(columns: Any) -> bool:
    """True if which columns a transformer takes may follow from their values."""
    if type(columns) is make_column_selector:  # a pattern is of names; a type tells of gaps
        return (columns.dtype_include, columns.dtype_exclude) != (None, None)
    return callable(columns)


def _by_tags(step: Any) -> bool:
    return not isinstance(step, BaseEstimator) or bool(get_tags(step).requires_fit)


# The callers of a fit: estimators that select by private scores, and steps fitted on private data.
#
# scikit-learn does not tell an estimator who clones or fits it, but the guarantee depends on it:
# the best of several models reveals more than one model, and a scaler that was fitted before is a
# release. So the functions below look at the call stack; no other code does.


class SelectionNotCoveredWarning(UserWarning):
    """A search, or another estimator of estimators, uses private scores that no ε covers."""


# Estimators of estimators that do nothing with the records but fit their parts.
_ONLY_FIT = (
    *(ensemble.VotingRegressor, multiclass.OneVsRestClassifier),
    *(multioutput.ClassifierChain, multioutput.RegressorChain),
    *(multioutput.MultiOutputClassifier, multioutput.MultiOutputRegressor),
    *(SelectFromModel, FixedThresholdClassifier),
)
# Those that fit one part for each label that occurs, or number the labels that occur.
_READ_LABELS = (multiclass.OneVsRestClassifier, ensemble.StackingClassifier)
# Those under which a part's statement would be false, and why.
_NUMBERS = "numbers the labels that occur, so that one record can change those of all others"
_SEEDED = "seeds the noise of its models, so that none of them is private"
_REFUSED: dict[type, str] = {
    ensemble.VotingClassifier: _NUMBERS,
    multiclass.OutputCodeClassifier: _NUMBERS,
    ensemble.BaggingClassifier: _SEEDED,
    ensemble.BaggingRegressor: _SEEDED,
    multiclass.OneVsOneClassifier: "gives a record to the fits of its own label, and so tells how "
    "many records each label has",
}
# Those whose own fit gives each part the records as they come. Any other one may change them first:
# IterativeImputer fills gaps with means, and a subclass may do anything before it calls this fit.
_AS_THEY_COME = MetaEstimatorMixin | FeatureUnion | ColumnTransformer
# Function → the local variable that holds whose fit it is; the last one runs in workers.
_OWNERS = {
    **dict.fromkeys(("fit", "fit_transform", "fit_predict", "partial_fit"), "self"),
    "_parallel_build_estimators": "ensemble",
}

# An estimator and its clones share one list, of the search that they have warned of.
_warned: weakref.WeakKeyDictionary[Any, list[str]] = weakref.WeakKeyDictionary()


class _Callers(NamedTuple):
    """All that runs around a fit or a clone, as far as this thread's call stack shows it."""

    search: str = ""  # the innermost that uses private models' outputs
    steps: tuple[str, ...] = ()  # fitted before, on values of the data
    unseen: bool = False  # the stack begins in a worker of joblib
    labels: str = ""  # the innermost that reads which labels occur
    around: tuple[str, ...] = ()  # fits that may change the records before they pass them on

    def joined(self, clone: _Callers) -> _Callers:
        """Together with what ran when a clone was made, perhaps in another process."""
        steps = dict.fromkeys((*self.steps, *clone.steps))
        unseen, labels = self.unseen and clone.unseen, self.labels or clone.labels
        # A clone may be fitted later, elsewhere: only around a worker's fit does its maker run.
        around = dict.fromkeys((*self.around, *(clone.around if self.unseen else ())))
        return _Callers(self.search or clone.search, tuple(steps), unseen, labels, tuple(around))


def _callers() -> _Callers:
    """The callers in this thread.

    Raises:
        ValueError: one of them numbers labels, gives records to some fits only, or seeds them.
    """
    search, unseen, labels = "", False, ""
    steps: list[Any] = []
    around: dict[str, None] = {}
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name, there = frame.f_code.co_name, frame.f_locals
        owner = there.get(_OWNERS.get(name, ""))
        kind = type(owner)
        if name == "_fit_ovo_binary":  # this and the next run in workers
            kind = multiclass.OneVsOneClassifier
        elif name == "_fit_binary":
            alone = there.get("classes") is None
            kind = multiclass.OutputCodeClassifier if alone else multiclass.OneVsRestClassifier
        elif name == "__call__" and frame.f_globals.get("__name__") == "joblib.parallel":
            unseen = type(there.get("self")).__name__ == "BatchedCalls"
        for refused, why in _REFUSED.items():
            if issubclass(kind, refused):
                raise ValueError(f"{kind.__name__} {why}: fit the private estimator by itself")
        if issubclass(kind, _READ_LABELS):
            labels = labels or kind.__name__
        if issubclass(kind, MetaEstimatorMixin) and not issubclass(kind, _ONLY_FIT):
            search = search or kind.__name__
        known = _package(frame) in ("sklearn", "forethought")
        if known and isinstance(owner, Pipeline):
            steps += [step for _, step in owner.steps[:-1]]
        elif known and isinstance(owner, TransformedTargetRegressor):
            steps.append(owner.transformer or FunctionTransformer(owner.func))
        elif isinstance(owner, BaseEstimator):
            chosen = isinstance(owner, ColumnTransformer) and any(
                _reads_columns(columns) for *_, columns in owner.transformers
            )
            if chosen or not (known and isinstance(owner, _AS_THEY_COME | PrivateEstimator)):
                around[kind.__name__] = None
        frame = frame.f_back
    names = dict.fromkeys(name for step in steps for name in fitted_on_data(step))
    return _Callers(search, tuple(names), unseen, labels, tuple(around))


def _package(frame: FrameType) -> str:
    """The package whose code runs."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def cloned(original: PrivateEstimator, clone: PrivateEstimator) -> None:
    """Note a clone; warn once for all clones of an estimator if a search or its like makes them.

    A search makes its clones in the process that called it, even if other processes fit them.

    Warns:
        SelectionNotCoveredWarning: an estimator is running that uses private models' outputs.
    """
    warned = _warned[clone] = _warned.setdefault(original, [])
    callers = _callers()
    # A worker sees the first frames of its own process only: what its parent saw goes with it.
    if callers.unseen:
        callers = callers.joined(_Callers(*original._cloned_by))
    clone.__dict__["_cloned_by"] = tuple(callers)
    if callers.search and not warned:
        warned.append(callers.search)
        warnings.warn(
            f"{callers.search} chooses by what private models say of the private data: "
            "every fit spends its own ε, and the choice is covered by none of them. "
            "forethought.tune searches privately, with one statement for the whole search",
            SelectionNotCoveredWarning,
            stacklevel=_outside(),
        )


def _outside() -> int:
    """The stack level of the first caller outside scikit-learn, joblib and this package."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None:
        if _package(frame) not in ("sklearn", "joblib", "forethought"):
            break
        level, frame = level + 1, frame.f_back
    return level


def circumstances(fitted: PrivateEstimator) -> tuple[Caveat, ...]:
    """The caveats about the callers of a running fit, for its Statement.

    Raises:
        ValueError: a caller under which the Statement would be false.
    """
    callers = _callers().joined(_Callers(*fitted._cloned_by))
    found = []
    if callers.search:
        words = f"what {callers.search} chooses, by models' outputs for the same records"
        found.append(Caveat("chosen-on-private-data", words))
    if callers.labels:
        found.append(Caveat("classes-from-data", f"by {callers.labels}"))
    told = {
        f"by steps that were fitted before: {', '.join(callers.steps)}": callers.steps,
        f"perhaps by {', '.join(callers.around)}, which ran around the fit": callers.around,
        "perhaps by what called the worker that fitted this, which it cannot see": callers.unseen,
    }
    if steps := [words for words, holds in told.items() if holds]:
        found.append(Caveat("preparation-from-data", "; ".join(steps)))
    return tuple(found)


# Facts that the user declares, so that they are not read from the data: budget, bounds, classes.


FROM_DATA = "from-data"
_SEEDS = 2**31 - 1


def classes(declared: Any, y: NDArray[Any]) -> tuple[NDArray[Any], tuple[Caveat, ...]]:
    """The classes in sorted order, and the caveats about them for the Statement.

    Args:
        declared: all possible labels; or ``"from-data"``: the labels in ``y``, which the Statement
            then names as not covered.
        y: labels, (n,).

    Raises:
        TypeError, ValueError: not a list of at least two different labels, or labels outside it.
    """
    check_classification_targets(y)
    if isinstance(declared, str) and declared == FROM_DATA:
        found = np.unique(y)
        if len(found) < 2:
            raise ValueError(f"there is only one class in the data, {found[0]}: give two or more")
        return found, (Caveat("classes-from-data", ", ".join(map(str, found))),)
    if isinstance(declared, str) or not isinstance(declared, Iterable):
        raise TypeError(
            f"classes must list every label there may be, such as [0, 1], not {declared!r}: which "
            f"labels occur is private. {FROM_DATA!r} reads them, and the statement says so"
        )
    listed = list(declared)
    # An array would make text of a number beside text, and NaN, a gap, is in no validated labels.
    mixed = len({isinstance(one, str) for one in listed}) > 1
    if mixed or any(one is None or np.ndim(one) or one != one for one in listed):
        raise ValueError(f"classes must be labels of one kind, without gaps, not {declared!r}")
    given = np.asarray(listed)
    known = np.unique(given)
    if len(known) != len(given) or len(given) < 2:
        raise ValueError(f"classes must be two or more different labels, not {declared!r}")
    strange = np.unique(y[~np.isin(y, known)])
    if len(strange):
        raise ValueError(
            f"labels that are not among the declared classes {known.tolist()}: "
            f"{', '.join(map(repr, strange[:3].tolist()))}. Declare them, or drop those records"
        )
    return known, ()


def target_range(declared: Any) -> tuple[float, float]:
    """Middle and half width of the declared range of targets.

    Raises:
        TypeError, ValueError: not a pair of finite numbers, the lower one first.
    """
    try:
        low, high = (float(end) for end in declared)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"target_range must be a pair (lowest, highest) that you declare, not {declared!r}"
        ) from error
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"target_range must rise from one finite number to another: {declared!r}")
    # Beyond these widths coefficients in units of the targets are no finite numbers.
    real("the width of target_range", high - low, above=1e-300, most=1e300)
    return (low + high) / 2, (high - low) / 2


def seeds(random_state: Any) -> tuple[Seeds, int | None]:
    """Seeds of batches and noise, and of initial weights; no seeds if ``random_state`` is None."""
    if random_state is None:
        return Seeds(), None
    sampling, noise, weights = map(int, check_random_state(random_state).randint(_SEEDS, size=3))
    return Seeds(sampling, noise), weights


# The base class of all private estimators: refused weights, noted clones, pickles without secrets.


WEIGHTS = (
    "sample_weight is refused: a record of weight w may move the sum w times as far as the "
    "guarantee allows for. Drop it; to count groups apart, fit each with a budget of its own"
)


def _plan_of(text: str) -> Plan | DescentPlan:
    """The :class:`Plan` or :class:`DescentPlan` in a JSON text."""
    kind = DescentPlan if json.loads(text)["schema"] == DescentPlan.SCHEMA else Plan
    return kind.from_json(text)


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateEstimator(_TakesSparseRows):
    """A scikit-learn estimator whose ``fit`` spends a privacy budget.

    The fields of it and of its subclasses are the parameters of scikit-learn's constructor.

    Secrets exist only inside ``fit``. So a pickle (by pickle, joblib or skops) contains no key of
    the noise; it contains no counts of private records either.

    Attributes:
        statement_: the privacy statement. plan_: the plan that was run. Both are pickled as JSON.
        n_iter_: number of releases.
    """

    epsilon: float
    delta: float | None = None
    adjacency: Adjacency = "zero-out"
    random_state: Any = None
    ledger: Payer | None = None

    statement_: Statement = field(init=False)
    plan_: Any = field(init=False)
    n_iter_: int = field(init=False)

    # What ran when this was cloned; a clone's own one is an attribute of its own, and pickled.
    _cloned_by: ClassVar[tuple[Any, ...]] = tuple(_Callers(unseen=True))
    # Private attributes for the operator, which are neither pickled nor shown.
    _diagnostics: ClassVar[tuple[str, ...]] = ()

    def _validated(self, X: Any, y: Any, **options: Any) -> tuple[Any, Any]:
        if np.ma.is_masked(X) or np.ma.is_masked(y):
            raise ValueError("masked entries would be used: fill them, or drop those records")
        return validate_data(self, X, y, accept_sparse="csr", **options)

    def __sklearn_clone__(self) -> Self:
        clone: Self = super().__sklearn_clone__()
        cloned(self, clone)
        return clone

    def __dir__(self) -> Iterable[str]:
        # scikit-learn's HTML, which a notebook stores, shows every fitted attribute in it.
        return set(super().__dir__()) - set(self._diagnostics)

    def __getstate__(self) -> dict[str, Any]:
        held = super().__getstate__().items()
        state = {name: value for name, value in held if name not in self._diagnostics}
        for name in ("statement_", "plan_"):
            if name in state:
                state[name] = state[name].to_json()
        if "statement_" in state and isinstance(self.ledger, Ledger):
            state["ledger"] = self.ledger.without_password()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        for name, read in (("statement_", Statement.from_json), ("plan_", _plan_of)):
            if isinstance(state.get(name), str):
                state[name] = read(state[name])
        super().__setstate__(state)

    def _budget(self, examples: int) -> Budget:
        """The budget of a fit to so many records.

        If ``delta`` is None, δ is 1/(10 n) for n records. Under zero-out and replace-one,
        neighbouring data sets have the same n, so reading n costs no privacy. Under add-or-remove
        they do not, and no guarantee holds for a δ that depends on the data.

        Raises:
            TypeError, ValueError: a number outside its range, or no δ under add-or-remove.
        """
        one_of("adjacency", self.adjacency, get_args(Adjacency))
        if self.delta is not None:
            return Budget(self.epsilon, self.delta)
        if self.adjacency == "add-or-remove":
            raise ValueError(
                "delta is missing: under add-or-remove no default can follow from the number of "
                "records, which is private. Give delta, or use adjacency='zero-out'"
            )
        return Budget(self.epsilon, default_delta(examples))

    def _planned(
        self,
        module: torch.nn.Module,
        data: tuple[Any, Any],
        found: tuple[Caveat, ...],
        *,
        seeds: Seeds,
        loss: Loss | None = None,
        device: str | torch.device | None = None,
        **known: Any,
    ) -> torch.nn.Module:
        """The module, trained by the planner's default plan; notes plan, statement and rounds.

        Args:
            found: caveats about the classes, for the Statement.
            known: keywords of :func:`forethought.plan` besides sizes, budget and adjacency.
        """
        chosen = plan(
            examples=len(data[1]),
            budget=self._budget(len(data[1])),
            adjacency=self.adjacency,
            model=module,
            not_covered=(*found, *circumstances(self)),
            **known,
        )
        run = train(
            module,
            data,
            chosen,
            loss=loss,
            ledger=self.ledger,
            seeds=seeds,
            diagnostics=False,
            log_every=chosen.rounds,  # the ε of earlier rounds would not be shown
            device=device,
        )
        self.plan_, self.statement_, self.n_iter_ = chosen, run.statement, chosen.rounds
        return run.model.cpu().eval()

    @contextmanager
    def _fitting(self, parameters: dict[str, Any]) -> Iterator[None]:
        """A fit; one that fails, such as for want of budget, leaves an earlier fit's model whole.

        Refuses a wrong ledger, and keywords that ``fit`` does not take, with the reason.

        Raises:
            ValueError: ``sample_weight``. TypeError: any other keyword, or no ledger.
        """
        require_payer(self.ledger)
        given = {name for name, value in parameters.items() if value is not None}
        if "sample_weight" in given:
            raise ValueError(WEIGHTS)
        if given:
            raise TypeError(f"fit takes X and y, not {', '.join(sorted(given))}")
        before = dict(vars(self))
        try:
            yield
        except BaseException:
            self.__dict__ = before
            raise
