"""What ``data=``, ``model=`` and ``shape=`` of :func:`forethought.plan` stand for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from forethought.assumed import is_linear, linear_layer, module_of, trained_parameters
from forethought.checks import whole
from forethought.planning.limits import PlanError
from forethought.planning.tolerance import noise_borne, table_radius


def _sizes(shape: object) -> tuple[int, ...]:
    if isinstance(shape, str) or not isinstance(shape, Sequence):
        raise TypeError(
            f"shape must be the sizes of one record, such as (20,) or (1, 28, 28), not {shape!r}"
        )
    return tuple(whole("each size in shape", size) for size in shape)


def opened(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords with ``data`` and ``model`` replaced by what they stand for.

    Raises:
        PlanError: what they say is given as well. TypeError: they are something else.
    """
    found = dict(keywords)
    data, model = found.pop("data", None), found.pop("model", None)
    shape = found.pop("shape", getattr(data, "shape", None))
    if data is not None:
        if "examples" in found:
            raise PlanError("data= says how many examples there are: drop examples=")
        if not hasattr(data, "train") or not hasattr(data, "caveats"):
            raise TypeError(
                f"data must be a forethought.data.Dataset, not {type(data).__name__}: for arrays "
                "give examples=len(targets)"
            )
        found["examples"] = len(data.train)
        if getattr(data, "persons", None) is not None:
            if {"persons", "records_per_person"} & set(found):
                raise PlanError(
                    "data= says whose each row is: drop persons= and records_per_person="
                )
            found["persons"] = len(set(data.persons))
            found["records_per_person"] = data.records_per_person
        found["not_covered"] = (*data.caveats, *found.get("not_covered", ()))
    if model is not None:
        if "parameters" in found:
            raise PlanError("model= says how many parameters are trained: drop parameters=")
        model = module_of(model)
        found["parameters"] = trained_parameters(model)
        if found.get("feature_norm") is None and is_linear(model):
            found["feature_norm"] = getattr(data, "feature_norm", None)
            found["feature_norm_known"] = True
            if getattr(data, "fixed_features", None) is not None:
                found.setdefault("image_features", True)
        if shape is not None and not is_linear(model):
            radius = table_radius(getattr(data, "feature_norm", None))
            found.setdefault("noise_borne", noise_borne(model, _sizes(shape), radius))
        layer = linear_layer(model)
        if layer is not None:
            found.setdefault("features", layer.in_features)
    return found
