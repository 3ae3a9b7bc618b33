"""Batch normalisation after private training: whose statistics evaluation uses.

Inside a group a layer normalises by the group's own statistics, which go nowhere: running
statistics of private records are never released, so the model has none. Evaluation uses either the
layer statistics of a public batch, which then go into the model's buffers, or those of the records
that are evaluated, a batch at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from forethought.rounds.undisturbed import undisturbed


def mixing_layers(model: nn.Module) -> list[tuple[str, _BatchNorm]]:
    """Batch normalisation in training mode, which normalises by the batch it sees."""
    return [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and module.training
    ]


def public_statistics(
    model: nn.Module, parameters: Mapping[str, Tensor], inputs: Any
) -> dict[str, Tensor]:
    """Buffer name → running mean or variance of a public batch, layer by layer.

    Args:
        model: its layers of batch normalisation in training mode are looked at, all else is in
            evaluation mode. parameters: the weights, by name.
        inputs: a tensor, tuple or dict of at least two public records, batch first.
    """
    with undisturbed(model), torch.no_grad():
        layers = [(name, m) for name, m in mixing_layers(model) if m.track_running_stats]
        if not layers:
            return {}
        model.eval()
        for _, layer in layers:
            layer.train()
            layer.momentum = 1.0
        args = (
            inputs if isinstance(inputs, tuple) else () if isinstance(inputs, dict) else (inputs,)
        )
        functional_call(model, dict(parameters), args, inputs if isinstance(inputs, dict) else {})
        return {
            f"{name}.{kind}" if name else kind: getattr(layer, kind).clone()
            for name, layer in layers
            for kind in ("running_mean", "running_var")
        }


def settle_statistics(model: nn.Module, inputs: Any) -> None:
    """Write a public batch's layer statistics into the model, for evaluation mode.

    Args:
        inputs: public records, batch first.
    """
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    buffers = dict(model.named_buffers())
    for name, value in public_statistics(model, parameters, inputs).items():
        buffers[name].copy_(value)
