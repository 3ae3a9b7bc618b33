"""The sum of clipped gradients of a batch: what DP-SGD adds noise to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from forethought.gradients import clipping, fallback, trees
from forethought.mechanism import real, whole

Loss = Callable[[Any, Any], Tensor]


def clipped_sum(
    model: nn.Module,
    loss: Loss,
    inputs: Any,
    targets: Any,
    clip_norm: float,
    groups: Tensor | None = None,
    *,
    clip: clipping.ClippingRule = clipping.flat,
    group_count: int | None = None,
) -> tuple[dict[str, Tensor], Tensor]:
    """The sum over contributions of their clipped gradients, and the norms before clipping.

    Args:
        model: any module; it is left exactly as it was. Parameters with ``requires_grad=False``
            are skipped.
        loss: ``loss(outputs, targets)`` → one value per example, shape (B,).
        inputs: a tensor (``model(x)``), a tuple (``model(*x)``) or a dict (``model(**x)``), every
            tensor with the examples in dimension 0.
        targets: a tensor, tuple or dict likewise.
        clip_norm: C, the bound on one contribution's L2 norm.
        groups: LongTensor (B,): the group of each example. A group's *mean* gradient is clipped
            as one contribution. None: every example is its own contribution.
        clip: how the norms become factors, see :mod:`forethought.gradients.clipping`.
        group_count: number of groups, for when the last ones may be empty. Default: highest + 1.

    Returns:
        ``(gradients, norms)``: parameter name → sum, float32 (float64 for float64 parameters), in
        the parameter's shape; norms of shape (B,) or (groups,). A contribution with a non-finite
        gradient or norm adds zero, and its norm says so: count ``~isfinite(norms)``. An empty
        batch gives zeros, and so does an empty group.

    Raises:
        ValueError: no trainable parameter, inputs without a common batch dimension, losses of
            another shape than (B,), group numbers out of range. TypeError: groups not integers.
    """
    bound = real("clip_norm", clip_norm, above=0)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trained:
        raise ValueError("the model has no parameter with requires_grad=True: nothing to train")
    inputs, targets = trees.detached(inputs), trees.detached(targets)
    size = trees.batch_size(inputs, targets)
    if groups is not None:
        return _grouped(model, loss, inputs, targets, bound, groups, clip, group_count, trained)
    if not size:
        return _zeros(trained), _no_norms(trained, 0)
    names = tuple(trained)
    rows = fallback.per_example(model, loss, inputs, targets, names)
    table = torch.stack(
        [
            torch.linalg.vector_norm(
                rows[name].flatten(1), dim=1, dtype=trees.sum_dtype(rows[name].dtype)
            )
            for name in names
        ]
    )
    norms = clipping.Norms(names, table)
    scale = clipping.factors(norms, bound, clip)
    total = norms.total
    if not bool(torch.isfinite(total).all()):
        bad = ~torch.isfinite(total)
        for name in names:
            rows[name][bad] = 0
    sums = {
        name: torch.tensordot(row.to(rows[name].dtype), rows[name], dims=1).to(
            trees.sum_dtype(rows[name].dtype)
        )
        for name, row in zip(names, scale, strict=True)
    }
    return sums, total


def _zeros(trained: dict[str, nn.Parameter]) -> dict[str, Tensor]:
    return {
        name: torch.zeros(p.shape, dtype=trees.sum_dtype(p.dtype), device=p.device)
        for name, p in trained.items()
    }


def _no_norms(trained: dict[str, nn.Parameter], count: int) -> Tensor:
    first = next(iter(trained.values()))
    return torch.zeros(count, dtype=trees.sum_dtype(first.dtype), device=first.device)


def _grouped(
    model: nn.Module,
    loss: Loss,
    inputs: Any,
    targets: Any,
    bound: float,
    groups: Tensor,
    clip: clipping.ClippingRule,
    group_count: int | None,
    trained: dict[str, nn.Parameter],
) -> tuple[dict[str, Tensor], Tensor]:
    # Each group is one ordinary backward pass over its own examples: together they cost one pass
    # over the batch, and only one group's gradient is held at a time.
    size = trees.batch_size(inputs, targets)
    if groups.dtype != torch.long or tuple(groups.shape) != (size,):
        raise TypeError(
            f"groups must be a LongTensor of shape ({size},), one group number per example, not "
            f"{groups.dtype} of shape {tuple(groups.shape)}"
        )
    highest = int(groups.max()) if size else -1
    count = highest + 1 if group_count is None else whole("group_count", group_count)
    if size and (int(groups.min()) < 0 or highest >= count):
        raise ValueError(
            f"group numbers must lie in 0 … {count - 1}, not {int(groups.min())} … {highest}"
        )
    names, parameters = tuple(trained), tuple(trained.values())
    sums, norms = _zeros(trained), _no_norms(trained, count)
    for group in range(count):
        members = (groups == group).nonzero().flatten()
        if not members.numel():
            continue
        outputs = trees.call(model, trees.select(inputs, members))
        values = trees.losses(loss(outputs, trees.select(targets, members)), members.numel())
        gradients = torch.autograd.grad(
            values.mean(), parameters, allow_unused=True, materialize_grads=True
        )
        table = torch.stack(
            [
                torch.linalg.vector_norm(g, dtype=trees.sum_dtype(g.dtype)).to(norms)
                for g in gradients
            ]
        ).unsqueeze(1)
        scale = clipping.factors(clipping.Norms(names, table), bound, clip)
        norms[group] = clipping.Norms(names, table).total[0]
        if bool(torch.isfinite(norms[group])):
            for name, gradient, row in zip(names, gradients, scale, strict=True):
                sums[name].add_(gradient.to(sums[name].dtype) * row)
    return sums, norms
