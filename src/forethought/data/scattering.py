"""Wavelet scattering of images on torch's FFT: fixed features, independent of private data.

A scattering network (Bruna and Mallat 2013; Oyallon and Mallat 2015) averages the moduli of
wavelet coefficients: order 0 is the local mean φ*x, order 1 is φ*|ψ₁*x|, order 2 is
φ*|ψ₂*|ψ₁*x||. Its filters are constants, so a private linear model behind it spends its whole
budget on one small layer (Tramèr and Boneh 2021). The filters, the reflecting border and the order
of the channels are those of kymatio's ``Scattering2D`` (Andreux et al. 2020): the numbers agree to
single precision.

Convolutions with ψ are products of spectra, downsampled by folding the spectrum. The average with φ
is separable and its result is on a coarse grid, so two small matrix products replace two
transforms.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter
from torch.nn import functional

# kymatio normalises its filters with this truncated π; the exact value changes features by 3e-5.
_PI_OF_NORM = 3.1415
_REPEATS = (-2, -1, 0, 1, 2)  # periods of the padded grid that are summed into a periodic filter

Grid = tuple[int, int]
SCALES, ANGLES = 2, 8  # the defaults, used for features of data sets
GROUP, GROUPS = 3, 27  # channels that are normalised together, and groups of each plane


def channels(scales: int = SCALES, angles: int = ANGLES) -> int:
    """The number of features of one pixel plane: 1 + J·L + L²·J(J−1)/2; 81 by default."""
    return 1 + scales * angles + angles**2 * scales * (scales - 1) // 2


def shape_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of the coefficients of images (N, C, H, W), for the default scales and angles."""
    N, C, H, W = shape
    return (N, C * channels(SCALES, ANGLES), H // 2**SCALES, W // 2**SCALES)


def scatter(
    images: torch.Tensor, *, scales: int = SCALES, angles: int = ANGLES, chunk: int = 16
) -> torch.Tensor:
    """Scattering coefficients of every plane of every image.

    Args:
        images: float32, (N, C, H, W).
        scales: J; the average spans about 2^J pixels and the result is 2^J times coarser.
        angles: L, the number of wavelet directions.
        chunk: planes transformed at a time. It bounds memory and changes nothing else.

    Returns:
        float32, (N, C · channels(J, L), H // 2^J, W // 2^J). For each plane of the image: order 0,
        order 1 by (scale, angle), order 2 by (scale, angle, coarser scale, angle).

    Raises:
        ValueError: not four dimensions, or a side of at most 2^J pixels.
    """
    if images.ndim != 4:
        raise ValueError(f"scattering takes images (N, C, H, W), not shape {tuple(images.shape)}")
    if scales < 1 or angles < 1 or chunk < 1:
        raise ValueError("scales, angles and chunk must be at least 1")
    N, C, H, W = images.shape
    if min(H, W) <= 2**scales:
        raise ValueError(
            f"scattering over {scales} scales needs images of more than {2**scales} pixels a side, "
            f"not {H} × {W}: use fewer scales or larger images"
        )
    filters = _Filters(H, W, scales, angles)
    planes = images.to(torch.float32).reshape(N * C, H, W)
    out = torch.empty(N * C, channels(scales, angles), *filters.coarse, dtype=torch.float32)
    for start in range(0, N * C, chunk):
        _scatter_planes(planes[start : start + chunk], filters, out[start : start + chunk])
    return out.reshape(N, C * channels(scales, angles), *filters.coarse)


def group_normalised(features: torch.Tensor, groups: int) -> torch.Tensor:
    """Each example separately: every group of channels normalised to mean 0 and variance 1.

    Group normalisation without trained scale and shift, as Tramèr and Boneh (2021) use it after
    scattering. No statistic mixes examples, so it costs no privacy; and the features of all
    examples get nearly the same norm, so that clipping treats them alike.

    Args:
        features: (N, channels, H, W); ``groups`` divides ``channels``.
    """
    return functional.group_norm(features, groups)


def _scatter_planes(planes: torch.Tensor, filters: _Filters, out: torch.Tensor) -> None:
    J, L = filters.scales, filters.angles
    padded = functional.pad(planes[:, None], filters.border, mode="reflect")[:, 0]
    out[:, 0] = filters.average(padded, 0)
    spectrum = torch.fft.fft2(padded)
    first, second = 1, 1 + J * L
    for j1 in range(J):
        wave = _filtered(spectrum[:, None], filters.psi[j1][0], 2**j1)
        envelope = _moduli(torch.fft.ifft2(wave))
        out[:, first : first + L] = filters.average(envelope, j1)
        first += L
        if j1 == J - 1:
            break
        inner = torch.fft.fft2(envelope)
        block = (J - 1 - j1) * L
        paths = out[:, second : second + L * block].view(-1, L, block, *filters.coarse)
        for j2 in range(j1 + 1, J):
            wave = _filtered(inner[:, :, None], filters.psi[j2][j1], 2 ** (j2 - j1))
            envelope = _moduli(torch.fft.ifft2(wave))
            at = (j2 - j1 - 1) * L
            paths[:, :, at : at + L] = filters.average(envelope, j2)
        second += L * block


def _filtered(spectrum: torch.Tensor, psi: torch.Tensor, factor: int) -> torch.Tensor:
    """Spectrum of the wavelet's response, ``factor`` times coarser in space.

    Downsampling in space averages the aliases of the spectrum. Summing the aliases of the product
    block by block is several times faster than computing the product and reducing it.
    """
    # ψ is real, and stored twice, for the real and the imaginary parts: products of real numbers
    # are three times faster than torch's complex products.
    pairs = torch.view_as_real(spectrum)
    if factor == 1:
        return torch.view_as_complex(pairs * psi)
    M, N = psi.shape[-3] // factor, psi.shape[-2] // factor
    weights = psi / factor**2
    blocks = [
        (slice(row * M, (row + 1) * M), slice(column * N, (column + 1) * N), slice(None))
        for row in range(factor)
        for column in range(factor)
    ]
    total = pairs[(..., *blocks[0])] * weights[(..., *blocks[0])]
    for block in blocks[1:]:
        total.addcmul_(pairs[(..., *block)], weights[(..., *block)])
    return torch.view_as_complex(total)


def _moduli(waves: torch.Tensor) -> torch.Tensor:
    """Like ``abs``, without its guard against overflow, which is 2.5 × slower and not needed."""
    real, imaginary = torch.view_as_real(waves).unbind(-1)
    return real.square().addcmul_(imaginary, imaginary).sqrt_()


class _Filters:
    """Spectra of the wavelets and matrices of the average for one size of image."""

    def __init__(self, height: int, width: int, scales: int, angles: int) -> None:
        self.scales, self.angles = scales, angles
        step = 2**scales
        M, N = (((side + step) // step + 1) * step for side in (height, width))
        down, across = M - height, N - width
        self.border = (across // 2, (across + 1) // 2, down // 2, (down + 1) // 2)
        self.coarse = (M // step - 2, N // step - 2)
        self.psi = _wavelets(M, N, scales, angles)
        self._rows, self._columns = _averages(M, scales), _averages(N, scales)

    def average(self, envelope: torch.Tensor, level: int) -> torch.Tensor:
        """φ * envelope on the coarse grid without its border; ``envelope`` is 2^level coarser."""
        return self._rows[level] @ (envelope @ self._columns[level].T)


@lru_cache(maxsize=8)
def _wavelets(M: int, N: int, scales: int, angles: int) -> list[list[torch.Tensor]]:
    """Spectra of ψ by scale j and by the resolution of the signals that they are applied to.

    Each is (angles, M/2^res, N/2^res, 2), every number twice: see :func:`_filtered`.
    """
    wavelets = []
    for j in range(scales):
        spectra = []
        for angle in range(angles):
            theta = (int(angles - angles / 2 - 1) - angle) * math.pi / angles
            wave = _morlet((M, N), 0.8 * 2**j, theta, 0.75 * math.pi / 2**j, 4 / angles)
            # The imaginary part is only rounding, since ψ is Hermitian in space.
            spectra.append(np.fft.fft2(wave).real)
        stack = np.stack(spectra)
        wavelets.append(
            [
                torch.from_numpy(_periodised(_periodised(stack, res, -1), res, -2).repeat(2, -1))
                .float()
                .view(angles, M >> res, N >> res, 2)
                for res in range(max(j, 1))
            ]
        )
    return wavelets


@lru_cache(maxsize=8)
def _averages(side: int, scales: int) -> list[torch.Tensor]:
    """Matrix by level: φ, every 2^(scales−level)-th sample, without a border of one sample."""
    sigma = 0.8 * 2 ** (scales - 1)
    at = np.arange(side)
    bell = sum(np.exp(-((at + period * side) ** 2) / (2 * sigma**2)) for period in _REPEATS)
    spectrum = np.fft.fft(bell / math.sqrt(2 * _PI_OF_NORM * sigma**2)).real
    matrices = []
    for level in range(scales):
        kernel = np.fft.ifft(_periodised(spectrum, level, -1)).real
        size, step = side >> level, 2 ** (scales - level)
        to = np.arange(size // step)[1:-1, None] * step
        matrices.append(torch.from_numpy(kernel[(to - np.arange(size)) % size]).float())
    return matrices


def _morlet(
    shape: Grid, sigma: float, theta: float, xi: float, slant: float
) -> NDArray[np.complex128]:
    """A Gabor wave minus the multiple of its envelope that makes its mean zero."""
    wave = _gabor(shape, sigma, theta, xi, slant)
    envelope = _gabor(shape, sigma, theta, 0.0, slant)
    return wave - wave.sum() / envelope.sum() * envelope


def _gabor(
    shape: Grid, sigma: float, theta: float, xi: float, slant: float
) -> NDArray[np.complex128]:
    """exp(−uᵀΣ⁻¹u/2 + i ξ·u), periodic on the grid; ``slant`` stretches it across its direction."""
    M, N = shape
    cos, sin = math.cos(theta), math.sin(theta)
    turn = np.array([[cos, -sin], [sin, cos]])
    curvature = turn @ np.diag([1, slant**2]) @ turn.T / (2 * sigma**2)
    y = np.add.outer(np.array(_REPEATS) * M, np.arange(M)).reshape(-1, 1)
    x = np.add.outer(np.array(_REPEATS) * N, np.arange(N)).reshape(1, -1)
    square = curvature[0, 0] * y * y + 2 * curvature[0, 1] * y * x + curvature[1, 1] * x * x
    wave = np.exp(-square + 1j * xi * (y * cos + x * sin))
    periods = len(_REPEATS)
    wave = wave.reshape(periods, M, periods, N).sum((0, 2))
    return np.divide(wave, 2 * _PI_OF_NORM * sigma**2 / slant)


def _periodised(spectrum: NDArray[np.float64], res: int, axis: int) -> NDArray[np.float64]:
    """The spectrum for a signal 2^res coarser: cut at the new limit, then folded."""
    if res == 0:
        return spectrum
    side = spectrum.shape[axis]
    keep = np.ones(side)
    # The new Nyquist frequency itself: its lower alias is dropped, its upper one kept.
    start = side >> (res + 1)
    keep[start : start + int(side * (1 - 2.0**-res))] = 0
    moved = np.moveaxis(spectrum, axis, -1) * keep
    folded = moved.reshape(*moved.shape[:-1], 2**res, side >> res).sum(-2)
    return np.moveaxis(folded, -1, axis)


# A fixed linear map that decorrelates scattering channels, learned from synthetic strokes only.


IMAGES, SEED = 2000, 7
WIDTH = 2.0  # pixels, of the smooth random fields whose level lines are the strokes
# The matrix is (Σ + RIDGE)^(−POWER): the usual power −1/2, with a ridge that limits weak
# directions.
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
    """Mean (channels, h, w) and symmetric matrix (channels, channels) of an image plane."""
    features = group_normalised(
        scatter(strokes(height, width), scales=scales, angles=angles), groups
    ).double()
    mean = features.mean(0)
    rows = (features - mean).movedim(1, -1).reshape(-1, channels(scales, angles))
    values, vectors = torch.linalg.eigh(rows.T @ rows / len(rows))
    matrix = vectors * (values.clamp_min(0) + RIDGE) ** -POWER @ vectors.T
    return mean.float(), matrix.float()


def scattering_features(images: torch.Tensor) -> torch.Tensor:
    """Scattering of images, group-normalised, centred and decorrelated by the constants above.

    Args:
        images: float32, (N, C, H, W).

    Returns:
        float32, of :func:`shape_of`; all planes of an image are treated alike.
    """
    features = group_normalised(scatter(images), images.shape[1] * GROUPS)
    mean, matrix = decorrelation(*images.shape[2:], SCALES, ANGLES, GROUPS)
    planes = features.reshape(-1, *mean.shape)
    out = torch.empty_like(planes)
    for start in range(0, len(planes), 1024):  # bounds memory
        part = (planes[start : start + 1024] - mean).flatten(2)
        out[start : start + 1024] = (matrix @ part).view(-1, *mean.shape)
    return out.reshape(features.shape)
