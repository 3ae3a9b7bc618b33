"""Cross entropy on the whole batch: vmap takes it apart in Python."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional as F

from forethought.gradients.boundary import is_lane, lane, outside, rows
from forethought.gradients.lanes import Lanes
from forethought.gradients.terms import register_physical

_OPTIONS = ("weight", "size_average", "ignore_index", "reduce", "reduction", "label_smoothing")


def _cross_entropy(
    lanes: Lanes, func: Any, input: Tensor, target: Tensor, *args: Any, **kwargs: Any
) -> Any:
    given = dict(zip(_OPTIONS, args, strict=False)) | kwargs
    if any(given.get(name) is not None for name in ("weight", "size_average", "reduce")):
        return NotImplemented
    labels = not target.is_floating_point()
    if not is_lane(input) or not is_lane(target) or input.dim() != target.dim() + labels:
        return NotImplemented
    reduction, ignored = given.get("reduction", "mean"), given.get("ignore_index", -100)
    batched = input.dim() > 1
    with outside():
        logits, wanted = rows(input), rows(target)
        if batched:  # (lanes, batch, classes, …)
            batch = logits.shape[1]
            logits, wanted = logits.flatten(0, 1), wanted.flatten(0, 1)
        smoothing = given.get("label_smoothing", 0.0)
        values = func(
            logits, wanted, ignore_index=ignored, reduction="none", label_smoothing=smoothing
        )
        if batched:
            values = values.unflatten(0, (lanes.size, batch))
        if reduction != "none" and batched:
            values = values.flatten(1).sum(1)
            if reduction == "mean":
                counted = (wanted != ignored).view(lanes.size, -1).sum(1) if labels else batch
                values = values / counted
    return lane(values, 0, lanes.level)


register_physical(_cross_entropy, F.cross_entropy)
