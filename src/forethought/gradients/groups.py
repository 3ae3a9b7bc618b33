"""Clipping the mean gradient of each group as one contribution (batch and mixed clipping)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from forethought.gradients import clipping, trees
from forethought.mechanism import whole

Loss = Callable[[Any, Any], Tensor]


def clipped_group_sum(
    model: nn.Module,
    loss: Loss,
    inputs: Any,
    targets: Any,
    bound: float,
    groups: Tensor,
    clip: clipping.ClippingRule,
    group_count: int | None,
    trained: Mapping[str, nn.Parameter],
) -> tuple[dict[str, Tensor], Tensor]:
    """The sum of clipped group means and their norms, shape (groups,).

    Each group is one ordinary backward pass over its own examples: together they cost one pass
    over the batch, no rule is needed, and only one group's gradient is held at a time.
    """
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
    names = tuple(trained)
    sums = {name: trees.zeros_for(p) for name, p in trained.items()}
    norms = trees.zeros_for(next(iter(trained.values())), count)
    for group in range(count):
        members = (groups == group).nonzero().flatten()
        if not members.numel():
            continue
        gradients = _mean_gradient(
            model, loss, trees.select(inputs, members), trees.select(targets, members), trained
        )
        # In double precision: one group's norm has no second chance of being exact.
        table = torch.stack(
            [torch.linalg.vector_norm(g, dtype=torch.float64) for g in gradients]
        ).unsqueeze(1)
        known = clipping.Norms(names, table)
        norms[group] = known.total[0]
        if bool(torch.isfinite(norms[group])):
            for name, gradient, factor in zip(
                names, gradients, clipping.factors(known, bound, clip), strict=True
            ):
                sums[name].add_(gradient.to(sums[name].dtype) * factor.to(sums[name].dtype))
    return sums, norms


def _mean_gradient(
    model: nn.Module, loss: Loss, inputs: Any, targets: Any, trained: Mapping[str, nn.Parameter]
) -> list[Tensor]:
    # Through .grad, put back afterwards: reentrant checkpointing allows nothing else.
    kept = {name: parameter.grad for name, parameter in trained.items()}
    try:
        for parameter in trained.values():
            parameter.grad = None
        with torch.enable_grad():
            values = loss(trees.call(model, inputs), targets)
            mean = trees.losses(values, trees.batch_size(inputs, targets)).mean()
            if mean.requires_grad:
                mean.backward()  # type: ignore[no-untyped-call]
        return [
            torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for p in trained.values()
        ]
    finally:
        for name, parameter in trained.items():
            parameter.grad = kept[name]
