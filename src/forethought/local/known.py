"""Networks that hold no code of a user's: torch's own layers, of which each keeps rows apart."""

from __future__ import annotations

from torch import nn

from forethought.gradients import boundary, vmap_mode
from forethought.gradients.batches import Loss
from forethought.gradients.boundary import Refused
from forethought.gradients.clipped import declared_separable

# No state, no branch, nothing across rows, and a batching rule of torch's own.
LAYERS: tuple[type[nn.Module], ...] = (
    *(nn.Sequential, nn.Identity, nn.Flatten, nn.Unflatten),
    *(nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.GroupNorm, nn.LayerNorm),
    *(nn.ReLU, nn.LeakyReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus),
    *(nn.AvgPool1d, nn.AvgPool2d, nn.MaxPool1d, nn.MaxPool2d, nn.AdaptiveAvgPool2d),
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d),
)


def separable(model: nn.Module, loss: Loss) -> bool:
    """True if the network and the loss are of parts that are known to keep rows apart."""
    modules = list(model.named_modules())
    try:
        vmap_mode.hooked(modules)
    except Refused:
        return False
    known = all(
        type(module) in LAYERS
        and "forward" not in vars(module)
        and not (module._forward_hooks or module._forward_pre_hooks)
        for _, module in modules
    )
    hooks = boundary.interrupted() or boundary.global_hooks()
    return known and not hooks and declared_separable(loss)
