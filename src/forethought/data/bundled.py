"""Data sets that ship with scikit-learn: they work on any machine, offline."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from forethought.data.dataset import Dataset, Split, split_off
from forethought.data.idx import usual_norm_of_pixels

# Upper bounds of breast-cancer's ten measurements: round numbers at or above the ranges printed in
# the data set's public description, so that no constant comes from the rows loaded. Each line is
# mean, standard error and worst value of one measurement.
BOUNDS = {
    "radius": (30, 3, 40),
    "texture": (40, 5, 50),
    "perimeter": (200, 25, 300),
    "area": (3000, 600, 5000),
    "smoothness": (0.2, 0.04, 0.25),
    "compactness": (0.4, 0.15, 1.2),
    "concavity": (0.5, 0.4, 1.3),
    "concave points": (0.25, 0.06, 0.3),
    "symmetry": (0.4, 0.08, 0.7),
    "fractal dimension": (0.1, 0.03, 0.25),
}


def load_digits(name: str, folder: Path | None, holdout: float | None) -> Dataset:
    """1,797 handwritten digits of 8 × 8 pixels, (N, 1, 8, 8) in [0, 1] (Alpaydin, Kaynak 1998)."""
    from sklearn.datasets import load_digits as fetch

    images, labels = fetch(return_X_y=True)
    inputs = (images / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    train, test = split_off(Split(inputs, labels.astype(np.int64)), holdout)
    note = "pixels divided by 16, their largest value"
    norm = usual_norm_of_pixels(inputs.shape)
    return Dataset(name, train, test, 10, (note,), feature_norm=norm)


def load_breast_cancer(name: str, folder: Path | None, holdout: float | None) -> Dataset:
    """569 tumours by 30 measurements in [−1, 1]; class 1 is benign (Street et al. 1993)."""
    from sklearn.datasets import load_breast_cancer as fetch

    features, labels = fetch(return_X_y=True)
    bounds = np.array(list(BOUNDS.values())).T.ravel()
    inputs = (2 * np.clip(features / bounds, 0, 1) - 1).astype(np.float32)
    train, test = split_off(Split(inputs, labels.astype(np.int64)), holdout)
    note = "measurements scaled from [0, bound] to [−1, 1] by fixed public bounds, and clipped"
    norm = math.sqrt(inputs.shape[1] / 3)
    return Dataset(name, train, test, 2, (note,), feature_norm=norm)
