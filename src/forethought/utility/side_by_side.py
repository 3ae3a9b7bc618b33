"""Many copies of one model with different weights, evaluated side by side on the same inputs.

Run one after the other, thousands of perturbed copies spend most of their time in small
convolutions and poolings. Here K copies are one network with K times the channels: images are
(B, K·C, H, W) with channels last, so that convolutions run in K groups and pooling and activations
run along contiguous channels; flat features are (K, B, D) and layers batched matrix products. The
first layer reads the inputs once for all copies. For LeNet-5 this is five times faster than a loop,
where a vmap over the weights is slower than one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from forethought.models.activations import TemperedSigmoid


class _UnsupportedError(Exception):
    """A layer, or a layer at such a place, that has no rule here."""


class _Values(NamedTuple):
    """Activations of K copies.

    Args:
        kind: ``"shared"``, the same for all copies, (B, …); ``"planes"``, (B, K·C, H, W), copy by
            copy; ``"rows"``, (K, B, D).
    """

    kind: Literal["shared", "planes", "rows"]
    tensor: Tensor


Stack = Callable[[Tensor], Tensor]
_Rule = Callable[[Any, _Values, Stack, int], _Values]


def _elementwise(layer: nn.Module, values: _Values, stack: Stack, copies: int) -> _Values:
    return _Values(values.kind, layer(values.tensor))


def _identity(layer: nn.Module, values: _Values, stack: Stack, copies: int) -> _Values:
    return values


def _pooling(layer: nn.Module, values: _Values, stack: Stack, copies: int) -> _Values:
    if values.tensor.ndim != 4:
        raise _UnsupportedError
    return _Values(values.kind, layer(values.tensor))


def _flatten(layer: nn.Flatten, values: _Values, stack: Stack, copies: int) -> _Values:
    if (layer.start_dim, layer.end_dim) != (1, -1):
        raise _UnsupportedError
    if values.kind == "planes":
        size, channels, height, width = values.tensor.shape
        apart = values.tensor.view(size, copies, channels // copies, height, width)
        return _Values("rows", apart.transpose(0, 1).reshape(copies, size, -1))
    return values if values.kind == "rows" else _Values("shared", values.tensor.flatten(1))


def _linear(layer: nn.Linear, values: _Values, stack: Stack, copies: int) -> _Values:
    weight = stack(layer.weight)
    if values.kind == "shared" and values.tensor.ndim == 2:
        joint = values.tensor @ weight.flatten(0, 1).T
        out = joint.view(len(joint), copies, -1).transpose(0, 1)
    elif values.kind == "rows":
        out = values.tensor @ weight.transpose(1, 2)
    else:
        raise _UnsupportedError
    return _Values("rows", out if layer.bias is None else out + stack(layer.bias).unsqueeze(1))


def _convolution(layer: nn.Conv2d, values: _Values, stack: Stack, copies: int) -> _Values:
    shared = values.kind == "shared"
    if values.tensor.ndim != 4 or layer.padding_mode != "zeros" or (shared and layer.groups > 1):
        raise _UnsupportedError
    weight = stack(layer.weight).flatten(0, 1).to(memory_format=torch.channels_last)
    bias = None if layer.bias is None else stack(layer.bias).flatten()
    inputs = values.tensor.to(memory_format=torch.channels_last)
    groups = 1 if shared else copies * layer.groups
    out = F.conv2d(inputs, weight, bias, layer.stride, layer.padding, layer.dilation, groups)
    return _Values("planes", out)


# By exact type: a subclass may do anything in its forward.
RULES: dict[type[nn.Module], _Rule] = {
    **dict.fromkeys(
        (
            nn.ReLU,
            nn.Tanh,
            nn.Sigmoid,
            nn.ELU,
            nn.GELU,
            nn.SiLU,
            nn.LeakyReLU,
            nn.Softplus,
            TemperedSigmoid,
        ),
        _elementwise,
    ),
    **dict.fromkeys((nn.Identity, nn.Dropout, nn.Dropout2d), _identity),
    **dict.fromkeys((nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d), _pooling),
    nn.Flatten: _flatten,
    nn.Linear: _linear,
    nn.Conv2d: _convolution,
}


class SideBySide:
    """A sequential model ready to run as K copies in evaluation mode; see :func:`side_by_side`.

    Attributes:
        peak: the most activations that one copy has for one example in one layer.
    """

    def __init__(self, model: nn.Sequential, sample: Tensor) -> None:
        self._layers = _layers(model)
        self._names = {id(p): name for name, p in model.named_parameters()}
        self.peak = sample[:1].numel()
        copies = 2
        stacked = {
            name: torch.stack([p.detach(), 0.5 * p.detach()])
            for name, p in model.named_parameters()
        }
        found = self(stacked, sample)
        for copy in range(copies):
            one = {name: weights[copy] for name, weights in stacked.items()}
            if not torch.allclose(
                found[copy], functional_call(model, one, (sample,)), rtol=1e-3, atol=1e-4
            ):
                raise _UnsupportedError

    def __call__(self, weights: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """Outputs of every copy.

        Args:
            weights: parameter name → (K, *shape); parameters left out are the model's own.
            inputs: (B, …).

        Returns:
            (K, B, outputs).
        """
        copies = len(next(iter(weights.values())))

        def stack(parameter: Tensor) -> Tensor:
            own = weights.get(self._names[id(parameter)])
            return parameter.detach().expand(copies, *parameter.shape) if own is None else own

        values = _Values("shared", inputs)
        for layer, rule in self._layers:
            values = rule(layer, values, stack, copies)
            count = values.tensor.numel() // (len(inputs) or 1)
            per_copy = count if values.kind == "shared" else count // copies
            self.peak = max(self.peak, per_copy)
        if values.kind != "rows":
            raise _UnsupportedError
        return values.tensor


def side_by_side(model: nn.Module, sample: Tensor) -> SideBySide | None:
    """The model as copies side by side, or None where only a loop over copies is known.

    Sequential models of linear and convolutional layers, pooling and element-wise activations are
    supported. The first outputs are compared with the model's own before anything is measured.

    Args:
        model: in evaluation mode.
        sample: a few inputs, (B, …), that the comparison is made on.
    """
    if type(model) is not nn.Sequential:
        return None
    try:
        with torch.no_grad():
            return SideBySide(model, sample)
    except _UnsupportedError:
        return None


def _layers(model: nn.Sequential) -> list[tuple[nn.Module, _Rule]]:
    found: list[tuple[nn.Module, _Rule]] = []
    for layer in model:
        if layer._forward_hooks or layer._forward_pre_hooks:
            raise _UnsupportedError
        if type(layer) is nn.Sequential:
            found += _layers(layer)
        elif type(layer) in RULES:
            found.append((layer, RULES[type(layer)]))
        else:
            raise _UnsupportedError
    return found
