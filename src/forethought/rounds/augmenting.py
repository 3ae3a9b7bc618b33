"""Altered copies of a batch's images, drawn by the round's own random numbers.

Every record of a batch has one 64-bit number of the run's stream, drawn for the whole batch before
it is dealt to processes and pieces; what happens to its copies is a function of that number. So a
copy is the same whatever else is in the batch, however many processes compute it, and when a run
goes on. Each copy is made of its own image alone, by indexing and, for crops, by torch's
``grid_sample``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from forethought.gradients import BatchDims
from forethought.values.contributions import Augmentation

Draws = NDArray[np.uint64]

# Numbers that a copy of an image may need: one each for mirror and flip, two for a shift, three for
# a crop, in this order whatever kinds are asked for.
_NUMBERS = 8


def augmented(
    inputs: Any, targets: Any, draws: Draws, how: Augmentation, rows: bool = False
) -> tuple[Tensor, Any]:
    """``how.copies`` altered copies of every record, one record's after the other.

    Args:
        inputs: images (B, channels, height, width); of persons (B, rows, channels, …), where each
            row is altered by itself. targets: tensors with the records in front.
        draws: one number of the round's stream for each record, (B,).
        rows: the records are persons.

    Returns:
        Inputs and targets with B · copies records.

    Raises:
        ValueError: inputs that are no images.
    """
    require_images(inputs, how, rows)
    size, each = len(inputs), inputs.shape[1] if rows else 1
    copies = inputs.repeat_interleave(how.copies, 0)
    images = copies.flatten(0, 1) if rows else copies
    chance = torch.from_numpy(uniform(draws, how.copies * each)).to(images.device)
    altered = _moved(images, chance, how)
    if "crop" in how.kinds:
        altered = _cropped(altered, chance[:, 4:7].to(images.dtype), how.least)
    repeated = torch.utils._pytree.tree_map(
        lambda leaf: leaf.repeat_interleave(how.copies, 0), targets
    )
    return altered.view(size * how.copies, *inputs.shape[1:]), repeated


def require_images(
    inputs: Any, how: Augmentation, rows: bool = False, dims: BatchDims | None = None
) -> None:
    """Refuse records that cannot be altered as images.

    Raises:
        ValueError: not one floating-point tensor of images with the channels first, or images
            smaller than a shift, or a model whose owner declares another form of batch.
    """
    if dims is not None:
        raise ValueError("augment= goes with batches of images: drop batch_dims=, or augment=")
    if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
        kind = str(inputs.dtype) if isinstance(inputs, Tensor) else type(inputs).__name__
        raise ValueError(f"augment= alters images, one floating-point tensor, not {kind}: drop it")
    shape = tuple(inputs.shape[2:] if rows else inputs.shape[1:])
    if len(shape) != 3 or min(shape[1:]) < 2:
        last = len(shape) == 3 and shape[-1] < 2
        hint = "put the channels first" if last else "drop it, or reshape the inputs"
        raise ValueError(
            f"augment= alters images of shape (channels, height, width), not {shape}: {hint}"
        )
    if shape[-1] <= 4 < shape[0]:
        raise ValueError(
            f"images of shape {shape} look as if their channels came last: augment= needs "
            "(channels, height, width)"
        )
    if "shift" in how.kinds and _farthest(how, *shape[1:]) >= min(shape[1:]):
        raise ValueError(
            f"augment= cannot shift images of {shape[1]} × {shape[2]} by {how.pixels} pixels: give "
            "pixels below the shorter side"
        )


def _farthest(how: Augmentation, height: int, width: int) -> int:
    return max(1, min(height, width) // 8) if how.pixels is None else how.pixels


def uniform(draws: Draws, each: int) -> NDArray[np.float64]:
    """Numbers in [0, 1), shape (records · each, _NUMBERS): SplitMix64 (Steele et al. 2014)."""
    steps = np.arange(1, each * _NUMBERS + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    state = draws[:, None] + steps
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    state ^= state >> np.uint64(31)
    numbers: NDArray[np.float64] = (state >> np.uint64(11)) * 2.0**-53
    return numbers.reshape(-1, _NUMBERS)


def _moved(images: Tensor, chance: Tensor, how: Augmentation) -> Tensor:
    """Mirrored, flipped and shifted: every pixel is one of the image's own."""
    height, width = images.shape[-2:]
    far = _farthest(how, height, width) if "shift" in how.kinds else 0
    down = _along(height, chance[:, 2], chance[:, 1], far, "flip" in how.kinds)
    across = _along(width, chance[:, 3], chance[:, 0], far, "mirror" in how.kinds)
    which = torch.arange(len(images), device=images.device)
    picked = images.movedim(1, -1)[which[:, None, None], down[:, :, None], across[:, None, :]]
    return picked.movedim(-1, 1).contiguous()


def _along(side: int, moved: Tensor, turned: Tensor, far: int, turns: bool) -> Tensor:
    """From which pixel of its image each pixel along one side comes, shape (images, side)."""
    offset = (moved * (2 * far + 1)).long() - far
    place = torch.arange(side, device=moved.device) + offset[:, None]
    place = torch.where(place < 0, -1 - place, place)  # reflected at the edge, which is repeated
    place = torch.where(place >= side, 2 * side - 1 - place, place)
    return torch.where((turned < 0.5)[:, None] & turns, side - 1 - place, place)


def _cropped(images: Tensor, chance: Tensor, least: float) -> Tensor:
    """A window with a share of both sides, from ``least`` to all, enlarged bilinearly."""
    share = least + (1 - least) * chance[:, 0]
    axes = []
    for side, place in zip(images.shape[-2:], (chance[:, 1], chance[:, 2]), strict=True):
        middle = (2 * place - 1) * (1 - share)
        # grid_sample's own coordinates: from −1 to 1, edge to edge.
        at = (2 * torch.arange(side, device=images.device, dtype=images.dtype) + 1) / side - 1
        axes.append(middle[:, None] + share[:, None] * at)
    down, across = axes
    shape = (len(images), *images.shape[-2:])
    grid = torch.stack((across[:, None, :].expand(shape), down[:, :, None].expand(shape)), -1)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)
