"""Linear models with scikit-learn's interface: by the planner's plan, or by full-batch descent.

Classifiers follow the planner's plan, with features centred by means that are released with their
typical norm. Full-batch descent (:mod:`forethought.convex`) covers the cases that the planner does
not: a penalty, a model without an intercept, and a regression that bounds the influence of a
record.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import expit, softmax
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from forethought import convex
from forethought.accounting.dominating_pair import gaussian_mu
from forethought.convex.descent import Above, loss_and_slope
from forethought.convex.planning import signal
from forethought.convex.problems import Problem
from forethought.estimators import estimator
from forethought.estimators.estimator import PrivateEstimator, circumstances
from forethought.planning import defaults
from forethought.rounds.contributions import Loss
from forethought.values.caveats import Caveat
from forethought.values.checks import one_of, real
from forethought.values.mechanism import Adjacency, Budget, FullBatch, Rounds

# The ball in which a linear estimator keeps its weights; its radius follows from public numbers.


@dataclass(frozen=True)
class Ball:
    """A ball of radius max(least, factor sᵖ)·√d/Z around zero.

    Weights of norm √d/Z and coordinates of size Z/√d give outputs whose root mean square is 1.
    s = nμ/√d is the ratio of the largest mean gradient to the noise of one release of it. With much
    noise the ball is small, because the noise would fill a larger one; with little noise it is
    large. The default schedule uses the radius as the distance to go.

    Args:
        factor, power, least: the constants above; docs/estimators.md names the data that they were
            chosen on.
    """

    factor: float
    power: float
    least: float

    def radius(
        self, budget: Budget, adjacency: Adjacency, *, records: int, weights: int, bound: float
    ) -> float:
        """The radius for one fit.

        Args:
            budget, adjacency: of the fit.
            records: n. weights: d, of all outputs together.
            bound: Z, the bound on the norm of a row with its constant column.
        """
        moved = Rounds(1.0, 1, FullBatch()).sensitivity(adjacency)
        # In units of a sensitivity of 2C/n, like the default schedule.
        mu = 2 * gaussian_mu(budget.epsilon, budget.delta) / moved
        share = max(self.least, self.factor * signal(records, weights, mu) ** self.power)
        return float(share * math.sqrt(weights) / bound)


_FLOATS = (np.float64, np.float32)
# Linear regression: the Huber threshold, in units of half the targets' range. The loss of larger
# residuals is linear, which bounds the influence of one record.
THRESHOLD = 1.0


# For a smaller budget the planner finds no noise that is large enough.
LEAST_MU = 1e-6
# For a smaller bound weights leave single precision, for one over it features do.
LEAST_BOUND = 1e-30
# Outputs of classifiers are log odds, which grow large for separable classes; scaled targets do
# not.
LABELS, TARGETS = Ball(0.5, 1 / 2, 1.0), Ball(50.0 ** (-1 / 3), 1 / 3, 0.4)


def batches(examples: int) -> dict[str, Any]:
    """The sampling, as keywords of a plan: full batches for few records, else the plan's default.

    With few records the default rounds pass over all data as often as full batches do, and full
    batches have the least noise.
    """
    if examples * defaults.EPOCHS_LIMIT > defaults.BATCH * defaults.ROUNDS:
        return {}
    return {"sampling": "full-batch", "rounds": defaults.ROUNDS}


@dataclass(kw_only=True, eq=False, repr=False)
class _PrivateLinear(PrivateEstimator):
    """The common part of the linear models: bounded rows, descent, and margins."""

    feature_bound: float
    l2: float = 0.0
    fit_intercept: bool = True
    above: Above = "clip"

    coef_: NDArray[np.float64] = field(init=False)
    intercept_: Any = field(init=False)
    _diagnostics: ClassVar[tuple[str, ...]] = ("features_clipped_", "targets_clipped_")

    def _shape(self, X: Any, ball: Ball, outputs: int = 1) -> dict[str, float]:
        """The arguments of every problem: the bound, λ, the constant column, and the radius.

        The constant column is feature_bound/√features, the size of a typical coordinate of a row
        whose norm is the bound.
        """
        if not isinstance(self.fit_intercept, bool | np.bool_):
            raise TypeError(f"fit_intercept must be True or False, not {self.fit_intercept!r}")
        bound = real("feature_bound", self.feature_bound, above=0)
        if not LEAST_BOUND <= bound <= 1 / LEAST_BOUND:
            raise ValueError(
                f"feature_bound = {bound:g}: scale the features, so that it is between "
                f"{LEAST_BOUND:g} and {1 / LEAST_BOUND:g}"
            )
        one_of("above", self.above, get_args(Above))
        records, features = X.shape
        column = bound / math.sqrt(features) if self.fit_intercept else 0.0
        radius = ball.radius(
            self._budget(records),
            self.adjacency,
            records=records,
            weights=(features + bool(column)) * outputs,
            bound=math.hypot(bound, column),
        )
        return {"feature_bound": bound, "l2": self.l2, "intercept": column, "radius": radius}

    def _descend(
        self, problem: Problem, X: Any, targets: NDArray[Any], found: tuple[Caveat, ...]
    ) -> convex.Descended:
        seeds, _ = estimator.seeds(self.random_state)
        plan = convex.plan(
            problem,
            self._budget(X.shape[0]),
            examples=X.shape[0],
            features=X.shape[1],
            adjacency=self.adjacency,
            not_covered=(*found, *circumstances(self)),
        )
        run = convex.descend(plan, X, targets, seeds=seeds, above=self.above, ledger=self.ledger)
        self.plan_, self.statement_, self.n_iter_ = plan, run.statement, plan.rounds
        self.features_clipped_, self.targets_clipped_ = run.features_clipped, run.targets_clipped
        self._bound = problem.feature_bound
        return run

    def _held(self, X: Any, bound: float) -> NDArray[np.float32]:
        """Rows within the bound, in single precision; notes how many were longer.

        Raises:
            ValueError: rows are longer, and ``above`` is ``"refuse"``.
        """
        rows = X.toarray() if sparse.issparse(X) else X
        # The norm of a row that equals the bound may exceed it by rounding.
        with np.errstate(over="ignore"):  # rows that overflow are replaced below
            squares = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)  # no second matrix
            found: NDArray[np.float32] = rows.astype(np.float32)
        longer = squares > (bound * (1 + 1e-6)) ** 2
        self.features_clipped_ = int(longer.sum())
        found[longer], _ = convex.bounded_rows(rows[longer], bound, self.above)
        return found

    def _margins(self, X: Any) -> NDArray[np.float64]:
        """Margins of rows that are scaled to the bound as in training: (n,) or (n, classes)."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=_FLOATS, accept_sparse="csr")
        rows, _ = convex.bounded_rows(X, getattr(self, "_bound", self.feature_bound))
        margins: NDArray[np.float64] = rows @ np.atleast_2d(self.coef_).T + self.intercept_
        return margins[:, 0] if margins.shape[1] == 1 else margins


@dataclass(kw_only=True, eq=False, repr=False)
class _PrivateLinearClassifier(ClassifierMixin, _PrivateLinear):
    """The common part of the classifiers: labels to class indices, and margins to labels."""

    classes: Any

    def _problem(self, X: Any) -> Problem:
        raise NotImplementedError

    def _loss(self, problem: Problem) -> Loss | None:
        """The problem's loss, for one output of each class; None: cross entropy."""
        return None

    def fit(self, X: Any, y: Any, **refused: Any) -> Self:
        """Plan, train and account.

        Args:
            X: (n, features), dense or sparse. y: labels, (n,).
            refused: ``sample_weight`` and other keywords, which are refused.
        """
        with self._fitting(refused):
            X, y = self._validated(X, y, dtype=_FLOATS)
            self.classes_, found = estimator.classes(self.classes, y)
            problem, places = self._problem(X), np.searchsorted(self.classes_, y)
            heard = defaults.budget_mu(self._budget(X.shape[0])) > LEAST_MU
            if self.l2 == 0 and self.fit_intercept and heard:
                self._by_plan(problem, X, places, found)
                return self
            run = self._descend(problem, X, places, found)
            self.coef_ = np.atleast_2d(np.asarray(run.weights).T)
            self.intercept_ = np.atleast_1d(np.asarray(run.intercept, dtype=np.float64))
        return self

    def _by_plan(
        self, problem: Problem, X: Any, places: NDArray[Any], found: tuple[Caveat, ...]
    ) -> None:
        """Train a linear layer by the planner's plan."""
        sizes = X.shape[1], len(self.classes_)
        layer = torch.nn.Linear(*sizes, device="meta").to_empty(device="cpu")  # draws nothing
        for start in layer.parameters():
            torch.nn.init.zeros_(start)
        seeds, _ = estimator.seeds(self.random_state)
        trained = self._planned(
            layer,
            (self._held(X, problem.feature_bound), places),
            found,
            seeds=seeds,
            loss=self._loss(problem),
            # Rows spread evenly over a box have a norm of about 1/√3 of the largest one; plans for
            # tables assume the same.
            feature_norm=self.feature_bound / math.sqrt(3),
            feature_norm_known=True,
            **batches(len(places)),
        )
        weights, bias = (part.detach().double().numpy() for part in trained.parameters())
        if len(self.classes_) == 2:
            weights, bias = weights[1:] - weights[:1], bias[1:] - bias[:1]
        self.coef_, self.intercept_ = weights, bias
        self._bound = problem.feature_bound

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Margins: (n,) for two classes, above 0 for the second class; else (n, classes)."""
        return self._margins(X)

    def predict(self, X: Any) -> NDArray[Any]:
        """The label of each row, (n,)."""
        margins = self._margins(X)
        at = (margins > 0).astype(int) if margins.ndim == 1 else margins.argmax(axis=1)
        return self.classes_[at]


class PrivateLogisticRegression(_PrivateLinearClassifier):
    """Logistic regression (softmax for three or more classes) with (ε, δ) differential privacy.

    Noise, batches, step sizes and the number of steps follow from the budget, the bound and the
    size of the data (:func:`forethought.plan`); nothing has to be tuned. With ``l2`` above 0, or
    without an intercept, training is full-batch descent (:func:`forethought.convex.plan`).

    Args:
        epsilon: the budget's ε, above 0.
        delta: the budget's δ. Default: 1/(10 n); under add-or-remove it must be given.
        feature_bound: Z, the bound on the L2 norm of a row, known without the data: √features after
            :class:`RangeScaler`, 1 after ``Normalizer``.
        classes: all possible labels; ``"from-data"`` reads them from the data, which the guarantee
            does not cover.
        l2: λ ≥ 0 in mean loss + λ/2 ‖θ‖², the intercept included (scikit-learn's 1/(C n)).
        fit_intercept: True to fit an intercept.
        adjacency: the neighbouring data sets. ``"zero-out"``: one record is blanked; n is public.
            ``"replace-one"``: one record is replaced by any other (twice the noise).
            ``"add-or-remove"``: one record is added or removed.
        above: rows longer than the bound are scaled to it (``"clip"``) or refused (``"refuse"``).
        random_state: seeds batches and noise; such a run is not private, and its statement says so.
            None: the operating system's entropy.
        ledger: a `forethought.Ledger` from which ``fit`` takes its budget.

    Attributes:
        classes_: the classes, sorted.
        coef_: (1 or classes, features). intercept_: (1 or classes,).
        n_iter_: number of releases.
        statement_: the privacy statement. plan_: the plan that was run.
        features_clipped_: number of scaled rows; a private number, never pickled.

    Raises:
        ValueError, TypeError: in ``fit``: labels outside the classes, a budget too small for one
            step, rows above the bound where they are refused.
    """

    def _problem(self, X: Any) -> Problem:
        classes = len(self.classes_)
        if classes == 2:
            return convex.LogisticRegression(**self._shape(X, LABELS))
        return convex.SoftmaxRegression(classes=classes, **self._shape(X, LABELS, classes))

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Probability of each class, (n, classes)."""
        margins = self._margins(X)
        if margins.ndim == 1:
            return np.stack([expit(-margins), expit(margins)], axis=1)
        return softmax(margins, axis=1)

    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """Logarithm of the probability of each class, (n, classes)."""
        return np.log(self.predict_proba(X))


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateSVC(_PrivateLinearClassifier):
    """A private linear support vector machine for two classes, with a smoothed hinge loss.

    It supports two classes only: one machine for each class would spend the budget once for each.
    For three or more classes use :class:`PrivateLogisticRegression`, which is one model.

    Args:
        smoothing: width γ of the part of the hinge that is a parabola, above 0.
        epsilon, delta, feature_bound, classes, l2, fit_intercept, adjacency, above, random_state,
            ledger: as for :class:`PrivateLogisticRegression`.

    Attributes:
        classes_, coef_, intercept_, n_iter_, statement_, plan_, features_clipped_: as for
            :class:`PrivateLogisticRegression`.

    Raises:
        ValueError, TypeError: in ``fit``: as for :class:`PrivateLogisticRegression`, or more than
            two classes.
    """

    smoothing: float = 1.0

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def _problem(self, X: Any) -> Problem:
        if len(self.classes_) > 2:
            raise ValueError(
                "Only binary classification is supported. There are "
                f"{len(self.classes_)} classes: use PrivateLogisticRegression, which is one model"
            )
        return convex.SmoothedHinge(smoothing=self.smoothing, **self._shape(X, LABELS))

    def _loss(self, problem: Problem) -> Loss:
        def of_margins(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return loss_and_slope(problem).loss(outputs[:, 1:] - outputs[:, :1], targets)[:, 0]

        return of_margins


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateLinearRegression(RegressorMixin, _PrivateLinear):
    """Private linear regression (ridge regression if ``l2`` > 0) of targets in a declared range.

    Args:
        target_range: the lowest and the highest possible target, scaled to [−1, 1]. Targets outside
            are set to the nearer end and counted, or refused, as ``above`` says.
        epsilon, delta, feature_bound, l2, fit_intercept, adjacency, above, random_state, ledger:
            as for :class:`PrivateLogisticRegression`; λ applies to the scaled targets.

    Attributes:
        coef_: (features,). intercept_: a number; both in the units of the targets.
        n_iter_, statement_, plan_: as for :class:`PrivateLogisticRegression`.
        features_clipped_: number of scaled rows. targets_clipped_: number of targets outside the
            range. Both are private numbers, never pickled.

    Raises:
        ValueError, TypeError: in ``fit``: as for :class:`PrivateLogisticRegression`, or an invalid
            range.
    """

    target_range: Any

    def fit(self, X: Any, y: Any, **refused: Any) -> Self:
        """Plan, train by descent, and account.

        Args:
            X: (n, features), dense or sparse. y: numbers, (n,).
            refused: ``sample_weight`` and other keywords, which are refused.
        """
        with self._fitting(refused):
            middle, half = estimator.target_range(self.target_range)
            X, y = self._validated(X, y, dtype=_FLOATS, y_numeric=True)
            with np.errstate(over="ignore"):
                scaled = (np.asarray(y, dtype=np.float64) - middle) / half
            # Descent counts or refuses targets beyond 1; here they only stay finite.
            scaled = np.clip(scaled, -2, 2)
            shape = self._shape(X, TARGETS)
            problem = convex.HuberRegression(target_bound=1.0, threshold=THRESHOLD, **shape)
            run = self._descend(problem, X, scaled, ())
            self.coef_ = half * np.asarray(run.weights, dtype=np.float64)
            self.intercept_ = middle + half * float(run.intercept)
            self._range = self.target_range
        return self

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Predicted numbers, (n,), clipped to the declared range."""
        found = self._margins(X)
        middle, half = estimator.target_range(getattr(self, "_range", self.target_range))
        return np.clip(found, middle - half, middle + half)
