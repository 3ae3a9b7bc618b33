"""Nested inputs and targets (tensors in tuples, lists and dicts) with the batch in front."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

Loss = Callable[[Any, Any], Tensor]


def tensors(tree: Any) -> Iterator[Tensor]:
    """Every tensor in a nested tuple, list or dict, depth first."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, Mapping):
        for value in tree.values():
            yield from tensors(value)
    elif isinstance(tree, tuple | list):
        for value in tree:
            yield from tensors(value)


def select(tree: Any, index: Tensor) -> Any:
    """The examples ``index`` (LongTensor) of every tensor in the tree; all else is kept."""
    if isinstance(tree, Tensor):
        return tree.detach().index_select(0, index.to(tree.device))
    return _rebuild(tree, lambda leaf: select(leaf, index))


def detached(tree: Any) -> Any:
    """The same values without their autograd history."""
    if isinstance(tree, Tensor):
        return tree.detach()
    return _rebuild(tree, detached)


def mapped(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The tree with every tensor changed."""
    if isinstance(tree, Tensor):
        return change(tree)
    return _rebuild(tree, lambda leaf: mapped(leaf, change))


def _rebuild(tree: Any, change: Any) -> Any:
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(change(value) for value in tree))
    if isinstance(tree, tuple | list):
        return type(tree)([change(value) for value in tree])
    if isinstance(tree, Mapping):
        return {key: change(value) for key, value in tree.items()}
    return tree


def batch_size(inputs: Any, targets: Any) -> int:
    """The number of examples: the size of dimension 0, which all tensors must share.

    Raises:
        TypeError: numbers or arrays among the tensors, which every example would see.
        ValueError: no tensor at all, a tensor without dimensions, or sizes that disagree.
    """
    for tree in (inputs, targets):
        _refuse_shared(tree)
    shapes = [tuple(leaf.shape) for leaf in (*tensors(inputs), *tensors(targets))]
    if not shapes:
        raise ValueError("inputs and targets hold no tensor, so the batch has no size")
    sizes = {shape[0] if shape else None for shape in shapes}
    if len(sizes) > 1 or None in sizes:
        raise ValueError(
            f"inputs and targets must all have the examples in dimension 0, but the shapes are "
            f"{', '.join(map(str, shapes))}; pass values shared by all examples through the model "
            "or the loss instead"
        )
    size = sizes.pop()
    assert size is not None  # narrowed above
    return size


def _refuse_shared(tree: Any) -> None:
    if isinstance(tree, Mapping):
        tree = list(tree.values())
    if isinstance(tree, tuple | list):
        for value in tree:
            _refuse_shared(value)
    elif not (tree is None or isinstance(tree, Tensor | bool | str)):
        raise TypeError(
            f"inputs and targets hold a {type(tree).__name__}, which every example would see: give "
            "a tensor with one row an example, or put what all share into the model or the loss"
        )


def call(model: nn.Module, inputs: Any) -> Any:
    """``model(x)``, ``model(*tuple)`` or ``model(**dict)``, after the kind of ``inputs``."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, tuple | list):
        return model(*inputs)
    return model(inputs)


def losses(values: Any, batch: int) -> Tensor:
    """The loss's values, checked: one per example.

    Raises:
        ValueError: not a tensor of shape (batch,).
    """
    if not isinstance(values, Tensor) or tuple(values.shape) != (batch,):
        got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(
            f"loss(outputs, targets) must return one value per example, shape ({batch},), "
            f"not {got}; with torch losses use reduction='none' and take the mean over each "
            "example's own values"
        )
    return values


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """The precision of norms and sums: float64 stays, everything else becomes float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def zeros_for(parameter: Tensor, *shape: int) -> Tensor:
    """Zeros in the precision of sums, on the parameter's device; its shape unless one is given."""
    size = shape or parameter.shape
    return torch.zeros(size, dtype=sum_dtype(parameter.dtype), device=parameter.device)
