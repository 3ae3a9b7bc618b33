"""Patch features with a second layer and a second scale, beside those of the first layer.

There are three blocks of channels over the same grid of 4 × 4 windows: the responses of ``patches``
(6 × 6 pixels), those for the image at half its size, and those of a second layer, whose patches are
2 × 2 cells of the first layer's responses, pooled over 9 × 9 cells and projected (after Coates and
Ng 2011, and Mairal et al. 2014). The leading components of each block are kept. Their variation
over the windows is smoothed, since its high frequencies mostly get lost in the noise. All constants
were learnt from dead-leaves images (`tools/learners` in the repository), none from photographs.

**The same bits everywhere**, as in ``patches``: products and sums are of whole numbers that float32
or float64 holds exactly, and everything else is one correctly rounded operation at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from forethought.data import patches
from forethought.data.patches import FINE, GRID, STILL, Filters, Place, pooled_at, windows

LEAST = 20  # pixels a side, so that at half the size the windows hold some patches each
CELLS, COMPONENTS = 2, 128  # cells a side of a second-layer patch, and its channels
BLOCKS = {"first": 512, "half": 256, "second": 512}  # number of channels of each block
CHANNELS = sum(BLOCKS.values())
WEIGHTS = {"first": 1.0, "half": 0.7, "second": 1.4}  # relative norms of the blocks
WAVES = (1.0, 0.8, 0.6, 0.4)  # factors of the grid's cosines, the slowest first
_ROOT = 8  # roots of pooled responses are in units of 1/8
_FINISHED = 256  # components are in units of 1/256
_SMOOTHED = 64  # smoothing weights are in units of 1/64
_CONTRAST = 0.1  # added to the mean square of a second-layer patch


@dataclass(frozen=True)
class DeepFilterConstants:
    """Constants learnt from synthetic images; ``patches`` has the first layer's filters."""

    half_filters: Filters
    second_filters: Filters
    cells: Components
    first: Components
    half: Components
    second: Components


@lru_cache(maxsize=2)
def constants(channels: int) -> DeepFilterConstants:
    """The bundled constants for grey (1) or colour (3) images."""
    arrays = patches.bundled(f"deep_patches_{channels}")
    return DeepFilterConstants(
        _filters(arrays, "half_filters"),
        _filters(arrays, "second_filters"),
        *(_components(arrays, name) for name in ("cells", "first", "half", "second")),
    )


def _filters(arrays: Mapping[str, NDArray[Any]], name: str) -> Filters:
    return Filters(arrays[name], arrays[f"{name}_exponents"])


def _components(arrays: Mapping[str, NDArray[Any]], name: str) -> Components:
    return Components(_filters(arrays, name), arrays[f"{name}_offsets"])


def deep_patch_features(
    images: torch.Tensor,
    *,
    chunk: int = 64,
    places: Sequence[Place] = STILL,
    evened_out: Callable[[int], Mapping[str, Components]] | None = None,
) -> torch.Tensor:
    """Deep patch features of every image, computed separately.

    Args:
        images: float32, (N, 1 or 3, H, W) in [0, 1], 20 to 96 pixels a side; values are rounded
            to 1/255.
        chunk: images at a time. It bounds memory and changes no bit of the result.
        places: shifts of all windows, in pixels down and across; a shift of the windows is an
            opposite shift of the image, and of its mirror image. Standardised responses are
            averaged over the shifts.
        evened_out: gives other components of each block, for grey (1) or colour (3) images.

    Returns:
        float32, (N, 1280, 4, 4), each image of norm 1 before truncation to eight bits, which makes
        it slightly smaller.

    Raises:
        ValueError: another shape, or no place.
    """
    if not places:
        raise ValueError("places is empty: give at least one place, such as (0, 0)")
    if not suits(tuple(images.shape)):
        raise ValueError(
            f"deep patch features take images (N, 1 or 3, H, W) of {LEAST} to {patches.MOST} "
            f"pixels a side, not shape {tuple(images.shape)}: resize them first"
        )
    known = (evened_out or components)(images.shape[1])
    out = torch.empty(len(images), CHANNELS, GRID, GRID)
    with patches.exact_products():
        for start in range(0, len(images), chunk):
            out[start : start + chunk] = combined(
                blocks_of(images[start : start + chunk], places, known)
            )
    return out


def suits(shape: tuple[int, ...]) -> bool:
    """True if images of this shape, (N, channels, H, W), have deep patch features."""
    return patches.suits(shape) and min(shape[2:]) >= LEAST


def components(channels: int) -> dict[str, Components]:
    """Leading components of every block, for grey (1) or colour (3) images."""
    known = constants(channels)
    return {"first": known.first, "half": known.half, "second": known.second}


def blocks_of(
    images: torch.Tensor,
    places: Sequence[Place] = STILL,
    known: Mapping[str, Components] | None = None,
) -> dict[str, torch.Tensor]:
    """Components of every block, in whole numbers, float32, (N, 16, ``BLOCKS[name]``)."""
    known = components(images.shape[1]) if known is None else known
    return {
        name: known[name].of(sums.div_(len(places)).round_(), _FINISHED)
        for name, sums in counts_of(images, places).items()
    }


def counts_of(images: torch.Tensor, places: Sequence[Place]) -> dict[str, torch.Tensor]:
    """Standardised roots of every block, summed over places; float32, (N, 16, channels)."""
    known, filters = constants(images.shape[1]), first_filters(images.shape[1])
    # At half the size a shift is half as long, rounded towards zero to whole pixels.
    near = [(int(down / 2), int(across / 2)) for down, across in places]
    found: dict[str, list[torch.Tensor]] = {name: [] for name in BLOCKS}
    # One image at a time, in the same memory, which stays in the processor's cache.
    fine = torch.empty(len(places), 2, FINE * FINE, 2 * len(filters.filters))
    for one in images[:, None]:
        first = pooled_at(one, filters, places, fine)
        half = pooled_at(halved(one), known.half_filters, near)
        maps = torch.cat([cell_maps(cells, known.cells) for cells in fine[:, None]])
        second = second_pooled(maps, known.second_filters)
        for name, pools in (("first", first), ("half", half), ("second", second)):
            found[name].append(standardise_(pools).sum(0))
    return {name: torch.stack(sums) for name, sums in found.items()}


def combined(
    blocks: Mapping[str, torch.Tensor],
    weights: Mapping[str, float] = WEIGHTS,
    waves: tuple[float, ...] = WAVES,
) -> torch.Tensor:
    """Smooth the blocks over the grid, scale their norms by weights, and truncate to eight bits.

    Returns:
        float32, (N, channels, 4, 4), of norm 1 before truncation, which makes it slightly smaller.
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
    found = patches.truncated(torch.cat(scaled, -1))
    return found.transpose(1, 2).reshape(-1, found.shape[-1], GRID, GRID)


@lru_cache(maxsize=8)
def smoothing(waves: tuple[float, ...]) -> torch.Tensor:
    """The filter with these factors of the cosines over four windows, in 1/64; float64, (4, 4)."""
    at = np.arange(GRID)
    cosines = np.cos(np.pi * (at + 0.5) * at[:, None] / GRID) / np.sqrt(GRID / 2)
    cosines[0] /= np.sqrt(2)
    kept = (cosines.T * np.array(waves)) @ cosines
    return torch.from_numpy(np.round(kept * _SMOOTHED))


@lru_cache(maxsize=2)
def first_filters(channels: int) -> Filters:
    """The filters of ``patches``."""
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


def standardise_(pools: torch.Tensor) -> torch.Tensor:
    """Roots of pooled responses, standardised for each image to mean 0 and deviation 1, in 1/16.

    The memory of ``pools`` is overwritten with the result.

    Args:
        pools: whole numbers, (N, cells, channels).
    """
    size = pools[0].numel()
    # The roots' squares are the pooled numbers themselves, except for rounding. The sum of positive
    # and negative part is below 2²⁴ too, and half as many numbers are summed in float64.
    pairs = pools.view(len(pools), pools.shape[1], 2, -1).sum(2)
    square = pairs.sum((1, 2), dtype=torch.float64)[:, None, None] * _ROOT**2
    # NumPy's roots are correctly rounded. On some processors, PyTorch's come from a library that is
    # wrong in the last bit, and that takes thirty times as long for a root of 0.
    np.sqrt(pools.numpy(), out=pools.numpy())
    roots = pools.mul_(_ROOT).round_()
    # Roots are at most 2¹⁵, so sums of at most 81 of them are exact in float32 too.
    total = roots.sum(1).sum(1, dtype=torch.float64)[:, None, None]
    deviation = ((square * size - total**2) / size**2).clamp_min_(1.0).sqrt_()
    roots.sub_((total / size).float()).mul_((STANDARD / deviation).float())
    return roots.round_().clamp_(-127, 127)


def cell_maps(fine: torch.Tensor, cells: Components) -> torch.Tensor:
    """Components of the fine grid's cells, in 1/32; (N, 2, 9, 9, components).

    Args:
        fine: whole numbers, (N, 2, 81, channels); this memory is overwritten.
    """
    counts = standardise_(fine.flatten(0, 1))
    found = cells.of(counts, patches.STEP).clamp_(-patches.LARGEST, patches.LARGEST)
    return found.view(len(fine), 2, FINE, FINE, -1)


def cell_patches(maps: torch.Tensor) -> torch.Tensor:
    """Patches of 2 × 2 cells of (N, 9, 9, components), normalised, in units of 1/32, at most ±127.

    Returns:
        float32 whole numbers, (N, 8, 8, 4 · components).
    """
    ends = (slice(0, -1), slice(1, None))
    found = torch.cat([maps[:, down, across] for down in ends for across in ends], -1)
    square = (maps * maps).sum(-1, keepdim=True, dtype=torch.float64)
    four = sum(square[:, down, across] for down in ends for across in ends)
    assert isinstance(four, torch.Tensor)
    mean = four / found.shape[-1] + _CONTRAST * patches.STEP**2
    found.mul_((patches.STEP / mean.sqrt()).float())
    return found.round_().clamp_(-127, 127)


def second_pooled(maps: torch.Tensor, filters: Filters) -> torch.Tensor:
    """Pooled responses of the second layer, image and mirror image together.

    Returns:
        (N, 16, 2 · filters).
    """
    side = FINE + 1 - CELLS
    found = cell_patches(maps.flatten(0, 1)).flatten(0, 2)
    both = torch.empty(2, len(found), len(filters.filters))
    patches.respond(found, filters, both)
    down = windows(side, GRID) @ both.view(4 * len(maps), side, -1)
    pools = (windows(side, GRID) * 0.5) @ down.view(-1, GRID, side, both.shape[-1])
    # The map of the mirror image has the orientation of the mirror image already.
    return patches.parts_of(pools.view(2, len(maps), 2, *pools.shape[1:]).sum(2).transpose(0, 1))


STANDARD = 16  # standardised numbers are in units of 1/16, at most ±127


@dataclass(frozen=True)
class Components:
    """Leading components of standardised roots, decorrelated.

    Args:
        filters: one for each component, over the channels.
        offsets: int32, (components,): components of the channels' mean, which are subtracted.
    """

    filters: Filters
    offsets: NDArray[np.int32]

    def of(self, counts: torch.Tensor, unit: float) -> torch.Tensor:
        """Components of counts (…, channels), in whole numbers of 1/unit; (…, components)."""
        scales = unit / STANDARD * np.exp2(-self.filters.exponents.astype(np.float64))
        offsets = torch.from_numpy((self.offsets * scales).astype(np.float32))
        return (counts @ self.filters.times(unit / STANDARD)).sub_(offsets).round_()


# Deep patches averaged over shifts of the image, with components learnt from altered images.


# Even numbers, so that the image at half its size is shifted by whole pixels too.
SHIFTS: tuple[Place, ...] = ((0, 0), (-2, 0), (2, 0), (0, -2), (0, 2))


def shifted_patch_features(images: torch.Tensor, *, chunk: int = 64) -> torch.Tensor:
    """Shifted patch features of every image, computed separately.

    Shifted windows see the same responses, which are computed once. Pixels that a shift brings in
    from outside the image are flat, so that they give no response.

    Args:
        images: float32, (N, 1 or 3, H, W) in [0, 1], 20 to 96 pixels a side; values are rounded
            to 1/255.
        chunk: images at a time. It bounds memory and changes no bit of the result.

    Returns:
        float32, (N, 1280, 4, 4), each image of norm 1 before truncation to eight bits, which makes
        it slightly smaller.

    Raises:
        ValueError: another shape.
    """
    return deep_patch_features(images, chunk=chunk, places=SHIFTS, evened_out=evened_components)


@lru_cache(maxsize=2)
def evened_components(channels: int) -> dict[str, Components]:
    """The bundled components for grey (1) or colour (3) images, by block."""
    arrays = patches.bundled(f"shifted_patches_{channels}")
    return {name: _components(arrays, name) for name in BLOCKS}
