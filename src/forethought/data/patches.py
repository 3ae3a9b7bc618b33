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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.resources import files
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from forethought.gradients.sums import exactly

PATCH, FILTERS, GRID = 6, 512, 4
FINE = 9  # the grid of the cells that the second layer of deep patches sees
LEAST, MOST = 12, 96  # pixels a side; other sizes would need other windows
CHANNELS = 2 * FILTERS  # each filter and its negative
_CONTRAST = 10.0  # added to the variance of pixels from 0 to 255: flat patches stay flat
STEP = 32  # a normalised patch is in units of 1/32 of its standard deviation, at most ±127
_UNIT = 64  # a response is in units of 1/64
_THRESHOLD = 0.5
LARGEST = 4095.0  # limit of a response in these units: 2 · 4095 · WEIGHT² is below 2²⁴
WEIGHT = 44  # upper bound of the sum of a window's pooling weights
_ROOTS, _STANDARD, _MIXED = 2.0**12, 2.0**8, 2.0**10  # units to 1, in the stages after pooling
_PIECE = 256  # filters at a time
Place = tuple[int, int]  # pixels down and across
STILL: tuple[Place, ...] = ((0, 0),)


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


# A context of products in full float32 precision, even if the caller allowed less for speed.
exact_products = partial(exactly, "cpu")


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
    factor = (STEP / (size * (variance + _CONTRAST).sqrt())).float()
    patches.mul_(size).sub_(total).mul_(factor)
    return patches.round_().clamp_(-127, 127)


def pooled_roots(
    images: torch.Tensor, filters: NDArray[np.int8], exponents: NDArray[np.int8]
) -> torch.Tensor:
    """Square roots of the pooled responses to the filters and to their negatives.

    Returns:
        float64 whole numbers, in units of 2^−12, (N, 1024, 4, 4).
    """
    known = Filters(filters, exponents)
    each = [pooled_at(one, known, STILL) for one in images[:, None]]
    pools = torch.cat(each).view(-1, GRID, GRID, 2 * len(filters))
    down, across = (windows(side - PATCH + 1) for side in images.shape[2:])
    norm = 2.0 * _UNIT * float(down.sum() * across.sum()) / GRID**2
    return ((pools.double() / norm).sqrt_() * _ROOTS).round_().permute(0, 3, 1, 2)


@dataclass(frozen=True, eq=False)
class Filters:
    """Linear filters in whole numbers: filter k is in units of 2^−exponents[k].

    Args:
        filters: int8, (count, size).
        exponents: int8, (count,).
    """

    filters: NDArray[np.int8]
    exponents: NDArray[np.int8]

    @lru_cache(maxsize=32)  # noqa: B019 (few filters, bundled)
    def times(self, unit: float) -> torch.Tensor:
        """The filters times a power of two, float32, (size, count): products stay exact."""
        scaled = self.filters * (unit * np.exp2(-self.exponents.astype(np.float64)))[:, None]
        return torch.from_numpy(scaled.astype(np.float32)).T.contiguous()


@lru_cache(maxsize=8)
def _pieces(filters: Filters, channels: int) -> tuple[tuple[Filters, ...], ...]:
    """Filters in pieces, plain and mirrored, whose responses fit into the processor's cache."""
    count = len(filters.filters)
    mirrored = filters.filters.reshape(count, channels, PATCH, PATCH)[..., ::-1]
    views = filters.filters, np.ascontiguousarray(mirrored).reshape(count, -1)
    parts = (slice(at, at + _PIECE) for at in range(0, count, _PIECE))
    return tuple(
        tuple(Filters(view[part], filters.exponents[part]) for view in views) for part in parts
    )


def pooled_at(
    image: torch.Tensor, filters: Filters, places: Sequence[Place], fine: torch.Tensor | None = None
) -> torch.Tensor:
    """Pooled responses of one image, (1, channels, H, W), with its windows at several places.

    Args:
        fine: (places, 2, 81, 2 · filters), to which the responses on the fine grid are written.

    Returns:
        The responses on the coarse grid, of image and mirror image together, (places, 16,
        2 · filters).
    """
    found = normalised_patches(image)[0]
    H, W, _ = found.shape
    seen, count = found.flatten(0, 1), len(filters.filters)
    grids = (GRID,) if fine is None else (GRID, FINE)
    coarse = torch.zeros(len(places), 2, GRID, GRID, count)
    cells = None if fine is None else fine.view(len(places), 2, FINE, FINE, 2, count)
    both = torch.empty(2, H, W, min(count, _PIECE))
    for piece, views in enumerate(_pieces(filters, image.shape[1])):
        part = slice(piece * _PIECE, (piece + 1) * _PIECE)
        for mirror, those in enumerate(views):
            # Responses of the mirror image are the mirrored ones of the image to mirrored filters.
            respond(seen, those, both.flatten(1, 2))
            for place, near, far in _in_windows(both, grids, places, bool(mirror)):
                coarse[place, ..., part] += near
                if cells is not None:
                    torch.add(far[1], far[0], out=cells[place, mirror, ..., 0, part])
                    torch.sub(far[1], far[0], out=cells[place, mirror, ..., 1, part])
    return parts_of(coarse)


def respond(found: torch.Tensor, filters: Filters, both: torch.Tensor) -> None:
    """Rounded responses in 1/64, minus the threshold on either side of zero; and their sizes."""
    kept, size = both
    responses = (found @ filters.times(_UNIT / STEP)).round_()
    limit = _THRESHOLD * _UNIT
    torch.clamp(responses, -limit, limit, out=size)
    torch.sub(responses, size, out=kept).clamp_(-LARGEST, LARGEST)
    torch.abs(kept, out=size)


def _in_windows(
    both: torch.Tensor, grids: tuple[int, ...], places: Sequence[Place], mirror: bool
) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """Sum halves of responses and of their sizes, (2, H, W, filters), in the windows of each place.

    Yields:
        The index of a place, and (2, grid, grid, filters) for the first and for the last grid.
    """
    _, H, W, _ = both.shape
    for down in {down for down, _ in places}:
        here = [place for place, (moved, _) in enumerate(places) if moved == down]
        across = tuple(places[place][1] for place in here)
        rows = _windows_of(H, grids, (down,), False, 1.0) @ both.flatten(2)
        found = [
            _windows_of(W, (grid,), across, mirror, 0.5) @ part
            for grid, part in zip(
                grids, torch.split(rows.view(2, -1, W, both.shape[-1]), list(grids), 1), strict=True
            )
        ]
        for at, place in enumerate(here):
            near, far = (
                one[:, :, at * grid : (at + 1) * grid]
                for one, grid in ((found[0], grids[0]), (found[-1], grids[-1]))
            )
            yield place, near, far


@lru_cache(maxsize=64)
def _windows_of(
    positions: int, grids: tuple[int, ...], moved: tuple[int, ...], mirror: bool, weight: float
) -> torch.Tensor:
    """Windows of several grids and places, concatenated, times a power of two."""
    found = torch.cat([windows(positions, grid, by) for by in moved for grid in grids])
    return (found.flip(1) if mirror else found) * weight


def parts_of(pools: torch.Tensor) -> torch.Tensor:
    """Positive and negative parts, from halves of responses and sizes, (N, 2, grid, grid, filters).

    Sums of parts are at most 4095 · 44²; those of image and mirror image are below 2²⁴.

    Returns:
        (N, grid², 2 · filters).
    """
    kept, sizes = pools.unbind(1)
    return torch.cat([sizes + kept, sizes - kept], -1).flatten(1, 2)


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
    mixed = (matrix @ counted).mul_(_MIXED / _STANDARD / 2.0**12).round_().flatten(1)
    return of_norm_one(mixed).view(-1, CHANNELS, GRID, GRID)


def of_norm_one(rows: torch.Tensor) -> torch.Tensor:
    """Rows of whole numbers divided by their norms, and :func:`truncated`."""
    return truncated(rows / (rows * rows).sum(1, keepdim=True).sqrt_().clamp_min_(1.0))


def truncated(values: torch.Tensor) -> torch.Tensor:
    """Values as float32 with the eight bits of bfloat16; not rounded, so that no norm grows."""
    return (values.float().view(torch.int32) & -0x10000).view(torch.float32)


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
