from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from forethought.rounds.randomness import CHUNK, GaussianNoise


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_is_normal_with_its_scale(dtype: torch.dtype) -> None:
    """Kolmogorov-Smirnov against N(0, 2.5²) across chunk borders, false-alarm rate 1e-6."""
    size = CHUNK + 1234
    vector = torch.full((size,), 3.0, dtype=dtype)
    GaussianNoise().add_to(vector, 2.5, np.random.default_rng(0))
    drawn = (vector.double() - 3).numpy()
    assert stats.kstest(drawn / 2.5, "norm").pvalue > 1e-6
    # Chunks do not repeat each other.
    assert not np.array_equal(drawn[:1234], drawn[CHUNK:])


def test_noise_is_that_of_the_generator() -> None:
    vector = torch.zeros(10, dtype=torch.float64)
    GaussianNoise().add_to(vector, 0.5, np.random.default_rng(7))
    expected = 0.5 * np.random.default_rng(7).standard_normal(10)
    assert np.array_equal(vector.numpy(), expected)


@pytest.mark.parametrize("size", [20, CHUNK, 2 * CHUNK + 77])
def test_no_two_coordinates_have_one_number(size: int) -> None:
    """Equal doubles among so few draws come by chance with a probability below 1e-6."""
    vector = torch.zeros(size, dtype=torch.float64)
    GaussianNoise().add_to(vector, 1.0, np.random.default_rng(3))
    assert len(vector.unique()) == size
