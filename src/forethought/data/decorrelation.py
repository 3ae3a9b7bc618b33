"""A fixed linear map that decorrelates scattering channels, learned from synthetic strokes only.

Scattering channels are strongly correlated, in much the same way on all images with edges. Private
gradient descent suffers from it twice: few noisy rounds cannot follow the flat directions, and the
common part of the features takes up the clipping norm. Decorrelating with statistics of the private
data would leak; statistics of *other* images do nearly as well. Here these are random strokes drawn
from a fixed seed, so that no record of any data set is read.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from scipy.ndimage import gaussian_filter

from forethought.data.scattering import channels, group_normalised, scatter

IMAGES, SEED = 2000, 7
WIDTH = 2.0  # of the smooth random fields whose level lines are the strokes, in pixels
# Σ is replaced by (Σ + RIDGE)^(−POWER): the usual −1/2, with weak directions held back by a ridge.
RIDGE, POWER = 0.1, 0.5


def strokes(height: int, width: int, images: int = IMAGES, seed: int = SEED) -> torch.Tensor:
    """Random curved strokes: bright level lines of smooth random fields, (images, 1, H, W)."""
    random = np.random.default_rng(seed)
    noise = random.standard_normal((images, height, width))
    fields = gaussian_filter(noise, (0, WIDTH, WIDTH))
    fields /= fields.std((1, 2), keepdims=True)
    lines = np.clip(1.2 - 3 * np.abs(fields), 0, 1)
    return torch.from_numpy(lines.astype(np.float32))[:, None]


@lru_cache(maxsize=4)
def decorrelation(
    height: int, width: int, scales: int, angles: int, groups: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean (channels, h, w) and symmetric matrix (channels, channels) for one plane of an image."""
    features = group_normalised(
        scatter(strokes(height, width), scales=scales, angles=angles), groups
    ).double()
    mean = features.mean(0)
    rows = (features - mean).movedim(1, -1).reshape(-1, channels(scales, angles))
    values, vectors = torch.linalg.eigh(rows.T @ rows / len(rows))
    matrix = vectors * (values.clamp_min(0) + RIDGE) ** -POWER @ vectors.T
    return mean.float(), matrix.float()


def decorrelated(
    features: torch.Tensor, height: int, width: int, *, scales: int, angles: int, groups: int
) -> torch.Tensor:
    """Group-normalised scattering features, centred and decorrelated by the constants above.

    Args:
        features: float32, (N, C · channels, h, w), of images of ``height`` × ``width`` pixels that
            were normalised in ``groups`` groups for each plane.

    Returns:
        float32 of the same shape; every plane of an image is treated alike.
    """
    mean, matrix = decorrelation(height, width, scales, angles, groups)
    planes = features.reshape(-1, *mean.shape)
    out = torch.empty_like(planes)
    for start in range(0, len(planes), 1024):  # bounds memory
        part = (planes[start : start + 1024] - mean).flatten(2)
        out[start : start + 1024] = (matrix @ part).view(-1, *mean.shape)
    return out.reshape(features.shape)
