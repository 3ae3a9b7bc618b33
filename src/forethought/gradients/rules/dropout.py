"""Dropout on the whole batch, which draws what an ordinary pass would."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional as F

from forethought.gradients.boundary import lane, outside, physical, rows
from forethought.gradients.lanes import Lanes
from forethought.gradients.terms import register_physical


def _dropout(lanes: Lanes, func: Any, input: Tensor, *args: Any, **kwargs: Any) -> Any:
    given = dict(zip(("p", "training", "inplace"), args, strict=False)) | kwargs
    if given.get("inplace"):
        return NotImplemented
    chance = given.get("p", 0.5)
    if lanes.draws is None or not given.get("training", True) or not 0 < chance <= 1:
        whole, dim = physical(input)
        with outside():
            return lane(func(whole, **given), dim, lanes.level)
    with outside():
        whole = rows(input)
        dropped = whole * lanes.draws.mask(tuple(whole.shape[1:]), chance, whole)
    return lane(dropped, 0, lanes.level)


register_physical(_dropout, F.dropout)
