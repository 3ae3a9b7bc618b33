"""Scaled dot-product attention on the whole batch: vmap would leave torch's fused kernels."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from forethought.gradients.boundary import is_lane, lane, outside, rows, safe_softmax
from forethought.gradients.lanes import Draws, Lanes
from forethought.gradients.terms import register_physical

_OPTIONS = ("attn_mask", "dropout_p", "is_causal")


def _attention(
    lanes: Lanes, func: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
) -> Any:
    given = dict(zip(_OPTIONS, args, strict=False)) | kwargs
    mask, rank, batch = given.pop("attn_mask", None), query.dim(), query.shape[0]
    draws = lanes.draws if given.get("dropout_p") else None
    size = lanes.size
    if rank < 3 or any(t.dim() != rank or t.shape[0] != batch for t in (key, value)):
        return NotImplemented
    if mask is not None:
        if not is_lane(mask) and mask.requires_grad:
            return NotImplemented
        if mask.dim() == rank and mask.shape[0] not in (1, batch):
            return NotImplemented
    if draws is not None and (given.get("is_causal") or given.get("enable_gqa")):
        return NotImplemented
    with outside():
        whole = [_side_by_side(t, size) for t in (query, key, value)]
        if mask is not None:
            mask = _mask(mask, rank, size, batch)
        if draws is None:
            out = func(*whole, attn_mask=mask, **given)
        else:
            out = _dropped(draws, size, whole, mask, given)
        out = out.unflatten(0, (size, batch))
    return lane(out, 0, lanes.level)


def _dropped(
    draws: Draws, size: int, whole: list[Tensor], mask: Tensor | None, given: dict[str, Any]
) -> Tensor:
    # torch's own way with dropout, with the mask at hand.
    query, key, value = whole
    scale = given.get("scale") or query.shape[-1] ** -0.5
    scores = (query * scale) @ key.mT
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    weights = safe_softmax(scores)
    shape = (weights.shape[0] // size, *weights.shape[1:])
    kept = draws.mask(shape, given["dropout_p"], weights)
    return (weights * kept.view(weights.shape)) @ value


def _side_by_side(value: Tensor, size: int) -> Tensor:
    whole = rows(value) if is_lane(value) else value.expand(size, *value.shape)
    return whole.flatten(0, 1)


def _mask(mask: Tensor, rank: int, size: int, batch: int) -> Tensor:
    if not is_lane(mask) and (mask.dim() < rank or mask.shape[0] == 1):
        return mask
    whole = rows(mask) if is_lane(mask) else mask.expand(size, *mask.shape)
    whole = whole.reshape(size, *(1,) * (rank - mask.dim()), *mask.shape)
    return whole.expand(size, batch, *whole.shape[2:]).flatten(0, 1)


register_physical(_attention, F.scaled_dot_product_attention)
