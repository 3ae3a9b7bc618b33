"""Patch features of images: fixed filters learnt from synthetic shapes, not from photographs.

Every patch of 6 × 6 pixels is normalised in contrast and multiplied with 512 filters. The part of a
response above a threshold, of either sign, is pooled over a grid of 4 × 4 overlapping windows, for
the image and its mirror image together (after Coates and Ng 2012). Then follow square roots, a
standardisation of each image separately, and a decorrelation by constants. Filters and constants
come from dead-leaves images only (`tools/learners` in the repository), so that a private linear
model on these features spends its whole budget on one layer.

**The same bits everywhere.** Every sum is of whole numbers that float32 or float64 holds exactly,
so the order of terms does not matter, and neither do processor, threads and library. Between the
sums there is one correctly rounded operation at a time. The features have eight significant bits,
which bfloat16 holds exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from forethought.gradients.boundary import turns

PATCH, FILTERS, GRID = 6, 512, 4
LEAST, MOST = 12, 96  # pixels a side; other sizes would need other windows
CHANNELS = 2 * FILTERS  # each filter and its negative
_CONTRAST = 10.0  # added to the variance of pixels from 0 to 255: flat patches stay flat
_STEP = 32  # a normalised patch is in units of 1/32 of its standard deviation, at most ±127
_UNIT = 64  # a response is in units of 1/64
_THRESHOLD = 0.5
_LARGEST = 4095.0  # limit of a response in these units: 2 · 4095 · WEIGHT² is below 2²⁴
WEIGHT = 44  # upper bound of the sum of a window's pooling weights
_ROOTS, _STANDARD, _FINE = 2.0**12, 2.0**8, 2.0**10  # units to 1, in the stages after pooling


@dataclass(frozen=True)
class FilterConstants:
    """The constants learnt from synthetic images, in whole numbers.

    Args:
        filters: int8, (512, channels · 36): filter k counts in 2^−exponents[k].
        exponents: int8, (512,).
        means: int16, (1024,), in 1/256: mean of each channel of a standardised image.
        matrix: int16, (1024, 1024), in 2^−12: decorrelates the channels.
    """

    filters: NDArray[np.int8]
    exponents: NDArray[np.int8]
    means: NDArray[np.int16]
    matrix: NDArray[np.int16]


def bundled(name: str) -> dict[str, NDArray[Any]]:
    """The arrays of a file in the package."""
    file = files("forethought.data") / f"{name}.npz"
    with file.open("rb") as opened, np.load(opened, allow_pickle=False) as arrays:
        return dict(arrays)


@lru_cache(maxsize=2)
def constants(channels: int) -> FilterConstants:
    """The bundled constants for grey (1) or colour (3) images."""
    return FilterConstants(**bundled(f"patches_{channels}"))


def patch_features(images: torch.Tensor, *, chunk: int = 8) -> torch.Tensor:
    """Patch features of every image, computed separately.

    Args:
        images: float32, (N, 1 or 3, H, W) in [0, 1], 12 to 96 pixels a side; values are rounded
            to 1/255.
        chunk: images at a time. It bounds memory and changes no bit of the result.

    Returns:
        float32, (N, 1024, 4, 4), each image of norm 1 before truncation to eight bits, which makes
        it slightly smaller.

    Raises:
        ValueError: another shape.
    """
    if not suits(tuple(images.shape)):
        raise ValueError(
            f"patch features take images (N, 1 or 3, H, W) of {LEAST} to {MOST} pixels a side, "
            f"not shape {tuple(images.shape)}: resize them first"
        )
    known = constants(images.shape[1])
    out = torch.empty(len(images), CHANNELS, GRID, GRID)
    with exact_products():
        for start in range(0, len(images), chunk):
            roots = pooled_roots(images[start : start + chunk], known.filters, known.exponents)
            out[start : start + chunk] = _finished(standardised(roots), known)
    return out


def suits(shape: tuple[int, ...]) -> bool:
    """True if images of this shape, (N, channels, H, W), have patch features."""
    images = len(shape) == 4 and shape[1] in (1, 3)
    return images and min(shape[2:]) >= LEAST and max(shape[2:]) <= MOST


@contextmanager
def exact_products() -> Iterator[None]:
    """Compute products in full float32 precision, even if the caller allowed less for speed."""
    with turns, torch.no_grad():
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)


def normalised_patches(images: torch.Tensor) -> torch.Tensor:
    """All patches, each with mean 0 and deviation about 1, in units of 1/32, at most ±127.

    Returns:
        float32 whole numbers, (N, H − 5, W − 5, channels · 36).
    """
    pixels = (images.float() * 255).round_().clamp_(0, 255)
    cut = pixels.unfold(2, PATCH, 1).unfold(3, PATCH, 1).permute(0, 2, 3, 1, 4, 5)
    patches = cut.flatten(3)  # a copy
    size = patches.shape[-1]
    total = patches.sum(-1, keepdim=True)
    square = (patches * patches).sum(-1, keepdim=True)
    # Σ (size · p − total)² / size³ is the variance; the whole numbers are below 2⁵³.
    variance = (square.double() * size - total.double() ** 2) / size**2
    factor = (_STEP / (size * (variance + _CONTRAST).sqrt())).float()
    patches.mul_(size).sub_(total).mul_(factor)
    return patches.round_().clamp_(-127, 127)


def pooled_roots(
    images: torch.Tensor, filters: NDArray[np.int8], exponents: NDArray[np.int8]
) -> torch.Tensor:
    """Square roots of the pooled responses to the filters and to their negatives.

    Returns:
        float64 whole numbers, in units of 2^−12, (N, 1024, 4, 4).
    """
    scale = np.exp2(1.0 - exponents.astype(np.float64))[:, None]  # 64 z = 2 · (32 p) · w
    weights = torch.from_numpy((filters * scale).astype(np.float32))
    _, C, H, W = images.shape
    down, across = windows(H - PATCH + 1), windows(W - PATCH + 1)
    places = torch.kron(down, across)
    # Responses of the mirror image are the mirrored responses of the image to mirrored filters.
    mirrored = weights.view(FILTERS, C, PATCH, PATCH).flip(-1).flatten(1)
    total = torch.zeros(len(images), 2, GRID, GRID, FILTERS)
    patches = normalised_patches(images).flatten(1, 2)
    for at in range(len(images)):  # one image at a time, whose responses fit into the cache
        for seen, mirror in ((weights, False), (mirrored, True)):
            responses = (patches[at] @ seen.T).round_()
            kept = functional.softshrink(responses, _THRESHOLD * _UNIT).clamp_(-_LARGEST, _LARGEST)
            for part, values in zip(total[at], (kept, kept.abs()), strict=True):
                pooled = (places @ values).view(GRID, GRID, FILTERS)
                part += pooled.flip(1) if mirror else pooled
    signed, size = total.double().unbind(1)
    both = torch.cat([size + signed, size - signed], -1).permute(0, 3, 1, 2)
    norm = 4.0 * _UNIT * float(down.sum() * across.sum()) / GRID**2
    return ((both / norm).sqrt_() * _ROOTS).round_()


def standardised(roots: torch.Tensor) -> torch.Tensor:
    """Standardise each image to mean 0 and deviation 1; float64, of the same shape."""
    flat = roots.flatten(1)
    size = flat.shape[1]
    total = flat.sum(1, keepdim=True)
    square = (flat * flat).sum(1, keepdim=True)
    deviation = ((square * size - total**2) / size**2).clamp_min_(1.0).sqrt_()
    return ((flat - total / size) / deviation).view(roots.shape)


def _finished(images: torch.Tensor, known: FilterConstants) -> torch.Tensor:
    """Centre and decorrelate by the constants, then scale to norm 1."""
    counted = (images * _STANDARD).round_().clamp_(-32767, 32767).flatten(2)
    counted -= torch.from_numpy(known.means.astype(np.float64))[:, None]
    matrix = torch.from_numpy(known.matrix.astype(np.float64))
    mixed = (matrix @ counted).mul_(_FINE / _STANDARD / 2.0**12).round_().flatten(1)
    norm = (mixed * mixed).sum(1, keepdim=True).sqrt_().clamp_min_(1.0)
    # Truncated, not rounded, to the eight bits of bfloat16: the norm stays below 1.
    single = (mixed / norm).float().view(torch.int32) & -0x10000
    return single.view(torch.float32).view(-1, CHANNELS, GRID, GRID)


@lru_cache(maxsize=128)
def windows(positions: int, grid: int = GRID, moved: int = 0) -> torch.Tensor:
    """Weights (grid, positions) of overlapping triangular windows, in whole numbers.

    Args:
        moved: positions by which all windows are moved; parts outside the image are cut off.
    """
    width, beyond = positions / grid, abs(moved)
    centres = (np.arange(grid)[:, None] + 0.5) * width - 0.5
    heights = 1 - np.abs(np.arange(-beyond, positions + beyond) - centres) / width
    steps = np.clip(heights, 0, None)
    largest = steps[:, beyond : beyond + positions].sum(1).max()
    whole = np.round(steps * (WEIGHT - grid) / largest)
    # Made symmetric, since rounding of a tie could differ in the mirror image.
    whole = np.minimum(whole, whole[::-1, ::-1])[:, beyond - moved :][:, :positions]
    return torch.from_numpy(np.ascontiguousarray(whole, np.float32))
