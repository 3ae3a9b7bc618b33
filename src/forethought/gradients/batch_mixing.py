"""Layers that mix the examples of a batch: found, refused, and replaced."""

from __future__ import annotations

from math import gcd

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from forethought.gradients.boundary import require_seen


def _mixes(module: nn.Module) -> str | None:
    # The replacement for a layer that mixes examples; None for a layer that does not.
    if isinstance(module, _InstanceNorm):
        if module.track_running_stats and module.training:
            return "the same InstanceNorm with track_running_stats=False"
        return None
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        # Frequencies are counted over the batch; max_norm rewrites rows that the batch uses.
        if module.scale_grad_by_freq:
            return "scale_grad_by_freq=False"
        return "max_norm=None" if module.max_norm is not None else None
    if isinstance(module, _BatchNorm) and (module.training or not module.track_running_stats):
        if _alone(module):
            return "no normalisation of a single feature; scale it by a public range"
        return f"nn.GroupNorm({_groups(module)}, {module.num_features})"
    return None


# A vector has one value for each channel: a normalised group of one is always 0, of two always ±1.
_LEAST_OF_VECTORS = 8


def _groups(old: _BatchNorm) -> int:
    # 32 groups as in Wu and He (2018), or the largest divisor of both.
    groups = gcd(32, old.num_features)
    if isinstance(old, nn.BatchNorm1d):
        while groups > 1 and old.num_features // groups < _LEAST_OF_VECTORS:
            groups //= 2
    return groups


def _alone(module: _BatchNorm) -> bool:
    return isinstance(module, nn.BatchNorm1d) and module.num_features == 1


def check_model(model: nn.Module, grouped: bool = False) -> None:
    """Refuse a model in which one example's loss depends on another example.

    Args:
        grouped: True if contributions are groups of examples, which batch normalisation may mix.

    Raises:
        TypeError: not a module.
        ValueError: no trainable parameter, a torch.jit module, or a layer that mixes examples; the
            message names every such layer and its replacement.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"the model must be a torch.nn.Module, not {type(model).__name__}")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError("the model has no parameter with requires_grad=True: nothing to train")
    found = []
    for name, module in model.named_modules():
        require_seen(name, module)
        instead = _mixes(module)
        if instead and not (grouped and isinstance(module, _BatchNorm)):
            where = f"{name} " if name else ""
            found.append(f"{where}({type(module).__name__}): use {instead}")
    if found:
        raise ValueError(
            "layers that mix the examples of a batch cannot be trained privately:\n  "
            + "\n  ".join(found)
            + "\nforethought.gradients.replace_mixing_layers(model) makes these replacements"
        )


def replace_mixing_layers(model: nn.Module) -> nn.Module:
    """A model in which every layer that mixes examples is replaced, in place where possible.

    Batch normalisation becomes GroupNorm with the same weight and bias (shapes and values);
    instance normalisation loses its running statistics; embeddings lose ``max_norm`` and
    ``scale_grad_by_freq``. Call it before building the optimizer.

    Returns:
        The same model, or its replacement if the model itself is such a layer.

    Raises:
        TypeError: not a module.
        ValueError: batch normalisation of a single feature, or without channels yet (lazy).
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"the model must be a torch.nn.Module, not {type(model).__name__}")
    replaced: dict[int, nn.Module] = {}  # a shared layer stays shared

    def swap(module: nn.Module) -> nn.Module:
        if id(module) in replaced:
            return replaced[id(module)]
        new: nn.Module = module
        if isinstance(module, _BatchNorm):
            new = _group_norm(module)
        elif isinstance(module, nn.Embedding | nn.EmbeddingBag):
            module.scale_grad_by_freq, module.max_norm = False, None
        elif isinstance(module, _InstanceNorm) and module.track_running_stats:
            module.track_running_stats = False
            for name in ("running_mean", "running_var", "num_batches_tracked"):
                setattr(module, name, None)
        replaced[id(module)] = new
        for name, child in list(new.named_children()):
            other = swap(child)
            if other is not child:
                setattr(new, name, other)
        return new

    return swap(model)


def _group_norm(old: _BatchNorm) -> nn.GroupNorm:
    channels = old.num_features
    if not channels:
        raise ValueError("a lazy batch normalisation has no channels yet: run the model once")
    if _alone(old):
        raise ValueError(
            "batch normalisation of a single feature has no counterpart: scale it by a public range"
        )
    new = nn.GroupNorm(_groups(old), channels, eps=old.eps, affine=old.weight is not None)
    if old.weight is not None:
        new.weight, new.bias = old.weight, old.bias
    return new.train(old.training)
