"""DP-SGD of small sequential networks, lean enough that a search among plans is affordable.

One backward pass to the layers' outputs gives each record's gradient norm: for a linear layer it is
a product of two norms (Goodfellow 2015), for a convolution the norm of a small matrix, or of a
product of two Gram matrices where that is less work (Li et al. 2022, "ghost clipping"). Scaled
outputs' gradients then give the clipped sum. tests/planning/test_network_runs.py holds this
against `forethought.train`: the same weights without noise, the same noise.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

import forethought as ft
from forethought.gradients.sums import CHARGE


def train(model: nn.Sequential, inputs: Tensor, targets: Tensor, plan: ft.Plan, seed: int) -> None:
    """Train in place as the plan says; the exponential average of the iterates is what is left.

    Args:
        model: linear layers and convolutions (stride, dilation and groups of 1) between layers
            without weights. inputs: (N, *shape) float32. targets: (N,) classes.
        plan: Poisson sampling or full batch, SGD, a constant step size, exponential averaging.
    """
    layers = _Layers(model, inputs)
    random = torch.Generator().manual_seed(seed)
    rate, examples = plan.batch / plan.examples, len(targets)
    momentum = float(dict(plan.optimizer.options)["momentum"])
    bound = plan.clip.norm
    velocity, average = torch.zeros_like(layers.weights), layers.weights.clone()
    for done in range(1, plan.rounds + 1):
        chosen = (torch.rand(examples, generator=random) < rate).nonzero()[:, 0]
        total = torch.randn(layers.weights.shape, generator=random)
        total *= plan.noise_multiplier * bound
        if len(chosen):
            total += layers.clipped_sum(chosen, targets[chosen], plan.clip)
        velocity.mul_(momentum).add_(total, alpha=1 / (rate * examples))
        layers.weights.sub_(velocity, alpha=plan.optimizer.learning_rate)
        average.lerp_(layers.weights, 1 - min(plan.averaging.decay, (1 + done) / (10 + done)))
    layers.weights.copy_(average)


class _Layers:
    """A network whose weights are one vector, layer by layer."""

    def __init__(self, model: nn.Sequential, inputs: Tensor) -> None:
        self._model = model
        self._inputs, self._windows = inputs, None
        if isinstance(model[0], nn.Conv2d):  # what it sees never changes
            self._inputs = inputs.contiguous(memory_format=torch.channels_last)
            self._windows = _windows(inputs, model[0])
        parameters = list(model.parameters())
        self.weights = torch.cat([p.detach().flatten() for p in parameters])
        at = 0
        for p in parameters:
            p.requires_grad_(requires_grad=False)
            p.data = self.weights[at : at + p.numel()].view_as(p)
            at += p.numel()

    def clipped_sum(self, chosen: Tensor, targets: Tensor, clip: ft.Clip) -> Tensor:
        """Of the chosen records' cross-entropy gradients, as one vector."""
        found: list[tuple[nn.Module, Tensor]] = []
        outputs, x = [], self._inputs[chosen]
        for layer in self._model:
            fed, x = x, layer(x)
            if isinstance(layer, nn.Linear | nn.Conv2d):
                if not x.requires_grad:
                    x.requires_grad_()
                fed = fed.detach()
                if isinstance(layer, nn.Conv2d):
                    first = self._windows is not None and not found
                    fed = self._windows[chosen] if first else _windows(fed, layer)
                found.append((layer, fed))
                outputs.append(x)
        loss = functional.cross_entropy(x, targets, reduction="sum")
        slopes = torch.autograd.grad(loss, outputs)
        parts = [_Part(layer, fed, g) for (layer, fed), g in zip(found, slopes, strict=True)]
        norms = torch.stack([part.squared_norms for part in parts]).sum(0).sqrt()
        bound = clip.norm * (1 - CHARGE)  # the trainer sets a share aside for rounding
        if clip.rule == "automatic":
            scales = bound / (norms + clip.gamma)
        else:
            scales = (bound / norms).clamp(max=1)
        return torch.cat([v.flatten() for part in parts for v in part.weighted_sum(scales)])


class _Part:
    """One layer's share of every record's gradient."""

    def __init__(self, layer: nn.Module, fed: Tensor, slope: Tensor) -> None:
        self._layer, self._fed, self._slope = layer, fed, slope
        self._each: Tensor | None = None
        if isinstance(layer, nn.Linear):
            self.squared_norms = slope.square().sum(1) * (fed.square().sum(1) + 1)
            return
        self._slope = slope = slope.permute(0, 2, 3, 1).flatten(1, 2)
        (places, width), outs = fed.shape[1:], slope.shape[2]
        if places * (width + outs) < width * outs:
            self.squared_norms = ((fed @ fed.mT + 1) * (slope @ slope.mT)).sum((1, 2))
        else:
            self._each = slope.mT @ fed
            of_bias = slope.sum(1).square().sum(1)
            self.squared_norms = of_bias + self._each.square().sum((1, 2))

    def weighted_sum(self, scales: Tensor) -> tuple[Tensor, Tensor]:
        """Over records, of the gradients of weight and bias."""
        scaled = self._slope * scales.view(-1, *(1,) * (self._slope.dim() - 1))
        scaled = scaled.flatten(0, -2)
        bias = scaled.sum(0)
        if self._each is not None:
            found = scales @ self._each.flatten(1)
        else:
            found = scaled.T @ self._fed.flatten(0, -2)
        if isinstance(self._layer, nn.Conv2d):  # from (out, height, width, in)
            outs, ins, *kernel = self._layer.weight.shape
            found = found.view(outs, *kernel, ins).permute(0, 3, 1, 2)
        return found, bias


def _windows(fed: Tensor, layer: nn.Conv2d) -> Tensor:
    """What each place of a convolution sees, (records, places, height × width × channels)."""
    (rows, columns), (down, right) = layer.kernel_size, layer.padding
    padded = functional.pad(fed, (right, right, down, down)).permute(0, 2, 3, 1).contiguous()
    seen = padded.unfold(1, rows, 1).unfold(2, columns, 1).permute(0, 1, 2, 4, 5, 3)
    return seen.reshape(len(fed), seen.shape[1] * seen.shape[2], -1)
