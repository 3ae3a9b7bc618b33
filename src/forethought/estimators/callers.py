"""What a fit is a part of: a search that chooses by private scores, steps fitted on private data.

scikit-learn tells an estimator nothing about who clones or fits it, but a guarantee depends on it:
the best of several models says more than one, and a scaler that was fitted before is a release. So
the calls that are under way are looked at, here and nowhere else.
"""

from __future__ import annotations

import sys
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

from sklearn.base import BaseEstimator
from sklearn.compose import TransformedTargetRegressor
from sklearn.model_selection._search import BaseSearchCV
from sklearn.pipeline import Pipeline

from forethought.caveats import Caveat
from forethought.estimators.preparation import fitted_on_data


class SelectionNotCoveredWarning(UserWarning):
    """A search chooses among private models by scores that no ε covers."""


class _Family:
    """An estimator and all clones of it, which one warning is enough for."""

    warned = False


_families: weakref.WeakKeyDictionary[Any, _Family] = weakref.WeakKeyDictionary()


def _running(kind: type[Any]) -> Iterator[Any]:
    """Every object of a kind whose ``fit`` is under way in this thread, innermost first."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "fit":
            owner = frame.f_locals.get("self")
            if isinstance(owner, kind):
                yield owner
        frame = frame.f_back  # type: ignore[assignment]


def cloned(original: BaseEstimator, clone: BaseEstimator) -> None:
    """Note a clone; warns once for all clones of an estimator when a search makes them.

    A search clones in the process that it was called in, whichever processes then fit.
    """
    family = _families.setdefault(original, _Family())
    _families[clone] = family
    search = next(_running(BaseSearchCV), None)
    if search is not None and not family.warned:
        family.warned = True
        warnings.warn(
            f"{type(search).__name__} chooses among private models by scores on the private "
            "data: every fit spends its own ε, and the choice is covered by none of them. "
            "forethought.tune searches privately, with one statement for the whole search",
            SelectionNotCoveredWarning,
            stacklevel=_outside(),
        )


def _outside() -> int:
    """The level of the first caller that is neither scikit-learn, joblib nor this room."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None:
        module = frame.f_globals.get("__name__", "")
        if module.partition(".")[0] not in ("sklearn", "joblib", "forethought"):
            break
        level, frame = level + 1, frame.f_back
    return level


def circumstances() -> tuple[Caveat, ...]:
    """What the Statement of a fit that is under way has to say about who called it."""
    found = []
    search = next(_running(BaseSearchCV), None)
    if search is not None:
        words = f"the parameters, by {type(search).__name__} over scores on the same records"
        found.append(Caveat("chosen-on-private-data", words))
    steps = [step for pipeline in _running(Pipeline) for _, step in pipeline.steps[:-1]]
    targets = [owner.transformer for owner in _running(TransformedTargetRegressor)]
    names = dict.fromkeys(name for step in (*steps, *targets) for name in fitted_on_data(step))
    if names:
        words = f"by steps that were fitted before: {', '.join(names)}"
        found.append(Caveat("preparation-from-data", words))
    return tuple(found)
