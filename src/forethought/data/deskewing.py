"""Handwriting set upright and in the middle, each image by itself.

A hand slants its letters, and where they sit in the image says nothing. Shearing an image by its
own second moments and moving its centre of mass to the middle takes both out (LeCun et al. 1998,
section III.C, "deslanting"). Nothing is learnt from any record, so it costs no privacy.
"""

from __future__ import annotations

import torch
from torch.nn import functional

MOST_SHEAR = 0.7  # pixels across for one down; a horizontal dash has no slant to speak of
_PART = 5000  # images at a time: bounds memory
_INK = 1e-3  # least ink that is divided by: an empty image stays empty


def deskewed(images: torch.Tensor) -> torch.Tensor:
    """Bright drawings on dark ground, their slant taken out, the centre of mass in the middle.

    Args:
        images: float32, (N, 1, H, W), not negative; 0 is ground.

    Returns:
        float32 of the same shape, interpolated between pixels; ground flows in at the borders.

    Raises:
        ValueError: another number of channels or dimensions.
    """
    if images.ndim != 4 or images.shape[1] != 1:
        raise ValueError(f"deskewing takes images (N, 1, H, W), not shape {tuple(images.shape)}")
    out = torch.empty_like(images)
    for start in range(0, len(images), _PART):
        part = images[start : start + _PART]
        lattice = functional.affine_grid(_upright(part), list(part.shape), align_corners=False)
        out[start : start + _PART] = functional.grid_sample(part, lattice, align_corners=False)
    return out


def _upright(images: torch.Tensor) -> torch.Tensor:
    """Of each image, where a pixel of the result comes from: (N, 2, 3), in halves of a side."""
    _, _, H, W = images.shape
    ink = images[:, 0]
    y, x = torch.arange(H, dtype=ink.dtype), torch.arange(W, dtype=ink.dtype)
    total = ink.sum((1, 2)).clamp_min(_INK)
    middle_y, middle_x = (ink.sum(2) @ y) / total, (ink.sum(1) @ x) / total
    down, across = y - middle_y[:, None], x - middle_x[:, None]
    height = (ink.sum(2) * down**2).sum(1) / total
    slant = torch.einsum("nhw,nh,nw->n", ink, down, across) / total
    shear = (slant / height.clamp_min(1.0)).clamp(-MOST_SHEAR, MOST_SHEAR)
    found = torch.zeros(len(images), 2, 3)
    found[:, 0, 0] = found[:, 1, 1] = 1
    found[:, 0, 1] = shear * H / W
    found[:, 0, 2] = 2 * (middle_x - (W - 1) / 2) / W
    found[:, 1, 2] = 2 * (middle_y - (H - 1) / 2) / H
    # An empty image has its middle nowhere: it stays where it is.
    found[ink.sum((1, 2)) < _INK] = torch.eye(3)[:2]
    return found
