"""Features of handwriting: scattering of deskewed images, rescaled by pen drawings.

Private gradient descent makes few, noisy steps. If the features of all records share a large mean
and a few strong directions, these use up the clipping norm and limit the step, and the differences
between classes get lost in the noise. Statistics of the private records would have to be paid for.
Those of random drawings in the middle of the image (:func:`pen_strokes`) are nearly as good, and
cost nothing: 0.06 of the squared norm of deskewed digits remains in the mean, compared with 0.4 for
statistics of strokes all over the image (:func:`forethought.data.scattering.strokes`).

With Σ the covariance of the drawings' features, over channels and places together, features are
multiplied by ((Σ + ridge) / (tail + ridge))^(−1/4). All but the strongest eigenvalues of Σ are
replaced by their mean, the tail.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from forethought.data import scattering
from forethought.data.files import cache_folder, keep_array, kept_array
from forethought.data.patches import of_norm_one
from forethought.data.scattering import GROUPS, group_normalised, scatter, shape_of

DIRECTIONS, SPARE = 256, 40  # eigenvectors of Σ; further ones in the iteration, for convergence
PASSES = 4
RIDGE, POWER = 0.3, 0.25
_PART = 2000  # images at a time, which bounds memory
_UNIT, _SHARE = 2.0**16, 2.0**24  # units to 1, of features and of directions


def handwriting_features(images: torch.Tensor) -> torch.Tensor:
    """Features of every image, computed separately.

    Args:
        images: float32 in [0, 1], (N, 1, H, W), ink bright on dark ground.

    Returns:
        float32, (N, 81, H // 4, W // 4), each image of norm 1 before truncation to the eight bits
        of bfloat16, which makes it slightly smaller.
    """
    out = torch.empty(shape_of(tuple(images.shape)))
    mean, directions, factors = evening(*images.shape[2:])
    # Sums of whole numbers below 2⁵³, which float64 holds, since features have a norm below 2⁹. A
    # product in float32 would round one image by how many others there are, and by its place.
    matrix = (directions.double() * _SHARE).round_()
    for start in range(0, len(images), _PART):
        part = _scattered(images[start : start + _PART]).flatten(1) - mean
        whole = (part.double() * _UNIT).round_()
        along = (whole @ matrix * (factors / _SHARE)).round_()
        whole = (whole + along @ matrix.T / _SHARE).round_()
        out[start : start + _PART] = of_norm_one(whole).view(-1, *out.shape[1:])
    return out


@lru_cache(maxsize=2)
def evening(height: int, width: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Statistics of the drawings' features: mean (d,), directions (d, 256), factors (256,).

    The part along a direction is multiplied by 1 + factor. The result is cached under a name that
    changes with the code and with torch's version, and is equal bit for bit to a new computation.
    """
    path = path_of(height, width)
    known = None if path is None else kept_array(path, np.float32)
    if known is None:
        mean, directions, factors = (part.numpy() for part in computed_for(height, width))
        last = np.zeros((1, 1), np.float32)
        known = np.block([[mean[:, None], directions], [last, factors[None]]])
        if path is not None:
            keep_array(path, known)
    rows = torch.from_numpy(known)
    return rows[:-1, 0], rows[:-1, 1:], rows[-1, 1:]


def path_of(height: int, width: int) -> Path | None:
    folder = cache_folder()
    if folder is None:
        return None
    digest = hashlib.sha256(f"{torch.__version__} {np.__version__}".encode())
    try:
        (folder / "constants").mkdir(parents=True, exist_ok=True, mode=0o700)
        for source in (__file__, scattering.__file__):
            digest.update(Path(source).read_bytes())
    except OSError:
        return None
    name = f"handwriting-{height}x{width}-{digest.hexdigest()[:16]}.npy"
    return folder / "constants" / name


def computed_for(height: int, width: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Subspace iteration from a fixed start, which is reproducible on one machine."""
    features = _scattered(torch.from_numpy(pen_strokes(height, width))).flatten(1)
    mean = features.double().mean(0).float()
    features -= mean
    images, size = features.shape
    kept = min(DIRECTIONS, images // 2, size // 2)
    basis = torch.randn(size, kept + SPARE, generator=torch.Generator().manual_seed(0))
    for _ in range(PASSES):
        basis = torch.linalg.qr(features.T @ (features @ basis) / images)[0]
    inner = features @ basis
    values, vectors = torch.linalg.eigh((inner.T @ inner / images).double())
    values = values.flip(0)[:kept]
    directions = basis @ vectors.flip(1)[:, :kept].float()
    tail = ((features * features).sum() / images - values.sum()) / (size - kept)
    factors = ((values + RIDGE) / (tail + RIDGE)) ** -POWER - 1
    return mean, directions, factors.float()


def _scattered(images: torch.Tensor) -> torch.Tensor:
    return group_normalised(scatter(deskewed(images)), GROUPS)


# Deskewing: handwriting set upright and in the middle, each image separately.


MOST_SHEAR = 0.7  # pixels across for one down, as a limit: a horizontal dash has no clear slant
_INK = 1e-3  # lower bound of the divisor, so that an empty image stays empty


def deskewed(images: torch.Tensor) -> torch.Tensor:
    """Remove the slant of bright drawings on dark ground, and centre their mass.

    Args:
        images: float32, (N, 1, H, W), not negative; 0 is ground.

    Returns:
        float32 of the same shape, interpolated between pixels; borders are filled with ground.

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
    """Affine maps from result to source positions, (N, 2, 3), in units of half a side."""
    _, _, H, W = images.shape
    ink = images[:, 0]
    y, x = torch.arange(H, dtype=ink.dtype), torch.arange(W, dtype=ink.dtype)
    total = ink.sum((1, 2)).clamp_min(_INK)
    # Sums along one image, and no matrix products: how these round depends on the other images.
    rows, columns = ink.sum(2), ink.sum(1)
    middle_y, middle_x = (rows * y).sum(1) / total, (columns * x).sum(1) / total
    down, across = y - middle_y[:, None], x - middle_x[:, None]
    height = (rows * down**2).sum(1) / total
    slant = ((ink * down[:, :, None]).sum(1) * across).sum(1) / total
    shear = (slant / height.clamp_min(1.0)).clamp(-MOST_SHEAR, MOST_SHEAR)
    found = torch.zeros(len(images), 2, 3)
    found[:, 0, 0] = found[:, 1, 1] = 1
    found[:, 0, 1] = shear * H / W
    found[:, 0, 2] = 2 * (middle_x - (W - 1) / 2) / W
    found[:, 1, 2] = 2 * (middle_y - (H - 1) / 2) / H
    # An empty image has no centre of mass, so it is not moved.
    found[ink.sum((1, 2)) < _INK] = torch.eye(3)[:2]
    return found


# Images of random pen strokes: statistics like those of handwriting, without any real writing.


IMAGES, SEED = 6000, 11
FILLED = 20 / 28  # size of a drawing, relative to the image's shorter side
NARROWEST, WIDEST = 0.7 / 28, 1.5 / 28  # half the pen's width, in the same unit
EDGE = 1 / 28  # width over which ink fades, in the same unit
SECOND_STROKE = 0.4  # probability of a second stroke
SLIMNESS = 0.75  # ratio of width to height of the box of control points
_POINTS = 80  # points of a curve


def pen_strokes(
    height: int, width: int, images: int = IMAGES, seed: int = SEED
) -> NDArray[np.float32]:
    """Random drawings, bright on dark.

    Returns:
        float32 in [0, 1], (images, 1, height, width).
    """
    random = np.random.default_rng(seed)
    side = min(height, width)
    middle = (np.array([height, width]) - 1) / 2
    out = np.empty((images, 1, height, width), np.float32)
    for image in out:
        strokes = 2 if random.random() < SECOND_STROKE else 1
        points = np.concatenate([_curve(random) for _ in range(strokes)])
        pen = random.uniform(NARROWEST, WIDEST) * side
        low, high = points.min(0), points.max(0)
        frame = FILLED * side - 2 * pen
        points = (points - (low + high) / 2) * (
            frame / max(float((high - low).max()), 0.2)
        ) + middle
        down, across = (
            (np.arange(n)[:, None] - points[:, axis]) ** 2 for axis, n in enumerate((height, width))
        )
        distance = np.sqrt((down[:, None] + across).min(-1))
        image[0] = np.clip(1 - (distance - pen) / (EDGE * side), 0, 1)
    return out


def _curve(random: np.random.Generator) -> NDArray[np.float64]:
    """Points (80, 2) of a cubic B-spline through a box, from three to six control points."""
    control = random.uniform(0, 1, (int(random.integers(3, 7)), 2)) * [1.0, SLIMNESS]
    control = np.concatenate([control[:1], control[:1], control, control[-1:], control[-1:]])
    at = np.linspace(0, len(control) - 3, _POINTS, endpoint=False)
    first = at.astype(int)
    t = (at - first)[:, None]
    weights = ((1 - t) ** 3, 3 * t**3 - 6 * t**2 + 4, -3 * t**3 + 3 * t**2 + 3 * t + 1, t**3)
    curve: NDArray[np.float64] = sum(
        (w * control[first + i] for i, w in enumerate(weights)), np.zeros((1, 2))
    )
    return curve / 6
