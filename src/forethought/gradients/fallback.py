"""Per-example gradients of any parameters, slowly: torch.func's vmap, then one at a time."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils._pytree import tree_map

from forethought.gradients import trees

Loss = Callable[[Any, Any], Tensor]


class SlowGradientsWarning(UserWarning):
    """Gradients are exact but slow: a part of the model has neither a rule nor a vmap."""


def by_vmap(
    model: nn.Module, loss: Loss, inputs: Any, targets: Any, names: tuple[str, ...]
) -> dict[str, Tensor]:
    """Per-example gradients by torch.func: name → shape (B, *parameter shape).

    Raises:
        RuntimeError or ValueError: whatever torch.func cannot do with this model.
    """
    everything = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    held = {name: value.detach() for name, value in everything.items()}
    wanted = {name: held.pop(name) for name in names}
    judged = _Judged(model, loss)

    def one(parameters: Mapping[str, Tensor], x: Any, y: Any) -> Tensor:
        x, y = (tree_map(_single, tree) for tree in (x, y))
        state = {**held, **parameters}
        args, kwargs = ((), x) if isinstance(x, dict) else (x, {})
        if not isinstance(args, tuple | list):
            args = (args,)
        state = {f"model.{name}": value for name, value in state.items()}
        return trees.losses(functional_call(judged, state, (tuple(args), kwargs, y)), 1).sum()

    dims = tuple(
        tree_map(lambda leaf: 0 if isinstance(leaf, Tensor) else None, tree)
        for tree in (inputs, targets)
    )
    gradients: dict[str, Tensor] = vmap(grad(one), in_dims=(None, *dims), randomness="different")(
        wanted, inputs, targets
    )
    return gradients


class _Judged(nn.Module):
    """A model with its loss: a loss that reads the model's parameters must see the traced ones."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, args: Any, kwargs: Any, targets: Any) -> Tensor:
        return self.loss(self.model(*args, **kwargs), targets)


def _single(leaf: Any) -> Any:
    return leaf.unsqueeze(0) if isinstance(leaf, Tensor) else leaf


def each(
    model: nn.Module, loss: Loss, inputs: Any, targets: Any, names: tuple[str, ...]
) -> Iterator[dict[str, Tensor]]:
    """The gradient of one example after another, by ordinary backward passes.

    ``.grad`` of every parameter is left as it was.
    """
    parameters = dict(model.named_parameters())
    for i in range(trees.batch_size(inputs, targets)):
        index = torch.tensor([i])
        kept = {name: parameter.grad for name, parameter in parameters.items()}
        try:
            for parameter in parameters.values():
                parameter.grad = None
            outputs = trees.call(model, trees.select(inputs, index))
            value = trees.losses(loss(outputs, trees.select(targets, index)), 1).sum()
            if value.requires_grad:
                # backward, not autograd.grad: reentrant checkpointing allows nothing else.
                value.backward()  # type: ignore[no-untyped-call]
            found = {name: parameters[name].grad for name in names}
        finally:
            for name, parameter in parameters.items():
                parameter.grad = kept[name]
        yield {
            name: torch.zeros_like(parameters[name]) if g is None else g.to_dense()
            for name, g in found.items()
        }


def one_at_a_time(
    model: nn.Module, loss: Loss, inputs: Any, targets: Any, names: tuple[str, ...]
) -> dict[str, Tensor]:
    """Per-example gradients by one backward pass an example, shapes as :func:`by_vmap`."""
    rows = list(each(model, loss, inputs, targets, names))
    return {name: torch.stack([row[name].detach() for row in rows]) for name in names}


def per_example(
    model: nn.Module, loss: Loss, inputs: Any, targets: Any, names: tuple[str, ...]
) -> dict[str, Tensor]:
    """Per-example gradients by vmap, or one at a time with a warning where vmap cannot."""
    if not names:
        return {}
    try:
        return by_vmap(model, loss, inputs, targets, names)
    except (RuntimeError, ValueError, NotImplementedError, TypeError) as error:
        size = trees.batch_size(inputs, targets)
        where = ", ".join(
            sorted({name.rpartition(".")[0] or type(model).__name__ for name in names})
        )
        reason = str(error).strip().splitlines()[0][:200] if str(error) else type(error).__name__
        warnings.warn(
            f"gradients of {where} are computed one example at a time, {size} passes a batch "
            f"instead of one: no rule covers them and vmap cannot ({reason})",
            SlowGradientsWarning,
            stacklevel=4,
        )
        return one_at_a_time(model, loss, inputs, targets, names)
