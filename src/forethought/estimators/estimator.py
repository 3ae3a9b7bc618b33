"""What all private estimators share: refused weights, honest clones, pickles without secrets."""

from __future__ import annotations

from typing import Any, Protocol, Self

from sklearn.base import BaseEstimator

from forethought.accounting.statement import Statement
from forethought.estimators import callers

WEIGHTS = (
    "sample_weight is refused: a record of weight w may move the sum w times as far as the "
    "guarantee allows for, and weights that follow from the data are a release of their own. Drop "
    "it; to count groups apart, fit each with a budget of its own"
)


class StoredPlan(Protocol):
    """A plan that JSON holds."""

    def to_json(self) -> str: ...

    @classmethod
    def from_json(cls, text: str) -> Self: ...


class PrivateEstimator(BaseEstimator):
    """A scikit-learn estimator whose ``fit`` spends a privacy budget.

    Secrets live inside ``fit`` and nowhere else, so nothing that is pickled, by pickle, joblib or
    skops, holds a key of the noise. Counts of private records stay out of it as well.

    Attributes:
        statement_: what was guaranteed. plan_: what was run; both are kept as JSON when pickled.
    """

    statement_: Statement
    plan_: Any

    # The class that reads plan_ back, and attributes that are for the operator alone.
    _plan_kind: type[StoredPlan]
    _diagnostics: tuple[str, ...] = ()

    def __sklearn_clone__(self) -> Self:
        clone: Self = super().__sklearn_clone__()
        callers.cloned(self, clone)
        return clone

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        for name in self._diagnostics:
            state.pop(name, None)
        for name in ("statement_", "plan_"):
            if name in state:
                state[name] = state[name].to_json()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        for name, kind in (("statement_", Statement), ("plan_", self._plan_kind)):
            if isinstance(state.get(name), str):
                state[name] = kind.from_json(state[name])
        super().__setstate__(state)

    def _refuse(self, parameters: dict[str, Any]) -> None:
        """Refuse what ``fit`` does not take, with the reason.

        Raises:
            ValueError: weights. TypeError: anything else.
        """
        given = {name for name, value in parameters.items() if value is not None}
        if "sample_weight" in given:
            raise ValueError(WEIGHTS)
        if given:
            raise TypeError(f"fit takes X and y, not {', '.join(sorted(given))}")
