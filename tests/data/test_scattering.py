"""Scattering against kymatio, and against its own definition by slow convolution in space.

``scattering_kymatio.npz`` was made once with kymatio 0.3.0 (SciPy 1.14.1, NumPy 1.26.4; later SciPy
releases no longer let kymatio import): for each case, random bytes ``images`` and ::

    ScatteringNumPy2D(J=J, shape=images.shape[1:], L=L)(images.astype(np.float32) / np.float32(255))
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from drawn import rand, randn
from forethought.data.scattering import channels, group_normalised, scatter

FIXTURE = Path(__file__).parent / "scattering_kymatio.npz"
CASES = [("square", 2, 8), ("colour", 2, 8), ("odd", 2, 8), ("small", 2, 8), ("deep", 3, 4)]


@pytest.mark.parametrize(("case", "scales", "angles"), CASES)
def test_agrees_with_kymatio_to_single_precision(case: str, scales: int, angles: int) -> None:
    with np.load(FIXTURE) as fixture:
        images, expected = fixture[f"{case}_images"], fixture[f"{case}_features"]
    planes = torch.from_numpy(images.astype(np.float32) / np.float32(255))[:, None]
    found = scatter(planes, scales=scales, angles=angles).numpy()
    assert found.shape == expected.shape
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def _convolve(image: NDArray[np.float64], kernel: NDArray[np.complex128]) -> NDArray[np.complex128]:
    """Circular convolution, sample by sample."""
    M, N = image.shape
    out = np.zeros((M, N), complex)
    for m in range(M):
        for n in range(N):
            out += image[m, n] * np.roll(kernel, (m, n), (0, 1))
    return out


def _bell(side: int, sigma: float) -> NDArray[np.float64]:
    at = np.arange(side)
    periods = np.arange(-2, 3)[:, None] * side
    return np.exp(-((at + periods) ** 2) / (2 * sigma**2)).sum(0) / math.sqrt(2 * 3.1415 * sigma**2)


def test_order_zero_and_one_are_what_the_definition_says() -> None:
    image = np.random.default_rng(1).random((8, 8))
    padded = np.pad(image, 4, mode="reflect")
    low = np.outer(_bell(16, 1.6), _bell(16, 1.6)).astype(complex)
    order0 = _convolve(padded, low).real[4:-4:4, 4:-4:4]
    # The finest wavelet of the fourth direction, θ = 3π/8 − 3π/8 = 0: it points down the rows.
    y = (np.arange(16) + np.arange(-2, 3)[:, None] * 16).ravel()[:, None]
    x = y.T
    envelope = np.exp(-(y**2 + x**2 / 4) / (2 * 0.8**2)) / (2 * 3.1415 * 0.8**2 / 0.5)

    def periodic(wave: NDArray[np.complex128]) -> NDArray[np.complex128]:
        return wave.reshape(5, 16, 5, 16).sum((0, 2))

    bell, gabor = periodic(envelope), periodic(envelope * np.exp(0.75j * math.pi * y))
    response = np.abs(_convolve(padded, gabor - gabor.sum() / bell.sum() * bell))
    order1 = _convolve(response, low).real[4:-4:4, 4:-4:4]
    found = scatter(torch.tensor(image, dtype=torch.float32)[None, None])[0].numpy()
    np.testing.assert_allclose(found[0], order0, atol=1e-6)
    np.testing.assert_allclose(found[1 + 3], order1, atol=1e-6)


def test_shapes_channels_and_planes() -> None:
    images = rand(3, 2, 20, 24)
    features = scatter(images)
    assert features.shape == (3, 2 * 81, 5, 6)
    assert channels(2, 8) == 81
    assert channels(3, 4) == 61
    torch.testing.assert_close(features[:, 81:], scatter(images[:, 1:]), rtol=0, atol=1e-6)


def test_chunks_change_nothing() -> None:
    images = rand(7, 1, 12, 12)
    torch.testing.assert_close(
        scatter(images, chunk=2), scatter(images, chunk=16), atol=1e-6, rtol=0
    )


def test_a_constant_image_excites_no_wavelet() -> None:
    features = scatter(torch.full((1, 1, 16, 16), 0.5))[0]
    torch.testing.assert_close(features[0], torch.full((4, 4), 0.5), atol=1e-4, rtol=0)
    assert features[1:].abs().max() < 1e-4


def test_normalisation_stays_within_each_example() -> None:
    features = randn(5, 81, 3, 3) * 7 + 2
    normal = group_normalised(features, 27)
    groups = normal.reshape(5, 27, -1)
    torch.testing.assert_close(groups.mean(-1), torch.zeros(5, 27), atol=1e-5, rtol=0)
    torch.testing.assert_close(groups.var(-1, correction=0), torch.ones(5, 27), atol=1e-3, rtol=0)
    torch.testing.assert_close(normal[2:3], group_normalised(features[2:3], 27))


def test_refuses_what_is_no_image() -> None:
    with pytest.raises(ValueError, match=r"\(N, C, H,"):
        scatter(torch.zeros(3, 28, 28))
    with pytest.raises(ValueError, match="than 4 pixels"):
        scatter(torch.zeros(1, 1, 4, 28))
    with pytest.raises(ValueError, match="at least 1"):
        scatter(torch.zeros(1, 1, 28, 28), scales=0)


def test_no_images_have_no_features() -> None:
    assert scatter(torch.zeros(0, 3, 28, 28)).shape == (0, 3 * channels(), 7, 7)
