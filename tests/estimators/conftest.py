"""Small data that several files fit."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

Table = tuple[NDArray[np.float64], NDArray[np.int64]]


@pytest.fixture(scope="session")
def table() -> Table:
    """200 rows of three columns inside [−1, 1], and labels that a line tells apart."""
    generator = np.random.default_rng(0)
    X = generator.uniform(-1, 1, (200, 3))
    return X, (X @ [3.0, -2.0, 0.5] + 0.3 > 0).astype(np.int64)
