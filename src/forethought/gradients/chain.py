"""A chain of linear layers and activations: nothing to intercept."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MethodType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from forethought.gradients import boundary, trees
from forethought.gradients.lanes import WATCH, loss_in_lanes
from forethought.gradients.sums import (
    ClippingRule,
    Once,
    clip_and_sum,
    clip_and_sum_once,
    clip_and_sum_once_parts,
    flat,
)
from forethought.gradients.terms import Dense, Outer, Term, Unused, wide
from forethought.gradients.trees import Loss

# What is kept between passes of a model: only speed and the comparison of losses depend on it.


@dataclass
class Remembered:
    """The memory between passes of a model on which only speed depends.

    Attributes:
        unshared: what lanes write to is made for each. without: names of rules that failed. asks:
            values reach Python. judged: losses that were compared. probed: (loss, key, blocks).
    """

    unshared: bool = False
    without: frozenset[str] = frozenset()
    asks: bool = False
    judged: list[weakref.ref[Any]] = field(default_factory=list)
    probed: list[tuple[weakref.ref[Any], Any, Any]] = field(default_factory=list)

    def has_judged(self, loss: Any) -> bool:
        """True if the loss was compared with that of a whole batch."""
        self.judged = [known for known in self.judged if known() is not None]
        return any(known() == loss for known in self.judged)

    def judge(self, loss: Any) -> None:
        """It was."""
        self.judged.append(_weak(loss))

    def found(self, loss: Any, key: Any) -> Any:
        """The answer that :meth:`note` kept of the loss under this key; None: nothing."""
        self.probed = [known for known in self.probed if known[0]() is not None]
        for kept, named, value in self.probed:
            if named == key and kept() == loss:
                return value
        return None

    def note(self, loss: Any, key: Any, value: Any) -> None:
        """Keep a value for :meth:`found`."""
        self.probed.append((_weak(loss), key, value))


def _weak(loss: Any) -> weakref.ref[Any]:
    return weakref.WeakMethod(loss) if isinstance(loss, MethodType) else weakref.ref(loss)


_REMEMBERED: WeakKeyDictionary[nn.Module, Remembered] = WeakKeyDictionary()


def memory_of(model: nn.Module) -> Remembered:
    """The memory of the model so far."""
    return _REMEMBERED.setdefault(model, Remembered())


# A chain of linear layers and activations: nothing to intercept.
#
# For a small model the interception costs more than the arithmetic. Here the layers run one after
# the other on the whole batch, their parameters detached, and the gradients at their outputs come
# from one backward pass; from there on the terms are those of the rule for ``F.linear``.
#
# That no example sees another follows from the structure: every layer is one of torch's own, by its
# exact type and its own ``forward``, and works on each row by itself. The loss is one that is known
# to be a sum over rows (:func:`separable`), or it runs in lanes as everywhere else. Whatever is not
# so is left to the general way.


Known = TypeVar("Known", bound=Callable[..., Any])

Slope = Callable[[Tensor, Any], Tensor | None]
_SEPARABLE: dict[Callable[..., Any], Slope | None] = {}


def separable(slope: Slope | None = None) -> Callable[[Known], Known]:
    """Declare that value i of a loss depends on row i of outputs and targets only (a decorator).

    It must hold by the loss's definition, bit for bit: nothing checks it.

    Args:
        slope: the loss's derivative by the outputs, row by row as well, where that is known:
            ``slope(outputs, targets)``, or None for arguments that it does not cover.
    """

    def declare(loss: Known) -> Known:
        _SEPARABLE[loss] = slope
        return loss

    return declare


def declared_separable(loss: Any) -> bool:
    """True if a loss was declared with :func:`separable`."""
    try:
        return loss in _SEPARABLE
    except TypeError:  # not hashable
        return False


def cross_entropy_slope(outputs: Tensor, targets: Any) -> Tensor | None:
    """softmax − 1 at the label, for (B, classes) and (B,); None for labels that are ignored."""
    if outputs.dim() != 2 or targets.dim() != 1 or targets.dtype != torch.int64:
        return None
    try:
        return torch.softmax(outputs, 1).scatter_add_(
            1, targets.unsqueeze(1), outputs.new_full((1, 1), -1.0).expand(len(targets), 1)
        )
    except RuntimeError:
        return None


def _identity(layer: Any, x: Tensor) -> Tensor:
    return x


# Never in place: the value before is that of a layer whose gradient is asked for.
_ROW_BY_ROW: dict[type[nn.Module], Callable[[Any, Tensor], Tensor]] = {
    nn.Identity: _identity,
    nn.Dropout: _identity,  # where it drops nothing
    nn.Flatten: lambda layer, x: x.flatten(layer.start_dim, layer.end_dim),
    nn.ReLU: lambda layer, x: F.relu(x),
    nn.Tanh: lambda layer, x: torch.tanh(x),
    nn.Sigmoid: lambda layer, x: torch.sigmoid(x),
    nn.GELU: lambda layer, x: F.gelu(x, approximate=layer.approximate),
    nn.SiLU: lambda layer, x: F.silu(x),
    nn.Softplus: lambda layer, x: F.softplus(x, layer.beta, layer.threshold),
    nn.ELU: lambda layer, x: F.elu(x, layer.alpha),
    nn.LeakyReLU: lambda layer, x: F.leaky_relu(x, layer.negative_slope),
}
_KINDS: tuple[type[nn.Module], ...] = (nn.Sequential, nn.Linear, *_ROW_BY_ROW)
_FORWARD = {kind: kind.forward for kind in _KINDS}


def uses_of(
    model: nn.Module,
    loss: Loss,
    inputs: Any,
    targets: Any,
    trained: Mapping[str, nn.Parameter],
) -> list[Once] | None:
    """Every trained layer's inputs and output gradients, (B, …, m) and (B, …, n).

    None where the general way must be taken. A layer that the loss does not depend on is left out.
    """
    layers: list[nn.Module] = []
    if not _collect(model, layers) or not _plain(layers, inputs):
        return None
    known = loss in _SEPARABLE or _own_cross_entropy(loss)
    if not known and not memory_of(model).has_judged(loss):
        return None
    names = {id(parameter): name for name, parameter in trained.items()}
    uses: list[tuple[nn.Linear, Tensor, Tensor]] = []
    slope = _SEPARABLE.get(loss) if loss in _SEPARABLE else None
    if slope is None and known and _plain_cross_entropy(loss):
        slope = cross_entropy_slope
    # One layer, and a loss whose derivative is known: nothing to differentiate.
    kinds = [type(layer) for layer in layers]
    alone = slope is not None and kinds[-1] is nn.Linear and kinds.count(nn.Linear) == 1
    watch = WATCH.get()
    if watch is not None:
        watch.begin(len(inputs))
    with torch.set_grad_enabled(not alone):
        x = inputs
        for layer in layers:
            if type(layer) is nn.Linear:
                before, x = x.detach(), _linear(layer, x)
                if id(layer.weight) in names or id(layer.bias) in names:
                    if not (alone or x.requires_grad):
                        x.requires_grad_()
                    uses.append((layer, before, x))
            else:
                x = _ROW_BY_ROW[type(layer)](layer, x)
            if watch is not None:
                watch.see(x)
        points = [output for _, _, output in uses]
        steep = None if slope is None else slope(x.detach(), targets)
        if steep is not None:
            found: tuple[Tensor | None, ...] | None = (
                (steep,) * len(points) if alone else _differentiated(x, points, steep)
            )
        elif known:
            if alone:
                x.requires_grad_()
            with torch.enable_grad():
                values = trees.losses(loss(x, targets), len(inputs))
            if watch is not None:
                watch.see(values)
            found = _differentiated(values, points)
        else:
            found = loss_in_lanes(loss, x, targets, points, trained)
    if found is None:
        return None
    if watch is not None:
        watch.keep()
    return [
        Once(before, gradient, names.get(id(layer.weight)), names.get(id(layer.bias)))
        for (layer, before, _), gradient in zip(uses, found, strict=True)
        if gradient is not None
    ]


def _linear(layer: nn.Linear, x: Tensor) -> Tensor:
    return F.linear(x, layer.weight.detach(), None if layer.bias is None else layer.bias.detach())


def _differentiated(
    values: Tensor, points: list[Tensor], slope: Tensor | None = None
) -> tuple[Tensor | None, ...]:
    if not values.requires_grad:
        return (None,) * len(points)
    slope = torch.ones_like(values) if slope is None else slope
    return torch.autograd.grad(values, points, slope, allow_unused=True)


def clipped(
    uses: list[Once],
    trained: Mapping[str, nn.Parameter],
    size: int,
    clip_norm: float,
    clip: ClippingRule,
    round_size: int | None,
    count: int,
) -> tuple[dict[str, Tensor], Tensor]:
    """The clipped sum and the norms, as :func:`.sums.clip_and_sum` returns them.

    Args:
        size: rows of every use. count: how many of them count, the first ones.
    """
    if clip is flat and _each_once(uses, trained):
        found = clip_and_sum_once(uses, clip_norm, round_size, count)
        if found is not None:
            return {name: found[0][name] for name in trained}, found[1]
    terms = as_terms(uses, trained, size)
    return clip_and_sum(terms, dict(trained), clip_norm, clip, round_size, count)


def clipped_parts(
    uses: list[Once],
    trained: Mapping[str, nn.Parameter],
    sizes: Sequence[int],
    clip_norm: float,
    clip: ClippingRule,
) -> list[tuple[dict[str, Tensor], Tensor]]:
    """:func:`clipped` for each of several parts of a batch, to the bit; none of them is empty."""
    if clip is flat and _each_once(uses, trained):
        found = clip_and_sum_once_parts(uses, clip_norm, sizes)
        if found is not None:
            return [({name: sums[name] for name in trained}, norms) for sums, norms in found]
    parts, start = [], 0
    for size in sizes:
        end = start + size
        own = [Once(u.inputs[start:end], u.gradients[start:end], u.weight, u.bias) for u in uses]
        parts.append(clipped(own, trained, size, clip_norm, clip, None, size))
        start = end
    return parts


def _each_once(uses: Sequence[Once], trained: Mapping[str, nn.Parameter]) -> bool:
    return sum((u.weight is not None) + (u.bias is not None) for u in uses) == len(trained) and all(
        u.inputs.dim() == 2 and u.inputs.dtype == torch.float32 for u in uses
    )


def as_terms(uses: list[Once], trained: Mapping[str, nn.Parameter], size: int) -> dict[str, Term]:
    """The same as terms by parameter, of ``size`` rows."""
    result: dict[str, Term] = {}
    for use in uses:
        rows = use.gradients.reshape(size, -1, use.gradients.shape[-1])
        if use.weight is not None:
            before = use.inputs.reshape(size, -1, use.inputs.shape[-1])
            result[use.weight] = Outer([(rows, before)]).settled()
        if use.bias is not None:
            result[use.bias] = Dense(rows[:, 0] if rows.shape[1] == 1 else wide(rows).sum(1))
    return {name: result.get(name) or Unused(size, p) for name, p in trained.items()}


def _collect(module: nn.Module, layers: list[nn.Module]) -> bool:
    """Append the layers in order; False for anything but a plain chain."""
    kind = type(module)
    known = _FORWARD.get(kind)
    if known is None or known is not kind.forward or _altered(module):
        return False
    if isinstance(module, nn.Sequential):  # children() would leave out a layer's second use
        return all(_collect(part, layers) for part in module)
    if isinstance(module, nn.Dropout) and module.training and module.p:
        return False
    if isinstance(module, nn.Flatten) and module.start_dim < 1:
        return False
    layers.append(module)
    return True


def _altered(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__
    )


def _plain(layers: list[nn.Module], inputs: Any) -> bool:
    """True if only torch's own arithmetic on plain tensors would run."""
    if boundary.global_hooks():
        return False
    if type(inputs) is not Tensor or inputs.dim() < 2 or inputs.layout is not torch.strided:
        return False
    kind, device = inputs.dtype, inputs.device
    seen = set()
    for layer in layers:
        if type(layer) is not nn.Linear:
            continue
        for p in (layer.weight, layer.bias):
            if p is None:
                continue
            if (
                type(p) is not nn.Parameter
                or type(p.data) is not Tensor
                or p.dtype != kind
                or p.device != device
                or p._backward_hooks
                or getattr(p, "_post_accumulate_grad_hooks", None)
                or id(p) in seen  # used twice
            ):
                return False
            seen.add(id(p))
    return bool(seen) and not torch.is_autocast_enabled(device.type) and not boundary.interrupted()


def _own_cross_entropy(loss: Any) -> bool:
    return (
        type(loss) is nn.CrossEntropyLoss
        and loss.reduction == "none"
        and type(loss).forward is _CROSS_ENTROPY
        and not _altered(loss)
    )


def _plain_cross_entropy(loss: Any) -> bool:
    return (
        _own_cross_entropy(loss)
        and loss.weight is None
        and loss.label_smoothing == 0
        and loss.ignore_index < 0
    )


_CROSS_ENTROPY = nn.CrossEntropyLoss.forward
