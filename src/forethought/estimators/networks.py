"""Any torch module with scikit-learn's interface, trained by the default plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from forethought.estimators import estimator
from forethought.estimators.estimator import PrivateEstimator
from forethought.training.metrics import evaluating, in_pieces
from forethought.utility.perturbing import initial
from forethought.values.caveats import Caveat

Network = torch.nn.Module | Callable[[int, int], torch.nn.Module]


@dataclass(eq=False, repr=False)
class _PrivateNetwork(PrivateEstimator):
    """The common part of classifier and regressor: building, training and running a module."""

    module: Network
    _: KW_ONLY
    epochs: float | None = None
    device: str | torch.device | None = None

    module_: torch.nn.Module = field(init=False)
    classes_: NDArray[Any] = field(init=False)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        if "module_" in state:  # arrays: no code, which skops would refuse
            own = state["module_"].state_dict()
            state["module_"] = {name: value.cpu().numpy() for name, value in own.items()}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        weights = self.__dict__.get("module_")
        if isinstance(weights, dict):
            # New parameters are for the next fit; one stored by an earlier version has only these.
            self.module_ = self._built(self.__dict__.get("_module", self.module), None).eval()
            own = {name: torch.tensor(value) for name, value in weights.items()}
            self.module_.load_state_dict(own)

    def _built(self, module: Network, seed: int | None) -> torch.nn.Module:
        """The untrained module; a given module is copied, since ``fit`` must not change it.

        Raises:
            TypeError: ``module`` is neither a module nor a function that makes one.
        """
        outputs = 1 if isinstance(self, RegressorMixin) else len(self.classes_)
        return initial(module, seed, self.n_features_in_, outputs)

    def _train(self, X: NDArray[Any], targets: NDArray[Any], found: tuple[Caveat, ...]) -> None:
        seeds, weights = estimator.seeds(self.random_state)
        # An invalid budget is refused before a module is made.
        self._budget(len(X))
        module = self._built(self.module, weights)
        self._require_outputs(module, X.shape[1:])
        self.module_ = self._planned(
            module,
            (X, targets),
            found,
            seeds=seeds,
            device=self.device,
            epochs=self.epochs,
            squared_error=isinstance(self, RegressorMixin),
        )
        self._module = self.module

    def _require_outputs(self, module: torch.nn.Module, row: tuple[int, ...]) -> None:
        """Predict one row of zeros, so that what cannot predict spends no budget.

        Raises:
            ValueError: the module does not take the row, or has another number of outputs.
        """
        wanted = 1 if isinstance(self, RegressorMixin) else len(self.classes_)
        try:
            with evaluating(module):
                shape = tuple(_outputs(module, torch.zeros(1, *row, dtype=torch.float64)).shape)
        except (RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
            raise ValueError(
                f"the module cannot predict a row of shape {row}: mend it ({error})"
            ) from error
        if shape != (1, wanted):
            raise ValueError(
                f"the module's outputs for one row have the shape {shape}: make it (1, {wanted})"
            )

    def _checked(self, X: Any, y: Any, **options: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        X, y = self._validated(X, y, dtype=np.float32, allow_nd=True, **options)
        return _dense(X), y

    def _run_module(self, X: Any) -> torch.Tensor:
        """Outputs in double precision, (n, outputs); in single, they would depend on the batch."""
        check_is_fitted(self)
        X = validate_data(
            self, X, reset=False, dtype=np.float64, accept_sparse="csr", allow_nd=True
        )
        features = torch.from_numpy(np.array(_dense(X)))
        return torch.cat([_outputs(self.module_, part) for part in in_pieces(features)])


def _outputs(module: torch.nn.Module, features: torch.Tensor) -> torch.Tensor:
    """Outputs in double precision; computed in the module's own where it sets that itself."""
    held = dict([*module.named_parameters(), *module.named_buffers()])
    own = {name: one.double() if one.is_floating_point() else one for name, one in held.items()}
    first = next(iter(held.values()), features)
    features = features.to(first.device)
    with torch.no_grad():
        try:
            found: torch.Tensor = torch.func.functional_call(module, own, (features,))
        except RuntimeError:
            found = module(features.to(first.dtype))
    return found.double()


def _dense(X: Any) -> NDArray[Any]:
    return X.toarray() if sparse.issparse(X) else X


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateClassifier(ClassifierMixin, _PrivateNetwork):
    """A torch module, trained privately to predict one of the declared classes.

    :func:`forethought.plan` chooses batches, rounds, noise, clipping and step sizes from the number
    of records, the module's size and the budget. :func:`forethought.train` trains, with its
    assumptions and refusals.

    Args:
        module: a function of (number of features, number of classes) that makes a torch module, or
            a module, which is copied. It maps rows to one output for each class.
        epsilon: the budget's ε, above 0.
        delta: the budget's δ. Default: 1/(10 n); under add-or-remove it must be given.
        classes: all possible labels; ``"from-data"`` reads them from the data, which the guarantee
            does not cover.
        epochs: passes over the data; None: the plan chooses.
        adjacency: the neighbouring data sets. ``"zero-out"``: one record is blanked; n is public.
            ``"add-or-remove"``: one record is added or removed.
        device: the device to train on.
        random_state: seeds weights, batches and noise; such a run is not private, and its statement
            says so. None: the operating system's entropy for batches and noise.
        ledger: a `forethought.Ledger` from which ``fit`` takes its budget.

    Attributes:
        classes_: the classes, sorted. module_: the trained module. n_iter_: number of releases.
        statement_: the privacy statement. plan_: the plan that was run.

    Raises:
        ValueError, TypeError: in ``fit``: a module or data that cannot be trained privately, or
            labels outside the classes.
    """

    classes: Any

    def fit(self, X: Any, y: Any, **refused: Any) -> Self:
        """Plan, train and account.

        Args:
            X: (n, features) or (n, …), dense or sparse. y: labels, (n,).
            refused: ``sample_weight`` and other keywords, which are refused.
        """
        with self._fitting(refused):
            X, y = self._checked(X, y)
            self.classes_, found = estimator.classes(self.classes, y)
            self._train(X, np.searchsorted(self.classes_, y), found)
        return self

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Outputs of the module, (n, classes); for two classes the second less the first, (n,)."""
        outputs: NDArray[np.float64] = self._run_module(X).numpy()
        return outputs[:, 1] - outputs[:, 0] if outputs.shape[1] == 2 else outputs

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Probability of each class, (n, classes)."""
        return torch.softmax(self._run_module(X), 1).numpy()

    def predict(self, X: Any) -> NDArray[Any]:
        """The most likely class of each row, (n,)."""
        found = self._run_module(X).argmax(1).numpy()
        return self.classes_[found]


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateRegressor(RegressorMixin, _PrivateNetwork):
    """A torch module, trained privately to predict numbers in a declared range.

    Args:
        module: as for :class:`PrivateClassifier`, with one output.
        target_range: the lowest and the highest possible target, scaled to [−1, 1]. Targets outside
            are set to the nearer end.
        epsilon, delta, epochs, adjacency, device, random_state, ledger: as for
            :class:`PrivateClassifier`.

    Attributes:
        module_: the trained module; its output of 0 means the middle of the range.
        n_iter_, statement_, plan_: as for :class:`PrivateClassifier`.

    Raises:
        ValueError, TypeError: in ``fit``: a module or data that cannot be trained privately, or an
            invalid range.
    """

    target_range: Any

    def fit(self, X: Any, y: Any, **refused: Any) -> Self:
        """Plan, train and account.

        Args:
            X: (n, features) or (n, …), dense or sparse. y: numbers, (n,).
            refused: ``sample_weight`` and other keywords, which are refused.
        """
        with self._fitting(refused):
            middle, half = estimator.target_range(self.target_range)
            X, y = self._checked(X, y, y_numeric=True)
            scaled = np.clip((np.asarray(y, np.float64) - middle) / half, -1, 1)
            self._train(X, scaled.astype(np.float32)[:, None], ())
            self._range = self.target_range
        return self

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Predicted numbers, (n,), clipped to the declared range."""
        found: NDArray[np.float64] = self._run_module(X).numpy()[:, 0]
        middle, half = estimator.target_range(getattr(self, "_range", self.target_range))
        return middle + half * np.clip(found, -1, 1)
