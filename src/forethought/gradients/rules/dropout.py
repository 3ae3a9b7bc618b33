"""Dropout on the whole batch, which draws what an ordinary pass would."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional as F

from forethought.gradients.boundary import lane, outside, physical
from forethought.gradients.lanes import Lanes
from forethought.gradients.registry import register_physical


def _dropout(lanes: Lanes, func: Any, input: Tensor, *args: Any, **kwargs: Any) -> Any:
    given = dict(zip(("p", "training", "inplace"), args, strict=False)) | kwargs
    if given.get("inplace"):
        return NotImplemented
    whole, dim = physical(input)
    with outside():
        if lanes.draws is None:
            dropped = func(whole, **given)
        else:
            dropped = lanes.draws.narrowed(func(lanes.draws.widened(whole, dim), **given), dim)
    return lane(dropped, dim, lanes.level)


register_physical(_dropout, F.dropout)
