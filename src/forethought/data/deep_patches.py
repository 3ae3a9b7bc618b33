"""Patch features of a second layer and of a second scale, beside those of the first.

Three blocks of channels over the same grid of 4 × 4 windows: what ``patches`` sees (6 × 6 pixels),
the same of the image at half its size, and a second layer, whose patches are 2 × 2 cells of the
first layer's responses, pooled over 9 × 9 cells and projected (after Coates and Ng 2011, and Mairal
et al. 2014). Of each block the leading components are kept, and of how they vary over the windows
the slow part more than the fast one, which holds less that noise does not drown. All constants were
learnt from ``dead_leaves``: nothing here has seen a photograph.

**The same bits everywhere**, as in ``patches``: products and sums are of whole numbers that single
or double precision holds exactly, and everything else is one correctly rounded operation at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

import numpy as np
import torch
from numpy.typing import NDArray

from forethought.data import patches
from forethought.data.patches import GRID, MOST, normalised_patches

LEAST = 20  # pixels a side: at half the size the windows want some patches each
FINE, CELLS, COMPONENTS = 9, 2, 128  # the second layer's grid, a patch's cells a side, and channels
BLOCKS = {"first": 512, "half": 256, "second": 512}  # channels of each
CHANNELS = sum(BLOCKS.values())
WEIGHTS = {"first": 1.0, "half": 0.7, "second": 1.4}  # of their norms, to one another
WAVES = (1.0, 0.8, 0.6, 0.4)  # what is kept of the grid's cosines, from the slowest
_STEP, _UNIT, _THRESHOLD, _LARGEST = 32, 64, 0.5, 4095.0  # as in patches
_ROOT = 8  # a root of pooled responses is counted in eighths
STANDARD = 16  # a standardised root in 1/16, to ±127
_FINISHED = 256  # a component in 1/256
_SMOOTHED = 64  # a weight of neighbouring windows in 1/64
_CONTRAST = 0.1  # added to a second patch's mean square


@dataclass(frozen=True, eq=False)
class Filters:
    """Linear filters in whole numbers: filter k counts in 2^−exponents[k].

    Args:
        filters: int8, (count, size). exponents: int8, (count,).
    """

    filters: NDArray[np.int8]
    exponents: NDArray[np.int8]

    @lru_cache(maxsize=32)  # noqa: B019 (there are six, bundled, of grey and of colour)
    def times(self, unit: float) -> torch.Tensor:
        """The filters times a power of two, float32, (size, count): products stay exact."""
        scaled = self.filters * (unit * np.exp2(-self.exponents.astype(np.float64)))[:, None]
        return torch.from_numpy(scaled.astype(np.float32)).T.contiguous()


@dataclass(frozen=True)
class Components:
    """Leading components of standardised roots, decorrelated.

    Args:
        filters: one for each component, over the channels.
        offsets: int32, (components,): what they give for the mean of the channels, to be taken off.
    """

    filters: Filters
    offsets: NDArray[np.int32]

    def of(self, counts: torch.Tensor, unit: float) -> torch.Tensor:
        """Components of counts (…, channels), in whole numbers of 1/unit; (…, components)."""
        scales = unit / STANDARD * np.exp2(-self.filters.exponents.astype(np.float64))
        offsets = torch.from_numpy((self.offsets * scales).astype(np.float32))
        return (counts @ self.filters.times(unit / STANDARD)).sub_(offsets).round_()


@dataclass(frozen=True)
class Constants:
    """What was learnt from synthetic images; the first layer's filters are those of ``patches``."""

    half_filters: Filters
    second_filters: Filters
    cells: Components
    first: Components
    half: Components
    second: Components


@lru_cache(maxsize=2)
def constants(channels: int) -> Constants:
    """The bundled constants for grey (1) or colour (3) images."""
    file = files("forethought.data") / f"deep_patches_{channels}.npz"
    with file.open("rb") as opened, np.load(opened, allow_pickle=False) as arrays:

        def filters(name: str) -> Filters:
            return Filters(arrays[name], arrays[f"{name}_exponents"])

        def components(name: str) -> Components:
            return Components(filters(name), arrays[f"{name}_offsets"])

        return Constants(
            filters("half_filters"),
            filters("second_filters"),
            *(components(name) for name in ("cells", "first", "half", "second")),
        )


def deep_patch_features(images: torch.Tensor, *, chunk: int = 8) -> torch.Tensor:
    """Deep patch features of every image by itself.

    Args:
        images: float32, (N, 1 or 3, H, W) in [0, 1], 20 to 96 pixels a side; values are rounded
            to 1/255.
        chunk: images at a time. It bounds memory and changes nothing else, not a bit.

    Returns:
        float32, (N, 1280, 4, 4), each image of norm 1 less what truncation to eight bits takes.

    Raises:
        ValueError: another shape.
    """
    if not suits(tuple(images.shape)):
        raise ValueError(
            f"deep patch features take images (N, 1 or 3, H, W) of {LEAST} to {MOST} pixels a "
            f"side, not shape {tuple(images.shape)}: resize them first"
        )
    out = torch.empty(len(images), CHANNELS, GRID, GRID)
    with patches.exact_products():
        for start in range(0, len(images), chunk):
            out[start : start + chunk] = combined(blocks_of(images[start : start + chunk]))
    return out


def suits(shape: tuple[int, ...]) -> bool:
    """Whether images of this shape, (N, channels, H, W), have deep patch features."""
    return patches.suits(shape) and min(shape[2:]) >= LEAST


def blocks_of(images: torch.Tensor) -> dict[str, torch.Tensor]:
    """Components of every block, in whole numbers, float32, (N, 16, ``BLOCKS[name]``)."""
    known, first = constants(images.shape[1]), first_filters(images.shape[1])
    coarse, fine = pooled(images, first, fine=True)
    half, _ = pooled(halved(images), known.half_filters)
    second = second_pooled(cell_maps(fine, known.cells), known.second_filters)
    return {
        "first": known.first.of(standard_counts(coarse), _FINISHED),
        "half": known.half.of(standard_counts(half), _FINISHED),
        "second": known.second.of(standard_counts(second), _FINISHED),
    }


def combined(
    blocks: Mapping[str, torch.Tensor],
    weights: Mapping[str, float] = WEIGHTS,
    waves: tuple[float, ...] = WAVES,
) -> torch.Tensor:
    """Blocks smoothed over the grid, each of the norm that its weight says, truncated to 8 bits.

    Returns:
        float32, (N, channels, 4, 4), of norm 1 less what truncation takes.
    """
    smooth = smoothing(waves)
    length = sum(weights[name] ** 2 for name in blocks) ** 0.5
    scaled = []
    for name, block in blocks.items():
        grid = block.double().view(-1, GRID, GRID * block.shape[-1])
        mixed = (smooth @ grid).view(-1, GRID, GRID, block.shape[-1])
        whole = (smooth @ mixed).div_(_SMOOTHED**2).round_().flatten(1)
        norm = (whole * whole).sum(1, keepdim=True).sqrt_().clamp_min_(1.0)
        scaled.append((whole * (weights[name] / length) / norm).view(block.shape))
    # Truncated, not rounded, to the eight bits of bfloat16: the norm stays below 1.
    single = torch.cat(scaled, -1).float().view(torch.int32) & -0x10000
    channels = single.shape[-1]
    return single.view(torch.float32).transpose(1, 2).reshape(-1, channels, GRID, GRID)


@lru_cache(maxsize=8)
def smoothing(waves: tuple[float, ...]) -> torch.Tensor:
    """What keeps so much of the cosines over four windows, in 1/64; float64, (4, 4)."""
    at = np.arange(GRID)
    cosines = np.cos(np.pi * (at + 0.5) * at[:, None] / GRID) / np.sqrt(GRID / 2)
    cosines[0] /= np.sqrt(2)
    kept = (cosines.T * np.array(waves)) @ cosines
    return torch.from_numpy(np.round(kept * _SMOOTHED))


@lru_cache(maxsize=2)
def first_filters(channels: int) -> Filters:
    """Those of ``patches``."""
    known = patches.constants(channels)
    return Filters(known.filters, known.exponents)


def halved(images: torch.Tensor) -> torch.Tensor:
    """Means of 2 × 2 pixels, rounded to 1/255; an odd last row or column is left out."""
    pixels = (images.float() * 255).round_().clamp_(0, 255)
    H, W = (side // 2 * 2 for side in pixels.shape[2:])
    pixels = pixels[:, :, :H, :W]
    total = sum(pixels[:, :, i::2, j::2] for i in (0, 1) for j in (0, 1))
    assert isinstance(total, torch.Tensor)
    return ((total + 2) / 4).floor_() / 255


def pooled(
    images: torch.Tensor, filters: Filters, fine: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pooled responses to the filters and to their negatives, in whole numbers.

    Returns:
        Over the coarse grid, image and mirror image together, (N, 16, 2 · filters); and over the
        fine grid the two apart, (N, 2, 81, 2 · filters), empty unless ``fine``.
    """
    C = images.shape[1]
    found = normalised_patches(images)
    N, H, W = found.shape[:3]
    found = found.flatten(1, 2)
    weights = filters.times(_UNIT / _STEP)
    size, count = weights.shape
    side = patches.PATCH
    # A mirror image's responses are the image's own to mirrored filters, mirrored.
    mirrored = weights.view(C, side, side, count).flip(2).reshape(size, count)
    coarse = torch.zeros(N, GRID * GRID, 2 * count)
    cells = torch.empty(N if fine else 0, 2, FINE * FINE, 2 * count)
    # One image at a time, in memory that is used again: it stays in the processor's cache.
    kept, size = torch.empty(2, H, W, count)
    for at in range(N):
        for mirror, seen in enumerate((weights, mirrored)):
            _respond(found[at], seen, kept, size)
            coarse[at] += _windowed(kept, size, GRID, mirror=bool(mirror))
            if fine:
                cells[at, mirror] = _windowed(kept, size, FINE, mirror=bool(mirror))
    return coarse, cells


def _respond(
    found: torch.Tensor, weights: torch.Tensor, kept: torch.Tensor, size: torch.Tensor
) -> None:
    """Responses in 1/64, rounded, less the threshold on either side of zero; and their sizes."""
    torch.mm(found, weights, out=kept.view(-1, weights.shape[1])).round_()
    limit = _THRESHOLD * _UNIT
    torch.clamp(kept, -limit, limit, out=size)
    kept.sub_(size).clamp_(-_LARGEST, _LARGEST)
    torch.abs(kept, out=size)


def _windowed(kept: torch.Tensor, size: torch.Tensor, grid: int, *, mirror: bool) -> torch.Tensor:
    """Positive and negative parts of (H, W, filters) in windows; (grid², 2 · filters).

    Sums of parts are at most 4095 · 44² and those of image and mirror image below 2²⁴.
    """
    H, W, _ = kept.shape
    down, across = patches.windows(H, grid), patches.windows(W, grid)
    if mirror:
        across = across.flip(0)
    both, sizes = (across @ (down @ values.flatten(1)).view(grid, W, -1) for values in (kept, size))
    return torch.cat([sizes + both, sizes - both], -1).mul_(0.5).flatten(0, 1)


def standard_counts(pools: torch.Tensor) -> torch.Tensor:
    """Roots of pooled responses, each image by itself to mean 0 and deviation 1, in 1/16.

    Args:
        pools: whole numbers, (N, cells, channels).
    """
    roots = pools.sqrt().mul_(_ROOT).round_()
    size = roots[0].numel()
    # Roots are at most 2¹⁵: sums of at most 81 of them are exact in single precision too.
    total = roots.sum(1).sum(1, dtype=torch.float64)[:, None, None]
    # The roots' squares are the pooled numbers themselves, but for the rounding. One image at a
    # time: a copy of all in double precision would leave the processor's cache.
    square = torch.stack([one.sum(dtype=torch.float64) for one in pools])[:, None, None] * _ROOT**2
    deviation = ((square * size - total**2) / size**2).clamp_min_(1.0).sqrt_()
    roots.sub_((total / size).float()).mul_((STANDARD / deviation).float())
    return roots.round_().clamp_(-127, 127)


def cell_maps(fine: torch.Tensor, cells: Components) -> torch.Tensor:
    """Components of the fine grid's cells, in 1/32; (N, 2, 9, 9, components)."""
    counts = standard_counts(fine.flatten(0, 1))
    found = cells.of(counts, _STEP).clamp_(-_LARGEST, _LARGEST)
    return found.view(len(fine), 2, FINE, FINE, -1)


def cell_patches(maps: torch.Tensor) -> torch.Tensor:
    """Patches of 2 × 2 cells of (N, 9, 9, components), to deviation 1, counted in 1/32 to ±127.

    Returns:
        float32 whole numbers, (N, 8, 8, 4 · components).
    """
    ends = (slice(0, -1), slice(1, None))
    found = torch.cat([maps[:, down, across] for down in ends for across in ends], -1)
    square = (maps * maps).sum(-1, keepdim=True, dtype=torch.float64)
    four = sum(square[:, down, across] for down in ends for across in ends)
    assert isinstance(four, torch.Tensor)
    mean = four / found.shape[-1] + _CONTRAST * _STEP**2
    found.mul_((_STEP / mean.sqrt()).float())
    return found.round_().clamp_(-127, 127)


def second_pooled(maps: torch.Tensor, filters: Filters) -> torch.Tensor:
    """Pooled responses of the second layer, image and mirror image together.

    Returns:
        (N, 16, 2 · filters).
    """
    weights = filters.times(_UNIT / _STEP)
    count = weights.shape[1]
    total = torch.zeros(len(maps), GRID * GRID, 2 * count)
    found = cell_patches(maps.flatten(0, 1)).flatten(1, 2)
    kept, size = torch.empty(2, FINE + 1 - CELLS, FINE + 1 - CELLS, count)
    for at, one in enumerate(found):
        _respond(one, weights, kept, size)
        # The mirror image's map lies as the mirror image does already.
        total[at // 2] += _windowed(kept, size, GRID, mirror=False)
    return total
