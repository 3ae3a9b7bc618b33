"""A model that is one linear layer: nothing to intercept, its gradients are outer products.

For a small model the interception costs more than the arithmetic. The gradients here are those of
the rule for ``F.linear``, from the loss's gradient with respect to the layer's output. The general
way has surveyed the model and its loss before this one is taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

from forethought.gradients import trees
from forethought.gradients.terms import Dense, Outer, Term, wide


def single_linear(model: nn.Module, inputs: Any) -> nn.Linear | None:
    """The layer, if the model is ``nn.Linear`` or ``Sequential(Flatten(), Linear)`` and no more.

    None for anything that could change what the layer computes: a subclass, a parametrisation, a
    hook, autocast, inputs that need gradients or have another precision.
    """
    layers: tuple[nn.Module, ...] = (model,)
    if type(model) is nn.Sequential:
        layers = (model, *model)
        first, *rest = model
        if type(first) is not nn.Flatten or (first.start_dim, first.end_dim) != (1, -1):
            return None
        if len(rest) != 1:
            return None
    layer = layers[-1]
    if type(layer) is not nn.Linear or any(map(_altered, layers)):
        return None
    if not isinstance(inputs, Tensor) or inputs.requires_grad or type(inputs) is not Tensor:
        return None
    if inputs.dtype != layer.weight.dtype or inputs.device != layer.weight.device:
        return None
    if torch.is_autocast_enabled(inputs.device.type):
        return None
    flat = inputs.dim() == 2 or (len(layers) > 1 and inputs.dim() > 2)
    return layer if flat else None


def _altered(layer: nn.Module) -> bool:
    return bool(
        _global_forward_hooks
        or _global_forward_pre_hooks
        or layer._forward_hooks
        or layer._forward_pre_hooks
        or layer._backward_hooks
        or layer._backward_pre_hooks
        or "forward" in layer.__dict__
    )


def terms(
    layer: nn.Linear,
    loss: Any,
    inputs: Tensor,
    targets: Any,
    trained: Mapping[str, nn.Parameter],
) -> dict[str, Term] | None:
    """Every trained parameter's per-example gradients; None if the loss itself uses a parameter.

    Args:
        layer, inputs: as :func:`single_linear` accepted them; inputs are flattened to (B, n).
        trained: the layer's parameters that want gradients, by name.
    """
    rows = inputs.flatten(1)
    bias = None if layer.bias is None else layer.bias.detach()
    with torch.enable_grad():
        output = F.linear(rows, layer.weight.detach(), bias).requires_grad_()
        total = trees.losses(loss(output, targets), len(rows)).sum()
        if not total.requires_grad:
            return None
        leaves = (output, *trained.values())
        gradient, *elsewhere = torch.autograd.grad(total, leaves, allow_unused=True)
    if gradient is None or any(found is not None for found in elsewhere):
        return None
    found: dict[str, Term] = {}
    for name, parameter in trained.items():
        if parameter is layer.weight:
            found[name] = Outer([(gradient.unsqueeze(1), rows.unsqueeze(1))])
        else:
            found[name] = Dense(wide(gradient))
    return found
