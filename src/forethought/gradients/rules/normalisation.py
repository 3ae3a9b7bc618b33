"""Scales and shifts of layer, group, instance, RMS and (frozen) batch normalisation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from forethought.gradients.boundary import is_lane, lane, outside, rows
from forethought.gradients.lanes import Lanes
from forethought.gradients.terms import Dense, Rule, Term, Use, register, register_physical, wide


def _affine(
    normalised: Callable[[Use], Tensor], total: Callable[[Use, Tensor], Tensor]
) -> Callable[[Use], Iterator[tuple[str, Term]]]:
    # y = w·x̂ + b: ∇w = Σ g·x̂ and ∇b = Σ g. x̂ is computed again instead of being kept.
    def gradients(use: Use) -> Iterator[tuple[str, Term]]:
        gradient = wide(use.gradient)
        if "weight" in use.trained:
            yield "weight", Dense(total(use, gradient * normalised(use)))
        if "bias" in use.trained:
            yield "bias", Dense(total(use, gradient))

    return gradients


def _over_positions(use: Use, values: Tensor) -> Tensor:
    shape = use.parameters.get("weight", use.parameters.get("bias"))
    assert shape is not None  # the rule is asked only for parameters that are there
    trailing = tuple(shape.shape)
    return values.reshape(values.shape[0], -1, *trailing).sum(1)


def _over_space(use: Use, values: Tensor) -> Tensor:
    # (B, several, C, *space)
    return values.flatten(3).sum((1, 3)) if values.dim() > 3 else values.sum(1)


def _layer(use: Use) -> Tensor:
    shape = use.arguments["normalized_shape"]
    return F.layer_norm(wide(use.saved["input"]), shape, eps=use.arguments.get("eps", 1e-5))


def _rms(use: Use) -> Tensor:
    shape = use.arguments["normalized_shape"]
    value = use.saved["input"]
    eps = use.arguments.get("eps")
    # Without eps the function takes that of the input's own precision.
    eps = torch.finfo(value.dtype).eps if eps is None else eps
    return F.rms_norm(wide(value), shape, eps=eps)


def _each_image(use: Use, normalise: Callable[[Tensor], Tensor]) -> Tensor:
    value = wide(use.saved["input"])
    return normalise(value.flatten(0, 1)).reshape(value.shape)


def _group(use: Use) -> Tensor:
    groups, eps = use.arguments["num_groups"], use.arguments.get("eps", 1e-5)
    return _each_image(use, lambda value: F.group_norm(value, groups, eps=eps))


def _instance(use: Use) -> Tensor:
    eps = use.arguments.get("eps", 1e-5)
    return _each_image(use, lambda value: F.instance_norm(value, eps=eps))


def _frozen_batch(use: Use) -> Tensor:
    mean, var = use.arguments["running_mean"], use.arguments["running_var"]
    eps = use.arguments.get("eps", 1e-5)
    return _each_image(use, lambda v: F.batch_norm(v, wide(mean), wide(var), eps=eps))


def _own_statistics(arguments: Mapping[str, Any], parameters: Mapping[str, Any]) -> bool:
    batched: bool = arguments["input"].dim() > 2  # a lane's image may lack a batch dimension
    return bool(arguments.get("use_input_stats", True)) and batched


def _given_statistics(arguments: Mapping[str, Any], parameters: Mapping[str, Any]) -> bool:
    return not arguments.get("training", False)


def _group_physical(lanes: Lanes, func: Any, input: Tensor, *args: Any, **kwargs: Any) -> Any:
    # vmap takes it apart; on the whole batch it is one kernel.
    given = dict(zip(("num_groups", "weight", "bias", "eps"), args, strict=False)) | kwargs
    shared = (given.get("weight"), given.get("bias"))
    if not is_lane(input) or any(p is not None and (is_lane(p) or p.requires_grad) for p in shared):
        return NotImplemented
    with outside():
        whole = rows(input)
        normalised = func(whole.flatten(0, 1), **given).view(whole.shape)
    return lane(normalised, 0, lanes.level)


register_physical(_group_physical, F.group_norm)

_roles: dict[str, Any] = {"parameters": ("weight", "bias"), "saved": ("input",)}
register(
    Rule(
        "layer_norm",
        ("input", "normalized_shape", "weight", "bias", "eps"),
        gradients=_affine(_layer, _over_positions),
        **_roles,
    ),
    F.layer_norm,
)
register(
    Rule(
        "rms_norm",
        ("input", "normalized_shape", "weight", "eps"),
        gradients=_affine(_rms, _over_positions),
        **_roles,
    ),
    F.rms_norm,
)
register(
    Rule(
        "group_norm",
        ("input", "num_groups", "weight", "bias", "eps"),
        gradients=_affine(_group, _over_space),
        **_roles,
    ),
    F.group_norm,
)
_running = ("input", "running_mean", "running_var", "weight", "bias")
register(
    Rule(
        "instance_norm",
        (*_running, "use_input_stats", "momentum", "eps"),
        gradients=_affine(_instance, _over_space),
        accepts=_own_statistics,
        **_roles,
    ),
    F.instance_norm,
)
register(
    Rule(
        "batch_norm",
        (*_running, "training", "momentum", "eps"),
        gradients=_affine(_frozen_batch, _over_space),
        accepts=_given_statistics,
        **_roles,
    ),
    F.batch_norm,
)
