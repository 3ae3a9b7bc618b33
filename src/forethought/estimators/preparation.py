"""Which transformers take figures from the data that they are fitted on: each is a release."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from sklearn.base import BaseEstimator
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, PolynomialFeatures
from sklearn.utils import get_tags

from forethought.estimators.scaling import RangeScaler


def _categories_found(encoder: Any) -> bool:
    rare = (encoder.min_frequency, encoder.max_categories)
    return encoder.categories == "auto" or rare != (None, None)


# Those whose fit reads the number of columns and nothing else, as long as this is False.
_READS: dict[type, Callable[[Any], bool]] = {
    OneHotEncoder: _categories_found,
    OrdinalEncoder: _categories_found,
    PolynomialFeatures: lambda step: False,
    RangeScaler: lambda step: False,
    SimpleImputer: lambda step: step.strategy != "constant",
}


def fitted_on_data(step: Any) -> Iterator[str]:
    """Names of the transformers in a step, itself or parts of it, whose fit reads values.

    Whatever is not known to read none counts as reading.
    """
    if step is None or isinstance(step, str):  # "passthrough", "drop"
        return
    if isinstance(step, Pipeline | FeatureUnion | ColumnTransformer):
        # The parts as they were given: pairs, or triples with the columns.
        given = step.get_params(deep=False)
        parts = given.get("steps") or given.get("transformer_list") or given.get("transformers")
        for _, part, *_ in parts or ():
            yield from fitted_on_data(part)
    elif _READS.get(type(step), _by_tags)(step):
        yield type(step).__name__


def _by_tags(step: Any) -> bool:
    return not isinstance(step, BaseEstimator) or bool(get_tags(step).requires_fit)
