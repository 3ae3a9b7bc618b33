"""Features of handwriting: scattering of deskewed images, evened out by drawings of a random pen.

Private gradient descent takes few, noisy steps. Where the features of all records share a large
mean and a few strong directions, these take up the clipping norm and limit the step, and what
tells the classes apart drowns. Statistics of the private records would have to be paid for; those
of random drawings in the middle of the image (:mod:`forethought.data.pen_strokes`) are nearly as
good, and free: of deskewed digits' squared norm they leave six hundredths in the mean, where
statistics of strokes all over the image (:mod:`forethought.data.decorrelation`) leave four tenths.

With Σ the covariance of the drawings' features, over channels and places together, features are
multiplied by ((Σ + ridge) / (tail + ridge))^(−1/4), where all but the strongest directions of Σ are
taken for their mean, the tail.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from forethought.data import deskewing, pen_strokes, scattering
from forethought.data.deskewing import deskewed
from forethought.data.files import cache_folder, keep_array, kept_array
from forethought.data.scattering import channels, group_normalised, scatter

SCALES, ANGLES = 2, 8
GROUPS = 27  # of three channels, as for scattering by itself
DIRECTIONS, SPARE = 256, 40  # of Σ; and how many more are iterated, so that these converge
PASSES = 4
RIDGE, POWER = 0.3, 0.25
_PART = 2000  # images at a time: bounds memory


def shape_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of the features of images (N, 1, H, W)."""
    return (shape[0], channels(SCALES, ANGLES), shape[2] // 2**SCALES, shape[3] // 2**SCALES)


def handwriting_features(images: torch.Tensor) -> torch.Tensor:
    """Features of every image by itself.

    Args:
        images: float32 in [0, 1], (N, 1, H, W), ink bright on dark ground.

    Returns:
        float32, (N, 81, H // 4, W // 4), each image of norm 1 less what truncation to the eight
        bits of bfloat16 takes.
    """
    out = torch.empty(shape_of(tuple(images.shape)))
    mean, directions, factors = evening(*images.shape[2:])
    for start in range(0, len(images), _PART):
        part = _scattered(images[start : start + _PART]).flatten(1) - mean
        part += (part @ directions * factors) @ directions.T
        part /= part.norm(dim=1, keepdim=True).clamp_min(1e-6)
        # Truncated, not rounded: the norm stays at most 1.
        part.view(torch.int32).bitwise_and_(-0x10000)
        out[start : start + _PART] = part.view(-1, *out.shape[1:])
    return out


@lru_cache(maxsize=2)
def evening(height: int, width: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of the drawings' features: mean (d,), directions (d, 256), and what is added along them.

    A direction's part is multiplied by 1 + factor. Kept in the cache folder, under a name that
    changes with the code that makes them and with torch's version: bit for bit what is computed.
    """
    path = path_of(height, width)
    known = None if path is None else kept_array(path, np.float32)
    if known is None:
        mean, directions, factors = computed_for(height, width)
        known = np.zeros((len(mean) + 1, len(factors) + 1), np.float32)
        known[:-1, 0], known[:-1, 1:] = mean.numpy(), directions.numpy()
        known[-1, 1:] = factors.numpy()
        if path is not None:
            keep_array(path, known)
    parts = known[:-1, 0], known[:-1, 1:], known[-1, 1:]
    # Laid out as computed: products of what lies otherwise differ in their last bits.
    mean, directions, factors = (torch.from_numpy(np.ascontiguousarray(part)) for part in parts)
    return mean, directions, factors


def path_of(height: int, width: int) -> Path | None:
    folder = cache_folder()
    if folder is None:
        return None
    digest = hashlib.sha256(f"{torch.__version__} {np.__version__}".encode())
    try:
        (folder / "constants").mkdir(parents=True, exist_ok=True, mode=0o700)
        for source in (__file__, deskewing.__file__, pen_strokes.__file__, scattering.__file__):
            digest.update(Path(source).read_bytes())
    except OSError:
        return None
    name = f"handwriting-{height}x{width}-{digest.hexdigest()[:16]}.npy"
    return folder / "constants" / name


def computed_for(height: int, width: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Subspace iteration from a fixed start, so that the same machine gives the same numbers."""
    features = _scattered(torch.from_numpy(pen_strokes.pen_strokes(height, width))).flatten(1)
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
    coefficients = scatter(deskewed(images), scales=SCALES, angles=ANGLES)
    return group_normalised(coefficients, GROUPS)
