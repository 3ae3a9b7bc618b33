"""A model that is batched in a form only its owner knows: an assumption, checked at every step.

Such a model sees all examples at once, outside the lanes. That the examples stay apart in it is
the owner's word; each example's gradient is that of its own loss. Every step then computes one
random example alone and stops on a difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from forethought.gradients import trees
from forethought.gradients.derived import vjp_rows
from forethought.gradients.ghost import wide
from forethought.gradients.state import State, changes_itself
from forethought.gradients.terms import Dense, Term
from forethought.gradients.trees import Loss
from forethought.gradients.watching import WATCH
from forethought.turns import turns

Dims = int | tuple["Dims", ...] | Mapping[str, "Dims"]


@dataclass(frozen=True)
class BatchDims:
    """Where a model has its examples, as declared by its owner.

    Attributes:
        inputs: the dimension of the examples in every input, one number for all, or a tuple or
            dict like the inputs. outputs: likewise in what the model returns. Targets always have
            the examples in dimension 0, and the loss sees outputs with the examples in front.
    """

    inputs: Dims = 0
    outputs: Dims = 0

    @property
    def assumption(self) -> str:
        """What a statement has to say of it."""
        return (
            "as declared by the model's owner, examples do not affect each other inside the model "
            f"(batch dimensions: inputs {self.inputs}, outputs {self.outputs}); one random example "
            "of every step was recomputed alone"
        )


def _moved(tree: Any, dims: Dims, source: bool) -> Any:
    """The tree with the examples in front (``source``: where they are now) or put where they go."""
    if isinstance(tree, Tensor):
        if not isinstance(dims, int):
            raise ValueError(f"batch_dims gives {dims!r} for one tensor; give one number")
        return tree.movedim(dims, 0) if source else tree.movedim(0, dims)
    if isinstance(tree, Mapping):
        each = {key: dims[key] if isinstance(dims, Mapping) else dims for key in tree}
        return {key: _moved(value, each[key], source) for key, value in tree.items()}
    if isinstance(tree, tuple | list):
        all_dims = dims if isinstance(dims, tuple | list) else (dims,) * len(tree)
        return type(tree)(_moved(v, d, source) for v, d in zip(tree, all_dims, strict=True))
    return tree


def front(inputs: Any, dims: BatchDims) -> Any:
    """The inputs with the examples in dimension 0."""
    return _moved(inputs, dims.inputs, True)


def placed(inputs: Any, dims: BatchDims | None) -> Any:
    """The inverse of :func:`front`: inputs as the model takes them; None leaves them."""
    return inputs if dims is None else _moved(inputs, dims.inputs, False)


def outputs_in_front(outputs: Any, dims: BatchDims | None) -> Any:
    """What the model returned, with the examples in dimension 0; None leaves it."""
    return outputs if dims is None else _moved(outputs, dims.outputs, True)


@turns
def contributions(
    model: nn.Module,
    loss: Loss,
    inputs: Any,
    targets: Any,
    trained: Mapping[str, nn.Parameter],
    dims: BatchDims,
) -> dict[str, Term]:
    """Every trained parameter's gradients, one an example.

    Args:
        inputs: with the examples in front (:func:`front`).

    Raises:
        ValueError: the model changes itself, or its loss has another shape than (B,).
        RuntimeError: an example alone has another gradient than in its batch.
    """
    size = trees.batch_size(inputs, targets)
    leaves = list(trained.values())
    state = State(model.named_modules())
    before = torch.get_rng_state()
    try:
        with torch.enable_grad():
            values = _losses(model, loss, inputs, targets, dims, size)
            watch = WATCH.get()
            if watch is not None:
                watch.begin(size)
                watch.see(values)
                watch.keep()
            rows = vjp_rows([values], leaves, [torch.eye(size).to(values)], size)
            drawn = not torch.equal(torch.get_rng_state(), before)
            changed = [*state.changes(), *state.parameters_changed()]
            state.restore()
            which = int(torch.randint(size, (), generator=_CHOICE))
            index = torch.tensor([which])
            one = _losses(
                model, loss, trees.select(inputs, index), trees.select(targets, index), dims, 1
            )
            alone = torch.autograd.grad(one.sum(), leaves, allow_unused=True)
    finally:
        state.restore()
    if changed:
        raise ValueError(str(changes_itself(changed, "is another after a pass")))
    if drawn:
        raise ValueError(
            "a model with batch_dims= must not draw random numbers, since an example alone is "
            "compared with the example in its batch: set dropout to 0"
        )
    _compare([None if row is None else row[which] for row in rows], alone, which)
    return {
        name: Dense(
            wide(row) if row is not None else trees.zeros_for(parameter, size, *parameter.shape)
        )
        for (name, parameter), row in zip(trained.items(), rows, strict=True)
    }


_CHOICE = torch.Generator()
_CHOICE.seed()


def _losses(
    model: nn.Module, loss: Loss, inputs: Any, targets: Any, dims: BatchDims, size: int
) -> Tensor:
    outputs = trees.call(model, _moved(inputs, dims.inputs, False))
    if isinstance(outputs, Tensor | Mapping | tuple | list):
        outputs = _moved(outputs, dims.outputs, True)
    elif dims.outputs != 0:
        leaves, spec = tree_flatten(outputs)
        outputs = tree_unflatten([_moved(leaf, dims.outputs, True) for leaf in leaves], spec)
    return trees.losses(loss(outputs, targets), size)


def _compare(together: list[Tensor | None], alone: tuple[Tensor | None, ...], which: int) -> None:
    pairs = [
        (torch.zeros(()) if a is None else a, torch.zeros(()) if b is None else b)
        for a, b in zip(together, alone, strict=True)
    ]
    squares = sum(float((a.double() - b.double()).square().sum()) for a, b in pairs)
    scale = sum(float(b.double().square().sum()) for _, b in pairs)
    width = max((torch.finfo(b.dtype).eps for _, b in pairs), default=1e-7)
    if not squares <= (1e4 * width) ** 2 * scale and squares > 0:
        raise RuntimeError(
            f"example {which} alone has another gradient than in its batch (off by "
            f"{(squares / max(scale, 1e-300)) ** 0.5:.1e} of its norm): the model mixes examples, "
            "so what batch_dims= declares is not true of it"
        )
