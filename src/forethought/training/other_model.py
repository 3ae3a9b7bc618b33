"""A warning where a plan was made for another model than the one it trains."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import torch

from forethought.assumed import differences, is_linear, trained_parameters
from forethought.data import Dataset
from forethought.plans import Plan


class OtherModelWarning(UserWarning):
    """Step size or batch of a plan were chosen for another model, or for other features."""


def warn_of_another_model(plan: Plan, model: torch.nn.Module, data: object = None) -> None:
    """Say where a plan was made for other weights or features than these, with cost and remedy.

    Of the data only what is declared is looked at: the usual norm that a
    :class:`forethought.data.Dataset` has of its features.

    Args:
        data: as for :func:`forethought.train`; None: only the model is compared.
    """
    norm = data.feature_norm if isinstance(data, Dataset) else None
    _warn(_found(plan, model, norm))


def warn_of_other_features(plan: Plan, model: torch.nn.Module, norm: float | None) -> None:
    """The same of the features alone, where training will get arrays and compare the model.

    Args:
        norm: usual norm of the model's inputs, declared; None: unknown.
    """
    alone = _found(plan, model, None)
    _warn(sentence for sentence in _found(plan, model, norm) if sentence not in alone)


def _found(plan: Plan, model: torch.nn.Module, norm: float | None) -> tuple[str, ...]:
    if plan.assumed is None:
        return ()
    return differences(plan.assumed, trained_parameters(model), is_linear(model), norm)


def _warn(sentences: Iterable[str]) -> None:
    for sentence in sentences:
        warnings.warn(sentence, OtherModelWarning, stacklevel=4)
